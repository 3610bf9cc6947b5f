//! One queue of an AF_XDP port: the socket, and what its two ends share with the ports around it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use rustix::net::sockopt;
use rustix::net::xdp::{SocketAddrXdpFlags, XdpOptionsFlags, XdpStatistics};

use super::receive::ReceiveHalf;
use super::send::SendHalf;
use super::socket::{self, Socket};
use super::umem::{Lease, Umem};

/// A bound socket.
///
/// Its fields are dropped in their order: rings and socket are gone before the memory is free for
/// others.
#[derive(Debug)]
pub(super) struct Queue {
    receive: Mutex<ReceiveHalf>,
    send: Mutex<SendHalf>,
    descriptor: OwnedFd,
    lease: Lease,
    number: u32,
    flags: SocketAddrXdpFlags,
    pub(super) counts: Counts,
}

/// What a queue counts itself.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Frames left out because their descriptors made no sense.
    pub(super) malformed: AtomicU64,
    /// Frames sent from the chunks that they were received in.
    pub(super) sent_in_place: AtomicU64,
    /// Frames sent from chunks that they were copied to.
    pub(super) sent_by_copy: AtomicU64,
    /// Times that a frame found no room, or that the device dropped one because its queue was full.
    pub(super) tx_full: AtomicU64,
    /// Frames refused because something was left to the device that it cannot do.
    pub(super) tx_refused: AtomicU64,
    /// System calls that made the kernel look at the TX ring.
    pub(super) tx_wakeups: AtomicU64,
    /// System calls that made the kernel look at the fill ring.
    pub(super) rx_wakeups: AtomicU64,
}

impl Counts {
    /// Adds to a counter that one thread at a time changes.
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

impl Queue {
    /// Takes the memory of `lease` for `socket`, which is not yet bound, fills the fill ring, and
    /// binds it to the queue `number` of the interface number `interface`: as `flags` say, or to
    /// share the UMEM of `shared`, which was bound with the same flags.
    ///
    /// # Errors
    /// What `bind` refused.
    pub(super) fn bind(
        interface: u32,
        number: u32,
        mut lease: Lease,
        socket: Socket,
        flags: SocketAddrXdpFlags,
        shared: Option<&Queue>,
    ) -> io::Result<Arc<Self>> {
        let part = lease.part().ok_or(io::ErrorKind::OutOfMemory)?;
        let umem = Arc::clone(lease.umem());
        let first = lease.first();
        let Socket { rx, fill, tx, completion, descriptor } = socket;
        let several = flags.contains(SocketAddrXdpFlags::XDP_USE_SG);
        let receive = ReceiveHalf::new(rx, fill, part.receive, Arc::clone(&umem), first);
        let send = SendHalf::new(tx, completion, part.send, Arc::clone(&umem), first, several);
        let counts = Counts::default();
        let queue = Arc::new(Queue { receive: Mutex::new(receive), send: Mutex::new(send), descriptor, lease, number, flags, counts });
        socket::bind(queue.socket(), interface, number, flags, shared.map(Queue::socket))?;
        umem.join(&queue);
        Ok(queue)
    }

    /// Which of the interface's queues it is.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// The socket.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// The memory.
    pub(super) const fn umem(&self) -> &Arc<Umem> {
        self.lease.umem()
    }

    /// The receiving half.
    pub(super) fn receive(&self) -> MutexGuard<'_, ReceiveHalf> {
        self.receive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sending half.
    pub(super) fn send(&self) -> MutexGuard<'_, SendHalf> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sending half, unless somebody has it.
    pub(super) fn try_send(&self) -> Option<MutexGuard<'_, SendHalf>> {
        match self.send.try_lock() {
            Ok(half) => Some(half),
            Err(TryLockError::Poisoned(half)) => Some(half.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Looks for completions, unless somebody is sending.
    pub(super) fn reap(&self) {
        if let Some(mut half) = self.try_send() {
            half.reap();
        }
    }

    /// What its socket was bound with, or the one that registered its UMEM.
    pub(super) const fn flags(&self) -> SocketAddrXdpFlags {
        self.flags
    }

    /// Does the device itself move its frames?
    pub(super) fn is_zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.descriptor).is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// What the socket counted; `None` if it does not say.
    pub(super) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.descriptor).ok()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let receive = self.receive.get_mut().unwrap_or_else(PoisonError::into_inner).region.take();
        let send = self.send.get_mut().unwrap_or_else(PoisonError::into_inner).close();
        if let (Some(receive), Some((send, left))) = (receive, send) {
            self.lease.retire(receive, send, left);
        }
    }
}
