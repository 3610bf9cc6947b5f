//! The plot of CPUs.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::CpuShare;
use crate::commands::error::Error;
use crate::commands::plot::{AFTER, BEFORE, GRID, INK, MUTED, TEXT, WIDE, draw};

/// Maximum CPU numbers below a wide plot.
const MOST_NUMBERS: u32 = 32;

/// Draws the shares of these CPUs in the flows and packets of all CPUs.
pub(super) fn cpus(rows: &[&CpuShare], all: &[CpuShare], width: u32) -> Result<String, Error> {
    draw("Share of flows and packets by CPU", (width, 300), |area| {
        let (flows, packets) = all
            .iter()
            .fold((0, 0), |(flows, packets), row| (flows + row.flows, packets + row.packets));
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let even = 100.0 / all.len().max(1) as f64;
        let shares: Vec<_> =
            rows.iter().map(|row| (share(row.flows, flows), share(row.packets, packets))).collect();
        let top =
            shares.iter().fold(even, |top, &(flows, packets)| top.max(flows).max(packets)) * 1.08;
        let mut chart = ChartBuilder::on(area)
            .margin(if width == WIDE { 12 } else { 4 })
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..rows.len().max(1) as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_labels(6)
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(GRID)
            .y_label_formatter(&|share| {
                if top < 5.0 { format!("{share:.1} %") } else { format!("{share:.0} %") }
            })
            .label_style(("sans-serif", TEXT).into_font().color(&MUTED))
            .draw()?;
        for (index, (flows, packets)) in shares.iter().enumerate() {
            let left = index as f64;
            chart.draw_series([
                Rectangle::new([(left + 0.12, 0.0), (left + 0.48, *flows)], BEFORE.filled()),
                Rectangle::new([(left + 0.52, 0.0), (left + 0.88, *packets)], AFTER.filled()),
            ])?;
        }
        chart.draw_series(LineSeries::new([(0.0, even), (rows.len() as f64, even)], INK))?;
        let label = TextStyle::from(("sans-serif", TEXT).into_font())
            .color(&MUTED)
            .pos(Pos::new(HPos::Center, VPos::Top));
        for (index, row) in rows
            .iter()
            .enumerate()
            .step_by(rows.len().div_ceil((MOST_NUMBERS * width / WIDE) as usize).max(1))
        {
            let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 0.0));
            area.draw(&Text::new(row.cpu.to_string(), (x, y + 8), label.clone()))?;
        }
        let (x, y) = chart.backend_coord(&(rows.len() as f64 / 2.0, 0.0));
        area.draw(&Text::new("CPU", (x, y + 28), label))?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::plot::NARROW;

    #[test]
    fn cpus_are_drawn_in_the_page_s_colours() {
        let rows: Vec<_> = (0..100)
            .map(|cpu| CpuShare { cpu, packets: cpu as u64, bytes: 0, flows: 1, flow_limited: 0 })
            .collect();
        for count in [0, 1, 2, 100] {
            for width in [WIDE, NARROW] {
                let svg = cpus(&rows.iter().take(count).collect::<Vec<_>>(), &rows, width)
                    .expect("drawn");
                assert!(
                    svg.starts_with("<svg role=\"img\" aria-label=") && !svg.contains("=\"#"),
                    "{svg}"
                );
                assert_eq!(svg.matches("var(--after)").count(), count);
            }
        }
    }
}
