//! Verification of received checksums by the card.

use superpacket::checksum::{Sum, at_offset, pseudo_header, words};
use superpacket::packet::RxChecksum;
use superpacket::wire::{IpVersion, Layout, Protocol, ethernet};

/// The result of verifying a frame's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The checksum state that the card reports for the frame.
    pub(super) checksum: RxChecksum,
    /// Number of correct checksums, counted from the outermost until the first wrong one.
    pub(super) right: u32,
    /// Whether one of the frame's checksums is wrong.
    pub(super) wrong: bool,
}

/// The first bytes of a frame, and the one's complement sum of its outermost IP packet. The sums of
/// inner parts of the packet are computed from these.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSums<'a> {
    /// The first bytes of the frame.
    pub(super) head: &'a [u8],
    /// The one's complement sum of all bytes after the Ethernet header, up to the end of the
    /// outermost IP packet.
    pub(super) packet: u16,
}

impl FrameSums<'_> {
    /// Returns the one's complement sum of the bytes from offset `place`, which lies within the
    /// head, to the end of the packet.
    fn from(&self, place: usize) -> u16 {
        let before = words(self.head.get(ethernet::HEADER_LENGTH..place).unwrap_or(&[])).fold();
        at_offset(Sum::new(self.packet).subtract(before).fold(), place - ethernet::HEADER_LENGTH)
    }
}

/// Returns the big-endian 16-bit field at offset `place`, or 0 if it lies beyond the end of the
/// head.
fn field(head: &[u8], place: usize) -> u16 {
    head.get(place..place + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Returns whether the checksum of an IPv4 header is correct; `true` for IPv6 headers, which have
/// none.
fn is_header_right(head: &[u8], network: u16, version: IpVersion) -> bool {
    let header = head.get(usize::from(network)..).unwrap_or(&[]);
    let length = header.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    version == IpVersion::V6 || header.get(..length).is_some_and(|header| words(header).is_valid())
}

/// Returns the one's complement of the pseudo-header's sum. The transport header and the payload
/// have this sum if the checksum is right.
pub(super) fn transport_sum(head: &[u8], layout: &Layout) -> u16 {
    let network = head.get(usize::from(layout.network)..).unwrap_or(&[]);
    pseudo_header(
        network,
        layout.version,
        layout.protocol.number(),
        layout.end - u32::from(layout.transport),
    )
    .checksum()
}

/// Returns whether the packet has a transport checksum that covers the whole transport packet. A
/// UDP checksum of 0 means none, and DCCP checksums may cover a part.
pub(super) fn covers_all(head: &[u8], layout: &Layout) -> bool {
    match layout.protocol {
        Protocol::Tcp => true,
        Protocol::Udp => field(head, usize::from(layout.checksum())) != 0,
        Protocol::Dccp => false,
    }
}

/// Verifies the checksums of a frame from the outermost to the innermost, and stops at a wrong one.
/// The card does not verify DCCP checksums, nor those of packets that the parser marks as not
/// mergeable.
pub(super) fn verify(sums: &FrameSums<'_>, layout: &Layout) -> Verdict {
    let head = sums.head;
    let (mut right, mut wrong) = (0, false);
    let unknown = layout.refusal.is_some()
        || layout.levels().any(|level| !is_header_right(head, level.network, level.version));
    if !unknown {
        let outers = layout.outers().filter(|outer| outer.checksum(head).is_some()).map(|outer| {
            let sum = Sum::new(sums.from(usize::from(outer.transport)));
            if !outer.tunnel.is_udp() {
                return sum;
            }
            let network = head.get(usize::from(outer.network)..).unwrap_or(&[]);
            let length = layout.end - u32::from(outer.transport);
            sum.add_sum(pseudo_header(network, outer.version, Protocol::Udp.number(), length))
        });
        let inner = covers_all(head, layout).then(|| {
            Sum::new(sums.from(usize::from(layout.transport))).subtract(transport_sum(head, layout))
        });
        for sum in outers.chain(inner) {
            if !sum.is_valid() {
                wrong = true;
                break;
            }
            right += 1;
        }
    }
    let checksum = if right == 0 {
        RxChecksum::None
    } else {
        RxChecksum::Unnecessary { level: (right - 1) as u8 }
    };
    Verdict { checksum, right, wrong }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::packet::Layer;
    use superpacket::wire::parse;
    use superpacket_traffic::checksum;
    use superpacket_traffic::frame::{Checksum, Frame};

    fn verdict(frame: &Frame) -> Verdict {
        let bytes = frame.to_bytes();
        let layout = parse(&bytes[..bytes.len().min(256)], bytes.len(), Layer::Ethernet)
            .expect("well formed");
        verify(
            &FrameSums {
                head: &bytes[..bytes.len().min(256)],
                packet: checksum::sum(&bytes[14..layout.end as usize]),
            },
            &layout,
        )
    }

    fn known(level: u8) -> Verdict {
        Verdict {
            checksum: RxChecksum::Unnecessary { level },
            right: u32::from(level) + 1,
            wrong: false,
        }
    }

    const UNKNOWN: Verdict = Verdict { checksum: RxChecksum::None, right: 0, wrong: false };

    #[test]
    fn each_right_checksum_adds_a_level() {
        let tcp = Frame::tcp4(1, 101);
        for frame in [
            tcp.clone(),
            Frame::tcp6(1, 100),
            Frame::udp4(9),
            Frame::udp6(8),
            tcp.clone().tagged(4),
            tcp.clone().in_ip4(),
        ] {
            assert_eq!(verdict(&frame), known(0), "{frame:?}");
        }
        assert_eq!(verdict(&tcp.clone().in_vxlan4()), known(0), "the outer checksum is 0");
        assert_eq!(verdict(&tcp.clone().in_vxlan6()), known(1));
        assert_eq!(verdict(&Frame::udp4(9).with_checksum(Checksum::Zero)), UNKNOWN);
        assert_eq!(verdict(&Frame::dccp4(9, 80)), UNKNOWN);
    }

    #[test]
    fn a_wrong_checksum_is_not_reported_as_right() {
        let wrong = |frame: Frame| frame.with_checksum(Checksum::Wrong);
        let none = Verdict { wrong: true, ..UNKNOWN };
        assert_eq!(verdict(&wrong(Frame::tcp4(1, 100))), none);
        assert_eq!(verdict(&wrong(Frame::udp6(100))), none);
        assert_eq!(
            verdict(&wrong(Frame::tcp4(1, 100)).in_vxlan6()),
            Verdict { wrong: true, ..known(0) },
            "the outer one is right"
        );
        let outer = Frame::tcp4(1, 100).in_vxlan6().with_outer_checksum(Checksum::Wrong);
        assert_eq!(verdict(&outer), none);
    }
}
