//! The addresses that the bridge has learned, and behind which port each was seen.
//!
//! A fixed number of sets of four entries: memory and work per packet do not depend on how many addresses there are. Threads look up and refresh
//! entries without a lock, and none waits to learn an address: if another changes the set, the next packet from there will do.
//!
//! Ports share the table. A port has at most as many addresses as its limit, and where there is no
//! room the port that holds most loses first, so that nobody gets the traffic of others flooded by
//! making up addresses.
//!
//! Static entries are the user's: they neither age nor move nor give way. They lie in the sets as the
//! others do, where a set has room for them; all of them are in a map besides, which is asked for
//! those that found no room.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use crate::fdb::Station;
use crate::loops::LoopGuard;
use crate::settings::MAX_ADDRESSES;

/// Entries of a set.
const WAYS: usize = 4;

/// The most static entries of a set: the others are for what is learned.
const STATIC_WAYS: usize = 2;

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

/// An address was asked for recently if a packet for it came within so many units of [`ASKED_UNIT`]:
/// about a minute.
const ASKED_RECENTLY: u64 = 6;

/// How finely it is known when an address was last asked for, in ticks: ten seconds.
const ASKED_UNIT: u64 = 1024;

/// Old entries are freed each quarter of the ageing time, but at least and at most so many ticks
/// apart: a second and a minute.
const MIN_EXPIRE: u64 = 100;
const MAX_EXPIRE: u64 = 6000;

/// The most sets that can be changed at the same time.
const STRIPES: usize = 1024;

/// Which address a packet comes from or goes to, in which VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl From<Station> for Key {
    fn from(station: Station) -> Key {
        Key::ethernet(station.address, station.vlan)
    }
}

impl Key {
    /// A hardware address in a VLAN (0: untagged).
    pub(crate) fn ethernet(address: [u8; 6], vlan: u16) -> Key {
        let [a, b, c, d, e, f] = address;
        Key(u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | u64::from(vlan & 0x0fff) << 48 | 1 << 60)
    }

    /// The hardware address and the VLAN; `None` for an IP address.
    fn station(self) -> Option<Station> {
        let [_, _, address @ ..] = self.0.to_be_bytes();
        (self.0 & 1 << 60 != 0).then_some(Station { vlan: (self.0 >> 48) as u16 & 0x0fff, address })
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

/// An entry's value: when it was last seen (the lower 32 bits of the tick), the port, the port where
/// it was learned first (10 bits each), disputes (4 bits; all of them set: the entry is static), and
/// when it was last asked for (8 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen(u64);

impl Seen {
    /// An address that nobody has asked for.
    fn new(now: u64, port: u16) -> Seen {
        Seen(0).at(now).with_port(port).with_home(port)
    }

    /// Seen at this time.
    fn at(self, now: u64) -> Seen {
        Seen(self.0 & 0xffff_ffff | now << 32)
    }

    fn with_port(self, port: u16) -> Seen {
        Seen(self.0 & !(0x3ff << 22) | u64::from(port & 0x3ff) << 22)
    }

    fn with_home(self, home: u16) -> Seen {
        Seen(self.0 & !(0x3ff << 12) | u64::from(home & 0x3ff) << 12)
    }

    fn with_disputes(self, disputes: u64) -> Seen {
        Seen(self.0 & !(0xf << 8) | disputes.min(MOST_DISPUTES) << 8)
    }

    /// The same, static.
    fn into_static(self) -> Seen {
        Seen(self.0 | STATIC)
    }

    fn is_static(self) -> bool {
        self.0 & STATIC == STATIC
    }

    /// Asked for at this time.
    fn asked(self, now: u64) -> Seen {
        Seen(self.0 & !0xff | asked_unit(now))
    }

    /// How long ago it was last seen.
    fn age(self, now: u64) -> u64 {
        match (now as u32).wrapping_sub((self.0 >> 32) as u32) {
            age if age <= MOST_AGE => u64::from(age),
            // Another thread's round began later.
            _ => 0,
        }
    }

    fn port(self) -> u16 {
        (self.0 >> 22 & 0x3ff) as u16
    }

    /// The port where it was learned first.
    fn home(self) -> u16 {
        (self.0 >> 12 & 0x3ff) as u16
    }

    /// How often it was seen to move lately.
    fn disputes(self) -> u64 {
        self.0 >> 8 & 0xf
    }

    /// For so many ticks it stays where it was last seen.
    fn hold(self) -> u64 {
        HOLD << self.disputes()
    }

    /// It is known already that it was asked for now.
    fn is_asked(self, now: u64) -> bool {
        self.0 & 0xff == asked_unit(now)
    }

    fn was_asked_recently(self, now: u64) -> bool {
        let asked = self.0 & 0xff;
        asked != 0 && (asked_unit(now) + 255 - asked) % 255 <= ASKED_RECENTLY
    }
}

/// More disputes than are ever counted: the entry is static.
const STATIC: u64 = 0xf << 8;

/// The greatest age that can be told from a time to come, in ticks: 248 days.
const MOST_AGE: u32 = u32::MAX / 2;

/// The time in units of [`ASKED_UNIT`]: 1 to 255, round and round.
fn asked_unit(now: u64) -> u64 {
    now / ASKED_UNIT % 255 + 1
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
        // It may have been free, and this address's again: a free entry's value is nobody's, and must not be changed.
        (seen.0 != 0 && self.key.load(Ordering::Relaxed) == key.0).then_some(seen)
    }
}

/// The most ports that a table tells apart.
pub(crate) const MAX_PORTS: usize = 1024;

/// What a port has of the table.
#[derive(Debug, Default)]
struct Share {
    /// Entries with addresses behind it, those that are too old included.
    held: AtomicU32,
    /// The most of them.
    limit: AtomicU32,
    is_open: AtomicBool,
}

/// The sets of a table of at least `size` entries.
fn sets(size: usize) -> usize {
    size.clamp(WAYS, MAX_ADDRESSES as usize).div_ceil(WAYS).next_power_of_two()
}

/// The most static entries of a table of at least `size` entries: half of those that it has.
pub(crate) fn most_static(size: usize) -> usize {
    sets(size) * STATIC_WAYS
}

/// What is known of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) station: Station,
    pub(crate) port: u16,
    pub(crate) is_static: bool,
    /// How long ago it was last heard at its port; of a static one, heard or made. `None` where
    /// that is not recorded.
    pub(crate) age: Option<Duration>,
}

/// The table of addresses.
#[derive(Debug)]
pub(crate) struct Table {
    sets: Box<[[Entry; WAYS]]>,
    /// Random: who chooses the addresses must not choose the sets.
    secret: [u64; 2],
    ageing: u64,
    start: Instant,
    /// By port.
    shares: Box<[Share]>,
    /// How many ports share it.
    ports: AtomicU32,
    /// Which sets are being changed, by the lower bits of their numbers.
    changing: Box<[AtomicBool]>,
    /// When old entries were freed last.
    expired: AtomicU64,
    /// All static entries: the port by the key. Taken before the right to change a set.
    statics: RwLock<BTreeMap<u64, u16>>,
    /// How many of them found no room in their sets.
    unplaced: AtomicU32,
    /// Hears of addresses that are seen at two ports.
    pub(crate) loops: LoopGuard,
}

impl Table {
    /// A table of at least `size` entries (rounded up to a power of two, at most 2^20), whose addresses are forgotten after `ageing`.
    pub(crate) fn new(size: usize, ageing: Duration) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        let sets = sets(size);
        Table {
            sets: (0..sets).map(|_| Default::default()).collect(),
            secret: [random(), random()],
            ageing: (ageing.as_millis() as u64 / TICK).clamp(1, u64::from(MOST_AGE)),
            start: Instant::now(),
            shares: (0..MAX_PORTS).map(|_| Share { limit: AtomicU32::new(u32::MAX), ..Share::default() }).collect(),
            ports: AtomicU32::new(0),
            changing: (0..sets.min(STRIPES)).map(|_| AtomicBool::new(false)).collect(),
            expired: AtomicU64::new(0),
            statics: RwLock::default(),
            unplaced: AtomicU32::new(0),
            loops: LoopGuard::new(),
        }
    }

    /// The time in ticks from 1 on.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 / TICK + 1
    }

    /// How many addresses there is room for.
    fn capacity(&self) -> u32 {
        (self.sets.len() * WAYS) as u32
    }

    #[inline]
    fn index(&self, key: Key) -> usize {
        let product = u128::from(key.0 ^ self.secret[0]) * u128::from(self.secret[1] | 1);
        let folded = (product >> 64) as u64 ^ product as u64;
        // Once more: of addresses that count up, one fold alone leaves some sets empty for one secret in thirty.
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn entry(&self, key: Key) -> Option<(&Entry, Seen)> {
        self.sets[self.index(key)].iter().find_map(|entry| Some((entry, entry.read(key)?)))
    }

    /// A port joins, or has another limit now: the most addresses behind it, 0 for half of the table.
    pub(crate) fn set_limit(&self, port: u16, limit: u32) {
        let limit = if limit == 0 { (self.capacity() / 2).max(1) } else { limit };
        let share = &self.shares[usize::from(port)];
        share.limit.store(limit, Ordering::Relaxed);
        if !share.is_open.swap(true, Ordering::Relaxed) {
            self.ports.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A port leaves for good.
    pub(crate) fn close(&self, port: u16) {
        self.set_static(port, &BTreeSet::new());
        self.forget(port);
        if self.shares[usize::from(port)].is_open.swap(false, Ordering::Relaxed) {
            self.ports.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The port behind which an address lies, for a packet that came by the port `from`; `None` if
    /// that is not known, or not any more.
    #[inline]
    pub(crate) fn find(&self, key: Key, from: u16, now: u64) -> Option<u16> {
        let Some((entry, seen)) = self.entry(key) else { return self.find_unplaced(key) };
        if seen.age(now) > self.ageing && !seen.is_static() {
            return None;
        }
        // Nobody makes an address of his own last by asking for it himself.
        if !seen.is_asked(now) && seen.port() != from {
            let _ = entry.seen.compare_exchange(seen.0, seen.asked(now).0, Ordering::Release, Ordering::Relaxed);
        }
        Some(seen.port())
    }

    /// An address was seen as a source at a port.
    #[inline]
    pub(crate) fn learn(&self, key: Key, port: u16, now: u64) {
        match self.entry(key) {
            Some((_, seen)) if seen.port() == port && seen.age(now) < REFRESH => {}
            Some((entry, seen)) => self.refresh(entry, seen, port, now),
            None => self.insert(key, port, now),
        }
    }

    /// What was learned first wins while it is alive: an address goes to another port after it was
    /// silent at its own, and comes back as soon as it is heard where it was learned first.
    #[cold]
    fn refresh(&self, entry: &Entry, seen: Seen, port: u16, now: u64) {
        let age = seen.age(now);
        let next = if seen.is_static() {
            if seen.port() != port {
                if age <= HOLD {
                    self.loops.suspect(now);
                }
                return;
            }
            seen.at(now)
        } else if seen.port() == port {
            let crossed = now / self.ageing != now.saturating_sub(age) / self.ageing;
            // Disputes are forgotten one each ageing time; then it is at home where it is.
            match (crossed, seen.disputes()) {
                (false, _) => seen.at(now),
                (true, 0) => seen.at(now).with_home(port),
                (true, disputes) => seen.at(now).with_disputes(disputes - 1),
            }
        } else {
            if age <= HOLD {
                self.loops.suspect(now);
            }
            let is_free = age > self.ageing;
            if !is_free && seen.home() != port && age <= seen.hold() || self.is_full(port) {
                return;
            }
            if is_free { Seen::new(now, port) } else { seen.at(now).with_port(port).with_disputes(seen.disputes() + 1) }
        };
        // Another thread's news are as good.
        if entry.seen.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() && seen.port() != port {
            self.moved(Some(seen.port()), Some(port));
        }
    }

    /// An entry went from one port to another.
    fn moved(&self, from: Option<u16>, to: Option<u16>) {
        if let Some(from) = from {
            self.shares[usize::from(from)].held.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(to) = to {
            self.shares[usize::from(to)].held.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn held(&self, port: u16) -> u32 {
        self.shares[usize::from(port)].held.load(Ordering::Relaxed)
    }

    /// Has a port as many addresses as it may?
    fn is_full(&self, port: u16) -> bool {
        self.held(port) >= self.shares[usize::from(port)].limit.load(Ordering::Relaxed)
    }

    /// Puts an address that is not there into the table, unless another thread changes its set, or
    /// there is no room for it: then the next packet tries again.
    #[cold]
    fn insert(&self, key: Key, port: u16, now: u64) {
        let index = self.index(key);
        let Some(_alone) = self.try_change(index) else { return };
        if self.unplaced.load(Ordering::Acquire) != 0 {
            // Whoever writes may wait for this set: nobody waits for him here.
            let statics = match self.statics.try_read() {
                Ok(statics) => statics,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            if let Some(&at) = statics.get(&key.0) {
                if at != port {
                    self.loops.suspect(now);
                }
                return;
            }
        }
        let set = &self.sets[index];
        if set.iter().any(|entry| entry.read(key).is_some()) {
            return;
        }
        let room = set.iter().filter_map(|entry| Some((self.room(entry, port, now)?, entry)));
        let Some((_, entry)) = room.max_by_key(|(room, _)| *room) else { return };
        self.fill(entry, key.0, Seen::new(now, port));
    }

    /// Could an entry be given to a new address of this port, and how gladly?
    fn room(&self, entry: &Entry, port: u16, now: u64) -> Option<Room> {
        let is_full = self.is_full(port);
        if entry.key.load(Ordering::Relaxed) == 0 {
            return (!is_full).then_some(Room::Free);
        }
        let seen = Seen(entry.seen.load(Ordering::Relaxed));
        if seen.is_static() {
            return None;
        }
        let (holder, age, asked) = (seen.port(), seen.age(now), seen.was_asked_recently(now));
        let is_own = holder == port;
        if is_full && !is_own {
            return None;
        }
        if age > self.ageing {
            return Some(Room::Old);
        }
        let held = self.held(holder);
        let share = self.capacity() / self.ports.load(Ordering::Relaxed).max(1);
        // What was asked for stays, as long as its port has no more than its share of the table.
        let is_kept = asked && (is_own || held <= share) || !is_own && held <= self.held(port);
        (!is_kept).then_some(Room::Taken { held, unasked: !asked, age })
    }

    /// Gives an entry to an address, or to none (0). The caller changes the set alone.
    fn fill(&self, entry: &Entry, key: u64, seen: Seen) {
        let was_free = entry.key.swap(0, Ordering::AcqRel) == 0;
        fence(Ordering::Release);
        let before = Seen(entry.seen.swap(seen.0, Ordering::AcqRel));
        entry.key.store(key, Ordering::Release);
        // Static entries are no part of what a port has learned.
        let learned = |is_there: bool, seen: Seen| (is_there && !seen.is_static()).then(|| seen.port());
        self.moved(learned(!was_free, before), learned(key != 0, seen));
    }

    /// The right to change a set, unless somebody else has it.
    fn try_change(&self, index: usize) -> Option<Changing<'_>> {
        let changing = &self.changing[index & (self.changing.len() - 1)];
        let is_taken = changing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err();
        // Made only if it is had: it is given back when dropped.
        (!is_taken).then(|| Changing(changing))
    }

    /// The same, as soon as whoever has it is done, which is at once.
    fn change(&self, index: usize) -> Changing<'_> {
        loop {
            match self.try_change(index) {
                Some(alone) => return alone,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Frees the learned entries for which this holds; says how many. It waits for threads that
    /// change a set, which is over at once.
    fn free(&self, goes: impl Fn(Key, Seen) -> bool) -> usize {
        let mut freed = 0;
        for (index, set) in self.sets.iter().enumerate() {
            let goes = |entry: &&Entry| {
                let (key, seen) = (entry.key.load(Ordering::Relaxed), Seen(entry.seen.load(Ordering::Relaxed)));
                key != 0 && !seen.is_static() && goes(Key(key), seen)
            };
            if !set.iter().any(|entry| goes(&entry)) {
                continue;
            }
            let _alone = self.change(index);
            for entry in set.iter().filter(goes) {
                self.fill(entry, 0, Seen(0));
                freed += 1;
            }
        }
        freed
    }

    /// Forgets all addresses that were learned behind a port.
    pub(crate) fn forget(&self, port: u16) {
        self.free(|_, seen| seen.port() == port);
    }

    /// Forgets the learned addresses for which this holds; says how many.
    pub(crate) fn flush(&self, goes: impl Fn(Station, u16) -> bool) -> usize {
        self.free(|key, seen| key.station().is_some_and(|station| goes(station, seen.port())))
    }

    /// Forgets what is too old, so that it does not count for anybody; called often, it looks now and
    /// then.
    pub(crate) fn expire(&self, now: u64) {
        let expired = self.expired.load(Ordering::Relaxed);
        if now.saturating_sub(expired) >= self.ageing.clamp(4 * MIN_EXPIRE, 4 * MAX_EXPIRE) / 4
            && self.expired.compare_exchange(expired, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.free(|_, seen| seen.age(now) > self.ageing);
        }
    }

    /// How many addresses were learned behind a port.
    pub(crate) fn count(&self, port: u16) -> usize {
        let now = self.now();
        let behind = |entry: &&Entry| {
            let seen = Seen(entry.seen.load(Ordering::Relaxed));
            let is_learned = entry.key.load(Ordering::Relaxed) != 0 && !seen.is_static();
            is_learned && seen.port() == port && seen.age(now) <= self.ageing
        };
        self.sets.iter().flatten().filter(behind).count()
    }

    /// The port of a static entry that found no room in its set.
    #[cold]
    fn find_unplaced(&self, key: Key) -> Option<u16> {
        if self.unplaced.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.static_port(key)
    }

    /// The port of a static entry.
    pub(crate) fn static_port(&self, key: Key) -> Option<u16> {
        self.statics.read().unwrap_or_else(PoisonError::into_inner).get(&key.0).copied()
    }

    /// Makes these the static entries of a port, and no others. Entries of other ports with the
    /// same addresses become this port's.
    pub(crate) fn set_static(&self, port: u16, stations: &BTreeSet<Station>) {
        let mut statics = self.statics.write().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |key: u64, at: u16| at == port && !Key(key).station().is_some_and(|station| stations.contains(&station));
        let gone: Vec<u64> = statics.iter().filter(|&(&key, &at)| is_gone(key, at)).map(|(&key, _)| key).collect();
        for key in gone {
            statics.remove(&key);
            self.displace(Key(key));
        }
        for &station in stations {
            let key = Key::from(station);
            match statics.insert(key.0, port) {
                Some(before) if before == port => continue,
                Some(_) => self.displace(key),
                None => {}
            }
            self.place(key, port);
        }
    }

    /// Puts a static entry into its set, if there is room for one.
    fn place(&self, key: Key, port: u16) {
        let index = self.index(key);
        let set = &self.sets[index];
        let _alone = self.change(index);
        let seen = |entry: &Entry| Seen(entry.seen.load(Ordering::Relaxed));
        let own = set.iter().find(|entry| entry.key.load(Ordering::Relaxed) == key.0);
        let is_free = |entry: &Entry| entry.key.load(Ordering::Relaxed) == 0;
        if set.iter().filter(|entry| !is_free(entry) && seen(entry).is_static()).count() >= STATIC_WAYS {
            // What was learned would hide it.
            own.into_iter().for_each(|entry| self.fill(entry, 0, Seen(0)));
            self.unplaced.fetch_add(1, Ordering::Release);
            return;
        }
        let now = self.now();
        let learned = set.iter().filter(|entry| !is_free(entry) && !seen(entry).is_static());
        let oldest = || learned.max_by_key(|entry| seen(entry).age(now));
        if let Some(entry) = own.or_else(|| set.iter().find(|entry| is_free(entry))).or_else(oldest) {
            self.fill(entry, key.0, Seen::new(now, port).into_static());
        }
    }

    /// Takes a static entry out of its set again.
    fn displace(&self, key: Key) {
        let index = self.index(key);
        let _alone = self.change(index);
        match self.sets[index].iter().find(|entry| entry.key.load(Ordering::Relaxed) == key.0) {
            Some(entry) => self.fill(entry, 0, Seen(0)),
            None => {
                self.unplaced.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// What is known of the hardware addresses for which this holds, in no order.
    pub(crate) fn list(&self, wanted: impl Fn(Station, u16) -> bool) -> Vec<Known> {
        let now = self.now();
        let age = |seen: Seen| Duration::from_millis(seen.age(now) * TICK);
        let learned = self.sets.iter().flatten().filter_map(|entry| {
            let key = Key(entry.key.load(Ordering::Acquire));
            let seen = entry.read(key).filter(|seen| !seen.is_static() && seen.age(now) <= self.ageing)?;
            Some(Known { station: key.station()?, port: seen.port(), is_static: false, age: Some(age(seen)) })
        });
        let mut listed: Vec<Known> = learned.filter(|known| wanted(known.station, known.port)).collect();
        let statics = self.statics.read().unwrap_or_else(PoisonError::into_inner);
        listed.extend(statics.iter().filter_map(|(&key, &port)| {
            let age = self.entry(Key(key)).map(|(_, seen)| age(seen));
            let known = Known { station: Key(key).station()?, port, is_static: true, age };
            wanted(known.station, port).then_some(known)
        }));
        listed
    }

    /// What is known of a hardware address.
    pub(crate) fn look_up(&self, station: Station) -> Option<Known> {
        let (key, now) = (Key::from(station), self.now());
        let entry = self.entry(key).map(|(_, seen)| (seen.port(), Duration::from_millis(seen.age(now) * TICK)));
        match (self.static_port(key), entry) {
            (Some(port), entry) => Some(Known { station, port, is_static: true, age: entry.map(|(_, age)| age) }),
            (None, Some((port, age))) if age.as_millis() as u64 / TICK <= self.ageing => {
                Some(Known { station, port, is_static: false, age: Some(age) })
            }
            _ => None,
        }
    }
}

/// How gladly an entry is given to a new address, from the last to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    /// It is taken from a port that holds so many, if it was asked for recently last, and the oldest
    /// first.
    Taken { held: u32, unasked: bool, age: u64 },
    /// What is there is too old.
    Old,
    /// Nothing is there.
    Free,
}

/// The right to change a set, until it is dropped.
struct Changing<'a>(&'a AtomicBool);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Key = Key(1 << 60 | 0xa);

    /// Stations behind a port.
    fn behind(numbers: std::ops::Range<u16>, vlan: u16) -> BTreeSet<Station> {
        numbers.map(|number| Station { vlan, address: [2, 0, 0, 1, (number >> 8) as u8, number as u8] }).collect()
    }

    #[test]
    fn static_entries_neither_age_nor_move_nor_give_way() {
        let table = Table::new(64, Duration::from_secs(1));
        table.set_limit(1, 0);
        table.set_limit(2, 64);
        let stations = behind(0..1, 7);
        let station = *stations.first().expect("one");
        let key = Key::from(station);
        table.set_static(1, &stations);
        assert_eq!(table.find(key, OTHER, 1), Some(1), "nobody has heard it");
        for now in 1..20_000 {
            table.learn(key, 2, now);
            assert_eq!(table.find(key, OTHER, now), Some(1), "{now}");
            if now % 1_000 == 0 {
                flood(&table, 2, 500, now);
                table.expire(now);
            }
        }
        table.forget(1);
        table.flush(|_, _| true);
        assert_eq!(table.find(key, OTHER, 20_000), Some(1));
        assert_eq!((table.count(1), table.held(1), table.held(2)), (0, 0, 0), "it is not learned");
        // The same address in another VLAN is another station.
        let other = Station { vlan: 8, ..station };
        table.learn(other.into(), 2, 20_000);
        assert_eq!((table.find(other.into(), OTHER, 20_000), table.find(key, OTHER, 20_000)), (Some(2), Some(1)));
        // Without it, the address is learned as any other.
        table.set_static(1, &BTreeSet::new());
        assert_eq!((table.find(key, OTHER, 20_000), table.look_up(station)), (None, None));
        table.learn(key, 2, 20_000);
        assert_eq!((table.find(key, OTHER, 20_000), table.held(2)), (Some(2), 2));
    }

    #[test]
    fn a_static_entry_takes_the_place_of_a_learned_one_and_of_another_port() {
        let table = Table::new(64, Duration::from_secs(300));
        let stations = behind(0..1, 0);
        let key = Key::from(*stations.first().expect("one"));
        table.learn(key, 2, 1);
        assert_eq!(table.held(2), 1);
        table.set_static(1, &stations);
        assert_eq!((table.find(key, OTHER, 2), table.held(2), table.held(1)), (Some(1), 0, 0));
        table.set_static(3, &stations);
        table.set_static(1, &BTreeSet::new());
        assert_eq!(table.find(key, OTHER, 2), Some(3));
        table.close(3);
        assert_eq!(table.find(key, OTHER, 2), None, "it goes with its port");
    }

    #[test]
    fn a_static_address_at_two_ports_is_a_hint_of_a_loop() {
        for (count, placed) in [(1, 1), (100, 32)] {
            let table = Table::new(64, Duration::from_secs(300));
            let stations = behind(0..count, 0);
            table.set_static(1, &stations);
            let unplaced = table.unplaced.load(Ordering::Relaxed);
            assert!(u32::from(count) - unplaced <= placed, "{unplaced} of {count}");
            for &station in &stations {
                table.learn(station.into(), 1, 1_000);
            }
            assert!(!table.loops.is_suspected(1_000));
            table.learn((*stations.last().expect("some")).into(), 2, 1_001);
            assert!(table.loops.is_suspected(1_001));
        }
    }

    #[test]
    fn static_entries_that_find_no_room_hold_all_the_same() {
        let table = Table::new(WAYS, Duration::from_secs(300));
        table.set_limit(2, WAYS as u32);
        let stations = behind(0..50, 0);
        stations.iter().for_each(|&station| table.learn(station.into(), 2, 1));
        table.set_static(1, &stations);
        assert_eq!(table.unplaced.load(Ordering::Relaxed), 50 - STATIC_WAYS as u32);
        for &station in &stations {
            table.learn(station.into(), 2, 2);
            assert_eq!(table.find(station.into(), OTHER, 2), Some(1), "{station}");
            assert_eq!(table.look_up(station).map(|known| (known.port, known.is_static)), Some((1, true)));
        }
        flood(&table, 2, 100, 3);
        assert_eq!((table.count(2), table.list(|_, _| true).len()), (WAYS - STATIC_WAYS, 50 + WAYS - STATIC_WAYS));
        assert_eq!(table.flush(|_, port| port == 2), WAYS - STATIC_WAYS);
        // Half of them go.
        table.set_static(1, &behind(0..25, 0));
        let found = stations.iter().filter(|&&station| table.find(station.into(), OTHER, 4) == Some(1)).count();
        assert_eq!((found, table.list(|_, _| true).len()), (25, 25));
        table.set_static(1, &BTreeSet::new());
        assert_eq!((table.unplaced.load(Ordering::Relaxed), table.list(|_, _| true)), (0, Vec::new()));
    }

    #[test]
    fn static_entries_hold_while_threads_learn_and_others_come_and_go() {
        let table = Table::new(16, Duration::from_secs(300));
        (0..4).for_each(|port| table.set_limit(port, 16));
        let kept = behind(0..20, 0);
        table.set_static(0, &kept);
        std::thread::scope(|scope| {
            for port in 1..3u16 {
                let (table, kept) = (&table, &kept);
                scope.spawn(move || {
                    for round in 0..300 {
                        for &station in kept {
                            table.learn(station.into(), port, 1 + round);
                            assert_eq!(table.find(station.into(), port, 1 + round), Some(0));
                        }
                        flood(table, port, 40, 1 + round);
                    }
                });
            }
            for round in 0..300 {
                table.set_static(3, &behind(100..100 + round % 30, 0));
                table.flush(|_, port| port == 1);
            }
        });
        table.set_static(3, &BTreeSet::new());
        table.set_static(0, &BTreeSet::new());
        table.flush(|_, _| true);
        assert_eq!((0..4).map(|port| table.held(port)).collect::<Vec<_>>(), [0; 4]);
        assert_eq!(table.unplaced.load(Ordering::Relaxed), 0);
        assert!(table.sets.iter().flatten().all(|entry| entry.key.load(Ordering::Relaxed) == 0));
    }

    /// A port that nobody is behind.
    const OTHER: u16 = 1000;

    fn table() -> Table {
        Table::new(64, Duration::from_secs(1))
    }

    #[test]
    fn an_address_is_found_until_it_is_too_old() {
        let table = table();
        assert_eq!(table.find(A, OTHER, 1), None);
        table.learn(A, 3, 1);
        assert_eq!(table.find(A, OTHER, 101), Some(3));
        assert_eq!(table.find(A, OTHER, 102), None, "a second is 100 ticks");
        table.learn(A, 3, 50);
        assert_eq!(table.find(A, OTHER, 149), Some(3));
        table.forget(3);
        assert_eq!(table.find(A, OTHER, 149), None);
    }

    #[test]
    fn vlans_are_worlds_apart() {
        let address = [2, 0, 0, 0, 0, 1];
        let (plain, tagged) = (Key::ethernet(address, 0), Key::ethernet(address, 5));
        assert_ne!(plain, tagged);
        let table = table();
        table.learn(plain, 1, 1);
        table.learn(tagged, 2, 1);
        assert_eq!((table.find(plain, OTHER, 2), table.find(tagged, OTHER, 2)), (Some(1), Some(2)));
    }

    #[test]
    fn a_host_that_moves_is_followed() {
        let table = Table::new(64, Duration::from_secs(300));
        table.learn(A, 1, 1);
        table.learn(A, 2, 50);
        assert_eq!(table.find(A, OTHER, 50), Some(1), "it has just been heard there");
        table.learn(A, 2, 102);
        assert_eq!(table.find(A, OTHER, 102), Some(2));
        table.learn(A, 1, 110);
        assert_eq!(table.find(A, OTHER, 110), Some(1), "back home");
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
            assert_eq!(table.find(A, OTHER, now), Some(1), "{now}");
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
                assert_eq!(table.find(A, OTHER, now), Some(1), "its first word brings it back: {now}");
                rounds += 1;
            }
            table.learn(A, 2, now);
            stolen += u64::from(table.find(A, OTHER, now) == Some(2));
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
        assert_eq!(table.find(A, OTHER, 4_000), Some(2));
    }

    #[test]
    fn a_full_set_gives_up_what_was_seen_longest_ago() {
        let table = Table::new(WAYS, Duration::from_secs(1000));
        let keys: Vec<_> = (0..100).map(|number| Key::ethernet([2, 0, 0, 0, 0, number], 0)).collect();
        for (tick, key) in keys.iter().enumerate() {
            table.learn(*key, 7, 1 + tick as u64);
        }
        assert_eq!(table.count(7), WAYS);
        assert!(keys[96..].iter().all(|key| table.find(*key, OTHER, 100) == Some(7)));
    }

    /// Addresses that somebody makes up at a port.
    fn flood(table: &Table, port: u16, count: u32, now: u64) {
        for number in 0..count {
            let [a, b, c, d] = number.to_be_bytes();
            table.learn(Key::ethernet([6, port as u8, a, b, c, d], 0), port, now);
        }
    }

    fn stations(port: u16, count: u8) -> Vec<Key> {
        (0..count).map(|number| Key::ethernet([2, 0, 0, 0, port as u8, number], 0)).collect()
    }

    #[test]
    fn a_port_has_no_more_addresses_than_its_limit() {
        let table = Table::new(1024, Duration::from_secs(10));
        table.set_limit(1, 100);
        table.set_limit(2, 0);
        flood(&table, 1, 10_000, 1);
        assert_eq!((table.count(1), table.held(1)), (100, 100));
        flood(&table, 2, 10_000, 1);
        assert_eq!((table.count(2), table.held(2)), (512, 512), "half of the table");
        table.set_limit(1, 200);
        flood(&table, 1, 10_000, 1);
        assert_eq!(table.held(1), 200);
        // What is too old leaves room for others.
        table.expire(1_500);
        assert_eq!((table.held(1), table.held(2)), (0, 0));
        flood(&table, 2, 100, 1_500);
        table.close(2);
        assert_eq!((table.held(2), table.ports.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn the_port_that_holds_most_loses_first() {
        let table = Table::new(8192, Duration::from_secs(300));
        (0..3).for_each(|port| table.set_limit(port, 8192));
        flood(&table, 0, 100_000, 1);
        assert_eq!(table.held(0), 8192);
        // Hosts that come later find room, and keep it.
        let hosts: Vec<Vec<Key>> = (1..3).map(|port| stations(port, 50)).collect();
        for (port, keys) in (1..).zip(&hosts) {
            keys.iter().for_each(|&key| table.learn(key, port, 2));
        }
        flood(&table, 0, 200_000, 3);
        for (port, keys) in (1..).zip(&hosts) {
            let known = keys.iter().filter(|&&key| table.find(key, OTHER, 4) == Some(port)).count();
            assert_eq!(known, 50, "port {port}");
        }
        assert_eq!((table.held(0), table.count(0)), (8092, 8092));
    }

    #[test]
    fn addresses_that_count_up_fill_all_sets_whatever_the_secret() {
        for _ in 0..100 {
            let table = Table::new(1024, Duration::from_secs(10));
            let mut addresses = vec![0; table.sets.len()];
            for number in 0..12_800u32 {
                let [a, b, c, d] = number.to_be_bytes();
                addresses[table.index(Key::ethernet([6, 0, a, b, c, d], 0))] += 1;
            }
            // 50 in each on average; of random numbers one in 10^9 sets has fewer than 15 or more than 105.
            assert!(addresses.iter().all(|count| (15..=105).contains(count)), "{addresses:?}");
        }
    }

    #[test]
    fn what_was_asked_for_stays_if_its_port_has_no_more_than_its_share() {
        let table = Table::new(WAYS, Duration::from_secs(3000));
        (0..4).for_each(|port| table.set_limit(port, WAYS as u32));
        let [lonely, wanted] = stations(1, 2)[..] else { panic!("two") };
        table.learn(lonely, 1, 1);
        table.learn(wanted, 1, 2);
        assert_eq!(table.find(lonely, 1, 3), Some(1), "asked for by its own port, which is not counted");
        assert_eq!(table.find(wanted, 2, 3), Some(1));
        flood(&table, 2, 2, 4);
        // The share of each port is one address, and port 1 has two: the one that nobody else has asked for goes.
        flood(&table, 3, 1, 5);
        assert_eq!((table.find(lonely, 1, 6), table.find(wanted, 1, 6)), (None, Some(1)));
        flood(&table, 3, 100, 7);
        assert_eq!(table.find(wanted, 1, 8), Some(1));
        // A minute later it is as any other.
        flood(&table, 1, 100, 8_000);
        assert_eq!(table.find(wanted, 1, 8_000), None);
    }

    #[test]
    fn threads_that_learn_at_once_count_right() {
        let table = Table::new(256, Duration::from_secs(10));
        (0..4).for_each(|port| table.set_limit(port, 256));
        std::thread::scope(|scope| {
            for port in 0..4u16 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..50 {
                        flood(table, port, 500, 1 + round * 7);
                        // The same addresses, at another port each time.
                        stations(9, 200).iter().for_each(|&key| table.learn(key, port, 1 + round * 1_200));
                        if round % 10 == 9 {
                            table.forget(port);
                        }
                    }
                });
            }
        });
        let held: Vec<_> = (0..4).map(|port| table.held(port)).collect();
        let occupied = |port| {
            let entries = table.sets.iter().flatten().filter(|entry| entry.key.load(Ordering::Relaxed) != 0);
            entries.filter(|entry| Seen(entry.seen.load(Ordering::Relaxed)).port() == port).count() as u32
        };
        assert_eq!(held, (0..4).map(occupied).collect::<Vec<_>>());
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
                        if let Some(port) = table.find(key, OTHER, 1 + round / 100) {
                            assert_eq!(port, number as u16);
                        }
                    }
                });
            }
        });
    }
}
