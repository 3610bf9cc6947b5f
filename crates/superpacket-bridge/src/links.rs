//! A thread that hears from the kernel when an interface comes, goes or changes.

use std::io;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use superpacket_port::system::LinkEvents;

use crate::stoppable::Stoppable;

/// How long at least lies between two notices: a host on which hundreds of interfaces come at once
/// is not looked at hundreds of times.
const SPACING: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Calls `changed` from a thread of its own after what `events` tell, until the thread is dropped.
///
/// # Errors
/// What the system says if it gives no thread or descriptor.
pub(crate) fn watch(
    events: LinkEvents,
    mut changed: impl FnMut() + Send + 'static,
) -> io::Result<Stoppable> {
    Stoppable::start("superpacket-link", move |stop| {
        let mut listen = || -> io::Result<()> {
            loop {
                let mut waiting =
                    [PollFd::new(&stop, PollFlags::IN), PollFd::new(&events, PollFlags::IN)];
                if is_first_ready(&mut waiting, None)? {
                    return Ok(());
                }
                if events.take()? {
                    changed();
                    if is_first_ready(&mut waiting[..1], Some(&SPACING))? {
                        return Ok(());
                    }
                }
            }
        };
        if let Err(error) = listen() {
            tracing::warn!(%error, "changes of interfaces are not heard of any more at once");
        }
    })
}

/// Waits until one of them is ready, or the time is over; says whether it is the first.
fn is_first_ready(waiting: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> io::Result<bool> {
    match poll(waiting, timeout) {
        Ok(_) => Ok(!waiting[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
