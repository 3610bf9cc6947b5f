//! The results of loads, with the metrics of netperf (throughput, CPU utilisation, service demand).

use std::time::Duration;

use crate::cpu::{CpuTime, MachineUsage};
use crate::load::latency::Latency;

/// The result of a [`crate::TcpBulk`].
#[derive(Clone, Debug, Default)]
pub struct BulkReport {
    /// Results from client to server, if that direction was requested.
    pub forward: Option<DirectionReport>,
    /// Results from server to client, if that direction was requested.
    pub reverse: Option<DirectionReport>,
    /// Usage of all CPUs during the run.
    pub machine: MachineUsage,
}

/// The result of one direction of a bulk transfer.
#[derive(Clone, Debug, Default)]
pub struct DirectionReport {
    /// Payload bytes that the receiving programs read, over all flows.
    pub bytes: u64,
    /// Seconds from the start until the last byte was read.
    pub seconds: f64,
    /// CPU time of the sending threads.
    pub sender: CpuTime,
    /// CPU time of the receiving threads.
    pub receiver: CpuTime,
    /// Number of send calls that accepted data.
    pub send_calls: u64,
    /// Number of receive calls that returned data.
    pub receive_calls: u64,
    /// Results of each flow.
    pub flows: Vec<FlowReport>,
}

/// The result of one flow of a bulk transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowReport {
    /// Number of payload bytes received.
    pub bytes: u64,
    /// Seconds from the start until the flow's last byte was read.
    pub seconds: f64,
    /// XXH3 hash of the bytes, equal on both sides; `None` if they were not verified.
    pub digest: Option<u64>,
    /// Number of segments that the sender retransmitted (`tcpi_total_retrans`).
    pub retransmitted_segments: u32,
    /// The sender's final segment size, in payload bytes (`tcpi_snd_mss`).
    pub segment_size: u32,
}

impl BulkReport {
    /// Returns the payload bytes of both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.directions().map(|direction| direction.bytes).sum()
    }

    /// Returns the payload rate of both directions, in 10^9 bits per second.
    #[must_use]
    pub fn gigabits_per_second(&self) -> f64 {
        self.directions().map(DirectionReport::gigabits_per_second).sum()
    }

    fn directions(&self) -> impl Iterator<Item = &DirectionReport> {
        self.forward.iter().chain(&self.reverse)
    }
}

impl DirectionReport {
    /// Returns the payload rate, in 10^9 bits per second.
    #[must_use]
    pub fn gigabits_per_second(&self) -> f64 {
        per_second(self.bytes as f64 * 8.0 / 1e9, self.seconds)
    }

    /// Returns the CPU usage of the sending threads; 1 is one full CPU.
    #[must_use]
    pub fn sender_utilisation(&self) -> f64 {
        per_second(self.sender.total().as_secs_f64(), self.seconds)
    }

    /// Returns the CPU usage of the receiving threads; 1 is one full CPU.
    #[must_use]
    pub fn receiver_utilisation(&self) -> f64 {
        per_second(self.receiver.total().as_secs_f64(), self.seconds)
    }

    /// Returns the CPU time of the sending threads per payload, in microseconds per 1,024 bytes.
    #[must_use]
    pub fn sender_service_demand(&self) -> f64 {
        service_demand(self.sender.total(), self.bytes)
    }

    /// Returns the CPU time of the receiving threads per payload, in microseconds per 1,024 bytes.
    #[must_use]
    pub fn receiver_service_demand(&self) -> f64 {
        service_demand(self.receiver.total(), self.bytes)
    }
}

/// The result of a [`crate::TcpTransactions`].
#[derive(Clone, Debug, Default)]
pub struct TransactionReport {
    /// Number of requests that received a complete answer.
    pub transactions: u64,
    /// Seconds from the start until the last answer.
    pub seconds: f64,
    /// CPU time of each of the client's threads.
    pub client_threads: Vec<CpuTime>,
    /// CPU time of each of the server's threads; empty if the server is outside the lab.
    pub server_threads: Vec<CpuTime>,
    /// Times from the first byte of a request to the last byte of its answer.
    pub latency: Latency,
    /// Usage of all CPUs during the run.
    pub machine: MachineUsage,
}

impl TransactionReport {
    /// Returns transactions per second over all connections.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        per_second(self.transactions as f64, self.seconds)
    }

    /// Returns the CPU time of the client's threads together.
    #[must_use]
    pub fn client(&self) -> CpuTime {
        self.client_threads.iter().copied().sum()
    }

    /// Returns the CPU time of the server's threads together.
    #[must_use]
    pub fn server(&self) -> CpuTime {
        self.server_threads.iter().copied().sum()
    }

    /// Returns the CPU usage of the busiest thread on either side; 1 is one full CPU.
    #[must_use]
    pub fn busiest_thread(&self) -> f64 {
        let threads = self.client_threads.iter().chain(&self.server_threads);
        let busiest = threads.map(CpuTime::total).max().unwrap_or_default();
        per_second(busiest.as_secs_f64(), self.seconds)
    }

    /// Returns the CPU time of all threads per transaction, in microseconds.
    #[must_use]
    pub fn service_demand(&self) -> f64 {
        per_second(
            (self.client() + self.server()).total().as_secs_f64() * 1e6,
            self.transactions as f64,
        )
    }

    /// Adds the results of other threads of the same run.
    pub(crate) fn add(&mut self, other: Self) {
        self.transactions += other.transactions;
        self.seconds = self.seconds.max(other.seconds);
        self.client_threads.extend(other.client_threads);
        self.server_threads.extend(other.server_threads);
        self.latency.add(&other.latency);
    }
}

/// Returns CPU time per payload in microseconds per 1,024 bytes (netperf's service demand); 0
/// without payload. netperf counts the CPU time of the whole machine, which is
/// [`crate::CpuUsage::busy`] of [`MachineUsage::total`].
#[must_use]
pub fn service_demand(cpu: Duration, bytes: u64) -> f64 {
    per_second(cpu.as_secs_f64() * 1e6, bytes as f64 / 1024.0)
}

/// Returns `amount / seconds`, or 0 if `seconds` is 0.
pub(crate) fn per_second(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}
