//! A writer behind a queue that other threads fill.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::{Device, OrderKey, Writer};

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
    packets: Packets<B>,
}

/// What the queue holds.
#[derive(Debug)]
enum Packets<B> {
    /// Packets in the order in which they are to leave.
    Plain(Receiver<B>),
    /// Packets of which it is known when they were sent.
    Keyed(Receiver<(OrderKey, B)>),
}

/// The most packets of one flush: more merge no better, and wait longer.
pub(crate) const BATCH: usize = 256;

impl<D: Device, B: AsRef<[u8]>> Writer<D, B> {
    /// Puts a queue of so many packets before the writer. Any number of threads may send to it;
    /// order is kept for each.
    pub fn queued(self, capacity: usize) -> (SyncSender<B>, QueuedWriter<D, B>) {
        let (sender, packets) = sync_channel(capacity);
        (sender, QueuedWriter { writer: self, packets: Packets::Plain(packets) })
    }

    /// As [`queued`](Self::queued), for threads that overtake each other: what a flush takes is put
    /// in order by the keys, as [`push_in_order`](Self::push_in_order) does.
    pub fn queued_in_order(self, capacity: usize) -> (SyncSender<(OrderKey, B)>, QueuedWriter<D, B>) {
        let (sender, packets) = sync_channel(capacity);
        (sender, QueuedWriter { writer: self, packets: Packets::Keyed(packets) })
    }
}

/// Waits for a packet, and takes what is there besides; `false`: all senders are gone.
fn take<T>(packets: &Receiver<T>, mut push: impl FnMut(T)) -> bool {
    let Ok(first) = packets.recv() else { return false };
    push(first);
    packets.try_iter().take(BATCH - 1).for_each(push);
    true
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
            let more = match packets {
                Packets::Plain(packets) => take(packets, |packet| writer.push(packet)),
                Packets::Keyed(packets) => take(packets, |(key, packet)| writer.push_in_order(packet, key)),
            };
            if !more {
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

    /// The writer.
    pub const fn writer(&self) -> &Writer<D, B> {
        &self.writer
    }

    /// The writer, to drop what stays after an error, or to be told of refusals.
    pub const fn writer_mut(&mut self) -> &mut Writer<D, B> {
        &mut self.writer
    }
}
