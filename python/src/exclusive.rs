//! What one thread uses at a time, and others wait for.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

thread_local! {
    /// A variable of each thread, by whose address threads are told apart.
    static HERE: u8 = const { 0 };
}

/// The number of this thread, which is not 0.
fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// A value that one thread uses at a time. A second thread waits, without the interpreter's lock.
#[derive(Debug)]
pub(crate) struct Exclusive<T> {
    value: Mutex<T>,
    /// The thread that uses it; 0 for none.
    user: AtomicUsize,
}

/// The value, as long as it is used.
pub(crate) struct InUse<'a, T> {
    value: MutexGuard<'a, T>,
    user: &'a AtomicUsize,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Exclusive { value: Mutex::new(value), user: AtomicUsize::new(0) }
    }

    /// Waits until no other thread uses the value. What was called by the value's own use, such as
    /// a signal's handler, cannot wait for it: it is told so by RuntimeError.
    #[inline]
    pub(crate) fn lock(&self, py: Python<'_>) -> PyResult<InUse<'_, T>> {
        let this = this_thread();
        let value = match self.value.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(value)) => value.into_inner(),
            Err(TryLockError::WouldBlock) if self.user.load(Ordering::Relaxed) == this => {
                return Err(PyRuntimeError::new_err(
                    "in use by what has called this: a file object, a progress bar, or what a \
                     signal or a warning interrupted",
                ));
            }
            Err(TryLockError::WouldBlock) => {
                self.value.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
            }
        };
        self.user.store(this, Ordering::Relaxed);
        Ok(InUse { value, user: &self.user })
    }
}

impl<T> Drop for InUse<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.user.store(0, Ordering::Relaxed);
    }
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for InUse<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
