//! SCTP is handed on untouched, in either mode: its checksum is a CRC over the whole packet, so
//! what is merged could not be mended by adding sums.

use crate::support::*;
use superpacket::aggregate::{Policy, Reason, Storage};
use superpacket_traffic::frame::{Checksum, Frame, Sctp, Transport};

/// A DATA chunk (RFC 9260, section 3.3.1) of `number`, with 100 bytes of user data.
fn data(number: u32) -> Vec<u8> {
    let header = [
        &[0, 3, 0, 116][..],
        &number.to_be_bytes(),
        &[0, 0],
        &(number as u16).to_be_bytes(),
        &[0; 4],
    ]
    .concat();
    [header, vec![number as u8; 100]].concat()
}

fn sctp(base: Frame, number: u32, checksum: Checksum) -> Frame {
    Frame {
        transport: Transport::Sctp(Sctp { checksum, ..Sctp::default() }),
        payload: data(number),
        ..base
    }
}

fn modes() -> [Policy; 4] {
    let linear = |policy: Policy| policy.with_storage(Storage::Linear);
    [
        PARTIAL_GRO_UDP,
        linear(PARTIAL_GRO_UDP),
        Policy::lro_with_acks(),
        linear(Policy::lro_with_acks()),
    ]
}

/// Asserts that each packet leaves as it came, in its place, as a protocol that never aggregates.
#[track_caller]
fn assert_handed_on(packets: &[Packet]) {
    for policy in modes() {
        let run = run(policy, packets);
        assert_eq!(run.reasons(), vec![Reason::Protocol; packets.len()], "{policy:?}");
        for (output, packet) in run.outputs.iter().zip(packets) {
            assert_eq!(output.bytes, packet.bytes);
            let metadata = output.metadata;
            assert_eq!((metadata.packets, metadata.gso, metadata.absorbed_acks), (1, None, 0));
            assert_eq!(
                (metadata.checksum, metadata.layer, metadata.vlan),
                (packet.checksum, packet.layer, packet.vlan)
            );
        }
        assert_eq!(run.counters.reason(Reason::Protocol), packets.len() as u64);
        assert_eq!(
            (run.counters.merged, run.counters.super_packets, run.counters.verified_in_software),
            (0, 0, 0)
        );
    }
}

#[test]
fn sctp_passes_untouched_with_reason_protocol() {
    assert_eq!(Reason::Protocol.name(), "protocol");
    for base in [Frame::tcp4(1, 0), Frame::tcp6(1, 0)] {
        for base in [base.clone(), base.clone().tagged(7), base.at_ip()] {
            // A wrong checksum is the receiver's to find.
            for checksum in [Checksum::Right, Checksum::Wrong, Checksum::Zero] {
                let frames: Vec<_> =
                    (0..5).map(|number| sctp(base.clone(), number, checksum)).collect();
                assert_handed_on(&packets(&frames));
                // Whatever the device says, and in however many buffers.
                let known: Vec<_> = packets(&frames)
                    .into_iter()
                    .map(|packet| packet.with_checksum(VERIFIED).in_buffers_of(40))
                    .collect();
                assert_handed_on(&known);
            }
        }
    }
}

#[test]
fn sctp_between_the_segments_of_a_flow_does_not_end_it() {
    for base in [Frame::tcp4(1, 500), Frame::tcp6(1, 500)] {
        let association = sctp(base.clone(), 9, Checksum::Right);
        let mut frames = base.run(4);
        frames.insert(2, association.clone());
        for policy in modes() {
            let run = run(policy, &packets(&frames));
            assert_eq!(run.reasons(), [Reason::Protocol, Reason::PollEnd], "{policy:?}");
            assert_eq!(run.outputs[0].bytes, association.to_bytes());
            assert_eq!((run.outputs[1].metadata.packets, run.outputs[1].payload()), (4, 2000));
        }
    }
}
