//! `superpacket coalesce`.

use superpacket_captures::{CoalesceOptions, Input, Output, Rules, coalesce};

use super::{check_report, is_stream, summary};
use crate::arguments::{Coalesce, Mode};
use crate::failure::Failure;
use crate::progress::Bar;
use crate::report::{print, print_json, printable};

/// The longest packet that the engine merges, in bytes.
const MAX_BYTES: u32 = superpacket::aggregate::MAX_BIG_LENGTH;

/// Runs the command.
pub(crate) fn run(arguments: &Coalesce) -> Result<(), Failure> {
    let options = options(arguments)?;
    check_report(&arguments.output, arguments.common.json)?;
    let mut bar = Bar::new(arguments.common.quiet);
    let report = coalesce(Input::Path(&arguments.input), Output::Path(&arguments.output), &options, &mut bar)?;
    if arguments.common.json {
        print_json(&report)?;
    } else {
        let (input, output) = (printable(&report.input), printable(&report.output));
        print(&format!("{input} -> {output}\n\n{}", summary(&report.totals, "merged into them")), is_stream(&arguments.output))?;
    }
    Ok(())
}

fn options(arguments: &Coalesce) -> Result<CoalesceOptions, Failure> {
    let rules = match arguments.mode {
        Mode::Gro if arguments.acks => {
            return Err(Failure::Usage("--acks needs --mode lro: pure ACKs merge for local delivery only".to_owned()));
        }
        Mode::Gro => Rules::Gro,
        Mode::Lro => Rules::Lro,
    };
    let max_bytes = match u32::try_from(arguments.max_bytes) {
        Ok(bytes @ 68..=MAX_BYTES) => bytes,
        _ => return Err(Failure::Usage(format!("--max-bytes must be between 68 and {MAX_BYTES}"))),
    };
    Ok(CoalesceOptions {
        rules,
        stepping: arguments.stepping.into(),
        max_bytes,
        jumbo_option: arguments.jumbo_option,
        max_packets: arguments.max_packets,
        max_flows: arguments.max_flows,
        udp: !arguments.no_udp,
        acks: arguments.acks,
        strict: arguments.common.strict,
    })
}
