//! The sending end of a packet port, which gathers frames from their slices, many per system call.

use std::fmt;
use std::io;
use std::sync::Arc;

use superpacket::packet::Layer;
use superpacket::virtio::{ByteOrder, Format, Header, Offload, VirtioError};
use superpacket::wire::MAX_HEADER;

use super::frame::VIRTIO;
use super::shared::PacketShared;
use super::socket::Socket;
use crate::system::{MessageMemory, Messages};
use crate::{MAX_SLICES, Outgoing, PortError, Progress, StopReason, Transmit, TxBatch, TxFrame};

/// Maximum number of slices per frame: one less than the maximum per message, since the virtio
/// header takes one.
pub(super) const MAX_FRAME_SLICES: usize = MAX_SLICES - 1;

/// Maximum number of frames per system call.
const MAX_MESSAGES: usize = 256;

/// Number of memory slices after which no further frame is added to a system call.
const MANY_PIECES: usize = 8192;

/// The sending end of a packet port.
pub(super) struct PacketTransmitter {
    shared: Arc<PacketShared>,
    socket: Arc<Socket>,
    memory: MessageMemory<VIRTIO>,
}

impl PacketTransmitter {
    pub fn new(shared: Arc<PacketShared>, socket: Arc<Socket>) -> Self {
        PacketTransmitter { shared, socket, memory: MessageMemory::default() }
    }

    /// Returns the reason why the kernel refused `frame`.
    fn stop(&self, frame: &TxFrame, error: io::Error) -> StopReason {
        let counters = &self.shared.counters.common;
        match error.raw_os_error() {
            // The kernel also returns ENOMEM for a super-packet that it cannot segment
            // (`__dev_queue_xmit` after `validate_xmit_skb`). A single frame above the MTU, which
            // may have shrunk, is too long even with a completed checksum.
            Some(libc::EMSGSIZE) if frame.gso.is_none() => StopReason::TooLong,
            Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOMEM)
                if !frame.is_plain() =>
            {
                counters.refuse_offload(error)
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => counters.full(),
            // The virtio header cannot describe the frame.
            None if !frame.is_plain() && error.kind() == io::ErrorKind::InvalidInput => {
                counters.refuse_offload(error)
            }
            Some(libc::ENETDOWN) => StopReason::Down,
            Some(libc::ENXIO | libc::ENODEV | libc::EBADFD) => {
                StopReason::Gone(PortError::Gone { port: self.shared.name.clone() })
            }
            _ => StopReason::Refused(error),
        }
    }
}

impl Transmit for PacketTransmitter {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let frames = batch.frames();
        let mut sent = 0;
        while let Some(frame) = frames.get(from + sent) {
            let mut messages = self.memory.begin();
            let unfit = gather(&mut messages, outgoing, batch, from + sent);
            if messages.is_empty() {
                return Progress { sent, stopped: unfit.map(|error| self.stop(frame, error)) };
            }
            match messages.send(&*self.socket) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Progress { sent, stopped: Some(self.stop(frame, error)) },
            }
        }
        Progress { sent, stopped: None }
    }
}

impl fmt::Debug for PacketTransmitter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Transmitter")
            .field("port", &self.shared.name)
            .finish_non_exhaustive()
    }
}

/// Adds frames of `batch`, from number `from` on, to `messages`, as many as fit one system call.
/// Stops before a frame that the port cannot send, and returns the reason.
fn gather<'a>(
    messages: &mut Messages<'_, 'a, VIRTIO>,
    outgoing: &'a Outgoing,
    batch: &TxBatch,
    from: usize,
) -> Option<io::Error> {
    for frame in batch.frames()[from..].iter().take(MAX_MESSAGES) {
        if messages.pieces() >= MANY_PIECES {
            break;
        }
        let slices = batch.slices(frame);
        if slices.len() > MAX_FRAME_SLICES {
            return Some(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        match header(outgoing, batch, frame) {
            Ok(header) => messages.push(header, slices.iter().map(|slice| outgoing.slice(*slice))),
            Err(error) => return Some(error),
        }
    }
    None
}

/// Returns the virtio header of a frame.
#[inline]
fn header(outgoing: &Outgoing, batch: &TxBatch, frame: &TxFrame) -> io::Result<[u8; VIRTIO]> {
    let mut bytes = [0; VIRTIO];
    if frame.layer != Layer::Ethernet {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "an IP packet without Ethernet header",
        ));
    }
    if frame.is_plain() {
        return Ok(bytes);
    }
    let mut scratch = [0; MAX_HEADER];
    let head = batch.head(outgoing, frame, &mut scratch);
    let offload = Offload::new(frame.checksum, frame.gso);
    let described =
        Header::describe(&offload, Format::Plain, head, frame.length as usize, frame.layer);
    described
        .and_then(|header| header.write(&mut bytes, Format::Plain, ByteOrder::NATIVE))
        .map_err(unfit)?;
    Ok(bytes)
}

/// Converts the error about a frame that no virtio header can describe into an [`io::Error`].
fn unfit(error: VirtioError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
