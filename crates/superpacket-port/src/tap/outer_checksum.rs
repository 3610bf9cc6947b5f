//! The first bytes of a super-packet in a tunnel, with the outer UDP checksum that Linux requires
//! ([`Header::outer_checksum`]).

use superpacket::packet::Layer;
use superpacket::virtio::Header;
use superpacket::wire::MAX_HEADER;

/// The first bytes of a frame in a tunnel, up to and including its changed outer UDP checksum.
#[derive(Debug)]
pub(crate) struct FrameStart {
    bytes: [u8; MAX_HEADER],
    length: usize,
}

impl FrameStart {
    /// Returns the first bytes of a frame of `length` bytes that begins with `head`, with the outer
    /// UDP checksum that the virtio header `described` requires; `None` if the frame needs no
    /// change.
    pub(crate) fn of(
        described: &Header,
        head: &[u8],
        length: usize,
        layer: Layer,
    ) -> Option<FrameStart> {
        let head = &head[..head.len().min(MAX_HEADER)];
        let (place, value) = described.outer_checksum(head, length, layer)?;
        let end = place + 2;
        let mut front = FrameStart { bytes: [0; MAX_HEADER], length: end };
        front.bytes.get_mut(..end)?.copy_from_slice(head.get(..end)?);
        front.bytes[place..end].copy_from_slice(&value.to_be_bytes());
        Some(front)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use superpacket::packet::RxChecksum;
    use superpacket::segment::{Gso, GsoKind, SegmentSize};
    use superpacket::virtio::{Format, Offload};
    use superpacket_traffic::checksum::{pseudo_v4, pseudo_v6};
    use superpacket_traffic::frame::{Checksum, Frame, Ip};

    use super::*;

    fn front(frame: &Frame) -> (Vec<u8>, Option<FrameStart>) {
        let bytes = frame.to_bytes();
        let gso = Gso::new(GsoKind::Tcp4, SegmentSize::new(100).expect("not 0"));
        let checksum = RxChecksum::Partial { start: frame.offsets().transport as u16, offset: 16 };
        let offload = Offload::new(checksum, Some(gso));
        let header =
            Header::describe(&offload, Format::Tunnel, &bytes, bytes.len(), Layer::Ethernet)
                .expect("virtio can say it");
        let front = FrameStart::of(&header, &bytes, bytes.len(), Layer::Ethernet);
        (bytes, front)
    }

    #[test]
    fn the_outer_checksum_is_the_sum_of_the_pseudo_header_and_nothing_else_changes() {
        for frame in [
            Frame::tcp4(1, 1_000).in_vxlan4(),
            Frame::tcp4(1, 1_000).in_vxlan6(),
            Frame::tcp4(1, 1_000).in_geneve(),
        ] {
            let frame = frame.with(|frame| {
                frame.tcp_mut().checksum = Checksum::Partial;
                frame.outer_udp_mut().checksum = Checksum::Right;
            });
            let (bytes, front) = front(&frame);
            let front = front.expect("a checksum").bytes().to_vec();
            let end = front.len();
            let length = (bytes.len() + 8 - end) as u32;
            let sum = match &frame.tunnel.as_ref().expect("a tunnel").ip {
                Ip::V4(ip) => pseudo_v4(ip.source, ip.destination, 17, length),
                Ip::V6(ip) => pseudo_v6(ip.source, ip.destination, 17, length),
            };
            assert_eq!(front[..end - 2], bytes[..end - 2]);
            assert_eq!(front[end - 2..], sum.to_be_bytes());
            assert_ne!(front[end - 2..], bytes[end - 2..end]);
        }
    }

    #[test]
    fn a_frame_with_the_right_sum_or_a_damaged_checksum_goes_as_it_is() {
        let frame = Frame::tcp4(1, 1_000).in_vxlan4().with(|frame| {
            frame.tcp_mut().checksum = Checksum::Partial;
            frame.outer_udp_mut().checksum = Checksum::Partial;
        });
        assert!(front(&frame).1.is_none());
        assert!(
            front(&frame.with(|frame| frame.outer_udp_mut().checksum = Checksum::Raw(0x1234)))
                .1
                .is_none()
        );
    }

    #[test]
    fn without_an_outer_checksum_a_frame_goes_as_it_is() {
        let plain = Frame::tcp4(1, 1_000).with_checksum(Checksum::Partial);
        assert!(front(&plain.clone()).1.is_none());
        let without = plain.in_vxlan4().with_outer_checksum(Checksum::Zero);
        assert!(front(&without).1.is_none());
    }
}
