//! Linux's GRO hint: a Geneve option with which a sender tells the offsets of the headers in a
//! second tunnel (`struct geneve_opt_gro_hint`, since Linux 7.0).
//!
//! Linux needs it to parse a tunnel in a tunnel. This engine finds the second tunnel by its port,
//! and compares the hint with the result: a receiver that trusts a wrong hint would take other
//! bytes for headers.

use super::{IpVersion, Layout, Outer, ethernet, udp};

/// The fields of a GRO hint. Offsets count from the end of the Geneve header and its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroHint {
    /// Linux's code for the type of packet inside the inner one of the two tunnels: 0 for Ethernet,
    /// 1 for IPv6, 2 for IPv4.
    inner_protocol: u8,
    /// Version of the second tunnel's IP header.
    version: IpVersion,
    /// Offset of the second tunnel's IP header, in bytes.
    network: usize,
    /// Offset of the second tunnel's UDP header, in bytes.
    transport: usize,
    /// Length of all headers up to the packet in the second tunnel, in bytes.
    length: usize,
}

impl GroHint {
    /// Class of the Geneve option.
    const CLASS: u16 = 0x0100;
    /// Type of the Geneve option.
    const TYPE: u8 = 1;
    /// Length of the option's data in words of 4 bytes.
    const WORDS: u8 = 1;
    /// The hint's number for a second tunnel that carries Ethernet frames.
    const ETHERNET: u8 = 0;
    /// The hint's number for a second tunnel that carries IPv6 packets.
    const IPV6: u8 = 1;
    /// The hint's number for a second tunnel that carries IPv4 packets.
    const IPV4: u8 = 2;

    /// Finds the first hint among the options of a Geneve header.
    pub(super) fn find(options: &[u8]) -> Option<GroHint> {
        let mut rest = options;
        loop {
            let (&[class_high, class_low, kind, length], behind) = rest.split_first_chunk()?;
            let words = length & 0x1f;
            let (data, next) = behind.split_at_checked(usize::from(words) * 4)?;
            if (u16::from_be_bytes([class_high, class_low]), kind, words)
                == (Self::CLASS, Self::TYPE, Self::WORDS)
            {
                let &[flags, network, transport, length] = data.first_chunk()?;
                return Some(GroHint {
                    // Bit fields of a little-endian host; big-endian hosts order them differently.
                    inner_protocol: flags & 0x03,
                    version: if flags & 0x04 == 0 { IpVersion::V4 } else { IpVersion::V6 },
                    network: network.into(),
                    transport: transport.into(),
                    length: length.into(),
                });
            }
            rest = next;
        }
    }

    /// Returns whether this hint agrees with the layout that was found by parsing the packet after
    /// the Geneve header. That packet starts at offset `start`.
    pub(super) fn agrees(self, header: &[u8], layout: &Layout, start: usize) -> bool {
        let Some(nested) = layout.nested else { return false };
        let (inner, inner_protocol) = inner_packet(header, nested);
        let found = GroHint {
            inner_protocol,
            version: nested.version,
            network: usize::from(nested.network).wrapping_sub(start),
            transport: usize::from(nested.transport).wrapping_sub(start),
            length: inner.wrapping_sub(start),
        };
        self == found
    }
}

/// Returns the offset in the frame at which the packet inside a tunnel starts, and the hint's code
/// for its type.
fn inner_packet(header: &[u8], outer: Outer) -> (usize, u8) {
    let start = usize::from(outer.transport) + udp::HEADER_LENGTH;
    let tunnel = header.get(start..).unwrap_or(&[]);
    let protocol = match outer.tunnel.ethertype(tunnel, 0) {
        ethernet::IPV4 => GroHint::IPV4,
        ethernet::IPV6 => GroHint::IPV6,
        _ => GroHint::ETHERNET,
    };
    (start + outer.tunnel.length(tunnel), protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HINT: [u8; 8] = [0x01, 0x00, 1, 1, 0x04, 14, 54, 70];
    const MEANING: GroHint = GroHint {
        inner_protocol: 0,
        version: IpVersion::V6,
        network: 14,
        transport: 54,
        length: 70,
    };

    #[test]
    fn a_hint_is_found_behind_other_options() {
        assert_eq!(GroHint::find(&HINT), Some(MEANING));
        let empty = [0x01, 0x00, 2, 0];
        let other = [0xff, 0xff, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(GroHint::find(&[&empty[..], &other, &HINT].concat()), Some(MEANING));
    }

    #[test]
    fn reserved_bits_of_the_length_do_not_count() {
        let mut hint = HINT;
        hint[3] |= 0xe0;
        assert_eq!(GroHint::find(&hint), Some(MEANING));
    }

    #[test]
    fn what_is_no_hint_is_none() {
        for (place, value) in [(0, 2), (1, 1), (2, 2), (2, 0x81), (3, 0), (3, 2)] {
            let mut other = HINT;
            other[place] = value;
            assert_eq!(GroHint::find(&other), None, "{other:?}");
        }
        assert_eq!(GroHint::find(&HINT[..7]), None);
        let beyond = [[0xff, 0xff, 1, 3].as_slice(), &HINT].concat();
        assert_eq!(GroHint::find(&beyond), None, "an option that reaches beyond the others");
        assert_eq!(GroHint::find(&[]), None);
    }
}
