//! The caller's memory: pointers and lengths, checked before they become slices.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::slice;

use crate::status::Failure;

/// The most bytes of a packet, and of one buffer of it: 16 MiB.
pub const SP_MAX_LENGTH: usize = 1 << 24;

/// A range of memory. The very `struct iovec` of POSIX systems, so that writev(2) takes an array of
/// them.
// The header says where it comes from; here it has the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_iovec {
    /// Where it starts.
    pub iov_base: *mut c_void,
    /// Its length in bytes.
    pub iov_len: usize,
}

/// The error of a pointer that is not aligned.
#[cold]
pub(crate) fn misaligned<T>(what: &'static str, pointer: *const T) -> Failure {
    Failure::Alignment { what, address: pointer as usize, alignment: align_of::<T>() }
}

/// The error of a range that is too long, or that ends beyond the end of the address space.
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

/// Checks a pointer and a length that are to become a slice.
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

/// The bytes of a range that has been [checked](check_range).
///
/// # Safety
/// If `length` is not 0, `base` points to so many bytes that can be read, and that nobody writes
/// while the slice lives.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(base: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's; a checked length is below `isize::MAX` and does not wrap.
    unsafe { slice::from_raw_parts(base.cast(), length) }
}

/// Do so many values fit in the address space from there?
#[inline(always)]
pub(crate) fn fits<T>(base: *const T, count: usize) -> bool {
    match count.checked_mul(size_of::<T>()) {
        Some(length) => {
            length <= isize::MAX as usize && (base as usize).checked_add(length).is_some()
        }
        None => false,
    }
}

/// The error of an array that does not [fit](fits) in the address space.
#[cold]
pub(crate) fn impossible_array<T>(what: &'static str, base: *const T, count: usize) -> Failure {
    let limit = isize::MAX as usize / size_of::<T>();
    match count > limit {
        true => Failure::Elements { what, count, limit },
        false => Failure::Wraps { what, address: base as usize, length: count * size_of::<T>() },
    }
}

/// A mutable slice of the caller's memory, which need not be initialised.
///
/// # Safety
/// If `count` is not 0 and `base` not NULL, `base` points to memory for so many values, which is
/// nobody else's while the slice lives.
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
    // SAFETY: the caller's; not NULL, aligned, and it neither wraps nor is longer than
    // `isize::MAX` bytes, as `fits` says. Uninitialised bytes are allowed in `MaybeUninit`.
    Ok(unsafe { slice::from_raw_parts_mut(base.cast(), count) })
}

/// A place for one value in the caller's memory.
///
/// # Safety
/// `place` is NULL or points to memory for a value, which is nobody else's while the reference
/// lives.
pub(crate) unsafe fn place<'a, T>(
    what: &'static str,
    place: *mut T,
) -> Result<&'a mut MaybeUninit<T>, Failure> {
    // SAFETY: the caller's.
    match unsafe { memory(what, place, 1) }? {
        [place] => Ok(place),
        _ => Err(Failure::Null(what)),
    }
}
