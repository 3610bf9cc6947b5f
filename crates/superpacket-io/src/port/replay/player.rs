//! The receiving end of a capture that is replayed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime};
use superpacket::packet::{Layer, RxPacket};

use super::options::Speed;
use crate::capture::{CaptureError, Format, Frame, Reader, Source, Start, start_of};
use crate::port::{Buffer, PortError, Receive};

/// Frames that were left out.
#[derive(Debug, Default)]
pub(super) struct Errors(AtomicU64);

impl Errors {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A capture that is replayed.
#[derive(Debug)]
pub(super) struct Player {
    text: String,
    path: String,
    speed: Speed,
    /// How many times it is to be replayed after this time; `None`: without end.
    left: Option<u64>,
    layer: Layer,
    format: Format,
    errors: Arc<Errors>,
    /// Readable when the next frame is due; never after the last.
    timer: OwnedFd,
    clock: Clock,
    /// `None` after the last frame.
    reader: Option<Capture>,
    /// The frame that is not yet due.
    next: Option<Ready>,
    /// What ended the reading, to be told at the next poll.
    failure: Option<PortError>,
}

/// A capture that is being read.
struct Capture(Reader);

impl std::fmt::Debug for Capture {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Capture")
    }
}

/// A frame that was read ahead.
#[derive(Debug)]
struct Ready {
    bytes: Vec<u8>,
    /// When it was captured, in nanoseconds; `None` if the file does not say.
    time: Option<u64>,
}

impl Player {
    /// Opens the capture at `path` and reads its first frame.
    pub(super) fn open(text: &str, path: &str, speed: Speed, times: Option<u64>, errors: Arc<Errors>) -> Result<Self, PortError> {
        let capture = |source: CaptureError| PortError::Capture { port: text.into(), source };
        let mut reader = Reader::open(path).map_err(capture)?;
        let first = read(&mut reader, None, &errors).map_err(capture)?;
        let (layer, format) = (first.as_ref().map_or(Layer::Ethernet, |first| first.1), reader.format());
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC);
        let timer = timer.map_err(|error| PortError::system(text, "make a timer (timerfd_create)", error))?;
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
            reader: (times != Some(0)).then_some(Capture(reader)),
            next: first.map(|first| first.0).filter(|_| times != Some(0)),
            failure: None,
        };
        player.go_on_at_end()?;
        // The first frame is due when it is first asked for.
        player.wait_until(if player.next.is_some() { 1 } else { 0 })?;
        Ok(player)
    }

    /// What its packets start with.
    pub(super) const fn layer(&self) -> Layer {
        self.layer
    }

    /// The format of the file.
    pub(super) const fn format(&self) -> Format {
        self.format
    }

    /// Reads the frame after the present one.
    fn advance(&mut self) -> Result<(), PortError> {
        if let Some(Capture(reader)) = &mut self.reader {
            match read(reader, Some(self.layer), &self.errors) {
                Ok(frame) => self.next = frame.map(|frame| frame.0),
                Err(source) => {
                    self.reader = None;
                    return Err(PortError::Capture { port: self.text.clone(), source });
                }
            }
        }
        self.go_on_at_end()
    }

    /// At the end of the file: from its start again, or nothing more.
    fn go_on_at_end(&mut self) -> Result<(), PortError> {
        if self.next.is_some() {
            return Ok(());
        }
        if let Some(Capture(reader)) = self.reader.take()
            && let Some(truncated) = reader.truncated()
        {
            self.errors.add();
            tracing::warn!(port = %self.text, %truncated, "the capture ends in mid-record");
        }
        // A capture without a frame that can be replayed would be read for ever.
        if self.left == Some(0) || !self.clock.has_begun() {
            return Ok(());
        }
        self.left = self.left.map(|left| left - 1);
        self.clock.begin_again();
        let capture = |source: CaptureError| PortError::Capture { port: self.text.clone(), source };
        let mut reader = Reader::open(&self.path).map_err(capture)?;
        self.next = read(&mut reader, Some(self.layer), &self.errors).map_err(capture)?.map(|frame| frame.0);
        self.reader = self.next.is_some().then_some(Capture(reader));
        Ok(())
    }

    /// Makes the timer readable at a time of the monotonic clock in nanoseconds; at 0: never.
    fn wait_until(&self, time: u64) -> Result<(), PortError> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: (time / NANOSECONDS) as i64, tv_nsec: (time % NANOSECONDS) as _ };
        let value = Itimerspec { it_interval: zero, it_value: value };
        match timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value) {
            Ok(_) => Ok(()),
            Err(error) => Err(PortError::system(&self.text, "set the timer (timerfd_settime)", io::Error::from(error))),
        }
    }
}

impl Receive for Player {
    fn poll(&mut self, packets: &mut Vec<RxPacket<Buffer>>, limit: usize) -> Result<usize, PortError> {
        if let Some(failure) = self.failure.take() {
            return self.wait_until(0).and(Err(failure));
        }
        let now = monotonic_nanoseconds();
        let mut count = 0;
        let result = loop {
            let Some(next) = &self.next else { break self.wait_until(0) };
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

/// The next frame that can be replayed: whole, and of this layer, or of any if none is given.
fn read(reader: &mut Reader, layer: Option<Layer>, errors: &Errors) -> Result<Option<(Ready, Layer)>, CaptureError> {
    while let Some(frame) = reader.next_frame()? {
        match payload(&frame) {
            Some((bytes, found)) if layer.is_none_or(|layer| layer == found) => {
                let time = frame.time.map(|time| time.nanoseconds());
                return Ok(Some((Ready { bytes: bytes.to_vec(), time }, found)));
            }
            _ => errors.add(),
        }
    }
    Ok(None)
}

/// The frame without what its link type put before it; `None` if it is not whole, or neither
/// Ethernet nor IP.
fn payload<'a>(frame: &Frame<'a>) -> Option<(&'a [u8], Layer)> {
    if frame.is_truncated() || frame.data.is_empty() {
        return None;
    }
    match start_of(frame.link_type(), frame.data) {
        Start::Ethernet => Some((frame.data, Layer::Ethernet)),
        Start::Ip { header_length } => Some((&frame.data[header_length..], Layer::Ip)),
        Start::Other => None,
    }
}

const NANOSECONDS: u64 = 1_000_000_000;

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

fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * NANOSECONDS + now.tv_nsec as u64
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
