//! The command line of `superpacket lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use superpacket::steer::{Cpu, CpuMask, MAX_CPUS};
use superpacket_lab::allowed_cpus;
use superpacket_lab::experiment::{ALL, Cpus, Entry, Plan, find};

/// What stands for all experiments.
const EVERY: &str = "all";

/// `superpacket lab`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Lab {
    /// Which experiment, or all of them
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(ALL.iter().map(|entry| entry.name).chain([EVERY])))]
    pub(super) experiment: String,
    /// Fewer and shorter rounds: under a minute for all experiments
    #[arg(long)]
    pub(super) quick: bool,
    /// Measure each variant so often [default: 10; 3 with --quick]; ratios need 3 or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true)]
    pub(super) rounds: Option<u16>,
    /// Measure for so many seconds each time, 0.05 to 60 [default: 1; 0.25 with --quick]
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    pub(super) seconds: Option<Duration>,
    /// Run the sending programs on these CPUs: a list like 0,2-3 [default: any; in ack, one that nobody else uses]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub(super) sender_cpus: Option<Box<CpuMask>>,
    /// Run the receiving programs on these CPUs [default: any; in ack, any but the sender's]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub(super) receiver_cpus: Option<Box<CpuMask>>,
    /// Run the bridge's threads on these CPUs [default: any; in ack, any but the sender's]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub(super) bridge_cpus: Option<Box<CpuMask>>,
    /// Only what every run gives alike: counts on the model NIC and simulations
    #[arg(long, conflicts_with_all = ["quick", "rounds", "seconds", "sender_cpus", "receiver_cpus", "bridge_cpus"])]
    pub(super) model: bool,
    /// Write a page with tables and plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Put the tables into a Markdown file, between its lines `<!-- lab: begin -->` and `<!-- lab: end -->`
    #[arg(long, value_name = "FILE")]
    pub(super) markdown: Option<PathBuf>,
    /// Write each plot as a file lab-EXPERIMENT-NUMBER.svg in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) svg: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// No progress bar
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl Lab {
    /// What is to be run.
    pub(super) fn entries(&self) -> Vec<&'static Entry> {
        if self.experiment == EVERY { ALL.iter().collect() } else { find(&self.experiment).into_iter().collect() }
    }

    /// How much of it.
    pub(super) fn plan(&self) -> Plan {
        let plan = if self.quick { Plan::QUICK } else { Plan::FULL };
        Plan { rounds: self.rounds.map_or(plan.rounds, usize::from), time: self.seconds.unwrap_or(plan.time), ..plan }
    }

    /// Where it is run.
    pub(super) fn cpus(&self) -> Cpus {
        let numbers = |mask: &Option<Box<CpuMask>>| mask.iter().flat_map(|mask| mask.iter()).map(Cpu::number).collect();
        Cpus { sender: numbers(&self.sender_cpus), receiver: numbers(&self.receiver_cpus), bridge: numbers(&self.bridge_cpus) }
    }
}

/// CPUs on which this process may run.
fn cpus(text: &str) -> Result<Box<CpuMask>, String> {
    let mask = CpuMask::parse_list(text, MAX_CPUS).map_err(|error| error.to_string())?;
    let allowed: CpuMask = allowed_cpus().map_err(|error| error.to_string())?.into_iter().filter_map(Cpu::new).collect();
    match mask.iter().find(|cpu| !allowed.contains(*cpu)) {
        Some(cpu) => Err(format!("CPU {} may not be used by this program, only {} may", cpu.number(), allowed.list())),
        None if mask.is_empty() => Err("a list of CPUs like 0,2-3".into()),
        None => Ok(Box::new(mask)),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds @ 0.05..=60.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.05 to 60".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_those_that_there_are() {
        let first = allowed_cpus().expect("Linux says")[0];
        assert_eq!(cpus(&format!("{first}")).map(|mask| mask.iter().map(Cpu::number).collect::<Vec<_>>()), Ok(vec![first]));
        for (wrong, words) in [("", "a list of CPUs"), ("0,x-1", "\"x-1\""), ("3-1", "\"3-1\""), ("8191", "CPU 8191 may not be used")] {
            assert!(cpus(wrong).is_err_and(|error| error.contains(words)), "{wrong}: {:?}", cpus(wrong));
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["0", "-1", "61", "nan", "inf", "", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
