//! An entry of the address table. It has two words, which threads read and write without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::switch::frame::AddressKey;

/// The length of a tick of the address table, in milliseconds.
pub(super) const TICK: u64 = 10;

/// Ticks for which an address stays at the port where it was last seen. If it is seen at another
/// port in this time, there is a loop or a host with a forged address. The time doubles with each
/// move of the address between ports.
pub(super) const HOLD: u64 = 100;

/// Maximum number of moves between ports that are counted for an address. With this number, it
/// stays at its port for four minutes after it was last seen there.
pub(super) const MAX_DISPUTES: u64 = 8;

/// Time since the last packet to an address up to which the address counts as used, in units of
/// [`USE_UNIT`]: about a minute.
pub(super) const USED_RECENTLY: u64 = 6;

/// The unit in which the time of the last packet to an address is stored, in ticks: ten seconds.
pub(super) const USE_UNIT: u64 = 1024;

/// The state of an entry: when the address was last seen (the lower 32 bits of the tick), its port
/// and the port where it was learned first (10 bits each), the number of disputes, that is of moves
/// between ports (4 bits; all set in a static entry), and when a packet was last sent to it (8
/// bits).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryState(pub(super) u64);

impl EntryState {
    /// Returns the state of a new address, to which no packet was sent yet.
    pub(super) fn new(now: u64, port: u16) -> EntryState {
        EntryState(0).at(now).with_port(port).with_home(port)
    }

    /// Returns this state, changed so that the address was last seen at this time.
    pub(super) fn at(self, now: u64) -> EntryState {
        EntryState(self.0 & 0xffff_ffff | now << 32)
    }

    pub(super) fn with_port(self, port: u16) -> EntryState {
        EntryState(self.0 & !(0x3ff << 22) | u64::from(port & 0x3ff) << 22)
    }

    pub(super) fn with_home(self, home: u16) -> EntryState {
        EntryState(self.0 & !(0x3ff << 12) | u64::from(home & 0x3ff) << 12)
    }

    pub(super) fn with_disputes(self, disputes: u64) -> EntryState {
        EntryState(self.0 & !(0xf << 8) | disputes.min(MAX_DISPUTES) << 8)
    }

    /// Returns this state, changed to that of a static entry.
    pub(super) fn into_static(self) -> EntryState {
        EntryState(self.0 | STATIC)
    }

    pub(super) fn is_static(self) -> bool {
        self.0 & STATIC == STATIC
    }

    /// Returns this state with `now` as the time at which a packet was last sent to the address.
    pub(super) fn used_at(self, now: u64) -> EntryState {
        EntryState(self.0 & !0xff | use_unit(now))
    }

    /// Returns the ticks since the address was last seen.
    pub(super) fn age(self, now: u64) -> u64 {
        match (now as u32).wrapping_sub((self.0 >> 32) as u32) {
            age if age <= MAX_AGE => u64::from(age),
            // Another thread, whose round began later, wrote the time.
            _ => 0,
        }
    }

    pub(super) fn port(self) -> u16 {
        (self.0 >> 22 & 0x3ff) as u16
    }

    /// Returns the port where the address was learned first.
    pub(super) fn home(self) -> u16 {
        (self.0 >> 12 & 0x3ff) as u16
    }

    /// Returns how often the address has moved between ports recently.
    pub(super) fn disputes(self) -> u64 {
        self.0 >> 8 & 0xf
    }

    /// Returns the ticks for which the address stays at its port after it was last seen there.
    pub(super) fn hold(self) -> u64 {
        HOLD << self.disputes()
    }

    /// Returns whether the state already records that a packet was sent to the address at this
    /// time.
    pub(super) fn is_used_at(self, now: u64) -> bool {
        self.0 & 0xff == use_unit(now)
    }

    pub(super) fn was_used_recently(self, now: u64) -> bool {
        let used = self.0 & 0xff;
        used != 0 && (use_unit(now) + 255 - used) % 255 <= USED_RECENTLY
    }
}

/// The bits that hold the number of disputes. With all of them set, a number that is never counted,
/// the entry is static.
const STATIC: u64 = 0xf << 8;

/// Maximum age in ticks, 248 days. Ticks wrap around, so a larger difference is taken for a time
/// in the future.
pub(super) const MAX_AGE: u32 = u32::MAX / 2;

/// Returns the time in units of [`USE_UNIT`], which wraps around from 255 to 1.
fn use_unit(now: u64) -> u64 {
    now / USE_UNIT % 255 + 1
}

#[derive(Debug, Default)]
pub(super) struct AddressEntry {
    /// The key of the address; 0 if the entry is free.
    pub(super) key: AtomicU64,
    pub(super) seen: AtomicU64,
}

impl AddressEntry {
    /// Returns the state of the entry if it belongs to this address.
    #[inline]
    pub(super) fn read(&self, key: AddressKey) -> Option<EntryState> {
        if self.key.load(Ordering::Acquire) != key.0 {
            return None;
        }
        let seen = EntryState(self.seen.load(Ordering::Acquire));
        // Check that the entry still belonged to this address when the state was read. An entry is
        // freed before another address gets it.
        fence(Ordering::Acquire);
        // The entry may have been freed and reused for this address in between. The state of a free
        // entry is 0, and must not be changed.
        (seen.0 != 0 && self.key.load(Ordering::Relaxed) == key.0).then_some(seen)
    }
}
