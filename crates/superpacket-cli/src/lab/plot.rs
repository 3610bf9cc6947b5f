//! The charts of tables and marks: the values found here and the source's.

use superpacket_captures::present::{Bar, BarRow, BarValue, Bars, number, range};
use superpacket_lab::experiment::{Experiment, Figure, Row, Table, find};

use super::brief::headline_rows;

/// Maximum number of bars in a chart of several columns; beyond it only one column is shown.
const MAX_BARS: usize = 24;

/// Returns a chart of the column that the table selects, together with other columns of the same
/// unit. Each series has its own scale, so that their shapes can be compared. Returns `None` if the
/// table selects no column.
pub(super) fn bars(table: &Table) -> Option<Bars> {
    let place = table.plot?;
    let column = table.columns.get(place)?;
    let mut shown: Vec<usize> = (0..table.columns.len())
        .filter(|&other| table.columns[other].unit == column.unit)
        .collect();
    if column.unit.is_empty() || shown.len() * table.rows.len() > MAX_BARS {
        shown = vec![place];
    }
    let (rows, unit) = match shown.as_slice() {
        [_] if column.unit.is_empty() => (by_row(table, place), column.title.to_owned()),
        [_] => (by_row(table, place), format!("{}, {}", column.title, column.unit)),
        _ => (by_column(table, &shown), column.unit.to_owned()),
    };
    Some(Bars { title: format!("{}: {unit}", table.title), unit, rows, shared_scale: false })
}

/// Returns a chart of the headline rows of all experiments; `None` if there are none.
pub(super) fn overview(experiments: &[Experiment]) -> Option<Bars> {
    let mut rows = Vec::new();
    for experiment in experiments {
        let group = rows.len();
        for (name, mark) in headline_rows(experiment) {
            let here =
                mark.value.map(|value| Figure { value, low: mark.spread[0], high: mark.spread[1] });
            rows.extend(bar(name, here, mark.source, 2));
        }
        if rows.len() > group {
            let headline = find(experiment.name).map_or(experiment.source, |entry| entry.headline);
            rows.insert(group, BarRow::Group(format!("{}: {headline}", experiment.name)));
        }
    }
    (!rows.is_empty()).then(|| Bars {
        title: "What each experiment compares, here and in its source".to_owned(),
        unit: "times".to_owned(),
        rows,
        shared_scale: true,
    })
}

/// Returns a bar for each row, below the names of their groups.
fn by_row(table: &Table, place: usize) -> Vec<BarRow> {
    let mut rows = Vec::new();
    let mut group = "";
    for row in &table.rows {
        if row.group != group {
            group = &row.group;
            rows.push(BarRow::Group(group.to_owned()));
        }
        let name = || BarRow::Bar(Bar { name: row.name.clone(), ..Bar::default() });
        rows.push(bar_of(&row.name, table, row, place).unwrap_or_else(name));
    }
    rows
}

/// Returns a bar for each of several columns, below the names of the rows.
fn by_column(table: &Table, shown: &[usize]) -> Vec<BarRow> {
    let mut rows = Vec::new();
    for row in &table.rows {
        rows.push(BarRow::Group(if row.group.is_empty() {
            row.name.clone()
        } else {
            format!("{}, {}", row.group, row.name)
        }));
        let bars = shown.iter().map(|&place| bar_of(table.columns[place].title, table, row, place));
        rows.extend(bars.flatten());
    }
    rows
}

fn bar_of(name: &str, table: &Table, row: &Row, place: usize) -> Option<BarRow> {
    let digits = table.plot.map_or(0, |plot| table.columns[plot].digits);
    let here = row.figures.get(place).copied().flatten();
    bar(name, here, row.source.get(place).copied().flatten(), digits)
}

/// Returns the bar of a figure found here and of the source's; `None` if there is neither.
fn bar(name: &str, here: Option<Figure>, source: Option<f64>, digits: usize) -> Option<BarRow> {
    let value = |Figure { value, low, high }| BarValue {
        value,
        spread: [low, high],
        text: if low == high {
            number(value, digits)
        } else {
            format!("{} ({})", number(value, digits), range(low, high, digits))
        },
    };
    let values = [here.map(value), source.map(Figure::exact).map(value)];
    let shown = values.iter().any(Option::is_some);
    shown.then(|| BarRow::Bar(Bar { name: name.to_owned(), values }))
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::table;
    use super::*;
    use superpacket_captures::Error;
    use superpacket_captures::present::{Chart, WIDE};

    #[test]
    fn each_row_has_a_bar_here_and_in_the_source() -> Result<(), Error> {
        let Some(chart) = bars(&table()) else { panic!("it is to be plotted") };
        let svg = chart.draw(WIDE)?;
        assert!(
            svg.starts_with(
                "<svg role=\"img\" aria-label=\"Sender &lt;MTU&gt; 1500: throughput, Gb/s\""
            ),
            "{svg}"
        );
        assert_eq!(
            (
                svg.matches("fill=\"var(--after)\"").count(),
                svg.matches("fill=\"var(--before)\"").count()
            ),
            (4, 4)
        );
        assert!(!svg.contains("=\"#"), "{svg}");
        let mut unplotted = table();
        unplotted.plot = None;
        assert!(bars(&unplotted).is_none());
        unplotted.plot = Some(1);
        assert!(
            bars(&unplotted).is_some_and(|chart| chart
                .draw(WIDE)
                .is_ok_and(|svg| svg.matches("var(--after)").count() == 1)),
            "rows without figures"
        );
        Ok(())
    }

    #[test]
    fn columns_of_one_unit_stand_side_by_side() -> Result<(), Error> {
        let mut table = table();
        table.columns[1].unit = "Gb/s";
        table.rows.iter_mut().for_each(|row| row.figures[1] = row.figures[0]);
        let Some(chart) = bars(&table) else { panic!("it is to be plotted") };
        let svg = chart.draw(WIDE)?;
        assert_eq!(svg.matches("fill=\"var(--after)\"").count(), 8, "{svg}");
        assert!(svg.contains("4K pages, LRO") && svg.matches("frames\n").count() == 4, "{svg}");
        table.rows = table.rows.iter().cycle().take(MAX_BARS).cloned().collect();
        let Some(chart) = bars(&table) else { panic!("it is to be plotted") };
        assert_eq!(
            chart.draw(WIDE)?.matches("fill=\"var(--after)\"").count(),
            MAX_BARS,
            "one column, if there are many rows"
        );
        Ok(())
    }
}
