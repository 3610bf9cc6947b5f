//! The sending side of a connection: a socket, and the frames that wait for room in it.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, send, sendmsg};

use super::options::SocketKind;
use super::readiness::RoomWatch;
use super::socket_file::SEND_FLAGS;

/// Number of queued bytes from which on no further frame is queued: one poll of frames of 1,500
/// bytes.
const QUEUE: usize = 1 << 20;

/// Length in bytes of the length field before each frame of a stream.
pub(super) const LENGTH: usize = 4;

/// A connection with a peer, used by all ends of the port.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    kind: SocketKind,
    queue: Mutex<OutputQueue>,
    /// Whether frames are queued, so that the receiving end is woken when the socket has room for
    /// them.
    waits: AtomicBool,
    room: RoomWatch,
}

/// Frames that wait for room in the socket, each after its length.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that have been sent.
    sent: usize,
}

impl OutputQueue {
    /// Returns whether frames wait.
    pub(super) fn has_frames(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Returns whether another frame may be added.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.len() - self.sent < QUEUE
    }

    /// Adds the bytes of a frame without the first `sent`. They begin with the frame's length.
    pub(super) fn push<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>, mut sent: usize) {
        for part in parts {
            let skip = sent.min(part.len());
            sent -= skip;
            self.bytes.extend_from_slice(&part[skip..]);
        }
    }

    /// Removes all frames.
    fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }

    /// Notes that `count` more bytes were sent.
    fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.bytes.len() {
            self.clear();
        } else if self.sent >= QUEUE {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, kind: SocketKind, room: RoomWatch) -> Self {
        let queue = Mutex::new(OutputQueue::default());
        Connection { socket, kind, queue, waits: AtomicBool::new(false), room }
    }

    /// Sends queued frames while the socket has room, and returns the locked queue with the rest.
    ///
    /// # Errors
    /// The error of sending, if it is not that the socket is full.
    pub(super) fn queue(&self) -> Result<MutexGuard<'_, OutputQueue>, Errno> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match self.flush(&mut queue) {
            Ok(()) => Ok(queue),
            Err(error) if is_full(error) => Ok(queue),
            Err(error) => {
                queue.clear();
                Err(error)
            }
        }
    }

    /// Sends the waiting frames, if there are any and the socket has room.
    pub(super) fn send_waiting(&self) {
        if self.waits.load(Ordering::Relaxed)
            && let Ok(queue) = self.queue()
        {
            self.watch_room(&queue);
        }
    }

    /// Removes all waiting frames.
    pub(super) fn discard(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.clear();
        self.watch_room(&queue);
    }

    /// Makes the receiving end wake up when the socket has room for the queued frames, or no longer
    /// if there are none. Must be called after each change of the queue.
    pub(super) fn watch_room(&self, queue: &OutputQueue) {
        let waits = queue.has_frames();
        if self.waits.swap(waits, Ordering::Relaxed) != waits {
            self.room.set(&self.socket, waits);
        }
    }

    /// Sends the waiting frames until the socket is full.
    fn flush(&self, queue: &mut OutputQueue) -> Result<(), Errno> {
        while queue.has_frames() {
            let waiting = &queue.bytes[queue.sent..];
            let count = match self.kind {
                SocketKind::Stream => self.send(&[IoSlice::new(waiting)])?,
                SocketKind::Datagram => {
                    let length = waiting.first_chunk::<LENGTH>().copied().unwrap_or_default();
                    let end = LENGTH + u32::from_be_bytes(length) as usize;
                    match self.send(&[IoSlice::new(&waiting[LENGTH..end])]) {
                        // Frames in the queue cannot be cut any more.
                        Ok(_) | Err(Errno::MSGSIZE) => end,
                        Err(error) => return Err(error),
                    }
                }
            };
            queue.advance(count);
        }
        Ok(())
    }

    /// Sends the bytes, and returns how many the socket took: all, if it is a datagram socket.
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| match slices {
            [single] => send(&self.socket, single, SEND_FLAGS),
            _ => sendmsg(&self.socket, slices, &mut SendAncillaryBuffer::default(), SEND_FLAGS),
        })
    }
}

/// Returns whether an error says that there is no room now. macOS says ENOBUFS where Linux says
/// EAGAIN.
pub(super) fn is_full(error: Errno) -> bool {
    matches!(error, Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM)
}
