//! Link types of capture files, and where the Ethernet or IP packet begins in a frame.

use std::fmt;

/// The type of a frame's first header: a LINKTYPE_ value of
/// <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: a 4-byte address family, in the byte order of the capturing machine.
    pub const NULL: Self = Self(0);
    /// Ethernet, usually without the frame check sequence.
    pub const ETHERNET: Self = Self(1);
    /// Raw IP: the value of `DLT_RAW` on most systems, found in files by old programs.
    pub const RAW_12: Self = Self(12);
    /// Raw IP: the value of `DLT_RAW` on OpenBSD.
    pub const RAW_14: Self = Self(14);
    /// Raw IP, version 4 or 6.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: like [`NULL`](Self::NULL), but big endian.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture, 16 bytes (the `any` device).
    pub const LINUX_SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux cooked capture version 2, 20 bytes.
    pub const LINUX_SLL2: Self = Self(276);
}

impl fmt::Display for LinkType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::NULL => "NULL",
            Self::ETHERNET => "ETHERNET",
            Self::RAW_12 | Self::RAW_14 | Self::RAW => "RAW",
            Self::LOOP => "LOOP",
            Self::LINUX_SLL => "LINUX_SLL",
            Self::IPV4 => "IPV4",
            Self::IPV6 => "IPV6",
            Self::LINUX_SLL2 => "LINUX_SLL2",
            Self(number) => return write!(f, "link type {number}"),
        };
        write!(f, "link type {} ({name})", self.0)
    }
}

/// Where the Ethernet or IP packet begins in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// The frame is an Ethernet frame, from its first byte on.
    Ethernet,
    /// An IPv4 or IPv6 packet follows a header of the frame's link type.
    Ip {
        /// Number of bytes before the IP header. It is less than the frame's length.
        header_length: usize,
    },
    /// The frame contains no Ethernet or IP packet that this program can process.
    Other,
}

/// `ARPHRD_IEEE80211`, `ARPHRD_IEEE80211_PRISM` and `ARPHRD_IEEE80211_RADIOTAP`: the payload does
/// not begin with IP, even if the protocol field says so.
const ARPHRD_IEEE80211: std::ops::RangeInclusive<u16> = 801..=803;
/// `ARPHRD_NETLINK`: the protocol field contains the netlink family.
const ARPHRD_NETLINK: u16 = 824;

/// Returns where the Ethernet or IP packet begins in a `frame` of type `link_type`.
///
/// A protocol field in the header (NULL, LOOP, LINUX_SLL, LINUX_SLL2) must say IPv4 or IPv6, and
/// the packet's first four bits must be the same version. A cooked frame with a VLAN tag or another
/// protocol is [`Start::Other`].
pub fn start_of(link_type: LinkType, frame: &[u8]) -> Start {
    match link_type {
        LinkType::ETHERNET => Start::Ethernet,
        LinkType::RAW | LinkType::RAW_12 | LinkType::RAW_14 => ip_at(frame, 0, &[4, 6]),
        LinkType::IPV4 => ip_at(frame, 0, &[4]),
        LinkType::IPV6 => ip_at(frame, 0, &[6]),
        LinkType::NULL => match frame.first_chunk() {
            Some(&family) => {
                let native = u32::from_le_bytes(family);
                after_family(frame, if native > 0xFFFF { native.swap_bytes() } else { native })
            }
            None => Start::Other,
        },
        LinkType::LOOP => match frame.first_chunk() {
            Some(&family) => after_family(frame, u32::from_be_bytes(family)),
            None => Start::Other,
        },
        // Packet type, ARPHRD_ type, address length, address (8 bytes), protocol.
        LinkType::LINUX_SLL => after_cooked(frame, 16, 2, 14),
        // Protocol, reserved, interface index (4 bytes), ARPHRD_ type, packet type, address length,
        // address (8 bytes).
        LinkType::LINUX_SLL2 => after_cooked(frame, 20, 8, 0),
        _ => Start::Other,
    }
}

fn ip_at(frame: &[u8], header_length: usize, versions: &[u8]) -> Start {
    match frame.get(header_length) {
        Some(first) if versions.contains(&(first >> 4)) => Start::Ip { header_length },
        _ => Start::Other,
    }
}

/// Returns where the IP packet begins in a frame of a BSD loopback link type, whose 4-byte header
/// contains `family`. AF_INET is 2 everywhere; AF_INET6 is 24 (NetBSD, OpenBSD), 28 (FreeBSD), 30
/// (macOS), 10 (Linux) or 23 (Windows).
fn after_family(frame: &[u8], family: u32) -> Start {
    match family {
        2 => ip_at(frame, 4, &[4]),
        10 | 23 | 24 | 28 | 30 => ip_at(frame, 4, &[6]),
        _ => Start::Other,
    }
}

fn after_cooked(
    frame: &[u8],
    header_length: usize,
    hardware_type: usize,
    protocol: usize,
) -> Start {
    if frame.len() < header_length {
        return Start::Other;
    }
    let field = |offset: usize| u16::from_be_bytes([frame[offset], frame[offset + 1]]);
    let hardware_type = field(hardware_type);
    if hardware_type == ARPHRD_NETLINK || ARPHRD_IEEE80211.contains(&hardware_type) {
        return Start::Other;
    }
    match field(protocol) {
        0x0800 => ip_at(frame, header_length, &[4]),
        0x86DD => ip_at(frame, header_length, &[6]),
        _ => Start::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: u8 = 0x45;
    const V6: u8 = 0x60;

    #[test]
    fn raw_frames_start_at_ip() {
        for link_type in [LinkType::RAW, LinkType::RAW_12, LinkType::RAW_14] {
            assert_eq!(start_of(link_type, &[V4]), Start::Ip { header_length: 0 });
            assert_eq!(start_of(link_type, &[V6]), Start::Ip { header_length: 0 });
            assert_eq!(start_of(link_type, &[0x50]), Start::Other);
            assert_eq!(start_of(link_type, &[]), Start::Other);
        }
        assert_eq!(start_of(LinkType::IPV4, &[V4]), Start::Ip { header_length: 0 });
        assert_eq!(start_of(LinkType::IPV4, &[V6]), Start::Other);
        assert_eq!(start_of(LinkType::IPV6, &[V6]), Start::Ip { header_length: 0 });
        assert_eq!(start_of(LinkType::IPV6, &[V4]), Start::Other);
    }

    #[test]
    fn the_loopback_family_is_read_in_either_order() {
        let ip = Start::Ip { header_length: 4 };
        assert_eq!(start_of(LinkType::NULL, &[2, 0, 0, 0, V4]), ip);
        assert_eq!(start_of(LinkType::NULL, &[0, 0, 0, 2, V4]), ip);
        for family in [10, 23, 24, 28, 30] {
            assert_eq!(start_of(LinkType::NULL, &[family, 0, 0, 0, V6]), ip);
            assert_eq!(start_of(LinkType::NULL, &[0, 0, 0, family, V6]), ip);
            assert_eq!(start_of(LinkType::LOOP, &[0, 0, 0, family, V6]), ip);
        }
        assert_eq!(start_of(LinkType::LOOP, &[0, 0, 0, 2, V4]), ip);
        assert_eq!(start_of(LinkType::LOOP, &[2, 0, 0, 0, V4]), Start::Other);
        assert_eq!(start_of(LinkType::NULL, &[2, 0, 0, 0, V6]), Start::Other);
        assert_eq!(start_of(LinkType::NULL, &[7, 0, 0, 0, V4]), Start::Other);
        assert_eq!(start_of(LinkType::NULL, &[2, 0, 0, 0]), Start::Other);
        assert_eq!(start_of(LinkType::NULL, &[2, 0]), Start::Other);
    }

    #[test]
    fn cooked_frames_say_their_protocol() {
        let sll = |hardware: u16, protocol: u16, first: u8| {
            let mut frame = vec![0; 17];
            frame[2..4].copy_from_slice(&hardware.to_be_bytes());
            frame[14..16].copy_from_slice(&protocol.to_be_bytes());
            frame[16] = first;
            start_of(LinkType::LINUX_SLL, &frame)
        };
        assert_eq!(sll(1, 0x0800, V4), Start::Ip { header_length: 16 });
        assert_eq!(sll(1, 0x86DD, V6), Start::Ip { header_length: 16 });
        assert_eq!(sll(1, 0x0800, V6), Start::Other);
        assert_eq!(sll(1, 0x8100, V4), Start::Other, "a VLAN tag");
        assert_eq!(sll(824, 0x0800, V4), Start::Other, "netlink");
        let sll2 = |hardware: u16, protocol: u16, first: u8| {
            let mut frame = vec![0; 21];
            frame[0..2].copy_from_slice(&protocol.to_be_bytes());
            frame[8..10].copy_from_slice(&hardware.to_be_bytes());
            frame[20] = first;
            start_of(LinkType::LINUX_SLL2, &frame)
        };
        assert_eq!(sll2(1, 0x0800, V4), Start::Ip { header_length: 20 });
        assert_eq!(sll2(1, 0x86DD, V6), Start::Ip { header_length: 20 });
        assert_eq!(sll2(803, 0x86DD, V6), Start::Other, "radiotap");
        assert_eq!(start_of(LinkType::LINUX_SLL, &[0; 16]), Start::Other);
        assert_eq!(start_of(LinkType::LINUX_SLL2, &[0; 5]), Start::Other);
    }

    #[test]
    fn other_link_types_pass_untouched() {
        assert_eq!(start_of(LinkType::ETHERNET, &[]), Start::Ethernet);
        assert_eq!(start_of(LinkType(105), &[V4; 60]), Start::Other);
        assert_eq!(LinkType(105).to_string(), "link type 105");
        assert_eq!(LinkType::ETHERNET.to_string(), "link type 1 (ETHERNET)");
    }
}
