//! A host whose network card is connected to a UNIX socket, like that of a virtual machine.
//!
//! The host has a TAP device. Two threads carry its frames to the socket and back, in the form that
//! virtual machine monitors use.

use std::io::{IoSlice, Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket::packet::Layer;
use superpacket::virtio::{Format, Header, flags};
use superpacket::{Simd, checksum};
use superpacket_port::system::{TunKind, TunQueue, open_tun};

use crate::error::{Context, LabError};
use crate::host::Host;
use crate::topology::Station;

/// Interval at which the threads check whether they must end.
const LOOK: Duration = Duration::from_millis(50);

/// Number of bytes of frames that are written to a stream socket at once.
const BATCH: usize = 256 * 1024;

/// Buffer size for the longest frame, with its header and length.
const LARGEST: usize = 68 * 1024;

/// The format of a guest's frames on its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestForm {
    /// The format of the virtio header before each frame (10 or 12 bytes); `None` for no header.
    pub header: Option<Format>,
    /// Whether the guest leaves checksums and segmentation of TCP to its network card. Without a
    /// header, super-packets are nevertheless written to the socket, as libkrun does.
    pub offloads: bool,
    /// Whether a partial checksum is completed when the header is stripped, as newer libkrun does.
    pub completed: bool,
}

impl GuestForm {
    /// A guest without offloads, and frames without a header.
    pub const PLAIN: GuestForm = GuestForm { header: None, offloads: false, completed: false };
    /// A guest with offloads, whose header is stripped.
    pub const STRIPPED: GuestForm = GuestForm { offloads: true, ..GuestForm::PLAIN };

    /// A guest with offloads, and a virtio header of this format.
    #[must_use]
    pub const fn with_header(format: Format) -> GuestForm {
        GuestForm { header: Some(format), ..GuestForm::STRIPPED }
    }
}

/// The socket of a guest.
#[derive(Debug)]
pub enum GuestSocket {
    /// A connected stream.
    Stream(UnixStream),
    /// A connected datagram socket.
    Datagram(UnixDatagram),
}

/// A guest. Dropping it closes its socket and removes its network card.
#[derive(Debug)]
pub struct SocketGuest {
    /// The guest's host, with the addresses of its network card.
    pub station: Station,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl SocketGuest {
    /// Starts a guest on a host. `number` determines the address of its network card.
    ///
    /// # Errors
    ///
    /// [`LabError`] if the machine has no TAP devices, or a system call fails.
    pub fn start(
        host: &Host,
        number: u8,
        form: GuestForm,
        socket: GuestSocket,
    ) -> Result<Self, LabError> {
        let what = || format!("host {}: a guest's network card", host.name());
        let queue = host.run(|| {
            let file = open_tun().context(what)?;
            TunQueue::attach(file, "eth0", TunKind::Tap, false).context(what)
        })?;
        queue.set_header(form.header.unwrap_or(Format::Plain), None).context(what)?;
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        queue.set_offloads(if form.offloads { tcp } else { 0 }).context(what)?;
        let link = host.link("eth0");
        link.up()?;
        let station = Station::new(link, number)?;
        let (queue, stop) = (Arc::new(queue), Arc::new(AtomicBool::new(false)));
        let copy = match &socket {
            GuestSocket::Stream(stream) => {
                stream.set_read_timeout(Some(LOOK)).context(what)?;
                stream.set_write_timeout(Some(LOOK)).context(what)?;
                GuestSocket::Stream(stream.try_clone().context(what)?)
            }
            GuestSocket::Datagram(datagram) => {
                datagram.set_read_timeout(Some(LOOK)).context(what)?;
                datagram.set_write_timeout(Some(LOOK)).context(what)?;
                GuestSocket::Datagram(datagram.try_clone().context(what)?)
            }
        };
        let (sending, sending_stop) = (Arc::clone(&queue), Arc::clone(&stop));
        let send = std::thread::spawn(move || send(&sending, form, &copy, &sending_stop));
        let receiving_stop = Arc::clone(&stop);
        let receive = std::thread::spawn(move || receive(&queue, form, &socket, &receiving_stop));
        Ok(SocketGuest { station, stop, threads: vec![send, receive] })
    }
}

impl Drop for SocketGuest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sends the host's frames to the socket until `stop` is set or the socket is closed.
fn send(queue: &TunQueue, form: GuestForm, socket: &GuestSocket, stop: &AtomicBool) {
    let format = form.header.unwrap_or(Format::Plain);
    let skip = if form.header.is_some() { 0 } else { format.length() };
    let (mut batch, mut frame) = (Vec::with_capacity(BATCH + LARGEST), vec![0; LARGEST]);
    while !stop.load(Ordering::Relaxed) {
        batch.clear();
        while batch.len() < BATCH {
            let Ok(length) = rustix::io::read(queue, &mut frame[..]) else { break };
            if form.completed {
                complete(&mut frame[..length], format);
            }
            let bytes = &frame[skip..length];
            match socket {
                GuestSocket::Stream(_) => {
                    batch.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
                    batch.extend_from_slice(bytes);
                }
                // A frame for which there is no room in time is lost.
                GuestSocket::Datagram(socket) => drop(socket.send(bytes)),
            }
        }
        if let GuestSocket::Stream(stream) = socket
            && !write_all(stream, &batch, stop)
        {
            return;
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        let _ = poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&timeout));
    }
}

/// Fills in the checksum that a virtio header declares to be partial.
fn complete(bytes: &mut [u8], format: Format) {
    let (header, frame) = bytes.split_at_mut(format.length());
    if let Ok(header) = Header::read(header, format, superpacket::virtio::ByteOrder::NATIVE)
        && header.flags & flags::NEEDS_CSUM != 0
    {
        let (start, offset) = (header.csum_start, header.csum_offset);
        let _ = checksum::complete_partial(frame, Layer::Ethernet, start, offset, Simd::detect());
    }
}

/// Writes all bytes; returns `false` if the peer has closed the socket or `stop` is set.
fn write_all(mut stream: &UnixStream, mut bytes: &[u8], stop: &AtomicBool) -> bool {
    while !bytes.is_empty() && !stop.load(Ordering::Relaxed) {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_temporary(&error) => {}
            Err(_) => return false,
        }
    }
    !stop.load(Ordering::Relaxed)
}

/// Delivers the frames from the socket to the host until `stop` is set or the socket is closed.
fn receive(queue: &TunQueue, form: GuestForm, socket: &GuestSocket, stop: &AtomicBool) {
    let header = [0; Format::LONGEST];
    let header = if form.header.is_some() { &[][..] } else { &header[..Format::Plain.length()] };
    let give = |frame: &[u8]| {
        let parts = [IoSlice::new(header), IoSlice::new(frame)];
        let _ = rustix::io::writev(queue, &parts);
    };
    let (mut bytes, mut filled) = (vec![0; BATCH], 0);
    while !stop.load(Ordering::Relaxed) {
        let received = match socket {
            GuestSocket::Stream(stream) => (&*stream).read(&mut bytes[filled..]),
            GuestSocket::Datagram(socket) => socket.recv(&mut bytes),
        };
        let count = match received {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if is_temporary(&error) => continue,
            Err(_) => return,
        };
        if let GuestSocket::Datagram(_) = socket {
            give(&bytes[..count]);
            continue;
        }
        filled += count;
        let mut start = 0;
        while let Some(length) = bytes[start..filled].first_chunk::<4>() {
            let end = start + 4 + u32::from_be_bytes(*length) as usize;
            if end > filled {
                break;
            }
            give(&bytes[start + 4..end]);
            start = end;
        }
        bytes.copy_within(start..filled, 0);
        filled -= start;
    }
}

fn is_temporary(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}
