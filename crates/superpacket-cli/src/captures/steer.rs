//! `superpacket steer`: the command's arguments and its report as text.

use std::path::PathBuf;

use clap::Args;
use superpacket_captures::steer_words::{
    balance, busiest, cpus, flow_limit, flows, left_out, summary,
};
use superpacket_captures::{SteerOptions, SteerReport, steer};
use superpacket_steer::{CpuMask, MAX_CPUS, ToeplitzKey};

use super::options::CaptureOptions;
use super::{check_page, interrupted, reasons, write_page};
use crate::failure::Failure;
use crate::progress::{Bar, warn};
use crate::report::{columns, file_heading, fitting_table, paragraph, show};

/// The arguments of `superpacket steer`.
#[derive(Debug, Args)]
pub(crate) struct SteerArguments {
    /// The capture to read; - for standard input
    #[arg(value_name = "CAPTURE")]
    pub(crate) input: PathBuf,
    /// The host's CPUs in the format of sysfs (rps_cpus): hexadecimal, in groups of 32 CPUs
    /// separated by commas, the highest first
    #[arg(long, value_name = "MASK", value_parser = mask, required_unless_present = "cpu_list", allow_hyphen_values = true)]
    pub(crate) cpus: Option<CpuMask>,
    /// The host's CPUs as a list: 0-3,8
    #[arg(long, value_name = "LIST", value_parser = cpu_list, conflicts_with = "cpus", allow_hyphen_values = true)]
    pub(crate) cpu_list: Option<CpuMask>,
    /// Key of the hash: 80 hexadecimal digits or more, with or without colons; the first 40 bytes
    /// count [default: Microsoft's published key]
    #[arg(long, value_name = "HEX", value_parser = toeplitz_key, allow_hyphen_values = true)]
    pub(crate) key: Option<ToeplitzKey>,
    /// Use the same hash for both directions of a connection
    #[arg(long)]
    pub(crate) symmetric: bool,
    /// Hash the outermost headers of tunnelled packets, not the innermost
    #[arg(long)]
    pub(crate) outer: bool,
    /// Write an HTML page with tables and a plot
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Number of flows in the list of top flows, in text and page; at most 100
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) top: u32,
    #[command(flatten)]
    pub(crate) common: CaptureOptions,
}

/// Parses a set of CPUs in the hexadecimal format of `rps_cpus`.
fn mask(text: &str) -> Result<CpuMask, String> {
    text.parse().map_err(|error: superpacket_steer::MaskError| match cpu_list(text) {
        Ok(_) => format!("{error} (a list of CPUs is given as --cpu-list {text})"),
        Err(_) => error.to_string(),
    })
}

/// Parses a set of CPUs as a list such as `0-3,8`.
fn cpu_list(text: &str) -> Result<CpuMask, String> {
    CpuMask::parse_list(text, MAX_CPUS).map_err(|error| error.to_string())
}

/// Parses the key of a Toeplitz hash, in the format of `ethtool -x` or without colons.
fn toeplitz_key(text: &str) -> Result<ToeplitzKey, String> {
    let mut bytes = [0; ToeplitzKey::LENGTH];
    let mut digits = 0;
    for (place, character) in text.char_indices().filter(|&(_, character)| character != ':') {
        let digit = character
            .to_digit(16)
            .ok_or_else(|| format!("{character:?} at byte {place} is not a hexadecimal digit"))?;
        if let Some(byte) = bytes.get_mut(digits / 2) {
            *byte = *byte << 4 | digit as u8;
        }
        digits += 1;
    }
    match digits {
        short if short < 2 * ToeplitzKey::LENGTH => Err(format!(
            "a key needs {} hexadecimal digits or more; this one has {short}",
            2 * ToeplitzKey::LENGTH
        )),
        odd if odd % 2 == 1 => {
            Err(format!("a key has two hexadecimal digits per byte; this one has {odd}"))
        }
        _ => Ok(ToeplitzKey::new(bytes)),
    }
}

/// Runs `superpacket steer`.
pub(crate) fn run(arguments: &SteerArguments) -> Result<(), Failure> {
    check_page(arguments.html.as_deref(), std::slice::from_ref(&arguments.input), "the")?;
    let options = SteerOptions {
        cpus: arguments.cpus.clone().or_else(|| arguments.cpu_list.clone()).unwrap_or_default(),
        key: arguments.key.unwrap_or_default(),
        symmetric: arguments.symmetric,
        outer: arguments.outer,
        strict: arguments.common.strict,
    };
    let mut bar = Bar::new(arguments.common.quiet);
    let report = steer(arguments.common.input(&arguments.input), &options, &mut bar)?;
    if report.left_out.packets > 0 {
        warn(&format!("{}: {}", report.file, left_out(&report.left_out)));
    }
    let top = arguments.top as usize;
    if let Some(path) = &arguments.html {
        write_page(path, &report.page(top)?)?;
    }
    Ok(show(arguments.common.json, &report, || text(&report, top, columns()))?)
}

/// Maximum number of CPUs in the table. If there are more, only the busiest are shown.
const MAX_ROWS: usize = 64;

/// Formats the report as text with lines of at most `columns` columns, and with the `top` largest
/// flows.
fn text(report: &SteerReport, top: usize, columns: usize) -> String {
    let mut text =
        format!("{}\n{}\n", file_heading(&report.file), paragraph(&summary(report), 2, columns));
    if !report.cpus.is_empty() {
        let (rows, more) = busiest(report, MAX_ROWS);
        text.push_str(&fitting_table(&cpus(&rows, report), columns));
        if more > 0 {
            text.push_str(&format!("  and {more} more with fewer packets\n"));
        }
        text.push('\n');
        text.push_str(&paragraph(&balance(report), 2, columns));
        text.push_str(&paragraph(&flow_limit(report), 2, columns));
    }
    text.push_str(&format!("\n  Packets by outcome:\n{}", reasons(&report.totals)));
    if let Some(flows) = flows(report, top) {
        text.push('\n');
        text.push_str(&fitting_table(&flows, columns));
    }
    if report.left_out.packets > 0 {
        text.push('\n');
        text.push_str(&paragraph(&left_out(&report.left_out), 2, columns));
    }
    text.push_str(&interrupted(report.interrupted, 0));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_ethtool_writes_them() {
        let published: Vec<_> =
            ToeplitzKey::MICROSOFT.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        for text in [
            published.concat(),
            published.join(":"),
            published.concat().to_uppercase(),
            published.concat() + "0011",
        ] {
            assert_eq!(toeplitz_key(&text), Ok(ToeplitzKey::MICROSOFT), "{text}");
        }
        for (text, words) in [
            (published[1..].concat(), "80 hexadecimal digits or more; this one has 78"),
            (published.concat() + "1", "two hexadecimal digits per byte; this one has 81"),
            ("6dxx".to_owned(), "'x' at byte 2 is not a hexadecimal digit"),
            (String::new(), "this one has 0"),
        ] {
            assert!(toeplitz_key(&text).is_err_and(|error| error.contains(words)), "{text}");
        }
    }
}
