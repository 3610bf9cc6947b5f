//! Hints that move cache lines closer to the processor before they are read or written.

// `allow` instead of `expect`: under Miri and on some architectures the module has no unsafe code.
#![allow(unsafe_code, reason = "prefetch instructions")]

/// Assumed bytes per cache line: right for x86 and most of aarch64. Longer lines are hinted more
/// than once.
pub(crate) const LINE: usize = 64;

/// Hints that the first cache line of `place` will be read soon.
///
/// It never faults and has no effect that the program can observe. On processors without such a
/// hint it does nothing.
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(place: &T) {
    prefetch_line(core::ptr::from_ref(place).cast());
}

/// Hints that `place` will be written soon: each of its cache lines is fetched with exclusive
/// ownership.
///
/// It is useful for memory that another core has read or written last. A store to such a line is
/// cheap by itself, but delays later stores, and loads that wait for them. Otherwise like
/// [`prefetch_read`].
#[inline(always)]
pub fn prefetch_write<T>(place: &T) {
    let start = core::ptr::from_ref(place).cast::<u8>();
    for line in 0..size_of::<T>().div_ceil(LINE) {
        let line = start.wrapping_add(line * LINE);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch is a hint for any address: it does not fault and changes no state that
        // a program sees. Processors of this architecture without PREFETCHW take it for a NOP
        // (Intel SDM volume 2, PREFETCHW). Written out, as the intrinsic becomes a read hint unless
        // the whole build is for a processor with it.
        unsafe {
            core::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: as in `prefetch_line`.
        unsafe {
            core::arch::asm!("prfm pstl1keep, [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        let _ = line;
    }
}

/// Hints that the start of `bytes` will be read soon: its first cache line and the next `LINES -
/// 1`, even if `bytes` is shorter.
///
/// It costs one instruction per line; otherwise like [`prefetch_read`].
#[inline(always)]
pub fn prefetch_lines<const LINES: usize>(bytes: &[u8]) {
    for line in 0..LINES {
        prefetch_line(bytes.as_ptr().wrapping_add(line * LINE));
    }
}

/// Hints that the first `length` bytes of `bytes` (all, if there are fewer) will be read soon.
///
/// It does nothing for a length of 0; otherwise like [`prefetch_read`].
#[inline(always)]
pub fn prefetch_range(bytes: &[u8], length: usize) {
    let length = length.min(bytes.len());
    if length == 0 {
        return;
    }
    let start = bytes.as_ptr();
    // Counted from the start of the first line; otherwise the last line would be missed if the
    // range starts within a line.
    let before = start.addr() % LINE;
    let lines = (before + length).div_ceil(LINE);
    let mut line = start.wrapping_sub(before);
    // Four lines per step: for a whole payload, a loop over single lines would cost more than the
    // hints.
    for _ in 0..lines / 4 {
        for next in 0..4 {
            prefetch_line(line.wrapping_add(next * LINE));
        }
        line = line.wrapping_add(4 * LINE);
    }
    for next in 0..lines % 4 {
        prefetch_line(line.wrapping_add(next * LINE));
    }
}

/// Hints that the cache line of `address` will be read soon. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse", not(miri)))]
    // SAFETY: a prefetch is a hint for any address: it does not fault and changes no state that a
    // program sees (Intel SDM volume 2, PREFETCHh). This build has SSE, which brought the
    // instruction.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(all(target_arch = "x86", target_feature = "sse", not(miri)))]
    // SAFETY: as above; this build has SSE.
    unsafe {
        core::arch::x86::_mm_prefetch::<{ core::arch::x86::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: PRFM is a hint for any address: it does not fault synchronously (Arm ARM, "Prefetch
    // memory"), writes no register and no memory, and leaves stack and flags alone.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(
        miri,
        not(any(
            all(any(target_arch = "x86", target_arch = "x86_64"), target_feature = "sse"),
            target_arch = "aarch64"
        ))
    ))]
    let _ = address;
}
