//! Packets whose own checksum is wrong: a damaged packet stays damaged, and takes no valid one with
//! it.

use superpacket::aggregate::{Policy, Reason, Storage};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::ChecksumForm;
use superpacket::virtio::Framing;
use superpacket_traffic::check::{self, Expect};
use superpacket_traffic::frame::Frame;

use crate::support::{
    BatchAggregator, Output, PARTIAL_GRO_UDP, Packet, Run, run, run_batches, unknown,
};

/// The number of the damaged packet.
const DAMAGED: usize = 7;

fn flows() -> [Frame; 5] {
    [
        Frame::tcp4(1, 1000),
        Frame::tcp6(1, 1000),
        Frame::udp4(1000),
        Frame::udp6(1000),
        Frame::tcp4(1, 1000).in_vxlan4(),
    ]
}

/// 20 packets of a flow, one of which has another payload than its checksum says.
fn with_damage(frame: &Frame) -> Vec<Packet> {
    let mut packets: Vec<Packet> = frame.run(20).iter().map(Packet::from).collect();
    let middle = packets[DAMAGED].bytes.len() - 500;
    packets[DAMAGED].bytes[middle] ^= 0x10;
    packets
}

fn policies(policy: Policy) -> [Policy; 2] {
    [policy, policy.with_storage(Storage::Linear)]
}

/// The damaged packet left alone, as it came, and all others arrive with the checksums they had.
#[track_caller]
fn assert_only_one_is_lost(packets: &[Packet], run: &Run) {
    assert_eq!(run.counters.reason(Reason::BadChecksum), 1);
    assert!(run.counters.merged >= 15, "{} merged", run.counters.merged);
    let mut arrived = Vec::new();
    for output in &run.outputs {
        let partial = matches!(output.metadata.checksum, RxChecksum::Partial { .. });
        let expect = Expect {
            starts_at_ip: output.metadata.layer == Layer::Ip,
            partial,
            big: true,
            ..Expect::default()
        };
        let is_damaged = output.bytes == packets[DAMAGED].bytes;
        assert_eq!(
            check::frame(&output.bytes, &expect).is_err(),
            is_damaged,
            "{:?}",
            output.metadata
        );
        arrived.extend(output.cut());
    }
    assert!(arrived.iter().eq(packets.iter().map(|packet| &packet.bytes)));
}

#[test]
fn by_default_a_damaged_packet_leaves_alone_as_it_came() {
    for frame in flows() {
        let packets = with_damage(&frame);
        for form in [ChecksumForm::Full, ChecksumForm::Partial] {
            for policy in policies(Policy::gro_with_udp().with_checksum(form)) {
                assert_only_one_is_lost(&packets, &run(policy, &packets));
                assert_only_one_is_lost(&packets, &run_batches(policy, &packets, 5));
            }
        }
    }
}

#[test]
fn with_complete_checksums_trust_does_not_make_a_damaged_packet_spoil_its_neighbours() {
    for frame in flows() {
        let packets = with_damage(&frame);
        for policy in policies(Policy::gro_with_udp().with_trusted_input()) {
            assert_only_one_is_lost(&packets, &run(policy, &packets));
            assert_only_one_is_lost(&packets, &run_batches(policy, &packets, 5));
        }
    }
    // LRO leaves complete checksums whatever the policy says of them.
    let packets = with_damage(&Frame::tcp4(1, 1000));
    for form in [ChecksumForm::Full, ChecksumForm::Partial] {
        let run = run(Policy::lro().with_checksum(form).with_trusted_input(), &packets);
        assert_eq!((run.counters.reason(Reason::BadChecksum), run.outputs.len()), (1, 3));
        let wrong = |output: &&Output| {
            check::frame(&output.bytes, &Expect { big: true, ..Expect::default() }).is_err()
        };
        assert!(
            run.outputs
                .iter()
                .filter(wrong)
                .map(|output| &output.bytes)
                .eq([&packets[DAMAGED].bytes])
        );
    }
}

#[test]
fn with_partial_checksums_trust_merges_what_it_was_told_to_merge() {
    for frame in flows() {
        let packets = with_damage(&frame);
        for policy in policies(PARTIAL_GRO_UDP.with_trusted_input()) {
            let run = run(policy, &packets);
            assert_eq!((run.outputs.len(), run.counters.verified_in_software), (1, 0));
        }
    }
}

#[test]
fn borrowed_packets_are_verified_where_checksums_are_complete() {
    let packets: Vec<_> =
        with_damage(&Frame::tcp6(1, 1000).at_ip()).into_iter().map(|packet| packet.bytes).collect();
    let policy = Policy::gro().with_trusted_input();
    let key = superpacket::HashKey::new(7);
    let leaving = |mut aggregator: BatchAggregator| {
        let mut leaving = 0;
        aggregator.poll_gathered(&unknown(Layer::Ip, &packets), |_| leaving += 1);
        leaving
    };
    assert_eq!(leaving(BatchAggregator::new(Layer::Ip, policy, key)), 3);
    assert_eq!(leaving(BatchAggregator::framed(Framing::TUN, Policy::gro(), key)), 3);
    assert_eq!(
        leaving(BatchAggregator::framed(Framing::TUN, policy, key)),
        1,
        "the kernel completes the checksum"
    );
}
