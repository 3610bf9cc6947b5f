//! Network interfaces identified by name: their state and limits (`rtnetlink(7)`).

use std::io;
use std::os::fd::AsFd;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, LinkXdp};

use super::{LinkState, PortError, PortState};
use crate::system::{Ethtool, RouteSocket};

/// The interface on which a port was opened.
#[derive(Debug)]
pub(crate) struct NetworkInterface {
    socket: RouteSocket,
    name: String,
    index: u32,
}

/// The kernel's description of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InterfaceInfo {
    /// The interface's index, at least 1.
    pub index: u32,
    /// Whether the interface is administratively up (`IFF_UP`).
    pub is_up: bool,
    /// Whether the interface has a carrier (`IFF_LOWER_UP`).
    pub has_carrier: bool,
    /// Whether frames begin with an Ethernet header (`ARPHRD_ETHER`, `ARPHRD_LOOPBACK`).
    pub is_ethernet: bool,
    /// Maximum length of an IP packet in bytes.
    pub mtu: u32,
    /// The Ethernet address; `None` for interfaces without one (TUN).
    pub hardware_address: Option<[u8; 6]>,
    /// Length in bytes, with the Ethernet header, at or above which the kernel segments an IPv6
    /// super-packet in software.
    pub gso_max_size: u32,
    /// Like `gso_max_size`, but for IPv4. Kernels before 6.3 have one limit for both IP versions.
    pub gso_ipv4_max_size: u32,
    /// Maximum number of segments per super-packet (`gso_max_segs`).
    pub gso_max_segments: u32,
    /// Number of receive queues.
    pub rx_queues: u32,
    /// Number of transmit queues.
    pub tx_queues: u32,
    /// The ID that the kernel gave to the attached XDP program; `None` if no program is attached.
    pub xdp_program: Option<u32>,
}

impl NetworkInterface {
    /// Finds the interface `name` in this thread's network namespace, for the port `port`.
    ///
    /// # Errors
    /// [`PortError::NoInterface`], or the system call's error.
    pub fn open(port: &str, name: &str) -> Result<Self, PortError> {
        let system = |action| move |error: io::Error| PortError::system(port, action, error);
        let mut socket = RouteSocket::open().map_err(system("opening a route socket (socket)"))?;
        let link = socket.link(name).map_err(system("asking for the interface (RTM_GETLINK)"))?;
        let link = link.ok_or_else(|| PortError::NoInterface {
            port: port.to_owned(),
            interface: name.to_owned(),
        })?;
        Ok(NetworkInterface { socket, name: name.to_owned(), index: link.header.index })
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index that the interface had when the port was opened.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Returns a handle to the interface's device.
    pub fn ethtool(&self) -> Ethtool<'_> {
        Ethtool::new(self.socket.as_fd(), &self.name)
    }

    /// Returns the interface's current description, or `None` if the interface no longer exists. A
    /// new interface with the same name is not accepted.
    ///
    /// # Errors
    /// The system call's error.
    pub fn link(&mut self) -> io::Result<Option<InterfaceInfo>> {
        Ok(self
            .socket
            .link(&self.name)?
            .filter(|link| link.header.index == self.index)
            .map(|link| InterfaceInfo::read(&link)))
    }

    /// Returns the current state of the interface; [`PortState::Gone`] if it cannot be read.
    pub fn state(&mut self) -> PortState {
        match self.link() {
            Ok(Some(link)) => {
                let state =
                    if link.is_up && link.has_carrier { LinkState::Up } else { LinkState::Down };
                PortState { link: state, mtu: link.mtu }
            }
            _ => PortState { link: LinkState::Gone, mtu: 0 },
        }
    }

    /// Sets the interface up or down.
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_up(&mut self, up: bool) -> io::Result<()> {
        self.change(|message| {
            message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
            message.header.change_mask = LinkFlags::Up;
        })
    }

    /// Sets the maximum length of an IP packet in bytes.
    ///
    /// # Errors
    /// The system call's error: `EINVAL` if the device does not support the MTU.
    pub fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        self.change(|message| message.attributes.push(LinkAttribute::Mtu(mtu)))
    }

    fn change(&mut self, edit: impl FnOnce(&mut LinkMessage)) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        edit(&mut message);
        self.socket.request(RouteNetlinkMessage::SetLink(message), 0).map(drop)
    }
}

/// The default limit if the kernel reports none (the kernel's `GSO_LEGACY_MAX_SIZE`).
const GSO_LEGACY_MAX_SIZE: u32 = 65536;

impl InterfaceInfo {
    fn read(message: &LinkMessage) -> Self {
        let header = &message.header;
        let mut link = InterfaceInfo {
            index: header.index,
            is_up: header.flags.contains(LinkFlags::Up),
            is_ethernet: [LinkLayerType::Ether, LinkLayerType::Loopback]
                .contains(&header.link_layer_type),
            has_carrier: header.flags.contains(LinkFlags::LowerUp),
            gso_max_size: GSO_LEGACY_MAX_SIZE,
            gso_max_segments: u32::from(u16::MAX),
            rx_queues: 1,
            tx_queues: 1,
            ..InterfaceInfo::default()
        };
        let mut gso_ipv4_max_size = None;
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::Address(address) => {
                    link.hardware_address = address.as_slice().try_into().ok()
                }
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::NumTxQueues(queues) => link.tx_queues = *queues,
                LinkAttribute::NumRxQueues(queues) => link.rx_queues = *queues,
                LinkAttribute::GsoMaxSegs(segments) => link.gso_max_segments = *segments,
                LinkAttribute::GsoMaxSize(size) => link.gso_max_size = *size,
                LinkAttribute::GsoIpv4MaxSize(size) => gso_ipv4_max_size = Some(*size),
                LinkAttribute::Xdp(programs) => link.xdp_program = xdp_program(programs),
                _ => {}
            }
        }
        link.gso_ipv4_max_size = gso_ipv4_max_size.unwrap_or(link.gso_max_size);
        link
    }
}

/// Returns the ID of the first attached XDP program; `None` if there is none.
fn xdp_program(programs: &[LinkXdp]) -> Option<u32> {
    programs.iter().find_map(|program| match *program {
        LinkXdp::ProgId(number) | LinkXdp::DrvProgId(number) | LinkXdp::SkbProgId(number)
            if number != 0 =>
        {
            Some(number)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::namespace::in_network_namespace;

    #[test]
    fn the_loopback_interface_is_the_first() {
        let mut interface =
            NetworkInterface::open("packet:lo", "lo").expect("every namespace has one");
        assert_eq!((interface.name(), interface.index()), ("lo", 1));
        let link = interface.link().expect("asked").expect("there");
        assert_eq!((link.index, link.hardware_address, link.is_ethernet), (1, Some([0; 6]), true));
        assert!(
            link.mtu >= 1280
                && link.gso_max_size >= 1280
                && link.gso_max_segments >= 1
                && link.rx_queues >= 1,
            "{link:?}"
        );
        assert_eq!(interface.state().mtu, link.mtu);
    }

    #[test]
    fn an_interface_is_switched_on_and_given_another_mtu() {
        in_network_namespace(|| {
            let mut interface =
                NetworkInterface::open("packet:lo", "lo").expect("every namespace has one");
            assert_eq!(interface.state().link, LinkState::Down);
            interface.set_up(true).expect("ours");
            interface.set_mtu(9000).expect("ours");
            assert_eq!(interface.state(), PortState { link: LinkState::Up, mtu: 9000 });
            interface.set_up(false).expect("ours");
            assert_eq!(interface.state().link, LinkState::Down);
        });
    }

    #[test]
    fn what_is_not_there_is_named() {
        for name in ["none0", "a-name-that-is-too-long-for-one", "", "a\0b"] {
            let error = NetworkInterface::open("packet:none0", name).expect_err("there is none");
            assert!(
                matches!(&error, PortError::NoInterface { interface, .. } if interface == name),
                "{error}"
            );
        }
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let mut message = LinkMessage::default();
        assert_eq!(
            InterfaceInfo::read(&message),
            InterfaceInfo {
                gso_max_size: 65_536,
                gso_ipv4_max_size: 65_536,
                gso_max_segments: 65_535,
                rx_queues: 1,
                tx_queues: 1,
                ..InterfaceInfo::default()
            },
            "of a kernel that says little"
        );
        message.header.index = 7;
        message.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.attributes = vec![
            LinkAttribute::Mtu(9000),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1]),
            LinkAttribute::GsoMaxSize(185_000),
            LinkAttribute::GsoIpv4MaxSize(65_536),
            LinkAttribute::Xdp(vec![LinkXdp::ProgId(0), LinkXdp::SkbProgId(91)]),
        ];
        let link = InterfaceInfo::read(&message);
        assert_eq!(
            (link.mtu, link.index, link.is_up, link.has_carrier, link.is_ethernet),
            (9000, 7, true, true, true)
        );
        assert_eq!((link.hardware_address, link.xdp_program), (Some([2, 0, 0, 0, 0, 1]), Some(91)));
        assert_eq!((link.gso_max_size, link.gso_ipv4_max_size), (185_000, 65_536));
        message.attributes =
            vec![LinkAttribute::GsoMaxSize(185_000), LinkAttribute::Address(vec![])];
        assert_eq!(
            (
                InterfaceInfo::read(&message).gso_ipv4_max_size,
                InterfaceInfo::read(&message).hardware_address
            ),
            (185_000, None),
            "before 6.3; a TUN device"
        );
    }
}
