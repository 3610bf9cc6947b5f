//! The addresses that the bridge has learned, and behind which port each was seen.
//!
//! A fixed number of sets of four entries: memory and work per packet do not depend on how many
//! addresses there are. Threads look up and refresh entries without a lock, and none waits to learn
//! an address: if another changes the set, the next packet from there will do.
//!
//! Ports share the table. A port has at most as many addresses as its limit, and where there is no
//! room the port that holds most loses first, so that nobody gets the traffic of others flooded by
//! making up addresses.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::{BTreeSet, TryReserveError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use crate::fdb::Station;
use crate::frame::AddressKey;
use crate::loops::LoopGuard;
use crate::settings::MAX_ADDRESSES;

mod entry;
mod shares;
mod statics;

use entry::{Entry, HOLD, MOST_AGE, Seen, TICK};
use shares::Shares;
pub(crate) use statics::most_static;
use statics::{BeingChanged, Statics};

/// Entries of a set.
const WAYS: usize = 4;

/// How stale an entry's time may be before it is written again, in ticks: a line that all threads
/// read should seldom be written.
const REFRESH: u64 = 10;

/// Old entries are freed each quarter of the ageing time, but at least and at most so many ticks
/// apart: a second and a minute.
const MIN_EXPIRE: u64 = 100;
const MAX_EXPIRE: u64 = 6000;

/// The most sets that can be changed at the same time.
const STRIPES: usize = 1024;

/// The sets of a table of at least `size` entries.
fn sets(size: usize) -> usize {
    size.clamp(WAYS, MAX_ADDRESSES as usize).div_ceil(WAYS).next_power_of_two()
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

/// Where a packet for an address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    /// The port behind which the address lies.
    pub(crate) port: u16,
    /// Another port behind which it may lie instead: it was seen at both.
    pub(crate) other: Option<u16>,
    /// The address was seen at two ports, of which one may be the one that the packet came by.
    pub(crate) is_disputed: bool,
}

/// The shortest time between two lines of the log about disputed addresses, in ticks: whoever
/// chooses the traffic must not fill the log.
const WARN_INTERVAL: u64 = 100;

/// The table of addresses.
#[derive(Debug)]
pub(crate) struct Table {
    sets: Box<[[Entry; WAYS]]>,
    /// Random: who chooses the addresses must not choose the sets.
    secret: [u64; 2],
    ageing: u64,
    start: Instant,
    /// What each port has of it.
    shares: Shares,
    /// Which sets are being changed, by the lower bits of their numbers.
    changing: Box<[AtomicBool]>,
    /// When old entries were freed last.
    expired: AtomicU64,
    /// Taken before the right to change a set.
    statics: Statics,
    /// Hears of addresses that are seen at two ports.
    pub(crate) loops: LoopGuard,
    /// When the log last spoke of a disputed address; 0: never.
    warned: AtomicU64,
}

impl Table {
    /// A table of at least `size` entries (rounded up to a power of two, at most 2^20), whose
    /// addresses are forgotten after `ageing`.
    ///
    /// # Errors
    /// There is no memory for it: 16 bytes an entry.
    pub(crate) fn try_new(size: usize, ageing: Duration) -> Result<Self, TryReserveError> {
        let random = || RandomState::new().build_hasher().finish();
        let sets = sets(size);
        let mut entries = Vec::new();
        entries.try_reserve_exact(sets)?;
        entries.resize_with(sets, Default::default);
        Ok(Table {
            sets: entries.into_boxed_slice(),
            secret: [random(), random()],
            ageing: (ageing.as_millis() / u128::from(TICK)).clamp(1, u128::from(MOST_AGE)) as u64,
            start: Instant::now(),
            shares: Shares::new(),
            changing: (0..sets.min(STRIPES)).map(|_| AtomicBool::new(false)).collect(),
            expired: AtomicU64::new(0),
            statics: Statics::default(),
            loops: LoopGuard::new(),
            warned: AtomicU64::new(0),
        })
    }

    /// The same, of a size that is known to be small: without memory for it, the process ends.
    pub(crate) fn new(size: usize, ageing: Duration) -> Self {
        Table::try_new(size, ageing)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[Entry; WAYS]>()))
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
    fn index(&self, key: AddressKey) -> usize {
        let product = u128::from(key.0 ^ self.secret[0]) * u128::from(self.secret[1] | 1);
        let folded = (product >> 64) as u64 ^ product as u64;
        // Once more: of addresses that count up, one fold alone leaves some sets empty for one
        // secret in thirty.
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn entry(&self, key: AddressKey) -> Option<(&Entry, Seen)> {
        self.sets[self.index(key)].iter().find_map(|entry| Some((entry, entry.read(key)?)))
    }

    /// A port joins, or has another limit now: the most addresses behind it, 0 for half of the
    /// table.
    pub(crate) fn set_limit(&self, port: u16, limit: u32) {
        let limit = if limit == 0 { (self.capacity() / 2).max(1) } else { limit };
        self.shares.open(port, limit);
    }

    /// A port leaves for good.
    pub(crate) fn close(&self, port: u16) {
        self.set_static(port, &BTreeSet::new());
        self.forget(port);
        self.shares.close(port);
    }

    /// Returns where a packet for an address goes that came by the port `from`; `None` if it is not
    /// known where the address lies, or not any more.
    ///
    /// An address that went to another port than the one where it was learned first is disputed:
    /// its host has moved, or somebody else sends with it. It then lies behind both ports, until it
    /// is heard at the first again, or has been at the other for one to two ageing times.
    #[inline]
    pub(crate) fn find(&self, key: AddressKey, from: u16, now: u64) -> Option<Located> {
        let undisputed = |port| Located { port, other: None, is_disputed: false };
        let Some((entry, seen)) = self.entry(key) else {
            return self.statics.find_unplaced(key).map(undisputed);
        };
        if seen.age(now) > self.ageing && !seen.is_static() {
            return None;
        }
        // Nobody makes an address of his own last by asking for it himself.
        if !seen.is_asked(now) && seen.port() != from {
            let _ = entry.seen.compare_exchange(
                seen.0,
                seen.asked(now).0,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
        let (port, home) = (seen.port(), seen.home());
        if port == home {
            return Some(undisputed(port));
        }
        // Nothing goes back by the port that it came by.
        let (port, other) = if port == from { (home, from) } else { (port, home) };
        Some(Located { port, other: (other != from).then_some(other), is_disputed: true })
    }

    /// Returns whether the log may speak of a disputed address: once a second.
    pub(crate) fn may_warn(&self, now: u64) -> bool {
        let warned = self.warned.load(Ordering::Relaxed);
        (warned == 0 || now.saturating_sub(warned) >= WARN_INTERVAL)
            && self
                .warned
                .compare_exchange(warned, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// An address was seen as a source at a port.
    #[inline]
    pub(crate) fn learn(&self, key: AddressKey, port: u16, now: u64) {
        match self.entry(key) {
            Some((_, seen)) if seen.port() == port && seen.age(now) < REFRESH => {}
            Some((entry, seen)) => self.refresh(entry, seen, port, now),
            None => self.insert(key, port, now),
        }
    }

    /// What was learned first wins while it is alive: an address goes to another port after it was
    /// silent at its own, is [disputed](Self::find) then, and comes back as soon as it is heard
    /// where it was learned first.
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
            if !is_free && seen.home() != port && age <= seen.hold() || self.shares.is_full(port) {
                return;
            }
            if is_free {
                Seen::new(now, port)
            } else {
                seen.at(now).with_port(port).with_disputes(seen.disputes() + 1)
            }
        };
        // Another thread's news are as good.
        if entry.seen.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            && seen.port() != port
        {
            self.shares.moved(Some(seen.port()), Some(port));
        }
    }

    /// Puts an address that is not there into the table, unless another thread changes its set, or
    /// there is no room for it: then the next packet tries again.
    #[cold]
    fn insert(&self, key: AddressKey, port: u16, now: u64) {
        let index = self.index(key);
        let Some(_alone) = self.try_change(index) else { return };
        match self.statics.try_find_unplaced(key) {
            Ok(None) => {}
            Ok(Some(at)) if at == port => return,
            Ok(Some(_)) => return self.loops.suspect(now),
            // Whoever changes them may wait for this set: nobody waits for him here.
            Err(BeingChanged) => return,
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
        let is_full = self.shares.is_full(port);
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
        let held = self.shares.held(holder);
        let share = self.capacity() / self.shares.ports().max(1);
        // What was asked for stays, as long as its port has no more than its share of the table.
        let is_kept =
            asked && (is_own || held <= share) || !is_own && held <= self.shares.held(port);
        (!is_kept).then_some(Room::Taken { held, unasked: !asked, age })
    }

    /// Gives an entry to an address, or to none (0). The caller changes the set alone.
    fn fill(&self, entry: &Entry, key: u64, seen: Seen) {
        let was_free = entry.key.swap(0, Ordering::AcqRel) == 0;
        fence(Ordering::Release);
        let before = Seen(entry.seen.swap(seen.0, Ordering::AcqRel));
        entry.key.store(key, Ordering::Release);
        // Static entries are no part of what a port has learned.
        let learned =
            |is_there: bool, seen: Seen| (is_there && !seen.is_static()).then(|| seen.port());
        self.shares.moved(learned(!was_free, before), learned(key != 0, seen));
    }

    /// The right to change a set, unless somebody else has it.
    fn try_change(&self, index: usize) -> Option<Changing<'_>> {
        let changing = &self.changing[index & (self.changing.len() - 1)];
        let is_taken =
            changing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err();
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
    fn free(&self, goes: impl Fn(AddressKey, Seen) -> bool) -> usize {
        let mut freed = 0;
        for (index, set) in self.sets.iter().enumerate() {
            let goes = |entry: &&Entry| {
                let (key, seen) =
                    (entry.key.load(Ordering::Relaxed), Seen(entry.seen.load(Ordering::Relaxed)));
                key != 0 && !seen.is_static() && goes(AddressKey(key), seen)
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
        // An address that has left the port is at home where it is now.
        for entry in self.sets.iter().flatten() {
            let settled = |seen| {
                Some(Seen(seen))
                    .filter(|seen| seen.home() == port && seen.port() != port)
                    .map(|seen| seen.with_home(seen.port()).0)
            };
            let _ = entry.seen.fetch_update(Ordering::AcqRel, Ordering::Relaxed, settled);
        }
    }

    /// Forgets the learned addresses for which this holds; says how many.
    pub(crate) fn flush(&self, goes: impl Fn(Station, u16) -> bool) -> usize {
        self.free(|key, seen| key.station().is_some_and(|station| goes(station, seen.port())))
    }

    /// Forgets what is too old, so that it does not count for anybody; called often, it looks now
    /// and then.
    pub(crate) fn expire(&self, now: u64) {
        let expired = self.expired.load(Ordering::Relaxed);
        if now.saturating_sub(expired) >= self.ageing.clamp(4 * MIN_EXPIRE, 4 * MAX_EXPIRE) / 4
            && self
                .expired
                .compare_exchange(expired, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
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

    /// What is known of the hardware addresses for which this holds, in no order.
    pub(crate) fn list(&self, wanted: impl Fn(Station, u16) -> bool) -> Vec<Known> {
        let now = self.now();
        let age = |seen: Seen| Duration::from_millis(seen.age(now) * TICK);
        let learned = self.sets.iter().flatten().filter_map(|entry| {
            let key = AddressKey(entry.key.load(Ordering::Acquire));
            let seen =
                entry.read(key).filter(|seen| !seen.is_static() && seen.age(now) <= self.ageing)?;
            Some(Known {
                station: key.station()?,
                port: seen.port(),
                is_static: false,
                age: Some(age(seen)),
            })
        });
        let mut listed: Vec<Known> =
            learned.filter(|known| wanted(known.station, known.port)).collect();
        let statics = self.statics.all();
        listed.extend(statics.iter().filter_map(|(&key, &port)| {
            let age = self.entry(AddressKey(key)).map(|(_, seen)| age(seen));
            let known = Known { station: AddressKey(key).station()?, port, is_static: true, age };
            wanted(known.station, port).then_some(known)
        }));
        listed
    }

    /// What is known of a hardware address.
    pub(crate) fn look_up(&self, station: Station) -> Option<Known> {
        let (key, now) = (AddressKey::from(station), self.now());
        let entry = self
            .entry(key)
            .map(|(_, seen)| (seen.port(), Duration::from_millis(seen.age(now) * TICK)));
        match (self.static_port(key), entry) {
            (Some(port), entry) => {
                Some(Known { station, port, is_static: true, age: entry.map(|(_, age)| age) })
            }
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
    /// It is taken from a port that holds so many, if it was asked for recently last, and the
    /// oldest first.
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
mod tests;
