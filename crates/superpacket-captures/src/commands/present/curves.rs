//! Curves on two logarithmic axes.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{Chart, GRID, MUTED, TEXT, draw, style, width_of};
use super::dots::{DotColour, DotShape, DotStyle};
use super::log_axis::LogAxis;
use crate::commands::error::Error;

/// Curves over the same values, on two logarithmic axes.
#[derive(Clone, Debug, Default)]
pub struct Curves {
    /// Description for readers who cannot see the chart.
    pub title: String,
    /// Names and units of the horizontal and the vertical axis.
    pub axes: [String; 2],
    /// Values on the horizontal axis; each has a label.
    pub over: Vec<f64>,
    /// Name of each curve, with its values.
    pub curves: Vec<(String, Vec<f64>)>,
}

/// The styles of the curves: the first curve has the first style.
const STYLES: [DotStyle; 5] = [
    DotStyle { shape: DotShape::Square, hollow: false, colour: DotColour::Muted },
    DotStyle { shape: DotShape::Triangle, hollow: false, colour: DotColour::Ink },
    DotStyle { shape: DotShape::Circle, hollow: false, colour: DotColour::Bad },
    DotStyle { shape: DotShape::Square, hollow: true, colour: DotColour::Ink },
    DotStyle { shape: DotShape::Circle, hollow: false, colour: DotColour::After },
];

/// Height of a line of text, in pixels.
const LINE: i32 = 18;

impl Chart for Curves {
    fn draw(&self, width: u32) -> Result<String, Error> {
        let head = 24 + LINE * self.curves.len() as i32;
        let bottom = head + 280;
        let values = || self.curves.iter().flat_map(|(_, values)| values.iter().copied());
        let y = LogAxis::new(values(), [bottom, head]);
        let ticks = y.ticks(30);
        let labels = ticks.iter().map(|&value| width_of(&LogAxis::label(value)));
        let left = 14 + labels.max().unwrap_or(0) as i32;
        let x = LogAxis::new(self.over.iter().copied(), [left, width as i32 - 14]);
        let [across, up] = &self.axes;
        draw(&self.title, (width, (bottom + 2 * LINE + 14) as u32), |area| {
            let write = |text: &str, place: (i32, i32), side: HPos| {
                area.draw(&Text::new(text.to_owned(), place, style(TEXT, &MUTED, side)))
            };
            let grid =
                |from: (i32, i32), to: (i32, i32)| area.draw(&PathElement::new([from, to], GRID));
            write(up, (4, 12), HPos::Left)?;
            for value in ticks {
                grid((left, y.at(value)), (width as i32 - 4, y.at(value)))?;
                write(&LogAxis::label(value), (left - 8, y.at(value)), HPos::Right)?;
            }
            for &value in &self.over {
                grid((x.at(value), head), (x.at(value), bottom + 4))?;
                let place = (x.at(value), bottom + 6 + LINE / 2);
                write(&LogAxis::label(value), place, HPos::Center)?;
            }
            let middle = (left + width as i32) / 2;
            write(across, (middle, bottom + LINE + 8 + LINE / 2), HPos::Center)?;
            for (number, ((name, values), mark)) in
                self.curves.iter().zip(STYLES.into_iter().cycle()).enumerate()
            {
                let line = 12 + LINE * (number as i32 + 1);
                mark.draw((left + 6, line), area)?;
                write(name, (left + 20, line), HPos::Left)?;
                let at = |(&over, &value): (&f64, &f64)| (x.at(over), y.at(value));
                let points: Vec<_> = self.over.iter().zip(values).map(at).collect();
                let stroke = mark.colour.placeholder().stroke_width(2);
                area.draw(&PathElement::new(points.clone(), stroke))?;
                for point in points {
                    mark.draw(point, area)?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::chart::{NARROW, WIDE};
    use super::*;

    #[test]
    fn a_power_law_is_a_straight_line() -> Result<(), Error> {
        let chart = Curves {
            axes: ["CPUs".into(), "packets per second".into()],
            over: vec![1.0, 2.0, 4.0, 8.0],
            curves: vec![("all".into(), vec![1e6, 2e6, 4e6, 8e6])],
            ..Curves::default()
        };
        for width in [WIDE, NARROW] {
            let svg = chart.draw(width)?;
            let lines = svg
                .split("<polyline")
                .skip(1)
                .filter_map(|line| line.split("points=\"").nth(1)?.split('"').next());
            let curve = lines.max_by_key(|points| points.matches(',').count()).unwrap_or_default();
            let points: Vec<[f64; 2]> = curve
                .split_whitespace()
                .filter_map(|point| point.split_once(','))
                .map(|(x, y)| [x, y].map(|place| place.parse().unwrap_or(0.0)))
                .collect();
            assert_eq!(points.len(), 4, "{svg}");
            for axis in [0, 1] {
                let steps: Vec<_> =
                    points.windows(2).map(|pair| pair[1][axis] - pair[0][axis]).collect();
                assert!(steps.iter().all(|step| (step - steps[0]).abs() <= 2.0), "{steps:?}");
            }
            for label in ["1\n", "2\n", "4\n", "8\n", "1M\n", "CPUs\n", "packets per second\n"] {
                assert!(svg.contains(label), "{label}: {svg}");
            }
        }
        Ok(())
    }
}
