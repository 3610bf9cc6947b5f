//! A machine of as many CPUs as one likes, simulated event by event, on which the real steering
//! code decides.
//!
//! What is simulated are CPUs and what they spend time on; where each packet goes is decided by
//! [`superpacket_steer`] as in the bridge: the Toeplitz hash of each connection's addresses and
//! ports, one `Steering` for each receive queue with its mask and table of flows, the limits of
//! backlogs, and moves that wait until a backlog has been worked off.
//!
//! The load is that of the source: so many connections, each with one request of one byte under way
//! (TCP_RR).
//! ```text
//! client          a request arrives some time after the answer before
//! receive queue   by the hash (RSS); interrupts its CPU, which polls up to 64 packets
//! driver          on that CPU; then the packet is steered: on with it here, or into a backlog
//! IPI             to a CPU whose backlog was at rest, once a poll
//! protocol        on the CPU that was chosen; wakes the process that reads the connection
//! process         on its CPU if that is idle or was just woken up for, else on one that is idle; answers
//! ```
//! Packets come before processes. Every run gives the same: there is no clock and no chance in it.

mod costs;
mod events;
mod host;
mod setup;
mod state;
#[cfg(test)]
mod tests;

pub use costs::{Costs, DRIVER_SHARE, Measured};
pub use setup::{Queue, Setup};

/// What a simulation came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Requests answered in a second.
    pub transactions_per_second: f64,
    /// The part of all CPU time that was spent, 0 to 1.
    pub utilisation: f64,
    /// By CPU: the part of its time that was spent, 0 to 1.
    pub cpus: Vec<CpuOutcome>,
    /// What happened to packets, in all of the time that is counted.
    pub counts: Counts,
}

/// What a CPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOutcome {
    /// The part of its time that it spent, 0 to 1.
    pub utilisation: f64,
    /// Packets that its driver took.
    pub received: u64,
    /// Packets whose protocol work it did.
    pub processed: u64,
    /// Requests that were read and answered on it.
    pub answered: u64,
}

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests answered.
    pub transactions: u64,
    /// Interrupts of the device.
    pub interrupts: u64,
    /// Inter-processor interrupts.
    pub ipis: u64,
    /// Packets read on another CPU than the one that did their protocol work.
    pub read_elsewhere: u64,
    /// Packets dropped because a backlog was full. They come again after [`RETRANSMISSION`].
    pub dropped: u64,
    /// Flows moved to another CPU.
    pub moves: u64,
    /// Packets sent to another CPU than wanted, because their flow had packets left there.
    pub held_back: u64,
}

/// After how long a client repeats a request that was lost, in nanoseconds (Linux' `TCP_RTO_MIN`).
pub const RETRANSMISSION: u64 = 200_000_000;

impl Outcome {
    /// The protocol work of the busiest CPU against the average of those that did any: 1 is even, 0
    /// that there was none.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let processed: Vec<u64> =
            self.cpus.iter().map(|cpu| cpu.processed).filter(|&processed| processed > 0).collect();
        let most = processed.iter().copied().max().unwrap_or(0) as f64;
        let sum: u64 = processed.iter().sum();
        if sum == 0 { 0.0 } else { most * processed.len() as f64 / sum as f64 }
    }
}

/// Simulates the machine for a while, and counts for another, both in nanoseconds.
#[must_use]
pub fn simulate(setup: &Setup, warm_up: u64, time: u64) -> Outcome {
    host::Host::new(setup).run(warm_up, time)
}
