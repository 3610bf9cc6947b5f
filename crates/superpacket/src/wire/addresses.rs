//! The addresses that a transport checksum covers: not always those of the IP header.
//!
//! A packet on its way through a source route is addressed to the next stop, and a mobile node
//! away from home sends from a borrowed address. The checksum covers the final destination and the
//! home address, which lie in IPv4 options and IPv6 extension headers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::extensions::Extensions;
use super::{IpVersion, byte, ipv4, ipv6};

/// Returns the source and destination address in the pseudo-header of a packet's transport
/// checksum.
///
/// `network` starts with the IP header, and holds its options or extension headers. These change
/// the addresses:
///
/// | header | source | destination |
/// |---|---|---|
/// | IPv4 loose or strict source route that is not exhausted (RFC 791, section 3.1) | | last address of the route |
/// | IPv6 routing header of type 0 or 2 with segments left (RFC 2460, section 4.4; RFC 6275, section 6.4) | | last address |
/// | type 3, RPL (RFC 6554) | | last address, with the prefix of the one before |
/// | type 4, segment routing (RFC 8754) | | first address: the list is in reverse order |
/// | home address option (RFC 6275, section 6.3) | home address | |
///
/// `None` if they are not known: a header is incomplete, a route contradicts itself, or segments
/// are left in a routing header of another type.
pub fn checksum_addresses(network: &[u8], version: IpVersion) -> Option<(IpAddr, IpAddr)> {
    match version {
        IpVersion::V4 => {
            let (source, destination) = of_ipv4(network)?;
            Some((Ipv4Addr::from(source).into(), Ipv4Addr::from(destination).into()))
        }
        IpVersion::V6 => {
            let (source, destination) = of_ipv6(network)?;
            Some((Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into()))
        }
    }
}

/// Returns whether a packet's final source or destination may differ from the two addresses in its
/// IP header, because it has IPv4 options or IPv6 extension headers that can hold others.
#[inline(always)]
pub(crate) fn may_have_other_addresses(network: &[u8], version: IpVersion) -> bool {
    match version {
        IpVersion::V4 => byte(network, 0) & 0x0f > 5,
        IpVersion::V6 => matches!(
            byte(network, ipv6::NEXT_HEADER),
            ipv6::HOP_BY_HOP | ipv6::ROUTING | ipv6::DESTINATION
        ),
    }
}

/// Returns whether the addresses that a transport checksum covers are known.
#[inline(always)]
pub(crate) fn are_addresses_known(network: &[u8], version: IpVersion) -> bool {
    !may_have_other_addresses(network, version) || checksum_addresses(network, version).is_some()
}

fn of_ipv4(network: &[u8]) -> Option<([u8; 4], [u8; 4])> {
    let header = network.get(..usize::from(byte(network, 0) & 0x0f) * 4)?;
    let (addresses, mut options) = header.get(ipv4::ADDRESSES..)?.split_first_chunk::<8>()?;
    let [s0, s1, s2, s3, d0, d1, d2, d3] = *addresses;
    let (source, mut destination, mut routed) = ([s0, s1, s2, s3], [d0, d1, d2, d3], false);
    while let [kind, rest @ ..] = options {
        match *kind {
            ipv4::OPTION_END => break,
            ipv4::OPTION_NOP => options = rest,
            kind => {
                let is_route = matches!(kind, ipv4::LOOSE_ROUTE | ipv4::STRICT_ROUTE);
                let length = usize::from(byte(rest, 0));
                let Some((option, after)) =
                    options.split_at_checked(length).filter(|_| length >= 2)
                else {
                    // The options after one that contradicts itself cannot be read.
                    return (!is_route).then_some((source, destination));
                };
                if is_route {
                    if routed {
                        return None;
                    }
                    (routed, destination) = (true, last_of_route(option, destination)?);
                }
                options = after;
            }
        }
    }
    Some((source, destination))
}

/// Returns the final destination according to an IPv4 source route option; `header` is the
/// destination in the IP header. `None` if the option is invalid.
fn last_of_route(option: &[u8], header: [u8; 4]) -> Option<[u8; 4]> {
    // Type, length, and a pointer that counts from 1 to the next address.
    let (pointer, addresses) = (usize::from(*option.get(2)?), option.get(3..)?);
    if pointer > option.len() {
        return Some(header);
    }
    let agrees = pointer >= 4 && pointer.is_multiple_of(4) && addresses.len().is_multiple_of(4);
    addresses.last_chunk().filter(|_| agrees).copied()
}

fn of_ipv6(network: &[u8]) -> Option<([u8; 16], [u8; 16])> {
    let (source, rest) = network.get(ipv6::ADDRESSES..)?.split_first_chunk::<16>()?;
    let (mut destination, mut home) = (*rest.first_chunk::<16>()?, None);
    let mut extensions = Extensions::new(network, 0, network.len());
    for extension in &mut extensions {
        let header = network.get(extension.offset..extension.end)?;
        match extension.kind {
            // The node at the end of one route continues with the next.
            ipv6::ROUTING => destination = last_segment(header, destination)?,
            ipv6::DESTINATION => {
                for value in options(header.get(2..)?)
                    .filter_map(|(kind, value)| (kind == ipv6::HOME_ADDRESS).then_some(value))
                {
                    // At most one (RFC 6275, section 6.3).
                    if home.replace(<[u8; 16]>::try_from(value).ok()?).is_some() {
                        return None;
                    }
                }
            }
            _ => {}
        }
    }
    (!extensions.reaches_beyond()).then_some((home.unwrap_or(*source), destination))
}

/// Returns type and value of each option of a destination options header (RFC 8200, section 4.2). A
/// value that reaches beyond the header is cut at its end.
fn options(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    core::iter::from_fn(move || {
        while let [ipv6::PAD1, rest @ ..] = bytes {
            bytes = rest;
        }
        let [kind, length, rest @ ..] = bytes else { return None };
        let value;
        (value, bytes) = rest.split_at_checked(usize::from(*length)).unwrap_or((rest, &[]));
        Some((*kind, value))
    })
}

/// Returns the final destination according to an IPv6 routing header; `current` is the destination
/// in the IP header.
fn last_segment(header: &[u8], current: [u8; 16]) -> Option<[u8; 16]> {
    let (kind, left) = (*header.get(2)?, usize::from(*header.get(3)?));
    let data = header.get(8..)?;
    match (kind, left) {
        // A route of any type that has no segments left (RFC 8200, section 4.4).
        (_, 0) => Some(current),
        (ipv6::ROUTING_SOURCE | ipv6::ROUTING_HOME, _) => {
            let agrees = data.len().is_multiple_of(16)
                && left <= data.len() / 16
                && (kind != ipv6::ROUTING_HOME || data.len() == 16);
            data.last_chunk().filter(|_| agrees).copied()
        }
        (ipv6::ROUTING_RPL, _) => {
            // Number of prefix bytes that each address but the last omits, and that the last omits.
            let (others, last) =
                (usize::from(byte(header, 4) >> 4), usize::from(byte(header, 4) & 0x0f));
            let data = data.get(..data.len().checked_sub(usize::from(byte(header, 5) >> 4))?)?;
            let before = data.len().checked_sub(16 - last)?;
            let agrees = before.is_multiple_of(16 - others) && left <= before / (16 - others) + 1;
            let mut address = current;
            address.get_mut(last..)?.copy_from_slice(data.get(before..)?);
            agrees.then_some(address)
        }
        (ipv6::ROUTING_SEGMENTS, _) => {
            let segments = usize::from(byte(header, 4)) + 1;
            // The list may omit the first segment, so one more may be left than it holds (RFC 8754,
            // section 4.1.1).
            let agrees = segments * 16 <= data.len() && left <= segments;
            data.first_chunk().filter(|_| agrees).copied()
        }
        _ => None,
    }
}
