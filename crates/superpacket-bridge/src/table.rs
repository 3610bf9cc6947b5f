//! The addresses that the bridge has learned, and behind which port each was seen.
//!
//! A fixed number of sets of four entries: memory and work per packet do not depend on how many addresses there are. Threads look up and refresh
//! entries without a lock; only an address that is new takes one.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::loops::LoopGuard;

/// Entries of a set.
const WAYS: usize = 4;

/// The unit of time in an entry, in milliseconds.
const TICK: u64 = 10;

/// How stale an entry's time may be before it is written again, in ticks: a line that all threads read should seldom be written.
const REFRESH: u64 = 10;

/// An address that was seen at its port within this time stays there, in ticks: who is seen with it
/// elsewhere is a loop, or somebody who sends with the address of another. It doubles with each
/// dispute.
const HOLD: u64 = 100;

/// The most disputes that are counted: then an address stays for four minutes after it was last seen.
const MOST_DISPUTES: u64 = 8;

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

/// An entry's value: last seen (36 bits of ticks), port, the port where it was learned first (10 bits
/// each), disputes (8 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(u64);

impl Seen {
    fn new(tick: u64, port: u16, home: u16, disputes: u64) -> Seen {
        Seen(tick << 28 | u64::from(port & 0x3ff) << 18 | u64::from(home & 0x3ff) << 8 | disputes.min(MOST_DISPUTES))
    }

    fn tick(self) -> u64 {
        self.0 >> 28
    }

    fn port(self) -> u16 {
        (self.0 >> 18 & 0x3ff) as u16
    }

    /// The port where it was learned first.
    fn home(self) -> u16 {
        (self.0 >> 8 & 0x3ff) as u16
    }

    /// How often it was seen to move lately.
    fn disputes(self) -> u64 {
        self.0 & 0xff
    }

    /// For so many ticks it stays where it was last seen.
    fn hold(self) -> u64 {
        HOLD << self.disputes()
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
    /// Hears of addresses that are seen at two ports.
    pub(crate) loops: LoopGuard,
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
            loops: LoopGuard::new(),
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
    pub(crate) fn learn(&self, key: Key, port: u16, now: u64) {
        match self.set(key).iter().find_map(|entry| Some((entry, entry.read(key)?))) {
            Some((_, seen)) if seen.port() == port && now.saturating_sub(seen.tick()) < REFRESH => {}
            Some((entry, seen)) => self.refresh(entry, seen, port, now),
            None => self.insert(key, port, now),
        }
    }

    /// What was learned first wins while it is alive: an address goes to another port after it was
    /// silent at its own, and comes back as soon as it is heard where it was learned first.
    #[cold]
    fn refresh(&self, entry: &Entry, seen: Seen, port: u16, now: u64) {
        let age = now.saturating_sub(seen.tick());
        let next = if age > self.ageing {
            Seen::new(now, port, port, 0)
        } else if seen.port() == port {
            // Disputes are forgotten one each ageing time; then it is at home where it is.
            match (now / self.ageing != seen.tick() / self.ageing, seen.disputes()) {
                (false, disputes) => Seen::new(now, port, seen.home(), disputes),
                (true, 0) => Seen::new(now, port, port, 0),
                (true, disputes) => Seen::new(now, port, seen.home(), disputes - 1),
            }
        } else {
            if age <= HOLD {
                self.loops.suspect(now);
            }
            if seen.home() != port && age <= seen.hold() {
                return;
            }
            Seen::new(now, port, seen.home(), seen.disputes() + 1)
        };
        // Another thread's news are as good.
        let _ = entry.seen.compare_exchange(seen.0, next.0, Ordering::Release, Ordering::Relaxed);
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
        table.learn(A, 3, 1);
        assert_eq!(table.find(A, 101), Some(3));
        assert_eq!(table.find(A, 102), None, "a second is 100 ticks");
        table.learn(A, 3, 50);
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
        let table = Table::new(64, Duration::from_secs(300));
        table.learn(A, 1, 1);
        table.learn(A, 2, 50);
        assert_eq!(table.find(A, 50), Some(1), "it has just been heard there");
        table.learn(A, 2, 102);
        assert_eq!(table.find(A, 102), Some(2));
        table.learn(A, 1, 110);
        assert_eq!(table.find(A, 110), Some(1), "back home");
    }

    #[test]
    fn who_sends_with_an_address_of_another_port_does_not_get_it() {
        let table = Table::new(64, Duration::from_secs(300));
        table.learn(A, 1, 1);
        // The attacker sends all the time, the host twice a second.
        for now in 2..30_000 {
            table.learn(A, 2, now);
            if now % 50 == 0 {
                table.learn(A, 1, now);
            }
            assert_eq!(table.find(A, now), Some(1), "{now}");
        }
        assert!(table.loops.is_suspected(30_000), "an address at two ports is a hint");
    }

    #[test]
    fn who_waits_for_silence_gets_an_address_for_less_and_less_of_the_time() {
        let table = Table::new(64, Duration::from_secs(300));
        let (mut stolen, mut rounds) = (0, 0);
        // The host speaks every five seconds, the attacker all the time.
        for now in 1..120_000 {
            if now % 500 == 1 {
                table.learn(A, 1, now);
                assert_eq!(table.find(A, now), Some(1), "its first word brings it back: {now}");
                rounds += 1;
            }
            table.learn(A, 2, now);
            stolen += u64::from(table.find(A, now) == Some(2));
        }
        assert!(rounds == 240 && stolen < 5_000, "{stolen} ticks of 120,000");
    }

    #[test]
    fn a_host_that_has_moved_is_at_home_there_in_time() {
        let table = Table::new(64, Duration::from_secs(10));
        table.learn(A, 1, 1);
        for now in (150..4_000).step_by(20) {
            table.learn(A, 2, now);
        }
        // Who comes to the port that it has left long ago is a stranger.
        table.learn(A, 1, 4_000);
        assert_eq!(table.find(A, 4_000), Some(2));
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
