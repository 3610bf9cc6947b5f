//! The fields by which Linux separates packets of one connection into flows. Linux's GRO holds
//! packets separately that have different flow labels, VLAN tags, extension headers or tunnel
//! headers, so such packets may overtake each other.

use superpacket::wire::{IpVersion, Layout, ipv4, ipv6, pppoe, udp};

/// Returns the headers before the transport header, with 0 in all fields that may differ within one
/// of Linux's flows.
pub(super) fn linux_flow(bytes: &[u8], layout: &Layout) -> Vec<u8> {
    let mut headers = bytes.get(..usize::from(layout.transport)).unwrap_or(bytes).to_vec();
    if layout.pppoe != 0 {
        keep(&mut headers, usize::from(layout.pppoe) + pppoe::LENGTH, &[0; 2]);
    }
    for outer in layout.outers() {
        let transport = usize::from(outer.transport);
        if !outer.tunnel.is_udp() {
            continue;
        }
        // Packets with an outer UDP checksum and packets without one are separate flows.
        let has_checksum = u8::from(outer.checksum(bytes).is_some());
        keep(&mut headers, transport + udp::LENGTH, &[0; 4]);
        if let Some(field) = headers.get_mut(transport + udp::CHECKSUM) {
            *field = has_checksum;
        }
    }
    for level in layout.levels() {
        let network = usize::from(level.network);
        match level.version {
            IpVersion::V4 => {
                keep(&mut headers, network + ipv4::TOS, &[0; ipv4::PROTOCOL - ipv4::TOS]);
                keep(&mut headers, network + ipv4::CHECKSUM, &[0; 2]);
            }
            IpVersion::V6 => {
                // The version and the flow label are kept. The traffic class between them is in two
                // bytes.
                keep(&mut headers, network, &[0xf0, 0x0f]);
                keep(&mut headers, network + ipv6::PAYLOAD_LENGTH, &[0; 2]);
                keep(&mut headers, network + ipv6::HOP_LIMIT, &[0]);
            }
        }
    }
    headers
}

/// Clears all bits of the headers that are not set in `bits`, whose first byte applies to the byte
/// at `place`.
fn keep(headers: &mut [u8], place: usize, bits: &[u8]) {
    for (byte, bits) in headers.iter_mut().skip(place).zip(bits) {
        *byte &= bits;
    }
}

#[cfg(test)]
mod tests {
    use superpacket::packet::Layer;
    use superpacket::wire::parse;
    use superpacket_traffic::frame::{Checksum, Frame};

    use super::*;

    fn of(frame: &Frame) -> Vec<u8> {
        let bytes = frame.to_bytes();
        linux_flow(&bytes, &parse(&bytes, bytes.len(), Layer::Ethernet).expect("headers are whole"))
    }

    #[test]
    fn only_fields_that_linux_compares_first_separate_flows() {
        for frame in
            [Frame::tcp6(1, 100), Frame::tcp6(1, 100).in_vxlan6(), Frame::tcp6(1, 100).in_geneve()]
        {
            let next = frame.following().with(|frame| {
                (frame.ipv6_mut().traffic_class, frame.ipv6_mut().hop_limit) = (0xff, 3);
                frame.payload.push(7);
            });
            assert_eq!(of(&next), of(&frame));
            assert_ne!(
                of(&frame.clone().with(|frame| frame.ipv6_mut().flow_label ^= 1)),
                of(&frame)
            );
        }
        let frame = Frame::tcp4(1, 100).tagged(5).in_geneve();
        assert_eq!(of(&frame.following().with(|frame| frame.ipv4_mut().ttl = 9)), of(&frame));
        for other in [
            frame.clone().with(|frame| frame.outer_udp_mut().source_port ^= 1),
            frame.clone().with(|frame| frame.outer_udp_mut().checksum = Checksum::Right),
            Frame::tcp4(1, 100).tagged(5).in_vxlan4(),
        ] {
            assert_ne!(of(&other), of(&frame));
        }
    }
}
