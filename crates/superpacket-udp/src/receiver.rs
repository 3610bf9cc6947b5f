//! What has been received, lent datagram by datagram.

use std::io::{self, IoSliceMut};

use crate::{RecvMeta, UdpSocket};

/// The most messages of one call, each of which may be a run of datagrams.
const MESSAGES: usize = 8;
/// Bytes of a message's buffer: the longest run that the kernel makes.
const MESSAGE: usize = 65_536;

/// Receives datagrams: those that wait, of up to 8 runs in one call, into buffers of its own.
#[derive(Debug)]
pub struct Receiver {
    socket: UdpSocket,
    buffer: Box<[u8]>,
    metas: [RecvMeta; MESSAGES],
}

impl Receiver {
    pub(crate) fn new(socket: UdpSocket) -> Self {
        let buffer = vec![0; MESSAGES * MESSAGE].into_boxed_slice();
        Receiver { socket, buffer, metas: [RecvMeta::default(); MESSAGES] }
    }

    /// Receives what waits. Waits until there is something.
    ///
    /// # Errors
    /// The system's.
    pub fn receive(&mut self) -> io::Result<Received<'_>> {
        let messages = loop {
            match self.fill() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.socket.wait_readable()?
                }
                filled => break filled?,
            }
        };
        Ok(self.lend(messages))
    }

    /// Receives what waits.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing does; others are the system's.
    pub fn try_receive(&mut self) -> io::Result<Received<'_>> {
        let messages = self.fill()?;
        Ok(self.lend(messages))
    }

    /// Receives into the buffers. Returns how many messages.
    pub(crate) fn fill(&mut self) -> io::Result<usize> {
        let mut rest = self.buffer.chunks_exact_mut(MESSAGE);
        let mut slices: [_; MESSAGES] =
            std::array::from_fn(|_| IoSliceMut::new(rest.next().unwrap_or(&mut [])));
        let messages =
            self.socket.state().recv(self.socket.socket(), &mut slices, &mut self.metas)?;
        for meta in self.metas.iter_mut().take(messages) {
            // A socket of both IP versions gives IPv4 addresses as mapped ones.
            meta.addr.set_ip(meta.addr.ip().to_canonical());
        }
        Ok(messages)
    }

    /// Lends so many messages.
    pub(crate) fn lend(&mut self, messages: usize) -> Received<'_> {
        for meta in self.metas.iter_mut().take(messages) {
            // A run without a length of its datagrams is one datagram.
            if meta.stride == 0 {
                meta.stride = meta.len;
            }
        }
        Received { buffer: &mut self.buffer, metas: self.metas.get(..messages).unwrap_or(&[]) }
    }

    /// The socket that is received by.
    pub const fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

/// What one call received.
#[derive(Debug)]
pub struct Received<'a> {
    buffer: &'a mut [u8],
    metas: &'a [RecvMeta],
}

impl<'a> Received<'a> {
    /// The datagrams, in the order of their arrival, each with what is known of its run.
    pub fn datagrams(&self) -> impl Iterator<Item = (&'a RecvMeta, &[u8])> {
        let runs = self.metas.iter().zip(self.buffer.chunks_exact(MESSAGE));
        runs.flat_map(|(meta, bytes)| {
            let run = bytes.get(..meta.len).unwrap_or(&[]);
            datagrams_of(meta, run.len()).map(move |range| (meta, run.get(range).unwrap_or(&[])))
        })
    }

    /// The datagrams, to be opened where they lie.
    pub fn datagrams_mut(&mut self) -> impl Iterator<Item = (&'a RecvMeta, &mut [u8])> {
        let runs = self.metas.iter().zip(self.buffer.chunks_exact_mut(MESSAGE));
        runs.flat_map(|(meta, bytes)| {
            // An empty datagram is one, too.
            let nothing: &mut [u8] = &mut [];
            let empty = (meta.len == 0).then_some(nothing);
            let run = bytes.get_mut(..meta.len).unwrap_or(&mut []);
            empty
                .into_iter()
                .chain(run.chunks_mut(meta.stride.max(1)))
                .map(move |datagram| (meta, datagram))
        })
    }

    /// The runs, each of datagrams of [`stride`](RecvMeta::stride) bytes, the last of which may be
    /// shorter.
    pub fn runs(&self) -> impl Iterator<Item = (&'a RecvMeta, &[u8])> {
        self.metas
            .iter()
            .zip(self.buffer.chunks_exact(MESSAGE))
            .map(|(meta, bytes)| (meta, bytes.get(..meta.len).unwrap_or(&[])))
    }
}

/// Where the datagrams of a run lie. An empty datagram is one, too.
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

    /// What a receiver lends for this message, each way.
    fn lengths(meta: RecvMeta) -> [Vec<usize>; 3] {
        let mut receiver = Receiver::new(UdpSocket::bind("127.0.0.1:0").expect("loopback"));
        receiver.metas[0] = meta;
        let mut received = receiver.lend(1);
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
