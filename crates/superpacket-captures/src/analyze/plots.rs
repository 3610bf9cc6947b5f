//! The plots.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::sizes::Sizes;
use super::timeline::Timeline;
use crate::error::Error;
use crate::figures::grouped;
use crate::plot::{AFTER, BEFORE, GRID, INK, MUTED, TEXT, WIDE, draw};
use crate::totals::Totals;

/// Reasons shown in the plot; all are in the table.
const MOST_REASONS: usize = 12;

/// Frames by length, before and after.
pub(super) fn sizes(before: &Sizes, after: &Sizes, width: u32) -> Result<String, Error> {
    draw("Frames by length, before and after aggregation", (width, 300), |area| {
        let counts = |sizes: &Sizes| sizes.classes().map(|(_, count)| count as f64).collect::<Vec<_>>();
        let names: Vec<_> = before.classes().map(|(name, _)| name).collect();
        let (before, after) = (counts(before), counts(after));
        let top = before.iter().chain(&after).fold(1.0f64, |top, &count| top.max(count)) * 1.08;
        let mut chart = ChartBuilder::on(area)
            .margin(if width == WIDE { 12 } else { 4 })
            .x_label_area_size(58)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..names.len() as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(6)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .y_label_formatter(&|count| grouped(*count as u64))
            .label_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .draw()?;
        for (index, (before, after)) in before.iter().zip(&after).enumerate() {
            let left = index as f64;
            chart.draw_series([
                Rectangle::new([(left + 0.12, 0.0), (left + 0.48, *before)], BEFORE.filled()),
                Rectangle::new([(left + 0.52, 0.0), (left + 0.88, *after)], AFTER.filled()),
            ])?;
        }
        let label = TextStyle::from(("sans-serif", TEXT).into_font()).color(&MUTED).pos(Pos::new(HPos::Center, VPos::Top));
        for (index, name) in names.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 0.0));
            // Where there is no room for all in one row, there are two.
            let row = if width == WIDE { 0 } else { index as i32 % 2 };
            area.draw(&Text::new(*name, (x, y + 6 + 16 * row), label.clone()))?;
        }
        let (x, y) = chart.backend_coord(&(names.len() as f64 / 2.0, 0.0));
        area.draw(&Text::new("bytes in a frame, at most", (x, y + 40), label))?;
        Ok(())
    })
}

/// The most frequent reasons.
pub(super) fn reasons(totals: &Totals, width: u32) -> Result<String, Error> {
    let mut sorted: Vec<_> = totals.reasons.iter().map(|(name, &count)| (*name, count)).collect();
    sorted.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    sorted.truncate(MOST_REASONS);
    let all: u64 = totals.reasons.values().sum::<u64>().max(1);
    // Names stand beside the bars, or above them where there is no room.
    let beside = width == WIDE;
    let (row, names) = if beside { (26, 190) } else { (44, 4) };
    let height = sorted.len() as u32 * row + 16;
    draw("Why packets left as they did", (width, height), |area| {
        let bars = f64::from(width as i32 - names - if beside { 170 } else { 130 });
        let most = sorted.first().map_or(1, |&(_, count)| count.max(1)) as f64;
        let side = if beside { HPos::Right } else { HPos::Left };
        let of_name = TextStyle::from(("sans-serif", TEXT).into_font()).color(&INK).pos(Pos::new(side, VPos::Center));
        let of_bar = TextStyle::from(("sans-serif", TEXT).into_font()).color(&MUTED).pos(Pos::new(HPos::Left, VPos::Center));
        for (index, (name, count)) in sorted.iter().enumerate() {
            let top = (8 + index as u32 * row) as i32;
            let (place, middle) = if beside { ((names - 10, top + 13), top + 13) } else { ((names, top + 10), top + 28) };
            let end = names + (bars * *count as f64 / most).round().max(1.0) as i32;
            area.draw(&Text::new(name.replace('_', " "), place, of_name.clone()))?;
            area.draw(&Rectangle::new([(names, middle - 8), (end, middle + 8)], AFTER.filled()))?;
            let share = format!("{}  ({:.1} %)", grouped(*count), 100.0 * *count as f64 / all as f64);
            area.draw(&Text::new(share, (end + 8, middle), of_bar.clone()))?;
        }
        Ok(())
    })
}

/// Packets per second, before and after.
pub(super) fn timeline(timeline: &Timeline, width: u32) -> Result<String, Error> {
    draw("Packets per second over time, before and after aggregation", (width, 260), |area| {
        let points: Vec<_> = timeline.rates().collect();
        let top = points.iter().fold(1.0f64, |top, point| top.max(point.1).max(point.2)) * 1.08;
        let seconds = timeline.seconds();
        let mut chart = ChartBuilder::on(area)
            .margin(if width == WIDE { 12 } else { 4 })
            .x_label_area_size(44)
            .y_label_area_size(if width == WIDE { 88 } else { 76 })
            .build_cartesian_2d(0.0..seconds, 0.0..top)?;
        let (unit, scale) = if seconds < 0.002 {
            ("µs", 1e6)
        } else if seconds < 2.0 {
            ("ms", 1e3)
        } else {
            ("s", 1.0)
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(if width == WIDE { 8 } else { 4 })
            .y_labels(6)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .x_label_formatter(&|time| plain(time * scale))
            .y_label_formatter(&|rate| grouped(*rate as u64))
            .x_desc(format!("{unit} since the first packet"))
            .label_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .axis_desc_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .draw()?;
        let interval = seconds / points.len().max(1) as f64;
        let steps = |which: fn(&(f64, f64, f64)) -> f64| {
            points.iter().flat_map(move |point| [(point.0, which(point)), (point.0 + interval, which(point))]).collect::<Vec<_>>()
        };
        chart.draw_series(AreaSeries::new(steps(|point| point.1), 0.0, BEFORE.mix(0.55)).border_style(BEFORE))?;
        chart.draw_series(AreaSeries::new(steps(|point| point.2), 0.0, AFTER.mix(0.85)).border_style(AFTER))?;
        Ok(())
    })
}

/// A number with no more digits than it needs.
fn plain(number: f64) -> String {
    let text = format!("{number:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{NARROW, both};

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
        let drawn = [WIDE, NARROW].map(|width| [sizes(&lengths, &lengths, width), reasons(&totals, width), timeline(&line, width)]);
        for svg in drawn.into_iter().flatten() {
            let svg = svg.expect("drawn");
            assert!(svg.starts_with("<svg role=\"img\" aria-label=") && svg.trim_end().ends_with("</svg>"));
            assert!(svg.contains("var(--after)"));
            assert!(!svg.contains("=\"#"), "{svg}");
        }
    }

    #[test]
    fn an_empty_capture_is_drawn() {
        assert!(both(|width| sizes(&Sizes::default(), &Sizes::default(), width)).is_ok());
        assert!(both(|width| reasons(&Totals::default(), width)).is_ok());
    }
}
