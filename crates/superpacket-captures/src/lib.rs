#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod analyze;
mod coalesce;
mod destination;
mod error;
pub mod figures;
mod input;
mod lanes;
mod ledger;
mod packets;
#[doc(hidden)]
pub mod page;
mod partial;
#[doc(hidden)]
pub mod plot;
mod pool;
mod progress;
mod segment;
mod steer;
mod totals;
mod verify;

#[doc(hidden)]
pub use analyze::words as analyze_words;
pub use analyze::{
    AnalyzeOptions, AnalyzeReport, Counts, Effect, Effects, FileAnalysis, Findings, Sizes, Timeline, TopFlow, Traffic, analyze,
};
pub use coalesce::{CoalesceOptions, CoalesceReport, Rules, coalesce};
pub use destination::{Output, PacketSink};
pub use error::Error;
pub use input::Input;
pub use lanes::{MAX_FLOWS, MAX_PACKETS, Stepping};
pub use packets::Packets;
pub use progress::{INTERVAL, Progress};
pub use segment::{SegmentOptions, SegmentReport, segment};
pub use steer::{CpuShare, FlowLimited, LeftOut, SteerOptions, SteerReport, SteeredFlow, steer, words as steer_words};
pub use superpacket_io::capture::{CaptureError, Interface, LinkType, Reader, Record, Truncated};
pub use superpacket_steer::{CpuMask, ToeplitzKey};
pub use totals::{CutShort, Totals, Unreadable};
pub use verify::{FileVerification, VerifyOptions, VerifyReport, verify};
