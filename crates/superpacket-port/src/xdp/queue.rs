//! One queue of an AF_XDP port: the socket, and what its two ends share with the ports around it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use rustix::net::sockopt;
use rustix::net::xdp::{SocketAddrXdpFlags, XdpOptionsFlags, XdpStatistics};

use super::counts::Counts;
use super::receive::ReceiveHalf;
use super::send::SendHalf;
use super::socket::{self, Socket};
use super::umem::{self, Lease, QueuePlace, Umem, list};
use crate::system::namespace_cookie;

/// All of the process.
static ALL: Mutex<Vec<Weak<Queue>>> = Mutex::new(Vec::new());

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
    /// Where the socket is bound; `None` where the system does not say.
    place: Option<QueuePlace>,
    flags: SocketAddrXdpFlags,
    pub(super) counts: Counts,
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
        // Before the part is taken: it stays with the lease if there is no memory.
        let posted = list(lease.umem().chunks())?;
        let part = lease.part().ok_or(io::ErrorKind::OutOfMemory)?;
        let umem = Arc::clone(lease.umem());
        let first = lease.first();
        let Socket { rx, fill, tx, completion, descriptor } = socket;
        let several = flags.contains(SocketAddrXdpFlags::XDP_USE_SG);
        let receive = ReceiveHalf::new(rx, fill, part.receive, Arc::clone(&umem), first);
        let send =
            SendHalf::new(tx, completion, part.send, Arc::clone(&umem), first, several, posted);
        // Before Linux 5.14 the namespace has no number: nothing is released there.
        let place = namespace_cookie(&descriptor).ok().map(|namespace| QueuePlace {
            namespace,
            interface,
            queue: number,
        });
        let (receive, send, counts) = (Mutex::new(receive), Mutex::new(send), Counts::default());
        let queue =
            Arc::new(Queue { receive, send, descriptor, lease, number, place, flags, counts });
        socket::bind(queue.socket(), interface, number, flags, shared.map(Queue::socket))?;
        if let Some(place) = place {
            umem::release(place);
        }
        let mut all = all();
        all.retain(|queue| queue.strong_count() != 0);
        all.push(Arc::downgrade(&queue));
        drop(all);
        Ok(queue)
    }

    /// The queues that have parts of this UMEM.
    pub(super) fn of(umem: &Arc<Umem>) -> Vec<Arc<Self>> {
        all()
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|queue| Arc::ptr_eq(queue.umem(), umem))
            .collect()
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

    /// Looks for completions of all queues of this UMEM that nobody sends through now: those that
    /// have sent last may hold chunks of others.
    pub(super) fn reap_all(&self) {
        for queue in Queue::of(self.umem()) {
            if let Some(mut half) = queue.try_send() {
                half.reap();
            }
        }
    }

    /// What its socket was bound with, or the one that registered its UMEM.
    pub(super) const fn flags(&self) -> SocketAddrXdpFlags {
        self.flags
    }

    /// Does the device itself move its frames?
    pub(super) fn is_zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.descriptor)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// What the socket counted; `None` if it does not say.
    pub(super) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.descriptor).ok()
    }
}

fn all() -> MutexGuard<'static, Vec<Weak<Queue>>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Queue {
    fn drop(&mut self) {
        let is_zero_copy = self.is_zero_copy();
        let receive = self.receive.get_mut().unwrap_or_else(PoisonError::into_inner).region.take();
        let half = self.send.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A device that moves frames itself lets go of the chunks in deferred work, some time after
        // the socket is closed.
        if is_zero_copy || !half.settle() {
            self.lease.withhold(self.place);
        }
        let send = half.close();
        if let (Some(receive), Some((send, left))) = (receive, send) {
            self.lease.retire(receive, send, left);
        }
    }
}
