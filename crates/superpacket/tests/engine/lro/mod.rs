//! LRO mode, point by point: what merges, how far, what is refused and how it leaves.
//!
//! Every merged packet is checked again by an independent parse: lengths, checksums, header
//! positions, and each byte of its payload.

mod buffers;
mod checksums;
mod limits;
mod merge;
mod padding;
mod refused;
mod vlan;

use crate::support::*;
use superpacket::aggregate::{Policy, Storage};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::IpVersion;
use superpacket_traffic::check::{self, Expect, Kind, TcpFields};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::stream_bytes;

/// LRO in fragments mode and in linear mode: what a test claims must hold in both.
fn both_modes() -> [Policy; 2] {
    [Policy::lro(), linear()]
}

/// LRO in linear mode.
fn linear() -> Policy {
    Policy::lro().with_storage(Storage::Linear)
}

/// The sum that a device of `CHECKSUM_COMPLETE` reports: all bytes after the 14-byte Ethernet
/// header, or all bytes of a packet that starts at IP.
fn complete(packet: &Packet) -> RxChecksum {
    let start = if packet.layer == Layer::Ethernet { 14 } else { 0 };
    RxChecksum::Complete(checksum::sum(&packet.bytes[start..]))
}

/// The TCP header of an output.
fn tcp(output: &Output) -> TcpFields {
    check::tcp_fields(&output.bytes, output.metadata.layer == Layer::Ip).expect("a TCP header")
}

/// Asserts that `output` is `packets` packets merged into one: `payload` bytes of the stream from
/// `sequence` on, right in every length and checksum, with header positions that an independent
/// parse finds too.
#[track_caller]
fn assert_merged(output: &Output, sequence: u32, payload: usize, packets: u32) {
    let metadata = output.metadata;
    assert_eq!(metadata.packets, packets, "{:?}", metadata.reason);
    assert_eq!(metadata.checksum, RxChecksum::Unnecessary { level: 0 });
    assert_eq!(metadata.gso, None, "what LRO merged must not be cut again");

    let starts_at_ip = metadata.layer == Layer::Ip;
    let checked = check::frame(&output.bytes, &Expect { starts_at_ip, ..Expect::default() })
        .expect("right lengths and checksums");
    assert_eq!((checked.checksums, checked.trailing), (1, 0));
    assert!(
        output.bytes[checked.payload.clone()] == stream_bytes(sequence, payload),
        "the payload of {payload} bytes is not the stream's"
    );
    assert_eq!(tcp(output).sequence, sequence);

    let layout = metadata.layout.expect("a layout");
    let network = match layout.version {
        IpVersion::V4 => Kind::Ipv4,
        IpVersion::V6 => Kind::Ipv6,
    };
    assert_eq!(
        usize::from(layout.network),
        checked.innermost(network).expect("an IP header").offset
    );
    assert_eq!(
        usize::from(layout.transport),
        checked.innermost(Kind::Tcp).expect("a TCP header").offset
    );
    assert_eq!(usize::from(layout.payload), checked.payload.start);
    assert_eq!(layout.end as usize, output.bytes.len());
}

/// Asserts that `output` is `packet`, not a byte and nothing the device said of it changed.
#[track_caller]
fn assert_untouched(output: &Output, packet: &Packet) {
    assert_eq!(output.bytes, packet.bytes);
    let metadata = output.metadata;
    assert_eq!((metadata.packets, metadata.gso, metadata.absorbed_acks), (1, None, 0));
    assert_eq!(
        (metadata.checksum, metadata.vlan, metadata.layer, metadata.time),
        (packet.checksum, packet.vlan, packet.layer, packet.time)
    );
}

/// Asserts that `middle`, sent in the midst of a run of four segments, passes untouched with
/// `reason`, and that what was held of its flow leaves before it.
#[track_caller]
fn assert_refused(
    middle: &Packet,
    others: &superpacket_traffic::frame::Frame,
    reason: superpacket::aggregate::Reason,
) {
    use superpacket::aggregate::Reason;
    let run_of_others = others.run(4);
    let mut input = packets(&run_of_others);
    input.insert(2, middle.clone());
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::Overtaken, reason, Reason::PollEnd]);
        let length = others.payload.len();
        let sequence = |index: usize| match &run_of_others[index].transport {
            superpacket_traffic::frame::Transport::Tcp(tcp) => tcp.sequence,
            other => panic!("not TCP: {other:?}"),
        };
        assert_merged(&run.outputs[0], sequence(0), 2 * length, 2);
        assert_untouched(&run.outputs[1], middle);
        assert_merged(&run.outputs[2], sequence(2), 2 * length, 2);
        assert_eq!(run.counters.reason(reason), 1);
        assert_eq!(
            (run.counters.aggregated, run.counters.flushed),
            (4, 2),
            "a refused packet is no part of a session"
        );
    }
}
