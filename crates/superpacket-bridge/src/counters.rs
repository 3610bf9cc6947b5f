//! The counters of a port, and the reasons for drops.

use std::collections::BTreeMap;

use superpacket::aggregate::{AggregateCounters, Reason};
use superpacket::order::GapCounters;

use crate::count::Count;
use crate::queues::Queues;
use crate::report::{PortStats, QueueStats};

/// The reason for which a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The packet exceeds the egress port's MTU, and cannot be segmented.
    TooBig,
    /// The packet is a super-packet that the egress port does not accept, and it cannot be
    /// segmented.
    CannotSegment,
    /// The egress port's queue is full.
    Full,
    /// The egress port is down.
    Down,
    /// The egress port is gone.
    Gone,
    /// The kernel or device refused to send the packet, even after software had done the work of
    /// all offloads.
    Refused,
    /// The packet returned through a loop in the network.
    Loop,
    /// The destination is an address that bridges do not forward to (IEEE 802.1Q, table 8-1).
    Reserved,
    /// The source is not a valid unicast address, or the frame is shorter than an Ethernet header.
    Malformed,
    /// The bridge has no other open port, or the port of the destination's static entry is not
    /// open.
    NoPort,
    /// The forwarding flags of the ports allow no egress port (`isolated`, `flood`, `mcast_flood`,
    /// `bcast_flood`).
    Forwarding,
    /// With VLAN filtering: the ingress port is not a member of the packet's VLAN, or no port that
    /// could send the packet is.
    Vlan,
    /// No port has joined the multicast group, and no port leads to a router
    /// (`multicast-snooping`).
    Multicast,
    /// The packet exceeds the ingress port's limit for broadcast, multicast or unknown destinations
    /// (`storm_broadcast`, `storm_multicast`, `storm_unknown`).
    Storm,
    /// The packet exceeds the egress port's rate (`tx_byte_rate`, `tx_packet_rate`).
    TxRate,
    /// The backlog of the worker that would process the packet has reached its maximum length.
    Backlog,
    /// The packet's flow takes more than its share of a worker's backlog (flow limit).
    FlowLimit,
    /// The thread that processed the packet panicked.
    Panic,
}

impl DropReason {
    const ALL: [(DropReason, &str); 18] = [
        (DropReason::TooBig, "too_big"),
        (DropReason::CannotSegment, "cannot_segment"),
        (DropReason::Full, "full"),
        (DropReason::Down, "down"),
        (DropReason::Gone, "gone"),
        (DropReason::Refused, "refused"),
        (DropReason::Loop, "loop"),
        (DropReason::Reserved, "reserved"),
        (DropReason::Malformed, "malformed"),
        (DropReason::NoPort, "no_port"),
        (DropReason::Forwarding, "forwarding"),
        (DropReason::Vlan, "vlan"),
        (DropReason::Multicast, "multicast"),
        (DropReason::Storm, "storm"),
        (DropReason::TxRate, "tx_rate"),
        (DropReason::Backlog, "backlog"),
        (DropReason::FlowLimit, "flow_limit"),
        (DropReason::Panic, "panic"),
    ];
}

macro_rules! counts {
    ($($name:ident),*) => {
        /// The counters of one port, shared by all threads.
        #[derive(Debug, Default)]
        pub(crate) struct PortCounts {
            $(pub(crate) $name: Count,)*
            /// Counters of each receive and transmit queue; their sums are the port's packets and
            /// bytes.
            pub(crate) queues: Queues,
            drops: [Count; DropReason::ALL.len()],
            reasons: Reasons,
        }

        impl PortCounts {
            /// Returns the current values, as the report of the port with this name.
            pub(crate) fn report(&self, port: &str) -> PortStats {
                let drops: BTreeMap<String, u64> = DropReason::ALL.into_iter().map(|(cause, name)| (name.into(), self.drops[cause as usize].value())).collect();
                let (rx_queues, tx_queues) = (self.queues.received(), self.queues.sent());
                let sum = |queues: &[QueueStats], of: fn(&QueueStats) -> u64| queues.iter().map(of).sum();
                PortStats {
                    port: port.into(),
                    rx_packets: sum(&rx_queues, |queue| queue.packets),
                    rx_bytes: sum(&rx_queues, |queue| queue.bytes),
                    tx_packets: sum(&tx_queues, |queue| queue.packets),
                    tx_bytes: sum(&tx_queues, |queue| queue.bytes),
                    drops,
                    reasons: self.reasons.report(),
                    rx_queues,
                    tx_queues,
                    $($name: self.$name.value(),)*
                }
            }
        }
    };
}

counts!(
    rx_super_packets,
    rx_super_segments,
    tx_super_packets,
    tx_super_segments,
    merged,
    aggregated,
    lro_aggregated,
    lro_flushed,
    lro_no_desc,
    gap_waited,
    gap_filled,
    gap_timed_out,
    tx_full,
    tx_refused,
    segmented,
    segments,
    segmented_for_ids,
    segmented_for_cwr,
    segmented_for_link,
    segmented_for_tunnel,
    segmented_for_refusal,
    segmented_for_size,
    checksummed,
    fallbacks,
    filtered,
    disputed,
    rx_throttled,
    mcast_malformed,
    steered,
    in_place,
    held_back,
    flow_moves,
    hashes_reported,
    hashes_computed,
    wake_ups,
    in_place_switches
);

impl PortCounts {
    /// Counts packets as dropped for a reason.
    pub(crate) fn dropped(&self, cause: DropReason, packets: u64) {
        self.drops[cause as usize].add(packets);
    }

    /// Adds to the port's counters how much an aggregator has counted between two readings.
    pub(crate) fn received(&self, before: &AggregateCounters, now: &AggregateCounters) {
        self.merged.add(now.merged - before.merged);
        self.aggregated.add(now.super_packets - before.super_packets);
        self.lro_aggregated.add(now.aggregated - before.aggregated);
        self.lro_flushed.add(now.flushed - before.flushed);
        self.lro_no_desc.add(now.no_desc - before.no_desc);
        if now.packets_out != before.packets_out {
            for (reason, count) in Reason::ALL.iter().zip(&self.reasons.0) {
                count.add(now.reason(*reason) - before.reason(*reason));
            }
        }
    }

    /// Adds to the port's counters what a buffer for sequence gaps has counted between two
    /// readings.
    pub(crate) fn gaps(&self, before: &GapCounters, now: &GapCounters) {
        self.gap_waited.add(now.waited - before.waited);
        self.gap_filled.add(now.filled - before.filled);
        self.gap_timed_out.add(now.timed_out - before.timed_out);
    }
}

/// Numbers of packets that left an aggregator, by the reason why they were not held longer.
#[derive(Debug)]
struct Reasons([Count; Reason::COUNT]);

impl Default for Reasons {
    fn default() -> Self {
        Reasons(std::array::from_fn(|_| Count::default()))
    }
}

impl Reasons {
    /// Returns the reasons that occurred, each with its number of packets.
    fn report(&self) -> BTreeMap<String, u64> {
        let counted = Reason::ALL
            .iter()
            .zip(&self.0)
            .map(|(reason, count)| (reason.name().to_owned(), count.value()));
        counted.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drop_reason_has_its_counter() {
        let counts = PortCounts::default();
        for (number, (cause, _)) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
            counts.dropped(cause, number as u64 + 1);
        }
        counts.segments.add(44);
        [0, 2].into_iter().for_each(|queue| counts.queues.receives_by(queue).bytes.add(60));
        let report = counts.report("tap:t");
        assert_eq!(
            (report.segments, report.rx_packets, report.rx_bytes, report.port.as_str()),
            (44, 0, 120, "tap:t")
        );
        assert!(
            DropReason::ALL
                .into_iter()
                .enumerate()
                .all(|(number, (_, name))| report.drops[name] == number as u64 + 1)
        );
    }
}
