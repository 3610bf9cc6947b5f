//! Datagrams to be sent, and their destination.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use crate::EcnCodepoint;

/// The destination of a datagram, and its IP header fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The destination address. IPv6 sockets can send to IPv4 addresses too.
    pub addr: SocketAddr,
    /// The Explicit Congestion Notification bits.
    pub ecn: Option<EcnCodepoint>,
    /// The source address. For replies, it is the address to which the peer has sent
    /// ([`dst_ip`](crate::RecvMeta::dst_ip)). If `None`, the host chooses it.
    pub src_ip: Option<IpAddr>,
}

impl Destination {
    /// Returns a destination with this address, without ECN; the host chooses the source address.
    pub const fn new(addr: SocketAddr) -> Self {
        Destination { addr, ecn: None, src_ip: None }
    }
}

impl From<SocketAddr> for Destination {
    fn from(addr: SocketAddr) -> Self {
        Destination::new(addr)
    }
}

/// One datagram or a run of datagrams: like [`quinn_udp::Transmit`], but with contents in several
/// slices.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The destination address.
    pub destination: SocketAddr,
    /// The Explicit Congestion Notification bits.
    pub ecn: Option<EcnCodepoint>,
    /// The contents, in order; at most 1,024 slices.
    pub contents: &'a [IoSlice<'a>],
    /// Length of each datagram in bytes; the last may be shorter. `None` for a single datagram.
    pub segment_size: Option<usize>,
    /// The source address. If `None`, the host chooses it.
    pub src_ip: Option<IpAddr>,
}
