//! Regions that were dropped while some of their buffers were in use. Each is freed when all its
//! buffers have been returned.
//!
//! Returning a buffer is one store, without notification, so a thread polls: after 1 ms, then less
//! often, up to once per second, until no such region is left. Creating or dropping a region also
//! checks, in case the thread could not be started.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::memory::FlaggedMemory;

/// Wait before the first check whether a dropped region's buffers have been returned. Buffers in
/// queues are usually returned sooner.
const FIRST_WAIT: Duration = Duration::from_millis(1);

/// Maximum wait between two checks.
const MAX_WAIT: Duration = Duration::from_secs(1);

static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { regions: Vec::new(), is_watched: false });

/// The regions of this process that were dropped while some of their slots were lent, and that are
/// kept until the slots are returned.
struct Orphans {
    regions: Vec<FlaggedMemory>,
    /// Whether the thread is running that frees regions whose buffers have been returned.
    is_watched: bool,
}

fn orphans() -> MutexGuard<'static, Orphans> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a region until all its slots have been returned.
pub(super) fn keep(region: FlaggedMemory) {
    free_returned();
    let mut orphans = orphans();
    if orphans.regions.try_reserve(1).is_err() {
        // Leaks the region: its buffers must not dangle, and it cannot be watched.
        std::mem::forget(region);
        return;
    }
    orphans.regions.push(region);
    if !orphans.is_watched {
        let thread = std::thread::Builder::new().name("superpacket-free".into()).spawn(watch);
        orphans.is_watched = thread.is_ok();
    }
}

/// Frees the regions whose buffers have all been returned.
pub(super) fn free_returned() {
    loop {
        let mut orphans = orphans();
        let Some(place) = orphans.regions.iter().position(|region| !region.are_lent()) else {
            return;
        };
        let region = orphans.regions.swap_remove(place);
        // Without the lock: unmapping a ring closes its socket, which takes the kernel some time.
        drop(orphans);
        drop(region);
    }
}

fn watch() {
    let mut wait = FIRST_WAIT;
    loop {
        std::thread::sleep(wait);
        free_returned();
        let mut orphans = orphans();
        if orphans.regions.is_empty() {
            orphans.is_watched = false;
            return;
        }
        drop(orphans);
        wait = (wait * 2).min(MAX_WAIT);
    }
}
