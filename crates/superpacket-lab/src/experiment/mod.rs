//! Experiments that repeat measurements of five messages to kernel mailing lists (2005 to 2010).
//! Comments call the message that an experiment repeats its original report.
//!
//! Each experiment has a live form, with kernel TCP between hosts through ports, engine and bridge.
//! Its model form runs on the model NIC without kernel and clock, and always gives the same result.
//! An experiment is a module here with an [`Entry`]; [`ALL`] lists them.

mod ack;
mod cpu_costs;
mod gso;
mod lro;
mod plan;
mod report;
mod rps;
mod segmentation;
mod testbed;
mod tso;

pub use plan::{Cpus, Plan, Session, Unwatched, Variant, Watch};
pub use report::{Column, Experiment, Figure, Form, FullCpu, Mark, Plot, Ratio, Row, Side, Table};

use std::time::Duration;

use crate::error::LabError;

/// An experiment that can be run, and its description.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// `lro`, `ack`, `rps`, `tso` or `gso`.
    pub name: &'static str,
    /// The meaning of the experiment's ratios, and the original report, for a line of a short
    /// report.
    pub headline: &'static str,
    /// The original report: author, subject and year of the message that the experiment repeats.
    pub source: &'static str,
    /// Summary of the experiment's procedure, in a line or two.
    pub summary: &'static str,
    /// Measures between live hosts. [`LabError::Forbidden`] and [`LabError::Unsupported`] mean that
    /// this machine cannot run it, [`LabError::Cancelled`] that the session was cancelled.
    pub live: fn(&Session<'_>) -> Result<Experiment, LabError>,
    /// Returns the maximum number of measurements of the live form. Each takes [`Plan::time`]; file
    /// transfers take the time that the file needs.
    pub measurements: fn(Plan) -> usize,
    /// Counts on the model NIC, or simulates. The result is the same in every run, after about a
    /// second.
    pub model: fn() -> Result<Experiment, LabError>,
}

/// All experiments, in reading order.
pub const ALL: &[Entry] = &[lro::ENTRY, ack::ENTRY, rps::ENTRY, tso::ENTRY, gso::ENTRY];

/// Returns the experiment of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}

/// Returns the time that the measurements of these experiments take. Preparation and whole-file
/// transfers take additional time.
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

    /// Counts announced measurements.
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
        // The promise is one minute. The rest is for creating hosts, warming up, and large files.
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
