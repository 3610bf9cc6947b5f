//! The caller's memory: pointers and lengths are checked, and become slices.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::slice;

use crate::status::Failure;

/// Maximum length of a packet, and of each of its buffers: 16 MiB.
pub const SP_MAX_LENGTH: usize = 1 << 24;

/// A range of memory. It is the `struct iovec` of POSIX systems, so that an array of them can be
/// given to writev(2).
// The C header includes the system's definition; this one has the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_iovec {
    /// Start of the range.
    pub iov_base: *mut c_void,
    /// Length of the range in bytes.
    pub iov_len: usize,
}

/// Returns the error for a pointer that is not aligned.
#[cold]
pub(crate) fn misaligned<T>(what: &'static str, pointer: *const T) -> Failure {
    Failure::Alignment { what, address: pointer as usize, alignment: align_of::<T>() }
}

/// Returns the error for a range that is too long, or that ends behind the end of the address
/// space.
#[cold]
pub(crate) fn impossible(
    what: &'static str,
    address: usize,
    length: usize,
    limit: usize,
) -> Failure {
    match length > limit {
        true => Failure::Bytes { what, length, limit },
        false => Failure::Wraps { what, address, length },
    }
}

/// Checks a pointer and a length before they become a slice.
#[inline(always)]
pub(crate) fn check_range(
    what: &'static str,
    base: *const c_void,
    length: usize,
) -> Result<(), Failure> {
    if length > SP_MAX_LENGTH || (base as usize).checked_add(length).is_none() {
        return Err(impossible(what, base as usize, length, SP_MAX_LENGTH));
    }
    if base.is_null() && length != 0 {
        return Err(Failure::Null(what));
    }
    Ok(())
}

/// Returns the bytes of a range that was [checked](check_range).
///
/// # Safety
/// If `length` is not 0, `base` points to as many readable bytes, which are not written to while
/// the slice lives.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(base: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: as the caller promises; a checked length is below `isize::MAX` and does not wrap.
    unsafe { slice::from_raw_parts(base.cast(), length) }
}

/// Returns whether `count` values from the address `base` on fit in the address space.
#[inline(always)]
pub(crate) fn fits<T>(base: *const T, count: usize) -> bool {
    match count.checked_mul(size_of::<T>()) {
        Some(length) => {
            length <= isize::MAX as usize && (base as usize).checked_add(length).is_some()
        }
        None => false,
    }
}

/// Returns the error for an array that does not [fit](fits) in the address space.
#[cold]
pub(crate) fn impossible_array<T>(what: &'static str, base: *const T, count: usize) -> Failure {
    let limit = isize::MAX as usize / size_of::<T>();
    match count > limit {
        true => Failure::Elements { what, count, limit },
        false => Failure::Wraps { what, address: base as usize, length: count * size_of::<T>() },
    }
}

/// Returns a mutable slice of `count` values in the caller's memory, which need not be initialized.
pub(crate) unsafe fn memory<'a, T>(
    what: &'static str,
    base: *mut T,
    count: usize,
) -> Result<&'a mut [MaybeUninit<T>], Failure> {
    if !fits(base, count) {
        return Err(impossible_array(what, base, count));
    }
    if count == 0 {
        return Ok(&mut []);
    }
    if base.is_null() {
        return Err(Failure::Null(what));
    }
    if !base.is_aligned() {
        return Err(misaligned(what, base));
    }
    // SAFETY: as the caller promises; not NULL, aligned, and it neither wraps nor is longer than
    // `isize::MAX` bytes, as `fits` says. Uninitialized bytes are allowed in `MaybeUninit`.
    Ok(unsafe { slice::from_raw_parts_mut(base.cast(), count) })
}

/// Returns a reference to the caller's memory for one value.
///
/// # Safety
/// `place` is NULL, or points to memory for a value to which only the reference has access while it
/// lives.
pub(crate) unsafe fn place<'a, T>(
    what: &'static str,
    place: *mut T,
) -> Result<&'a mut MaybeUninit<T>, Failure> {
    // SAFETY: as the caller promises.
    match unsafe { memory(what, place, 1) }? {
        [place] => Ok(place),
        _ => Err(Failure::Null(what)),
    }
}
