//! What happens at a port, counted by the threads that see it.

use std::collections::BTreeMap;

use superpacket::aggregate::{Counters, Reason};
use superpacket::order::GapCounters;

use crate::count::Count;
use crate::queues::Queues;
use crate::report::{PortStats, QueueStats};

/// The reason for which a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// It is longer than the MTU of the port that it leaves by, and cannot be cut.
    TooBig,
    /// It is a super-packet that its port does not take, and it cannot be cut.
    CannotSegment,
    /// The port that it leaves by could not take more.
    Full,
    /// The port that it leaves by is down.
    Down,
    /// The port that it leaves by is gone.
    Gone,
    /// The port refused it in every form.
    Refused,
    /// It came round a loop.
    Loop,
    /// Its destination is an address that bridges do not forward to (IEEE 802.1Q, table 8-1).
    Reserved,
    /// Its source is no address of a station, or it is shorter than an Ethernet header.
    Malformed,
    /// No other port is open, or that of a static entry is not.
    NoPort,
    /// No port that it might leave by is given such packets (`isolated`, `flood`, `mcast_flood`,
    /// `bcast_flood`).
    Forwarding,
    /// Where the bridge filters by VLAN: it is in none that the port it came by is in, or in one
    /// that no port it might leave by is in.
    Vlan,
    /// It is for a group that no port has asked for, and none leads to a router
    /// (`multicast-snooping`).
    Multicast,
    /// It is one of more packets for all, for many or for nobody known than the port that it came
    /// by may send (`storm_broadcast`, `storm_multicast`, `storm_unknown`).
    Storm,
    /// It is more than may leave by its port (`tx_byte_rate`, `tx_packet_rate`).
    TxRate,
    /// The backlog of the worker that it is for is as long as it may be.
    Backlog,
    /// Its flow fills the backlog of the worker that it is for.
    FlowLimit,
    /// The thread that processed it panicked.
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
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
            /// What passed, by queue: the port's own numbers are the sums.
            pub(crate) queues: Queues,
            drops: [Count; DropReason::ALL.len()],
            reasons: Reasons,
        }

        impl Counts {
            /// The counters as they stand.
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

impl Counts {
    /// Packets were dropped.
    pub(crate) fn dropped(&self, cause: DropReason, packets: u64) {
        self.drops[cause as usize].add(packets);
    }

    /// What an aggregator counted since it had counted `before`.
    pub(crate) fn received(&self, before: &Counters, now: &Counters) {
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

    /// What waited in front of gaps since `before`.
    pub(crate) fn gaps(&self, before: &GapCounters, now: &GapCounters) {
        self.gap_waited.add(now.waited - before.waited);
        self.gap_filled.add(now.filled - before.filled);
        self.gap_timed_out.add(now.timed_out - before.timed_out);
    }
}

/// Packets that left an aggregator, by the reason for which they left as they did.
#[derive(Debug)]
struct Reasons([Count; Reason::COUNT]);

impl Default for Reasons {
    fn default() -> Self {
        Reasons(std::array::from_fn(|_| Count::default()))
    }
}

impl Reasons {
    /// The reasons that occurred.
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
    fn each_cause_counts_in_its_place() {
        let counts = Counts::default();
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
