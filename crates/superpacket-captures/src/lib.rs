#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod file;

#[cfg(feature = "commands")]
mod analyze;
#[cfg(feature = "commands")]
mod check;
#[cfg(feature = "commands")]
mod coalesce;
#[cfg(feature = "commands")]
mod destination;
#[cfg(feature = "commands")]
mod error;
#[cfg(feature = "commands")]
pub mod figures;
#[cfg(feature = "commands")]
mod index;
#[cfg(feature = "commands")]
mod input;
#[cfg(feature = "commands")]
mod lanes;
#[cfg(feature = "commands")]
mod ledger;
#[cfg(feature = "commands")]
mod packets;
#[cfg(feature = "commands")]
#[doc(hidden)]
pub mod page;
#[cfg(feature = "commands")]
mod partial;
#[cfg(feature = "commands")]
#[doc(hidden)]
pub mod plot;
#[cfg(feature = "commands")]
mod pool;
#[cfg(feature = "commands")]
mod progress;
#[cfg(feature = "commands")]
mod segment;
#[cfg(feature = "commands")]
mod sink;
#[cfg(feature = "commands")]
mod steer;
#[cfg(feature = "commands")]
mod totals;
#[cfg(feature = "commands")]
mod verify;
#[cfg(feature = "commands")]
#[doc(hidden)]
pub use analyze::words as analyze_words;
#[cfg(feature = "commands")]
pub use analyze::{
    AnalyzeOptions, AnalyzeReport, Corpus, Counts, Cuts, Effect, Effects, FileAnalysis, Findings,
    FlowRow, Held, PacketsRow, PartAnalysis, PartOptions, Rows, Sizes, Timeline, TopFlow, Traffic,
    analyze, analyze_part,
};
#[cfg(feature = "commands")]
pub use check::{
    CheckOptions, CheckReport, NotJudged, Rule, Strictness, Verdict, Violation, check,
};
#[cfg(feature = "commands")]
pub use coalesce::{CoalesceOptions, CoalesceReport, Rules, coalesce};
#[cfg(feature = "commands")]
pub use destination::Output;
#[cfg(feature = "commands")]
pub use error::Error;
#[cfg(feature = "commands")]
pub use index::{Index, IndexOptions, IndexedPlace, index};
#[cfg(feature = "commands")]
pub use input::Input;
#[cfg(feature = "commands")]
pub use lanes::{MAX_FLOWS, MAX_PACKETS, Stepping};
#[cfg(feature = "commands")]
pub use packets::Packets;
#[cfg(feature = "commands")]
pub use progress::{INTERVAL, Progress};
#[cfg(feature = "commands")]
pub use segment::{SegmentOptions, SegmentReport, segment};
#[cfg(feature = "commands")]
pub use sink::PacketSink;
#[cfg(feature = "commands")]
pub use steer::{
    CpuShare, FlowLimited, LeftOut, SteerOptions, SteerReport, SteeredFlow, steer,
    words as steer_words,
};
#[cfg(feature = "commands")]
pub use superpacket_steer::{CpuMask, ToeplitzKey};
#[cfg(feature = "commands")]
pub use totals::{CutShort, Totals, Unreadable};
#[cfg(feature = "commands")]
pub use verify::{FileVerification, VerifyOptions, VerifyReport, verify};

pub use file::{CaptureError, Interface, LinkType, Place, Reader, Record, Truncated};
