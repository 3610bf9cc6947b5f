//! The headers of tunnels: VXLAN, Geneve, GRE, IP in IP.

use super::transport::Deferred;
use super::{Checksum, Ethernet, Ip, Ipv4, Udp, Vlan, link};
use crate::checksum;

/// A tunnel: the outer IP header, and all headers up to the inner packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The outer IP header.
    pub ip: Ip,
    /// The tunnel's own header, if any, behind the outer IP header.
    pub carrier: Carrier,
    /// The inner Ethernet header; `None` if the inner packet starts at IP. VXLAN always has one.
    pub link: Option<Ethernet>,
    /// The inner VLAN tags, if there is an inner Ethernet header.
    pub vlans: Vec<Vlan>,
}

/// The tunnel's own header, if any, behind the outer IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// VXLAN over UDP (RFC 7348).
    Vxlan(Vxlan),
    /// Geneve over UDP (RFC 8926).
    Geneve(Geneve),
    /// GRE (RFC 2784 and 2890).
    Gre(Gre),
    /// No header: IPIP, SIT (6in4), 4in6 or 6in6, depending on the two IP headers.
    Ip,
}

/// A VXLAN header with its UDP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// The outer UDP header.
    pub udp: Udp,
    /// The flags byte: 0x08 (I) for a valid VNI.
    pub flags: u8,
    /// The 24 reserved bits after the flags.
    pub reserved: u32,
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
    /// The reserved byte at the end of the VXLAN header.
    pub last_reserved: u8,
}

impl Default for Vxlan {
    fn default() -> Self {
        let udp = Udp {
            source_port: 50_000,
            destination_port: 4789,
            length: None,
            checksum: Checksum::Zero,
        };
        Vxlan { udp, flags: 0x08, reserved: 0, vni: 1, last_reserved: 0 }
    }
}

/// A Geneve header with its UDP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geneve {
    /// The outer UDP header.
    pub udp: Udp,
    /// Version, 2 bits.
    pub version: u8,
    /// Length of the options in words of 4 bytes, 6 bits; the correct one if `None`.
    pub option_words: Option<u8>,
    /// The second byte of the Geneve header: O (0x80, control), C (0x40, critical options), 6
    /// reserved bits.
    pub flags: u8,
    /// Protocol type; derived from the inner packet if `None`.
    pub protocol: Option<u16>,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// The reserved byte at the end of the fixed Geneve header.
    pub last_reserved: u8,
    /// Options as raw bytes, padded with zeros to a multiple of 4 and at most 252.
    pub options: Vec<u8>,
}

impl Default for Geneve {
    fn default() -> Self {
        let udp = Udp {
            source_port: 50_000,
            destination_port: 6081,
            length: None,
            checksum: Checksum::Zero,
        };
        Geneve {
            udp,
            version: 0,
            option_words: None,
            flags: 0,
            protocol: None,
            vni: 1,
            last_reserved: 0,
            options: Vec::new(),
        }
    }
}

/// A GRE header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gre {
    /// How the checksum (C) is written, if there is one. Both partial values mean a correct one.
    pub checksum: Option<Checksum>,
    /// The 16 reserved bits after the checksum, which exist only if there is a checksum.
    pub reserved1: u16,
    /// The key; `None` clears the flag K.
    pub key: Option<u32>,
    /// The sequence number; `None` clears the flag S.
    pub sequence: Option<u32>,
    /// Other bits of the first word of the header, including the version.
    pub flags: u16,
    /// Protocol type; derived from the inner packet if `None`.
    pub protocol: Option<u16>,
}

impl Tunnel {
    /// Returns the outer IPv4 header.
    ///
    /// # Panics
    /// If it is IPv6.
    pub fn ipv4_mut(&mut self) -> &mut Ipv4 {
        match &mut self.ip {
            Ip::V4(ip) => ip,
            Ip::V6(_) => panic!("the outer header is not IPv4"),
        }
    }

    /// Returns the outer UDP header of VXLAN or Geneve.
    ///
    /// # Panics
    /// If there is none.
    pub fn udp_mut(&mut self) -> &mut Udp {
        match &mut self.carrier {
            Carrier::Vxlan(Vxlan { udp, .. }) | Carrier::Geneve(Geneve { udp, .. }) => udp,
            other => panic!("no outer UDP header: {other:?}"),
        }
    }

    /// Appends the headers around a packet with this IP header. Returns the offsets of the outer IP
    /// header and of the tunnel's header.
    pub(super) fn write(&self, out: &mut Vec<u8>, inner: &Ip) -> (usize, usize) {
        let network = out.len();
        self.ip.write(out, self.carrier.number(inner));
        let carrier = out.len();
        let ethernet = match &self.carrier {
            // VXLAN carries only Ethernet frames.
            Carrier::Vxlan(_) => Some(self.link.clone().unwrap_or_default()),
            Carrier::Geneve(_) | Carrier::Gre(_) => self.link.clone(),
            Carrier::Ip => None,
        };
        self.carrier.write(out, if ethernet.is_some() { 0x6558 } else { inner.ethertype() });
        if let Some(ethernet) = ethernet {
            link::write_ethernet(out, &ethernet, &self.vlans, inner.ethertype());
        }
        (network, carrier)
    }
}

impl Carrier {
    /// Returns the IP protocol number of the tunnel's header, or of `inner` if there is none.
    pub(super) fn number(&self, inner: &Ip) -> u8 {
        match self {
            Carrier::Vxlan(_) | Carrier::Geneve(_) => 17,
            Carrier::Gre(_) => 47,
            Carrier::Ip => inner.number(),
        }
    }

    /// Appends the header for an inner packet of `ethertype` (0x6558 for Ethernet).
    pub(super) fn write(&self, out: &mut Vec<u8>, ethertype: u16) {
        match self {
            Carrier::Vxlan(vxlan) => {
                vxlan.udp.write(out);
                out.extend(
                    (u32::from(vxlan.flags) << 24 | vxlan.reserved & 0xff_ffff).to_be_bytes(),
                );
                out.extend((vxlan.vni << 8 | u32::from(vxlan.last_reserved)).to_be_bytes());
            }
            Carrier::Geneve(geneve) => {
                let words = geneve.options.len().div_ceil(4);
                assert!(words < 64, "Geneve options of {} bytes", geneve.options.len());
                geneve.udp.write(out);
                out.extend([
                    geneve.version << 6 | geneve.option_words.unwrap_or(words as u8) & 0x3f,
                    geneve.flags,
                ]);
                out.extend(geneve.protocol.unwrap_or(ethertype).to_be_bytes());
                out.extend((geneve.vni << 8 | u32::from(geneve.last_reserved)).to_be_bytes());
                out.extend(&geneve.options);
                out.resize(out.len() + words * 4 - geneve.options.len(), 0);
            }
            Carrier::Gre(gre) => {
                let present = u16::from(gre.checksum.is_some()) << 15
                    | u16::from(gre.key.is_some()) << 13
                    | u16::from(gre.sequence.is_some()) << 12;
                out.extend((present | gre.flags).to_be_bytes());
                out.extend(gre.protocol.unwrap_or(ethertype).to_be_bytes());
                if gre.checksum.is_some() {
                    out.extend([0, 0]);
                    out.extend(gre.reserved1.to_be_bytes());
                }
                for word in [gre.key, gre.sequence].into_iter().flatten() {
                    out.extend(word.to_be_bytes());
                }
            }
            Carrier::Ip => {}
        }
    }

    /// Writes the length and the checksum into the tunnel's own header at `start`, whose packet
    /// ends at the end of `out`. Returns a partial checksum that must be written last, after the
    /// outer checksums.
    pub(super) fn finish(&self, out: &mut [u8], start: usize, ip: &Ip) -> Option<Deferred> {
        match self {
            Carrier::Vxlan(Vxlan { udp, .. }) | Carrier::Geneve(Geneve { udp, .. }) => {
                return udp.finish(out, start, ip);
            }
            Carrier::Gre(Gre { checksum: Some(mode), .. }) => {
                let right = !checksum::sum(&out[start..]);
                let field = mode.field(right, right, right);
                out[start + 4..start + 6].copy_from_slice(&field.to_be_bytes());
            }
            Carrier::Gre(_) | Carrier::Ip => {}
        }
        None
    }
}
