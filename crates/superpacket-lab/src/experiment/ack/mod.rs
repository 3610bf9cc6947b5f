//! Source 000: what the sender's card saves its host by letting one pure ACK stand for many
//! (Gallatin, 2007).
//!
//! A host sends in bulk; the bridge is its card. What the receiver acknowledges arrives at the
//! card, which hands every ACK on, or only the newest of those that arrived together. What the
//! source measured is measured: the sender's CPU time per byte.

mod live;
mod model;

use std::collections::BTreeSet;

use self::live::{Arrangement, Sample};
use super::{
    Column, Entry, Experiment, Figure, Form, Mark, Plan, Ratio, Row, Session, Side, Table, Variant,
};
use crate::error::LabError;
use crate::experiment::spent;
use crate::load::{PatternFile, Source};
use crate::paired::{Paired, Summary};

/// The experiment.
pub const ENTRY: Entry = Entry {
    name: NAME,
    headline: HEADLINE,
    source: SOURCE,
    summary: SUMMARY,
    live,
    measurements,
    model: model::run,
};

const NAME: &str = "ack";
const HEADLINE: &str = "a sender, pure ACKs aggregated over ACKs as they come (Gallatin, 2007)";
const SOURCE: &str = "Gallatin, [PATCH] LRO ack aggregation, 2007";
const SUMMARY: &str = "A host sends a file to receivers that acknowledge more or less often, without and with pure ACKs aggregated by its card: \
                       throughput, the sender's CPU time, and that time per KB.";

/// How often the receiver acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    /// Every segment: quick ACKs.
    Each,
    /// Every second segment, as RFC 9293 (section 3.8.6.3) asks for.
    Second,
    /// Every eighth, as the source's Solaris did without LRO; here its host is handed
    /// super-packets of eight.
    Eighth,
    /// What arrives aggregated, once: up to 18 segments, one for each fragment of a buffer of 2007
    /// (`MAX_SKB_FRAGS`), which is where `inet_lro` and its drivers stopped.
    Aggregating,
    /// As the kernel does by itself: for two segments, after a delay, or for what was read.
    Delaying,
}

/// What the source measured of a row: Mb/s, % CPU of sender and receiver, us/KB of sender and
/// receiver.
type Measured = [f64; 5];

impl Receiver {
    /// Those that the source had come first, in its order.
    const ALL: [Self; 5] =
        [Self::Aggregating, Self::Eighth, Self::Each, Self::Second, Self::Delaying];

    /// Those that a plan measures.
    fn measured(plan: Plan) -> &'static [Self] {
        if plan.quick { &Self::ALL[..2] } else { &Self::ALL }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Each => "acknowledges every segment",
            Self::Second => "acknowledges every 2nd",
            Self::Eighth => "acknowledges every 8th",
            Self::Aggregating => "aggregates",
            Self::Delaying => "delays its ACKs",
        }
    }

    /// How many segments it is handed at a time, at most; what it is handed it acknowledges.
    fn segments(self) -> u32 {
        match self {
            Self::Each | Self::Delaying => 1,
            Self::Second => 2,
            Self::Eighth => 8,
            Self::Aggregating => 18,
        }
    }

    /// The sender's demand with aggregation over that without, at most: near the source's 0.84 and
    /// 0.63.
    fn demand_target(self) -> Option<f64> {
        match self {
            Self::Aggregating => Some(0.84),
            Self::Eighth => Some(0.70),
            Self::Each | Self::Second | Self::Delaying => None,
        }
    }

    /// What a report of one screen calls its marks on demand and throughput.
    fn briefs(self) -> [Option<&'static str>; 2] {
        match self {
            Self::Aggregating => {
                [Some("receiver aggregates: CPU a KB"), Some("receiver aggregates: throughput")]
            }
            Self::Eighth => {
                [Some("receiver ACKs 8:1: CPU a KB"), Some("receiver ACKs 8:1: throughput")]
            }
            Self::Each | Self::Second | Self::Delaying => [None; 2],
        }
    }

    /// What the source measured: by its driver's own LRO, by `inet_lro` without pure-ACK
    /// aggregation, and with it.
    fn source(self) -> Option<[Measured; 3]> {
        match self {
            Self::Eighth => Some([
                [9280.09, 7.14, 45.37, 0.252, 1.602],
                [8530.80, 10.51, 44.60, 0.404, 1.713],
                [9249.65, 7.21, 45.90, 0.255, 1.626],
            ]),
            Self::Aggregating => Some([
                [9442.65, 16.24, 69.31, 0.282, 1.203],
                [9442.88, 20.10, 69.11, 0.349, 1.199],
                [9443.30, 16.95, 68.97, 0.294, 1.197],
            ]),
            Self::Each | Self::Second | Self::Delaying => None,
        }
    }
}

const COLUMNS: [Column; 7] = [
    Column { name: "throughput", title: "Throughput", unit: "Mb/s", digits: 0 },
    Column { name: "sender_cpu", title: "Sender's CPU", unit: "%", digits: 2 },
    Column { name: "receiver_cpu", title: "Receiver's CPU", unit: "%", digits: 2 },
    Column { name: "sender_demand", title: "Sender's demand", unit: "us/KB", digits: 3 },
    Column { name: "receiver_demand", title: "Receiver's demand", unit: "us/KB", digits: 3 },
    Column { name: "acks", title: "ACKs at the card", unit: "1/MB", digits: 1 },
    Column { name: "delivered", title: "ACKs at the host", unit: "1/MB", digits: 1 },
];

/// A row of the source that nobody can measure any more, and why.
const DRIVER: (&str, &str) = (
    "the driver's own LRO",
    "\"The driver's own LRO\" is that of Myri10GE outside of the kernel, which aggregated ACKs before `inet_lro` did: a driver for a card that is not here, so that only the source's figures stand \
     there.",
);

/// The names of the rows that are measured, without aggregation and with it.
const ROWS: [&str; 2] = ["ACKs as they come", "pure ACKs aggregated"];

fn measurements(plan: Plan) -> usize {
    Receiver::measured(plan).len() * ROWS.len() * plan.rounds
}

fn live(session: &Session<'_>) -> Result<Experiment, LabError> {
    let receivers = Receiver::measured(session.plan);
    // Small enough for a cache: what is measured is not the memory.
    let file = Source::File(PatternFile::new(4 << 20, 1)?);
    let mut notes = BTreeSet::new();
    let mut variants = Vec::new();
    for &receiver in receivers {
        for (acks, row) in [false, true].into_iter().zip(ROWS) {
            session.check()?;
            let arrangement = Arrangement::new(receiver, acks, file.clone(), session.cpus)?;
            if !arrangement.is_exact() {
                notes.insert(
                    "No thread of the kernel receives for the sender here, or it is not seen: the sender's time is that of its CPU by the clock's ticks, with \
                     whatever else ran there.",
                );
            }
            let time = session.plan.time;
            variants.push(Variant::new(
                format!("{NAME}: receiver {}, {row}", receiver.name()),
                move || arrangement.measure(time),
            ));
        }
    }
    let samples = session.interleaved(&mut variants)?;
    notes.extend([spent::NOTE, DRIVER.1]);
    notes.insert(
        "ACKs are merged that one poll of the card finds, and none is held for others to come. The card's thread gives way to the receiver on the CPU that both share (niceness 15), with \
         aggregation and without: where that CPU is full, a poll finds more. Of ACKs as they come, some that come so together are more than the host's device has room for.",
    );
    notes.insert(
        "A receiver acknowledges each packet that it is handed: every 2nd or 8th segment where it is handed super-packets of two or eight. The source's Solaris acknowledged about every 8th \
         without LRO. Live TCP has timestamps, as by default; whether the source's had is not told.",
    );
    notes.insert(
        "The sender's CPU is its program's and that of what receives for it, the receiver's is its program's; the source's are the whole machines', of two or four cores.",
    );
    Ok(report(
        receivers,
        &samples,
        session.plan.rounds,
        notes.into_iter().map(str::to_owned).collect(),
    ))
}

/// A column of the rounds' samples.
fn values(samples: &[Sample], value: fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(value).collect()
}

fn report(
    receivers: &[Receiver],
    samples: &[Vec<Sample>],
    rounds: usize,
    notes: Vec<String>,
) -> Experiment {
    let mut rows = Vec::new();
    let mut marks = Vec::new();
    for (&receiver, pair) in receivers.iter().zip(samples.chunks_exact(2)) {
        let demand = Paired::new(
            &values(&pair[1], |sample| sample.demand),
            &values(&pair[0], |sample| sample.demand),
        );
        let group = format!("receiver {}", receiver.name());
        let source = receiver.source();
        let measured = |row: usize| {
            source
                .map_or([None; 5], |source| source[row].map(Some))
                .into_iter()
                .chain([None; 2])
                .collect()
        };
        if source.is_some() {
            let figures = vec![None; COLUMNS.len()];
            rows.push(Row {
                group: group.clone(),
                name: DRIVER.0.into(),
                figures,
                source: measured(0),
                ratio: None,
                source_ratio: None,
            });
        }
        for (on, (samples, name)) in pair.iter().zip(ROWS).enumerate() {
            let figure = |value: fn(&Sample) -> f64| {
                Some(Figure::from(Summary::new(&values(samples, value))))
            };
            let figures = vec![
                figure(|sample| sample.throughput * 1000.0),
                figure(|sample| sample.sender_cpu),
                figure(|sample| sample.spent.receiver),
                figure(|sample| sample.demand),
                figure(|sample| sample.receiver_demand),
                figure(|sample| sample.acks),
                figure(|sample| sample.delivered),
            ];
            rows.push(Row {
                group: group.clone(),
                name: name.into(),
                figures,
                source: measured(1 + on),
                ratio: (on == 1).then(|| Ratio::paired(ROWS[0], "sender_demand", &demand)),
                source_ratio: source.filter(|_| on == 1).map(|source| source[2][3] / source[1][3]),
            });
        }
        let throughput = Paired::new(
            &values(&pair[1], |sample| sample.throughput),
            &values(&pair[0], |sample| sample.throughput),
        );
        let of_source = |column: usize| source.map(|source| source[2][column] / source[1][column]);
        let [less, more] = receiver.briefs();
        let mark = |what: &str, paired: &Paired, side, target, brief, source| {
            let mark =
                Mark::paired(format!("{NAME}: {what}, with over without"), paired, side, target);
            Mark { brief, source, ..mark }
        };
        if let Some(target) = receiver.demand_target() {
            let name = format!("sender's demand, receiver {}", receiver.name());
            marks.push(mark(&name, &demand, Side::AtMost, target, less, of_source(3)));
        }
        let name = format!("throughput, receiver {}", receiver.name());
        marks.push(mark(&name, &throughput, Side::AtLeast, 1.0, more, of_source(0)));
    }
    let accounts =
        receivers.iter().flat_map(|&receiver| ROWS.map(|row| (receiver, row))).zip(samples).map(
            |((receiver, row), samples)| {
                spent::row(
                    format!("receiver {}", receiver.name()),
                    row,
                    samples.iter().map(|sample| &sample.spent),
                )
            },
        );
    let accounts = spent::table(accounts.collect(), rounds);
    let table = Table {
        title: "TCP SENDFILE, local sender".into(),
        form: Form::Live,
        columns: COLUMNS.into(),
        rows,
        rounds,
        plot: Some(3),
        made: None,
    };
    Experiment {
        name: NAME,
        source: SOURCE,
        summary: SUMMARY,
        tables: vec![table, accounts],
        marks,
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(throughput: f64, demand: f64) -> Vec<Sample> {
        [0.99, 1.0, 1.01]
            .map(|noise| Sample {
                throughput: throughput * noise,
                demand: demand * noise,
                ..Sample::default()
            })
            .into()
    }

    #[test]
    fn each_row_with_aggregation_is_held_against_the_one_without() {
        let all = [samples(5.0, 0.6), samples(5.0, 0.3), samples(7.0, 0.3), samples(6.0, 0.27)];
        let experiment = report(&Receiver::ALL[..2], &all, 3, Vec::new());
        let rows = &experiment.tables[0].rows;
        // Driver, without, with; twice, as in the source.
        assert_eq!(rows.len(), 6);
        let ours: Vec<_> =
            rows.iter().map(|row| (row.figures[0].is_some(), row.ratio.is_some())).collect();
        assert_eq!(ours, [[(false, false), (true, false), (true, true)]; 2].concat());
        let ratios = [2, 5].map(|row: usize| {
            rows[row].ratio.as_ref().and_then(|ratio| ratio.value).expect("little spread")
        });
        assert!((ratios[0] - 0.5).abs() < 1e-9 && (ratios[1] - 0.9).abs() < 1e-9, "{ratios:?}");
        assert!((rows[5].source_ratio.expect("measured") - 0.631).abs() < 1e-3);
        let marks: Vec<_> = experiment
            .marks
            .iter()
            .map(|mark| (mark.met, mark.source.map(|source| (source * 100.0).round())))
            .collect();
        let (met, missed) = (Some(true), Some(false));
        assert_eq!(
            marks,
            [(met, Some(84.0)), (met, Some(100.0)), (missed, Some(63.0)), (missed, Some(108.0))]
        );
    }

    #[test]
    fn every_figure_of_the_source_stands_in_its_table() {
        let all = [samples(5.0, 0.6), samples(5.0, 0.3), samples(7.0, 0.3), samples(7.0, 0.27)];
        let experiment = report(&Receiver::ALL[..2], &all, 3, Vec::new());
        let source: Vec<Vec<f64>> = experiment.tables[0]
            .rows
            .iter()
            .map(|row| row.source.iter().copied().flatten().collect())
            .collect();
        // Mb/s, % of sender and receiver, us/KB of sender and receiver: against an aggregating
        // receiver, then against Solaris.
        assert_eq!(
            source,
            [
                [9442.65, 16.24, 69.31, 0.282, 1.203],
                [9442.88, 20.10, 69.11, 0.349, 1.199],
                [9443.30, 16.95, 68.97, 0.294, 1.197],
                [9280.09, 7.14, 45.37, 0.252, 1.602],
                [8530.80, 10.51, 44.60, 0.404, 1.713],
                [9249.65, 7.21, 45.90, 0.255, 1.626],
            ]
        );
    }

    #[test]
    fn throughput_is_a_mark_of_every_receiver() {
        let all: Vec<_> =
            Receiver::ALL.iter().flat_map(|_| [samples(5.0, 0.6), samples(4.0, 0.3)]).collect();
        let marks = report(&Receiver::ALL, &all, 3, Vec::new()).marks;
        let lost: Vec<_> = marks
            .iter()
            .filter(|mark| mark.name.contains("throughput"))
            .map(|mark| (mark.target, mark.met))
            .collect();
        assert_eq!(
            lost,
            [(1.0, Some(false)); 5],
            "less time that the sender needs makes no loss good"
        );
    }
}
