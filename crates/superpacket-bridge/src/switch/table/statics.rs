//! Static entries of the address table, which do not age, move or get replaced.
//!
//! A map holds all of them. They are also stored in the table's sets like other entries, if a set
//! has room. The map is searched only for addresses that are in no set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError};

use super::entry::{AddressEntry, EntryState};
use super::{AddressTable, sets};
use crate::switch::fdb::Station;
use crate::switch::frame::AddressKey;

/// Maximum number of static entries in a set of the table; the rest is for learned addresses.
pub(super) const STATIC_WAYS: usize = 2;

/// Returns the maximum number of static entries in a table for at least `size` addresses: half of
/// the table's entries.
pub(crate) fn most_static(size: usize) -> usize {
    sets(size) * STATIC_WAYS
}

/// All static entries of the address table.
#[derive(Debug, Default)]
pub(super) struct Statics {
    /// The port of each static entry, by address key.
    ports: RwLock<BTreeMap<u64, u16>>,
    /// Number of static entries that are not in the hash table, because their sets have no room.
    pub(super) unplaced: AtomicU32,
}

/// The error that another thread is changing the static entries.
pub(super) struct StaticsLocked;

impl Statics {
    /// Returns all static entries: the port of each address key.
    pub(super) fn all(&self) -> RwLockReadGuard<'_, BTreeMap<u64, u16>> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the port of a static entry.
    pub(super) fn find(&self, key: AddressKey) -> Option<u16> {
        self.all().get(&key.0).copied()
    }

    /// Returns the port of a static entry, for an address that was not found in the hash table.
    #[cold]
    pub(super) fn find_unplaced(&self, key: AddressKey) -> Option<u16> {
        if self.unplaced.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.find(key)
    }

    /// Like [`find_unplaced`](Self::find_unplaced), but does not wait for a thread that changes
    /// static entries.
    ///
    /// # Errors
    /// [`StaticsLocked`] if there is such a thread.
    pub(super) fn try_find_unplaced(&self, key: AddressKey) -> Result<Option<u16>, StaticsLocked> {
        if self.unplaced.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let ports = match self.ports.try_read() {
            Ok(ports) => ports,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(StaticsLocked),
        };
        Ok(ports.get(&key.0).copied())
    }
}

impl AddressTable {
    /// Returns the port of a static entry.
    pub(crate) fn static_port(&self, key: AddressKey) -> Option<u16> {
        self.statics.find(key)
    }

    /// Replaces all static entries of a port. Static entries of other ports with the same addresses
    /// move to this port.
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

    /// Stores a static entry in its set of the table, if there is room.
    fn place(&self, key: AddressKey, port: u16) {
        let index = self.index(key);
        let set = &self.sets[index];
        let _alone = self.change(index);
        let seen = |entry: &AddressEntry| EntryState(entry.seen.load(Ordering::Relaxed));
        let own = set.iter().find(|entry| entry.key.load(Ordering::Relaxed) == key.0);
        let is_free = |entry: &AddressEntry| entry.key.load(Ordering::Relaxed) == 0;
        if set.iter().filter(|entry| !is_free(entry) && seen(entry).is_static()).count()
            >= STATIC_WAYS
        {
            // A learned entry with this address would hide the static one.
            own.into_iter().for_each(|entry| self.fill(entry, 0, EntryState(0)));
            self.statics.unplaced.fetch_add(1, Ordering::Release);
            return;
        }
        let now = self.now();
        let learned = set.iter().filter(|entry| !is_free(entry) && !seen(entry).is_static());
        let oldest = || learned.max_by_key(|entry| seen(entry).age(now));
        if let Some(entry) = own.or_else(|| set.iter().find(|entry| is_free(entry))).or_else(oldest)
        {
            self.fill(entry, key.0, EntryState::new(now, port).into_static());
        }
    }

    /// Removes a static entry from its set of the table.
    fn displace(&self, key: AddressKey) {
        let index = self.index(key);
        let _alone = self.change(index);
        match self.sets[index].iter().find(|entry| entry.key.load(Ordering::Relaxed) == key.0) {
            Some(entry) => self.fill(entry, 0, EntryState(0)),
            None => {
                self.statics.unplaced.fetch_sub(1, Ordering::Release);
            }
        }
    }
}
