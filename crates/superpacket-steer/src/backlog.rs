//! Admission to a backlog, the queue of packets before a worker: limits on its length and on the
//! share of one flow.

use alloc::boxed::Box;

use superpacket::packet::FlowHash;

use crate::rfs::try_table;

/// The default of `net.core.netdev_max_backlog`, in packets.
pub const DEFAULT_MAX_BACKLOG: usize = 1000;

/// The default of `net.core.dev_weight`: the maximum number of packets of a backlog that are
/// processed before other work.
pub const DEFAULT_WEIGHT: usize = 64;

/// The default of `net.core.flow_limit_table_len`.
pub const DEFAULT_FLOW_LIMIT_TABLE: usize = 4096;

/// Number of recent packets that are counted by flow (the kernel's `FLOW_LIMIT_HISTORY`).
pub const FLOW_LIMIT_HISTORY: usize = 128;

/// The requested length of the flow limit's table is not allowed; the kernel refuses it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("EINVAL: {length} entries: the length of the table must be a power of two, 2 to 65536")]
pub struct InvalidTableLength {
    /// Requested number of entries.
    pub length: usize,
}

/// The reason why a flow limit cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowLimitError {
    /// The requested length of the table is not allowed.
    #[error(transparent)]
    Length(#[from] InvalidTableLength),
    /// The memory for the table cannot be allocated.
    #[error("ENOMEM: {length} entries: no memory for the flow limit's table")]
    NoMemory {
        /// Requested number of entries, of one byte each.
        length: usize,
    },
}

/// A limit that drops packets of flows that fill a backlog (the kernel's `skb_flow_limit`), so that
/// in overload one flow does not displace the packets of others.
///
/// While the queue is at least half full, the last [`FLOW_LIMIT_HISTORY`] packets are counted by
/// flow. Packets of a flow that has more than half of them are dropped.
#[derive(Clone, Debug)]
pub struct FlowLimit {
    /// For each hash, reduced to `bits` bits, the number of recent packets that have it.
    counts: Box<[u8]>,
    /// The hashes of the recent packets, reduced to `bits` bits, as a ring.
    history: [u16; FLOW_LIMIT_HISTORY],
    /// Index in `history` of the oldest hash.
    head: usize,
    /// Number of bits to which hashes are reduced.
    bits: u32,
    dropped: u64,
}

impl FlowLimit {
    /// Creates a limit whose table has `length` entries: a power of two, 2 to 65,536. Flows that
    /// share an entry count as one.
    ///
    /// # Errors
    /// [`InvalidTableLength`] for any other length.
    ///
    /// If the memory for the table cannot be allocated, the process aborts, as with any collection;
    /// see [`try_new`](Self::try_new).
    pub fn new(length: usize) -> Result<Self, InvalidTableLength> {
        check_length(length)?;
        Ok(FlowLimit::with_counts((0..length).map(|_| 0).collect()))
    }

    /// Creates a limit like [`new`](Self::new), but reports an error if the memory cannot be
    /// allocated.
    ///
    /// # Errors
    /// [`FlowLimitError`] if the length is invalid or the memory cannot be allocated.
    pub fn try_new(length: usize) -> Result<Self, FlowLimitError> {
        check_length(length)?;
        let counts = try_table(length as u32, core::iter::repeat(0))
            .map_err(|_| FlowLimitError::NoMemory { length })?;
        Ok(FlowLimit::with_counts(counts))
    }

    fn with_counts(counts: Box<[u8]>) -> Self {
        let bits = counts.len().ilog2();
        FlowLimit { counts, history: [0; FLOW_LIMIT_HISTORY], head: 0, bits, dropped: 0 }
    }

    /// Counts a packet of a flow, and returns whether to drop it. `queued` is the number of packets
    /// in the queue, `max_backlog` the queue's limit.
    #[inline]
    pub fn drops(&mut self, hash: FlowHash, queued: usize, max_backlog: usize) -> bool {
        if queued < max_backlog / 2 {
            return false;
        }
        // The kernel's hash_32: multiply by the golden ratio, keep the highest bits.
        let new = hash.0.wrapping_mul(0x61c8_8647) >> (u32::BITS - self.bits);
        let old = core::mem::replace(&mut self.history[self.head], new as u16);
        self.head = (self.head + 1) % FLOW_LIMIT_HISTORY;
        let old = &mut self.counts[usize::from(old)];
        *old = old.saturating_sub(1);
        // A count is at most FLOW_LIMIT_HISTORY (128), so it cannot overflow.
        let count = &mut self.counts[new as usize];
        *count += 1;
        let drops = usize::from(*count) > FLOW_LIMIT_HISTORY / 2;
        self.dropped += u64::from(drops);
        drops
    }

    /// Returns the number of entries of the table.
    pub const fn table_length(&self) -> usize {
        1 << self.bits
    }

    /// Returns how many packets the limit has dropped.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Default for FlowLimit {
    /// Creates the kernel's default table of 4,096 entries.
    fn default() -> Self {
        FlowLimit::with_counts((0..DEFAULT_FLOW_LIMIT_TABLE).map(|_| 0).collect())
    }
}

const fn check_length(length: usize) -> Result<(), InvalidTableLength> {
    match length.is_power_of_two() && length >= 2 && length <= 1 << 16 {
        true => Ok(()),
        false => Err(InvalidTableLength { length }),
    }
}

/// The decision whether a backlog accepts a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The packet may be queued.
    Queued,
    /// The packet must be dropped: the queue is full.
    BacklogFull,
    /// The packet must be dropped: its flow fills the queue.
    FlowLimit,
}

/// The rule by which packets are admitted to the backlogs that one receiving thread fills (the
/// kernel's `enqueue_to_backlog`).
#[derive(Clone, Debug)]
pub struct BacklogLimit {
    /// Longest queue, in packets, that still accepts a packet (`netdev_max_backlog`).
    pub max_backlog: usize,
    /// Limit per flow; `None` if flows are not limited.
    pub flow_limit: Option<FlowLimit>,
    queued: u64,
    full: u64,
}

impl BacklogLimit {
    /// Creates a limit of `max_backlog` packets.
    pub const fn new(max_backlog: usize, flow_limit: Option<FlowLimit>) -> Self {
        BacklogLimit { max_backlog, flow_limit, queued: 0, full: 0 }
    }

    /// Decides whether a queue that holds `length` packets accepts another. A packet without a hash
    /// is not subject to the flow limit.
    #[inline]
    pub fn admit(&mut self, hash: Option<FlowHash>, length: usize) -> Admission {
        if length > self.max_backlog {
            self.full += 1;
            return Admission::BacklogFull;
        }
        if let (Some(limit), Some(hash)) = (&mut self.flow_limit, hash)
            && limit.drops(hash, length, self.max_backlog)
        {
            return Admission::FlowLimit;
        }
        self.queued += 1;
        Admission::Queued
    }

    /// Returns how many packets were accepted.
    pub const fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns how many packets were dropped because a queue was full.
    pub const fn backlog_full(&self) -> u64 {
        self.full
    }

    /// Returns how many packets were dropped because their flow filled a queue.
    pub fn flow_limited(&self) -> u64 {
        self.flow_limit.as_ref().map_or(0, FlowLimit::dropped)
    }
}

impl Default for BacklogLimit {
    /// Creates the kernel's default limit: 1,000 packets, and no flow limit
    /// (`net.core.flow_limit_cpu_bitmap` is 0).
    fn default() -> Self {
        BacklogLimit::new(DEFAULT_MAX_BACKLOG, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: usize = 500;

    #[test]
    fn a_flow_may_have_half_of_the_last_packets() {
        let mut limit = FlowLimit::default();
        let (heavy, light) = (FlowHash(0x1234_5678), FlowHash(0x9abc_def0));
        for count in 1..=64 {
            assert!(!limit.drops(heavy, FULL, 1000), "{count} of 128");
        }
        assert!(limit.drops(heavy, FULL, 1000), "the 65th");
        assert!(!limit.drops(light, FULL, 1000), "other flows are taken");
        assert!(
            !limit.drops(heavy, FULL - 1, 1000),
            "below half nothing is dropped, and nothing counted"
        );
        assert_eq!(limit.dropped(), 1);
        // A flow that sends every third packet is never limited; one that sends two of three always
        // is.
        let mut limit = FlowLimit::new(64).expect("a power of two");
        let mut dropped = [0u32; 2];
        for index in 0..3000 {
            let which = usize::from(index % 3 == 0);
            dropped[which] += u32::from(limit.drops([heavy, light][which], FULL, 1000));
        }
        assert_eq!(dropped[1], 0);
        assert!((1850..=1950).contains(&dropped[0]), "{dropped:?}");
        assert_eq!(limit.dropped(), u64::from(dropped[0]));
        // Once the history is full of other flows' packets, the flow is accepted again.
        (0..FLOW_LIMIT_HISTORY).for_each(|_| {
            limit.drops(light, FULL, 1000);
        });
        assert!(!limit.drops(heavy, FULL, 1000));
    }

    #[test]
    fn one_flow_alone_is_dropped_and_never_overflows() {
        let mut limit = FlowLimit::default();
        let dropped = (0..100_000).filter(|_| limit.drops(FlowHash(7), FULL, 1000)).count();
        assert_eq!(dropped, 100_000 - 64);
    }

    #[test]
    fn tables_are_powers_of_two() {
        for length in [0, 1, 3, 4095, 1 << 17] {
            assert_eq!(FlowLimit::new(length).map(|_| ()), Err(InvalidTableLength { length }));
            assert_eq!(
                FlowLimit::try_new(length).map(|_| ()),
                Err(InvalidTableLength { length }.into())
            );
        }
        let mut limit = FlowLimit::try_new(1 << 16).expect("the most");
        assert!((0..1_000_000u32).all(|index| !limit.drops(
            FlowHash(index.wrapping_mul(2_654_435_769)),
            FULL,
            1000
        )));
    }

    #[test]
    fn a_queue_takes_what_it_has_room_for() {
        let mut limit = BacklogLimit::default();
        assert_eq!(limit.admit(Some(FlowHash(1)), 1000), Admission::Queued, "as long as it may be");
        assert_eq!(limit.admit(Some(FlowHash(1)), 1001), Admission::BacklogFull);
        limit.flow_limit = Some(FlowLimit::default());
        let admissions = core::array::from_fn::<_, 70, _>(|_| limit.admit(Some(FlowHash(1)), 999));
        assert!(admissions[..64].iter().all(|&admission| admission == Admission::Queued));
        assert!(admissions[64..].iter().all(|&admission| admission == Admission::FlowLimit));
        assert_eq!(limit.admit(None, 999), Admission::Queued);
        assert_eq!((limit.queued(), limit.backlog_full(), limit.flow_limited()), (66, 1, 6));
    }
}
