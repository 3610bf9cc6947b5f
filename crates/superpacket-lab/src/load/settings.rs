//! What all loads are told alike: between whom, for how long, on which CPUs, with which socket
//! options.

use std::net::IpAddr;
use std::time::Duration;

use crate::error::LabError;
use crate::host::Host;
use crate::topology::Station;

/// Who talks to whom. The client connects; the server listens at `address`, on a port that the
/// kernel chooses.
#[derive(Clone, Copy, Debug)]
pub struct Route<'hosts> {
    /// The host that connects, and sends in the forward direction.
    pub client: &'hosts Host,
    /// The host that listens.
    pub server: &'hosts Host,
    /// An address of the server that the client reaches.
    pub address: IpAddr,
}

impl<'hosts> Route<'hosts> {
    /// From one station to another over IPv4.
    #[must_use]
    pub fn ipv4(client: &'hosts Station, server: &'hosts Station) -> Self {
        Self { client: &client.host, server: &server.host, address: server.ipv4 }
    }

    /// From one station to another over IPv6.
    #[must_use]
    pub fn ipv6(client: &'hosts Station, server: &'hosts Station) -> Self {
        Self { client: &client.host, server: &server.host, address: server.ipv6 }
    }
}

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The senders stop after this time; what is on its way then still arrives and counts.
    Time(Duration),
    /// After this many bytes in each flow and direction.
    Bytes(u64),
}

/// On which CPUs the threads of each host may run; an empty list leaves it to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinning {
    /// CPUs of the client's threads.
    pub client: Vec<usize>,
    /// CPUs of the server's threads.
    pub server: Vec<usize>,
}

/// Options of the TCP sockets on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// `TCP_CONGESTION`; empty leaves the host's default. Default: `cubic`, whatever the machine
    /// prefers.
    pub congestion_control: String,
    /// `TCP_MAXSEG`, in bytes: the largest payload of a segment, less where the path says so.
    pub maximum_segment_size: Option<u16>,
    /// `SO_SNDBUF`, in bytes; `None` lets the kernel tune it.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF`, in bytes; `None` lets the kernel tune it.
    pub receive_buffer: Option<usize>,
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `TCP_QUICKACK`, renewed with every read, so that the receiver acknowledges every second
    /// segment, or each, at once.
    pub quick_acknowledgements: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            congestion_control: "cubic".into(),
            maximum_segment_size: None,
            send_buffer: None,
            receive_buffer: None,
            no_delay: false,
            quick_acknowledgements: false,
        }
    }
}

/// Refuses a count of zero by name.
pub(crate) fn at_least_one(what: &str, value: usize) -> Result<(), LabError> {
    if value == 0 {
        Err(LabError::Invalid { what: format!("{what} = 0"), reason: "expected at least 1".into() })
    } else {
        Ok(())
    }
}
