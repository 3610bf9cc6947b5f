//! The tunnels that the engine enters. Everything that depends on the kind of a tunnel is here: its
//! header, its name, what identifies it, and its checksum.

use core::ops::Range;

use super::{IpVersion, be16, be32, byte, ethernet, protocol, udp};

/// VXLAN (RFC 7348).
pub mod vxlan {
    /// Length of a VXLAN header, in bytes.
    pub const HEADER_LENGTH: usize = 8;
    /// The UDP destination port of VXLAN.
    pub const PORT: u16 = 4789;
    /// The first word of a VXLAN header: I flag set, all else zero.
    pub const FLAGS: u32 = 0x0800_0000;
}

/// Geneve (RFC 8926).
pub mod geneve {
    /// Length of a Geneve header without options, in bytes.
    pub const HEADER_LENGTH: usize = 8;
    /// The UDP destination port of Geneve.
    pub const PORT: u16 = 6081;
}

/// GRE (RFC 2784, RFC 2890).
pub mod gre {
    /// Length of a GRE header without checksum and key, in bytes.
    pub const HEADER_LENGTH: usize = 4;
    /// Bit of the first word of a GRE header: a checksum is present.
    pub const CHECKSUM_PRESENT: u16 = 0x8000;
    /// Bit of the first word of a GRE header: a key is present.
    pub const KEY_PRESENT: u16 = 0x2000;
    /// Offset of the checksum in a GRE header, if it is present.
    pub const CHECKSUM: usize = 4;
}

/// The kinds of tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tunnel {
    /// VXLAN over UDP: the inner packet is an Ethernet frame.
    Vxlan,
    /// Geneve over UDP: the inner packet is an Ethernet frame or IP.
    Geneve,
    /// GRE: the inner packet is IP or an Ethernet frame.
    Gre,
    /// IP directly in IP: IPIP, SIT, IPv4 or IPv6 in IPv6.
    Ip,
}

impl Tunnel {
    /// All kinds of tunnels.
    pub const ALL: [Tunnel; 4] = [Tunnel::Vxlan, Tunnel::Geneve, Tunnel::Gre, Tunnel::Ip];

    /// The kinds that have an outer UDP header.
    pub const OVER_UDP: [Tunnel; 2] = [Tunnel::Vxlan, Tunnel::Geneve];

    /// Returns the short name that JSON and field names use.
    pub const fn name(self) -> &'static str {
        match self {
            Tunnel::Vxlan => "vxlan",
            Tunnel::Geneve => "geneve",
            Tunnel::Gre => "gre",
            Tunnel::Ip => "ip",
        }
    }

    /// Returns the name of the tunnel protocol in its usual spelling, such as `VXLAN`, for
    /// messages.
    pub const fn title(self) -> &'static str {
        match self {
            Tunnel::Vxlan => "VXLAN",
            Tunnel::Geneve => "Geneve",
            Tunnel::Gre => "GRE",
            Tunnel::Ip => "IP in IP",
        }
    }

    /// Returns whether the tunnel has an outer UDP header.
    #[inline]
    pub const fn is_udp(self) -> bool {
        matches!(self, Tunnel::Vxlan | Tunnel::Geneve)
    }

    /// Returns the tunnel whose datagrams have this destination port.
    #[inline(always)]
    pub(crate) const fn with_port(port: u16) -> Option<Tunnel> {
        match port {
            vxlan::PORT => Some(Tunnel::Vxlan),
            geneve::PORT => Some(Tunnel::Geneve),
            _ => None,
        }
    }

    /// Returns the tunnel that has this protocol number in the outer IP header.
    pub(super) const fn with_protocol(number: u8) -> Option<Tunnel> {
        match number {
            protocol::GRE => Some(Tunnel::Gre),
            protocol::IPIP | protocol::IPV6 => Some(Tunnel::Ip),
            _ => None,
        }
    }

    /// Returns the length of the header between the outer IP header and the tunnel header, in
    /// bytes.
    pub(super) const fn length_before(self) -> usize {
        if self.is_udp() { udp::HEADER_LENGTH } else { 0 }
    }

    /// Returns the length of the shortest tunnel header, in bytes.
    pub(super) const fn min_length(self) -> usize {
        match self {
            Tunnel::Vxlan => vxlan::HEADER_LENGTH,
            Tunnel::Geneve => geneve::HEADER_LENGTH,
            Tunnel::Gre => gre::HEADER_LENGTH,
            Tunnel::Ip => 0,
        }
    }

    /// Returns the length of this tunnel header, in bytes.
    pub(super) fn length(self, header: &[u8]) -> usize {
        let flags = be16(header, 0);
        self.min_length()
            + 4 * match self {
                Tunnel::Vxlan | Tunnel::Ip => 0,
                Tunnel::Geneve => usize::from(byte(header, 0) & 0x3f),
                Tunnel::Gre => {
                    usize::from(flags & gre::CHECKSUM_PRESENT != 0)
                        + usize::from(flags & gre::KEY_PRESENT != 0)
                }
            }
    }

    /// Returns whether this tunnel header has only flags and fields that the engine can reproduce
    /// in each packet that it creates by merging or segmenting.
    pub(super) fn is_writable(self, header: &[u8]) -> bool {
        match self {
            // Other bits (GPE, group policy, remote checksum offload) change the meaning of what
            // follows.
            Tunnel::Vxlan => be32(header, 0) == vxlan::FLAGS && byte(header, 7) == 0,
            // Version 0, no control packet, no critical option, reserved bits zero (RFC 8926, 3.4).
            Tunnel::Geneve => {
                byte(header, 0) >> 6 == 0 && byte(header, 1) == 0 && byte(header, 7) == 0
            }
            // Only the K and C bits, as in `gre_gro_receive`: a sequence number differs in each
            // packet, and version 1 is PPTP.
            Tunnel::Gre => {
                let flags = be16(header, 0);
                flags & !(gre::CHECKSUM_PRESENT | gre::KEY_PRESENT) == 0
                    && (flags & gre::CHECKSUM_PRESENT == 0 || be16(header, gre::CHECKSUM + 2) == 0)
            }
            Tunnel::Ip => true,
        }
    }

    /// Returns whether this header of a datagram is likely to be a tunnel header: it has the flag
    /// of a valid identifier, or a type of inner packet that the engine knows.
    pub(super) fn is_likely(self, header: &[u8]) -> bool {
        match self {
            Tunnel::Vxlan => be32(header, 0) & vxlan::FLAGS != 0,
            _ => matches!(
                self.ethertype(header, 0),
                ethernet::BRIDGED | ethernet::IPV4 | ethernet::IPV6
            ),
        }
    }

    /// Returns the ethertype of the inner packet; [`BRIDGED`](ethernet::BRIDGED) for an Ethernet
    /// frame. `number` is the protocol number in the outer IP header.
    pub(super) fn ethertype(self, header: &[u8], number: u8) -> u16 {
        match self {
            Tunnel::Vxlan => ethernet::BRIDGED,
            Tunnel::Geneve | Tunnel::Gre => be16(header, 2),
            Tunnel::Ip if number == protocol::IPIP => ethernet::IPV4,
            Tunnel::Ip => ethernet::IPV6,
        }
    }

    /// Returns the options of this tunnel header; empty if there are none.
    pub(super) fn options(self, header: &[u8]) -> &[u8] {
        match self {
            Tunnel::Geneve => header.get(geneve::HEADER_LENGTH..).unwrap_or(&[]),
            _ => &[],
        }
    }
}

/// The outer headers of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Outer {
    /// Offset of the outer IP header from the start of the frame, in bytes.
    pub network: u16,
    /// Version of the outer IP header.
    pub version: IpVersion,
    /// Offset of the header after the outer IP header and its extension headers: UDP, the tunnel
    /// header, or the inner IP header.
    pub transport: u16,
    /// Kind of tunnel.
    pub tunnel: Tunnel,
}

impl Outer {
    /// Returns the offset of the tunnel's own checksum from the start of the frame, in bytes;
    /// `None` if the packet has none. A [UDP](Tunnel::is_udp) checksum covers a pseudo-header,
    /// others do not.
    #[inline]
    pub fn checksum(&self, header: &[u8]) -> Option<usize> {
        let transport = usize::from(self.transport);
        match self.tunnel {
            Tunnel::Vxlan | Tunnel::Geneve => {
                Some(transport + udp::CHECKSUM).filter(|&place| be16(header, place) != 0)
            }
            Tunnel::Gre => Some(transport + gre::CHECKSUM)
                .filter(|_| be16(header, transport) & gre::CHECKSUM_PRESENT != 0),
            Tunnel::Ip => None,
        }
    }

    /// Returns a number that tells tunnels between the same two addresses apart: the identifier in
    /// the tunnel header, and what kind of packets it carries.
    #[inline]
    pub fn identifier(&self, header: &[u8]) -> u64 {
        let transport = usize::from(self.transport);
        match self.tunnel {
            Tunnel::Vxlan | Tunnel::Geneve => {
                u64::from(be32(header, transport + udp::HEADER_LENGTH + 4)) << 16
                    | u64::from(be16(header, transport + udp::DESTINATION_PORT))
            }
            // The protocol and the key, if there is one. Flags are left out, so that packets with
            // and without a checksum are of the same flow.
            Tunnel::Gre => {
                let flags = be16(header, transport);
                let key =
                    if flags & gre::CHECKSUM_PRESENT != 0 { transport + 8 } else { transport + 4 };
                let key =
                    if flags & gre::KEY_PRESENT != 0 { u64::from(be32(header, key)) } else { 0 };
                key << 16 | u64::from(be16(header, transport + 2))
            }
            // The inner IP version.
            Tunnel::Ip => u64::from(byte(header, transport) >> 4),
        }
    }

    /// Returns the bytes between the outer and the inner IP header that differ in packets that
    /// merge: the length and the checksum.
    pub(crate) fn varying(&self, header: &[u8]) -> Range<usize> {
        let transport = usize::from(self.transport);
        if self.tunnel.is_udp() {
            return transport + udp::LENGTH..transport + udp::HEADER_LENGTH;
        }
        self.checksum(header).map_or(transport..transport, |place| place..place + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_listed_where_it_belongs() {
        assert!(Tunnel::ALL.into_iter().filter(|tunnel| tunnel.is_udp()).eq(Tunnel::OVER_UDP));
        let ports = (0..=u16::MAX).filter_map(Tunnel::with_port);
        let protocols = (0..=u8::MAX).filter_map(Tunnel::with_protocol);
        for tunnel in Tunnel::ALL {
            assert_eq!(ports.clone().any(|found| found == tunnel), tunnel.is_udp());
            assert_eq!(protocols.clone().any(|found| found == tunnel), !tunnel.is_udp());
        }
    }
}
