//! Datagram sockets: the peer, and the receiving end.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketAddrAny, SocketAddrUnix, connect, connect_unspec, recvfrom};
use superpacket::packet::RxPacket;

use super::output::Connection;
use super::readiness::Readiness;
use super::shared::UnixShared;
use crate::clock::monotonic_nanoseconds;
use crate::slots::PacketSlots;
use crate::{Buffer, PortError, Receive};

/// A datagram that some peers (vfkit) send first, and which is not a frame.
const GREETING: &[u8] = b"VFKT";

/// A socket, and the peer that it sends to.
///
/// The socket is connected to the peer, so that no path is looked up per frame, and that the kernel
/// refuses frames of others.
#[derive(Debug)]
pub(super) struct DatagramLink {
    shared: Arc<UnixShared>,
    connection: Arc<Connection>,
    /// The peer's address from the port string.
    given: Option<SocketAddrUnix>,
    /// The peer's address, learned from the first datagram's sender if the port string gives none.
    learned: Mutex<Option<SocketAddrUnix>>,
}

impl DatagramLink {
    /// Creates a link from a bound socket. Fails if `peer` is not a path that a socket can have.
    pub(super) fn new(
        shared: Arc<UnixShared>,
        connection: Arc<Connection>,
        peer: Option<&Path>,
    ) -> Result<Self, PortError> {
        let action = "use the path of the peer's socket";
        let given = peer
            .map(SocketAddrUnix::new)
            .transpose()
            .map_err(|error| PortError::system(&shared.name, action, error))?;
        Ok(DatagramLink { shared, connection, given, learned: Mutex::new(None) })
    }

    /// Connects to the peer, if its address is known. If that fails, a learned address is
    /// forgotten. This also reconnects to a peer that has bound its path again.
    pub(super) fn find_peer(&self) {
        let learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(address) = self.given.as_ref().or(learned.as_ref()) else { return };
        match connect(&self.connection.socket, address) {
            Ok(()) if self.shared.connection().is_none() => {
                self.shared.set_connection(Some(Arc::clone(&self.connection)));
                tracing::info!(port = %self.shared.name, "the peer is there");
            }
            Ok(()) => {}
            Err(_) => self.lose_peer(),
        }
    }

    /// Drops the connection with a peer that has gone, so that another peer can connect.
    pub(super) fn lose_peer(&self) {
        *self.learned.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.shared.connection().is_some() {
            self.shared.set_connection(None);
            tracing::info!(port = %self.shared.name, "the peer has gone");
        }
        let _ = connect_unspec(&self.connection.socket);
        self.connection.discard();
    }

    /// Makes the sender of a datagram the peer, if there is none yet. Returns whether the datagram
    /// comes from the peer.
    fn learn(&self, sender: Option<SocketAddrAny>) -> bool {
        if self.shared.connection().is_some() {
            return true;
        }
        let sender = sender.and_then(|sender| SocketAddrUnix::try_from(sender).ok());
        if self.given.is_none() {
            let named = sender.filter(|sender| sender.path_bytes().is_some());
            *self.learned.lock().unwrap_or_else(PoisonError::into_inner) = named;
        }
        self.find_peer();
        self.shared.connection().is_some()
    }
}

/// The receiving end of a datagram port, which makes one system call per frame.
#[derive(Debug)]
pub(super) struct DatagramReceiver {
    shared: Arc<UnixShared>,
    link: Arc<DatagramLink>,
    readiness: Readiness,
    slots: PacketSlots,
}

impl DatagramReceiver {
    pub(super) fn new(
        shared: Arc<UnixShared>,
        link: Arc<DatagramLink>,
        readiness: Readiness,
        slots: PacketSlots,
    ) -> Self {
        DatagramReceiver { shared, link, readiness, slots }
    }

    /// Returns the packet of a datagram of `length` bytes in the slot `large`, and whether the
    /// packet occupies that slot; `None` if the datagram is not a frame from the peer.
    fn packet(
        &mut self,
        large: usize,
        length: usize,
        sender: Option<SocketAddrAny>,
        time: u64,
    ) -> Option<(RxPacket<Buffer>, bool)> {
        if !self.link.learn(sender) {
            self.shared
                .refuse_peer(&"a datagram came from a socket without a path, or not from the peer");
            return None;
        }
        let bytes = self.slots.large_mut(large)?.get_mut(..length)?;
        if *bytes == *GREETING {
            return None;
        }
        if !self.shared.format.lengths().contains(&length) {
            self.shared.refuse_peer(&"a datagram has a length that no frame has");
            return None;
        }
        let offload = match self.shared.format.offload(bytes) {
            Ok(offload) => offload,
            Err(error) => {
                self.shared.refuse_header(&error);
                return None;
            }
        };
        let start = self.shared.format.header_length();
        let (buffer, keeps) = self.slots.lend(large, start..length)?;
        let mut received = RxPacket::new(buffer).with_checksum(offload.checksum).with_time(time);
        received.gso = offload.gso;
        Some((received, keeps))
    }
}

impl Receive for DatagramReceiver {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        self.slots.rewind();
        self.link.connection.send_waiting();
        let time = monotonic_nanoseconds();
        let (mut count, mut free) = (0, None);
        for _ in 0..limit {
            let Some(large) = free.take().or_else(|| self.slots.free_large()) else { break };
            let Some(bytes) = self.slots.large_mut(large) else { break };
            let socket = &self.link.connection.socket;
            let received =
                rustix::io::retry_on_intr(|| recvfrom(socket, &mut *bytes, RecvFlags::DONTWAIT));
            match received {
                Ok((_, length, sender)) => match self.packet(large, length, sender, time) {
                    Some((packet, keeps)) => {
                        packets.push(packet);
                        count += 1;
                        free = (!keeps).then_some(large);
                    }
                    None => free = Some(large),
                },
                Err(Errno::AGAIN) => break,
                // A datagram that a peer which has gone could not take.
                Err(_) => {
                    self.link.find_peer();
                    break;
                }
            }
        }
        Ok(count)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.readiness.as_fd()
    }

    fn is_crowded(&self) -> bool {
        self.slots.is_crowded()
    }
}
