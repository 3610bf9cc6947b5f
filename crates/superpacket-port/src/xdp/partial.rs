//! Detection of partial checksums. veth delivers frames as the other end's stack built them, and
//! AF_XDP does not report their checksum state.
//!
//! A sender that relies on its device stores only the pseudo-header's sum in the checksum field
//! (`CHECKSUM_PARTIAL`), so such a field is treated as incomplete. One in 65,535 correct checksums
//! looks the same. Completing it yields the same value again: the sum over a packet with a correct
//! checksum is the complement of the pseudo-header's sum.

use superpacket::checksum::pseudo_header;
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::{IpVersion, ipv4, ipv6, parse};

/// Returns the checksum state of a frame of `length` bytes that begins with `head`.
#[inline]
pub(super) fn detect(head: &[u8], length: usize) -> RxChecksum {
    detect_partial(head, length).unwrap_or_default()
}

fn detect_partial(head: &[u8], length: usize) -> Option<RxChecksum> {
    let layout = parse(head, length, Layer::Ethernet).ok()?;
    let be16 = |at: usize| Some(u16::from_be_bytes(*head.get(at..)?.first_chunk()?));
    let network = usize::from(layout.network);
    // In a tunnel, padding may follow the inner packet, so the length in the inner IP header
    // counts.
    let stated = match layout.version {
        IpVersion::V4 => usize::from(be16(network + ipv4::TOTAL_LENGTH)?),
        IpVersion::V6 => usize::from(be16(network + ipv6::PAYLOAD_LENGTH)?) + ipv6::HEADER_LENGTH,
    };
    let end = (layout.end as usize).min(network + stated);
    let transport = end.checked_sub(usize::from(layout.transport))?;
    let pseudo = pseudo_header(
        head.get(network..)?,
        layout.version,
        layout.protocol.number(),
        u32::try_from(transport).ok()?,
    )
    .fold();
    let found = be16(usize::from(layout.checksum()))?;
    // A value of zero in the UDP checksum field means that there is no checksum.
    (found == pseudo && found != 0).then(|| RxChecksum::Partial {
        start: layout.transport,
        offset: layout.protocol.checksum_offset(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::Simd;
    use superpacket::checksum::{Sum, sum_ranges, transport_field};
    use superpacket::wire::Protocol;

    /// Returns a frame with correct checksums, and the offsets of its IP and TCP headers.
    fn frame() -> (Vec<u8>, usize, usize) {
        (superpacket_traffic::workload::w1(1).remove(0), 14, 34)
    }

    fn seed(frame: &mut [u8], network: usize, transport: usize) {
        let length = (frame.len() - transport) as u32;
        let pseudo = pseudo_header(&frame[network..], IpVersion::V4, 6, length).fold();
        frame[transport + 16..transport + 18].copy_from_slice(&pseudo.to_be_bytes());
    }

    #[test]
    fn a_seed_is_recognized_and_a_whole_checksum_is_not() {
        let (mut bytes, network, transport) = frame();
        assert_eq!(detect(&bytes, bytes.len()), RxChecksum::None);
        seed(&mut bytes, network, transport);
        assert_eq!(detect(&bytes, bytes.len()), RxChecksum::Partial { start: 34, offset: 16 });
        assert_eq!(
            detect(&bytes[..100], bytes.len()),
            RxChecksum::Partial { start: 34, offset: 16 },
            "the headers are enough"
        );
        bytes[50] ^= 1;
        assert_eq!(detect(&bytes, bytes.len()), RxChecksum::None, "a wrong checksum is not a seed");
    }

    #[test]
    fn padding_behind_the_packet_does_not_count() {
        let (bytes, network, transport) = frame();
        let mut short = bytes[..transport + 32].to_vec();
        let length = (short.len() - network) as u16;
        short[network + 2..network + 4].copy_from_slice(&length.to_be_bytes());
        seed(&mut short, network, transport);
        short.extend_from_slice(&[0; 8]);
        assert_eq!(detect(&short, short.len()), RxChecksum::Partial { start: 34, offset: 16 });
    }

    #[test]
    fn a_right_checksum_that_looks_like_a_seed_is_filled_in_with_itself() {
        let (mut bytes, network, transport) = frame();
        seed(&mut bytes, network, transport);
        let pseudo = u16::from_be_bytes([bytes[transport + 16], bytes[transport + 17]]);
        // The urgent pointer is chosen so that the pseudo-header's sum is the correct checksum.
        bytes[transport + 18..transport + 20].fill(0);
        let sum = Sum::new(pseudo).add(sum_ranges(Simd::scalar(), [&bytes[transport..]]));
        bytes[transport + 18..transport + 20].copy_from_slice(&sum.checksum().to_be_bytes());
        assert!(Sum::new(pseudo).add(sum_ranges(Simd::scalar(), [&bytes[transport..]])).is_valid());
        assert_eq!(detect(&bytes, bytes.len()), RxChecksum::Partial { start: 34, offset: 16 });
        let filled = transport_field(
            Protocol::Tcp,
            Sum::new(sum_ranges(Simd::scalar(), [&bytes[transport..]])).checksum(),
        );
        assert_eq!(filled, pseudo);
    }

    #[test]
    fn what_is_no_packet_is_passed_over() {
        let (bytes, ..) = frame();
        for length in 0..bytes.len().min(80) {
            detect(&bytes[..length], length);
        }
        assert_eq!(detect(&[0xff; 60], 60), RxChecksum::None);
    }
}
