//! The four rings of an AF_XDP socket, shared with the kernel: each has one writer and one reader
//! (`net/xdp/xsk_queue.h`).
//!
//! Producer and consumer are counters of 32 bits that wrap. What is written into an entry is
//! published by the producer's store (release), and an entry is given back by the consumer's.

#![expect(unsafe_code, reason = "rings shared with the kernel")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;

/// `XDP_RING_NEED_WAKEUP`: the kernel looks at the ring only after a system call.
const NEED_WAKEUP: u32 = 1;

/// What a ring may hold: the kernel's own types, without pointers, valid for all bits.
pub(super) trait Entry: Copy {}

/// Addresses in the fill and the completion ring.
impl Entry for u64 {}

/// Descriptors in the RX and the TX ring.
impl Entry for rustix::net::xdp::XdpDesc {}

/// A mapped ring.
#[derive(Debug)]
struct Ring<T> {
    map: NonNull<u8>,
    length: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// The number of entries, a power of two.
    size: u32,
}

// SAFETY: the mapping belongs to the ring; its counters are atomic, and its entries are touched
// through `&mut` of its one producer or consumer only.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Entry> Ring<T> {
    /// Maps the ring of `size` entries, a power of two, that lies at `place` of the socket.
    fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        // `struct xdp_ring` without flags is older than Linux 5.4, and so than the links that this
        // port needs.
        let flags = offsets.flags.ok_or(io::ErrorKind::Unsupported)?;
        // The words lie before the entries, whose offset bounds theirs.
        let word = |offset: u64| {
            offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= offsets.desc)
        };
        let words = word(offsets.producer) && word(offsets.consumer) && word(flags);
        let entries = usize::try_from(offsets.desc)
            .ok()
            .filter(|entries| entries.is_multiple_of(align_of::<T>()));
        let bytes =
            (size as usize).checked_mul(size_of::<T>()).filter(|_| words && size.is_power_of_two());
        let length = entries
            .zip(bytes)
            .and_then(|(entries, bytes)| entries.checked_add(bytes))
            .ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                place,
            )
        }?;
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: checked above: all four lie within the mapping, and are aligned, as the mapping
        // is to pages.
        let at = |offset: u64| unsafe { map.add(offset as usize) };
        Ok(Ring {
            map,
            length,
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(flags).cast(),
            entries: at(offsets.desc).cast(),
            size,
        })
    }
}

impl<T> Ring<T> {
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it lies in the mapping, aligned, and is written atomically by both sides.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// Does the kernel wait for a system call?
    fn needs_wakeup(&self) -> bool {
        // What was published comes before the look at the flag, or both sides might wait for each
        // other.
        fence(Ordering::SeqCst);
        // SAFETY: as `producer`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Where the entry that the counter `index` stands for lies.
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is less than the number of entries, which all lie in the
        // mapping.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map`; what points into it goes with the ring. An
        // error would leave it mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.length) };
    }
}

/// The end of a ring that entries are written to: of the fill and the TX ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// The next to be written.
    head: u32,
    /// Up to where the kernel has been told.
    published: u32,
}

impl<T: Entry> Producer<T> {
    /// Maps the ring of `size` entries at `place` of the socket.
    ///
    /// # Errors
    /// What `mmap` refused.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(socket, place, offsets, size)?;
        let head = ring.producer().load(Ordering::Relaxed);
        Ok(Producer { ring, head, published: head })
    }

    /// How many entries can be written.
    pub(super) fn room(&self) -> u32 {
        // Acquire: the kernel has read the entries that it gave back.
        self.ring
            .size
            .saturating_sub(self.head.wrapping_sub(self.ring.consumer().load(Ordering::Acquire)))
    }

    /// Writes an entry, of which [`room`](Self::room) said that there is place for it: the kernel
    /// sees it after [`publish`](Self::publish).
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the place lies in the mapping; the kernel does not read it until it is published,
        // and no reference to it exists.
        unsafe { self.ring.entry(self.head).write(entry) };
        self.head = self.head.wrapping_add(1);
    }

    /// Tells the kernel of all that was written.
    pub(super) fn publish(&mut self) {
        if self.published != self.head {
            self.published = self.head;
            self.ring.producer().store(self.head, Ordering::Release);
        }
    }

    /// How many published entries the kernel has not taken.
    pub(super) fn untaken(&self) -> u32 {
        self.published
            .wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
            .min(self.ring.size)
    }

    /// Does the kernel wait for a system call before it takes more?
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The end of a ring that entries are read from: of the RX and the completion ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    tail: u32,
}

impl<T: Entry> Consumer<T> {
    /// Maps the ring of `size` entries at `place` of the socket.
    ///
    /// # Errors
    /// What `mmap` refused.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Ring::map(socket, place, offsets, size)?;
        let tail = ring.consumer().load(Ordering::Relaxed);
        Ok(Consumer { ring, tail })
    }

    /// How many entries are there.
    pub(super) fn available(&self) -> u32 {
        // Acquire: what the kernel wrote before it published them, frames included, is seen.
        self.ring.producer().load(Ordering::Acquire).wrapping_sub(self.tail).min(self.ring.size)
    }

    /// The entry number `index` of those [that are there](Self::available).
    pub(super) fn peek(&self, index: u32) -> T {
        // SAFETY: the place lies in the mapping, is initialised (rings start as zeros), and the
        // kernel does not write it until it is released.
        unsafe { self.ring.entry(self.tail.wrapping_add(index)).read() }
    }

    /// Gives the first `count` entries back.
    pub(super) fn release(&mut self, count: u32) {
        self.tail = self.tail.wrapping_add(count);
        // Release: they have been read.
        self.ring.consumer().store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const OFFSETS: XdpRingOffset =
        XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(32) };

    /// Both ends of a ring in a file in memory, which starts at the counters' `first` value.
    fn ring(size: u32, first: u32) -> (Producer<u64>, Consumer<u64>) {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("a file in memory");
        rustix::fs::ftruncate(&file, 128 + u64::from(size) * 8).expect("sized");
        for place in [0, 64] {
            rustix::io::pwrite(&file, &first.to_ne_bytes(), place).expect("written");
        }
        let ends = (
            Producer::map(file.as_fd(), 0, &OFFSETS, size),
            Consumer::map(file.as_fd(), 0, &OFFSETS, size),
        );
        (ends.0.expect("mapped"), ends.1.expect("mapped"))
    }

    #[test]
    fn entries_pass_in_order_when_published_and_counters_wrap() {
        let (mut producer, mut consumer) = ring(8, u32::MAX - 3);
        for index in 0..8 {
            assert_eq!(producer.room(), 8 - index);
            producer.push(u64::from(index));
        }
        assert_eq!((consumer.available(), producer.untaken()), (0, 0));
        producer.publish();
        assert_eq!((consumer.available(), producer.untaken(), producer.room()), (8, 8, 0));
        assert_eq!(
            (0..8).map(|index| consumer.peek(index)).collect::<Vec<_>>(),
            (0..8).collect::<Vec<_>>()
        );
        consumer.release(5);
        assert_eq!(
            (consumer.available(), consumer.peek(0), producer.room(), producer.untaken()),
            (3, 5, 5, 3)
        );
    }

    #[test]
    fn two_threads_pass_entries() {
        const ENTRIES: u64 = 200_000;
        let (mut producer, mut consumer) = ring(64, 0);
        let writer = std::thread::spawn(move || {
            let mut next = 0;
            while next < ENTRIES {
                for _ in 0..u64::from(producer.room()).min(ENTRIES - next) {
                    producer.push(next);
                    next += 1;
                }
                producer.publish();
                std::thread::yield_now();
            }
        });
        let mut next = 0;
        while next < ENTRIES {
            let available = consumer.available();
            for index in 0..available {
                assert_eq!(consumer.peek(index), next);
                next += 1;
            }
            consumer.release(available);
            std::thread::yield_now();
        }
        writer.join().expect("no panic");
    }

    #[test]
    fn the_wakeup_flag_is_the_kernels() {
        let (producer, consumer) = ring(8, 0);
        assert!(!producer.needs_wakeup());
        // SAFETY: it lies in the mapping of the other end.
        unsafe { consumer.ring.flags.as_ref() }.store(1, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    #[test]
    fn offsets_that_make_no_sense_are_refused() {
        let file = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("a file in memory");
        for (offsets, size) in [
            (XdpRingOffset { producer: 2, ..OFFSETS }, 8),
            (XdpRingOffset { consumer: 4096, ..OFFSETS }, 8),
            (XdpRingOffset { desc: 129, ..OFFSETS }, 8),
            (XdpRingOffset { flags: None, ..OFFSETS }, 8),
            (OFFSETS, 7),
            // The sums would wrap.
            (XdpRingOffset { producer: u64::MAX - 3, ..OFFSETS }, 8),
            (XdpRingOffset { flags: Some(u64::MAX - 3), ..OFFSETS }, 8),
            (XdpRingOffset { desc: u64::MAX - 7, ..OFFSETS }, 8),
            (XdpRingOffset { desc: u64::MAX - 63, ..OFFSETS }, 8),
        ] {
            assert!(
                Producer::<u64>::map(file.as_fd(), 0, &offsets, size).is_err(),
                "{offsets:?} {size}"
            );
        }
    }
}
