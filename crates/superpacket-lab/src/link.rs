//! Interfaces of a host, created and changed through rtnetlink(7): veth pairs, bridges, VLANs,
//! tunnels, addresses, limits and counters.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{
    InfoData, InfoGeneve, InfoKind, InfoVeth, InfoVlan, InfoVxlan, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use superpacket_port::system::RouteSocket;

use crate::error::{Context, LabError};
use crate::host::Host;

/// The attribute that makes a Geneve device use GRO hints (`linux/if_link.h`).
const IFLA_GENEVE_GRO_HINT: u16 = 16;

/// An interface of a host, identified by name.
///
/// A value does not own the interface, which exists until [`Link::delete`] or the end of its host.
#[derive(Clone, Debug)]
pub struct Link {
    host: Host,
    name: String,
}

/// The type of a UDP tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpTunnel {
    /// VXLAN (RFC 7348), with destination port 4789.
    Vxlan,
    /// Geneve (RFC 8926), with destination port 6081.
    Geneve,
}

/// Counters of an interface, as `ip -s link` shows them (`IFLA_STATS64`). A super-packet counts as
/// one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Number of packets received.
    pub rx_packets: u64,
    /// Bytes received, including the Ethernet header.
    pub rx_bytes: u64,
    /// Number of received packets that were dropped.
    pub rx_dropped: u64,
    /// Number of packets with receive errors.
    pub rx_errors: u64,
    /// Number of packets sent.
    pub tx_packets: u64,
    /// Bytes sent, including the Ethernet header.
    pub tx_bytes: u64,
    /// Number of packets that were dropped instead of sent.
    pub tx_dropped: u64,
    /// Number of packets with transmit errors.
    pub tx_errors: u64,
}

/// Size limits of an interface for super-packets, in bytes. When set, `None` leaves a limit
/// unchanged. Limits above 65,536 enable BIG TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeLimits {
    /// Limit for sending: over IPv6, and over IPv4 if the limit is below 64 KB.
    pub gso_max_size: Option<u32>,
    /// Limit for GRO: over IPv6, and over IPv4 if the limit is below 64 KB.
    pub gro_max_size: Option<u32>,
    /// Maximum length of a sent IPv4 super-packet, in bytes.
    pub gso_ipv4_max_size: Option<u32>,
    /// Maximum length of an IPv4 packet merged by GRO, in bytes.
    pub gro_ipv4_max_size: Option<u32>,
    /// Maximum number of segments per sent super-packet.
    pub gso_max_segments: Option<u32>,
}

impl Host {
    /// Returns an interface of this host by name, without checking that it exists.
    #[must_use]
    pub fn link(&self, interface: &str) -> Link {
        Link::new(self, interface)
    }
}

impl Link {
    pub(crate) fn new(host: &Host, name: &str) -> Self {
        Self { host: host.clone(), name: name.to_owned() }
    }

    /// Joins two hosts by a veth pair, `left_name` in `left` and `right_name` in `right`, and sets
    /// both up.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses, such as for a name in use.
    pub fn veth(
        left: &Host,
        left_name: &str,
        right: &Host,
        right_name: &str,
    ) -> Result<(Self, Self), LabError> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(right_name.to_owned()));
        peer.attributes.push(LinkAttribute::NetNsFd(right.as_fd().as_raw_fd()));
        let pair = (Self::new(left, left_name), Self::new(right, right_name));
        pair.0.create(InfoKind::Veth, Some(InfoData::Veth(InfoVeth::Peer(peer))), Vec::new())?;
        pair.0.up()?;
        pair.1.up()?;
        Ok(pair)
    }

    /// Creates a kernel bridge without spanning tree in `host`, adds `ports` of that host, and sets
    /// it up.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no bridges.
    pub fn bridge(host: &Host, name: &str, ports: &[&Link]) -> Result<Self, LabError> {
        let bridge = Self::new(host, name);
        bridge.create(InfoKind::Bridge, None, Vec::new())?;
        for port in ports {
            port.set_controller(Some(&bridge))?;
        }
        bridge.up()?;
        Ok(bridge)
    }

    /// Creates a dummy interface, which discards all packets sent to it, and sets it up.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no dummy
    /// devices.
    pub fn dummy(host: &Host, name: &str) -> Result<Self, LabError> {
        let dummy = Self::new(host, name);
        dummy.create(InfoKind::Dummy, None, Vec::new())?;
        dummy.up()?;
        Ok(dummy)
    }

    /// Creates an 802.1Q interface on top of this one, and sets it up.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no VLAN
    /// devices (`CONFIG_VLAN_8021Q`).
    pub fn vlan(&self, name: &str, vlan_id: u16) -> Result<Self, LabError> {
        let vlan = Self::new(&self.host, name);
        let parent = LinkAttribute::Link(self.index()?);
        vlan.create(
            InfoKind::Vlan,
            Some(InfoData::Vlan(vec![InfoVlan::Id(vlan_id)])),
            vec![parent],
        )?;
        vlan.up()?;
        Ok(vlan)
    }

    /// Creates a VXLAN device for any remote address and identifier, on this UDP port of `host`,
    /// over IPv4 and IPv6, and sets it up (`ip link add ... type vxlan external`).
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no VXLAN
    /// devices.
    pub fn vxlan(host: &Host, name: &str, port: u16) -> Result<Self, LabError> {
        let data = vec![
            InfoVxlan::CollectMetadata(true),
            InfoVxlan::Port(port),
            InfoVxlan::Learning(false),
        ];
        Self::tunnel(host, name, InfoKind::Vxlan, InfoData::Vxlan(data))
    }

    /// Creates a Geneve device for any remote address and identifier, on this UDP port of `host`,
    /// over IPv4 and IPv6, and sets it up (`ip link add ... type geneve external`).
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no Geneve
    /// devices.
    pub fn geneve(host: &Host, name: &str, port: u16) -> Result<Self, LabError> {
        let data = vec![InfoGeneve::CollectMetadata, InfoGeneve::Port(port)];
        Self::tunnel(host, name, InfoKind::Geneve, InfoData::Geneve(data))
    }

    /// Creates a Geneve device like [`Link::geneve`], with GRO hints enabled: packets of a nested
    /// tunnel merge if a Geneve option from their sender gives the offsets of the inner headers.
    /// Kernels before Linux 7.0 ignore the attribute and create the device without it.
    ///
    /// # Errors
    ///
    /// Those of [`Link::geneve`].
    pub fn geneve_with_gro_hint(host: &Host, name: &str, port: u16) -> Result<Self, LabError> {
        let hint = InfoGeneve::Other(DefaultNla::new(IFLA_GENEVE_GRO_HINT, Vec::new()));
        let data = vec![InfoGeneve::CollectMetadata, InfoGeneve::Port(port), hint];
        Self::tunnel(host, name, InfoKind::Geneve, InfoData::Geneve(data))
    }

    /// Creates the end of a tunnel to `remote` in `host`, with identifier 7, and sets it up (`ip
    /// link add ... type vxlan id 7 remote ...`). Without `checksum`, its UDP checksum is 0, even
    /// over IPv6.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses; [`LabError::Unsupported`] if it has no such
    /// devices.
    pub fn tunnel_to(
        host: &Host,
        name: &str,
        tunnel: UdpTunnel,
        remote: IpAddr,
        checksum: bool,
    ) -> Result<Self, LabError> {
        let (kind, data) = match tunnel {
            UdpTunnel::Vxlan => {
                let remote = match remote {
                    IpAddr::V4(remote) => InfoVxlan::Group(remote),
                    IpAddr::V6(remote) => InfoVxlan::Group6(remote),
                };
                let data = vec![
                    InfoVxlan::Id(7),
                    remote,
                    InfoVxlan::Port(4789),
                    InfoVxlan::UDPCsum(checksum),
                    InfoVxlan::UDPZeroCsumTX(!checksum),
                    InfoVxlan::UDPZeroCsumRX(!checksum),
                ];
                (InfoKind::Vxlan, InfoData::Vxlan(data))
            }
            UdpTunnel::Geneve => {
                let remote = match remote {
                    IpAddr::V4(remote) => InfoGeneve::Remote(remote),
                    IpAddr::V6(remote) => InfoGeneve::Remote6(remote),
                };
                let data = vec![
                    InfoGeneve::Id(7),
                    remote,
                    InfoGeneve::Port(6081),
                    InfoGeneve::UdpCsum(checksum),
                    InfoGeneve::UdpZeroCsum6Tx(!checksum),
                    InfoGeneve::UdpZeroCsum6Rx(!checksum),
                ];
                (InfoKind::Geneve, InfoData::Geneve(data))
            }
        };
        Self::tunnel(host, name, kind, data)
    }

    fn tunnel(host: &Host, name: &str, kind: InfoKind, data: InfoData) -> Result<Self, LabError> {
        let tunnel = Self::new(host, name);
        tunnel.create(kind, Some(data), Vec::new())?;
        tunnel.up()?;
        Ok(tunnel)
    }

    /// Returns the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host of the interface.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns whether the interface exists.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the request fails.
    pub fn exists(&self) -> Result<bool, LabError> {
        self.find().map(|found| found.is_some())
    }

    /// Returns the interface's index in its host.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist.
    pub fn index(&self) -> Result<u32, LabError> {
        Ok(self.get()?.header.index)
    }

    /// Sets the interface up.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn up(&self) -> Result<(), LabError> {
        self.set_flags(LinkFlags::Up, LinkFlags::Up)
    }

    /// Sets the interface down.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn down(&self) -> Result<(), LabError> {
        self.set_flags(LinkFlags::empty(), LinkFlags::Up)
    }

    /// Returns whether the interface is set up.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist.
    pub fn is_up(&self) -> Result<bool, LabError> {
        Ok(self.get()?.header.flags.contains(LinkFlags::Up))
    }

    /// Deletes the interface; for a veth pair, both ends.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn delete(&self) -> Result<(), LabError> {
        let message = self.message(Vec::new())?;
        self.request("delete", RouteNetlinkMessage::DelLink(message), 0).map(drop)
    }

    /// Moves the interface to another host under the same name. It arrives set down and without
    /// addresses.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses, such as for a name in use there.
    pub fn move_to(self, host: &Host) -> Result<Self, LabError> {
        self.set(
            &format!("move to host {}", host.name()),
            vec![LinkAttribute::NetNsFd(host.as_fd().as_raw_fd())],
        )?;
        Ok(Self::new(host, &self.name))
    }

    /// Adds an address, such as `10.0.0.1/24` or `fd00::1/64`, without duplicate address detection,
    /// so that it is usable at once.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] if the text is no address with prefix length; [`LabError::System`] if
    /// the kernel refuses.
    pub fn add_address(&self, address: &str) -> Result<(), LabError> {
        let invalid = || LabError::Invalid {
            what: format!("{self}: address {address:?}"),
            reason: "expected ADDRESS/PREFIX, such as 10.0.0.1/24 or fd00::1/64".into(),
        };
        let (ip, prefix) = address.split_once('/').ok_or_else(invalid)?;
        let (ip, prefix): (IpAddr, u8) =
            (ip.parse().map_err(|_| invalid())?, prefix.parse().map_err(|_| invalid())?);
        let (family, longest) =
            if ip.is_ipv4() { (AddressFamily::Inet, 32) } else { (AddressFamily::Inet6, 128) };
        if prefix > longest {
            return Err(invalid());
        }
        let mut message = AddressMessage::default();
        message.header.family = family;
        message.header.prefix_len = prefix;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.header.index = self.index()?;
        message.attributes = vec![
            AddressAttribute::Local(ip),
            AddressAttribute::Address(ip),
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        self.request(
            &format!("address {address}"),
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
        .map(drop)
    }

    /// Sets the MTU, in bytes from the IP header on.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), LabError> {
        self.set(&format!("mtu {mtu}"), vec![LinkAttribute::Mtu(mtu)])
    }

    /// Returns the MTU, in bytes from the IP header on.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist.
    pub fn mtu(&self) -> Result<u32, LabError> {
        self.attribute("mtu", |attribute| {
            if let LinkAttribute::Mtu(mtu) = attribute { Some(*mtu) } else { None }
        })
    }

    /// Sets the MAC address, in transmission order.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), LabError> {
        self.set(&format!("mac {mac:02x?}"), vec![LinkAttribute::Address(mac.to_vec())])
    }

    /// Returns the MAC address, in transmission order.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist or has no MAC address.
    pub fn mac(&self) -> Result<[u8; 6], LabError> {
        self.attribute("mac", |attribute| {
            if let LinkAttribute::Address(bytes) = attribute {
                bytes.as_slice().try_into().ok()
            } else {
                None
            }
        })
    }

    /// Makes the interface a port of `controller`, a bridge of the same host; `None` removes it
    /// from its bridge.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses.
    pub fn set_controller(&self, controller: Option<&Link>) -> Result<(), LabError> {
        let index = controller.map_or(Ok(0), Link::index)?;
        self.set("port of a bridge", vec![LinkAttribute::Controller(index)])
    }

    /// Sets the size limits for super-packets.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the kernel refuses, such as a limit above the device's
    /// `tso_max_size`.
    pub fn set_size_limits(&self, limits: SizeLimits) -> Result<(), LabError> {
        let attributes = [
            limits.gso_max_size.map(LinkAttribute::GsoMaxSize),
            limits.gro_max_size.map(LinkAttribute::GroMaxSize),
            limits.gso_ipv4_max_size.map(LinkAttribute::GsoIpv4MaxSize),
            limits.gro_ipv4_max_size.map(LinkAttribute::GroIpv4MaxSize),
            limits.gso_max_segments.map(LinkAttribute::GsoMaxSegs),
        ];
        self.set(&format!("{limits:?}"), attributes.into_iter().flatten().collect())
    }

    /// Returns the size limits for super-packets; `None` for a limit that this kernel does not
    /// report.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist.
    pub fn size_limits(&self) -> Result<SizeLimits, LabError> {
        let mut limits = SizeLimits::default();
        for attribute in self.get()?.attributes {
            match attribute {
                LinkAttribute::GsoMaxSize(size) => limits.gso_max_size = Some(size),
                LinkAttribute::GroMaxSize(size) => limits.gro_max_size = Some(size),
                LinkAttribute::GsoIpv4MaxSize(size) => limits.gso_ipv4_max_size = Some(size),
                LinkAttribute::GroIpv4MaxSize(size) => limits.gro_ipv4_max_size = Some(size),
                LinkAttribute::GsoMaxSegs(segments) => limits.gso_max_segments = Some(segments),
                _ => {}
            }
        }
        Ok(limits)
    }

    /// Returns the interface's current counters.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if the interface does not exist.
    pub fn statistics(&self) -> Result<LinkStatistics, LabError> {
        self.attribute("statistics", |attribute| {
            let LinkAttribute::Stats64(counters) = attribute else { return None };
            Some(LinkStatistics {
                rx_packets: counters.rx_packets,
                rx_bytes: counters.rx_bytes,
                rx_dropped: counters.rx_dropped,
                rx_errors: counters.rx_errors,
                tx_packets: counters.tx_packets,
                tx_bytes: counters.tx_bytes,
                tx_dropped: counters.tx_dropped,
                tx_errors: counters.tx_errors,
            })
        })
    }

    fn create(
        &self,
        kind: InfoKind,
        data: Option<InfoData>,
        mut attributes: Vec<LinkAttribute>,
    ) -> Result<(), LabError> {
        let what = format!("create {kind:?}");
        let mut info = vec![LinkInfo::Kind(kind)];
        info.extend(data.map(LinkInfo::Data));
        attributes.push(LinkAttribute::IfName(self.name.clone()));
        attributes.push(LinkAttribute::LinkInfo(info));
        let mut message = LinkMessage::default();
        message.attributes = attributes;
        match self.request(&what, RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
        {
            // "Unknown device type": the kernel has no such kind, neither built in nor as a
            // loadable module.
            Err(LabError::System { what, source })
                if source.to_string().contains("Unknown device type") =>
            {
                Err(LabError::Unsupported {
                    what,
                    reason: "this kernel has no such kind of device".into(),
                })
            }
            other => other.map(drop),
        }
    }

    fn set_flags(&self, flags: LinkFlags, mask: LinkFlags) -> Result<(), LabError> {
        let mut message = self.message(Vec::new())?;
        message.header.flags = flags;
        message.header.change_mask = mask;
        self.request(&format!("{flags:?}"), RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    fn set(&self, what: &str, attributes: Vec<LinkAttribute>) -> Result<(), LabError> {
        let message = self.message(attributes)?;
        self.request(what, RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }

    fn message(&self, attributes: Vec<LinkAttribute>) -> Result<LinkMessage, LabError> {
        let mut message = LinkMessage::default();
        message.header.index = self.index()?;
        message.attributes = attributes;
        Ok(message)
    }

    fn get(&self) -> Result<LinkMessage, LabError> {
        self.find()?.ok_or_else(|| {
            LabError::system(
                format!("{self}: look-up"),
                std::io::Error::from_raw_os_error(libc::ENODEV),
            )
        })
    }

    fn find(&self) -> Result<Option<LinkMessage>, LabError> {
        self.host.run(|| {
            RouteSocket::open()
                .and_then(|mut socket| socket.link(&self.name))
                .context(|| format!("{self}: look-up"))
        })
    }

    fn attribute<T>(
        &self,
        what: &str,
        pick: impl Fn(&LinkAttribute) -> Option<T>,
    ) -> Result<T, LabError> {
        let found = self.get()?.attributes.iter().find_map(pick);
        found.ok_or_else(|| {
            LabError::system(
                format!("{self}: {what}"),
                std::io::Error::other("the kernel does not report it"),
            )
        })
    }

    pub(crate) fn request(
        &self,
        what: &str,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, LabError> {
        self.host.run(|| {
            RouteSocket::open()
                .and_then(|mut socket| socket.request(message, flags))
                .context(|| format!("{self}: {what}"))
        })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "host {}, interface {}", self.host.name(), self.name)
    }
}
