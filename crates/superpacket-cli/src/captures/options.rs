//! Options that several capture commands share.

use std::path::{Path, PathBuf};

use clap::Args;
use superpacket_captures::Input;

use crate::amount::nanoseconds;
use crate::failure::Failure;

/// Options that determine when held packets of a capture are flushed from the aggregation.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Stepping {
    /// Packets per poll, at whose end everything held is flushed; 0: only at the end of the file
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub(crate) batch: u64,
    /// Longest time to hold a packet, by the capture's clock: 50us, 1ms, 3600s, 0
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = nanoseconds, allow_hyphen_values = true)]
    pub(crate) hold: u64,
}

impl From<Stepping> for superpacket_captures::Stepping {
    fn from(stepping: Stepping) -> Self {
        superpacket_captures::Stepping { batch: stepping.batch, hold: stepping.hold }
    }
}

/// Options of the commands that write captures: whether checksums are corrected or completed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct ChecksumOptions {
    /// Correct wrong checksums: IPv4 header, TCP, UDP, DCCP, outer UDP and GRE
    #[arg(long)]
    pub(crate) fix_checksums: bool,
    /// Leave checksums unfinished that were left to the network card. Packets that are cut or
    /// merged get right ones in any case
    #[arg(long)]
    pub(crate) keep_partial: bool,
}

/// Options of all commands that read captures.
#[derive(Clone, Debug, Args)]
pub(crate) struct CaptureOptions {
    /// Read only packets that match an expression in the syntax of tcpdump (pcap-filter), such as
    /// 'tcp port 443'
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Print the report as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Fail (exit code 2) if a capture ends within a record, instead of warning
    #[arg(long)]
    pub(crate) strict: bool,
    /// At the end of a capture file, wait for more until a signal (Ctrl-C)
    #[arg(long)]
    pub(crate) follow: bool,
    /// Read the files into which tcpdump -C or -W divides a capture as one: IN is any of them, or
    /// the name given to tcpdump
    #[arg(long)]
    pub(crate) rotated: bool,
    /// Show no progress bar
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl CaptureOptions {
    /// Returns the input at `path` with these options applied.
    pub(crate) fn input<'a>(&'a self, path: &'a Path) -> Input<'a> {
        let input = match (self.rotated, self.follow) {
            (false, false) => Input::Path(path),
            (rotated, follow) => Input::Recording { path, rotated, follow },
        };
        match &self.filter {
            Some(expression) => input.filtered(expression),
            None => input,
        }
    }

    /// Returns the inputs of a command that reads several captures one after the other.
    ///
    /// # Errors
    /// If the first of several captures would be followed.
    pub(crate) fn inputs<'a>(&'a self, paths: &'a [PathBuf]) -> Result<Vec<Input<'a>>, Failure> {
        if self.follow && paths.len() > 1 {
            return Err(Failure::Usage("--follow reads a single capture".to_owned()));
        }
        Ok(paths.iter().map(|path| self.input(path)).collect())
    }
}
