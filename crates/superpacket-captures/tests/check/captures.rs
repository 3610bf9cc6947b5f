//! The engine's output for all captures is found faithful, that of LRO is not.

use super::*;
use std::path::PathBuf;

/// Returns the engine's output for a device with headers.
fn by_the_engine(original: &Packets) -> Vec<(Vec<u8>, Header)> {
    let framing = Framing::new(Format::Tunnel, ByteOrder::Little, Layer::Ethernet);
    let mut left = Vec::new();
    let mut aggregator = BatchAggregator::framed(framing, Policy::gro_with_udp(), HashKey::new(5));
    let packets: Vec<_> = original.iter().map(|frame| frame.data.to_vec()).collect();
    for batch in packets.chunks(64) {
        aggregator.poll_gathered(batch, |slices| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let header = Header::read(&bytes, framing.format, framing.order).expect("24 bytes");
            left.push((bytes[framing.header_length()..].to_vec(), header));
        });
    }
    left
}

/// Returns the demonstration capture and all real ones.
fn captures() -> Vec<PathBuf> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz");
    [vec![demo], superpacket_traffic::captures::real()].concat()
}

/// Reads a capture into memory; `None` unless it consists of complete Ethernet frames.
fn ethernet(path: &Path) -> Option<Packets> {
    use superpacket_captures::Reader;
    use superpacket_captures::file::Source;
    let mut reader = Reader::open(path).ok()?;
    let mut packets = Packets::new();
    while let Ok(Some(frame)) = reader.next_frame() {
        if frame.link_type() != LinkType::ETHERNET || frame.is_truncated() {
            return None;
        }
        packets.push(frame.link_type(), None, frame.data).ok()?;
    }
    Some(packets)
}

#[test]
fn the_engines_own_work_is_faithful_over_all_captures() {
    let (mut super_packets, mut segments, mut with_headers) = (0, 0, 0);
    for path in captures() {
        let mut merged = Packets::new();
        if coalesce(
            Input::Path(&path),
            Output::Packets(&mut merged),
            &CoalesceOptions::default(),
            &mut (),
        )
        .is_err()
        {
            continue;
        }
        for rules in [Strictness::Linux, Strictness::Reversible] {
            let report = judge_by(rules, Input::from(&merged), Input::Path(&path));
            assert_eq!(report.violations, 0, "{}: {:#?}", path.display(), report.described);
            assert_eq!(report.not_judged.headers, report.super_packets);
            super_packets += report.super_packets;
        }
        // As in a file, which does not keep the sizes of segments, so that only packets above the
        // MTU are cut.
        let mut plain = Packets::new();
        for frame in (0..merged.len()).filter_map(|index| merged.get(index)) {
            let (link, time) = (frame.interface().link_type, frame.time);
            let time = time.map(superpacket_captures::file::Timestamp::nanoseconds);
            plain
                .push_cut(link, time, frame.data, u64::from(frame.original_length))
                .expect("below 4 GiB");
        }
        let cut = segmented(Input::from(&plain), 1500);
        let report = judge(Input::from(&cut), Input::from(&plain));
        assert_eq!(report.violations, 0, "{}: {:#?}", path.display(), report.described);
        segments += report.segments;
        if let Some(original) = ethernet(&path) {
            let left = by_the_engine(&original);
            let report =
                check_records(Format::Tunnel, &left, Input::from(&original), Strictness::Linux);
            assert_eq!(report.violations, 0, "{}: {:#?}", path.display(), report.described);
            with_headers += report.super_packets - report.not_judged.headers;
        }
    }
    assert!(
        super_packets >= 56 && segments >= 100 && with_headers >= 28,
        "{super_packets} {segments} {with_headers}"
    );
}

#[test]
fn lro_output_is_unfaithful() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/demo.pcap.gz");
    let mut merged = Packets::new();
    let options = CoalesceOptions {
        rules: superpacket_captures::Rules::Lro,
        acks: true,
        ..CoalesceOptions::default()
    };
    coalesce(Input::Path(&path), Output::Packets(&mut merged), &options, &mut ())
        .expect("a capture");
    let report = judge(Input::from(&merged), Input::Path(&path));
    let rules = broken(&report);
    assert!(rules.contains("lost") && rules.len() > 1, "{rules:?}");
    assert_eq!(report.described.len(), 10, "one screen");
}
