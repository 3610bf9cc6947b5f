//! The extcap interface `superpacket`, from which Wireshark captures the merged packets of a
//! network device.

use std::fs::{File, OpenOptions};
use std::ops::ControlFlow;
use std::path::Path;

use clap::{Args, ValueEnum};
use superpacket_captures::file::CaptureError;
use superpacket_captures::{
    CoalesceOptions, Error, Input, Output, Progress, Rules, Stepping, coalesce,
};

use super::dumpcap::{self, Capture};
use super::sentence::sentence;
use crate::amount::{nanoseconds, size};
use crate::captures::coalesce::{CoalesceMode, MOST_READABLE};
use crate::failure::Failure;
use crate::signals;

/// The options of the interface, which Wireshark shows in a dialog.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of the merged packets")]
pub(super) struct MergedOptions {
    /// The interface to capture from, by its name in `dumpcap -D` [default: the first one]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Rules to aggregate by
    #[arg(long, value_enum, default_value_t = CoalesceMode::Gro)]
    mode: CoalesceMode,
    /// Longest time to hold a packet: 50us, 1ms, 0
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = nanoseconds, allow_hyphen_values = true)]
    hold: u64,
    /// Longest merged packet in bytes, from the IP header
    #[arg(long, value_name = "N", default_value = "65535", value_parser = size, allow_negative_numbers = true)]
    max_bytes: u64,
    /// Do not aggregate UDP
    #[arg(long)]
    no_udp: bool,
}

impl MergedOptions {
    /// Returns the extcap lines that describe the options to Wireshark.
    ///
    /// # Errors
    /// If the devices cannot be listed.
    pub(super) fn describe() -> Result<String, Failure> {
        let range = format!("68,{MOST_READABLE}");
        let fields = [
            DialogField {
                call: "--device",
                display: "Interface",
                tooltip: "The interface to capture from",
                others: &[
                    ("type", "selector"),
                    ("reload", "true"),
                    ("placeholder", "Load the interfaces again"),
                    ("required", "true"),
                ],
            },
            DialogField {
                call: "--mode",
                display: "Rules",
                tooltip: "GRO can be undone; LRO merges more, as for local delivery",
                others: &[("type", "radio")],
            },
            DialogField {
                call: "--hold",
                display: "Longest time to hold a packet",
                tooltip: "50us, 1ms, 0",
                others: &[("type", "string"), ("default", "1ms")],
            },
            DialogField {
                call: "--max-bytes",
                display: "Longest merged packet",
                tooltip: "In bytes, from the IP header",
                others: &[("type", "unsigned"), ("range", &range), ("default", "65535")],
            },
            DialogField {
                call: "--no-udp",
                display: "Do not merge UDP",
                tooltip: "A merged UDP packet looks like one datagram to Wireshark",
                others: &[("type", "boolflag"), ("default", "false")],
            },
        ];
        let sentences = fields.iter().enumerate().map(|(number, field)| field.sentence(number));
        let mut text: String = sentences.collect();
        text.push_str(&Self::devices()?);
        for mode in CoalesceMode::value_variants() {
            let [value, display, default] = match mode {
                CoalesceMode::Gro => ["gro", "GRO", "true"],
                CoalesceMode::Lro => ["lro", "LRO", "false"],
            };
            let fields =
                [("arg", "1"), ("value", value), ("display", display), ("default", default)];
            text.push_str(&sentence("value", &fields));
        }
        Ok(text)
    }

    /// Returns the extcap lines with the network devices that can be selected.
    ///
    /// # Errors
    /// If the devices cannot be listed.
    pub(super) fn devices() -> Result<String, Failure> {
        let devices = dumpcap::devices()?;
        let sentences = devices.iter().map(|device| {
            sentence(
                "value",
                &[("arg", "0"), ("value", &device.name), ("display", &device.display)],
            )
        });
        Ok(sentences.collect())
    }

    /// Captures packets, and writes the merged packets to the FIFO until Wireshark closes it or
    /// sends a signal.
    ///
    /// # Errors
    /// If an option is out of range, or dumpcap fails.
    pub(super) fn capture(&self, filter: Option<&str>, fifo: &Path) -> Result<(), Failure> {
        let options = self.coalesce_options()?;
        signals::end_input()?;
        let name = fifo.display().to_string();
        let open_error = |source| CaptureError::Create { file: name.clone(), source };
        // Waits until Wireshark has opened the other end.
        let stream = OpenOptions::new().write(true).open(fifo).map_err(open_error)?;
        let mut reader = FifoReader { fifo: stream.try_clone().map_err(open_error)? };
        // From here on, a signal must end dumpcap too, and no longer ends the program at once.
        if signals::end_requested() {
            return Ok(());
        }
        let (capture, packets) = Capture::start(&self.device()?, filter)?;
        let input = Input::Live { file: "dumpcap".to_owned(), stream: Box::new(packets) };
        let output = Output::Stream { file: name.clone(), stream: Box::new(stream) };
        match coalesce(input, output, &options, &mut reader) {
            Ok(report) if !report.interrupted => capture.finish(),
            Ok(_) | Err(Error::Interrupted) => {
                capture.stop();
                Ok(())
            }
            Err(error) if is_closed(&error) => {
                capture.stop();
                Ok(())
            }
            // A message of dumpcap explains why its stream is no capture.
            Err(error) => capture.finish().and(Err(error.into())),
        }
    }

    fn device(&self) -> Result<String, Failure> {
        match &self.device {
            Some(device) => Ok(device.clone()),
            None => match dumpcap::devices()?.into_iter().next() {
                Some(device) => Ok(device.name),
                None => Err(Failure::Dumpcap("finds no interface to capture from".to_owned())),
            },
        }
    }

    fn coalesce_options(&self) -> Result<CoalesceOptions, Failure> {
        let max_bytes = match u32::try_from(self.max_bytes) {
            Ok(bytes @ 68..=MOST_READABLE) => bytes,
            _ => {
                return Err(Failure::Usage(format!(
                    "--max-bytes must be between 68 and {MOST_READABLE}, which Wireshark can read"
                )));
            }
        };
        let defaults = CoalesceOptions::default();
        Ok(CoalesceOptions {
            rules: match self.mode {
                CoalesceMode::Gro => Rules::Gro,
                CoalesceMode::Lro => Rules::Lro,
            },
            stepping: Stepping { hold: self.hold, ..defaults.stepping },
            max_bytes,
            udp: !self.no_udp,
            ..defaults
        })
    }
}

/// A field of the dialog that Wireshark shows for the options.
struct DialogField<'a> {
    /// The command-line option that the field sets.
    call: &'static str,
    display: &'static str,
    tooltip: &'static str,
    /// Further attributes of the field, such as its type: names and values in the syntax of extcap.
    others: &'a [(&'static str, &'a str)],
}

impl DialogField<'_> {
    /// Returns the extcap line that describes the field; `number` is its position in the dialog.
    fn sentence(&self, number: usize) -> String {
        let number = number.to_string();
        let DialogField { call, display, tooltip, others } = *self;
        let named =
            [("number", &*number), ("call", call), ("display", display), ("tooltip", tooltip)];
        sentence("arg", &[&named, others].concat())
    }
}

/// Returns whether an error means that Wireshark has closed the FIFO.
fn is_closed(error: &Error) -> bool {
    matches!(error, Error::Capture(CaptureError::Write { source, .. })
        if source.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Watches the reader of the FIFO: the command ends on a signal, or when Wireshark closes the FIFO,
/// even while no packets arrive.
struct FifoReader {
    fifo: File,
}

impl FifoReader {
    #[cfg(unix)]
    fn is_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};

        let mut waiting = [PollFd::new(&self.fifo, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut waiting, Some(&now)).is_ok()
            && waiting[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Always returns `false`: only the next write to the FIFO fails if Wireshark has closed it.
    #[cfg(not(unix))]
    fn is_gone(&self) -> bool {
        let _ = &self.fifo;
        false
    }
}

impl Progress for FifoReader {
    fn advance(&mut self, _packets: u64, _bytes: u64) -> ControlFlow<()> {
        if self.is_gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end_requested(&mut self) -> bool {
        signals::end_requested()
    }
}
