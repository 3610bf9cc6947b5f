//! The address table of a bridge: learned and static addresses, each with its port.
//!
//! The table is a hash table with a fixed number of sets of four entries, so memory and work per
//! packet do not depend on the number of addresses. Threads look up and refresh entries without a
//! lock. No thread waits to learn an address: if another thread changes the set, a later packet
//! adds the address.
//!
//! All ports share the table. Each has a maximum number of addresses. When a set is full, the port
//! with the most addresses loses one first, so that no port can displace the others' addresses by
//! inventing some.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::{BTreeSet, TryReserveError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use superpacket_port::KernelPath;

use crate::settings::MAX_ADDRESSES;
use crate::switch::fdb::Station;
use crate::switch::frame::AddressKey;
use crate::switch::loops::LoopGuard;

mod entry;
mod shares;
mod statics;

use entry::{AddressEntry, EntryState, HOLD, MAX_AGE, TICK};
use shares::Shares;
pub(crate) use statics::most_static;
use statics::{Statics, StaticsLocked};

/// Entries per set of the hash table.
const WAYS: usize = 4;

/// Age in ticks at which the time in an entry is written again. All threads read the entry's cache
/// line, so it should be written rarely.
const REFRESH: u64 = 10;

/// Minimum interval in ticks between scans for expired entries: one second. Otherwise the interval
/// is a quarter of the ageing time.
const MIN_EXPIRE: u64 = 100;
/// Maximum interval in ticks between scans for expired entries: one minute.
const MAX_EXPIRE: u64 = 6000;

/// Number of locks for the sets, and so the maximum number of sets that can be changed at the same
/// time. Each lock protects many sets.
const STRIPES: usize = 1024;

/// Returns the number of sets in a table for at least `size` addresses.
fn sets(size: usize) -> usize {
    size.clamp(WAYS, MAX_ADDRESSES as usize).div_ceil(WAYS).next_power_of_two()
}

/// An entry of the table with a hardware address, as it is shown to users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressInfo {
    pub(crate) station: Station,
    pub(crate) port: u16,
    pub(crate) is_static: bool,
    /// Time since the port last received a packet from the address. For a static entry, time since
    /// that or since the entry was added. `None` if that is not recorded.
    pub(crate) age: Option<Duration>,
}

/// The port, or the two ports, behind which an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    /// The port to which a packet for the address is sent.
    pub(crate) port: u16,
    /// A second port to which the packet is sent too, because the address was seen at both.
    pub(crate) other: Option<u16>,
    /// Whether the address was seen at two ports. One of them may be the port that received the
    /// packet, to which it is not sent.
    pub(crate) is_disputed: bool,
}

/// Minimum interval between log messages about disputed addresses, in ticks, so that traffic cannot
/// fill the log.
const WARN_INTERVAL: u64 = 100;

/// The address table of a bridge.
#[derive(Debug)]
pub(crate) struct AddressTable {
    sets: Box<[[AddressEntry; WAYS]]>,
    /// Random key of the hash that selects a set, so that a sender cannot choose addresses that all
    /// fall into one set.
    secret: [u64; 2],
    ageing: u64,
    start: Instant,
    /// For each port, how many addresses it has in the table, and how many it may have.
    shares: Shares,
    /// Locks of the sets; the lower bits of a set's number select its lock.
    changing: Box<[AtomicBool]>,
    /// Time of the last scan for expired entries, in ticks.
    last_scan: AtomicU64,
    /// The static entries. A thread that locks both them and a set must lock them first.
    statics: Statics,
    /// The loop detector, which is told of each address that is seen at two ports.
    pub(crate) loops: LoopGuard,
    /// When an address seen at two ports was last logged; 0 for never.
    last_warning: AtomicU64,
    /// The forwarding in the kernel, which must forget each station whose entry changes.
    kernel: OnceLock<Arc<KernelPath>>,
}

impl AddressTable {
    /// Returns a table of at least `size` entries (rounded up to a power of two, at most 2^20),
    /// whose addresses expire after `ageing`.
    ///
    /// # Errors
    /// There is not enough memory: 16 bytes per entry.
    pub(crate) fn try_new(size: usize, ageing: Duration) -> Result<Self, TryReserveError> {
        let random = || RandomState::new().build_hasher().finish();
        let sets = sets(size);
        let mut entries = Vec::new();
        entries.try_reserve_exact(sets)?;
        entries.resize_with(sets, Default::default);
        Ok(AddressTable {
            sets: entries.into_boxed_slice(),
            secret: [random(), random()],
            ageing: (ageing.as_millis() / u128::from(TICK)).clamp(1, u128::from(MAX_AGE)) as u64,
            start: Instant::now(),
            shares: Shares::new(),
            changing: (0..sets.min(STRIPES)).map(|_| AtomicBool::new(false)).collect(),
            last_scan: AtomicU64::new(0),
            statics: Statics::default(),
            loops: LoopGuard::new(),
            last_warning: AtomicU64::new(0),
            kernel: OnceLock::new(),
        })
    }

    /// Returns a table for a size that is known to be small. If there is no memory, the process is
    /// aborted.
    pub(crate) fn new(size: usize, ageing: Duration) -> Self {
        AddressTable::try_new(size, ageing)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[AddressEntry; WAYS]>()))
    }

    /// Returns the time in ticks since the table was created, from 1 on.
    pub(crate) fn now(&self) -> u64 {
        self.start.elapsed().as_millis() as u64 / TICK + 1
    }

    /// Returns the number of entries.
    fn capacity(&self) -> u32 {
        (self.sets.len() * WAYS) as u32
    }

    #[inline]
    fn index(&self, key: AddressKey) -> usize {
        let product = u128::from(key.0 ^ self.secret[0]) * u128::from(self.secret[1] | 1);
        let folded = (product >> 64) as u64 ^ product as u64;
        // The value is multiplied twice: with consecutive addresses, a single multiplication leaves
        // sets empty for one key in thirty.
        (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.sets.len() - 1)
    }

    #[inline]
    fn entry(&self, key: AddressKey) -> Option<(&AddressEntry, EntryState)> {
        self.sets[self.index(key)].iter().find_map(|entry| Some((entry, entry.read(key)?)))
    }

    /// Adds a port, or changes the maximum number of addresses behind it; 0 means half of the
    /// table.
    pub(crate) fn set_limit(&self, port: u16, limit: u32) {
        let limit = if limit == 0 { (self.capacity() / 2).max(1) } else { limit };
        self.shares.open(port, limit);
    }

    /// Removes a port and its addresses, because the port has left the bridge.
    pub(crate) fn close(&self, port: u16) {
        self.set_static(port, &BTreeSet::new());
        self.forget(port);
        self.shares.close(port);
    }

    /// Returns the port or ports to which a packet for an address is sent, if port `from` received
    /// it. `None` if the address is unknown or has expired.
    ///
    /// An address that moved from the port where it was learned first is disputed: the host has
    /// moved, or another host uses its address. It then counts as behind both ports. The dispute
    /// ends when the address is seen at the first port again, or after one to two ageing times at
    /// the other.
    #[inline]
    pub(crate) fn find(&self, key: AddressKey, from: u16, now: u64) -> Option<Located> {
        let undisputed = |port| Located { port, other: None, is_disputed: false };
        let Some((entry, seen)) = self.entry(key) else {
            return self.statics.find_unplaced(key).map(undisputed);
        };
        if seen.age(now) > self.ageing && !seen.is_static() {
            return None;
        }
        // Packets from the port of the address itself do not count as a use of its entry.
        if !seen.is_used_at(now) && seen.port() != from {
            let _ = entry.seen.compare_exchange(
                seen.0,
                seen.used_at(now).0,
                Ordering::Release,
                Ordering::Relaxed,
            );
        }
        let (port, home) = (seen.port(), seen.home());
        if port == home {
            return Some(undisputed(port));
        }
        // A packet is never sent back to the port that received it.
        let (port, other) = if port == from { (home, from) } else { (port, home) };
        Some(Located { port, other: (other != from).then_some(other), is_disputed: true })
    }

    /// Sets the forwarding in the kernel, which from now on forgets each station whose entry
    /// changes.
    pub(crate) fn set_kernel_path(&self, path: &Arc<KernelPath>) {
        let _ = self.kernel.set(path.clone());
    }

    fn revoke(&self, key: u64) {
        if let Some(path) = self.kernel.get() {
            path.revoke(key);
        }
    }

    /// Returns the only port behind which an address is; `None` if it is unknown, expired or
    /// disputed.
    pub(crate) fn settled_port(&self, key: AddressKey, now: u64) -> Option<u16> {
        let (_, seen) = self.entry(key)?;
        let is_known = seen.is_static() || seen.age(now) <= self.ageing;
        (is_known && seen.port() == seen.home()).then(|| seen.port())
    }

    /// Returns the port of an address's entry, which may be disputed or expired.
    pub(crate) fn port_of(&self, key: AddressKey) -> Option<u16> {
        self.entry(key).map(|(_, seen)| seen.port())
    }

    /// Returns the time, in ticks, that was `ago` before `now`.
    pub(crate) fn ticks_ago(&self, now: u64, ago: Duration) -> u64 {
        now.saturating_sub(ago.as_millis() as u64 / TICK).max(1)
    }

    /// Returns whether an address seen at two ports may be logged now, at most once per second. If
    /// so, records the time.
    pub(crate) fn may_warn(&self, now: u64) -> bool {
        let warned = self.last_warning.load(Ordering::Relaxed);
        (warned == 0 || now.saturating_sub(warned) >= WARN_INTERVAL)
            && self
                .last_warning
                .compare_exchange(warned, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Records that a port received a packet from an address.
    #[inline]
    pub(crate) fn learn(&self, key: AddressKey, port: u16, now: u64) {
        match self.entry(key) {
            Some((_, seen)) if seen.port() == port && seen.age(now) < REFRESH => {}
            Some((entry, seen)) => self.refresh(entry, seen, port, now),
            None => self.insert(key, port, now),
        }
    }

    /// Updates an entry whose address was seen at a port. The port where the address was learned
    /// first keeps it while the address is seen there. The address moves to another port only after
    /// it has not been seen for some time; it is then [disputed](Self::find), and returns as soon
    /// as it is seen at the first port.
    #[cold]
    fn refresh(&self, entry: &AddressEntry, seen: EntryState, port: u16, now: u64) {
        let age = self.silence(entry, seen, port, now);
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
            // One dispute is forgotten per ageing time. When none is left, the present port becomes
            // the home port of the address.
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
                EntryState::new(now, port)
            } else {
                seen.at(now).with_port(port).with_disputes(seen.disputes() + 1)
            }
        };
        // If another thread has changed the entry meanwhile, that change is as good.
        if entry.seen.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            && seen.port() != port
        {
            self.shares.moved(Some(seen.port()), Some(port));
            self.revoke(entry.key.load(Ordering::Acquire));
        }
    }

    /// Returns the ticks since an entry's address was last seen at the entry's port. If the address
    /// is now seen at another port, this includes frames that the kernel forwarded.
    fn silence(&self, entry: &AddressEntry, seen: EntryState, port: u16, now: u64) -> u64 {
        let age = seen.age(now);
        let kernel = self.kernel.get().filter(|_| seen.port() != port);
        let forwarded = kernel.and_then(|path| path.seen(entry.key.load(Ordering::Acquire)));
        forwarded.map_or(age, |ago| age.min(ago.as_millis() as u64 / TICK))
    }

    /// Adds an address, unless another thread changes the set or there is no room. A later packet
    /// then tries again.
    #[cold]
    fn insert(&self, key: AddressKey, port: u16, now: u64) {
        let index = self.index(key);
        let Some(_alone) = self.try_change(index) else { return };
        match self.statics.try_find_unplaced(key) {
            Ok(None) => {}
            Ok(Some(at)) if at == port => return,
            Ok(Some(_)) => return self.loops.suspect(now),
            // The thread that changes the static entries may wait for this set, so waiting here
            // could deadlock.
            Err(StaticsLocked) => return,
        }
        let set = &self.sets[index];
        if set.iter().any(|entry| entry.read(key).is_some()) {
            return;
        }
        let room =
            set.iter().filter_map(|entry| Some((self.replaceability(entry, port, now)?, entry)));
        let Some((_, entry)) = room.max_by_key(|(room, _)| *room) else { return };
        self.fill(entry, key.0, EntryState::new(now, port));
    }

    /// Returns how readily an entry can be replaced by a new address of this port; `None` if it
    /// cannot.
    fn replaceability(&self, entry: &AddressEntry, port: u16, now: u64) -> Option<Replaceability> {
        let is_full = self.shares.is_full(port);
        if entry.key.load(Ordering::Relaxed) == 0 {
            return (!is_full).then_some(Replaceability::Free);
        }
        let seen = EntryState(entry.seen.load(Ordering::Relaxed));
        if seen.is_static() {
            return None;
        }
        let (holder, age, asked) = (seen.port(), seen.age(now), seen.was_used_recently(now));
        let is_own = holder == port;
        if is_full && !is_own {
            return None;
        }
        if age > self.ageing {
            return Some(Replaceability::Old);
        }
        let held = self.shares.held(holder);
        let share = self.capacity() / self.shares.ports().max(1);
        // An address to which packets were sent recently stays, as long as its port has at most its
        // share of the table.
        let is_kept =
            asked && (is_own || held <= share) || !is_own && held <= self.shares.held(port);
        (!is_kept).then_some(Replaceability::Taken { held, unused: !asked, age })
    }

    /// Overwrites an entry with an address key and state; key 0 frees the entry. The caller has
    /// locked the set.
    fn fill(&self, entry: &AddressEntry, key: u64, seen: EntryState) {
        let key_before = entry.key.swap(0, Ordering::AcqRel);
        let was_free = key_before == 0;
        fence(Ordering::Release);
        let before = EntryState(entry.seen.swap(seen.0, Ordering::AcqRel));
        entry.key.store(key, Ordering::Release);
        // Static entries do not count as learned by a port.
        let learned =
            |is_there: bool, seen: EntryState| (is_there && !seen.is_static()).then(|| seen.port());
        self.shares.moved(learned(!was_free, before), learned(key != 0, seen));
        if !was_free {
            self.revoke(key_before);
        }
    }

    /// Locks a set; `None` if another thread has locked it.
    fn try_change(&self, index: usize) -> Option<SetGuard<'_>> {
        let changing = &self.changing[index & (self.changing.len() - 1)];
        let is_taken =
            changing.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err();
        // Constructed only if the lock was taken, because dropping it unlocks.
        (!is_taken).then(|| SetGuard(changing))
    }

    /// Locks a set, and spins while another thread holds the lock, which is short.
    fn change(&self, index: usize) -> SetGuard<'_> {
        loop {
            match self.try_change(index) {
                Some(alone) => return alone,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Frees the learned entries for which `goes` returns true, and returns their number. Waits for
    /// threads that change a set, which is short.
    fn free(&self, goes: impl Fn(AddressKey, EntryState) -> bool) -> usize {
        let mut freed = 0;
        for (index, set) in self.sets.iter().enumerate() {
            let goes = |entry: &&AddressEntry| {
                let (key, seen) = (
                    entry.key.load(Ordering::Relaxed),
                    EntryState(entry.seen.load(Ordering::Relaxed)),
                );
                key != 0 && !seen.is_static() && goes(AddressKey(key), seen)
            };
            if !set.iter().any(|entry| goes(&entry)) {
                continue;
            }
            let _alone = self.change(index);
            for entry in set.iter().filter(goes) {
                self.fill(entry, 0, EntryState(0));
                freed += 1;
            }
        }
        freed
    }

    /// Forgets all addresses that were learned behind a port.
    pub(crate) fn forget(&self, port: u16) {
        self.free(|_, seen| seen.port() == port);
        // An address that has moved away from the removed port keeps the port where it is now.
        for entry in self.sets.iter().flatten() {
            let settled = |seen| {
                Some(EntryState(seen))
                    .filter(|seen| seen.home() == port && seen.port() != port)
                    .map(|seen| seen.with_home(seen.port()).0)
            };
            let _ = entry.seen.fetch_update(Ordering::AcqRel, Ordering::Relaxed, settled);
        }
    }

    /// Frees the learned hardware addresses for which `goes` returns true, and returns their
    /// number.
    pub(crate) fn flush(&self, goes: impl Fn(Station, u16) -> bool) -> usize {
        self.free(|key, seen| key.station().is_some_and(|station| goes(station, seen.port())))
    }

    /// Frees expired entries, so that they do not count as addresses of their ports. Called often,
    /// but scans only at intervals.
    pub(crate) fn expire(&self, now: u64) {
        let expired = self.last_scan.load(Ordering::Relaxed);
        if now.saturating_sub(expired) >= self.ageing.clamp(4 * MIN_EXPIRE, 4 * MAX_EXPIRE) / 4
            && self
                .last_scan
                .compare_exchange(expired, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.free(|_, seen| seen.age(now) > self.ageing);
        }
    }

    /// Returns the number of addresses that were learned behind a port.
    pub(crate) fn count(&self, port: u16) -> usize {
        let now = self.now();
        let behind = |entry: &&AddressEntry| {
            let seen = EntryState(entry.seen.load(Ordering::Relaxed));
            let is_learned = entry.key.load(Ordering::Relaxed) != 0 && !seen.is_static();
            is_learned && seen.port() == port && seen.age(now) <= self.ageing
        };
        self.sets.iter().flatten().filter(behind).count()
    }

    /// Returns the entries with hardware addresses for which `wanted` returns true, unsorted.
    pub(crate) fn list(&self, wanted: impl Fn(Station, u16) -> bool) -> Vec<AddressInfo> {
        let now = self.now();
        let age = |seen: EntryState| Duration::from_millis(seen.age(now) * TICK);
        let learned = self.sets.iter().flatten().filter_map(|entry| {
            let key = AddressKey(entry.key.load(Ordering::Acquire));
            let seen =
                entry.read(key).filter(|seen| !seen.is_static() && seen.age(now) <= self.ageing)?;
            Some(AddressInfo {
                station: key.station()?,
                port: seen.port(),
                is_static: false,
                age: Some(age(seen)),
            })
        });
        let mut listed: Vec<AddressInfo> =
            learned.filter(|known| wanted(known.station, known.port)).collect();
        let statics = self.statics.all();
        listed.extend(statics.iter().filter_map(|(&key, &port)| {
            let age = self.entry(AddressKey(key)).map(|(_, seen)| age(seen));
            let known =
                AddressInfo { station: AddressKey(key).station()?, port, is_static: true, age };
            wanted(known.station, port).then_some(known)
        }));
        listed
    }

    /// Returns the entry of a hardware address.
    pub(crate) fn look_up(&self, station: Station) -> Option<AddressInfo> {
        let (key, now) = (AddressKey::from(station), self.now());
        let entry = self
            .entry(key)
            .map(|(_, seen)| (seen.port(), Duration::from_millis(seen.age(now) * TICK)));
        match (self.static_port(key), entry) {
            (Some(port), entry) => {
                Some(AddressInfo { station, port, is_static: true, age: entry.map(|(_, age)| age) })
            }
            (None, Some((port, age))) if age.as_millis() as u64 / TICK <= self.ageing => {
                Some(AddressInfo { station, port, is_static: false, age: Some(age) })
            }
            _ => None,
        }
    }
}

/// How readily an entry is replaced by a new address. The entry with the greatest value is
/// replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Replaceability {
    /// The entry is in use, and its port has `held` addresses. First replaced are entries of the
    /// port with the most addresses; of these, those to which no packet was sent recently; of
    /// these, the oldest.
    Taken { held: u32, unused: bool, age: u64 },
    /// The entry has expired.
    Old,
    /// The entry holds no address.
    Free,
}

/// The lock of a set, which is released when this is dropped.
struct SetGuard<'a>(&'a AtomicBool);

impl Drop for SetGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
