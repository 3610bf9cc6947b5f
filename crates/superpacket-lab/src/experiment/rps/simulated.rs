//! The source's machines: calibrated by its figures without RPS, simulated with it.

use superpacket_steer::CpuMask;

use super::{CPU, TRANSACTIONS, exact_row};
use crate::experiment::{Column, Form, Mark, Ratio, Row, Side, Table};
use crate::simulation::{Costs, DRIVER_SHARE, Measured, Outcome, Setup, simulate};

/// Simulated before anything is counted, and while it is, in nanoseconds.
const WARM_UP: u64 = 20_000_000;
const TIME: u64 = 100_000_000;

/// The same for figures of which two digits matter.
const SHORT: u64 = 30_000_000;

/// A machine of the source, and what is simulated on it.
struct Machine {
    title: &'static str,
    measured: Measured,
    rows: &'static [(&'static str, Change, Option<[f64; 2]>)],
    /// The row that the mark is about, and the mark.
    mark: (usize, &'static str, f64),
}

/// What differs from the first row.
#[derive(Clone, Copy)]
enum Change {
    Nothing,
    /// Twice the receive queues.
    TwiceTheQueues,
    /// A mask of all CPUs.
    All,
    /// All CPUs that no queue interrupts.
    Spared,
    /// Those of them that share a cache with the interrupted one.
    Near,
    /// All that no queue interrupts, and RFS.
    Rfs,
}

const MACHINES: [Machine; 3] = [
    Machine {
        title: "e1000e on 8 core Intel: one receive queue",
        measured: Measured { cpus: 8, queues: 1, transactions_per_second: 108_000.0, utilisation: 0.33 },
        rows: &[
            ("Without RPS", Change::Nothing, Some([108_000.0, 33.0])),
            ("With RPS, mask fe", Change::Spared, Some([311_000.0, 64.0])),
            ("With RPS, mask ff", Change::All, None),
            ("With RPS, mask 0e: CPUs that share a cache", Change::Near, None),
            ("With RPS, mask fe, and RFS", Change::Rfs, None),
        ],
        mark: (1, "rps: one receive queue on 8 CPUs, RPS against none", 2.9),
    },
    Machine {
        title: "forcedeth on 16 core AMD: one receive queue",
        measured: Measured { cpus: 16, queues: 1, transactions_per_second: 156_000.0, utilisation: 0.15 },
        rows: &[
            ("Without RPS", Change::Nothing, Some([156_000.0, 15.0])),
            ("With RPS, mask fffe", Change::Spared, Some([404_000.0, 49.0])),
            ("With RPS, mask ffff", Change::All, None),
            ("With RPS, mask 000e: CPUs that share a cache", Change::Near, None),
            ("With RPS, mask fffe, and RFS", Change::Rfs, None),
        ],
        mark: (1, "rps: one receive queue on 16 CPUs, RPS against none", 2.6),
    },
    Machine {
        title: "bnx2x on 16 core AMD: several receive queues",
        measured: Measured { cpus: 16, queues: 4, transactions_per_second: 567_000.0, utilisation: 0.61 },
        rows: &[
            ("Without RPS (4 HW RX queues)", Change::Nothing, Some([567_000.0, 61.0])),
            ("Without RPS (8 HW RX queues)", Change::TwiceTheQueues, Some([738_000.0, 96.0])),
            ("With RPS (4 HW RX queues), mask eeee", Change::Spared, Some([854_000.0, 76.0])),
            ("With RPS (4 HW RX queues), masks of CPUs that share a cache", Change::Near, None),
            ("With RPS (4 HW RX queues), mask eeee, and RFS", Change::Rfs, None),
        ],
        mark: (2, "rps: 4 receive queues and RPS against 4 queues", 1.5),
    },
];

const COLUMNS: [Column; 4] = [
    TRANSACTIONS,
    CPU,
    Column { name: "ipis", title: "IPIs / 1000", unit: "", digits: 0 },
    Column { name: "imbalance", title: "imbalance", unit: "", digits: 2 },
];

impl Machine {
    fn setup(&self, change: Change, driver_share: f64) -> Setup {
        let Measured { cpus, queues, .. } = self.measured;
        let costs = Costs::calibrated(&self.measured, driver_share);
        let setup = Setup::new(cpus, queues, costs);
        match change {
            Change::Nothing => setup,
            Change::TwiceTheQueues => Setup::new(cpus, 2 * queues, costs),
            Change::All => setup.with_mask(&CpuMask::first_cpus(cpus)),
            Change::Spared => setup.with_rps(),
            Change::Near => setup.with_cache_aware_rps(),
            Change::Rfs => setup.with_rps().with_rfs(),
        }
    }

    fn run(&self, change: Change) -> Outcome {
        simulate(&self.setup(change, DRIVER_SHARE), WARM_UP, TIME)
    }

    fn table(&self) -> (Table, Mark) {
        let outcomes: Vec<Outcome> = self.rows.iter().map(|(_, change, _)| self.run(*change)).collect();
        let base = &outcomes[0];
        let gain = |outcome: &Outcome| outcome.transactions_per_second / base.transactions_per_second;
        let rows = self.rows.iter().zip(&outcomes).enumerate().map(|(index, ((name, _, source), outcome))| {
            let [rate, cpu] = source.map_or([None; 2], |source| source.map(Some));
            let compared = index > 0;
            Row {
                source: vec![rate, cpu, None, None],
                ratio: compared.then(|| Ratio::exact(self.rows[0].0, TRANSACTIONS.name, gain(outcome))),
                source_ratio: rate.filter(|_| compared).map(|rate| rate / self.measured.transactions_per_second),
                ..exact_row(*name, &figures(outcome))
            }
        });
        let (row, name, target) = self.mark;
        let mark = Mark::exact(name, Form::Simulated, gain(&outcomes[row]), Side::AtLeast, target);
        let table = Table {
            title: self.title.into(),
            form: Form::Simulated,
            columns: COLUMNS.into(),
            rows: rows.collect(),
            rounds: 1,
            plot: Some(0),
            made: None,
        };
        (table, mark)
    }
}

fn figures(outcome: &Outcome) -> [f64; 4] {
    let ipis = outcome.counts.ipis as f64 * 1000.0 / outcome.counts.transactions.max(1) as f64;
    [outcome.transactions_per_second, outcome.utilisation * 100.0, ipis, outcome.imbalance()]
}

/// The three machines, and a mark on each.
pub(super) fn tables() -> (Vec<Table>, Vec<Mark>) {
    MACHINES.iter().map(Machine::table).unzip()
}

/// What the figures rest on.
pub(super) fn notes() -> Vec<String> {
    let gains = |share: f64| {
        let gains = MACHINES.map(|machine| {
            let rate = |change| simulate(&machine.setup(change, share), WARM_UP, SHORT).transactions_per_second;
            format!("{:.2}x", rate(Change::Spared) / rate(Change::Nothing))
        });
        format!("{:.0} %: {}", share * 100.0, gains.join(", "))
    };
    vec![
        "Each machine is calibrated by its first row, which therefore comes out as in the source; all other rows are predicted.".into(),
        format!(
            "The source does not tell which part of the receive work is the driver's, and with one queue the gain hangs on it. It is taken to be {:.0} %; its figures say at most 35 % and 39 %. \
             Gains of the three machines with RPS, if it is {}.",
            DRIVER_SHARE * 100.0,
            [0.25, 0.35, 0.4].map(gains).join("; "),
        ),
        "The source's machines spent more CPU time on a transaction the more queues interrupted them (17 us with 4 queues, 21 with 8, 14 with RPS) and did not reach what the simulation says of \
         8 queues: locks and caches of that time are not simulated."
            .into(),
    ]
}
