//! The flow table: finds held flows by hash, and keeps lists of them by age and by address pair.
//! The work per packet is bounded whatever the traffic. A hash bucket has room for eight flows;
//! when it is full, its neighbour is used, and when both are full, the oldest flow of the bucket is
//! evicted.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use super::flow::Held;
use super::identity::Identity;

/// The value of a slot index that refers to no slot.
pub(super) const NONE: u32 = u32::MAX;

const WAYS: usize = 8;

/// A cache line: the tags and slots of up to eight flows.
///
/// The place of a flow among the eight is random, so the code does not branch on it and compares
/// all tags at once.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct FlowBucket {
    /// 8 bits of each flow's hash, those of the bucket's first place in the lowest bits. Places
    /// that are not in use keep the bits of their last flow.
    tags: u64,
    /// For each place of the bucket, the index of the flow's slot in [`FlowTable::slots`]; [`NONE`]
    /// if the place is not in use.
    slots: [u32; WAYS],
    /// A bit for each place of the bucket; set if the place is in use.
    used: u32,
    count: u32,
    /// Number of flows of this bucket that lie in its neighbour. The neighbour is searched only if
    /// this is not 0.
    borrowed: u32,
}

const EMPTY: FlowBucket =
    FlowBucket { tags: 0, slots: [NONE; WAYS], used: 0, count: 0, borrowed: 0 };

/// A 64-bit word of eight 8-bit lanes, one for each tag; the lowest bit of each lane is set.
const LOWEST: u64 = u64::MAX / 0xff;

impl FlowBucket {
    /// Returns the places of the bucket whose tag is `tag`, as a word of eight lanes in which the
    /// highest bit of each such place's lane is set. May also include a few places with another
    /// tag.
    #[inline(always)]
    fn tagged(&self, tag: u8) -> u64 {
        let differ = self.tags ^ (LOWEST * u64::from(tag));
        // A lane of zeros borrows from the next lane, which may then match wrongly.
        differ.wrapping_sub(LOWEST) & !differ & (LOWEST << 7)
    }

    /// Stores a slot with its tag in a bucket that has room, and returns the place.
    #[inline(always)]
    fn push(&mut self, tag: u8, slot: u32) -> usize {
        let place = self.used.trailing_ones() as usize % WAYS;
        self.tags = self.tags & !(0xff << (8 * place)) | u64::from(tag) << (8 * place);
        self.slots[place] = slot;
        self.used |= 1 << place;
        self.count += 1;
        place
    }

    /// Removes the flow at a place of the bucket; the place must be in use.
    #[inline(always)]
    fn remove(&mut self, place: usize) {
        let place = place % WAYS;
        self.slots[place] = NONE;
        self.used &= !(1 << place);
        self.count -= 1;
    }
}

/// A node of a circular doubly linked list. The head is a node too, so insertion and removal need
/// no test for a missing neighbour.
#[derive(Clone, Copy, Debug)]
struct ListNode {
    previous: u32,
    next: u32,
}

/// Inserts `node` after `previous`; after the head it is first in the list.
#[inline(always)]
fn link(links: &mut [ListNode], node: usize, previous: usize) {
    let next = links[previous].next;
    links[node] = ListNode { previous: previous as u32, next };
    links[previous].next = node as u32;
    links[next as usize].previous = node as u32;
}

#[inline(always)]
fn unlink(links: &mut [ListNode], node: usize) {
    let ListNode { previous, next } = links[node];
    links[previous as usize].next = next;
    links[next as usize].previous = previous;
}

/// Makes `count` list nodes, numbered from `first`. Each is linked only to itself.
fn alone(first: usize, count: usize) -> impl Iterator<Item = ListNode> {
    (first..first + count).map(|node| ListNode { previous: node as u32, next: node as u32 })
}

/// The slots of held flows, found by hash.
#[derive(Debug)]
pub(super) struct FlowTable<B> {
    buckets: Vec<FlowBucket>,
    pub(super) slots: Vec<Held<B>>,
    free: Vec<u32>,
    /// The held flows by age: the head, whose next is the oldest and whose previous is the newest,
    /// then one node per slot.
    ages: Vec<ListNode>,
    /// The held flows of each address pair: `pair_heads` heads, then two nodes per slot. The second
    /// is for the outer pair and is linked only in tunnels.
    pairs: Vec<ListNode>,
    pair_heads: usize,
    /// The held flows of each address pair of a second tunnel: heads, then one node per slot. Empty
    /// until a flow in two tunnels is held.
    nested_pairs: Vec<ListNode>,
    held: u32,
    max_flows: u32,
    /// Number of flows inserted since the table was made.
    inserted: u64,
}

/// Whether the table has room for a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The table has room.
    Free,
    /// The flow in this slot must leave first.
    Evict(u32),
}

/// Returns the number of flows for which the buckets of a table have room: twice the maximum number
/// of flows, so that a full bucket is rare, and a full neighbour beside it very rare. For eight
/// flows or fewer there is one bucket.
fn places(max_flows: u32) -> usize {
    if max_flows as usize <= WAYS { WAYS } else { (max_flows as usize * 2).next_power_of_two() }
}

impl<B> FlowTable<B> {
    pub(super) fn new(max_flows: u32) -> Self {
        Self::in_memory(max_flows, Vec::new(), Vec::new())
    }

    /// Makes a table as [`new`](Self::new) does, or fails if it cannot be allocated.
    pub(super) fn try_new(max_flows: u32) -> Result<Self, TryReserveError> {
        let places = places(max_flows);
        let (mut buckets, mut pairs) = (Vec::new(), Vec::new());
        buckets.try_reserve_exact(places / WAYS)?;
        pairs.try_reserve_exact(places)?;
        Ok(Self::in_memory(max_flows, buckets, pairs))
    }

    fn in_memory(max_flows: u32, mut buckets: Vec<FlowBucket>, mut pairs: Vec<ListNode>) -> Self {
        let places = places(max_flows);
        buckets.resize(places / WAYS, EMPTY);
        pairs.extend(alone(0, places));
        FlowTable {
            buckets,
            slots: Vec::new(),
            free: Vec::new(),
            ages: alone(0, 1).collect(),
            pairs,
            pair_heads: places,
            nested_pairs: Vec::new(),
            held: 0,
            max_flows,
            inserted: 0,
        }
    }

    #[inline(always)]
    fn bucket_of(&self, flow: u64) -> usize {
        // The tag takes the low bits, so the bucket takes high ones.
        (flow >> 32) as usize & (self.buckets.len() - 1)
    }

    /// Returns the index of the bucket that takes this bucket's flows when it is full: the other of
    /// a pair, or itself if it is the only one.
    #[inline(always)]
    fn neighbour_of(&self, bucket: usize) -> usize {
        (bucket ^ 1) & (self.buckets.len() - 1)
    }

    #[inline(always)]
    fn pair_of(&self, pair: u64) -> usize {
        (pair >> 32) as usize & (self.pair_heads - 1)
    }

    #[inline(always)]
    fn pair_node(&self, slot: u32, which: usize) -> usize {
        self.pair_heads + slot as usize * 2 + which
    }

    /// Returns the slot that holds a flow, or [`NONE`]. Adds the number of entries compared to
    /// `probes`.
    #[inline(always)]
    pub(super) fn find(&self, flow: u64, probes: &mut u64) -> u32 {
        let index = self.bucket_of(flow);
        match self.find_in(index, flow, probes) {
            NONE if self.buckets[index].borrowed > 0 => self.find_in_neighbour(index, flow, probes),
            slot => slot,
        }
    }

    #[cold]
    fn find_in_neighbour(&self, bucket: usize, flow: u64, probes: &mut u64) -> u32 {
        self.find_in(self.neighbour_of(bucket), flow, probes)
    }

    #[inline(always)]
    fn find_in(&self, bucket: usize, flow: u64, probes: &mut u64) -> u32 {
        let bucket = &self.buckets[bucket];
        *probes += u64::from(bucket.count);
        let mut tagged = bucket.tagged(flow as u8);
        while tagged != 0 {
            let slot = bucket.slots[tagged.trailing_zeros() as usize / 8 % WAYS];
            if self.slots.get(slot as usize).is_some_and(|held| held.flow == flow) {
                return slot;
            }
            tagged &= tagged - 1;
        }
        NONE
    }

    /// Returns whether there is room for a flow with this hash, or which flow must leave first.
    #[inline(always)]
    pub(super) fn room(&self, flow: u64) -> Room {
        let index = self.bucket_of(flow);
        let full = |bucket: usize| self.buckets[bucket].count as usize == WAYS;
        if full(index) && full(self.neighbour_of(index)) {
            Room::Evict(self.oldest_in(&self.buckets[index]))
        } else if self.held >= self.max_flows {
            Room::Evict(self.oldest())
        } else {
            Room::Free
        }
    }

    /// Returns the slot of the flow in a full bucket that was held longest.
    #[cold]
    fn oldest_in(&self, bucket: &FlowBucket) -> u32 {
        let age = |slot: &u32| self.slots.get(*slot as usize).map(|held| held.number);
        bucket.slots.iter().copied().min_by_key(age).unwrap_or(NONE)
    }

    /// Inserts a flow, for which there must be [room](Self::room). The slot still holds the
    /// contents of the last flow that used it.
    #[inline(always)]
    pub(super) fn insert(&mut self, identity: Identity, now: u64) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(),
        };
        let mut index = self.bucket_of(identity.flow);
        let mut borrowed = 0;
        if self.buckets[index].count as usize == WAYS {
            self.buckets[index].borrowed += 1;
            index = self.neighbour_of(index);
            borrowed = WAYS;
        }
        let place = borrowed | self.buckets[index].push(identity.flow as u8, slot);
        self.held += 1;
        let newest = self.ages[0].previous as usize;
        link(&mut self.ages, slot as usize + 1, newest);
        let (head, node) = (self.pair_of(identity.pair), self.pair_node(slot, 0));
        link(&mut self.pairs, node, head);
        let mut tunnels = 0;
        if let Some(outer) = identity.outer {
            let (head, node) = (self.pair_of(outer.outermost), self.pair_node(slot, 1));
            link(&mut self.pairs, node, head);
            tunnels = 1;
            if let Some(pair) = outer.nested {
                self.link_nested(slot, pair);
                tunnels = 2;
            }
        }
        let held = &mut self.slots[slot as usize];
        held.since = now;
        held.flow = identity.flow;
        held.place = place as u8;
        held.number = self.inserted;
        self.inserted += 1;
        held.tunnels = tunnels;
        slot
    }

    /// Inserts a flow into the list of its second tunnel's address pair.
    #[cold]
    fn link_nested(&mut self, slot: u32, pair: u64) {
        let (head, node) = (self.pair_of(pair), self.pair_heads + slot as usize);
        let (count, most) = (self.nested_pairs.len(), self.pair_heads + self.slots.len());
        self.nested_pairs.extend(alone(count, most - count));
        link(&mut self.nested_pairs, node, head);
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Held::vacant());
        self.ages.extend(alone(self.ages.len(), 1));
        self.pairs.extend(alone(self.pairs.len(), 2));
        (self.slots.len() - 1) as u32
    }

    /// Removes a flow, frees its slot, and returns its hash.
    #[inline(always)]
    pub(super) fn remove(&mut self, slot: u32) -> u64 {
        let held = &self.slots[slot as usize];
        let (flow, place, tunnels) = (held.flow, usize::from(held.place), held.tunnels);
        self.held -= 1;
        self.free.push(slot);
        let mut index = self.bucket_of(flow);
        if place >= WAYS {
            self.buckets[index].borrowed -= 1;
            index = self.neighbour_of(index);
        }
        self.buckets[index].remove(place);
        unlink(&mut self.ages, slot as usize + 1);
        let node = self.pair_node(slot, 0);
        unlink(&mut self.pairs, node);
        if tunnels > 0 {
            let node = self.pair_node(slot, 1);
            unlink(&mut self.pairs, node);
            if tunnels > 1 {
                unlink(&mut self.nested_pairs, self.pair_heads + slot as usize);
            }
        }
        flow
    }

    /// Returns the slot of the flow that has been held longest, or [`NONE`].
    #[inline(always)]
    pub(super) fn oldest(&self) -> u32 {
        // The head is node 0, and no slot is before the first: an empty list gives NONE.
        self.ages[0].next.wrapping_sub(1)
    }

    /// Returns the slot of a held flow of this address pair, or of a pair that shares its list;
    /// [`NONE`] if there is none.
    ///
    /// The caller flushes it and asks again. Each flow is visited once, so a flood of fragments
    /// costs no more than the flows that were held.
    #[inline]
    pub(super) fn of_pair(&self, pair: u64) -> u32 {
        let head = self.pair_of(pair);
        match self.pairs[head].next as usize {
            node if node == head => self.of_nested_pair(head),
            node => ((node - self.pair_heads) / 2) as u32,
        }
    }

    /// Returns the slot of a held flow whose second tunnel's address pair is in the list with this
    /// head; [`NONE`] if there is none.
    fn of_nested_pair(&self, head: usize) -> u32 {
        match self.nested_pairs.get(head).map_or(head, |head| head.next as usize) {
            node if node == head => NONE,
            node => (node - self.pair_heads) as u32,
        }
    }

    /// Prefetches the oldest flow, which will be the next to leave, and the one after it.
    #[inline(always)]
    pub(super) fn prefetch_oldest(&self) {
        let oldest = self.ages[0].next as usize;
        let second = self.ages[oldest].next as usize;
        if let Some(held) = self.slots.get(oldest.wrapping_sub(1)) {
            superpacket_simd::prefetch_read(&self.buckets[self.bucket_of(held.flow)]);
        }
        if let Some(held) = self.slots.get(second.wrapping_sub(1)) {
            held.prefetch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::OuterPairs;
    use super::*;

    fn identity(flow: u64, pair: u64, outer_pair: Option<u64>) -> Identity {
        Identity {
            flow,
            pair,
            outer: outer_pair.map(|outermost| OuterPairs { outermost, nested: None }),
        }
    }

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<FlowBucket>(), 64);
    }

    #[test]
    fn a_full_bucket_borrows_and_then_gives_up_its_oldest() {
        let mut table: FlowTable<&[u8]> = FlowTable::new(64);
        // The same high bits: one bucket.
        for flow in 0..16 {
            assert_eq!(table.room(flow), Room::Free);
            assert_eq!(u64::from(table.insert(identity(flow, flow << 32, None), 0)), flow);
        }
        assert_eq!(table.room(99), Room::Evict(0));
        table.remove(0);
        assert_eq!(table.room(99), Room::Free);
        assert_eq!(table.insert(identity(99, 99 << 32, None), 0), 0);
        assert_eq!(table.room(100), Room::Evict(1));
        let mut probes = 0;
        assert_eq!(table.find(99, &mut probes), 0);
        assert_eq!(probes, 8);
        // A flow that lies in the neighbour is found there, after the places of both were compared.
        assert_eq!(table.find(15, &mut probes), 15);
        assert_eq!(probes, 8 + 16);
        assert_eq!(table.find(0, &mut probes), NONE);
    }

    #[test]
    fn what_lent_a_place_is_full_for_its_own() {
        let mut table: FlowTable<&[u8]> = FlowTable::new(64);
        let neighbours = 1 << 32;
        for flow in 0..9 {
            table.insert(identity(flow, 0, None), 0);
        }
        for flow in 0..7 {
            table.insert(identity(neighbours | flow, 0, None), 0);
        }
        // The oldest flow of the second bucket came from the first.
        assert_eq!(table.room(neighbours | 7), Room::Evict(8));
        table.remove(8);
        let mut probes = 0;
        assert_eq!(table.find(8, &mut probes), NONE);
        // No flow of the bucket lies in the neighbour any more, so that is not searched.
        assert_eq!(probes, 8);
        table.insert(identity(neighbours | 7, 0, None), 0);
        table.remove(3);
        assert_eq!(table.insert(identity(neighbours | 8, 0, None), 0), 3);
        assert_eq!(table.find(neighbours | 8, &mut probes), 3);
        assert_eq!(table.find(neighbours | 7, &mut probes), 8);
    }

    #[test]
    fn the_limit_of_flows_gives_up_the_oldest_of_all() {
        let mut table: FlowTable<&[u8]> = FlowTable::new(3);
        for flow in 1..=3u64 {
            table.insert(identity(flow << 32, flow, None), flow);
        }
        assert_eq!(table.room(9), Room::Evict(0));
        table.remove(1);
        assert_eq!(table.room(9), Room::Free);
        assert_eq!(table.oldest(), 0);
        table.remove(0);
        assert_eq!(table.oldest(), 2);
        table.remove(2);
        assert_eq!(table.oldest(), NONE);
    }

    #[test]
    fn a_tunnelled_flow_hangs_in_two_lists_and_leaves_both() {
        let mut table: FlowTable<&[u8]> = FlowTable::new(8);
        let (inner, outer) = (1 << 32, 2 << 32);
        let first = table.insert(identity(10, inner, Some(outer)), 0);
        let second = table.insert(identity(11, inner, None), 0);
        let third = table.insert(identity(12, outer, None), 0);
        assert_eq!(table.of_pair(inner), second);
        assert_eq!(table.of_pair(outer), third);
        table.remove(second);
        assert_eq!(table.of_pair(inner), first);
        table.remove(third);
        assert_eq!(table.of_pair(outer), first);
        table.remove(first);
        assert_eq!((table.of_pair(inner), table.of_pair(outer)), (NONE, NONE));
    }
}
