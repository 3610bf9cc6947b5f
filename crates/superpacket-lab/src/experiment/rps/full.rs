//! Which CPUs were fully used during a measurement, and whether one had idle time left for steered
//! packets.

use std::time::Duration;

use crate::cpu::MachineUsage;
use crate::error::LabError;
use crate::experiment::cpu_costs::PollThreads;
use crate::experiment::{Column, Cpus, Figure, FullCpu, Mark};
use crate::load::TransactionReport;
use crate::paired::Summary;

/// Busy share from which a CPU counts as fully used. The remaining time is that in which a thread
/// sleeps before its next wake-up.
const FULL: f64 = 0.9;

/// Idle share from which a CPU counts as having idle time for steered packets. Short pauses add up
/// to less, and no thread can use them.
const SPARE: f64 = 0.25;

/// Columns of [`CpuShares`], for the table of CPU times.
pub(super) const COLUMNS: [Column; 3] = [
    Column { name: "queue_cpu", title: "queue's CPU", unit: "%", digits: 0 },
    Column { name: "load_cpu", title: "load's CPU", unit: "%", digits: 0 },
    Column { name: "idlest_cpu_idle", title: "idlest CPU idle", unit: "%", digits: 0 },
];

/// Explanation of [`COLUMNS`] and of [`FullCpu`] for readers.
pub(super) const NOTE: &str = "A CPU is full from 90 %. The queue's CPU is that of the bridge's busiest receiving thread, or all CPUs together that the bridge may use if they are fuller; the load's CPU is that of the busiest \
     thread of the two programs, or all CPUs together that one of them may use. Other programs count too. The kernel's bridge has no receiving thread. The idlest CPU is the one of those that may take steered packets that was idle for longest. \
     If it was idle for less than 25 % of the time without steering, the verdict is: nothing to spare.";

/// Busy and idle shares of CPUs during a measurement, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CpuShares {
    /// Busy share of the CPU that receives packets: that of the busiest poll thread, or of all of
    /// the bridge's CPUs if higher. `None` for the kernel's bridge.
    queue: Option<f64>,
    /// Busy share of the load's CPU: that of the busiest thread, or of all CPUs of one program if
    /// higher.
    load: f64,
    /// Idle share of the idlest CPU among those that may take steered packets. `None` if the kernel
    /// counts no time per CPU.
    idlest: Option<f64>,
}

impl CpuShares {
    /// Returns the CPU shares during a load. `polling` holds the CPU times of the poll threads
    /// before the load.
    ///
    /// # Errors
    /// [`LabError::System`] if `/proc` cannot be read.
    pub(super) fn of(
        report: &TransactionReport,
        cpus: &Cpus,
        polling: Option<&PollThreads>,
    ) -> Result<Self, LabError> {
        let busiest = polling.map(PollThreads::busiest_since).transpose()?;
        Ok(Self::new(report, cpus, busiest))
    }

    fn new(report: &TransactionReport, cpus: &Cpus, poll_thread: Option<Duration>) -> Self {
        let TransactionReport { machine, seconds, .. } = report;
        let idle = |cpus: &[usize]| idle_shares(machine, cpus);
        let busy = |cpus: &[usize]| {
            let shares = idle(cpus);
            if shares.is_empty() {
                return 0.0;
            }
            1.0 - shares.iter().sum::<f64>() / shares.len() as f64
        };
        let queue = poll_thread
            .map(|time| (time.as_secs_f64() / seconds.max(f64::EPSILON)).max(busy(&cpus.bridge)));
        Self {
            queue,
            load: report.busiest_thread().max(busy(&cpus.sender)).max(busy(&cpus.receiver)),
            idlest: idle(&cpus.bridge).into_iter().reduce(f64::max),
        }
    }
}

/// Returns the idle share of each given CPU for which the kernel counted any time.
fn idle_shares(machine: &MachineUsage, cpus: &[usize]) -> Vec<f64> {
    let counted = machine.cpus.iter().filter(|(number, _)| cpus.contains(number));
    counted.filter_map(|(_, usage)| usage.idle_share()).collect()
}

/// Returns the figures of a variant in percent, one for each of [`COLUMNS`], from its rounds.
pub(super) fn figures(rounds: &[CpuShares]) -> [Option<Figure>; 3] {
    let percent = |share: fn(&CpuShares) -> Option<f64>| {
        let shares: Vec<f64> = rounds.iter().filter_map(share).map(|share| share * 100.0).collect();
        (!shares.is_empty()).then(|| Figure::from(Summary::new(&shares)))
    };
    [
        percent(|shares| shares.queue),
        percent(|shares| Some(shares.load)),
        percent(|shares| shares.idlest),
    ]
}

/// Returns the CPUs that were fully used, by the medians of the rounds.
pub(super) fn full(rounds: &[CpuShares]) -> FullCpu {
    let [queue, load, _] =
        figures(rounds).map(|figure| figure.is_some_and(|figure| figure.value >= FULL * 100.0));
    match (queue, load) {
        (true, true) => FullCpu::Both,
        (true, false) => FullCpu::Queue,
        (false, true) => FullCpu::Load,
        (false, false) => FullCpu::Neither,
    }
}

/// Removes the verdict from a missed target if the rounds `without` steering left no CPU idle,
/// because steering could then gain nothing.
pub(super) fn judged(mark: Mark, without: &[CpuShares]) -> Mark {
    let [_, _, idlest] = figures(without);
    match idlest {
        Some(Figure { value, .. }) if value < SPARE * 100.0 && mark.met != Some(true) => mark
            .with_nothing_to_spare(format!(
                "nothing to spare: without steering the idlest CPU was idle for {value:.0} % of the time"
            )),
        _ => mark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{CpuTime, CpuUsage};
    use crate::experiment::{Form, Side};

    fn shares(queue: Option<f64>, load: f64, idlest: f64) -> [CpuShares; 3] {
        [CpuShares { queue, load, idlest: Some(idlest) }; 3]
    }

    #[test]
    fn shares_are_those_of_each_part_s_cpus() {
        let usage = |busy: f64| CpuUsage { user: busy, idle: 2.0 - busy, ..CpuUsage::default() };
        let thread = |milliseconds| CpuTime {
            user: Duration::from_millis(milliseconds),
            ..CpuTime::default()
        };
        let machine = MachineUsage {
            seconds: 2.0,
            // CPU 4 has counted nothing, and CPU 5 belongs to no part.
            cpus: vec![
                (0, usage(1.0)),
                (1, usage(2.0)),
                (2, usage(0.2)),
                (3, usage(1.8)),
                (4, CpuUsage::default()),
                (5, usage(0.0)),
            ],
            ..MachineUsage::default()
        };
        let report = TransactionReport {
            seconds: 2.0,
            client_threads: vec![thread(100), thread(1200)],
            server_threads: vec![thread(300)],
            machine,
            ..TransactionReport::default()
        };
        let cpus = Cpus { sender: vec![0, 1], receiver: vec![0, 2], bridge: vec![2, 3, 4] };
        let near = |found: Option<f64>, expected: f64| {
            assert!(found.is_some_and(|found| (found - expected).abs() < 1e-9), "{found:?}");
        };
        let found = CpuShares::new(&report, &cpus, Some(Duration::from_millis(1900)));
        near(found.queue, 0.95);
        near(Some(found.load), 0.75);
        near(found.idlest, 0.9);
        // All of the bridge's CPUs together are fuller than an idle poll thread.
        near(CpuShares::new(&report, &cpus, Some(Duration::ZERO)).queue, 0.5);
        assert_eq!(CpuShares::new(&report, &cpus, None).queue, None);
        // One busy thread is enough, even on CPUs that have time left.
        let idle = Cpus { sender: vec![5], receiver: vec![5], bridge: vec![4] };
        let found = CpuShares::new(&report, &idle, None);
        near(Some(found.load), 0.6);
        assert_eq!(found.idlest, None);
    }

    #[test]
    fn the_full_cpu_is_named() {
        for (queue, load, expected) in [
            (Some(0.95), 0.5, FullCpu::Queue),
            (Some(0.5), 0.95, FullCpu::Load),
            (Some(0.95), 0.95, FullCpu::Both),
            (Some(0.5), 0.5, FullCpu::Neither),
            (None, 0.95, FullCpu::Load),
            (None, 0.5, FullCpu::Neither),
        ] {
            assert_eq!(full(&shares(queue, load, 0.5)), expected, "{queue:?} {load}");
        }
    }

    #[test]
    fn a_gain_is_missed_only_if_a_cpu_had_time_for_it() {
        let mark = |value| Mark::exact("rps: gain", Form::Live, value, Side::AtLeast, 2.0);
        let judged = |value, idlest| judged(mark(value), &shares(Some(1.0), 0.5, idlest));
        let full = judged(0.8, 0.04);
        assert_eq!((full.met, full.value, full.nothing_to_spare), (None, Some(0.8), true));
        assert!(full.reason.is_some_and(|reason| reason.contains("idle for 4 % of the time")));
        let idle = judged(0.8, 0.6);
        assert_eq!((idle.met, idle.nothing_to_spare), (Some(false), false));
        let gained = judged(2.1, 0.04);
        assert_eq!((gained.met, gained.nothing_to_spare), (Some(true), false));
        // A kernel that counts no time per CPU does not excuse anything.
        let unknown = [CpuShares { idlest: None, ..CpuShares::default() }; 3];
        assert_eq!(super::judged(mark(0.8), &unknown).met, Some(false));
    }
}
