//! The sending end: frames gathered from where they lie, many in one call.

#![expect(unsafe_code, reason = "messages that point at where frames lie")]

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use superpacket::packet::Layer;
use superpacket::virtio::{ByteOrder, Format, Header, Offload, VirtioError};
use superpacket::wire::MAX_HEADER;

use super::frame::VIRTIO;
use super::shared::Shared;
use super::socket::Socket;
use crate::port::{MAX_SLICES, Outgoing, PortError, Progress, Stop, Transmit, TxBatch, TxFrame};

/// The most pieces of a frame: the virtio header takes one.
pub(super) const MAX_FRAME_SLICES: usize = MAX_SLICES - 1;

/// The most frames of one call.
const MAX_MESSAGES: usize = 256;

/// No further frame is taken into a call that has this many pieces.
const MANY_PIECES: usize = 8192;

/// An end to send through.
pub(super) struct Transmitter {
    shared: Arc<Shared>,
    socket: Arc<Socket>,
    call: Call,
}

impl Transmitter {
    pub fn new(shared: Arc<Shared>, socket: Arc<Socket>) -> Self {
        Transmitter { shared, socket, call: Call::default() }
    }

    /// Why the kernel did not take `frame`.
    fn stop(&self, frame: &TxFrame, error: io::Error) -> Stop {
        let counters = &self.shared.counters;
        match error.raw_os_error() {
            // ENOMEM is also what is left of the reason where the kernel has to look into a
            // super-packet and finds that it cannot cut it (`__dev_queue_xmit` after
            // `validate_xmit_skb`). A single frame that is too long stays so, whoever fills in its
            // checksum: the MTU has shrunk.
            Some(libc::EMSGSIZE) if frame.gso.is_none() => Stop::TooLong,
            Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOMEM) if !frame.is_plain() => {
                counters.tx_refused.fetch_add(1, Ordering::Relaxed);
                Stop::Offload(error)
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                counters.tx_full.fetch_add(1, Ordering::Relaxed);
                Stop::Full
            }
            // No header can say it.
            None if !frame.is_plain() && error.kind() == io::ErrorKind::InvalidInput => {
                counters.tx_refused.fetch_add(1, Ordering::Relaxed);
                Stop::Offload(error)
            }
            Some(libc::ENETDOWN) => Stop::Down,
            Some(libc::ENXIO | libc::ENODEV | libc::EBADFD) => Stop::Gone(PortError::Gone { port: self.shared.name.clone() }),
            _ => Stop::Refused(error),
        }
    }
}

impl Transmit for Transmitter {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let frames = batch.frames();
        let mut sent = 0;
        while let Some(frame) = frames.get(from + sent) {
            let unfit = self.call.gather(outgoing, batch, from + sent);
            if self.call.messages.is_empty() {
                return Progress { sent, stopped: unfit.map(|error| self.stop(frame, error)) };
            }
            match self.call.send(&self.socket) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Progress { sent, stopped: Some(self.stop(frame, error)) },
            }
        }
        Progress { sent, stopped: None }
    }
}

impl fmt::Debug for Transmitter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Transmitter").field("port", &self.shared.name).finish_non_exhaustive()
    }
}

/// What one `sendmmsg` takes. The vectors are kept for their memory; what they point at is there
/// only from [`gather`](Self::gather) to [`send`](Self::send).
#[derive(Default)]
struct Call {
    headers: Vec<[u8; VIRTIO]>,
    pieces: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: no pointer in it is followed but by `send`, which its caller calls after `gather` of the
// same frames, on the same thread.
unsafe impl Send for Call {}

impl Call {
    /// Describes frames from number `from` on, as many as fit one call. Stops before a frame that
    /// this kind of port cannot describe, and says why if it is the first.
    fn gather(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Option<io::Error> {
        self.headers.clear();
        self.pieces.clear();
        self.messages.clear();
        let frames = &batch.frames()[from..];
        let mut unfit = None;
        for frame in frames.iter().take(MAX_MESSAGES) {
            if self.pieces.len() >= MANY_PIECES {
                break;
            }
            let slices = batch.slices(frame);
            match header(outgoing, batch, frame) {
                _ if slices.len() > MAX_FRAME_SLICES => unfit = Some(io::Error::from_raw_os_error(libc::EMSGSIZE)),
                Err(error) => unfit = Some(error),
                Ok(header) => {
                    self.headers.push(header);
                    // A place for the header, whose address is not known yet.
                    self.pieces.push(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: VIRTIO });
                    self.pieces.extend(slices.iter().map(|slice| {
                        let bytes = outgoing.slice(*slice);
                        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
                    }));
                    continue;
                }
            }
            break;
        }
        // Nothing is pushed to either vector from here on: what points into them stays true.
        let mut first = 0;
        for (header, frame) in self.headers.iter().zip(frames) {
            let pieces = &mut self.pieces[first..][..batch.slices(frame).len() + 1];
            first += pieces.len();
            pieces[0].iov_base = header.as_ptr().cast_mut().cast();
            // SAFETY: all bytes zero is a message without address and control data.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = pieces.as_mut_ptr();
            message.msg_hdr.msg_iovlen = pieces.len() as _;
            self.messages.push(message);
        }
        unfit
    }

    /// Sends what was gathered, and says how many frames were taken; an error if not even the first
    /// was.
    fn send(&mut self, socket: &Socket) -> io::Result<usize> {
        let count = self.messages.len() as libc::c_uint;
        // SAFETY: each message points at pieces of `self.pieces`, and each of these at a header of
        // `self.headers` or at bytes of the `Outgoing` that was gathered from, which `transmit`
        // borrows; they are read only.
        let sent = unsafe { libc::sendmmsg(socket.as_fd().as_raw_fd(), self.messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }
}

/// The virtio header of a frame.
#[inline]
fn header(outgoing: &Outgoing, batch: &TxBatch, frame: &TxFrame) -> io::Result<[u8; VIRTIO]> {
    let mut bytes = [0; VIRTIO];
    if frame.layer != Layer::Ethernet {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "an IP packet without Ethernet header"));
    }
    if frame.is_plain() {
        return Ok(bytes);
    }
    let mut scratch = [0; MAX_HEADER];
    let head = batch.head(outgoing, frame, &mut scratch);
    let offload = Offload::new(frame.checksum, frame.gso);
    let described = Header::describe(&offload, Format::Plain, head, frame.length as usize, frame.layer);
    described.and_then(|header| header.write(&mut bytes, Format::Plain, ByteOrder::NATIVE)).map_err(unfit)?;
    Ok(bytes)
}

/// A frame that no header can describe, as the kernel would refuse it.
fn unfit(error: VirtioError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
