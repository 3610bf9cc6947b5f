//! Checksums that `coalesce` and `segment` complete, correct or keep. Expected values are computed
//! here, or by etherparse.

use superpacket::packet::Layer;
use superpacket::wire::parse_datagram;
use superpacket_captures::{
    ChecksumCounts, CoalesceOptions, CoalesceReport, Error, Input, LinkType, Output, Packets,
    SegmentOptions, SegmentReport, coalesce, segment,
};
use superpacket_traffic::check::{Expect, Kind, frame as check_frame, layers};
use superpacket_traffic::frame::{ACK, Carrier, Checksum, Frame, Ip};
use superpacket_traffic::generate::{self, Config, Impairments, generate};

/// Returns packets of this link type, a microsecond apart.
fn packets_of(link_type: LinkType, frames: impl IntoIterator<Item = Vec<u8>>) -> Packets {
    let mut packets = Packets::new();
    for (number, frame) in frames.into_iter().enumerate() {
        packets.push(link_type, Some(number as u64 * 1000), &frame).expect("short");
    }
    packets
}

fn packets(frames: impl IntoIterator<Item = Vec<u8>>) -> Packets {
    packets_of(LinkType::ETHERNET, frames)
}

fn bytes(packets: &Packets) -> Vec<Vec<u8>> {
    packets.iter().map(|frame| frame.data.to_vec()).collect()
}

fn cut(input: &Packets, options: &SegmentOptions) -> (SegmentReport, Vec<Vec<u8>>) {
    let mut out = Packets::new();
    let report = segment(input.into(), Output::Packets(&mut out), options, &mut ()).expect("cuts");
    assert_eq!(report.totals.packets_out, out.len() as u64);
    assert_eq!(report.totals.reasons.values().sum::<u64>(), input.len() as u64);
    (report, bytes(&out))
}

fn merge(input: &Packets, options: &CoalesceOptions) -> (CoalesceReport, Vec<Vec<u8>>) {
    let mut out = Packets::new();
    let report =
        coalesce(Input::from(input), Output::Packets(&mut out), options, &mut ()).expect("merges");
    (report, bytes(&out))
}

fn fixing() -> SegmentOptions {
    SegmentOptions { fix_checksums: true, ..SegmentOptions::default() }
}

fn reason(report: &SegmentReport, name: &str) -> u64 {
    report.totals.reasons.get(name).copied().unwrap_or(0)
}

fn word(bytes: &[u8], place: usize) -> u16 {
    u16::from_be_bytes([bytes[place], bytes[place + 1]])
}

fn put(bytes: &mut [u8], place: usize, value: u16) {
    bytes[place..place + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the sum of 16-bit words, as RFC 1071 defines it.
fn sum(bytes: &[u8]) -> u16 {
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Asserts that the checksums of an Ethernet frame with TCP or UDP over IPv4, without IP options,
/// are right.
fn assert_sums(frame: &[u8]) {
    let length = usize::from(word(frame, 16));
    assert_eq!(sum(&frame[14..34]), 0xffff, "the IPv4 header");
    let mut covered = [&frame[26..34], &[0, frame[23]]].concat();
    covered.extend((length as u16 - 20).to_be_bytes());
    covered.extend(&frame[34..14 + length]);
    assert_eq!(sum(&covered), 0xffff, "the transport");
}

fn assert_right(frame: &[u8]) {
    let expect = Expect { trailing: true, big: true, ..Expect::default() };
    if let Err(problem) = check_frame(frame, &expect) {
        panic!("{problem}");
    }
}

/// Returns the frame with another source address, as a tool writes it that leaves the checksums.
fn readdressed(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.to_bytes();
    bytes[26..30].copy_from_slice(&[172, 16, 9, 9]);
    bytes
}

#[test]
fn super_packets_with_rewritten_addresses_are_cut_on_request() {
    let input = packets([readdressed(&Frame::tcp4(1, 5000))]);
    let (report, out) = cut(&input, &SegmentOptions::default());
    assert_eq!((report.uncut, report.uncut_by_checksum()), (1, 1));
    assert_eq!(out, bytes(&input));
    let (report, out) = cut(&input, &fixing());
    assert_eq!((report.uncut, report.uncut_by_checksum(), report.segments), (0, 0, 4));
    assert_eq!(
        report.checksums.fixed,
        ChecksumCounts { frames: 1, ipv4_header: 1, tcp: 1, ..ChecksumCounts::default() }
    );
    assert_eq!(report.checksums.completed, ChecksumCounts::default());
    out.iter().for_each(|frame| assert_sums(frame));
    let with_address = |mut frame: Frame| {
        frame.ipv4_mut().source = [172, 16, 9, 9];
        frame.to_bytes()
    };
    let (_, expected) =
        cut(&packets([with_address(Frame::tcp4(1, 5000))]), &SegmentOptions::default());
    assert_eq!(out, expected);
}

#[test]
fn checksums_that_an_anonymiser_removed_are_written() {
    let mut frame = Frame::tcp4(1, 5000).to_bytes();
    put(&mut frame, 24, 0);
    put(&mut frame, 50, 0);
    let input = packets([frame]);
    let (report, _) = cut(&input, &SegmentOptions::default());
    assert_eq!((report.uncut, reason(&report, "bad_checksum")), (1, 1));
    let (report, out) = cut(&input, &fixing());
    assert_eq!((report.uncut, report.segments), (0, 4));
    assert_eq!((report.checksums.completed.ipv4_header, report.checksums.fixed.tcp), (1, 1));
    out.iter().for_each(|frame| assert_sums(frame));
}

/// An LRO that does not compute the checksum leaves that of the first segment.
#[test]
fn a_checksum_of_the_first_segment_alone_is_corrected() {
    let first = Frame::tcp4(1, 1460).to_bytes();
    let mut frame = Frame::tcp4(1, 4380).to_bytes();
    put(&mut frame, 50, word(&first, 50));
    let input = packets([frame]);
    let (report, _) = cut(&input, &SegmentOptions::default());
    assert_eq!(reason(&report, "bad_checksum"), 1);
    let (report, out) = cut(&input, &fixing());
    assert_eq!((report.checksums.fixed.tcp, report.checksums.fixed.ipv4_header), (1, 0));
    assert_eq!(out, Frame::tcp4(1, 1460).run_bytes(3));
}

/// As VMware captures TSO: the IPv4 header 45 02 00 00 56 18 40 00 80 06 00 00 in a frame of 1,535
/// bytes. A removed TCP checksum is 0 too.
#[test]
fn frames_without_length_and_checksums_are_cut_on_request() {
    for payload in [1481, 100] {
        let mut frame = Frame::tcp4(1, payload).to_bytes();
        frame[14..26].copy_from_slice(&[0x45, 2, 0, 0, 0x56, 0x18, 0x40, 0, 0x80, 6, 0, 0]);
        put(&mut frame, 50, 0);
        let input = packets([frame.clone()]);
        let (report, out) = cut(&input, &SegmentOptions::default());
        assert_eq!(report.uncut_by_checksum(), u64::from(payload > 1460));
        assert_eq!(word(&out[0], 50), 0);
        let (report, out) = cut(&input, &fixing());
        assert_eq!((report.uncut, out.len()), (0, if payload > 1460 { 2 } else { 1 }));
        assert_eq!((report.checksums.completed.ipv4_header, report.checksums.fixed.tcp), (1, 1));
        out.iter().for_each(|frame| assert_sums(frame));
        // The lengths stay in `coalesce`, and the sums are right for them.
        let options = CoalesceOptions { fix_checksums: true, ..CoalesceOptions::default() };
        let (report, out) = merge(&input, &options);
        assert_eq!((report.checksums.fixed.tcp, out.len()), (1, 1));
        assert_eq!(sum(&out[0][14..34]), 0xffff);
        put(&mut frame, 16, 40 + payload as u16);
        let header = sum(&frame[14..34]);
        put(&mut frame, 24, !header);
        put(&mut frame, 50, word(&out[0], 50));
        assert_sums(&frame);
    }
}

#[test]
fn udp_over_ipv4_may_have_no_checksum() {
    let none = Frame::udp4(4000).with_checksum(Checksum::Zero).to_bytes();
    let wrong = Frame::udp4(4000).with_checksum(Checksum::Wrong).to_bytes();
    let missing = Frame::udp6(100).with_checksum(Checksum::Zero).to_bytes();
    let options = SegmentOptions { udp_size: Some(1000), ..fixing() };
    let (report, out) = cut(&packets([none, wrong, missing]), &options);
    assert_eq!(
        report.checksums.fixed,
        ChecksumCounts { frames: 2, udp: 2, ..ChecksumCounts::default() }
    );
    assert_eq!((report.uncut, out.len()), (0, 9));
    out[..4].iter().for_each(|frame| assert_eq!(word(frame, 40), 0));
    out[4..8].iter().for_each(|frame| assert_sums(frame));
    assert_eq!(out[8], Frame::udp6(100).to_bytes());
}

#[test]
fn checksums_of_tunnels_and_dccp_are_corrected() {
    let gre = |checksum| {
        Frame::tcp4(1, 4000).in_gre().with(|frame| match &mut frame.tunnel_mut().carrier {
            Carrier::Gre(gre) => gre.checksum = Some(checksum),
            _ => unreachable!("in GRE"),
        })
    };
    let outer = |checksum| Frame::tcp6(1, 4000).in_vxlan6().with_outer_checksum(checksum);
    let headers = Frame::tcp4(1, 4000).in_geneve6().with(|frame| {
        frame.ipv4_mut().checksum = Checksum::Zero;
    });
    let dccp = |checksum| Frame::dccp4(1, 4000).with_checksum(checksum);
    let (right, wrong) = (Checksum::Right, Checksum::Wrong);
    let damaged = [gre(wrong), outer(wrong), dccp(wrong)].map(|frame| frame.to_bytes());
    let whole = [gre(right), outer(right), dccp(right)].map(|frame| frame.to_bytes());
    let mut large = SegmentOptions { mtu: 65_535, ..fixing() };
    let (report, out) = cut(&packets(damaged.clone()), &large);
    assert_eq!(
        report.checksums.fixed,
        ChecksumCounts { frames: 3, outer_udp: 1, gre: 1, dccp: 1, ..ChecksumCounts::default() }
    );
    assert!(out == whole);
    large.mtu = 1500;
    let (report, out) = cut(&packets(damaged), &large);
    assert_eq!((report.uncut, report.checksums.fixed.frames), (0, 3));
    assert!(out == cut(&packets(whole), &SegmentOptions::default()).1);
    // The outer checksum covers the inner header as it is; both are corrected.
    let (report, out) = cut(&packets([headers.to_bytes()]), &SegmentOptions { mtu: 9000, ..large });
    assert_eq!((report.checksums.fixed.ipv4_header, report.checksums.fixed.frames), (1, 1));
    assert_right(&out[0]);
}

#[test]
fn what_lengths_leave_out_is_not_covered_and_contradictions_stay() {
    let padded = Frame::tcp4(1, 3).with_checksum(Checksum::Wrong).padded_to(60).to_bytes();
    let trailer = |checksum| {
        Frame::tcp4(1, 2000).with_checksum(checksum).with(|frame| frame.trailer = vec![7; 9])
    };
    let contradiction = Frame::udp4(300).with(|frame| {
        (frame.udp_mut().length, frame.udp_mut().checksum) = (Some(200), Checksum::Wrong);
    });
    let unknown_end =
        Frame::tcp4(1, 3).with_checksum(Checksum::Wrong).padded_to(60).with(|frame| {
            frame.ipv4_mut().total_length = Some(0);
        });
    let large = SegmentOptions { mtu: 9000, ..fixing() };
    let damaged = [
        padded.clone(),
        trailer(Checksum::Wrong).to_bytes(),
        contradiction.to_bytes(),
        unknown_end.to_bytes(),
    ];
    let (report, out) = cut(&packets(damaged), &large);
    assert_eq!(
        report.checksums.fixed,
        ChecksumCounts { frames: 2, tcp: 2, ..ChecksumCounts::default() }
    );
    assert_eq!(out[0], Frame::tcp4(1, 3).padded_to(60).to_bytes());
    assert_eq!(out[1], trailer(Checksum::Right).to_bytes());
    assert_eq!(out[2], contradiction.to_bytes());
    assert_eq!(out[3], unknown_end.to_bytes());
    for options in [
        SegmentOptions { mtu: 200, fragment: true, ..fixing() },
        SegmentOptions { mtu: 200, udp_size: Some(50), ..fixing() },
    ] {
        let (report, out) = cut(&packets([contradiction.to_bytes()]), &options);
        assert_eq!((report.uncut, reason(&report, "length")), (1, 1));
        assert_eq!(out, [contradiction.to_bytes()]);
    }
}

#[test]
fn the_header_of_a_frame_that_was_cut_short_is_corrected() {
    let whole = readdressed(&Frame::tcp4(1, 5000));
    let mut input = Packets::new();
    input.push_cut(LinkType::ETHERNET, Some(0), &whole[..96], whole.len() as u64).expect("short");
    let merging = CoalesceOptions { fix_checksums: true, ..CoalesceOptions::default() };
    let (cut_report, cut) = cut(&input, &fixing());
    let (merge_report, merged) = merge(&input, &merging);
    assert_eq!(reason(&cut_report, "truncated"), 1);
    for (checksums, out) in [(cut_report.checksums, cut), (merge_report.checksums, merged)] {
        assert_eq!(
            checksums.fixed,
            ChecksumCounts { frames: 1, ipv4_header: 1, ..ChecksumCounts::default() }
        );
        assert_eq!(checksums.unknown, 1);
        assert_eq!(sum(&out[0][14..34]), 0xffff);
        assert_eq!(out[0][34..], whole[34..96]);
    }
}

#[test]
fn corrected_packets_merge() {
    let flow = Frame::tcp4(1, 1000).with_id(7).run(4);
    let input = packets(flow.iter().map(readdressed));
    let (report, out) = merge(&input, &CoalesceOptions::default());
    assert_eq!((report.unmerged_by_checksum(), out.len()), (4, 4));
    let options = CoalesceOptions { fix_checksums: true, ..CoalesceOptions::default() };
    let (report, out) = merge(&input, &options);
    assert_eq!((report.unmerged_by_checksum(), report.totals.merged, out.len()), (0, 3, 1));
    assert_eq!(
        report.checksums.fixed,
        ChecksumCounts { frames: 4, ipv4_header: 4, tcp: 4, ..ChecksumCounts::default() }
    );
    assert_sums(&out[0]);
}

/// Frames as Windows leaves them to its card: those that merge, those that pass, and a whole one.
fn unfinished() -> Vec<Frame> {
    let left = |mut frame: Frame, checksum| {
        frame.ipv4_mut().checksum = Checksum::Zero;
        frame.with_checksum(checksum)
    };
    let single = |frame: Frame, host| {
        frame.with(|frame| match &mut frame.ip {
            Ip::V4(ip) => ip.source = [10, 9, 9, host],
            Ip::V6(_) => unreachable!("IPv4"),
        })
    };
    let flow = Frame::tcp4(1, 1000).with_id(7).run(2);
    flow.into_iter()
        .map(|frame| left(frame, Checksum::Partial))
        .chain([
            left(single(Frame::tcp4(9, 300), 1), Checksum::PartialWithoutLength),
            left(single(Frame::udp4(300), 2), Checksum::Partial),
            left(single(Frame::tcp4(9, 40), 3), Checksum::Right),
            single(Frame::tcp4(9, 300), 4).in_vxlan4().with_checksum(Checksum::Partial).with(
                |frame| {
                    frame.outer_ipv4_mut().checksum = Checksum::Zero;
                    frame.outer_udp_mut().checksum = Checksum::Partial;
                },
            ),
            single(Frame::tcp4(9, 40), 5).with_flags(ACK),
        ])
        .collect()
}

#[test]
fn completed_checksums_are_counted_and_stay_on_request() {
    let frames = unfinished();
    let input = packets(frames.iter().map(Frame::to_bytes));
    let all = ChecksumCounts {
        frames: 6,
        ipv4_header: 6,
        tcp: 4,
        udp: 1,
        outer_udp: 1,
        ..ChecksumCounts::default()
    };
    let (report, out) = cut(&input, &SegmentOptions::default());
    assert_eq!(report.checksums.completed, all);
    out.iter().for_each(|frame| assert_right(frame));
    let (report, out) = merge(&input, &CoalesceOptions::default());
    assert_eq!((report.checksums.completed, report.totals.merged), (all, 1));
    out.iter().for_each(|frame| assert_right(frame));

    for fix_checksums in [false, true] {
        let keep = SegmentOptions { keep_partial: true, fix_checksums, ..Default::default() };
        let (report, out) = cut(&input, &keep);
        assert_eq!(report.checksums.completed, ChecksumCounts::default());
        assert!(out == bytes(&input), "bit for bit");
        // Frames that are cut get right checksums.
        let (report, out) = cut(&input, &SegmentOptions { mtu: 600, ..keep });
        assert_eq!(report.checksums.completed.frames, 2);
        out[..4].iter().for_each(|frame| assert_sums(frame));
        assert!(out[4..] == bytes(&input)[2..]);

        let keep = CoalesceOptions { keep_partial: true, fix_checksums, ..Default::default() };
        let (report, mut out) = merge(&input, &keep);
        assert_eq!(
            report.checksums.completed,
            ChecksumCounts { frames: 2, ipv4_header: 2, tcp: 2, ..ChecksumCounts::default() }
        );
        let merged = out.iter().position(|frame| frame.len() == 2054).expect("merged");
        assert_sums(&out.remove(merged));
        out.sort();
        let mut passed = bytes(&input)[2..].to_vec();
        passed.sort();
        assert!(out == passed, "bit for bit");
    }
}

#[test]
fn a_frame_that_was_cut_short_keeps_its_header_on_request() {
    let frame = Frame::tcp4(1, 100).with(|frame| frame.ipv4_mut().checksum = Checksum::Zero);
    let whole = frame.to_bytes();
    let mut input = Packets::new();
    // Cut within the packet, and behind it.
    input.push_cut(LinkType::ETHERNET, Some(0), &whole[..96], whole.len() as u64).expect("short");
    input.push_cut(LinkType::ETHERNET, Some(1), &whole, whole.len() as u64 + 4).expect("short");
    for (keep_partial, completed) in [(false, 2), (true, 0)] {
        let (report, out) =
            merge(&input, &CoalesceOptions { keep_partial, ..CoalesceOptions::default() });
        assert_eq!(report.checksums.completed.ipv4_header, completed);
        assert_eq!(out == bytes(&input), keep_partial);
    }
}

/// As DPDK's TSO wants a frame: the IP length is that of the header, with its checksum, and the
/// transport checksum is the sum of a pseudo-header without the length.
#[test]
fn frames_whose_ip_length_leaves_out_most_are_told_from_those_that_fit() {
    let stated = |length: u16, frame: Frame, checksum| {
        frame.with_checksum(checksum).with(|frame| match &mut frame.ip {
            Ip::V4(ip) => ip.total_length = Some(length),
            Ip::V6(ip) => ip.payload_length = Some(length),
        })
    };
    let seed = Checksum::PartialWithoutLength;
    let short = [
        stated(20, Frame::tcp4(1, 4380), seed),
        stated(40, Frame::tcp4(1, 4380), seed),
        stated(20, Frame::tcp6(1, 4320), seed),
        stated(20, Frame::tcp4(1, 4380), Checksum::Wrong),
    ];
    // Padding and a trailer leave a frame what it is.
    let fitting = [
        Frame::tcp4(1, 1460).with(|frame| frame.trailer = vec![1; 60]),
        stated(20, Frame::tcp4(1, 300), seed),
    ];
    let input = packets(short.iter().chain(&fitting).map(Frame::to_bytes));
    let (report, out) = cut(&input, &SegmentOptions::default());
    assert_eq!((reason(&report, "ip_length"), report.uncut_by_length(), report.uncut), (4, 4, 4));
    assert_eq!(reason(&report, "fits"), 2);
    assert!(out == bytes(&input));
    assert_eq!(cut(&input, &fixing()).0.uncut_by_length(), 4, "checksums are another matter");

    let options = SegmentOptions { fix_lengths: true, ..SegmentOptions::default() };
    let (report, out) = cut(&input, &options);
    assert_eq!((report.lengths_fixed, report.uncut), (3, 1));
    assert_eq!((report.uncut_by_length(), report.uncut_by_checksum()), (0, 1));
    assert!(out[..3] == Frame::tcp4(1, 1460).run_bytes(3));
    assert!(out[3..6] == Frame::tcp4(1, 1460).run_bytes(3));
    assert!(out[6..9] == Frame::tcp6(1, 1440).run_bytes(3));
    assert!(out[9..] == bytes(&input)[3..]);
    let (report, _) = cut(&input, &SegmentOptions { fix_checksums: true, ..options });
    assert_eq!((report.lengths_fixed, report.uncut, report.checksums.fixed.tcp), (4, 0, 1));
}

#[test]
fn strict_refuses_what_stays_uncut_for_its_checksums() {
    let input = packets([readdressed(&Frame::tcp4(1, 5000)), Frame::udp4(5000).to_bytes()]);
    let strict = |fix_checksums| {
        let options = SegmentOptions { strict: true, fix_checksums, ..SegmentOptions::default() };
        segment((&input).into(), Output::Packets(&mut Packets::new()), &options, &mut ())
    };
    assert!(matches!(strict(false), Err(Error::WrongChecksums(1))));
    assert_eq!(strict(true).expect("corrected").uncut, 1, "a datagram");
}

/// Returns the offsets of all checksums of a frame. UDP without checksum has none. In a frame that
/// the engine cannot read, such as a fragment, only that of the first IPv4 header counts.
fn checksum_places(bytes: &[u8], starts_at_ip: bool) -> Vec<usize> {
    let layer = if starts_at_ip { Layer::Ip } else { Layer::Ethernet };
    if parse_datagram(bytes, bytes.len(), layer).is_err() {
        let outermost = layers(bytes, starts_at_ip)
            .into_iter()
            .find(|layer| matches!(layer.kind, Kind::Ipv4 | Kind::Ipv6));
        let header = outermost.filter(|layer| layer.kind == Kind::Ipv4);
        return header.map(|layer| layer.offset + 10).into_iter().collect();
    }
    let places = layers(bytes, starts_at_ip).into_iter().filter_map(|layer| match layer.kind {
        Kind::Ipv4 => Some(layer.offset + 10),
        Kind::Tcp => Some(layer.offset + 16),
        Kind::Dccp => Some(layer.offset + 6),
        Kind::Udp => Some(layer.offset + 6).filter(|&place| word(bytes, place) != 0),
        Kind::Gre => Some(layer.offset + 4).filter(|_| bytes[layer.offset] & 0x80 != 0),
        _ => None,
    });
    places.collect()
}

/// Whatever checksums of generated traffic are overwritten, with whatever values, the original
/// bytes come back, and packets merge as the original ones do.
#[test]
fn corrupted_checksums_are_restored() {
    let config = Config { impairments: Impairments::NONE, ..Config::default() };
    let (mut damaged_sums, mut random) = (0, 1u64);
    let mut next = move || {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 40
    };
    for (seed, starts_at_ip) in (0..4).flat_map(|seed| [(seed, false), (seed, true)]) {
        let right: Vec<Vec<u8>> = generate(seed, &config, 3000)
            .into_iter()
            .filter(|packet| packet.starts_at_ip == starts_at_ip)
            .filter(|packet| !matches!(packet.checksum, generate::Checksum::Partial { .. }))
            .map(|packet| packet.bytes)
            .filter(|bytes| {
                let expect = Expect { starts_at_ip, trailing: true, ..Expect::default() };
                check_frame(bytes, &expect).is_ok_and(|checked| checked.canonical)
            })
            .collect();
        let wrong: Vec<Vec<u8>> = right
            .iter()
            .map(|bytes| {
                let mut wrong = bytes.clone();
                for place in checksum_places(bytes, starts_at_ip) {
                    let value = match next() % 6 {
                        0 | 1 => continue,
                        2 if layers(bytes, starts_at_ip)
                            .iter()
                            .all(|layer| layer.kind != Kind::Udp) =>
                        {
                            0
                        }
                        _ => (next() as u16).max(1),
                    };
                    put(&mut wrong, place, value);
                    damaged_sums += 1;
                }
                wrong
            })
            .collect();
        let link_type = if starts_at_ip { LinkType::RAW } else { LinkType::ETHERNET };
        let [right, wrong] = [right, wrong].map(|frames| packets_of(link_type, frames));
        let options = SegmentOptions { mtu: 65_535, ..fixing() };
        let (report, out) = cut(&right, &options);
        assert_eq!(report.checksums.fixed, ChecksumCounts::default());
        assert!(out == bytes(&right));
        let (_, out) = cut(&wrong, &options);
        for (index, (after, before)) in out.iter().zip(bytes(&right)).enumerate() {
            let layers = layers(&before, starts_at_ip);
            assert!(*after == before, "seed {seed}, packet {index}: {layers:?}");
        }
        let merging = CoalesceOptions { fix_checksums: true, ..CoalesceOptions::default() };
        assert!(merge(&wrong, &merging).1 == merge(&right, &CoalesceOptions::default()).1);
    }
    assert!(damaged_sums > 10_000, "{damaged_sums}");
}
