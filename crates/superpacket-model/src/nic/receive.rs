//! The receiver of a model NIC.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use superpacket::packet::RxPacket;
use superpacket_port::{Buffer, PortError, Receive};

use super::front::Front;
use super::transmit::Unsent;
use crate::memory::lock;

/// The receiver for one queue of a model NIC.
#[derive(Debug)]
pub(super) struct NicReceive {
    pub(super) front: Arc<Mutex<Front>>,
    pub(super) queue: usize,
    /// `epoll` descriptor that is readable if the ring holds frames or the wrapped port has
    /// packets.
    pub(super) readiness: OwnedFd,
    /// The transmitters of the card, which may hold frames that the wrapped port has not accepted
    /// yet.
    pub(super) unsent: Unsent,
}

impl Receive for NicReceive {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        // Like the poll function of a driver, handle transmission first.
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
