//! For each port, the number of addresses in the table, and its maximum.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::settings::MAX_PORTS;

/// The number of a port's addresses in the table, and its maximum.
#[derive(Debug)]
struct Share {
    /// Number of entries of the port, expired ones included.
    held: AtomicU32,
    /// Maximum number of entries of the port.
    limit: AtomicU32,
    is_open: AtomicBool,
}

/// The number of addresses in the table for each port, which all threads update without a lock.
#[derive(Debug)]
pub(super) struct Shares {
    by_port: Box<[Share]>,
    /// Number of open ports.
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

    /// Adds a port, or changes its maximum number of addresses.
    pub(super) fn open(&self, port: u16, limit: u32) {
        let share = self.share(port);
        share.limit.store(limit, Ordering::Relaxed);
        if !share.is_open.swap(true, Ordering::Relaxed) {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes a port.
    pub(super) fn close(&self, port: u16) {
        if self.share(port).is_open.swap(false, Ordering::Relaxed) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of open ports, which share the table.
    pub(super) fn ports(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of addresses of a port in the table, expired ones included.
    pub(super) fn held(&self, port: u16) -> u32 {
        self.share(port).held.load(Ordering::Relaxed)
    }

    /// Returns whether a port has reached its maximum number of addresses.
    pub(super) fn is_full(&self, port: u16) -> bool {
        self.held(port) >= self.share(port).limit.load(Ordering::Relaxed)
    }

    /// Counts an entry for port `to` instead of port `from`; `None` stands for no port, as for a
    /// free entry.
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
