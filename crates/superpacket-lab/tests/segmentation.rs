//! The TSO and GSO experiments between live hosts. Frame and packet counts must hold on any
//! machine, however busy; for speeds only the order is asserted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use superpacket_lab::experiment::{Entry, Experiment, Form, Mark, Plan, Row, Session, Watch, find};
use superpacket_lab::{LabError, available_or_skip, enter_user_namespace_before_main};

enter_user_namespace_before_main!();

const PLAN: Plan = Plan { rounds: 3, time: Duration::from_millis(150), quick: true };

/// Counts announced and started steps, and cancels after a number of steps.
struct Watcher {
    announced: AtomicUsize,
    begun: AtomicUsize,
    limit: usize,
}

impl Watcher {
    fn new(limit: usize) -> Self {
        Self { announced: AtomicUsize::new(0), begun: AtomicUsize::new(0), limit }
    }
}

impl Watch for Watcher {
    fn step(&self, what: &str) {
        assert!(!what.is_empty());
        self.begun.fetch_add(1, Ordering::Relaxed);
    }

    fn announce(&self, steps: usize) {
        self.announced.fetch_add(steps, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.begun.load(Ordering::Relaxed) >= self.limit
    }
}

fn entry(name: &str) -> &'static Entry {
    find(name).expect("it is in the list")
}

/// Held by each test: CPU time is measured per process, so that tests must not run in parallel.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the live form of an experiment to its end.
fn run(name: &str) -> Option<Experiment> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let watcher = Watcher::new(usize::MAX);
    let experiment = available_or_skip((entry(name).live)(&Session::new(PLAN, &watcher)))?;
    let steps = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    assert_eq!(steps(&watcher.announced), steps(&watcher.begun), "progress comes to its end");
    assert!(experiment.tables.iter().all(|table| table.form == Form::Live));
    for table in &experiment.tables {
        assert!(table.rows.iter().all(|row| row.figures.len() == table.columns.len()
            && [0, table.columns.len()].contains(&row.source.len())));
        // A row without measured figures has only the original report's.
        let is_sources = |row: &Row| {
            row.figures.iter().all(Option::is_none) && row.source.iter().any(Option::is_some)
        };
        let is_filled = |row: &Row| row.figures[0].is_some_and(|figure| figure.value > 0.0);
        assert!(table.rows.iter().all(|row| is_filled(row) || is_sources(row)), "{table:?}");
    }
    Some(experiment)
}

/// Returns whether a mark of this name is counted in the model form.
fn is_counted(name: &str, mark: &Mark) -> bool {
    let model = (entry(name).model)().expect("memory is there");
    model.marks.iter().any(|counted| counted.name == mark.name)
}

#[test]
fn the_file_goes_in_frames_of_the_size_that_was_asked_for() {
    let Some(experiment) = run("tso") else { return };
    let sizes = &experiment.tables[1].rows;
    let of = |variant: &str| {
        sizes.iter().filter(|row| row.group.contains(variant)).collect::<Vec<&Row>>()
    };
    let share = |rows: &[&Row], class: &str| {
        rows.iter()
            .filter(|row| row.name.contains(class))
            .filter_map(|row| row.figures[1])
            .map(|figure| figure.value)
            .sum::<f64>()
    };
    let beta: Vec<_> =
        experiment.tables[0].rows.iter().filter(|row| row.group.ends_with("Beta")).collect();
    let speeds = beta.iter().map(|row| (row.name.as_str(), &row.source[..2])).collect::<Vec<_>>();
    let expected = [
        ("TSO off", &[Some(102.1), Some(102.4)][..]),
        ("TSO on, at most 15,928 bytes", &[Some(93.2), Some(95.5)]),
    ];
    assert_eq!(speeds, expected, "the source's second client has rows of its own");
    let (off, limited, whole) = (of("off"), of("15,928"), of("64 KB"));
    assert!(share(&off, "1,448 bytes") > 99.0, "{off:?}");
    assert!(share(&limited, "15,928 bytes") > 50.0, "{limited:?}");
    for (rows, beyond) in [
        (&off, "1,449 to"),
        (&off, "15,929 to"),
        (&off, "65,160"),
        (&limited, "15,929 to"),
        (&limited, "65,160"),
    ] {
        assert!(!rows.iter().any(|row| row.name.starts_with(beyond)), "{rows:?}");
    }
    assert!(share(&whole, "15,929 to") + share(&whole, "65,160") > 50.0, "{whole:?}");
    let [speeds, histogram] = [0, 1]
        .map(|table: usize| experiment.tables[table].made.as_deref().expect("none is of medians"));
    assert!(
        speeds.starts_with("measured: average and best of all 3 transfers")
            && !speeds.contains("rounds"),
        "{speeds}"
    );
    // The socket saw most of the payload, and the text gives the share.
    let seen: Vec<f64> = histogram
        .split_whitespace()
        .collect::<Vec<_>>()
        .windows(2)
        .filter(|words| words[1].starts_with('%'))
        .filter_map(|words| words[0].parse().ok())
        .collect();
    assert!(seen.len() == 3 && seen.iter().all(|&percent| percent > 50.0), "{histogram}");
    assert!(experiment.notes.iter().any(|note| note.contains(histogram)), "{:?}", experiment.notes);
    // Both sizes to a client behind a wire, to one that accepts super-packets, and through GRO that
    // merges past PSH. Through default GRO only the smaller size, because the plan is quick. GRO
    // merges single frames into larger packets than the smaller size, so that it may be faster.
    assert_eq!(experiment.marks.len(), 7);
    for mark in &experiment.marks {
        let behind_gro = mark.name.contains("GRO");
        assert!(behind_gro || mark.met != Some(false), "TSO is not slower than none: {mark:?}");
        assert!(mark.form == Form::Live && !is_counted("tso", mark), "{mark:?}");
    }
}

#[test]
fn segmentation_is_late_or_early_and_late_is_not_slower() {
    let Some(experiment) = run("gso") else { return };
    assert_eq!(experiment.marks.len(), 5);
    let late = &experiment.marks[0];
    assert_ne!(late.met, Some(false), "{late:?}");
    assert!(
        experiment.marks.iter().all(|mark| mark.form == Form::Live && !is_counted("gso", mark))
    );
    let ratios = experiment.tables[0].rows.iter().filter(|row| row.ratio.is_some()).count();
    assert_eq!((experiment.tables[0].rows.len(), ratios), (10, 5));
}

#[test]
fn who_asks_for_the_end_gets_it() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for name in ["tso", "gso"] {
        let watcher = Watcher::new(2);
        match (entry(name).live)(&Session::new(PLAN, &watcher)) {
            Err(LabError::Cancelled) => assert_eq!(watcher.begun.load(Ordering::Relaxed), 2),
            other => assert!(available_or_skip(other).is_none(), "it went on to its end"),
        }
    }
}
