//! The plots on the page.

use std::ops::Range;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::sizes::Sizes;
use super::timeline::Timeline;
use crate::commands::error::Error;
use crate::commands::figures::grouped;
use crate::commands::plot::{AFTER, BEFORE, GRID, INK, MUTED, TEXT, WIDE, draw};
use crate::commands::totals::Totals;

/// Maximum reasons in the plot.
const MOST_REASONS: usize = 12;

/// Maximum labels on an axis of packets.
const Y_LABELS: usize = 6;

/// Returns the width of a label in the widest common font, in a plot's units.
fn width_of(label: &str) -> u32 {
    label.chars().count() as u32 * (TEXT * 2 / 3)
}

/// Returns the width of an axis's widest label if the axis has at most `most` labels.
fn widest(axis: Range<f64>, most: usize, label: impl Fn(f64) -> String) -> u32 {
    let places = RangedCoordf64::from(axis).key_points(most);
    places.into_iter().map(|place| width_of(&label(place))).max().unwrap_or(0)
}

/// Returns the width that the labels of an axis of packets need.
fn beside_axis(axis: Range<f64>) -> u32 {
    // The labels end 10 units before the axis.
    widest(axis, Y_LABELS, packets) + 10
}

/// Formats a number of packets as the label of an axis. Labels of a short axis are less than 1
/// apart.
fn packets(number: f64) -> String {
    if number < 10.0 { plain(number) } else { grouped(number as u64) }
}

/// Draws the numbers of frames by length, before and after aggregation.
pub(super) fn sizes(before: &Sizes, after: &Sizes, width: u32) -> Result<String, Error> {
    draw("Frames by length, before and after aggregation", (width, 300), |area| {
        let counts =
            |sizes: &Sizes| sizes.classes().map(|(_, count)| count as f64).collect::<Vec<_>>();
        let names: Vec<_> = before.classes().map(|(name, _)| name).collect();
        let (before, after) = (counts(before), counts(after));
        // The axis reaches at least this far, so that its labels are whole numbers.
        let top =
            before.iter().chain(&after).fold(Y_LABELS as f64, |top, &count| top.max(count)) * 1.08;
        let mut chart = ChartBuilder::on(area)
            .margin(if width == WIDE { 12 } else { 4 })
            .x_label_area_size(58)
            .y_label_area_size(beside_axis(0.0..top).max(72))
            .build_cartesian_2d(0.0..names.len() as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(Y_LABELS)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .y_label_formatter(&|count| packets(*count))
            .label_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .draw()?;
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            let left = index as f64;
            chart.draw_series([
                Rectangle::new([(left + 0.12, 0.0), (left + 0.48, *before)], BEFORE.filled()),
                Rectangle::new([(left + 0.52, 0.0), (left + 0.88, *after)], AFTER.filled()),
            ])?;
        }
        let label = TextStyle::from(("sans-serif", TEXT).into_font())
            .color(&MUTED)
            .pos(Pos::new(HPos::Center, VPos::Top));
        for (index, name) in names.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 0.0));
            // If the plot is too narrow for one row of names, there are two.
            let row = if width == WIDE { 0 } else { index as i32 % 2 };
            area.draw(&Text::new(*name, (x, y + 6 + 16 * row), label.clone()))?;
        }
        let (x, y) = chart.backend_coord(&(names.len() as f64 / 2.0, 0.0));
        area.draw(&Text::new("bytes in a frame, at most", (x, y + 40), label))?;
        Ok(())
    })
}

/// Draws the most frequent reasons.
pub(super) fn reasons(totals: &Totals, width: u32) -> Result<String, Error> {
    let mut sorted: Vec<_> = totals.reasons.iter().map(|(name, &count)| (*name, count)).collect();
    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    sorted.truncate(MOST_REASONS);
    let all: u64 = totals.reasons.values().sum::<u64>().max(1);
    // Names are beside the bars, or above them if the plot is too narrow.
    let beside = width == WIDE;
    let (row, names) = if beside { (26, 190) } else { (44, 4) };
    let height = sorted.len() as u32 * row + 16;
    draw("Why packets left as they did", (width, height), |area| {
        let share = |count: u64| {
            format!("{}  ({:.1} %)", grouped(count), 100.0 * count as f64 / all as f64)
        };
        let widest =
            sorted.iter().map(|&(_, count)| width_of(&share(count))).max().unwrap_or(0) + 12;
        let bars =
            f64::from(width as i32 - names - widest.max(if beside { 170 } else { 130 }) as i32);
        let most = sorted.first().map_or(1, |&(_, count)| count.max(1)) as f64;
        let side = if beside { HPos::Right } else { HPos::Left };
        let of_name = TextStyle::from(("sans-serif", TEXT).into_font())
            .color(&INK)
            .pos(Pos::new(side, VPos::Center));
        let of_bar = TextStyle::from(("sans-serif", TEXT).into_font())
            .color(&MUTED)
            .pos(Pos::new(HPos::Left, VPos::Center));
        for (index, (name, count)) in sorted.iter().enumerate() {
            let top = (8 + index as u32 * row) as i32;
            let (place, middle) = if beside {
                ((names - 10, top + 13), top + 13)
            } else {
                ((names, top + 10), top + 28)
            };
            let end = names + (bars * *count as f64 / most).round().max(1.0) as i32;
            area.draw(&Text::new(name.replace('_', " "), place, of_name.clone()))?;
            area.draw(&Rectangle::new([(names, middle - 8), (end, middle + 8)], AFTER.filled()))?;
            area.draw(&Text::new(share(*count), (end + 8, middle), of_bar.clone()))?;
        }
        Ok(())
    })
}

/// Draws packets per second, before and after aggregation.
pub(super) fn timeline(timeline: &Timeline, width: u32) -> Result<String, Error> {
    draw("Packets per second over time, before and after aggregation", (width, 260), |area| {
        let points: Vec<_> = timeline.rates().collect();
        let top = points.iter().fold(1.0f64, |top, point| top.max(point.1).max(point.2)) * 1.08;
        let seconds = timeline.seconds();
        let (unit, scale) = if seconds < 0.002 {
            ("µs", 1e6)
        } else if seconds < 2.0 {
            ("ms", 1e3)
        } else {
            ("s", 1.0)
        };
        let (margin, beside, x_labels) = if width == WIDE { (12, 88, 8) } else { (4, 76, 4) };
        // The last label may be at the end of the axis, where half of it extends beyond the axis.
        let right = 4 + widest(0.0..seconds, x_labels, |time| plain(time * scale)) / 2;
        let mut chart = ChartBuilder::on(area)
            .margin(margin)
            .margin_right(right.max(margin))
            .x_label_area_size(44)
            .y_label_area_size(beside_axis(0.0..top).max(beside))
            .build_cartesian_2d(0.0..seconds, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(x_labels)
            .y_labels(Y_LABELS)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_label_formatter(&|time| plain(time * scale))
            .y_label_formatter(&|rate| packets(*rate))
            .x_desc(format!("{unit} since the first packet"))
            .label_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .axis_desc_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .draw()?;
        let interval = seconds / points.len().max(1) as f64;
        let steps = |which: fn(&(f64, f64, f64)) -> f64| {
            points
                .iter()
                .flat_map(move |point| {
                    [(point.0, which(point)), (point.0 + interval, which(point))]
                })
                .collect::<Vec<_>>()
        };
        chart.draw_series(
            AreaSeries::new(steps(|point| point.1), 0.0, BEFORE.mix(0.55)).border_style(BEFORE),
        )?;
        chart.draw_series(
            AreaSeries::new(steps(|point| point.2), 0.0, AFTER.mix(0.85)).border_style(AFTER),
        )?;
        Ok(())
    })
}

/// Formats a number with at most two decimal places and no trailing zeros.
fn plain(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::plot::{NARROW, both};

    #[test]
    fn plots_have_no_colours_of_their_own() {
        let mut lengths = Sizes::default();
        [60, 1514, 65_000].into_iter().for_each(|length| lengths.count(length));
        let mut line = Timeline::default();
        for step in 0..1000 {
            line.before(step * 10_000);
            line.after(step * 10_000);
        }
        let mut totals = Totals::default();
        totals.reason("push");
        let drawn = [WIDE, NARROW].map(|width| {
            [sizes(&lengths, &lengths, width), reasons(&totals, width), timeline(&line, width)]
        });
        for svg in drawn.into_iter().flatten() {
            let svg = svg.expect("drawn");
            assert!(
                svg.starts_with("<svg role=\"img\" aria-label=")
                    && svg.trim_end().ends_with("</svg>")
            );
            assert!(svg.contains("var(--after)"));
            assert!(!svg.contains("=\"#"), "{svg}");
        }
    }

    /// Returns the start and the end of each text in a plot, by the width of Helvetica's digits.
    fn texts(svg: &str) -> Vec<(String, f64, f64)> {
        let attribute = |tag: &str, name: &str| {
            let (_, rest) = tag.split_once(&format!(" {name}=\"")).expect("the attribute");
            rest.split_once('"').expect("its end").0.to_owned()
        };
        let text = |part: &str| {
            let (tag, rest) = part.split_once('>').expect("a tag");
            let words = rest.split_once("</text>").expect("its end").0.trim().to_owned();
            let narrow = words
                .chars()
                .filter(|letter| matches!(letter, ',' | '.' | ' ' | '(' | ')'))
                .count();
            let size: f64 = attribute(tag, "font-size").parse().expect("a size");
            let long =
                size * (0.556 * (words.chars().count() - narrow) as f64 + 0.278 * narrow as f64);
            let x: f64 = attribute(tag, "x").parse().expect("a place");
            let start = match attribute(tag, "text-anchor").as_str() {
                "start" => x,
                "middle" => x - long / 2.0,
                _ => x - long,
            };
            (words, start, start + long)
        };
        svg.split("<text").skip(1).map(text).collect()
    }

    #[test]
    fn labels_of_few_packets_differ() {
        let lengths: Sizes = serde_json::from_str(r#"{"64": 2}"#).expect("counts");
        let mut slow = Timeline::default();
        for time in 0..5 {
            slow.before(time * 1_000_000_000);
            slow.after(time * 1_000_000_000);
        }
        for svg in [sizes(&lengths, &lengths, WIDE), timeline(&slow, WIDE)] {
            let texts = texts(&svg.expect("drawn"));
            // Labels of the vertical axis all end at the same place.
            let axis = texts
                .iter()
                .filter(|(words, ..)| words == "0")
                .map(|text| text.2)
                .fold(f64::MAX, f64::min);
            let labels: Vec<_> = texts
                .iter()
                .filter(|text| (text.2 - axis).abs() < 0.01)
                .map(|text| &text.0)
                .collect();
            let different: std::collections::BTreeSet<_> = labels.iter().collect();
            assert!(labels.len() > 2 && labels.len() == different.len(), "{labels:?}");
        }
    }

    #[test]
    fn frames_by_length_are_counts_before_and_after() {
        // After aggregation, the share of small frames grows but their number is the same.
        let [before, after]: [Sizes; 2] =
            [r#"{"64": 1000, "1518": 3000}"#, r#"{"64": 1000, "64k": 70}"#]
                .map(|text| serde_json::from_str(text).expect("counts"));
        let svg = sizes(&before, &after, WIDE).expect("drawn");
        let axis: Vec<_> = texts(&svg)
            .into_iter()
            .map(|(words, ..)| words)
            .take_while(|words| words != "64")
            .collect();
        assert_eq!(axis, ["0", "1,000", "2,000", "3,000"]);
        let heights = |side: &str| -> Vec<u32> {
            let bars = svg.split("<rect ").filter(|part| part.contains(&format!("var(--{side})")));
            let heights = bars.map(|bar| {
                bar.split_once(" height=\"")
                    .and_then(|(_, rest)| rest.split_once('"'))
                    .expect("a height")
                    .0
            });
            heights.map(|height| height.parse().expect("a number")).collect()
        };
        let (before, after) = (heights("before"), heights("after"));
        let most = before.iter().copied().max().expect("bars");
        assert!(
            before[0] == after[0] && before[0].abs_diff(most / 3) <= 1,
            "1,000 of each: {before:?} {after:?}"
        );
        assert!(
            after.iter().skip(1).all(|&height| height <= most / 40),
            "70 of 3,000: {before:?} {after:?}"
        );
    }

    #[test]
    fn no_number_is_cut_off() {
        let lengths: Sizes =
            serde_json::from_str(r#"{"64": 3000000000, "1518": 7}"#).expect("counts");
        let mut totals = Totals::default();
        totals.reasons.insert("push", 2_123_456_789);
        for width in [WIDE, NARROW] {
            let mut drawn = vec![sizes(&lengths, &lengths, width), reasons(&totals, width)];
            // A label at the very end of the axis, and a high rate.
            for (step, steps) in
                [(1_000_000_000, 600), (1_000_000_000, 604_800), (100, 1000), (1, 100)]
            {
                let mut line = Timeline::default();
                for time in 0..steps {
                    line.before(time * step);
                    line.after(time * step);
                }
                drawn.push(timeline(&line, width));
            }
            for svg in drawn {
                let texts = texts(&svg.expect("drawn"));
                assert!(texts.len() >= 2);
                for (words, start, end) in texts {
                    assert!(
                        start >= 0.0 && end <= f64::from(width),
                        "{words}, from {start} to {end} in {width}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_empty_capture_is_drawn() {
        assert!(both(|width| sizes(&Sizes::default(), &Sizes::default(), width)).is_ok());
        assert!(both(|width| reasons(&Totals::default(), width)).is_ok());
    }
}
