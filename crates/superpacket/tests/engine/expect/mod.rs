//! What the rule tests share: frames of one flow go through GRO in every way there is to receive
//! and to keep them, come back in their order byte for byte, and what merged is what should have.

use superpacket::aggregate::{Policy, Reason, Storage};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::ChecksumForm;
use superpacket_traffic::frame::Frame;

use crate::support::{
    Output, PARTIAL_GRO_UDP, Packet, Run, assert_reversed, packets, run, run_batches,
};

/// How many packets there are in each output, in the order of emission.
pub fn counts(run: &Run) -> Vec<u32> {
    run.outputs.iter().map(|output| output.metadata.packets).collect()
}

/// Asserts that a run gave outputs of so many packets each, for these reasons.
#[track_caller]
pub fn left(run: &Run, expected: &[u32], reasons: &[Reason]) {
    assert_eq!((counts(run), run.reasons()), (expected.to_vec(), reasons.to_vec()));
}

/// Runs packets through GRO with UDP: one by one and as a batch, in one buffer and in many, kept in
/// fragments and linearly, checksums full and partial. What merges must not depend on it, and
/// cutting must give the packets back. The run in fragments with partial checksums is returned.
#[track_caller]
pub fn reversed(packets: &[Packet]) -> Run {
    reversed_by(Policy::gro_with_udp(), packets)
}

/// The same by another policy.
#[track_caller]
pub fn reversed_by(policy: Policy, packets: &[Packet]) -> Run {
    let scattered: Vec<_> = packets
        .iter()
        .map(|packet| packet.clone().in_buffers_of(packet.bytes.len().div_ceil(17).max(40)))
        .collect();
    let reference = run(policy.with_partial_checksums(), packets);
    assert_reversed(packets, &reference);
    for storage in [Storage::Fragments, Storage::Linear] {
        for checksum in [ChecksumForm::Partial, ChecksumForm::Full] {
            for packets in [packets, &scattered] {
                let policy = policy.with_storage(storage).with_checksum(checksum);
                let single = run(policy, packets);
                assert_reversed(packets, &single);
                assert_eq!(
                    (counts(&single), single.reasons()),
                    (counts(&reference), reference.reasons()),
                    "{policy:?}"
                );
                let batched = run_batches(policy, packets, packets.len().max(1)).outputs;
                assert_eq!(batched.len(), single.outputs.len(), "{policy:?}");
                for (batched, single) in batched.iter().zip(&single.outputs) {
                    assert_eq!(
                        (&batched.bytes, &batched.metadata),
                        (&single.bytes, &single.metadata),
                        "{policy:?}"
                    );
                }
            }
        }
    }
    reference
}

/// The same for packets of which each must also come back in its place among all others.
#[track_caller]
pub fn in_order(packets: &[Packet]) -> Run {
    let run = reversed(packets);
    let back: Vec<_> = run.outputs.iter().flat_map(Output::cut).collect();
    assert_eq!(back.len(), packets.len());
    for (index, (back, packet)) in back.iter().zip(packets).enumerate() {
        assert_eq!(back, &packet.bytes, "packet {index} of all");
    }
    run
}

/// Frames of one flow merge in these counts, for these reasons.
#[track_caller]
pub fn arrive(frames: &[Frame], expected: &[u32], reasons: &[Reason]) -> Run {
    let run = in_order(&packets(frames));
    left(&run, expected, reasons);
    run
}

/// All merge into one.
#[track_caller]
pub fn merges(frames: &[Frame]) -> Run {
    arrive(frames, &[frames.len() as u32], &[Reason::PollEnd])
}

/// Two runs of frames, taken by turns, are two flows that do not touch each other.
#[track_caller]
pub fn two_flows(first: &Frame, second: &Frame) {
    let (first, second) = (packets(&first.run(3)), packets(&second.run(3)));
    two_flows_of(&first, &second);
}

/// The same for packets.
#[track_caller]
pub fn two_flows_of(first: &[Packet], second: &[Packet]) {
    let turns: Vec<_> = first
        .iter()
        .zip(second)
        .flat_map(|(first, second)| [first.clone(), second.clone()])
        .collect();
    for storage in [Storage::Fragments, Storage::Linear] {
        let run = run(PARTIAL_GRO_UDP.with_storage(storage), &turns);
        left(&run, &[first.len() as u32, second.len() as u32], &[Reason::PollEnd; 2]);
        for (output, packets) in run.outputs.iter().zip([first, second]) {
            assert_eq!(
                output.cut(),
                packets.iter().map(|packet| packet.bytes.clone()).collect::<Vec<_>>()
            );
            assert_eq!(output.metadata.vlan, packets[0].vlan);
        }
    }
}

/// How many frames [`refused`] and [`differs`] send.
const FRAMES: usize = 5;

/// One of five packets is edited, at each place in turn: it passes alone for this reason, what was
/// held before it, and what follows merges again.
#[track_caller]
pub fn refused_packet(base: &Frame, reason: Reason, edit: impl Fn(&Frame) -> Packet) {
    let frames = base.run(FRAMES);
    for place in 0..FRAMES {
        let mut packets = packets(&frames);
        packets[place] = edit(&frames[place]);
        let run = in_order(&packets);
        let (expected, mut reasons) = around(place);
        if place > 0 {
            reasons[0] = Reason::Overtaken;
        }
        reasons[usize::from(place > 0)] = reason;
        assert_eq!((counts(&run), run.reasons()), (expected, reasons), "at {place}");
    }
}

/// The same for an edit of the frame.
#[track_caller]
pub fn refused(base: &Frame, reason: Reason, edit: impl Fn(&mut Frame)) {
    refused_packet(base, reason, |frame| frame.clone().with(&edit).into());
}

/// One of five packets is edited, at each place in turn: it ends what was held before it for this
/// reason, is held by itself, and what follows ends it for the same reason.
#[track_caller]
pub fn differs_packet(base: &Frame, reason: Reason, edit: impl Fn(&Frame) -> Packet) {
    let frames = base.run(FRAMES);
    for place in 0..FRAMES {
        let mut packets = packets(&frames);
        packets[place] = edit(&frames[place]);
        let run = in_order(&packets);
        let (expected, mut reasons) = around(place);
        let last = reasons.len() - 1;
        reasons[..last].fill(reason);
        assert_eq!((counts(&run), run.reasons()), (expected, reasons), "at {place}");
    }
}

/// The same for an edit of the frame; and where all frames are edited alike, they merge.
#[track_caller]
pub fn differs(base: &Frame, reason: Reason, edit: impl Fn(&mut Frame)) {
    differs_packet(base, reason, |frame| frame.clone().with(&edit).into());
    merges(&base.clone().with(&edit).run(FRAMES));
}

/// What arrives around a packet that does not merge: counts, and the poll's end as the reason of
/// each.
fn around(place: usize) -> (Vec<u32>, Vec<Reason>) {
    let counts: Vec<_> = [place, 1, FRAMES - 1 - place]
        .into_iter()
        .filter(|&count| count > 0)
        .map(|count| count as u32)
        .collect();
    let reasons = vec![Reason::PollEnd; counts.len()];
    (counts, reasons)
}

/// A packet whose transport checksum a device is still to fill in.
pub fn partial(frame: &Frame) -> Packet {
    let frame = frame.clone().with_checksum(superpacket_traffic::frame::Checksum::Partial);
    let offset = match frame.transport {
        superpacket_traffic::frame::Transport::Tcp(_) => 16,
        _ => 6,
    };
    let start = frame.offsets().transport as u16;
    Packet::from(&frame).with_checksum(RxChecksum::Partial { start, offset })
}

/// The same packet cut off after `length` bytes.
pub fn truncated(frame: &Frame, length: usize) -> Packet {
    let mut packet = Packet::from(frame);
    packet.bytes.truncate(length);
    packet
}

/// Where a frame starts.
pub fn layer(frame: &Frame) -> Layer {
    if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip }
}
