//! Supervision of a run: a progress bar with the remaining time, and the signals that end the run.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::iterator::Signals;
use superpacket_lab::experiment::Watch;

use crate::signals;

/// Time for a run to end by itself after a signal. A measurement that takes longer is aborted.
const GRACE: Duration = Duration::from_millis(1500);

/// Watches a run: shows its progress, and ends it on a signal.
pub(super) struct Watcher {
    bar: Option<ProgressBar>,
    progress: Mutex<RunProgress>,
    cancelled: AtomicBool,
    /// Whether a thread has begun to print the end of the report.
    ending: AtomicBool,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, Default)]
struct RunProgress {
    /// Number of experiments to run.
    experiments: usize,
    /// Number of experiments begun.
    begun: usize,
    /// Number of measurements that the experiments begun so far are going to take, as they
    /// announced.
    announced: usize,
    /// Number of measurements begun.
    taken: usize,
}

impl RunProgress {
    /// Returns the estimated number of measurements of the whole run. An experiment that has not
    /// begun is counted with the average of those begun.
    fn estimated_total(&self) -> usize {
        self.announced
            + self.announced * (self.experiments - self.begun.min(self.experiments))
                / self.begun.max(1)
    }
}

impl Watcher {
    /// Creates the watcher of a run of `experiments` experiments. It shows no progress bar if
    /// `quiet` is set, or if standard error is not a terminal.
    pub(super) fn new(experiments: usize, quiet: bool) -> Arc<Self> {
        let shown = !quiet && io::stderr().is_terminal();
        let bar = shown.then(|| {
            let template = "{msg:40!} {wide_bar:.cyan/dim} {pos}/{len}, {eta} left";
            let bar = ProgressBar::new(1).with_style(
                ProgressStyle::with_template(template)
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        let progress = Mutex::new(RunProgress { experiments, ..RunProgress::default() });
        Arc::new(Self {
            bar,
            progress,
            cancelled: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        })
    }

    /// Handles signals: the first asks the run to end. If the run takes too long, or a second
    /// signal comes, `on_abort` prints the results so far. The process then ends with the exit code
    /// that a shell reports for SIGINT; its namespaces end with it.
    ///
    /// # Errors
    /// If the signals cannot be handled.
    pub(super) fn handle_signals(
        self: &Arc<Self>,
        on_abort: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let mut signals = Signals::new(signals::ending())?;
        let watcher = self.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            if signals.forever().next().is_none() {
                return;
            }
            watcher.cancelled.store(true, Ordering::Relaxed);
            let signalled_at = Instant::now();
            while signalled_at.elapsed() < GRACE && signals.pending().next().is_none() {
                std::thread::sleep(Duration::from_millis(20));
            }
            if watcher.claim_end() {
                watcher.clear();
                on_abort();
            } else {
                // The run is over and the main thread prints the report. The program ends after the
                // grace period even if that thread is blocked.
                std::thread::sleep(GRACE);
            }
            superpacket_captures::file::remove_unfinished();
            std::process::exit(i32::from(crate::INTERRUPTED));
        })?;
        Ok(())
    }

    /// Counts the next experiment as begun.
    pub(super) fn begin(&self) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.begun += 1;
        self.show(&progress);
    }

    /// Runs `write` while the bar is hidden.
    pub(super) fn write_past_bar<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Returns whether the caller shall print the end of the report: `true` for the first call
    /// only.
    pub(super) fn claim_end(&self) -> bool {
        !self.ending.swap(true, Ordering::AcqRel)
    }

    fn show(&self, progress: &RunProgress) {
        if let Some(bar) = &self.bar {
            bar.set_length(progress.estimated_total() as u64);
            bar.set_position(progress.taken.saturating_sub(1) as u64);
        }
    }
}

impl Watch for Watcher {
    fn step(&self, what: &str) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.taken += 1;
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
        self.show(&progress);
    }

    fn announce(&self, more: usize) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.announced += more;
        self.show(&progress);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_experiments_are_estimated_from_earlier_ones() {
        let whole = |experiments, begun, announced| {
            RunProgress { experiments, begun, announced, taken: 0 }.estimated_total()
        };
        assert_eq!(
            (whole(1, 1, 30), whole(5, 1, 30), whole(5, 2, 50), whole(5, 5, 100)),
            (30, 150, 125, 100)
        );
        assert_eq!(whole(5, 0, 0), 0);
    }

    #[test]
    fn only_one_thread_prints_the_end() {
        let watcher = Watcher::new(1, true);
        watcher.begin();
        watcher.announce(2);
        watcher.step("a");
        assert!(!watcher.is_cancelled());
        assert_eq!([watcher.claim_end(), watcher.claim_end()], [true, false]);
    }
}
