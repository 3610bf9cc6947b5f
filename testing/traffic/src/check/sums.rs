//! Checks all checksums of a frame, from the inside out.

use etherparse::{Ipv4HeaderSlice, TcpHeaderSlice, UdpHeaderSlice};

use super::walk::Walk;
use super::{Field, Kind, Layer, Problem};
use crate::{addresses, checksum};

/// The results for the checksums of a frame.
pub(super) struct ChecksumResults {
    pub(super) right: usize,
    pub(super) canonical: bool,
    pub(super) partial: Option<usize>,
}

/// The addresses that the pseudo-header of a layer's checksum contains.
enum Around {
    V4([u8; 4], [u8; 4]),
    V6([u8; 16], [u8; 16]),
}

impl Around {
    fn pseudo(&self, number: u8, length: u32) -> u16 {
        match self {
            Around::V4(source, destination) => {
                checksum::pseudo_v4(*source, *destination, number, length)
            }
            Around::V6(source, destination) => {
                checksum::pseudo_v6(*source, *destination, number, length)
            }
        }
    }
}

pub(super) fn verify(bytes: &[u8], walk: &Walk, partial: bool) -> Result<ChecksumResults, Problem> {
    let mut sums = ChecksumResults { right: 0, canonical: true, partial: None };
    // Outer checksums cover the packet with the partial checksum completed.
    let mut completed = bytes.to_vec();
    let innermost = walk
        .layers
        .iter()
        .rposition(|layer| matches!(layer.kind, Kind::Tcp | Kind::Udp | Kind::Dccp));
    for (index, layer) in walk.layers.iter().enumerate().rev() {
        let around = (0..index).rev().find_map(|at| addresses_of(bytes, &walk.layers[at..index]));
        let may_be_partial = partial && Some(index) == innermost && index + 1 == walk.layers.len();
        verify_layer(
            &mut completed,
            layer,
            around,
            index + 1 == walk.layers.len(),
            may_be_partial,
            &mut sums,
        )?;
    }
    Ok(sums)
}

/// Returns the addresses of sender and final destination of a packet whose IP header is the first
/// of these layers.
fn addresses_of(bytes: &[u8], layers: &[Layer]) -> Option<Around> {
    let ip = layers.first()?;
    let header = &bytes[ip.offset..ip.offset + ip.header];
    match ip.kind {
        Kind::Ipv4 => {
            let destination = header[16..20].try_into().ok()?;
            let end = addresses::final_v4(destination, &header[20..]).unwrap_or(destination);
            Some(Around::V4(header[12..16].try_into().ok()?, end))
        }
        Kind::Ipv6 => {
            let extension = |layer: &Layer| match layer.kind {
                Kind::Extension(number) => {
                    Some((number, &bytes[layer.offset..layer.offset + layer.header]))
                }
                _ => None,
            };
            let headers: Vec<_> = layers[1..].iter().map_while(extension).collect();
            let (source, destination) =
                (header[8..24].try_into().ok()?, header[24..40].try_into().ok()?);
            let (source, destination) =
                addresses::final_v6(source, destination, &headers).unwrap_or((source, destination));
            Some(Around::V6(source, destination))
        }
        _ => None,
    }
}

fn verify_layer(
    bytes: &mut [u8],
    layer: &Layer,
    around: Option<Around>,
    last: bool,
    may_be_partial: bool,
    sums: &mut ChecksumResults,
) -> Result<(), Problem> {
    let contents = &bytes[layer.offset..layer.end];
    let be16 = |offset: usize| u16::from_be_bytes([contents[offset], contents[offset + 1]]);
    let wrong = |field: Field, expected: u64, actual: u64| Problem {
        layer: layer.kind,
        offset: layer.offset,
        field,
        expected,
        actual,
    };
    let length = contents.len() as u32;
    let (field_offset, number, expected) = match (layer.kind, &around) {
        (Kind::Ipv4, _) => {
            let header = Ipv4HeaderSlice::from_slice(contents)
                .map_err(|_| wrong(Field::Header, 20, contents.len() as u64))?;
            // etherparse sums parsed fields, which do not include the reserved bit.
            let expected = match contents[6] & 0x80 {
                0 => header.to_header().calc_header_checksum(),
                _ => !checksum::add(checksum::sum(header.slice()), !be16(10)),
            };
            return match (expected, header.header_checksum()) {
                (expected, actual) if expected == actual => Ok(()),
                (0, 0xffff) => {
                    sums.canonical = false;
                    Ok(())
                }
                (expected, actual) => {
                    Err(wrong(Field::HeaderChecksum, expected.into(), actual.into()))
                }
            };
        }
        (Kind::Gre, _) if contents[0] & 0x80 != 0 => {
            (4, 47, !checksum::add(checksum::sum(contents), !be16(4)))
        }
        (Kind::Icmp, _) => (2, 1, !checksum::add(checksum::sum(contents), !be16(2))),
        (Kind::Tcp, Some(around)) => (16, 6, tcp(contents, layer.header, around)),
        (Kind::Udp, Some(around)) => {
            // RFC 768 makes the checksum optional over IPv4, and RFC 6935 in tunnels over IPv6. A
            // tunnel is recognized by its inner packet or, if its header has unknown bits, by its
            // port.
            let is_tunnel = !last || matches!(be16(2), 4_789 | 6_081);
            if be16(6) == 0 && (matches!(around, Around::V4(..)) || is_tunnel) {
                return Ok(());
            }
            (6, 17, udp(contents, around))
        }
        (Kind::Dccp, Some(around)) => {
            let covered = match usize::from(contents[5] & 0xf) {
                0 => contents.len(),
                coverage => layer.header + (coverage - 1) * 4,
            };
            if covered > contents.len() {
                return Err(wrong(Field::Coverage, contents.len() as u64, covered as u64));
            }
            (6, 33, plain(&contents[..covered], 6, around.pseudo(33, length)))
        }
        (Kind::Icmpv6, Some(around)) => (2, 58, plain(contents, 2, around.pseudo(58, length))),
        (Kind::Sctp, _) => {
            let mut zeroed = contents.to_vec();
            zeroed[8..12].fill(0);
            let actual = u32::from_le_bytes([contents[8], contents[9], contents[10], contents[11]]);
            let expected = checksum::crc32c(&zeroed);
            if expected != actual {
                return Err(wrong(Field::Checksum, expected.into(), actual.into()));
            }
            sums.right += 1;
            return Ok(());
        }
        _ => return Ok(()),
    };
    let actual = be16(field_offset);
    let counts = u8::from(!matches!(layer.kind, Kind::Icmp | Kind::Icmpv6));
    if actual == expected {
        sums.right += usize::from(counts);
        return Ok(());
    }
    if (expected, actual) == (0, 0xffff) {
        sums.canonical = false;
        sums.right += usize::from(counts);
        return Ok(());
    }
    if let (true, Some(around)) = (may_be_partial, around)
        && (actual == around.pseudo(number, length) || actual == around.pseudo(number, 0))
    {
        let at = layer.offset + field_offset;
        bytes[at..at + 2].copy_from_slice(&expected.to_be_bytes());
        sums.partial = Some(at);
        return Ok(());
    }
    Err(wrong(Field::Checksum, expected.into(), actual.into()))
}

/// Returns the correct checksum of `contents` on top of the pseudo-header's sum. The two bytes of
/// the checksum field, at `offset`, count as zero.
fn plain(contents: &[u8], offset: usize, pseudo: u16) -> u16 {
    let field = u16::from_be_bytes([contents[offset], contents[offset + 1]]);
    let mut zeroed = contents.to_vec();
    zeroed[offset..offset + 2].fill(0);
    let sum = checksum::add(pseudo, checksum::sum(&zeroed));
    debug_assert_eq!(checksum::add(sum, field), checksum::add(pseudo, checksum::sum(contents)));
    !sum
}

fn tcp(contents: &[u8], header: usize, around: &Around) -> u16 {
    let by_etherparse = TcpHeaderSlice::from_slice(contents).ok().and_then(|slice| {
        // etherparse sums parsed fields, which do not include the reserved bits.
        let reserved = contents[12] & 0x0e != 0;
        let payload = &contents[header..];
        match around {
            _ if reserved => None,
            Around::V4(source, destination) => {
                slice.calc_checksum_ipv4_raw(*source, *destination, payload).ok()
            }
            Around::V6(source, destination) => {
                slice.calc_checksum_ipv6_raw(*source, *destination, payload).ok()
            }
        }
    });
    // More than 65,535 bytes, or reserved bits.
    by_etherparse.unwrap_or_else(|| plain(contents, 16, around.pseudo(6, contents.len() as u32)))
}

fn udp(contents: &[u8], around: &Around) -> u16 {
    let by_etherparse = UdpHeaderSlice::from_slice(contents).ok().and_then(|slice| match around {
        _ if usize::from(slice.length()) != contents.len() => None,
        Around::V4(source, destination) => {
            slice.to_header().calc_checksum_ipv4_raw(*source, *destination, &contents[8..]).ok()
        }
        Around::V6(source, destination) => {
            slice.to_header().calc_checksum_ipv6_raw(*source, *destination, &contents[8..]).ok()
        }
    });
    by_etherparse.unwrap_or_else(|| {
        match plain(contents, 6, around.pseudo(17, contents.len() as u32)) {
            0 => 0xffff,
            sum => sum,
        }
    })
}
