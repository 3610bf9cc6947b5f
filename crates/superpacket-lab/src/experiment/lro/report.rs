//! What was measured, as the source's tables have it.

use super::live::Sample;
use super::{Buffers, Cell, Merge, Mtus, NAME, SOURCE, SUMMARY};
use crate::experiment::spent;
use crate::experiment::{Column, Experiment, Figure, Form, Mark, Ratio, Row, Side, Table};
use crate::paired::{Paired, Summary};

/// Why a column of the source has no figure of this machine beside it.
const DRIVER: &str = "\"1.3.1\" is the LRO of Myri10GE's driver outside of the kernel, rejected by it: a driver for a card that is not here, so that only the source's figures stand there.";

const COLUMNS: [Column; 11] = [
    Column { name: "driver_throughput", title: "1.3.1", unit: "Gb/s", digits: 1 },
    Column { name: "driver_cpu", title: "1.3.1", unit: "%", digits: 0 },
    Column { name: "lro_throughput", title: "LRO", unit: "Gb/s", digits: 1 },
    Column { name: "lro_cpu", title: "LRO", unit: "%", digits: 0 },
    Column { name: "gro_throughput", title: "GRO", unit: "Gb/s", digits: 1 },
    Column { name: "gro_cpu", title: "GRO", unit: "%", digits: 0 },
    Column { name: "none_throughput", title: "no LRO", unit: "Gb/s", digits: 1 },
    Column { name: "none_cpu", title: "no LRO", unit: "%", digits: 0 },
    Column { name: "lro_demand", title: "LRO", unit: "% a Gb/s", digits: 1 },
    Column { name: "none_demand", title: "no LRO", unit: "% a Gb/s", digits: 1 },
    Column { name: "merged", title: "LRO: segments a packet", unit: "", digits: 1 },
];

/// What was measured, by cell.
pub(super) type Measured = Vec<(Cell, Vec<Sample>)>;

impl Mtus {
    fn title(self) -> String {
        format!("RX Performance for Sender MTU={}, Receiver MTU={}", self.sender, self.receiver)
    }

    /// The source's Gb/s and % CPU by the LRO of its driver 1.3.1, for each of the buffers; it had no linear ones.
    fn driver(self) -> [Option<[f64; 2]>; 5] {
        let pages = match (self.sender, self.receiver) {
            (1500, _) => [[8.9, 78.0], [9.2, 77.0], [9.4, 73.0], [9.4, 72.0]],
            _ => [[9.9, 63.0], [9.9, 60.0], [9.9, 55.0], [9.9, 53.0]],
        };
        let [a, b, c, d] = pages.map(Some);
        [a, b, c, d, None]
    }

    /// The source's Gb/s and % CPU by `inet_lro` and without LRO, for each of the buffers.
    fn source(self) -> [[f64; 4]; 5] {
        match (self.sender, self.receiver) {
            (1500, 1500) => {
                [[8.8, 77.0, 3.7, 89.0], [9.1, 77.0, 3.7, 89.0], [9.4, 73.0, 3.8, 89.0], [9.4, 72.0, 3.9, 89.0], [5.5, 90.0, 4.1, 92.0]]
            }
            (1500, _) => {
                [[7.3, 79.0, 3.7, 89.0], [7.6, 79.0, 3.7, 89.0], [8.0, 78.0, 3.8, 89.0], [8.2, 79.0, 3.9, 89.0], [4.9, 92.0, 4.1, 92.0]]
            }
            _ => [[9.6, 66.0, 8.3, 71.0], [9.9, 63.0, 8.4, 72.0], [9.9, 55.0, 8.7, 70.0], [9.9, 53.0, 8.9, 67.0], [9.9, 68.0, 8.7, 72.0]],
        }
    }
}

fn values(samples: &[Sample], value: fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(value).collect()
}

fn find(measured: &Measured, cell: Cell) -> Option<&[Sample]> {
    measured.iter().find(|(found, _)| *found == cell).map(|(_, samples)| samples.as_slice())
}

/// Two cells, round by round.
fn paired(measured: &Measured, a: Cell, b: Cell, value: fn(&Sample) -> f64) -> Option<Paired> {
    Some(Paired::new(&values(find(measured, a)?, value), &values(find(measured, b)?, value)))
}

pub(super) fn report(measured: &Measured, rounds: usize) -> Experiment {
    let mut tables = Vec::new();
    for mtus in Mtus::ALL {
        let row = |((buffers, source), driver)| row(measured, buffers, mtus, source, driver);
        let rows: Vec<_> = Buffers::ALL.into_iter().zip(mtus.source()).zip(mtus.driver()).filter_map(row).collect();
        if !rows.is_empty() {
            tables.push(Table { title: mtus.title(), form: Form::Live, columns: COLUMNS.into(), rows, rounds, plot: Some(2), made: None });
        }
    }
    let accounts: Vec<Row> = Mtus::ALL.into_iter().flat_map(|mtus| accounts(measured, mtus)).collect();
    tables.push(spent::table(accounts, rounds));
    let notes = vec![
        "The receiver's CPU is its program's, its softirqs' and the driver's, which does in software what a card does in silicon: it copies each frame to its \
         buffer and verifies its checksum. LRO, GRO and neither pay for that alike."
            .to_owned(),
        DRIVER.to_owned(),
        spent::NOTE.to_owned(),
    ];
    let marks = Buffers::ALL.into_iter().flat_map(|buffers| marks(measured, buffers)).collect();
    Experiment { name: NAME, source: SOURCE, summary: SUMMARY, tables, marks, notes }
}

/// What is to be reached with some buffers, as far as it was measured.
fn marks(measured: &Measured, buffers: Buffers) -> impl Iterator<Item = Mark> {
    let (lro, none) = ((buffers, Mtus::SMALL, Merge::Lro), (buffers, Mtus::SMALL, Merge::Not));
    let mark = |what: &str, paired: Option<Paired>, side, target| {
        paired.map(|paired| Mark::paired(format!("{NAME}: {}, {what}", buffers.name()), &paired, side, target))
    };
    let throughput = |sample: &Sample| sample.throughput;
    let target = if buffers == Buffers::Linear { 1.34 } else { 2.5 };
    let mixed = paired(measured, (buffers, Mtus::MIXED, Merge::Lro), lro, throughput);
    let demand = paired(measured, lro, none, Sample::demand);
    [
        mark("LRO over none at MTU 1500", paired(measured, lro, none, throughput), Side::AtLeast, target),
        mark("receiver's CPU per Gb at MTU 1500, LRO over none", demand, Side::AtMost, 1.0),
        mark("LRO, MTU 1500 to 9000 over 1500 to 1500", mixed, Side::AtLeast, 0.98),
    ]
    .into_iter()
    .flatten()
}

/// Where the CPU time went, in the order of the tables.
fn accounts(measured: &Measured, mtus: Mtus) -> impl Iterator<Item = Row> {
    let cells = Buffers::ALL.into_iter().flat_map(move |buffers| Merge::ALL.map(|merge| (buffers, mtus, merge)));
    cells.filter_map(move |cell| {
        let (buffers, Mtus { sender, receiver }, merge) = cell;
        let group = format!("MTU {sender} to {receiver}, {}", buffers.name());
        Some(spent::row(group, merge.name(), find(measured, cell)?.iter().map(|sample| &sample.spent)))
    })
}

/// The row of some buffers; `None` where LRO was not measured with them.
fn row(measured: &Measured, buffers: Buffers, mtus: Mtus, source: [f64; 4], driver: Option<[f64; 2]>) -> Option<Row> {
    let cell = |merge| (buffers, mtus, merge);
    find(measured, cell(Merge::Lro))?;
    let figure = |merge, value| find(measured, cell(merge)).map(|samples| Figure::from(Summary::new(&values(samples, value))));
    let ratio = paired(measured, cell(Merge::Lro), cell(Merge::Not), |sample| sample.throughput);
    let [lro, lro_cpu, none, none_cpu] = source;
    Some(Row {
        group: String::new(),
        name: buffers.name().into(),
        figures: vec![
            None,
            None,
            figure(Merge::Lro, |sample| sample.throughput),
            figure(Merge::Lro, |sample| sample.cpu),
            figure(Merge::Gro, |sample| sample.throughput),
            figure(Merge::Gro, |sample| sample.cpu),
            figure(Merge::Not, |sample| sample.throughput),
            figure(Merge::Not, |sample| sample.cpu),
            figure(Merge::Lro, Sample::demand),
            figure(Merge::Not, Sample::demand),
            figure(Merge::Lro, |sample| sample.merged),
        ],
        source: vec![
            driver.map(|[throughput, _]| throughput),
            driver.map(|[_, cpu]| cpu),
            Some(lro),
            Some(lro_cpu),
            None,
            None,
            Some(none),
            Some(none_cpu),
            Some(lro_cpu / lro),
            Some(none_cpu / none),
            None,
        ],
        ratio: ratio.map(|paired| Ratio::paired(Merge::Not.name(), "throughput", &paired)),
        source_ratio: Some(lro / none),
    })
}

#[cfg(test)]
mod tests {
    use super::super::cells;
    use super::*;

    fn samples(throughput: f64, cpu: f64) -> Vec<Sample> {
        [0.99, 1.0, 1.01].map(|noise| Sample { throughput: throughput * noise, cpu, merged: 40.0, ..Sample::default() }).into()
    }

    #[test]
    fn the_quick_form_measures_what_every_mark_needs() {
        let throughput = |cell: &Cell| if cell.2 == Merge::Not { 2.0 } else { 6.0 };
        let measured: Measured = cells(true).concat().into_iter().map(|cell| (cell, samples(throughput(&cell), 90.0))).collect();
        let experiment = report(&measured, 3);
        let marks: Vec<_> = experiment.marks.iter().map(|mark| (mark.value.map(|value| (value * 10.0).round()), mark.met)).collect();
        let met = |value| (Some(value), Some(true));
        assert_eq!(marks, [met(30.0), met(3.0), met(10.0), met(30.0), met(3.0)]);
        assert_eq!(experiment.tables.len(), 3, "two pairs of MTUs, none of 9000 to 9000, and where the CPU time went");
    }

    #[test]
    fn the_full_form_has_the_sources_rows_with_its_figures() {
        let measured: Measured = cells(false).concat().into_iter().map(|cell| (cell, samples(5.0, 50.0))).collect();
        assert_eq!(measured.len(), 45);
        let experiment = report(&measured, 3);
        assert_eq!(experiment.tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [5, 5, 5, 45]);
        let linear = &experiment.tables[1].rows[4];
        assert_eq!((linear.name.as_str(), linear.source[2], linear.source[6]), ("skb", Some(4.9), Some(4.1)));
        assert!(linear.figures[2..].iter().all(Option::is_some) && linear.figures[..2] == [None; 2], "nobody has that driver");
        let driver = |table: usize, row: usize| [0, 1].map(|column| experiment.tables[table].rows[row].source[column]);
        assert_eq!(driver(0, 0), [Some(8.9), Some(78.0)]);
        assert_eq!(driver(1, 3), [Some(9.4), Some(72.0)], "with the receiver's MTU it did not change");
        assert_eq!((driver(2, 1), driver(2, 4)), ([Some(9.9), Some(60.0)], [None; 2]));
        let ratio = |row: &Row| row.source_ratio.map(|ratio| (ratio * 100.0).round());
        let ratios: Vec<_> = experiment.tables[0].rows.iter().filter_map(ratio).collect();
        assert_eq!(ratios, [238.0, 246.0, 247.0, 241.0, 134.0], "as the source's own figures have them");
        assert!(experiment.marks.iter().any(|mark| mark.met == Some(false)), "what is no faster is not called so");
    }
}
