//! How an experiment is run: how long, how often, who watches, and what ends it.

use std::time::Duration;

use serde::Serialize;

use crate::error::LabError;
use crate::load::Pinning;

/// How much of an experiment is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How often each variant is measured.
    pub rounds: usize,
    /// How long each measurement takes. A warm-up comes in front.
    pub time: Duration,
    /// Only the rows that the experiment's marks and its main point need.
    pub quick: bool,
}

impl Plan {
    /// All rows, as often as it takes for ratios to mean something.
    pub const FULL: Self = Self { rounds: 10, time: Duration::from_millis(1000), quick: false };

    /// In about ten seconds an experiment.
    pub const QUICK: Self = Self { rounds: 3, time: Duration::from_millis(250), quick: true };
}

/// On which CPUs the parts of a live experiment run. An empty list leaves it to the experiment, and
/// most leave it to the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cpus {
    /// The sending program's thread; of requests and answers, the client's.
    pub sender: Vec<usize>,
    /// The receiving program's thread; of requests and answers, the server's.
    pub receiver: Vec<usize>,
    /// The bridge's threads. A kernel's bridge has none.
    pub bridge: Vec<usize>,
}

impl Cpus {
    /// Nothing is pinned.
    pub const ANY: &'static Self =
        &Self { sender: Vec::new(), receiver: Vec::new(), bridge: Vec::new() };

    /// Those of the programs.
    pub(crate) fn pinning(&self) -> Pinning {
        Pinning { client: self.sender.clone(), server: self.receiver.clone() }
    }
}

/// Who watches an experiment.
pub trait Watch: Sync {
    /// A measurement begins: what is measured, for a line of progress.
    fn step(&self, what: &str);

    /// So many more measurements are to come than were announced before.
    fn announce(&self, steps: usize);

    /// Is it to end as soon as it can?
    fn is_cancelled(&self) -> bool;
}

/// Nobody watches, and nobody ends it.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn step(&self, _: &str) {}

    fn announce(&self, _: usize) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A run of experiments.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    /// How much is run.
    pub plan: Plan,
    /// Where it is run.
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

/// What can be measured again and again.
pub struct Variant<'a, T> {
    /// What it is, for a line of progress.
    pub name: String,
    /// Measures once.
    pub measure: Box<dyn FnMut() -> Result<T, LabError> + 'a>,
}

impl<T> std::fmt::Debug for Variant<'_, T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Variant").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<'a, T> Variant<'a, T> {
    /// A variant.
    pub fn new(name: impl Into<String>, measure: impl FnMut() -> Result<T, LabError> + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }
}

impl<'a> Session<'a> {
    /// A run by this plan, pinned nowhere.
    pub fn new(plan: Plan, watch: &'a dyn Watch) -> Self {
        Self { plan, cpus: Cpus::ANY, watch }
    }

    /// The same on these CPUs.
    #[must_use]
    pub fn with_cpus(self, cpus: &'a Cpus) -> Self {
        Self { cpus, ..self }
    }

    /// Measures variants in turn, as often as the plan says; gives for each its measurements, one a
    /// round, so that those of the same place belong together. Every other round goes backwards:
    /// what drifts (heat, neighbours) strikes all alike.
    ///
    /// # Errors
    /// The first error of a measurement; [`LabError::Cancelled`] as soon as the watcher asks for
    /// the end.
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

    /// Goes on, unless the watcher asks for the end.
    ///
    /// # Errors
    /// [`LabError::Cancelled`].
    pub fn check(&self) -> Result<(), LabError> {
        if self.watch.is_cancelled() { Err(LabError::Cancelled) } else { Ok(()) }
    }
}
