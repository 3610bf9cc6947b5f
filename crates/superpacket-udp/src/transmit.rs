//! What is sent, and where to.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use crate::EcnCodepoint;

/// Where a datagram goes, and what its IP header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address that it is sent to. A socket of IPv6 takes those of IPv4 too.
    pub addr: SocketAddr,
    /// Its Explicit Congestion Notification bits.
    pub ecn: Option<EcnCodepoint>,
    /// The source address: of the replies to a peer, the address that the peer has sent to
    /// ([`dst_ip`](crate::RecvMeta::dst_ip)). `None` leaves it to the host.
    pub src_ip: Option<IpAddr>,
}

impl Destination {
    /// To this address, without ECN, from the address that the host chooses.
    pub const fn new(addr: SocketAddr) -> Self {
        Destination { addr, ecn: None, src_ip: None }
    }
}

impl From<SocketAddr> for Destination {
    fn from(addr: SocketAddr) -> Self {
        Destination::new(addr)
    }
}

/// One datagram, or a run of them: [`quinn_udp::Transmit`], with contents in several slices.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The socket that it is sent to.
    pub destination: SocketAddr,
    /// Its Explicit Congestion Notification bits.
    pub ecn: Option<EcnCodepoint>,
    /// The contents, in order. At most 1,024 slices.
    pub contents: &'a [IoSlice<'a>],
    /// Bytes of each datagram but the last, which may be shorter; `None` if there is one only.
    pub segment_size: Option<usize>,
    /// The source address; `None` leaves it to the host.
    pub src_ip: Option<IpAddr>,
}
