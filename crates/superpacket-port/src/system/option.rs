//! Socket options that rustix does not cover, with plain numbers or structures of them as values.
//!
//! The kernel interprets some options' values as addresses, so a numeric option is not safe in
//! general. Every option in use is a [`SocketOption`] here, with a proof.

#![expect(unsafe_code, reason = "setsockopt(2) and getsockopt(2) of options that rustix has not")]

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use superpacket::wire::IpVersion;

/// A type that the kernel may read as bytes and fill with arbitrary bytes.
///
/// # Safety
/// The type has no padding, and every bit pattern is one of its values.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: `i32`, `u16`, `u16` and eight bytes: 16 bytes without padding.
unsafe impl Plain for libc::packet_mreq {}
// SAFETY: four `u32`.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: seven `u32`.
unsafe impl Plain for libc::tpacket_req3 {}
// SAFETY: three `u32`.
unsafe impl Plain for libc::tpacket_stats_v3 {}
// SAFETY: each element is plain, and directly follows the previous one.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A socket option whose value is a `T`.
pub(crate) struct SocketOption<T> {
    level: i32,
    name: i32,
    value: PhantomData<T>,
}

impl<T: Plain> SocketOption<T> {
    /// Describes the option `name` of protocol level `level`.
    ///
    /// # Safety
    /// `setsockopt(2)` and `getsockopt(2)` of this option access at most the given number of the
    /// value's bytes, and no memory that the value points to.
    const unsafe fn new(level: i32, name: i32) -> Self {
        SocketOption { level, name, value: PhantomData }
    }

    /// Sets the option (`setsockopt(2)`).
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn set(self, socket: impl AsFd, value: T) -> io::Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer is to a value of this length, all of whose bytes are initialized. By
        // the contract of `new`, the kernel reads only that, and only during the call.
        let result = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                self.level,
                self.name,
                std::ptr::from_ref(&value).cast(),
                length,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the value of the option (`getsockopt(2)`). Bytes that the kernel does not write are
    /// 0.
    ///
    /// # Errors
    /// The system call's error.
    pub(crate) fn get(self, socket: impl AsFd) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointers are to memory of this length, and to the length. By the contract of
        // `new`, the kernel writes only there.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                self.level,
                self.name,
                value.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: all bytes are initialized, and any bytes are a valid value.
        Ok(unsafe { value.assume_init() })
    }
}

/// Defines options whose value is one number.
macro_rules! numbers {
    ($($name:ident: $number:ty = $level:ident, $option:expr;)*) => {$(
        // SAFETY: the value is one number and not an address (packet(7), socket(7), ip(7), ipv6(7),
        // tcp(7), udp(7); linux/if_xdp.h), and the type is that of the number.
        pub(crate) const $name: SocketOption<$number> = unsafe { SocketOption::new(libc::$level, $option) };
    )*};
}

numbers! {
    PACKET_AUXDATA: i32 = SOL_PACKET, libc::PACKET_AUXDATA;
    PACKET_COPY_THRESH: i32 = SOL_PACKET, libc::PACKET_COPY_THRESH;
    PACKET_FANOUT: u32 = SOL_PACKET, libc::PACKET_FANOUT;
    PACKET_IGNORE_OUTGOING: i32 = SOL_PACKET, libc::PACKET_IGNORE_OUTGOING;
    PACKET_VERSION: i32 = SOL_PACKET, libc::PACKET_VERSION;
    PACKET_VNET_HDR: i32 = SOL_PACKET, libc::PACKET_VNET_HDR;
    SO_ATTACH_BPF: i32 = SOL_SOCKET, libc::SO_ATTACH_BPF;
    SO_BUSY_POLL: i32 = SOL_SOCKET, libc::SO_BUSY_POLL;
    SO_BUSY_POLL_BUDGET: i32 = SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET;
    SO_NETNS_COOKIE: u64 = SOL_SOCKET, libc::SO_NETNS_COOKIE;
    SO_DETACH_FILTER: i32 = SOL_SOCKET, libc::SO_DETACH_FILTER;
    SO_PREFER_BUSY_POLL: i32 = SOL_SOCKET, libc::SO_PREFER_BUSY_POLL;
    // Frames sent per system call in copy mode; 32 by default (Linux 6.17). libc does not define
    // it.
    XDP_MAX_TX_SKB_BUDGET: i32 = SOL_XDP, 9;
    UDP_SEGMENT: i32 = SOL_UDP, libc::UDP_SEGMENT;
    UDP_GRO: i32 = SOL_UDP, libc::UDP_GRO;
    TCP_MAXSEG: i32 = IPPROTO_TCP, libc::TCP_MAXSEG;
    IP_MTU_DISCOVER: i32 = IPPROTO_IP, libc::IP_MTU_DISCOVER;
    IPV6_MTU_DISCOVER: i32 = IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER;
    IP_MTU: u32 = IPPROTO_IP, libc::IP_MTU;
    IPV6_MTU: u32 = IPPROTO_IPV6, libc::IPV6_MTU;
}

// SAFETY: the value consists of numbers and a hardware address, not of memory addresses
// (packet(7)).
pub(crate) const PACKET_ADD_MEMBERSHIP: SocketOption<libc::packet_mreq> =
    unsafe { SocketOption::new(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP) };
// SAFETY: as for `PACKET_ADD_MEMBERSHIP`.
pub(crate) const PACKET_DROP_MEMBERSHIP: SocketOption<libc::packet_mreq> =
    unsafe { SocketOption::new(libc::SOL_PACKET, libc::PACKET_DROP_MEMBERSHIP) };
// SAFETY: the numbers describe a ring, whose memory the kernel allocates itself (packet_mmap).
pub(crate) const PACKET_RX_RING: SocketOption<libc::tpacket_req> =
    unsafe { SocketOption::new(libc::SOL_PACKET, libc::PACKET_RX_RING) };
// SAFETY: as for `PACKET_RX_RING`; the longer structure is that of `TPACKET_V3`.
pub(crate) const PACKET_RX_RING_V3: SocketOption<libc::tpacket_req3> =
    unsafe { SocketOption::new(libc::SOL_PACKET, libc::PACKET_RX_RING) };
// SAFETY: the value consists of numbers, and the kernel writes at most the requested length
// (packet(7)).
pub(crate) const PACKET_STATISTICS: SocketOption<libc::tpacket_stats_v3> =
    unsafe { SocketOption::new(libc::SOL_PACKET, libc::PACKET_STATISTICS) };

/// Returns the number of a socket's network namespace, which is unique until the machine restarts
/// (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// The system call's error.
pub(crate) fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    SO_NETNS_COOKIE.get(socket)
}

/// Makes the kernel split what a UDP socket sends into datagrams of `size` bytes of payload
/// (`UDP_SEGMENT`, Linux 4.18). 0 switches this off.
///
/// # Errors
/// The system call's error.
pub fn set_udp_segment(socket: impl AsFd, size: u16) -> io::Result<()> {
    UDP_SEGMENT.set(socket, i32::from(size))
}

/// Allows a UDP socket to receive several datagrams as one (`UDP_GRO`, Linux 5.0).
///
/// # Errors
/// The system call's error.
pub fn set_udp_gro(socket: impl AsFd, on: bool) -> io::Result<()> {
    UDP_GRO.set(socket, i32::from(on))
}

/// Sets the maximum segment size of a TCP socket, in bytes of payload and options (`TCP_MAXSEG`).
///
/// # Errors
/// The system call's error.
pub fn set_tcp_max_segment(socket: impl AsFd, size: u16) -> io::Result<()> {
    TCP_MAXSEG.set(socket, i32::from(size))
}

/// Returns the first `N` words of the state of a TCP connection (`TCP_INFO`, `struct tcp_info` of
/// `linux/tcp.h`). Words that the kernel does not write are 0.
///
/// # Errors
/// The system call's error.
pub fn tcp_info<const N: usize>(socket: impl AsFd) -> io::Result<[u32; N]> {
    // SAFETY: the value consists of numbers, and the kernel writes at most the requested length
    // (tcp(7)).
    let info: SocketOption<[u32; N]> =
        unsafe { SocketOption::new(libc::IPPROTO_TCP, libc::TCP_INFO) };
    info.get(socket)
}

/// Switches path MTU discovery of a UDP socket. If on, datagrams carry the don't-fragment bit, and
/// those longer than the known path MTU are refused (`IP_PMTUDISC_DO`). If off, they are fragmented
/// (`IP_PMTUDISC_DONT`).
///
/// # Errors
/// The system call's error.
pub fn set_dont_fragment(socket: impl AsFd, version: IpVersion, on: bool) -> io::Result<()> {
    match version {
        IpVersion::V4 => {
            let value = if on { libc::IP_PMTUDISC_DO } else { libc::IP_PMTUDISC_DONT };
            IP_MTU_DISCOVER.set(socket, value)
        }
        IpVersion::V6 => {
            let value = if on { libc::IPV6_PMTUDISC_DO } else { libc::IPV6_PMTUDISC_DONT };
            IPV6_MTU_DISCOVER.set(socket, value)
        }
    }
}

/// Returns the known path MTU of a connected socket, in bytes (`IP_MTU`).
///
/// # Errors
/// The system call's error: `ENOTCONN` if the socket is not connected.
pub fn path_mtu(socket: impl AsFd, version: IpVersion) -> io::Result<u32> {
    match version {
        IpVersion::V4 => IP_MTU.get(socket),
        IpVersion::V6 => IPV6_MTU.get(socket),
    }
}

/// Attaches a classic BPF filter to a socket (`SO_ATTACH_FILTER`), replacing an existing one.
///
/// # Errors
/// The system call's error: `EINVAL` if the program is invalid.
pub(crate) fn attach_filter(socket: impl AsFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let count = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: count, filter: filter.as_ptr().cast_mut() };
    let (descriptor, length) =
        (socket.as_fd().as_raw_fd(), size_of_val(&program) as libc::socklen_t);
    // SAFETY: the pointer is to a program of this length. Its instructions, whose count is right,
    // outlive the call, which only reads them.
    let result = unsafe {
        libc::setsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            std::ptr::from_ref(&program).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn what_was_set_is_there() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        set_udp_segment(&socket, 1200).expect("Linux 4.18");
        assert_eq!(UDP_SEGMENT.get(&socket).expect("asked"), 1200);
        // SAFETY: as for `UDP_SEGMENT`.
        let longer: SocketOption<[i32; 2]> =
            unsafe { SocketOption::new(libc::SOL_UDP, libc::UDP_SEGMENT) };
        assert_eq!(longer.get(&socket).expect("asked"), [1200, 0], "shorter than asked for");
        let refused = UDP_SEGMENT.set(&socket, -1).expect_err("no size");
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        set_udp_gro(&socket, true).expect("Linux 5.0");
        assert_eq!(UDP_GRO.get(&socket).expect("asked"), 1);
    }

    #[test]
    fn what_is_known_of_a_way_is_told() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let error = path_mtu(&socket, IpVersion::V4).expect_err("it leads nowhere");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
        socket.connect(socket.local_addr().expect("bound")).expect("loopback");
        let mtu = path_mtu(&socket, IpVersion::V4).expect("connected") as usize;
        set_dont_fragment(&socket, IpVersion::V4, true).expect("settable");
        let refused = socket.send(&vec![0; mtu - 27]).map_err(|error| error.raw_os_error());
        // The longest datagram fits into loopback's usual MTU.
        assert!(refused == Err(Some(libc::EMSGSIZE)), "{mtu}: {refused:?}");
    }
}
