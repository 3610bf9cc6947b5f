//! The flow table: where held flows are found, in which order they were held, and which share an address pair. Work per packet is bounded whatever
//! the traffic: a bucket has eight places, a full one gives up its oldest.

use alloc::vec::Vec;

use super::held::Held;
use super::identity::Identity;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

const WAYS: usize = 8;

/// One cache line: tags and slots of up to eight flows, oldest first.
///
/// Where a flow lies among the eight is random, so nothing here branches on it: all eight places are compared or moved at once.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    /// 16 bits of each flow's hash, the first place in the lowest bits; 0 in places not in use.
    tags: u128,
    /// The slots, [`NONE`] in places not in use.
    slots: [u32; WAYS],
    count: u8,
}

const EMPTY: Bucket = Bucket { tags: 0, slots: [NONE; WAYS], count: 0 };

/// A bit in each of eight lanes of 16: the lowest, and all but the highest.
const LOWEST: u128 = u128::MAX / 0xffff;
const BUT_HIGHEST: u128 = LOWEST * 0x7fff;

impl Bucket {
    /// The places whose tag this is: the highest bit of each one's lane.
    #[inline(always)]
    fn tagged(&self, tag: u16) -> u128 {
        // A product of 64 bits twice costs less than one of 128.
        let half = LOWEST as u64 * u64::from(tag);
        let differ = self.tags ^ (u128::from(half) << 64 | u128::from(half));
        // The sum reaches a lane's highest bit if any lower one differs, and never the next lane.
        !(((differ & BUT_HIGHEST) + BUT_HIGHEST) | differ | BUT_HIGHEST)
    }

    #[inline(always)]
    fn push(&mut self, tag: u16, slot: u32) {
        let way = usize::from(self.count) % WAYS;
        self.tags |= u128::from(tag) << (16 * way);
        self.slots[way] = slot;
        self.count = way as u8 + 1;
    }

    /// Takes a slot out, which must be in; the younger ones close up.
    #[inline(always)]
    fn remove(&mut self, tag: u16, slot: u32) {
        let mut tagged = self.tagged(tag);
        let mut way = lane(tagged);
        while self.slots[way] != slot && tagged != 0 {
            tagged &= tagged - 1;
            way = lane(tagged);
        }
        let before = (1u128 << (16 * way)) - 1;
        self.tags = self.tags & before | (self.tags >> 16) & !before;
        for place in 0..WAYS - 1 {
            self.slots[place] = if place >= way { self.slots[place + 1] } else { self.slots[place] };
        }
        self.slots[WAYS - 1] = NONE;
        self.count -= 1;
    }
}

/// The first lane with a bit.
#[inline(always)]
fn lane(bits: u128) -> usize {
    bits.trailing_zeros() as usize / 16 % WAYS
}

/// A node of a circular doubly linked list, whose head is a node too: putting in and taking out never ask whether there is a neighbour.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Puts `node` after another, or at the front of a list after its head.
#[inline(always)]
fn link(links: &mut [Link], node: usize, previous: usize) {
    let next = links[previous].next;
    links[node] = Link { previous: previous as u32, next };
    links[previous].next = node as u32;
    links[next as usize].previous = node as u32;
}

#[inline(always)]
fn unlink(links: &mut [Link], node: usize) {
    let Link { previous, next } = links[node];
    links[previous as usize].next = next;
    links[next as usize].previous = previous;
}

/// Nodes without neighbours, numbered from `first`.
fn alone(first: usize, count: usize) -> impl Iterator<Item = Link> {
    (first..first + count).map(|node| Link { previous: node as u32, next: node as u32 })
}

/// Slots of held flows, found by hash.
#[derive(Debug)]
pub(super) struct Table<B> {
    buckets: Vec<Bucket>,
    pub(super) slots: Vec<Held<B>>,
    free: Vec<u32>,
    /// The held flows by age: the head, whose next is the oldest and whose previous is the newest, then a node a slot.
    ages: Vec<Link>,
    /// The held flows of each address pair: `pair_heads` heads, then two nodes a slot, the second for the outer pair of a tunnel.
    pairs: Vec<Link>,
    pair_heads: usize,
    held: u32,
    max_flows: u32,
}

/// Where to hold a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is room.
    Free,
    /// This flow must go first.
    Evict(u32),
}

impl<B> Table<B> {
    pub(super) fn new(max_flows: u32) -> Self {
        // Twice as many places as flows, so that a full bucket is rare; eight flows and fewer share one bucket and all its places.
        let places = if max_flows as usize <= WAYS { WAYS } else { (max_flows as usize * 2).next_power_of_two() };
        Table {
            buckets: alloc::vec![EMPTY; places / WAYS],
            slots: Vec::new(),
            free: Vec::new(),
            ages: alone(0, 1).collect(),
            pairs: alone(0, places).collect(),
            pair_heads: places,
            held: 0,
            max_flows,
        }
    }

    #[inline(always)]
    fn bucket_of(&self, flow: u64) -> usize {
        // The tag takes the low bits, so the bucket takes high ones.
        (flow >> 32) as usize & (self.buckets.len() - 1)
    }

    #[inline(always)]
    fn pair_of(&self, pair: u64) -> usize {
        (pair >> 32) as usize & (self.pair_heads - 1)
    }

    #[inline(always)]
    fn pair_node(&self, slot: u32, which: usize) -> usize {
        self.pair_heads + slot as usize * 2 + which
    }

    /// The slot that holds a flow, or [`NONE`]; `probes` counts the entries compared.
    #[inline(always)]
    pub(super) fn find(&self, flow: u64, probes: &mut u64) -> u32 {
        let bucket = &self.buckets[self.bucket_of(flow)];
        let mut tagged = bucket.tagged(flow as u16);
        while tagged != 0 {
            let way = lane(tagged);
            let slot = bucket.slots[way];
            if self.slots.get(slot as usize).is_some_and(|held| held.flow == flow) {
                *probes += way as u64 + 1;
                return slot;
            }
            tagged &= tagged - 1;
        }
        *probes += u64::from(bucket.count);
        NONE
    }

    /// Is there room for one more flow with this hash?
    #[inline(always)]
    pub(super) fn room(&self, flow: u64) -> Room {
        let bucket = &self.buckets[self.bucket_of(flow)];
        if usize::from(bucket.count) == WAYS {
            Room::Evict(bucket.slots[0])
        } else if self.held >= self.max_flows {
            Room::Evict(self.oldest())
        } else {
            Room::Free
        }
    }

    /// Puts a flow in; there must be [room](Self::room). The slot's contents are the last flow's that used it.
    #[inline(always)]
    pub(super) fn insert(&mut self, identity: &Identity, now: u64) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(),
        };
        let index = self.bucket_of(identity.flow);
        self.buckets[index].push(identity.flow as u16, slot);
        self.held += 1;
        let newest = self.ages[0].previous as usize;
        link(&mut self.ages, slot as usize + 1, newest);
        let (head, node) = (self.pair_of(identity.pair), self.pair_node(slot, 0));
        link(&mut self.pairs, node, head);
        let outer = self.pair_node(slot, 1);
        match identity.outer_pair {
            Some(pair) => {
                let head = self.pair_of(pair);
                link(&mut self.pairs, outer, head);
            }
            None => self.pairs[outer] = Link { previous: outer as u32, next: outer as u32 },
        }
        let held = &mut self.slots[slot as usize];
        held.since = now;
        held.flow = identity.flow;
        slot
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(Held::vacant());
        self.ages.extend(alone(self.ages.len(), 1));
        self.pairs.extend(alone(self.pairs.len(), 2));
        (self.slots.len() - 1) as u32
    }

    /// Takes a flow out; its slot is free for the next. Returns the flow's hash.
    #[inline(always)]
    pub(super) fn remove(&mut self, slot: u32) -> u64 {
        let flow = self.slots[slot as usize].flow;
        self.held -= 1;
        self.free.push(slot);
        let index = self.bucket_of(flow);
        self.buckets[index].remove(flow as u16, slot);
        unlink(&mut self.ages, slot as usize + 1);
        let (inner, outer) = (self.pair_node(slot, 0), self.pair_node(slot, 1));
        unlink(&mut self.pairs, inner);
        unlink(&mut self.pairs, outer);
        flow
    }

    /// The flow held longest, or [`NONE`].
    #[inline(always)]
    pub(super) fn oldest(&self) -> u32 {
        // The head is node 0, and no slot is before the first: an empty list gives NONE.
        self.ages[0].next.wrapping_sub(1)
    }

    /// A held flow of this address pair, or of one that shares its list; [`NONE`] if there is none.
    ///
    /// Whoever asks flushes it and asks again: each flow is walked over once, so a flood of fragments pays for nothing that was not held.
    #[inline]
    pub(super) fn of_pair(&self, pair: u64) -> u32 {
        let head = self.pair_of(pair);
        match self.pairs[head].next as usize {
            node if node == head => NONE,
            node => ((node - self.pair_heads) / 2) as u32,
        }
    }

    /// Hints that the flow now oldest will be the next to go, and the one after it the next but one.
    #[inline(always)]
    pub(super) fn prefetch_oldest(&self) {
        let oldest = self.ages[0].next as usize;
        let second = self.ages[oldest].next as usize;
        if let Some(held) = self.slots.get(oldest.wrapping_sub(1)) {
            held.prefetch_pieces();
            superpacket_simd::prefetch_read(&self.buckets[self.bucket_of(held.flow)]);
        }
        if let Some(held) = self.slots.get(second.wrapping_sub(1)) {
            held.prefetch();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(flow: u64, pair: u64, outer_pair: Option<u64>) -> Identity {
        Identity { flow, pair, outer_pair }
    }

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
    }

    #[test]
    fn a_full_bucket_gives_up_its_oldest() {
        let mut table: Table<&[u8]> = Table::new(64);
        // The same high bits: one bucket.
        for flow in 0..8 {
            assert_eq!(table.room(flow), Room::Free);
            assert_eq!(u64::from(table.insert(&identity(flow, flow << 32, None), 0)), flow);
        }
        assert_eq!(table.room(99), Room::Evict(0));
        table.remove(0);
        assert_eq!(table.room(99), Room::Free);
        assert_eq!(table.insert(&identity(99, 99 << 32, None), 0), 0);
        assert_eq!(table.room(100), Room::Evict(1));
        let mut probes = 0;
        assert_eq!(table.find(99, &mut probes), 0);
        assert_eq!(probes, 8);
        assert_eq!(table.find(0, &mut probes), NONE);
    }

    #[test]
    fn the_limit_of_flows_gives_up_the_oldest_of_all() {
        let mut table: Table<&[u8]> = Table::new(3);
        for flow in 1..=3u64 {
            table.insert(&identity(flow << 32, flow, None), flow);
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
        let mut table: Table<&[u8]> = Table::new(8);
        let (inner, outer) = (1 << 32, 2 << 32);
        let first = table.insert(&identity(10, inner, Some(outer)), 0);
        let second = table.insert(&identity(11, inner, None), 0);
        let third = table.insert(&identity(12, outer, None), 0);
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
