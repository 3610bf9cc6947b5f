//! The data types of the simulated machine: connections, receive queues and CPUs with their current
//! work.

use std::collections::VecDeque;

use superpacket::packet::FlowHash;
use superpacket_steer::{BacklogLimit, CompletionCounts, Steering, SteeringTarget};

use super::CpuOutcome;

#[derive(Debug)]
pub(super) struct SimulatedConnection {
    pub(super) hash: FlowHash,
    /// CPU on which the process of the connection last ran.
    pub(super) process: usize,
    /// CPU that did the protocol work of the connection's last packet.
    pub(super) protocol: usize,
}

/// A receive queue.
#[derive(Debug)]
pub(super) struct RxRing {
    pub(super) cpu: usize,
    pub(super) packets: VecDeque<u32>,
    /// Whether the queue's CPU was interrupted, and polls or will poll the queue.
    pub(super) polled: bool,
    pub(super) steers: bool,
    pub(super) steering: Steering,
    pub(super) completions: CompletionCounts,
    pub(super) limit: BacklogLimit,
}

/// A packet in a CPU's backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) ring: usize,
    pub(super) connection: u32,
}

/// A source of packets for a CPU: a receive ring or the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketSource {
    Ring(usize),
    Backlog,
}

/// The current work of a CPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum CpuWork {
    /// Driver work for a packet, which is then steered to `place`.
    Driver {
        packet: Queued,
        place: SteeringTarget,
        admitted: bool,
    },
    Protocol(Queued),
    /// Sending the inter-processor interrupts at the end of a poll.
    Ipis,
    Process(u32),
}

#[derive(Debug, Default)]
pub(super) struct Processor {
    pub(super) work: Option<CpuWork>,
    /// Indices of the rings to poll.
    pub(super) rings: VecDeque<usize>,
    pub(super) backlog: VecDeque<Queued>,
    /// Whether the backlog is being processed, or an interrupt for it is on its way.
    pub(super) backlog_active: bool,
    /// Whether the interrupt for the backlog has arrived.
    pub(super) backlog_ready: bool,
    /// The source being processed, and the packets left in its budget.
    pub(super) turn: Option<(PacketSource, usize)>,
    /// Whether the backlog is processed next, after the current ring.
    pub(super) backlog_next: bool,
    /// CPUs to interrupt at the end of the poll.
    pub(super) pending_ipis: Vec<usize>,
    pub(super) processes: VecDeque<u32>,
    /// Interrupt time, in nanoseconds, to be added to the next work.
    pub(super) interrupt_time: u64,
    /// Busy time of the CPU, in nanoseconds.
    pub(super) busy_time: u64,
    pub(super) outcome: CpuOutcome,
}

impl Processor {
    /// Returns whether the CPU is doing no work at present.
    pub(super) fn is_idle(&self) -> bool {
        self.work.is_none()
    }
}
