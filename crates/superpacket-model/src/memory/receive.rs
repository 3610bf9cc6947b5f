//! The receiving end of a link.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, LinkState, PortError, Receive};

use super::link::{Seat, lock};

/// One receive queue of an end.
#[derive(Debug)]
pub(super) struct MemoryReceive {
    seat: Arc<Seat>,
    queue: usize,
}

impl MemoryReceive {
    pub(super) fn new(seat: Arc<Seat>, queue: usize) -> Self {
        MemoryReceive { seat, queue }
    }
}

impl Receive for MemoryReceive {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        let queue = &self.seat.inbox.queues[self.queue];
        let mut ring = lock(&queue.ring);
        let count = ring.packets.len().min(limit);
        packets.extend(ring.packets.drain(..count));
        let left = !ring.packets.is_empty();
        queue.signal(&mut ring, left);
        drop(ring);
        match self.seat.link.state() {
            // What had arrived is still handed out.
            LinkState::Down if count == 0 => Err(PortError::Down { port: self.seat.name.clone() }),
            LinkState::Gone if count == 0 => Err(self.seat.gone()),
            _ => Ok(count),
        }
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.seat.inbox.queues[self.queue].event.as_fd()
    }
}
