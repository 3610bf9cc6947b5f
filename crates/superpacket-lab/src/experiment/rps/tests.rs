use std::sync::Mutex;

use superpacket_bridge::topology::Topology;
use superpacket_steer::CpuMask;

use super::*;
use crate::error::available_or_skip;
use crate::experiment::{Cpus, Form, Plan, Row, Session, Watch};

/// Records the descriptions of measurements, and never cancels.
#[derive(Default)]
struct Steps(Mutex<Vec<String>>);

impl Watch for Steps {
    fn step(&self, what: &str) {
        self.0.lock().expect("no panic").push(what.into());
    }

    fn announce(&self, _: usize) {}

    fn is_cancelled(&self) -> bool {
        false
    }
}

fn values(row: &Row) -> Vec<f64> {
    row.figures.iter().map(|figure| figure.expect("every cell is filled").value).collect()
}

/// Returns the table whose title begins with `title`.
fn table<'a>(experiment: &'a Experiment, title: &str) -> &'a super::super::Table {
    experiment.tables.iter().find(|table| table.title.starts_with(title)).expect(title)
}

#[test]
fn simulated_figures_are_exact_and_meet_the_marks() {
    let experiment = model().expect("the model NIC needs nothing but descriptors");
    // Value and range in thousandths.
    let marks: Vec<_> = experiment
        .marks
        .iter()
        .map(|mark| (mark.value, mark.spread, mark.target, mark.met))
        .collect();
    let thousandths = |value: f64| (value * 1000.0).round();
    let marks: Vec<_> = marks
        .into_iter()
        .map(|(value, [low, high], target, met)| {
            (value.map(thousandths), [thousandths(low), thousandths(high)], target, met)
        })
        .collect();
    assert_eq!(
        marks,
        [
            (Some(3180.0), [2412.0, 3377.0], 2.9, None),
            (Some(3026.0), [2310.0, 4431.0], 2.6, None),
            (Some(1835.0), [1820.0, 1847.0], 1.5, Some(true)),
            (Some(920.0), [910.0, 924.0], 1.0, Some(false)),
        ]
    );
    for mark in &experiment.marks {
        assert_eq!(
            (mark.form, mark.met.is_none()),
            (Form::Simulated, mark.reason.is_some()),
            "{mark:?}"
        );
    }
    // Thousands of transactions per second: simulated, and the original report's.
    type Source<'a> = &'a [Option<f64>];
    let expected: [(&str, &[f64], Source<'_>); 3] = [
        (
            "e1000e",
            &[108.0, 343.39, 267.39, 346.87, 340.9],
            &[Some(108.0), Some(311.0), None, None, None],
        ),
        (
            "forcedeth",
            &[156.01, 472.12, 413.57, 492.8, 468.37],
            &[Some(156.0), Some(404.0), None, None, None],
        ),
        (
            "bnx2x",
            &[567.07, 1131.43, 1040.62, 1082.34, 1115.42],
            &[Some(567.0), Some(738.0), Some(854.0), None, None],
        ),
    ];
    for (title, rates, source) in expected {
        let table = table(&experiment, title);
        assert_eq!(
            table
                .rows
                .iter()
                .map(|row| row.figures[0].map_or(0.0, |figure| thousandths(figure.value) / 1000.0))
                .collect::<Vec<_>>(),
            rates,
            "{title}"
        );
        assert_eq!(
            table.rows.iter().map(|row| row.source[0]).collect::<Vec<_>>(),
            source,
            "{title}"
        );
        for row in &table.rows {
            assert_eq!(
                (row.figures.len(), row.source.len()),
                (table.columns.len(), table.columns.len()),
                "{}",
                row.name
            );
        }
    }
    let ratios = experiment
        .tables
        .iter()
        .flat_map(|table| &table.rows)
        .filter_map(|row| row.ratio.as_ref()?.value);
    assert!(
        ratios.clone().all(|ratio| ratio > 0.5 && ratio.is_finite()),
        "{:?}",
        ratios.collect::<Vec<_>>()
    );
    // One queue scales until its CPU is saturated; a queue per 8 CPUs scales further.
    let curve = table(&experiment, "The same Intel machine");
    let at_64 = values(curve.rows.last().expect("64 CPUs"));
    assert!(at_64[1] < 3.3 * at_64[0] && at_64[4] > 25.0 * at_64[0], "{at_64:?}");
    let workers = table(&experiment, "This project's workers");
    let at_64 =
        workers.rows.last().expect("64 workers").ratio.as_ref().and_then(|ratio| ratio.value);
    assert!(at_64.is_some_and(|ratio| (60.0..68.0).contains(&ratio)), "{at_64:?}");
}

#[test]
fn packets_on_the_model_nic_are_counted_exactly() {
    let table = card::table().expect("the model NIC needs nothing but descriptors");
    let counts: Vec<_> = table
        .rows
        .iter()
        .map(|row| {
            values(row).iter().map(|value| (value * 1000.0).round() / 1000.0).collect::<Vec<_>>()
        })
        .collect();
    // Columns: packets, parsed by the card, hashed in software, bytes copied, checksums, CPUs,
    // packets of the busiest, imbalance, wake-ups.
    let expected = [
        [4000.0, 4000.0, 0.0, 0.0, 0.0, 1.0, 4000.0, 1.0, 0.0],
        [4000.0, 4000.0, 0.0, 0.0, 0.0, 15.0, 280.0, 1.05, 943.0],
        // The same hash in software selects the same CPUs.
        [4000.0, 0.0, 4000.0, 0.0, 0.0, 15.0, 280.0, 1.05, 943.0],
        [4000.0, 4000.0, 0.0, 0.0, 0.0, 4.0, 1008.0, 1.008, 0.0],
        [4000.0, 4000.0, 0.0, 0.0, 0.0, 12.0, 352.0, 1.056, 782.0],
        [4000.0, 4000.0, 0.0, 0.0, 0.0, 8.0, 512.0, 1.024, 0.0],
    ];
    assert_eq!(counts, expected);
}

#[test]
fn the_same_load_runs_on_this_machine() {
    let steps = Steps::default();
    let plan = Plan { rounds: 2, time: std::time::Duration::from_millis(60), quick: true };
    let Some(experiment) = available_or_skip(live::run(&Session::new(plan, &steps))) else {
        return;
    };
    let [many, one, fullness, accounts] = &experiment.tables[..] else {
        panic!("{:?}", experiment.tables)
    };
    for row in many.rows.iter().chain(&one.rows) {
        println!("   {} {:60} {:?} {:?}", row.group, row.name, row.figures, row.ratio);
        let figures: Vec<_> =
            row.figures.iter().map(|figure| figure.map(|figure| figure.value)).collect();
        let [Some(per_second), Some(cpu), steered, wake_ups] = figures[..] else {
            panic!("{row:?}")
        };
        assert!(per_second > 0.0 && cpu > 0.0 && cpu <= 100.0, "{row:?}");
        // A bridge with a mask hands packets over, and wakes its workers less often than once per
        // packet.
        let has_mask = row.group == "this bridge" && row.name.starts_with("with RPS");
        assert_eq!((steered.is_some(), wake_ups.is_some()), (has_mask, has_mask), "{row:?}");
        // A mask that does not adapt steers nearly all packets in every round.
        let adapts = row.name.ends_with(", adapting");
        assert!(row.figures[2].is_none_or(|steered| adapts || steered.low > 90.0), "{row:?}");
        assert!(wake_ups.is_none_or(|wake_ups| wake_ups < 1000.0), "{row:?}");
    }
    assert_eq!((many.rows.len(), one.rows.len()), (5, 3));
    for row in &accounts.rows {
        // Sender, receiver, bridge, whole machine, us/KB, us/Tr; the kernel's bridge has no
        // threads.
        let filled: Vec<_> = row.figures.iter().map(Option::is_some).collect();
        assert_eq!(filled, [true, true, row.group == "this bridge", true, true, true], "{row:?}");
    }
    for row in &fullness.rows {
        // The queue's CPU, the load's, the idlest.
        let filled: Vec<_> = row.figures.iter().map(Option::is_some).collect();
        assert_eq!(filled, [row.group == "this bridge", true, true], "{row:?}");
        assert!(row.full_cpu.is_some(), "{row:?}");
    }
    assert_eq!(fullness.rows.len(), 8);
    assert_eq!(accounts.rows.len(), 8);
    assert_eq!(steps.0.lock().expect("no panic").len(), accounts.rows.len() * plan.rounds);
}

#[test]
fn several_queues_and_divided_cpus_carry_the_load() {
    let Ok(topology) = Topology::read() else { return };
    let usable = topology.usable();
    let (Some(first), Some(last)) = (usable.first(), usable.last()) else { return };
    let plan = Plan { rounds: 1, time: std::time::Duration::from_millis(60), quick: false };
    let steps = Steps::default();
    for cpus in [
        Cpus::default(),
        Cpus {
            sender: vec![first.number()],
            receiver: vec![first.number()],
            bridge: vec![last.number()],
        },
    ] {
        let mask: CpuMask =
            if cpus.bridge.is_empty() { usable.clone() } else { [last].into_iter().collect() };
        let configurations = variants::configurations(&mask, &topology, plan.quick);
        let session = Session::new(plan, &steps).with_cpus(&cpus);
        let measured = live::measure(&configurations[variants::QUEUES_STEERED], &session);
        let Some(measured) = available_or_skip(measured) else { return };
        assert!(measured.per_second > 0.0, "{measured:?}");
        assert!(measured.steered.is_some_and(|[share, _]| share > 90.0), "{measured:?}");
    }
}
