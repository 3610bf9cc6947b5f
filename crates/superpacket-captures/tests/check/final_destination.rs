//! Packets whose checksum covers the final destination of a route, or a home address. All commands
//! accept them as right, and `check` finds the faults in them, and no others.

use super::*;
use superpacket_captures::{AnalyzeOptions, VerifyOptions, analyze, verify};
use superpacket_traffic::frame::Extension;

/// Returns the address of a stop on the route, which ends with this byte.
const fn stop(last: u8) -> [u8; 16] {
    [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab, last]
}

/// Returns TCP and UDP packets over IPv6 with a routing header or a home address.
fn routed() -> Vec<Frame> {
    let extensions = [
        Extension::segment_route(&[stop(1), stop(2), stop(3)], 2),
        Extension::segment_route(&[stop(1), stop(2)], 0),
        Extension::source_route(0, &[stop(1), stop(2)], 1),
        Extension::source_route(2, &[stop(7)], 1),
        Extension::home_address(stop(9)),
    ];
    let bases = |extension: Extension| {
        [Frame::tcp6(1000, 100), Frame::udp6(100)]
            .map(|base| base.with(|frame| frame.ipv6_mut().extensions = vec![extension.clone()]))
    };
    extensions.into_iter().flat_map(bases).collect()
}

/// Returns a TCP packet behind a source route that is not exhausted.
fn source_routed() -> Frame {
    Frame::tcp4(1000, 100)
        .with(|frame| frame.ipv4_mut().options = vec![137, 11, 4, 10, 9, 8, 7, 10, 6, 5, 4])
}

/// Returns a packet with a routing header of an unknown type. The addresses that its checksum
/// covers cannot be known.
fn unknown() -> Frame {
    let unknown = Extension::Routing([&[253, 1, 0, 0, 0, 0], &stop(5)[..]].concat());
    Frame::tcp6(1000, 100).with(|frame| frame.ipv6_mut().extensions = vec![unknown])
}

fn run(base: &Frame) -> Vec<Frame> {
    let mut frames = base.run(5);
    for (index, frame) in frames.iter_mut().enumerate() {
        frame.payload = stream_bytes(1 + 1000 * index as u32, 100);
    }
    frames
}

/// Returns the MTU with which each segment has 100 bytes of payload.
fn mtu(base: &Frame) -> u32 {
    (base.offsets().payload - base.offsets().network) as u32 + 100
}

fn capture(frames: impl IntoIterator<Item = Vec<u8>>) -> Packets {
    let mut packets = Packets::new();
    frames
        .into_iter()
        .for_each(|bytes| packets.push(LinkType::ETHERNET, Some(0), &bytes).expect("short"));
    packets
}

fn bytes(packets: &Packets) -> Vec<Vec<u8>> {
    packets.iter().map(|frame| frame.data.to_vec()).collect()
}

#[test]
fn commands_merge_and_cut_routed_packets() {
    for base in routed() {
        let original: Vec<_> = run(&base).iter().map(Frame::to_bytes).collect();
        let packets = capture(original.clone());
        let (mut whole, mut cut) = (Packets::new(), Packets::new());
        let options = CoalesceOptions::default();
        let report =
            coalesce(Input::from(&packets), Output::Packets(&mut whole), &options, &mut ())
                .expect("packets");
        assert_eq!(
            (report.totals.packets_out, report.totals.merged),
            (1, 4),
            "{:?}",
            report.totals.reasons
        );
        let judged = judge(Input::from(&whole), Input::from(&packets));
        assert_eq!(judged.violations, 0, "{:#?}", judged.described);
        let analysis = analyze(vec![Input::from(&packets)], &AnalyzeOptions::default(), &mut ())
            .expect("packets");
        assert!(!analysis.files[0].findings.totals.reasons.contains_key("bad_checksum"));
        let verified = verify(vec![Input::from(&packets)], &VerifyOptions::default(), &mut ())
            .expect("packets");
        assert_eq!(verified.files[0].mismatches, 0);
        if matches!(base.transport, Transport::Tcp(_)) {
            let options = SegmentOptions { mtu: mtu(&base), ..SegmentOptions::default() };
            segment(Input::from(&whole), Output::Packets(&mut cut), &options, &mut ())
                .expect("packets");
            assert_eq!(bytes(&cut), original);
        }
    }
}

#[test]
fn super_packets_of_all_kinds_are_cut_with_the_right_checksums() {
    for base in routed()
        .into_iter()
        .chain([source_routed()])
        .filter(|base| matches!(base.transport, Transport::Tcp(_)))
    {
        let frames = run(&base);
        for form in [Checksum::Right, Checksum::Partial] {
            let whole = merged(&frames).0.with(|frame| frame.tcp_mut().checksum = form);
            let options = SegmentOptions { mtu: mtu(&base), ..SegmentOptions::default() };
            let mut cut = Packets::new();
            let report = segment(
                Input::from(&capture([whole.to_bytes()])),
                Output::Packets(&mut cut),
                &options,
                &mut (),
            )
            .expect("packets");
            let expected: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
            assert_eq!(bytes(&cut), expected, "{form:?} {:?}", report.totals.reasons);
        }
    }
}

#[test]
fn unverifiable_packets_pass_with_their_own_reason() {
    let frames = run(&unknown());
    let mut left = Packets::new();
    let original: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
    let packets = capture(original.clone());
    let report = coalesce(
        Input::from(&packets),
        Output::Packets(&mut left),
        &CoalesceOptions::default(),
        &mut (),
    )
    .expect("packets");
    assert_eq!(
        report.totals.reasons.get("final_destination"),
        Some(&5),
        "{:?}",
        report.totals.reasons
    );
    assert_eq!(bytes(&left), original);
    // A super-packet of it is not cut: its segments would have wrong checksums.
    let whole =
        merged(&frames).0.with(|frame| frame.tcp_mut().checksum = Checksum::Right).to_bytes();
    let mut left = Packets::new();
    let options = SegmentOptions { mtu: 300, ..SegmentOptions::default() };
    let report = segment(
        Input::from(&capture([whole.clone()])),
        Output::Packets(&mut left),
        &options,
        &mut (),
    )
    .expect("packets");
    assert_eq!(
        report.totals.reasons.get("final_destination"),
        Some(&1),
        "{:?}",
        report.totals.reasons
    );
    assert_eq!(bytes(&left), [whole]);
}

/// Checks segments of a super-packet, as the kernel cuts it.
fn judged(whole: &Left, segments: &[Vec<u8>]) -> Vec<&'static str> {
    let origin = records(Format::Buffers, &[(whole.0.to_bytes(), whole.1)]);
    let left: Vec<_> = segments.iter().map(|bytes| (bytes.clone(), plain())).collect();
    let report = judge(stream(&records(Format::Buffers, &left)), stream(&origin));
    broken(&report).into_iter().collect()
}

#[test]
fn wrong_segments_of_routed_packets_are_found() {
    for base in routed().into_iter().chain([source_routed(), unknown()]) {
        let frames = run(&base);
        let whole = merged(&frames);
        let right: Vec<_> = frames.iter().map(Frame::to_bytes).collect();
        assert_eq!(judged(&whole, &right), [""; 0], "{base:?}");
        // One segment has a wrong checksum.
        let field = base.offsets().transport
            + if matches!(base.transport, Transport::Tcp(_)) { 16 } else { 6 };
        let mut wrong = right.clone();
        wrong[1][field + 1] ^= 0x40;
        assert_eq!(judged(&whole, &wrong), ["checksum"], "{base:?}");
    }
}

#[test]
fn wrong_super_packets_of_routed_packets_are_found() {
    for base in routed() {
        let case = Case::aggregation(run(&base));
        case.breaks(&[]);
        // The sum covers the address in the header, as with Linux's GRO.
        let without = {
            let (mut frame, _) = case.left[0].clone();
            let (ip, bytes) = (frame.ipv6_mut().clone(), frame.to_bytes());
            let number = if matches!(base.transport, Transport::Tcp(_)) { 6 } else { 17 };
            let length = (bytes.len() - frame.offsets().transport) as u32;
            superpacket_traffic::checksum::pseudo_v6(ip.source, ip.destination, number, length)
        };
        let mut wrong = case;
        let right = wrong.left[0].0.to_bytes();
        *wrong.left[0].0.checksum_mut().expect("it has one") = Checksum::Raw(without);
        let is_wrong = wrong.left[0].0.to_bytes() != right;
        wrong.breaks(if is_wrong { &["partial-checksum"] } else { &[] });
    }
}
