//! The side of a monitor that writes: copies from all threads, in order of their times, to a
//! socket.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rtrb::Consumer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use superpacket_captures::file::{
    ByteOrder, CaptureError, Compression, Container, Direction, Interface, InterfaceStatistics,
    OptionList, OutputFormat, Record, Sink, Timestamp, Writer,
};

use super::copies::now;
use super::feed::Feed;
use super::record::{HEAD, RecordHead};
use super::{MAX_SNAPLEN, Monitor};

/// A copy is written so much after it was made, at the soonest: by then, earlier ones of other
/// threads are there too. And threads that move packets need not wake the writing one for each
/// batch.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// When the monitor has ended: how long its reader may take for all that is left, and how long it
/// may take nothing of it. A bridge that ends waits for it.
const LAST: Duration = Duration::from_secs(5);
const STALL: Duration = Duration::from_secs(2);

/// What it is called in the messages of errors, which go to the log.
const NAME: &str = "the monitor's socket";

/// Starts the thread.
///
/// # Errors
/// What the system says if it gives none.
pub(super) fn start(monitor: Monitor, socket: OwnedFd, first: Vec<u8>) -> io::Result<()> {
    let socket = Arc::new(socket);
    let (monitors, feed) = (monitor.monitors.clone(), monitor.feed.clone());
    let write = move || {
        // Forwarding goes before: with this, what is dropped where CPUs are short is copies. Where
        // it is refused, the scheduler shares them equally.
        let _ = rustix::process::nice(NICE);
        let ports = monitor.feed.names().join(", ");
        tracing::info!(ports, "a monitor has begun");
        match Stream::begin(monitor, socket, first).and_then(Stream::run) {
            Ok((packets, dropped)) => {
                tracing::info!(ports, packets, dropped, "a monitor has ended")
            }
            // Its reader has gone.
            Err(error) => tracing::info!(ports, %error, "a monitor has ended"),
        }
    };
    let thread = std::thread::Builder::new().name("superpacket-mon".into()).spawn(write)?;
    monitors.is_written_by(&feed, thread);
    Ok(())
}

/// How far the thread stands back.
const NICE: i32 = 10;

/// What the writing thread has.
struct Stream {
    /// Dropped at the end: nothing more is copied then.
    monitor: Monitor,
    socket: Arc<OwnedFd>,
    writer: Writer,
    rings: Vec<Ring>,
    interfaces: Vec<Interface>,
    /// Packets written, by interface.
    written: Vec<u64>,
    start: Timestamp,
    options: OptionList,
}

/// Copies of one thread.
struct Ring {
    copies: Consumer<u8>,
    /// The next one, which is there whole.
    next: Option<RecordHead>,
    /// Bytes that were there at the last look, and must be written now.
    due: usize,
}

impl Ring {
    /// Looks for the next copy.
    fn look(&mut self) -> Option<RecordHead> {
        if self.next.is_none() {
            let chunk = self.copies.read_chunk(HEAD).ok()?;
            let (first, second) = chunk.as_slices();
            let mut bytes = [0; HEAD];
            bytes[..first.len()].copy_from_slice(first);
            bytes[first.len()..].copy_from_slice(second);
            // Not taken from the ring yet: its packet may not be there whole.
            let head = RecordHead::from_bytes(&bytes);
            self.next = Some(head).filter(|head| self.copies.slots() >= head.total());
        }
        self.next
    }

    /// All that is there now is to be written in the next turn.
    fn look_again(&mut self) {
        self.due = self.copies.slots();
    }

    /// Will nothing more come?
    fn is_over(&mut self) -> bool {
        if !self.copies.is_abandoned() {
            return false;
        }
        fence(Ordering::Acquire);
        // What is left may be half a copy, of a thread that panicked.
        self.look().is_none()
    }
}

impl Stream {
    fn begin(monitor: Monitor, socket: Arc<OwnedFd>, first: Vec<u8>) -> Result<Self, CaptureError> {
        let mut socket_writer =
            SocketWriter { socket: socket.clone(), feed: monitor.feed.clone(), deadline: None };
        let written = io::Write::write_all(&mut socket_writer, &first);
        written.map_err(|source| CaptureError::Write { file: NAME.into(), source })?;
        let format = OutputFormat {
            container: Container::PcapNg,
            byte_order: ByteOrder::NATIVE,
            resolution: None,
            compression: Compression::None,
        };
        let writer = Writer::into_stream(NAME, Box::new(socket_writer), format)?;
        let (start, options) = (Timestamp::from_nanoseconds(now()), OptionList::new());
        let mut stream = Stream {
            monitor,
            socket,
            writer,
            rings: Vec::new(),
            interfaces: Vec::new(),
            written: Vec::new(),
            start,
            options,
        };
        stream.declare()?;
        Ok(stream)
    }

    /// Writes copies until the end; says how many, and how many were dropped.
    fn run(mut self) -> Result<(u64, u64), CaptureError> {
        while !self.is_complete() {
            if self.has_left() {
                self.feed().end();
            }
            // First whether it is to end: what was copied before that is written.
            let ended = self.feed().is_ended();
            if ended {
                // No thread needs to copy more.
                self.monitor.monitors.refresh();
            }
            self.take_rings();
            if ended {
                self.rings.iter_mut().for_each(Ring::look_again);
            }
            self.write_due()?;
            self.writer.flush()?;
            if ended {
                break;
            }
            self.rings.retain_mut(|ring| !ring.is_over());
            self.rings.iter_mut().for_each(Ring::look_again);
            if self.rings.iter().any(|ring| ring.due != 0) {
                self.wait(Some(&PAUSE));
            } else {
                self.sleep();
            }
        }
        self.finish()
    }

    fn feed(&self) -> &Arc<Feed> {
        &self.monitor.feed
    }

    /// Are as many packets written as were asked for?
    fn is_complete(&self) -> bool {
        self.feed().settings.count.is_some_and(|count| self.written.iter().sum::<u64>() >= count)
    }

    /// Writes the copies that were there at the last look, and those that were made before them and
    /// have come since.
    fn write_due(&mut self) -> Result<(), CaptureError> {
        while !self.is_complete() && self.rings.iter().any(|ring| ring.due != 0) {
            let heads = self
                .rings
                .iter_mut()
                .enumerate()
                .filter_map(|(index, ring)| Some((index, ring.look()?)));
            let Some((index, head)) = heads.min_by_key(|(index, head)| (head.time, *index)) else {
                break;
            };
            self.write(index, &head)?;
        }
        Ok(())
    }

    /// Writes the next copy of a ring.
    fn write(&mut self, index: usize, head: &RecordHead) -> Result<(), CaptureError> {
        if head.interface as usize >= self.interfaces.len() {
            self.declare()?;
        }
        self.options.clear();
        self.options.direction(if head.sent { Direction::Outbound } else { Direction::Inbound });
        let virtio = &head.virtio[..usize::from(head.virtio_length)];
        if !virtio.is_empty() {
            let digits: String = virtio.iter().map(|byte| format!("{byte:02x}")).collect();
            self.options.comment(&format!("virtio_net_hdr={digits}"));
        }
        let record = Record {
            interface: head.interface,
            time: Some(Timestamp::from_nanoseconds(head.time)),
            original_length: Some(head.length),
            options: self.options.options(),
        };
        let ring = &mut self.rings[index];
        ring.next = None;
        ring.due = ring.due.saturating_sub(head.total());
        let Ok(chunk) = ring.copies.read_chunk(head.total()) else { return Ok(()) };
        let (first, second) = chunk.as_slices();
        let parts = [
            first.get(HEAD..).unwrap_or(&[]),
            second.get(HEAD.saturating_sub(first.len())..).unwrap_or(&[]),
        ];
        self.writer.write(record, parts)?;
        chunk.commit_all();
        self.written[head.interface as usize] += 1;
        Ok(())
    }

    /// Makes interfaces known that have come since.
    fn declare(&mut self) -> Result<(), CaptureError> {
        self.interfaces.extend(self.feed().interfaces(self.interfaces.len()));
        self.written.resize(self.interfaces.len(), 0);
        self.writer.declare(&self.interfaces)
    }

    /// Writes what was counted, and ends.
    fn finish(mut self) -> Result<(u64, u64), CaptureError> {
        self.declare()?;
        let (end, dropped) = (Timestamp::from_nanoseconds(now()), self.feed().dropped());
        let mut totals = (0, 0);
        for (number, (&written, &dropped)) in self.written.iter().zip(&dropped).enumerate() {
            let counted = InterfaceStatistics {
                start: Some(self.start),
                packets: written + dropped,
                dropped,
            };
            self.writer.statistics(number as u32, end, &counted)?;
            totals = (totals.0 + written, totals.1 + dropped);
        }
        self.writer.finish()?;
        Ok(totals)
    }

    fn take_rings(&mut self) {
        let new = self.monitor.feed.take_rings();
        self.rings.extend(new.into_iter().map(|copies| Ring { copies, next: None, due: 0 }));
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) {
        let bell = &self.monitor.feed.bell;
        bell.fall_asleep();
        self.take_rings();
        let stay =
            self.rings.iter_mut().any(|ring| ring.look().is_some()) || self.feed().is_ended();
        if !stay {
            self.wait(None);
        }
        self.monitor.feed.bell.awake();
    }

    /// Waits for the bell, for the reader's end, or for so long.
    fn wait(&self, timeout: Option<&Timespec>) {
        let bell = &self.feed().bell;
        let waiting = &mut [
            PollFd::new(bell, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN | PollFlags::RDHUP),
        ];
        // Interrupted by a signal: it looks again anyway.
        let _ = poll(waiting, timeout);
        if !waiting[0].revents().is_empty() {
            bell.silence();
        }
    }

    /// Has the reader said that it wants no more? It says nothing else. One that does is heard a
    /// little at a time: copies are to be written meanwhile.
    fn has_left(&self) -> bool {
        let mut ignored = [0u8; 4096];
        for _ in 0..16 {
            match recv(&*self.socket, &mut ignored[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
        false
    }
}

/// Writes to the socket, and waits for its reader: for as long as it takes while the monitor runs.
struct SocketWriter {
    socket: Arc<OwnedFd>,
    feed: Arc<Feed>,
    deadline: Option<Instant>,
}

impl io::Write for SocketWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(&*self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(length) => return Ok(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SocketWriter {
    fn wait(&mut self) -> io::Result<()> {
        if self.deadline.is_none() && self.feed.is_ended() {
            self.deadline = Some(Instant::now() + LAST);
        }
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()).min(STALL));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()) as _,
        });
        // A reader that says that it wants no more is heard once: it would be ready all the time.
        let leaving = if self.deadline.is_none() { PollFlags::RDHUP } else { PollFlags::empty() };
        let waiting = &mut [
            PollFd::new(&self.socket, PollFlags::OUT | leaving),
            PollFd::new(&self.feed.bell, PollFlags::IN),
        ];
        match poll(waiting, timeout.as_ref()) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "what was left was not read in time",
                ));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if waiting[0].revents().contains(PollFlags::RDHUP) {
            self.feed.end();
        }
        if !waiting[1].revents().is_empty() {
            self.feed.bell.silence();
        }
        Ok(())
    }
}

const _: () = assert!(
    HEAD + MAX_SNAPLEN as usize <= 1 << 20,
    "the smallest ring has room for the longest copy"
);
