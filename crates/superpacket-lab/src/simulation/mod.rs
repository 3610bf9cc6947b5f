//! A discrete-event simulation of a machine with any number of CPUs, which runs the real steering
//! code.
//!
//! CPUs and their time are simulated. [`superpacket_steer`] decides where each packet goes, as in
//! the bridge: Toeplitz hashes of addresses and ports, a `Steering` per receive queue with its mask
//! and flow table, backlog limits, and moves that wait until a backlog is empty.
//!
//! The load is taken from Tom Herbert's original report on RPS (2010): a number of
//! connections, each with one outstanding request of one byte (TCP_RR).
//! ```text
//! client          sends the next request some time after the answer
//! receive queue   chosen by the hash (RSS); interrupts its CPU, which polls up to 64 packets
//! driver          runs on that CPU; then steering keeps the packet here or adds it to a backlog
//! IPI             to each CPU whose backlog was idle, once per poll
//! protocol        runs on the chosen CPU; wakes the process that reads the connection
//! process         runs on its last CPU, or on an idle one if that is busy; answers
//! ```
//! Packets have priority over processes. Runs are deterministic: there is no clock and no chance.

mod costs;
mod events;
mod machine;
mod setup;
mod state;
#[cfg(test)]
mod tests;

pub use costs::{Costs, DRIVER_SHARE, MeasuredLoad};
pub use setup::{ReceiveQueue, Setup};

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationOutcome {
    /// Requests answered per second.
    pub transactions_per_second: f64,
    /// Busy share of all CPU time, 0 to 1.
    pub utilisation: f64,
    /// Results of each CPU, by number.
    pub cpus: Vec<CpuOutcome>,
    /// Counters of the measured period.
    pub counts: SimulationCounts,
}

/// The result of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOutcome {
    /// Busy share of the CPU's time, 0 to 1.
    pub utilisation: f64,
    /// Packets that the driver received on this CPU.
    pub received: u64,
    /// Packets for which this CPU did the protocol work.
    pub processed: u64,
    /// Requests that a process on this CPU read and answered.
    pub answered: u64,
}

/// Counters of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulationCounts {
    /// Number of requests answered.
    pub transactions: u64,
    /// Number of interrupts of the device.
    pub interrupts: u64,
    /// Number of inter-processor interrupts.
    pub ipis: u64,
    /// Requests read on a CPU other than the one that did their protocol work.
    pub read_elsewhere: u64,
    /// Packets dropped because a backlog was full; repeated after [`RETRANSMISSION`].
    pub dropped: u64,
    /// Number of times that a flow moved to another CPU.
    pub moves: u64,
    /// Packets kept on a flow's previous CPU, because it had not yet processed earlier packets of
    /// the flow.
    pub held_back: u64,
}

/// Time after which a client repeats a lost request, in nanoseconds (Linux's `TCP_RTO_MIN`).
pub const RETRANSMISSION: u64 = 200_000_000;

impl SimulationOutcome {
    /// Returns the protocol work of the busiest CPU, divided by the average of the CPUs that did
    /// any such work: 1 for an even load, 0 if there was no such work.
    #[must_use]
    pub fn imbalance(&self) -> f64 {
        let processed: Vec<u64> =
            self.cpus.iter().map(|cpu| cpu.processed).filter(|&processed| processed > 0).collect();
        let most = processed.iter().copied().max().unwrap_or(0) as f64;
        let sum: u64 = processed.iter().sum();
        if sum == 0 { 0.0 } else { most * processed.len() as f64 / sum as f64 }
    }
}

/// Simulates `warm_up` nanoseconds, then measures `time` nanoseconds.
#[must_use]
pub fn simulate(setup: &Setup, warm_up: u64, time: u64) -> SimulationOutcome {
    machine::Machine::new(setup).run(warm_up, time)
}
