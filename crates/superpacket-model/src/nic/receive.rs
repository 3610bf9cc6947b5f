//! The receiving end of one queue of the card.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, PortError, Receive};

use super::front::Front;
use super::transmit::Unsent;
use crate::memory::lock;

/// One receive queue.
#[derive(Debug)]
pub(super) struct NicReceive {
    pub(super) front: Arc<Mutex<Front>>,
    pub(super) queue: usize,
    /// Readable when the ring holds frames or the wrapped port has packets (an `epoll` descriptor).
    pub(super) readiness: OwnedFd,
    /// What the senders could not hand on at once.
    pub(super) unsent: Unsent,
}

impl Receive for NicReceive {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        // As a driver's poll does: what has been sent is looked after first.
        self.unsent.flush();
        lock(&self.front).poll(self.queue, packets, limit)
    }

    fn give_back(&mut self) {
        lock(&self.front).give_back();
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    fn is_crowded(&self) -> bool {
        lock(&self.front).is_crowded()
    }
}
