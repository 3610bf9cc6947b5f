//! The sending end of a vhost-user port: writes frames into a guest's receive buffers.

use std::io;
use std::sync::Arc;

use superpacket::virtio::{Format, Header, Offload, VirtioError};
use superpacket::wire::MAX_HEADER;

use super::ring::{RingFault, TakenBuffer};
use super::shared::{ActiveRing, VhostShared, lock};
use crate::tap::outer_checksum::FrameStart;
use crate::{Outgoing, Progress, StopReason, Transmit, TxBatch, TxFrame};

/// Range of the field with the number of buffers (`num_buffers`) in a virtio header.
const NUMBER_OF_BUFFERS: std::ops::Range<usize> = 10..12;

/// A sending end. Any number of ends may write to one queue.
#[derive(Debug)]
pub(super) struct VhostTransmitter {
    shared: Arc<VhostShared>,
    queue: u16,
    /// The buffers of the frame that is being sent.
    buffers: Vec<TakenBuffer>,
}

/// The reason why a frame was not sent.
#[derive(Debug)]
enum Unsent {
    Stop(StopReason),
    Fault(RingFault),
}

impl From<RingFault> for Unsent {
    fn from(fault: RingFault) -> Self {
        Unsent::Fault(fault)
    }
}

impl VhostTransmitter {
    pub(super) const fn new(shared: Arc<VhostShared>, queue: u16) -> Self {
        VhostTransmitter { shared, queue, buffers: Vec::new() }
    }

    #[inline]
    fn send(
        &mut self,
        active: &mut ActiveRing,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), Unsent> {
        let features = active.features;
        let length = features.format().length();
        // The header of a plain frame consists of zeros, but for the number of buffers.
        let mut header = [0; Format::LONGEST];
        let mut front = None;
        if !frame.is_plain() {
            front = self.describe(active, outgoing, batch, frame, &mut header)?;
        }
        self.take(active, length + frame.length as usize)?;
        let ring = &mut active.ring;
        if length >= NUMBER_OF_BUFFERS.end {
            // A ring has at most 2^15 descriptors.
            let number = self.buffers.len() as u16;
            header[NUMBER_OF_BUFFERS].copy_from_slice(&number.to_le_bytes());
        }
        ring.write(&header[..length]);
        let mut skipped = 0;
        if let Some(front) = &front {
            ring.write(front.bytes());
            skipped = front.bytes().len();
        }
        for slice in batch.slices(frame) {
            let bytes = outgoing.slice(*slice);
            let skip = skipped.min(bytes.len());
            skipped -= skip;
            ring.write(&bytes[skip..]);
        }
        let mut left = length as u32 + frame.length;
        for buffer in &self.buffers {
            let written = left.min(u32::try_from(buffer.length).unwrap_or(u32::MAX));
            left -= written;
            ring.give_back(buffer.head, written);
        }
        Ok(())
    }

    /// Takes receive buffers for `needed` bytes.
    #[inline]
    fn take(&mut self, active: &mut ActiveRing, needed: usize) -> Result<(), Unsent> {
        let ring = &mut active.ring;
        ring.begin();
        self.buffers.clear();
        let mut room = 0;
        loop {
            let Some(buffer) = ring.take()? else {
                ring.put_back(self.buffers.len() as u16);
                return Err(Unsent::Stop(self.shared.counters.full()));
            };
            self.buffers.push(buffer);
            room += buffer.length;
            if room >= needed {
                return Ok(());
            }
            if !active.features.has_mergeable_buffers() {
                ring.put_back(1);
                return Err(Unsent::Stop(StopReason::TooLong));
            }
        }
    }

    /// Writes the frame's virtio header to `header`. If the frame needs another outer UDP checksum,
    /// returns the frame's first bytes with it.
    fn describe(
        &self,
        active: &ActiveRing,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        header: &mut [u8],
    ) -> Result<Option<FrameStart>, Unsent> {
        let refused =
            |error: VirtioError| self.refuse(io::Error::new(io::ErrorKind::InvalidInput, error));
        let features = active.features;
        let mut scratch = [0; MAX_HEADER];
        let head = batch.head(outgoing, frame, &mut scratch);
        let offload = Offload::new(frame.checksum, frame.gso);
        let (format, length) = (features.format(), frame.length as usize);
        let described =
            Header::describe(&offload, format, head, length, frame.layer).map_err(refused)?;
        if !features.takes(&described, frame) {
            return Err(self.refuse(io::ErrorKind::Unsupported.into()));
        }
        described.write(header, format, features.order()).map_err(refused)?;
        Ok(FrameStart::of(&described, head, length, frame.layer))
    }

    fn refuse(&self, error: io::Error) -> Unsent {
        Unsent::Stop(self.shared.counters.refuse_offload(error))
    }
}

impl Transmit for VhostTransmitter {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let shared = Arc::clone(&self.shared);
        let frames = &batch.frames()[from..];
        let own = usize::from(self.queue);
        // A guest may use fewer queues than it could have.
        let pairs = shared.pairs[own..].iter().chain(&shared.pairs[..own]);
        for pair in pairs {
            let mut slot = lock(&pair.to_guest);
            let Some(active) = &mut *slot else { continue };
            let (mut sent, mut stopped) = (0, None);
            for frame in frames {
                match self.send(active, outgoing, batch, frame) {
                    Ok(()) => sent += 1,
                    Err(unsent) => {
                        stopped = Some(unsent);
                        break;
                    }
                }
            }
            active.publish();
            let stopped = match stopped {
                Some(Unsent::Fault(fault)) => {
                    *slot = None;
                    drop(slot);
                    shared.fault(&fault);
                    Some(StopReason::Down)
                }
                Some(Unsent::Stop(reason)) => Some(reason),
                None => None,
            };
            return Progress { sent, stopped };
        }
        Progress { sent: 0, stopped: (!frames.is_empty()).then_some(StopReason::Down) }
    }

    fn queue(&self) -> u16 {
        self.queue
    }
}
