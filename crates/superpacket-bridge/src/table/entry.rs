//! An entry of the address table: an address, and what is known of it, in two words that are read
//! and written without a lock.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::frame::AddressKey;

/// The unit of time in an entry, in milliseconds.
pub(super) const TICK: u64 = 10;

/// An address that was seen at its port within this time stays there, in ticks: who is seen with it
/// elsewhere is a loop, or somebody who sends with the address of another. It doubles with each
/// dispute.
pub(super) const HOLD: u64 = 100;

/// The most disputes that are counted: then an address stays for four minutes after it was last
/// seen.
pub(super) const MOST_DISPUTES: u64 = 8;

/// An address was asked for recently if a packet for it came within so many units of
/// [`ASKED_UNIT`]: about a minute.
pub(super) const ASKED_RECENTLY: u64 = 6;

/// How finely it is known when an address was last asked for, in ticks: ten seconds.
pub(super) const ASKED_UNIT: u64 = 1024;

/// An entry's value: when it was last seen (the lower 32 bits of the tick), the port, the port
/// where it was learned first (10 bits each), disputes (4 bits; all of them set: the entry is
/// static), and when it was last asked for (8 bits).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen(pub(super) u64);

impl Seen {
    /// An address that nobody has asked for.
    pub(super) fn new(now: u64, port: u16) -> Seen {
        Seen(0).at(now).with_port(port).with_home(port)
    }

    /// Seen at this time.
    pub(super) fn at(self, now: u64) -> Seen {
        Seen(self.0 & 0xffff_ffff | now << 32)
    }

    pub(super) fn with_port(self, port: u16) -> Seen {
        Seen(self.0 & !(0x3ff << 22) | u64::from(port & 0x3ff) << 22)
    }

    pub(super) fn with_home(self, home: u16) -> Seen {
        Seen(self.0 & !(0x3ff << 12) | u64::from(home & 0x3ff) << 12)
    }

    pub(super) fn with_disputes(self, disputes: u64) -> Seen {
        Seen(self.0 & !(0xf << 8) | disputes.min(MOST_DISPUTES) << 8)
    }

    /// The same, static.
    pub(super) fn into_static(self) -> Seen {
        Seen(self.0 | STATIC)
    }

    pub(super) fn is_static(self) -> bool {
        self.0 & STATIC == STATIC
    }

    /// Asked for at this time.
    pub(super) fn asked(self, now: u64) -> Seen {
        Seen(self.0 & !0xff | asked_unit(now))
    }

    /// How long ago it was last seen.
    pub(super) fn age(self, now: u64) -> u64 {
        match (now as u32).wrapping_sub((self.0 >> 32) as u32) {
            age if age <= MOST_AGE => u64::from(age),
            // Another thread's round began later.
            _ => 0,
        }
    }

    pub(super) fn port(self) -> u16 {
        (self.0 >> 22 & 0x3ff) as u16
    }

    /// The port where it was learned first.
    pub(super) fn home(self) -> u16 {
        (self.0 >> 12 & 0x3ff) as u16
    }

    /// How often it was seen to move lately.
    pub(super) fn disputes(self) -> u64 {
        self.0 >> 8 & 0xf
    }

    /// For so many ticks it stays where it was last seen.
    pub(super) fn hold(self) -> u64 {
        HOLD << self.disputes()
    }

    /// It is known already that it was asked for now.
    pub(super) fn is_asked(self, now: u64) -> bool {
        self.0 & 0xff == asked_unit(now)
    }

    pub(super) fn was_asked_recently(self, now: u64) -> bool {
        let asked = self.0 & 0xff;
        asked != 0 && (asked_unit(now) + 255 - asked) % 255 <= ASKED_RECENTLY
    }
}

/// More disputes than are ever counted: the entry is static.
const STATIC: u64 = 0xf << 8;

/// The greatest age that can be told from a time to come, in ticks: 248 days.
pub(super) const MOST_AGE: u32 = u32::MAX / 2;

/// The time in units of [`ASKED_UNIT`]: 1 to 255, round and round.
fn asked_unit(now: u64) -> u64 {
    now / ASKED_UNIT % 255 + 1
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// 0: free.
    pub(super) key: AtomicU64,
    pub(super) seen: AtomicU64,
}

impl Entry {
    /// The value, if the entry is this address's.
    #[inline]
    pub(super) fn read(&self, key: AddressKey) -> Option<Seen> {
        if self.key.load(Ordering::Acquire) != key.0 {
            return None;
        }
        let seen = Seen(self.seen.load(Ordering::Acquire));
        // Was it still this address's when the value was read? (An entry changes hands by way of a
        // free one.)
        fence(Ordering::Acquire);
        // It may have been free, and this address's again: a free entry's value is nobody's, and
        // must not be changed.
        (seen.0 != 0 && self.key.load(Ordering::Relaxed) == key.0).then_some(seen)
    }
}
