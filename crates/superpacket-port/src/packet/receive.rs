//! The receiving end of a packet socket's queue.

use std::collections::TryReserveError;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use superpacket::packet::RxPacket;

use super::blocks::Blocks;
use super::options::RingOptions;
use super::shared::PacketShared;
use super::slots::SlotRing;
use super::socket::{MappedRing, Socket};
use crate::interface::NetworkInterface;
use crate::{Buffer, LinkState, PortError, Receive};

/// The receiving end of one queue of a packet port.
pub(super) struct PacketReceiver {
    shared: Arc<PacketShared>,
    socket: Arc<Socket>,
    ring: PacketRing,
    interface: NetworkInterface,
    queue: u16,
    /// Whether the last poll found no packet.
    was_empty: bool,
    /// The last known state of the interface.
    link: LinkState,
}

#[derive(Debug)]
enum PacketRing {
    Slots(SlotRing),
    Blocks(Blocks),
}

impl PacketReceiver {
    /// Creates the receiving end of a queue whose ring is `mapped`. Also returns the socket.
    pub fn try_new(
        shared: Arc<PacketShared>,
        interface: NetworkInterface,
        mapped: MappedRing,
        ring: &RingOptions,
        queue: u16,
    ) -> Result<(Self, Arc<Socket>), TryReserveError> {
        let (ring, socket) = match *ring {
            RingOptions::Slots { .. } => {
                let (slots, socket) = SlotRing::new(mapped);
                (PacketRing::Slots(slots), socket)
            }
            RingOptions::Blocks { block_size, .. } => {
                let (blocks, socket) = Blocks::try_new(mapped, block_size)?;
                (PacketRing::Blocks(blocks), socket)
            }
        };
        let socket = Arc::new(socket);
        let receiver = PacketReceiver {
            shared,
            socket: Arc::clone(&socket),
            ring,
            interface,
            queue,
            was_empty: false,
            link: LinkState::Up,
        };
        Ok((receiver, socket))
    }

    /// Checks, after an empty poll, whether the interface is down.
    ///
    /// The socket's error must be read, or the socket stays readable. Reading it in every second
    /// empty poll is sufficient, since a thread polls twice before it waits.
    fn check(&mut self) -> Result<usize, PortError> {
        if self.link == LinkState::Up
            && (!std::mem::replace(&mut self.was_empty, true) || self.socket.take_error().is_none())
        {
            return Ok(0);
        }
        if self.link != LinkState::Gone {
            self.link = if self.socket.is_attached() {
                self.interface.state().link
            } else {
                LinkState::Gone
            };
        }
        let port = self.shared.name.clone();
        match self.link {
            LinkState::Up => Ok(0),
            LinkState::Down => Err(PortError::Down { port }),
            LinkState::Gone => Err(PortError::Gone { port }),
        }
    }
}

impl Receive for PacketReceiver {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        let PacketReceiver { shared, socket, ring, queue, .. } = self;
        let count = match ring {
            PacketRing::Slots(slots) => {
                slots.poll(socket, &shared.counters, *queue, packets, limit)
            }
            PacketRing::Blocks(blocks) => blocks.poll(&shared.counters, *queue, packets, limit),
        };
        if count == 0 {
            return self.check();
        }
        self.was_empty = false;
        Ok(count)
    }

    fn give_back(&mut self) {
        let slots = match &mut self.ring {
            PacketRing::Slots(slots) => slots,
            PacketRing::Blocks(blocks) => return blocks.give_back(),
        };
        slots.give_back();
        if let Some(kernel_path) = self.socket.kernel_path()
            && !kernel_path.sent(slots.returned() + self.socket.drops())
            && self.was_empty
        {
            // The missing frames may be drops that nobody has asked for yet.
            let drops = self.socket.take_drops();
            if drops != 0 {
                self.shared.counters.dropped(self.queue, drops);
                kernel_path.sent(slots.returned() + self.socket.drops());
            }
        }
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn is_crowded(&self) -> bool {
        match &self.ring {
            PacketRing::Slots(slots) => slots.is_crowded(),
            PacketRing::Blocks(blocks) => blocks.is_crowded(),
        }
    }
}

impl Drop for PacketReceiver {
    fn drop(&mut self) {
        // The socket lives on while the port reads its counters, or while memory of the ring is
        // lent. It must accept no more packets.
        let _ = self.socket.close_filter();
        let region = match &self.ring {
            PacketRing::Slots(slots) => slots.region(),
            PacketRing::Blocks(blocks) => blocks.region(),
        };
        if region.lent() != 0 {
            self.socket.ring_outlives();
        }
    }
}

impl fmt::Debug for PacketReceiver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = formatter.debug_struct("Receiver");
        output
            .field("port", &self.shared.name)
            .field("queue", &self.queue)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}
