//! A thread that waits for file descriptors and ends when its owner is dropped, and access to the
//! message of a panicked thread.

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

/// A handle to a running thread. Dropping it makes the thread's stop descriptor readable, and joins
/// the thread.
#[derive(Debug)]
pub struct StoppableThread {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl StoppableThread {
    /// Starts a thread that runs `work`. `work` must return soon after the descriptor that it is
    /// given becomes readable.
    ///
    /// # Errors
    /// The system's error if there is no thread or descriptor.
    pub fn start(name: &str, work: impl FnOnce(OwnedFd) + Send + 'static) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stopped = stop.try_clone()?;
        let thread =
            std::thread::Builder::new().name(name.to_owned()).spawn(move || work(stopped))?;
        Ok(StoppableThread { stop, thread: Some(thread) })
    }
}

impl Drop for StoppableThread {
    fn drop(&mut self) {
        // If the write fails, the counter is full and wakes the thread as well.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!(name, "a thread had panicked");
            }
        }
    }
}

/// Returns the message of a panic; `None` if it is not text.
pub fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}
