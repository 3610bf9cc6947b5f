//! IP fragments: UDP datagrams (UFO), and packets that nothing else can cut.

use crate::support::{bytes_in, gso_of};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{
    BackToBack, ChecksumOutput, Gso, GsoKind, GsoPacket, MaxSegments, SegmentError, SegmentOptions,
    Segmenter,
};
use superpacket::wire::Refusal;
use superpacket_traffic::frame::{Checksum, Extension, Frame, Icmp, Ip, Sctp, Transport};

/// Identification of IPv6 fragments.
const ID: u32 = 0xfeed_0001;

fn ufo(size: usize) -> Gso {
    gso_of(GsoKind::UdpFragments, size)
}

fn cut(bytes: &[u8], gso: Gso, options: &SegmentOptions) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut segmenter = Segmenter::new();
    let mut segments = Vec::new();
    let packet = GsoPacket::linear(&bytes, gso);
    let plan = segmenter.segment(&packet, options, |segment| {
        segments.push([segment.header(), &segment.payload().collect::<Vec<_>>().concat()].concat());
    })?;
    let mut all = vec![0; plan.total_length()];
    segmenter.segment_linear(&packet, options, &mut BackToBack::new(&mut all))?;
    assert_eq!(all, segments.concat());
    assert!(segmenter.counters().balanced());
    Ok(segments)
}

fn fragment(
    bytes: &[u8],
    layer: Layer,
    checksum: RxChecksum,
    mtu: usize,
) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut segmenter = Segmenter::new();
    let mut fragments = Vec::new();
    let packet =
        GsoPacket::uncut(std::slice::from_ref(&bytes)).with_layer(layer).with_checksum(checksum);
    let result =
        segmenter.fragment(&packet, mtu, Some(ID), |segment| fragments.push(bytes_in(&segment)));
    assert!(segmenter.counters().balanced());
    let plan = result?;
    let mut all = Vec::new();
    assert_eq!(segmenter.fragment_linear(&packet, mtu, Some(ID), &mut all), Ok(plan));
    assert_eq!(all, fragments.concat());
    Ok(fragments)
}

/// Fragments a frame in Ethernet.
fn fragments_of(frame: &Frame, mtu: usize) -> Vec<Vec<u8>> {
    fragment(&frame.to_bytes(), Layer::Ethernet, RxChecksum::None, mtu).expect("fragmented")
}

/// Cuts a datagram into fragments, by default options.
fn datagram_cut(frame: &Frame, size: usize) -> Vec<Vec<u8>> {
    cut(&frame.to_bytes(), ufo(size), &SegmentOptions::default()).expect("cut")
}

fn bytes_of(frames: &[Frame]) -> Vec<Vec<u8>> {
    frames.iter().map(Frame::to_bytes).collect()
}

/// Compares without printing thousands of bytes.
#[track_caller]
fn assert_same(got: &[Vec<u8>], want: &[Vec<u8>], name: &str) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let head = |bytes: &[u8]| {
            bytes.iter().take(100).map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        assert!(got == want, "{name}, fragment {index}:\n got {}\nwant {}", head(got), head(want));
    }
}

#[test]
fn a_datagram_becomes_fragments_of_one_identification() {
    let frame = |payload| Frame::udp4(payload).with_id(77).with_ipv4(|ip| ip.dont_fragment = false);
    for (size, payload) in
        [(1480, 4000), (1481, 4000), (1487, 65_507), (8, 40), (16, 9), (1000, 993), (1000, 1992)]
    {
        for checksum in [Checksum::Right, Checksum::Partial] {
            let whole = frame(payload).with_checksum(checksum);
            let segments = datagram_cut(&whole, size);
            assert_same(
                &segments,
                &bytes_of(&frame(payload).fragments(size, 0)),
                &format!("{size} {payload}"),
            );
        }
    }
    // Without a checksum none is made.
    let whole = frame(3000).with_checksum(Checksum::Zero);
    assert_same(&datagram_cut(&whole, 800), &bytes_of(&whole.fragments(800, 0)), "");
    // What fits stays whole, and may be left to a device; fragments may not.
    let options = SegmentOptions::default().with_checksum(ChecksumOutput::Partial);
    let partial = frame(792).with_checksum(Checksum::Partial).to_bytes();
    assert_same(&cut(&frame(792).to_bytes(), ufo(800), &options).expect("cut"), &[partial], "");
    assert_same(
        &cut(&frame(793).to_bytes(), ufo(800), &options).expect("cut"),
        &bytes_of(&frame(793).fragments(800, 0)),
        "",
    );
}

#[test]
fn ipv6_fragments_carry_a_fragment_header_behind_what_routers_read() {
    let options = SegmentOptions::default().with_fragment_id(0xdead_beef);
    for extensions in [
        vec![],
        vec![Extension::HopByHop(vec![1, 2, 0, 0])],
        vec![Extension::DestinationOptions(vec![]), Extension::Routing(vec![4, 0, 0, 0])],
    ] {
        let frame = Frame::udp6(3001).with_ipv6(|ip| ip.extensions = extensions);
        let segments = cut(&frame.to_bytes(), ufo(1008), &options).expect("cut");
        assert_same(&segments, &bytes_of(&frame.fragments(1008, 0xdead_beef)), "");
    }
    // Destination options without a routing header behind them are for the destination only: they
    // are fragmented with the payload.
    let with_options = Frame::udp6(3001).with_ipv6(|ip| {
        ip.extensions = vec![Extension::DestinationOptions(vec![1, 8, 0, 0, 0, 0, 0, 0, 0, 0])]
    });
    let bytes = with_options.to_bytes();
    let segments = cut(&bytes, ufo(1008), &options).expect("cut");
    let contents: Vec<u8> =
        segments.iter().flat_map(|segment| segment[14 + 40 + 8..].iter().copied()).collect();
    assert_eq!(contents, bytes[14 + 40..]);
    assert!(segments.iter().all(|segment| segment[14 + 6] == 44 && segment[14 + 40] == 60));
    assert_eq!(segments[0].len(), 14 + 40 + 8 + 1008);
    // They must fit the first fragment.
    assert_eq!(
        cut(&bytes, ufo(16), &options),
        Err(SegmentError::SegmentTooSmall { needed: 24, got: 16 })
    );
}

#[test]
fn fragments_inside_tunnels() {
    for tunnel in [
        Frame::in_vxlan4,
        Frame::in_vxlan6,
        Frame::in_geneve,
        Frame::in_gre,
        Frame::in_ip4,
        Frame::in_ip6,
    ] {
        for (frame, id) in [
            (Frame::udp4(2500).with_ipv4(|ip| ip.dont_fragment = false), 0),
            (Frame::udp6(2500), 5),
        ] {
            let frame = tunnel(frame).tagged(3);
            let mut expected = frame.fragments(800, id);
            for (index, fragment) in expected.iter_mut().enumerate() {
                if let Ip::V4(outer) = &mut fragment.tunnel_mut().ip {
                    outer.id = index as u16;
                }
            }
            let options = SegmentOptions::default().with_fragment_id(id);
            assert_same(
                &cut(&frame.to_bytes(), ufo(800), &options).expect("cut"),
                &bytes_of(&expected),
                "",
            );
        }
    }
}

#[test]
fn limits_of_fragments() {
    let frame = Frame::udp4(3000).to_bytes();
    assert_eq!(
        cut(&frame, ufo(7), &SegmentOptions::default()),
        Err(SegmentError::SegmentTooSmall { needed: 8, got: 7 })
    );
    let options =
        SegmentOptions::default().with_max_segments(MaxSegments::new(3).expect("not zero"));
    assert_eq!(
        cut(&frame, ufo(1000), &options),
        Err(SegmentError::TooManySegments { needed: 4, limit: 3 })
    );
    let long = Frame::udp4(70_000).to_bytes();
    assert!(matches!(
        cut(&long, ufo(1000), &SegmentOptions::default()),
        Err(SegmentError::SegmentTooLong { .. })
    ));
}

#[test]
fn any_ipv4_packet_without_df_can_be_fragmented() {
    let clear = |frame: Frame| frame.with_ipv4(|ip| ip.dont_fragment = false).with_id(4242);
    let icmp = Frame::udp4(4000).with(|frame| frame.transport = Transport::Raw(1));
    for frame in [
        clear(Frame::tcp4(1, 4000)),
        clear(Frame::udp4(4001)).tagged(9),
        clear(icmp),
        clear(Frame::tcp4(1, 4000)).in_pppoe(),
        clear(Frame::tcp4(1, 3000)).with_ipv4(|ip| ip.reserved = true),
    ] {
        for mtu in [1500, 1501, 576, 68] {
            let fragments = fragments_of(&frame, mtu);
            assert_same(&fragments, &bytes_of(&frame.fragments(mtu - 20, 0)), &format!("{mtu}"));
        }
        let at_ip = frame.clone().with(|frame| (frame.pppoe, frame.vlans) = (None, vec![])).at_ip();
        let fragments =
            fragment(&at_ip.to_bytes(), Layer::Ip, RxChecksum::None, 1280).expect("fragmented");
        assert_same(&fragments, &bytes_of(&at_ip.fragments(1260, 0)), "");
        // Padding goes.
        let padded = frame.clone().with(|frame| frame.trailer = vec![1; 5]);
        assert_same(&fragments_of(&padded, 1500), &bytes_of(&frame.fragments(1480, 0)), "");
    }
}

#[test]
fn any_ipv6_packet_can_be_fragmented_for_its_source() {
    let raw = |number| Frame::udp6(4001).with(|frame| frame.transport = Transport::Raw(number));
    let router = Extension::Routing(vec![4, 0, 0, 0]);
    for frame in [
        // ICMPv6, ESP, a protocol of tomorrow; the payload is anything.
        raw(58),
        raw(50).tagged(9),
        raw(253),
        Frame::udp6(4001)
            .with(|frame| frame.transport = Transport::Icmp(Icmp { kind: 128, ..Icmp::default() })),
        Frame::udp6(4000).with(|frame| frame.transport = Transport::Sctp(Sctp::default())),
        Frame::tcp6(1, 4000).in_pppoe(),
        Frame::udp6(4001),
        raw(58).with_ipv6(|ip| ip.extensions = vec![Extension::HopByHop(vec![5, 2, 0, 0])]),
        raw(58).with_ipv6(|ip| {
            ip.extensions = vec![Extension::DestinationOptions(vec![]), router.clone()]
        }),
    ] {
        let extensions: usize = frame.offsets().transport - frame.offsets().network - 40;
        for mtu in [1500, 1501, 1280, 576] {
            let fragments = fragments_of(&frame, mtu);
            assert_same(
                &fragments,
                &bytes_of(&frame.fragments(mtu - 48 - extensions, ID)),
                &format!("{mtu}"),
            );
        }
        let at_ip = frame.clone().with(|frame| (frame.pppoe, frame.vlans) = (None, vec![])).at_ip();
        let padded = at_ip.clone().with(|frame| frame.trailer = vec![1; 5]);
        let fragments =
            fragment(&padded.to_bytes(), Layer::Ip, RxChecksum::None, 1280).expect("fragmented");
        assert_same(&fragments, &bytes_of(&at_ip.fragments(1232 - extensions, ID)), "padding goes");
        // What is a fragment already keeps its identification.
        let mut twice = Vec::new();
        for first in frame.fragments(1472, 5) {
            twice.extend(fragments_of(&first, 784 + extensions));
        }
        assert_same(&twice, &bytes_of(&frame.fragments(736, 5)), "twice");
    }
    // The outer packet of a tunnel is one like any other.
    let frame = Frame::tcp4(1, 4000).in_ip6();
    let fragments = fragments_of(&frame, 1500);
    let contents: Vec<u8> =
        fragments.iter().flat_map(|fragment| fragment[14 + 48..].to_vec()).collect();
    assert_eq!((contents, fragments.len()), (frame.to_bytes()[14 + 40..].to_vec(), 3));
    // A partial checksum is filled in first.
    let partial = Frame::tcp6(1, 4001).with_checksum(Checksum::Partial);
    let state = RxChecksum::Partial { start: 54, offset: 16 };
    let fragments =
        fragment(&partial.to_bytes(), Layer::Ethernet, state, 1500).expect("fragmented");
    assert_same(&fragments, &bytes_of(&Frame::tcp6(1, 4001).fragments(1452, ID)), "partial");
}

#[test]
fn ipv6_packets_that_contradict_themselves_are_not_fragmented() {
    let raw = Frame::udp6(4001).with(|frame| frame.transport = Transport::Raw(58));
    let refused = |frame: Frame, mtu| {
        fragment(&frame.to_bytes(), Layer::Ethernet, RxChecksum::None, mtu)
            .map(|fragments| fragments.len())
    };
    // A jumbo payload option would contradict the fragments' lengths.
    let jumbo = raw.clone().with_ipv6(|ip| {
        (ip.extensions, ip.payload_length) = (vec![Extension::jumbo(4009)], Some(0));
    });
    assert_eq!(refused(jumbo, 1500), Err(SegmentError::Headers(Refusal::ExtensionHeader)));
    // A header behind the packet's end, and one behind what is looked at, which may hide a routing
    // header.
    let mut bytes = raw.clone().with_ipv6(|ip| ip.next_header = Some(60)).to_bytes();
    bytes[14 + 41] = 255;
    let fragments = fragment(&bytes, Layer::Ethernet, RxChecksum::None, 1500);
    assert_eq!(fragments, Err(SegmentError::Headers(Refusal::HeaderTooLong)));
    let mut bytes = raw
        .clone()
        .with(|frame| (frame.payload.truncate(100), frame.ipv6_mut().next_header = Some(60)).1)
        .to_bytes();
    bytes[14 + 41] = 255;
    assert_eq!(
        fragment(&bytes, Layer::Ethernet, RxChecksum::None, 130),
        Err(SegmentError::Headers(Refusal::Malformed))
    );
    // More than a length field can count once the fragments are one packet again.
    assert_eq!(
        refused(raw.clone().with(|frame| frame.payload.resize(65_535, 0)), 1500)
            .map(|count| count > 40),
        Ok(true)
    );
    let long = raw.clone().with(|frame| {
        (frame.payload.resize(65_536, 0), frame.ipv6_mut().payload_length = Some(0)).1
    });
    assert_eq!(
        refused(long, 1500),
        Err(SegmentError::SegmentTooLong { needed: 65_536, limit: 65_535 })
    );
    assert_eq!(refused(raw, 55), Err(SegmentError::SegmentTooSmall { needed: 56, got: 55 }));
}

#[test]
fn fragments_of_fragments_are_those_of_the_packet() {
    let frame = Frame::tcp4(1, 4000).with_ipv4(|ip| ip.dont_fragment = false);
    let mut twice = Vec::new();
    for first in frame.fragments(1472, 0) {
        twice.extend(fragments_of(&first, 760));
    }
    assert_same(&twice, &bytes_of(&frame.fragments(736, 0)), "");
}

#[test]
fn a_partial_checksum_is_filled_in_before_fragmentation() {
    for offset in [16, 6] {
        let frame = if offset == 16 { Frame::tcp4(1, 4001) } else { Frame::udp4(4001) };
        let frame = frame.with_ipv4(|ip| ip.dont_fragment = false);
        let mut partial = frame.clone();
        partial.set_checksum(Checksum::Partial);
        let state = RxChecksum::Partial { start: 34, offset };
        assert_same(
            &fragment(&partial.to_bytes(), Layer::Ethernet, state, 1500).expect("fragmented"),
            &bytes_of(&frame.fragments(1480, 0)),
            "",
        );
        let refused = fragment(
            &partial.to_bytes(),
            Layer::Ethernet,
            RxChecksum::Partial { start: 20, offset: 0 },
            1500,
        );
        assert_eq!(refused, Err(SegmentError::ChecksumPlace { needed: 20, got: 34 }));
    }
}

#[test]
fn only_options_with_the_copied_flag_go_into_later_fragments() {
    // Record route (7, not copied), router alert (0x94, copied), no-operation.
    let options = vec![7, 7, 4, 0, 0, 0, 0, 0x94, 4, 0, 0, 1];
    let frame =
        Frame::udp4(3000).with_ipv4(|ip| (ip.dont_fragment, ip.options) = (false, options.clone()));
    let mut expected = frame.fragments(1468, 0);
    for later in &mut expected[1..] {
        later.ipv4_mut().options = vec![1, 1, 1, 1, 1, 1, 1, 0x94, 4, 0, 0, 1];
    }
    assert_same(&fragments_of(&frame, 1500), &bytes_of(&expected), "");
    assert_same(&datagram_cut(&frame, 1468), &bytes_of(&expected), "");
    // Options that contradict themselves stay as they are from there on.
    let frame = frame.with_ipv4(|ip| ip.options = vec![7, 200, 0, 0]);
    let fragments = fragments_of(&frame, 1500);
    assert!(fragments.iter().all(|fragment| fragment[34..38] == [7, 200, 0, 0]));
}

#[test]
fn what_must_not_be_fragmented_is_refused_and_what_fits_passes() {
    let df = Frame::tcp4(1, 3000);
    assert_eq!(
        fragment(&df.to_bytes(), Layer::Ethernet, RxChecksum::None, 1500),
        Err(SegmentError::DontFragment)
    );
    // IPv6 has no such bit; its packets are fragmented for their source, which chooses the
    // identification, and for nobody else.
    let ipv6 = Frame::tcp6(1, 3000).to_bytes();
    let refused =
        Segmenter::new()
            .fragment(&GsoPacket::linear(&&ipv6[..], ufo(8)), 1500, None, |_| panic!("refused"));
    assert_eq!(refused, Err(SegmentError::DontFragment));
    for frame in [df.clone(), Frame::tcp6(1, 100)] {
        let bytes = frame.padded_to(200).to_bytes();
        assert_eq!(fragment(&bytes, Layer::Ethernet, RxChecksum::None, 3040), Ok(vec![bytes]));
    }
    let clear = df.with_ipv4(|ip| ip.dont_fragment = false).to_bytes();
    assert_eq!(
        fragment(&clear, Layer::Ethernet, RxChecksum::None, 27),
        Err(SegmentError::SegmentTooSmall { needed: 28, got: 27 })
    );
    assert!(matches!(
        fragment(&clear[..1000], Layer::Ethernet, RxChecksum::None, 500),
        Err(SegmentError::Truncated { .. })
    ));
    assert!(matches!(
        fragment(b"\0\0\0\0\0\0\0\0\0\0\0\0\x08\x06xx", Layer::Ethernet, RxChecksum::None, 500),
        Err(SegmentError::Headers(_))
    ));
}

#[test]
fn datagrams_over_ipv6_are_never_fragments_of_one_another() {
    let datagram = Frame::udp6(3000).with_checksum(Checksum::Partial).to_bytes();
    let identifications = |segmenter: &mut Segmenter, options: &SegmentOptions| {
        let mut found = Vec::new();
        let packet = GsoPacket::linear(&datagram, ufo(1448));
        let take = |segment: superpacket::segment::Segment<'_, _>| {
            let header = segment.header();
            found.push(u32::from_be_bytes(header[58..62].try_into().expect("4 bytes")));
        };
        segmenter.segment(&packet, options, take).expect("a right datagram");
        assert!(found.len() == 3 && found.iter().all(|id| *id == found[0]), "{found:?}");
        found[0]
    };
    let mut segmenter = Segmenter::new();
    let own: Vec<_> =
        (0..3).map(|_| identifications(&mut segmenter, &SegmentOptions::default())).collect();
    assert!(own[0] != own[1] && own[1] != own[2] && own[2] != own[0], "{own:?}");
    // One does not tell the next.
    assert_ne!(own[1].wrapping_sub(own[0]), own[2].wrapping_sub(own[1]), "{own:?}");
    // Nor do two segmenters begin alike, of which one may be a copy.
    let mut copy = segmenter.clone();
    let others: Vec<_> = [&mut copy, &mut Segmenter::new()]
        .map(|other| identifications(other, &SegmentOptions::default()))
        .into();
    assert!(
        others.iter().all(|other| !own.contains(other)) && others[0] != others[1],
        "{own:?} {others:?}"
    );
    // Who says one gets it.
    assert_eq!(
        identifications(&mut segmenter, &SegmentOptions::default().with_fragment_id(ID)),
        ID
    );
    assert!(!own.contains(&identifications(&mut segmenter, &SegmentOptions::default())));
}

#[test]
fn a_read_of_a_device_is_split_into_fragments_of_its_own() {
    use superpacket::Framing;
    let split = |segmenter: &mut Segmenter| {
        // A datagram of 3,000 bytes, as a guest's virtio header describes it.
        let mut read = vec![1, 3, 0, 0];
        for number in [1448u16, 54, 6] {
            read.extend(number.to_ne_bytes());
        }
        read.extend(Frame::udp6(3000).with_checksum(Checksum::Partial).to_bytes());
        let mut out = Vec::new();
        segmenter.split(Framing::TAP, &read, &mut out).expect("a right datagram");
        assert_eq!(out[20], 44, "an IPv6 fragment");
        out[58..62].to_vec()
    };
    let mut segmenter = Segmenter::new();
    assert_ne!(split(&mut segmenter), split(&mut segmenter));
}
