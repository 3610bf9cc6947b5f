//! The report as text.

use super::{Findings, POLICY_COLUMNS, Report, policy_row};
use crate::report::{fitted, grouped, paragraph, percent, printable, reasons};

/// Renders the report in lines of at most so many columns.
pub(super) fn render(report: &Report, columns: usize) -> String {
    let mut text = String::new();
    for file in &report.files {
        text.push_str(&printable(&file.file));
        text.push('\n');
        for interface in &file.interfaces {
            text.push_str(&format!("  interface {}\n", printable(interface)));
        }
        findings(&file.findings, columns, &mut text);
        text.push('\n');
    }
    if report.files.len() > 1 {
        text.push_str(&format!("all {} files\n", report.files.len()));
        findings(&report.findings, columns, &mut text);
    }
    text.push_str(&report.unreadable.text());
    text
}

fn findings(findings: &Findings, columns: usize, text: &mut String) {
    let traffic = &findings.traffic;
    let packets = format!(
        "{} packets, {} bytes: TCP {}, UDP {}, DCCP {}, other {}",
        grouped(traffic.packets),
        grouped(traffic.bytes),
        percent(traffic.tcp_packets, traffic.packets),
        percent(traffic.udp_packets, traffic.packets),
        percent(traffic.dccp_packets, traffic.packets),
        percent(traffic.other_packets, traffic.packets),
    );
    text.push_str(&paragraph(&packets, 2, columns));
    let (acks, share) = (grouped(traffic.pure_acks), percent(traffic.pure_acks, traffic.packets));
    text.push_str(&format!("  pure ACKs {acks}, {share} of all packets\n\n"));
    let rows = findings.policies.in_order().map(|(name, effect)| policy_row(name, effect));
    text.push_str(&fitted(POLICY_COLUMNS, rows, columns));
    text.push_str("\n  Why packets left as they did, under GRO with UDP:\n");
    text.push_str(&reasons(&findings.totals));
    if !findings.top_flows.is_empty() {
        text.push('\n');
        text.push_str(&fitted(
            ["flow", "packets", "bytes", "packets out"],
            findings.top_flows.iter().map(|row| {
                let bound = if row.exact { "" } else { ">= " };
                [
                    row.flow.clone(),
                    format!("{bound}{}", grouped(row.packets_in)),
                    format!("{bound}{}", grouped(row.bytes)),
                    grouped(row.packets_out),
                ]
            }),
            columns,
        ));
    }
}
