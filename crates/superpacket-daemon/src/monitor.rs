//! Writes the packet copies of a monitor to a socket, as a pcapng stream.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize};
use superpacket::packet::Layer;
use superpacket_bridge::monitor::{Feed, Monitor, MonitorInterface, MonitorReader, PacketCopy};
use superpacket_captures::file::{
    ByteOrder, CaptureError, Compression, Container, Direction, Interface, InterfaceStatistics,
    LinkType, OptionList, OutputFormat, Record, Sink, TimeResolution, Timestamp, Writer,
};

/// Maximum time for sending the remaining copies to the client after the monitor has ended, and
/// (`STALL_TIMEOUT`) maximum time without progress meanwhile. A bridge that stops waits for this.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Name of the stream in error messages, which are logged.
const NAME: &str = "the monitor's socket";

/// Nice value of the thread that writes the stream.
const NICE: i32 = 10;

/// The bridge's answer to a request for a monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorReport {
    /// Format of the stream, always `pcapng`.
    pub format: String,
    /// Names of the ports that are monitored at the start.
    pub ports: Vec<String>,
}

impl MonitorReport {
    /// Returns the answer for a monitor that was just started.
    pub fn new(monitor: &Monitor) -> Self {
        MonitorReport { format: "pcapng".to_owned(), ports: monitor.ports() }
    }
}

/// Starts a thread that writes the copies of a monitor to a stream socket, as one section of
/// pcapng. Each port is an interface of the section, and each packet has its direction. The section
/// ends with the numbers of copied and dropped packets for each interface. `first` is written
/// before the section.
///
/// The stream ends after the requested number of packets, when the client stops sending or closes
/// the socket, when all requested ports have left the bridge, or when the bridge stops.
///
/// # Errors
/// The error of the operating system if the thread cannot be started.
pub fn stream_to(monitor: Monitor, socket: OwnedFd, first: Vec<u8>) -> io::Result<()> {
    monitor.read_on_thread(move |reader| {
        // Forwarding has priority: if CPU time is short, copies are dropped rather than packets. If
        // the system refuses the lower priority, all threads share the CPUs equally.
        let _ = rustix::process::nice(NICE);
        let ports = reader.feed().ports().join(", ");
        tracing::info!(ports, "a monitor has begun");
        match MonitorStream::begin(reader, Arc::new(socket), first).and_then(MonitorStream::run) {
            Ok((packets, dropped)) => {
                tracing::info!(ports, packets, dropped, "a monitor has ended")
            }
            // The usual reason is that the reading program has closed the socket.
            Err(error) => tracing::info!(ports, %error, "a monitor has ended"),
        }
    })
}

/// The state of the thread that writes the stream.
struct MonitorStream {
    /// The source of the copies. When it is dropped at the end, packets are no longer copied.
    reader: MonitorReader,
    socket: Arc<OwnedFd>,
    section: Section,
}

/// The pcapng section that is written to the socket, with its interfaces and packet counts.
struct Section {
    feed: Arc<Feed>,
    writer: Writer,
    interfaces: Vec<Interface>,
    /// For each interface, the number of packets written.
    written: Vec<u64>,
    start: Timestamp,
    options: OptionList,
}

impl MonitorStream {
    fn begin(
        reader: MonitorReader,
        socket: Arc<OwnedFd>,
        first: Vec<u8>,
    ) -> Result<Self, CaptureError> {
        let feed = reader.feed().clone();
        let mut socket_writer =
            SocketWriter { socket: socket.clone(), feed: feed.clone(), deadline: None };
        let written = io::Write::write_all(&mut socket_writer, &first);
        written.map_err(|source| CaptureError::Write { file: NAME.into(), source })?;
        let format = OutputFormat {
            container: Container::PcapNg,
            byte_order: ByteOrder::NATIVE,
            resolution: None,
            compression: Compression::None,
        };
        let mut section = Section {
            feed,
            writer: Writer::into_stream(NAME, Box::new(socket_writer), format)?,
            interfaces: Vec::new(),
            written: Vec::new(),
            start: now(),
            options: OptionList::new(),
        };
        section.declare()?;
        Ok(MonitorStream { reader, socket, section })
    }

    /// Writes packet copies to the socket until the monitor ends. Returns the numbers of written
    /// and dropped packets.
    fn run(mut self) -> Result<(u64, u64), CaptureError> {
        loop {
            if self.reader_has_left() {
                self.section.feed.end();
            }
            let is_last = self.reader.read(|copy| self.section.write(copy))?;
            self.section.writer.flush()?;
            if is_last {
                return self.section.finish();
            }
            self.reader.wait(Some(self.socket.as_fd()));
        }
    }

    /// Returns whether the client has closed its side of the socket. Data from the client is
    /// discarded, at most 64 KiB per call, so that it cannot delay the copies.
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

impl Section {
    fn write(&mut self, copy: &PacketCopy<'_>) -> Result<(), CaptureError> {
        if copy.interface as usize >= self.interfaces.len() {
            self.declare()?;
        }
        self.options.clear();
        self.options.direction(if copy.sent { Direction::Outbound } else { Direction::Inbound });
        if !copy.virtio.is_empty() {
            let digits: String = copy.virtio.iter().map(|byte| format!("{byte:02x}")).collect();
            self.options.comment(&format!("virtio_net_hdr={digits}"));
        }
        let record = Record {
            interface: copy.interface,
            time: Some(Timestamp::from_nanoseconds(copy.time)),
            original_length: Some(copy.length),
            options: self.options.options(),
        };
        self.writer.write(record, copy.bytes)?;
        self.written[copy.interface as usize] += 1;
        Ok(())
    }

    /// Writes the descriptions of interfaces that were added since the last call.
    fn declare(&mut self) -> Result<(), CaptureError> {
        let new = self.feed.interfaces(self.interfaces.len());
        self.interfaces.extend(new.iter().map(described));
        self.written.resize(self.interfaces.len(), 0);
        self.writer.declare(&self.interfaces)
    }

    /// Writes the packet counts of all interfaces, and ends the stream.
    fn finish(mut self) -> Result<(u64, u64), CaptureError> {
        self.declare()?;
        let (end, dropped) = (now(), self.feed.dropped());
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
}

/// Returns the pcapng description of an interface.
fn described(interface: &MonitorInterface) -> Interface {
    let link_type = match interface.layer {
        Layer::Ethernet => LinkType::ETHERNET,
        Layer::Ip => LinkType::RAW,
    };
    Interface::new(link_type, TimeResolution::NANOSECONDS).named(&interface.port)
}

/// Returns the current time, for the stream.
fn now() -> Timestamp {
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Timestamp::from_nanoseconds(since_1970.as_nanos() as u64)
}

/// A writer to the client's socket. If the client does not read, a write blocks without limit while
/// the monitor runs, and for a limited time after its end.
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
        // That the reading program has closed its side is handled only once. Polling for it again
        // would return at once.
        let leaving = if self.deadline.is_none() { PollFlags::RDHUP } else { PollFlags::empty() };
        let waiting = &mut [
            PollFd::new(&self.socket, PollFlags::OUT | leaving),
            PollFd::new(&*self.feed, PollFlags::IN),
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
            self.feed.silence();
        }
        Ok(())
    }
}
