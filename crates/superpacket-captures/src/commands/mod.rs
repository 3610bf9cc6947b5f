//! The commands of the superpacket program on captures, each as a function that a program can call.

mod analyze;
mod check;
mod checksums;
mod coalesce;
mod destination;
mod error;
mod explain;
mod filter;
mod in_order;
mod index;
mod input;
mod lanes;
mod ledger;
mod packets;
mod pool;
pub mod present;
mod progress;
mod recording;
mod repair;
mod rotated;
mod segment;
mod sink;
mod source;
mod steer;
mod totals;
mod verify;
mod waiting;
#[doc(hidden)]
pub use analyze::words as analyze_words;
pub use analyze::{
    AnalyzeOptions, AnalyzeReport, CaptureFlows, Corpus, Counts, Cuts, Effect, Effects,
    FileAnalysis, Findings, FlowCell, FlowEffect, FlowReceiver, FlowRow, Held, MAX_LISTED_FLOWS,
    PacketsRow, PartAnalysis, PartOptions, Rows, Sizes, Timeline, TopFlow, Traffic, analyze,
    analyze_flows, analyze_part,
};
pub use check::{
    CheckOptions, CheckReport, NotJudged, Rule, Strictness, Verdict, Violation, check,
};
pub use coalesce::{CoalesceOptions, CoalesceReport, Rules, coalesce};
pub use destination::Output;
pub use error::Error;
pub use explain::{explain, is_never_held};
pub use index::{Index, IndexOptions, IndexedPlace, index};
pub use input::Input;
pub use lanes::{MAX_FLOWS, MAX_PACKETS, Stepping};
pub use packets::Packets;
pub use progress::{INTERVAL, Progress};
pub use repair::{ChecksumCounts, ChecksumRepairs};
pub use segment::{SegmentOptions, SegmentReport, segment};
pub use sink::PacketSink;
pub use steer::{
    CpuShare, FlowLimited, LeftOut, SteerOptions, SteerReport, SteeredFlow, steer,
    words as steer_words,
};
pub use superpacket_steer::{CpuMask, ToeplitzKey};
pub use totals::{CutShort, Totals, Unreadable};
pub use verify::{FileVerification, VerifyOptions, VerifyReport, verify};
