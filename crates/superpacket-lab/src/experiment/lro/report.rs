//! The results of the LRO experiment as tables in the original report's form.

use super::live::LroSample;
use super::{Buffers, ENTRY, LroVariant, Merge, Mtus, is_limited};
use crate::experiment::cpu_costs;
use crate::experiment::{Column, Experiment, Figure, Form, Mark, Plot, Ratio, Row, Side, Table};
use crate::paired::{Paired, Summary};

/// Note on the column that cannot be measured today.
const DRIVER: &str = "\"1.3.1\" is the LRO of the Myri10GE driver outside the kernel, which rejected it. Its card is not available here: only the source's figures are shown.";

/// Unit of CPU figures here and in the original report, whose receiver had two cores.
const CPU: &str = "% of 2 cores";

/// Unit of CPU usage per throughput.
const DEMAND: &str = "% a Gb/s (computed)";

const COLUMNS: [Column; 13] = [
    Column { name: "driver_throughput", title: "1.3.1", unit: "Gb/s", digits: 1 },
    Column { name: "driver_cpu", title: "1.3.1", unit: CPU, digits: 0 },
    Column { name: "lro_throughput", title: "LRO", unit: "Gb/s", digits: 1 },
    Column { name: "lro_cpu", title: "LRO", unit: CPU, digits: 0 },
    Column { name: "count_throughput", title: "LRO by 0xffff/MTU", unit: "Gb/s", digits: 1 },
    Column { name: "count_cpu", title: "LRO by 0xffff/MTU", unit: CPU, digits: 0 },
    Column { name: "none_throughput", title: "no LRO", unit: "Gb/s", digits: 1 },
    Column { name: "none_cpu", title: "no LRO", unit: CPU, digits: 0 },
    Column { name: "gro_throughput", title: "GRO", unit: "Gb/s", digits: 1 },
    Column { name: "gro_cpu", title: "GRO", unit: CPU, digits: 0 },
    Column { name: "lro_demand", title: "LRO", unit: DEMAND, digits: 1 },
    Column { name: "none_demand", title: "no LRO", unit: DEMAND, digits: 1 },
    Column { name: "merged", title: "LRO: segments a packet", unit: "", digits: 1 },
];

/// Indexes of the columns to plot: throughput without LRO, with LRO, with LRO and its frame limit,
/// and with GRO.
const PLOTTED: &[usize] = &[6, 2, 4, 8];

/// Samples of each measured combination.
pub(super) type LroSamples = Vec<(LroVariant, Vec<LroSample>)>;

impl Mtus {
    fn title(self) -> String {
        format!("RX Performance for Sender MTU={}, Receiver MTU={}", self.sender, self.receiver)
    }

    /// Returns the original report's Gb/s and CPU usage with the LRO of its driver 1.3.1, for each
    /// type of buffer; it had no linear buffers.
    fn driver(self) -> [Option<[f64; 2]>; 5] {
        let pages = match (self.sender, self.receiver) {
            (1500, _) => [[8.9, 78.0], [9.2, 77.0], [9.4, 73.0], [9.4, 72.0]],
            _ => [[9.9, 63.0], [9.9, 60.0], [9.9, 55.0], [9.9, 53.0]],
        };
        let [a, b, c, d] = pages.map(Some);
        [a, b, c, d, None]
    }

    /// Returns the original report's Gb/s and CPU usage with `inet_lro` and without LRO, for each
    /// type of buffer.
    fn source(self) -> [[f64; 4]; 5] {
        match (self.sender, self.receiver) {
            (1500, 1500) => [
                [8.8, 77.0, 3.7, 89.0],
                [9.1, 77.0, 3.7, 89.0],
                [9.4, 73.0, 3.8, 89.0],
                [9.4, 72.0, 3.9, 89.0],
                [5.5, 90.0, 4.1, 92.0],
            ],
            (1500, _) => [
                [7.3, 79.0, 3.7, 89.0],
                [7.6, 79.0, 3.7, 89.0],
                [8.0, 78.0, 3.8, 89.0],
                [8.2, 79.0, 3.9, 89.0],
                [4.9, 92.0, 4.1, 92.0],
            ],
            _ => [
                [9.6, 66.0, 8.3, 71.0],
                [9.9, 63.0, 8.4, 72.0],
                [9.9, 55.0, 8.7, 70.0],
                [9.9, 53.0, 8.9, 67.0],
                [9.9, 68.0, 8.7, 72.0],
            ],
        }
    }
}

fn find(measured: &LroSamples, variant: LroVariant) -> Option<&[LroSample]> {
    measured.iter().find(|(found, _)| *found == variant).map(|(_, samples)| samples.as_slice())
}

/// Compares two combinations, round by round.
fn paired(
    measured: &LroSamples,
    a: LroVariant,
    b: LroVariant,
    value: fn(&LroSample) -> f64,
) -> Option<Paired> {
    Some(Paired::of(find(measured, a)?, find(measured, b)?, value))
}

pub(super) fn report(measured: &LroSamples, rounds: usize, refused: Option<String>) -> Experiment {
    let mut tables = Vec::new();
    for mtus in Mtus::ALL {
        let row = |((buffers, source), driver)| row(measured, buffers, mtus, source, driver);
        let rows: Vec<_> = Buffers::ALL
            .into_iter()
            .zip(mtus.source())
            .zip(mtus.driver())
            .filter_map(row)
            .collect();
        if !rows.is_empty() {
            let table = Table::new(Form::Live, mtus.title(), &COLUMNS, rows, rounds);
            tables.push(Table { plot: Plot::Marks(PLOTTED), ..table });
        }
    }
    let accounts: Vec<Row> =
        Mtus::ALL.into_iter().flat_map(|mtus| accounts(measured, mtus)).collect();
    tables.push(cpu_costs::table(accounts, rounds));
    let mut notes = vec![
        "The receiver's CPU time includes its program, its softirqs and the driver. The driver does the card's work in software: it copies each frame to its buffer and verifies its checksum. \
         LRO, GRO and neither have this cost alike. As in the source, it is in percent of two cores."
            .to_owned(),
        "TCP uses no timestamps, and the source's socket buffers (tcp_rmem, tcp_wmem). net.core.rmem_max, wmem_max and netdev_max_backlog belong to the machine, and are not changed."
            .to_owned(),
        "LRO is limited to 64 KB here. \"By 0xffff/MTU\" it is limited to a number of frames. At a receiver's MTU of 1500 that is 43, about the content of 64 KB, so that the source's inet_lro is \
         beside LRO there. At 9000 it is 7, which the source found to be wrong for a sender's MTU of 1500. The other limits of its patch, lro_max_pkts and MAX_SKB_FRAGS, are not used here. \
         The source's driver has the same figures for both MTUs of the receiver, so it seems not to have used this limit."
            .to_owned(),
        DRIVER.to_owned(),
        cpu_costs::NOTE.to_owned(),
    ];
    notes.extend(
        refused.map(|why| format!("Not all of the source's settings could be applied: {why}.")),
    );
    let marks = Buffers::ALL.into_iter().flat_map(|buffers| marks(measured, buffers)).collect();
    Experiment { tables, marks, notes, ..Experiment::new(&ENTRY) }
}

/// Highest permitted throughput of LRO with the frame limit, divided by that of LRO without it, if
/// the MTUs of sender and receiver differ. In the original report, with pages, `inet_lro` had 0.82
/// to 0.87 of the driver's LRO, and 0.83 to 0.87 of `inet_lro` with equal MTUs.
const LOSS: f64 = 0.87;

/// Returns the comparisons with targets for a type of buffer, as far as they were measured.
fn marks(measured: &LroSamples, buffers: Buffers) -> impl Iterator<Item = Mark> {
    let (lro, none) = ((buffers, Mtus::SMALL, Merge::Lro), (buffers, Mtus::SMALL, Merge::Not));
    // A short report has room for one page size and for linear buffers.
    let briefs: &[&'static str] = match buffers {
        Buffers::Page4K => &[
            "4K pages: LRO over none",
            "4K pages: CPU a Gb, LRO over none",
            "MTU 1500 to 9000 over 1500 to 1500",
            "the same, 7 frames at most over 44",
        ],
        Buffers::Linear => &[
            "skb: LRO over none",
            "skb: CPU a Gb, LRO over none",
            "skb: MTU 1500 to 9000 over to 1500",
        ],
        _ => &[],
    };
    let mark =
        |place: usize, what: &str, paired: Option<Paired>, side, target, source: Option<f64>| {
            let mark = paired.map(|paired| {
                Mark::paired(format!("lro: {}, {what}", buffers.name()), &paired, side, target)
            });
            mark.map(|mark| Mark { brief: briefs.get(place).copied(), source, ..mark })
        };
    let throughput = |sample: &LroSample| sample.throughput;
    let row = |mtus: Mtus| {
        Buffers::ALL
            .into_iter()
            .zip(mtus.source())
            .zip(mtus.driver())
            .find(|((found, _), _)| *found == buffers)
    };
    let (small, mixed) = (row(Mtus::SMALL), row(Mtus::MIXED));
    let source = |of: fn([f64; 4]) -> f64| small.map(|((_, source), _)| of(source));
    let by_driver =
        small.zip(mixed).and_then(|((_, small), (_, mixed))| Some(mixed?[0] / small?[0]));
    let by_count = mixed.and_then(|((_, source), driver)| Some(source[0] / driver?[0]));
    let linear = buffers == Buffers::Linear;
    let mixed_lro = (buffers, Mtus::MIXED, Merge::Lro);
    // The original report has no figure of its driver with linear buffers to compare with.
    let counted = if linear {
        None
    } else {
        paired(measured, (buffers, Mtus::MIXED, Merge::LimitedLro), mixed_lro, throughput)
    };
    [
        mark(
            0,
            "LRO over none at MTU 1500",
            paired(measured, lro, none, throughput),
            Side::AtLeast,
            if linear { 1.34 } else { 2.5 },
            source(|[lro, _, none, _]| lro / none),
        ),
        mark(
            1,
            "receiver's CPU per Gb at MTU 1500, LRO over none",
            paired(measured, lro, none, LroSample::demand),
            Side::AtMost,
            1.0,
            source(|[lro, lro_cpu, none, none_cpu]| (lro_cpu / lro) / (none_cpu / none)),
        ),
        mark(
            2,
            "LRO, MTU 1500 to 9000 over 1500 to 1500",
            paired(measured, mixed_lro, lro, throughput),
            Side::AtLeast,
            0.98,
            by_driver,
        ),
        mark(
            3,
            "LRO of at most 0xffff/MTU frames over LRO, MTU 1500 to 9000: the source's loss",
            counted,
            Side::AtMost,
            LOSS,
            by_count,
        ),
    ]
    .into_iter()
    .flatten()
}

/// Returns the rows of the CPU usage table, in the order of the throughput tables.
fn accounts(measured: &LroSamples, mtus: Mtus) -> impl Iterator<Item = Row> {
    let cells = Buffers::ALL
        .into_iter()
        .flat_map(move |buffers| Merge::ALL.map(|merge| (buffers, mtus, merge)));
    cells.filter_map(move |variant| {
        let (buffers, Mtus { sender, receiver }, merge) = variant;
        let group = format!("MTU {sender} to {receiver}, {}", buffers.name());
        Some(cpu_costs::row(
            group,
            merge.name(),
            find(measured, variant)?.iter().map(|sample| &sample.costs),
        ))
    })
}

/// Returns the throughput row of a type of buffer; `None` if LRO was not measured with this type.
fn row(
    measured: &LroSamples,
    buffers: Buffers,
    mtus: Mtus,
    source: [f64; 4],
    driver: Option<[f64; 2]>,
) -> Option<Row> {
    let variant = |merge| (buffers, mtus, merge);
    find(measured, variant(Merge::Lro))?;
    let figure = |merge, value| {
        find(measured, variant(merge)).map(|samples| Figure::from(Summary::of(samples, value)))
    };
    let ratio =
        paired(measured, variant(Merge::Lro), variant(Merge::Not), |sample| sample.throughput);
    let [lro, lro_cpu, none, none_cpu] = source;
    // The original report's inet_lro used the frame limit: its figures go into that column.
    let by_count = is_limited(mtus);
    Some(Row {
        group: String::new(),
        name: buffers.name().into(),
        figures: vec![
            None,
            None,
            figure(Merge::Lro, |sample| sample.throughput),
            figure(Merge::Lro, |sample| sample.cpu),
            figure(Merge::LimitedLro, |sample| sample.throughput),
            figure(Merge::LimitedLro, |sample| sample.cpu),
            figure(Merge::Not, |sample| sample.throughput),
            figure(Merge::Not, |sample| sample.cpu),
            figure(Merge::Gro, |sample| sample.throughput),
            figure(Merge::Gro, |sample| sample.cpu),
            figure(Merge::Lro, LroSample::demand),
            figure(Merge::Not, LroSample::demand),
            figure(Merge::Lro, |sample| sample.merged),
        ],
        source: vec![
            driver.map(|[throughput, _]| throughput),
            driver.map(|[_, cpu]| cpu),
            Some(lro).filter(|_| !by_count),
            Some(lro_cpu).filter(|_| !by_count),
            Some(lro).filter(|_| by_count),
            Some(lro_cpu).filter(|_| by_count),
            Some(none),
            Some(none_cpu),
            None,
            None,
            Some(lro_cpu / lro).filter(|_| !by_count),
            Some(none_cpu / none),
            None,
        ],
        ratio: ratio.map(|paired| Ratio::paired(Merge::Not.name(), "throughput", &paired)),
        source_ratio: Some(lro / none).filter(|_| !by_count),
        full_cpu: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::variant_groups;
    use super::*;

    fn samples(throughput: f64, cpu: f64) -> Vec<LroSample> {
        [0.99, 1.0, 1.01]
            .map(|noise| LroSample {
                throughput: throughput * noise,
                cpu,
                merged: 40.0,
                ..LroSample::default()
            })
            .into()
    }

    #[test]
    fn the_quick_form_measures_what_every_mark_needs() {
        let throughput = |variant: &LroVariant| match variant.2 {
            Merge::Not => 2.0,
            Merge::LimitedLro => 5.0,
            _ => 6.0,
        };
        let measured: LroSamples = variant_groups(true)
            .concat()
            .into_iter()
            .map(|variant| (variant, samples(throughput(&variant), 90.0)))
            .collect();
        let experiment = report(&measured, 3, None);
        let marks: Vec<_> = experiment
            .marks
            .iter()
            .map(|mark| (mark.value.map(|value| (value * 100.0).round()), mark.met))
            .collect();
        let met = |value| (Some(value), Some(true));
        assert_eq!(marks, [met(300.0), met(33.0), met(100.0), met(83.0), met(300.0), met(33.0)]);
        // In the original report: 8.8/3.7, (77/8.8)/(89/3.7), 8.9/8.9, 7.3/8.9; 5.5/4.1,
        // (90/5.5)/(92/4.1).
        let source: Vec<_> = experiment
            .marks
            .iter()
            .map(|mark| mark.source.map(|value| (value * 100.0).round()))
            .collect();
        assert_eq!(source, [238.0, 36.0, 100.0, 82.0, 134.0, 73.0].map(Some));
        assert_eq!(
            experiment.tables.len(),
            3,
            "two pairs of MTUs, none of 9000 to 9000, and where the CPU time went"
        );
    }

    #[test]
    fn the_full_form_has_the_sources_rows_with_its_figures() {
        let measured: LroSamples = variant_groups(false)
            .concat()
            .into_iter()
            .map(|variant| (variant, samples(5.0, 50.0)))
            .collect();
        assert_eq!(measured.len(), 50);
        let experiment = report(&measured, 3, Some("a sysctl".into()));
        assert!(experiment.notes.iter().any(|note| note.contains("a sysctl")));
        assert_eq!(
            experiment.tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(),
            [5, 5, 5, 50]
        );
        let source = |table: usize, row: usize, name: &str| {
            let place = COLUMNS.iter().position(|column| column.name == name).expect("a column");
            experiment.tables[table].rows[row].source[place]
        };
        assert_eq!(
            (source(0, 0, "lro_throughput"), source(0, 0, "count_throughput")),
            (Some(8.8), None)
        );
        let skb = ["lro_throughput", "count_throughput", "count_cpu", "none_throughput"]
            .map(|name| source(1, 4, name));
        assert_eq!(
            skb,
            [None, Some(4.9), Some(92.0), Some(4.1)],
            "counted as the source's inet_lro"
        );
        let driver =
            |table, row| ["driver_throughput", "driver_cpu"].map(|name| source(table, row, name));
        assert_eq!(driver(0, 0), [Some(8.9), Some(78.0)]);
        assert_eq!(
            driver(1, 3),
            [Some(9.4), Some(72.0)],
            "with the receiver's MTU it did not change"
        );
        assert_eq!((driver(2, 1), driver(2, 4)), ([Some(9.9), Some(60.0)], [None; 2]));
        let linear = &experiment.tables[1].rows[4];
        assert!(
            linear.figures[2..].iter().all(Option::is_some) && linear.figures[..2] == [None; 2],
            "nobody has that driver"
        );
        let ratio = |row: &Row| row.source_ratio.map(|ratio| (ratio * 100.0).round());
        let ratios: Vec<_> = experiment.tables[0].rows.iter().filter_map(ratio).collect();
        assert_eq!(
            ratios,
            [238.0, 246.0, 247.0, 241.0, 134.0],
            "as the source's own figures have them"
        );
        assert!(
            experiment.marks.iter().any(|mark| mark.met == Some(false)),
            "what is no faster is not called so"
        );
    }
}
