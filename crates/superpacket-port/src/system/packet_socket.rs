//! Packet sockets (`packet(7)`): the operations common to all uses.

#![expect(unsafe_code, reason = "addresses of packet(7)")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::option::{
    PACKET_ADD_MEMBERSHIP, PACKET_AUXDATA, PACKET_DROP_MEMBERSHIP, PACKET_IGNORE_OUTGOING,
    PACKET_STATISTICS, PACKET_VNET_HDR, Plain, SO_ATTACH_BPF, SocketOption,
};

/// A packet socket, which sends and receives whole frames of an interface, link headers included.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// The frames that a [`PacketSocket`] receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// No frames: the socket only sends.
    None,
    /// All frames that the interface receives (`ETH_P_ALL`).
    All,
}

impl PacketSocket {
    /// Opens a socket in this thread's network namespace. It receives nothing until it is bound.
    ///
    /// # Errors
    /// The system call's error: `EPERM` without `CAP_NET_RAW`.
    pub fn open() -> io::Result<Self> {
        Ok(PacketSocket(rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?))
    }

    /// Binds the socket to the interface with this index.
    ///
    /// # Errors
    /// The system call's error: `ENODEV`, or `ENETDOWN` if the interface is down.
    pub fn bind(&self, index: u32, frames: Frames) -> io::Result<()> {
        let protocol = match frames {
            Frames::None => 0,
            Frames::All => (libc::ETH_P_ALL as u16).to_be(),
        };
        self.bind_to(index, protocol)
    }

    /// Binds the socket to the interface with this index. `protocol` is in network byte order.
    fn bind_to(&self, index: u32, protocol: u16) -> io::Result<()> {
        let address = address(index.cast_signed(), protocol);
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the pointer is to an address of this length.
        let result =
            unsafe { libc::bind(self.0.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns whether the socket is bound to the interface with this index. The kernel unbinds
    /// sockets when their interface disappears (`NETDEV_UNREGISTER`), even if it comes back.
    pub fn is_bound_to(&self, index: u32) -> bool {
        let mut bound = address(0, 0);
        let mut length = size_of_val(&bound) as libc::socklen_t;
        // SAFETY: both pointers are to values that outlive the call, and the length is that of
        // `bound`.
        let result = unsafe {
            libc::getsockname(
                self.0.as_raw_fd(),
                std::ptr::from_mut(&mut bound).cast(),
                &raw mut length,
            )
        };
        result == 0 && bound.sll_ifindex == index.cast_signed()
    }

    /// Puts the interface with this index into promiscuous mode while the socket is open
    /// (`PACKET_MR_PROMISC`).
    ///
    /// # Errors
    /// The system call's error.
    pub fn add_promiscuous(&self, index: u32) -> io::Result<()> {
        self.set(PACKET_ADD_MEMBERSHIP, promiscuous(index))
    }

    /// Ends the promiscuous mode requested by [`add_promiscuous`](Self::add_promiscuous).
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn drop_promiscuous(&self, index: u32) -> io::Result<()> {
        self.set(PACKET_DROP_MEMBERSHIP, promiscuous(index))
    }

    /// Unbinds the socket from its interface for good: it receives nothing more.
    ///
    /// # Errors
    /// The system call's error: `EINVAL` for a socket in a fanout group (`PACKET_FANOUT`).
    pub(crate) fn unbind(&self) -> io::Result<()> {
        // With protocol 0 the kernel would keep the present protocol. No frame has this one: below
        // 1536 the field is a length.
        self.bind_to(0, 0x05ff_u16.to_be())
    }

    /// Sets the send buffer to `bytes`, or without `CAP_NET_ADMIN` to at most `net.core.wmem_max`.
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        if sockopt::set_socket_send_buffer_size_force(&self.0, bytes).is_err() {
            sockopt::set_socket_send_buffer_size(&self.0, bytes)?;
        }
        Ok(())
    }

    /// Sets the receive buffer to `bytes`, or without `CAP_NET_ADMIN` to at most
    /// `net.core.rmem_max`. Returns whether the process may exceed that limit.
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<bool> {
        let whole = sockopt::set_socket_recv_buffer_size_force(&self.0, bytes).is_ok();
        if !whole {
            sockopt::set_socket_recv_buffer_size(&self.0, bytes)?;
        }
        Ok(whole)
    }

    /// Returns the number of packets dropped for lack of room since the last call
    /// (`PACKET_STATISTICS`).
    ///
    /// # Errors
    /// The system call's error.
    pub fn take_drops(&self) -> io::Result<u32> {
        Ok(self.take_statistics()?.1)
    }

    /// Returns the number of packets received since the last call, and how many of them were
    /// dropped for lack of room (`PACKET_STATISTICS`).
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn take_statistics(&self) -> io::Result<(u32, u32)> {
        // The longer structure of `TPACKET_V3` begins with the fields of the shorter one.
        let statistics = self.get(PACKET_STATISTICS)?;
        Ok((statistics.tp_packets, statistics.tp_drops))
    }

    /// Sets a BPF program that decides which packets the socket receives (`SO_ATTACH_BPF`).
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn attach_program(&self, program: &OwnedFd) -> io::Result<()> {
        self.set(SO_ATTACH_BPF, program.as_raw_fd())
    }

    /// Requests metadata of each received frame as a control message (`PACKET_AUXDATA`).
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_auxiliary_data(&self, on: bool) -> io::Result<()> {
        self.set(PACKET_AUXDATA, i32::from(on))
    }

    /// Excludes frames sent by this machine (`PACKET_IGNORE_OUTGOING`, Linux 4.20).
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_ignore_outgoing(&self, on: bool) -> io::Result<()> {
        self.set(PACKET_IGNORE_OUTGOING, i32::from(on))
    }

    /// Switches the virtio header before each frame on or off (`PACKET_VNET_HDR`).
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_virtio_headers(&self, on: bool) -> io::Result<()> {
        self.set(PACKET_VNET_HDR, i32::from(on))
    }

    /// Sets an option.
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn set<T: Plain>(&self, option: SocketOption<T>, value: T) -> io::Result<()> {
        option.set(&self.0, value)
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn get<T: Plain>(&self, option: SocketOption<T>) -> io::Result<T> {
        option.get(&self.0)
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn promiscuous(index: u32) -> libc::packet_mreq {
    let (mr_ifindex, mr_type) = (index.cast_signed(), libc::PACKET_MR_PROMISC as libc::c_ushort);
    libc::packet_mreq { mr_ifindex, mr_type, mr_alen: 0, mr_address: [0; 8] }
}

/// Returns the link-layer address of the interface with this index. `protocol` is in network byte
/// order.
fn address(index: i32, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}
