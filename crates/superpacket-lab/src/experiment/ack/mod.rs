//! Source 000: what the sender's card saves its host by letting one pure ACK stand for many (Gallatin, 2007).
//!
//! A host sends in bulk; the bridge is its card. What the receiver acknowledges arrives at the card, which hands every ACK on, or only the newest of those that
//! arrived together. What the source measured is measured: the sender's CPU time per byte.

mod live;
mod model;

use std::collections::BTreeSet;

use self::live::{Arrangement, Sample};
use super::{Column, Entry, Experiment, Figure, Form, Mark, Ratio, Row, Session, Side, Table, Variant};
use crate::error::LabError;
use crate::experiment::spent;
use crate::load::{PatternFile, Source};
use crate::paired::{Paired, Summary};

/// The experiment.
pub const ENTRY: Entry = Entry { name: NAME, source: SOURCE, summary: SUMMARY, live, model: model::run };

const NAME: &str = "ack";
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
    /// Every eighth, as Solaris did.
    Eighth,
    /// What arrives aggregated, once: up to 18 segments, one for each fragment of a buffer of 2007 (`MAX_SKB_FRAGS`), which is where `inet_lro` and its drivers
    /// stopped.
    Aggregating,
    /// As the kernel does by itself: for two segments, after a delay, or for what was read.
    Delaying,
}

/// What the source measured of a row: Mb/s, % CPU, us/KB.
type Measured = [f64; 3];

impl Receiver {
    /// Those that the experiment's marks are about come first.
    const ALL: [Self; 5] = [Self::Eighth, Self::Aggregating, Self::Each, Self::Second, Self::Delaying];

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

    /// What the source measured, without pure-ACK aggregation and with it.
    fn source(self) -> Option<[Measured; 2]> {
        match self {
            Self::Eighth => Some([[8530.80, 10.51, 0.404], [9249.65, 7.21, 0.255]]),
            Self::Aggregating => Some([[9442.88, 20.10, 0.349], [9443.30, 16.95, 0.294]]),
            Self::Each | Self::Second | Self::Delaying => None,
        }
    }
}

const COLUMNS: [Column; 5] = [
    Column { name: "throughput", title: "Throughput", unit: "Mb/s", digits: 0 },
    Column { name: "sender_cpu", title: "Sender's CPU", unit: "%", digits: 2 },
    Column { name: "service_demand", title: "Sender's demand", unit: "us/KB", digits: 3 },
    Column { name: "acks", title: "ACKs at the card", unit: "1/MB", digits: 1 },
    Column { name: "delivered", title: "ACKs at the host", unit: "1/MB", digits: 1 },
];

/// The names of the rows, without aggregation and with it.
const ROWS: [&str; 2] = ["ACKs as they come", "pure ACKs aggregated"];

fn live(session: &Session<'_>) -> Result<Experiment, LabError> {
    let receivers = if session.plan.quick { &Receiver::ALL[..2] } else { &Receiver::ALL };
    // Small enough for a cache: what is measured is not the memory.
    let file = Source::File(PatternFile::new(4 << 20, 1)?);
    let mut notes = BTreeSet::new();
    let mut variants = Vec::new();
    for &receiver in receivers {
        for (acks, row) in [false, true].into_iter().zip(ROWS) {
            session.check()?;
            let arrangement = Arrangement::new(receiver, acks, file.clone())?;
            if !arrangement.is_exact() {
                notes.insert(
                    "No thread of the kernel receives for the sender here, or it is not seen: the sender's time is that of its CPU by the clock's ticks, with \
                     whatever else ran there.",
                );
            }
            let time = session.plan.time;
            variants.push(Variant::new(format!("{NAME}: receiver {}, {row}", receiver.name()), move || arrangement.measure(time)));
        }
    }
    let samples = session.interleaved(&mut variants)?;
    notes.insert(spent::NOTE);
    notes.insert(
        "The sender's CPU is its program's and that of what receives for it; the source's is the whole machine's, of two or four cores.",
    );
    Ok(report(receivers, &samples, session.plan.rounds, notes.into_iter().map(str::to_owned).collect()))
}

/// A column of the rounds' samples.
fn values(samples: &[Sample], value: fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(value).collect()
}

fn report(receivers: &[Receiver], samples: &[Vec<Sample>], rounds: usize, notes: Vec<String>) -> Experiment {
    let mut rows = Vec::new();
    let mut marks = Vec::new();
    for (&receiver, pair) in receivers.iter().zip(samples.chunks_exact(2)) {
        let demand = Paired::new(&values(&pair[1], |sample| sample.demand), &values(&pair[0], |sample| sample.demand));
        for (on, (samples, name)) in pair.iter().zip(ROWS).enumerate() {
            let figure = |value: fn(&Sample) -> f64| Some(Figure::from(Summary::new(&values(samples, value))));
            let figures = vec![
                figure(|sample| sample.throughput * 1000.0),
                figure(|sample| sample.sender_cpu),
                figure(|sample| sample.demand),
                figure(|sample| sample.acks),
                figure(|sample| sample.delivered),
            ];
            let source = receiver.source();
            let measured = source.map_or([None; 3], |source| source[on].map(Some));
            rows.push(Row {
                group: format!("receiver {}", receiver.name()),
                name: name.into(),
                figures,
                source: measured.into_iter().chain([None; 2]).collect(),
                ratio: (on == 1).then(|| Ratio::paired(ROWS[0], "service_demand", &demand)),
                source_ratio: source.filter(|_| on == 1).map(|source| source[1][2] / source[0][2]),
            });
        }
        match receiver {
            Receiver::Aggregating => {
                marks.push(Mark::paired(
                    "ack: sender's demand against an aggregating receiver, with over without",
                    &demand,
                    Side::AtMost,
                    0.84,
                ));
            }
            Receiver::Eighth => {
                let throughput = Paired::new(&values(&pair[1], |sample| sample.throughput), &values(&pair[0], |sample| sample.throughput));
                marks.push(either(&demand, &throughput));
            }
            Receiver::Each | Receiver::Second | Receiver::Delaying => {}
        }
    }
    let accounts = receivers.iter().flat_map(|&receiver| ROWS.map(|row| (receiver, row))).zip(samples).map(|((receiver, row), samples)| {
        spent::row(format!("receiver {}", receiver.name()), row, samples.iter().map(|sample| &sample.spent))
    });
    let accounts = spent::table(accounts.collect(), rounds);
    let table =
        Table { title: "TCP SENDFILE, local sender".into(), form: Form::Live, columns: COLUMNS.into(), rows, rounds, plot: Some(2) };
    Experiment { name: NAME, source: SOURCE, summary: SUMMARY, tables: vec![table, accounts], marks, notes }
}

/// Against the 8:1 receiver the source saved time or sent more: either is as good.
fn either(demand: &Paired, throughput: &Paired) -> Mark {
    let less = Mark::paired("ack: sender's demand against an 8:1 receiver, with over without", demand, Side::AtMost, 0.70);
    let more = Mark::paired("ack: throughput to an 8:1 receiver, with over without", throughput, Side::AtLeast, 1.08);
    if less.met != Some(true) && more.met == Some(true) { more } else { less }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(throughput: f64, demand: f64) -> Vec<Sample> {
        [0.99, 1.0, 1.01].map(|noise| Sample { throughput: throughput * noise, demand: demand * noise, ..Sample::default() }).into()
    }

    #[test]
    fn each_row_with_aggregation_is_held_against_the_one_without() {
        let all = [samples(5.0, 0.6), samples(5.0, 0.3), samples(7.0, 0.3), samples(7.0, 0.27)];
        let experiment = report(&Receiver::ALL[..2], &all, 3, Vec::new());
        let rows = &experiment.tables[0].rows;
        assert_eq!(rows.len(), 4);
        assert!(rows[0].ratio.is_none() && rows[2].ratio.is_none());
        let ratios = [1, 3].map(|row: usize| rows[row].ratio.as_ref().and_then(|ratio| ratio.value).expect("little spread"));
        assert!((ratios[0] - 0.5).abs() < 1e-9 && (ratios[1] - 0.9).abs() < 1e-9, "{ratios:?}");
        assert!((rows[1].source_ratio.expect("measured") - 0.631).abs() < 1e-3);
        assert_eq!(experiment.marks.iter().map(|mark| mark.met).collect::<Vec<_>>(), [Some(true), Some(false)]);
    }

    #[test]
    fn more_throughput_is_as_good_as_less_demand() {
        let mark = |throughput: f64, demand: f64| {
            let paired = |a: f64, b: f64| Paired::new(&[a; 3], &[b; 3]);
            either(&paired(demand, 1.0), &paired(throughput, 1.0))
        };
        assert_eq!((mark(1.0, 0.69).met, mark(1.09, 0.9).met, mark(1.0, 0.9).met), (Some(true), Some(true), Some(false)));
        assert_eq!((mark(1.09, 0.9).target, mark(1.09, 0.6).target), (1.08, 0.70));
    }
}
