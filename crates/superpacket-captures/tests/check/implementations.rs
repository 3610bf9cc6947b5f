//! Known faults of other implementations, and segmentation by the kernel.

use super::*;

#[test]
fn segments_that_a_header_cannot_describe_are_not_reversible() {
    let same_ids: Vec<_> = flow(0, 4, 100).into_iter().map(|frame| frame.with_id(9)).collect();
    let case = Case::aggregation(same_ids.clone());
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["ip-id-fixed"].into());
    // Identifications that count up must continue to count up.
    let mut mixed = same_ids;
    mixed[2] = mixed[2].clone().with_id(10);
    Case::aggregation(mixed).breaks(&["ip-id"]);
    let cwr: Vec<_> = flow(0, 3, 100)
        .into_iter()
        .map(|frame| frame.with(|frame| frame.tcp_mut().flags |= CWR))
        .collect();
    let mut case = Case::aggregation(cwr);
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["cwr-on-all"].into());
    case.left[0].1.gso_type |= gso_type::ECN;
    case.breaks(&["gso-ecn"]);
    let mut reduced = flow(0, 3, 100);
    reduced[0].tcp_mut().flags |= CWR;
    let mut case = Case::aggregation(reduced);
    case.breaks(&[]);
    case.left[0].1.gso_type &= !gso_type::ECN;
    case.breaks(&["gso-ecn"]);
    let mut case = Case::aggregation(flow(0, 3, 100));
    case.left[0].1.hdr_len = 0;
    case.breaks(&[]);
    assert_eq!(case.rules(Strictness::Reversible), ["header-length"].into());
}

#[test]
fn a_datagram_to_be_fragmented_is_unchanged() {
    for mut frame in [Frame::udp4(3000), Frame::udp6(3000)] {
        frame.udp_mut().checksum = Checksum::Partial;
        let offsets = frame.offsets();
        let header = Header {
            flags: flags::NEEDS_CSUM,
            gso_type: gso_type::UDP,
            gso_size: 1448,
            hdr_len: offsets.payload as u16,
            csum_start: offsets.transport as u16,
            csum_offset: 6,
            ..plain()
        };
        let file = |frame: &Frame| records(Format::Buffers, &[(frame.to_bytes(), header)]);
        let origin = file(&frame);
        let report = judge(stream(&file(&frame)), stream(&origin));
        assert_eq!(report.violations, 0, "{:?}", report.described);
        frame.payload[2999] ^= 1;
        assert_ne!(judge(stream(&file(&frame)), stream(&origin)).violations, 0);
    }
}

/// Two IPv6 datagrams of one flow that are to be fragmented, the fragments of other
/// implementations, and the violated rules.
#[test]
fn fragments_that_others_cut_have_the_identification_of_their_datagram() {
    let datagrams: Vec<_> =
        [7, 8].map(|fill| Frame::udp6(3000).with(|frame| frame.payload.fill(fill))).into();
    let header = |frame: &Frame| {
        let offsets = frame.offsets();
        let (csum_start, hdr_len) = (offsets.transport as u16, offsets.payload as u16);
        Header {
            flags: flags::NEEDS_CSUM,
            gso_type: gso_type::UDP,
            gso_size: 1448,
            hdr_len,
            csum_start,
            csum_offset: 6,
            ..plain()
        }
    };
    let whole: Vec<_> = datagrams
        .iter()
        .map(|frame| {
            (
                frame.clone().with(|frame| frame.udp_mut().checksum = Checksum::Partial).to_bytes(),
                header(frame),
            )
        })
        .collect();
    let origin = records(Format::Buffers, &whole);
    let broken = |ids: [[u32; 3]; 2], edit: fn(&mut Vec<Vec<u8>>)| {
        let fragments = datagrams.iter().zip(ids).flat_map(|(frame, ids)| {
            let cut = ids.map(|id| frame.fragments(1448, id));
            (0..3).map(move |index| cut[index][index].to_bytes()).collect::<Vec<_>>()
        });
        let mut left: Vec<_> = fragments.collect();
        edit(&mut left);
        let left: Vec<_> = left.into_iter().map(|bytes| (bytes, plain())).collect();
        let report = judge(stream(&records(Format::Buffers, &left)), stream(&origin));
        super::broken(&report).into_iter().collect::<Vec<_>>()
    };
    let nothing = |_: &mut Vec<Vec<u8>>| ();
    assert_eq!(broken([[1; 3], [2; 3]], nothing), [""; 0]);
    assert_eq!(broken([[0xdead_beef; 3], [0; 3]], nothing), [""; 0]);
    assert_eq!(broken([[5; 3], [5; 3]], nothing), ["fragment-id"]);
    assert_eq!(broken([[5, 5, 6], [7; 3]], nothing), ["fragment-id"]);
    // All other bytes are compared.
    assert_eq!(broken([[5; 3], [7; 3]], |left| left[1][100] ^= 1), ["bytes"]);
    assert_eq!(broken([[5; 3], [7; 3]], |left| drop(left.remove(2))), ["lost"]);
}

#[test]
fn a_single_packet_leaves_as_it_came() {
    for (edit, rule) in [
        ((|frame: &mut Frame| frame.ipv4_mut().ttl -= 1) as Edit, "ttl"),
        (|frame| frame.tcp_mut().window = 9, "window"),
        (|frame| frame.ipv4_mut().id = 77, "ip-id"),
        (|frame| frame.tcp_mut().checksum = Checksum::Wrong, "checksum"),
        (|frame| frame.ipv4_mut().checksum = Checksum::Wrong, "ip-checksum"),
        (|frame| frame.payload[50] ^= 1, "bytes"),
        (|frame| frame.trailer = vec![0; 6], "length"),
        (|frame| frame.tcp_mut().flags = ACK | FIN, "flags"),
    ] {
        let mut case = Case::with(flow(0, 2, 100), &[&[0], &[1]]);
        edit(&mut case.left[1].0);
        case.left[1].0.tcp_mut().flags &= !PSH;
        case.original[1].tcp_mut().flags &= !PSH;
        case.breaks(&[rule]);
    }
    // A packet with a wrong checksum leaves unchanged.
    let mut case = Case::with(
        vec![flow(0, 1, 100)[0].clone().with(|frame| frame.tcp_mut().checksum = Checksum::Wrong)],
        &[&[0]],
    );
    case.breaks(&[]);
    case.left[0].0.tcp_mut().checksum = Checksum::Right;
    case.breaks(&["bad-checksum"]);
    // A checksum that is left to the device counts as unchanged.
    let mut case = Case::with(flow(0, 1, 100), &[&[0]]);
    let (frame, header) = merged(&case.original);
    case.left = vec![(frame, Header { gso_type: 0, gso_size: 0, ..header })];
    case.breaks(&[]);
}

/// Bugs that were seen in other implementations, each with the rule that reports it.
#[test]
fn known_bugs_of_peers_are_found() {
    let plain_flow = || flow(0, 3, 100);
    let edited = |index: usize, edit: Edit| {
        let mut flow = plain_flow();
        edit(&mut flow[index]);
        flow
    };
    // DPDK: tags, CE marks, TTLs, wrong checksums and options are not compared; a RST and PSH leave
    // in another order; unequal sizes merge with segment size 0; the header checksum is left wrong.
    let tagged: Vec<_> = flow(3, 2, 100);
    let mut vlans = tagged.clone();
    vlans[1].vlans[0].vid = 20;
    Case::aggregation(vlans).breaks(&["link-header"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().tos |= 3)).breaks(&["traffic-class"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().ttl -= 1)).breaks(&["ttl"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().checksum = Checksum::Wrong))
        .breaks(&["bad-checksum"]);
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().options = vec![1; 4]))
        .breaks(&["ip-header", "never-merges"]);
    let mut reset = plain_flow();
    reset.push(
        reset[2]
            .following()
            .with(|frame| (frame.tcp_mut().flags, frame.payload) = (ACK | RST, Vec::new())),
    );
    Case::with(reset, &[&[3], &[0, 1, 2]]).breaks(&["order"]);
    let mut pushed = flow(0, 4, 100);
    pushed[1].tcp_mut().flags |= PSH;
    Case::with(pushed, &[&[0], &[2, 3], &[1]]).breaks(&["order"]);
    let mut unequal = Case::aggregation(edited(2, |frame| frame.payload.extend([1; 20])));
    unequal.left[0].1.gso_size = 0;
    unequal.breaks(&["segment-sizes", "virtio-header"]);
    let mut wrong = Case::aggregation(plain_flow());
    wrong.left[0].0.ipv4_mut().checksum = Checksum::Wrong;
    wrong.breaks(&["ip-checksum"]);
    // VPP: options and windows are not compared; a pure ACK leaves before what is held.
    Case::aggregation(edited(1, |frame| frame.tcp_mut().window += 1)).breaks(&["window"]);
    let mut timed = flow(2, 3, 100);
    timed[1].tcp_mut().options = timestamps(10, 10);
    Case::aggregation(timed).breaks(&["tcp-options"]);
    let mut acknowledged = plain_flow();
    acknowledged.push(acknowledged[2].following().with(|frame| frame.payload.clear()));
    Case::with(acknowledged, &[&[3], &[0, 1, 2]]).breaks(&["order"]);
    // gVisor: the padding of a pure ACK becomes data of the stream.
    let mut padded = flow(0, 1, 0);
    padded[0].trailer = vec![0; 6];
    padded.push(
        padded[0]
            .following()
            .with(|frame| (frame.payload, frame.trailer) = (vec![7; 100], Vec::new())),
    );
    let mut case = Case::with(padded, &[&[0], &[1]]);
    case.left.truncate(1);
    case.left[0].0.trailer.clear();
    case.left[0].0.payload = [vec![0; 6], vec![7; 100]].concat();
    assert!(case.rules(Strictness::Linux).contains("lost"), "{:?}", case.rules(Strictness::Linux));
    // wireguard-go: identifications are not compared; a later segment jumps ahead.
    Case::aggregation(edited(1, |frame| frame.ipv4_mut().id = 4711)).breaks(&["ip-id"]);
    let mut jumps = flow(0, 5, 100);
    jumps[2].tcp_mut().window += 1;
    Case::with(jumps, &[&[0, 1], &[3, 4], &[2]]).breaks(&["order"]);
    // tun-rs: flow labels are not compared.
    let mut labelled = flow(1, 3, 100);
    labelled[1].ipv6_mut().flow_label += 1;
    Case::aggregation(labelled).breaks(&["flow-label"]);
    // inet_lro: the newest acknowledgement and window win, PSH is gone.
    let mut newest = Case::aggregation(plain_flow());
    newest.original[0].tcp_mut().acknowledgement += 5;
    newest.original[0].tcp_mut().window += 5;
    newest.left[0].0.tcp_mut().flags &= !PSH;
    newest.breaks(&["acknowledgement", "flags", "window"]);
    // quinn-udp: a batch is lost.
    let mut batch = Case::with(flow(4, 4, 100), &[&[0, 1], &[2, 3]]);
    batch.left.pop();
    batch.breaks(&["lost"]);
    assert_eq!(batch.check(Strictness::Linux).violations, 2);
}

/// Checks the segments of a super-packet with a header. Returns the violated rules.
fn check_cut(whole: Left, cut: &[Frame]) -> BTreeSet<&'static str> {
    let file = records(Format::Buffers, &[(whole.0.to_bytes(), whole.1)]);
    let report = judge(Input::from(&in_memory(cut)), stream(&file));
    assert_eq!(report.packets_in, 1);
    broken(&report)
}

#[test]
fn segments_are_those_that_the_kernel_would_cut() {
    let edited = |kind: u8, edit: fn(usize, &mut Frame)| {
        let mut cut = flow(kind, 4, 100);
        cut.iter_mut().enumerate().for_each(|(index, frame)| edit(index, frame));
        check_cut(merged(&flow(kind, 4, 100)), &cut)
    };
    for kind in 0..6 {
        assert_eq!(edited(kind, |_, _| {}), BTreeSet::new(), "{kind}");
    }
    // DPDK, OVS and wireguard-go: CWR on every segment.
    let cwr = |cut: &[Frame]| {
        let first = flow(0, 4, 100).into_iter().enumerate().map(|(index, mut frame)| {
            frame.tcp_mut().flags |= if index == 0 { CWR } else { 0 };
            frame
        });
        check_cut(merged(&first.collect::<Vec<_>>()), cut)
    };
    let repeated: Vec<_> = flow(0, 4, 100)
        .into_iter()
        .map(|frame| frame.with(|frame| frame.tcp_mut().flags |= CWR))
        .collect();
    assert_eq!(cwr(&repeated), ["cwr"].into());
    // VPP: every segment has the same identification.
    assert_eq!(edited(0, |_, frame| frame.ipv4_mut().id = 7), ["ip-id"].into());
    assert_eq!(edited(0, |_, frame| frame.tcp_mut().flags |= PSH), ["flags"].into());
    assert_eq!(
        edited(0, |index, frame| frame.tcp_mut().sequence -= index as u32),
        ["sequence"].into()
    );
    assert_eq!(
        edited(0, |_, frame| frame.tcp_mut().checksum = Checksum::Wrong),
        ["checksum"].into()
    );
    assert_eq!(edited(1, |_, frame| frame.ipv6_mut().hop_limit = 1), ["ttl"].into());
    assert_eq!(edited(4, |_, frame| frame.payload[60] ^= 1), ["bytes"].into());
    let lost: Vec<_> = flow(0, 4, 100).into_iter().take(3).collect();
    assert_eq!(check_cut(merged(&flow(0, 4, 100)), &lost), ["lost"].into());
    let other_sizes = flow(0, 8, 50);
    assert!(check_cut(merged(&flow(0, 4, 100)), &other_sizes).contains("bytes"));
    // wireguard-go: a computed UDP checksum of 0 is not sent as 0xFFFF.
    let zero: Vec<_> = flow(5, 2, 100).into_iter().map(Frame::with_zero_checksum).collect();
    let without =
        |frame: &Frame| frame.clone().with(|frame| frame.udp_mut().checksum = Checksum::Raw(0));
    let whole = merged(&zero);
    assert_eq!(check_cut(whole.clone(), &zero), BTreeSet::new());
    assert_eq!(
        check_cut(whole, &zero.iter().map(without).collect::<Vec<_>>()),
        ["udp-zero"].into()
    );
}

/// Returns super-packets of these numbers of frames, with their headers.
fn sent_together(frames: &[Frame], counts: &[usize]) -> Vec<Left> {
    let mut rest = frames;
    let mut sent = Vec::new();
    for &count in counts {
        let (together, others) = rest.split_at(count);
        sent.push(if count == 1 { (together[0].clone(), plain()) } else { merged(together) });
        rest = others;
    }
    sent
}

/// Received super-packets are merged further. The result is faithful to these super-packets, and to
/// the frames in them. A wrong result is not.
#[test]
fn super_packets_that_merge_further_are_judged_by_their_segments() {
    let framing = Framing::new(Format::Buffers, ByteOrder::Little, Layer::Ethernet);
    for kind in 0..6 {
        let frames = flow(kind, 24, 100);
        let came = sent_together(&frames, &[8, 8, 8]);
        let received: Vec<_> = came
            .iter()
            .map(|(frame, header)| {
                let bytes = frame.to_bytes();
                let offload = header
                    .offload(framing.format, &bytes, bytes.len(), Layer::Ethernet)
                    .expect("valid");
                let mut packet = RxPacket::new(bytes).with_checksum(offload.checksum);
                packet.gso = offload.gso;
                packet
            })
            .collect();
        let mut left = Vec::new();
        BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(5)).poll_gathered(
            &received,
            |slices| {
                let bytes: Vec<u8> =
                    slices.iter().flat_map(|slice| slice.iter().copied()).collect();
                let header = Header::read(&bytes, framing.format, framing.order).expect("12 bytes");
                left.push((bytes[framing.header_length()..].to_vec(), header));
            },
        );
        assert_eq!(left.len(), 1, "{kind}");
        let came: Vec<_> = came.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        let file = records(framing.format, &came);
        let single = in_memory(&frames);
        for rules in [Strictness::Linux, Strictness::Reversible] {
            let report = check_records(framing.format, &left, stream(&file), rules);
            assert_eq!(
                (report.violations, report.packets_in, report.super_packets),
                (0, 3, 1),
                "{kind}: {:#?}",
                report.described
            );
            let report = check_records(framing.format, &left, Input::from(&single), rules);
            assert_eq!(
                (report.violations, report.packets_in),
                (0, 24),
                "{kind}: {:#?}",
                report.described
            );
        }
        // The second of three super-packets is missing.
        let wrong = sent_together(&[&frames[..8], &frames[16..]].concat(), &[16]);
        let wrong: Vec<_> =
            wrong.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        assert!(
            check_records(framing.format, &wrong, stream(&file), Strictness::Linux).violations > 0,
            "{kind}"
        );
    }
}
