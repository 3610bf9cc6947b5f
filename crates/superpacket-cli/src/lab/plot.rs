//! Charts of tables and targets, which compare the values measured here with those published in the
//! source.

use superpacket_captures::present::{
    Chart, Curves, Dot, DotColour, DotLine, DotRow, DotShape, DotStyle, Dots,
};
use superpacket_lab::experiment::{Experiment, Figure, Form, Mark, Plot, Row, Side, Table, find};

use super::brief::{self, headline_rows};

/// How a chart shows the value published in the source, and the target.
const SOURCE: DotStyle = hollow(DotShape::Circle);
const TARGET: DotStyle = DotStyle { shape: DotShape::Tick, hollow: false, colour: DotColour::Ink };

/// The shapes of the variants that a chart compares.
const SHAPES: [DotShape; 4] =
    [DotShape::Square, DotShape::Circle, DotShape::Triangle, DotShape::Diamond];

const fn hollow(shape: DotShape) -> DotStyle {
    DotStyle { shape, hollow: true, colour: DotColour::Muted }
}

const fn filled(shape: DotShape) -> DotStyle {
    DotStyle { shape, hollow: false, colour: DotColour::After }
}

/// Returns the style of a dot by whether its value met the target. Met, missed and unclear differ
/// in shape too, not only in colour.
const fn judged(met: Option<bool>) -> DotStyle {
    let (shape, colour) = match met {
        Some(true) => (DotShape::Circle, DotColour::Good),
        Some(false) => (DotShape::Cross, DotColour::Bad),
        None => (DotShape::Square, DotColour::Muted),
    };
    DotStyle { shape, hollow: false, colour }
}

/// Returns a chart of the most important ratios of all experiments: first those that should be
/// large, then those that should be small. Counted values are left out, because they are not
/// ratios. Returns `None` if no ratio is left.
pub(super) fn overview(experiments: &[Experiment]) -> Option<Dots> {
    let mut rows = Vec::new();
    for (side, section) in [(Side::AtLeast, "More is better"), (Side::AtMost, "Less is better")] {
        let before = rows.len();
        for experiment in experiments {
            let ratios = headline_rows(experiment)
                .filter(|(_, mark)| mark.side == side && mark.form != Form::Model);
            let ratios: Vec<_> = ratios.map(|(name, mark)| ratio(name, mark)).collect();
            if !ratios.is_empty() {
                let headline =
                    find(experiment.name).map_or(experiment.source, |entry| entry.headline);
                rows.push(DotRow::Heading(format!("{}: {headline}", experiment.name)));
                rows.extend(ratios);
            }
        }
        if rows.len() > before {
            rows.insert(before, DotRow::Section(section.to_owned()));
        }
    }
    let key = [
        (judged(Some(true)), "here: target met"),
        (judged(Some(false)), "missed"),
        (judged(None), "unclear"),
        (DotStyle { shape: DotShape::Interval, ..TARGET }, "half of the rounds"),
        (SOURCE, "the source"),
        (TARGET, "target"),
    ];
    (!rows.is_empty()).then(|| Dots {
        title: "What each experiment compares, here and in its source".to_owned(),
        axis: "times, on a logarithmic axis".to_owned(),
        line: Some(1.0),
        key: key.map(|(style, text)| (style, text.to_owned())).into(),
        rows,
    })
}

/// Returns the row of a chart for one target: the target, the source's value and the value reached.
fn ratio(name: &str, mark: &Mark) -> DotRow {
    let exact =
        |value, style| Dot { value: Some(value), spread: [value; 2], style, line: DotLine::Middle };
    let mut dots = vec![exact(mark.target, TARGET)];
    dots.extend(mark.source.map(|source| exact(source, SOURCE)));
    dots.push(Dot {
        value: mark.value,
        spread: mark.spread,
        style: judged(mark.met),
        line: DotLine::Middle,
    });
    let text = format!("{} {}", brief::here(mark), brief::verdict(mark));
    DotRow::Dots { name: name.to_owned(), text, dots }
}

/// A chart, with the index of the table above which it is placed.
pub(super) struct TableChart {
    pub(super) before: usize,
    pub(super) chart: Box<dyn Chart>,
}

/// Returns the charts of an experiment's tables. Consecutive tables with the same columns, form and
/// kind of plot share a chart.
pub(super) fn charts(tables: &[Table]) -> Vec<TableChart> {
    let same = |one: &Table, other: &Table| {
        one.form == other.form && one.columns == other.columns && one.plot == other.plot
    };
    let mut charts = Vec::new();
    let mut before = 0;
    for group in tables.chunk_by(same) {
        let chart: Option<Box<dyn Chart>> = match &group[0].plot {
            Plot::Nothing => None,
            Plot::Marks(columns) => Some(Box::new(marks(group, columns))),
            Plot::Curves { over, places, values } => {
                Some(Box::new(curves(&group[0], over, places, values)))
            }
        };
        charts.extend(chart.map(|chart| TableChart { before, chart }));
        before += group.len();
    }
    charts
}

/// Returns a chart with one curve for each column of a table.
fn curves(table: &Table, over: &str, places: &[f64], values: &str) -> Curves {
    let curve = |(index, column): (usize, &superpacket_lab::experiment::Column)| {
        let figures = table.rows.iter().filter_map(|row| Some(row.figures[index]?.value));
        (column.title.to_owned(), figures.collect())
    };
    Curves {
        title: table.title.clone(),
        axes: [over.to_owned(), values.to_owned()],
        over: places.to_vec(),
        curves: table.columns.iter().enumerate().map(curve).collect(),
    }
}

/// The value of a variant that was measured here, and the value published in the source.
struct Compared<'a> {
    variant: &'a str,
    here: Option<Figure>,
    source: Option<f64>,
}

/// Returns a chart that shows the values in these columns of the tables as dots. The tables have
/// the same columns.
fn marks(tables: &[Table], columns: &[usize]) -> Dots {
    let compared = |row: &Row, variant, place: usize| Compared {
        variant,
        here: row.figures.get(place).copied().flatten(),
        source: row.source.get(place).copied().flatten(),
    };
    let mut lines: Vec<(Option<&str>, &str, Vec<Compared<'_>>)> = Vec::new();
    for table in tables {
        let title = (tables.len() > 1).then_some(table.title.as_str());
        for rows in
            table.rows.chunk_by(|one, other| !one.group.is_empty() && one.group == other.group)
        {
            if rows[0].group.is_empty() {
                let of_row = |&place: &usize| compared(&rows[0], table.columns[place].title, place);
                lines.push((title, &rows[0].name, columns.iter().map(of_row).collect()));
            } else if rows.iter().all(|row| compares(row, table, columns[0])) {
                let variants = rows.iter().map(|row| compared(row, &row.name, columns[0]));
                lines.push((title, &rows[0].group, variants.collect()));
            }
        }
    }
    let found = |one: &Compared<'_>| one.here.is_some() || one.source.is_some();
    lines.iter_mut().for_each(|(_, _, compared)| compared.retain(found));
    let all = || lines.iter().flat_map(|(_, _, compared)| compared);
    let has_source = all().any(|one| one.source.is_some());
    let mut variants: Vec<&str> = Vec::new();
    for one in all() {
        if !variants.contains(&one.variant) {
            variants.push(one.variant);
        }
    }
    let shape = |variant: &str| {
        let index = variants.iter().position(|found| *found == variant);
        // A single variant is a circle, as in the chart of all experiments.
        SHAPES[(index.unwrap_or(0) + usize::from(variants.len() == 1)) % SHAPES.len()]
    };
    let upper = if has_source { DotLine::Upper } else { DotLine::Middle };
    let mut rows = Vec::new();
    let mut heading = None;
    for (title, name, compared) in &lines {
        if heading != *title {
            heading = *title;
            rows.extend(heading.map(|title| DotRow::Heading(title.to_owned())));
        }
        let here = compared.iter().filter_map(|one| {
            let Figure { value, low, high } = one.here?;
            let style = filled(shape(one.variant));
            Some(Dot { value: Some(value), spread: [low, high], style, line: upper })
        });
        let source = compared.iter().filter_map(|one| {
            let (value, style) = (one.source?, hollow(shape(one.variant)));
            Some(Dot { value: Some(value), spread: [value; 2], style, line: DotLine::Lower })
        });
        let dots = here.chain(source).collect();
        rows.push(DotRow::Dots { name: (*name).to_owned(), text: String::new(), dots });
    }
    let key = match variants.as_slice() {
        [_] => vec![(filled(SHAPES[1]), "here".to_owned())],
        several => several.iter().map(|name| (filled(shape(name)), (*name).to_owned())).collect(),
    };
    let of_source =
        has_source.then(|| (hollow(shape(variants[0])), "hollow: the source".to_owned()));
    let column = &tables[0].columns[columns[0]];
    // Columns that are compared differ in their titles and share their unit.
    let what = match (columns, column.unit) {
        ([_], "") => column.title.to_owned(),
        ([_], unit) => format!("{}, {unit}", column.title),
        (_, unit) => unit.to_owned(),
    };
    Dots {
        title: format!("{}: {what}", tables[0].title),
        axis: what,
        line: None,
        key: key.into_iter().chain(of_source).collect(),
        rows,
    }
}

/// Returns whether the row's ratio compares this column. If the load has a fixed rate, the ratio
/// compares another column, because this one has equal values.
fn compares(row: &Row, table: &Table, place: usize) -> bool {
    row.ratio.as_ref().is_none_or(|ratio| ratio.column == table.columns[place].name)
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::table;
    use super::super::tests::report;
    use super::*;
    use superpacket_captures::Error;
    use superpacket_captures::present::{NARROW, WIDE};
    use superpacket_lab::experiment::Ratio;

    /// Returns the names and the dots of a chart's rows that have dots.
    fn lines(chart: &Dots) -> Vec<(&str, &[Dot])> {
        let lines = chart.rows.iter().filter_map(|row| match row {
            DotRow::Dots { name, dots, .. } => Some((name.as_str(), dots.as_slice())),
            DotRow::Section(_) | DotRow::Heading(_) => None,
        });
        lines.collect()
    }

    #[test]
    fn variants_of_a_group_are_marks_of_one_row_here_and_in_the_source() -> Result<(), Error> {
        let chart = marks(&[table()], &[0]);
        let found = lines(&chart);
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["4K pages", "linear"]);
        for (_, dots) in found {
            let [none, lro, source_none, source_lro] = dots else { panic!("{dots:?}") };
            assert!(none.style.shape == source_none.style.shape && !none.style.hollow);
            assert!(lro.style.shape == source_lro.style.shape && source_lro.style.hollow);
            assert!(none.style.shape != lro.style.shape && lro.spread[0] < lro.spread[1]);
        }
        for width in [WIDE, NARROW] {
            let svg = chart.draw(width)?;
            assert!(
                svg.starts_with("<svg role=\"img\" aria-label=\"Sender &lt;MTU&gt; 1500: ")
                    && svg.contains("throughput, Gb/s\n")
                    && !svg.contains("=\"#"),
                "{svg}"
            );
        }
        Ok(())
    }

    #[test]
    fn rows_that_are_equal_in_the_column_are_left_out() {
        let mut table = table();
        table.rows[1].ratio = Some(Ratio::exact("none", "frames", 0.5));
        let chart = marks(&[table], &[0]);
        assert_eq!(lines(&chart).iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["linear"]);
    }

    #[test]
    fn tables_of_the_same_kind_share_a_chart() {
        let (mut one, mut other) = (table(), table());
        (one.plot, other.plot) = (Plot::Marks(&[0]), Plot::Marks(&[0]));
        other.title = "another".into();
        let both = charts(&[table(), one.clone(), other.clone()]);
        assert_eq!(both.iter().map(|chart| chart.before).collect::<Vec<_>>(), [1]);
        let chart = marks(&[one, other], &[0]);
        let headings = chart.rows.iter().filter(|row| matches!(row, DotRow::Heading(_))).count();
        assert_eq!((headings, lines(&chart).len()), (2, 4));
    }

    #[test]
    fn columns_are_compared_where_rows_have_no_group() {
        let mut table = table();
        table.rows.truncate(1);
        table.rows[0].group.clear();
        let chart = marks(&[table], &[0, 1]);
        assert_eq!(lines(&chart)[0].1.len(), 3, "two figures here and one of the source");
        let key: Vec<_> = chart.key.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(key, ["throughput", "frames", "hollow: the source"]);
    }

    #[test]
    fn what_should_be_small_is_below_what_should_be_large() {
        let mut report = report();
        let live = |side, met| Mark {
            form: Form::Live,
            side,
            met,
            spread: [0.9, 1.2],
            source: Some(2.0),
            brief: Some("a mark"),
            ..report.marks[0].clone()
        };
        let marks = vec![
            live(Side::AtMost, Some(true)),
            live(Side::AtLeast, Some(false)),
            live(Side::AtLeast, None),
            Mark { form: Form::Model, ..live(Side::AtLeast, Some(false)) },
        ];
        report.experiments[0].marks = marks;
        let Some(chart) = overview(&report.experiments) else { panic!("there are ratios") };
        assert_eq!(chart.line, Some(1.0));
        let sections = chart.rows.iter().filter_map(|row| match row {
            DotRow::Section(text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(sections.collect::<Vec<_>>(), ["More is better", "Less is better"]);
        let shapes: Vec<Vec<_>> = (lines(&chart).iter())
            .map(|(_, dots)| dots.iter().map(|dot| (dot.style.shape, dot.style.colour)).collect())
            .collect();
        let behind = [(DotShape::Tick, DotColour::Ink), (DotShape::Circle, DotColour::Muted)];
        let with = |here| [behind[0], behind[1], here].to_vec();
        assert_eq!(
            shapes,
            [
                with((DotShape::Cross, DotColour::Bad)),
                with((DotShape::Square, DotColour::Muted)),
                with((DotShape::Circle, DotColour::Good)),
            ],
            "counts are left out, and verdicts differ in shape and colour"
        );
    }
}
