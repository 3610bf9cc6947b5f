//! Readers and writers that are awaited, on tokio's `AsyncFd`.

#![expect(unsafe_code, reason = "`AsyncFd::register` of a queue, whose descriptor does not change")]

use std::sync::Arc;
use std::{io, iter};

use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::mpsc;
use ::tokio::task::yield_now;

use crate::queued::BATCH;
use crate::shortcut::{Shortcut, Taken};
use crate::{
    OrderKey, Plan, Queue, ReadError, Reader, SegmentBuffers, Tun, Writer, WriterCounters,
};

/// A [`Reader`] that is awaited.
#[derive(Debug)]
pub struct AsyncReader {
    fd: Arc<AsyncFd<Queue>>,
    reader: Reader<Queue>,
}

/// A [`Writer`] that is awaited.
#[derive(Debug)]
pub struct AsyncWriter<B> {
    fd: Arc<AsyncFd<Queue>>,
    writer: Writer<Queue, B>,
}

impl Tun {
    /// Makes a reader and a writer of the first queue that are awaited, and closes the others. Each
    /// may move to a task of its own.
    ///
    /// # Errors
    /// As [`Queue::split_async`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub fn split_async<B: AsRef<[u8]>>(self) -> io::Result<(AsyncReader, AsyncWriter<B>)> {
        self.into_first_queue().split_async()
    }
}

impl Queue {
    /// Makes a reader and a writer of this queue that are awaited. Each may move to a task of its
    /// own.
    ///
    /// # Errors
    /// If the descriptor cannot be registered with tokio: it is another's already.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub fn split_async<B: AsRef<[u8]>>(self) -> io::Result<(AsyncReader, AsyncWriter<B>)> {
        let (reader, writer) = self.clone().split();
        // One registration for both: the kernel takes a descriptor once. tokio's safe functions are
        // deprecated, since a type may say another descriptor each time.
        // SAFETY: a queue owns its descriptor, which stays open and the same for as long as it
        // lives, and the `AsyncFd` owns the queue.
        let fd = Arc::new(unsafe { AsyncFd::register(self) }?);
        Ok((AsyncReader { fd: Arc::clone(&fd), reader }, AsyncWriter { fd, writer }))
    }
}

impl AsyncReader {
    /// As [`Reader::read_into`]. May be cancelled: nothing is lost.
    ///
    /// # Errors
    /// [`ReadError`]; nothing is lost.
    pub async fn read_into(
        &mut self,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Option<Plan>, ReadError> {
        // What found no room is here already: the device may have nothing more to read.
        if self.reader.has_more() {
            return self.reader.try_read_into(buffers);
        }
        loop {
            let mut guard = self.fd.readable().await.map_err(ReadError::Device)?;
            match self.reader.try_read_into(buffers) {
                Err(error) if error.would_block() => guard.clear_ready(),
                read => return read,
            }
        }
    }

    /// The reader: for its counters, and to read on what is there at once.
    pub const fn get_ref(&self) -> &Reader<Queue> {
        &self.reader
    }

    /// The reader: to [read on](Reader::try_read_into) what is there at once, without waiting, or
    /// to [discard](Reader::discard) what found no room.
    pub const fn get_mut(&mut self) -> &mut Reader<Queue> {
        &mut self.reader
    }
}

impl<B: AsRef<[u8]>> AsyncWriter<B> {
    /// Queues a packet. It is written by the next flush, and dropped then.
    #[inline]
    pub fn push(&mut self, packet: B) {
        self.writer.push(packet);
    }

    /// Queues a packet of which it is known when it was sent: see [`Writer::push_in_order`].
    #[inline]
    pub fn push_in_order(&mut self, packet: B, key: OrderKey) {
        self.writer.push_in_order(packet, key);
    }

    /// As [`Writer::flush`]. May be cancelled: the next flush goes on.
    ///
    /// # Errors
    /// The device's own; see [`Writer`](Writer#errors).
    pub async fn flush(&mut self) -> io::Result<()> {
        // It is seldom full, so it is tried before it is asked.
        loop {
            match self.writer.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let mut guard = self.fd.writable().await?;
            // Tried once more: the readiness may be older than the device's being full.
            match self.writer.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                result => return result,
            }
        }
    }

    /// As [`flush`](Self::flush), and drops what stays after an error, as a full queue would have
    /// it.
    ///
    /// # Errors
    /// The device's own.
    pub async fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush().await;
        self.writer.clear();
        result
    }

    /// Puts a queue of so many packets before the writer. Any number of tasks may send to it; order
    /// is kept for each. A packet that comes alone is written by the task that sends it.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn queued(self, capacity: usize) -> (AsyncPacketSender<B>, AsyncQueuedWriter<B>) {
        let (queue, packets) = mpsc::channel(capacity);
        let shortcut = Shortcut::new(self.writer.device().clone(), self.writer.framing());
        let sender = AsyncPacketSender { queue, shortcut: Arc::clone(&shortcut) };
        (
            sender,
            AsyncQueuedWriter {
                writer: self,
                packets: Packets::Plain(packets, Vec::with_capacity(BATCH), Taken::new(shortcut)),
            },
        )
    }

    /// As [`queued`](Self::queued), for tasks that overtake each other: what a flush takes is put
    /// in order by the keys, as [`push_in_order`](Self::push_in_order) does. All packets go through
    /// the queue, where one that was overtaken may catch up.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn queued_in_order(
        self,
        capacity: usize,
    ) -> (mpsc::Sender<(OrderKey, B)>, AsyncQueuedWriter<B>) {
        let (sender, packets) = mpsc::channel(capacity);
        (
            sender,
            AsyncQueuedWriter {
                writer: self,
                packets: Packets::Keyed(packets, Vec::with_capacity(BATCH)),
            },
        )
    }

    /// The writer: for its counters and switches.
    pub const fn get_ref(&self) -> &Writer<Queue, B> {
        &self.writer
    }

    /// The writer: to drop what stays after an error, or to be told of refusals.
    pub const fn get_mut(&mut self) -> &mut Writer<Queue, B> {
        &mut self.writer
    }
}

/// Sends packets to the queue of an [`AsyncQueuedWriter`]. One that comes alone is written at once,
/// by the task that sends it, as [`PacketSender`](crate::PacketSender) says.
#[derive(Debug)]
pub struct AsyncPacketSender<B> {
    queue: mpsc::Sender<B>,
    shortcut: Arc<Shortcut<Queue>>,
}

impl<B> Clone for AsyncPacketSender<B> {
    fn clone(&self) -> Self {
        AsyncPacketSender { queue: self.queue.clone(), shortcut: Arc::clone(&self.shortcut) }
    }
}

impl<B: AsRef<[u8]>> AsyncPacketSender<B> {
    /// Sends a packet. Waits where the queue is full. If it is cancelled, the packet is dropped.
    ///
    /// # Errors
    /// If the writer is gone: the packet comes back.
    pub async fn send(&self, packet: B) -> Result<(), mpsc::error::SendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        // Nothing is awaited once the packet counts as queued.
        let Ok(place) = self.queue.reserve().await else {
            return Err(mpsc::error::SendError(packet));
        };
        self.shortcut.queued();
        place.send(packet);
        Ok(())
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    /// If the queue is full or the writer gone: the packet comes back.
    pub fn try_send(&self, packet: B) -> Result<(), mpsc::error::TrySendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        self.shortcut.queued();
        self.queue.try_send(packet).inspect_err(|_| self.shortcut.not_queued())
    }
}

/// Writes what other tasks put into a queue: whatever is there at once, or comes while the tasks
/// that are ready have two turns, is merged and written, so that packets merge under load, and a
/// packet that comes alone leaves at once.
#[derive(Debug)]
pub struct AsyncQueuedWriter<B> {
    writer: AsyncWriter<B>,
    packets: Packets<B>,
}

/// What the queue holds, and what was taken from it.
#[derive(Debug)]
enum Packets<B> {
    /// Packets in the order in which they are to leave.
    Plain(mpsc::Receiver<B>, Vec<B>, Taken<Queue>),
    /// Packets of which it is known when they were sent.
    Keyed(mpsc::Receiver<(OrderKey, B)>, Vec<(OrderKey, B)>),
}

/// How often in a row the queue may be found empty before what was taken is written. tokio lets a
/// task do some 128 things at a time, so that one that opens packets and sends them is set aside
/// after 20 or 30, and the writer runs before the rest is there. In a WireGuard endpoint the mean
/// write was of 21 KB without a turn, 27 KB with one, 36 KB with two or four.
const TURNS: usize = 2;

/// Waits for a packet, and takes what is there besides, or comes while other tasks have a turn.
/// Returns how many packets the batch holds; 0: all senders are gone. May be cancelled: the next
/// call goes on with what the batch holds.
async fn take<T>(packets: &mut mpsc::Receiver<T>, batch: &mut Vec<T>) -> usize {
    if batch.is_empty() && packets.recv_many(batch, BATCH).await == 0 {
        return 0;
    }
    let mut turns = 0;
    while turns < TURNS && batch.len() < BATCH {
        yield_now().await;
        let count = batch.len();
        batch.extend(iter::from_fn(|| packets.try_recv().ok()).take(BATCH - count));
        turns = if batch.len() == count { turns + 1 } else { 0 };
    }
    batch.len()
}

impl<B: AsRef<[u8]>> AsyncQueuedWriter<B> {
    /// Writes until all senders are gone and the queue is empty. It flushes whenever the queue
    /// stays empty while the tasks that are ready have two turns, or 256 packets are taken from it.
    ///
    /// # Errors
    /// As [`AsyncWriter::flush`]; another call goes on, with what stays according to
    /// [`Writer`'s table](Writer#errors) first.
    pub async fn run(&mut self) -> io::Result<()> {
        let AsyncQueuedWriter { writer, packets } = self;
        loop {
            writer.flush().await?;
            let count = match packets {
                Packets::Plain(packets, batch, taken) => {
                    taken.written();
                    let count = take(packets, batch).await;
                    taken.add(count);
                    batch.drain(..).for_each(|packet| writer.push(packet));
                    count
                }
                Packets::Keyed(packets, batch) => {
                    let count = take(packets, batch).await;
                    batch.drain(..).for_each(|(key, packet)| writer.push_in_order(packet, key));
                    count
                }
            };
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Writes until all senders are gone, whatever the device answers: what stays after an error is
    /// dropped, as a full queue would have it, and `notice` is told of the error. For a task of its
    /// own.
    pub async fn run_lossy(&mut self, mut notice: impl FnMut(io::Error)) {
        while let Err(error) = self.run().await {
            self.writer.get_mut().clear();
            notice(error);
        }
    }

    /// What has been written so far, by the writer and by senders for themselves.
    pub fn counters(&self) -> WriterCounters {
        let mut counters = *self.writer.get_ref().counters();
        if let Packets::Plain(_, _, taken) = &self.packets {
            taken.count(&mut counters);
        }
        counters
    }

    /// The writer.
    pub const fn writer(&self) -> &AsyncWriter<B> {
        &self.writer
    }

    /// The writer, to drop what stays after an error, or to be told of refusals.
    pub const fn writer_mut(&mut self) -> &mut AsyncWriter<B> {
        &mut self.writer
    }
}

#[cfg(test)]
mod tests {
    use ::tokio::runtime::Builder;

    use super::*;

    /// Takes what a task sends that yields so often before each packet.
    fn batches(yields: &'static [usize]) -> Vec<Vec<usize>> {
        Builder::new_current_thread().build().expect("a runtime").block_on(async {
            let (sender, mut packets) = mpsc::channel(1024);
            ::tokio::spawn(async move {
                for (packet, &yields) in yields.iter().enumerate() {
                    for _ in 0..yields {
                        yield_now().await;
                    }
                    sender.send(packet).await.expect("the receiver is there");
                }
            });
            let (mut batches, mut batch) = (Vec::new(), Vec::new());
            while take(&mut packets, &mut batch).await > 0 {
                batches.push(std::mem::take(&mut batch));
            }
            batches
        })
    }

    #[test]
    fn what_comes_while_others_have_a_turn_is_taken_too() {
        assert_eq!(batches(&[0, 0, 0]), [[0, 1, 2]]);
        assert_eq!(batches(&[0, 1, 0, 1, 2, 2]), [[0, 1, 2, 3, 4, 5]]);
        assert_eq!(batches(&[0, 0, 3, 0, 3]), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(batches(&[1; 600]).iter().map(Vec::len).collect::<Vec<_>>(), [256, 256, 88]);
        assert_eq!(batches(&[0; 600]).iter().map(Vec::len).collect::<Vec<_>>(), [256, 256, 88]);
    }

    #[test]
    fn a_batch_that_was_cancelled_is_not_lost() {
        Builder::new_current_thread().build().expect("a runtime").block_on(async {
            let (sender, mut packets) = mpsc::channel(4);
            sender.try_send(1).expect("there is room");
            let mut batch = Vec::new();
            ::tokio::select! {
                biased;
                _ = take(&mut packets, &mut batch) => panic!("it has a turn to wait"),
                () = async {} => {}
            }
            assert_eq!(batch, [1]);
            sender.try_send(2).expect("there is room");
            drop(sender);
            assert_eq!((take(&mut packets, &mut batch).await, &batch), (2, &vec![1, 2]));
        });
    }
}
