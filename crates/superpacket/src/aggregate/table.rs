//! The flow table: where held flows are found, in which order they were held, and which share an address pair. Work per packet is bounded whatever
//! the traffic: a bucket has eight places, a full one gives up its oldest.

use alloc::vec::Vec;

use super::held::Held;
use super::identity::Identity;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

const WAYS: usize = 8;

/// One cache line: tags and slots of up to eight flows, oldest first.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket {
    tags: [u16; WAYS],
    slots: [u32; WAYS],
    count: u8,
}

const EMPTY: Bucket = Bucket { tags: [0; WAYS], slots: [NONE; WAYS], count: 0 };

/// A place in a doubly linked list.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

const UNLINKED: Link = Link { previous: NONE, next: NONE };

/// Where a held flow hangs: in the list of all by age, and in those of its one or two address pairs.
#[derive(Clone, Copy, Debug)]
struct Places {
    flow: u64,
    age: Link,
    pairs: [Link; 2],
    pair_heads: [u32; 2],
}

/// Slots of held flows, found by hash.
#[derive(Debug)]
pub(super) struct Table<B> {
    buckets: Vec<Bucket>,
    pub(super) slots: Vec<Held<B>>,
    places: Vec<Places>,
    free: Vec<u32>,
    /// First node of each address pair's list; a node is twice the slot, plus one for the outer pair.
    pairs: Vec<u32>,
    oldest: u32,
    newest: u32,
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
            places: Vec::new(),
            free: Vec::new(),
            pairs: alloc::vec![NONE; places],
            oldest: NONE,
            newest: NONE,
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
        (pair >> 32) as usize & (self.pairs.len() - 1)
    }

    /// The slot that holds a flow, or [`NONE`]; `probes` counts the entries compared.
    #[inline(always)]
    pub(super) fn find(&self, flow: u64, probes: &mut u64) -> u32 {
        let bucket = &self.buckets[self.bucket_of(flow)];
        let tag = flow as u16;
        for way in 0..WAYS {
            if way >= usize::from(bucket.count) {
                break;
            }
            *probes += 1;
            if bucket.tags[way] == tag {
                let slot = bucket.slots[way];
                if self.places[slot as usize].flow == flow {
                    return slot;
                }
            }
        }
        NONE
    }

    /// Is there room for one more flow with this hash?
    #[inline]
    pub(super) fn room(&self, flow: u64) -> Room {
        let bucket = &self.buckets[self.bucket_of(flow)];
        if usize::from(bucket.count) == WAYS {
            Room::Evict(bucket.slots[0])
        } else if self.held >= self.max_flows {
            Room::Evict(self.oldest)
        } else {
            Room::Free
        }
    }

    /// Puts a flow in; there must be [room](Self::room). The slot's contents are the last flow's that used it.
    #[inline]
    pub(super) fn insert(&mut self, identity: &Identity, now: u64) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(Held::vacant());
                self.places.push(Places { flow: 0, age: UNLINKED, pairs: [UNLINKED; 2], pair_heads: [NONE; 2] });
                (self.slots.len() - 1) as u32
            }
        };
        let index = self.bucket_of(identity.flow);
        let bucket = &mut self.buckets[index];
        let way = usize::from(bucket.count).min(WAYS - 1);
        bucket.tags[way] = identity.flow as u16;
        bucket.slots[way] = slot;
        bucket.count = way as u8 + 1;

        self.slots[slot as usize].since = now;
        self.places[slot as usize].flow = identity.flow;
        self.held += 1;

        self.places[slot as usize].age = Link { previous: self.newest, next: NONE };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.places[newest as usize].age.next = slot,
        }
        self.newest = slot;

        self.link_pair(slot, 0, self.pair_of(identity.pair));
        match identity.outer_pair {
            Some(pair) => self.link_pair(slot, 1, self.pair_of(pair)),
            None => self.places[slot as usize].pair_heads[1] = NONE,
        }
        slot
    }

    #[inline]
    fn link_pair(&mut self, slot: u32, which: usize, head: usize) {
        let node = slot * 2 + which as u32;
        let next = self.pairs[head];
        self.pairs[head] = node;
        let places = &mut self.places[slot as usize];
        places.pairs[which] = Link { previous: NONE, next };
        places.pair_heads[which] = head as u32;
        if next != NONE {
            self.places[(next / 2) as usize].pairs[(next % 2) as usize].previous = node;
        }
    }

    #[inline]
    fn unlink_pair(&mut self, slot: u32, which: usize) {
        let places = &self.places[slot as usize];
        let head = places.pair_heads[which];
        if head == NONE {
            return;
        }
        let Link { previous, next } = places.pairs[which];
        match previous {
            NONE => self.pairs[head as usize] = next,
            node => self.places[(node / 2) as usize].pairs[(node % 2) as usize].next = next,
        }
        if next != NONE {
            self.places[(next / 2) as usize].pairs[(next % 2) as usize].previous = previous;
        }
    }

    /// Takes a flow out; its slot is free for the next. Returns the flow's hash.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) -> u64 {
        let flow = self.places[slot as usize].flow;
        self.held -= 1;
        self.free.push(slot);

        let index = self.bucket_of(flow);
        let bucket = &mut self.buckets[index];
        let count = usize::from(bucket.count);
        if let Some(way) = bucket.slots[..count].iter().position(|&other| other == slot) {
            bucket.slots.copy_within(way + 1..count, way);
            bucket.tags.copy_within(way + 1..count, way);
            bucket.count -= 1;
        }

        let Link { previous, next } = self.places[slot as usize].age;
        match previous {
            NONE => self.oldest = next,
            other => self.places[other as usize].age.next = next,
        }
        match next {
            NONE => self.newest = previous,
            other => self.places[other as usize].age.previous = previous,
        }
        self.unlink_pair(slot, 0);
        self.unlink_pair(slot, 1);
        flow
    }

    /// The flow held longest, or [`NONE`].
    #[inline(always)]
    pub(super) fn oldest(&self) -> u32 {
        self.oldest
    }

    /// A held flow of this address pair, or of one that shares its list; [`NONE`] if there is none.
    ///
    /// Whoever asks flushes it and asks again: each flow is walked over once, so a flood of fragments pays for nothing that was not held.
    #[inline]
    pub(super) fn of_pair(&self, pair: u64) -> u32 {
        match self.pairs[self.pair_of(pair)] {
            NONE => NONE,
            node => node / 2,
        }
    }

    /// Hints that the flow now oldest will be the next to go.
    #[inline(always)]
    pub(super) fn prefetch_oldest(&self) {
        if let Some(held) = self.slots.get(self.oldest as usize) {
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
