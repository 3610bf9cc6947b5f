//! A queue of a TUN device: one descriptor, for a reader and a writer.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use superpacket::Framing;

use crate::{Device, Reader, Switches, Writer};

/// A queue of a TUN device. The kernel delivers a flow's packets to the queue to which packets of
/// this flow were last written.
///
/// Clones refer to the same queue. When the last clone, reader and writer are dropped, the queue is
/// closed; a device that is not persistent is deleted with its last queue.
#[derive(Clone, Debug)]
pub struct Queue {
    fd: Arc<OwnedFd>,
    framing: Option<Framing>,
    switches: Switches,
}

impl Queue {
    pub(super) fn new(fd: OwnedFd, framing: Option<Framing>, switches: Switches) -> Self {
        Queue { fd: Arc::new(fd), framing, switches }
    }

    /// Returns a reader and a writer of this queue. They may move to different threads.
    pub fn split<B: AsRef<[u8]>>(self) -> (Reader<Queue>, Writer<Queue, B>) {
        (self.reader(), self.writer())
    }

    /// Returns a reader of this queue. If there are several readers, each gets some of the packets.
    pub fn reader(&self) -> Reader<Queue> {
        Reader::new(self.clone(), self.framing)
    }

    /// Returns a writer to this queue. If there are several writers, order is kept within each.
    pub fn writer<B: AsRef<[u8]>>(&self) -> Writer<Queue, B> {
        Writer::new(self.clone(), self.framing, self.switches.clone())
    }

    /// Returns the header format of packets; `None` if the device was opened without headers.
    pub const fn framing(&self) -> Option<Framing> {
        self.framing
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), events)];
        loop {
            match poll(&mut fds, None) {
                // If the device was deleted, the next read or write returns the error.
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Device for Queue {
    #[inline]
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::read(&self.fd, &mut *buffer))?)
    }

    #[inline]
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        // The kernel accepts a packet completely or not at all.
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.fd, slices))?;
        Ok(())
    }

    fn wait_readable(&self) -> io::Result<()> {
        self.wait(PollFlags::IN)
    }

    fn wait_writable(&self) -> io::Result<()> {
        self.wait(PollFlags::OUT)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Queue {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Reader<Queue> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device().as_fd()
    }
}

impl<B: AsRef<[u8]>> AsFd for Writer<Queue, B> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device().as_fd()
    }
}
