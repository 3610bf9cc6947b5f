//! RFC 1071 sums in a simple form, so that a reader can see that they are correct.

/// Returns the one's-complement sum of `bytes` as big-endian words, folded to 16 bits and not
/// inverted.
///
/// An odd last byte is the high half of a word whose low half is zero (RFC 1071, section 4.1).
pub fn sum(bytes: &[u8]) -> u16 {
    let mut total: u64 = 0;
    let mut pairs = bytes.chunks_exact(2);
    for pair in &mut pairs {
        total += u64::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        total += u64::from(u16::from_be_bytes([*last, 0]));
    }
    fold(total)
}

/// Folds the carries of a sum into 16 bits.
pub fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    total as u16
}

/// Returns the one's-complement sum of two sums.
pub fn add(left: u16, right: u16) -> u16 {
    fold(u64::from(left) + u64::from(right))
}

/// Returns the sum of the IPv4 pseudo-header (RFC 9293, section 3.1) for an upper-layer packet of
/// `length` bytes. A length above 65,535 is added as two words.
pub fn pseudo_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, length: u32) -> u16 {
    add(add(sum(&source), sum(&destination)), protocol_and_length(protocol, length))
}

/// Returns the sum of the IPv6 pseudo-header (RFC 8200, section 8.1) for an upper-layer packet of
/// `length` bytes.
pub fn pseudo_v6(source: [u8; 16], destination: [u8; 16], next_header: u8, length: u32) -> u16 {
    add(add(sum(&source), sum(&destination)), protocol_and_length(next_header, length))
}

fn protocol_and_length(protocol: u8, length: u32) -> u16 {
    add(u16::from(protocol), sum(&length.to_be_bytes()))
}

/// Computes the CRC32c of `bytes` bit by bit, as SCTP uses it (RFC 9260, appendix A). SCTP stores
/// it with the least significant byte first.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071_section_3() {
        assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn an_odd_last_byte_is_a_high_half() {
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn carries_come_back() {
        assert_eq!(add(0xffff, 0x0001), 0x0001);
        assert_eq!(fold(0xffff_ffff), 0xffff);
        assert_eq!(sum(&[0xff; 6]), 0xffff);
    }

    #[test]
    fn pseudo_headers_are_the_sums_of_their_bytes() {
        let bytes = [10, 0, 0, 1, 10, 0, 0, 2, 0, 6, 0x12, 0x34];
        assert_eq!(pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 0x1234), sum(&bytes));
        let mut bytes = vec![0x20; 16];
        bytes.extend([0x3f; 16]);
        bytes.extend([0, 1, 0x12, 0x34, 0, 0, 0, 17]);
        assert_eq!(pseudo_v6([0x20; 16], [0x3f; 16], 17, 0x0001_1234), sum(&bytes));
    }

    #[test]
    fn crc32c_of_the_check_string() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
