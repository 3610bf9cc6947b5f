//! Shows progress on standard error, if that is a terminal.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressStyle};
use superpacket_captures::{Error, Progress, Truncated};

use crate::failure::Failure;
use crate::report::printable;
use crate::signals;

/// A progress bar for the reading of captures. Warnings and errors are printed to standard error
/// without disturbing it.
#[derive(Debug)]
pub(crate) struct Bar {
    quiet: bool,
    bar: Option<ProgressBar>,
    /// The errors of the captures that could not be read, as they were printed.
    unreadable: Vec<String>,
}

impl Bar {
    /// Returns a progress bar that is not shown yet. It is never shown if `quiet` is set, or if
    /// standard error is no terminal.
    pub(crate) fn new(quiet: bool) -> Self {
        Bar { quiet: quiet || !std::io::stderr().is_terminal(), bar: None, unreadable: Vec::new() }
    }

    /// Returns the errors of the captures that could not be read, as they were printed.
    pub(crate) fn into_unreadable(self) -> Vec<String> {
        self.unreadable
    }
}

impl Progress for Bar {
    /// Shows the progress in a file of `length` bytes, or a spinner if the length is unknown.
    fn begin(&mut self, input: &str, length: Option<u64>) {
        // Opening the output may block.
        signals::stop_asking();
        if self.quiet {
            return;
        }
        let bar = match length {
            Some(length) => ProgressBar::new(length).with_style(style(
                "{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            )),
            None => ProgressBar::new_spinner()
                .with_style(style("{msg} {spinner} {bytes} {binary_bytes_per_sec}")),
        };
        bar.set_message(input.to_owned());
        self.bar = Some(bar);
    }

    fn advance(&mut self, _packets: u64, bytes: u64) -> ControlFlow<()> {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
        ControlFlow::Continue(())
    }

    fn end_requested(&mut self) -> bool {
        signals::end_requested()
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn cut_short(&mut self, truncated: &Truncated) {
        warn(&truncated.to_string());
    }

    fn unreadable(&mut self, error: &Error) {
        let text = match error {
            Error::CutShort(truncated) => Failure::CutShort(truncated.clone()).to_string(),
            error => error.to_string(),
        };
        let text = printable(&text);
        // If this write to standard error fails, that cannot be reported anywhere.
        let _ = writeln!(std::io::stderr(), "superpacket: {text}");
        self.unreadable.push(text);
    }
}

/// Prints a warning to standard error.
pub(crate) fn warn(text: &str) {
    // If this write to standard error fails, that cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "superpacket: warning: {text}");
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
