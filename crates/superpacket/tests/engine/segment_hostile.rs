//! Nothing that a packet or its metadata says makes the segmenter panic, emit before it fails, or
//! lose count.

use crate::support::gso_of;
use proptest::prelude::*;
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{
    BackToBack, ChecksumForm, ChecksumOutput, Cwr, Gso, GsoKind, GsoPacket, IpId, MaxSegments,
    SegmentOptions, Segmenter,
};
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::{Extension, Frame};

fn gso() -> impl Strategy<Value = Gso> {
    let kind = prop::sample::select(vec![
        GsoKind::Tcp4,
        GsoKind::Tcp6,
        GsoKind::Udp,
        GsoKind::UdpFragments,
        GsoKind::Dccp,
    ]);
    let size = prop_oneof![1usize..200, 1usize..=65_535];
    (kind, size, any::<[bool; 4]>()).prop_map(|(kind, size, [id, outer_id, cwr, checksum])| {
        gso_of(kind, size)
            .with_id(if id { IpId::Fixed } else { IpId::Increment })
            .with_outer_id(if outer_id { IpId::Fixed } else { IpId::Increment })
            .with_cwr(if cwr { Cwr::All } else { Cwr::First })
            .with_checksum(if checksum { ChecksumForm::Partial } else { ChecksumForm::Full })
    })
}

/// Frames of every protocol, tunnel and link.
fn frame() -> impl Strategy<Value = Frame> {
    let transport = prop::sample::select(vec![0, 1, 2, 3, 4, 5, 6]);
    (transport, 0usize..3000, 0u8..8, 0u8..5).prop_map(|(transport, payload, tunnel, link)| {
        let frame = match transport {
            0 => Frame::tcp4(1, payload),
            1 => Frame::tcp6(1, payload).with_timestamps(1, 2),
            2 => Frame::udp4(payload),
            3 => Frame::udp6(payload),
            4 => Frame::dccp4(1, payload),
            5 => Frame::udp6(payload).with_ipv6(|ip| {
                ip.extensions =
                    vec![Extension::HopByHop(vec![]), Extension::DestinationOptions(vec![])]
            }),
            _ => Frame::tcp6(1, payload).with_ipv6(|ip| {
                ip.payload_length = Some(0);
                ip.extensions = vec![Extension::jumbo(28 + payload as u32)];
            }),
        };
        let frame = match tunnel {
            0 => frame.in_vxlan4(),
            1 => frame.in_vxlan6(),
            2 => frame.in_geneve(),
            3 => frame.in_gre(),
            4 => frame.in_ip4(),
            5 => frame.in_ip6(),
            _ => frame,
        };
        match link {
            0 => frame.tagged(1),
            1 => frame.at_ip(),
            2 => frame.in_pppoe(),
            3 => frame.with(|frame| frame.mpls = vec![Default::default()]),
            _ => frame,
        }
    })
}

fn exercise(
    slices: &[&[u8]],
    layer: Layer,
    gso: Option<Gso>,
    checksum: RxChecksum,
    options: &SegmentOptions,
    mtu: usize,
) -> Option<Vec<Vec<u8>>> {
    let total: usize = slices.iter().map(|slice| slice.len()).sum();
    let packet = GsoPacket::new(slices, gso).with_layer(layer).with_checksum(checksum);
    let mut segmenter = Segmenter::new();
    let mut segments = Vec::new();
    let result = segmenter.segment(&packet, options, |segment| {
        let mut copy = Vec::new();
        segment.copy_to(&mut copy);
        assert_eq!(copy.len(), segment.length());
        segments.push(copy);
    });
    assert_eq!(result.is_ok(), !segments.is_empty());
    let mut out = vec![0u8; result.map_or(0, |plan| plan.total_length())];
    let linear = segmenter.segment_linear(&packet, options, &mut BackToBack::new(&mut out));
    assert_eq!(linear, result);
    assert_eq!(out, segments.concat());

    let mut fragments = 0;
    let id = (!mtu.is_multiple_of(4)).then_some(mtu as u32);
    let fragmented = segmenter.fragment(&packet, mtu, id, |segment| {
        fragments += 1;
        assert!(segment.length() <= total + 300);
    });
    assert_eq!(fragmented.map_or(0, |plan| plan.segments), fragments);
    assert!(segmenter.counters().balanced(), "{:?}", segmenter.counters());
    result.is_ok().then_some(segments)
}

fn options(full: u8, limit: u32) -> SegmentOptions {
    let checksum = [ChecksumOutput::Full, ChecksumOutput::Partial, ChecksumOutput::AsMerged]
        [usize::from(full % 3)];
    SegmentOptions::default()
        .with_checksum(checksum)
        .with_max_segments(MaxSegments::new(limit.max(1)).expect("not zero"))
        .with_fragment_id(9)
}

fn state() -> impl Strategy<Value = RxChecksum> {
    prop_oneof![
        Just(RxChecksum::None),
        (0u16..400, 0u16..400).prop_map(|(start, offset)| RxChecksum::Partial { start, offset }),
        any::<(u16, u16)>().prop_map(|(start, offset)| RxChecksum::Partial { start, offset }),
    ]
}

fn layer(at_ip: bool) -> Layer {
    if at_ip { Layer::Ip } else { Layer::Ethernet }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]

    #[test]
    fn random_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), start in 0u8..4, at_ip: bool, gso in prop::option::of(gso()),
        checksum in state(), full: u8, limit in 0u32..5000, mtu in 0usize..400,
    ) {
        let mut bytes = bytes;
        // Let the first bytes be something that the parse follows.
        let head: &[u8] = match (start, at_ip) {
            (0, true) => &[0x45],
            (1, true) => &[0x60],
            (2, false) => &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45],
            (3, false) => &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60],
            _ => &[],
        };
        for (byte, head) in bytes.iter_mut().zip(head) {
            *byte = *head;
        }
        exercise(&[&bytes], layer(at_ip), gso, checksum, &options(full, limit), mtu);
    }

    #[test]
    fn damaged_frames_never_panic(
        frame in frame(), damage in prop::collection::vec((0usize..200, any::<u8>()), 0..6), keep in any::<prop::sample::Index>(), truncate: bool,
        cuts in prop::collection::vec(0usize..300, 0..4), gso in prop::option::of(gso()), checksum in state(), full: u8, mtu in 0usize..2000,
    ) {
        let at_ip = frame.link.is_none();
        let mut bytes = frame.to_bytes();
        for (place, value) in damage {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = value;
            }
        }
        if truncate {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        let mut slices = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts {
            let (slice, behind) = rest.split_at(cut.min(rest.len()));
            slices.push(slice);
            rest = behind;
        }
        slices.push(rest);
        exercise(&slices, layer(at_ip), gso, checksum, &options(full, 70_000), mtu);
    }

    #[test]
    fn segments_of_right_frames_are_right(frame in frame(), size in 1usize..2000, partial: bool) {
        let at_ip = frame.link.is_none();
        let bytes = frame.to_bytes();
        let headers = superpacket::wire::parse(&bytes, bytes.len(), layer(at_ip)).expect("headers");
        let kind = match (headers.protocol, headers.version) {
            (superpacket::wire::Protocol::Tcp, superpacket::wire::IpVersion::V4) => GsoKind::Tcp4,
            (superpacket::wire::Protocol::Tcp, superpacket::wire::IpVersion::V6) => GsoKind::Tcp6,
            (superpacket::wire::Protocol::Udp, _) => GsoKind::Udp,
            (superpacket::wire::Protocol::Dccp, _) => GsoKind::Dccp,
        };
        let gso = gso_of(kind, size);
        let segments = exercise(&[&bytes], layer(at_ip), Some(gso), RxChecksum::None, &options(u8::from(partial), u32::MAX), 1500)
            .expect("a right frame is cut");
        let mut payload = Vec::new();
        for segment in &segments {
            let expect = Expect { starts_at_ip: at_ip, partial, ..Expect::default() };
            let checked = check::frame(segment, &expect);
            prop_assert!(checked.is_ok(), "{:?}", checked);
            let checked = checked.expect("checked");
            prop_assert!(checked.payload.len() <= size);
            prop_assert!(checked.canonical);
            payload.extend_from_slice(&segment[checked.payload]);
        }
        prop_assert_eq!(payload, frame.payload);
    }
}
