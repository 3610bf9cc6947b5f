//! Opens captures and reads them to their end.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::file::{Block, Format, Frame, Interface, Item, Reader, same_file};

use crate::commands::error::Error;
use crate::commands::filter::{Filter, matches_all};
use crate::commands::packets::{PacketCursor, Packets};
use crate::commands::progress::{INTERVAL, Progress};
use crate::commands::rotated::RotatedSet;
use crate::commands::source::InputSource;
use crate::commands::totals::CutShort;
use crate::commands::waiting::{EndRequests, Waited};

/// Minimum time between two calls of [`FrameReceiver::idle`] when data arrives all the time, so
/// that an output is not flushed after every packet.
const IDLE_INTERVAL: Duration = Duration::from_millis(5);

/// The input of a command.
pub enum Input<'a> {
    /// A capture file; `-` is standard input. `tcp://HOST:PORT` connects to a sender of a capture
    /// (PCAP-over-IP), and `tcp-listen://ADDRESS:PORT` waits until one connects.
    Path(&'a Path),
    /// What tcpdump has written, or is writing.
    Recording {
        /// A capture file, or with `rotated` any file of a set, or the name that was given to
        /// tcpdump (`-w`).
        path: &'a Path,
        /// Whether the capture is the set of files that tcpdump's options `-C` and `-W` make of it.
        rotated: bool,
        /// Whether reading waits for more data at the end of the file. It then ends only if the
        /// progress [requests it](Progress::end_requested). Data from a pipe or device is always
        /// waited for.
        follow: bool,
    },
    /// An open capture.
    Reader(Box<Reader>),
    /// A stream with a capture or, for [`check`](crate::check()), with records.
    Stream {
        /// The name in reports and errors.
        file: String,
        /// The bytes of the capture.
        stream: Box<dyn Read + Send>,
    },
    /// A stream with a capture that is still being made, such as the output of a program. A thread
    /// reads it, so that commands can do other work while nothing arrives.
    Live {
        /// The name in reports and errors.
        file: String,
        /// The stream from which the capture is read.
        stream: Box<dyn Read + Send>,
    },
    /// Packets in memory.
    Packets(&'a Packets),
    /// The frames of another input that match a filter: see [`filtered`](Self::filtered).
    Filtered {
        /// The input whose packets are filtered.
        input: Box<Input<'a>>,
        /// The filter expression, in the syntax of pcap-filter(7).
        expression: &'a str,
    },
}

impl<'a> Input<'a> {
    /// Returns an input with only those frames that match an expression in the syntax of tcpdump
    /// (pcap-filter(7)), such as `tcp port 443`. Other frames are neither processed nor written;
    /// reports count them as `filtered_out`. Packets keep the numbers that they have in the file.
    ///
    /// Libpcap compiles the expression for each link type, and decides what it means: `tcp` does
    /// not match a frame with a VLAN tag, but `vlan and tcp` does.
    ///
    /// When such an input is read, [`Error::Options`] is returned for an expression that libpcap
    /// refuses, and always without this crate's feature `filter`.
    #[must_use]
    pub fn filtered(self, expression: &'a str) -> Self {
        Input::Filtered { input: Box::new(self), expression }
    }

    /// Returns whether the input reads this file.
    pub(crate) fn is_file(&self, file: &Path) -> bool {
        let is_file = |path: &Path| same_file(path, file).unwrap_or(false);
        match self {
            Input::Path(path) | Input::Recording { path, rotated: false, .. } => is_file(path),
            Input::Recording { path, .. } => RotatedSet::find(path)
                .and_then(|set| set.files())
                .is_ok_and(|files| files.iter().any(|file| is_file(&file.path))),
            Input::Filtered { input, .. } => input.is_file(file),
            _ => false,
        }
    }
}

impl<'a> From<&'a Path> for Input<'a> {
    fn from(path: &'a Path) -> Self {
        Input::Path(path)
    }
}

impl<'a> From<&'a Packets> for Input<'a> {
    fn from(packets: &'a Packets) -> Self {
        Input::Packets(packets)
    }
}

impl From<Reader> for Input<'_> {
    fn from(reader: Reader) -> Self {
        Input::Reader(Box::new(reader))
    }
}

/// Receives the frames of an input.
pub(crate) trait FrameReceiver {
    /// Receives a frame.
    ///
    /// # Errors
    /// Any error; it ends the reading.
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Error>;

    /// Receives a block of a pcapng file that holds neither a packet nor an interface.
    ///
    /// # Errors
    /// Any error; it ends the reading.
    fn block(&mut self, _block: &Block<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// Called when the input has had nothing to read for the time `waited`. Returns the waiting
    /// time after which it is to be called again if nothing arrives meanwhile; `None` for no
    /// further call.
    ///
    /// # Errors
    /// Any error; it ends the reading.
    fn idle(&mut self, _waited: Duration) -> Result<Option<Duration>, Error> {
        Ok(None)
    }
}

/// A receiver that calls a function for each frame, and ignores everything else.
struct Each<F>(F);

impl<F: FnMut(&Frame<'_>) -> Result<(), Error>> FrameReceiver for Each<F> {
    #[inline]
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        self.0(frame)
    }
}

/// How the reading of an input ended.
#[derive(Clone, Debug)]
pub(crate) struct InputEnd {
    /// Where the input ends within a record; `None` if it does not.
    pub(crate) cut_short: Option<CutShort>,
    /// Whether the progress ended the reading of the input.
    pub(crate) interrupted: bool,
}

/// An open input.
pub(crate) struct OpenInput<'a> {
    source: InputSource<'a>,
    progress: &'a mut dyn Progress,
    strict: bool,
    /// The filters that frames must match.
    filters: Vec<Filter>,
    /// Number of frames that did not match the filters.
    filtered_out: u64,
    /// Number of the last packet that was read.
    packets: u64,
    end_requests: EndRequests,
    /// When [`FrameReceiver::idle`] was called last.
    idle: Option<Instant>,
    /// Whether [`Progress::end`] has been called.
    ended: bool,
}

impl<'a> OpenInput<'a> {
    /// Opens a capture.
    pub(crate) fn open(
        input: Input<'a>,
        strict: bool,
        progress: &'a mut dyn Progress,
    ) -> Result<Self, Error> {
        let source = match input {
            Input::Filtered { input, expression } => {
                let filter = Filter::new(expression)?;
                let mut open = OpenInput::open(*input, strict, progress)?;
                open.filters.push(filter);
                return Ok(open);
            }
            Input::Path(path) => InputSource::open(path, progress)?,
            Input::Recording { path, rotated, follow } => {
                InputSource::open_recording(path, rotated, follow, progress)?
            }
            Input::Reader(reader) => InputSource::Reader(reader),
            Input::Stream { file, stream } => {
                InputSource::Reader(Box::new(Reader::from_stream(&file, stream)?))
            }
            Input::Live { file, stream } => InputSource::live(file, stream, progress)?,
            Input::Packets(packets) => InputSource::Packets(PacketCursor::new(packets)),
        };
        progress.begin(source.file(), source.length());
        Ok(OpenInput {
            source,
            progress,
            strict,
            filters: Vec::new(),
            filtered_out: 0,
            packets: 0,
            end_requests: EndRequests::new(),
            idle: None,
            ended: false,
        })
    }

    /// Returns the name of the capture for reports.
    pub(crate) fn file(&self) -> &str {
        self.source.file()
    }

    /// Returns the format of the input.
    pub(crate) fn format(&self) -> Format {
        self.source.format()
    }

    /// Returns the number of frames read so far that do not match the input's filter.
    pub(crate) fn filtered_out(&self) -> u64 {
        self.filtered_out
    }

    /// Calls `each` with every frame that matches the input's filter, in order, until it fails or
    /// the progress wants the input to end.
    #[inline]
    pub(crate) fn for_each(
        &mut self,
        each: impl FnMut(&Frame<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.deliver(&mut Each(each))
    }

    /// Passes every frame that matches the input's filter to the receiver, in order, and calls its
    /// [`idle`](FrameReceiver::idle) when the input has nothing to read.
    #[inline]
    pub(crate) fn deliver(&mut self, receiver: &mut impl FrameReceiver) -> Result<(), Error> {
        if self.end_requests.ends(&self.source, self.progress) {
            return Ok(());
        }
        loop {
            let number = match self.source.next_item() {
                Ok(Some(Item::Frame(frame))) => {
                    let (data, length) = (frame.data, frame.original_length);
                    if self.filters.is_empty()
                        || matches_all(&mut self.filters, frame.link_type(), data, length)?
                    {
                        receiver.frame(&frame)?;
                    } else {
                        self.filtered_out += 1;
                    }
                    frame.number
                }
                Ok(Some(Item::Block(block))) => {
                    receiver.block(&block)?;
                    continue;
                }
                Ok(None) => return Ok(()),
                Err(error) if error.is_would_block() => match self.wait(receiver)? {
                    Waited::End => return Ok(()),
                    _ => continue,
                },
                Err(error) => return Err(error.into()),
            };
            self.packets = number;
            if number.is_multiple_of(INTERVAL) && self.ask()? {
                return Ok(());
            }
        }
    }

    fn ask(&mut self) -> Result<bool, Error> {
        let read = (self.packets, self.source.bytes_read());
        self.end_requests.ask(&self.source, read, self.progress)
    }

    /// Waits until there is something to read or the input ends, and calls [`FrameReceiver::idle`]
    /// meanwhile.
    #[cold]
    fn wait(&mut self, receiver: &mut dyn FrameReceiver) -> Result<Waited, Error> {
        let began = Instant::now();
        let mut next_idle = Some(self.idle.map_or(began, |idle| began.max(idle + IDLE_INTERVAL)));
        loop {
            let read = (self.packets, self.source.bytes_read());
            let waited = self.end_requests.wait(&self.source, read, self.progress, next_idle)?;
            if waited != Waited::Limit {
                return Ok(waited);
            }
            let now = Instant::now();
            self.idle = Some(now);
            let waited = now.duration_since(began);
            next_idle = receiver
                .idle(waited)?
                .filter(|&again| again > waited)
                .and_then(|again| began.checked_add(again));
        }
    }

    /// Returns the interfaces found so far.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        self.source.interfaces()
    }

    /// Ends the reading. A capture that was cut short is reported to the progress, or is an error
    /// if `strict` is set. A capture whose reading the progress has ended does not count as cut
    /// short.
    pub(crate) fn finish(mut self) -> Result<InputEnd, Error> {
        let interrupted = self.end_requests.is_ending();
        let truncated = self.source.truncated().filter(|_| !interrupted).cloned();
        self.end();
        match &truncated {
            Some(truncated) if self.strict => return Err(Error::CutShort(truncated.clone())),
            Some(truncated) => self.progress.cut_short(truncated),
            None => {}
        }
        Ok(InputEnd { cut_short: truncated.map(CutShort::from), interrupted })
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.progress.end();
        }
    }
}

impl Drop for OpenInput<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
