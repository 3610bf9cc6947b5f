//! The aggregator's counters.

use super::Reason;

/// The aggregator's counters. They balance at any time: `packets_in = packets_out + merged + held`,
/// and the reasons add up to `packets_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AggregateCounters {
    // Fields that are updated together are not adjacent. Otherwise compilers load two of them as
    // one 128-bit word, which stalls if the fields were last written separately.
    /// Number of packets received.
    pub packets_in: u64,
    /// Number of packets emitted, single or merged.
    pub packets_out: u64,
    /// Number of received packets that were merged into another packet, including absorbed ACKs.
    pub merged: u64,
    /// Packets held now; a merged packet counts once.
    pub held: u64,
    /// Number of bytes of the received packets, including link headers and padding.
    pub bytes_in: u64,
    /// Number of bytes of the emitted packets, headers included.
    pub bytes_out: u64,
    /// Packets emitted that stand for more than one received packet.
    pub super_packets: u64,
    /// Bytes of received packets that are held now.
    pub held_bytes: u64,
    /// Pure ACKs that were absorbed; `merged` includes them.
    pub absorbed_acks: u64,
    /// Number of packets whose checksum was verified by reading the payload.
    pub verified_in_software: u64,
    /// LRO: packets accepted into a session, its first included (`inet_lro`'s statistic).
    pub aggregated: u64,
    /// Number of LRO sessions delivered.
    pub flushed: u64,
    /// LRO: look-ups that found neither the flow nor a free descriptor.
    pub no_desc: u64,
    /// Number of flow-table entries that were compared in look-ups; each look-up compares a bounded
    /// number of them.
    pub probes: u64,
    pub(super) reasons: [u64; Reason::COUNT],
}

impl Default for AggregateCounters {
    fn default() -> Self {
        AggregateCounters {
            packets_in: 0,
            bytes_in: 0,
            packets_out: 0,
            bytes_out: 0,
            super_packets: 0,
            merged: 0,
            absorbed_acks: 0,
            held: 0,
            held_bytes: 0,
            verified_in_software: 0,
            aggregated: 0,
            flushed: 0,
            no_desc: 0,
            probes: 0,
            reasons: [0; Reason::COUNT],
        }
    }
}

impl AggregateCounters {
    /// Returns the number of packets that left for this reason.
    #[inline]
    pub const fn reason(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }

    /// Returns the reasons that occurred, with their counts.
    pub fn reasons(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .iter()
            .map(|&reason| (reason, self.reason(reason)))
            .filter(|&(_, count)| count > 0)
    }

    /// Returns whether the counters [balance](Self).
    pub fn balanced(&self) -> bool {
        self.packets_in == self.packets_out + self.merged + self.held
            && self.reasons.iter().sum::<u64>() == self.packets_out
    }
}
