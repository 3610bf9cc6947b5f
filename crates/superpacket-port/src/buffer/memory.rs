//! The memory of a region, and the flags of its lent slots.

#![expect(unsafe_code, reason = "memory that is lent and comes back, and that a kernel may map")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Alignment of a heap region in bytes.
const PAGE: usize = 4096;

/// The flags of a region's slots. They are not in a `Box`, because moving a box asserts unique
/// access to its bytes, but buffers point to them.
#[derive(Debug)]
pub(super) struct Flags(NonNull<[AtomicU8]>);

impl Flags {
    /// Returns flags for `slots` slots, none of which is lent; `None` if there is not enough
    /// memory.
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
        // SAFETY: the flags are atomic, and are freed only when this value is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        // SAFETY: created from a box in `try_new`. No buffer points to the flags any more:
        // `orphans` keeps a region whose slots are lent until they are returned.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Memory divided into slots, freed when dropped.
#[derive(Debug)]
pub(super) enum Memory {
    /// Heap memory, starting at the first page boundary in `block`.
    Heap {
        data: NonNull<u8>,
        block: NonNull<u8>,
        layout: Layout,
    },
    Mapped {
        data: NonNull<u8>,
        length: usize,
    },
    /// A part of memory that other regions use too. It stays valid as long as its owner.
    Shared {
        data: NonNull<u8>,
        _owner: Arc<dyn Any + Send + Sync>,
    },
}

/// Returns the layout of a block that contains `slots` slots after its first page boundary. The
/// layout does not request page alignment, since allocators would then write zeros to all pages
/// (`posix_memalign`). Without alignment they use zeroed pages of the system, which occupy no
/// memory until they are written (`calloc`).
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
    /// Allocates a block with a layout that [`heap_layout`] returned; `None` if there is not enough
    /// memory.
    pub(super) fn heap(layout: Layout) -> Option<Self> {
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let before = block.addr().get().next_multiple_of(PAGE) - block.addr().get();
        // SAFETY: the block is longer than the slots by the maximum distance to a page boundary.
        let data = unsafe { block.add(before) };
        Some(Memory::Heap { data, block, layout })
    }

    /// Returns the address of the first slot.
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
                // SAFETY: mapped with this length, as promised by the caller of
                // `Region::try_mapped`. No buffer points into it any more, as for the flags.
                let unmapped = unsafe { rustix::mm::munmap(data.as_ptr().cast(), length) };
                debug_assert_eq!(unmapped, Ok(()), "the range was mapped whole");
            }
            // The owner is dropped together with this value.
            Memory::Shared { .. } => {}
        }
    }
}

/// Memory divided into slots, and the flags of these slots. It must be dropped only when no slot is
/// lent.
#[derive(Debug)]
pub(super) struct FlaggedMemory {
    pub(super) memory: Memory,
    pub(super) lent: Flags,
}

// SAFETY: the pointers are to memory that this value owns, on whatever thread it is.
unsafe impl Send for FlaggedMemory {}
// SAFETY: through `&self` only the flags are read, which are atomic.
unsafe impl Sync for FlaggedMemory {}

impl FlaggedMemory {
    /// Returns whether any slot is lent.
    pub(super) fn are_lent(&self) -> bool {
        // Acquire: later use of the slots happens after everything that their borrowers did.
        self.lent.iter().any(|flag| flag.load(Ordering::Acquire) != 0)
    }
}
