//! A thread that reports when a network interface is added, removed or changed.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use superpacket_port::system::{LinkEvents, StoppableThread};

/// Minimum interval between two notices, so that hundreds of new interfaces do not cause hundreds
/// of checks.
const MIN_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Starts a thread that calls `changed` when `events` reports a change of a network interface. The
/// thread ends when the returned value is dropped.
///
/// # Errors
/// The system's error if there is no thread or descriptor.
pub(crate) fn watch(
    events: LinkEvents,
    mut changed: impl FnMut() + Send + 'static,
) -> io::Result<StoppableThread> {
    StoppableThread::start("superpacket-link", move |stop| {
        let mut listen = || -> io::Result<()> {
            loop {
                let mut waiting =
                    [PollFd::new(&stop, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
                if is_first_ready(&mut waiting, None)? {
                    return Ok(());
                }
                if events.take()? {
                    changed();
                    if is_first_ready(&mut waiting[..1], Some(&MIN_INTERVAL))? {
                        return Ok(());
                    }
                }
            }
        };
        if let Err(error) = listen() {
            tracing::warn!(%error, "the kernel no longer reports interface changes: ports are checked at intervals");
        }
    })
}

/// Waits until a descriptor is ready or the timeout expires; returns whether the first one is
/// ready.
fn is_first_ready(waiting: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> io::Result<bool> {
    match poll(waiting, timeout) {
        Ok(_) => Ok(!waiting[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
