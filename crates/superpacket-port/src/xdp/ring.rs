//! The four rings of an AF_XDP socket, shared with the kernel. Each has one writer and one reader
//! (`net/xdp/xsk_queue.h`).
//!
//! Producer and consumer are 32-bit counters that wrap around. The producer's store (release)
//! publishes entries, and the consumer's store returns them.

#![expect(unsafe_code, reason = "rings shared with the kernel")]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;

/// `XDP_RING_NEED_WAKEUP`: the kernel processes the ring only after a system call.
const NEED_WAKEUP: u32 = 1;

/// An entry of a ring: a kernel type without pointers, valid for all bit patterns.
pub(super) trait RingEntry: Copy {}

/// Entries that are addresses, in the fill and completion rings.
impl RingEntry for u64 {}

/// Entries that are descriptors, in the RX and TX rings.
impl RingEntry for rustix::net::xdp::XdpDesc {}

/// One of the four rings of a socket, mapped into this process.
#[derive(Debug)]
struct XdpRing<T> {
    map: NonNull<u8>,
    length: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    /// Number of entries, a power of two.
    size: u32,
}

// SAFETY: the ring owns the mapping. Its counters are atomic, and its entries are accessed only
// through `&mut` of its one producer or consumer.
unsafe impl<T: Send> Send for XdpRing<T> {}

impl<T: RingEntry> XdpRing<T> {
    /// Maps a ring of `size` entries, a power of two. `place` is the ring's mmap offset in the
    /// socket's file.
    fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        // Before Linux 5.4 `struct xdp_ring` has no flags; this port needs BPF links, which are
        // newer.
        let flags = offsets.flags.ok_or(io::ErrorKind::Unsupported)?;
        // The counters lie before the entries.
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
        // SAFETY: as checked above, all four lie within the mapping. They are aligned, since the
        // mapping begins at a page.
        let at = |offset: u64| unsafe { map.add(offset as usize) };
        Ok(XdpRing {
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

impl<T> XdpRing<T> {
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it lies in the mapping, is aligned, and both sides write it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    /// Returns whether the kernel waits for a system call before it processes the ring.
    fn needs_wakeup(&self) -> bool {
        // Publishing must come before reading the flag, or both sides might wait for each other.
        fence(Ordering::SeqCst);
        // SAFETY: as in `producer`.
        unsafe { self.flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// Returns the address of the entry for the counter value `index`.
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the number of entries, which all lie in the mapping.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }
}

impl<T> Drop for XdpRing<T> {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map`; no pointer into it outlives the ring. After an
        // error the memory stays mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.length) };
    }
}

/// The writing end of a fill or TX ring.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: XdpRing<T>,
    /// Counter of the next entry to write.
    head: u32,
    /// Counter up to which entries are published to the kernel.
    published: u32,
}

impl<T: RingEntry> Producer<T> {
    /// Maps a ring of `size` entries. `place` is the ring's mmap offset in the socket's file.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = XdpRing::map(socket, place, offsets, size)?;
        let head = ring.producer().load(Ordering::Relaxed);
        Ok(Producer { ring, head, published: head })
    }

    /// Returns the number of entries that can be written.
    pub(super) fn room(&self) -> u32 {
        // Acquire: the kernel has read the entries that it returned.
        self.ring
            .size
            .saturating_sub(self.head.wrapping_sub(self.ring.consumer().load(Ordering::Acquire)))
    }

    /// Writes an entry, for which [`room`](Self::room) must have been checked. The kernel sees it
    /// after [`publish`](Self::publish).
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the entry lies in the mapping. The kernel does not read it before it is
        // published, and no reference to it exists.
        unsafe { self.ring.entry(self.head).write(entry) };
        self.head = self.head.wrapping_add(1);
    }

    /// Publishes all written entries to the kernel.
    pub(super) fn publish(&mut self) {
        if self.published != self.head {
            self.published = self.head;
            self.ring.producer().store(self.head, Ordering::Release);
        }
    }

    /// Returns the number of published entries that the kernel has not taken.
    pub(super) fn untaken(&self) -> u32 {
        self.published
            .wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
            .min(self.ring.size)
    }

    /// Returns whether the kernel waits for a system call before it takes more entries.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The reading end of an RX or completion ring.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: XdpRing<T>,
    tail: u32,
}

impl<T: RingEntry> Consumer<T> {
    /// Maps a ring of `size` entries. `place` is the ring's mmap offset in the socket's file.
    ///
    /// # Errors
    /// The error of `mmap`.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        offsets: &XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = XdpRing::map(socket, place, offsets, size)?;
        let tail = ring.consumer().load(Ordering::Relaxed);
        Ok(Consumer { ring, tail })
    }

    /// Returns the number of available entries.
    pub(super) fn available(&self) -> u32 {
        // Acquire: everything that the kernel wrote before publishing is visible, including frames.
        self.ring.producer().load(Ordering::Acquire).wrapping_sub(self.tail).min(self.ring.size)
    }

    /// Returns the [available](Self::available) entry number `index`, counted from 0.
    pub(super) fn peek(&self, index: u32) -> T {
        // SAFETY: the entry lies in the mapping and is initialised, since rings start as zeros. The
        // kernel does not write it before it is released.
        unsafe { self.ring.entry(self.tail.wrapping_add(index)).read() }
    }

    /// Returns the first `count` entries to the kernel.
    pub(super) fn release(&mut self, count: u32) {
        self.tail = self.tail.wrapping_add(count);
        // Release: the entries have been read.
        self.ring.consumer().store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    const OFFSETS: XdpRingOffset =
        XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(32) };

    /// Returns both ends of a ring in a memory file. The counters start at `first`.
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
            // Sums that would overflow.
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
