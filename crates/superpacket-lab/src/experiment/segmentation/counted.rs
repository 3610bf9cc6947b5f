//! A port that counts what it is given to send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use superpacket::packet::Layer;
use superpacket_port::{
    Capabilities, Outgoing, Port, PortCounters, PortError, PortState, Progress, Receive, Transmit,
    TxBatch,
};

/// What a port was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Calls that sent something.
    pub(crate) calls: u64,
    /// Packets, super-packets counted once.
    pub(crate) packets: u64,
    /// Pieces that these were made of.
    pub(crate) pieces: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Bytes that lay in no received buffer: headers made anew, and what was copied.
    pub(crate) copied: u64,
    /// How many packets of each length in bytes.
    pub(crate) lengths: BTreeMap<u32, u64>,
}

/// Reads what a port has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<Mutex<Sent>>);

impl Tally {
    /// What was counted since this was last asked.
    pub(crate) fn take(&self) -> Sent {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Sent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another port, counted.
#[derive(Debug)]
pub(crate) struct Counted {
    inner: Box<dyn Port>,
    tally: Tally,
}

impl Counted {
    /// Counts what `inner` sends.
    pub(crate) fn new(inner: Box<dyn Port>) -> (Self, Tally) {
        let tally = Tally::default();
        (Self { inner, tally: tally.clone() }, tally)
    }
}

impl Port for Counted {
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
        Ok(Box::new(CountedTransmit {
            inner: self.inner.transmitter()?,
            tally: self.tally.clone(),
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
struct CountedTransmit {
    inner: Box<dyn Transmit>,
    tally: Tally,
}

impl Transmit for CountedTransmit {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let progress = self.inner.transmit(outgoing, batch, from);
        let mut sent = self.tally.lock();
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
