//! A transmitter for tests that records the frames it is given, and functions that create packets.

use std::sync::{Arc, Mutex};

use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::Gso;
use superpacket::super_packet::SuperPacket;
use superpacket_port::{Buffer, Outgoing, Progress, StopReason, Transmit, TxBatch, TxFrame};

/// A frame that a port was given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SentFrame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) gso: Option<Gso>,
    pub(crate) checksum: RxChecksum,
    /// Number of slices in which the bytes were.
    pub(crate) slices: usize,
}

impl SentFrame {
    /// Returns the payload bytes per segment, for a super-packet.
    pub(crate) fn segment(&self) -> Option<usize> {
        self.gso.map(|gso| gso.size.get())
    }

    /// Returns whether the checksum is partial.
    pub(crate) fn partial(&self) -> bool {
        matches!(self.checksum, RxChecksum::Partial { .. })
    }
}

/// A rule by which a port refuses frames.
type Rule = Box<dyn FnMut(&TxFrame) -> Option<StopReason> + Send>;

/// A transmitter that records frames, or refuses them by a rule.
pub(crate) struct Recorder {
    sent: Arc<Mutex<Vec<SentFrame>>>,
    rule: Rule,
}

impl Recorder {
    /// Returns a recorder, and the list to which it adds the frames that it is given.
    pub(crate) fn new(
        rule: impl FnMut(&TxFrame) -> Option<StopReason> + Send + 'static,
    ) -> (Self, Arc<Mutex<Vec<SentFrame>>>) {
        let sent = Arc::default();
        (Recorder { sent: Arc::clone(&sent), rule: Box::new(rule) }, sent)
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Recorder")
    }
}

impl Transmit for Recorder {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        for (sent, frame) in batch.frames()[from..].iter().enumerate() {
            if let Some(stop) = (self.rule)(frame) {
                return Progress { sent, stopped: Some(stop) };
            }
            let mut bytes = Vec::new();
            batch.copy_to(outgoing, frame, &mut bytes);
            self.sent.lock().expect("no panic").push(SentFrame {
                bytes,
                gso: frame.gso,
                checksum: frame.checksum,
                slices: batch.slices(frame).len(),
            });
        }
        Progress { sent: batch.frames().len() - from, stopped: None }
    }
}

/// The policy with which the bridge aggregates.
pub(crate) fn gro() -> Policy {
    Policy::gro().with_partial_checksums()
}

/// Aggregates packets, and gives the results to `sink`.
pub(crate) fn aggregate(
    policy: Policy,
    packets: impl IntoIterator<Item = RxPacket<Buffer>>,
    sink: &mut dyn FnMut(SuperPacket<'_, Buffer>),
) {
    let mut aggregator = Aggregator::new(policy, HashKey::new(1));
    aggregator.receive_batch(&mut packets.into_iter().collect(), 0, sink);
    aggregator.flush_all(sink);
}

/// Passes a single packet to `sink` without aggregation.
pub(crate) fn pass(packet: RxPacket<Buffer>, sink: &mut dyn FnMut(SuperPacket<'_, Buffer>)) {
    Aggregator::new(gro(), HashKey::new(1)).bypass(packet, sink);
}

/// Returns these frames as packets.
pub(crate) fn packets(frames: &[Vec<u8>]) -> impl Iterator<Item = RxPacket<Buffer>> + '_ {
    frames.iter().map(|frame| RxPacket::new(Buffer::from(frame.clone())))
}
