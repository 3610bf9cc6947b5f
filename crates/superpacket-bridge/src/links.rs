//! A thread that hears from the kernel when an interface comes, goes or changes.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use superpacket_io::system::LinkEvents;

/// How long at least lies between two notices: a host on which hundreds of interfaces come at once
/// is not looked at hundreds of times.
const SPACING: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Listens until it is dropped.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl LinkWatch {
    /// Calls `changed` from a thread of its own after what `events` tell.
    ///
    /// # Errors
    /// What the system says if it gives no thread or descriptor.
    pub(crate) fn start(events: LinkEvents, changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let asked = stop.try_clone()?;
        let listen = move || {
            let is_asked_to_stop = |timeout: Option<&Timespec>, also: &LinkEvents| {
                let mut waiting = [PollFd::new(&asked, PollFlags::IN), PollFd::new(also, PollFlags::IN)];
                let waiting = if timeout.is_some() { &mut waiting[..1] } else { &mut waiting[..] };
                match poll(waiting, timeout) {
                    Ok(_) | Err(Errno::INTR) => !waiting[0].revents().is_empty(),
                    Err(error) => {
                        tracing::warn!(%error, "changes of interfaces are not heard of any more at once");
                        true
                    }
                }
            };
            while !is_asked_to_stop(None, &events) {
                match events.take() {
                    Ok(true) => changed(),
                    Ok(false) => continue,
                    Err(error) => return tracing::warn!(%error, "changes of interfaces are not heard of any more at once"),
                }
                if is_asked_to_stop(Some(&SPACING), &events) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("superpacket-link".into()).spawn(listen)?;
        Ok(LinkWatch { stop, thread: Some(thread) })
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        // A counter that is full wakes just as well.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that listens for changes of interfaces had panicked");
        }
    }
}
