//! Settings of a run of experiments (duration, rounds, CPUs), and its progress and cancellation.

use std::time::Duration;

use serde::Serialize;

use crate::error::LabError;
use crate::load::Pinning;

/// The number and duration of a run's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of measurements per variant.
    pub rounds: usize,
    /// Duration of each measurement, without its warm-up.
    pub time: Duration,
    /// Whether to measure only the rows that the targets and the main result need.
    pub quick: bool,
}

impl Plan {
    /// A full run: all rows, with enough rounds for significant ratios.
    pub const FULL: Self = Self { rounds: 10, time: Duration::from_millis(1000), quick: false };

    /// A quick run: about ten seconds per experiment.
    pub const QUICK: Self = Self { rounds: 3, time: Duration::from_millis(250), quick: true };
}

/// CPUs for the sending program, the receiving program and the bridge of a live experiment. An
/// empty list leaves the choice to the experiment; most leave it to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus {
    /// CPUs of the sending program; for requests and answers, the client.
    pub sender: Vec<usize>,
    /// CPUs of the receiving program; for requests and answers, the server.
    pub receiver: Vec<usize>,
    /// CPUs of the bridge's threads. Unused by the kernel's bridge, which has no threads.
    pub bridge: Vec<usize>,
}

impl Cpus {
    /// No CPUs chosen: no thread is pinned.
    pub const ANY: &'static Self =
        &Self { sender: Vec::new(), receiver: Vec::new(), bridge: Vec::new() };

    /// Returns the CPUs of the two programs.
    pub(crate) fn pinning(&self) -> Pinning {
        Pinning { client: self.sender.clone(), server: self.receiver.clone() }
    }
}

/// An observer of a run, which may also cancel it.
pub trait Watch: Sync {
    /// Reports the start of a measurement, with its description for a progress line.
    fn step(&self, what: &str);

    /// Reports `steps` more measurements to come, in addition to earlier announcements.
    fn announce(&self, steps: usize);

    /// Returns whether the run should end as soon as possible.
    fn is_cancelled(&self) -> bool;
}

/// An observer that ignores all reports and never cancels.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn step(&self, _: &str) {}

    fn announce(&self, _: usize) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A run of experiments: its plan, CPUs and observer.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    /// Number and duration of the measurements.
    pub plan: Plan,
    /// CPUs for the programs and the bridge.
    pub cpus: &'a Cpus,
    watch: &'a dyn Watch,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Session")
            .field("plan", &self.plan)
            .field("cpus", &self.cpus)
            .finish_non_exhaustive()
    }
}

/// A configuration that is measured repeatedly.
pub struct Variant<'a, T> {
    /// Description for a progress line.
    pub name: String,
    /// Performs one measurement.
    pub measure: Box<dyn FnMut() -> Result<T, LabError> + 'a>,
}

impl<T> std::fmt::Debug for Variant<'_, T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Variant").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a, T> Variant<'a, T> {
    /// Returns a variant with this name and this measurement.
    pub fn new(name: impl Into<String>, measure: impl FnMut() -> Result<T, LabError> + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }
}

impl<'a> Session<'a> {
    /// Returns a session with this plan and observer, without pinning threads to CPUs.
    pub fn new(plan: Plan, watch: &'a dyn Watch) -> Self {
        Self { plan, cpus: Cpus::ANY, watch }
    }

    /// Sets the CPUs for the programs and the bridge.
    #[must_use]
    pub fn with_cpus(self, cpus: &'a Cpus) -> Self {
        Self { cpus, ..self }
    }

    /// Measures variants in turn for the plan's number of rounds, and returns one result per round
    /// for each. Results with the same index belong to the same round. Every second round runs in
    /// reverse order, so that drift (heat, other load) affects all alike.
    ///
    /// # Errors
    /// The first error of a measurement; [`LabError::Cancelled`] as soon as the observer cancels.
    pub fn interleaved<T>(&self, variants: &mut [Variant<'_, T>]) -> Result<Vec<Vec<T>>, LabError> {
        let count = variants.len();
        self.watch.announce(count * self.plan.rounds);
        let mut measured: Vec<Vec<T>> =
            (0..count).map(|_| Vec::with_capacity(self.plan.rounds)).collect();
        for round in 0..self.plan.rounds {
            for turn in 0..count {
                let place = if round % 2 == 0 { turn } else { count - 1 - turn };
                let variant = &mut variants[place];
                self.check()?;
                self.watch.step(&variant.name);
                measured[place].push((variant.measure)()?);
            }
        }
        Ok(measured)
    }

    /// Returns an error if the observer has cancelled the run.
    ///
    /// # Errors
    /// [`LabError::Cancelled`].
    pub fn check(&self) -> Result<(), LabError> {
        if self.watch.is_cancelled() { Err(LabError::Cancelled) } else { Ok(()) }
    }
}
