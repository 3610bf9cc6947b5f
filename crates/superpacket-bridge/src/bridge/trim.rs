//! Decides when freed memory is returned to the operating system. Threads free old tables only some
//! time after settings have changed.

use std::time::{Duration, Instant};

/// Time without further changes after which memory is returned. It is longer than threads sleep,
/// and than packets may be held.
const SETTLED: Duration = Duration::from_secs(2);

/// Tracks when settings last changed, by the bridge's epoch, to return freed memory once
/// afterwards.
#[derive(Debug)]
pub(super) struct MemoryTrimmer {
    epoch: u64,
    since: Instant,
    is_done: bool,
}

impl MemoryTrimmer {
    /// Returns a trimmer for which `epoch` is the current epoch of the settings, and no memory is
    /// to be returned.
    pub(super) fn new(epoch: u64, now: Instant) -> Self {
        MemoryTrimmer { epoch, since: now, is_done: true }
    }

    /// Returns whether freed memory is to be returned now. This is true once, some time after the
    /// last of several changes.
    pub(super) fn is_due(&mut self, epoch: u64, now: Instant) -> bool {
        if epoch != self.epoch {
            *self = MemoryTrimmer { epoch, since: now, is_done: false };
        }
        let is_due = !self.is_done && now.duration_since(self.since) >= SETTLED;
        self.is_done |= is_due;
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_trimmed_once_after_the_last_of_several_changes() {
        let start = Instant::now();
        let mut trimmer = MemoryTrimmer::new(5, start);
        let mut due = |epoch, milliseconds| {
            trimmer.is_due(epoch, start + Duration::from_millis(milliseconds))
        };
        assert!(!due(5, 10_000), "nothing has changed");
        assert!(!due(6, 10_250) && !due(6, 12_000) && !due(8, 12_249), "another followed");
        assert!(!due(8, 14_000) && due(8, 14_250));
        assert!(!due(8, 14_500) && !due(8, 99_000), "once");
        assert!(!due(9, 99_250) && due(9, 101_250));
    }
}
