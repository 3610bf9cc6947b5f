//! The output of `coalesce` is in the order of its input.

use std::path::{Path, PathBuf};

use superpacket_captures::file::{LinkType, Source};
use superpacket_captures::{
    CoalesceOptions, CoalesceReport, Input, Output, PacketSink, Packets, Reader, Rules, Stepping,
    coalesce,
};
use superpacket_traffic::frame::Frame;

/// Returns the captures of the repository, or those below the folder that `SUPERPACKET_CAPTURES`
/// names.
fn captures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let folder = std::env::var_os("SUPERPACKET_CAPTURES").map(PathBuf::from);
    let mut folders = vec![folder.unwrap_or_else(|| root.join("real"))];
    let mut files = vec![root.join("demo.pcap.gz")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry")) {
            if entry.path().is_dir() { &mut folders } else { &mut files }.push(entry.path());
        }
    }
    files
}

/// Returns the packets of a capture up to its end or its first error; `None` if it is no capture.
fn read(path: &Path) -> Option<Packets> {
    let mut reader = Reader::open(path).ok()?;
    let mut packets = Packets::new();
    while let Ok(Some(frame)) = reader.next_frame() {
        packets.declare(frame.interfaces).expect("memory");
        packets.packet(&frame.record(), frame.data).expect("memory");
    }
    Some(packets)
}

fn merge(packets: &Packets, options: &CoalesceOptions) -> (Packets, CoalesceReport) {
    let mut out = Packets::new();
    let report = coalesce(Input::from(packets), Output::Packets(&mut out), options, &mut ());
    (out, report.expect("merges"))
}

fn times(packets: &Packets) -> Vec<u64> {
    packets.iter().filter_map(|frame| Some(frame.time?.nanoseconds())).collect()
}

#[test]
fn an_ordered_capture_stays_in_order_and_loses_nothing() {
    let modes = [(Rules::Gro, false), (Rules::Lro, false), (Rules::Lro, true)];
    let steppings = [(64, 1_000_000), (7, 1_000_000), (0, 1_000_000), (0, u64::MAX)];
    let mut merged = [0; 3];
    for path in captures() {
        let Some(packets) = read(&path) else { continue };
        let is_ordered = times(&packets).is_sorted();
        for (mode, (rules, acks)) in modes.into_iter().enumerate() {
            for (batch, hold) in steppings {
                let stepping = Stepping { batch, hold };
                let options =
                    CoalesceOptions { rules, acks, stepping, ..CoalesceOptions::default() };
                let (out, report) = merge(&packets, &options);
                let case = format!("{} {options:?}", path.display());
                assert_eq!(out.len() as u64, report.totals.packets_out, "{case}");
                assert_eq!(packets.len() as u64 - report.totals.merged, out.len() as u64, "{case}");
                assert!(!is_ordered || times(&out).is_sorted(), "{case}");
                merged[mode] += report.totals.merged;
            }
        }
    }
    assert!(merged.into_iter().all(|count| count > 100), "{merged:?}");
}

/// Returns packets in memory, one per microsecond.
fn capture(frames: &[Frame]) -> Packets {
    let mut packets = Packets::new();
    for (time, frame) in (0..).step_by(1000).zip(frames) {
        packets.push(LinkType::ETHERNET, Some(time), &frame.to_bytes()).expect("short");
    }
    packets
}

#[test]
fn a_merged_packet_has_the_place_and_time_of_its_first() {
    let flow = Frame::tcp4(1000, 500).with_id(1).run(4);
    let other = Frame::udp4(9);
    let frames = [
        other.clone(),
        flow[0].clone(),
        other.clone(),
        flow[1].clone(),
        flow[2].clone(),
        other.clone(),
        flow[3].clone(),
    ];
    let options = CoalesceOptions { udp: false, ..CoalesceOptions::default() };
    let (out, _) = merge(&capture(&frames), &options);
    assert_eq!(times(&out), [0, 1000, 2000, 5000]);
    assert_eq!(out.get(1).map(|frame| frame.data.len()), Some(54 + 2000));
}

#[test]
fn a_merged_packet_of_lro_follows_what_it_acknowledges() {
    let mut flow = Frame::tcp4(1000, 500).with_id(1).run(4);
    let other = Frame::udp4(9);
    let at = |flow: &[Frame]| {
        let frames = [flow[0].clone(), other.clone(), flow[1].clone(), flow[2].clone()];
        let options = CoalesceOptions { rules: Rules::Lro, ..CoalesceOptions::default() };
        times(&merge(&capture(&frames), &options).0)
    };
    assert_eq!(at(&flow), [0, 1000]);
    for frame in &mut flow[1..] {
        frame.tcp_mut().acknowledgement += 100;
    }
    assert_eq!(at(&flow), [1000, 3000]);
}
