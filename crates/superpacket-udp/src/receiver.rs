//! Receives runs of datagrams, which are accessed one by one.

use std::io::{self, IoSliceMut};

use crate::{RecvMeta, UdpSocket};

/// Maximum messages per call. Each may be a run of datagrams.
const MAX_MESSAGES: usize = 8;
/// Length of a message's buffer in bytes: that of the longest run from the kernel.
const MESSAGE_LENGTH: usize = 65_536;

/// A receiver of datagrams. It receives up to 8 runs per call, into its own buffers.
#[derive(Debug)]
pub struct Receiver {
    socket: UdpSocket,
    buffer: Box<[u8]>,
    metas: [RecvMeta; MAX_MESSAGES],
}

impl Receiver {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        let buffer = vec![0; MAX_MESSAGES * MESSAGE_LENGTH].into_boxed_slice();
        Receiver { socket, buffer, metas: [RecvMeta::default(); MAX_MESSAGES] }
    }

    /// Receives the datagrams that have arrived. Waits until there is one.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn receive(&mut self) -> io::Result<Received<'_>> {
        let messages = loop {
            match self.fill() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.wait_readable()?
                }
                filled => break filled?,
            }
        };
        Ok(self.received(messages))
    }

    /// Receives the datagrams that have arrived, without waiting.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if none has arrived; any other error of the
    /// system.
    pub fn try_receive(&mut self) -> io::Result<Received<'_>> {
        let messages = self.fill()?;
        Ok(self.received(messages))
    }

    /// Receives messages into the buffers, and returns how many were received. A message is one
    /// datagram, or a run of datagrams.
    pub(crate) fn fill(&mut self) -> io::Result<usize> {
        let mut rest = self.buffer.chunks_exact_mut(MESSAGE_LENGTH);
        let mut slices: [_; MAX_MESSAGES] =
            std::array::from_fn(|_| IoSliceMut::new(rest.next().unwrap_or(&mut [])));
        let messages =
            self.socket.state().recv(self.socket.socket(), &mut slices, &mut self.metas)?;
        for meta in self.metas.iter_mut().take(messages) {
            // A socket for both IP versions returns IPv4 addresses as mapped ones.
            meta.addr.set_ip(meta.addr.ip().to_canonical());
        }
        Ok(messages)
    }

    /// Returns the datagrams in the first `messages` messages that [`fill`](Self::fill) received.
    pub(crate) fn received(&mut self, messages: usize) -> Received<'_> {
        for meta in self.metas.iter_mut().take(messages) {
            // A run without a datagram length is a single datagram.
            if meta.stride == 0 {
                meta.stride = meta.len;
            }
        }
        Received { buffer: &mut self.buffer, metas: self.metas.get(..messages).unwrap_or(&[]) }
    }

    /// Returns the socket.
    pub const fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

/// The datagrams that one call received.
#[derive(Debug)]
pub struct Received<'a> {
    buffer: &'a mut [u8],
    metas: &'a [RecvMeta],
}

impl<'a> Received<'a> {
    /// Returns the datagrams in the order of arrival. Each has the metadata of the run into which
    /// the kernel merged it.
    pub fn datagrams(&self) -> impl Iterator<Item = (&'a RecvMeta, &[u8])> {
        let runs = self.metas.iter().zip(self.buffer.chunks_exact(MESSAGE_LENGTH));
        runs.flat_map(|(meta, bytes)| {
            let run = bytes.get(..meta.len).unwrap_or(&[]);
            datagrams_of(meta, run.len()).map(move |range| (meta, run.get(range).unwrap_or(&[])))
        })
    }

    /// Returns the datagrams, to be decrypted in place.
    pub fn datagrams_mut(&mut self) -> impl Iterator<Item = (&'a RecvMeta, &mut [u8])> {
        let runs = self.metas.iter().zip(self.buffer.chunks_exact_mut(MESSAGE_LENGTH));
        runs.flat_map(|(meta, bytes)| {
            // An empty datagram counts as one datagram.
            let nothing: &mut [u8] = &mut [];
            let empty = (meta.len == 0).then_some(nothing);
            let run = bytes.get_mut(..meta.len).unwrap_or(&mut []);
            empty
                .into_iter()
                .chain(run.chunks_mut(meta.stride.max(1)))
                .map(move |datagram| (meta, datagram))
        })
    }

    /// Returns the runs, into which the kernel merged the datagrams. Each consists of datagrams of
    /// [`stride`](RecvMeta::stride) bytes, the last of which may be shorter.
    pub fn runs(&self) -> impl Iterator<Item = (&'a RecvMeta, &[u8])> {
        self.metas
            .iter()
            .zip(self.buffer.chunks_exact(MESSAGE_LENGTH))
            .map(|(meta, bytes)| (meta, bytes.get(..meta.len).unwrap_or(&[])))
    }
}

/// Returns the ranges of the datagrams in a run of `length` bytes. An empty datagram counts as one
/// datagram.
fn datagrams_of(
    meta: &RecvMeta,
    length: usize,
) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
    let stride = meta.stride.max(1);
    (0..length.max(1)).step_by(stride).map(move |start| start..(start + stride).min(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lengths of the slices that `datagrams`, `datagrams_mut` and `runs` yield for a
    /// message.
    fn lengths(meta: RecvMeta) -> [Vec<usize>; 3] {
        let mut receiver = Receiver::new(UdpSocket::bind("127.0.0.1:0").expect("loopback"));
        receiver.metas[0] = meta;
        let mut received = receiver.received(1);
        [
            received.datagrams().map(|(_, datagram)| datagram.len()).collect(),
            received.datagrams_mut().map(|(_, datagram)| datagram.len()).collect(),
            received.runs().map(|(meta, run)| run.len().min(meta.stride)).collect(),
        ]
    }

    fn meta(len: usize, stride: usize) -> RecvMeta {
        let mut meta = RecvMeta::default();
        (meta.len, meta.stride) = (len, stride);
        meta
    }

    #[test]
    fn a_message_without_a_stride_is_one_datagram() {
        assert_eq!(lengths(meta(5, 0)), [[5], [5], [5]]);
        assert_eq!(lengths(meta(0, 0)), [[0], [0], [0]]);
        assert_eq!(lengths(meta(5, 9)), [[5], [5], [5]]);
        assert_eq!(lengths(meta(5, 2)), [vec![2, 2, 1], vec![2, 2, 1], vec![2]]);
    }
}
