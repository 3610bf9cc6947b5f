//! What a load measured, in netperf's terms.

use std::time::Duration;

use crate::cpu::{CpuTime, MachineUsage};
use crate::load::latency::Latency;

/// The outcome of a [`crate::TcpBulk`].
#[derive(Clone, Debug, Default)]
pub struct BulkReport {
    /// From the client to the server, where asked for.
    pub forward: Option<DirectionReport>,
    /// From the server to the client, where asked for.
    pub reverse: Option<DirectionReport>,
    /// All CPUs while it ran.
    pub machine: MachineUsage,
}

/// One direction of a bulk load.
#[derive(Clone, Debug, Default)]
pub struct DirectionReport {
    /// Payload bytes that the receiving programs got, of all flows.
    pub bytes: u64,
    /// From the start until the last byte had arrived.
    pub seconds: f64,
    /// CPU time of the sending threads.
    pub sender: CpuTime,
    /// CPU time of the receiving threads.
    pub receiver: CpuTime,
    /// Calls of the sending threads that took data.
    pub send_calls: u64,
    /// Calls of the receiving threads that gave data.
    pub receive_calls: u64,
    /// Each flow.
    pub flows: Vec<FlowReport>,
}

/// One flow of a bulk load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowReport {
    /// Payload bytes received.
    pub bytes: u64,
    /// From the start until its last byte had arrived.
    pub seconds: f64,
    /// XXH3 of the bytes, the same on both sides, where they were verified.
    pub digest: Option<u64>,
    /// Segments that the sender sent again (`tcpi_total_retrans`).
    pub retransmitted_segments: u32,
    /// The sender's segment size at the end, in bytes of payload (`tcpi_snd_mss`).
    pub segment_size: u32,
}

impl BulkReport {
    /// Payload bytes of both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.directions().map(|direction| direction.bytes).sum()
    }

    /// Payload of both directions in 10^9 bits per second.
    #[must_use]
    pub fn gigabits_per_second(&self) -> f64 {
        self.directions().map(DirectionReport::gigabits_per_second).sum()
    }

    fn directions(&self) -> impl Iterator<Item = &DirectionReport> {
        self.forward.iter().chain(&self.reverse)
    }
}

impl DirectionReport {
    /// Payload in 10^9 bits per second.
    #[must_use]
    pub fn gigabits_per_second(&self) -> f64 {
        per_second(self.bytes as f64 * 8.0 / 1e9, self.seconds)
    }

    /// The sending threads' CPU time, as a multiple of one CPU's.
    #[must_use]
    pub fn sender_utilisation(&self) -> f64 {
        per_second(self.sender.total().as_secs_f64(), self.seconds)
    }

    /// The receiving threads' CPU time, as a multiple of one CPU's.
    #[must_use]
    pub fn receiver_utilisation(&self) -> f64 {
        per_second(self.receiver.total().as_secs_f64(), self.seconds)
    }

    /// The sending threads' CPU time per payload, in microseconds per 1,024 bytes.
    #[must_use]
    pub fn sender_service_demand(&self) -> f64 {
        service_demand(self.sender.total(), self.bytes)
    }

    /// The receiving threads' CPU time per payload, in microseconds per 1,024 bytes.
    #[must_use]
    pub fn receiver_service_demand(&self) -> f64 {
        service_demand(self.receiver.total(), self.bytes)
    }
}

/// The outcome of a [`crate::TcpTransactions`].
#[derive(Clone, Debug, Default)]
pub struct TransactionReport {
    /// Requests that were answered in full.
    pub transactions: u64,
    /// From the start until the last answer.
    pub seconds: f64,
    /// CPU time of the client's thread.
    pub client: CpuTime,
    /// CPU time of the server's thread.
    pub server: CpuTime,
    /// From the request's first byte to the answer's last.
    pub latency: Latency,
    /// All CPUs while it ran.
    pub machine: MachineUsage,
}

impl TransactionReport {
    /// Transactions per second, of all connections together.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        per_second(self.transactions as f64, self.seconds)
    }

    /// CPU time of both threads per transaction, in microseconds.
    #[must_use]
    pub fn service_demand(&self) -> f64 {
        per_second(
            (self.client + self.server).total().as_secs_f64() * 1e6,
            self.transactions as f64,
        )
    }
}

/// netperf's service demand: CPU time per payload, in microseconds per 1,024 bytes; 0 where nothing
/// was carried. netperf itself puts the whole machine's CPU time in, which is
/// [`MachineUsage::total`]'s [`crate::CpuUsage::busy`].
#[must_use]
pub fn service_demand(cpu: Duration, bytes: u64) -> f64 {
    per_second(cpu.as_secs_f64() * 1e6, bytes as f64 / 1024.0)
}

/// A quotient that is 0 where there is nothing to divide by.
pub(crate) fn per_second(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds } else { 0.0 }
}
