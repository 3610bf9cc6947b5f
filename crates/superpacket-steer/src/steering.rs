//! The choice of a CPU for each packet, and moves of flows that reorder nothing.
//!
//! Flows are steered in *buckets*, by the high bits of their hash. A bucket remembers the place its
//! packets went to last, and the number of its last packet in that place's backlog (its *tail*).
//! When a mask, a target of RFS or the mode changes, the bucket stays at the old place until that
//! has completed everything up to the tail, and moves then: no packet of the bucket is left there,
//! so none can be overtaken. These are the epochs of a bucket. The kernel keeps this rule for RFS
//! (`rps_dev_flow`) and breaks it when `rps_cpus` is written.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use superpacket::packet::{FlowHash, RxPacket};
use superpacket::super_packet::SuperPacket;

use crate::hasher::FlowHasher;
use crate::mask::{Cpu, CpuMask};
use crate::rfs::{FlowTableError, SockFlowTable, flow_entries, try_table};
use crate::rps::{Rps, reciprocal_scale};

/// The number of buckets, unless `rps_flow_cnt` or the number of CPUs requires more.
const LEAST_BUCKETS: u32 = 4096;

/// The least number of buckets for each CPU, so that none gets far more of them than another.
const BUCKETS_PER_CPU: u32 = 64;

/// Where a packet is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The thread that received it.
    Here,
    /// The worker on this CPU.
    Cpu(Cpu),
}

impl Place {
    /// Returns the index among all places: 0, or one more than the CPU's number.
    #[inline]
    const fn index(self) -> usize {
        match self {
            Place::Here => 0,
            Place::Cpu(cpu) => cpu.number() + 1,
        }
    }
}

/// How many packets each place has completed, of those that this steering [sent
/// there](Choice::enqueued), in order.
///
/// A packet is completed when nothing of it can be overtaken any more: what it became has been
/// sent, and what is held of its flow has left. It is not completed when it is only taken out of
/// the backlog. Packets that are lost with a worker count too. The numbers start at 0 and never
/// decrease, even if a worker is ended and started again. Workers publish them with release
/// ordering after the work, and an implementation reads them with acquire ordering.
pub trait Completions {
    /// Returns how many packets the place has completed.
    fn completed(&self, place: Place) -> u64;
}

impl<F: Fn(Place) -> u64> Completions for F {
    #[inline]
    fn completed(&self, place: Place) -> u64 {
        self(place)
    }
}

/// [`Completions`] for callers with one thread: plain counts.
#[derive(Clone, Debug, Default)]
pub struct CompletionCounts {
    counts: Vec<u64>,
}

impl CompletionCounts {
    /// Adds packets that the place has completed.
    pub fn record_completed(&mut self, place: Place, packets: u64) {
        let index = place.index();
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += packets;
    }
}

impl Completions for CompletionCounts {
    #[inline]
    fn completed(&self, place: Place) -> u64 {
        self.counts.get(place.index()).copied().unwrap_or(0)
    }
}

/// When a flow moves to another CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MovePolicy {
    /// When none of its packets is left at its old place: no packet overtakes another.
    #[default]
    Epochs,
    /// With the next packet, as in the kernel when `rps_cpus` is written: packets are reordered.
    AtOnce,
}

/// Counters of steering: packets, but for `moves`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Packets sent to a worker.
    pub steered: u64,
    /// Packets processed where they were received.
    pub here: u64,
    /// Packets of `here` without a hash.
    pub without_hash: u64,
    /// Packets sent to the old place of their flow, which has not completed the packets before.
    pub held_back: u64,
    /// Attempts to choose a place that had to wait, because the hash function changed and not all
    /// packets steered by the old one are completed.
    pub waited: u64,
    /// Moves of a bucket from one place to another.
    pub moves: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The number of the last packet in the place's backlog.
    tail: u64,
    place: Option<Place>,
}

/// The place chosen for a packet. Once the packet is in that place's backlog,
/// [`enqueued`](Self::enqueued) must be called; if the packet is dropped, the choice is dropped
/// too.
#[must_use = "a packet that is enqueued without calling `enqueued` may be overtaken"]
#[derive(Debug)]
pub struct Choice<'a> {
    place: Place,
    hash: Option<FlowHash>,
    /// `None` for a packet without a hash.
    bucket: Option<&'a mut Bucket>,
    tail: &'a mut u64,
    counters: &'a mut SteeringCounters,
}

impl Choice<'_> {
    /// Returns the place.
    #[inline]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// Returns the hash that the place was chosen by.
    #[inline]
    pub const fn hash(&self) -> Option<FlowHash> {
        self.hash
    }

    /// Returns how many packets before this one the place has not completed.
    #[inline]
    pub fn queued(&self, completions: &impl Completions) -> u64 {
        self.tail.saturating_sub(completions.completed(self.place))
    }

    /// Records that the packet is the last in the place's backlog, and that it will be counted
    /// among the [completed](Completions). A packet that is processed at once counts as enqueued
    /// too.
    #[inline]
    pub fn enqueued(self) {
        *self.tail += 1;
        match self.place {
            Place::Here => self.counters.here += 1,
            Place::Cpu(_) => self.counters.steered += 1,
        }
        match self.bucket {
            Some(bucket) => bucket.tail = *self.tail,
            None => self.counters.without_hash += 1,
        }
    }
}

/// Steers the packets of one receiving thread: a receive queue, or several that one thread polls.
///
/// The place of a flow is decided by the first of these that applies: processing
/// [in place](Self::set_in_place); the CPU that [reads the flow](Self::set_sock_flows) (RFS); the
/// [mask](Self::set_mask) (RPS). All other packets are processed where they are received.
///
/// ```
/// use superpacket::packet::{FlowHash, RxPacket};
/// use superpacket_steer::{CpuMask, CompletionCounts, FlowHashKey, FlowHasher, Place, Steering};
///
/// let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(42)));
/// steering.set_mask(&CpuMask::parse("3", 4)?);
/// let mut completions = CompletionCounts::default();
/// let mut packet = RxPacket::new(&[0u8; 60][..]);
/// packet.hash = Some(FlowHash(0x51cc_c178));
///
/// let choice = steering.choose(&packet, &completions).expect("nothing to wait for");
/// let place = choice.place();
/// // The packet has been put into the backlog of that place.
/// choice.enqueued();
///
/// // The mask changes: the flow stays until its packet is completed.
/// steering.set_mask(&CpuMask::parse("c", 4)?);
/// assert_eq!(steering.choose(&packet, &completions).map(|choice| choice.place()), Some(place));
/// completions.record_completed(place, 1);
/// assert_ne!(steering.choose(&packet, &completions).map(|choice| choice.place()), Some(place));
/// # Ok::<(), superpacket_steer::MaskError>(())
/// ```
#[derive(Debug)]
pub struct Steering {
    hasher: FlowHasher,
    move_policy: MovePolicy,
    mask: CpuMask,
    online: CpuMask,
    rps: Rps,
    sock_flows: Option<Arc<SockFlowTable>>,
    /// `rps_flow_cnt`; 0: no RFS.
    flow_count: u32,
    in_place: bool,
    /// A power of two.
    buckets: Box<[Bucket]>,
    /// The number of the last packet in each place's backlog, by the index of the place.
    tails: Vec<u64>,
    /// The tails at the last change of the hash function, of places that may not have completed
    /// them.
    barrier: Vec<(Place, u64)>,
    counters: SteeringCounters,
}

impl Steering {
    /// Makes a steering without mask: everything is processed where it is received.
    pub fn new(hasher: FlowHasher) -> Self {
        Steering {
            hasher,
            move_policy: MovePolicy::Epochs,
            mask: CpuMask::EMPTY,
            online: CpuMask::first_cpus(crate::MAX_CPUS),
            rps: Rps::default(),
            sock_flows: None,
            flow_count: 0,
            in_place: false,
            buckets: (0..LEAST_BUCKETS).map(|_| Bucket { tail: 0, place: None }).collect(),
            tails: Vec::from([0]),
            barrier: Vec::new(),
            counters: SteeringCounters::default(),
        }
    }

    /// Spreads flows over the CPUs of the mask that are [online](Self::set_online) (`rps_cpus`); an
    /// empty one switches RPS off.
    pub fn set_mask(&mut self, mask: &CpuMask) {
        self.mask = mask.clone();
        self.remap();
    }

    /// Sets the CPUs on which there can be workers; at first, all of them. Others are left out of
    /// the mask, as the kernel leaves out those that are offline, and RFS does not steer there.
    pub fn set_online(&mut self, online: &CpuMask) {
        self.online = online.clone();
        self.remap();
    }

    /// Returns the mask as it was set.
    pub const fn mask(&self) -> &CpuMask {
        &self.mask
    }

    /// Returns the CPUs of the mask that are online.
    pub fn effective_mask(&self) -> CpuMask {
        &self.mask & &self.online
    }

    /// Steers flows to the CPU where they are read, by a table in which consumers record it (RFS);
    /// `None` switches that off. It needs a [flow count](Self::set_flow_count) too.
    pub fn set_sock_flows(&mut self, table: Option<Arc<SockFlowTable>>) {
        self.sock_flows = table;
    }

    /// Sets how many flows of this queue RFS tells apart (`rps_flow_cnt`, rounded up to a power of
    /// two); 0 switches RFS off. A bucket takes 16 bytes. With fewer flows than before, the memory
    /// of the others is given back, and [`choose`](Self::choose) returns `None` until all packets
    /// sent before are completed.
    ///
    /// # Errors
    /// [`FlowTableError`]: more than [`MAX_FLOW_ENTRIES`](crate::MAX_FLOW_ENTRIES), or than there
    /// is memory for; nothing has changed.
    pub fn set_flow_count(&mut self, count: u64) -> Result<(), FlowTableError> {
        let count = flow_entries(count)?;
        self.split_buckets(count)?;
        if count < self.flow_count {
            self.merge_buckets(count.max(self.buckets_for_mask()).max(LEAST_BUCKETS));
        }
        self.flow_count = count;
        Ok(())
    }

    /// Returns how many flows of this queue RFS tells apart.
    pub const fn flow_count(&self) -> u32 {
        self.flow_count
    }

    /// Processes everything where it is received (`true`), or steers again (`false`): with little
    /// traffic, handing packets over costs more than it gains.
    pub fn set_in_place(&mut self, in_place: bool) {
        self.in_place = in_place;
    }

    /// Sets when flows move. After a change from [`MovePolicy::AtOnce`] to [`MovePolicy::Epochs`],
    /// [`choose`](Self::choose) returns `None` until all packets sent before are completed.
    pub fn set_move_policy(&mut self, policy: MovePolicy) {
        if self.move_policy != policy {
            self.move_policy = policy;
            self.set_barrier();
        }
    }

    /// Replaces the hasher, and with it its counters. Flows of the old hash cannot be recognised by
    /// the new one, so [`choose`](Self::choose) returns `None` until all packets sent before are
    /// completed.
    pub fn set_hasher(&mut self, hasher: FlowHasher) {
        self.hasher = hasher;
        self.set_barrier();
    }

    /// Returns the hasher.
    pub const fn hasher(&self) -> &FlowHasher {
        &self.hasher
    }

    /// Returns the counters since the steering was made.
    pub const fn counters(&self) -> &SteeringCounters {
        &self.counters
    }

    /// Returns how many packets sent to the place are not completed. At 0, the worker of a CPU that
    /// the mask no longer names can be ended: no more packets go there.
    pub fn outstanding(&self, place: Place, completions: &impl Completions) -> u64 {
        let tail = self.tails.get(place.index()).copied().unwrap_or(0);
        tail.saturating_sub(completions.completed(place))
    }

    /// Returns whether [`choose`](Self::choose) would return `None` now: to be called before
    /// packets are received by callers that cannot leave them where they are afterwards.
    #[inline]
    pub fn is_waiting(&mut self, completions: &impl Completions) -> bool {
        !self.barrier.is_empty() && self.waits(completions)
    }

    /// Chooses the place of a received packet. `None`: leave the packet and all behind it where
    /// they are, and call again when workers have completed more.
    #[inline]
    pub fn choose<B: AsRef<[u8]>>(
        &mut self,
        packet: &RxPacket<B>,
        completions: &impl Completions,
    ) -> Option<Choice<'_>> {
        if !self.barrier.is_empty() && self.waits(completions) {
            return None;
        }
        let hash = self.hasher.hash_packet(packet);
        Some(self.choose_by_hash(hash, completions))
    }

    /// Chooses the place of a packet that an aggregator emitted, otherwise as
    /// [`choose`](Self::choose).
    #[inline]
    pub fn choose_super_packet<B: AsRef<[u8]>>(
        &mut self,
        packet: &SuperPacket<'_, B>,
        completions: &impl Completions,
    ) -> Option<Choice<'_>> {
        if !self.barrier.is_empty() && self.waits(completions) {
            return None;
        }
        let hash = self.hasher.hash_super_packet(packet);
        Some(self.choose_by_hash(hash, completions))
    }

    #[inline]
    fn choose_by_hash(
        &mut self,
        hash: Option<FlowHash>,
        completions: &impl Completions,
    ) -> Choice<'_> {
        // A hash of 0 says that there is none.
        let Some(flow) = hash.filter(|hash| hash.0 != 0) else {
            return Choice {
                place: Place::Here,
                hash: None,
                bucket: None,
                tail: &mut self.tails[0],
                counters: &mut self.counters,
            };
        };
        let index = reciprocal_scale(flow.0, self.buckets.len() as u32) as usize;
        let wanted = self.wanted(flow, index);
        let bucket = &mut self.buckets[index];
        let place = match bucket.place {
            Some(place) if place == wanted => place,
            Some(place)
                if self.move_policy == MovePolicy::Epochs
                    && completions.completed(place) < bucket.tail =>
            {
                self.counters.held_back += 1;
                place
            }
            before => {
                self.counters.moves += u64::from(before.is_some());
                *bucket = Bucket { tail: 0, place: Some(wanted) };
                wanted
            }
        };
        if self.tails.len() <= place.index() {
            self.tails.resize(place.index() + 1, 0);
        }
        Choice {
            place,
            hash,
            bucket: Some(bucket),
            tail: &mut self.tails[place.index()],
            counters: &mut self.counters,
        }
    }

    /// Returns the place where a flow of this bucket should be.
    #[inline]
    fn wanted(&self, flow: FlowHash, bucket: usize) -> Place {
        if self.in_place {
            return Place::Here;
        }
        if let Some(table) = self.sock_flows.as_ref().filter(|_| self.flow_count > 0)
            && let Some(cpu) = table.cpu(flow).filter(|&cpu| self.online.contains(cpu))
        {
            return Place::Cpu(cpu);
        }
        // The lowest hash of the bucket, not the flow's: else a bucket on the border between two
        // CPUs would go to and fro. Their number is a power of two: no division for each packet.
        let lowest = ((bucket as u64) << 32) >> self.buckets.len().trailing_zeros();
        self.rps.scaled(lowest as u32).map_or(Place::Here, Place::Cpu)
    }

    /// Returns whether packets steered by the old hash are not completed.
    #[cold]
    fn waits(&mut self, completions: &impl Completions) -> bool {
        self.barrier.retain(|&(place, tail)| completions.completed(place) < tail);
        let waits = !self.barrier.is_empty();
        self.counters.waited += u64::from(waits);
        waits
    }

    /// Requires all packets sent so far to be completed before another is sent.
    fn set_barrier(&mut self) {
        self.barrier.clear();
        if self.move_policy == MovePolicy::Epochs {
            let place = |index: usize| {
                if index == 0 { Some(Place::Here) } else { Cpu::new(index - 1).map(Place::Cpu) }
            };
            self.barrier.extend(
                self.tails
                    .iter()
                    .enumerate()
                    .filter_map(|(index, &tail)| Some((place(index)?, tail))),
            );
        }
    }

    fn remap(&mut self) {
        self.rps = Rps::new(&self.effective_mask());
        // Without memory for them, flows that share a bucket move together.
        let _ = self.split_buckets(self.buckets_for_mask());
    }

    fn buckets_for_mask(&self) -> u32 {
        self.rps.cpus().len() as u32 * BUCKETS_PER_CPU
    }

    /// Splits buckets until there are at least so many. Each part stays at the place of the whole.
    fn split_buckets(&mut self, least: u32) -> Result<(), FlowTableError> {
        let least = least.next_power_of_two();
        let parts = (least as usize / self.buckets.len()).max(1);
        if parts > 1 {
            self.buckets = try_table(
                least,
                self.buckets.iter().flat_map(|bucket| core::iter::repeat_n(*bucket, parts)),
            )?;
        }
        Ok(())
    }

    /// Merges buckets until there are at most so many. Parts may be at different places, so all
    /// packets are completed before the next is sent.
    fn merge_buckets(&mut self, most: u32) {
        let parts = self.buckets.len() / most.next_power_of_two() as usize;
        if parts > 1
            && let Ok(merged) =
                try_table(most.next_power_of_two(), self.buckets.iter().step_by(parts).copied())
        {
            self.buckets = merged;
            self.set_barrier();
        }
    }
}

#[cfg(test)]
mod tests {
    use superpacket::packet::RxPacket;

    use super::*;
    use crate::hasher::FlowHasher;
    use crate::key::FlowHashKey;

    #[test]
    fn buckets_are_given_back_without_a_packet_overtaken() {
        let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(1)));
        steering.set_mask(&CpuMask::first_cpus(2));
        steering.set_flow_count(1 << 16).expect("room");
        assert_eq!(steering.buckets.len(), 1 << 16);
        let mut packet = RxPacket::new(&[][..]);
        packet.hash = Some(FlowHash(0x9000_0001));
        let nothing = |_: Place| 0u64;
        steering.choose(&packet, &nothing).expect("nothing to wait for").enqueued();
        steering.set_flow_count(1 << 16).expect("room");
        assert!(steering.choose(&packet, &nothing).is_some(), "nothing has changed");
        steering.set_flow_count(10).expect("room");
        assert_eq!(steering.buckets.len(), LEAST_BUCKETS as usize);
        assert!(
            steering.choose(&packet, &nothing).is_none(),
            "its packets are at a place of a bucket that is no more"
        );
        assert!(steering.choose(&packet, &|_: Place| 1u64).is_some());
    }
}
