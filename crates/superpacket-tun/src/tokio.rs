//! Asynchronous readers and writers, based on tokio's `AsyncFd`.

#![expect(unsafe_code, reason = "`AsyncFd::register` of a queue, whose descriptor does not change")]

use std::sync::Arc;
use std::{io, iter};

use ::tokio::io::unix::AsyncFd;
use ::tokio::sync::mpsc;
use ::tokio::task::yield_now;

use crate::queued::BATCH;
use crate::shortcut::{Shortcut, WriterShortcut};
use crate::{
    OrderKey, Queue, ReadError, Reader, SegmentBuffers, SegmentPlan, Tun, Writer, WriterCounters,
};

/// An asynchronous [`Reader`].
#[derive(Debug)]
pub struct AsyncReader {
    fd: Arc<AsyncFd<Queue>>,
    reader: Reader<Queue>,
}

/// An asynchronous [`Writer`].
#[derive(Debug)]
pub struct AsyncWriter<B> {
    fd: Arc<AsyncFd<Queue>>,
    writer: Writer<Queue, B>,
}

impl Tun {
    /// Returns an asynchronous reader and writer of the first queue, and closes the others. They
    /// may move to different tasks.
    ///
    /// # Errors
    /// As [`Queue::split_async`].
    ///
    /// # Panics
    /// If called outside of a tokio runtime with I/O.
    pub fn split_async<B: AsRef<[u8]>>(self) -> io::Result<(AsyncReader, AsyncWriter<B>)> {
        self.into_first_queue().split_async()
    }
}

impl Queue {
    /// Returns an asynchronous reader and writer of this queue. They may move to different tasks.
    ///
    /// # Errors
    /// If the descriptor cannot be registered with tokio, because it is registered already.
    ///
    /// # Panics
    /// If called outside of a tokio runtime with I/O.
    pub fn split_async<B: AsRef<[u8]>>(self) -> io::Result<(AsyncReader, AsyncWriter<B>)> {
        let (reader, writer) = self.clone().split();
        // Both share one registration, since a descriptor can be registered once. tokio's safe
        // functions are deprecated, since a type may return another descriptor each time.
        // SAFETY: a queue owns its descriptor, which stays open and the same for as long as it
        // lives, and the `AsyncFd` owns the queue.
        let fd = Arc::new(unsafe { AsyncFd::register(self) }?);
        Ok((AsyncReader { fd: Arc::clone(&fd), reader }, AsyncWriter { fd, writer }))
    }
}

impl AsyncReader {
    /// Like [`Reader::read_into`]. Cancellation loses no packets.
    ///
    /// # Errors
    /// [`ReadError`]; no packet is lost.
    pub async fn read_into(
        &mut self,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Option<SegmentPlan>, ReadError> {
        // The rest of the last read is in memory already; the device may have no more to read.
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

    /// Returns the reader, for its counters.
    pub const fn get_ref(&self) -> &Reader<Queue> {
        &self.reader
    }

    /// Returns the reader, to [read more](Reader::try_read_into) without waiting, or to
    /// [discard](Reader::discard) packets that did not fit the buffers.
    pub const fn get_mut(&mut self) -> &mut Reader<Queue> {
        &mut self.reader
    }
}

impl<B: AsRef<[u8]>> AsyncWriter<B> {
    /// Queues a packet. The next flush writes and drops it.
    #[inline]
    pub fn push(&mut self, packet: B) {
        self.writer.push(packet);
    }

    /// Queues a packet with a key that tells when it was sent: see [`Writer::push_in_order`].
    #[inline]
    pub fn push_in_order(&mut self, packet: B, key: OrderKey) {
        self.writer.push_in_order(packet, key);
    }

    /// Like [`Writer::flush`]. After cancellation, the next flush continues.
    ///
    /// # Errors
    /// Any error of the device; see [`Writer`](Writer#errors).
    pub async fn flush(&mut self) -> io::Result<()> {
        // The device is rarely full, so writing is tried first.
        loop {
            match self.writer.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return result,
            }
            let mut guard = self.fd.writable().await?;
            // It is tried again, since the readiness may be older than the last write.
            match self.writer.try_flush() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                result => return result,
            }
        }
    }

    /// Like [`flush`](Self::flush), but drops the packets that could not be written because of an
    /// error, as a full queue would.
    ///
    /// # Errors
    /// Any error of the device.
    pub async fn flush_lossy(&mut self) -> io::Result<()> {
        let result = self.flush().await;
        self.writer.clear();
        result
    }

    /// Puts a queue for `capacity` packets in front of the writer. Any number of tasks may send to
    /// it; order is kept per sender. When traffic is low, packets are written by the task that
    /// sends them.
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
                packets: PacketQueue::Plain(
                    packets,
                    Vec::with_capacity(BATCH),
                    WriterShortcut::new(shortcut),
                ),
            },
        )
    }

    /// Like [`queued`](Self::queued), for tasks that overtake each other. The packets of each flush
    /// are put in order by their keys, as with [`push_in_order`](Self::push_in_order). All packets
    /// go through the queue, so that a delayed packet may catch up.
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
                packets: PacketQueue::Keyed(packets, Vec::with_capacity(BATCH)),
            },
        )
    }

    /// Returns the writer, for its counters and [switches](Writer::switches).
    pub const fn get_ref(&self) -> &Writer<Queue, B> {
        &self.writer
    }

    /// Returns the writer, to drop the packets that remain unwritten after an error, or to set a
    /// [callback](Writer::set_notice) for refused super-packets.
    pub const fn get_mut(&mut self) -> &mut Writer<Queue, B> {
        &mut self.writer
    }
}

/// Sends packets to the queue of an [`AsyncQueuedWriter`]. When traffic is low, packets are written
/// at once, by the task that sends them: see [`PacketSender`](crate::PacketSender).
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
    /// Sends a packet. Waits while the queue is full. Cancellation drops the packet.
    ///
    /// # Errors
    /// Returns the packet if the writer has been dropped.
    pub async fn send(&self, packet: B) -> Result<(), mpsc::error::SendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        // Once the packet counts as queued, there must be no cancellation point.
        let Ok(place) = self.queue.reserve().await else {
            return Err(mpsc::error::SendError(packet));
        };
        self.shortcut.count_queued();
        place.send(packet);
        Ok(())
    }

    /// Like [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    /// Returns the packet if the queue is full or the writer has been dropped.
    pub fn try_send(&self, packet: B) -> Result<(), mpsc::error::TrySendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        self.shortcut.count_queued();
        self.queue.try_send(packet).inspect_err(|_| self.shortcut.uncount_queued())
    }
}

/// Writes the packets that other tasks send to a queue. Packets are merged and written together if
/// they are in the queue at the same time, or are sent before the writer has yielded twice to the
/// other tasks. So packets merge under load, and a packet that comes alone is written at once.
#[derive(Debug)]
pub struct AsyncQueuedWriter<B> {
    writer: AsyncWriter<B>,
    packets: PacketQueue<B>,
}

/// The receiving end of an [`AsyncQueuedWriter`]'s queue, and the packets that were taken from it.
#[derive(Debug)]
enum PacketQueue<B> {
    /// A queue of packets that are written in the order in which they were sent.
    Plain(mpsc::Receiver<B>, Vec<B>, WriterShortcut<Queue>),
    /// A queue of packets with keys, which determine the order of the packets in each flush.
    Keyed(mpsc::Receiver<(OrderKey, B)>, Vec<(OrderKey, B)>),
}

/// Number of times in a row that the queue may be empty before the packets are written. tokio
/// interrupts a task after some 128 operations, so a task that decrypts and sends packets is
/// suspended after 20 or 30 packets, and the writer runs before the others are there. Larger values
/// make no larger writes.
const MAX_EMPTY_LOOKS: usize = 2;

/// Waits for a packet, and takes all others that are in the queue or come while other tasks run.
/// Returns the number of packets in the batch; 0 if all senders have been dropped. After
/// cancellation, the next call continues with the batch.
async fn take<T>(packets: &mut mpsc::Receiver<T>, batch: &mut Vec<T>) -> usize {
    if batch.is_empty() && packets.recv_many(batch, BATCH).await == 0 {
        return 0;
    }
    let mut empty_looks = 0;
    while empty_looks < MAX_EMPTY_LOOKS && batch.len() < BATCH {
        yield_now().await;
        let count = batch.len();
        batch.extend(iter::from_fn(|| packets.try_recv().ok()).take(BATCH - count));
        empty_looks = if batch.len() == count { empty_looks + 1 } else { 0 };
    }
    batch.len()
}

impl<B: AsRef<[u8]>> AsyncQueuedWriter<B> {
    /// Writes packets from the queue until all senders have been dropped and the queue is empty.
    /// Flushes when the queue stays empty while the writer yields twice to the other tasks, or when
    /// 256 packets have been taken from it.
    ///
    /// # Errors
    /// As [`AsyncWriter::flush`]. The next call continues; packets that stay according to
    /// [`Writer`'s table](Writer#errors) are written first.
    pub async fn run(&mut self) -> io::Result<()> {
        let AsyncQueuedWriter { writer, packets } = self;
        loop {
            writer.flush().await?;
            let count = match packets {
                PacketQueue::Plain(packets, batch, shortcut) => {
                    shortcut.finish_batch();
                    let count = take(packets, batch).await;
                    shortcut.count_taken(count);
                    batch.drain(..).for_each(|packet| writer.push(packet));
                    count
                }
                PacketQueue::Keyed(packets, batch) => {
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

    /// Writes packets from the queue until all senders have been dropped, in spite of errors. After
    /// an error, the packets that were not written are dropped, and `notice` is called with the
    /// error. This is meant for a separate task.
    pub async fn run_lossy(&mut self, mut notice: impl FnMut(io::Error)) {
        while let Err(error) = self.run().await {
            self.writer.get_mut().clear();
            notice(error);
        }
    }

    /// Returns counts of the packets that the writer and the senders have written so far.
    pub fn counters(&self) -> WriterCounters {
        let mut counters = *self.writer.get_ref().counters();
        if let PacketQueue::Plain(_, _, shortcut) = &self.packets {
            shortcut.add_to(&mut counters);
        }
        counters
    }

    /// Returns the writer.
    pub const fn writer(&self) -> &AsyncWriter<B> {
        &self.writer
    }

    /// Returns the writer, to drop the packets that remain unwritten after an error, or to set a
    /// [callback](Writer::set_notice) for refused super-packets.
    pub const fn writer_mut(&mut self) -> &mut AsyncWriter<B> {
        &mut self.writer
    }
}

#[cfg(test)]
mod tests {
    use ::tokio::runtime::Builder;

    use super::*;

    /// Returns the batches that [`take`] receives from a task that yields the given number of times
    /// before it sends each packet.
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
    fn packets_sent_while_other_tasks_run_join_the_batch() {
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
