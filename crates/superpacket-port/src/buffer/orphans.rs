//! Regions that were dropped while buffers of them were still in use: each is freed once all of
//! its buffers have come back.
//!
//! A buffer comes back by one store and tells nobody, so somebody has to look. A thread does so
//! while there is such a region, after 1 ms and then less and less often, up to once a second, and
//! ends with the last one. Every region that is made or dropped looks too: where no thread could be
//! started, that is when memory is freed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::memory::Slots;

/// The time until the thread looks for the first time: buffers in queues are back within less.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// The longest time between two looks.
const LAST_LOOK: Duration = Duration::from_secs(1);

static ORPHANS: Mutex<Orphans> = Mutex::new(Orphans { regions: Vec::new(), is_watched: false });

/// The regions of this process that wait for their buffers.
struct Orphans {
    regions: Vec<Slots>,
    /// Whether the thread that looks at them runs.
    is_watched: bool,
}

fn orphans() -> MutexGuard<'static, Orphans> {
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a region whose slots may be lent until all of them have come back.
pub(super) fn keep(region: Slots) {
    free_returned();
    let mut orphans = orphans();
    if orphans.regions.try_reserve(1).is_err() {
        // Its buffers must not dangle: what cannot be watched stays.
        std::mem::forget(region);
        return;
    }
    orphans.regions.push(region);
    if !orphans.is_watched {
        let thread = std::thread::Builder::new().name("superpacket-free".into()).spawn(watch);
        orphans.is_watched = thread.is_ok();
    }
}

/// Frees the regions whose buffers have all come back.
pub(super) fn free_returned() {
    loop {
        let mut orphans = orphans();
        let Some(place) = orphans.regions.iter().position(|region| !region.are_lent()) else {
            return;
        };
        let region = orphans.regions.swap_remove(place);
        // Unmapping a ring closes its socket, for which the kernel takes its time.
        drop(orphans);
        drop(region);
    }
}

fn watch() {
    let mut wait = FIRST_LOOK;
    loop {
        std::thread::sleep(wait);
        free_returned();
        let mut orphans = orphans();
        if orphans.regions.is_empty() {
            orphans.is_watched = false;
            return;
        }
        drop(orphans);
        wait = (wait * 2).min(LAST_LOOK);
    }
}
