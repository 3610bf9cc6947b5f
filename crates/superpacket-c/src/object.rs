//! Objects behind pointers that C programs hold.

#![expect(unsafe_code, reason = "the border to C")]

use std::ptr;

use crate::status::sp_status::{self, SP_OK};
use crate::status::{Failure, Unbroken};

/// Something of the engine's, unless a fault in one of its calls has left it in an unknown state.
pub(crate) struct Object<T> {
    inner: T,
    unbroken: Unbroken,
}

impl<T> Object<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Object { inner, unbroken: Unbroken::new() }
    }

    /// Runs a call. If it panics, this object refuses all further ones.
    #[inline(always)]
    pub(crate) fn call<R>(&mut self, body: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        self.unbroken.enter()?;
        let result = body(&mut self.inner);
        self.unbroken.leave();
        result
    }

    /// What is inside, to be looked at.
    pub(crate) const fn inner(&self) -> &T {
        &self.inner
    }
}

/// Makes an object and gives a pointer to it to the caller; NULL on an error.
///
/// # Safety
/// `out` is NULL, or the caller's place for a pointer.
pub(crate) unsafe fn new<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> Result<sp_status, Failure> {
    if out.is_null() {
        return Err(Failure::Null("out"));
    }
    if !out.is_aligned() {
        return Err(Failure::Argument { what: "out (its alignment)", got: out as usize as u64 });
    }
    // SAFETY: the caller's; not NULL, aligned.
    unsafe { out.write(ptr::null_mut()) };
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { out.write(made) };
    Ok(SP_OK)
}

/// Frees an object.
///
/// # Safety
/// `object` is NULL, or comes from [`new`], has not been freed, and nobody uses it.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        let _ = crate::status::guard(|| {
            // SAFETY: the caller's: it is the box that `new` gave away.
            drop(unsafe { Box::from_raw(object) });
            Ok(SP_OK)
        });
    }
}

/// Runs a call with the object behind a pointer.
///
/// # Safety
/// `object` is NULL, or comes from [`new`], has not been freed, and nobody else uses it during the
/// call.
#[inline(always)]
pub(crate) unsafe fn with<T, R>(what: &'static str, object: *mut T, body: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
    // SAFETY: the caller's.
    match unsafe { object.as_mut() } {
        Some(object) => body(object),
        None => Err(Failure::Null(what)),
    }
}

/// Runs a call that only looks at the object behind a pointer.
///
/// # Safety
/// `object` is NULL, or comes from [`new`], has not been freed, and nobody changes it during the
/// call.
pub(crate) unsafe fn with_ref<T, R>(
    what: &'static str,
    object: *const T,
    body: impl FnOnce(&T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: the caller's.
    match unsafe { object.as_ref() } {
        Some(object) => body(object),
        None => Err(Failure::Null(what)),
    }
}
