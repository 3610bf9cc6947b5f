//! Static entries are the user's: they neither age nor move nor give way.
//!
//! They lie in the sets as the others do, where a set has room for them; all of them are in a map
//! besides, which is asked for those that found no room.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError};

use super::entry::{Entry, Seen};
use super::{Table, sets};
use crate::fdb::Station;
use crate::frame::AddressKey;

/// The most static entries of a set: the others are for what is learned.
pub(super) const STATIC_WAYS: usize = 2;

/// The most static entries of a table of at least `size` entries: half of those that it has.
pub(crate) fn most_static(size: usize) -> usize {
    sets(size) * STATIC_WAYS
}

/// All static entries.
#[derive(Debug, Default)]
pub(super) struct Statics {
    /// The port by the key.
    ports: RwLock<BTreeMap<u64, u16>>,
    /// How many of them found no room in their sets.
    pub(super) unplaced: AtomicU32,
}

/// Somebody changes the static entries.
pub(super) struct BeingChanged;

impl Statics {
    /// All of them: the port by the key.
    pub(super) fn all(&self) -> RwLockReadGuard<'_, BTreeMap<u64, u16>> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port of a static entry.
    pub(super) fn find(&self, key: AddressKey) -> Option<u16> {
        self.all().get(&key.0).copied()
    }

    /// The port of an address that is in no set, if there is a static entry for it.
    #[cold]
    pub(super) fn find_unplaced(&self, key: AddressKey) -> Option<u16> {
        if self.unplaced.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.find(key)
    }

    /// The same, without waiting for who changes them.
    pub(super) fn try_find_unplaced(&self, key: AddressKey) -> Result<Option<u16>, BeingChanged> {
        if self.unplaced.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let ports = match self.ports.try_read() {
            Ok(ports) => ports,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(BeingChanged),
        };
        Ok(ports.get(&key.0).copied())
    }
}

impl Table {
    /// The port of a static entry.
    pub(crate) fn static_port(&self, key: AddressKey) -> Option<u16> {
        self.statics.find(key)
    }

    /// Makes these the static entries of a port, and no others. Entries of other ports with the
    /// same addresses become this port's.
    pub(crate) fn set_static(&self, port: u16, stations: &BTreeSet<Station>) {
        let mut statics = self.statics.ports.write().unwrap_or_else(PoisonError::into_inner);
        let is_gone = |key: u64, at: u16| {
            at == port
                && !AddressKey(key).station().is_some_and(|station| stations.contains(&station))
        };
        let gone: Vec<u64> =
            statics.iter().filter(|&(&key, &at)| is_gone(key, at)).map(|(&key, _)| key).collect();
        for key in gone {
            statics.remove(&key);
            self.displace(AddressKey(key));
        }
        for &station in stations {
            let key = AddressKey::from(station);
            match statics.insert(key.0, port) {
                Some(before) if before == port => continue,
                Some(_) => self.displace(key),
                None => {}
            }
            self.place(key, port);
        }
    }

    /// Puts a static entry into its set, if there is room for one.
    fn place(&self, key: AddressKey, port: u16) {
        let index = self.index(key);
        let set = &self.sets[index];
        let _alone = self.change(index);
        let seen = |entry: &Entry| Seen(entry.seen.load(Ordering::Relaxed));
        let own = set.iter().find(|entry| entry.key.load(Ordering::Relaxed) == key.0);
        let is_free = |entry: &Entry| entry.key.load(Ordering::Relaxed) == 0;
        if set.iter().filter(|entry| !is_free(entry) && seen(entry).is_static()).count()
            >= STATIC_WAYS
        {
            // What was learned would hide it.
            own.into_iter().for_each(|entry| self.fill(entry, 0, Seen(0)));
            self.statics.unplaced.fetch_add(1, Ordering::Release);
            return;
        }
        let now = self.now();
        let learned = set.iter().filter(|entry| !is_free(entry) && !seen(entry).is_static());
        let oldest = || learned.max_by_key(|entry| seen(entry).age(now));
        if let Some(entry) = own.or_else(|| set.iter().find(|entry| is_free(entry))).or_else(oldest)
        {
            self.fill(entry, key.0, Seen::new(now, port).into_static());
        }
    }

    /// Takes a static entry out of its set again.
    fn displace(&self, key: AddressKey) {
        let index = self.index(key);
        let _alone = self.change(index);
        match self.sets[index].iter().find(|entry| entry.key.load(Ordering::Relaxed) == key.0) {
            Some(entry) => self.fill(entry, 0, Seen(0)),
            None => {
                self.statics.unplaced.fetch_sub(1, Ordering::Release);
            }
        }
    }
}
