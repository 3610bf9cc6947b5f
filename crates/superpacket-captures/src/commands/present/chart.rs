//! Charts as SVG that take their colours from the page around them.
//!
//! Plotters has only fixed colours. So each role is drawn in a placeholder colour, which is then
//! replaced by a variable of the page: the chart follows the reader's dark or light setting.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::escape::Escaped;
use super::number::{number, shortest};
use crate::commands::error::Error;

/// Colours in drawn charts that are later replaced by those of the page: text, text of axes, lines
/// of the grid, the first and the second series, a good and a bad verdict.
pub(super) const INK: RGBColor = RGBColor(1, 2, 3);
pub(super) const MUTED: RGBColor = RGBColor(1, 2, 4);
pub(super) const GRID: RGBColor = RGBColor(1, 2, 5);
const BEFORE: RGBColor = RGBColor(1, 2, 6);
pub(super) const AFTER: RGBColor = RGBColor(1, 2, 7);
pub(super) const GOOD: RGBColor = RGBColor(1, 2, 8);
pub(super) const BAD: RGBColor = RGBColor(1, 2, 9);
/// The placeholder colours, and the CSS variables of the page that replace them.
const ROLES: [(&str, &str); 7] = [
    ("#010203", "var(--ink)"),
    ("#010204", "var(--muted)"),
    ("#010205", "var(--grid)"),
    ("#010206", "var(--before)"),
    ("#010207", "var(--after)"),
    ("#010208", "var(--good)"),
    ("#010209", "var(--bad)"),
];

/// Width of charts for a wide screen. One unit is about one CSS pixel, so that text is never too
/// small to read.
pub const WIDE: u32 = 860;
/// Width of charts for a phone, in units of about one CSS pixel.
pub const NARROW: u32 = 330;

/// Height of text in charts, in units of about one CSS pixel.
pub(super) const TEXT: u32 = 14;

/// Maximum number of labels on a vertical axis.
const Y_LABELS: usize = 6;

/// A chart that can be drawn in any width.
pub trait Chart {
    /// Returns the chart as SVG, `width` units wide ([`WIDE`] on a screen).
    ///
    /// # Errors
    /// [`Error::Plot`] if it cannot be drawn.
    fn draw(&self, width: u32) -> Result<String, Error>;
}

impl Chart for Box<dyn Chart> {
    fn draw(&self, width: u32) -> Result<String, Error> {
        (**self).draw(width)
    }
}

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(super) type Drawn<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Axes<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws a chart with this title and size.
pub(super) fn draw(
    title: &str,
    size: (u32, u32),
    chart: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = chart(&area).and_then(|()| Ok(area.present()?));
        drawn.map_err(|error| Error::Plot(error.to_string()))?;
    }
    for (colour, role) in ROLES {
        svg = svg.replace(colour, role);
    }
    // SVG inside HTML needs no namespace.
    let svg = svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    // A label for screen readers; the page's width overrides that of the chart.
    let label = format!("<svg role=\"img\" aria-label=\"{}\" ", Escaped(title));
    Ok(svg.replacen("<svg ", &label, 1))
}

/// Returns the width that a label has in the widest common font.
pub(super) fn width_of(label: &str) -> u32 {
    label.chars().count() as u32 * (TEXT * 2 / 3)
}

/// Returns the width of an axis's widest label if the axis has at most `most` labels.
fn widest(axis: Range<f64>, most: usize, label: impl Fn(f64) -> String) -> u32 {
    let places = RangedCoordf64::from(axis).key_points(most);
    places.into_iter().map(|place| width_of(&label(place))).max().unwrap_or(0)
}

pub(super) fn style(size: u32, colour: &RGBColor, side: HPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font())
        .color(colour)
        .pos(Pos::new(side, VPos::Center))
}

/// The axes of a chart whose vertical axis starts at 0.
struct AxesOptions<'a> {
    /// Value at the right end of the horizontal axis.
    right: f64,
    /// Largest value on the vertical axis.
    top: f64,
    /// Unit of the vertical axis, which is written after each label.
    unit: &'a str,
    /// Name of the horizontal axis.
    name: &'a str,
    /// Height of the space below the chart.
    below: u32,
    /// Maximum number of labels on the horizontal axis.
    labels: usize,
    /// Formats a label of the horizontal axis.
    label: &'a dyn Fn(f64) -> String,
}

impl AxesOptions<'_> {
    fn draw<'a>(&self, area: &Area<'a>, width: u32) -> Drawn<Axes<'a>> {
        let top = self.top * 1.08;
        // Labels of a short axis are less than 1 apart.
        let digits = match (self.unit, top) {
            ("", ..10.0) => 2,
            ("", _) => 0,
            (_, ..5.0) => 1,
            _ => 0,
        };
        let value = |value: f64| match digits {
            2 => shortest(value, 2),
            digits => format!("{}{}", number(value, digits), self.unit),
        };
        let margin = if width == WIDE { 12 } else { 4 };
        // The last label may be at the end of the axis, where half of it extends beyond the axis.
        let beyond = 4 + widest(0.0..self.right, self.labels, self.label) / 2;
        let mut chart = ChartBuilder::on(area)
            .margin(margin)
            .margin_right(if self.labels > 0 { beyond.max(margin) } else { margin })
            .x_label_area_size(self.below)
            // The labels end 10 units before the axis.
            .y_label_area_size((widest(0.0..top, Y_LABELS, value) + 10).max(56))
            .build_cartesian_2d(0.0..self.right, 0.0..top)?;
        let text = ("sans-serif", TEXT).into_font().color(&MUTED);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(self.labels)
            .y_labels(Y_LABELS)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_label_formatter(&|place| (self.label)(*place))
            .y_label_formatter(&|place| value(*place))
            .x_desc(self.name)
            .label_style(text.clone())
            .axis_desc_style(text)
            .draw()?;
        Ok(chart)
    }
}

/// A chart with a pair of columns for each name: the values of two series.
#[derive(Clone, Debug)]
pub struct ColumnPairs<'a> {
    /// Description for readers who cannot see the chart.
    pub title: &'a str,
    /// Description of the names, shown below the axis.
    pub axis: &'a str,
    /// Each name, with its value in the first and in the second series.
    pub pairs: Vec<(String, [f64; 2])>,
    /// Unit of the values; empty for counts.
    pub unit: &'static str,
    /// Value at which a line is drawn across the chart.
    pub line: Option<f64>,
}

/// Maximum number of names below a wide chart.
const MOST_NAMES: u32 = 32;

impl Chart for ColumnPairs<'_> {
    fn draw(&self, width: u32) -> Result<String, Error> {
        draw(self.title, (width, 300), |area| {
            // Counts reach at least this far, so that labels are whole numbers.
            let fewest = if self.unit.is_empty() { Y_LABELS as f64 } else { 1.0 };
            let least = self.line.unwrap_or(fewest);
            let values = self.pairs.iter().flat_map(|(_, values)| values);
            let step = self.pairs.len().div_ceil((MOST_NAMES * width / WIDE) as usize).max(1);
            // If the chart is too narrow for one row of names, there are two.
            let needed: u32 = self.pairs.iter().map(|(name, _)| width_of(name)).sum();
            let rows = if step == 1 && needed + 60 > width { 2 } else { 1 };
            let options = AxesOptions {
                right: self.pairs.len().max(1) as f64,
                top: values.fold(least, |top, &value| top.max(value)),
                unit: self.unit,
                name: self.axis,
                below: 28 + 16 * rows,
                labels: 0,
                label: &|_| String::new(),
            };
            let mut chart = options.draw(area, width)?;
            for (index, (name, [first, second])) in self.pairs.iter().enumerate() {
                let left = index as f64;
                let column = |from, value, colour: &RGBColor| {
                    Rectangle::new(
                        [(left + from, 0.0), (left + from + 0.36, value)],
                        colour.filled(),
                    )
                };
                chart
                    .draw_series([column(0.12, *first, &BEFORE), column(0.52, *second, &AFTER)])?;
                if index % step == 0 {
                    let (x, y) = chart.backend_coord(&(left + 0.5, 0.0));
                    let y = y + 14 + 16 * (index as i32 % rows as i32);
                    let style = style(TEXT, &MUTED, HPos::Center);
                    area.draw(&Text::new(name.as_str(), (x, y), style))?;
                }
            }
            if let Some(line) = self.line {
                chart.draw_series(LineSeries::new([(0.0, line), (options.right, line)], INK))?;
            }
            Ok(())
        })
    }
}

/// Two series of counts over time, drawn as steps: the first above the second, with equal axes.
#[derive(Clone, Debug)]
pub struct Steps<'a> {
    /// Description for readers who cannot see the chart.
    pub title: &'a str,
    /// Names of both series, which say what is counted.
    pub names: [&'a str; 2],
    /// The event that the time is counted from, in words.
    pub since: &'a str,
    /// Length of the time shown, in seconds.
    pub seconds: f64,
    /// Start of each interval in seconds, with the value of the first and of the second series.
    pub points: Vec<(f64, [f64; 2])>,
}

/// Heights in a chart of [`Steps`]: of the name above a panel, and of the panel.
const PANEL: [u32; 2] = [24, 190];

impl Chart for Steps<'_> {
    fn draw(&self, width: u32) -> Result<String, Error> {
        draw(self.title, (width, 2 * (PANEL[0] + PANEL[1])), |area| {
            let (unit, scale) = match self.seconds {
                ..0.002 => ("µs", 1e6),
                ..2.0 => ("ms", 1e3),
                _ => ("s", 1.0),
            };
            let values = self.points.iter().flat_map(|(_, values)| values);
            let options = AxesOptions {
                right: self.seconds,
                top: values.fold(1.0, |top, &value| top.max(value)),
                unit: "",
                name: &format!("{unit} since {}", self.since),
                below: 44,
                labels: if width == WIDE { 8 } else { 4 },
                label: &|time| shortest(time * scale, 2),
            };
            let interval = self.seconds / self.points.len().max(1) as f64;
            let halves = area.split_evenly((2, 1));
            for (series, (half, colour)) in halves.iter().zip([BEFORE, AFTER]).enumerate() {
                let (name, panel) = half.split_vertically(PANEL[0]);
                let place = (4, PANEL[0] as i32 / 2);
                name.draw(&Text::new(self.names[series], place, style(TEXT, &INK, HPos::Left)))?;
                let mut chart = options.draw(&panel, width)?;
                let steps = self.points.iter().flat_map(|&(start, values)| {
                    [(start, values[series]), (start + interval, values[series])]
                });
                let area = AreaSeries::new(steps, 0.0, colour.mix(0.55));
                chart.draw_series(area.border_style(colour))?;
            }
            Ok(())
        })
    }
}

/// The style sheet with the colours of a chart in a separate file, light and dark. A page has these
/// colours in its own style sheet.
const COLOURS: &str = include_str!("colours.css");

/// Returns a chart as a standalone file.
///
/// # Errors
/// [`Error::Plot`] if it cannot be drawn.
pub fn svg_file(chart: &impl Chart) -> Result<String, Error> {
    let svg = chart.draw(WIDE)?;
    let svg = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    let card = "<rect width=\"100%\" height=\"100%\" fill=\"var(--card)\"/>";
    Ok(svg.replacen('>', &format!("><style>{COLOURS}</style>{card}"), 1))
}
