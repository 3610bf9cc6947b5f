//! Buffers in which ports deliver received packets: a range of a port's memory, or owned bytes.
//! Dropping a buffer returns its memory to the port.

#![expect(unsafe_code, reason = "memory that is lent and comes back, and that a kernel may map")]

mod memory;
mod orphans;

use std::alloc::{Layout, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use memory::{FlaggedMemory, Flags, Memory, heap_layout};

/// Bytes of a received packet, either in a slot of a port's memory or owned.
pub struct Buffer {
    data: NonNull<u8>,
    length: usize,
    /// Points to the flag of the buffer's first slot in a [`Region`]. The flag contains the number
    /// of slots lent together. `None` if this buffer owns the bytes as a `Box<[u8]>`.
    lent: Option<NonNull<AtomicU8>>,
}

// SAFETY: the bytes are only read, no one else writes them while the buffer lives (see
// `Region::lend`), and the flag is atomic.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared buffer yields only shared slices.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns the bytes that the buffer holds: those of a received packet, without unused space.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `data` points to `length` initialised bytes. They stay valid while the slot is
        // lent, or belong to this buffer.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }

    /// Removes the first `count` bytes, or all if there are fewer.
    pub fn skip(&mut self, count: usize) {
        // A box must be freed with its original length, so the rest moves to a new one.
        if self.lent.is_none() {
            *self = Buffer::from(self.bytes().get(count..).unwrap_or_default().to_vec());
            return;
        }
        let count = count.min(self.length);
        // SAFETY: `count` is at most `length`, so the pointer stays within the slot or one byte
        // past its end.
        self.data = unsafe { self.data.add(count) };
        self.length -= count;
    }
}

impl AsRef<[u8]> for Buffer {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        let data = Box::into_raw(bytes.into_boxed_slice()).cast::<u8>();
        // SAFETY: a box is never null.
        Buffer { data: unsafe { NonNull::new_unchecked(data) }, length, lent: None }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        match self.lent {
            Some(flag) => {
                // SAFETY: the flags live while they are set (see `Region`'s drop), and only this
                // buffer changes them until they are cleared.
                let slots = usize::from(unsafe { flag.as_ref() }.load(Ordering::Relaxed));
                for slot in (0..slots).rev() {
                    // SAFETY: `lend_run` derived the pointer from the flags of all these slots, and
                    // this slot's flag is still set. Release: all reads of the bytes happen before
                    // the slot is reused.
                    unsafe { flag.add(slot).as_ref() }.store(0, Ordering::Release);
                }
            }
            // SAFETY: pointer and length come from `Box::into_raw` in `from`; `skip` does not
            // change them in an owned buffer.
            None => drop(unsafe {
                Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.data.as_ptr(), self.length))
            }),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Buffer")
            .field("length", &self.length)
            .field("lent", &self.lent.is_some())
            .finish()
    }
}

/// Memory divided into slots of equal size, which ports lend as [`Buffer`]s.
///
/// A region may be dropped while its buffers are in use. A background thread frees its memory
/// within about a second after the last of them is returned.
#[derive(Debug)]
pub struct Region {
    /// The memory, and a flag per slot, which is 0 unless the slot is lent. If several slots are
    /// lent together, the flag of the first one contains their number.
    held: ManuallyDrop<FlaggedMemory>,
    /// Address of the first slot.
    start: NonNull<u8>,
    slots: usize,
    slot_size: usize,
}

// SAFETY: the region owns the memory, which is written only through `&mut self`.
unsafe impl Send for Region {}
// SAFETY: through `&self` only the flags are read, which are atomic.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates zeroed, page-aligned memory for `slots` slots of `slot_size` bytes. For large
    /// regions most allocators use fresh pages of the system, so slots occupy no memory before they
    /// are first written.
    ///
    /// # Panics
    /// If either is 0 or their product overflows.
    pub fn heap(slots: usize, slot_size: usize) -> Self {
        let layout = heap_layout(slots, slot_size);
        Region::allocate(layout, slots, slot_size).unwrap_or_else(|| handle_alloc_error(layout))
    }

    /// Like [`heap`](Self::heap), but returns `None` if there is not enough memory. Use it for
    /// sizes that users choose.
    pub fn try_heap(slots: usize, slot_size: usize) -> Option<Self> {
        Region::allocate(heap_layout(slots, slot_size), slots, slot_size)
    }

    fn allocate(layout: Layout, slots: usize, slot_size: usize) -> Option<Self> {
        orphans::free_returned();
        let memory = Memory::heap(layout)?;
        Some(Region::new(memory, Flags::try_new(slots)?, slot_size))
    }

    const fn new(memory: Memory, lent: Flags, slot_size: usize) -> Self {
        let (start, slots) = (memory.start(), lent.count());
        Region { held: ManuallyDrop::new(FlaggedMemory { memory, lent }), start, slots, slot_size }
    }

    /// Makes a region of mapped memory, with slots of `slot_size` bytes. The memory is unmapped
    /// when neither the region nor a buffer uses it any more. If there is not enough memory for the
    /// flags, one byte per slot, unmaps the memory and returns `None`.
    ///
    /// # Safety
    /// `data` must point to `length` bytes mapped by `mmap`, which nothing else uses except a
    /// kernel. The kernel writes only to slots that it owns under the caller's protocol. The caller
    /// calls [`lend`](Self::lend) only for bytes that the kernel has handed over. It hands slots
    /// back to the kernel only when they [are not lent](Self::is_lent).
    pub unsafe fn try_mapped(data: NonNull<u8>, length: usize, slot_size: usize) -> Option<Self> {
        orphans::free_returned();
        // Unmapped when dropped, if there is no memory for the flags.
        let memory = Memory::Mapped { data, length };
        Some(Region::new(memory, Flags::try_new(length / slot_size)?, slot_size))
    }

    /// Makes a region of a part of memory that other regions also use, and that `owner` keeps
    /// alive: `slots` slots of `slot_size` bytes. Returns `None` if there is not enough memory for
    /// the flags, one byte per slot.
    ///
    /// # Safety
    /// `data` must point to `slots * slot_size` initialised bytes that do not move while `owner`
    /// lives. Nothing else may use them except a kernel, as for [`try_mapped`](Self::try_mapped).
    /// [`slot_mut`](Self::slot_mut) and [`run_mut`](Self::run_mut) must not be called for a slot
    /// that the kernel may read or write. So the region must not be given to code that does not
    /// keep this promise.
    pub unsafe fn try_shared(
        owner: Arc<dyn Any + Send + Sync>,
        data: NonNull<u8>,
        slots: usize,
        slot_size: usize,
    ) -> Option<Self> {
        Some(Region::new(Memory::Shared { data, _owner: owner }, Flags::try_new(slots)?, slot_size))
    }

    /// Returns the number of slots.
    #[inline]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the size of a slot in bytes.
    #[inline]
    pub const fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// Returns the address of the memory, for system calls.
    #[inline]
    pub const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns whether a slot is lent; `false` for a slot that does not exist.
    #[inline]
    pub fn is_lent(&self, slot: usize) -> bool {
        // Acquire: later use of the slot happens after everything that its borrower did.
        self.held.lent.get(slot).is_some_and(|flag| flag.load(Ordering::Acquire) != 0)
    }

    /// Returns the number of slots that are lent.
    pub fn lent(&self) -> usize {
        (0..self.slots()).filter(|&slot| self.is_lent(slot)).count()
    }

    /// Returns a slot's bytes for writing, if it exists and is not lent. Returns `None` for
    /// [`try_mapped`](Self::try_mapped) memory, which only the kernel writes.
    #[inline]
    pub fn slot_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.run_mut(slot, 1)
    }

    /// Like [`slot_mut`](Self::slot_mut), for `slots` slots starting with `first`.
    #[inline]
    pub fn run_mut(&mut self, first: usize, slots: usize) -> Option<&mut [u8]> {
        if !self.is_free(first, slots) || matches!(self.held.memory, Memory::Mapped { .. }) {
            return None;
        }
        // SAFETY: the slots lie within the memory. None of them is lent, and `&mut self` prevents
        // lending. The kernel uses none of them (the caller's promise in `try_shared`).
        Some(unsafe {
            std::slice::from_raw_parts_mut(
                self.start().as_ptr().add(first * self.slot_size),
                slots * self.slot_size,
            )
        })
    }

    /// Returns whether `slots` slots starting with `first` exist and none of them is lent.
    #[inline]
    pub fn is_free(&self, first: usize, slots: usize) -> bool {
        let flags = first.checked_add(slots).and_then(|end| self.held.lent.get(first..end));
        // Acquire: as in `is_lent`.
        flags.is_some_and(|flags| flags.iter().all(|flag| flag.load(Ordering::Acquire) == 0))
    }

    /// Lends a range of a slot's bytes. Returns `None` if the slot is lent, or if the range exceeds
    /// the slot.
    #[inline]
    pub fn lend(&mut self, slot: usize, range: Range<usize>) -> Option<Buffer> {
        self.lend_run(slot, 1, range)
    }

    /// Lends a range of the bytes of `slots` slots, starting with `first`, as one buffer; these
    /// slots are returned together. Returns `None` if a slot is lent or does not exist, if the
    /// range exceeds the slots, or if `slots` is 0 or above [`MAX_RUN`](Self::MAX_RUN).
    #[inline]
    pub fn lend_run(&mut self, first: usize, slots: usize, range: Range<usize>) -> Option<Buffer> {
        let count = u8::try_from(slots).ok().filter(|&count| count != 0)?;
        if range.start > range.end
            || range.end > slots.checked_mul(self.slot_size)?
            || !self.is_free(first, slots)
        {
            return None;
        }
        let flags = self.held.lent.get(first..first + slots)?;
        flags.iter().for_each(|flag| flag.store(count, Ordering::Relaxed));
        // SAFETY: the range lies within the slots, which lie within the memory.
        let data = unsafe { self.start().add(first * self.slot_size + range.start) };
        Some(Buffer {
            data,
            length: range.end - range.start,
            lent: Some(NonNull::from(flags).cast()),
        })
    }

    /// Lends any range of the region's memory, recorded in the flag of `slot`. This is for memory
    /// in which a kernel stores packets of any length one after another. Returns `None` if that
    /// slot is lent, or if the range exceeds the region.
    ///
    /// # Safety
    /// Until `slot` [is not lent](Self::is_lent) any more, no one may write to these bytes: neither
    /// the kernel, nor the caller through [`slot_mut`](Self::slot_mut) of a slot that the range
    /// touches.
    #[inline]
    pub unsafe fn lend_packed(&mut self, slot: usize, range: Range<usize>) -> Option<Buffer> {
        let flag = self.held.lent.get(slot)?;
        if range.start > range.end
            || range.end > self.slots() * self.slot_size
            || flag.load(Ordering::Acquire) != 0
        {
            return None;
        }
        flag.store(1, Ordering::Relaxed);
        // SAFETY: the range lies within the memory.
        let data = unsafe { self.start().add(range.start) };
        Some(Buffer { data, length: range.end - range.start, lent: Some(NonNull::from(flag)) })
    }

    /// Maximum number of slots lent as one buffer.
    pub const MAX_RUN: usize = u8::MAX as usize;
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: taken only here, and the region is not used after its drop.
        let held = unsafe { ManuallyDrop::take(&mut self.held) };
        // No slot can be lent any more, so slots that are free now stay free.
        if held.are_lent() {
            orphans::keep(held);
        }
    }
}

/// A pool of slots on the heap, used in rotation, into which a port reads packets.
#[derive(Debug)]
pub struct BufferPool {
    region: Region,
    next: usize,
}

impl BufferPool {
    /// Like [`new`](Self::new), but returns `None` if there is not enough memory.
    ///
    /// # Panics
    /// As [`Region::heap`].
    pub fn try_new(slots: usize, slot_size: usize) -> Option<Self> {
        Some(BufferPool { region: Region::try_heap(slots, slot_size)?, next: 0 })
    }

    /// Creates a pool of `slots` slots of `slot_size` bytes.
    ///
    /// # Panics
    /// As [`Region::heap`].
    pub fn new(slots: usize, slot_size: usize) -> Self {
        BufferPool { region: Region::heap(slots, slot_size), next: 0 }
    }

    /// Returns the size of a slot in bytes.
    pub const fn slot_size(&self) -> usize {
        self.region.slot_size()
    }

    /// Restarts the search for free slots at the first slot. Slots returned quickly are then reused
    /// while they are still in the cache.
    pub const fn rewind(&mut self) {
        self.next = 0;
    }

    /// Returns the next free slot, or `None` if all are lent. The slot remains free until
    /// [`lend`](Self::lend) is called for it.
    #[inline]
    pub fn free(&mut self) -> Option<usize> {
        let slots = self.region.slots();
        for _ in 0..slots {
            let slot = self.next;
            self.next = if slot + 1 == slots { 0 } else { slot + 1 };
            if !self.region.is_lent(slot) {
                return Some(slot);
            }
        }
        None
    }

    /// Returns the bytes of a slot for writing; `None` if the slot is lent.
    #[inline]
    pub fn slot_mut(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.region.slot_mut(slot)
    }

    /// Lends a range of the bytes of a slot; `None` if the slot is lent, or the range exceeds it.
    #[inline]
    pub fn lend(&mut self, slot: usize, range: Range<usize>) -> Option<Buffer> {
        self.region.lend(slot, range)
    }

    /// Returns whether more than half of the slots are lent.
    pub fn is_crowded(&self) -> bool {
        self.region.lent() * 2 > self.region.slots()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;
    use crate::without_memory::{is_run_in_a_child, limit_memory};

    #[test]
    fn a_slot_is_lent_once_and_comes_back_by_being_dropped() {
        let mut region = Region::heap(2, 64);
        region.slot_mut(1).expect("there").copy_from_slice(&[7; 64]);
        let buffer = region.lend(1, 10..20).expect("free");
        assert_eq!(buffer.bytes(), [7; 10]);
        assert!(region.lend(1, 0..1).is_none() && region.slot_mut(1).is_none());
        assert_eq!(region.lent(), 1);
        std::thread::spawn(move || drop(buffer)).join().expect("no panic");
        assert!(!region.is_lent(1));
        assert!(region.lend(1, 0..64).is_some());
        assert!(region.lend(0, 0..65).is_none(), "beyond the slot");
        assert!(region.lend(2, 0..1).is_none(), "beyond the region");
    }

    #[test]
    fn slots_on_the_heap_begin_with_a_page_and_are_zeroed() {
        for (slots, slot_size) in [(1, 1), (3, 100), (64, 2112)] {
            let mut region = Region::heap(slots, slot_size);
            assert!(region.start().addr().get().is_multiple_of(4096), "{slots} {slot_size}");
            assert!(
                (0..slots).all(|slot| region.slot_mut(slot).expect("free") == vec![0; slot_size]),
                "{slots} {slot_size}"
            );
        }
    }

    #[test]
    fn packed_bytes_have_the_flag_that_they_were_lent_under() {
        let mut region = Region::heap(4, 16);
        for slot in 0..4 {
            region.slot_mut(slot).expect("there").fill(slot as u8);
        }
        // SAFETY: nothing is written from here on.
        let buffer = unsafe { region.lend_packed(0, 30..50) }.expect("free");
        assert_eq!(buffer.bytes(), [&[1; 2][..], &[2; 16], &[3; 2]].concat());
        // SAFETY: as above.
        assert!(unsafe { region.lend_packed(0, 0..1) }.is_none(), "its slot is lent");
        // SAFETY: as above.
        assert!(unsafe { region.lend_packed(1, 60..65) }.is_none(), "it reaches into a lent slot");
        assert!(region.is_lent(0) && !region.is_lent(2));
        drop(buffer);
        assert_eq!(region.lent(), 0);
    }

    #[test]
    fn slots_lent_together_come_back_together() {
        let mut region = Region::heap(300, 16);
        region.run_mut(3, 4).expect("free").fill(5);
        let buffer = region.lend_run(3, 4, 2..64).expect("free");
        assert_eq!(buffer.bytes(), [5; 62]);
        assert_eq!(region.lent(), 4);
        for (first, slots) in [(0, 4), (6, 1), (4, 2), (6, 9)] {
            assert!(
                region.lend_run(first, slots, 0..1).is_none()
                    && region.run_mut(first, slots).is_none(),
                "{first} {slots}"
            );
        }
        let (before, behind) = (region.lend_run(0, 3, 0..48), region.lend(7, 0..16));
        assert!(before.is_some() && behind.is_some());
        drop(buffer);
        assert_eq!(region.lent(), 4);
        assert!(region.is_free(3, 4) && !region.is_free(2, 2) && !region.is_free(6, 2));
        assert!(region.lend_run(3, 4, 0..65).is_none(), "beyond the slots");
        assert!(
            region.lend_run(299, 2, 0..1).is_none()
                && region.lend_run(usize::MAX, 2, 0..1).is_none(),
            "beyond the region"
        );
        assert!(
            region.lend_run(20, 0, 0..0).is_none()
                && region.lend_run(20, Region::MAX_RUN + 1, 0..1).is_none()
        );
        assert!(region.lend_run(20, Region::MAX_RUN, 0..1).is_some());
        assert_eq!(region.lent(), 4);
    }

    #[test]
    fn a_buffer_outlives_its_region() {
        let mut region = Region::heap(1, 16);
        region.slot_mut(0).expect("there").fill(9);
        let mut buffer = region.lend(0, 0..16).expect("free");
        drop(region);
        buffer.skip(12);
        assert_eq!(buffer.bytes(), [9; 4]);
        buffer.skip(5);
        assert!(buffer.bytes().is_empty());
    }

    /// Waits at most a second until a condition holds.
    fn comes_true(mut holds: impl FnMut() -> bool) -> bool {
        let start = Instant::now();
        while !holds() {
            if start.elapsed() > Duration::from_secs(30) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    #[test]
    fn shared_memory_is_free_when_the_last_buffer_of_a_dropped_region_is_back() {
        let owner: Arc<Vec<u8>> = Arc::new(vec![3; 96]);
        let data = NonNull::new(owner.as_ptr().cast_mut()).expect("not empty");
        let kept = Arc::downgrade(&owner);
        let part = |offset, slots| {
            // SAFETY: the parts are adjacent in the vector, which is never changed and lives as
            // long as `owner`.
            unsafe {
                Region::try_shared(
                    Arc::clone(&owner) as Arc<dyn Any + Send + Sync>,
                    data.add(offset),
                    slots,
                    32,
                )
            }
            .expect("a byte")
        };
        let (mut first, mut second) = (part(0, 2), part(64, 1));
        drop(owner);
        let run = first.lend_run(0, 2, 4..40).expect("free");
        let (lent, returned) = (second.lend(0, 0..8).expect("free"), first.lend(0, 0..1));
        assert!(returned.is_none());
        drop((first, second));
        assert_eq!((run.bytes(), lent.bytes()), (&[3; 36][..], &[3; 8][..]));
        // On another thread, as the bridge's workers do.
        std::thread::spawn(move || drop(run)).join().expect("no panic");
        std::thread::sleep(Duration::from_millis(20));
        assert!(kept.upgrade().is_some(), "another buffer is still in use");
        assert_eq!(lent.bytes(), [3; 8]);
        drop(lent);
        assert!(comes_true(|| kept.upgrade().is_none()), "nothing refers to the memory any more");
    }

    #[test]
    fn regions_dropped_on_many_threads_are_all_freed() {
        let owner = Arc::new(vec![0u8; 16]);
        let data = NonNull::new(owner.as_ptr().cast_mut()).expect("not empty").addr();
        let (sender, buffers) = std::sync::mpsc::channel();
        let rounds = if cfg!(miri) { 5 } else { 200 };
        std::thread::scope(|scope| {
            for slot in 0..4 {
                let (sender, owner) = (sender.clone(), Arc::clone(&owner));
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let start = NonNull::new(owner.as_ptr().cast_mut()).expect("not empty");
                        assert_eq!(start.addr(), data);
                        // SAFETY: four bytes of the vector, which is never changed and lives as
                        // long as `owner`.
                        let region = unsafe {
                            Region::try_shared(
                                Arc::clone(&owner) as Arc<dyn Any + Send + Sync>,
                                start.add(slot * 4),
                                4,
                                1,
                            )
                        };
                        let mut region = region.expect("four bytes");
                        (0..4).for_each(|slot| {
                            sender
                                .send(region.lend(slot, 0..1).expect("free"))
                                .expect("somebody receives")
                        });
                    }
                });
            }
            drop(sender);
            scope.spawn(move || {
                buffers.into_iter().for_each(|buffer: Buffer| assert_eq!(buffer.bytes(), [0]))
            });
        });
        assert!(
            comes_true(|| Arc::strong_count(&owner) == 1),
            "{} regions are left",
            Arc::strong_count(&owner) - 1
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "it maps a file")]
    fn mapped_memory_is_unmapped_when_the_last_buffer_of_a_dropped_region_is_back() {
        let file = rustix::fs::memfd_create("a-ring-of-a-test", rustix::fs::MemfdFlags::CLOEXEC)
            .expect("a file in memory");
        rustix::fs::ftruncate(&file, 4096).expect("sized");
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let data = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                ProtFlags::READ,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let data = NonNull::new(data.expect("there is room").cast::<u8>()).expect("not at 0");
        // SAFETY: mapped for this test only.
        let mut region = unsafe { Region::try_mapped(data, 4096, 2048) }.expect("two bytes");
        let is_mapped = || {
            std::fs::read_to_string("/proc/self/maps").expect("maps").contains("a-ring-of-a-test")
        };
        let buffer = region.lend(1, 0..100).expect("free");
        drop(region);
        std::thread::sleep(Duration::from_millis(20));
        assert!(is_mapped());
        assert_eq!(buffer.bytes(), [0; 100]);
        drop(buffer);
        assert!(comes_true(|| !is_mapped()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "a process of its own")]
    fn mapped_memory_goes_where_there_is_none_for_its_flags() {
        if is_run_in_a_child("buffer::tests::mapped_memory_goes_where_there_is_none_for_its_flags")
        {
            return;
        }
        const LENGTH: usize = 128 << 20;
        let map = || {
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let data = unsafe {
                mmap_anonymous(std::ptr::null_mut(), LENGTH, ProtFlags::READ, MapFlags::PRIVATE)
            };
            NonNull::new(data.expect("there is room").cast::<u8>()).expect("not at 0")
        };
        limit_memory(160 << 20);
        for _ in 0..3 {
            // SAFETY: mapped for this test only.
            assert!(unsafe { Region::try_mapped(map(), LENGTH, 1) }.is_none(), "128 MiB of flags");
        }
        // SAFETY: as above.
        assert!(unsafe { Region::try_mapped(map(), LENGTH, 4096) }.is_some());
    }

    #[test]
    fn bytes_of_its_own_are_skipped_and_freed() {
        let mut buffer = Buffer::from(vec![1, 2, 3]);
        buffer.skip(1);
        assert_eq!(buffer.bytes(), [2, 3]);
        buffer.skip(9);
        assert!(buffer.bytes().is_empty());
    }

    #[test]
    fn a_pool_hands_out_each_slot_until_none_is_free() {
        let mut pool = BufferPool::new(3, 8);
        let mut lent = Vec::new();
        while let Some(slot) = pool.free() {
            lent.push(pool.lend(slot, 0..8).expect("free"));
        }
        assert_eq!(lent.len(), 3);
        assert!(pool.is_crowded());
        lent.remove(1);
        assert_eq!(pool.free(), Some(1));
    }
}
