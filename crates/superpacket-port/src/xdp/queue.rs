//! A queue of an AF_XDP port: its socket, and the state shared by its two ends and by other ports.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rustix::net::sockopt;
use rustix::net::xdp::{SocketAddrXdpFlags, XdpOptionsFlags, XdpStatistics};

use super::counts::XdpCounts;
use super::receive::ReceiveHalf;
use super::send::SendHalf;
use super::socket::{self, Socket};
use super::umem::{self, Lease, QueuePlace, Umem, zeroed_list};
use crate::system::namespace_cookie;

/// All open queues of AF_XDP ports in this process.
static ALL: Mutex<Vec<Weak<XdpQueue>>> = Mutex::new(Vec::new());

/// A socket bound to a queue of an interface.
#[derive(Debug)]
pub(super) struct XdpQueue {
    receive: Mutex<ReceiveHalf>,
    send: Mutex<SendHalf>,
    descriptor: OwnedFd,
    lease: Lease,
    number: u32,
    /// Identifies the queue to which the socket is bound; `None` if the kernel does not number
    /// network namespaces.
    place: Option<QueuePlace>,
    flags: SocketAddrXdpFlags,
    pub(super) counts: XdpCounts,
}

impl XdpQueue {
    /// Binds `socket` to the queue `number` of an interface, after filling its fill ring with
    /// chunks of `lease`. The socket is bound with `flags`, or shares the UMEM of `shared`, which
    /// was bound with the same flags.
    ///
    /// # Errors
    /// The error of `bind`.
    pub(super) fn bind(
        interface: u32,
        number: u32,
        mut lease: Lease,
        socket: Socket,
        flags: SocketAddrXdpFlags,
        shared: Option<&XdpQueue>,
    ) -> io::Result<Arc<Self>> {
        // The list is allocated before the part is taken: if memory is short, the part stays with
        // the lease.
        let posted = zeroed_list(lease.umem().chunks())?;
        let part = lease.part().ok_or(io::ErrorKind::OutOfMemory)?;
        let umem = Arc::clone(lease.umem());
        let first = lease.first();
        let Socket { rx, fill, tx, completion, descriptor } = socket;
        let several = flags.contains(SocketAddrXdpFlags::XDP_USE_SG);
        let receive = ReceiveHalf::new(rx, fill, part.receive, Arc::clone(&umem), first);
        let send =
            SendHalf::new(tx, completion, part.send, Arc::clone(&umem), first, several, posted);
        // Before Linux 5.14 network namespaces have no number: memory that the kernel may still use
        // is then never released.
        let place = namespace_cookie(&descriptor).ok().map(|namespace| QueuePlace {
            namespace,
            interface,
            queue: number,
        });
        let (receive, send, counts) = (Mutex::new(receive), Mutex::new(send), XdpCounts::default());
        let queue =
            Arc::new(XdpQueue { receive, send, descriptor, lease, number, place, flags, counts });
        socket::bind(queue.socket(), interface, number, flags, shared.map(XdpQueue::socket))?;
        if let Some(place) = place {
            umem::release(place);
        }
        let mut all = all();
        all.retain(|queue| queue.strong_count() != 0);
        all.push(Arc::downgrade(&queue));
        drop(all);
        Ok(queue)
    }

    /// Returns the open queues that use this UMEM.
    pub(super) fn of(umem: &Arc<Umem>) -> Vec<Arc<Self>> {
        all()
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|queue| Arc::ptr_eq(queue.umem(), umem))
            .collect()
    }

    /// Returns the number that the queue has at its interface.
    pub(super) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the socket's file descriptor.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns the UMEM from which the socket receives and sends.
    pub(super) const fn umem(&self) -> &Arc<Umem> {
        self.lease.umem()
    }

    /// Locks the receiving half of the socket.
    pub(super) fn receive(&self) -> MutexGuard<'_, ReceiveHalf> {
        self.receive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the sending half of the socket.
    pub(super) fn send(&self) -> MutexGuard<'_, SendHalf> {
        self.send.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the sending half of the socket, unless it is in use.
    pub(super) fn try_send(&self) -> Option<MutexGuard<'_, SendHalf>> {
        match self.send.try_lock() {
            Ok(half) => Some(half),
            Err(TryLockError::Poisoned(half)) => Some(half.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Processes the completions of all queues of this UMEM whose sending half is not in use. Idle
    /// queues may hold chunks of other queues.
    pub(super) fn reap_all(&self) {
        for queue in XdpQueue::of(self.umem()) {
            if let Some(mut half) = queue.try_send() {
                half.reap();
            }
        }
    }

    /// Returns the bind flags of this socket; if it shares another socket's UMEM, those of that
    /// socket.
    pub(super) const fn flags(&self) -> SocketAddrXdpFlags {
        self.flags
    }

    /// Returns whether the device moves the frames to and from the memory itself (zero copy).
    pub(super) fn is_zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.descriptor)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Returns the socket's counters, if the kernel reports them.
    pub(super) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.descriptor).ok()
    }
}

fn all() -> MutexGuard<'static, Vec<Weak<XdpQueue>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for XdpQueue {
    fn drop(&mut self) {
        let is_zero_copy = self.is_zero_copy();
        let receive = self.receive.get_mut().unwrap_or_else(PoisonError::into_inner).region.take();
        let half = self.send.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A zero-copy device releases the chunks in deferred work, some time after the socket is
        // closed.
        if is_zero_copy || !half.settle() {
            self.lease.withhold(self.place);
        }
        let send = half.close();
        if let (Some(receive), Some((send, left))) = (receive, send) {
            self.lease.retire(receive, send, left);
        }
    }
}
