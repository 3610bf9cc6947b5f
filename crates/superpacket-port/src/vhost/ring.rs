//! Split virtqueues (virtio 1.3, section 2.7), from the device's side.
//!
//! The guest owns the memory of its rings and may write anything there at any time. Each index and
//! each descriptor is therefore read once, into a variable, and only that is checked and used. What
//! a driver that keeps to virtio never does is a [`RingFault`]; the ring must then not be used any
//! more.

#![expect(unsafe_code, reason = "rings in memory that a guest changes at the same time")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use superpacket_simd::{prefetch_read, prefetch_write};

use super::memory::{GuestBytes, GuestMemory, copy};

/// Maximum number of descriptors of a ring (virtio 1.3, section 2.7).
pub const MAX_RING_SIZE: u16 = 1 << 15;

/// Maximum number of descriptors per frame, which bounds the work for it. QEMU has the same limit
/// (`VIRTQUEUE_MAX_SIZE`).
const MAX_FRAME_DESCRIPTORS: usize = 1024;

/// Size of a descriptor in bytes: address (8), length (4), flags (2), next (2).
const DESCRIPTOR: usize = 16;

/// How many buffers ahead descriptors are prefetched: about two cache lines of descriptors.
const DESCRIPTOR_AHEAD: u16 = 8;

/// How many buffers ahead the first bytes of buffers are prefetched.
const BYTES_AHEAD: u16 = 3;

/// Bits of a descriptor's flags.
mod descriptor_flags {
    /// The chain continues with the descriptor `next`.
    pub(super) const NEXT: u16 = 1;
    /// The device writes to the buffer; otherwise it reads it.
    pub(super) const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub(super) const INDIRECT: u16 = 4;
}

/// Bit of the flags of the available ring: the guest wants no notification of used buffers.
const NO_INTERRUPT: u16 = 1;
/// Bit of the flags of the used ring: the device wants no notification of available buffers.
const NO_NOTIFY: u16 = 1;

/// A violation of the rules of a ring by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingFault {
    /// The index of the available ring is ahead of the device by more entries than the ring has.
    #[error("{ahead} buffers are said to be available in a ring of {size}")]
    AvailableIndex {
        /// Number of buffers that are available according to the index.
        ahead: u16,
        /// Size of the ring.
        size: u16,
    },
    /// The number of a descriptor is not below the size of the ring.
    #[error("descriptor {index} is named in a ring of {size}")]
    DescriptorIndex {
        /// Number of the descriptor.
        index: u16,
        /// Size of the ring.
        size: u16,
    },
    /// The descriptors of a buffer form a loop, or are more than a frame may have.
    #[error("the descriptors of a buffer never end, or are too many")]
    Loop,
    /// An indirect table is used although the feature was not offered.
    #[error("a descriptor is indirect, which was not offered")]
    Indirect,
    /// The descriptor has the wrong direction: the device may write where it must read, or reverse.
    #[error("a descriptor has the wrong direction")]
    Direction,
    /// A buffer does not lie in the guest's memory.
    #[error("a buffer of {length} bytes at {address:#x} is not in the guest's memory")]
    Address {
        /// Guest-physical address of the bytes outside the guest's memory.
        address: u64,
        /// Length of these bytes.
        length: u32,
    },
}

/// The reason why a ring cannot be used at the location that the front end gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The size is 0, not a power of two, or too large.
    #[error("a ring has {0} descriptors")]
    Size(u32),
    /// The named component of the ring is not aligned, or does not lie within one region of the
    /// guest's memory.
    #[error("the {0} of a ring lies outside the guest's memory, or is not aligned")]
    Address(&'static str),
}

/// Where a ring lies, by addresses of the front end's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// Number of descriptors.
    pub size: u32,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
}

/// The direction of a ring's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The guest sends: the device reads the buffers.
    FromGuest,
    /// The guest receives: the device writes to the buffers.
    ToGuest,
}

/// A buffer that was taken from a ring: one chain of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBuffer {
    /// Number of its first descriptor, by which it is returned.
    pub head: u16,
    /// Length of the chain in bytes.
    pub length: usize,
}

/// A split ring of a guest, from the device's side.
///
/// Buffers are taken ([`take`](Self::take)) and [returned](Self::give_back) in the guest's order,
/// as `VIRTIO_F_IN_ORDER` promises, and are returned before the ring is left alone. So a device
/// that takes over a ring begins at the index of the used ring, and no buffer is in flight.
#[derive(Debug)]
pub struct SplitRing {
    memory: Arc<GuestMemory>,
    descriptors: NonNull<[u64; 2]>,
    /// Words of the available ring: flags, index, `size` descriptor indexes, and the index of the
    /// used ring after which the guest wants to be notified.
    available: NonNull<AtomicU16>,
    /// Words of the used ring: flags, index, `size` entries of descriptor index and length, and the
    /// index of the available ring after which the device wants to be notified.
    used: NonNull<AtomicU16>,
    size: u16,
    direction: Direction,
    /// Whether notifications are limited by event indexes in the rings (`VIRTIO_F_EVENT_IDX`).
    event_index: bool,
    /// Index in the available ring of the next buffer to take.
    next: u16,
    /// Index of the available ring when it was last read.
    seen: u16,
    /// Index in the used ring of the next buffer to return.
    returned: u16,
    /// Index of the used ring that the guest sees.
    published: u16,
    /// Whether the guest is asked to notify the device about available buffers.
    asks_for_kicks: bool,
    /// The region in which the last buffer was found: guest-physical address, and bytes.
    region: (u64, GuestBytes),
    /// The parts of the buffers that were taken since [`begin`](Self::begin).
    parts: Vec<GuestBytes>,
    /// Number of descriptors read since [`begin`](Self::begin).
    walked: usize,
    /// The part, and the offset in it, where [`write`](Self::write) continues.
    cursor: (usize, usize),
}

// SAFETY: the pointers stay valid on any thread, since the ring holds the memory; the ring is used
// through `&mut` only.
unsafe impl Send for SplitRing {}

impl SplitRing {
    /// Starts using the ring at `place`, beginning with the buffer at the index of its used ring.
    ///
    /// # Errors
    /// [`RingError`] if the ring does not lie in the memory.
    pub fn new(
        memory: Arc<GuestMemory>,
        place: RingPlace,
        direction: Direction,
        event_index: bool,
    ) -> Result<Self, RingError> {
        let size = u16::try_from(place.size)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= MAX_RING_SIZE)
            .ok_or(RingError::Size(place.size))?;
        let entries = usize::from(size);
        let find = |name, address, length, align| {
            memory.at_user_address(address, length, align).ok_or(RingError::Address(name))
        };
        // Flags and index, the entries, and an index for notifications.
        let descriptors =
            find("descriptor table", place.descriptors, DESCRIPTOR * entries, DESCRIPTOR)?;
        let available = find("available ring", place.available, 6 + 2 * entries, 2)?;
        let used = find("used ring", place.used, 6 + 8 * entries, 4)?;
        let nowhere = GuestBytes { start: descriptors, length: 0 };
        let mut ring = SplitRing {
            memory,
            descriptors: descriptors.cast(),
            available: available.cast(),
            used: used.cast(),
            size,
            direction,
            event_index,
            next: 0,
            seen: 0,
            returned: 0,
            published: 0,
            asks_for_kicks: true,
            region: (0, nowhere),
            parts: Vec::with_capacity(MAX_FRAME_DESCRIPTORS),
            walked: 0,
            cursor: (0, 0),
        };
        let next = u16::from_le(ring.used_word(1).load(Ordering::Acquire));
        (ring.next, ring.seen, ring.returned, ring.published) = (next, next, next, next);
        if direction == Direction::ToGuest {
            // The device looks for buffers whenever it has a frame.
            ring.refuse_kicks();
        }
        Ok(ring)
    }

    /// Continues this ring in the memory `memory`, at the same addresses in the front end's
    /// process.
    ///
    /// # Errors
    /// [`RingError`] if the ring does not lie in the memory.
    pub fn moved(self, memory: Arc<GuestMemory>, place: RingPlace) -> Result<Self, RingError> {
        SplitRing::new(memory, place, self.direction, self.event_index)
    }

    /// Returns the index in the available ring of the next buffer to take.
    pub const fn next(&self) -> u16 {
        self.next
    }

    /// Returns a word of the available ring.
    #[inline]
    fn available_word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < usize::from(self.size) + 3);
        // SAFETY: `new` found this many words in the memory, aligned. The memory stays while the
        // ring lives. Others access the word atomically too: guests by instructions of their CPU.
        unsafe { self.available.add(index).as_ref() }
    }

    /// Returns a word of the used ring.
    #[inline]
    fn used_word(&self, index: usize) -> &AtomicU16 {
        debug_assert!(index < 4 * usize::from(self.size) + 3);
        // SAFETY: as for the available ring.
        unsafe { self.used.add(index).as_ref() }
    }

    /// Returns the position in the rings of the entry with an index, which is the index modulo the
    /// size.
    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    /// Reads the index of the available ring, and returns the number of buffers that can be taken.
    fn look(&mut self) -> Result<u16, RingFault> {
        // Acquire: the guest's descriptors were written before its index.
        let seen = u16::from_le(self.available_word(1).load(Ordering::Acquire));
        let ahead = seen.wrapping_sub(self.next);
        if ahead > self.size {
            return Err(RingFault::AvailableIndex { ahead, size: self.size });
        }
        self.seen = seen;
        Ok(ahead)
    }

    /// Begins a frame: the buffers taken for the previous frame no longer belong to it.
    #[inline]
    pub fn begin(&mut self) {
        self.parts.clear();
        self.walked = 0;
        self.cursor = (0, 0);
    }

    /// Takes the next buffer, and appends it to the frame that [`begin`](Self::begin) started;
    /// `None` if no buffer is available.
    ///
    /// # Errors
    /// [`RingFault`]; the ring must not be used any more.
    #[inline]
    pub fn take(&mut self) -> Result<Option<TakenBuffer>, RingFault> {
        if self.next == self.seen && self.look()? == 0 {
            return Ok(None);
        }
        self.prefetch();
        let head = self.head(self.next);
        self.next = self.next.wrapping_add(1);
        // A longer chain contains a loop.
        let most = (self.walked + usize::from(self.size)).min(MAX_FRAME_DESCRIPTORS);
        let (mut index, mut length) = (head, 0);
        loop {
            if index >= self.size {
                return Err(RingFault::DescriptorIndex { index, size: self.size });
            }
            if self.walked == most {
                return Err(RingFault::Loop);
            }
            self.walked += 1;
            // SAFETY: the index is below the size, and `new` found as many descriptors, aligned.
            // Volatile: the guest may change it, and each descriptor must be read once.
            let [address, rest] =
                unsafe { self.descriptors.add(usize::from(index)).read_volatile() };
            let (address, rest) = (u64::from_le(address), u64::from_le(rest));
            let (bytes, flags, next) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
            if flags & descriptor_flags::INDIRECT != 0 {
                return Err(RingFault::Indirect);
            }
            let is_writable = flags & descriptor_flags::WRITE != 0;
            if is_writable != (self.direction == Direction::ToGuest) {
                return Err(RingFault::Direction);
            }
            self.add(address, bytes)?;
            length += bytes as usize;
            if flags & descriptor_flags::NEXT == 0 {
                return Ok(Some(TakenBuffer { head, length }));
            }
            index = next;
        }
    }

    /// Returns the number of the first descriptor of the buffer at an index.
    #[inline]
    fn head(&self, index: u16) -> u16 {
        // Relaxed: ordered after the index by its acquire.
        u16::from_le(self.available_word(2 + self.slot(index)).load(Ordering::Relaxed))
    }

    /// Prefetches a descriptor and the first bytes of later buffers, which the guest wrote on
    /// another core.
    #[inline]
    fn prefetch(&self) {
        let waiting = self.seen.wrapping_sub(self.next);
        let head = self.head(self.next.wrapping_add(DESCRIPTOR_AHEAD));
        if waiting > DESCRIPTOR_AHEAD && head < self.size {
            // SAFETY: as in `take`; the words are aligned, and nothing is read.
            prefetch_read(unsafe {
                self.descriptors.add(usize::from(head)).cast::<AtomicU64>().as_ref()
            });
        }
        let head = self.head(self.next.wrapping_add(BYTES_AHEAD));
        if waiting > BYTES_AHEAD && head < self.size {
            // SAFETY: as in `take`. What is read here is only a hint: `take` reads it again, and
            // checks that.
            let [address, _] = unsafe { self.descriptors.add(usize::from(head)).read_volatile() };
            let (base, region) = self.region;
            let offset = u64::from_le(address).wrapping_sub(base);
            for line in [0, 64] {
                if offset < (region.length as u64).saturating_sub(line) {
                    // SAFETY: the place lies within the region; nothing is read.
                    let place = unsafe {
                        region.start.add((offset + line) as usize).cast::<AtomicU8>().as_ref()
                    };
                    match self.direction {
                        Direction::FromGuest => prefetch_read(place),
                        Direction::ToGuest => prefetch_write(place),
                    }
                }
            }
        }
    }

    /// Adds the bytes of a descriptor to the frame.
    #[inline]
    fn add(&mut self, address: u64, length: u32) -> Result<(), RingFault> {
        let (base, region) = self.region;
        let (offset, length) = (address.wrapping_sub(base), u64::from(length));
        // The sum cannot overflow: a region is at most 2^63 bytes long, as mappings are.
        if offset < region.length as u64 && offset + length <= region.length as u64 {
            if length != 0 {
                // SAFETY: offset and length lie within the region.
                let start = unsafe { region.start.add(offset as usize) };
                self.parts.push(GuestBytes { start, length: length as usize });
            }
            return Ok(());
        }
        self.add_from_regions(address, length as u32)
    }

    /// Adds the bytes of a descriptor that lie in another region, or in several.
    #[cold]
    fn add_from_regions(&mut self, mut address: u64, mut length: u32) -> Result<(), RingFault> {
        while length != 0 {
            let fault = RingFault::Address { address, length };
            self.region = self.memory.region_at(address).ok_or(fault)?;
            let mut part = self.memory.at_guest_address(address).ok_or(fault)?;
            part.length = part.length.min(length as usize);
            length -= part.length as u32;
            address = address.wrapping_add(part.length as u64);
            self.parts.push(part);
        }
        Ok(())
    }

    /// Puts the last `buffers` buffers that were taken back into the ring. [`take`](Self::take)
    /// returns them again.
    pub fn put_back(&mut self, buffers: u16) {
        self.next = self.next.wrapping_sub(buffers);
    }

    /// Copies the frame's bytes to the beginning of `to`, as many as fit, and returns their number.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut copied = 0;
        for part in &self.parts {
            let length = part.length.min(to.len() - copied);
            // SAFETY: the part lies in the guest's memory, which this ring holds, and the rest of
            // `to` is at least as long.
            unsafe { copy(part.start.as_ptr(), to[copied..].as_mut_ptr(), length) };
            copied += length;
        }
        copied
    }

    /// Writes bytes to the frame's buffers, after those that were already written. The bytes must
    /// fit into what was taken; what does not is left out.
    #[inline]
    pub fn write(&mut self, mut bytes: &[u8]) {
        while let Some(part) = self.parts.get(self.cursor.0)
            && !bytes.is_empty()
        {
            let length = bytes.len().min(part.length - self.cursor.1);
            // SAFETY: the offset is at most the part's length, and `length` at most the rest. The
            // part lies in the guest's memory, and `bytes` does not.
            unsafe { copy(bytes.as_ptr(), part.start.as_ptr().add(self.cursor.1), length) };
            bytes = &bytes[length..];
            self.cursor.1 += length;
            if self.cursor.1 == part.length {
                self.cursor = (self.cursor.0 + 1, 0);
            }
        }
    }

    /// Returns a buffer to the guest, into which `written` bytes were written. The guest sees it
    /// after [`publish`](Self::publish).
    #[inline]
    pub fn give_back(&mut self, head: u16, written: u32) {
        let entry = 2 + 4 * self.slot(self.returned);
        // SAFETY: the entry has two words of 32 bits, which lie in the used ring. The ring is
        // aligned to 4 bytes, and entries begin at a multiple of 4.
        let [index, length] =
            unsafe { [0, 2].map(|word| self.used.add(entry + word).cast::<AtomicU32>().as_ref()) };
        index.store(u32::from(head).to_le(), Ordering::Relaxed);
        length.store(written.to_le(), Ordering::Relaxed);
        self.returned = self.returned.wrapping_add(1);
    }

    /// Makes the returned buffers visible to the guest, and returns whether the guest wants a
    /// notification.
    pub fn publish(&mut self) -> bool {
        let before = self.published;
        if before == self.returned {
            return false;
        }
        self.published = self.returned;
        // Release: the entries, and what was read from or written to the buffers, come before.
        self.used_word(1).store(self.returned.to_le(), Ordering::Release);
        // The guest writes what it wants to be notified of, then reads the index. This side writes
        // the index, then reads what the guest wants. One of the two sees the other.
        fence(Ordering::SeqCst);
        if self.event_index {
            let word = self.available_word(2 + usize::from(self.size));
            is_passed(u16::from_le(word.load(Ordering::Relaxed)), before, self.returned)
        } else {
            u16::from_le(self.available_word(0).load(Ordering::Relaxed)) & NO_INTERRUPT == 0
        }
    }

    /// Asks the guest to notify the device about available buffers, and returns whether some are
    /// available already.
    ///
    /// # Errors
    /// [`RingFault`]; the ring must not be used any more.
    pub fn ask_for_kicks(&mut self) -> Result<bool, RingFault> {
        self.asks_for_kicks = true;
        if self.event_index {
            let word = self.used_word(2 + 4 * usize::from(self.size));
            word.store(self.next.to_le(), Ordering::Relaxed);
        } else {
            self.used_word(0).store(0, Ordering::Relaxed);
        }
        // As in `publish`: this side writes what it wants, then reads the index.
        fence(Ordering::SeqCst);
        Ok(self.look()? != 0)
    }

    /// Asks the guest not to notify the device about available buffers.
    #[inline]
    pub fn refuse_kicks(&mut self) {
        // With indexes nothing need be written: the guest notifies only when it passes the index
        // that was last asked for, and it has.
        if std::mem::take(&mut self.asks_for_kicks) && !self.event_index {
            self.used_word(0).store(NO_NOTIFY.to_le(), Ordering::Relaxed);
        }
    }

    /// Returns whether the guest is asked to notify the device about available buffers.
    #[inline]
    pub const fn asks_for_kicks(&self) -> bool {
        self.asks_for_kicks
    }
}

/// Returns whether an index that moves from `before` to `now` passes `event`
/// (`vring_need_event`).
const fn is_passed(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

#[cfg(test)]
mod tests;
