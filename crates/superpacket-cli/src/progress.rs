//! A progress bar on standard error, where that is a terminal.

use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

/// Frames between two looks at the clock.
const INTERVAL: u64 = 4096;

/// How far a file has been read.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar over `length` bytes of file, or a spinner where the length is not known; nothing if `quiet`, or if nobody looks.
    pub(crate) fn new(path: &Path, length: Option<u64>, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = match length {
            Some(length) => {
                ProgressBar::new(length).with_style(style("{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}"))
            }
            None => ProgressBar::new_spinner().with_style(style("{msg} {spinner} {bytes} {binary_bytes_per_sec}")),
        };
        bar.set_message(path.display().to_string());
        Progress { bar: Some(bar) }
    }

    /// Notes that frame `number` has been reached; `position` says how many bytes of the file that took.
    #[inline]
    pub(crate) fn frame(&self, number: u64, position: impl FnOnce() -> u64) {
        if let Some(bar) = &self.bar
            && number.is_multiple_of(INTERVAL)
        {
            bar.set_position(position());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
