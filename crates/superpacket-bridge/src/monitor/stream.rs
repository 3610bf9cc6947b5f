//! The writing side of a monitor: merges the copies of all threads in order of time and writes them
//! to a socket.

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

/// Minimum time between the making of a copy and its writing. Earlier copies of other threads
/// arrive in this time, and threads that move packets need not wake the writing thread per batch.
const MERGE_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// Maximum time for the reader to take the remaining copies after the monitor has ended, and
/// maximum time without progress. A bridge that stops waits for this.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of the stream in error messages, which go to the log.
const NAME: &str = "the monitor's socket";

/// Starts the thread that writes the stream. It writes `first` before the copies.
///
/// # Errors
/// The error of the operating system if the thread cannot be started.
pub(super) fn start(monitor: Monitor, socket: OwnedFd, first: Vec<u8>) -> io::Result<()> {
    let socket = Arc::new(socket);
    let (monitors, feed) = (monitor.monitors.clone(), monitor.feed.clone());
    let write = move || {
        // Forwarding has priority: if CPU time is short, copies are dropped rather than packets. If
        // the system refuses the lower priority, the threads share the CPUs equally.
        let _ = rustix::process::nice(NICE);
        let ports = monitor.feed.names().join(", ");
        tracing::info!(ports, "a monitor has begun");
        match MonitorStream::begin(monitor, socket, first).and_then(MonitorStream::run) {
            Ok((packets, dropped)) => {
                tracing::info!(ports, packets, dropped, "a monitor has ended")
            }
            // Usually the reader has closed the socket.
            Err(error) => tracing::info!(ports, %error, "a monitor has ended"),
        }
    };
    let thread = std::thread::Builder::new().name("superpacket-mon".into()).spawn(write)?;
    monitors.set_thread(&feed, thread);
    Ok(())
}

/// Nice value of the writing thread.
const NICE: i32 = 10;

/// The state of the writing thread.
struct MonitorStream {
    /// Dropped at the end, which stops the copying.
    monitor: Monitor,
    socket: Arc<OwnedFd>,
    writer: Writer,
    rings: Vec<CopyRing>,
    interfaces: Vec<Interface>,
    /// Number of packets written per interface.
    written: Vec<u64>,
    start: Timestamp,
    options: OptionList,
}

/// The ring of one copying thread.
struct CopyRing {
    copies: Consumer<u8>,
    /// Header of the next copy, if the whole copy is in the ring.
    next: Option<RecordHead>,
    /// Number of bytes that were in the ring at the last look and must be written now.
    due: usize,
}

impl CopyRing {
    /// Returns the header of the next complete copy.
    fn look(&mut self) -> Option<RecordHead> {
        if self.next.is_none() {
            let chunk = self.copies.read_chunk(HEAD).ok()?;
            let (first, second) = chunk.as_slices();
            let mut bytes = [0; HEAD];
            bytes[..first.len()].copy_from_slice(first);
            bytes[first.len()..].copy_from_slice(second);
            // The header stays in the ring, because its packet may be incomplete.
            let head = RecordHead::from_bytes(&bytes);
            self.next = Some(head).filter(|head| self.copies.slots() >= head.total());
        }
        self.next
    }

    /// Marks all bytes in the ring as due in the next round.
    fn look_again(&mut self) {
        self.due = self.copies.slots();
    }

    /// Returns whether the copying thread is gone and no complete copy is left.
    fn is_over(&mut self) -> bool {
        if !self.copies.is_abandoned() {
            return false;
        }
        fence(Ordering::Acquire);
        // A thread that panicked may have left a partial copy.
        self.look().is_none()
    }
}

impl MonitorStream {
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
        let mut stream = MonitorStream {
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

    /// Writes copies until the monitor ends. Returns the numbers of written and dropped packets.
    fn run(mut self) -> Result<(u64, u64), CaptureError> {
        while !self.is_complete() {
            if self.reader_has_left() {
                self.feed().end();
            }
            // The flag is read first, so that all copies made before the end are written.
            let ended = self.feed().is_ended();
            if ended {
                // No more copies are needed.
                self.monitor.monitors.refresh();
            }
            self.take_rings();
            if ended {
                self.rings.iter_mut().for_each(CopyRing::look_again);
            }
            self.write_due()?;
            self.writer.flush()?;
            if ended {
                break;
            }
            self.rings.retain_mut(|ring| !ring.is_over());
            self.rings.iter_mut().for_each(CopyRing::look_again);
            if self.rings.iter().any(|ring| ring.due != 0) {
                self.wait(Some(&MERGE_DELAY));
            } else {
                self.sleep();
            }
        }
        self.finish()
    }

    fn feed(&self) -> &Arc<Feed> {
        &self.monitor.feed
    }

    /// Returns whether the requested number of packets has been written.
    fn is_complete(&self) -> bool {
        self.feed().settings.count.is_some_and(|count| self.written.iter().sum::<u64>() >= count)
    }

    /// Writes the due copies in order of time, together with earlier copies that have arrived
    /// since.
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

    /// Declares the interfaces that have been added since the last call.
    fn declare(&mut self) -> Result<(), CaptureError> {
        self.interfaces.extend(self.feed().interfaces(self.interfaces.len()));
        self.written.resize(self.interfaces.len(), 0);
        self.writer.declare(&self.interfaces)
    }

    /// Writes the statistics of all interfaces, and ends the stream.
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
        self.rings.extend(new.into_iter().map(|copies| CopyRing { copies, next: None, due: 0 }));
    }

    /// Waits until there are copies, or until the monitor must end.
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

    /// Waits for the bell, for the end of the reader, or until the timeout.
    fn wait(&self, timeout: Option<&Timespec>) {
        let bell = &self.feed().bell;
        let waiting = &mut [
            PollFd::new(bell, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::IN | PollFlags::RDHUP),
        ];
        // After a signal the caller looks for work anyway.
        let _ = poll(waiting, timeout);
        if !waiting[0].revents().is_empty() {
            bell.silence();
        }
    }

    /// Returns whether the reader has closed its side. Other input is ignored, at most 64 KiB per
    /// call, so that it cannot delay the copies.
    fn reader_has_left(&self) -> bool {
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

/// A writer to the socket. It waits for the reader without limit while the monitor runs, and for a
/// limited time afterwards.
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
            self.deadline = Some(Instant::now() + DRAIN_TIMEOUT);
        }
        let left = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()).min(STALL_TIMEOUT));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()) as _,
        });
        // A reader that has closed its side is handled once. Polling for it again would return at
        // once.
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
