//! Texts and table cells for the results of an experiment, as used by the terminal, HTML and
//! Markdown reports.

use superpacket_captures::present::{
    Cell, Column, NOTHING, Table as Cells, factor, factor_digits, number, range, shortest,
};
use superpacket_lab::experiment::{Figure, Form, FullCpu, Mark, Ratio, Row, Side, Table};

/// Text in place of a ratio that is withheld.
const NO_RATIO: &str = "no ratio";

/// Reason why a ratio is withheld.
const WHY_NO_RATIO: &str = "no ratio: the rounds differ too much for one to mean anything";

/// Describes how the figures of a table were obtained.
pub(super) fn method(table: &Table) -> String {
    if let Some(made) = &table.made {
        return made.clone();
    }
    match (table.form, table.rounds) {
        (Form::Live, 1) => "measured once".to_owned(),
        (Form::Live, rounds) => {
            format!("measured, medians of {rounds} rounds, and between what half of them lie")
        }
        (Form::Model, _) => "counted on the model NIC, the same in every run".to_owned(),
        (Form::Simulated, _) => "simulated, the same in every run".to_owned(),
    }
}

/// Returns the explanation to print after the table if one of its ratios is not shown; otherwise
/// `None`.
pub(super) fn why_no_ratio(table: &Table) -> Option<&'static str> {
    let withheld = table.rows.iter().filter_map(ratio_of).any(|ratio| ratio.value.is_none());
    withheld.then_some(WHY_NO_RATIO)
}

/// A column of figures or ratios.
#[derive(Clone, Copy, Debug)]
enum FigureColumn {
    /// The values measured here in the table's column with this index.
    Here(usize),
    /// The values that the source published for the table's column with this index.
    Source(usize),
    /// The ratios measured here, one for each row.
    Ratio,
    /// The ratios of the values that the source published, one for each row.
    SourceRatio,
    /// For each row, which CPUs were fully used: the bridge's, the load's, both or none.
    FullCpu,
}

/// Maximum columns of figures that fit a screen.
const MAX_FIGURES: usize = 9;

/// Returns the cells of a table. A group's name is in its first row only.
pub(super) fn cells(table: &Table) -> Cells {
    cells_of(table, &blocks(table).concat())
}

/// Returns the cells of a table, divided into tables with few enough columns for a screen. Columns
/// with the same unit stay together if possible.
pub(super) fn parts(table: &Table) -> Vec<Cells> {
    let mut parts: Vec<Vec<FigureColumn>> = vec![Vec::new()];
    for block in blocks(table) {
        // A block that is too wide for one part is divided evenly.
        let pieces = block.len().div_ceil(MAX_FIGURES).max(1);
        for piece in block.chunks(block.len().div_ceil(pieces).max(1)) {
            match parts.last_mut() {
                Some(part) if part.len() + piece.len() <= MAX_FIGURES => {
                    part.extend_from_slice(piece);
                }
                _ => parts.push(piece.to_vec()),
            }
        }
    }
    parts.iter().map(|columns| cells_of(table, columns)).collect()
}

/// Returns the columns of figures, grouped by unit. A column of values measured here is followed by
/// that of the source's values, and then by the ratios that compare it. Columns without any value
/// are left out, because only a longer run measures them.
fn blocks(table: &Table) -> Vec<Vec<FigureColumn>> {
    let rows = || table.rows.iter();
    let ratios: Vec<_> = rows().filter_map(ratio_of).collect();
    let compared = SharedRatio::new(&ratios).column;
    let mut ratio_columns = Vec::new();
    if !ratios.is_empty() {
        ratio_columns.push(FigureColumn::Ratio);
    }
    if rows().any(|row| row.source_ratio.is_some()) {
        ratio_columns.push(FigureColumn::SourceRatio);
    }
    let mut blocks: Vec<(&str, Vec<FigureColumn>)> = Vec::new();
    for (place, column) in table.columns.iter().enumerate() {
        let mut columns = Vec::new();
        if rows().any(|row| figure_of(row, place).is_some()) {
            columns.push(FigureColumn::Here(place));
        }
        if rows().any(|row| source_of(row, place).is_some()) {
            columns.push(FigureColumn::Source(place));
        }
        if compared == Some(column.name) {
            columns.append(&mut ratio_columns);
        }
        match blocks.iter_mut().find(|(unit, _)| *unit == column.unit) {
            Some((_, block)) => block.append(&mut columns),
            None => blocks.push((column.unit, columns)),
        }
    }
    let full: Vec<_> = rows()
        .any(|row| row.full_cpu.is_some())
        .then_some(FigureColumn::FullCpu)
        .into_iter()
        .collect();
    blocks.into_iter().map(|(_, block)| block).chain([ratio_columns, full]).collect()
}

/// Returns the cells of a table: the names of its rows, and these columns of figures.
fn cells_of(table: &Table, figures: &[FigureColumn]) -> Cells {
    let grouped_rows = table.rows.iter().any(|row| !row.group.is_empty());
    let ratios: Vec<_> = table.rows.iter().filter_map(ratio_of).collect();
    let shared = SharedRatio::new(&ratios);
    let names = 1 + usize::from(grouped_rows);
    let title = |place: usize| {
        let column = &table.columns[place];
        if column.unit.is_empty() {
            column.title.to_owned()
        } else {
            format!("{}, {}", column.title, column.unit)
        }
    };
    let column = |column: &FigureColumn| match *column {
        FigureColumn::Here(place) => Column { heading: title(place), of_source: false },
        FigureColumn::Source(place) => Column { heading: title(place), of_source: true },
        FigureColumn::Ratio => Column { heading: shared.heading(table), of_source: false },
        FigureColumn::SourceRatio => {
            Column { heading: "ratio (computed)".to_owned(), of_source: true }
        }
        FigureColumn::FullCpu => Column { heading: "full CPU".to_owned(), of_source: false },
    };
    let cell = |row: &Row, column: &FigureColumn| match *column {
        FigureColumn::Here(place) => {
            let digits = table.columns[place].digits;
            figure_of(row, place).map_or_else(
                || Cell::new(NOTHING),
                |Figure { value, low, high }| {
                    with_spread(number(value, digits), [low, high], digits)
                },
            )
        }
        FigureColumn::Source(place) => {
            let digits = source_digits(table, place);
            let text = source_of(row, place).map(|value| number(value, digits));
            Cell::new(text.unwrap_or_else(|| NOTHING.to_owned()))
        }
        FigureColumn::Ratio => {
            ratio_of(row).map_or_else(|| Cell::new(""), |ratio| shared.cell(ratio))
        }
        FigureColumn::SourceRatio => Cell::new(row.source_ratio.map(factor).unwrap_or_default()),
        FigureColumn::FullCpu => Cell::new(row.full_cpu.map_or("", FullCpu::words)),
    };
    let mut group = None;
    let rows = table.rows.iter().map(|row| {
        let mut cells = Vec::with_capacity(names + figures.len());
        if grouped_rows {
            let same = group.replace(&row.group) == Some(&row.group);
            cells.push(Cell::new(if same { "" } else { &row.group }));
        }
        cells.push(Cell::new(&row.name));
        cells.extend(figures.iter().map(|column| cell(row, column)));
        cells
    });
    let rows = rows.collect();
    let nameless = std::iter::repeat_n(Column::default(), names);
    let columns = nameless.chain(figures.iter().map(column)).collect();
    Cells { names, columns, rows, main: None, class: "lab" }
}

/// The properties that are equal in all ratios of a table, and are therefore shown in the heading
/// of their column.
struct SharedRatio<'a> {
    against: Option<&'a str>,
    column: Option<&'static str>,
}

impl<'a> SharedRatio<'a> {
    fn new(ratios: &[&'a Ratio]) -> Self {
        let against = ratios
            .first()
            .map(|first| first.against.as_str())
            .filter(|first| ratios.iter().all(|ratio| ratio.against == *first));
        let column = ratios
            .first()
            .map(|first| first.column)
            .filter(|first| ratios.iter().all(|ratio| ratio.column == *first));
        Self { against, column }
    }

    fn heading(&self, table: &Table) -> String {
        let column = self.column.map(|name| {
            table
                .columns
                .iter()
                .find(|column| column.name == name)
                .map_or(name, |column| column.title)
        });
        match (column, self.against) {
            (Some(column), Some(against)) => format!("{column} to {against}"),
            (Some(column), None) => format!("{column}, ratio"),
            (None, Some(against)) => format!("ratio to {against}"),
            (None, None) => "ratio".to_owned(),
        }
    }

    fn cell(&self, ratio: &Ratio) -> Cell {
        let mut text = ratio.value.map_or_else(|| NO_RATIO.to_owned(), factor);
        if self.column.is_none() {
            text = format!("{} {text}", ratio.column.replace('_', " "));
        }
        if self.against.is_none() {
            text = format!("{text} to {}", ratio.against);
        }
        with_spread(text, [ratio.low, ratio.high], factor_digits(ratio.low))
    }
}

/// Returns a cell with the spread of its figure.
fn with_spread(text: String, [low, high]: [f64; 2], digits: usize) -> Cell {
    Cell { note: (low != high).then(|| range(low, high, digits)), ..Cell::new(text) }
}

/// Returns a row's ratio, unless it is a division by zero.
fn ratio_of(row: &Row) -> Option<&Ratio> {
    row.ratio.as_ref().filter(|ratio| ratio.low.is_finite() && ratio.high.is_finite())
}

fn figure_of(row: &Row, place: usize) -> Option<Figure> {
    row.figures.get(place).copied().flatten()
}

fn source_of(row: &Row, place: usize) -> Option<f64> {
    row.source.get(place).copied().flatten()
}

/// Returns the number of decimal digits for a column of the source's values: as many as the longest
/// of them has. If the values were computed and not published, the number is that of the column
/// measured here.
fn source_digits(table: &Table, place: usize) -> usize {
    let written =
        table.rows.iter().filter_map(|row| source_of(row, place)).map(decimals).max().unwrap_or(0);
    if written <= MAX_SOURCE_DIGITS { written } else { table.columns[place].digits }
}

/// Returns how many digits after the decimal point are needed to print a number exactly.
pub(super) fn decimals(value: f64) -> usize {
    value.to_string().split_once('.').map_or(0, |(_, fraction)| fraction.len())
}

/// Maximum number of digits after the decimal point of a published value; values with more were
/// computed.
const MAX_SOURCE_DIGITS: usize = 3;

/// Describes the value reached by an experiment, and its target.
pub(super) fn mark(mark: &Mark) -> String {
    let side = match mark.side {
        Side::AtLeast => "at least",
        Side::AtMost => "at most",
    };
    let [low, high] = mark.spread;
    let value = match mark.value {
        Some(value) if low != high => format!("{} ({}), ", number(value, 3), range(low, high, 3)),
        Some(value) => format!("{}, ", number(value, 3)),
        None if low != high => format!("between {} and {}, ", number(low, 3), number(high, 3)),
        None => String::new(),
    };
    format!("{value}{side} {}", shortest(mark.target, 3))
}

/// Returns in words whether a target was met.
pub(super) fn verdict(mark: &Mark) -> &'static str {
    match mark.met {
        Some(true) => "met",
        Some(false) => "missed",
        None if mark.nothing_to_spare => "nothing to spare",
        None => "cannot be said",
    }
}

/// Returns whether the value compared with a target was counted or simulated; `None` if it was
/// measured.
pub(super) fn origin(mark: &Mark) -> Option<&'static str> {
    match mark.form {
        Form::Live => None,
        Form::Model => Some("counted"),
        Form::Simulated => Some("simulated"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A table with two groups, a ratio that is shown and one that is withheld. The source has
    /// figures for one of the two columns; the other column has a single figure.
    pub(in super::super) fn table() -> Table {
        let column = |name, title, unit, digits| superpacket_lab::experiment::Column {
            name,
            title,
            unit,
            digits,
        };
        let row =
            |group: &str, name: &str, value: f64, ratio: Option<Option<f64>>, source: f64| Row {
                group: group.into(),
                name: name.into(),
                figures: vec![Some(Figure { value, low: value - 0.5, high: value + 0.5 }), None],
                source: vec![Some(source), None],
                ratio: ratio.map(|value| Ratio {
                    against: "none".into(),
                    column: "throughput",
                    value,
                    low: 2.0,
                    high: 3.25,
                }),
                source_ratio: ratio.map(|_| 2.378),
                full_cpu: None,
            };
        let mut table = Table {
            title: "Sender <MTU> 1500".into(),
            form: Form::Live,
            columns: vec![
                column("throughput", "throughput", "Gb/s", 1),
                column("frames", "frames", "", 0),
            ],
            rows: vec![
                row("4K pages", "none", 2.0, None, 3.7),
                row("4K pages", "LRO", 5.0, Some(Some(2.5)), 8.8),
                row("linear", "none", 2.0, None, 4.1),
                row("linear", "LRO", 1234.0, Some(None), 5.5),
            ],
            rounds: 3,
            plot: superpacket_lab::experiment::Plot::Nothing,
            made: None,
        };
        table.rows[0].figures[1] = Some(Figure::exact(7.0));
        table
    }

    #[test]
    fn columns_without_figures_are_left_out() {
        let mut table = table();
        table.rows[0].figures[1] = None;
        let grid = cells(&table);
        assert!(
            grid.columns.iter().all(|column| column.heading != "frames")
                && grid.rows.iter().all(|row| row.len() == grid.columns.len())
        );
    }

    #[test]
    fn the_full_cpu_is_the_last_cell_of_a_row() {
        let mut table = table();
        table.rows[0].full_cpu = Some(FullCpu::Queue);
        table.rows[1].full_cpu = Some(FullCpu::Neither);
        let grid = cells(&table);
        let last = grid.columns.last().map(|column| column.heading.as_str());
        let cells: Vec<_> = grid.rows.iter().filter_map(|row| row.last()).collect();
        assert_eq!(last, Some("full CPU"));
        assert_eq!(
            cells.iter().map(|cell| cell.text.as_str()).collect::<Vec<_>>(),
            ["the queue's", "none", "", ""]
        );
    }

    #[test]
    fn cells_say_figure_spread_source_and_ratio() {
        let grid = cells(&table());
        let header: Vec<_> =
            grid.columns.iter().map(|column| (column.heading.as_str(), column.of_source)).collect();
        let expected = [
            ("", false),
            ("", false),
            ("throughput, Gb/s", false),
            ("throughput, Gb/s", true),
            ("throughput to none", false),
            ("ratio (computed)", true),
            ("frames", false),
        ];
        assert_eq!(
            (grid.names, header.as_slice(), why_no_ratio(&table()).is_some()),
            (2, &expected[..], true)
        );
        let rows: Vec<Vec<_>> =
            grid.rows.iter().map(|row| row.iter().map(Cell::joined).collect()).collect();
        assert_eq!(rows[1], ["", "LRO", "5.0 (4.5-5.5)", "8.8", "2.50x (2.00-3.25)", "2.38x", "-"]);
        assert_eq!(rows[2], ["linear", "none", "2.0 (1.5-2.5)", "4.1", "", "", "-"]);
        assert_eq!(rows[3][4], "no ratio (2.00-3.25)");
        assert_eq!(rows[3][2], "1,234.0 (1,233.5-1,234.5)");
    }

    #[test]
    fn the_source_s_figures_have_its_own_digits() {
        let mut table = table();
        for (row, value) in table.rows.iter_mut().zip([8530.80, 9249.65, 16.0, 20.10]) {
            row.source[0] = Some(value);
        }
        let shown: Vec<_> = cells(&table).rows.iter().map(|row| row[3].text.clone()).collect();
        assert_eq!(shown, ["8,530.80", "9,249.65", "16.00", "20.10"]);
        table.rows[0].source[0] = Some(8.75 / 3.0);
        assert_eq!(
            cells(&table).rows[0][3].text,
            "2.9",
            "what was computed of them has the table's"
        );
    }

    #[test]
    fn differing_properties_of_ratios_are_shown_in_each_cell() {
        let mut table = table();
        let change = |ratio: &mut Option<Ratio>| {
            if let Some(ratio) = ratio {
                *ratio = Ratio { against: "GRO".into(), column: "frames", ..ratio.clone() };
            }
        };
        change(&mut table.rows[3].ratio);
        let grid = cells(&table);
        assert_eq!(grid.columns[5].heading, "ratio");
        assert_eq!(grid.rows[1][5].text, "throughput 2.50x to none");
        assert_eq!(grid.rows[3][5].text, "frames no ratio to GRO");
    }

    #[test]
    fn a_division_by_zero_is_not_a_ratio() {
        let mut table = table();
        table.rows[3].ratio = Some(Ratio::exact("none", "throughput", f64::NAN));
        let grid = cells(&table);
        assert_eq!(
            (grid.rows[3][4].joined().as_str(), why_no_ratio(&table).is_some()),
            ("", false)
        );
    }

    #[test]
    fn a_wide_table_has_parts_of_whole_units_with_the_same_names() {
        let mut table = table();
        assert_eq!(parts(&table), [cells(&table)], "it fits");
        for _ in 0..2 {
            table.columns.extend(table.columns.clone());
            for row in &mut table.rows {
                row.figures.extend(row.figures.clone());
                row.source.extend(row.source.clone());
            }
        }
        let parts = parts(&table);
        // Four columns of throughput here and in the source, and two ratios; four of counts.
        let figures: Vec<_> = parts.iter().map(|part| part.columns.len() - part.names).collect();
        assert_eq!(figures, [5, 9], "counts fit beside half of the throughputs");
        for part in &parts {
            assert!(
                part.rows.iter().zip(cells(&table).rows).all(|(row, all)| row[..2] == all[..2])
            );
        }
    }

    #[test]
    fn the_origin_of_figures_is_described() {
        let medians = table();
        assert_eq!(
            method(&medians),
            "measured, medians of 3 rounds, and between what half of them lie"
        );
        assert_eq!(method(&Table { rounds: 1, ..medians.clone() }), "measured once");
        assert_eq!(
            method(&Table { made: Some("measured: the best".into()), ..medians }),
            "measured: the best"
        );
    }

    #[test]
    fn marks_are_described_in_words() {
        let counted = Mark::exact("lro: counts", Form::Model, 2.6, Side::AtLeast, 2.5);
        assert_eq!(
            (mark(&counted), verdict(&counted), origin(&counted)),
            ("2.600, at least 2.5".into(), "met", Some("counted"))
        );
        let spread = Mark {
            form: Form::Live,
            met: Some(false),
            spread: [0.9, 1.1],
            value: Some(1.0),
            side: Side::AtMost,
            target: 0.84,
            ..counted
        };
        assert_eq!(
            (mark(&spread), verdict(&spread), origin(&spread)),
            ("1.000 (0.900-1.100), at most 0.84".into(), "missed", None)
        );
        let hidden = spread.clone().undecided("why");
        assert_eq!(
            (mark(&hidden), verdict(&hidden)),
            ("between 0.900 and 1.100, at most 0.84".into(), "cannot be said")
        );
        let full = spread.clone().with_nothing_to_spare("no CPU was idle");
        assert_eq!(
            (mark(&full), verdict(&full)),
            ("1.000 (0.900-1.100), at most 0.84".into(), "nothing to spare")
        );
        let unmeasured = Mark::unmeasured("lro", Side::AtLeast, 1.0, "why");
        assert_eq!(
            (mark(&unmeasured), verdict(&unmeasured)),
            ("at least 1".into(), "cannot be said")
        );
    }
}
