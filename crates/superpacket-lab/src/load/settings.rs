//! Settings that all loads share: hosts, duration, CPUs and socket options.

use std::net::IpAddr;
use std::time::Duration;

use crate::error::LabError;
use crate::host::Host;
use crate::topology::Station;

/// The client and the server of a load. The client connects; the server listens at `address`, on a
/// port that the kernel chooses.
#[derive(Clone, Copy, Debug)]
pub struct Route<'hosts> {
    /// The host that connects, and sends in the forward direction.
    pub client: &'hosts Host,
    /// The host that listens.
    pub server: &'hosts Host,
    /// The address of the server to which the client connects.
    pub address: IpAddr,
}

impl<'hosts> Route<'hosts> {
    /// Returns the route from one station to another over IPv4.
    #[must_use]
    pub fn ipv4(client: &'hosts Station, server: &'hosts Station) -> Self {
        Self { client: &client.host, server: &server.host, address: server.ipv4 }
    }

    /// Returns the route from one station to another over IPv6.
    #[must_use]
    pub fn ipv6(client: &'hosts Station, server: &'hosts Station) -> Self {
        Self { client: &client.host, server: &server.host, address: server.ipv6 }
    }
}

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The senders stop after this time. Data in flight still arrives and counts.
    Time(Duration),
    /// Each flow ends after this number of bytes per direction.
    Bytes(u64),
}

/// CPUs that the threads of each host may use; an empty list allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinning {
    /// Numbers of the CPUs on which the client's threads run.
    pub client: Vec<usize>,
    /// Numbers of the CPUs on which the server's threads run.
    pub server: Vec<usize>,
}

/// Options of the TCP sockets on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// `TCP_CONGESTION`; empty for the host's default. Default: `cubic`, so that runs are
    /// comparable between machines.
    pub congestion_control: String,
    /// `TCP_MAXSEG`, in bytes: the largest payload of a segment. The path may require less.
    pub maximum_segment_size: Option<u16>,
    /// `SO_SNDBUF`, in bytes; `None` lets the kernel tune it.
    pub send_buffer: Option<usize>,
    /// `SO_RCVBUF`, in bytes; `None` lets the kernel tune it.
    pub receive_buffer: Option<usize>,
    /// Whether `TCP_NODELAY` is set.
    pub no_delay: bool,
    /// `TCP_QUICKACK`, set again before every read, so that the receiver acknowledges without
    /// delay.
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

/// Returns an error that names the setting if its value is 0.
pub(crate) fn at_least_one(what: &str, value: usize) -> Result<(), LabError> {
    if value == 0 {
        Err(LabError::Invalid { what: format!("{what} = 0"), reason: "expected at least 1".into() })
    } else {
        Ok(())
    }
}
