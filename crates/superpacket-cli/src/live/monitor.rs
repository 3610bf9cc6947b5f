//! `superpacket monitor`: copies the packets that a bridge's ports receive and send to a file or a
//! pipe.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;
use signal_hook::iterator::Signals;
use superpacket_bridge::monitor::{MAX_SNAPLEN, MonitorDirection, MonitorSettings};
use superpacket_captures::file::replace_file;
use superpacket_daemon::control::{Client, MonitorCounts, MonitorStream};

use super::connection::{ControlOptions, connect};
use crate::failure::Failure;
use crate::progress::warn;
use crate::report::{grouped, print_json, printable};
use crate::signals;

/// The arguments of `superpacket monitor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct MonitorArguments {
    /// Only these ports, each by its name, or by its port string if it has none (packet:eth0)
    #[arg(value_name = "PORT")]
    pub(crate) ports: Vec<String>,
    /// File to write, which is replaced if it exists; -: standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) write: PathBuf,
    /// Only packets that the ports receive (rx), or only those they send (tx)
    #[arg(long, value_name = "rx|tx|both", value_parser = direction, default_value = "both")]
    pub(crate) direction: MonitorDirection,
    /// End after this number of packets
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Most bytes to copy per packet
    #[arg(long, value_name = "N", default_value_t = MAX_SNAPLEN, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SNAPLEN)))]
    pub(crate) snaplen: u32,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// At the end, print the numbers of written and dropped packets as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

fn direction(text: &str) -> Result<MonitorDirection, String> {
    match text {
        "rx" => Ok(MonitorDirection::Rx),
        "tx" => Ok(MonitorDirection::Tx),
        "both" => Ok(MonitorDirection::Both),
        _ => Err("rx, tx or both".into()),
    }
}

/// Monitors until a signal, the packet count or the bridge ends it.
pub(crate) fn run(arguments: &MonitorArguments) -> Result<(), Failure> {
    let is_pipe = arguments.write == Path::new("-");
    if is_pipe && io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "a capture cannot be written to a terminal: give -w FILE, or use a pipe as in `superpacket monitor | tshark -r -`".into(),
        ));
    }
    if is_pipe && arguments.json {
        return Err(Failure::Usage(
            "--json: the capture goes to standard output: give -w FILE".into(),
        ));
    }
    if let Some(ending @ ("gz" | "zst")) =
        arguments.write.extension().and_then(|ending| ending.to_str())
    {
        let problem = format!(
            "{}: it is written uncompressed: pipe it, as in `superpacket monitor | zstd`",
            arguments.write.display()
        );
        return Err(Failure::Usage(
            problem.replace("zstd", if ending == "gz" { "gzip" } else { "zstd" }),
        ));
    }
    let settings = MonitorSettings {
        ports: arguments.ports.clone(),
        direction: arguments.direction,
        snaplen: arguments.snaplen,
        count: arguments.count,
    };
    let client = connect(&arguments.connection)?;
    let counts = record(client, &settings, &arguments.write, false)?;
    if arguments.json {
        print_json(&MonitorTotals::from(counts))?;
    }
    Ok(())
}

/// Starts a monitor of the bridge's packets, and writes the packets to the file at `path` until a
/// signal, the packet count or the bridge ends it. Returns how many packets were copied and
/// dropped. With `quiet`, only problems are reported to standard error.
///
/// # Errors
/// If the bridge refuses, or the file cannot be written. A pipe whose reader has gone is an
/// [`is_broken_pipe`](Failure::is_broken_pipe).
pub(crate) fn record(
    client: Client,
    settings: &MonitorSettings,
    path: &Path,
    quiet: bool,
) -> Result<MonitorCounts, Failure> {
    // From here on, a signal ends the monitor in an orderly way and not the program.
    let signals = Signals::new(signals::ending())?;
    // The file is created after the bridge has accepted, so that a refusal leaves an existing file
    // unchanged.
    let (report, mut stream) = client.monitor(settings)?;
    let mut output = MonitorOutput::create(path)?;
    end_on_signal(signals, stream.handle()?)?;
    if !quiet && path != Path::new("-") {
        let ports = report.ports.iter().map(|port| printable(port)).collect::<Vec<_>>().join(", ");
        notify(&format!("monitoring {ports}, Ctrl-C ends it"));
    }
    let result = copy(&mut stream, &mut output);
    let counts = stream.counts();
    if !quiet {
        notify(&format!(
            "{} packets written, {} dropped because they were not read in time",
            grouped(counts.packets),
            grouped(counts.dropped)
        ));
    }
    match result {
        Ok(()) if !counts.is_whole => {
            warn("the bridge ended without reporting how many packets were dropped")
        }
        Ok(()) => {}
        Err(failure) => return Err(failure),
    }
    Ok(counts)
}

/// The numbers of copied and dropped packets that are printed as JSON at the end.
#[derive(Serialize)]
struct MonitorTotals {
    packets: u64,
    dropped: u64,
}

impl From<MonitorCounts> for MonitorTotals {
    fn from(counts: MonitorCounts) -> Self {
        MonitorTotals { packets: counts.packets, dropped: counts.dropped }
    }
}

/// The file or pipe that receives the capture.
struct MonitorOutput {
    path: PathBuf,
    file: File,
}

impl MonitorOutput {
    /// Creates an empty file, or opens standard output.
    fn create(path: &Path) -> Result<Self, Failure> {
        // The file has its final name from the start, unlike other captures, so that it can be read
        // while it grows.
        let file =
            replace_file(path).map_err(|source| Failure::Page { path: path.to_owned(), source })?;
        Ok(MonitorOutput { path: path.to_owned(), file })
    }

    fn write(&mut self, blocks: &[u8]) -> Result<(), Failure> {
        let is_pipe = |source: &io::Error| {
            self.path == Path::new("-") || source.kind() == io::ErrorKind::BrokenPipe
        };
        self.file.write_all(blocks).map_err(|source| match is_pipe(&source) {
            true => Failure::Print(source),
            false => Failure::Page { path: self.path.clone(), source },
        })
    }

    /// Waits until the stream has more data. Returns `false` if the output is a pipe that its
    /// reader has closed.
    fn wait(&self, stream: &MonitorStream) -> io::Result<bool> {
        loop {
            let waiting = &mut [
                PollFd::new(stream, PollFlags::IN),
                PollFd::new(&self.file, PollFlags::empty()),
            ];
            match poll(waiting, None) {
                Ok(_) => {
                    return Ok(!waiting[1].revents().intersects(PollFlags::ERR | PollFlags::HUP));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Copies pcapng blocks from the monitor to the output until the stream ends. Fails if the output
/// is a pipe that its reader has closed.
fn copy(stream: &mut MonitorStream, output: &mut MonitorOutput) -> Result<(), Failure> {
    while let Some(blocks) = stream.read()? {
        output.write(blocks)?;
        if !output.wait(stream)? {
            return Err(Failure::Print(io::ErrorKind::BrokenPipe.into()));
        }
    }
    Ok(())
}

/// Starts a thread for signals. The first signal ends the monitor, and the packets copied so far
/// are still written; the second ends the program.
fn end_on_signal(mut signals: Signals, stream: UnixStream) -> io::Result<()> {
    let wait = move || {
        for (number, signal) in signals.forever().enumerate() {
            if number != 0 {
                std::process::exit(128 + signal);
            }
            // An error means that the connection is closed already.
            let _ = stream.shutdown(Shutdown::Write);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Prints a message to standard error.
fn notify(text: &str) {
    // A failed write to standard error cannot be reported anywhere.
    let _ = writeln!(io::stderr(), "superpacket: {text}");
}
