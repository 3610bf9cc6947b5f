//! The receiving end of a replayed capture.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use superpacket::packet::{Layer, RxPacket};

use super::frames::{ReadResult, ReadyFrame, SkippedFrames, read_among};
use super::options::Speed;
use super::stream::{CaptureStream, Event, Pipe, by_header};
use super::timer::set_timer;
use crate::clock::monotonic_nanoseconds;
use crate::{Buffer, PortError, Receive};
use superpacket_captures::file::{CaptureError, Format, Reader, Source, Truncated};

/// Time for which opening a port waits for the first frame of a pipe, which tells with which header
/// the packets begin.
const FIRST_FRAME: Duration = Duration::from_millis(500);

/// Maximum number of frames of a pipe skipped in one poll.
const MAX_SKIPPED_OF_PIPE: usize = 64;

/// Maximum number of frames of a file skipped in one step, which takes less than 1 ms. A sparse
/// file can contain enough empty frames to take hours.
const MAX_SKIPPED_OF_FILE: usize = 4096;

/// Maximum number of frames of a file that are examined, when its port is opened, to find the first
/// one that can be replayed. This takes a fraction of a second.
const MAX_EXAMINED_FRAMES: usize = 1 << 20;

/// A capture that is being replayed.
#[derive(Debug)]
pub(super) struct Player {
    text: String,
    path: String,
    speed: Speed,
    /// Number of further repetitions of the capture; `None` for endless.
    repetitions_left: Option<u64>,
    layer: Layer,
    format: Option<Format>,
    errors: Arc<SkippedFrames>,
    /// Becomes readable when the next frame is due; never again after the last frame.
    timer: Arc<OwnedFd>,
    clock: Clock,
    /// The capture being read; `None` after the last frame.
    input: Option<PlayerInput>,
    /// The next frame, which is not due yet.
    next: Option<ReadyFrame>,
    /// Whether no frame has been found since the capture was last restarted.
    is_empty: bool,
    /// The error that ended reading, to be returned by the next poll.
    failure: Option<PortError>,
}

/// A capture that is being read.
enum PlayerInput {
    /// A file, all of whose bytes are available.
    File(Box<Reader>),
    /// A pipe that has not been polled yet. Its thread starts with the first poll, since it would
    /// otherwise keep the privileges with which the port was opened.
    Pipe(Pipe),
    /// A pipe that a thread is reading.
    Stream(CaptureStream),
}

impl std::fmt::Debug for PlayerInput {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            PlayerInput::File(_) => "File",
            PlayerInput::Pipe(_) => "Pipe",
            PlayerInput::Stream(_) => "Stream",
        })
    }
}

impl Player {
    /// Opens the capture at `path` and reads its first frame; from a pipe only if it arrives soon.
    pub(super) fn open(
        text: &str,
        path: &str,
        speed: Speed,
        times: Option<u64>,
        errors: Arc<SkippedFrames>,
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
            repetitions_left: times.map(|times| times.saturating_sub(1)),
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
        // The first frame is due immediately; from a pipe, a poll must read it.
        player.wait_until(if player.next.is_some() || player.input.is_some() { 1 } else { 0 })?;
        Ok(player)
    }

    /// Returns the header with which the replayed packets begin.
    pub(super) const fn layer(&self) -> Layer {
        self.layer
    }

    /// Returns the file's format; `None` if its header has not arrived.
    pub(super) const fn format(&self) -> Option<Format> {
        self.format
    }

    /// Reads the next frame into `next`. If a pipe has not delivered it yet, the timer becomes
    /// readable when it arrives. If many frames of a file must be skipped first, the timer becomes
    /// readable at once.
    fn advance(&mut self) -> Result<(), PortError> {
        for _ in 0..MAX_SKIPPED_OF_PIPE {
            let read = match &mut self.input {
                None => return self.go_on_at_end(),
                Some(PlayerInput::File(reader)) => {
                    match read_among(reader, MAX_SKIPPED_OF_FILE, Some(self.layer), &self.errors) {
                        Ok(ReadResult::Frame(frame, layer)) => Event::Frame(frame, layer),
                        Ok(ReadResult::LeftOut) => break,
                        Ok(ReadResult::End) => Event::End(reader.truncated().cloned()),
                        Err(error) => Event::Failure(error),
                    }
                }
                Some(PlayerInput::Stream(stream)) => {
                    match stream.take(|| set_timer(&self.text, &self.timer, 0))? {
                        Some(event) => event,
                        None => return Ok(()),
                    }
                }
                Some(PlayerInput::Pipe(_)) => {
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
        // Stops here, so that other ports are polled before the rest is skipped.
        self.wait_until(1)
    }

    /// Starts the thread that reads the pipe, if `input` is a pipe without a thread.
    fn start_reading(&mut self) -> Result<(), PortError> {
        if let Some(PlayerInput::Pipe(pipe)) = self.input.take() {
            let stream = CaptureStream::start(
                &self.text,
                pipe,
                Arc::clone(&self.timer),
                Arc::clone(&self.errors),
            );
            let stream = stream.map_err(|error| {
                PortError::system(&self.text, "start a thread that reads the capture", error)
            })?;
            self.input = Some(PlayerInput::Stream(stream));
        }
        Ok(())
    }

    fn report_truncated(&self, truncated: Option<&Truncated>) {
        if let Some(truncated) = truncated {
            self.errors.add();
            tracing::warn!(port = %self.text, %truncated, "the capture ends in mid-record");
        }
    }

    /// Restarts the capture, whose end was reached, if it is to be repeated.
    fn go_on_at_end(&mut self) -> Result<(), PortError> {
        // A capture without a replayable frame would be restarted endlessly.
        if self.next.is_some()
            || self.input.is_some()
            || self.repetitions_left == Some(0)
            || !self.clock.has_begun()
            || self.is_empty
        {
            return Ok(());
        }
        self.is_empty = true;
        self.repetitions_left = self.repetitions_left.map(|left| left - 1);
        self.clock.begin_again();
        let capture = |source: CaptureError| PortError::Capture { port: self.text.clone(), source };
        if let Some(pipe) = Pipe::open(&self.path).map_err(capture)? {
            self.input = Some(PlayerInput::Pipe(pipe));
            return self.wait_until(1);
        }
        self.input = Some(PlayerInput::File(Box::new(Reader::open(&self.path).map_err(capture)?)));
        self.advance()
    }

    /// Makes the timer readable at `time`, in nanoseconds of the monotonic clock; 0 means never.
    fn wait_until(&self, time: u64) -> Result<(), PortError> {
        set_timer(&self.text, &self.timer, time)
    }

    /// Returns whether the capture has not ended, and its next frame has not been read yet.
    fn is_awaited(&self) -> bool {
        self.next.is_none() && self.input.is_some()
    }
}

/// A capture that is being opened as a port: its first frame, if it has been read, and what is
/// known about the rest.
struct Opening {
    layer: Layer,
    format: Option<Format>,
    next: Option<ReadyFrame>,
    /// The capture, from which the next frames are read; `None` at its end.
    input: Option<PlayerInput>,
    end: Option<Truncated>,
}

impl Opening {
    /// Searches the first frames of a file for one that can be replayed. If there is none, the link
    /// type in the file header tells with which header the packets begin.
    fn of_file(mut reader: Box<Reader>, errors: &SkippedFrames) -> Result<Self, CaptureError> {
        let format = Some(reader.format());
        let (next, layer, is_end) =
            match read_among(&mut reader, MAX_EXAMINED_FRAMES, None, errors)? {
                ReadResult::Frame(frame, layer) => (Some(frame), layer, false),
                ReadResult::LeftOut => (None, by_header(&reader).unwrap_or(Layer::Ethernet), false),
                ReadResult::End => (None, Layer::Ethernet, true),
            };
        let end = reader.truncated().cloned().filter(|_| is_end);
        Ok(Opening {
            layer,
            format,
            next,
            input: (!is_end).then_some(PlayerInput::File(reader)),
            end,
        })
    }

    /// Waits for the first frame of a pipe, at most for [`FIRST_FRAME`].
    fn of_pipe(mut pipe: Pipe) -> Result<Self, CaptureError> {
        let start = pipe.look(FIRST_FRAME)?;
        let layer = start.layer.unwrap_or(Layer::Ethernet);
        Ok(Opening {
            layer,
            format: start.format,
            next: None,
            input: Some(PlayerInput::Pipe(pipe)),
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
                // The thread that reads the pipe sets the timer.
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
                // Keeps the timer readable.
                break self.wait_until(1);
            }
            let Some(ReadyFrame { bytes, .. }) = self.next.take() else { break Ok(()) };
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

/// Maps the capture's times to the monotonic clock.
#[derive(Debug, Default)]
struct Clock {
    /// A time in the capture and the monotonic time that corresponds to it, in nanoseconds; `None`
    /// before the first frame that has a time.
    origin: Option<(u64, u64)>,
    /// Time at which the previous frame was due, in nanoseconds; 0 if there was none.
    last: u64,
}

impl Clock {
    /// Returns the monotonic time at which a frame captured at `time` is due. A frame is never due
    /// before its predecessor, even if its capture time is earlier.
    fn due(&mut self, time: Option<u64>, speed: f64, now: u64) -> u64 {
        let start = if self.last == 0 { now } else { self.last };
        let Some(time) = time else { return start };
        let (first, begin) = *self.origin.get_or_insert((time, start));
        // The rounding error is below 1 ns in the first hundred days of a capture.
        let since = (time.saturating_sub(first) as f64 / speed) as u64;
        begin.saturating_add(since).max(self.last)
    }

    /// Records the time at which a delivered frame was due.
    fn sent(&mut self, due: u64) {
        self.last = due;
    }

    fn has_begun(&self) -> bool {
        self.last != 0
    }

    /// Restarts the mapping of the capture's times to the clock: the next frame is due at once,
    /// whatever its time is.
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
