//! The command line of `superpacket lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use superpacket_lab::experiment::{ALL, Cpus, Entry, Plan, find};

use crate::cpus::CpuList;

/// The argument that selects all experiments.
const EVERY: &str = "all";

/// The arguments of `superpacket lab`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LabArguments {
    /// Experiment to run, or all
    #[arg(value_name = "EXPERIMENT", value_parser = PossibleValuesParser::new(ALL.iter().map(|entry| entry.name).chain([EVERY])))]
    pub(super) experiment: String,
    /// Fewer and shorter rounds: under a minute for all experiments
    #[arg(long)]
    pub(super) quick: bool,
    /// Measurements of each variant [default: 10; 3 with --quick]; ratios need 3 or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), allow_negative_numbers = true)]
    pub(super) rounds: Option<u16>,
    /// Seconds per measurement, 0.05 to 60 [default: 1; 0.25 with --quick]
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    pub(super) seconds: Option<Duration>,
    /// Run the sending programs on these CPUs: a list like 0,2-3 [default: any; in ack, one that no
    /// other program uses]
    #[arg(long, value_name = "CPUS", value_parser = CpuList::read)]
    pub(super) sender_cpus: Option<CpuList>,
    /// Run the receiving programs on these CPUs [default: any; in ack, any but the sender's]
    #[arg(long, value_name = "CPUS", value_parser = CpuList::read)]
    pub(super) receiver_cpus: Option<CpuList>,
    /// Run the bridge's threads on these CPUs; in rps, the masks consist of them [default: any; in
    /// ack, any but the sender's]
    #[arg(long, value_name = "CPUS", value_parser = CpuList::read)]
    pub(super) bridge_cpus: Option<CpuList>,
    /// Only results that are the same in every run: counts on the model NIC and simulations
    #[arg(long, conflicts_with_all = ["quick", "rounds", "seconds", "sender_cpus", "receiver_cpus", "bridge_cpus"])]
    pub(super) model: bool,
    /// Print all tables, marks and notes, as wide as the terminal; without it the results are
    /// summarized on a screen of 80 columns
    #[arg(long, conflicts_with = "json")]
    pub(super) full: bool,
    /// Write an HTML page with tables and plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write a Markdown page with all tables
    #[arg(long, value_name = "FILE")]
    pub(super) markdown: Option<PathBuf>,
    /// Write each plot as a file lab-EXPERIMENT-NUMBER.svg in this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub(super) svg: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(short, long)]
    pub(super) json: bool,
    /// Write the report as JSON to a file, in addition to the printed report
    #[arg(long, value_name = "FILE")]
    pub(super) json_file: Option<PathBuf>,
    /// Show no progress bar
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl LabArguments {
    /// Returns the experiments to run.
    pub(super) fn entries(&self) -> Vec<&'static Entry> {
        if self.experiment == EVERY {
            ALL.iter().collect()
        } else {
            find(&self.experiment).into_iter().collect()
        }
    }

    /// Returns the number and length of the rounds.
    pub(super) fn plan(&self) -> Plan {
        let plan = if self.quick { Plan::QUICK } else { Plan::FULL };
        Plan {
            rounds: self.rounds.map_or(plan.rounds, usize::from),
            time: self.seconds.unwrap_or(plan.time),
            ..plan
        }
    }

    /// Returns the CPUs to run on.
    pub(super) fn cpus(&self) -> Cpus {
        let numbers = |list: &Option<CpuList>| CpuList::numbers(list.as_ref());
        Cpus {
            sender: numbers(&self.sender_cpus),
            receiver: numbers(&self.receiver_cpus),
            bridge: numbers(&self.bridge_cpus),
        }
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
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["0", "-1", "61", "nan", "inf", "", "1s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
