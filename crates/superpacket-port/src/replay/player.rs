//! The receiving end of a capture that is replayed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use superpacket::packet::{Layer, RxPacket};

use super::frames::{Errors, Read, Ready, read_among};
use super::options::Speed;
use super::stream::{Event, Pipe, Stream, by_header};
use super::timer::{monotonic_nanoseconds, set_timer};
use crate::{Buffer, PortError, Receive};
use superpacket_captures::file::{CaptureError, Format, Reader, Source, Truncated};

/// How long opening a port waits for the first frame of a pipe, to know what its packets start
/// with.
const FIRST_FRAME: Duration = Duration::from_millis(500);

/// Frames of a pipe that are left out, one after the other, in a poll.
const SKIPPED: usize = 64;

/// Frames of a file that are, which takes less than 1 ms: a hole in a file is so many empty ones
/// that they would take hours.
const SKIPPED_OF_FILE: usize = 4096;

/// Frames of a file that are looked through for the first one when its port is opened, which takes
/// a fraction of a second.
const LOOKED_THROUGH: usize = 1 << 20;

/// A capture that is replayed.
#[derive(Debug)]
pub(super) struct Player {
    text: String,
    path: String,
    speed: Speed,
    /// How many times it is to be replayed after this time; `None`: without end.
    left: Option<u64>,
    layer: Layer,
    format: Option<Format>,
    errors: Arc<Errors>,
    /// Readable when the next frame is due; never after the last.
    timer: Arc<OwnedFd>,
    clock: Clock,
    /// `None` after the last frame.
    input: Option<Input>,
    /// The frame that is not yet due.
    next: Option<Ready>,
    /// No frame has been found since the capture began anew.
    is_empty: bool,
    /// What ended the reading, to be told at the next poll.
    failure: Option<PortError>,
}

/// A capture that is being read.
enum Input {
    /// A file, whose bytes are all there.
    File(Box<Reader>),
    /// A pipe that nobody has polled for yet: a thread made before would keep the privileges that
    /// a port is opened with.
    Pipe(Pipe),
    /// A pipe.
    Stream(Stream),
}

impl std::fmt::Debug for Input {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Input::File(_) => "File",
            Input::Pipe(_) => "Pipe",
            Input::Stream(_) => "Stream",
        })
    }
}

impl Player {
    /// Opens the capture at `path` and reads its first frame; from a pipe, if it comes soon.
    pub(super) fn open(
        text: &str,
        path: &str,
        speed: Speed,
        times: Option<u64>,
        errors: Arc<Errors>,
    ) -> Result<Self, PortError> {
        let capture = |source: CaptureError| PortError::Capture { port: text.into(), source };
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        );
        let timer =
            Arc::new(timer.map_err(|error| {
                PortError::system(text, "make a timer (timerfd_create)", error)
            })?);
        let opening = match Pipe::open(path).map_err(capture)? {
            None => Opening::of_file(Box::new(Reader::open(path).map_err(capture)?), &errors),
            Some(pipe) => Opening::of_pipe(pipe),
        };
        let Opening { layer, format, next, input, end } = opening.map_err(capture)?;
        let mut player = Player {
            text: text.into(),
            path: path.into(),
            speed,
            left: times.map(|times| times.saturating_sub(1)),
            layer,
            format,
            errors,
            timer,
            clock: Clock::default(),
            input: input.filter(|_| times != Some(0)),
            next: next.filter(|_| times != Some(0)),
            is_empty: false,
            failure: None,
        };
        player.report_truncated(end.as_ref());
        player.go_on_at_end()?;
        // The first frame is due when it is first asked for; of a pipe, a poll does so.
        player.wait_until(if player.next.is_some() || player.input.is_some() { 1 } else { 0 })?;
        Ok(player)
    }

    /// What its packets start with.
    pub(super) const fn layer(&self) -> Layer {
        self.layer
    }

    /// The format of the file; `None` if its header has not come.
    pub(super) const fn format(&self) -> Option<Format> {
        self.format
    }

    /// Reads the frame after the present one. What comes over a pipe may not be there yet: then the
    /// timer becomes readable when it is. In a file it may be far away: then it is readable at
    /// once.
    fn advance(&mut self) -> Result<(), PortError> {
        for _ in 0..SKIPPED {
            let read = match &mut self.input {
                None => return self.go_on_at_end(),
                Some(Input::File(reader)) => {
                    match read_among(reader, SKIPPED_OF_FILE, Some(self.layer), &self.errors) {
                        Ok(Read::Frame(frame, layer)) => Event::Frame(frame, layer),
                        Ok(Read::LeftOut) => break,
                        Ok(Read::End) => Event::End(reader.truncated().cloned()),
                        Err(error) => Event::Failure(error),
                    }
                }
                Some(Input::Stream(stream)) => {
                    match stream.take(|| set_timer(&self.text, &self.timer, 0))? {
                        Some(event) => event,
                        None => return Ok(()),
                    }
                }
                Some(Input::Pipe(_)) => {
                    self.start_reading()?;
                    continue;
                }
            };
            match read {
                Event::Frame(frame, layer) if layer == self.layer => {
                    (self.next, self.is_empty) = (Some(frame), false);
                    return Ok(());
                }
                Event::Frame(..) => self.errors.add(),
                Event::End(end) => {
                    self.input = None;
                    self.report_truncated(end.as_ref());
                }
                Event::Failure(source) => {
                    self.input = None;
                    return Err(PortError::Capture { port: self.text.clone(), source });
                }
            }
        }
        // Others have their turn before the next.
        self.wait_until(1)
    }

    /// Has a thread read the pipe.
    fn start_reading(&mut self) -> Result<(), PortError> {
        if let Some(Input::Pipe(pipe)) = self.input.take() {
            let stream =
                Stream::start(&self.text, pipe, Arc::clone(&self.timer), Arc::clone(&self.errors));
            let stream = stream.map_err(|error| {
                PortError::system(&self.text, "start a thread that reads the capture", error)
            })?;
            self.input = Some(Input::Stream(stream));
        }
        Ok(())
    }

    fn report_truncated(&self, truncated: Option<&Truncated>) {
        if let Some(truncated) = truncated {
            self.errors.add();
            tracing::warn!(port = %self.text, %truncated, "the capture ends in mid-record");
        }
    }

    /// At the end: from the start again, or nothing more.
    fn go_on_at_end(&mut self) -> Result<(), PortError> {
        // A capture without a frame that can be replayed would be read for ever.
        if self.next.is_some()
            || self.input.is_some()
            || self.left == Some(0)
            || !self.clock.has_begun()
            || self.is_empty
        {
            return Ok(());
        }
        self.is_empty = true;
        self.left = self.left.map(|left| left - 1);
        self.clock.begin_again();
        let capture = |source: CaptureError| PortError::Capture { port: self.text.clone(), source };
        if let Some(pipe) = Pipe::open(&self.path).map_err(capture)? {
            self.input = Some(Input::Pipe(pipe));
            return self.wait_until(1);
        }
        self.input = Some(Input::File(Box::new(Reader::open(&self.path).map_err(capture)?)));
        self.advance()
    }

    /// Makes the timer readable at a time of the monotonic clock in nanoseconds; at 0: never.
    fn wait_until(&self, time: u64) -> Result<(), PortError> {
        set_timer(&self.text, &self.timer, time)
    }

    /// Is the next frame yet to come?
    fn is_awaited(&self) -> bool {
        self.next.is_none() && self.input.is_some()
    }
}

/// What is known of a capture when its port is opened.
struct Opening {
    layer: Layer,
    format: Option<Format>,
    next: Option<Ready>,
    /// `None` at the end.
    input: Option<Input>,
    end: Option<Truncated>,
}

impl Opening {
    /// Looks through the first frames for one that can be replayed. Where none of them can, the
    /// header says what packets start with, as that of a pipe does of which no frame has come.
    fn of_file(mut reader: Box<Reader>, errors: &Errors) -> Result<Self, CaptureError> {
        let format = Some(reader.format());
        let (next, layer, is_end) = match read_among(&mut reader, LOOKED_THROUGH, None, errors)? {
            Read::Frame(frame, layer) => (Some(frame), layer, false),
            Read::LeftOut => (None, by_header(&reader).unwrap_or(Layer::Ethernet), false),
            Read::End => (None, Layer::Ethernet, true),
        };
        let end = reader.truncated().cloned().filter(|_| is_end);
        Ok(Opening { layer, format, next, input: (!is_end).then_some(Input::File(reader)), end })
    }

    /// Waits for the first frame, but not longer than [`FIRST_FRAME`].
    fn of_pipe(mut pipe: Pipe) -> Result<Self, CaptureError> {
        let start = pipe.look(FIRST_FRAME)?;
        let layer = start.layer.unwrap_or(Layer::Ethernet);
        Ok(Opening {
            layer,
            format: start.format,
            next: None,
            input: Some(Input::Pipe(pipe)),
            end: None,
        })
    }
}

impl Receive for Player {
    fn poll(
        &mut self,
        packets: &mut Vec<RxPacket<Buffer>>,
        limit: usize,
    ) -> Result<usize, PortError> {
        if let Some(failure) = self.failure.take() {
            return self.wait_until(0).and(Err(failure));
        }
        let now = monotonic_nanoseconds();
        let mut count = 0;
        let result = loop {
            if self.is_awaited()
                && let Err(failure) = self.advance()
            {
                self.failure = Some(failure);
                break self.wait_until(1);
            }
            let Some(next) = &self.next else {
                // Whoever read has said when the timer is to be readable.
                break if self.is_awaited() { Ok(()) } else { self.wait_until(0) };
            };
            let due = match self.speed {
                Speed::Max => 0,
                Speed::Times(times) => self.clock.due(next.time, times, now),
            };
            if due > now {
                break self.wait_until(due);
            }
            if count == limit {
                // The timer stays readable.
                break self.wait_until(1);
            }
            let Some(Ready { bytes, .. }) = self.next.take() else { break Ok(()) };
            let mut packet = RxPacket::new(Buffer::from(bytes)).with_time(now);
            packet.layer = self.layer;
            packets.push(packet);
            count += 1;
            self.clock.sent(due.max(1));
            if let Err(failure) = self.advance() {
                self.failure = Some(failure);
                break self.wait_until(1);
            }
        };
        result.map(|()| count)
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// The capture's clock, laid over the monotonic one.
#[derive(Debug, Default)]
struct Clock {
    /// A time of the capture and when that is or was, both in nanoseconds; `None` until the first
    /// frame that says its time.
    origin: Option<(u64, u64)>,
    /// When the frame before was due; 0: there was none.
    last: u64,
}

impl Clock {
    /// When a frame captured at `time` is due. Frames keep their order, whatever their times say.
    fn due(&mut self, time: Option<u64>, speed: f64, now: u64) -> u64 {
        let start = if self.last == 0 { now } else { self.last };
        let Some(time) = time else { return start };
        let (first, begin) = *self.origin.get_or_insert((time, start));
        // Rounding is below a nanosecond in the first hundred days of a capture.
        let since = (time.saturating_sub(first) as f64 / speed) as u64;
        begin.saturating_add(since).max(self.last)
    }

    /// A frame that was due then has been delivered.
    fn sent(&mut self, due: u64) {
        self.last = due;
    }

    fn has_begun(&self) -> bool {
        self.last != 0
    }

    /// The next frame's time, whatever it is, follows at once.
    fn begin_again(&mut self) {
        self.origin = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_kept_and_scaled() {
        let mut clock = Clock::default();
        let mut send = |time, speed| {
            let due = clock.due(time, speed, 1_000);
            clock.sent(due);
            due
        };
        assert_eq!(send(Some(50), 1.0), 1_000, "the first is due at once");
        assert_eq!(send(Some(80), 1.0), 1_030);
        assert_eq!(send(None, 1.0), 1_030, "one without a time follows at once");
        assert_eq!(send(Some(20), 1.0), 1_030, "one of an earlier time too");
        assert_eq!(send(Some(150), 2.0), 1_050);
    }

    #[test]
    fn a_capture_that_begins_again_follows_its_last_frame() {
        let mut clock = Clock::default();
        for (time, due) in [(10, 1_000), (90, 1_080)] {
            assert_eq!(clock.due(Some(time), 1.0, 1_000), due);
            clock.sent(due);
        }
        clock.begin_again();
        assert_eq!(clock.due(Some(10), 1.0, 5_000), 1_080);
        clock.sent(1_080);
        assert_eq!(clock.due(Some(90), 1.0, 5_000), 1_160);
    }
}
