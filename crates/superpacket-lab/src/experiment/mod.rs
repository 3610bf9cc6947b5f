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
    /// Name of the experiment: `lro`, `ack`, `rps`, `tso` or `gso`.
    pub name: &'static str,
    /// Heading of the experiment in a short report: the meaning of its ratios, and the original
    /// report.
    pub headline: &'static str,
    /// The original report: author, subject and year of the message that the experiment repeats.
    pub source: &'static str,
    /// Summary of the experiment's procedure, in a line or two.
    pub summary: &'static str,
    /// Runs the experiment between live hosts. Fails with [`LabError::Forbidden`] or
    /// [`LabError::Unsupported`] if this machine cannot run it, and with [`LabError::Cancelled`] if
    /// the session was cancelled.
    pub live: fn(&Session<'_>) -> Result<Experiment, LabError>,
    /// Returns the maximum number of measurements that `live` performs. Each takes [`Plan::time`],
    /// except that a file transfer takes as long as its file needs.
    pub measurements: fn(Plan) -> usize,
    /// Runs the experiment on the model NIC or in a simulation. The result is the same in every
    /// run, and takes about a second.
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

    /// An observer that sums the announced numbers of measurements.
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
