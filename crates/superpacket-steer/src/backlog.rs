//! What a backlog takes: its limit, and the limit of a flow in it.

use alloc::boxed::Box;

use superpacket::packet::FlowHash;

/// The default of `net.core.netdev_max_backlog`, in packets.
pub const DEFAULT_MAX_BACKLOG: usize = 1000;

/// The default of `net.core.dev_weight`: how many packets of a backlog are processed before others have their turn.
pub const DEFAULT_WEIGHT: usize = 64;

/// The default of `net.core.flow_limit_table_len`.
pub const DEFAULT_FLOW_LIMIT_TABLE: usize = 4096;

/// How many of the last packets count (the kernel's `FLOW_LIMIT_HISTORY`).
pub const FLOW_LIMIT_HISTORY: usize = 128;

/// A table of flows for the flow limit is of a length that the kernel does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("EINVAL: a table of {length} flows: its length is a power of two, 2 to 65536")]
pub struct BadTableLength {
    /// What was asked for.
    pub length: usize,
}

/// Drops packets of flows that fill a backlog (the kernel's `skb_flow_limit`): in overload, one flow that sends more than the CPU can take does not cost the others their
/// packets.
///
/// While the queue is at least half as long as it may be, the last [`FLOW_LIMIT_HISTORY`] packets are counted by flow, and a flow that has more than half of them is dropped.
#[derive(Clone, Debug)]
pub struct FlowLimit {
    /// How many of the last packets are of the flows with this hash.
    counts: Box<[u8]>,
    /// Whose the last packets were.
    history: [u16; FLOW_LIMIT_HISTORY],
    /// The oldest of them.
    head: usize,
    /// Bits that hashes are brought down to.
    bits: u32,
    dropped: u64,
}

impl FlowLimit {
    /// With a table of this many flows: a power of two, 2 to 65,536. Flows that share a place in it are one.
    ///
    /// # Errors
    /// [`BadTableLength`] for others.
    pub fn new(length: usize) -> Result<Self, BadTableLength> {
        if !length.is_power_of_two() || !(2..=1 << 16).contains(&length) {
            return Err(BadTableLength { length });
        }
        Ok(FlowLimit::with_bits(length.ilog2()))
    }

    fn with_bits(bits: u32) -> Self {
        FlowLimit { counts: (0..1usize << bits).map(|_| 0).collect(), history: [0; FLOW_LIMIT_HISTORY], head: 0, bits, dropped: 0 }
    }

    /// Is this packet to be dropped, if the queue it is for holds `queued` packets of at most `max_backlog`?
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
        // At most as many as the history has: no overflow.
        let count = &mut self.counts[new as usize];
        *count += 1;
        let drops = usize::from(*count) > FLOW_LIMIT_HISTORY / 2;
        self.dropped += u64::from(drops);
        drops
    }

    /// How many flows its table has room for.
    pub const fn table_length(&self) -> usize {
        1 << self.bits
    }

    /// How many packets were dropped.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Default for FlowLimit {
    /// With the kernel's 4,096 flows.
    fn default() -> Self {
        FlowLimit::with_bits(DEFAULT_FLOW_LIMIT_TABLE.ilog2())
    }
}

/// What becomes of a packet that is for a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is put into the queue.
    Queued,
    /// The queue is longer than it may be: dropped.
    BacklogFull,
    /// Its flow fills the queue: dropped.
    FlowLimit,
}

/// Decides what backlogs take, for one receiving thread (the kernel's `enqueue_to_backlog`).
#[derive(Clone, Debug)]
pub struct BacklogLimit {
    /// The longest queue that still takes a packet (`netdev_max_backlog`), in packets.
    pub max_backlog: usize,
    /// `None` if flows are not limited.
    pub flow_limit: Option<FlowLimit>,
    queued: u64,
    full: u64,
}

impl BacklogLimit {
    /// With this limit.
    pub const fn new(max_backlog: usize, flow_limit: Option<FlowLimit>) -> Self {
        BacklogLimit { max_backlog, flow_limit, queued: 0, full: 0 }
    }

    /// Is a packet taken by a queue that holds `length`? One without a hash is of no flow that is limited.
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

    /// How many packets were taken.
    pub const fn queued(&self) -> u64 {
        self.queued
    }

    /// How many packets were dropped because a queue was full.
    pub const fn backlog_full(&self) -> u64 {
        self.full
    }

    /// How many packets were dropped because their flow filled a queue.
    pub fn flow_limited(&self) -> u64 {
        self.flow_limit.as_ref().map_or(0, FlowLimit::dropped)
    }
}

impl Default for BacklogLimit {
    /// The kernel's: 1,000 packets, no flow limit (`net.core.flow_limit_cpu_bitmap` is 0).
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
        assert!(!limit.drops(heavy, FULL - 1, 1000), "below half nothing is dropped, and nothing counted");
        assert_eq!(limit.dropped(), 1);
        // A flow with every third packet is never limited, one with two of three always.
        let mut limit = FlowLimit::new(64).expect("a power of two");
        let mut dropped = [0u32; 2];
        for index in 0..3000 {
            let which = usize::from(index % 3 == 0);
            dropped[which] += u32::from(limit.drops([heavy, light][which], FULL, 1000));
        }
        assert_eq!(dropped[1], 0);
        assert!((1850..=1950).contains(&dropped[0]), "{dropped:?}");
        assert_eq!(limit.dropped(), u64::from(dropped[0]));
        // A history full of others' packets lets it in again.
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
            assert_eq!(FlowLimit::new(length).map(|_| ()), Err(BadTableLength { length }));
        }
        let mut limit = FlowLimit::new(1 << 16).expect("the most");
        assert!((0..1_000_000u32).all(|index| !limit.drops(FlowHash(index.wrapping_mul(2_654_435_769)), FULL, 1000)));
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
