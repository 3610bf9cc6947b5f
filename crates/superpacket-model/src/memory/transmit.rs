//! The transmitter of a memory port.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::wire::MAX_HEADER;
use superpacket_port::{
    Buffer, LinkState, MAX_SLICES, Outgoing, Progress, StopReason, Transmit, TxBatch, TxFrame,
};
use superpacket_steer::Toeplitz;

use super::link::{Inbox, OpenEnd, lock};
use super::settings::WhenFull;
use crate::fit::PortLimits;

/// A transmitter that copies frames into the receive queues of the other end.
#[derive(Debug)]
pub(super) struct MemoryTransmit {
    end: Arc<OpenEnd>,
    /// The offloads and sizes that this end may send. Its MTU is the initial one; the current MTU
    /// is `end.mtu`.
    limits: PortLimits,
    /// Toeplitz hash that determines the receive queue of a flow.
    toeplitz: Toeplitz,
}

impl MemoryTransmit {
    pub(super) fn new(end: Arc<OpenEnd>) -> Self {
        let settings = &end.settings;
        let limits = PortLimits {
            features: settings.features(),
            max_slices: if settings.scatter_gather { MAX_SLICES } else { 1 },
            mtu: settings.mtu,
        };
        MemoryTransmit { end, limits, toeplitz: Toeplitz::default() }
    }

    /// Returns the index of the frame's receive queue. Frames of a flow share a queue.
    fn queue(&self, outgoing: &Outgoing, batch: &TxBatch, frame: &TxFrame, queues: usize) -> usize {
        if queues == 1 {
            return 0;
        }
        let mut scratch = [0; MAX_HEADER];
        let head = batch.head(outgoing, frame, &mut scratch);
        self.toeplitz
            .hash_frame(head, frame.length as usize, frame.layer)
            .map_or(0, |hash| hash.0 as usize % queues)
    }

    /// Copies frames into the other end's queues, until this end refuses a frame or a queue is
    /// full.
    fn send(&self, inbox: &Inbox, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let limits = PortLimits { mtu: self.end.mtu.load(Ordering::Relaxed), ..self.limits };
        let mut sender = lock(&inbox.sender);
        let sender = &mut *sender;
        sender.store.rewind();
        for (room, queue) in sender.room.iter_mut().zip(&inbox.queues) {
            // Only receivers can change the room while this lock is held, and they only add to it.
            *room = inbox.settings.slots.saturating_sub(lock(&queue.ring).packets.len());
        }
        let mut progress = Progress { sent: 0, stopped: None };
        for frame in &batch.frames()[from.min(batch.frames().len())..] {
            if let Err(stop) = limits.check(outgoing, batch, frame) {
                progress.stopped = Some(stop);
                break;
            }
            let queue = self.queue(outgoing, batch, frame, inbox.queues.len());
            match (&mut sender.room[queue], inbox.settings.full) {
                (0, WhenFull::StopReason) => {
                    progress.stopped = Some(StopReason::Full);
                    break;
                }
                (0, WhenFull::Drop) => {
                    inbox.queues[queue].dropped.fetch_add(1, Ordering::Relaxed);
                }
                (room, _) => {
                    *room -= 1;
                    let buffer = sender.store.place(frame.length as usize, |mut bytes| {
                        for slice in batch.slices(frame) {
                            let (part, rest) = bytes.split_at_mut(slice.length());
                            part.copy_from_slice(outgoing.slice(*slice));
                            bytes = rest;
                        }
                    });
                    sender.staged[queue].push(received(frame, buffer, queue));
                }
            }
            progress.sent += 1;
        }
        for (staged, queue) in
            sender.staged.iter_mut().zip(&inbox.queues).filter(|(staged, _)| !staged.is_empty())
        {
            let mut ring = lock(&queue.ring);
            ring.packets.extend(staged.drain(..));
            queue.signal(&mut ring, true);
        }
        progress
    }
}

/// Returns the frame as the other end receives it, with its metadata.
fn received(frame: &TxFrame, buffer: Buffer, queue: usize) -> RxPacket<Buffer> {
    let mut packet = match frame.layer {
        Layer::Ethernet => RxPacket::new(buffer),
        Layer::Ip => RxPacket::ip(buffer),
    };
    packet.checksum = match frame.checksum {
        // The sum may be out of date: a VLAN tag may have been inserted since it was computed.
        RxChecksum::Complete(_) => RxChecksum::None,
        known => known,
    };
    packet.queue = queue as u16;
    match frame.gso {
        Some(gso) => packet.with_gso(gso),
        None => packet,
    }
}

impl Transmit for MemoryTransmit {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let progress = match (self.end.link.state(), self.end.other()) {
            (LinkState::Gone, _) => {
                Progress { sent: 0, stopped: Some(StopReason::Gone(self.end.gone())) }
            }
            (LinkState::Down, _) | (_, None) => {
                Progress { sent: 0, stopped: Some(StopReason::Down) }
            }
            (LinkState::Up, Some(inbox)) => self.send(&inbox, outgoing, batch, from),
        };
        match progress.stopped {
            Some(StopReason::Full) => drop(self.end.full.fetch_add(1, Ordering::Relaxed)),
            Some(StopReason::Offload(_)) => drop(self.end.refused.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        progress
    }
}
