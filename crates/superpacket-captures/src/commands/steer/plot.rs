//! The chart of CPUs.

use super::CpuShare;
use crate::commands::present::{ColumnPairs, ratio};

/// Returns the chart of the CPUs `rows`: their shares in the flows and packets of all CPUs.
pub(super) fn cpus(rows: &[&CpuShare], all: &[CpuShare]) -> ColumnPairs<'static> {
    let flows = all.iter().map(|row| row.flows).sum();
    let packets = all.iter().map(|row| row.packets).sum();
    let shares = |row: &&CpuShare| {
        let shares = [ratio(row.flows, flows), ratio(row.packets, packets)];
        (row.cpu.to_string(), shares.map(|share| 100.0 * share))
    };
    ColumnPairs {
        title: "Share of flows and packets by CPU",
        axis: "CPU",
        pairs: rows.iter().map(shares).collect(),
        unit: " %",
        line: Some(100.0 / all.len().max(1) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::present::{Chart, NARROW, WIDE};

    #[test]
    fn cpus_are_drawn_in_the_page_s_colours() {
        let rows: Vec<_> = (0..100)
            .map(|cpu| CpuShare { cpu, packets: cpu as u64, bytes: 0, flows: 1, flow_limited: 0 })
            .collect();
        for count in [0, 1, 2, 100] {
            for width in [WIDE, NARROW] {
                let svg = cpus(&rows.iter().take(count).collect::<Vec<_>>(), &rows)
                    .draw(width)
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
