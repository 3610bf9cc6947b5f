//! Bar plots of a table's column: the values found here and the source's, each with its own scale,
//! so that their shapes can be compared.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use superpacket_lab::experiment::{Experiment, Figure, Row, Table, find};

use super::brief::headline_rows;
use super::grid::number;
use superpacket_captures::Error;
use superpacket_captures::page::Escaped;
use superpacket_captures::plot::{AFTER, Area, BEFORE, Drawn, INK, MUTED, TEXT, WIDE, draw};

/// Heights in pixels of a row (a bar or the name of a group), of the heading, and of the space
/// above a group.
const ROW: u32 = 30;
const HEAD: u32 = 34;
const GAP: u32 = 8;

/// Height of a row in pixels, and maximum letters of a name, in a narrow plot.
const NARROW_ROW: u32 = 24;
const NARROW_LETTERS: usize = 42;

/// Maximum letters of a name, and approximate widths in pixels of a letter of a name and of a
/// figure.
const MAX_LETTERS: usize = 36;
const LETTER: i32 = 9;
const DIGIT: i32 = 8;

/// The values that the longest bars represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// Separate scales: the largest value found here, including its spread, and the source's
    /// largest value.
    Own,
    /// A common scale for two sets of ratios: their largest value. A spread may be cut off.
    Shared,
}

impl Scale {
    /// Returns the values of the longest bars, for the figures found here and for the source's.
    fn maxima(self, bars: &[&Bar<'_>]) -> [f64; 2] {
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let source = most(&mut bars.iter().filter_map(|bar| bar.source));
        let figures = || bars.iter().filter_map(|bar| bar.here);
        match self {
            Scale::Own => {
                [most(&mut figures().map(|figure| figure.high.max(figure.value))), source]
            }
            Scale::Shared => [most(&mut figures().map(|figure| figure.value)).max(source); 2],
        }
    }
}

/// A row of the plot.
#[derive(Clone, Debug)]
enum PlotRow<'a> {
    Group(String),
    Bar(Bar<'a>),
}

/// A bar with its whisker.
#[derive(Clone, Copy, Debug)]
struct Bar<'a> {
    name: &'a str,
    here: Option<Figure>,
    source: Option<f64>,
}

/// Maximum number of bars in a plot of several columns; beyond it only one column is shown.
const MAX_BARS: usize = 24;

/// Draws the column that the table selects for its plot, together with other columns of the same
/// unit. Returns `None` if the table selects none.
pub(super) fn bars(table: &Table, width: u32) -> Option<Result<String, Error>> {
    let place = table.plot?;
    let column = table.columns.get(place)?;
    let mut shown: Vec<usize> = (0..table.columns.len())
        .filter(|&other| table.columns[other].unit == column.unit)
        .collect();
    if column.unit.is_empty() || shown.len() * table.rows.len() > MAX_BARS {
        shown = vec![place];
    }
    let (lines, unit) = if shown.len() > 1 {
        (by_column(table, &shown), column.unit.to_owned())
    } else {
        (
            by_row(table, place),
            if column.unit.is_empty() {
                column.title.to_owned()
            } else {
                format!("{}, {}", column.title, column.unit)
            },
        )
    };
    let title = Escaped(&format!("{}: {unit}", table.title)).to_string();
    Some(draw_plot(&title, &lines, &unit, column.digits, Scale::Own, width))
}

fn draw_plot(
    title: &str,
    lines: &[PlotRow<'_>],
    unit: &str,
    digits: usize,
    scale: Scale,
    width: u32,
) -> Result<String, Error> {
    if width == WIDE {
        let height = HEAD + lines.iter().map(PlotRow::height).sum::<u32>() + 10;
        draw(title, (width, height), |area| draw_wide(lines, unit, digits, scale, area))
    } else {
        let height = NARROW_ROW + lines.iter().map(PlotRow::narrow_height).sum::<u32>() + 10;
        draw(title, (width, height), |area| draw_narrow(lines, unit, digits, scale, width, area))
    }
}

/// Draws the headline rows of all experiments. Returns `None` if there are none.
pub(super) fn overview(experiments: &[Experiment], width: u32) -> Option<Result<String, Error>> {
    let mut lines = Vec::new();
    for experiment in experiments {
        let group = lines.len();
        for (name, mark) in headline_rows(experiment) {
            let here =
                mark.value.map(|value| Figure { value, low: mark.spread[0], high: mark.spread[1] });
            if here.is_some() || mark.source.is_some() {
                lines.push(PlotRow::Bar(Bar { name, here, source: mark.source }));
            }
        }
        if lines.len() > group {
            let headline = find(experiment.name).map_or(experiment.source, |entry| entry.headline);
            lines.insert(group, PlotRow::Group(format!("{}: {headline}", experiment.name)));
        }
    }
    (!lines.is_empty()).then(|| {
        draw_plot(
            "What each experiment compares, here and in its source",
            &lines,
            "times",
            2,
            Scale::Shared,
            width,
        )
    })
}

/// Returns a bar for each row, below the names of their groups.
fn by_row(table: &Table, place: usize) -> Vec<PlotRow<'_>> {
    let mut lines = Vec::new();
    let mut group = "";
    for row in &table.rows {
        if row.group != group {
            group = &row.group;
            lines.push(PlotRow::Group(group.to_owned()));
        }
        lines.push(PlotRow::Bar(bar(&row.name, row, place)));
    }
    lines
}

/// Returns a bar for each of several columns, below the names of the rows.
fn by_column<'a>(table: &'a Table, shown: &[usize]) -> Vec<PlotRow<'a>> {
    let mut lines = Vec::new();
    for row in &table.rows {
        lines.push(PlotRow::Group(if row.group.is_empty() {
            row.name.clone()
        } else {
            format!("{}, {}", row.group, row.name)
        }));
        let bars = shown.iter().map(|&place| bar(table.columns[place].title, row, place));
        lines.extend(
            bars.filter(|bar| bar.here.is_some() || bar.source.is_some()).map(PlotRow::Bar),
        );
    }
    lines
}

fn bar<'a>(name: &'a str, row: &Row, place: usize) -> Bar<'a> {
    Bar {
        name,
        here: row.figures.get(place).copied().flatten(),
        source: row.source.get(place).copied().flatten(),
    }
}

impl PlotRow<'_> {
    fn height(&self) -> u32 {
        match self {
            PlotRow::Group(_) => GAP + ROW,
            PlotRow::Bar(_) => ROW,
        }
    }

    fn narrow_height(&self) -> u32 {
        match self {
            PlotRow::Group(_) => GAP + NARROW_ROW,
            PlotRow::Bar(bar) => {
                NARROW_ROW * (1 + u32::from(bar.here.is_some()) + u32::from(bar.source.is_some()))
            }
        }
    }
}

/// The horizontal position of bars: where they begin, their maximum length in pixels, and the value
/// of the longest.
#[derive(Clone, Copy, Debug)]
struct Panel {
    left: i32,
    max_length: i32,
    max_value: f64,
}

impl Panel {
    fn at(&self, value: f64) -> i32 {
        // A whisker that exceeds the scale is cut off.
        let part =
            if self.max_value > 0.0 { (value.max(0.0) / self.max_value).min(1.0) } else { 0.0 };
        self.left + (f64::from(self.max_length) * part).round() as i32
    }

    /// Returns the rectangle of a bar, which is at least one pixel wide.
    fn bar(&self, value: f64, middle: i32, colour: &RGBColor) -> Rectangle<(i32, i32)> {
        Rectangle::new(
            [(self.left, middle - 9), (self.at(value).max(self.left + 1), middle + 9)],
            colour.filled(),
        )
    }
}

fn draw_wide(
    lines: &[PlotRow<'_>],
    unit: &str,
    digits: usize,
    scale: Scale,
    area: &Area<'_>,
) -> Drawn {
    let bars = || {
        lines.iter().filter_map(|line| if let PlotRow::Bar(bar) = line { Some(bar) } else { None })
    };
    let letters = bars().map(|bar| bar.name.chars().count().min(MAX_LETTERS)).max().unwrap_or(0);
    let names = 20 + LETTER * letters as i32;
    let has_source = bars().any(|bar| bar.source.is_some());
    let width = (WIDE as i32 - names) / if has_source { 2 } else { 1 };
    let longest =
        |words: &mut dyn Iterator<Item = String>| words.map(|words| words.len()).max().unwrap_or(0);
    // Leaves room for the figure after the longest bar.
    let panel = |left, words, max_value| Panel {
        left,
        max_length: (width - 20 - DIGIT * words as i32).max(20),
        max_value,
    };
    let figures = || bars().filter_map(|bar| bar.here);
    let of_source = || bars().filter_map(|bar| bar.source);
    let words = longest(&mut figures().map(|figure| with_spread(figure, digits)));
    let [max_here, max_source] = scale.maxima(&bars().collect::<Vec<_>>());
    let here = panel(names, words, max_here);
    let words = longest(&mut of_source().map(|value| number(value, digits)));
    let there = panel(names + width, words, max_source);

    area.draw(&Text::new(
        format!("here: {unit}"),
        (here.left, HEAD as i32 / 2),
        style(18, &MUTED, HPos::Left),
    ))?;
    if has_source {
        area.draw(&Text::new(
            format!("source: {unit}"),
            (there.left, HEAD as i32 / 2),
            style(18, &MUTED, HPos::Left),
        ))?;
    }
    let mut top = HEAD;
    for line in lines {
        top += line.height();
        let middle = (top - ROW / 2) as i32;
        match line {
            PlotRow::Group(name) => {
                area.draw(&Text::new(name.as_str(), (4, middle), style(18, &MUTED, HPos::Left)))?
            }
            PlotRow::Bar(bar) => {
                area.draw(&Text::new(
                    shortened(bar.name),
                    (names - 10, middle),
                    style(18, &INK, HPos::Right),
                ))?;
                if let Some(figure) = bar.here {
                    area.draw(&here.bar(figure.value, middle, &AFTER))?;
                    whisker(figure, &here, middle, digits, area)?;
                }
                if let Some(value) = bar.source {
                    area.draw(&there.bar(value, middle, &BEFORE))?;
                    area.draw(&Text::new(
                        number(value, digits),
                        (there.at(value) + 8, middle),
                        style(16, &MUTED, HPos::Left),
                    ))?;
                }
            }
        }
    }
    Ok(())
}

/// Draws a narrow plot: each bar below its name, and the source's bar below it.
fn draw_narrow(
    lines: &[PlotRow<'_>],
    unit: &str,
    digits: usize,
    scale: Scale,
    width: u32,
    area: &Area<'_>,
) -> Drawn {
    let bars = || {
        lines.iter().filter_map(|line| if let PlotRow::Bar(bar) = line { Some(bar) } else { None })
    };
    let room = |words: usize| (width as i32 - 24 - DIGIT * words as i32).max(20);
    let longest =
        |words: &mut dyn Iterator<Item = String>| words.map(|words| words.len()).max().unwrap_or(0);
    let [max_here, max_source] = scale.maxima(&bars().collect::<Vec<_>>());
    let words =
        longest(&mut bars().filter_map(|bar| bar.here).map(|figure| with_spread(figure, digits)));
    let here = Panel { left: 4, max_length: room(words), max_value: max_here };
    let words =
        longest(&mut bars().filter_map(|bar| bar.source).map(|value| number(value, digits)));
    let there = Panel { left: 4, max_length: room(words), max_value: max_source };
    let text = |words: &str, middle: i32, colour: &RGBColor| {
        let fitting = if words.chars().count() > NARROW_LETTERS {
            words.chars().take(NARROW_LETTERS - 1).chain(['…']).collect()
        } else {
            words.to_owned()
        };
        area.draw(&Text::new(fitting, (4, middle), style(TEXT as i32, colour, HPos::Left)))
    };
    let mut middle = NARROW_ROW as i32 / 2;
    text(unit, middle, &MUTED)?;
    middle += NARROW_ROW as i32;
    for line in lines {
        match line {
            PlotRow::Group(name) => {
                middle += GAP as i32;
                text(name, middle, &MUTED)?;
            }
            PlotRow::Bar(bar) => {
                text(bar.name, middle, &INK)?;
                if let Some(figure) = bar.here {
                    middle += NARROW_ROW as i32;
                    area.draw(&here.bar(figure.value, middle, &AFTER))?;
                    whisker(figure, &here, middle, digits, area)?;
                }
                if let Some(value) = bar.source {
                    middle += NARROW_ROW as i32;
                    area.draw(&there.bar(value, middle, &BEFORE))?;
                    area.draw(&Text::new(
                        number(value, digits),
                        (there.at(value) + 8, middle),
                        style(TEXT as i32, &MUTED, HPos::Left),
                    ))?;
                }
            }
        }
        middle += NARROW_ROW as i32;
    }
    Ok(())
}

/// Draws the range that contains half of the rounds, and the figures.
fn whisker(figure: Figure, panel: &Panel, middle: i32, digits: usize, area: &Area<'_>) -> Drawn {
    let Figure { value, low, high } = figure;
    let (left, right) = (panel.at(low), panel.at(high));
    if low != high {
        area.draw(&PathElement::new([(left, middle), (right, middle)], INK.stroke_width(2)))?;
        for x in [left, right] {
            area.draw(&PathElement::new([(x, middle - 5), (x, middle + 5)], INK.stroke_width(2)))?;
        }
    }
    area.draw(&Text::new(
        with_spread(figure, digits),
        (panel.at(value).max(right) + 8, middle),
        style(TEXT as i32 + 1, &MUTED, HPos::Left),
    ))?;
    Ok(())
}

fn with_spread(figure: Figure, digits: usize) -> String {
    let Figure { value, low, high } = figure;
    let value = number(value, digits);
    if low == high {
        value
    } else {
        format!("{value} ({}-{})", number(low, digits), number(high, digits))
    }
}

fn style(size: i32, colour: &RGBColor, side: HPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font())
        .color(colour)
        .pos(Pos::new(side, VPos::Center))
}

/// Returns a name, shortened if it is too long.
fn shortened(name: &str) -> String {
    if name.chars().count() <= MAX_LETTERS {
        name.to_owned()
    } else {
        name.chars().take(MAX_LETTERS - 1).chain(['…']).collect()
    }
}

/// Style sheet for a plot in a separate file, with the colours of `page.css`.
const STYLE: &str = "<style>:root{--card:#ffffff;--ink:#1c2430;--muted:#5d6878;--grid:#d9dde3;--before:#8f9bb0;--after:#0b7285}\
@media(prefers-color-scheme:dark){:root{--card:#1a2029;--ink:#e6eaf0;--muted:#9aa6b6;--grid:#323b48;--before:#66748a;--after:#3bc9db}}</style>\
<rect width=\"100%\" height=\"100%\" fill=\"var(--card)\"/>";

/// Returns a plot as a standalone file.
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
    fn each_row_has_a_bar_here_and_in_the_source() -> Result<(), Error> {
        let Some(svg) = bars(&table(), WIDE) else { panic!("it is to be plotted") };
        let svg = svg?;
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
        assert!(bars(&unplotted, WIDE).is_none());
        unplotted.plot = Some(1);
        assert!(
            bars(&unplotted, WIDE)
                .is_some_and(|svg| svg.is_ok_and(|svg| svg.matches("var(--after)").count() == 1)),
            "rows without figures"
        );
        Ok(())
    }

    #[test]
    fn columns_of_one_unit_stand_side_by_side() -> Result<(), Error> {
        let mut table = table();
        table.columns[1].unit = "Gb/s";
        table.rows.iter_mut().for_each(|row| row.figures[1] = row.figures[0]);
        let Some(svg) = bars(&table, WIDE) else { panic!("it is to be plotted") };
        let svg = svg?;
        assert_eq!(svg.matches("fill=\"var(--after)\"").count(), 8, "{svg}");
        assert!(svg.contains("4K pages, LRO") && svg.matches("frames\n").count() == 4, "{svg}");
        table.rows = table.rows.iter().cycle().take(MAX_BARS).cloned().collect();
        let Some(svg) = bars(&table, WIDE) else { panic!("it is to be plotted") };
        assert_eq!(
            svg?.matches("fill=\"var(--after)\"").count(),
            MAX_BARS,
            "one column, if there are many rows"
        );
        Ok(())
    }

    #[test]
    fn a_plot_file_contains_its_colours() -> Result<(), Error> {
        let Some(svg) = bars(&table(), WIDE) else { panic!("it is to be plotted") };
        let svg = file(&svg?);
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\""), "{svg}");
        let css = superpacket_captures::page::CSS;
        for role in ["card", "ink", "muted", "grid", "before", "after"] {
            for part in svg.split(&format!("--{role}:")).skip(1) {
                let colour = &part[..7];
                assert!(
                    css.contains(&format!("--{role}: {colour}")),
                    "{role} is {colour} in files only"
                );
            }
            assert_eq!(svg.matches(&format!("--{role}:")).count(), 2, "light and dark");
        }
        Ok(())
    }
}
