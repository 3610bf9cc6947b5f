//! The memory of a region, and the flags that say which of its slots are lent.

#![expect(unsafe_code, reason = "memory that is lent and comes back, and that a kernel may map")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The start of a region on the heap is a multiple of this number of bytes.
const PAGE: usize = 4096;

/// The flags of a region's slots. They are not in a `Box`, which claims its bytes for itself
/// whenever it moves: buffers point at them.
#[derive(Debug)]
pub(super) struct Flags(NonNull<[AtomicU8]>);

impl Flags {
    /// Returns the flags of `slots` slots, none of which is lent; `None` without memory for them.
    pub(super) fn try_new(slots: usize) -> Option<Self> {
        let mut flags: Vec<AtomicU8> = Vec::new();
        flags.try_reserve_exact(slots).ok()?;
        flags.resize_with(slots, || AtomicU8::new(0));
        // SAFETY: a box is never null.
        Some(Flags(unsafe { NonNull::new_unchecked(Box::into_raw(flags.into_boxed_slice())) }))
    }

    /// Returns the number of slots.
    #[inline]
    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }
}

impl std::ops::Deref for Flags {
    type Target = [AtomicU8];

    #[inline]
    fn deref(&self) -> &[AtomicU8] {
        // SAFETY: the flags are freed when this value is dropped, and not before; they are atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        // SAFETY: made from a box in `try_new`. No buffer points at the flags any more: a region
        // whose slots are lent is kept by `orphans` until they have come back.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Memory in slots, freed when it is dropped.
#[derive(Debug)]
pub(super) enum Memory {
    /// Memory of the heap, from the first page that begins in `block` on.
    Heap {
        data: NonNull<u8>,
        block: NonNull<u8>,
        layout: Layout,
    },
    Mapped {
        data: NonNull<u8>,
        length: usize,
    },
    /// A part of what the owner keeps.
    Shared {
        data: NonNull<u8>,
        _owner: Arc<dyn Any + Send + Sync>,
    },
}

/// The layout of a block in which `slots` slots fit from the first page on. No alignment is asked
/// of the allocator, which would write zeros to all pages (`posix_memalign`). Without, it takes
/// the system's zeroed pages, which need no memory before they are written to (`calloc`).
///
/// # Panics
/// If either number is 0 or their product overflows.
pub(super) fn heap_layout(slots: usize, slot_size: usize) -> Layout {
    let size = slots
        .checked_mul(slot_size)
        .filter(|&size| size != 0)
        .and_then(|size| size.checked_add(PAGE - 1));
    let size = size.expect("a region has bytes, and fewer than the address space");
    Layout::from_size_align(size, 1).expect("fewer bytes than the address space")
}

impl Memory {
    /// Allocates a block of [`heap_layout`]; `None` without memory for it.
    pub(super) fn heap(layout: Layout) -> Option<Self> {
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = block.addr().get().next_multiple_of(PAGE) - block.addr().get();
        // SAFETY: the block is longer than the slots by as many bytes as a page can be away.
        let data = unsafe { block.add(before) };
        Some(Memory::Heap { data, block, layout })
    }

    /// Returns the start of the first slot.
    #[inline]
    pub(super) const fn start(&self) -> NonNull<u8> {
        match *self {
            Memory::Heap { data, .. }
            | Memory::Mapped { data, .. }
            | Memory::Shared { data, .. } => data,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match *self {
            // SAFETY: allocated with this layout in `heap`. No buffer points into it any more, as
            // for the flags.
            Memory::Heap { block, layout, .. } => unsafe { dealloc(block.as_ptr(), layout) },
            Memory::Mapped { data, length } => {
                // SAFETY: mapped with this length, as the caller of `Region::try_mapped` promised.
                // No buffer points into it any more, as for the flags.
                let unmapped = unsafe { rustix::mm::munmap(data.as_ptr().cast(), length) };
                debug_assert_eq!(unmapped, Ok(()), "the range was mapped whole");
            }
            // The owner is dropped with this value.
            Memory::Shared { .. } => {}
        }
    }
}

/// Memory with the flags of its slots. Whoever drops it makes sure that no slot is lent.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) memory: Memory,
    pub(super) lent: Flags,
}

// SAFETY: the pointers are to memory that belongs to this value, whichever thread has it.
unsafe impl Send for Slots {}
// SAFETY: through `&self` only the flags are looked at, which are atomic.
unsafe impl Sync for Slots {}

impl Slots {
    /// Returns whether a slot is lent.
    pub(super) fn are_lent(&self) -> bool {
        // Acquire: what is done with the slots after this comes after all that their borrowers did.
        self.lent.iter().any(|flag| flag.load(Ordering::Acquire) != 0)
    }
}
