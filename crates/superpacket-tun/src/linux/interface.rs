//! The network interface of a TUN device: its MTU, and whether it is up.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::ioctl;

/// A network interface, by its name in the network namespace in which it was found.
#[derive(Debug)]
pub(super) struct TunInterface {
    pub(super) name: String,
    /// A socket in the interface's network namespace, for system calls about the interface.
    socket: OwnedFd,
}

impl TunInterface {
    /// Returns the interface of this name in the calling thread's network namespace.
    pub(super) fn new(name: String) -> io::Result<Self> {
        Ok(TunInterface {
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

    /// Sets the MTU. Needs CAP_NET_ADMIN unless the interface has this MTU already.
    pub(super) fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        if self.mtu()? == mtu {
            return Ok(());
        }
        ioctl::set_mtu(&self.socket, &self.name, mtu)
    }

    /// Switches the interface on. Needs CAP_NET_ADMIN unless the interface is on already.
    pub(super) fn set_up(&self) -> io::Result<()> {
        if ioctl::is_up(&self.socket, &self.name)? {
            return Ok(());
        }
        ioctl::set_up(&self.socket, &self.name)
    }
}
