//! Where the CPU time of a load went: one account, kept alike by every live experiment.

use std::fs;
use std::time::Duration;

use super::report::{Column, Figure, Form, Row, Table};
use super::stage::task_time;
use crate::cpu::{CpuTime, CpuUsage};
use crate::error::{Context, LabError};
use crate::load::{BulkReport, TransactionReport, UdpReport, service_demand};
use crate::paired::Summary;

/// What is shown of every load.
pub(crate) const COLUMNS: [Column; 5] = [
    Column { name: "sender_cpu", title: "sender CPU", unit: "%", digits: 0 },
    Column { name: "receiver_cpu", title: "receiver CPU", unit: "%", digits: 0 },
    Column { name: "bridge_cpu", title: "bridge CPU", unit: "%", digits: 0 },
    Column { name: "machine_cpu", title: "whole machine", unit: "%", digits: 0 },
    Column { name: "service_demand", title: "all three", unit: "us/KB", digits: 3 },
];

/// How the columns of [`COLUMNS`] came about, for a reader.
pub(crate) const NOTE: &str = "CPU is that of the sending program's thread, of the receiving program's thread and of the bridge's threads, in percent of one CPU; of the whole machine, in \
     percent of all its CPUs, with whatever else runs there. us/KB is the CPU time of sender, receiver and bridge for 1,024 bytes of payload. What a kernel does with a packet counts where it is \
     done: the sender's acknowledgements and most of the receiver's TCP run in the bridge's send calls.";

/// CPU time that a load took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    /// Of the sending program's thread, in percent of one CPU.
    pub(crate) sender: f64,
    /// Of the receiving program's thread, in percent of one CPU.
    pub(crate) receiver: f64,
    /// Of the bridge's threads, in percent of one CPU; `None` where the kernel's bridge, which has
    /// none, joined the hosts.
    pub(crate) bridge: Option<f64>,
    /// Of the whole machine, in percent of all its CPUs.
    pub(crate) machine: f64,
    /// Of sender, receiver and bridge for the payload, in microseconds per 1,024 bytes: a
    /// neighbour's is not in it.
    pub(crate) demand: f64,
    /// The part of the machine's CPU time that others had meanwhile, 0 to 1: other programs, and a
    /// hypervisor's other guests.
    pub(crate) others: f64,
}

/// What every load reports, whatever it carried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Payload bytes that arrived.
    pub(crate) bytes: u64,
    /// How long that took, in seconds.
    pub(crate) seconds: f64,
    /// CPU time of the sending end.
    pub(crate) sender: Duration,
    /// CPU time of the receiving end.
    pub(crate) receiver: Duration,
    /// The machine's CPUs meanwhile.
    pub(crate) machine: CpuUsage,
}

impl From<&BulkReport> for Load {
    /// Of the forward direction, which is the only one that experiments use.
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

impl From<&UdpReport> for Load {
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

impl Load {
    /// Of requests and answers that are so many bytes together; the client is the sender.
    pub(crate) fn transactions(report: &TransactionReport, bytes: u64) -> Self {
        let TransactionReport { transactions, seconds, client, server, machine, .. } = report;
        let bytes = transactions * bytes;
        Self {
            bytes,
            seconds: *seconds,
            sender: client.total(),
            receiver: server.total(),
            machine: machine.total,
        }
    }
}

/// CPU time of this process and of the threads of its bridges that move packets, up to now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    process: Duration,
    bridge: Duration,
}

impl Clocks {
    /// Reads them.
    ///
    /// # Errors
    /// [`LabError::System`] where `/proc` cannot be read.
    pub(crate) fn now() -> Result<Self, LabError> {
        Ok(Self { process: CpuTime::of_this_process().total(), bridge: bridge_time()? })
    }

    /// What a load took that ran since these were read; the bridges must be those of then.
    ///
    /// # Errors
    /// As [`Clocks::now`].
    pub(crate) fn spent(&self, load: &Load) -> Result<Spent, LabError> {
        let now = Self::now()?;
        // A thread that has ended takes its time with it.
        let [process, bridge] = [(now.process, self.process), (now.bridge, self.bridge)]
            .map(|(now, then)| now.saturating_sub(then));
        Ok(Spent::new(load, process, bridge))
    }
}

impl Spent {
    fn new(load: &Load, process: Duration, bridge: Duration) -> Self {
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

/// CPU time of the bridges' threads, by what the scheduler counts: a clock tick is a long time in a
/// short measurement.
fn bridge_time() -> Result<Duration, LabError> {
    let mut time = Duration::ZERO;
    for task in fs::read_dir("/proc/self/task").context(|| "/proc/self/task".into())?.flatten() {
        // A thread may end between the listing and the reading.
        if fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.starts_with("superpacket-"))
        {
            time += task_time(&task.path()).unwrap_or_default();
        }
    }
    Ok(time)
}

/// The figures of [`COLUMNS`].
pub(crate) fn figures<'a>(rounds: impl Iterator<Item = &'a Spent> + Clone) -> [Option<Figure>; 5] {
    let figure = |value: fn(&Spent) -> Option<f64>| {
        let values: Vec<f64> = rounds.clone().filter_map(value).collect();
        (!values.is_empty()).then(|| Figure::from(Summary::new(&values)))
    };
    [
        figure(|spent| Some(spent.sender)),
        figure(|spent| Some(spent.receiver)),
        figure(|spent| spent.bridge),
        figure(|spent| Some(spent.machine)),
        figure(|spent| Some(spent.demand)),
    ]
}

/// A row of [`table`].
pub(crate) fn row<'a>(
    group: impl Into<String>,
    name: impl Into<String>,
    rounds: impl Iterator<Item = &'a Spent> + Clone,
) -> Row {
    let figures = figures(rounds).into();
    Row {
        group: group.into(),
        name: name.into(),
        figures,
        source: Vec::new(),
        ratio: None,
        source_ratio: None,
    }
}

/// The account as a table of its own, for experiments whose source's form has no room for it.
pub(crate) fn table(rows: Vec<Row>, rounds: usize) -> Table {
    Table {
        title: "Where the CPU time went".into(),
        form: Form::Live,
        columns: COLUMNS.into(),
        rows,
        rounds,
        plot: None,
        made: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        let machine = CpuUsage { user: 1.0, system: 2.0, idle: 1.0, ..CpuUsage::default() };
        let milliseconds = Duration::from_millis;
        Load {
            bytes: 1024 * 1000,
            seconds: 2.0,
            sender: milliseconds(500),
            receiver: milliseconds(1000),
            machine,
        }
    }

    #[test]
    fn every_second_of_cpu_is_somebodys() {
        let spent = Spent::new(&load(), Duration::from_secs(2), Duration::from_millis(300));
        assert_eq!(
            (spent.sender, spent.receiver, spent.bridge, spent.machine),
            (25.0, 50.0, Some(15.0), 75.0)
        );
        // 1.8 s for 1,000 KB; of the machine's 4 s, 3 were busy, and 2 of them this process's.
        assert!(
            (spent.demand - 1800.0).abs() < 1e-9 && (spent.others - 0.25).abs() < 1e-9,
            "{spent:?}"
        );
        assert_eq!(
            Spent::new(&Load::default(), Duration::ZERO, Duration::ZERO).demand,
            0.0,
            "nothing carried"
        );
    }

    #[test]
    fn a_row_has_a_figure_for_each_column_but_for_threads_that_are_not_there() {
        let ours = Spent::new(&load(), Duration::from_secs(2), Duration::from_millis(300));
        let kernels = Spent { bridge: None, ..ours };
        let filled = |spent: Spent| figures([spent; 3].iter()).map(|figure| figure.is_some());
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
                let time = bridge_time();
                end.wait();
                time
            })?;
            assert!(
                time >= Duration::from_millis(30),
                "40 ms of this thread, and other tests' bridges: {time:?}"
            );
            Ok(())
        })
    }
}
