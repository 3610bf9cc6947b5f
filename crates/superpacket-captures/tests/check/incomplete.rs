//! Packets that cannot be judged are reported, and prevent the verdict `Faithful`: in files that
//! were cut short, packets that a snap length cut, and packets of the original whose headers
//! contradict them.

use super::*;
use superpacket_captures::Verdict;

/// Returns a pcap file of these packets with this snap length.
fn pcap(frames: &[Frame], snap_length: usize) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0x40000, 1u32] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        let bytes = frame.to_bytes();
        let there = bytes.len().min(snap_length);
        for word in [0, 0, there as u32, bytes.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&bytes[..there]);
    }
    file
}

fn checked(checked: &[u8], origin: &[u8]) -> CheckReport {
    judge(stream(checked), stream(origin))
}

/// Returns the packets of two flows, alternating.
fn original() -> Vec<Frame> {
    flow(0, 20, 300)
        .into_iter()
        .zip(flow(1, 20, 300))
        .flat_map(|(one, other)| [one, other])
        .collect()
}

#[test]
fn a_file_that_was_cut_short_is_not_faithful() {
    let frames = original();
    let origin = pcap(&frames, usize::MAX);
    let merged = [merged(&flow(0, 20, 300)), merged(&flow(1, 20, 300))]
        .map(|(frame, header)| (frame.to_bytes(), header));
    let one_by_one: Vec<_> = frames.iter().map(|frame| (frame.to_bytes(), plain())).collect();
    for (file, missing) in [
        (records(Format::Buffers, &merged), 20),
        (records(Format::Buffers, &one_by_one), 1),
        (origin.clone(), 1),
    ] {
        let report = checked(&file, &origin);
        assert_eq!(
            (report.verdict, report.not_judged),
            (Verdict::Faithful, Default::default()),
            "{:#?}",
            report.described
        );
        for cut in [1, 7, 200] {
            let report = checked(&file[..file.len() - cut], &origin);
            assert_eq!(
                (report.verdict, report.violations),
                (Verdict::Incomplete, 0),
                "{cut}: {:#?}",
                report.described
            );
            assert!(report.cut_short.is_some() && report.origin_cut_short.is_none());
            assert_eq!(
                (report.not_judged.missing, report.not_judged.is_incomplete()),
                (missing, true)
            );
            let json = serde_json::to_value(&report).expect("JSON");
            assert_eq!(
                (&json["verdict"], &json["not_judged"]["missing"]),
                (&"incomplete".into(), &missing.into())
            );
        }
        // The original does not contain all packets that left.
        for cut in [1, 7, 200] {
            let report = checked(&file, &origin[..origin.len() - cut]);
            assert_eq!(
                (report.verdict, report.violations),
                (Verdict::Incomplete, 0),
                "{cut}: {:#?}",
                report.described
            );
            assert!(report.cut_short.is_none() && report.origin_cut_short.is_some());
            assert_eq!(
                (report.not_judged.without_origin, report.not_judged.missing),
                (1, 0),
                "{cut}"
            );
        }
    }
    // The packets that are there are judged.
    let mut damaged = one_by_one.clone();
    damaged[3].0[22] -= 1;
    let file = records(Format::Buffers, &damaged);
    let report = checked(&file[..file.len() - 1], &origin);
    assert_eq!(report.verdict, Verdict::Unfaithful);
    // In complete files, missing packets are lost, and additional ones invented.
    let report = checked(&pcap(&frames[..39], usize::MAX), &origin);
    assert_eq!(
        (report.verdict, report.by_rule.keys().next().map(|rule| rule.name())),
        (Verdict::Unfaithful, Some("lost"))
    );
    let report = checked(&origin, &pcap(&frames[..39], usize::MAX));
    assert_eq!(
        (report.verdict, report.by_rule.keys().next().map(|rule| rule.name())),
        (Verdict::Unfaithful, Some("invented"))
    );
}

#[test]
fn a_file_that_ends_between_two_of_its_bytes_is_never_faithful() {
    let frames = original();
    let origin = pcap(&frames, usize::MAX);
    let left: Vec<_> = frames.iter().map(|frame| (frame.to_bytes(), plain())).collect();
    let file = records(Format::Buffers, &left);
    let first = file.iter().position(|&byte| byte == b'\n').expect("a line") + 1;
    for end in (first..file.len()).step_by(13) {
        assert_ne!(checked(&file[..end], &origin).verdict, Verdict::Faithful, "{end}");
    }
    for end in (24..origin.len()).step_by(13) {
        assert_ne!(checked(&file, &origin[..end]).verdict, Verdict::Faithful, "{end}");
    }
}

#[test]
fn packets_that_a_snap_length_cut_are_not_judged() {
    let frames = original();
    let (whole, cut) = (pcap(&frames, usize::MAX), pcap(&frames, 96));
    for (file, origin) in [(&cut, &whole), (&whole, &cut), (&cut, &cut)] {
        let report = checked(file, origin);
        assert_eq!(
            (report.verdict, report.violations),
            (Verdict::Incomplete, 0),
            "{:#?}",
            report.described
        );
        assert_eq!(report.not_judged.snap_length, 40, "each of them");
    }
    // The packets in a merged packet cannot be found if it was cut.
    let merged = [merged(&flow(0, 20, 300)).0, merged(&flow(1, 20, 300)).0];
    for (file, origin) in [(pcap(&merged, 96), &whole), (pcap(&merged, usize::MAX), &cut)] {
        let report = checked(&file, origin);
        assert_eq!(
            (report.verdict, report.violations),
            (Verdict::Incomplete, 0),
            "{:#?}",
            report.described
        );
        assert!(
            report.not_judged.snap_length > 0 && report.not_judged.missing > 0,
            "{:?}",
            report.not_judged
        );
    }
    // Faults in packets that are there are found.
    let mut frames = frames;
    frames[7].payload.truncate(10);
    let whole = pcap(&frames, usize::MAX);
    frames[7] = frames[7].clone().with(|frame| frame.payload[0] ^= 1);
    assert_eq!(checked(&pcap(&frames, 96), &whole).verdict, Verdict::Unfaithful);
}

/// Packets that are given up during the run are judged like those that remain at its end.
#[test]
fn packets_of_a_large_original_are_lost_only_from_a_whole_file() {
    const PACKETS: u32 = 1500;
    let mut original = Packets::new();
    let mut frames = Vec::new();
    for number in 0..PACKETS {
        // 30 MB are more than is held in memory.
        original.push(LinkType::ETHERNET, None, &Frame::udp4(20_000).to_bytes()).expect("short");
        let frame = Frame::tcp4(number * 100, 100);
        original.push(LinkType::ETHERNET, None, &frame.to_bytes()).expect("short");
        frames.push(frame);
    }
    let judged = |file: &[u8]| judge(stream(file), Input::from(&original));
    let whole = pcap(&frames, usize::MAX);
    let report = judged(&whole);
    assert_eq!(
        (report.verdict, report.violations, report.not_judged.missing, report.described.len()),
        (Verdict::Unfaithful, u64::from(PACKETS), 0, 10)
    );
    let origins: Vec<_> = report.described.iter().filter_map(|lost| lost.origin).collect();
    assert_eq!(origins, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
    // The end of the file is missing, or that of its last packet.
    let cut_short = whole[..whole.len() - 1].to_vec();
    let mut snapped = whole;
    let last = snapped.len() - frames[0].to_bytes().len();
    snapped[last - 4] += 1;
    for (file, missing) in [(cut_short, PACKETS + 1), (snapped, PACKETS)] {
        let report = judged(&file);
        assert_eq!(
            (report.verdict, report.violations, report.not_judged.missing),
            (Verdict::Incomplete, 0, u64::from(missing)),
            "{:#?}",
            report.described
        );
    }
}

#[test]
fn an_original_whose_header_contradicts_it_is_not_judged() {
    let (frame, header) = merged(&flow(0, 4, 300));
    let header = Header { csum_offset: 4, ..header };
    let file = records(Format::Buffers, &[(frame.to_bytes(), header)]);
    let report = checked(
        &pcap(&[frame.with(|frame| frame.tcp_mut().checksum = Checksum::Right)], usize::MAX),
        &file,
    );
    assert_eq!(
        (report.violations, report.not_judged.origin_headers, report.verdict),
        (0, 1, Verdict::Incomplete),
        "{:#?}",
        report.described
    );
}

/// Information that files cannot contain is counted, and changes no verdict.
#[test]
fn missing_headers_are_no_fault() {
    let run = flow(0, 4, 300);
    let report = checked(&pcap(&[merged(&run).0], usize::MAX), &pcap(&run, usize::MAX));
    assert_eq!(
        (report.not_judged.headers, report.not_judged.is_incomplete(), report.verdict),
        (1, false, Verdict::Faithful)
    );
    let report = checked(&pcap(&run, usize::MAX), &pcap(&[merged(&run).0], usize::MAX));
    assert_eq!(
        (report.not_judged.sizes, report.not_judged.is_incomplete(), report.verdict),
        (1, false, Verdict::Faithful)
    );
}
