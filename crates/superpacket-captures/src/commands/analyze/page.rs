//! Renders the report as an HTML page.

use super::words::{merged_before, policies, reasons, top_flows};
use super::{AnalyzeReport, Cuts, DEFAULT, FileAnalysis, Findings, POLICY, plots};
use crate::commands::error::Error;
use crate::commands::present::{Colour, Page, Table, average, grouped, percent, ratio};
use crate::commands::totals::Totals;

/// Maximum files with charts; the table has the figures of all.
const MOST_PLOTTED: usize = 20;

/// Renders the page.
pub(super) fn render(report: &AnalyzeReport) -> Result<String, Error> {
    let single = match (report.files.as_slice(), report.captures) {
        ([only], 1) => Some(only),
        _ => None,
    };
    let title = single
        .map_or_else(|| format!("{} captures", grouped(report.captures)), |only| only.file.clone());
    let mut page = Page::new(&title, report.command);
    page.remark(&format!(
        "What receive aggregation makes of this traffic: polls of {}, nothing held longer than {}.",
        match report.batch {
            0 => "the whole file".to_owned(),
            batch => format!("{} packets", grouped(batch)),
        },
        humantime::format_duration(std::time::Duration::from_nanos(report.hold_ns)),
    ));
    if let Some(parts) = &report.cuts {
        page.remark(&cuts(parts, report));
    }
    if let Some(only) = single {
        interfaces(only, &mut page);
    }
    findings(&report.findings, &mut page)?;
    if report.captures > 1 {
        files(report, &mut page)?;
    }
    unreadable(report, &mut page);
    Ok(page.finish())
}

/// Describes how reading captures in parts may have changed the results.
fn cuts(parts: &Cuts, report: &AnalyzeReport) -> String {
    let held = parts.held.in_order();
    let most =
        report.findings.policies.in_order().into_iter().zip(held).max_by_key(|&(_, held)| held);
    let (files, count) = (grouped(parts.files), grouped(parts.parts));
    match most {
        Some(((name, effect), held)) if held > 0 => format!(
            "Read in parts: {files} captures, in {count}. Where they were cut, {} packets at most might have merged otherwise ({name}), {:.4} % of those that merged.",
            grouped(held),
            100.0 * ratio(held, effect.totals.merged),
        ),
        _ => format!("Read in parts: {files} captures, in {count}, cut where nothing was held."),
    }
}

/// Lists the captures that could not be read.
fn unreadable(report: &AnalyzeReport, page: &mut Page) {
    let messages = &report.unreadable.messages;
    if !messages.is_empty() {
        page.section("Not read");
        page.list(messages);
        let more = report.unreadable_captures.saturating_sub(messages.len() as u64);
        if more > 0 {
            page.remark(&format!("And {} more.", grouped(more)));
        }
    }
}

fn interfaces(file: &FileAnalysis, page: &mut Page) {
    if !file.interfaces.is_empty() {
        page.remark(&format!("Interfaces: {}", file.interfaces.join("; ")));
    }
    if let Some(cut) = &file.cut_short {
        page.paragraph(&format!("The file is cut short: {cut}"));
    }
}

fn files(report: &AnalyzeReport, page: &mut Page) -> Result<(), Error> {
    page.section("Files");
    let rows = report.files.iter().map(|file| {
        let Findings { totals, traffic, .. } = &file.findings;
        [
            file.file.clone(),
            grouped(totals.packets_in),
            grouped(totals.packets_out),
            totals.fewer_by(),
            grouped(totals.super_packets),
            percent(traffic.pure_acks, traffic.packets),
        ]
    });
    page.table(&Table::new(
        ["file", "packets", "packets out", "fewer by", "super-packets", "pure ACKs"],
        rows,
    ));
    let more = report.captures.saturating_sub(report.files.len() as u64);
    if more > 0 {
        page.remark(&format!("And {} more, which count above.", grouped(more)));
    }
    for file in report.files.iter().take(MOST_PLOTTED) {
        page.details(&file.file, |page| {
            interfaces(file, page);
            findings(&file.findings, page)
        })?;
    }
    Ok(())
}

fn findings(findings: &Findings, page: &mut Page) -> Result<(), Error> {
    let (totals, traffic) = (&findings.totals, &findings.traffic);
    let after = POLICY[DEFAULT].1;
    page.paragraph(&verdict(totals));
    if let Some(words) = merged_before(findings) {
        page.paragraph(&format!("{words}."));
    }
    if totals.filtered_out > 0 {
        let count = grouped(totals.filtered_out);
        page.remark(&format!(
            "{count} packets did not match the filter and are not in the figures."
        ));
    }
    page.tiles([
        (totals.fewer_by(), "fewer packets".to_owned()),
        (
            grouped(totals.packets_in),
            format!("packets in, {} bytes each", average(totals.bytes_in, totals.packets_in, 0)),
        ),
        (
            grouped(totals.packets_out),
            format!("packets out, {} bytes each", average(totals.bytes_out, totals.packets_out, 0)),
        ),
        (percent(traffic.pure_acks, traffic.packets), "of all packets are pure ACKs".to_owned()),
    ]);
    let colours = [(Colour::Before, "before"), (Colour::After, &format!("after ({after})"))];
    if !findings.timeline.is_empty() {
        page.subsection("Packets over time");
        page.figure("Packets per second.", &colours, &plots::timeline(&findings.timeline))?;
    }
    page.subsection("Sizes before and after");
    let after_lengths = &findings.policies.gro_udp.bytes_by_length;
    let sizes = plots::sizes(&traffic.bytes_by_length, after_lengths);
    page.figure("Bytes in frames of each length.", &colours, &sizes)?;
    page.subsection("Reasons");
    page.remark(&format!("Why packets left as they did, merged or not ({after})."));
    page.table(&reasons(totals));
    page.subsection("Policies side by side");
    page.table(&policies(findings));
    if !findings.top_flows.is_empty() {
        page.subsection("Flows with the most bytes");
        page.table(&top_flows(findings, "≥ "));
    }
    Ok(())
}

/// Says in one sentence whether aggregation helps.
fn verdict(totals: &Totals) -> String {
    let policy = POLICY[DEFAULT].1;
    let [packets, out] = [totals.packets_in, totals.packets_out].map(grouped);
    let gain = ratio(totals.packets_in, totals.packets_out);
    let counts = format!("{policy} makes {out} packets of {packets}");
    match gain {
        0.0 => "There are no packets.".to_owned(),
        ..1.1 => format!("Aggregation hardly helps here: {counts}."),
        ..2.0 => format!("Aggregation helps a little: {counts}."),
        _ => format!("Aggregation pays off: {counts}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_follows_the_gain() {
        let of = |packets_in, packets_out| {
            verdict(&Totals { packets_in, packets_out, ..Totals::default() })
        };
        assert_eq!(of(0, 0), "There are no packets.");
        assert_eq!(
            of(1000, 1000),
            "Aggregation hardly helps here: GRO with UDP makes 1,000 packets of 1,000."
        );
        assert!(of(1500, 1000).starts_with("Aggregation helps a little: "));
        assert_eq!(
            of(40_000, 1000),
            "Aggregation pays off: GRO with UDP makes 1,000 packets of 40,000."
        );
    }
}
