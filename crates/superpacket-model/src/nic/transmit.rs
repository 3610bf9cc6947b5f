//! The sending end of the card.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{ChecksumOutput, Gso, GsoKind, SegmentOptions, Segmentable, Segmenter};
use superpacket_port::{Outgoing, Progress, Slice, Stop, Transmit, TxBatch, TxFrame};

use super::counters::NicMonitor;
use super::settings::TsoLimit;
use crate::fit::{Limits, offload};
use crate::memory::lock;

/// Bytes on the wire after which frames are handed on: what the cache holds.
const HANDED_ON: usize = 128 << 10;

/// What the card can do of what may be asked of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hardware {
    pub(super) limits: Limits,
    pub(super) tso: TsoLimit,
    pub(super) tunnels: bool,
    pub(super) wire: bool,
}

/// What goes from the card to the wrapped port.
#[derive(Debug)]
struct Wire {
    inner: Box<dyn Transmit>,
    outgoing: Outgoing,
    batch: TxBatch,
    /// Frames of `batch` that the wrapped port has taken.
    done: usize,
    /// What `batch` was made of.
    made: Vec<Made>,
    segmenter: Segmenter,
    /// A frame in one piece.
    whole: Vec<u8>,
    monitor: NicMonitor,
    /// Counted in `unsent`.
    marked: bool,
    unsent: Arc<AtomicUsize>,
}

/// What frames were made of a packet.
#[derive(Clone, Copy, Debug)]
struct Made {
    /// How many frames of the batch there are with them.
    end: usize,
    /// How many it was cut into; 0 if it was not.
    segments: usize,
    /// Its checksum was filled in.
    filled: bool,
}

/// Frames that senders have taken and the wrapped port has not: the rest of super-packets.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsent {
    /// How many senders have some.
    count: Arc<AtomicUsize>,
    senders: Arc<Mutex<Vec<Weak<Mutex<Wire>>>>>,
}

impl Unsent {
    /// Tries to hand them on.
    pub(super) fn flush(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut senders = lock(&self.senders);
        senders.retain(|sender| sender.strong_count() != 0);
        for sender in senders.iter().filter_map(Weak::upgrade) {
            let mut wire = lock(&sender);
            // Why it stops again, the next to send will hear.
            drop(wire.hand_on_rest());
        }
    }
}

/// Sends through the card.
#[derive(Debug)]
pub(super) struct NicTransmit {
    hardware: Hardware,
    wire: Arc<Mutex<Wire>>,
    monitor: NicMonitor,
}

impl NicTransmit {
    pub(super) fn new(
        hardware: Hardware,
        inner: Box<dyn Transmit>,
        monitor: NicMonitor,
        unsent: &Unsent,
    ) -> Self {
        let wire = Wire {
            inner,
            outgoing: Outgoing::new(),
            batch: TxBatch::new(),
            done: 0,
            made: Vec::new(),
            segmenter: Segmenter::new(),
            whole: Vec::new(),
            monitor: monitor.clone(),
            marked: false,
            unsent: unsent.count.clone(),
        };
        let wire = Arc::new(Mutex::new(wire));
        lock(&unsent.senders).push(Arc::downgrade(&wire));
        NicTransmit { hardware, wire, monitor }
    }
}

impl Hardware {
    /// May the card be asked for this?
    fn check(&self, outgoing: &Outgoing, batch: &TxBatch, frame: &TxFrame) -> Result<(), Stop> {
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

/// The longest super-packet that the card takes, in bytes from the IP header on.
pub(super) const MAX_GSO_SIZE: u32 = 65_536;

impl Transmit for NicTransmit {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let mut wire = lock(&self.wire);
        if let Some(stop) = wire.hand_on_rest() {
            return Progress { sent: 0, stopped: Some(stop) };
        }
        let frames = batch.frames().get(from..).unwrap_or(&[]);
        let refused = frames.iter().enumerate().find_map(|(index, frame)| {
            Some((index, self.hardware.check(outgoing, batch, frame).err()?))
        });
        let fitting = refused.as_ref().map_or(frames.len(), |(index, _)| *index);
        let as_they_are = |frame: &TxFrame| frame.is_plain() || !self.hardware.wire;
        let mut progress = if fitting == frames.len() && frames.iter().all(as_they_are) {
            // Nothing to be done: from where they lie.
            let progress = wire.inner.transmit(outgoing, batch, from);
            count_whole(&self.monitor, &frames[..progress.sent.min(frames.len())]);
            progress
        } else {
            wire.send(outgoing, batch, &frames[..fitting], self.hardware.wire)
        };
        if progress.stopped.is_none() {
            progress.stopped = refused.map(|(_, stop)| stop);
        }
        if let Some(Stop::Offload(_)) = progress.stopped {
            self.monitor.count(|counters| counters.tx_refused += 1);
        }
        progress
    }
}

/// Counts frames handed on as they were.
fn count_whole(monitor: &NicMonitor, frames: &[TxFrame]) {
    monitor.count(|counters| {
        counters.tx_frames += frames.len() as u64;
        counters.tx_bytes += frames.iter().map(|frame| u64::from(frame.length)).sum::<u64>();
    });
}

impl Wire {
    /// Hands on what is left of packets taken before; why that stopped.
    fn hand_on_rest(&mut self) -> Option<Stop> {
        if self.done == self.batch.frames().len() {
            return None;
        }
        let stop = self.hand_on();
        if let Some(Stop::Down | Stop::Gone(_)) = stop {
            // As a card that is reset loses what is in its ring.
            let lost = (self.batch.frames().len() - self.done) as u64;
            self.monitor.count(|counters| counters.tx_lost += lost);
            self.clear();
        }
        self.mark();
        stop
    }

    /// Makes frames of packets and hands them on, until one is stopped. Of the packet at which it
    /// was, what is left is kept.
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
            while next < frames.len() && bytes < HANDED_ON && progress.stopped.is_none() {
                bytes += frames[next].length as usize;
                next += 1;
                progress.stopped = self.make(outgoing, batch, &frames[next - 1], cuts).err();
            }
            let mut taken = self.made.len();
            if let Some(stop) = self.hand_on() {
                let whole = self.made.partition_point(|made| made.end <= self.done);
                let begun = whole < self.made.len() && self.done > self.end_of(whole);
                taken = if let Stop::Full = stop { whole + usize::from(begun) } else { whole };
                // The rest of a packet that the wrapped port has begun is kept; if the port is
                // down, it is gone.
                self.batch.truncate(self.end_of(taken).max(self.done));
                progress.stopped = (progress.sent + taken < frames.len()).then_some(stop);
                // What was made and goes back will be made again.
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
        self.mark();
        progress
    }

    /// How many frames of the batch the first `packets` packets gave.
    fn end_of(&self, packets: usize) -> usize {
        packets.checked_sub(1).map_or(0, |last| self.made[last].end)
    }

    /// Makes frames of a packet, as the card's hardware does; `cuts`: of any, else it passes as it
    /// is.
    fn make(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        cuts: bool,
    ) -> Result<(), Stop> {
        let before = self.batch.frames().len();
        if cuts {
            let packet = Taken { outgoing, slices: batch.slices(frame), frame };
            let options = SegmentOptions::default().with_checksum(ChecksumOutput::Full);
            let mut writer = self.batch.writer(&mut self.outgoing, frame.layer);
            let made = self.segmenter.segment_linear(&packet, &options, &mut writer);
            made.map_err(|error| {
                Stop::Refused(std::io::Error::new(std::io::ErrorKind::InvalidInput, error))
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
        self.made.push(Made {
            end,
            segments: if cut { end - before } else { 0 },
            filled: cuts && !cut && !frame.is_plain(),
        });
        Ok(())
    }

    /// Hands frames on until all are taken, or the wrapped port stops. A frame that it refuses for
    /// itself is lost.
    fn hand_on(&mut self) -> Option<Stop> {
        loop {
            let frames = self.batch.frames();
            if self.done == frames.len() {
                return None;
            }
            let progress = self.inner.transmit(&self.outgoing, &self.batch, self.done);
            let taken = progress.sent.min(frames.len() - self.done);
            count_whole(&self.monitor, &frames[self.done..self.done + taken]);
            self.done += taken;
            match progress.stopped {
                None if taken == 0 => return Some(Stop::Full),
                None => {}
                Some(stop @ (Stop::Full | Stop::Down | Stop::Gone(_))) => return Some(stop),
                Some(_) => {
                    self.done = (self.done + 1).min(self.batch.frames().len());
                    self.monitor.count(|counters| counters.tx_lost += 1);
                }
            }
        }
    }

    fn clear(&mut self) {
        self.outgoing.clear();
        self.batch.clear();
        self.made.clear();
        self.done = 0;
    }

    /// Tells whether something is left, so that receivers try to hand it on.
    fn mark(&mut self) {
        let pending = self.done != self.batch.frames().len();
        if pending && !self.marked {
            self.unsent.fetch_add(1, Ordering::AcqRel);
        } else if !pending && self.marked {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
        }
        self.marked = pending;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.clear();
        self.mark();
    }
}

/// A packet as its sender laid it out.
struct Taken<'a> {
    outgoing: &'a Outgoing,
    slices: &'a [Slice],
    frame: &'a TxFrame,
}

impl Segmentable for Taken<'_> {
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
