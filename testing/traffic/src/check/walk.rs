//! Parses a frame from its first byte to the last known header.

use core::ops::Range;

use etherparse::{
    Ethernet2HeaderSlice, Ipv4HeaderSlice, Ipv6FragmentHeaderSlice, Ipv6HeaderSlice,
    Ipv6RawExtHeaderSlice,
};
use etherparse::{SingleVlanHeaderSlice, TcpHeaderSlice, UdpHeaderSlice};

use super::{Field, Kind, Layer, Problem};

/// The layers of a frame, and all errors in its structure.
pub(super) struct Walk {
    pub(super) layers: Vec<Layer>,
    pub(super) problems: Vec<Problem>,
    pub(super) fragment: bool,
    /// Offset of the end of the outermost packet by its length field; the end of the frame if there
    /// is no such field.
    pub(super) end: usize,
}

impl Walk {
    /// Returns the byte range of the last layer's contents in the frame.
    pub(super) fn payload(&self) -> Range<usize> {
        self.layers.last().map_or(0..0, |layer| layer.offset + layer.header..layer.end)
    }
}

/// Maximum number of layers after which no further header is parsed. It exceeds the depth in all
/// tests, and bounds the recursion.
const MAX_LAYERS: usize = 48;

pub(super) fn walk(bytes: &[u8], starts_at_ip: bool, big: bool) -> Walk {
    let walk = Walk { layers: Vec::new(), problems: Vec::new(), fragment: false, end: bytes.len() };
    let mut walker = Walker { bytes, big, walk, end: None };
    let _ = if starts_at_ip {
        walker.any_ip(Kind::Ipv4, 0, bytes.len())
    } else {
        walker.link(0, bytes.len())
    };
    walker.walk.end = walker.end.unwrap_or(bytes.len());
    walker.walk
}

struct Walker<'a> {
    bytes: &'a [u8],
    big: bool,
    walk: Walk,
    end: Option<usize>,
}

/// The error that stops parsing. If a field is wrong, it is in the list of problems.
struct StopParsing;

impl Walker<'_> {
    fn layer(&mut self, kind: Kind, offset: usize, header: usize, end: usize) {
        self.walk.layers.push(Layer { kind, offset, header, end });
    }

    fn problem(
        &mut self,
        layer: Kind,
        offset: usize,
        field: Field,
        expected: usize,
        actual: usize,
    ) {
        self.walk.problems.push(Problem {
            layer,
            offset,
            field,
            expected: expected as u64,
            actual: actual as u64,
        });
    }

    fn need(
        &mut self,
        kind: Kind,
        offset: usize,
        bytes: usize,
        limit: usize,
    ) -> Result<(), StopParsing> {
        if offset + bytes > limit {
            self.problem(kind, offset, Field::Header, bytes, limit - offset);
            return Err(StopParsing);
        }
        Ok(())
    }

    fn be16(&self, offset: usize) -> u16 {
        u16::from_be_bytes([self.bytes[offset], self.bytes[offset + 1]])
    }

    /// Limits the end of a packet according to its length field to the bytes that are present.
    /// Records a problem if the end is beyond or before them.
    fn clamp(
        &mut self,
        kind: Kind,
        offset: usize,
        field: Field,
        end: usize,
        limit: usize,
    ) -> usize {
        if end > limit {
            self.problem(kind, offset, field, limit - offset, end - offset);
        } else if end < limit {
            self.problem(kind, offset, Field::Trailing, 0, limit - end);
        }
        let end = end.min(limit);
        self.end.get_or_insert(end);
        end
    }

    fn link(&mut self, offset: usize, limit: usize) -> Result<(), StopParsing> {
        self.need(Kind::Ethernet, offset, 14, limit)?;
        let Ok(header) = Ethernet2HeaderSlice::from_slice(&self.bytes[offset..limit]) else {
            return Err(StopParsing);
        };
        self.layer(Kind::Ethernet, offset, 14, limit);
        let mut ethertype = header.ether_type().0;
        let mut offset = offset + 14;
        while matches!(ethertype, 0x8100 | 0x88a8 | 0x9100) {
            self.need(Kind::Vlan, offset, 4, limit)?;
            let Ok(tag) = SingleVlanHeaderSlice::from_slice(&self.bytes[offset..limit]) else {
                return Err(StopParsing);
            };
            self.layer(Kind::Vlan, offset, 4, limit);
            ethertype = tag.ether_type().0;
            offset += 4;
        }
        match ethertype {
            0x0800 => self.ipv4(offset, limit),
            0x86dd => self.ipv6(offset, limit),
            0x8864 => self.pppoe(offset, limit),
            0x8847 | 0x8848 => self.mpls(offset, limit),
            _ => Ok(()),
        }
    }

    fn pppoe(&mut self, offset: usize, limit: usize) -> Result<(), StopParsing> {
        self.need(Kind::Pppoe, offset, 8, limit)?;
        if self.be16(offset) != 0x1100 {
            return Ok(());
        }
        let length = usize::from(self.be16(offset + 4));
        let end = self.clamp(Kind::Pppoe, offset, Field::PppoeLength, offset + 6 + length, limit);
        if length < 2 {
            self.problem(Kind::Pppoe, offset, Field::PppoeLength, 2, length);
            return Err(StopParsing);
        }
        self.layer(Kind::Pppoe, offset, 8, end);
        match self.be16(offset + 6) {
            0x0021 => self.ipv4(offset + 8, end),
            0x0057 => self.ipv6(offset + 8, end),
            _ => Ok(()),
        }
    }

    fn mpls(&mut self, mut offset: usize, limit: usize) -> Result<(), StopParsing> {
        loop {
            self.need(Kind::Mpls, offset, 4, limit)?;
            self.layer(Kind::Mpls, offset, 4, limit);
            offset += 4;
            if self.bytes[offset - 2] & 1 == 1 {
                return self.any_ip(Kind::Mpls, offset, limit);
            }
        }
    }

    /// Parses an IP header whose version is known only from its first byte.
    fn any_ip(&mut self, kind: Kind, offset: usize, limit: usize) -> Result<(), StopParsing> {
        self.need(kind, offset, 1, limit)?;
        match self.bytes[offset] >> 4 {
            4 => self.ipv4(offset, limit),
            6 => self.ipv6(offset, limit),
            _ if kind == Kind::Mpls => Ok(()),
            version => {
                self.problem(kind, offset, Field::Version, 4, usize::from(version));
                Err(StopParsing)
            }
        }
    }

    fn ipv4(&mut self, offset: usize, limit: usize) -> Result<(), StopParsing> {
        self.need(Kind::Ipv4, offset, 20, limit)?;
        let first = self.bytes[offset];
        if first >> 4 != 4 {
            self.problem(Kind::Ipv4, offset, Field::Version, 4, usize::from(first >> 4));
            return Err(StopParsing);
        }
        let length = usize::from(first & 0xf) * 4;
        self.need(Kind::Ipv4, offset, length, limit)?;
        let Ok(header) = Ipv4HeaderSlice::from_slice(&self.bytes[offset..limit]) else {
            self.problem(Kind::Ipv4, offset, Field::Header, 20, length);
            return Err(StopParsing);
        };
        let total = match usize::from(header.total_len()) {
            0 if self.big && limit - offset > 0xffff => limit - offset,
            total => total,
        };
        if total < length {
            self.problem(Kind::Ipv4, offset, Field::TotalLength, limit - offset, total);
            return Err(StopParsing);
        }
        let (number, fragment) = (header.protocol().0, header.is_fragmenting_payload());
        let end = self.clamp(Kind::Ipv4, offset, Field::TotalLength, offset + total, limit);
        self.layer(Kind::Ipv4, offset, length, end);
        if fragment {
            self.walk.fragment = true;
            return Ok(());
        }
        self.transport(number, offset + length, end, Kind::Icmp)
    }

    fn ipv6(&mut self, offset: usize, limit: usize) -> Result<(), StopParsing> {
        self.need(Kind::Ipv6, offset, 40, limit)?;
        let Ok(header) = Ipv6HeaderSlice::from_slice(&self.bytes[offset..limit]) else {
            self.problem(
                Kind::Ipv6,
                offset,
                Field::Version,
                6,
                usize::from(self.bytes[offset] >> 4),
            );
            return Err(StopParsing);
        };
        let mut number = header.next_header().0;
        let whole = match usize::from(header.payload_length()) {
            0 => self.ipv6_without_length(number, offset, limit),
            length => 40 + length,
        };
        let end = self.clamp(Kind::Ipv6, offset, Field::PayloadLength, offset + whole, limit);
        self.layer(Kind::Ipv6, offset, 40, end);
        let mut next = offset + 40;
        loop {
            match number {
                0 | 43 | 60 => {
                    let kind = Kind::Extension(number);
                    self.need(kind, next, 8, end)?;
                    self.need(kind, next, 8 + usize::from(self.bytes[next + 1]) * 8, end)?;
                    let Ok(extension) = Ipv6RawExtHeaderSlice::from_slice(&self.bytes[next..end])
                    else {
                        return Err(StopParsing);
                    };
                    self.layer(kind, next, extension.slice().len(), end);
                    number = extension.next_header().0;
                    next += extension.slice().len();
                }
                44 => {
                    self.need(Kind::Extension(44), next, 8, end)?;
                    let Ok(extension) = Ipv6FragmentHeaderSlice::from_slice(&self.bytes[next..end])
                    else {
                        return Err(StopParsing);
                    };
                    let fragment = extension.is_fragmenting_payload();
                    number = extension.next_header().0;
                    self.layer(Kind::Extension(44), next, 8, end);
                    next += 8;
                    if fragment {
                        self.walk.fragment = true;
                        return Ok(());
                    }
                }
                _ => return self.transport(number, next, end, Kind::Icmpv6),
            }
        }
    }

    /// Returns the length of an IPv6 packet whose payload length is 0: a jumbogram, BIG TCP, or
    /// only the header.
    fn ipv6_without_length(&self, number: u8, offset: usize, limit: usize) -> usize {
        let option = offset + 40;
        if number == 0 && option + 8 <= limit && self.be16(option + 2) == 0xc204 {
            let length = u32::from_be_bytes([
                self.bytes[option + 4],
                self.bytes[option + 5],
                self.bytes[option + 6],
                self.bytes[option + 7],
            ]);
            return 40 + length as usize;
        }
        if self.big && limit - offset - 40 > 0xffff { limit - offset } else { 40 }
    }

    fn transport(
        &mut self,
        number: u8,
        offset: usize,
        end: usize,
        icmp: Kind,
    ) -> Result<(), StopParsing> {
        if self.walk.layers.len() > MAX_LAYERS {
            return Ok(());
        }
        match number {
            6 => {
                self.need(Kind::Tcp, offset, 20, end)?;
                let length = usize::from(self.bytes[offset + 12] >> 4) * 4;
                self.need(Kind::Tcp, offset, length.max(20), end)?;
                if TcpHeaderSlice::from_slice(&self.bytes[offset..end]).is_err() {
                    self.problem(Kind::Tcp, offset, Field::Header, 20, length);
                    return Err(StopParsing);
                }
                self.layer(Kind::Tcp, offset, length, end);
                Ok(())
            }
            17 => self.udp(offset, end),
            33 => {
                self.need(Kind::Dccp, offset, 12, end)?;
                let length = usize::from(self.bytes[offset + 4]) * 4;
                let least = if self.bytes[offset + 8] & 1 == 1 { 16 } else { 12 };
                if length < least {
                    self.problem(Kind::Dccp, offset, Field::Header, least, length);
                    return Err(StopParsing);
                }
                self.need(Kind::Dccp, offset, length, end)?;
                self.layer(Kind::Dccp, offset, length, end);
                Ok(())
            }
            132 => {
                self.need(Kind::Sctp, offset, 12, end)?;
                self.layer(Kind::Sctp, offset, 12, end);
                Ok(())
            }
            1 | 58 if (number == 1) == (icmp == Kind::Icmp) => {
                self.need(icmp, offset, 8, end)?;
                self.layer(icmp, offset, 8, end);
                Ok(())
            }
            47 => self.gre(offset, end),
            4 => self.ipv4(offset, end),
            41 => self.ipv6(offset, end),
            _ => Ok(()),
        }
    }

    fn udp(&mut self, offset: usize, end: usize) -> Result<(), StopParsing> {
        self.need(Kind::Udp, offset, 8, end)?;
        let Ok(header) = UdpHeaderSlice::from_slice(&self.bytes[offset..end]) else {
            return Err(StopParsing);
        };
        let length = usize::from(header.length());
        let port = header.destination_port();
        if offset + length != end && !(self.big && length == 0 && end - offset > 0xffff) {
            self.problem(Kind::Udp, offset, Field::UdpLength, end - offset, length);
        }
        self.layer(Kind::Udp, offset, 8, end);
        let inner = offset + 8;
        match port {
            4789 if inner + 8 <= end => {
                // Other bits (GPE, group policy) change the meaning of the following bytes.
                if self.bytes[inner..inner + 4] != [8, 0, 0, 0] || self.bytes[inner + 7] != 0 {
                    return Ok(());
                }
                self.layer(Kind::Vxlan, inner, 8, end);
                self.link(inner + 8, end)
            }
            6081 if inner + 8 <= end => {
                // Another version, or a control packet.
                if self.bytes[inner] >> 6 != 0 || self.bytes[inner + 1] & 0x80 != 0 {
                    return Ok(());
                }
                let length = 8 + usize::from(self.bytes[inner] & 0x3f) * 4;
                self.need(Kind::Geneve, inner, length, end)?;
                self.layer(Kind::Geneve, inner, length, end);
                self.carried(self.be16(inner + 2), inner + length, end)
            }
            _ => Ok(()),
        }
    }

    fn gre(&mut self, offset: usize, end: usize) -> Result<(), StopParsing> {
        self.need(Kind::Gre, offset, 4, end)?;
        let flags = self.be16(offset);
        // Another version, or source routes.
        if flags & !0xb000 != 0 {
            return Ok(());
        }
        let length = 4 + 4 * (flags & 0xb000).count_ones() as usize;
        self.need(Kind::Gre, offset, length, end)?;
        self.layer(Kind::Gre, offset, length, end);
        self.carried(self.be16(offset + 2), offset + length, end)
    }

    fn carried(&mut self, ethertype: u16, offset: usize, end: usize) -> Result<(), StopParsing> {
        match ethertype {
            0x6558 => self.link(offset, end),
            0x0800 => self.ipv4(offset, end),
            0x86dd => self.ipv6(offset, end),
            _ => Ok(()),
        }
    }
}
