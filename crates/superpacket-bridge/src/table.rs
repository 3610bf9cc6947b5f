//! The addresses that the bridge has learned, and behind which port each was seen.
//!
//! A fixed number of sets of four entries: memory and work per packet do not depend on how many addresses there are. Threads look up and refresh
//! entries without a lock; only an address that is new takes one.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Entries of a set.
const WAYS: usize = 4;

/// The unit of time in an entry, in milliseconds.
const TICK: u64 = 10;

/// How stale an entry's time may be before it is written again, in ticks: a line that all threads read should seldom be written.
const REFRESH: u64 = 10;

/// An address that is seen at another port within this time of being seen at the last, in ticks, has not moved: it is flapping.
const FLAP: u64 = 100;

/// So many flaps are a loop.
const FLAP_LIMIT: u64 = 8;

/// How long an address of a loop is believed at the port where it was first seen only, in ticks: after it was last seen there, and after it was last seen
/// elsewhere.
const LOCK: u64 = 500;

/// The flaps of an address that has just been seen elsewhere in a loop: what is above [`FLAP_LIMIT`] is the time left of its lock, in units of [`REFRESH`].
const LOCKED: u64 = FLAP_LIMIT + LOCK / REFRESH;

/// How long after an address was seen at several ports at once a loop is reckoned with, in ticks: what goes round in one direction only shows itself when
/// somebody else speaks to all, as ARP does about once a minute.
const SUSPECT: u64 = 6000;

/// How seldom the log speaks of loops, in ticks: who chooses the traffic must not fill it.
const SILENCE: u64 = 100;

/// Which address a packet comes from or goes to, in which VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// A hardware address in a VLAN (0: untagged).
    pub(crate) fn ethernet(address: [u8; 6], vlan: u16) -> Key {
        let [a, b, c, d, e, f] = address;
        Key(u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | u64::from(vlan & 0x0fff) << 48 | 1 << 60)
    }

    /// An IP address, for ports without a link layer: by a hash of 60 bits.
    pub(crate) fn ip(address: &[u8]) -> Key {
        let mut hash = 0x9e37_79b9_7f4a_7c15u64;
        for chunk in address.chunks(4) {
            let word = chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash ^= hash >> 32;
        }
        Key(hash >> 4 | 1 << 61)
    }
}

/// What came of seeing an address at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Learned {
    /// It is known to be there.
    Here,
    /// It is seen at several ports at once: this packet has come round a loop.
    Loop,
}

/// An entry's value: last seen (36 bits of ticks), port, the port where it was before it flapped (10 bits each), flaps (8 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(u64);

impl Seen {
    fn new(tick: u64, port: u16, home: u16, flaps: u64) -> Seen {
        Seen(tick << 28 | u64::from(port & 0x3ff) << 18 | u64::from(home & 0x3ff) << 8 | flaps & 0xff)
    }

    fn tick(self) -> u64 {
        self.0 >> 28
    }

    fn port(self) -> u16 {
        (self.0 >> 18 & 0x3ff) as u16
    }

    fn home(self) -> u16 {
        (self.0 >> 8 & 0x3ff) as u16
    }

    fn flaps(self) -> u64 {
        self.0 & 0xff
    }

    /// Has it been seen at several ports at once, of late?
    fn is_looping(self) -> bool {
        self.flaps() >= FLAP_LIMIT
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// 0: free.
    key: AtomicU64,
    seen: AtomicU64,
}

impl Entry {
    /// The value, if the entry is this address's.
    #[inline]
    fn read(&self, key: Key) -> Option<Seen> {
        if self.key.load(Ordering::Acquire) != key.0 {
            return None;
        }
        let seen = Seen(self.seen.load(Ordering::Acquire));
        // Was it still this address's when the value was read? (An entry changes hands by way of a free one.)
        fence(Ordering::Acquire);
        (self.key.load(Ordering::Relaxed) == key.0).then_some(seen)
    }
}

/// The most ports that a table tells apart.
pub(crate) const MAX_PORTS: usize = 1024;

/// The table of addresses.
#[derive(Debug)]
pub(crate) struct Table {
    sets: Box<[[Entry; WAYS]]>,
    /// Random: who chooses the addresses must not choose the sets.
    secret: [u64; 2],
    ageing: u64,
    start: Instant,
    insert: Mutex<()>,
    /// When the log last spoke of a loop.
    told: AtomicU64,
    /// When an address was last seen at several ports at once; 0: never.
    looped: AtomicU64,
}

impl Table {
    /// A table of at least `size` entries (rounded up to a power of two, at most 2^20), whose addresses are forgotten after `ageing`.
    pub(crate) fn new(size: usize, ageing: Duration) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let sets = size.clamp(WAYS, 1 << 20).div_ceil(WAYS).next_power_of_two();
        Table {
            sets: (0..sets).map(|_| Default::default()).collect(),
            secret: [random(), random()],
            ageing: (ageing.as_millis() as u64 / TICK).max(1),
            start: Instant::now(),
            insert: Mutex::new(()),
            told: AtomicU64::new(0),
            looped: AtomicU64::new(0),
        }
    }

    /// The time in ticks from 1 on.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 / TICK + 1
    }

    #[inline]
    fn set(&self, key: Key) -> &[Entry; WAYS] {
        let product = u128::from(key.0 ^ self.secret[0]) * u128::from(self.secret[1] | 1);
        let hash = (product >> 64) as u64 ^ product as u64;
        &self.sets[hash as usize & (self.sets.len() - 1)]
    }

    /// The port behind which an address lies; `None` if that is not known, or not any more.
    #[inline]
    pub(crate) fn find(&self, key: Key, now: u64) -> Option<u16> {
        let seen = self.set(key).iter().find_map(|entry| entry.read(key))?;
        (now.saturating_sub(seen.tick()) <= self.ageing).then(|| seen.port())
    }

    /// An address was seen as a source at a port.
    #[inline]
    pub(crate) fn learn(&self, key: Key, port: u16, now: u64) -> Learned {
        match self.set(key).iter().find_map(|entry| Some((entry, entry.read(key)?))) {
            Some((_, seen)) if seen.port() == port && now.saturating_sub(seen.tick()) < REFRESH => Learned::Here,
            Some((entry, seen)) => self.refresh(entry, seen, port, now),
            None => {
                self.insert(key, port, now);
                Learned::Here
            }
        }
    }

    #[cold]
    fn refresh(&self, entry: &Entry, seen: Seen, port: u16, now: u64) -> Learned {
        let age = now.saturating_sub(seen.tick());
        let locked = seen.is_looping() && age <= LOCK;
        let next = if seen.port() == port {
            // The lock runs off while it is seen here and nowhere else; flaps that made none are forgotten sooner.
            let flaps = match seen.flaps() {
                flaps if locked => Some(flaps - (age / REFRESH).max(1).min(flaps)).filter(|&left| left >= FLAP_LIMIT).unwrap_or(0),
                _ if age > FLAP => 0,
                flaps => flaps,
            };
            Seen::new(now, port, port, flaps)
        } else if locked {
            // Still there: the lock starts anew.
            self.looped.store(now, Ordering::Relaxed);
            Seen::new(seen.tick(), seen.port(), seen.home(), LOCKED)
        } else if age > FLAP {
            Seen::new(now, port, port, 0)
        } else {
            let home = if seen.flaps() == 0 { seen.port() } else { seen.home() };
            if seen.flaps() + 1 >= FLAP_LIMIT {
                self.looped.store(now, Ordering::Relaxed);
                self.tell(home, if port == home { seen.port() } else { port }, now);
                // Back to where it was first seen, and there it stays for a while.
                Seen::new(now, home, home, LOCKED)
            } else {
                Seen::new(now, port, home, seen.flaps() + 1)
            }
        };
        // Another thread's news are as good.
        if next != seen {
            let _ = entry.seen.compare_exchange(seen.0, next.0, Ordering::Release, Ordering::Relaxed);
        }
        if next.port() == port { Learned::Here } else { Learned::Loop }
    }

    /// Is there a loop, or was there one until just now?
    pub(crate) fn has_loop(&self, now: u64) -> bool {
        let looped = self.looped.load(Ordering::Relaxed);
        looped != 0 && now.saturating_sub(looped) <= SUSPECT
    }

    /// Says that there is a loop, unless it has just been said.
    fn tell(&self, home: u16, port: u16, now: u64) {
        let told = self.told.load(Ordering::Relaxed);
        if (told == 0 || now.saturating_sub(told) >= SILENCE)
            && self.told.compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            tracing::warn!(
                first = home,
                again = port,
                "a loop: an address is seen at several ports (by number, from 0 on) at once, and its packets are taken from the first only"
            );
        }
    }

    #[cold]
    fn insert(&self, key: Key, port: u16, now: u64) {
        let _alone = self.insert.lock().unwrap_or_else(PoisonError::into_inner);
        let set = self.set(key);
        if set.iter().any(|entry| entry.read(key).is_some()) {
            return;
        }
        // A free entry, or the one that was seen longest ago.
        let oldest = set.iter().min_by_key(|entry| match entry.key.load(Ordering::Relaxed) {
            0 => 0,
            _ => Seen(entry.seen.load(Ordering::Relaxed)).tick(),
        });
        if let Some(entry) = oldest {
            entry.key.store(0, Ordering::Release);
            fence(Ordering::Release);
            entry.seen.store(Seen::new(now, port, port, 0).0, Ordering::Release);
            entry.key.store(key.0, Ordering::Release);
        }
    }

    /// Forgets all addresses behind a port.
    pub(crate) fn forget(&self, port: u16) {
        let _alone = self.insert.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in self.sets.iter().flatten() {
            if entry.key.load(Ordering::Relaxed) != 0 && Seen(entry.seen.load(Ordering::Relaxed)).port() == port {
                entry.key.store(0, Ordering::Release);
            }
        }
    }

    /// How many addresses lie behind a port.
    pub(crate) fn count(&self, port: u16) -> usize {
        let now = self.now();
        let behind = |entry: &&Entry| {
            let seen = Seen(entry.seen.load(Ordering::Relaxed));
            entry.key.load(Ordering::Relaxed) != 0 && seen.port() == port && now.saturating_sub(seen.tick()) <= self.ageing
        };
        self.sets.iter().flatten().filter(behind).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = Key(1 << 60 | 0xa);

    fn table() -> Table {
        Table::new(64, Duration::from_secs(1))
    }

    #[test]
    fn an_address_is_found_until_it_is_too_old() {
        let table = table();
        assert_eq!(table.find(A, 1), None);
        assert_eq!(table.learn(A, 3, 1), Learned::Here);
        assert_eq!(table.find(A, 101), Some(3));
        assert_eq!(table.find(A, 102), None, "a second is 100 ticks");
        assert_eq!(table.learn(A, 3, 50), Learned::Here);
        assert_eq!(table.find(A, 149), Some(3));
        table.forget(3);
        assert_eq!(table.find(A, 149), None);
    }

    #[test]
    fn vlans_are_worlds_apart() {
        let address = [2, 0, 0, 0, 0, 1];
        let (plain, tagged) = (Key::ethernet(address, 0), Key::ethernet(address, 5));
        assert_ne!(plain, tagged);
        let table = table();
        table.learn(plain, 1, 1);
        table.learn(tagged, 2, 1);
        assert_eq!((table.find(plain, 2), table.find(tagged, 2)), (Some(1), Some(2)));
    }

    #[test]
    fn a_host_that_moves_is_followed() {
        let table = table();
        table.learn(A, 1, 1);
        assert_eq!(table.learn(A, 2, 200), Learned::Here);
        assert_eq!(table.find(A, 200), Some(2));
        assert_eq!(table.learn(A, 1, 220), Learned::Here, "one quick move is no loop");
        assert_eq!(table.find(A, 220), Some(1));
    }

    #[test]
    fn an_address_that_flaps_is_believed_where_it_was_first() {
        let table = table();
        table.learn(A, 1, 1);
        let seen: Vec<_> = (0..12).map(|step| table.learn(A, if step % 2 == 0 { 2 } else { 3 }, 2 + step)).collect();
        assert_eq!(seen.iter().position(|learned| *learned == Learned::Loop), Some(FLAP_LIMIT as usize - 1));
        assert!(seen[FLAP_LIMIT as usize..].iter().all(|learned| *learned == Learned::Loop));
        assert_eq!(table.find(A, 14), Some(1));
        assert_eq!(table.learn(A, 1, 15), Learned::Here);
        assert_eq!(table.learn(A, 2, 16), Learned::Loop);
        assert_eq!(table.learn(A, 2, 16 + LOCK + 1), Learned::Here, "a lock ends when nothing is seen at the first port");
    }

    #[test]
    fn a_loop_is_over_when_an_address_is_seen_at_its_own_port_only() {
        let table = table();
        for step in 0..=FLAP_LIMIT {
            table.learn(A, (step % 2) as u16, 1 + step);
        }
        let mut now = 20;
        for _ in 0..LOCK {
            assert_eq!(table.learn(A, 0, now), Learned::Here);
            assert_eq!(table.learn(A, 1, now), Learned::Loop, "it goes on: {now}");
            assert!(table.has_loop(now));
            now += REFRESH;
        }
        let mut quiet = |times| {
            for _ in 0..times {
                now += REFRESH;
                assert_eq!(table.learn(A, 0, now), Learned::Here);
            }
            now
        };
        let soon = quiet(LOCK / REFRESH - 1);
        assert_eq!(table.learn(A, 1, soon + 1), Learned::Loop, "the last was just now");
        let later = quiet(LOCK / REFRESH + 2);
        assert_eq!(table.learn(A, 1, later + 1), Learned::Here, "one move is none");
        assert!(table.has_loop(later) && !table.has_loop(later + SUSPECT));
    }

    #[test]
    fn a_full_set_gives_up_what_was_seen_longest_ago() {
        let table = Table::new(WAYS, Duration::from_secs(1000));
        let keys: Vec<_> = (0..100).map(|number| Key::ethernet([2, 0, 0, 0, 0, number], 0)).collect();
        for (tick, key) in keys.iter().enumerate() {
            table.learn(*key, 7, 1 + tick as u64);
        }
        assert_eq!(table.count(7), WAYS);
        assert!(keys[96..].iter().all(|key| table.find(*key, 100) == Some(7)));
    }

    #[test]
    fn threads_see_whole_entries() {
        let table = Table::new(WAYS, Duration::from_secs(1000));
        std::thread::scope(|scope| {
            for thread in 0..2u16 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000u64 {
                        let number = (round * 7 + u64::from(thread)) % 16;
                        let key = Key::ethernet([2, 0, 0, 0, 0, number as u8], 0);
                        table.learn(key, number as u16, 1 + round / 100);
                        if let Some(port) = table.find(key, 1 + round / 100) {
                            assert_eq!(port, number as u16);
                        }
                    }
                });
            }
        });
    }
}
