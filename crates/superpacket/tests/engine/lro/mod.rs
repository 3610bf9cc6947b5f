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

use std::fmt::Debug;

use crate::support::*;
use superpacket::aggregate::{Policy, Reason, Storage};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::wire::IpVersion;
use superpacket_traffic::check::{self, Expect, Kind, TcpFields};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{Frame, stream_bytes};

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

/// What a device may know of a checksum that is right: nothing, that it is right, the sum.
const KNOWS: [fn(&Packet) -> RxChecksum; 3] = [|_| RxChecksum::None, |_| VERIFIED, complete];

/// The frames as packets of which the device knows this.
fn known(frames: &[Frame], knows: fn(&Packet) -> RxChecksum) -> Vec<Packet> {
    packets(frames)
        .into_iter()
        .map(|packet| Packet { checksum: knows(&packet), ..packet })
        .collect()
}

/// Asserts that these packets merge into one in both modes: `payload` bytes of the stream from
/// `sequence` on.
#[track_caller]
fn assert_merges(input: &[Packet], sequence: u32, payload: usize, case: impl Debug) {
    for policy in both_modes() {
        let run = run(policy, input);
        assert_eq!(run.reasons(), [Reason::PollEnd], "{case:?}");
        assert_merged(&run.outputs[0], sequence, payload, input.len() as u32);
    }
}

/// Asserts that a packet which nothing follows leaves untouched in both modes.
#[track_caller]
fn assert_single(packet: &Packet) {
    for policy in both_modes() {
        let run = run(policy, std::slice::from_ref(packet));
        assert_eq!(run.reasons(), [Reason::PollEnd]);
        assert_untouched(&run.outputs[0], packet);
    }
}

/// Asserts that each packet leaves untouched, in the order in which they came.
#[track_caller]
pub fn assert_all_untouched(run: &Run, packets: &[Packet]) {
    run.outputs.iter().zip(packets).for_each(|(output, packet)| assert_untouched(output, packet));
}

/// The TCP header of an output.
pub fn tcp(output: &Output) -> TcpFields {
    check::tcp_fields(&output.bytes, output.metadata.layer == Layer::Ip).expect("a TCP header")
}

/// Asserts that `output` is `packets` packets merged into one: `payload` bytes of the stream from
/// `sequence` on, right in every length and checksum, with header positions that an independent
/// parse finds too.
#[track_caller]
pub fn assert_merged(output: &Output, sequence: u32, payload: usize, packets: u32) {
    let metadata = output.metadata;
    assert_eq!(metadata.packets, packets, "{:?}", metadata.reason);
    assert_eq!(metadata.checksum, VERIFIED);
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
    let offset = |kind| checked.innermost(kind).expect("a header").offset;
    assert_eq!(
        [layout.network, layout.transport, layout.payload].map(usize::from),
        [offset(network), offset(Kind::Tcp), checked.payload.start]
    );
    assert_eq!(layout.end as usize, output.bytes.len());
}

/// Asserts that `output` is `packet`, not a byte and nothing the device said of it changed.
#[track_caller]
pub fn assert_untouched(output: &Output, packet: &Packet) {
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
fn assert_refused(middle: &Packet, others: &Frame, reason: Reason) {
    let run_of_others = others.run(4);
    let mut input = packets(&run_of_others);
    input.insert(2, middle.clone());
    for policy in both_modes() {
        let run = run(policy, &input);
        assert_eq!(run.reasons(), [Reason::Overtaken, reason, Reason::PollEnd]);
        let length = others.payload.len();
        let sequence = |index: usize| run_of_others[index].clone().tcp_mut().sequence;
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
