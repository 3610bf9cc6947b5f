//! Where each packet goes, and how flows move without a packet overtaking another.
//!
//! Flows are steered in *buckets*, by the high bits of their hash. A bucket remembers the place its packets went to last, and the number of the last of them in that place's backlog
//! (its *tail*). When a mask, a target of RFS or the mode changes, the bucket goes on to the old place until that has processed everything up to the tail (its *head* has reached it), and moves
//! then: nothing of the bucket is left there, so nothing can be overtaken. Those are the epochs of a bucket; the kernel keeps this rule for RFS (`rps_dev_flow`) and breaks it when
//! `rps_cpus` is written.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use superpacket::packet::{FlowHash, RxPacket};
use superpacket::super_packet::SuperPacket;

use crate::hasher::FlowHasher;
use crate::mask::{Cpu, CpuMask};
use crate::rfs::{SockFlowTable, TooManyFlows, flow_entries};
use crate::rps::{Rps, reciprocal_scale};

/// Buckets, as long as neither `rps_flow_cnt` nor the number of CPUs asks for more.
const LEAST_BUCKETS: u32 = 4096;

/// Buckets for each CPU at least, so that none gets far more of them than another.
const BUCKETS_PER_CPU: u32 = 64;

/// Where a packet is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// By the thread that received it.
    Here,
    /// By the worker on this CPU.
    Cpu(Cpu),
}

impl Place {
    /// Its number among all places: 0, or one more than the CPU's.
    #[inline]
    const fn index(self) -> usize {
        match self {
            Place::Here => 0,
            Place::Cpu(cpu) => cpu.number() + 1,
        }
    }
}

/// How far the places have come: for each, how many of the packets that this steering [sent there](Choice::enqueued) are done with, in order.
///
/// A packet is done with when nothing of it can be overtaken any more: what it became has been sent, and what its flow holds has left; not when it is taken out of the backlog. Packets
/// that are lost with a worker count too. The numbers start at 0 and never sink, also if a worker is ended and started anew. Those who publish them do so with release ordering after
/// the work, and an implementation reads them with acquire ordering.
pub trait Heads {
    /// How many packets the place is done with.
    fn head(&self, place: Place) -> u64;
}

impl<F: Fn(Place) -> u64> Heads for F {
    #[inline]
    fn head(&self, place: Place) -> u64 {
        self(place)
    }
}

/// [`Heads`] for one thread: counts what is done.
#[derive(Clone, Debug, Default)]
pub struct Done {
    counts: Vec<u64>,
}

impl Done {
    /// Notes that the place is done with so many packets more.
    pub fn note_done(&mut self, place: Place, packets: u64) {
        let index = place.index();
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += packets;
    }
}

impl Heads for Done {
    #[inline]
    fn head(&self, place: Place) -> u64 {
        self.counts.get(place.index()).copied().unwrap_or(0)
    }
}

/// When flows move to where they are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Moves {
    /// When nothing of them is left where they were: no packet overtakes another.
    #[default]
    Epochs,
    /// With the next packet, as in the kernel when `rps_cpus` is written: packets are reordered.
    AtOnce,
}

/// What steering did so far, in packets but for `moves`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SteeringCounters {
    /// Sent to a worker.
    pub steered: u64,
    /// Processed where they were received.
    pub here: u64,
    /// Of these, packets without a hash.
    pub without_hash: u64,
    /// Sent to another place than wanted, because packets of their bucket were left there.
    pub held_back: u64,
    /// Not sent anywhere yet, because the hash changed and packets of the old one were left somewhere.
    pub waited: u64,
    /// How many times a bucket moved from one place to another.
    pub moves: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// The number of the last packet in the place's backlog.
    tail: u64,
    place: Option<Place>,
}

/// Where a packet goes. The packet is in the backlog once [`enqueued`](Self::enqueued) has been called; a choice that is dropped instead means that the packet was.
#[must_use = "a packet that is enqueued without a word may be overtaken"]
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
    /// The place.
    #[inline]
    pub const fn place(&self) -> Place {
        self.place
    }

    /// The hash that it was chosen by.
    #[inline]
    pub const fn hash(&self) -> Option<FlowHash> {
        self.hash
    }

    /// How many packets are in the place's backlog, or not done with yet, before this one.
    #[inline]
    pub fn queued(&self, heads: &impl Heads) -> u64 {
        self.tail.saturating_sub(heads.head(self.place))
    }

    /// Notes that the packet is in the place's backlog, the last there, and that it will be counted among what [is done](Heads). Processed at once, it is in the backlog too.
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
/// Who wants a flow where, the first of these that has a say: processing [in place](Self::set_in_place); the CPU that [reads the flow](Self::set_sock_flows) (RFS); the [mask](Self::set_mask)
/// (RPS). Packets without a hash, and flows that nobody wants elsewhere, are processed where they are received.
///
/// ```
/// use superpacket::packet::{FlowHash, RxPacket};
/// use superpacket_steer::{CpuMask, Done, FlowHashKey, FlowHasher, Place, Steering};
///
/// let mut steering = Steering::new(FlowHasher::keyed(FlowHashKey::new(42)));
/// steering.set_mask(&CpuMask::parse("3", 4)?);
/// let mut done = Done::default();
/// let mut packet = RxPacket::new(&[0u8; 60][..]);
/// packet.hash = Some(FlowHash(0x51cc_c178));
///
/// let choice = steering.choose(&packet, &done).expect("nothing to wait for");
/// let place = choice.place();
/// // Put the packet into the backlog of that place, and say so.
/// choice.enqueued();
///
/// // The mask changes: the flow stays until its packet is done with.
/// steering.set_mask(&CpuMask::parse("c", 4)?);
/// assert_eq!(steering.choose(&packet, &done).map(|choice| choice.place()), Some(place));
/// done.note_done(place, 1);
/// assert_ne!(steering.choose(&packet, &done).map(|choice| choice.place()), Some(place));
/// # Ok::<(), superpacket_steer::MaskError>(())
/// ```
#[derive(Debug)]
pub struct Steering {
    hasher: FlowHasher,
    moves: Moves,
    mask: CpuMask,
    online: CpuMask,
    rps: Rps,
    sock_flows: Option<Arc<SockFlowTable>>,
    /// `rps_flow_cnt`; 0: no RFS.
    flow_count: u32,
    in_place: bool,
    /// A power of two.
    buckets: Box<[Bucket]>,
    /// By place: the number of the last packet in its backlog.
    tails: Vec<u64>,
    /// Where packets of an old hash may be left: what the tails were when it changed.
    barrier: Vec<(Place, u64)>,
    counters: SteeringCounters,
}

impl Steering {
    /// Steers nothing yet: everything is processed where it is received.
    pub fn new(hasher: FlowHasher) -> Self {
        Steering {
            hasher,
            moves: Moves::Epochs,
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

    /// Spreads flows over the CPUs of the mask that are [online](Self::set_online) (`rps_cpus`); an empty one switches RPS off.
    pub fn set_mask(&mut self, mask: &CpuMask) {
        self.mask = mask.clone();
        self.remap();
    }

    /// Says on which CPUs there can be workers. Others are left out of the mask without a word, as the kernel leaves out those that are offline, and RFS does not steer there. At first, all are online.
    pub fn set_online(&mut self, online: &CpuMask) {
        self.online = online.clone();
        self.remap();
    }

    /// The mask as it was set.
    pub const fn mask(&self) -> &CpuMask {
        &self.mask
    }

    /// What is left of the mask without CPUs that are not online.
    pub fn effective_mask(&self) -> CpuMask {
        &self.mask & &self.online
    }

    /// Steers flows to where they are read, by a table that others record that in (RFS); `None` stops that. Takes a [flow count](Self::set_flow_count) too.
    pub fn set_sock_flows(&mut self, table: Option<Arc<SockFlowTable>>) {
        self.sock_flows = table;
    }

    /// Sets how many flows of this queue RFS tells apart (`rps_flow_cnt`, rounded up to a power of two); 0 switches it off. Buckets are never merged again, so that memory, 16
    /// bytes each, stays at the largest number.
    ///
    /// # Errors
    /// [`TooManyFlows`] above [`MAX_FLOW_ENTRIES`](crate::MAX_FLOW_ENTRIES); nothing has changed.
    pub fn set_flow_count(&mut self, count: u64) -> Result<(), TooManyFlows> {
        self.flow_count = flow_entries(count)?;
        self.split_buckets(self.flow_count);
        Ok(())
    }

    /// How many flows of this queue RFS tells apart.
    pub const fn flow_count(&self) -> u32 {
        self.flow_count
    }

    /// Processes everything where it is received, or no longer: for times with little to do, when handing over costs more than it brings.
    pub fn set_in_place(&mut self, in_place: bool) {
        self.in_place = in_place;
    }

    /// Sets when flows move. From [`Moves::AtOnce`] back to epochs, [`choose`](Self::choose) lets everything wait until what was sent anywhere is done with.
    pub fn set_moves(&mut self, moves: Moves) {
        if self.moves != moves {
            self.moves = moves;
            self.set_barrier();
        }
    }

    /// Hashes otherwise from now on: with another key or function, or the device's hash or no longer. No flow can be told to be the same as before, so [`choose`](Self::choose) lets
    /// everything wait until all that was sent anywhere is done with. Counters of the old hasher are gone with it.
    pub fn set_hasher(&mut self, hasher: FlowHasher) {
        self.hasher = hasher;
        self.set_barrier();
    }

    /// The hasher.
    pub const fn hasher(&self) -> &FlowHasher {
        &self.hasher
    }

    /// What was done so far.
    pub const fn counters(&self) -> &SteeringCounters {
        &self.counters
    }

    /// How many packets are in the place's backlog, or not done with yet. At 0, a worker that the mask no longer has can be ended: whatever comes goes elsewhere.
    pub fn outstanding(&self, place: Place, heads: &impl Heads) -> u64 {
        let tail = self.tails.get(place.index()).copied().unwrap_or(0);
        tail.saturating_sub(heads.head(place))
    }

    /// Would [`choose`](Self::choose) let everything wait now? For callers who cannot leave a packet where it is once they have it: they ask before they receive.
    #[inline]
    pub fn is_waiting(&mut self, heads: &impl Heads) -> bool {
        !self.barrier.is_empty() && self.waits(heads)
    }

    /// Chooses where a received packet goes. `None`: nowhere yet; leave the packet and all behind it where they are, and ask again when workers have gone on.
    #[inline]
    pub fn choose<B: AsRef<[u8]>>(&mut self, packet: &RxPacket<B>, heads: &impl Heads) -> Option<Choice<'_>> {
        if !self.barrier.is_empty() && self.waits(heads) {
            return None;
        }
        let hash = self.hasher.packet(packet);
        Some(self.choose_by_hash(hash, heads))
    }

    /// The same of what an aggregator emitted.
    #[inline]
    pub fn choose_super_packet<B: AsRef<[u8]>>(&mut self, packet: &SuperPacket<'_, B>, heads: &impl Heads) -> Option<Choice<'_>> {
        if !self.barrier.is_empty() && self.waits(heads) {
            return None;
        }
        let hash = self.hasher.super_packet(packet);
        Some(self.choose_by_hash(hash, heads))
    }

    #[inline]
    fn choose_by_hash(&mut self, hash: Option<FlowHash>, heads: &impl Heads) -> Choice<'_> {
        // A hash of 0 says that there is none.
        let Some(flow) = hash.filter(|hash| hash.0 != 0) else {
            return Choice { place: Place::Here, hash: None, bucket: None, tail: &mut self.tails[0], counters: &mut self.counters };
        };
        let index = reciprocal_scale(flow.0, self.buckets.len() as u32) as usize;
        let wanted = self.wanted(flow, index);
        let bucket = &mut self.buckets[index];
        let place = match bucket.place {
            Some(place) if place == wanted => place,
            Some(place) if self.moves == Moves::Epochs && heads.head(place) < bucket.tail => {
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
        Choice { place, hash, bucket: Some(bucket), tail: &mut self.tails[place.index()], counters: &mut self.counters }
    }

    /// Where a flow of this bucket should be.
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
        // The lowest hash of the bucket, not the flow's: else a bucket on the border between two CPUs would go to and fro.
        // Their number is a power of two: no division for each packet.
        let lowest = ((bucket as u64) << 32) >> self.buckets.len().trailing_zeros();
        self.rps.scaled(lowest as u32).map_or(Place::Here, Place::Cpu)
    }

    /// Are packets of the old hash left anywhere?
    #[cold]
    fn waits(&mut self, heads: &impl Heads) -> bool {
        self.barrier.retain(|&(place, tail)| heads.head(place) < tail);
        let waits = !self.barrier.is_empty();
        self.counters.waited += u64::from(waits);
        waits
    }

    /// All that was sent anywhere must be done with before anything else is sent.
    fn set_barrier(&mut self) {
        self.barrier.clear();
        if self.moves == Moves::Epochs {
            let place = |index: usize| if index == 0 { Some(Place::Here) } else { Cpu::new(index - 1).map(Place::Cpu) };
            self.barrier.extend(self.tails.iter().enumerate().filter_map(|(index, &tail)| Some((place(index)?, tail))));
        }
    }

    fn remap(&mut self) {
        self.rps = Rps::new(&self.effective_mask());
        self.split_buckets(self.rps.cpus().len() as u32 * BUCKETS_PER_CPU);
    }

    /// Splits buckets until there are so many at least. Each part is where the whole was.
    fn split_buckets(&mut self, least: u32) {
        let parts = (least.next_power_of_two() as usize / self.buckets.len()).max(1);
        if parts > 1 {
            self.buckets = self.buckets.iter().flat_map(|bucket| core::iter::repeat_n(*bucket, parts)).collect();
        }
    }
}
