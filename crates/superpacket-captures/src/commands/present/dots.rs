//! Marks in rows on a logarithmic axis, on which equal ratios have equal lengths.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{
    AFTER, Area, BAD, Chart, Drawn, GOOD, GRID, INK, MUTED, TEXT, WIDE, draw, style, width_of,
};
use super::log_axis::LogAxis;
use crate::commands::error::Error;

/// Rows of marks on one logarithmic axis.
#[derive(Clone, Debug, Default)]
pub struct Dots {
    /// Description for readers who cannot see the chart.
    pub title: String,
    /// Name and unit of the axis.
    pub axis: String,
    /// Value at which a line is drawn across all rows.
    pub line: Option<f64>,
    /// The legend, which is drawn above the rows: each style of marks, and its meaning.
    pub key: Vec<(DotStyle, String)>,
    /// The rows, from top to bottom.
    pub rows: Vec<DotRow>,
}

/// A row of [`Dots`].
#[derive(Clone, Debug)]
pub enum DotRow {
    /// The title of the rows up to the next section.
    Section(String),
    /// A heading of the rows below it.
    Heading(String),
    /// A row of marks, each drawn at its value.
    Dots {
        /// Name of the row.
        name: String,
        /// The values of the marks as text; empty for no text.
        text: String,
        /// The marks, from back to front.
        dots: Vec<Dot>,
    },
}

/// A mark of a row.
#[derive(Clone, Copy, Debug)]
pub struct Dot {
    /// The value; `None` to draw the spread only.
    pub value: Option<f64>,
    /// Lowest and highest value of the interval that is drawn around the mark; both are equal if
    /// there is none.
    pub spread: [f64; 2],
    /// Shape and colour of the mark.
    pub style: DotStyle,
    /// The line of the row on which the mark is drawn.
    pub line: DotLine,
}

/// The line of a row on which a mark stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotLine {
    /// The only line of a row that has one line.
    Middle,
    /// The first of two. A thin line joins its marks.
    Upper,
    /// The second of two. A thin line joins its marks.
    Lower,
}

impl DotLine {
    /// Returns how far the line is below the middle of the row.
    const fn offset(self) -> i32 {
        match self {
            Self::Middle => 0,
            Self::Upper => -8,
            Self::Lower => 8,
        }
    }
}

/// How a mark in a row of a [`Dots`] chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DotStyle {
    /// Shape of the mark.
    pub shape: DotShape,
    /// Whether only the outline is drawn.
    pub hollow: bool,
    /// Colour of the mark.
    pub colour: DotColour,
}

/// The shape of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotShape {
    /// A circle.
    Circle,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// A diamond.
    Diamond,
    /// An oblique cross.
    Cross,
    /// A vertical line.
    Tick,
    /// A horizontal line: the spread of a mark.
    Interval,
}

/// The colour of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DotColour {
    /// The colour of highlighted values.
    After,
    /// The colour of a good verdict.
    Good,
    /// The colour of a bad verdict.
    Bad,
    /// The colour of text.
    Ink,
    /// The colour of less prominent text.
    Muted,
}

impl DotColour {
    pub(super) const fn placeholder(self) -> RGBColor {
        match self {
            Self::After => AFTER,
            Self::Good => GOOD,
            Self::Bad => BAD,
            Self::Ink => INK,
            Self::Muted => MUTED,
        }
    }
}

/// Half of the size of a mark.
const RADIUS: i32 = 5;

impl DotStyle {
    /// Draws the mark around this point.
    pub(super) fn draw(self, (x, y): (i32, i32), area: &Area<'_>) -> Drawn {
        let colour = self.colour.placeholder();
        let r = RADIUS;
        let line = |points: Vec<(i32, i32)>, width: u32| {
            area.draw(&PathElement::new(points, colour.stroke_width(width)))
        };
        let corners = match self.shape {
            DotShape::Circle if self.hollow => {
                return Ok(area.draw(&Circle::new((x, y), r, colour.stroke_width(2)))?);
            }
            DotShape::Circle => return Ok(area.draw(&Circle::new((x, y), r, colour.filled()))?),
            DotShape::Cross => {
                line(vec![(x - r, y - r), (x + r, y + r)], 3)?;
                return Ok(line(vec![(x - r, y + r), (x + r, y - r)], 3)?);
            }
            DotShape::Tick => return Ok(line(vec![(x, y - 9), (x, y + 9)], 3)?),
            DotShape::Interval => return Ok(line(vec![(x - 2 * r, y), (x + 2 * r, y)], 3)?),
            DotShape::Square => {
                vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]
            }
            DotShape::Triangle => vec![(x, y - r - 1), (x + r + 1, y + r), (x - r - 1, y + r)],
            DotShape::Diamond => {
                vec![(x, y - r - 2), (x + r + 2, y), (x, y + r + 2), (x - r - 2, y)]
            }
        };
        if self.hollow {
            let outline = corners.iter().chain(&corners[..2]).copied().collect();
            line(outline, 2)?;
        } else {
            area.draw(&Polygon::new(corners, colour.filled()))?;
        }
        Ok(())
    }
}

/// Breaks text into lines of at most `most` letters. A longer word has a line of its own.
fn lines(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Height of a line of text, in pixels.
const LINE: i32 = 18;

/// The columns of a chart: the names of rows, the marks, and the values of the marks as text.
struct Columns {
    /// Horizontal positions of the left and the right end of the area for marks.
    marks: [i32; 2],
    /// Maximum number of letters per line of a name, and per line of a heading.
    letters: [usize; 2],
    /// Whether the names and values of rows are drawn above the marks, and not beside them.
    stacked: bool,
    /// Space for the marks of a row.
    height: i32,
}

impl Dots {
    fn marks(&self) -> impl Iterator<Item = &Dot> {
        self.rows.iter().flat_map(|row| match row {
            DotRow::Dots { dots, .. } => dots.as_slice(),
            DotRow::Section(_) | DotRow::Heading(_) => &[],
        })
    }

    fn columns(&self, width: u32) -> Columns {
        let width = width as i32;
        let two_lines = self.marks().any(|dot| dot.line == DotLine::Lower);
        let height = if two_lines { 34 } else { 24 };
        if width < WIDE as i32 {
            let letters = [44, 44];
            return Columns { marks: [22, width - 22], letters, stacked: true, height };
        }
        let figures = self.rows.iter().map(|row| match row {
            DotRow::Dots { text, .. } => 8 * text.chars().count() as i32,
            DotRow::Section(_) | DotRow::Heading(_) => 0,
        });
        let right = width - 24 - figures.max().unwrap_or(0);
        Columns { marks: [304, right], letters: [38, 110], stacked: false, height }
    }

    /// Divides the legend into lines that fit the width. Each entry has its distance from the left,
    /// its style and its text.
    fn key_lines(&self, width: u32) -> Vec<Vec<(i32, DotStyle, &str)>> {
        let mut lines = vec![Vec::new()];
        let mut left = 16;
        for (style, text) in &self.key {
            let needed = 44 + text.chars().count() as i32 * 8;
            if left > 16 && left + needed > width as i32 {
                lines.push(Vec::new());
                left = 16;
            }
            if let Some(line) = lines.last_mut() {
                line.push((left, *style, text.as_str()));
            }
            left += needed;
        }
        lines
    }
}

impl Columns {
    /// Returns a row's height in pixels.
    fn height_of(&self, row: &DotRow) -> i32 {
        let count = |text: &str, most: usize| lines(text, most).len() as i32;
        match row {
            DotRow::Section(text) => 18 + LINE * count(text, self.letters[1]),
            DotRow::Heading(text) => 8 + LINE * count(text, self.letters[1]),
            DotRow::Dots { name, text, .. } if self.stacked => {
                let figures = i32::from(!text.is_empty());
                4 + LINE * (count(name, self.letters[0]) + figures) + self.height
            }
            DotRow::Dots { name, .. } => self.height.max(6 + LINE * count(name, self.letters[0])),
        }
    }

    /// Draws a row's text below the vertical position `top`, and returns the vertical position of
    /// the row's marks.
    fn write(&self, row: &DotRow, top: i32, area: &Area<'_>) -> Drawn<i32> {
        let section = matches!(row, DotRow::Section(_));
        let write = |text: &str, x: i32, middle: i32, colour: &RGBColor| {
            let weight = if section { FontStyle::Bold } else { FontStyle::Normal };
            let mut style = style(TEXT, colour, HPos::Left);
            style.font = ("sans-serif", TEXT, weight).into_font();
            area.draw(&Text::new(text.to_owned(), (x, middle), style))
        };
        let (text, most, colour, above) = match row {
            DotRow::Section(text) => (text, self.letters[1], INK, 12),
            DotRow::Heading(text) => (text, self.letters[1], MUTED, 4),
            DotRow::Dots { name, .. } => (name, self.letters[0], INK, 0),
        };
        let names = lines(text, most);
        let height = self.height_of(row);
        let mut middle = top + above + LINE / 2;
        if let DotRow::Dots { .. } = row
            && !self.stacked
        {
            middle = top + (height - LINE * (names.len() as i32 - 1)) / 2;
        }
        for line in &names {
            write(line, 4, middle, &colour)?;
            middle += LINE;
        }
        let DotRow::Dots { text, .. } = row else { return Ok(top) };
        if self.stacked {
            write(text, 4, middle, &MUTED)?;
            Ok(top + height - self.height / 2 - 2)
        } else {
            write(text, self.marks[1] + 16, top + height / 2, &MUTED)?;
            Ok(top + height / 2)
        }
    }
}

/// Draws the marks of a row around the vertical position `middle`.
fn draw_marks(dots: &[Dot], middle: i32, axis: &LogAxis, area: &Area<'_>) -> Drawn {
    let height_of = |dot: &Dot| middle + dot.line.offset();
    for joined in [DotLine::Upper, DotLine::Lower] {
        let places = dots.iter().filter(|dot| dot.line == joined).filter_map(|dot| dot.value);
        let places: Vec<_> = places.map(|value| axis.at(value)).collect();
        if let (Some(&low), Some(&high)) = (places.iter().min(), places.iter().max()) {
            let y = middle + joined.offset();
            area.draw(&PathElement::new([(low, y), (high, y)], MUTED.stroke_width(1)))?;
        }
    }
    for dot in dots.iter().filter(|dot| dot.spread[0] < dot.spread[1]) {
        let [low, high] = dot.spread.map(|value| axis.at(value));
        let colour = dot.style.colour.placeholder().stroke_width(3);
        let y = height_of(dot);
        area.draw(&PathElement::new([(low, y), (high, y)], colour))?;
    }
    for dot in dots {
        if let Some(value) = dot.value {
            dot.style.draw((axis.at(value), height_of(dot)), area)?;
        }
    }
    Ok(())
}

impl Chart for Dots {
    fn draw(&self, width: u32) -> Result<String, Error> {
        let columns = self.columns(width);
        let key = self.key_lines(width);
        let head = 10 + LINE * key.len() as i32;
        let rows: i32 = self.rows.iter().map(|row| columns.height_of(row)).sum();
        let bottom = head + LINE + 10 + rows;
        let values = self.marks().flat_map(|dot| dot.spread.into_iter().chain(dot.value));
        let axis = LogAxis::new(values.chain(self.line), columns.marks);
        draw(&self.title, (width, (bottom + 2 * LINE + 14) as u32), |area| {
            let write = |text: String, place: (i32, i32), side: HPos| {
                area.draw(&Text::new(text, place, style(TEXT, &MUTED, side)))
            };
            for (number, line) in key.iter().enumerate() {
                let middle = 12 + LINE * number as i32;
                for &(left, mark, text) in line {
                    mark.draw((left, middle), area)?;
                    write(text.to_owned(), (left + 16, middle), HPos::Left)?;
                }
            }
            let ticks = axis.ticks(width_of("0.05") + 16);
            for &value in &ticks {
                for y in [head + LINE / 2, bottom + LINE / 2 + 6] {
                    write(LogAxis::label(value), (axis.at(value), y), HPos::Center)?;
                }
            }
            let middle = (columns.marks[0] + columns.marks[1]) / 2;
            write(self.axis.clone(), (middle, bottom + LINE + LINE / 2 + 8), HPos::Center)?;
            let mut top = head + LINE + 8;
            for row in &self.rows {
                let height = columns.height_of(row);
                let middle = columns.write(row, top, area)?;
                if let DotRow::Dots { dots, .. } = row {
                    // Lines of the grid end before names and headings, so that they cross no text.
                    let from = if columns.stacked { middle - columns.height / 2 } else { top };
                    let grid = ticks.iter().map(|&value| (value, GRID.stroke_width(1)));
                    for (value, style) in
                        grid.chain(self.line.map(|line| (line, INK.stroke_width(2))))
                    {
                        let x = axis.at(value);
                        area.draw(&PathElement::new([(x, from), (x, top + height)], style))?;
                    }
                    draw_marks(dots, middle, &axis, area)?;
                }
                top += height;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart::NARROW;
    use super::*;

    const STYLE: DotStyle =
        DotStyle { shape: DotShape::Circle, hollow: false, colour: DotColour::Good };

    fn row(values: &[f64]) -> DotRow {
        let dot = |&value: &f64| Dot {
            value: Some(value),
            spread: [value; 2],
            style: STYLE,
            line: DotLine::Middle,
        };
        DotRow::Dots {
            name: "a name".into(),
            text: String::new(),
            dots: values.iter().map(dot).collect(),
        }
    }

    /// Returns the horizontal centres of the circles.
    fn centres(svg: &str) -> Vec<f64> {
        let circles = svg.split("<circle cx=\"").skip(1);
        circles
            .map(|circle| circle.split('"').next().unwrap_or("").parse().unwrap_or(-1.0))
            .collect()
    }

    #[test]
    fn equal_ratios_have_equal_lengths_on_an_axis_with_labels() -> Result<(), Error> {
        let chart = Dots {
            axis: "times".into(),
            line: Some(1.0),
            rows: vec![row(&[0.5, 1.0]), row(&[2.0, 4.0])],
            ..Dots::default()
        };
        for width in [WIDE, NARROW] {
            let svg = chart.draw(width)?;
            let [a, b, c, d] = centres(&svg)[..] else { panic!("four marks: {svg}") };
            assert!(((b - a) - (d - c)).abs() <= 1.0 && b - a > 20.0, "{svg}");
            for label in ["0.5\n", "1\n", "2\n", "4\n", "times\n"] {
                assert_eq!(svg.contains(label), label != "4\n" || width == WIDE, "{label}: {svg}");
            }
        }
        Ok(())
    }

    #[test]
    fn names_are_broken_between_words() {
        assert_eq!(lines("a name of some length", 8), ["a name", "of some", "length"]);
        assert_eq!(lines("", 8), Vec::<String>::new());
        assert_eq!(lines("unbreakable name", 4), ["unbreakable", "name"]);
    }
}
