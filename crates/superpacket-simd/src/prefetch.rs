//! Hints to bring cache lines near before they are read or written.

// Not expected: Miri and some architectures have none of it.
#![allow(unsafe_code, reason = "prefetch instructions")]

/// Bytes a cache line, as assumed: right for x86 and most of aarch64; with longer lines a line is
/// hinted twice.
pub(crate) const LINE: usize = 64;

/// Hints that the first cache line of `place` will be read soon.
///
/// Never faults, reads nothing as far as the program can tell, and does nothing on processors
/// without such a hint.
#[inline(always)]
pub fn prefetch_read<T: ?Sized>(place: &T) {
    prefetch_line(core::ptr::from_ref(place).cast());
}

/// Hints that `place` will be written soon: each of its cache lines is fetched from whatever core
/// has it, as the only copy.
///
/// For memory that another core has read or written last. A store to such a line costs nothing by
/// itself, but holds up those behind it, and a load that must wait for them all. Otherwise as
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

/// Hints that the start of `bytes` will be read soon: the line it lies in and the `LINES - 1` that
/// follow, be `bytes` as long or not.
///
/// Costs one instruction a line; otherwise as [`prefetch_read`].
#[inline(always)]
pub fn prefetch_lines<const LINES: usize>(bytes: &[u8]) {
    for line in 0..LINES {
        prefetch_line(bytes.as_ptr().wrapping_add(line * LINE));
    }
}

/// Hints that the first `length` bytes of `bytes` (all, if there are fewer) will be read soon: each
/// of their cache lines.
///
/// Does nothing for a length of 0; otherwise as [`prefetch_read`].
#[inline(always)]
pub fn prefetch_range(bytes: &[u8], length: usize) {
    let length = length.min(bytes.len());
    if length == 0 {
        return;
    }
    let start = bytes.as_ptr();
    // From the start of the first line, or the last line would be missed when the range starts
    // within one.
    let before = start.addr() % LINE;
    let lines = (before + length).div_ceil(LINE);
    let mut line = start.wrapping_sub(before);
    // Four at a time: where a whole payload is asked for, counting the lines would cost more than
    // the hints.
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

/// Hints that the line of `address` will be read soon. Any address will do.
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
