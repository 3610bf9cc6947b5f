//! A port that counts the packets it is given to send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use superpacket::packet::Layer;
use superpacket_port::{
    Capabilities, Outgoing, Port, PortCounters, PortError, PortState, Progress, Receive, Transmit,
    TxBatch,
};

/// Counters of the packets that a port was given to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentCounts {
    /// Number of transmit calls with at least one packet.
    pub(crate) calls: u64,
    /// Number of packets sent; a super-packet counts once.
    pub(crate) packets: u64,
    /// Number of contiguous memory pieces of all packets sent.
    pub(crate) pieces: u64,
    /// Number of bytes sent.
    pub(crate) bytes: u64,
    /// Bytes that are not sent from the receive buffers: new headers, and copied payload.
    pub(crate) copied: u64,
    /// Number of packets per length in bytes.
    pub(crate) lengths: BTreeMap<u32, u64>,
}

/// A handle to read the counters of a port.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentCounter(Arc<Mutex<SentCounts>>);

impl SentCounter {
    /// Returns the counts since the last call.
    pub(crate) fn take(&self) -> SentCounts {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, SentCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that forwards all calls to another one, and counts its transmissions.
#[derive(Debug)]
pub(crate) struct CountingPort {
    inner: Box<dyn Port>,
    counter: SentCounter,
}

impl CountingPort {
    /// Wraps `inner`; returns the port and the handle to its counters.
    pub(crate) fn new(inner: Box<dyn Port>) -> (Self, SentCounter) {
        let counter = SentCounter::default();
        (Self { inner, counter: counter.clone() }, counter)
    }
}

impl Port for CountingPort {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn layer(&self) -> Layer {
        self.inner.layer()
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.inner.hardware_address()
    }

    fn receivers(&mut self) -> Vec<Box<dyn Receive>> {
        self.inner.receivers()
    }

    fn transmitter(&mut self) -> Result<Box<dyn Transmit>, PortError> {
        Ok(Box::new(CountingTransmit {
            inner: self.inner.transmitter()?,
            counter: self.counter.clone(),
        }))
    }

    fn state(&mut self) -> PortState {
        self.inner.state()
    }

    fn counters(&mut self) -> PortCounters {
        self.inner.counters()
    }

    fn queue_drops(&mut self) -> Vec<u64> {
        self.inner.queue_drops()
    }
}

#[derive(Debug)]
struct CountingTransmit {
    inner: Box<dyn Transmit>,
    counter: SentCounter,
}

impl Transmit for CountingTransmit {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let progress = self.inner.transmit(outgoing, batch, from);
        let mut sent = self.counter.lock();
        sent.calls += u64::from(progress.sent != 0);
        for frame in &batch.frames()[from..from + progress.sent] {
            let slices = batch.slices(frame);
            sent.packets += 1;
            sent.pieces += slices.len() as u64;
            sent.bytes += u64::from(frame.length);
            sent.copied += slices
                .iter()
                .filter(|slice| !slice.is_received())
                .map(|slice| slice.length() as u64)
                .sum::<u64>();
            *sent.lengths.entry(frame.length).or_default() += 1;
        }
        progress
    }

    fn queue(&self) -> u16 {
        self.inner.queue()
    }
}
