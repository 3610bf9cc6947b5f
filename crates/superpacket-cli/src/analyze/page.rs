//! The report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use std::fmt::{self, Write};

use super::{DEFAULT, FileReport, Findings, POLICY, POLICY_COLUMNS, Report, plots, policy_row};
use crate::failure::Failure;
use crate::report::{average, grouped, percent, printable};

/// Files whose plots are drawn; the figures of all are in the table.
const MOST_PLOTTED: usize = 20;

/// Renders the page.
pub(super) fn render(report: &Report) -> Result<String, Failure> {
    let mut page = String::with_capacity(1 << 17);
    match write(report, &mut page) {
        Ok(()) => Ok(page),
        Err(Stop::Plot(failure)) => Err(failure),
        Err(Stop::Format) => Err(Failure::Plot("the page could not be written".to_owned())),
    }
}

/// What can stop the writing of the page.
enum Stop {
    Plot(Failure),
    Format,
}

impl From<fmt::Error> for Stop {
    fn from(_: fmt::Error) -> Self {
        Stop::Format
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Plot(failure)
    }
}

/// Text from outside, made harmless: control characters visible, markup escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in printable(self.0).chars() {
            match character {
                '&' => formatter.write_str("&amp;")?,
                '<' => formatter.write_str("&lt;")?,
                '>' => formatter.write_str("&gt;")?,
                '"' => formatter.write_str("&quot;")?,
                '\'' => formatter.write_str("&#39;")?,
                other => formatter.write_char(other)?,
            }
        }
        Ok(())
    }
}

fn write(report: &Report, page: &mut String) -> Result<(), Stop> {
    let title = match report.files.as_slice() {
        [only] => only.file.clone(),
        files => format!("{} captures", files.len()),
    };
    write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{0}: superpacket analyze</title>\n<style>\n{1}</style>\n</head>\n<body>\n<main>\n<h1 class=\"name\">{0}</h1>\n",
        Escaped(&title),
        include_str!("page.css"),
    )?;
    writeln!(
        page,
        "<p class=\"muted\">What receive aggregation makes of this traffic: polls of {}, nothing held longer than {}.</p>",
        if report.batch == 0 { "the whole file".to_owned() } else { format!("{} packets", grouped(report.batch)) },
        humantime::format_duration(std::time::Duration::from_nanos(report.hold_ns)),
    )?;
    if let [only] = report.files.as_slice() {
        interfaces(only, page)?;
    }
    findings(&report.findings, page)?;
    if report.files.len() > 1 {
        files(report, page)?;
    }
    write!(page, "<p class=\"muted\">superpacket {}</p>\n</main>\n</body>\n</html>\n", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

fn interfaces(file: &FileReport, page: &mut String) -> Result<(), Stop> {
    if !file.interfaces.is_empty() {
        let names: Vec<_> = file.interfaces.iter().map(|name| Escaped(name).to_string()).collect();
        writeln!(page, "<p class=\"muted name\">Interfaces: {}</p>", names.join("; "))?;
    }
    if let Some(cut) = &file.cut_short {
        writeln!(page, "<p class=\"name\">The file is cut short: {}</p>", Escaped(&cut.to_string()))?;
    }
    Ok(())
}

fn files(report: &Report, page: &mut String) -> Result<(), Stop> {
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
    table(["file", "packets", "packets out", "fewer by", "super-packets", "pure ACKs"], rows, None, page)?;
    for file in report.files.iter().take(MOST_PLOTTED) {
        writeln!(page, "<details>\n<summary>{}</summary>", Escaped(&file.file))?;
        interfaces(file, page)?;
        findings(&file.findings, page)?;
        writeln!(page, "</details>")?;
    }
    Ok(())
}

fn findings(findings: &Findings, page: &mut String) -> Result<(), Stop> {
    let (totals, traffic) = (&findings.totals, &findings.traffic);
    writeln!(page, "<div class=\"tiles\">")?;
    let tiles = [
        (totals.fewer_by(), "fewer packets, GRO with UDP".to_owned()),
        (grouped(totals.packets_in), format!("packets in, {} bytes each", average(totals.bytes_in, totals.packets_in, 0))),
        (grouped(totals.packets_out), format!("packets out, {} bytes each", average(totals.bytes_out, totals.packets_out, 0))),
        (findings.policies.gro_udp.packets_in_one(), "packets in a super-packet".to_owned()),
        (percent(traffic.pure_acks, traffic.packets), "of all packets are pure ACKs".to_owned()),
    ];
    for (figure, words) in tiles {
        writeln!(page, "<div class=\"tile\"><b>{figure}</b><span>{words}</span></div>")?;
    }
    writeln!(page, "</div>\n<h3>Policies side by side</h3>")?;
    let rows = findings.policies.in_order().map(|(name, effect)| policy_row(name, effect));
    let header = POLICY_COLUMNS;
    table(header, rows, Some(DEFAULT), page)?;
    let key = "<span class=\"key before\"></span>before<span class=\"key after\"></span>after";
    let after = POLICY[DEFAULT].1;
    let svg = plots::sizes(&traffic.sizes, &findings.policies.gro_udp.sizes)?;
    writeln!(
        page,
        "<h3>Sizes before and after</h3>\n<figure><figcaption>Share of frames by length.{key} ({after})</figcaption>{svg}</figure>"
    )?;
    let svg = plots::reasons(totals)?;
    writeln!(
        page,
        "<h3>Reasons</h3>\n<figure><figcaption>Why packets left as they did, merged or not ({after})</figcaption>{svg}</figure>"
    )?;
    if !findings.timeline.is_empty() {
        let svg = plots::timeline(&findings.timeline)?;
        writeln!(page, "<h3>Packets over time</h3>\n<figure><figcaption>Packets per second.{key} ({after})</figcaption>{svg}</figure>")?;
    }
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

fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    main: Option<usize>,
    page: &mut String,
) -> Result<(), Stop> {
    page.push_str("<div class=\"table\"><table>\n<tr>");
    for cell in header {
        write!(page, "<th>{cell}</th>")?;
    }
    page.push_str("</tr>\n");
    for (index, row) in rows.into_iter().enumerate() {
        page.push_str(if main == Some(index) { "<tr class=\"main\">" } else { "<tr>" });
        for cell in row {
            write!(page, "<td>{}</td>", Escaped(&cell))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(Escaped("<b>&\"'\u{1b}").to_string(), "&lt;b&gt;&amp;&quot;&#39;\\u{1b}");
    }
}
