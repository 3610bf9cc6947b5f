//! SCTP's checksum: a CRC, which a virtio header cannot ask for.
//!
//! A kernel that leaves it to the device says so as of any checksum ("partial"), and means CRC32c (RFC 9260, section 6.8; `skb->csum_not_inet`). Whoever reads that as
//! an Internet checksum corrupts the packet: the bridge fills it in itself, for every port.

use superpacket::packet::RxChecksum;

/// The IP protocol number of SCTP.
const SCTP: u8 = 132;

/// Offset of the checksum in the SCTP header, in bytes.
const CHECKSUM: u16 = 8;

/// Is this an SCTP packet whose checksum is still to be filled in? `head` holds its first bytes, with the IP header at `network`.
#[inline]
pub(crate) fn is_partial(head: &[u8], network: usize, checksum: RxChecksum) -> bool {
    let RxChecksum::Partial { start, offset: CHECKSUM } = checksum else { return false };
    match head.get(network).map(|version| version >> 4) {
        Some(4) => head.get(network + 9) == Some(&SCTP),
        // Behind extension headers too: no other protocol has its checksum there.
        Some(6) => usize::from(start) > network && head.get(network + 6) != Some(&6) && head.get(network + 6) != Some(&17),
        _ => false,
    }
}

/// Fills the checksum in; `start` is the offset of the SCTP header. `false`: the packet is too short.
pub(crate) fn fill_in(packet: &mut [u8], start: usize) -> bool {
    let Some(sctp) = packet.get_mut(start..).filter(|sctp| sctp.len() >= 12) else { return false };
    sctp[8..12].fill(0);
    let crc = crc32c::crc32c(sctp);
    // The one field of the Internet's protocols that is little endian (RFC 9260, appendix A).
    sctp[8..12].copy_from_slice(&crc.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_castagnoli_s_and_little_endian() {
        // RFC 3720, appendix B.4: 32 bytes of zeros give 0x8a9136aa.
        let mut packet = [0; 34];
        assert!(fill_in(&mut packet, 2));
        assert_eq!(packet[10..14], 0x8a91_36aau32.to_le_bytes());
        assert!(!fill_in(&mut packet, 23));
    }

    #[test]
    fn only_sctp_is_taken_for_it() {
        let mut head = [0; 60];
        (head[14], head[23]) = (0x45, SCTP);
        let partial = |offset| RxChecksum::Partial { start: 34, offset };
        assert!(is_partial(&head, 14, partial(8)));
        assert!(!is_partial(&head, 14, partial(16)) && !is_partial(&head, 14, RxChecksum::None));
        head[23] = 6;
        assert!(!is_partial(&head, 14, partial(8)));
    }
}
