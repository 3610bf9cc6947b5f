//! A writer with a queue to which other threads send.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, SyncSender, TrySendError, sync_channel};

use crate::shortcut::{Shortcut, WriterShortcut};
use crate::{Device, OrderKey, Writer, WriterCounters};

/// Writes the packets that other threads send to a queue. All packets that are in the queue at the
/// same time are merged and written. So packets merge under load, and a packet that comes alone
/// leaves at once.
///
/// ```no_run
/// # #[cfg(target_os = "linux")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (_reader, writer) = superpacket_tun::Tun::open("tun0")?.split();
/// let (packets, mut queued) = writer.queued(1024);
/// std::thread::spawn(move || queued.run());
/// packets.send(vec![0x45, 0, 0, 20])?;
/// # Ok(())
/// # }
/// # #[cfg(not(target_os = "linux"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct QueuedWriter<D, B> {
    writer: Writer<D, B>,
    packets: PacketQueue<D, B>,
}

/// Sends packets to the queue of a [`QueuedWriter`].
///
/// A packet that comes alone is written at once by the thread that sends it, so that no other
/// thread has to be woken. It comes alone if no packet is queued or being written, and some 20 us
/// have passed since the last write. Under load, or if the device does not accept the packet, it
/// goes through the queue.
///
/// Order is kept per sender; a clone is another sender.
#[derive(Debug)]
pub struct PacketSender<D, B> {
    queue: SyncSender<B>,
    shortcut: Arc<Shortcut<D>>,
}

impl<D, B> Clone for PacketSender<D, B> {
    fn clone(&self) -> Self {
        PacketSender { queue: self.queue.clone(), shortcut: Arc::clone(&self.shortcut) }
    }
}

impl<D: Device, B: AsRef<[u8]>> PacketSender<D, B> {
    /// Sends a packet. Waits while the queue is full.
    ///
    /// # Errors
    /// Returns the packet if the writer has been dropped.
    pub fn send(&self, packet: B) -> Result<(), SendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        self.shortcut.count_queued();
        self.queue.send(packet).inspect_err(|_| self.shortcut.uncount_queued())
    }

    /// Like [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    /// Returns the packet if the queue is full or the writer has been dropped.
    pub fn try_send(&self, packet: B) -> Result<(), TrySendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        self.shortcut.count_queued();
        self.queue.try_send(packet).inspect_err(|_| self.shortcut.uncount_queued())
    }
}

/// The receiving end of a [`QueuedWriter`]'s queue.
#[derive(Debug)]
enum PacketQueue<D, B> {
    /// A queue of packets that are written in the order in which they were sent.
    Plain(Receiver<B>, WriterShortcut<D>),
    /// A queue of packets with keys, which determine the order of the packets in each flush.
    Keyed(Receiver<(OrderKey, B)>),
}

/// Maximum packets per flush: more would not merge better, but wait longer.
pub(crate) const BATCH: usize = 256;

impl<D: Device, B: AsRef<[u8]>> Writer<D, B> {
    /// Puts a queue for `capacity` packets in front of the writer. Any number of threads may send
    /// to it; order is kept per sender. When traffic is low, packets are written by the thread that
    /// sends them.
    pub fn queued(self, capacity: usize) -> (PacketSender<D, B>, QueuedWriter<D, B>)
    where
        D: Clone,
    {
        let (queue, packets) = sync_channel(capacity);
        let shortcut = Shortcut::new(self.device().clone(), self.framing());
        let sender = PacketSender { queue, shortcut: Arc::clone(&shortcut) };
        (
            sender,
            QueuedWriter {
                writer: self,
                packets: PacketQueue::Plain(packets, WriterShortcut::new(shortcut)),
            },
        )
    }

    /// Like [`queued`](Self::queued), for threads that overtake each other. The packets of each
    /// flush are put in order by their keys, as with [`push_in_order`](Self::push_in_order). All
    /// packets go through the queue, so that a delayed packet may catch up.
    pub fn queued_in_order(
        self,
        capacity: usize,
    ) -> (SyncSender<(OrderKey, B)>, QueuedWriter<D, B>) {
        let (sender, packets) = sync_channel(capacity);
        (sender, QueuedWriter { writer: self, packets: PacketQueue::Keyed(packets) })
    }
}

/// Waits for a packet, and takes all others that are in the queue. Returns the number of packets; 0
/// if all senders have been dropped.
fn take<T>(packets: &Receiver<T>, mut push: impl FnMut(T)) -> usize {
    let Ok(first) = packets.recv() else { return 0 };
    push(first);
    1 + packets.try_iter().take(BATCH - 1).map(push).count()
}

impl<D: Device, B: AsRef<[u8]>> QueuedWriter<D, B> {
    /// Writes packets from the queue until all senders have been dropped and the queue is empty.
    /// Flushes whenever the queue is empty, or 256 packets have been taken from it.
    ///
    /// # Errors
    /// As [`Writer::flush`]. The next call continues; packets that stay according to [`Writer`'s
    /// table](Writer#errors) are written first.
    pub fn run(&mut self) -> io::Result<()> {
        let QueuedWriter { writer, packets } = self;
        loop {
            writer.flush()?;
            let count = match packets {
                PacketQueue::Plain(packets, shortcut) => {
                    shortcut.finish_batch();
                    let count = take(packets, |packet| writer.push(packet));
                    shortcut.count_taken(count);
                    count
                }
                PacketQueue::Keyed(packets) => {
                    take(packets, |(key, packet)| writer.push_in_order(packet, key))
                }
            };
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Writes packets from the queue until all senders have been dropped, in spite of errors. After
    /// an error, the packets that were not written are dropped, and `notice` is called with the
    /// error.
    pub fn run_lossy(&mut self, mut notice: impl FnMut(io::Error)) {
        while let Err(error) = self.run() {
            self.writer.clear();
            notice(error);
        }
    }

    /// Returns counts of the packets that the writer and the senders have written so far.
    pub fn counters(&self) -> WriterCounters {
        let mut counters = *self.writer.counters();
        if let PacketQueue::Plain(_, shortcut) = &self.packets {
            shortcut.add_to(&mut counters);
        }
        counters
    }

    /// Returns the writer that the queue belongs to.
    pub const fn writer(&self) -> &Writer<D, B> {
        &self.writer
    }

    /// Returns the writer, to drop the packets that remain unwritten after an error, or to set a
    /// [callback](Writer::set_notice) for refused super-packets.
    pub const fn writer_mut(&mut self) -> &mut Writer<D, B> {
        &mut self.writer
    }
}
