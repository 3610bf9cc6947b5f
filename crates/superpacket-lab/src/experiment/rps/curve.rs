//! Simulated scaling of steering to 64 CPUs.

use crate::experiment::{Column, Form, Plot, Ratio, Row, Table};
use crate::simulation::{Costs, DRIVER_SHARE, MeasuredLoad, Setup, simulate};

/// Number of CPUs that share a cache; with several receive queues, each queue serves as many.
const GROUP: usize = 8;

/// Numbers of CPUs or workers to simulate.
const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Returns two tables: transactions of kernel TCP on the original report's Intel machine if it had
/// more CPUs, and packets per second of this project's workers.
pub(super) fn tables() -> [Table; 2] {
    [processes(), workers()]
}

fn processes() -> Table {
    let measured =
        MeasuredLoad { cpus: 8, queues: 1, transactions_per_second: 108_000.0, utilisation: 0.33 };
    let costs = Costs::calibrated(&measured, DRIVER_SHARE);
    let rate = |setup: &Setup| {
        // The original report's number of connections, increased to keep more CPUs busy.
        let connections = 500.max(64 * setup.cpus as u32);
        simulate(&setup.clone().with_connections(connections), 20_000_000, 40_000_000)
            .transactions_per_second
    };
    let rows = SIZES.map(|cpus| {
        let one = Setup { cache_group: GROUP, ..Setup::new(cpus, 1, costs) };
        let several = Setup { cache_group: GROUP, ..Setup::new(cpus, cpus.div_ceil(GROUP), costs) };
        let figures = [
            rate(&one),
            rate(&one.clone().with_rps()),
            rate(&one.with_cache_aware_rps()),
            rate(&several),
            rate(&several.clone().with_cache_aware_rps()),
        ];
        Row {
            ratio: Some(Ratio::exact("one queue", "all", figures[4] / figures[0])),
            ..Row::exact("", cpus_named(cpus), &figures)
        }
    });
    let column = |name, title| Column { name, title, unit: "1/s", digits: 0 };
    Table {
        title: "The same Intel machine with more CPUs: transactions a second".into(),
        form: Form::Simulated,
        columns: vec![
            column("one_queue", "one queue"),
            column("rps", "one queue, RPS: all others"),
            column("rps_near", "one queue, RPS: same cache"),
            column("queues", "a queue for 8 CPUs"),
            column("all", "a queue for 8 CPUs, RPS: same cache"),
        ],
        rows: rows.into(),
        rounds: 1,
        plot: curves("CPUs", "transactions per second"),
        made: None,
    }
}

/// Returns a plot of all columns over [`SIZES`], with these titles of the axes.
fn curves(over: &'static str, values: &'static str) -> Plot {
    Plot::Curves { over, places: SIZES.map(|size| size as f64).into(), values }
}

fn workers() -> Table {
    let rate = |workers, receiving| {
        simulate(&setup(workers, receiving), 10_000_000, 4_000_000).transactions_per_second
    };
    let alone = rate(0, 1);
    let rows = SIZES.map(|workers| {
        let figures = [rate(workers, 1), rate(workers, workers.div_ceil(GROUP))];
        let name = format!("{workers} worker{}", if workers == 1 { "" } else { "s" });
        Row {
            ratio: Some(Ratio::exact("in place, on one CPU", "several", figures[1] / alone)),
            ..Row::exact("", name, &figures)
        }
    });
    let column = |name, title| Column { name, title, unit: "1/s", digits: 0 };
    Table {
        title: format!(
            "This project's workers, 1 us of work a packet: packets a second ({alone:.0} in place, on one CPU)"
        ),
        form: Form::Simulated,
        columns: vec![column("one", "one receiving CPU"), column("several", "one for 8 workers")],
        rows: rows.into(),
        rounds: 1,
        plot: curves("workers", "packets per second"),
        made: None,
    }
}

/// Returns a setup in which each receiving CPU shares a cache with the workers that it feeds. The
/// load is always high enough to keep them busy.
fn setup(workers: usize, receiving: usize) -> Setup {
    let cpus = workers + receiving;
    let setup = Setup {
        cache_group: cpus / receiving,
        client_delay: 10_000,
        ..Setup::new(cpus, receiving, Costs::WORKERS)
    };
    let setup = setup.with_connections(4000);
    if workers == 0 { setup } else { setup.with_cache_aware_rps() }
}

fn cpus_named(cpus: usize) -> String {
    format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" })
}
