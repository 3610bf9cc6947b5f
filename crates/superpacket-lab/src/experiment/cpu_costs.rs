//! CPU time of a load by consumer, in the same form for all live experiments.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::report::{Column, Figure, Form, Row, Table};
use super::testbed::task_time;
use crate::cpu::{CpuTime, CpuUsage};
use crate::error::{Context, LabError};
use crate::load::{BulkReport, TransactionReport, UdpReport, service_demand};
use crate::paired::Summary;

/// The columns of CPU time that every live experiment shows.
pub(crate) const COLUMNS: [Column; 5] = [
    Column { name: "sender_cpu", title: "sender CPU", unit: "%", digits: 0 },
    Column { name: "receiver_cpu", title: "receiver CPU", unit: "%", digits: 0 },
    Column { name: "bridge_cpu", title: "bridge CPU", unit: "%", digits: 0 },
    Column { name: "machine_cpu", title: "whole machine", unit: "%", digits: 0 },
    Column { name: "service_demand", title: "all three", unit: "us/KB", digits: 3 },
];

/// Explanation of [`COLUMNS`] for readers.
pub(crate) const NOTE: &str = "CPU usage of the sending program's threads, the receiving program's threads and the bridge's threads is in percent of one CPU; that of the whole machine is in percent of \
     all its CPUs, including other programs. us/KB is the CPU time of sender, receiver and bridge per 1,024 bytes of payload. The kernel's work on a packet counts for the thread that runs it: \
     the sender's ACK processing and most of the receiver's TCP run in the bridge's send calls.";

/// CPU usage during a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuCosts {
    /// CPU usage of the sending program's threads, in percent of one CPU.
    pub(crate) sender: f64,
    /// CPU usage of the receiving program's threads, in percent of one CPU.
    pub(crate) receiver: f64,
    /// CPU usage of the bridge's threads, in percent of one CPU; `None` for the kernel's bridge,
    /// which has no threads.
    pub(crate) bridge: Option<f64>,
    /// CPU usage of the whole machine, in percent of all its CPUs.
    pub(crate) machine: f64,
    /// CPU time of sender, receiver and bridge together, in microseconds per 1,024 bytes of
    /// payload. Excludes other programs.
    pub(crate) demand: f64,
    /// Share of the machine's CPU time that other programs and other guests of the hypervisor used,
    /// 0 to 1.
    pub(crate) others: f64,
}

/// Payload and CPU times of any load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadTotals {
    /// Number of payload bytes received.
    pub(crate) bytes: u64,
    /// Duration of the load, in seconds of wall time.
    pub(crate) seconds: f64,
    /// CPU time of the sending program.
    pub(crate) sender: Duration,
    /// CPU time of the receiving program.
    pub(crate) receiver: Duration,
    /// Usage of all CPUs during the load.
    pub(crate) machine: CpuUsage,
}

impl From<&BulkReport> for LoadTotals {
    /// Returns the totals of the forward direction, the only one that experiments use.
    fn from(report: &BulkReport) -> Self {
        let direction = report.forward.as_ref();
        direction.map_or_else(Self::default, |direction| Self {
            bytes: direction.bytes,
            seconds: direction.seconds,
            sender: direction.sender.total(),
            receiver: direction.receiver.total(),
            machine: report.machine.total,
        })
    }
}

impl From<&UdpReport> for LoadTotals {
    fn from(report: &UdpReport) -> Self {
        let UdpReport { bytes, seconds, sender, receiver, machine, .. } = report;
        Self {
            bytes: *bytes,
            seconds: *seconds,
            sender: sender.total(),
            receiver: receiver.total(),
            machine: machine.total,
        }
    }
}

impl LoadTotals {
    /// Returns the totals of a load of transactions with `bytes` payload bytes each; the client
    /// counts as the sender.
    pub(crate) fn transactions(report: &TransactionReport, bytes: u64) -> Self {
        Self {
            bytes: report.transactions * bytes,
            seconds: report.seconds,
            sender: report.client().total(),
            receiver: report.server().total(),
            machine: report.machine.total,
        }
    }
}

/// CPU time used so far by this process, and by the packet threads of its bridges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuClocks {
    process: Duration,
    bridge: Duration,
}

impl CpuClocks {
    /// Reads the CPU times used so far.
    ///
    /// # Errors
    /// [`LabError::System`] if `/proc` cannot be read.
    pub(crate) fn now() -> Result<Self, LabError> {
        Ok(Self { process: CpuTime::of_this_process().total(), bridge: bridge_time()? })
    }

    /// Returns the CPU usage of a load that ran since these times were read. The bridges must be
    /// the same as then.
    ///
    /// # Errors
    /// Those of [`CpuClocks::now`].
    pub(crate) fn costs_of(&self, load: &LoadTotals) -> Result<CpuCosts, LabError> {
        let now = Self::now()?;
        // A finished thread no longer counts, so that the sum may have decreased.
        let [process, bridge] = [(now.process, self.process), (now.bridge, self.bridge)]
            .map(|(now, then)| now.saturating_sub(then));
        Ok(CpuCosts::new(load, process, bridge))
    }
}

impl CpuCosts {
    fn new(load: &LoadTotals, process: Duration, bridge: Duration) -> Self {
        let part = |amount: f64, whole: f64| if whole > 0.0 { amount / whole } else { 0.0 };
        let percent = |time: Duration| part(time.as_secs_f64(), load.seconds) * 100.0;
        let busy = load.machine.busy() + load.machine.stolen;
        Self {
            sender: percent(load.sender),
            receiver: percent(load.receiver),
            bridge: Some(percent(bridge)),
            machine: load.machine.utilisation() * 100.0,
            demand: service_demand(load.sender + load.receiver + bridge, load.bytes),
            others: part((busy - process.as_secs_f64()).max(0.0), busy + load.machine.idle),
        }
    }
}

/// Returns the CPU time of all threads of the bridges.
fn bridge_time() -> Result<Duration, LabError> {
    Ok(bridge_threads(|_| true)?.values().sum())
}

/// Returns the CPU time of those bridge threads whose name after `superpacket-` satisfies
/// `is_wanted`, by their `/proc` directory. Reads the scheduler's counters, because clock ticks
/// would be too coarse for short measurements.
fn bridge_threads(is_wanted: fn(&str) -> bool) -> Result<BTreeMap<PathBuf, Duration>, LabError> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").context(|| "/proc/self/task".into())?.flatten() {
        // A thread may end after it was listed.
        let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
        if name.trim_end().strip_prefix("superpacket-").is_some_and(is_wanted) {
            let time = task_time(&task.path()).unwrap_or_default();
            threads.insert(task.path(), time);
        }
    }
    Ok(threads)
}

/// CPU times used so far by the poll threads of this process's bridges, which receive the packets.
#[derive(Clone, Debug)]
pub(crate) struct PollThreads(BTreeMap<PathBuf, Duration>);

impl PollThreads {
    /// Reads the CPU times used so far.
    ///
    /// # Errors
    /// [`LabError::System`] if `/proc` cannot be read.
    pub(crate) fn now() -> Result<Self, LabError> {
        // Workers and other threads of a bridge have words in place of a number.
        bridge_threads(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())).map(Self)
    }

    /// Returns the CPU time of the thread that has used most CPU time since these times were read.
    ///
    /// # Errors
    /// Those of [`PollThreads::now`].
    pub(crate) fn busiest_since(&self) -> Result<Duration, LabError> {
        let now = Self::now()?;
        let used =
            self.0.iter().filter_map(|(path, then)| Some(now.0.get(path)?.saturating_sub(*then)));
        Ok(used.max().unwrap_or_default())
    }
}

/// Returns the medians and quartiles of the rounds, one figure for each of [`COLUMNS`].
pub(crate) fn figures<'a>(
    rounds: impl Iterator<Item = &'a CpuCosts> + Clone,
) -> [Option<Figure>; 5] {
    let figure = |value: fn(&CpuCosts) -> Option<f64>| {
        let values: Vec<f64> = rounds.clone().filter_map(value).collect();
        (!values.is_empty()).then(|| Figure::from(Summary::new(&values)))
    };
    [
        figure(|costs| Some(costs.sender)),
        figure(|costs| Some(costs.receiver)),
        figure(|costs| costs.bridge),
        figure(|costs| Some(costs.machine)),
        figure(|costs| Some(costs.demand)),
    ]
}

/// Returns a row of [`table`]: the CPU costs of one variant over its rounds.
pub(crate) fn row<'a>(
    group: impl Into<String>,
    name: impl Into<String>,
    rounds: impl Iterator<Item = &'a CpuCosts> + Clone,
) -> Row {
    Row::new(group, name, figures(rounds).into())
}

/// Returns the CPU times as a separate table, for experiments whose main table follows the original
/// report.
pub(crate) fn table(rows: Vec<Row>, rounds: usize) -> Table {
    Table::new(Form::Live, "Where the CPU time went", &COLUMNS, rows, rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> LoadTotals {
        let machine = CpuUsage { user: 1.0, system: 2.0, idle: 1.0, ..CpuUsage::default() };
        let milliseconds = Duration::from_millis;
        LoadTotals {
            bytes: 1024 * 1000,
            seconds: 2.0,
            sender: milliseconds(500),
            receiver: milliseconds(1000),
            machine,
        }
    }

    #[test]
    fn every_second_of_cpu_is_somebodys() {
        let costs = CpuCosts::new(&load(), Duration::from_secs(2), Duration::from_millis(300));
        assert_eq!(
            (costs.sender, costs.receiver, costs.bridge, costs.machine),
            (25.0, 50.0, Some(15.0), 75.0)
        );
        // 1.8 s for 1,000 KB. The machine was busy for 3 of 4 s, of which this process used 2.
        assert!(
            (costs.demand - 1800.0).abs() < 1e-9 && (costs.others - 0.25).abs() < 1e-9,
            "{costs:?}"
        );
        assert_eq!(
            CpuCosts::new(&LoadTotals::default(), Duration::ZERO, Duration::ZERO).demand,
            0.0,
            "nothing carried"
        );
    }

    #[test]
    fn a_row_has_a_figure_for_each_column_but_for_threads_that_are_not_there() {
        let ours = CpuCosts::new(&load(), Duration::from_secs(2), Duration::from_millis(300));
        let kernels = CpuCosts { bridge: None, ..ours };
        let filled = |costs: CpuCosts| figures([costs; 3].iter()).map(|figure| figure.is_some());
        assert_eq!((filled(ours), filled(kernels)), ([true; 5], [true, true, false, true, true]));
        assert_eq!(
            table(vec![row("group", "name", [ours].iter())], 3).rows[0].figures[2],
            Some(Figure::exact(15.0))
        );
    }

    #[test]
    fn time_of_a_bridges_thread_is_counted() -> Result<(), LabError> {
        let thread = std::thread::Builder::new().name("superpacket-9".into());
        let (work_done, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let worker = || {
                let start = CpuTime::of_this_thread().total();
                while CpuTime::of_this_thread().total() - start < Duration::from_millis(40) {}
                work_done.wait();
                end.wait();
            };
            let started = thread.spawn_scoped(scope, worker).context(|| "a thread".into());
            let time = started.and_then(|_| {
                work_done.wait();
                let times = bridge_time().and_then(|time| Ok((time, PollThreads::now()?)));
                end.wait();
                times
            });
            let (time, polling) = time?;
            assert!(
                polling.0.values().any(|&time| time >= Duration::from_millis(30)),
                "it is named as a poll thread is: {polling:?}"
            );
            assert!(
                time >= Duration::from_millis(30),
                "40 ms of this thread, and other tests' bridges: {time:?}"
            );
            Ok(())
        })
    }
}
