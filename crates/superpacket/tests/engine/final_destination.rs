//! Packets whose checksum covers other addresses than those of their IP header: source routes,
//! routing headers, home addresses. They merge, come back and are cut as any others, with the
//! checksum that an independent builder makes.

use core::net::IpAddr;

use crate::expect::*;
use crate::support::*;
use superpacket::Simd;
use superpacket::aggregate::{HashKey, Policy, Reason};
use superpacket::checksum::{CompletionError, complete_partial};
use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{ChecksumOutput, Gso, GsoKind, GsoPacket, SegmentError, SegmentOptions};
use superpacket::wire::{IpVersion, Refusal, checksum_addresses};
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::{Checksum, Extension, Frame, Ip, Transport};

/// An address that ends with this byte.
const fn stop(last: u8) -> [u8; 16] {
    [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, last]
}

/// A compressed route over two stops, of whose addresses all but the last two bytes are those of
/// the destination.
fn compressed(left: u8) -> Extension {
    Extension::Routing(vec![3, left, 0xee, 4 << 4, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0, 0])
}

/// Extension headers, and the source and destination that they name.
type Known = (Vec<Extension>, Option<[u8; 16]>, Option<[u8; 16]>);

/// Extension headers, and the addresses that a checksum behind them covers: those of the header,
/// where they are `None`.
fn known() -> Vec<Known> {
    let mut last_two = Frame::tcp6(1, 1).ipv6_mut().destination;
    last_two[14..].copy_from_slice(&[0x56, 0x78]);
    let segments = [stop(1), stop(2), stop(3)];
    // The first segment is left out of the list, and so one more is left than there are.
    let reduced = Extension::segment_route(&[stop(2), stop(3)], 2);
    vec![
        (vec![Extension::segment_route(&segments, 0)], None, None),
        (vec![Extension::segment_route(&segments, 1)], None, Some(stop(3))),
        (vec![Extension::segment_route(&segments, 3)], None, Some(stop(3))),
        (vec![reduced], None, Some(stop(3))),
        (vec![Extension::source_route(0, &segments, 0)], None, None),
        (vec![Extension::source_route(0, &segments, 2)], None, Some(stop(3))),
        (vec![Extension::source_route(2, &[stop(7)], 1)], None, Some(stop(7))),
        (vec![Extension::source_route(2, &[stop(7)], 0)], None, None),
        (vec![compressed(0)], None, None),
        (vec![compressed(2)], None, Some(last_two)),
        (vec![Extension::home_address(stop(9))], Some(stop(9)), None),
        (
            vec![
                Extension::HopByHop(vec![5, 2, 0, 0, 1, 0]),
                Extension::segment_route(&segments, 2),
            ],
            None,
            Some(stop(3)),
        ),
        (
            vec![Extension::segment_route(&segments, 2), Extension::home_address(stop(9))],
            Some(stop(9)),
            Some(stop(3)),
        ),
        (
            vec![Extension::segment_route(&segments, 2), Extension::source_route(2, &[stop(7)], 1)],
            None,
            Some(stop(7)),
        ),
        // A route of an unknown type that has been passed.
        (vec![Extension::Routing(vec![253, 0, 0, 0, 0, 0])], None, None),
        (vec![Extension::DestinationOptions(vec![0x1e, 4, 1, 2, 3, 4])], None, None),
    ]
}

/// Extension headers from which the addresses cannot be told.
fn unknown() -> Vec<Vec<Extension>> {
    let segments = [stop(1), stop(2)];
    let with = |extension: Extension, place: usize, value: u8| {
        let Extension::Routing(mut contents) = extension else { panic!("a routing header") };
        contents[place] = value;
        Extension::Routing(contents)
    };
    vec![
        // More segments are left than there are, or than fit.
        vec![Extension::segment_route(&segments, 3)],
        vec![with(Extension::segment_route(&segments, 1), 2, 2)],
        vec![with(Extension::segment_route(&segments, 1), 2, 255)],
        vec![Extension::source_route(0, &segments, 3)],
        vec![Extension::source_route(0, &[], 1)],
        vec![Extension::source_route(2, &segments, 1)],
        vec![Extension::source_route(2, &segments[..1], 2)],
        vec![compressed(3)],
        vec![Extension::Routing(vec![3, 1, 0, 0xf0, 0, 0])],
        vec![Extension::Routing(vec![253, 1, 0, 0, 0, 0])],
        // A home address of another length, and two.
        vec![Extension::DestinationOptions(vec![201, 4, 1, 2, 3, 4])],
        vec![Extension::DestinationOptions(vec![1, 0, 201, 16, 1, 2])],
        vec![Extension::home_address(stop(1)), Extension::home_address(stop(1))],
    ]
}

/// A source route over these stops.
fn route(kind: u8, stops: &[[u8; 4]], pointer: u8) -> Vec<u8> {
    [&[kind, 3 + 4 * stops.len() as u8, pointer], &stops.concat()[..]].concat()
}

const STOPS: [[u8; 4]; 2] = [[10, 9, 8, 7], [10, 6, 5, 4]];

/// IPv4 options, and the destination that a checksum covers.
fn options() -> Vec<(Vec<u8>, Option<[u8; 4]>)> {
    let mut options = Vec::new();
    for kind in [0x83, 0x89] {
        options.extend([
            (route(kind, &STOPS, 4), Some(STOPS[1])),
            (route(kind, &STOPS, 8), Some(STOPS[1])),
            // Exhausted.
            (route(kind, &STOPS, 12), None),
            ([vec![1, 1, 0x94, 4, 0, 0], route(kind, &STOPS, 4)].concat(), Some(STOPS[1])),
            // Behind the end of the list, and behind an option that reaches beyond the header.
            ([vec![0], route(kind, &STOPS, 4)].concat(), None),
            ([vec![0x94, 60], route(kind, &STOPS, 4)].concat(), None),
        ]);
    }
    options.extend([
        (vec![], None),
        (vec![0x94, 4, 0, 0], None),
        (vec![7, 7, 4, 0, 0, 0, 0], None),
    ]);
    options
}

/// IPv4 options from which the destination cannot be told.
fn unknown_options() -> Vec<Vec<u8>> {
    let with = |place: usize, value: u8| {
        let mut option = route(0x83, &STOPS, 4);
        option[place] = value;
        option
    };
    let pointers = [0, 1, 3, 5, 6, 11].into_iter().map(|pointer| with(2, pointer));
    let lengths = [0, 1, 2, 40, 10].into_iter().map(|length| with(1, length));
    let twice = [route(0x83, &STOPS, 4), route(0x89, &STOPS, 12)].concat();
    pointers.chain(lengths).chain([twice, vec![1, 1, 1, 0x83]]).collect()
}

fn addresses(frame: &Frame) -> Option<(IpAddr, IpAddr)> {
    let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
    let version = if matches!(frame.ip, Ip::V4(_)) { IpVersion::V4 } else { IpVersion::V6 };
    checksum_addresses(&bytes[offsets.network..], version)
}

fn v6(base: Frame, extensions: &[Extension]) -> Frame {
    base.with_ipv6(|ip| ip.extensions = extensions.to_vec())
}

/// Frames of every protocol over IPv6, and in tunnels.
fn over_ipv6(length: usize) -> Vec<Frame> {
    let plain = [Frame::tcp6(1000, length), Frame::udp6(length), Frame::dccp6(1, length)];
    let tunnels: [fn(Frame) -> Frame; 5] =
        [Frame::in_vxlan4, Frame::in_vxlan6, Frame::in_geneve, Frame::in_gre, Frame::in_ip6];
    let inside =
        tunnels.into_iter().flat_map(|tunnel| plain.clone().map(tunnel)).collect::<Vec<_>>();
    plain.into_iter().chain(inside).collect()
}

#[test]
fn the_addresses_of_each_kind() {
    for (extensions, source, destination) in known() {
        let mut frame = v6(Frame::tcp6(1, 20), &extensions);
        let header = (frame.ipv6_mut().source, frame.ipv6_mut().destination);
        let expected = (
            IpAddr::from(source.unwrap_or(header.0)),
            IpAddr::from(destination.unwrap_or(header.1)),
        );
        assert_eq!(addresses(&frame), Some(expected), "{extensions:?}");
    }
    for extensions in unknown() {
        assert_eq!(addresses(&v6(Frame::tcp6(1, 20), &extensions)), None, "{extensions:?}");
    }
    for (options, destination) in options() {
        let mut frame = Frame::tcp4(1, 20).with_ipv4(|ip| ip.options = options.clone());
        let header = (frame.ipv4_mut().source, frame.ipv4_mut().destination);
        assert_eq!(
            addresses(&frame),
            Some((header.0.into(), destination.unwrap_or(header.1).into())),
            "{options:?}"
        );
    }
    for options in unknown_options() {
        assert_eq!(
            addresses(&Frame::tcp4(1, 20).with_ipv4(|ip| ip.options = options.clone())),
            None,
            "{options:?}"
        );
    }
}

#[test]
fn headers_that_are_not_complete_say_nothing() {
    let all = [
        v6(Frame::tcp6(1, 0), &known()[12].0),
        Frame::tcp4(1, 0).with_ipv4(|ip| ip.options = options()[0].0.clone()),
    ];
    for (frame, version) in all.into_iter().zip([IpVersion::V6, IpVersion::V4]) {
        let frame = frame.at_ip();
        let (bytes, offsets) = (frame.to_bytes(), frame.offsets());
        for length in 0..=bytes.len() {
            let found = checksum_addresses(&bytes[..length], version);
            assert_eq!(found.is_some(), length >= offsets.transport, "{length} of {version:?}");
        }
    }
}

#[test]
fn they_merge_and_come_back() {
    for (extensions, ..) in known() {
        for base in over_ipv6(100) {
            merges(&v6(base, &extensions).run(4));
        }
    }
    // Tunnels that themselves lead over a route.
    for (extensions, ..) in known() {
        for tunnel in [Frame::in_vxlan6, Frame::in_ip6] {
            let mut frame = tunnel(Frame::tcp4(1, 100));
            if let Ip::V6(ip) = &mut frame.tunnel_mut().ip {
                ip.extensions = extensions.clone();
            }
            merges(&frame.run(4));
        }
    }
}

#[test]
fn merged_packets_have_the_right_checksum() {
    for trusted in [false, true] {
        for partial in [false, true] {
            for (extensions, ..) in known() {
                for base in over_ipv6(100) {
                    let policy = if partial { PARTIAL_GRO_UDP } else { Policy::gro_with_udp() };
                    let state = if trusted {
                        RxChecksum::Unnecessary { level: 1 }
                    } else {
                        RxChecksum::None
                    };
                    let sent: Vec<_> = packets(&v6(base, &extensions).run(4))
                        .into_iter()
                        .map(|packet| packet.with_checksum(state))
                        .collect();
                    let run = run(policy, &sent);
                    assert_eq!(counts(&run), [4], "{extensions:?}");
                    let checked = check::frame(
                        &run.outputs[0].bytes,
                        &Expect { partial, ..Expect::default() },
                    )
                    .expect("it is right");
                    assert_eq!(checked.partial.is_some(), partial);
                }
            }
        }
    }
}

#[test]
fn trusted_input_is_gathered_with_the_right_checksum() {
    let frames = v6(Frame::tcp6(1, 100), &known()[1].0).run(3);
    let policy = Policy::gro().with_trusted_input();
    let bytes: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
    let packets: Vec<_> = bytes.iter().map(|bytes| RxPacket::new(&bytes[..])).collect();
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, HashKey::new(1));
    let mut left = Vec::new();
    aggregator.poll_gathered(&packets, |slices| {
        left.push(slices.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>())
    });
    assert_eq!(left.len(), 1);
    check::frame(&left[0], &Expect::default()).expect("it is right");
}

#[test]
fn one_whose_checksum_covers_the_headers_address_is_damaged() {
    let base = v6(Frame::tcp6(1000, 100), &known()[1].0);
    refused_packet(&base, Reason::BadChecksum, |frame| {
        let mut header = frame.clone();
        header.ipv6_mut().extensions.clear();
        let (routed, plain) = (frame.to_bytes(), header.to_bytes());
        let mut bytes = routed;
        let (place, from) = (frame.offsets().transport + 16, header.offsets().transport + 16);
        bytes[place..place + 2].copy_from_slice(&plain[from..from + 2]);
        bytes.into()
    });
}

#[test]
fn another_route_ends_a_merge() {
    let base = v6(Frame::tcp6(1000, 100), &known()[1].0);
    differs(&base, Reason::ExtensionHeader, |frame| {
        frame.ipv6_mut().extensions =
            vec![Extension::segment_route(&[stop(1), stop(2), stop(4)], 1)]
    });
}

#[test]
fn unknown_destinations_pass_for_a_reason_of_their_own() {
    for extensions in unknown() {
        for base in over_ipv6(100).into_iter().take(3) {
            let frames = v6(base, &extensions).run(3);
            for state in [RxChecksum::None, VERIFIED] {
                let sent: Vec<_> = packets(&frames)
                    .into_iter()
                    .map(|packet| packet.with_checksum(state))
                    .collect();
                let run = in_order(&sent);
                assert_eq!(
                    (counts(&run), run.reasons()),
                    (vec![1; 3], vec![Reason::FinalDestination; 3]),
                    "{extensions:?}"
                );
            }
        }
    }
}

/// How a packet of this frame is cut.
fn kind_of(frame: &Frame) -> GsoKind {
    match (&frame.transport, &frame.ip) {
        (Transport::Tcp(_), Ip::V4(_)) => GsoKind::Tcp4,
        (Transport::Tcp(_), Ip::V6(_)) => GsoKind::Tcp6,
        (Transport::Udp(_), _) => GsoKind::Udp,
        _ => GsoKind::Dccp,
    }
}

/// The super-packet of frames, its checksum as `form` says, and how it is to be cut.
fn whole(frames: &[Frame], form: Checksum) -> (Vec<u8>, Gso, RxChecksum) {
    let mut frame = frames[0].clone();
    frame.payload = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
    frame.set_checksum(form);
    let gso = gso_of(kind_of(&frame), frames[0].payload.len());
    let offset = match frame.transport {
        Transport::Tcp(_) => 16,
        _ => 6,
    };
    let state = RxChecksum::Partial { start: frame.offsets().transport as u16, offset };
    (frame.to_bytes(), gso, if form == Checksum::Partial { state } else { RxChecksum::None })
}

fn cut(
    bytes: &Vec<u8>,
    gso: Gso,
    state: RxChecksum,
    output: ChecksumOutput,
) -> Result<Vec<Vec<u8>>, SegmentError> {
    let packet = GsoPacket::linear(bytes, gso).with_checksum(state);
    segments(&packet, &SegmentOptions::default().with_checksum(output))
}

#[test]
fn super_packets_are_cut_with_the_right_checksums() {
    let v4 = options().into_iter().flat_map(|(options, _)| {
        [Frame::tcp4(1, 100), Frame::udp4(100), Frame::dccp4(1, 100)]
            .map(|base| base.with_ipv4(|ip| ip.options = options.clone()))
    });
    let v6 = known().into_iter().flat_map(|(extensions, ..)| {
        over_ipv6(100).into_iter().map(move |base| v6(base, &extensions))
    });
    for base in v4.chain(v6) {
        let frames = base.run(4);
        let right: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        let partial: Vec<_> = frames
            .iter()
            .map(|frame| frame.clone().with_checksum(Checksum::Partial).to_bytes())
            .collect();
        for form in [Checksum::Partial, Checksum::Right] {
            let (bytes, gso, state) = whole(&frames, form);
            assert_eq!(
                cut(&bytes, gso, state, ChecksumOutput::Full).as_ref(),
                Ok(&right),
                "{base:?}"
            );
            assert_eq!(
                cut(&bytes, gso, state, ChecksumOutput::Partial).as_ref(),
                Ok(&partial),
                "{base:?}"
            );
        }
    }
}

/// Where the field holds a sum, no header is asked which addresses that is of.
#[test]
fn a_seed_is_adjusted_by_difference() {
    let v4 = unknown_options()
        .into_iter()
        .map(|options| Frame::tcp4(1, 100).with_ipv4(|ip| ip.options = options));
    let v6 = unknown()
        .into_iter()
        .flat_map(|extensions| over_ipv6(100).into_iter().map(move |base| v6(base, &extensions)));
    for base in v4.chain(v6) {
        // The builder seeds with the addresses of the header where it knows no others.
        let frames = base.run(4);
        let right: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        let (bytes, gso, state) = whole(&frames, Checksum::Partial);
        assert_eq!(cut(&bytes, gso, state, ChecksumOutput::Full).as_ref(), Ok(&right), "{base:?}");
        let (bytes, gso, state) = whole(&frames, Checksum::Right);
        assert_eq!(
            cut(&bytes, gso, state, ChecksumOutput::Full),
            Err(SegmentError::Headers(Refusal::FinalDestination)),
            "{base:?}"
        );
    }
}

#[test]
fn datagrams_to_be_fragmented_keep_the_sum_of_their_seed() {
    for (extensions, ..) in known() {
        let frame = v6(Frame::udp6(3000), &extensions);
        for form in [Checksum::Partial, Checksum::Right] {
            let (bytes, gso, state) = whole(std::slice::from_ref(&frame), form);
            let gso = gso_of(GsoKind::UdpFragments, 1400).with_id(gso.id);
            let packet = GsoPacket::linear(&bytes, gso).with_checksum(state);
            let place = frame.offsets().transport;
            let carried = segments(&packet, &SegmentOptions::default()).expect("cut");
            // The UDP header is in the first fragment, behind a fragment header of 8 bytes.
            let right = frame.to_bytes();
            assert_eq!(
                carried[0][place + 8 + 6..place + 8 + 8],
                right[place + 6..place + 8],
                "{extensions:?}"
            );
        }
    }
}

#[test]
fn a_checksum_without_a_seed_is_completed_for_the_final_destination() {
    let complete = |frame: &Frame| {
        let mut bytes = frame.clone().with_checksum(Checksum::Zero).to_bytes();
        let start = frame.offsets().transport as u16;
        complete_partial(&mut bytes, Layer::Ethernet, start, 16, Simd::detect()).map(|()| bytes)
    };
    for (extensions, ..) in known() {
        let frame = v6(Frame::tcp6(1, 77), &extensions);
        assert_eq!(complete(&frame), Ok(frame.to_bytes()), "{extensions:?}");
    }
    for extensions in unknown() {
        assert_eq!(
            complete(&v6(Frame::tcp6(1, 77), &extensions)),
            Err(CompletionError::FinalDestination),
            "{extensions:?}"
        );
    }
}
