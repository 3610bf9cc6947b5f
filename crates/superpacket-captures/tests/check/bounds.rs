//! Files designed to take much time or memory; unusual packets that are no faults.

use super::*;

/// Two files of one flow that have no packet in common. The time must be proportional to their
/// size.
#[test]
fn unrelated_files_are_compared_in_bounded_time() {
    let (mut left, mut original) = (Packets::new(), Packets::new());
    let mut frame = Frame::tcp4(0, 200);
    for number in 0..40_000u32 {
        frame.tcp_mut().sequence = number * 200;
        original.push(LinkType::ETHERNET, None, &frame.to_bytes()).expect("short");
        frame.tcp_mut().sequence = number.wrapping_mul(200).wrapping_add(1 << 31);
        let bytes = frame.clone().with(|frame| frame.payload = vec![number as u8; 200]).to_bytes();
        left.push(LinkType::ETHERNET, None, &bytes).expect("short");
    }
    let started = std::time::Instant::now();
    let report = judge(Input::from(&left), Input::from(&original));
    assert!(report.violations >= 80_000, "{}", report.violations);
    // A scan of all held packets for each packet would take an hour.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

/// A super-packet whose header asks for segments of one byte, more than any network has: it is not
/// cut.
#[test]
fn a_header_cannot_exhaust_memory() {
    let (frame, header) = merged(&[Frame::tcp4(1, 60_000)]);
    let header = Header { gso_size: 1, ..header };
    let file = records(Format::Buffers, &[(frame.to_bytes(), header)]);
    let report = judge(stream(&file), stream(&file));
    assert_eq!(
        (report.violations, report.not_judged.origin_headers),
        (0, 1),
        "{:?}",
        report.described
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_file_of_records_makes_it_panic(
        kind in 0u8..6,
        changes in proptest::collection::vec((0usize..4000, any::<u8>()), 0..12),
        end in 0usize..4000,
        is_original in any::<bool>(),
    ) {
        let case = Case::aggregation(flow(kind, 4, 300));
        let mut left: Vec<_> = case.left.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        left.extend(case.original.iter().map(|frame| (frame.to_bytes(), plain())));
        let mut bytes = records(Format::Buffers, &left);
        for (place, value) in changes {
            let place = place % bytes.len();
            bytes[place] = value;
        }
        bytes.truncate(34 + end);
        let original = in_memory(&case.original);
        let (records, packets) = (stream(&bytes), Input::from(&original));
        let (checked, origin) = if is_original { (packets, records) } else { (records, packets) };
        let _ = check(checked, origin, &CheckOptions { rules: Strictness::Reversible, ..CheckOptions::default() }, &mut ());
    }
}

/// Flows of every protocol in every tunnel; a third of their packets are unusual. The engine's
/// output is faithful, and so are the segments into which it is cut again.
#[test]
fn traps_of_every_kind_raise_no_false_alarm() {
    for seed in 0..8 {
        let mut original = Packets::new();
        for packet in
            generate(seed, &Config { impairments: Impairments::traps(), ..Config::default() }, 4000)
        {
            let link_type = if packet.starts_at_ip { LinkType::RAW } else { LinkType::ETHERNET };
            original.push(link_type, Some(packet.time_ns), &packet.bytes).expect("short");
        }
        let merged = coalesced(Input::from(&original));
        for rules in [Strictness::Linux, Strictness::Reversible] {
            let report = judge_by(rules, Input::from(&merged), Input::from(&original));
            assert_eq!(report.violations, 0, "seed {seed}: {:#?}", report.described);
            assert!(report.merged > 500, "seed {seed}: {}", report.merged);
        }
        let cut = segmented(Input::from(&merged), 1000);
        let report = judge(Input::from(&cut), Input::from(&merged));
        assert_eq!(report.violations, 0, "seed {seed}: {:#?}", report.described);
    }
}
