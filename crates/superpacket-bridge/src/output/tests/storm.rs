//! Tests of the limits for broadcast, multicast and unknown destinations.

use super::*;
use crate::settings::NamedSettings;

const MS: u64 = 1_000_000;

fn frame(destination: [u8; 6], source: u8, number: u16) -> Vec<u8> {
    [&destination[..], &[2, 0, 0, 0, 0, source], &[0x88, 0xb5], &number.to_be_bytes(), &[0; 44]]
        .concat()
}

/// Returns three ports; the first has a limit.
fn limited(name: &str, packets: u64) -> Bench {
    let bench = Bench::new(&[1500; 3], |_| ());
    bench.ports[0].0.change(|settings| settings.set(name, packets)).expect("it is a limit");
    bench
}

/// Sends these frames at time `now`, and returns how many the second and the third port are given.
fn flood(bench: &mut Bench, frames: impl Iterator<Item = Vec<u8>>, now: u64) -> [usize; 2] {
    bench.forwarder.begin(now);
    frames
        .map(|frame| bench.receive(0, &frame))
        .fold([0, 0], |sum, sent| [sum[0] + sent[1], sum[1] + sent[2]])
}

#[test]
fn flooding_ports_are_limited() {
    let kinds = [
        ("storm_broadcast", [0xff; 6]),
        ("storm_multicast", [1, 0, 0x5e, 0, 0, 1]),
        ("storm_unknown", [2, 0, 0, 0, 9, 9]),
    ];
    for (name, destination) in kinds {
        let mut bench = limited(name, 100);
        let many = |at: u16| (0..5_000).map(move |number| frame(destination, 1, at + number));
        assert_eq!(
            flood(&mut bench, many(0), 0),
            [100, 100],
            "{name}: as much at once as in a second"
        );
        assert_eq!(flood(&mut bench, many(5_000), 200 * MS), [20, 20], "{name}");
        assert_eq!(bench.drops(0, "storm"), 10_000 - 120, "{name}: what is more is counted");
        // Frames of other ports, and of other kinds, are not limited.
        assert_eq!(bench.receive(1, &frame(destination, 2, 0)), [1, 0, 1], "{name}");
        for (other, destination) in kinds.into_iter().filter(|(other, _)| *other != name) {
            assert_eq!(
                flood(&mut bench, (0..500).map(|number| frame(destination, 1, number)), 200 * MS),
                [500, 500],
                "{name} {other}"
            );
        }
        // Nor are frames for a known station.
        assert_eq!(
            flood(
                &mut bench,
                (0..500).map(|number| frame([2, 0, 0, 0, 0, 2], 1, number)),
                200 * MS
            ),
            [500, 0],
            "{name}"
        );
        bench.ports[0].0.change(|settings| settings.set(name, 0)).expect("off");
        assert_eq!(flood(&mut bench, many(0), 200 * MS), [5_000, 5_000], "{name}: off");
    }
}

#[test]
fn a_super_packet_counts_as_its_segments() {
    let mut bench = limited("storm_unknown", 100);
    let frames = superpacket_traffic::workload::w1(40);
    let passed = (0..10).filter(|_| !bench.merge(0, &frames)[1].is_empty()).count();
    assert_eq!(
        (passed, bench.drops(0, "storm")),
        (2, 8 * 40),
        "80 of 100, and no part of the third"
    );
    // A super-packet larger than the bucket passes, and later ones wait for it.
    let mut bench = limited("storm_unknown", 10);
    let mut passes = |now: u64| {
        bench.forwarder.begin(now);
        !bench.merge(0, &frames)[1].is_empty()
    };
    assert_eq!(
        [0, 0, 2_900, 4_001, 4_002].map(|ms| passes(ms * MS)),
        [true, false, false, true, false]
    );
}
