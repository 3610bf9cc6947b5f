//! Progress by tqdm's habit, and Ctrl-C.

use std::ops::ControlFlow;

use pyo3::intern;
use pyo3::prelude::*;
use superpacket_captures::{Progress, Truncated};

use crate::errors::warn;

/// Tells a Python object how far a command has come, and stops the command when Python is
/// interrupted.
pub(crate) struct Reporter {
    /// Called with a name and a number of bytes or None for each input; gives an object with
    /// `update(n)` and `close()`, or None.
    begin: Option<Py<PyAny>>,
    bar: Option<Py<PyAny>>,
    /// Bytes that the bar was told of.
    told: u64,
    length: Option<u64>,
    /// The exception that the callback raised.
    raised: Option<PyErr>,
}

impl Reporter {
    pub(crate) fn new(begin: Option<Py<PyAny>>) -> Self {
        Reporter { begin, bar: None, told: 0, length: None, raised: None }
    }

    /// What Python raised meanwhile, which is why the command stopped.
    pub(crate) fn raised(&mut self) -> Option<PyErr> {
        self.raised.take()
    }

    fn keep(&mut self, result: PyResult<()>) {
        if let Err(error) = result {
            self.raised.get_or_insert(error);
        }
    }

    fn update(&mut self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        if let Some(bar) = &self.bar
            && bytes > self.told
        {
            bar.call_method1(py, intern!(py, "update"), (bytes - self.told,))?;
            self.told = bytes;
        }
        Ok(())
    }
}

impl Progress for Reporter {
    fn begin(&mut self, input: &str, length: Option<u64>) {
        (self.told, self.length) = (0, length);
        let made = Python::attach(|py| match &self.begin {
            Some(begin) => {
                begin.call1(py, (input, length)).map(|bar| (!bar.is_none(py)).then_some(bar))
            }
            None => Ok(None),
        });
        match made {
            Ok(bar) => self.bar = bar,
            Err(error) => self.keep(Err(error)),
        }
    }

    fn advance(&mut self, _packets: u64, bytes: u64) -> ControlFlow<()> {
        let told = Python::attach(|py| {
            py.check_signals()?;
            self.update(py, bytes)
        });
        self.keep(told);
        if self.raised.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(&mut self) {
        let ended = Python::attach(|py| {
            if self.raised.is_none()
                && let Some(length) = self.length
            {
                self.update(py, length)?;
            }
            match self.bar.take() {
                Some(bar) => bar.call_method0(py, intern!(py, "close")).map(|_| ()),
                None => Ok(()),
            }
        });
        self.keep(ended);
    }

    fn cut_short(&mut self, truncated: &Truncated) {
        let warned = Python::attach(|py| warn(py, &truncated.to_string()));
        self.keep(warned);
    }
}
