//! A table's column as bars: what was found here, and what the source had, each in its own measure, so that their shapes can be compared.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use superpacket_lab::experiment::Table;

use super::grid::number;
use crate::failure::Failure;
use crate::plot::{AFTER, Area, BEFORE, Drawn, INK, MUTED, WIDTH, draw};

/// Height of a row, of the heading, and of the space between groups.
const ROW: u32 = 30;
const HEAD: u32 = 34;
const GAP: u32 = 12;

/// Room for the names of rows, and behind the longest bar for its figure.
const NAMES: i32 = 270;
const FIGURE: i32 = 150;

/// A bar with its whisker.
#[derive(Clone, Debug)]
struct Bar {
    name: String,
    first_of_group: bool,
    here: Option<(f64, f64, f64)>,
    source: Option<f64>,
}

/// The plot of the column that the table names for it; `None` where it names none.
pub(super) fn bars(table: &Table) -> Option<Result<String, Failure>> {
    let place = table.plot?;
    let column = table.columns.get(place)?;
    let mut group = None;
    let bars: Vec<_> = (table.rows.iter())
        .map(|row| {
            let first_of_group = group.replace(&row.group) != Some(&row.group);
            let name = if row.group.is_empty() { row.name.clone() } else { format!("{}, {}", row.group, row.name) };
            let here = row.figures.get(place).copied().flatten().map(|figure| (figure.value, figure.low, figure.high));
            Bar { name, first_of_group, here, source: row.source.get(place).copied().flatten() }
        })
        .collect();
    let gaps = bars.iter().skip(1).filter(|bar| bar.first_of_group).count() as u32;
    let height = HEAD + bars.len() as u32 * ROW + gaps * GAP + 10;
    let unit = if column.unit.is_empty() { column.title.to_owned() } else { format!("{}, {}", column.title, column.unit) };
    Some(draw(&crate::page::Escaped(&format!("{}: {unit}", table.title)).to_string(), height, |area| {
        panels(&bars, &unit, column.digits, area)
    }))
}

fn panels(bars: &[Bar], unit: &str, digits: usize, area: &Area<'_>) -> Drawn {
    let sourced = bars.iter().any(|bar| bar.source.is_some());
    let room = (WIDTH as i32 - NAMES) / if sourced { 2 } else { 1 };
    let most = |figures: &mut dyn Iterator<Item = f64>| figures.fold(0.0, f64::max);
    let most_here = most(&mut bars.iter().filter_map(|bar| bar.here.map(|(value, _, high)| high.max(value))));
    let most_there = most(&mut bars.iter().filter_map(|bar| bar.source));
    let length = |value: f64, most: f64| if most > 0.0 { (f64::from(room - FIGURE) * value.max(0.0) / most).round() as i32 } else { 0 };

    area.draw(&Text::new(format!("here: {unit}"), (NAMES, HEAD as i32 / 2), style(18, &MUTED, HPos::Left)))?;
    if sourced {
        area.draw(&Text::new(format!("source: {unit}"), (NAMES + room, HEAD as i32 / 2), style(18, &MUTED, HPos::Left)))?;
    }
    let mut top = HEAD;
    for (index, bar) in bars.iter().enumerate() {
        if index > 0 && bar.first_of_group {
            top += GAP;
        }
        let middle = (top + ROW / 2) as i32;
        top += ROW;
        area.draw(&Text::new(shortened(&bar.name), (NAMES - 10, middle), style(18, &INK, HPos::Right)))?;
        if let Some((value, low, high)) = bar.here {
            let end = NAMES + length(value, most_here);
            area.draw(&Rectangle::new([(NAMES, middle - 9), (end.max(NAMES + 1), middle + 9)], AFTER.filled()))?;
            let (left, right) = (NAMES + length(low, most_here), NAMES + length(high, most_here));
            if left < right {
                area.draw(&PathElement::new([(left, middle), (right, middle)], INK.stroke_width(2)))?;
                for x in [left, right] {
                    area.draw(&PathElement::new([(x, middle - 5), (x, middle + 5)], INK.stroke_width(2)))?;
                }
            }
            let mut words = number(value, digits);
            if low != high {
                words = format!("{words} ({}-{})", number(low, digits), number(high, digits));
            }
            area.draw(&Text::new(words, (end.max(right) + 8, middle), style(16, &MUTED, HPos::Left)))?;
        }
        if let Some(value) = bar.source {
            let start = NAMES + room;
            let end = start + length(value, most_there);
            area.draw(&Rectangle::new([(start, middle - 9), (end.max(start + 1), middle + 9)], BEFORE.filled()))?;
            area.draw(&Text::new(number(value, digits), (end + 8, middle), style(16, &MUTED, HPos::Left)))?;
        }
    }
    Ok(())
}

fn style(size: i32, colour: &RGBColor, side: HPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font()).color(colour).pos(Pos::new(side, VPos::Center))
}

/// A name as far as there is room for it.
fn shortened(name: &str) -> String {
    const MOST: usize = 34;
    if name.chars().count() <= MOST { name.to_owned() } else { name.chars().take(MOST - 1).chain(['…']).collect() }
}

/// Colours for a plot that is a file of its own, with no page around it: those of `page.css`.
const STYLE: &str = "<style>:root{--card:#ffffff;--ink:#1c2430;--muted:#5d6878;--grid:#d9dde3;--before:#8f9bb0;--after:#0b7285}\
@media(prefers-color-scheme:dark){:root{--card:#1a2029;--ink:#e6eaf0;--muted:#9aa6b6;--grid:#323b48;--before:#66748a;--after:#3bc9db}}</style>\
<rect width=\"100%\" height=\"100%\" fill=\"var(--card)\"/>";

/// A plot as a file of its own.
pub(super) fn file(svg: &str) -> String {
    let svg = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    match svg.split_once('>') {
        Some((head, rest)) => format!("{head}>{STYLE}{rest}"),
        None => svg,
    }
}

#[cfg(test)]
mod tests {
    use super::super::grid::tests::table;
    use super::*;

    #[test]
    fn each_row_has_a_bar_here_and_in_the_source() -> Result<(), Failure> {
        let Some(svg) = bars(&table()) else { panic!("it is to be plotted") };
        let svg = svg?;
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"Sender &lt;MTU&gt; 1500: throughput, Gb/s\""), "{svg}");
        assert_eq!((svg.matches("fill=\"var(--after)\"").count(), svg.matches("fill=\"var(--before)\"").count()), (4, 4));
        assert!(!svg.contains("=\"#"), "{svg}");
        let mut unplotted = table();
        unplotted.plot = None;
        assert!(bars(&unplotted).is_none());
        unplotted.plot = Some(1);
        assert!(bars(&unplotted).is_some_and(|svg| svg.is_ok_and(|svg| !svg.contains("var(--after)"))), "a column without figures");
        Ok(())
    }

    #[test]
    fn a_file_brings_its_colours_with_it() -> Result<(), Failure> {
        let Some(svg) = bars(&table()) else { panic!("it is to be plotted") };
        let svg = file(&svg?);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\""), "{svg}");
        let css = include_str!("../page.css");
        for role in ["card", "ink", "muted", "grid", "before", "after"] {
            for part in svg.split(&format!("--{role}:")).skip(1) {
                let colour = &part[..7];
                assert!(css.contains(&format!("--{role}: {colour}")), "{role} is {colour} in files only");
            }
            assert_eq!(svg.matches(&format!("--{role}:")).count(), 2, "light and dark");
        }
        Ok(())
    }
}
