//! The addresses that a transport checksum covers: those of the original sender and the final
//! destination.
//!
//! Source routes, routing headers and home address options carry them, beside the addresses in the
//! IP header.

/// Returns the final destination of an IPv4 packet from its options and the destination in its
/// header (RFC 791, section 3.1); `None` if a source route is inconsistent.
pub fn final_v4(destination: [u8; 4], options: &[u8]) -> Option<[u8; 4]> {
    let mut found = None;
    let mut at = 0;
    while at < options.len() && options[at] != 0 {
        if options[at] == 1 {
            at += 1;
            continue;
        }
        let is_route = options[at] == 131 || options[at] == 137;
        let length = if at + 1 < options.len() { options[at + 1] as usize } else { 0 };
        if length < 2 || at + length > options.len() {
            // An option without a valid length: the rest cannot be parsed.
            return if is_route { None } else { Some(found.unwrap_or(destination)) };
        }
        if is_route {
            if found.is_some() || length < 3 {
                return None;
            }
            let pointer = options[at + 2] as usize;
            if pointer > length {
                found = Some(destination);
            } else if pointer < 4 || !pointer.is_multiple_of(4) || (length - 3) % 4 != 0 {
                return None;
            } else {
                let last = at + length - 4;
                found =
                    Some([options[last], options[last + 1], options[last + 2], options[last + 3]]);
            }
        }
        at += length;
    }
    Some(found.unwrap_or(destination))
}

/// Returns the original source and the final destination of an IPv6 packet (RFC 8200, section 8.1);
/// `None` if they are unknown.
///
/// The arguments are the addresses in the header, and the extension headers: number and bytes of
/// each.
pub fn final_v6(
    source: [u8; 16],
    destination: [u8; 16],
    headers: &[(u8, &[u8])],
) -> Option<([u8; 16], [u8; 16])> {
    let (mut home, mut destination) = (None, destination);
    for &(number, bytes) in headers {
        if number == 43 && bytes[3] > 0 {
            destination = routed(bytes, destination)?;
        }
        if number != 60 {
            continue;
        }
        let mut at = 2;
        while at + 1 < bytes.len() {
            if bytes[at] == 0 {
                at += 1;
                continue;
            }
            let end = at + 2 + bytes[at + 1] as usize;
            if bytes[at] == 201 {
                // The home address option (RFC 6275, section 6.3) occurs once and has 16 bytes.
                if home.is_some() || end != at + 18 || end > bytes.len() {
                    return None;
                }
                home = bytes[at + 2..end].try_into().ok();
            }
            at = end;
        }
    }
    Some((home.unwrap_or(source), destination))
}

/// Returns the final destination of a packet whose routing header has segments left; `next` is the
/// destination in the IP header.
fn routed(bytes: &[u8], next: [u8; 16]) -> Option<[u8; 16]> {
    let (left, room) = (bytes[3] as usize, bytes.len() - 8);
    match bytes[2] {
        // RFC 2460, section 4.4, and RFC 6275, section 6.4.
        0 | 2 => {
            let listed = room / 16;
            let wrong = room % 16 != 0 || left > listed || bytes[2] == 2 && listed != 1;
            if wrong { None } else { bytes[8 + 16 * (listed - 1)..].try_into().ok() }
        }
        // RFC 6554, section 3.
        3 => {
            let (inner, last, padding) = (
                16 - (bytes[4] as usize >> 4),
                16 - (bytes[4] as usize & 15),
                bytes[5] as usize >> 4,
            );
            if room < padding + last
                || (room - padding - last) % inner != 0
                || left > (room - padding - last) / inner + 1
            {
                return None;
            }
            let end = bytes.len() - padding;
            [&next[..16 - last], &bytes[end - last..end]].concat().try_into().ok()
        }
        // RFC 8754, section 2: the last segment comes first in the list.
        4 => {
            let listed = bytes[4] as usize + 1;
            if 16 * listed > room || left > listed { None } else { bytes[8..24].try_into().ok() }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an address that ends with this byte.
    fn address(last: u8) -> [u8; 16] {
        [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
    }

    #[test]
    fn the_last_address_of_a_source_route() {
        let route = |pointer| [1, 131, 11, pointer, 10, 0, 0, 8, 10, 0, 0, 9];
        assert_eq!(final_v4([10, 0, 0, 2], &route(4)), Some([10, 0, 0, 9]));
        assert_eq!(final_v4([10, 0, 0, 2], &route(8)), Some([10, 0, 0, 9]));
        assert_eq!(final_v4([10, 0, 0, 2], &route(12)), Some([10, 0, 0, 2]), "exhausted");
        for pointer in [0, 1, 3, 5, 11] {
            assert_eq!(final_v4([10, 0, 0, 2], &route(pointer)), None, "{pointer}");
        }
        assert_eq!(final_v4([10, 0, 0, 2], &[0x94, 4, 0, 0]), Some([10, 0, 0, 2]));
    }

    #[test]
    fn the_ends_of_a_routed_packet() {
        let (source, next) = (address(1), address(2));
        let header = |kind: u8, left: u8, fixed: [u8; 4], data: &[u8]| {
            [&[6, (data.len() / 8) as u8, kind, left], &fixed[..], data].concat()
        };
        let to = |header: &[u8]| {
            final_v6(source, next, &[(43, header)]).map(|(_, destination)| destination)
        };
        let two = [address(8), address(9)].concat();
        assert_eq!(to(&header(4, 1, [1, 0, 0, 0], &two)), Some(address(8)));
        assert_eq!(to(&header(4, 0, [1, 0, 0, 0], &two)), Some(next));
        assert_eq!(to(&header(4, 3, [1, 0, 0, 0], &two)), None);
        assert_eq!(to(&header(0, 2, [0; 4], &two)), Some(address(9)));
        assert_eq!(to(&header(2, 1, [0; 4], &address(7))), Some(address(7)));
        assert_eq!(to(&header(2, 1, [0; 4], &two)), None);
        // Two compressed addresses of one byte each.
        assert_eq!(
            to(&header(3, 1, [0xff, 6 << 4, 0, 0], &[5, 6, 0, 0, 0, 0, 0, 0])),
            Some(address(6))
        );
        assert_eq!(to(&header(9, 1, [0; 4], &two)), None);
        assert_eq!(to(&header(9, 0, [0; 4], &two)), Some(next));
        let mut options = vec![6, 2, 0, 0, 0, 0, 201, 16];
        options.extend(address(5));
        assert_eq!(final_v6(source, next, &[(60, &options)]), Some((address(5), next)));
        assert_eq!(final_v6(source, next, &[(60, &options), (60, &options)]), None);
    }
}
