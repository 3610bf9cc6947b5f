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
const GRO: &str = "
    acknowledgement bad_checksum bad_ip_checksum byte_limit checksum_form dont_fragment
    evicted extension_header flags_changed flow_label fragment fragment_limit header_changed
    hold_time ip_id ip_options link_header longer_segment no_length no_payload
    non_canonical_checksum not_ip options_changed overtaken packet_limit padded
    partial_checksum poll_end push requested reserved_bit sequence short_segment super_packet
    tcp_flags tos truncated ttl udp_length udp_no_checksum window
";

/// What ends a run by LRO's modes, with or without pure ACKs.
const LRO: &str = "
    ack_older bad_checksum bad_ip_checksum byte_limit congestion dont_fragment duplicate_ack
    extension_header flags_changed flow_label fragment fragment_limit header_changed hold_time
    ip_options link_header no_descriptor no_length no_payload not_ip not_lro options_changed
    overtaken packet_limit padded partial_checksum poll_end requested reserved_bit sequence
    super_packet tcp_flags tcp_options timestamp_older tos truncated ttl udp_length udp_off
    window_update
";

#[test]
fn every_reason_that_ends_a_run_occurs() {
    let cases: [(&str, &[Policy]); 2] =
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
        let found: BTreeSet<_> = found.into_iter().map(Reason::name).collect();
        assert_eq!(found, expected.split_whitespace().collect(), "{policies:?}");
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
