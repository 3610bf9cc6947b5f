//! Objects to which C programs have pointers.

#![expect(unsafe_code, reason = "the border to C")]

use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::memory::misaligned;
use crate::status::Failure;
use crate::status::sp_status::{self, SP_OK};

/// A value of the engine to which C programs have a pointer, and whether a call may use it.
pub(crate) struct Object<T> {
    inner: T,
    state: CallState,
}

/// Whether a call may start: one of [`READY`], [`BUSY`] and [`BROKEN`].
///
/// It is atomic so that of two calls in two threads, which C programs must not make, one is refused
/// before it reaches the value.
struct CallState(AtomicU8);

/// No call is running.
const READY: u8 = 0;
/// A call is running.
const BUSY: u8 = 1;
/// A call has panicked, and the state of the value is unknown.
const BROKEN: u8 = 2;

impl CallState {
    /// Starts a call, which ends when the result is dropped.
    #[inline(always)]
    fn enter(&self) -> Result<Call<'_>, Failure> {
        match self.0.compare_exchange(READY, BUSY, Acquire, Relaxed) {
            Ok(_) => Ok(Call { state: self, after: BROKEN }),
            Err(BUSY) => Err(Failure::Busy),
            Err(_) => Err(Failure::Broken),
        }
    }
}

/// A running call, which ends when this is dropped.
struct Call<'a> {
    state: &'a CallState,
    /// The state after the call: [`BROKEN`], unless the call reaches its end.
    after: u8,
}

impl Drop for Call<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.state.0.store(self.after, Release);
    }
}

impl<T> Object<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Object { inner, state: CallState(AtomicU8::new(READY)) }
    }

    /// Runs a call that uses the value. After a panic in it, the object refuses all further calls.
    #[inline(always)]
    pub(crate) fn call<R>(
        &mut self,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut call = self.state.enter()?;
        let result = body(&mut self.inner);
        call.after = READY;
        result
    }

    /// Returns the value for reading.
    pub(crate) const fn inner(&self) -> &T {
        &self.inner
    }
}

/// Creates an object and gives the caller a pointer to it; NULL on an error.
///
/// # Safety
/// `out` is NULL, or the caller's memory for a pointer.
pub(crate) unsafe fn new<T>(
    out: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<sp_status, Failure> {
    if out.is_null() {
        return Err(Failure::Null("out"));
    }
    if !out.is_aligned() {
        return Err(misaligned("out", out));
    }
    // SAFETY: as the caller promises; not NULL, aligned.
    unsafe { out.write(ptr::null_mut()) };
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { out.write(made) };
    Ok(SP_OK)
}

/// Frees an object.
///
/// # Safety
/// `object` is NULL, or comes from [`new`], has not been freed, and is not in use.
pub(crate) unsafe fn free<T>(object: *mut T) {
    if !object.is_null() {
        let _ = crate::status::guard(|| {
            // SAFETY: as the caller promises, it is the box from `new`.
            drop(unsafe { Box::from_raw(object) });
            Ok(SP_OK)
        });
    }
}

/// Runs `body` with the object behind a pointer.
///
/// # Safety
/// `object` is NULL, or comes from [`new`], has not been freed, and is not used elsewhere during
/// the call.
#[inline(always)]
pub(crate) unsafe fn with<T, R>(
    what: &'static str,
    object: *mut T,
    body: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: as the caller promises.
    match unsafe { object.as_mut() } {
        Some(object) => body(object),
        None => Err(Failure::Null(what)),
    }
}

/// Runs `body`, which only reads, with the object behind a pointer.
///
/// # Safety
/// `object` is NULL, or comes from [`new`], has not been freed, and does not change during the
/// call.
pub(crate) unsafe fn with_ref<T, R>(
    what: &'static str,
    object: *const T,
    body: impl FnOnce(&T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: as the caller promises.
    match unsafe { object.as_ref() } {
        Some(object) => body(object),
        None => Err(Failure::Null(what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::guard;
    use crate::status::sp_status::{SP_ERROR_BUSY, SP_ERROR_INTERNAL};

    fn call(object: &mut Object<u32>, panics: bool) -> sp_status {
        guard(|| {
            object.call(|_| {
                assert!(!panics, "a fault");
                Ok(SP_OK)
            })
        })
    }

    #[test]
    fn a_panic_breaks_the_object() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let mut object = Object::new(1);
        let statuses = [false, true, false].map(|panics| call(&mut object, panics));
        std::panic::set_hook(hook);
        assert_eq!(statuses, [SP_OK, SP_ERROR_INTERNAL, SP_ERROR_INTERNAL]);
    }

    #[test]
    fn a_call_during_another_is_told_that_the_object_is_busy() {
        let mut object = Object::new(1);
        // A call that never ends.
        assert!(object.state.enter().map(std::mem::forget).is_ok());
        assert_eq!(call(&mut object, false), SP_ERROR_BUSY);
        object.state.0.store(READY, Relaxed);
        assert_eq!(call(&mut object, false), SP_OK);
    }

    #[test]
    fn an_error_leaves_the_object_usable() {
        let mut object = Object::new(1);
        assert_eq!(
            object.call(|_| Err::<(), _>(Failure::Null("packets"))),
            Err(Failure::Null("packets"))
        );
        assert_eq!(call(&mut object, false), SP_OK);
    }
}
