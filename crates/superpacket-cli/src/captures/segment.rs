//! `superpacket segment`.

use superpacket_captures::{Input, Output, SegmentOptions, segment};

use super::{check_report, is_stream, summary};
use crate::arguments::Segment;
use crate::failure::Failure;
use crate::progress::Bar;
use crate::report::{grouped, print, print_json, printable};

/// Runs the command.
pub(crate) fn run(arguments: &Segment) -> Result<(), Failure> {
    check_report(&arguments.output, arguments.common.json)?;
    let options =
        SegmentOptions { mtu: arguments.mtu, fragment: arguments.fragment, udp_size: arguments.udp_size, strict: arguments.common.strict };
    let mut bar = Bar::new(arguments.common.quiet);
    let report = segment(Input::Path(&arguments.input), Output::Path(&arguments.output), &options, &mut bar)?;
    if arguments.common.json {
        print_json(&report)?;
    } else {
        let (input, output) = (printable(&report.input), printable(&report.output));
        let mut text = format!("{input} -> {output}\n\n{}", summary(&report.totals, "more for them"));
        if report.uncut > 0 {
            text.push_str(&format!("\n  {} frames above the MTU of {} bytes passed uncut\n", grouped(report.uncut), arguments.mtu));
        }
        print(&text, is_stream(&arguments.output))?;
    }
    Ok(())
}
