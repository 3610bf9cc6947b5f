//! A network interface by its name: what state it is in, and its limits (`rtnetlink(7)`).
//!
//! The netlink socket stays in the network namespace that it was opened in: an [`Interface`] may be
//! asked from any thread.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::{LinkState, PortError, PortState};

/// An interface that a port was opened on.
#[derive(Debug)]
pub(crate) struct Interface {
    socket: OwnedFd,
    name: String,
    index: u32,
    sequence: u32,
}

/// What the kernel says of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its number, 1 or more.
    pub index: u32,
    /// It has been switched on (`IFF_UP`).
    pub is_up: bool,
    /// Its carrier is there (`IFF_LOWER_UP`).
    pub has_carrier: bool,
    /// Its frames start with an Ethernet header (`ARPHRD_ETHER`, `ARPHRD_LOOPBACK`).
    pub is_ethernet: bool,
    /// The longest IP packet in bytes.
    pub mtu: u32,
    /// Its Ethernet address; `None` for interfaces without one (TUN).
    pub hardware_address: Option<[u8; 6]>,
    /// Super-packets of this many bytes or more, Ethernet header included, are cut in software: the
    /// smaller of IPv4's and IPv6's limit (`gso_ipv4_max_size`, `gso_max_size`).
    pub gso_max_size: u32,
    /// The most segments that it cuts a super-packet into (`gso_max_segs`).
    pub gso_max_segments: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Transmit queues.
    pub tx_queues: u32,
    /// The number of an XDP program that is attached to it.
    pub xdp_program: Option<u32>,
}

impl Interface {
    /// Finds the interface `name` in this thread's network namespace, for the port `port`.
    ///
    /// # Errors
    /// [`PortError::NoInterface`], or what the system refused.
    pub fn open(port: &str, name: &str) -> Result<Self, PortError> {
        let system = |action| move |error: io::Error| PortError::system(port, action, error);
        // No protocol is 0: NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(|error| system("opening a route socket (socket)")(error.into()))?;
        let mut interface = Interface { socket, name: name.to_owned(), index: 0, sequence: 0 };
        let link = interface.find().map_err(system("asking for the interface (RTM_GETLINK)"))?;
        let link = link.ok_or_else(|| PortError::NoInterface { port: port.to_owned(), interface: name.to_owned() })?;
        interface.index = link.index;
        Ok(interface)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number when it was opened.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// A socket of its network namespace, for `ioctl`s that take an interface's name.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What the kernel says of it now; `None` if it is gone, even if another of the same name has
    /// come.
    ///
    /// # Errors
    /// What the system refused.
    pub fn link(&mut self) -> io::Result<Option<Link>> {
        Ok(self.find()?.filter(|link| link.index == self.index))
    }

    /// Its state now, as ports report it: gone where nothing can be said of it.
    pub fn state(&mut self) -> PortState {
        match self.link() {
            Ok(Some(link)) => {
                let state = if link.is_up && link.has_carrier { LinkState::Up } else { LinkState::Down };
                PortState { link: state, mtu: link.mtu }
            }
            _ => PortState { link: LinkState::Gone, mtu: 0 },
        }
    }

    /// Switches it on or off.
    ///
    /// # Errors
    /// What the system refused.
    pub fn set_up(&mut self, up: bool) -> io::Result<()> {
        let flag = libc::IFF_UP as u32;
        self.change(if up { flag } else { 0 }, flag, None)
    }

    /// Sets the longest IP packet in bytes.
    ///
    /// # Errors
    /// What the system refused: `EINVAL` for what the device cannot.
    pub fn set_mtu(&mut self, mtu: u32) -> io::Result<()> {
        self.change(0, 0, Some((IFLA_MTU, &mtu.to_ne_bytes())))
    }

    fn find(&mut self) -> io::Result<Option<Link>> {
        // A longer name is a malformed message to the kernel, and none that an interface has.
        if self.name.len() >= libc::IFNAMSIZ || self.name.contains('\0') {
            return Ok(None);
        }
        // No index: the name decides, so that an interface that took it over is seen.
        let mut request = Request::new(libc::RTM_GETLINK, 0, 0, 0, 0);
        request.attribute(IFLA_IFNAME, &[self.name.as_bytes(), &[0]].concat());
        request.attribute(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        match self.ask(request) {
            Ok(reply) => Ok(reply.filter(|reply| reply.name == self.name).map(|reply| reply.link)),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn change(&mut self, flags: u32, mask: u32, attribute: Option<(u16, &[u8])>) -> io::Result<()> {
        let mut request = Request::new(libc::RTM_SETLINK, libc::NLM_F_ACK as u16, self.index, flags, mask);
        if let Some((kind, value)) = attribute {
            request.attribute(kind, value);
        }
        self.ask(request).map(drop)
    }

    /// Its IP addresses that count beyond its link.
    fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let request = Request::new(libc::RTM_GETADDR, libc::NLM_F_DUMP as u16, 0, 0, 0).finish(0);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &request, SendFlags::empty()))?;
        let (mut buffer, mut addresses) = (vec![0; 32 << 10], Vec::new());
        loop {
            // The next part is there when one has been read.
            let (length, _) = rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT))?;
            if read_addresses(&buffer[..length], self.index, &mut addresses)? {
                return Ok(addresses);
            }
        }
    }

    /// Sends a request and reads its answer; an acknowledgement is `None`.
    fn ask(&mut self, request: Request) -> io::Result<Option<Reply>> {
        self.sequence = self.sequence.wrapping_add(1);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &request.finish(self.sequence), SendFlags::empty()))?;
        let mut buffer = vec![0; 32 << 10];
        // The kernel answers before `send` returns. Answers to requests that were given up may lie
        // before this one's.
        loop {
            let (length, _) = rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT))?;
            let message = &buffer[..length];
            let (Some(kind), Some(sequence)) = (read_u16(message, 4), read_u32(message, 8)) else { continue };
            if sequence != self.sequence {
                continue;
            }
            return match i32::from(kind) {
                libc::NLMSG_ERROR => match read_u32(message, HEADER).map(u32::cast_signed) {
                    Some(0) => Ok(None),
                    Some(negative) => Err(io::Error::from_raw_os_error(-negative)),
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                },
                _ => Ok(Some(Reply::parse(message))),
            };
        }
    }
}

/// Returns the IP addresses of an interface in this thread's network namespace, but for those that
/// count on its link only, as every interface has one.
///
/// # Errors
/// What the system refused; [`io::ErrorKind::NotFound`] where there is no such interface.
pub fn interface_addresses(name: &str) -> io::Result<Vec<IpAddr>> {
    let interface = Interface::open(name, name).map_err(|error| io::Error::new(io::ErrorKind::NotFound, error))?;
    interface.addresses()
}

/// Length of `struct nlmsghdr` in bytes.
const HEADER: usize = 16;

/// Length of `struct ifinfomsg` in bytes.
const INFO: usize = 16;

/// Length of `struct ifaddrmsg` in bytes.
const ADDRESS_INFO: usize = 8;

// `linux/if_addr.h`.
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

// `linux/if_link.h`; all values are in native byte order.
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;

/// `linux/rtnetlink.h`: no statistics in the answer.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

/// The kernel's `GSO_LEGACY_MAX_SIZE`: the limit where it names none.
const GSO_LEGACY_MAX_SIZE: u32 = 65536;

/// A message to the kernel: `nlmsghdr`, `ifinfomsg`, attributes.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16, index: u32, interface_flags: u32, mask: u32) -> Self {
        let mut bytes = vec![0; HEADER + INFO];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16 | flags).to_ne_bytes());
        bytes[HEADER + 4..][..4].copy_from_slice(&index.to_ne_bytes());
        bytes[HEADER + 8..][..4].copy_from_slice(&interface_flags.to_ne_bytes());
        bytes[HEADER + 12..][..4].copy_from_slice(&mask.to_ne_bytes());
        Request(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.0.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = self.0.clone();
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        bytes
    }
}

/// An `RTM_NEWLINK` message.
#[derive(Debug)]
struct Reply {
    link: Link,
    name: String,
}

impl Reply {
    fn parse(message: &[u8]) -> Self {
        let flags = read_u32(message, HEADER + 8).unwrap_or(0);
        let mut link = Link {
            index: read_u32(message, HEADER + 4).unwrap_or(0),
            is_up: flags & libc::IFF_UP as u32 != 0,
            is_ethernet: read_u16(message, HEADER + 2).is_some_and(|kind| [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&kind)),
            has_carrier: flags & libc::IFF_LOWER_UP as u32 != 0,
            gso_max_size: GSO_LEGACY_MAX_SIZE,
            gso_max_segments: u32::from(u16::MAX),
            rx_queues: 1,
            tx_queues: 1,
            ..Link::default()
        };
        let (mut name, mut gso_max_size, mut gso_ipv4_max_size) = (String::new(), None, None);
        let mut at = HEADER + INFO;
        while let (Some(length), Some(kind)) = (read_u16(message, at), read_u16(message, at + 2)) {
            let length = usize::from(length);
            let Some(value) = message.get(at + 4..at + length) else { break };
            let number = read_u32(value, 0);
            match kind {
                IFLA_ADDRESS => link.hardware_address = value.try_into().ok(),
                IFLA_IFNAME => name = String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned(),
                IFLA_MTU => link.mtu = number.unwrap_or(0),
                IFLA_NUM_TX_QUEUES => link.tx_queues = number.unwrap_or(1),
                IFLA_NUM_RX_QUEUES => link.rx_queues = number.unwrap_or(1),
                IFLA_GSO_MAX_SEGS => link.gso_max_segments = number.unwrap_or(link.gso_max_segments),
                IFLA_GSO_MAX_SIZE => gso_max_size = number,
                IFLA_GSO_IPV4_MAX_SIZE => gso_ipv4_max_size = number,
                IFLA_XDP => link.xdp_program = xdp_program(value),
                _ => {}
            }
            at += length.next_multiple_of(4);
        }
        // Kernels before 6.3 have one limit for both.
        let both = gso_max_size.unwrap_or(GSO_LEGACY_MAX_SIZE);
        link.gso_max_size = both.min(gso_ipv4_max_size.unwrap_or(both));
        Reply { link, name }
    }
}

/// The number of a program in nested attributes: that of the only one, or of one of several.
fn xdp_program(attributes: &[u8]) -> Option<u32> {
    let mut at = 0;
    while let (Some(length), Some(kind)) = (read_u16(attributes, at), read_u16(attributes, at + 2)) {
        let value = attributes.get(at + 4..at + usize::from(length))?;
        if (IFLA_XDP_PROG_ID..=IFLA_XDP_SKB_PROG_ID).contains(&kind) {
            return read_u32(value, 0).filter(|&number| number != 0);
        }
        at += usize::from(length).next_multiple_of(4);
    }
    None
}

/// Reads the addresses of an interface from a part of a list (`struct ifaddrmsg`); `true`: it was
/// the last part.
fn read_addresses(part: &[u8], index: u32, addresses: &mut Vec<IpAddr>) -> io::Result<bool> {
    let mut rest = part;
    while let (Some(length), Some(kind)) = (read_u32(rest, 0), read_u16(rest, 4)) {
        let length = length as usize;
        let Some(message) = rest.get(..length).filter(|message| message.len() >= HEADER) else { break };
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error = read_u32(message, HEADER).map_or(libc::EIO, |negative| negative.cast_signed().wrapping_neg());
                return Err(io::Error::from_raw_os_error(error));
            }
            _ if kind == libc::RTM_NEWADDR && read_u32(message, HEADER + 4) == Some(index) => addresses.extend(read_address(message)),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

/// Reads the address that an `RTM_NEWADDR` message is about, unless it counts on its link only.
fn read_address(message: &[u8]) -> Option<IpAddr> {
    if *message.get(HEADER + 3)? >= libc::RT_SCOPE_LINK {
        return None;
    }
    let (mut at, mut found) = (HEADER + ADDRESS_INFO, None);
    while let (Some(length), Some(kind)) = (read_u16(message, at), read_u16(message, at + 2)) {
        let value = message.get(at + 4..at + usize::from(length))?;
        let address = <[u8; 4]>::try_from(value).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok();
        match kind {
            // Its own address, where the other one is that of a peer.
            IFA_LOCAL => return address,
            IFA_ADDRESS => found = address,
            _ => {}
        }
        at += usize::from(length).next_multiple_of(4).max(4);
    }
    found
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_the_first() {
        let mut interface = Interface::open("packet:lo", "lo").expect("every namespace has one");
        assert_eq!((interface.name(), interface.index()), ("lo", 1));
        let link = interface.link().expect("asked").expect("there");
        assert_eq!((link.index, link.hardware_address, link.is_ethernet), (1, Some([0; 6]), true));
        assert!(link.mtu >= 1280 && link.gso_max_size >= 1280 && link.gso_max_segments >= 1 && link.rx_queues >= 1, "{link:?}");
        assert_eq!(interface.state().mtu, link.mtu);
    }

    #[test]
    fn an_interface_is_switched_on_and_given_another_mtu() {
        let inside = std::thread::spawn(|| {
            // SAFETY: the call takes flags only, and moves this thread alone.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                assert!(std::env::var_os("CI").is_none(), "no network namespace: {}", io::Error::last_os_error());
                eprintln!("SKIPPED: no network namespace: {}", io::Error::last_os_error());
                return;
            }
            let mut interface = Interface::open("packet:lo", "lo").expect("every namespace has one");
            assert_eq!(interface.state().link, LinkState::Down);
            interface.set_up(true).expect("ours");
            // 127.0.0.1 and ::1 are its host's: they count nowhere else.
            assert_eq!(interface.addresses().expect("ours"), Vec::<IpAddr>::new());
            interface.set_mtu(9000).expect("ours");
            assert_eq!(interface.state(), PortState { link: LinkState::Up, mtu: 9000 });
            interface.set_up(false).expect("ours");
            assert_eq!(interface.state().link, LinkState::Down);
        });
        inside.join().expect("the assertions hold");
    }

    #[test]
    fn what_is_not_there_is_named() {
        for name in ["none0", "a-name-that-is-too-long-for-one", "", "a\0b"] {
            let error = Interface::open("packet:none0", name).expect_err("there is none");
            assert!(matches!(&error, PortError::NoInterface { interface, .. } if interface == name), "{error}");
        }
    }

    #[test]
    fn addresses_are_read_and_damaged_lists_as_far_as_they_go() {
        let message = |index: u32, scope: u8, kind: u16, value: &[u8]| {
            let mut request = Request::new(libc::RTM_NEWADDR, 0, 0, 0, 0);
            request.0.truncate(HEADER + ADDRESS_INFO);
            request.0[HEADER + 3] = scope;
            request.0[HEADER + 4..][..4].copy_from_slice(&index.to_ne_bytes());
            request.attribute(kind, value);
            request.finish(0)
        };
        let list = [
            message(7, 0, IFA_LOCAL, &[10, 0, 0, 1]),
            message(8, 0, IFA_LOCAL, &[10, 0, 0, 2]),
            message(7, libc::RT_SCOPE_LINK, IFA_ADDRESS, &[0xfe; 16]),
            message(7, 0, IFA_ADDRESS, &[0x20; 16]),
        ]
        .concat();
        let mut addresses = Vec::new();
        assert!(!read_addresses(&list, 7, &mut addresses).expect("no error"));
        assert_eq!(addresses, [IpAddr::from([10, 0, 0, 1]), IpAddr::from([0x20; 16])]);
        for length in 0..list.len() {
            let _ = read_addresses(&list[..length], 7, &mut addresses);
        }
        let mut end = Request::new(libc::NLMSG_DONE as u16, 0, 0, 0, 0).finish(0);
        assert!(read_addresses(&end, 7, &mut addresses).expect("no error"));
        end[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        end[HEADER..][..4].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(read_addresses(&end, 7, &mut addresses).expect_err("refused").raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn damaged_messages_are_read_as_far_as_they_go() {
        let mut request = Request::new(libc::RTM_NEWLINK, 0, 7, libc::IFF_UP as u32, 0);
        request.attribute(IFLA_IFNAME, b"veth0\0");
        request.attribute(IFLA_MTU, &9000u32.to_ne_bytes());
        request.attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        request.attribute(IFLA_GSO_MAX_SIZE, &185_000u32.to_ne_bytes());
        request.attribute(IFLA_GSO_IPV4_MAX_SIZE, &65_536u32.to_ne_bytes());
        let (attached, program) = ([5, 0, 2, 0, 1, 0, 0, 0], [8, 0, 4, 0]);
        #[cfg(target_endian = "big")]
        let (attached, program) = ([0, 5, 0, 2, 1, 0, 0, 0], [0, 8, 0, 4]);
        request.attribute(IFLA_XDP, &[&attached[..], &program, &91u32.to_ne_bytes()].concat());
        let bytes = request.finish(1);
        let whole = Reply::parse(&bytes);
        assert_eq!((whole.name.as_str(), whole.link.mtu, whole.link.index, whole.link.is_up), ("veth0", 9000, 7, true));
        assert_eq!((whole.link.hardware_address, whole.link.gso_max_size), (Some([2, 0, 0, 0, 0, 1]), 65_536));
        assert_eq!(whole.link.xdp_program, Some(91));
        for length in 0..bytes.len() {
            Reply::parse(&bytes[..length]);
        }
        // An attribute of length 0 ends the list.
        let mut stuck = bytes.clone();
        stuck[HEADER + INFO..][..2].fill(0);
        assert_eq!(Reply::parse(&stuck).name, "");
    }
}
