//! The receiving and sending ends of an AF_XDP port's queues, as used by the port's owner.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::time::{ClockId, clock_gettime};
use superpacket::packet::RxPacket;
use superpacket::wire::ethernet;

use super::counts::XdpCounts;
use super::queue::XdpQueue;
use super::shared::XdpShared;
use crate::{
    Buffer, Outgoing, PortError, Progress, Receive, StopReason, Transmit, TxBatch, TxFrame,
};

/// Interval at which polls of an empty ring check that the interface is up, in nanoseconds.
const STATE_CHECK_INTERVAL: i64 = 10_000_000;

/// The receiving end of one queue of an AF_XDP port.
#[derive(Debug)]
pub(super) struct XdpReceiver {
    queue: Arc<XdpQueue>,
    shared: Arc<XdpShared>,
    /// Time of the last check of the interface's state, in nanoseconds.
    last_check: i64,
    /// Whether the interface was down at the last check of its state.
    is_down: bool,
}

impl XdpReceiver {
    pub(super) const fn new(shared: Arc<XdpShared>, queue: Arc<XdpQueue>) -> Self {
        XdpReceiver { queue, shared, last_check: 0, is_down: false }
    }

    /// Does the work that is due when no frame is available: returns chunks to the fill ring, and
    /// checks the interface.
    fn idle(&mut self) -> Result<(), PortError> {
        let needs_wakeup = {
            let mut half = self.queue.receive();
            half.refill();
            half.needs_wakeup()
        };
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let now = now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec);
        if !(needs_wakeup
            || self.is_down
            || self.shared.facts.busy_poll
            || now.wrapping_sub(self.last_check) >= STATE_CHECK_INTERVAL)
        {
            return Ok(());
        }
        self.last_check = now;
        let port = || self.shared.facts.name.clone();
        self.is_down = false;
        match wake(&self.queue) {
            Err(Errno::NETDOWN) => {
                self.is_down = true;
                Err(PortError::Down { port: port() })
            }
            Err(Errno::NXIO | Errno::NODEV) => Err(PortError::Gone { port: port() }),
            // Other errors will occur again where they matter.
            _ => Ok(()),
        }
    }
}

impl Receive for XdpReceiver {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        let count = self.queue.receive().take(
            packets,
            limit,
            self.queue.number(),
            &self.queue.counts,
            &self.shared.facts,
        );
        if count == 0 && limit != 0 {
            self.idle()?;
        }
        Ok(count)
    }

    fn give_back(&mut self) {
        let mut half = self.queue.receive();
        half.refill();
        if half.is_short() {
            self.queue.reap_all();
            half.refill();
        }
        let needs_wakeup = half.needs_wakeup();
        drop(half);
        if needs_wakeup {
            // The next poll of an empty ring reports errors.
            let _ = wake(&self.queue);
        }
        if self.shared.facts.stalled.load(Ordering::Relaxed) {
            // Frames are left in a TX ring, and their sender may have nothing more to send.
            self.shared.resume();
        }
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.queue.socket()
    }

    fn is_crowded(&self) -> bool {
        self.queue.receive().is_crowded()
    }
}

/// Makes the kernel process the fill ring and, with busy polling, the device.
fn wake(queue: &XdpQueue) -> Result<(), Errno> {
    XdpCounts::add(&queue.counts.rx_wakeups, 1);
    rustix::net::recv(queue.socket(), &mut [0u8; 0][..], RecvFlags::DONTWAIT).map(drop)
}

/// A sending end of an AF_XDP port, through one of the port's queues.
#[derive(Debug)]
pub(super) struct XdpSender {
    queue: Arc<XdpQueue>,
    /// Index of the queue within the port.
    place: u16,
    shared: Arc<XdpShared>,
}

impl XdpSender {
    pub(super) const fn new(shared: Arc<XdpShared>, queue: Arc<XdpQueue>, place: u16) -> Self {
        XdpSender { queue, place, shared }
    }

    /// Returns the reason why a frame can never be sent, whatever room there is in the ring.
    fn unfit(&self, frame: &TxFrame, longest: usize) -> Option<StopReason> {
        if !frame.is_plain() {
            XdpCounts::add(&self.queue.counts.tx_refused, 1);
            return Some(StopReason::Offload(Errno::INVAL.into()));
        }
        let length = frame.length as usize;
        if length < ethernet::HEADER_LENGTH {
            return Some(StopReason::Refused(Errno::INVAL.into()));
        }
        // The kernel does not check frames from AF_XDP against the MTU: the other end or the wire
        // would silently drop them.
        (length > longest || !self.shared.fits(length)).then_some(StopReason::TooLong)
    }
}

impl Transmit for XdpSender {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let (queue, shared) = (&*self.queue, &*self.shared);
        let mut half = queue.send();
        half.reap();
        let frames = batch.frames().get(from..).unwrap_or_default();
        if half.untaken() != 0
            && let Some(stop) = half.kick(queue.socket(), &queue.counts, &shared.facts)
        {
            return Progress { sent: 0, stopped: Some(stop) };
        }
        let longest = half.longest();
        for (sent, frame) in frames.iter().enumerate() {
            if let Some(stop) = self.unfit(frame, longest) {
                // The next call reports errors of the interface.
                half.kick(queue.socket(), &queue.counts, &shared.facts);
                return Progress { sent, stopped: Some(stop) };
            }
            if half.push(outgoing, batch, frame, &queue.counts) {
                continue;
            }
            if let Some(stop) = half.kick(queue.socket(), &queue.counts, &shared.facts) {
                return Progress { sent, stopped: Some(stop) };
            }
            half.reap();
            if !half.push(outgoing, batch, frame, &queue.counts) {
                XdpCounts::add(&queue.counts.tx_full, 1);
                return Progress { sent, stopped: Some(StopReason::Full) };
            }
        }
        half.kick(queue.socket(), &queue.counts, &shared.facts);
        Progress { sent: frames.len(), stopped: None }
    }

    fn queue(&self) -> u16 {
        self.place
    }
}
