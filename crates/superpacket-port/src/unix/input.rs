//! Cuts the bytes of a stream into frames.
//!
//! Bytes are read into a buffer, from which frames are copied into slots. The rest of a long frame
//! is read directly into the slot that is lent.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, readv, retry_on_intr};
use superpacket::packet::RxPacket;

use super::output::LENGTH;
use super::shared::UnixShared;
use crate::Buffer;
use crate::slots::{PacketSlots, SMALL_SLOT};

/// Number of bytes requested per read while frames are short: as many as the longest frame has.
const READ: usize = 64 * 1024;

/// Maximum number of reads per poll. A peer that writes single bytes all the time must not keep the
/// thread busy.
const MAX_READS: usize = 1024;

/// Number of bytes requested beyond the end of a long frame. They are copied again if the next
/// frame is long too.
const READ_BEHIND: usize = 4096;

/// The bytes of a stream that are not yet delivered.
#[derive(Debug)]
pub(super) struct StreamInput {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The long frame that is being received. While there is one, `bytes` contains no unread bytes.
    long: Option<LongFrame>,
    /// Whether the last frame was a long one.
    is_long: bool,
}

/// A long frame, the first bytes of which lie in a large slot.
#[derive(Debug)]
struct LongFrame {
    slot: usize,
    filled: usize,
    length: usize,
}

/// Why no more frames are delivered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// The stream has no more bytes now.
    Empty,
    /// Frames may be left: as many were taken as wanted, or all slots are lent.
    Pending,
    /// The peer has closed the connection.
    Closed,
    /// A length is out of bounds.
    Broken,
}

impl StreamInput {
    pub(super) fn new() -> Self {
        let bytes = vec![0; READ].into_boxed_slice();
        StreamInput { bytes, start: 0, end: 0, long: None, is_long: false }
    }

    /// Forgets all bytes. Returns whether they were a part of a frame.
    pub(super) fn clear(&mut self) -> bool {
        let had_part = self.start != self.end || self.long.is_some();
        (self.start, self.end, self.long, self.is_long) = (0, 0, None, false);
        had_part
    }

    /// Takes at most `limit` frames, received at `time`. Returns how many of them were delivered.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        shared: &UnixShared,
        slots: &mut PacketSlots,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
        time: u64,
    ) -> (usize, StreamState) {
        let (before, mut left) = (packets.len(), limit);
        for _ in 0..MAX_READS {
            if let Some(state) = self.deliver(shared, slots, packets, &mut left, time) {
                return (packets.len() - before, state);
            }
            let state = match self.read(socket, slots) {
                Ok(0) => StreamState::Closed,
                Ok(_) => continue,
                Err(Errno::AGAIN) => StreamState::Empty,
                Err(_) => StreamState::Closed,
            };
            return (packets.len() - before, state);
        }
        (packets.len() - before, StreamState::Pending)
    }

    /// Delivers the frames that have arrived completely, at most `left` of them. Frames with an
    /// unusable header count too. Returns the reason for stopping, or `None` if more bytes are
    /// needed.
    fn deliver(
        &mut self,
        shared: &UnixShared,
        slots: &mut PacketSlots,
        packets: &mut Vec<RxPacket<Buffer>>,
        left: &mut usize,
        time: u64,
    ) -> Option<StreamState> {
        if let Some(LongFrame { slot, filled, length }) = self.long
            && filled == length
        {
            if *left == 0 {
                return Some(StreamState::Pending);
            }
            *left -= 1;
            self.long = None;
            let offload =
                slots.large_mut(slot).map(|bytes| shared.format.offload(&mut bytes[..length]));
            match offload {
                Some(Ok(offload)) => {
                    let range = shared.format.header_length()..length;
                    let buffer = slots.lend_large(slot, range);
                    packets.extend(buffer.map(|buffer| packet(buffer, offload, time)));
                }
                Some(Err(error)) => shared.refuse_header(&error),
                None => {}
            }
        }
        if self.long.is_some() {
            return None;
        }
        loop {
            let waiting = &mut self.bytes[self.start..self.end];
            let (length, rest) = waiting.split_first_chunk_mut::<LENGTH>()?;
            let length = u32::from_be_bytes(*length) as usize;
            // Nothing was allocated for this length yet.
            if !shared.format.lengths().contains(&length) {
                return Some(StreamState::Broken);
            }
            self.is_long = length > SMALL_SLOT;
            let Some(bytes) = rest.get_mut(..length) else {
                return self.begin_long(slots, length);
            };
            if *left == 0 {
                return Some(StreamState::Pending);
            }
            match shared.format.offload(bytes) {
                Ok(offload) => {
                    let Some(buffer) = slots.copy(&bytes[shared.format.header_length()..]) else {
                        return Some(StreamState::Pending);
                    };
                    packets.push(packet(buffer, offload, time));
                }
                Err(error) => shared.refuse_header(&error),
            }
            *left -= 1;
            self.start += LENGTH + length;
        }
    }

    /// Moves the bytes of a long frame that have arrived to a large slot. Short frames stay in the
    /// buffer until they are complete.
    fn begin_long(&mut self, slots: &mut PacketSlots, length: usize) -> Option<StreamState> {
        if length <= SMALL_SLOT {
            return None;
        }
        let part = &self.bytes[self.start + LENGTH..self.end];
        let Some((slot, bytes)) =
            slots.free_large().and_then(|slot| Some((slot, slots.large_mut(slot)?)))
        else {
            return Some(StreamState::Pending);
        };
        bytes[..part.len()].copy_from_slice(part);
        self.long = Some(LongFrame { slot, filled: part.len(), length });
        (self.start, self.end) = (0, 0);
        None
    }

    /// Reads bytes, and returns their number; 0 at the end of the stream.
    fn read(&mut self, socket: BorrowedFd<'_>, slots: &mut PacketSlots) -> Result<usize, Errno> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let most = if self.is_long { (self.end + READ_BEHIND).min(READ) } else { READ };
        let free = IoSliceMut::new(&mut self.bytes[self.end..most]);
        let (mut rest, mut missing) = (IoSliceMut::new(&mut []), 0);
        if let Some(LongFrame { slot, filled, length }) = self.long
            && let Some(bytes) = slots.large_mut(slot)
        {
            missing = length - filled;
            rest = IoSliceMut::new(&mut bytes[filled..length]);
        }
        let mut pieces = [rest, free];
        let count = retry_on_intr(|| readv(socket, &mut pieces))?;
        if let Some(long) = &mut self.long {
            long.filled += count.min(missing);
        }
        self.end += count.saturating_sub(missing);
        Ok(count)
    }
}

fn packet(buffer: Buffer, offload: superpacket::virtio::Offload, time: u64) -> RxPacket<Buffer> {
    let mut received = RxPacket::new(buffer).with_checksum(offload.checksum).with_time(time);
    received.gso = offload.gso;
    received
}
