//! Pure-ACK aggregation (Gallatin, 2007): the sender's CPU time, if its card merges
//! several pure ACKs into one.
//!
//! A host sends in bulk, and the bridge acts as its card. The card delivers either every ACK, or
//! only the newest of those that arrived together. As in the original report, the sender's CPU time
//! per byte is measured.

mod live;
mod model;

use std::collections::BTreeSet;

use self::live::{AckSample, AckTestbed};
use super::{
    Column, Entry, Experiment, Figure, Form, Mark, Plan, Plot, Ratio, Row, Session, Side, Table,
    Variant,
};
use crate::error::LabError;
use crate::experiment::cpu_costs;
use crate::load::{PatternFile, Source};
use crate::paired::{Paired, Summary};

/// The experiment `ack`.
pub const ENTRY: Entry = Entry {
    name: "ack",
    headline: "a sender, pure ACKs aggregated over ACKs as they come (Gallatin, 2007)",
    source: "Gallatin, [PATCH] LRO ack aggregation, 2007",
    summary: "A host sends a file to receivers that acknowledge more or less often, without and with pure ACKs aggregated by its card: \
              throughput, the sender's CPU time, and that time per KB.",
    live,
    measurements,
    model: model::run,
};

/// The receiver's acknowledgement behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverKind {
    /// Acknowledges every segment (quick ACKs).
    Each,
    /// Acknowledges every second segment, as RFC 9293 (section 3.8.6.3) requires.
    Second,
    /// Acknowledges every eighth segment, as the original report's Solaris host did without LRO.
    /// Here the host receives super-packets of eight segments.
    Eighth,
    /// Acknowledges each aggregated packet of up to 18 segments: one segment per fragment of a
    /// buffer (`MAX_SKB_FRAGS` in 2007), the limit of `inet_lro` and its drivers.
    Aggregating,
    /// Acknowledges as the kernel decides: after two segments, a delay, or a read.
    Delaying,
}

/// The original report's figures of a row: Mb/s, CPU usage in percent of sender and receiver, us/KB
/// of sender and receiver.
type SourceFigures = [f64; 5];

impl ReceiverKind {
    /// All receivers; the two of the original report first, in its order.
    const ALL: [Self; 5] =
        [Self::Aggregating, Self::Eighth, Self::Each, Self::Second, Self::Delaying];

    /// Returns the receivers to measure: the first two in a quick run, otherwise all.
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

    /// Returns the maximum number of segments per packet delivered to the receiver, which
    /// acknowledges each packet.
    fn segments(self) -> u32 {
        match self {
            Self::Each | Self::Delaying => 1,
            Self::Second => 2,
            Self::Eighth => 8,
            Self::Aggregating => 18,
        }
    }

    /// Returns the highest permitted ratio of the sender's CPU time per byte, with aggregation over
    /// without. The targets are near the original report's 0.84 and 0.63.
    fn demand_target(self) -> Option<f64> {
        match self {
            Self::Aggregating => Some(0.84),
            Self::Eighth => Some(0.70),
            Self::Each | Self::Second | Self::Delaying => None,
        }
    }

    /// Returns the names of the receiver's targets for CPU time and throughput, as short reports
    /// show them; `None` without a target.
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

    /// Returns the original report's figures with its driver's LRO, with `inet_lro` without
    /// pure-ACK aggregation, and with both.
    fn source(self) -> Option<[SourceFigures; 3]> {
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

/// The row of the original report that cannot be measured today (LRO of the card's driver), and the
/// reason.
const DRIVER: (&str, &str) = (
    "the driver's own LRO",
    "\"The driver's own LRO\" is the LRO of the Myri10GE driver outside the kernel, which aggregated ACKs before `inet_lro` did. Its card is not available here: only the source's figures are \
     shown.",
);

/// Names of the two measured rows: without and with aggregation of pure ACKs.
const ROWS: [&str; 2] = ["ACKs as they come", "pure ACKs aggregated"];

fn measurements(plan: Plan) -> usize {
    ReceiverKind::measured(plan).len() * ROWS.len() * plan.rounds
}

fn live(session: &Session<'_>) -> Result<Experiment, LabError> {
    let receivers = ReceiverKind::measured(session.plan);
    // Small enough for the CPU's cache, so that memory speed does not matter.
    let file = Source::File(PatternFile::new(4 << 20, 1)?);
    let mut notes = BTreeSet::new();
    let mut variants = Vec::new();
    for &receiver in receivers {
        for (acks, row) in [false, true].into_iter().zip(ROWS) {
            session.check()?;
            let testbed = AckTestbed::new(receiver, acks, file.clone(), session.cpus)?;
            if !testbed.is_exact() {
                notes.insert(
                    "No kernel thread receives for the sender here, or it is not visible: the sender's time is the busy time of its CPU in clock ticks, \
                     including any other work on it.",
                );
            }
            let time = session.plan.time;
            variants.push(Variant::new(
                format!("ack: receiver {}, {row}", receiver.name()),
                move || testbed.measure(time),
            ));
        }
    }
    let samples = session.interleaved(&mut variants)?;
    notes.extend([cpu_costs::NOTE, DRIVER.1]);
    notes.insert(
        "ACKs of one poll of the card are merged; none is held for later ones. The card's thread yields to the receiver on their common CPU (niceness 15), with and without aggregation: on a \
         saturated CPU a poll finds more ACKs. Without aggregation, ACKs that arrive together may exceed the ring of the host's device.",
    );
    notes.insert(
        "A receiver acknowledges each packet delivered to it: every 2nd or 8th segment with super-packets of two or eight segments. The source's Solaris host acknowledged about every 8th \
         segment without LRO. Live TCP uses timestamps, the default; the source does not say whether it did.",
    );
    notes.insert(
        "The sender's CPU time includes its program and its receive work, the receiver's only its program. The source's figures are for whole machines with two or four cores.",
    );
    Ok(report(
        receivers,
        &samples,
        session.plan.rounds,
        notes.into_iter().map(str::to_owned).collect(),
    ))
}

fn report(
    receivers: &[ReceiverKind],
    samples: &[Vec<AckSample>],
    rounds: usize,
    notes: Vec<String>,
) -> Experiment {
    let mut rows = Vec::new();
    let mut marks = Vec::new();
    for (&receiver, pair) in receivers.iter().zip(samples.chunks_exact(2)) {
        let demand = Paired::of(&pair[1], &pair[0], |sample| sample.demand);
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
            let row = Row::new(&group, DRIVER.0, figures);
            rows.push(Row { source: measured(0), ..row });
        }
        for (on, (samples, name)) in pair.iter().zip(ROWS).enumerate() {
            let figure =
                |value: fn(&AckSample) -> f64| Some(Figure::from(Summary::of(samples, value)));
            let figures = vec![
                figure(|sample| sample.throughput * 1000.0),
                figure(|sample| sample.sender_cpu),
                figure(|sample| sample.costs.receiver),
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
                full_cpu: None,
            });
        }
        let throughput = Paired::of(&pair[1], &pair[0], |sample| sample.throughput);
        let of_source = |column: usize| source.map(|source| source[2][column] / source[1][column]);
        let [less, more] = receiver.briefs();
        let mark = |what: &str, paired: &Paired, side, target, brief, source| {
            let mark =
                Mark::paired(format!("ack: {what}, with over without"), paired, side, target);
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
                cpu_costs::row(
                    format!("receiver {}", receiver.name()),
                    row,
                    samples.iter().map(|sample| &sample.costs),
                )
            },
        );
    let accounts = cpu_costs::table(accounts.collect(), rounds);
    let table = Table::new(Form::Live, "TCP SENDFILE, local sender", &COLUMNS, rows, rounds);
    let table = Table { plot: Plot::Marks(&[3]), ..table };
    Experiment { tables: vec![table, accounts], marks, notes, ..Experiment::new(&ENTRY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(throughput: f64, demand: f64) -> Vec<AckSample> {
        [0.99, 1.0, 1.01]
            .map(|noise| AckSample {
                throughput: throughput * noise,
                demand: demand * noise,
                ..AckSample::default()
            })
            .into()
    }

    #[test]
    fn each_row_with_aggregation_is_held_against_the_one_without() {
        let all = [samples(5.0, 0.6), samples(5.0, 0.3), samples(7.0, 0.3), samples(6.0, 0.27)];
        let experiment = report(&ReceiverKind::ALL[..2], &all, 3, Vec::new());
        let rows = &experiment.tables[0].rows;
        // For each of two receivers, as in the original report: the driver's own LRO, without
        // aggregation, and with it.
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
        let experiment = report(&ReceiverKind::ALL[..2], &all, 3, Vec::new());
        let source: Vec<Vec<f64>> = experiment.tables[0]
            .rows
            .iter()
            .map(|row| row.source.iter().copied().flatten().collect())
            .collect();
        // Mb/s, CPU in percent of sender and receiver, us/KB of sender and receiver: with an
        // aggregating receiver, then with Solaris.
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
            ReceiverKind::ALL.iter().flat_map(|_| [samples(5.0, 0.6), samples(4.0, 0.3)]).collect();
        let marks = report(&ReceiverKind::ALL, &all, 3, Vec::new()).marks;
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
