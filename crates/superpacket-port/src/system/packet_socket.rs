//! Packet sockets (`packet(7)`) as far as all of them are alike.

#![expect(unsafe_code, reason = "addresses of packet(7)")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::option::{
    PACKET_ADD_MEMBERSHIP, PACKET_AUXDATA, PACKET_DROP_MEMBERSHIP, PACKET_IGNORE_OUTGOING,
    PACKET_STATISTICS, PACKET_VNET_HDR, Plain, SocketOption,
};

/// A packet socket: whole frames of an interface, their link headers included.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// Which frames a [`PacketSocket`] receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// None: it only sends.
    None,
    /// All that the interface receives (`ETH_P_ALL`).
    All,
}

impl PacketSocket {
    /// Opens one in this thread's network namespace. It receives nothing until it is bound.
    ///
    /// # Errors
    /// What the system refused: `EPERM` without `CAP_NET_RAW`.
    pub fn open() -> io::Result<Self> {
        Ok(PacketSocket(rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?))
    }

    /// Binds it to the interface number `index`.
    ///
    /// # Errors
    /// What the system refused: `ENODEV`, or `ENETDOWN` where the interface is switched off.
    pub fn bind(&self, index: u32, frames: Frames) -> io::Result<()> {
        let protocol = match frames {
            Frames::None => 0,
            Frames::All => (libc::ETH_P_ALL as u16).to_be(),
        };
        self.bind_to(index, protocol)
    }

    /// `protocol` is in network byte order.
    fn bind_to(&self, index: u32, protocol: u16) -> io::Result<()> {
        let address = address(index.cast_signed(), protocol);
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the pointer is to an address of this length.
        let result =
            unsafe { libc::bind(self.0.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns whether it is bound to the interface number `index`. An interface that went, even if
    /// it came back, has left its sockets (`NETDEV_UNREGISTER`).
    pub fn is_bound_to(&self, index: u32) -> bool {
        let mut bound = address(0, 0);
        let mut length = size_of_val(&bound) as libc::socklen_t;
        // SAFETY: both pointers are to what lives longer than the call, of the length that is said.
        let result = unsafe {
            libc::getsockname(
                self.0.as_raw_fd(),
                std::ptr::from_mut(&mut bound).cast(),
                &raw mut length,
            )
        };
        result == 0 && bound.sll_ifindex == index.cast_signed()
    }

    /// Asks for frames to all addresses that reach the interface number `index`, while the socket
    /// is open (`PACKET_MR_PROMISC`).
    ///
    /// # Errors
    /// What the system refused.
    pub fn add_promiscuous(&self, index: u32) -> io::Result<()> {
        self.set(PACKET_ADD_MEMBERSHIP, promiscuous(index))
    }

    /// Takes back what [`add_promiscuous`](Self::add_promiscuous) asked for.
    ///
    /// # Errors
    /// What the system refused.
    pub(crate) fn drop_promiscuous(&self, index: u32) -> io::Result<()> {
        self.set(PACKET_DROP_MEMBERSHIP, promiscuous(index))
    }

    /// Takes the socket off its interface, for good: it receives nothing more.
    ///
    /// # Errors
    /// What the system refused: `EINVAL` for a socket that shares with others (`PACKET_FANOUT`).
    pub(crate) fn unbind(&self) -> io::Result<()> {
        // To protocol 0, the kernel would bind it to the one that it has. No frame is of this one:
        // below 1536 the field is a length.
        self.bind_to(0, 0x05ff_u16.to_be())
    }

    /// Takes `bytes` for frames that wait to be sent; where the process may not go beyond the
    /// system's limit (`net.core.wmem_max`), what that allows.
    ///
    /// # Errors
    /// What the system refused.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<()> {
        if sockopt::set_socket_send_buffer_size_force(&self.0, bytes).is_err() {
            sockopt::set_socket_send_buffer_size(&self.0, bytes)?;
        }
        Ok(())
    }

    /// Takes `bytes` for frames that wait to be read; where the process may not go beyond the
    /// system's limit (`net.core.rmem_max`), what that allows. Returns whether it may.
    ///
    /// # Errors
    /// What the system refused.
    pub fn set_receive_buffer(&self, bytes: usize) -> io::Result<bool> {
        let whole = sockopt::set_socket_recv_buffer_size_force(&self.0, bytes).is_ok();
        if !whole {
            sockopt::set_socket_recv_buffer_size(&self.0, bytes)?;
        }
        Ok(whole)
    }

    /// Returns how many packets found no room since this was asked last (`PACKET_STATISTICS`).
    ///
    /// # Errors
    /// What the system refused.
    pub fn take_drops(&self) -> io::Result<u32> {
        // The longer structure, of `TPACKET_V3`, starts as the other.
        Ok(self.get(PACKET_STATISTICS)?.tp_drops)
    }

    /// Has messages say what the kernel knows of a frame besides its bytes (`PACKET_AUXDATA`).
    ///
    /// # Errors
    /// What the system refused.
    pub fn set_auxiliary_data(&self, on: bool) -> io::Result<()> {
        self.set(PACKET_AUXDATA, i32::from(on))
    }

    /// Leaves out what the machine itself sends (`PACKET_IGNORE_OUTGOING`, Linux 4.20).
    ///
    /// # Errors
    /// What the system refused.
    pub fn set_ignore_outgoing(&self, on: bool) -> io::Result<()> {
        self.set(PACKET_IGNORE_OUTGOING, i32::from(on))
    }

    /// Puts a virtio header before each frame (`PACKET_VNET_HDR`).
    ///
    /// # Errors
    /// What the system refused.
    pub fn set_virtio_headers(&self, on: bool) -> io::Result<()> {
        self.set(PACKET_VNET_HDR, i32::from(on))
    }

    /// Sets an option.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn set<T: Plain>(&self, option: SocketOption<T>, value: T) -> io::Result<()> {
        option.set(&self.0, value)
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// If the system refuses.
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

/// `protocol` is in network byte order.
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
