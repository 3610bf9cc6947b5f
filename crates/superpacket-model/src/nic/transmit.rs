//! The transmitter of a model NIC: segmentation, checksums, and sending to the wrapped port.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{ChecksumOutput, Gso, GsoKind, SegmentOptions, Segmentable, Segmenter};
use superpacket_port::{Outgoing, Progress, Slice, StopReason, Transmit, TxBatch, TxFrame};

use super::counters::NicMonitor;
use super::settings::TsoLimit;
use crate::fit::{PortLimits, offload};
use crate::memory::lock;

/// Number of bytes of prepared frames at which they are passed to the wrapped port. A larger amount
/// would not stay in the CPU cache.
const FLUSH_BYTES: usize = 128 << 10;

/// The limits and offloads of the sending side of a card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hardware {
    pub(super) limits: PortLimits,
    pub(super) tso: TsoLimit,
    pub(super) tunnels: bool,
    pub(super) wire: bool,
}

/// The frames that one transmitter of the card is passing to the wrapped port, and the wrapped
/// port's transmitter.
#[derive(Debug)]
struct OutgoingWire {
    inner: Box<dyn Transmit>,
    outgoing: Outgoing,
    batch: TxBatch,
    /// Number of frames of `batch` that the wrapped port has accepted.
    done: usize,
    /// The packets from which the frames of `batch` were made.
    made: Vec<PreparedPacket>,
    segmenter: Segmenter,
    /// Scratch space for the bytes of a frame, copied from its slices.
    whole: Vec<u8>,
    monitor: NicMonitor,
    /// Whether this transmitter is counted in `unsent`, since it has unsent frames.
    counted: bool,
    /// Number of transmitters of the card that have unsent frames; shared by all of them.
    unsent: Arc<AtomicUsize>,
}

/// A packet whose frames are in the batch.
#[derive(Clone, Copy, Debug)]
struct PreparedPacket {
    /// Number of frames in the batch up to and including those of this packet.
    end: usize,
    /// Number of segments; 0 if the packet is no super-packet.
    segments: usize,
    /// Whether the card filled in the checksum of a packet that is no super-packet.
    filled: bool,
}

/// The transmitters of a card. Each may hold frames that the wrapped port has not accepted yet: the
/// remaining segments of a super-packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsent {
    /// Number of transmitters that hold frames which the wrapped port has not accepted yet.
    count: Arc<AtomicUsize>,
    senders: Arc<Mutex<Vec<Weak<Mutex<OutgoingWire>>>>>,
}

impl Unsent {
    /// Tries to pass the remaining frames of all transmitters to the wrapped port.
    pub(super) fn flush(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut senders = lock(&self.senders);
        senders.retain(|sender| sender.strong_count() != 0);
        for sender in senders.iter().filter_map(Weak::upgrade) {
            let mut wire = lock(&sender);
            // If the wrapped port stops again, the next transmission reports the reason.
            drop(wire.flush_rest());
        }
    }
}

/// A transmitter of a model NIC.
#[derive(Debug)]
pub(super) struct NicTransmit {
    hardware: Hardware,
    wire: Arc<Mutex<OutgoingWire>>,
    monitor: NicMonitor,
}

impl NicTransmit {
    pub(super) fn new(
        hardware: Hardware,
        inner: Box<dyn Transmit>,
        monitor: NicMonitor,
        unsent: &Unsent,
    ) -> Self {
        let wire = OutgoingWire {
            inner,
            outgoing: Outgoing::new(),
            batch: TxBatch::new(),
            done: 0,
            made: Vec::new(),
            segmenter: Segmenter::new(),
            whole: Vec::new(),
            monitor: monitor.clone(),
            counted: false,
            unsent: unsent.count.clone(),
        };
        let wire = Arc::new(Mutex::new(wire));
        lock(&unsent.senders).push(Arc::downgrade(&wire));
        NicTransmit { hardware, wire, monitor }
    }
}

impl Hardware {
    /// Checks that the card can send the packet.
    ///
    /// # Errors
    /// The [`StopReason`] that the transmitter reports for the packet.
    fn check(
        &self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), StopReason> {
        let Some(layout) = self.limits.check(outgoing, batch, frame)? else { return Ok(()) };
        let Some(gso) = frame.gso else { return Ok(()) };
        if layout.outer.is_some() && !self.tunnels {
            return Err(offload("the card cuts no super-packets in tunnels"));
        }
        if layout.nested.is_some() {
            return Err(offload("the card cuts no super-packets in two tunnels"));
        }
        match (gso.kind, self.tso) {
            (GsoKind::Tcp4 | GsoKind::Tcp6, TsoLimit::Payload(limit))
                if frame.length - u32::from(layout.payload).min(frame.length) > limit =>
            {
                Err(offload("more TCP payload than the card cuts"))
            }
            (GsoKind::Tcp4 | GsoKind::Tcp6 | GsoKind::Udp, _)
                if frame.length - u32::from(layout.outermost()).min(frame.length)
                    <= MAX_GSO_SIZE =>
            {
                Ok(())
            }
            _ => Err(offload("the card cuts no such super-packets")),
        }
    }
}

/// Maximum length of a super-packet in bytes from the IP header on, as in Linux
/// (`GSO_LEGACY_MAX_SIZE`).
pub(super) const MAX_GSO_SIZE: u32 = 65_536;

impl Transmit for NicTransmit {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let mut wire = lock(&self.wire);
        if let Some(stop) = wire.flush_rest() {
            return Progress { sent: 0, stopped: Some(stop) };
        }
        let frames = batch.frames().get(from..).unwrap_or(&[]);
        let refused = frames.iter().enumerate().find_map(|(index, frame)| {
            Some((index, self.hardware.check(outgoing, batch, frame).err()?))
        });
        let accepted = refused.as_ref().map_or(frames.len(), |(index, _)| *index);
        let passes_unchanged = |frame: &TxFrame| frame.is_plain() || !self.hardware.wire;
        let mut progress = if accepted == frames.len() && frames.iter().all(passes_unchanged) {
            // No frame needs work: the wrapped port reads the caller's buffers.
            let progress = wire.inner.transmit(outgoing, batch, from);
            count_frames(&self.monitor, &frames[..progress.sent.min(frames.len())]);
            progress
        } else {
            wire.send(outgoing, batch, &frames[..accepted], self.hardware.wire)
        };
        if progress.stopped.is_none() {
            progress.stopped = refused.map(|(_, stop)| stop);
        }
        if let Some(StopReason::Offload(_)) = progress.stopped {
            self.monitor.count(|counters| counters.tx_refused += 1);
        }
        progress
    }
}

/// Counts frames that the wrapped port has accepted.
fn count_frames(monitor: &NicMonitor, frames: &[TxFrame]) {
    monitor.count(|counters| {
        counters.tx_frames += frames.len() as u64;
        counters.tx_bytes += frames.iter().map(|frame| u64::from(frame.length)).sum::<u64>();
    });
}

impl OutgoingWire {
    /// Passes the remaining frames of earlier calls to the wrapped port. If the port stops before
    /// the last one, returns the reason.
    fn flush_rest(&mut self) -> Option<StopReason> {
        if self.done == self.batch.frames().len() {
            return None;
        }
        let stop = self.flush();
        if let Some(StopReason::Down | StopReason::Gone(_)) = stop {
            // A real card loses the frames in its ring when it is reset.
            let lost = (self.batch.frames().len() - self.done) as u64;
            self.monitor.count(|counters| counters.tx_lost += lost);
            self.clear();
        }
        self.update_unsent();
        stop
    }

    /// Prepares packets and passes their frames to the wrapped port, until that port stops. If it
    /// stops in the middle of a super-packet, the remaining segments are kept for later. `cuts`
    /// says whether the card segments packets and fills in checksums.
    fn send(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frames: &[TxFrame],
        cuts: bool,
    ) -> Progress {
        let mut progress = Progress { sent: 0, stopped: None };
        let mut next = 0;
        while next < frames.len() && progress.stopped.is_none() {
            self.clear();
            let mut bytes = 0;
            while next < frames.len() && bytes < FLUSH_BYTES && progress.stopped.is_none() {
                bytes += frames[next].length as usize;
                next += 1;
                progress.stopped = self.prepare(outgoing, batch, &frames[next - 1], cuts).err();
            }
            let mut taken = self.made.len();
            if let Some(stop) = self.flush() {
                let whole = self.made.partition_point(|made| made.end <= self.done);
                let begun = whole < self.made.len() && self.done > self.end_of(whole);
                taken =
                    if let StopReason::Full = stop { whole + usize::from(begun) } else { whole };
                // Keep the remaining segments if the port is full; drop them if it is down.
                self.batch.truncate(self.end_of(taken).max(self.done));
                progress.stopped = (progress.sent + taken < frames.len()).then_some(stop);
                // The caller sends the other prepared packets again, so stop here.
                next = frames.len();
            }
            progress.sent += taken;
            let made = &self.made[..taken];
            self.monitor.count(|counters| {
                counters.tx_cut += made.iter().filter(|made| made.segments != 0).count() as u64;
                counters.tx_segments += made.iter().map(|made| made.segments as u64).sum::<u64>();
                counters.tx_filled += made.iter().filter(|made| made.filled).count() as u64;
            });
        }
        self.update_unsent();
        progress
    }

    /// Returns the number of frames that were made from the first `packets` packets.
    fn end_of(&self, packets: usize) -> usize {
        packets.checked_sub(1).map_or(0, |last| self.made[last].end)
    }

    /// Appends the frames of a packet to the batch. If `cuts`, super-packets are segmented and
    /// partial checksums are filled in; otherwise the packet is copied.
    ///
    /// # Errors
    /// [`StopReason::Refused`] if the packet cannot be segmented.
    fn prepare(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        cuts: bool,
    ) -> Result<(), StopReason> {
        let before = self.batch.frames().len();
        if cuts {
            let packet = OutgoingPacket { outgoing, slices: batch.slices(frame), frame };
            let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
            let mut writer = self.batch.writer(&mut self.outgoing, frame.layer);
            let made = self.segmenter.segment_linear(&packet, &options, &mut writer);
            made.map_err(|error| {
                StopReason::Refused(std::io::Error::new(std::io::ErrorKind::InvalidInput, error))
            })?;
        } else {
            self.whole.clear();
            batch.copy_to(outgoing, frame, &mut self.whole);
            self.batch.push_bytes(
                &mut self.outgoing,
                &self.whole,
                frame.checksum,
                frame.gso,
                frame.layer,
            );
        }
        let end = self.batch.frames().len();
        let cut = cuts && frame.gso.is_some();
        self.made.push(PreparedPacket {
            end,
            segments: if cut { end - before } else { 0 },
            filled: cuts && !cut && !frame.is_plain(),
        });
        Ok(())
    }

    /// Passes frames to the wrapped port until that port has accepted all, or stops. Frames that it
    /// refuses are dropped and counted. If it stops, returns the reason.
    fn flush(&mut self) -> Option<StopReason> {
        loop {
            let frames = self.batch.frames();
            if self.done == frames.len() {
                return None;
            }
            let progress = self.inner.transmit(&self.outgoing, &self.batch, self.done);
            let taken = progress.sent.min(frames.len() - self.done);
            count_frames(&self.monitor, &frames[self.done..self.done + taken]);
            self.done += taken;
            match progress.stopped {
                None if taken == 0 => return Some(StopReason::Full),
                None => {}
                Some(stop @ (StopReason::Full | StopReason::Down | StopReason::Gone(_))) => {
                    return Some(stop);
                }
                Some(_) => {
                    self.done = (self.done + 1).min(self.batch.frames().len());
                    self.monitor.count(|counters| counters.tx_lost += 1);
                }
            }
        }
    }

    /// Empties the batch.
    fn clear(&mut self) {
        self.outgoing.clear();
        self.batch.clear();
        self.made.clear();
        self.done = 0;
    }

    /// Updates whether this transmitter counts as one with unsent frames. Receivers read that
    /// count, to flush such frames.
    fn update_unsent(&mut self) {
        let pending = self.done != self.batch.frames().len();
        if pending && !self.counted {
            self.unsent.fetch_add(1, Ordering::AcqRel);
        } else if !pending && self.counted {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
        }
        self.counted = pending;
    }
}

impl Drop for OutgoingWire {
    fn drop(&mut self) {
        self.clear();
        self.update_unsent();
    }
}

/// A packet that is to be sent, as input of the segmenter.
struct OutgoingPacket<'a> {
    outgoing: &'a Outgoing,
    slices: &'a [Slice],
    frame: &'a TxFrame,
}

impl Segmentable for OutgoingPacket<'_> {
    fn layer(&self) -> Layer {
        self.frame.layer
    }

    fn gso(&self) -> Option<Gso> {
        self.frame.gso
    }

    fn checksum(&self) -> RxChecksum {
        self.frame.checksum
    }

    fn header(&self) -> &[u8] {
        &[]
    }

    fn ranges(&self) -> usize {
        self.slices.len()
    }

    fn range_length(&self, index: usize) -> usize {
        self.slices.get(index).map_or(0, |slice| slice.length())
    }

    fn range(&self, index: usize) -> &[u8] {
        self.slices.get(index).map_or(&[], |slice| self.outgoing.slice(*slice))
    }
}
