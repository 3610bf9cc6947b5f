//! Counts what each thread asks of the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// How often this thread asked for memory, and how much it has. Each test has a thread of its
    /// own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

impl Counting {
    fn count(times: u64, bytes: i64) {
        // Nothing to count while a thread ends.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + times));
        let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
    }
}

// SAFETY: all calls go to the system's allocator as they came; counting neither allocates nor
// unwinds, for the counters are constants without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(1, layout.size() as i64);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(1, layout.size() as i64);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(1, size as i64 - layout.size() as i64);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(0, -(layout.size() as i64));
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread has asked for memory.
pub fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// How many bytes this thread has.
pub fn live_bytes() -> i64 {
    LIVE.with(Cell::get)
}
