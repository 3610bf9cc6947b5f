//! Reads the copies of a monitor: merges those of all threads in order of time.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rtrb::Consumer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::feed::Feed;
use super::record::{HEAD, RecordHead};
use super::{MAX_SNAPLEN, Monitor, MonitorSettings};

/// Minimum age at which a copy is read. In this time, copies that other threads made earlier
/// arrive. Threads that move packets also need not wake the reader for each batch.
const MERGE_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The copy of a packet that a port has received or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketCopy<'a> {
    /// Number of the port's interface: its index in [`Feed::interfaces`].
    pub interface: u32,
    /// Time of reception or sending, in nanoseconds since 1970.
    pub time: u64,
    /// Length of the whole packet in bytes; [`bytes`](Self::bytes) has at most
    /// [`MonitorSettings::snaplen`] of them.
    pub length: u32,
    /// True for a sent packet, false for a received one.
    pub sent: bool,
    /// The packet's `virtio_net_hdr`, little-endian, which describes its offloads; empty if it
    /// needs none.
    pub virtio: &'a [u8],
    /// The copied bytes of the packet, in two pieces that follow each other.
    pub bytes: [&'a [u8]; 2],
}

/// Reads the copies of a monitor. When it is dropped, packets are no longer copied.
#[derive(Debug)]
pub struct MonitorReader {
    monitor: Monitor,
    rings: Vec<CopyRing>,
    /// Number of copies that were read so far.
    read: u64,
}

/// The ring of one thread that copies packets.
#[derive(Debug)]
struct CopyRing {
    copies: Consumer<u8>,
    /// Header of the next copy; `None` unless the whole copy is in the ring.
    next: Option<RecordHead>,
    /// Number of bytes that were in the ring at the last [`look_again`](Self::look_again) and are
    /// still to be read.
    due: usize,
}

impl CopyRing {
    /// Returns the header of the next copy; `None` unless the whole copy is in the ring.
    fn look(&mut self) -> Option<RecordHead> {
        if self.next.is_none() {
            let chunk = self.copies.read_chunk(HEAD).ok()?;
            let (first, second) = chunk.as_slices();
            let mut bytes = [0; HEAD];
            bytes[..first.len()].copy_from_slice(first);
            bytes[first.len()..].copy_from_slice(second);
            // The header is not removed, because the copied packet may be incomplete.
            let head = RecordHead::from_bytes(&bytes);
            self.next = Some(head).filter(|head| self.copies.slots() >= head.total());
        }
        self.next
    }

    /// Records all bytes that are in the ring now as due to be read.
    fn look_again(&mut self) {
        self.due = self.copies.slots();
    }

    /// Returns whether the thread that writes to the ring has dropped it, and no complete copy is
    /// left.
    fn is_over(&mut self) -> bool {
        if !self.copies.is_abandoned() {
            return false;
        }
        fence(Ordering::Acquire);
        // If the thread panicked, part of a copy may be left.
        self.look().is_none()
    }
}

impl MonitorReader {
    pub(super) fn new(monitor: Monitor) -> Self {
        MonitorReader { monitor, rings: Vec::new(), read: 0 }
    }

    /// Returns the settings of the monitor.
    pub fn settings(&self) -> &MonitorSettings {
        &self.monitor.feed.settings
    }

    /// Returns the state that the reader shares with the copying threads.
    pub const fn feed(&self) -> &Arc<Feed> {
        &self.monitor.feed
    }

    /// Passes the copies that are old enough to `take`, in order of time, together with copies made
    /// earlier that have arrived since. Returns true if these were the last, because the monitor
    /// was told to end or the requested number of copies was read.
    ///
    /// # Errors
    /// The error of `take`. The next call passes it the same copy again.
    pub fn read<E>(
        &mut self,
        mut take: impl FnMut(&PacketCopy<'_>) -> Result<(), E>,
    ) -> Result<bool, E> {
        // The flag is read first, so that all copies made before the end are read.
        let ended = self.feed().is_ended();
        if ended {
            // No more copies are needed.
            self.monitor.monitors.refresh();
        }
        self.take_rings();
        if ended {
            self.rings.iter_mut().for_each(CopyRing::look_again);
        }
        while !self.is_complete() && self.rings.iter().any(|ring| ring.due != 0) {
            let heads = self
                .rings
                .iter_mut()
                .enumerate()
                .filter_map(|(index, ring)| Some((index, ring.look()?)));
            let Some((index, head)) = heads.min_by_key(|(index, head)| (head.time, *index)) else {
                break;
            };
            let ring = &mut self.rings[index];
            let Ok(chunk) = ring.copies.read_chunk(head.total()) else { break };
            let (first, second) = chunk.as_slices();
            take(&PacketCopy {
                interface: head.interface,
                time: head.time,
                length: head.length,
                sent: head.sent,
                virtio: &head.virtio[..usize::from(head.virtio_length)],
                bytes: [
                    first.get(HEAD..).unwrap_or(&[]),
                    second.get(HEAD.saturating_sub(first.len())..).unwrap_or(&[]),
                ],
            })?;
            chunk.commit_all();
            ring.next = None;
            ring.due = ring.due.saturating_sub(head.total());
            self.read += 1;
        }
        Ok(ended || self.is_complete())
    }

    /// Waits until there are copies, until the monitor must end, or until `connection` has input or
    /// is closed.
    pub fn wait(&mut self, connection: Option<BorrowedFd<'_>>) {
        self.rings.retain_mut(|ring| !ring.is_over());
        self.rings.iter_mut().for_each(CopyRing::look_again);
        if self.rings.iter().any(|ring| ring.due != 0) {
            self.poll(connection, Some(&MERGE_DELAY));
            return;
        }
        self.feed().bell.fall_asleep();
        self.take_rings();
        let stay =
            self.rings.iter_mut().any(|ring| ring.look().is_some()) || self.feed().is_ended();
        if !stay {
            self.poll(connection, None);
        }
        self.feed().bell.awake();
    }

    /// Waits until there may be new copies, the peer of `connection` has sent data or closed it, or
    /// the timeout has passed. `None` stands for no connection, or for no timeout.
    fn poll(&self, connection: Option<BorrowedFd<'_>>, timeout: Option<&Timespec>) {
        let bell = &self.feed().bell;
        let descriptors = 1 + usize::from(connection.is_some());
        let connection = connection.unwrap_or(bell.as_fd());
        let waiting = &mut [
            PollFd::new(bell, PollFlags::IN),
            PollFd::new(&connection, PollFlags::IN | PollFlags::RDHUP),
        ];
        // If a signal interrupts `poll`, the caller looks for work all the same.
        let _ = poll(&mut waiting[..descriptors], timeout);
        if !waiting[0].revents().is_empty() {
            bell.silence();
        }
    }

    /// Returns whether the requested number of copies has been read.
    fn is_complete(&self) -> bool {
        self.settings().count.is_some_and(|count| self.read >= count)
    }

    fn take_rings(&mut self) {
        let new = self.monitor.feed.take_rings();
        self.rings.extend(new.into_iter().map(|copies| CopyRing { copies, next: None, due: 0 }));
    }
}

const _: () = assert!(
    HEAD + MAX_SNAPLEN as usize <= 1 << 20,
    "the smallest ring has room for the longest copy"
);
