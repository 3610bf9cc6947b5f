//! What all commands that read captures understand.

use clap::Args;

use crate::amount::nanoseconds;

/// How aggregation is stepped through a capture.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Stepping {
    /// Packets in a poll: at its end, everything held leaves; 0: only at the file's end
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub(crate) batch: u64,
    /// Hold nothing longer than this, by the capture's clock: 50us, 1ms, 3600s, 0
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = nanoseconds, allow_hyphen_values = true)]
    pub(crate) hold: u64,
}

impl From<Stepping> for superpacket_captures::Stepping {
    fn from(stepping: Stepping) -> Self {
        superpacket_captures::Stepping { batch: stepping.batch, hold: stepping.hold }
    }
}

/// What every command that reads captures understands.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Common {
    /// Print the report as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Fail (exit code 2) if a capture ends within a record, instead of warning
    #[arg(long)]
    pub(crate) strict: bool,
    /// No progress bar
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
