//! A writer behind a queue that other threads fill.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, SyncSender, TrySendError, sync_channel};

use crate::shortcut::{Shortcut, Taken};
use crate::{Device, OrderKey, Writer, WriterCounters};

/// Writes what other threads put into a queue: whatever is there at once is merged and written, so
/// that packets merge under load, and a packet that comes alone leaves at once.
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
    packets: Packets<D, B>,
}

/// Sends packets to the queue of a [`QueuedWriter`].
///
/// A packet that comes alone is written at once, by the thread that sends it: while packets come
/// one by one, nothing is queued or being written, and some 20 us have passed since the last. It
/// leaves without another thread being woken. Under load, or where the device does not take it, it
/// goes through the queue.
///
/// Order is kept for each sender: a clone is another one.
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
    /// Sends a packet. Waits where the queue is full.
    ///
    /// # Errors
    /// If the writer is gone: the packet comes back.
    pub fn send(&self, packet: B) -> Result<(), SendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        self.shortcut.queued();
        self.queue.send(packet).inspect_err(|_| self.shortcut.not_queued())
    }

    /// As [`send`](Self::send), without waiting.
    ///
    /// # Errors
    /// If the queue is full or the writer gone: the packet comes back.
    pub fn try_send(&self, packet: B) -> Result<(), TrySendError<B>> {
        if self.shortcut.write(packet.as_ref()) {
            return Ok(());
        }
        self.shortcut.queued();
        self.queue.try_send(packet).inspect_err(|_| self.shortcut.not_queued())
    }
}

/// What the queue holds.
#[derive(Debug)]
enum Packets<D, B> {
    /// Packets in the order in which they are to leave.
    Plain(Receiver<B>, Taken<D>),
    /// Packets of which it is known when they were sent.
    Keyed(Receiver<(OrderKey, B)>),
}

/// The most packets of one flush: more merge no better, and wait longer.
pub(crate) const BATCH: usize = 256;

impl<D: Device, B: AsRef<[u8]>> Writer<D, B> {
    /// Puts a queue of so many packets before the writer. Any number of threads may send to it;
    /// order is kept for each. A packet that comes alone is written by the thread that sends it.
    pub fn queued(self, capacity: usize) -> (PacketSender<D, B>, QueuedWriter<D, B>)
    where
        D: Clone,
    {
        let (queue, packets) = sync_channel(capacity);
        let shortcut = Shortcut::new(self.device().clone(), self.framing());
        let sender = PacketSender { queue, shortcut: Arc::clone(&shortcut) };
        (
            sender,
            QueuedWriter { writer: self, packets: Packets::Plain(packets, Taken::new(shortcut)) },
        )
    }

    /// As [`queued`](Self::queued), for threads that overtake each other: what a flush takes is put
    /// in order by the keys, as [`push_in_order`](Self::push_in_order) does. All packets go through
    /// the queue, where one that was overtaken may catch up.
    pub fn queued_in_order(
        self,
        capacity: usize,
    ) -> (SyncSender<(OrderKey, B)>, QueuedWriter<D, B>) {
        let (sender, packets) = sync_channel(capacity);
        (sender, QueuedWriter { writer: self, packets: Packets::Keyed(packets) })
    }
}

/// Waits for a packet, and takes what is there besides. Returns how many that are; 0: all senders
/// are gone.
fn take<T>(packets: &Receiver<T>, mut push: impl FnMut(T)) -> usize {
    let Ok(first) = packets.recv() else { return 0 };
    push(first);
    1 + packets.try_iter().take(BATCH - 1).map(push).count()
}

impl<D: Device, B: AsRef<[u8]>> QueuedWriter<D, B> {
    /// Writes until all senders are gone and the queue is empty. It flushes whenever the queue runs
    /// empty, or 256 packets are taken from it.
    ///
    /// # Errors
    /// As [`Writer::flush`]; another call goes on, with what stays according to
    /// [`Writer`'s table](Writer#errors) first.
    pub fn run(&mut self) -> io::Result<()> {
        let QueuedWriter { writer, packets } = self;
        loop {
            writer.flush()?;
            let count = match packets {
                Packets::Plain(packets, taken) => {
                    taken.written();
                    let count = take(packets, |packet| writer.push(packet));
                    taken.add(count);
                    count
                }
                Packets::Keyed(packets) => {
                    take(packets, |(key, packet)| writer.push_in_order(packet, key))
                }
            };
            if count == 0 {
                return Ok(());
            }
        }
    }

    /// Writes until all senders are gone, whatever the device answers: what stays after an error is
    /// dropped, as a full queue would have it, and `notice` is told of the error.
    pub fn run_lossy(&mut self, mut notice: impl FnMut(io::Error)) {
        while let Err(error) = self.run() {
            self.writer.clear();
            notice(error);
        }
    }

    /// What has been written so far, by the writer and by senders for themselves.
    pub fn counters(&self) -> WriterCounters {
        let mut counters = *self.writer.counters();
        if let Packets::Plain(_, taken) = &self.packets {
            taken.count(&mut counters);
        }
        counters
    }

    /// The writer.
    pub const fn writer(&self) -> &Writer<D, B> {
        &self.writer
    }

    /// The writer, to drop what stays after an error, or to be told of refusals.
    pub const fn writer_mut(&mut self) -> &mut Writer<D, B> {
        &mut self.writer
    }
}
