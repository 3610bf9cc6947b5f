//! The receiver of a memory port.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, LinkState, PortError, Receive};

use super::link::{OpenEnd, lock};

/// The receiver for one queue of a memory port.
#[derive(Debug)]
pub(super) struct MemoryReceive {
    end: Arc<OpenEnd>,
    queue: usize,
}

impl MemoryReceive {
    pub(super) fn new(end: Arc<OpenEnd>, queue: usize) -> Self {
        MemoryReceive { end, queue }
    }
}

impl Receive for MemoryReceive {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        let queue = &self.end.inbox.queues[self.queue];
        let mut ring = lock(&queue.ring);
        let count = ring.packets.len().min(limit);
        packets.extend(ring.packets.drain(..count));
        let left = !ring.packets.is_empty();
        queue.signal(&mut ring, left);
        drop(ring);
        match self.end.link.state() {
            // Packets that arrived before the state changed are still delivered.
            LinkState::Down if count == 0 => Err(PortError::Down { port: self.end.name.clone() }),
            LinkState::Gone if count == 0 => Err(self.end.gone()),
            _ => Ok(count),
        }
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.end.inbox.queues[self.queue].event.as_fd()
    }
}
