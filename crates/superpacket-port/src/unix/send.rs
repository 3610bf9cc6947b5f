//! The sending ends of UNIX socket ports. A stream port sends a batch with one `sendmsg` call, as
//! far as the system's limit of slices allows.

use std::io::IoSlice;
use std::sync::Arc;

use rustix::io::Errno;

use super::datagram::DatagramLink;
use super::frame::Prefixes;
use super::output::{Connection, OutputQueue, is_full};
use super::shared::{UnixShared, is_gone};
use crate::{MAX_SLICES, Outgoing, Progress, StopReason, Transmit, TxBatch, TxFrame};

/// The pieces of memory of one system call. The vector is kept, so that it is allocated once.
#[derive(Debug, Default)]
struct Pieces(Vec<IoSlice<'static>>);

impl Pieces {
    /// Returns an empty vector that uses the kept memory.
    fn take<'a>(&mut self) -> Vec<IoSlice<'a>> {
        empty(std::mem::take(&mut self.0))
    }

    fn keep(&mut self, pieces: Vec<IoSlice<'_>>) {
        self.0 = empty(pieces);
    }
}

/// Empties a vector of slices. Collecting from its empty iterator lets the standard library reuse
/// the allocation for slices with another lifetime.
fn empty<'b>(mut pieces: Vec<IoSlice<'_>>) -> Vec<IoSlice<'b>> {
    pieces.clear();
    pieces.into_iter().map(|_| IoSlice::new(&[])).collect()
}

/// The sending end of a stream port.
#[derive(Debug)]
pub(super) struct StreamTransmitter {
    shared: Arc<UnixShared>,
    prefixes: Prefixes,
    pieces: Pieces,
}

impl StreamTransmitter {
    pub(super) fn new(shared: Arc<UnixShared>) -> Self {
        StreamTransmitter { shared, prefixes: Prefixes::default(), pieces: Pieces::default() }
    }

    /// Prepares the prefixes of the first frames of `frames`, as many as fit one system call.
    /// Returns the reason if the next frame cannot be sent.
    fn gather(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frames: &[TxFrame],
    ) -> Option<StopReason> {
        self.prefixes.clear();
        let mut pieces = 0;
        for frame in frames {
            pieces += 1 + batch.slices(frame).len();
            if pieces > MAX_SLICES {
                break;
            }
            let added = self.prefixes.add(&self.shared.format, true, outgoing, batch, frame);
            if let Err(stopped) = added {
                return Some(stopped);
            }
        }
        None
    }

    /// Sends the frames whose prefixes are prepared, and queues those for which the socket has no
    /// room. Returns the number of frames sent or queued.
    fn send(
        &mut self,
        connection: &Connection,
        queue: &mut OutputQueue,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frames: &[TxFrame],
    ) -> Result<usize, Errno> {
        let frames = &frames[..self.prefixes.count()];
        let parts = |index| self.prefixes.parts(index, outgoing, batch, &frames[index]);
        let mut sent = 0;
        if !queue.has_frames() {
            let mut pieces = self.pieces.take();
            pieces.extend((0..frames.len()).flat_map(parts).map(IoSlice::new));
            let written = connection.send(&pieces);
            self.pieces.keep(pieces);
            let mut written = match written {
                Err(error) if is_full(error) => 0,
                written => written?,
            };
            while sent < frames.len() {
                let length = self.prefixes.length(sent, &frames[sent]);
                if written < length {
                    // The peer needs the rest of this frame before anything else.
                    queue.push(parts(sent), written);
                    sent += 1;
                    break;
                }
                written -= length;
                sent += 1;
            }
        }
        while sent < frames.len() && queue.has_room() {
            queue.push(parts(sent), 0);
            sent += 1;
        }
        Ok(sent)
    }
}

impl Transmit for StreamTransmitter {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let down = |sent| Progress { sent, stopped: Some(StopReason::Down) };
        let Some(connection) = self.shared.connection() else { return down(0) };
        let Ok(mut queue) = connection.queue() else { return down(0) };
        let frames = &batch.frames()[from..];
        let (mut sent, mut stopped) = (0, None);
        while sent < frames.len() && stopped.is_none() {
            let unfit = self.gather(outgoing, batch, &frames[sent..]);
            match self.send(&connection, &mut queue, outgoing, batch, &frames[sent..]) {
                Ok(count) if count < self.prefixes.count() => {
                    sent += count;
                    stopped = Some(self.shared.counters.full());
                }
                Ok(count) => {
                    sent += count;
                    stopped = unfit;
                }
                Err(error) => stopped = Some(self.shared.stop(&frames[sent], error)),
            }
        }
        connection.watch_room(&queue);
        Progress { sent, stopped }
    }
}

/// The sending end of a datagram port, which makes one system call per frame.
#[derive(Debug)]
pub(super) struct DatagramTransmitter {
    shared: Arc<UnixShared>,
    link: Arc<DatagramLink>,
    prefixes: Prefixes,
    pieces: Pieces,
}

impl DatagramTransmitter {
    pub(super) fn new(shared: Arc<UnixShared>, link: Arc<DatagramLink>) -> Self {
        let (prefixes, pieces) = (Prefixes::default(), Pieces::default());
        DatagramTransmitter { shared, link, prefixes, pieces }
    }

    fn send(
        &mut self,
        connection: &Connection,
        queue: &mut OutputQueue,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), StopReason> {
        self.prefixes.clear();
        self.prefixes.add(&self.shared.format, false, outgoing, batch, frame)?;
        let parts = || self.prefixes.parts(0, outgoing, batch, frame);
        if !queue.has_frames() {
            let mut pieces = self.pieces.take();
            pieces.extend(parts().map(IoSlice::new));
            let sent = connection.send(&pieces);
            self.pieces.keep(pieces);
            match sent {
                Ok(_) => return Ok(()),
                Err(error) if is_full(error) => {}
                Err(error) => return Err(self.shared.stop(frame, error)),
            }
        }
        if !queue.has_room() {
            return Err(self.shared.counters.full());
        }
        let length = (self.prefixes.length(0, frame) as u32).to_be_bytes();
        queue.push(std::iter::once(&length[..]).chain(parts()), 0);
        Ok(())
    }
}

impl Transmit for DatagramTransmitter {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let down = |sent| Progress { sent, stopped: Some(StopReason::Down) };
        let Some(connection) = self.shared.connection() else { return down(0) };
        let mut queue = match connection.queue() {
            Ok(queue) => queue,
            Err(error) => {
                if is_gone(error) {
                    self.link.lose_peer();
                }
                return down(0);
            }
        };
        let frames = &batch.frames()[from..];
        let (mut sent, mut stopped) = (0, None);
        while sent < frames.len() && stopped.is_none() {
            match self.send(&connection, &mut queue, outgoing, batch, &frames[sent]) {
                Ok(()) => sent += 1,
                Err(reason) => stopped = Some(reason),
            }
        }
        connection.watch_room(&queue);
        drop(queue);
        if matches!(stopped, Some(StopReason::Down)) {
            self.link.lose_peer();
        }
        Progress { sent, stopped }
    }
}
