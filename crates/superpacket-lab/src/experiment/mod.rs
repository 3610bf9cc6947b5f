//! The experiments of the five sources, again.
//!
//! Each has two forms: live, with kernel TCP between hosts, through ports, engine and bridge; and
//! on the model NIC, without kernel and clock, where every run gives the same. An experiment is a
//! file of its own here, with an [`Entry`] of its own, and [`ALL`] is where they are found.

mod ack;
mod gso;
mod lro;
mod plan;
mod report;
mod rps;
mod segmentation;
mod spent;
mod stage;
mod tso;

pub use plan::{Cpus, Plan, Session, Unwatched, Variant, Watch};
pub use report::{Column, Experiment, Figure, Form, Mark, Ratio, Row, Side, Table};

use std::time::Duration;

use crate::error::LabError;

/// An experiment: what it repeats, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// `lro`, `ack`, `rps`, `tso` or `gso`.
    pub name: &'static str,
    /// What its ratios are, by whom and when, for a line of a report of one screen.
    pub headline: &'static str,
    /// Which of the five sources it repeats, by author, subject and year.
    pub source: &'static str,
    /// What is done, in a line or two.
    pub summary: &'static str,
    /// Measures it between live hosts. [`LabError::Forbidden`] and [`LabError::Unsupported`] mean
    /// that this machine cannot, [`LabError::Cancelled`] that the session's watcher asked for the
    /// end.
    pub live: fn(&Session<'_>) -> Result<Experiment, LabError>,
    /// How many measurements the live form makes by a plan, at most: each takes [`Plan::time`], or
    /// the time of a transfer where a file is sent.
    pub measurements: fn(Plan) -> usize,
    /// Counts it on the model NIC, or simulates it: the same in every run, and done in about a
    /// second.
    pub model: fn() -> Result<Experiment, LabError>,
}

/// All experiments, in the order in which they are to be read.
pub const ALL: &[Entry] = &[lro::ENTRY, ack::ENTRY, rps::ENTRY, tso::ENTRY, gso::ENTRY];

/// The experiment of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}

/// How long the measurements of these experiments take by a plan: what is made ready in between,
/// and files that are sent whole, come on top.
#[must_use]
pub fn planned(entries: &[&Entry], plan: Plan) -> Duration {
    let measurements: usize = entries.iter().map(|entry| (entry.measurements)(plan)).sum();
    plan.time.mul_f64(measurements as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::available_or_skip;

    /// Counts what is announced.
    #[derive(Default)]
    struct Announced(AtomicUsize);

    impl Watch for Announced {
        fn step(&self, _: &str) {}
        fn announce(&self, steps: usize) {
            self.0.fetch_add(steps, Ordering::Relaxed);
        }
        fn is_cancelled(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_quick_form_is_planned_for_half_a_minute() {
        let measurements: Vec<_> =
            ALL.iter().map(|entry| (entry.name, (entry.measurements)(Plan::QUICK))).collect();
        assert_eq!(measurements, [("lro", 18), ("ack", 12), ("rps", 24), ("tso", 33), ("gso", 30)]);
        // A minute is promised. The rest of it is for making hosts, for warming up, and for files
        // that take longer.
        let planned = planned(&ALL.iter().collect::<Vec<_>>(), Plan::QUICK);
        assert_eq!(planned, Duration::from_millis(29_250));
        assert!(planned * 2 < Duration::from_secs(60));
    }

    #[test]
    fn what_is_planned_is_what_is_measured() {
        let plan = Plan { rounds: 1, time: Duration::from_millis(20), quick: true };
        for entry in ALL {
            let announced = Announced::default();
            if available_or_skip((entry.live)(&Session::new(plan, &announced))).is_some() {
                assert_eq!(announced.0.into_inner(), (entry.measurements)(plan), "{}", entry.name);
            }
        }
    }
}
