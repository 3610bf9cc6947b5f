//! The choice of a CPU for each packet, and the rule that moves flows without reordering.
//!
//! Flows are steered in *buckets*, by the high bits of their hash. A bucket stores the place to
//! which its packets went last, and the number of its last packet in that place's backlog (its
//! *tail*). When a mask, a target of RFS or the mode changes, the bucket stays at the old place
//! until that place has completed all packets up to the tail. Then the bucket moves, and no packet
//! can be overtaken. The kernel keeps this rule for RFS (`rps_dev_flow`), but breaks it when
//! `rps_cpus` is written.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use superpacket::packet::{FlowHash, RxPacket};
use superpacket::super_packet::SuperPacket;

use crate::hasher::FlowHasher;
use crate::mask::{Cpu, CpuMask};
use crate::rfs::{FlowTableError, SockFlowTable, flow_entries, try_table};
use crate::rps::{Rps, reciprocal_scale};

/// Minimum number of buckets of flows; `rps_flow_cnt` and the number of CPUs may require more.
const MIN_BUCKETS: u32 = 4096;

/// Minimum number of buckets of flows per CPU, so that the CPUs' shares are nearly equal.
const BUCKETS_PER_CPU: u32 = 64;

/// Where a packet is processed: by the receiving thread, or by a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SteeringTarget {
    /// The thread that received the packet.
    Here,
    /// The worker on this CPU.
    Cpu(Cpu),
}

impl SteeringTarget {
    /// Returns the index of this target in tables: 0 for `Here`, otherwise the CPU's number plus 1.
    #[inline]
    const fn index(self) -> usize {
        match self {
            SteeringTarget::Here => 0,
            SteeringTarget::Cpu(cpu) => cpu.number() + 1,
        }
    }
}

/// The numbers of packets that the receiving thread and each worker have finished processing, in
/// order. Only packets that this [`Steering`] has [sent to them](Choice::enqueued) count.
///
/// A packet is completed when no later packet can overtake any part of it: its output has been
/// sent, and no packet of its flow is still held. Taking it out of the backlog does not complete
/// it. Packets lost with a worker count as completed. The numbers start at 0 and never decrease,
/// even if a worker is restarted. Workers publish them with release ordering after the work, and an
/// implementation reads them with acquire ordering.
pub trait Completions {
    /// Returns how many packets the thread or worker `place` has finished processing.
    fn completed(&self, place: SteeringTarget) -> u64;
}

impl<F: Fn(SteeringTarget) -> u64> Completions for F {
    #[inline]
    fn completed(&self, place: SteeringTarget) -> u64 {
        self(place)
    }
}

/// A [`Completions`] that stores plain numbers, for callers with one thread.
#[derive(Clone, Debug, Default)]
pub struct CompletionCounts {
    counts: Vec<u64>,
}

impl CompletionCounts {
    /// Adds `packets` to the number of packets that the thread or worker `place` has finished
    /// processing.
    pub fn record_completed(&mut self, place: SteeringTarget, packets: u64) {
        let index = place.index();
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += packets;
    }
}

impl Completions for CompletionCounts {
    #[inline]
    fn completed(&self, place: SteeringTarget) -> u64 {
        self.counts.get(place.index()).copied().unwrap_or(0)
    }
}

/// The moment at which a flow moves to another CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MovePolicy {
    /// A flow moves once the old CPU has finished processing all its packets: no packet overtakes
    /// another.
    #[default]
    Epochs,
    /// A flow moves with its next packet, as in the kernel when `rps_cpus` is written: packets may
    /// be reordered.
    AtOnce,
}

/// Counters of steering. All count packets, except `waited` and `moves`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Number of packets sent to a worker.
    pub steered: u64,
    /// Packets processed by the thread that received them.
    pub here: u64,
    /// Packets counted in `here` that have no hash.
    pub without_hash: u64,
    /// Number of packets sent to the old CPU of their flow although the flow should move, because
    /// that CPU has not finished earlier packets of the flow.
    pub held_back: u64,
    /// Number of times that no target could be chosen: the hash function or another setting had
    /// changed, and earlier packets were not all processed yet.
    pub waited: u64,
    /// Number of times that a bucket of flows moved from one target (thread or worker) to another.
    pub moves: u64,
}

#[derive(Clone, Copy, Debug)]
struct FlowBucket {
    /// Number of the last packet of this bucket, counted among all packets that were sent to the
    /// target `place`.
    tail: u64,
    place: Option<SteeringTarget>,
}

/// The thread or worker chosen to process a packet. The caller must call
/// [`enqueued`](Self::enqueued) once the packet is in the backlog of that target. If the packet is
/// dropped, the caller drops the choice too.
#[must_use = "a packet that is enqueued without calling `enqueued` may be overtaken"]
#[derive(Debug)]
pub struct Choice<'a> {
    place: SteeringTarget,
    hash: Option<FlowHash>,
    /// The bucket of the packet's flow; `None` for a packet without a hash.
    bucket: Option<&'a mut FlowBucket>,
    tail: &'a mut u64,
    counters: &'a mut SteeringCounters,
}

impl Choice<'_> {
    /// Returns the thread or worker that is to process the packet.
    #[inline]
    pub const fn place(&self) -> SteeringTarget {
        self.place
    }

    /// Returns the hash by which the target was chosen.
    #[inline]
    pub const fn hash(&self) -> Option<FlowHash> {
        self.hash
    }

    /// Returns how many packets that were sent to the same target before are not processed yet.
    #[inline]
    pub fn queued(&self, completions: &impl Completions) -> u64 {
        self.tail.saturating_sub(completions.completed(self.place))
    }

    /// Records that the packet is now the last in the backlog of its target, and will be counted by
    /// [`Completions`]. A packet that is processed at once must be recorded too.
    #[inline]
    pub fn enqueued(self) {
        *self.tail += 1;
        match self.place {
            SteeringTarget::Here => self.counters.here += 1,
            SteeringTarget::Cpu(_) => self.counters.steered += 1,
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
/// use superpacket_steer::{CpuMask, CompletionCounts, FlowHashKey, FlowHasher, SteeringTarget, Steering};
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
    /// The rounded `rps_flow_cnt`; 0 if RFS is off.
    flow_count: u32,
    in_place: bool,
    /// The buckets of flows; their number is a power of two.
    buckets: Box<[FlowBucket]>,
    /// Number of the last packet that was sent to each target, indexed by `SteeringTarget::index`.
    tails: Vec<u64>,
    /// The targets that may not have processed all packets sent before the last
    /// [`set_barrier`](Self::set_barrier), each with the number of the last of these packets.
    barrier: Vec<(SteeringTarget, u64)>,
    counters: SteeringCounters,
}

impl Steering {
    /// Creates a `Steering` without a mask: every packet is processed by the thread that receives
    /// it.
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
            buckets: (0..MIN_BUCKETS).map(|_| FlowBucket { tail: 0, place: None }).collect(),
            tails: Vec::from([0]),
            barrier: Vec::new(),
            counters: SteeringCounters::default(),
        }
    }

    /// Spreads flows over those CPUs of the mask that are [online](Self::set_online) (`rps_cpus`).
    /// An empty mask switches RPS off.
    pub fn set_mask(&mut self, mask: &CpuMask) {
        self.mask = mask.clone();
        self.remap();
    }

    /// Sets the CPUs on which workers can run; initially all. Other CPUs are removed from the mask,
    /// as the kernel does with offline CPUs, and RFS does not use them.
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

    /// Sets the table in which consumers record the CPU on which they read a flow, to steer flows
    /// to that CPU (RFS). `None` switches RFS off. RFS also requires a [flow
    /// count](Self::set_flow_count).
    pub fn set_sock_flows(&mut self, table: Option<Arc<SockFlowTable>>) {
        self.sock_flows = table;
    }

    /// Sets how many flows of this queue RFS distinguishes (`rps_flow_cnt`, rounded up to a power
    /// of two); 0 switches RFS off. A flow takes 16 bytes of memory. If the number decreases,
    /// memory is freed, and [`choose`](Self::choose) returns `None` until all packets sent before
    /// are processed.
    ///
    /// # Errors
    /// [`FlowTableError`] above [`MAX_FLOW_ENTRIES`](crate::MAX_FLOW_ENTRIES), or if the memory
    /// cannot be allocated; then nothing changes.
    pub fn set_flow_count(&mut self, count: u64) -> Result<(), FlowTableError> {
        let count = flow_entries(count)?;
        self.split_buckets(count)?;
        if count < self.flow_count {
            self.merge_buckets(count.max(self.buckets_for_mask()).max(MIN_BUCKETS));
        }
        self.flow_count = count;
        Ok(())
    }

    /// Returns how many flows of this queue RFS distinguishes.
    pub const fn flow_count(&self) -> u32 {
        self.flow_count
    }

    /// Sets whether every packet is processed where it is received. With little traffic, handing
    /// packets over costs more than it gains.
    pub fn set_in_place(&mut self, in_place: bool) {
        self.in_place = in_place;
    }

    /// Sets when flows move. After a change from [`MovePolicy::AtOnce`] to [`MovePolicy::Epochs`],
    /// [`choose`](Self::choose) returns `None` until all packets sent before are processed.
    pub fn set_move_policy(&mut self, policy: MovePolicy) {
        if self.move_policy != policy {
            self.move_policy = policy;
            self.set_barrier();
        }
    }

    /// Replaces the hasher and its counters. The new hash cannot identify the flows of the old one,
    /// so [`choose`](Self::choose) returns `None` until all packets sent before are completed.
    pub fn set_hasher(&mut self, hasher: FlowHasher) {
        self.hasher = hasher;
        self.set_barrier();
    }

    /// Returns the hasher.
    pub const fn hasher(&self) -> &FlowHasher {
        &self.hasher
    }

    /// Returns the counters since the steering was created.
    pub const fn counters(&self) -> &SteeringCounters {
        &self.counters
    }

    /// Returns how many packets that were sent to the thread or worker `place` are not processed
    /// yet. Once a CPU has left the mask and this is 0, its worker can be stopped.
    pub fn outstanding(&self, place: SteeringTarget, completions: &impl Completions) -> u64 {
        let tail = self.tails.get(place.index()).copied().unwrap_or(0);
        tail.saturating_sub(completions.completed(place))
    }

    /// Returns whether [`choose`](Self::choose) would return `None` now. Callers that cannot put
    /// back a received packet call this before they receive.
    #[inline]
    pub fn is_waiting(&mut self, completions: &impl Completions) -> bool {
        !self.barrier.is_empty() && self.waits(completions)
    }

    /// Chooses the thread or worker that processes a received packet. On `None`, the caller keeps
    /// this packet and all later ones, and calls again when workers have processed more packets.
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

    /// Chooses the thread or worker that processes a packet emitted by an aggregator, like
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
        // A hash of 0 means that there is none.
        let Some(flow) = hash.filter(|hash| hash.0 != 0) else {
            return Choice {
                place: SteeringTarget::Here,
                hash: None,
                bucket: None,
                tail: &mut self.tails[0],
                counters: &mut self.counters,
            };
        };
        let index = reciprocal_scale(flow.0, self.buckets.len() as u32) as usize;
        let target = self.target_place(flow, index);
        let bucket = &mut self.buckets[index];
        let place = match bucket.place {
            Some(place) if place == target => place,
            Some(place)
                if self.move_policy == MovePolicy::Epochs
                    && completions.completed(place) < bucket.tail =>
            {
                self.counters.held_back += 1;
                place
            }
            before => {
                self.counters.moves += u64::from(before.is_some());
                *bucket = FlowBucket { tail: 0, place: Some(target) };
                target
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

    /// Returns the target to which the settings assign a flow of this bucket, regardless of where
    /// its earlier packets went.
    #[inline]
    fn target_place(&self, flow: FlowHash, bucket: usize) -> SteeringTarget {
        if self.in_place {
            return SteeringTarget::Here;
        }
        if let Some(table) = self.sock_flows.as_ref().filter(|_| self.flow_count > 0)
            && let Some(cpu) = table.cpu(flow).filter(|&cpu| self.online.contains(cpu))
        {
            return SteeringTarget::Cpu(cpu);
        }
        // Uses the lowest hash of the bucket, not the flow's: otherwise a bucket on the border
        // between two CPUs would move with every flow. The number of buckets is a power of two, so
        // a shift replaces the division.
        let lowest = ((bucket as u64) << 32) >> self.buckets.len().trailing_zeros();
        self.rps.scaled(lowest as u32).map_or(SteeringTarget::Here, SteeringTarget::Cpu)
    }

    /// Returns whether any packet sent before the last [`set_barrier`](Self::set_barrier) is not
    /// processed yet.
    #[cold]
    fn waits(&mut self, completions: &impl Completions) -> bool {
        self.barrier.retain(|&(place, tail)| completions.completed(place) < tail);
        let waits = !self.barrier.is_empty();
        self.counters.waited += u64::from(waits);
        waits
    }

    /// Requires that all packets sent so far are processed before another is sent.
    fn set_barrier(&mut self) {
        self.barrier.clear();
        if self.move_policy == MovePolicy::Epochs {
            let place = |index: usize| {
                if index == 0 {
                    Some(SteeringTarget::Here)
                } else {
                    Cpu::new(index - 1).map(SteeringTarget::Cpu)
                }
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
        // If the memory for more buckets is missing, flows that share a bucket move together.
        let _ = self.split_buckets(self.buckets_for_mask());
    }

    fn buckets_for_mask(&self) -> u32 {
        self.rps.cpus().len() as u32 * BUCKETS_PER_CPU
    }

    /// Splits buckets until there are at least `least`. The new buckets keep the CPU of the bucket
    /// from which they were split, so that no flow moves.
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

    /// Merges buckets until there are at most `most`, rounded up to a power of two. Buckets that
    /// are merged may belong to different CPUs, so all packets must be processed before the next is
    /// sent.
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
        let nothing = |_: SteeringTarget| 0u64;
        steering.choose(&packet, &nothing).expect("nothing to wait for").enqueued();
        steering.set_flow_count(1 << 16).expect("room");
        assert!(steering.choose(&packet, &nothing).is_some(), "nothing has changed");
        steering.set_flow_count(10).expect("room");
        assert_eq!(steering.buckets.len(), MIN_BUCKETS as usize);
        assert!(
            steering.choose(&packet, &nothing).is_none(),
            "its packets are at a place of a bucket that is no more"
        );
        assert!(steering.choose(&packet, &|_: SteeringTarget| 1u64).is_some());
    }
}
