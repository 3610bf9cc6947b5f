//! A progress bar on standard error, where that is a terminal.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressStyle};
use superpacket_captures::{Error, Progress, Truncated};

use crate::failure::Failure;
use crate::report::printable;

/// How far a file has been read, and what else standard error is told meanwhile.
#[derive(Debug)]
pub(crate) struct Bar {
    quiet: bool,
    bar: Option<ProgressBar>,
    /// What was wrong with captures of several that could not be read.
    unreadable: Vec<String>,
}

impl Bar {
    /// No bar yet, and none ever if `quiet`, or if nobody looks.
    pub(crate) fn new(quiet: bool) -> Self {
        Bar { quiet: quiet || !std::io::stderr().is_terminal(), bar: None, unreadable: Vec::new() }
    }

    /// What was told of captures that could not be read, in the program's words.
    pub(crate) fn into_unreadable(self) -> Vec<String> {
        self.unreadable
    }
}

impl Progress for Bar {
    /// A bar over `length` bytes of file, or a spinner where the length is not known.
    fn begin(&mut self, input: &str, length: Option<u64>) {
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
        // Nobody can be told that standard error is gone.
        let _ = writeln!(std::io::stderr(), "superpacket: {text}");
        self.unreadable.push(text);
    }
}

/// Prints a warning to standard error.
pub(crate) fn warn(text: &str) {
    // Nobody can be told that standard error is gone.
    let _ = writeln!(std::io::stderr(), "superpacket: warning: {text}");
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
