//! What the comparison is worth: the streams reach the runs, and give every reason that ends one.

use std::collections::BTreeSet;

use superpacket::aggregate::{Policy, Reason};
use superpacket_traffic::generate::Impairments;

use super::change::CHANGES;
use super::compare::{Batches, assert_same};
use super::directed::{interleaved_streams, knowledge, limited, modes, steps};
use super::generated::traffic;
use super::traffic::{CHANGED, flows};
use crate::support::PARTIAL_GRO_UDP;

/// What ends a run by GRO's rules.
const GRO: &[Reason] = &[
    Reason::Acknowledgement,
    Reason::BadChecksum,
    Reason::BadIpChecksum,
    Reason::ByteLimit,
    Reason::ChecksumForm,
    Reason::DontFragment,
    Reason::Evicted,
    Reason::ExtensionHeader,
    Reason::FlagsChanged,
    Reason::FlowLabel,
    Reason::Fragment,
    Reason::FragmentLimit,
    Reason::HeaderChanged,
    Reason::HoldTime,
    Reason::IpId,
    Reason::IpOptions,
    Reason::LinkHeader,
    Reason::LongerSegment,
    Reason::NoLength,
    Reason::NoPayload,
    Reason::NonCanonicalChecksum,
    Reason::NotIp,
    Reason::OptionsChanged,
    Reason::Overtaken,
    Reason::PacketLimit,
    Reason::Padded,
    Reason::PartialChecksum,
    Reason::PollEnd,
    Reason::Push,
    Reason::Requested,
    Reason::ReservedBit,
    Reason::Sequence,
    Reason::ShortSegment,
    Reason::SuperPacket,
    Reason::TcpFlags,
    Reason::Tos,
    Reason::Truncated,
    Reason::Ttl,
    Reason::UdpLength,
    Reason::UdpNoChecksum,
    Reason::Window,
];

/// What ends a run by LRO's modes, with or without pure ACKs.
const LRO: &[Reason] = &[
    Reason::AckOlder,
    Reason::BadChecksum,
    Reason::BadIpChecksum,
    Reason::ByteLimit,
    Reason::Congestion,
    Reason::DontFragment,
    Reason::DuplicateAck,
    Reason::ExtensionHeader,
    Reason::FlagsChanged,
    Reason::FlowLabel,
    Reason::Fragment,
    Reason::FragmentLimit,
    Reason::HeaderChanged,
    Reason::HoldTime,
    Reason::IpOptions,
    Reason::LinkHeader,
    Reason::NoDescriptor,
    Reason::NoLength,
    Reason::NoPayload,
    Reason::NotIp,
    Reason::NotLro,
    Reason::OptionsChanged,
    Reason::Overtaken,
    Reason::PacketLimit,
    Reason::Padded,
    Reason::PartialChecksum,
    Reason::PollEnd,
    Reason::Requested,
    Reason::ReservedBit,
    Reason::Sequence,
    Reason::SuperPacket,
    Reason::TcpFlags,
    Reason::TcpOptions,
    Reason::TimestampOlder,
    Reason::Tos,
    Reason::Truncated,
    Reason::Ttl,
    Reason::UdpLength,
    Reason::UdpOff,
    Reason::WindowUpdate,
];

/// Names, so that a failure says which.
fn names<'a>(reasons: impl IntoIterator<Item = &'a Reason>) -> BTreeSet<&'static str> {
    reasons.into_iter().map(|reason| reason.name()).collect()
}

#[test]
fn every_reason_that_ends_a_run_occurs() {
    let cases: [(&[Reason], &[Policy]); 2] =
        [(GRO, &[PARTIAL_GRO_UDP]), (LRO, &[Policy::lro(), Policy::lro_with_acks()])];
    for (expected, policies) in cases {
        let mut found = BTreeSet::new();
        for policy in policies {
            for flow in flows(60) {
                for change in 0..CHANGES.len() {
                    for knowledge in knowledge() {
                        let packets = flow.stream(&steps(change, CHANGED, false, &knowledge));
                        found.extend(
                            assert_same(*policy, &packets, Batches::of(64)).received.reasons(),
                        );
                    }
                }
            }
            for (headers, packets) in interleaved_streams() {
                for policy in limited(*policy, headers) {
                    found.extend(
                        assert_same(policy, &packets, Batches { size: 4, per_poll: 2 })
                            .received
                            .reasons(),
                    );
                }
            }
        }
        assert_eq!(names(&found), names(expected), "{policies:?}");
    }
}

/// Of the generator's traffic, in which nothing goes wrong, most packets that may merge do so.
#[test]
fn most_of_the_generated_packets_merge() {
    // UDP is a third of it, and LRO takes neither UDP, nor DCCP, nor any TCP options but
    // timestamps.
    for (policy, percent) in modes().into_iter().zip([45, 70, 18, 20].into_iter().cycle()) {
        let (mut received, mut merged, mut streams_with_runs) = (0, 0, 0);
        for seed in 1..20 {
            let run =
                assert_same(policy, &traffic(seed, 1_000, Impairments::NONE), Batches::of(64));
            received += run.received.counters().packets_in;
            merged += run.received.counters().merged;
            streams_with_runs += u64::from(run.probes_saved > 100);
        }
        assert!(merged * 100 >= received * percent, "{policy:?}: {merged} of {received}");
        assert!(streams_with_runs >= 14, "{policy:?}: {streams_with_runs}");
    }
}
