//! Renders the report as an HTML page.

use std::fmt::Write;

use super::words::{POLICY_COLUMNS, policy_row};
use super::{AnalyzeReport, Cuts, DEFAULT, FileAnalysis, Findings, POLICY, plots};
use crate::commands::error::Error;
use crate::commands::figures::{average, grouped, percent, ratio};
use crate::commands::page::{self, Breakable, Stop, table, tiles};
use crate::commands::plot::both;

/// Maximum files with plots; the table has the figures of all.
const MOST_PLOTTED: usize = 20;

/// Renders the page.
pub(super) fn render(report: &AnalyzeReport) -> Result<String, Error> {
    let title = match (report.files.as_slice(), report.captures) {
        ([only], 1) => only.file.clone(),
        (_, captures) => format!("{} captures", grouped(captures)),
    };
    page::render(&title, report.command, |page| write(report, page))
}

fn write(report: &AnalyzeReport, page: &mut String) -> Result<(), Stop> {
    writeln!(
        page,
        "<p class=\"muted\">What receive aggregation makes of this traffic: polls of {}, nothing held longer than {}.</p>",
        if report.batch == 0 {
            "the whole file".to_owned()
        } else {
            format!("{} packets", grouped(report.batch))
        },
        humantime::format_duration(std::time::Duration::from_nanos(report.hold_ns)),
    )?;
    if let Some(parts) = &report.cuts {
        writeln!(page, "<p class=\"muted\">{}</p>", cuts(parts, report))?;
    }
    if let ([only], 1) = (report.files.as_slice(), report.captures) {
        interfaces(only, page)?;
    }
    findings(&report.findings, page)?;
    if report.captures > 1 {
        files(report, page)?;
    }
    unreadable(report, page)
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
fn unreadable(report: &AnalyzeReport, page: &mut String) -> Result<(), Stop> {
    if report.unreadable.messages.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>Not read</h2>\n<ul>")?;
    for words in &report.unreadable.messages {
        writeln!(page, "<li class=\"name\">{}</li>", Breakable(words))?;
    }
    writeln!(page, "</ul>")?;
    let more = report.unreadable_captures.saturating_sub(report.unreadable.messages.len() as u64);
    if more > 0 {
        writeln!(page, "<p class=\"muted\">And {} more.</p>", grouped(more))?;
    }
    Ok(())
}

fn interfaces(file: &FileAnalysis, page: &mut String) -> Result<(), Stop> {
    if !file.interfaces.is_empty() {
        let names: Vec<_> =
            file.interfaces.iter().map(|name| Breakable(name).to_string()).collect();
        writeln!(page, "<p class=\"muted name\">Interfaces: {}</p>", names.join("; "))?;
    }
    if let Some(cut) = &file.cut_short {
        writeln!(
            page,
            "<p class=\"name\">The file is cut short: {}</p>",
            Breakable(&cut.to_string())
        )?;
    }
    Ok(())
}

fn files(report: &AnalyzeReport, page: &mut String) -> Result<(), Stop> {
    writeln!(page, "<h2>Files</h2>")?;
    let rows = report.files.iter().map(|file| {
        let totals = &file.findings.totals;
        let traffic = &file.findings.traffic;
        [
            file.file.clone(),
            grouped(totals.packets_in),
            grouped(totals.packets_out),
            totals.fewer_by(),
            grouped(totals.super_packets),
            percent(traffic.pure_acks, traffic.packets),
        ]
    });
    table(
        ["file", "packets", "packets out", "fewer by", "super-packets", "pure ACKs"],
        rows,
        None,
        page,
    )?;
    let more = report.captures.saturating_sub(report.files.len() as u64);
    if more > 0 {
        writeln!(page, "<p class=\"muted\">And {} more, which count above.</p>", grouped(more))?;
    }
    for file in report.files.iter().take(MOST_PLOTTED) {
        writeln!(page, "<details>\n<summary>{}</summary>", Breakable(&file.file))?;
        interfaces(file, page)?;
        findings(&file.findings, page)?;
        writeln!(page, "</details>")?;
    }
    Ok(())
}

fn findings(findings: &Findings, page: &mut String) -> Result<(), Stop> {
    let (totals, traffic) = (&findings.totals, &findings.traffic);
    let figures = [
        (totals.fewer_by(), "fewer packets, GRO with UDP".to_owned()),
        (
            grouped(totals.packets_in),
            format!("packets in, {} bytes each", average(totals.bytes_in, totals.packets_in, 0)),
        ),
        (
            grouped(totals.packets_out),
            format!("packets out, {} bytes each", average(totals.bytes_out, totals.packets_out, 0)),
        ),
        (findings.policies.gro_udp.packets_in_one(), "packets in a super-packet".to_owned()),
        (percent(traffic.pure_acks, traffic.packets), "of all packets are pure ACKs".to_owned()),
    ];
    let key = "<span class=\"key before\"></span>before<span class=\"key after\"></span>after";
    let after = POLICY[DEFAULT].1;
    if !findings.timeline.is_empty() {
        let svg = both(|width| plots::timeline(&findings.timeline, width))?;
        writeln!(
            page,
            "<h3>Packets over time</h3>\n<figure><figcaption>Packets per second.{key} ({after})</figcaption>{svg}</figure>"
        )?;
    }
    tiles(figures, page)?;
    let svg = both(|width| plots::sizes(&traffic.sizes, &findings.policies.gro_udp.sizes, width))?;
    writeln!(
        page,
        "<h3>Sizes before and after</h3>\n<figure><figcaption>Numbers of frames by length.{key} ({after})</figcaption>{svg}</figure>"
    )?;
    let svg = both(|width| plots::reasons(totals, width))?;
    writeln!(
        page,
        "<h3>Reasons</h3>\n<figure><figcaption>Why packets left as they did, merged or not ({after})</figcaption>{svg}</figure>"
    )?;
    writeln!(page, "<h3>Policies side by side</h3>")?;
    let rows = findings.policies.in_order().map(|(name, effect)| policy_row(name, effect));
    let header = POLICY_COLUMNS;
    table(header, rows, Some(DEFAULT), page)?;
    if !findings.top_flows.is_empty() {
        writeln!(page, "<h3>Flows with the most bytes</h3>")?;
        let rows = findings.top_flows.iter().map(|row| {
            let bound = if row.exact { "" } else { "≥ " };
            [
                row.flow.clone(),
                format!("{bound}{}", grouped(row.packets_in)),
                format!("{bound}{}", grouped(row.bytes)),
                grouped(row.packets_out),
            ]
        });
        table(["flow", "packets", "bytes", "packets out"], rows, None, page)?;
    }
    Ok(())
}
