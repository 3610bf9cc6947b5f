//! The kernel's own GRO test as a capture. `superpacket coalesce` turns each case into the packets
//! of the table, and `superpacket verify` restores every frame.

use std::collections::HashSet;

use crate::support::*;
use superpacket_traffic::check;
use superpacket_traffic::frame::Frame;
use superpacket_traffic::gro_table::{self, BURST_INTERVAL, Case};

/// Time from a case's first frame to the next case's, in nanoseconds.
const NEXT: u64 = 10 * BURST_INTERVAL;

/// Options that hold packets longer than any burst takes (a microsecond per frame), but shorter
/// than the time between bursts. No poll ends earlier.
const HELD: [&str; 4] = ["--batch", "0", "--hold", "10ms"];

/// Returns the packets that must arrive for a case, each as the frames that it consists of.
fn arrives(case: &Case) -> Vec<&[Frame]> {
    case.bursts.iter().flat_map(|burst| burst.packets()).collect()
}

/// Returns all cases one after the other.
fn captured(cases: &[Case]) -> Vec<CapturedFrame> {
    let mut captured = Vec::new();
    for (case, start) in cases.iter().zip((0..).step_by(NEXT as usize)) {
        for (burst, start) in case.bursts.iter().zip((start..).step_by(BURST_INTERVAL as usize)) {
            captured.extend(
                burst
                    .frames
                    .iter()
                    .zip((start..).step_by(1_000))
                    .map(|(frame, time)| CapturedFrame::at(time, frame.to_bytes())),
            );
        }
    }
    captured
}

#[test]
fn every_case_of_the_kernels_gro_test_arrives_as_the_table_says() {
    let cases = gro_table::all();
    assert!(cases.len() > 100, "{} cases", cases.len());
    let frames = captured(&cases);
    let packets: usize = cases.iter().map(|case| arrives(case).len()).sum();
    let merged: usize = cases.iter().flat_map(arrives).filter(|frames| frames.len() > 1).count();
    for name in ["in.pcap", "in.pcapng"] {
        let bench = Bench::new();
        bench.capture(name, &frames);
        let report = bench.json(&[&["coalesce", name, "-o", "out.pcapng"][..], &HELD].concat());
        assert_eq!(report["packets_in"], frames.len() as u64);
        assert_eq!(report["packets_out"], packets as u64);
        assert_eq!(report["super_packets"], merged as u64);
        assert_eq!(reasons(&report), packets as u64);

        let mut out = vec![Vec::new(); cases.len()];
        for packet in bench.read("out.pcapng") {
            out[((packet.time - START) / NEXT) as usize].push(packet.data);
        }
        for (case, out) in cases.iter().zip(&out) {
            let payloads: Vec<_> = out
                .iter()
                .map(|packet| check::payload(packet, false).map_or(0, <[u8]>::len))
                .collect();
            let lengths: Vec<_> =
                case.bursts.iter().flat_map(|burst| burst.arrives.clone()).collect();
            assert_eq!(
                out.len(),
                lengths.len(),
                "{}: {payloads:?} arrive, not {lengths:?}",
                case.name
            );
            for ((packet, frames), length) in out.iter().zip(arrives(case)).zip(lengths) {
                match frames {
                    [alone] => assert_eq!(*packet, alone.to_bytes(), "{}: not touched", case.name),
                    _ => {
                        assert_eq!(
                            check::payload(packet, false).map(<[u8]>::len),
                            Some(length),
                            "{}",
                            case.name
                        );
                        assert_right(packet);
                    }
                }
            }
        }
    }
}

#[test]
fn every_frame_of_the_kernels_gro_test_comes_back() {
    let cases = gro_table::all();
    let frames = captured(&cases);
    let packets: usize = cases.iter().map(|case| arrives(case).len()).sum();
    let bench = Bench::new();
    bench.capture("in.pcap", &frames);
    let report = bench.json(&[&["verify", "in.pcap"][..], &HELD].concat());
    assert_eq!(report["mismatches"], 0, "{report}");
    assert_eq!(report["packets_in"], frames.len() as u64);
    assert_eq!(report["packets_out"], packets as u64);
    assert_eq!(report["merged"], (frames.len() - packets) as u64);
}

/// Flows per poll, with two packets each.
const FLOWS: u16 = 512;

/// Returns two packets of `FLOWS` flows for each path, and the names of the paths.
fn at_capacity() -> (Vec<String>, Vec<CapturedFrame>) {
    let paths = gro_table::capacity(FLOWS).into_iter().zip((0..).step_by(NEXT as usize));
    let captured = paths.map(|((path, frames), start)| {
        let frames = frames
            .iter()
            .zip((start..).step_by(1_000))
            .map(|(frame, time)| CapturedFrame::at(time, frame.to_bytes()));
        (path, frames.collect::<Vec<_>>())
    });
    let (paths, captured): (Vec<_>, Vec<_>) = captured.unzip();
    (paths, captured.concat())
}

#[test]
fn as_many_flows_as_a_poll_has_merge_in_their_order_and_come_back() {
    let (paths, frames) = at_capacity();
    let flows = usize::from(FLOWS);
    let packets = (paths.len() * flows) as u64;
    let bench = Bench::new();
    bench.capture("in.pcap", &frames);
    let report = bench.json(&[&["coalesce", "in.pcap", "-o", "out.pcapng"][..], &HELD].concat());
    for (name, expected) in
        [("packets_in", 2 * packets), ("packets_out", packets), ("super_packets", packets)]
    {
        assert_eq!(report[name].as_u64(), Some(expected), "{name}");
    }
    let out = bench.read("out.pcapng");
    assert_eq!(out.len() as u64, packets);
    for ((path, came), out) in paths.iter().zip(frames.chunks(2 * flows)).zip(out.chunks(flows)) {
        let flow_of = |frame: &CapturedFrame| check::flow_key(&frame.data, false).expect("a flow");
        assert_eq!(out.iter().map(flow_of).collect::<HashSet<_>>().len(), flows, "{path}");
        for (flow, (packet, first)) in out.iter().zip(came).enumerate() {
            assert_eq!(flow_of(packet), flow_of(first), "{path}: flow {flow}");
            assert_eq!(
                check::payload(&packet.data, false).map(<[u8]>::len),
                Some(400),
                "{path}: flow {flow}"
            );
            assert_right(&packet.data);
        }
    }
    let report = bench.json(&[&["verify", "in.pcap"][..], &HELD].concat());
    assert_json(&report, json!({ "mismatches": 0, "merged": packets }));
}
