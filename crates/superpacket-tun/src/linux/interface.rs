//! The network interface of a TUN device: its MTU, and whether it is up.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::ioctl;

/// An interface by its name, in the network namespace in which it was found.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Any socket of the namespace.
    socket: OwnedFd,
}

impl Interface {
    /// The interface of this name in the calling thread's network namespace.
    pub(super) fn new(name: String) -> io::Result<Self> {
        Ok(Interface {
            name,
            socket: socket_with(
                AddressFamily::UNIX,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC,
                None,
            )?,
        })
    }

    pub(super) fn mtu(&self) -> io::Result<u32> {
        ioctl::mtu(&self.socket, &self.name)
    }

    /// Sets the MTU, which takes CAP_NET_ADMIN unless it is so already.
    pub(super) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        if self.mtu()? == mtu {
            return Ok(());
        }
        ioctl::set_mtu(&self.socket, &self.name, mtu)
    }

    /// Switches it on, which takes CAP_NET_ADMIN unless it is so already.
    pub(super) fn set_up(&self) -> io::Result<()> {
        if ioctl::is_up(&self.socket, &self.name)? {
            return Ok(());
        }
        ioctl::set_up(&self.socket, &self.name)
    }
}
