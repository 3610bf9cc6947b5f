//! `check` finds faults and names them, and finds none in faithful files.

mod bounds;
mod captures;
mod damages;
mod final_destination;
mod implementations;
mod incomplete;
mod link_headers;
mod outer_checksums;

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use superpacket::RxPacket;
use superpacket::aggregate::{BatchAggregator, HashKey, Policy};
use superpacket::virtio::{ByteOrder, Format, Framing, Header, flags, gso_type};
use superpacket::wire::Layer;
use superpacket_captures::{
    CheckOptions, CheckReport, CoalesceOptions, Input, LinkType, Output, Packets, SegmentOptions,
    Strictness, check, coalesce, segment,
};
use superpacket_traffic::frame::{
    ACK, CWR, Checksum, ECE, FIN, Frame, Ip, PSH, Pppoe, RST, Transport, stream_bytes, timestamps,
};
use superpacket_traffic::generate::{Config, Impairments, generate};

/// A packet that left, and its header.
type Left = (Frame, Header);

/// Edits a packet of the original.
type Edit = fn(&mut Frame);

/// The input and the output of an implementation.
#[derive(Clone, Debug)]
struct Case {
    original: Vec<Frame>,
    left: Vec<Left>,
}

/// Returns the header of a packet that is not to be cut.
fn plain() -> Header {
    Header { num_buffers: 1, ..Header::default() }
}

/// Returns the packet into which the kernel merges these packets.
fn merged(frames: &[Frame]) -> Left {
    let mut frame = frames[0].clone();
    frame.payload = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
    let last = frames.last().expect("some");
    let version4 = matches!(frame.ip, Ip::V4(_));
    let kind = match (&mut frame.transport, &last.transport) {
        (Transport::Tcp(tcp), Transport::Tcp(last)) => {
            tcp.flags |= last.flags & (PSH | FIN);
            // With accurate ECN, all packets have CWR and the bit is not set.
            let others_have_it =
                frames.iter().skip(1).all(|frame| frame.clone().tcp_mut().flags & CWR != 0);
            let ecn = if tcp.flags & CWR != 0 && !others_have_it { gso_type::ECN } else { 0 };
            ecn | if version4 { gso_type::TCPV4 } else { gso_type::TCPV6 }
        }
        _ => gso_type::UDP_L4,
    };
    *frame.checksum_mut().expect("it has one") = Checksum::Partial;
    let (offsets, size) = (frame.offsets(), frames[0].payload.len());
    let header = Header {
        flags: flags::NEEDS_CSUM,
        gso_type: kind,
        gso_size: size as u16,
        hdr_len: offsets.payload as u16,
        csum_start: offsets.transport as u16,
        csum_offset: if kind == gso_type::UDP_L4 { 6 } else { 16 },
        num_buffers: 1,
        ..Header::default()
    };
    (frame, header)
}

impl Case {
    /// Returns a case in which all packets merged into one.
    fn aggregation(frames: Vec<Frame>) -> Case {
        let left = vec![merged(&frames)];
        Case { original: frames, left }
    }

    /// Returns a case in which each group of packets left as one packet.
    fn with(original: Vec<Frame>, left: &[&[usize]]) -> Case {
        let left = left
            .iter()
            .map(|group| match group {
                [one] => (original[*one].clone(), plain()),
                group => {
                    merged(&group.iter().map(|&index| original[index].clone()).collect::<Vec<_>>())
                }
            })
            .collect();
        Case { original, left }
    }

    /// Checks the case, with the output in a file of records.
    fn check(&self, rules: Strictness) -> CheckReport {
        let original = in_memory(&self.original);
        let left: Vec<_> =
            self.left.iter().map(|(frame, header)| (frame.to_bytes(), *header)).collect();
        check_records(Format::Buffers, &left, Input::from(&original), rules)
    }

    fn rules(&self, rules: Strictness) -> BTreeSet<&'static str> {
        broken(&self.check(rules))
    }

    /// Asserts that exactly these rules are violated.
    #[track_caller]
    fn breaks(&self, expected: &[&str]) {
        let report = self.check(Strictness::Linux);
        assert_eq!(broken(&report), expected.iter().copied().collect(), "{:#?}", report.described);
        assert!(
            report
                .described
                .iter()
                .all(|violation| !violation.field.is_empty() && !violation.found.is_empty())
        );
    }
}

/// Returns a file of records, as a test in another language would write it.
fn records(format: Format, left: &[(Vec<u8>, Header)]) -> Vec<u8> {
    let length = format.length();
    let mut file = format!("superpacket-records 1 ethernet {length}\n").into_bytes();
    for (packet, header) in left {
        let mut bytes = [0; Format::LONGEST];
        header.write(&mut bytes, format, ByteOrder::Little).expect("long enough");
        file.extend((length as u32 + packet.len() as u32).to_le_bytes());
        file.extend(&bytes[..length]);
        file.extend(packet);
    }
    file
}

fn stream(file: &[u8]) -> Input<'static> {
    Input::Stream {
        file: "a file".to_owned(),
        stream: Box::new(std::io::Cursor::new(file.to_vec())),
    }
}

/// Returns a capture of these frames.
fn in_memory(frames: &[Frame]) -> Packets {
    let mut packets = Packets::new();
    for frame in frames {
        packets.push(LinkType::ETHERNET, Some(0), &frame.to_bytes()).expect("short");
    }
    packets
}

fn judge(checked: Input<'_>, origin: Input<'_>) -> CheckReport {
    judge_by(Strictness::Linux, checked, origin)
}

fn judge_by(rules: Strictness, checked: Input<'_>, origin: Input<'_>) -> CheckReport {
    let options = CheckOptions { rules, ..CheckOptions::default() };
    check(checked, origin, &options, &mut ()).expect("both can be read")
}

fn check_records(
    format: Format,
    left: &[(Vec<u8>, Header)],
    original: Input<'_>,
    rules: Strictness,
) -> CheckReport {
    judge_by(rules, stream(&records(format, left)), original)
}

/// Returns the names of the rules that were violated.
fn broken(report: &CheckReport) -> BTreeSet<&'static str> {
    report.by_rule.keys().map(|rule| rule.name()).collect()
}

/// Returns the packets of a capture, merged by the default options.
fn coalesced(input: Input<'_>) -> Packets {
    let mut merged = Packets::new();
    coalesce(input, Output::Packets(&mut merged), &CoalesceOptions::default(), &mut ())
        .expect("packets");
    merged
}

/// Returns the packets of a capture, cut to this MTU.
fn segmented(input: Input<'_>, mtu: u32) -> Packets {
    let mut cut = Packets::new();
    let options = SegmentOptions { mtu, ..SegmentOptions::default() };
    segment(input, Output::Packets(&mut cut), &options, &mut ()).expect("packets");
    cut
}

/// Returns packets of one flow of one of six kinds. The last TCP packet has PSH.
fn flow(kind: u8, count: usize, size: usize) -> Vec<Frame> {
    let base = match kind % 6 {
        0 => Frame::tcp4(1000, size).with_id(7),
        1 => Frame::tcp6(u32::MAX - 500, size),
        2 => Frame::tcp4(1000, size).with_id(0xfffe).with_timestamps(9, 10),
        3 => Frame::tcp4(1000, size).with_id(7).tagged(12),
        4 => Frame::udp4(size).with_id(7),
        _ => Frame::udp6(size),
    };
    let mut frames = base.run(count);
    for (index, frame) in frames
        .iter_mut()
        .enumerate()
        .filter(|(_, frame)| matches!(frame.transport, Transport::Udp(_)))
    {
        frame.payload = stream_bytes(1 + (index * size) as u32, size);
    }
    if let Some(Transport::Tcp(tcp)) = frames.last_mut().map(|frame| &mut frame.transport) {
        tcp.flags |= PSH;
    }
    frames
}

#[test]
fn the_manual_has_every_rule() {
    let manual =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/check.md"))
            .expect("it is there");
    let (linux, stricter) = manual.split_once("By `--rules reversible`").expect("two tables");
    for rule in superpacket_captures::Rule::ALL {
        let row = format!("| `{}` | {} |", rule.name(), rule.sentence());
        let table = if rule.strictness() == Strictness::Linux { linux } else { stricter };
        assert!(table.contains(&row), "{row}");
    }
}
