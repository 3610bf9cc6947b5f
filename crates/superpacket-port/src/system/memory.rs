//! How the process's allocator gives memory back to the system, where it is glibc's; others are not
//! changed.
//!
//! glibc gives a large block back when the first of its size is freed. It then takes the process
//! for one that needs such blocks again and again, keeps the next ones, up to 32 MiB each, and lets
//! twice as much lie free at the end of each thread's heap (`M_MMAP_THRESHOLD` and
//! `M_TRIM_THRESHOLD` in `mallopt(3)`). What is free between blocks in use stays too.

#![cfg_attr(target_env = "gnu", expect(unsafe_code, reason = "calls of the C library"))]

/// Makes blocks of 1 MiB and more go back to the system as soon as they are freed, each of them,
/// and what lies free at the end of a heap above 2 MiB. It holds for the whole process, and is to
/// be called before that starts threads.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        /// Above any packet, so that none is mapped by itself.
        const LARGE: libc::c_int = 1 << 20;
        // With either set, neither is changed any more by what is freed.
        for (parameter, bytes) in
            [(libc::M_MMAP_THRESHOLD, LARGE), (libc::M_TRIM_THRESHOLD, 2 * LARGE)]
        {
            // SAFETY: it takes two numbers, which only say where later blocks lie and when heaps
            // shrink; the allocator's own lock is held meanwhile.
            if unsafe { libc::mallopt(parameter, bytes) } == 0 {
                tracing::debug!(parameter, bytes, "the allocator has no such limit (mallopt)");
            }
        }
    }
}

/// Gives memory back that was freed and lies between blocks in use (`malloc_trim(3)`). It takes
/// milliseconds where that is much, in which threads that allocate may wait.
pub fn give_back_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and touches only pages that no block in use lies in.
    let _ = unsafe { libc::malloc_trim(0) };
}
