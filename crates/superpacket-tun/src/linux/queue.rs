//! A queue of a TUN device: one descriptor, for one reader and one writer.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use superpacket::Framing;

use crate::{Device, Reader, Switches, Writer};

/// A queue of a TUN device. The kernel hands a flow's packets to the queue to which the flow's
/// packets were last written.
///
/// Clones are the same queue. It is closed, and a device that is not persistent goes, with the last
/// clone, reader and writer.
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

    /// Makes a reader and a writer of this queue. Each may move to a thread of its own.
    pub fn split<B: AsRef<[u8]>>(self) -> (Reader<Queue>, Writer<Queue, B>) {
        (self.reader(), self.writer())
    }

    /// Makes a reader of this queue. Of several, each gets some of the packets.
    pub fn reader(&self) -> Reader<Queue> {
        Reader::new(self.clone(), self.framing)
    }

    /// Makes a writer to this queue. Order is kept within each of several.
    pub fn writer<B: AsRef<[u8]>>(&self) -> Writer<Queue, B> {
        Writer::new(self.clone(), self.framing, self.switches.clone())
    }

    /// Which header packets have; `None`: none, since the device was opened without.
    pub const fn framing(&self) -> Option<Framing> {
        self.framing
    }

    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), events)];
        loop {
            match poll(&mut fds, None) {
                // A device that was deleted reports an error here, which the next read or write
                // names.
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
        // The kernel takes a packet whole or not at all.
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
