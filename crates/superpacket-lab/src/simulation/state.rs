//! What a machine consists of, and what its CPUs are at.

use std::collections::VecDeque;

use superpacket::packet::FlowHash;
use superpacket_steer::{BacklogLimit, CompletionCounts, Place, Steering};

use super::CpuOutcome;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) hash: FlowHash,
    /// Where its process ran last.
    pub(super) process: usize,
    /// Where its last packet's protocol work was done.
    pub(super) protocol: usize,
}

/// A receive queue.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) cpu: usize,
    pub(super) packets: VecDeque<u32>,
    /// Its CPU has been interrupted, and polls or will poll.
    pub(super) polled: bool,
    pub(super) steers: bool,
    pub(super) steering: Steering,
    pub(super) completions: CompletionCounts,
    pub(super) limit: BacklogLimit,
}

/// A packet in a backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) ring: usize,
    pub(super) connection: u32,
}

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Ring(usize),
    Backlog,
}

/// What a CPU is at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A packet in the driver; it goes to this place then.
    Driver {
        packet: Queued,
        place: Place,
        admitted: bool,
    },
    Protocol(Queued),
    /// Inter-processor interrupts at the end of a poll.
    Ipis,
    Process(u32),
}

#[derive(Debug, Default)]
pub(super) struct Processor {
    pub(super) work: Option<Work>,
    /// Rings to be polled.
    pub(super) rings: VecDeque<usize>,
    pub(super) backlog: VecDeque<Queued>,
    /// The backlog is worked off, or an interrupt for it is under way.
    pub(super) backlog_wakes: bool,
    /// An interrupt for it has come.
    pub(super) backlog_ready: bool,
    /// Whose turn it is, and for how many packets more.
    pub(super) turn: Option<(Source, usize)>,
    /// After a ring it is the backlog's turn.
    pub(super) backlog_next: bool,
    /// CPUs to be interrupted at the end of the poll.
    pub(super) to_wake: Vec<usize>,
    pub(super) processes: VecDeque<u32>,
    /// Interrupts taken: time to be added to what comes next.
    pub(super) interrupted: u64,
    /// Time spent.
    pub(super) busy: u64,
    pub(super) outcome: CpuOutcome,
}

impl Processor {
    /// Is it at nothing?
    pub(super) fn is_idle(&self) -> bool {
        self.work.is_none()
    }
}
