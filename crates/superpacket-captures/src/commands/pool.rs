//! Buffers for frames that are held while more frames are read. They come from a pool, and return
//! to it when the last handle is dropped.
//!
//! The pool counts the capacity of the buffers in use, not the length of their frames, so a limit
//! on it is a limit on memory. A handle is one pointer. In steady state, no memory is allocated.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU16;
use std::rc::{Rc, Weak};

use crate::commands::checksums::be16;
use crate::file::{Frame, FrameOptions, OptionForm, Timestamp};

/// Smallest capacity in bytes of the buffers in the pool; each larger one is twice the one before.
const SMALLEST: usize = 128;
/// Number of different capacities in the pool, up to 64 KiB. Longer buffers are allocated for a
/// frame and freed afterwards.
const CLASSES: usize = 10;
/// Maximum number of bytes in unused buffers of the pool.
const MOST_IDLE: usize = 4 << 20;
/// Memory in bytes that a buffer takes in addition to its capacity.
const OVERHEAD: usize = size_of::<PooledFrame>() + 16;

/// Maximum number of checksum fields that are overwritten: of three IPv4 headers, and of the
/// transport header.
const MOST_OVERWRITTEN: usize = 4;

/// A handle to the bytes and metadata of a frame in a pooled buffer. Clones share the buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buffer(Rc<PooledFrame>);

#[derive(Debug)]
struct PooledFrame {
    /// The bytes of the frame, followed by those of its options.
    bytes: Vec<u8>,
    /// Length of the frame in bytes.
    length: usize,
    form: OptionForm,
    /// Payload bytes per segment of a frame that is known to be a super-packet.
    segment_size: Option<NonZeroU16>,
    /// Length in bytes of the link header, which the aggregation engine does not see.
    link: usize,
    original_length: u32,
    time: Option<Timestamp>,
    /// Number of the frame in its file, from 1.
    number: u64,
    /// The checksum fields that were overwritten for the aggregation engine: their offsets in the
    /// bytes that it sees, and their values before.
    overwritten: [(u16, u16); MOST_OVERWRITTEN],
    /// Number of values in `overwritten`.
    overwrites: u8,
    pool: Weak<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: RefCell<[Vec<Rc<PooledFrame>>; CLASSES]>,
    idle_bytes: Cell<usize>,
    used_bytes: Cell<usize>,
}

/// A pool of buffers.
#[derive(Debug, Default)]
pub(crate) struct BufferPool(Rc<PoolState>);

impl BufferPool {
    /// Returns the number of bytes of memory that all buffers in use take.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.0.used_bytes.get()
    }

    /// Copies a frame into a buffer. Its first `link` bytes are the link header, which the
    /// aggregation engine does not see.
    #[inline]
    pub(crate) fn copy(&self, frame: &Frame<'_>, link: usize) -> Buffer {
        let options = frame.options.bytes();
        let mut inner = self.take(frame.data.len() + options.len());
        if let Some(inner) = Rc::get_mut(&mut inner) {
            inner.bytes.extend_from_slice(frame.data);
            inner.bytes.extend_from_slice(options);
            inner.length = frame.data.len();
            inner.form = frame.options.form();
            inner.segment_size = frame.options.segment_size();
            inner.link = link.min(frame.data.len());
            inner.original_length = frame.original_length;
            inner.time = frame.time;
            inner.number = frame.number;
            inner.overwrites = 0;
            self.0.used_bytes.set(self.0.used_bytes.get() + cost(inner));
        }
        Buffer(inner)
    }

    /// Returns an empty buffer with room for `length` bytes, to which there is no other handle.
    fn take(&self, length: usize) -> Rc<PooledFrame> {
        let class = class(length);
        if class < CLASSES
            && let Some(inner) = self.0.idle.borrow_mut()[class].pop()
        {
            self.0.idle_bytes.set(self.0.idle_bytes.get() - cost(&inner));
            return inner;
        }
        let capacity = if class < CLASSES { SMALLEST << class } else { length };
        Rc::new(PooledFrame {
            bytes: Vec::with_capacity(capacity),
            length: 0,
            form: OptionForm::NONE,
            segment_size: None,
            link: 0,
            original_length: 0,
            time: None,
            number: 0,
            overwritten: [(0, 0); MOST_OVERWRITTEN],
            overwrites: 0,
            pool: Rc::downgrade(&self.0),
        })
    }
}

/// Returns the index of the smallest of the pool's capacities that has room for `length` bytes;
/// index 0 is [`SMALLEST`].
fn class(length: usize) -> usize {
    length.max(1).div_ceil(SMALLEST).next_power_of_two().trailing_zeros() as usize
}

fn cost(inner: &PooledFrame) -> usize {
    inner.bytes.capacity() + OVERHEAD
}

impl Buffer {
    /// Returns the whole frame, including its link header.
    #[inline]
    pub(crate) fn frame(&self) -> &[u8] {
        self.0.bytes.get(..self.0.length).unwrap_or(&[])
    }

    /// Returns the options that the capture has for the frame.
    #[inline]
    pub(crate) fn options(&self) -> FrameOptions<'_> {
        FrameOptions::new(self.0.bytes.get(self.0.length..).unwrap_or(&[]), self.0.form)
            .with_segment_size(self.0.segment_size)
    }

    /// Returns the length that the frame had on the wire, according to its capture.
    #[inline]
    pub(crate) fn original_length(&self) -> u32 {
        self.0.original_length
    }

    /// Returns the time at which the frame was captured.
    #[inline]
    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.0.time
    }

    /// Returns the number of the frame in its file, from 1.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the fields that [`Buffer::overwrite`] changed: for each its offset and its previous
    /// value.
    pub(crate) fn overwritten(&self) -> &[(u16, u16)] {
        self.0.overwritten.get(..usize::from(self.0.overwrites)).unwrap_or(&[])
    }

    /// Writes a number as [`Buffer::put`] does, and remembers the number before.
    pub(crate) fn overwrite(&mut self, offset: usize, value: u16) {
        let before = be16(self.as_ref(), offset);
        if let (Some(before), Ok(place), Some(inner)) =
            (before, u16::try_from(offset), Rc::get_mut(&mut self.0))
            && let Some(entry) = inner.overwritten.get_mut(usize::from(inner.overwrites))
        {
            *entry = (place, before);
            inner.overwrites += 1;
            self.put(offset, value);
        }
    }

    /// Writes a big-endian number at `offset` of the bytes that the aggregation engine sees. Does
    /// nothing if there is another handle to the buffer, or if it is too short.
    pub(crate) fn put(&mut self, offset: usize, value: u16) {
        if let Some(inner) = Rc::get_mut(&mut self.0) {
            let start = inner.link + offset;
            if let Some(field) = inner
                .bytes
                .get_mut(..inner.length)
                .and_then(|frame| frame.get_mut(start..start + 2))
            {
                field.copy_from_slice(&value.to_be_bytes());
            }
        }
    }
}

impl AsRef<[u8]> for Buffer {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        self.0.bytes.get(self.0.link..self.0.length).unwrap_or(&[])
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if Rc::strong_count(&self.0) != 1 {
            return;
        }
        let Some(shared) = self.0.pool.upgrade() else { return };
        let cost = cost(&self.0);
        shared.used_bytes.set(shared.used_bytes.get() - cost);
        let class = class(self.0.bytes.capacity());
        if class >= CLASSES || shared.idle_bytes.get() + cost > MOST_IDLE {
            return;
        }
        if let Some(inner) = Rc::get_mut(&mut self.0) {
            inner.bytes.clear();
            shared.idle_bytes.set(shared.idle_bytes.get() + cost);
            shared.idle.borrow_mut()[class].push(Rc::clone(&self.0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Interface, LinkType, TimeResolution};

    fn copy(pool: &BufferPool, data: &[u8], link: usize) -> Buffer {
        copy_with(pool, data, link, FrameOptions::NONE)
    }

    fn copy_with(pool: &BufferPool, data: &[u8], link: usize, options: FrameOptions<'_>) -> Buffer {
        let interfaces = [Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)];
        let frame = Frame {
            number: 7,
            interface: 0,
            time: None,
            data,
            original_length: 99,
            options,
            interfaces: &interfaces,
        };
        pool.copy(&frame, link)
    }

    #[test]
    fn a_buffer_comes_back_when_its_last_handle_goes() {
        let pool = BufferPool::default();
        let first = copy(&pool, &[1, 2, 3], 1);
        assert_eq!(
            (first.as_ref(), first.frame(), first.number(), first.original_length()),
            (&[2, 3][..], &[1, 2, 3][..], 7, 99)
        );
        let address = first.frame().as_ptr();
        let second = first.clone();
        drop(first);
        assert!(pool.used() >= SMALLEST);
        drop(second);
        assert_eq!(pool.used(), 0);
        assert_eq!(copy(&pool, &[9; 128], 0).frame().as_ptr(), address, "taken again");
        assert_ne!(copy(&pool, &[9; 129], 0).frame().as_ptr(), address, "too short for this one");
    }

    #[test]
    fn options_are_kept_and_counted_but_are_no_part_of_the_frame() {
        let pool = BufferPool::default();
        let mut buffer =
            copy_with(&pool, &[1; 100], 20, FrameOptions::new(&[9; 200], OptionForm::NONE));
        assert_eq!((buffer.frame().len(), buffer.as_ref().len()), (100, 80));
        assert_eq!(buffer.options().bytes(), [9; 200]);
        assert!(pool.used() >= 300);
        buffer.put(79, 0);
        assert_eq!(
            (buffer.frame(), buffer.options().bytes()),
            (&[1; 100][..], &[9; 200][..]),
            "the write was beyond the frame"
        );
        drop(buffer);
        assert_eq!(pool.used(), 0);
        assert!(copy(&pool, &[1; 300], 0).options().is_empty(), "the same memory, another frame");
    }

    #[test]
    fn the_pool_limits_its_idle_memory() {
        let pool = BufferPool::default();
        let many: Vec<Buffer> = (0..200).map(|_| copy(&pool, &[0; 60_000], 0)).collect();
        assert!(pool.used() > 200 * 60_000);
        drop(many);
        assert_eq!(pool.used(), 0);
        assert!(pool.0.idle_bytes.get() <= MOST_IDLE);
        drop(copy(&pool, &[0; 1 << 20], 0));
        assert!(pool.0.idle_bytes.get() <= MOST_IDLE);
    }

    #[test]
    fn classes_hold_what_they_are_asked_to() {
        for (length, expected) in
            [(0, 0), (1, 0), (128, 0), (129, 1), (256, 1), (257, 2), (65_536, 9), (65_537, 10)]
        {
            assert_eq!(class(length), expected, "{length}");
        }
    }

    #[test]
    fn overwritten_fields_are_remembered_until_the_buffer_returns() {
        let pool = BufferPool::default();
        let mut buffer = copy(&pool, &[1, 2, 3, 4, 5, 6], 2);
        buffer.overwrite(2, 0x0708);
        buffer.overwrite(3, 0xffff);
        assert_eq!(buffer.frame(), [1, 2, 3, 4, 7, 8], "the last write was beyond the end");
        assert_eq!(buffer.overwritten(), [(2, 0x0506)]);
        drop(buffer);
        assert!(copy(&pool, &[0; 6], 2).overwritten().is_empty(), "the same memory");
    }

    #[test]
    fn only_an_unshared_buffer_is_overwritten() {
        let pool = BufferPool::default();
        let mut buffer = copy(&pool, &[0; 6], 2);
        buffer.put(1, 0x0102);
        buffer.put(3, 0xffff);
        assert_eq!(buffer.frame(), [0, 0, 0, 1, 2, 0], "the last write was beyond the end");
        let shared = buffer.clone();
        buffer.put(0, 0xffff);
        assert_eq!(shared.frame(), [0, 0, 0, 1, 2, 0]);
    }
}
