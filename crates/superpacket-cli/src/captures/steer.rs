//! `superpacket steer`.

use superpacket_captures::steer_words::{CPU_COLUMNS, FLOW_COLUMNS, balance, busiest, cpu_row, flow_limit, flow_row, left_out, summary};
use superpacket_captures::{Input, SteerOptions, SteerReport, steer};

use super::{check_page, reasons, write_page};
use crate::arguments::Steer;
use crate::failure::Failure;
use crate::progress::{Bar, warn};
use crate::report::{columns, file_heading, fitted, paragraph, print, print_json};

/// Runs the command.
pub(crate) fn run(arguments: &Steer) -> Result<(), Failure> {
    check_page(arguments.html.as_deref(), std::slice::from_ref(&arguments.input), "the")?;
    let options = SteerOptions {
        cpus: arguments.cpus.clone().or_else(|| arguments.cpu_list.clone()).unwrap_or_default(),
        key: arguments.key.unwrap_or_default(),
        symmetric: arguments.symmetric,
        outer: arguments.outer,
        strict: arguments.common.strict,
    };
    let mut bar = Bar::new(arguments.common.quiet);
    let report = steer(Input::Path(&arguments.input), &options, &mut bar)?;
    if report.left_out.packets > 0 {
        warn(&format!("{}: {}", report.file, left_out(&report.left_out)));
    }
    let top = arguments.top as usize;
    if let Some(path) = &arguments.html {
        write_page(path, &report.page(top)?)?;
    }
    if arguments.common.json {
        print_json(&report)?;
    } else {
        print(&text(&report, top, columns()), false)?;
    }
    Ok(())
}

/// CPUs in the table; of more, the busiest.
const MOST_CPUS: usize = 64;

/// Renders the report, with so many flows, in lines of at most so many columns.
fn text(report: &SteerReport, top: usize, columns: usize) -> String {
    let mut text = format!("{}\n{}\n", file_heading(&report.file), paragraph(&summary(report), 2, columns));
    if !report.cpus.is_empty() {
        let (rows, more) = busiest(report, MOST_CPUS);
        text.push_str(&fitted(CPU_COLUMNS, rows.into_iter().map(|cpu| cpu_row(cpu, report.steered())), columns));
        if more > 0 {
            text.push_str(&format!("  and {more} more with fewer packets\n"));
        }
        text.push('\n');
        text.push_str(&paragraph(&balance(report), 2, columns));
        text.push_str(&paragraph(&flow_limit(report), 2, columns));
    }
    text.push_str(&format!("\n  What became of the packets:\n{}", reasons(&report.totals)));
    if top > 0 && !report.flows.is_empty() {
        text.push('\n');
        text.push_str(&fitted(FLOW_COLUMNS, report.flows.iter().take(top).map(flow_row), columns));
    }
    if report.left_out.packets > 0 {
        text.push('\n');
        text.push_str(&paragraph(&left_out(&report.left_out), 2, columns));
    }
    text
}
