//! Returning memory from the process's allocator to the system. Works with glibc only; other
//! allocators are left alone.
//!
//! When the first large block is freed, glibc raises its thresholds: it then keeps later blocks of
//! up to 32 MiB, and twice as much at the end of each thread's heap (`M_MMAP_THRESHOLD` and
//! `M_TRIM_THRESHOLD` in `mallopt(3)`). It also keeps free memory between blocks in use.

#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "calls of the C library"))]

/// Makes the allocator return each block of 1 MiB or more to the system as soon as it is freed, and
/// free memory above 2 MiB at the end of a heap.
///
/// Applies to the whole process. Call it before the process starts threads.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        /// Size in bytes from which a block gets a memory mapping of its own. It is larger than any
        /// packet, so that packets never do.
        const LARGE: libc::c_int = 1 << 20;
        // Setting either threshold disables glibc's automatic adjustment of both.
        for (parameter, bytes) in
            [(libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, 2 * LARGE)]
        {
            // SAFETY: the call takes two numbers, which only decide where later blocks lie and when
            // heaps shrink. The allocator holds its own lock meanwhile.
            if unsafe { libc::mallopt(parameter, bytes) } == 0 {
                tracing::debug!(parameter, bytes, "the allocator has no such limit (mallopt)");
            }
        }
    }
}

/// Returns free memory between blocks in use to the system (`malloc_trim(3)`). With much memory
/// this takes milliseconds, during which allocating threads may wait.
pub fn give_back_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number, and touches only pages that contain no block in use.
    let _ = unsafe { libc::malloc_trim(0) };
}
