//! The usual topologies: two hosts joined directly, or through a middle host on which the software
//! under test runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::error::LabError;
use crate::host::Host;
use crate::link::Link;

/// A host at one side of a topology, with its interface and the interface's addresses.
#[derive(Clone, Debug)]
pub struct Station {
    /// The host.
    pub host: Host,
    /// The interface, `eth0`.
    pub link: Link,
    /// IPv4 address: `10.77.0.N/24` for station N.
    pub ipv4: IpAddr,
    /// IPv6 address: `fd77::N/64` for station N, with N in hexadecimal.
    pub ipv6: IpAddr,
}

impl Station {
    /// Gives `link` the addresses of station `number` (1 to 254), and the MAC address
    /// `02:00:00:00:00:N`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses. A kernel without IPv6 is no error here; using
    /// the IPv6 address is one.
    pub fn new(link: Link, number: u8) -> Result<Self, LabError> {
        let (ipv4, ipv6) = (
            Ipv4Addr::new(10, 77, 0, number),
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number)),
        );
        link.set_mac([2, 0, 0, 0, 0, number])?;
        link.add_address(&format!("{ipv4}/24"))?;
        if std::path::Path::new("/proc/sys/net/ipv6").exists() {
            link.add_address(&format!("{ipv6}/64"))?;
        }
        Ok(Self { host: link.host().clone(), link, ipv4: ipv4.into(), ipv6: ipv6.into() })
    }
}

/// Hosts A and B, joined by a veth pair.
#[derive(Clone, Debug)]
pub struct TwoHosts {
    /// Host A, station 1.
    pub a: Station,
    /// Host B, station 2.
    pub b: Station,
}

impl TwoHosts {
    /// Creates both hosts and the veth pair.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] if namespaces are refused; [`LabError::System`] for other refusals
    /// of the kernel.
    pub fn new() -> Result<Self, LabError> {
        let (a, b) = Link::veth(&Host::new("A")?, "eth0", &Host::new("B")?, "eth0")?;
        Ok(Self { a: Station::new(a, 1)?, b: Station::new(b, 2)? })
    }
}

/// Hosts A and B, each joined by a veth pair to a middle host. The software under test forwards
/// between the middle's interfaces `a_side` and `b_side`.
#[derive(Clone, Debug)]
pub struct ThreeHosts {
    /// Host A. Its addresses end in 1.
    pub a: Station,
    /// Host B. Its addresses end in 2.
    pub b: Station,
    /// The host between A and B, without addresses.
    pub middle: Host,
    /// The middle's interface towards A, `port-a`.
    pub a_side: Link,
    /// The middle's interface towards B, `port-b`.
    pub b_side: Link,
}

impl ThreeHosts {
    /// Creates the hosts and veth pairs; the middle host does not forward yet.
    ///
    /// # Errors
    ///
    /// [`LabError::Forbidden`] if namespaces are refused; [`LabError::System`] for other refusals
    /// of the kernel.
    pub fn new() -> Result<Self, LabError> {
        let middle = Host::new("M")?;
        let (a, a_side) = Link::veth(&Host::new("A")?, "eth0", &middle, "port-a")?;
        let (b, b_side) = Link::veth(&Host::new("B")?, "eth0", &middle, "port-b")?;
        // Without an IPv6 address, the middle host sends only the frames that it forwards.
        for link in [&a_side, &b_side] {
            let _ = middle.set_sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", link.name()), "1");
        }
        Ok(Self { a: Station::new(a, 1)?, b: Station::new(b, 2)?, middle, a_side, b_side })
    }

    /// Joins both interfaces of the middle host by a kernel bridge, `bridge0`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no bridges.
    pub fn with_kernel_bridge(&self) -> Result<Link, LabError> {
        let bridge = Link::bridge(&self.middle, "bridge0", &[&self.a_side, &self.b_side])?;
        let _ = self.middle.set_sysctl("net/ipv6/conf/bridge0/disable_ipv6", "1");
        Ok(bridge)
    }
}
