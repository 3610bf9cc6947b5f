//! How many addresses each port has in the table, and how many it may have.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::settings::MAX_PORTS;

/// What a port has of the table.
#[derive(Debug)]
struct Share {
    /// Entries with addresses behind it, those that are too old included.
    held: AtomicU32,
    /// The most of them.
    limit: AtomicU32,
    is_open: AtomicBool,
}

/// What each port has of the table. Counted by all threads, without a lock.
#[derive(Debug)]
pub(super) struct Shares {
    by_port: Box<[Share]>,
    /// How many ports are open.
    open: AtomicU32,
}

impl Shares {
    pub(super) fn new() -> Shares {
        let share = || Share {
            held: AtomicU32::new(0),
            limit: AtomicU32::new(u32::MAX),
            is_open: AtomicBool::new(false),
        };
        Shares { by_port: (0..MAX_PORTS).map(|_| share()).collect(), open: AtomicU32::new(0) }
    }

    /// A port joins, or has another limit now: the most addresses behind it.
    pub(super) fn open(&self, port: u16, limit: u32) {
        let share = self.share(port);
        share.limit.store(limit, Ordering::Relaxed);
        if !share.is_open.swap(true, Ordering::Relaxed) {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A port leaves.
    pub(super) fn close(&self, port: u16) {
        if self.share(port).is_open.swap(false, Ordering::Relaxed) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How many ports share the table.
    pub(super) fn ports(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// How many addresses a port has, those that are too old included.
    pub(super) fn held(&self, port: u16) -> u32 {
        self.share(port).held.load(Ordering::Relaxed)
    }

    /// Has a port as many addresses as it may?
    pub(super) fn is_full(&self, port: u16) -> bool {
        self.held(port) >= self.share(port).limit.load(Ordering::Relaxed)
    }

    /// An entry went from one port to another.
    pub(super) fn moved(&self, from: Option<u16>, to: Option<u16>) {
        if let Some(from) = from {
            self.share(from).held.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(to) = to {
            self.share(to).held.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn share(&self, port: u16) -> &Share {
        &self.by_port[usize::from(port)]
    }
}
