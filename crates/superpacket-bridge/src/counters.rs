//! The counters of a port, in one table, and the reasons for drops.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use superpacket::aggregate::{AggregateCounters, Reason};
use superpacket::order::GapCounters;
use superpacket_port::{KernelPathCounts, PortCounters};

use crate::count::Count;
use crate::queues::Queues;
use crate::report::QueueStats;

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
    /// The egress port's interface is down.
    Down,
    /// The egress port is gone: its interface no longer exists, or its other end is closed.
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

/// Defines [`PortStats`] and [`PortCounts`] from the counters of a port. A row has the name and the
/// description of a counter, for users of JSON, of metrics and of this crate.
macro_rules! port_counters {
    (
        of_queues { $($summed:ident: $sum_help:literal = $queues:ident.$of:ident,)* }
        others { $($name:ident: $help:literal,)* }
    ) => {
        /// Counters of a port since the bridge started.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct PortStats {
            /// The port's name.
            pub port: String,
            $(#[doc = concat!($sum_help, ".")] pub $summed: u64,)*
            $(#[doc = concat!($help, ".")] pub $name: u64,)*
            /// Received packets that were dropped, by cause.
            pub drops: BTreeMap<String, u64>,
            /// Packets that left aggregation, merged or single, by reason
            /// ([`Reason`](superpacket::aggregate::Reason)). Reasons that did not occur are absent.
            pub reasons: BTreeMap<String, u64>,
            /// Counters per receive queue, in order of queue number.
            pub rx_queues: Vec<QueueStats>,
            /// Counters per transmit queue that the bridge uses, in order of queue number.
            pub tx_queues: Vec<QueueStats>,
        }

        impl PortStats {
            /// The counters whose value is a single number, in the order in which they are shown.
            pub const COUNTERS: &[PortCounter] = &[
                $(PortCounter { name: stringify!($summed), help: $sum_help, read: |stats| stats.$summed },)*
                $(PortCounter { name: stringify!($name), help: $help, read: |stats| stats.$name },)*
            ];
        }

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
                let mut stats = PortStats {
                    port: port.into(),
                    $($name: self.$name.value(),)*
                    drops: DropReason::ALL
                        .map(|(cause, name)| (name.into(), self.drops[cause as usize].value()))
                        .into(),
                    reasons: self.reasons.report(),
                    rx_queues: self.queues.received(),
                    tx_queues: self.queues.sent(),
                    ..PortStats::default()
                };
                $(stats.$summed = stats.$queues.iter().map(|queue| queue.$of).sum();)*
                stats
            }
        }
    };
}

port_counters! {
    of_queues {
        rx_packets: "Packets received, a super-packet counted once" = rx_queues.packets,
        rx_bytes: "Bytes received" = rx_queues.bytes,
        tx_packets: "Packets given to the port, a super-packet counted once" = tx_queues.packets,
        tx_bytes: "Bytes given to the port" = tx_queues.bytes,
    }
    others {
        rx_super_packets: "Packets received as super-packets",
        rx_super_segments: "Frames on the wire that the received super-packets stand for",
        tx_super_packets:
            "Super-packets given to the port, received as such or aggregated by the bridge",
        tx_super_segments: "Frames on the wire that the sent super-packets stand for",
        merged: "Received packets that were merged into an earlier packet",
        aggregated: "Packets into which others were merged",
        lro_aggregated:
            "Received packets that LRO accepted into a session, including the first of the session (`aggregated` of `inet_lro`)",
        lro_flushed: "Sessions that LRO delivered (`flushed` of `inet_lro`)",
        lro_no_desc:
            "Received packets whose flow LRO did not know and for which no descriptor was free (`no_desc` of `inet_lro`)",
        gap_waited:
            "Segments that arrived ahead of a gap in their flow and waited for it to be filled (`gap_timeout`)",
        gap_filled: "Waiting segments whose gap was filled in time",
        gap_timed_out: "Waiting segments whose `gap_timeout` expired",
        tx_full:
            "Times that the kernel or the device could not take more packets. Packets dropped for this reason are in `drops` under `full`",
        tx_refused:
            "Times that the kernel or the device refused a super-packet or a partial checksum. The packet was then sent in another form",
        segmented: "Packets that the bridge cut into segments before this port",
        segments: "Segments that resulted from the `segmented` packets",
        segmented_for_ids:
            "Packets segmented because the port's metadata cannot say that all segments keep the same IPv4 identification",
        segmented_for_cwr:
            "Packets segmented because the port's metadata cannot say that all segments have CWR (accurate ECN)",
        segmented_for_link:
            "Packets segmented because the port does not segment behind their link header: PPPoE, MPLS, more than two VLAN tags, or tags of other types",
        segmented_for_tunnel:
            "Packets segmented because the port does not segment inside their tunnel",
        segmented_for_refusal:
            "Packets segmented because the kernel has repeatedly refused packets of their kind",
        segmented_for_size:
            "Packets segmented because they exceed the port's maximum length or number of segments",
        checksummed: "Partial checksums that the bridge completed before this port",
        kernel_rx_packets:
            "Packets from the port that the kernel forwarded by itself (`kernel_path`). They are in `rx_packets` too",
        kernel_rx_bytes: "Bytes of the `kernel_rx_packets`",
        kernel_tx_packets:
            "Packets to the port that the kernel forwarded by itself. They are in `tx_packets` too",
        kernel_tx_bytes: "Bytes of the `kernel_tx_packets`",
        fallbacks: "Packets that the port refused and that were then sent in another form",
        filtered:
            "Packets not forwarded because their destination is behind the port from which they came",
        disputed: "Packets sent to two ports because their destination address was seen at both",
        rx_throttled:
            "Times that a receive queue was paused because of `rx_byte_rate` or `rx_packet_rate`",
        mcast_malformed:
            "Damaged or invalid IGMP and MLD messages, which multicast snooping ignored",
        steered: "Packets handed to workers, a super-packet counted once",
        in_place: "Packets of steered queues that were processed by the receiving thread",
        held_back:
            "Packets sent to their flow's previous CPU instead of its new one, because earlier packets of the flow were still queued there",
        flow_moves: "Times that a bucket of flows moved from one CPU to another",
        hashes_reported: "Packets steered by the hash that the device reported",
        hashes_computed: "Packets for which the bridge computed the hash",
        wake_ups: "Times that a sleeping worker was woken for this port's packets",
        in_place_switches:
            "Times that a queue switched automatically between steering and processing in place, because of the thread's utilisation or the queue's packet rate",
    }
}

/// A counter of a port whose value is a single number.
#[derive(Clone, Copy, Debug)]
pub struct PortCounter {
    /// The name of the counter's field in [`PortStats`], and in JSON.
    pub name: &'static str,
    /// A description of what is counted, as a sentence without the full stop.
    pub help: &'static str,
    /// Returns the counter's value.
    pub read: fn(&PortStats) -> u64,
}

impl PortStats {
    /// Adds the packets and bytes that the kernel forwarded without the bridge.
    pub(crate) fn with_kernel_path(mut self, counts: &KernelPathCounts) -> Self {
        for (part, sum, kernel) in [
            (&mut self.kernel_rx_packets, &mut self.rx_packets, counts.rx_packets),
            (&mut self.kernel_rx_bytes, &mut self.rx_bytes, counts.rx_bytes),
            (&mut self.kernel_tx_packets, &mut self.tx_packets, counts.tx_packets),
            (&mut self.kernel_tx_bytes, &mut self.tx_bytes, counts.tx_bytes),
        ] {
            *part += kernel;
            *sum += kernel;
        }
        self
    }

    /// Adds the counters that the port itself keeps: its totals, and `queue_drops` per receive
    /// queue.
    pub(crate) fn with(mut self, own: PortCounters, queue_drops: &[u64]) -> Self {
        for (queue, &drops) in self.rx_queues.iter_mut().zip(queue_drops) {
            queue.drops = Some(drops);
        }
        self.drops.insert("rx_ring".into(), own.rx_dropped);
        self.drops.insert("rx_errors".into(), own.rx_errors);
        (self.tx_full, self.tx_refused) = (own.tx_full, own.tx_refused);
        self
    }
}

impl PortCounts {
    /// Counts packets as dropped for a reason.
    pub(crate) fn dropped(&self, cause: DropReason, packets: u64) {
        self.drops[cause as usize].add(packets);
    }

    /// Adds to the port's counters what an aggregator has counted between the readings `before` and
    /// `now`.
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

    /// Adds to the port's counters what the buffer for TCP sequence gaps has counted between the
    /// readings `before` and `now`.
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
