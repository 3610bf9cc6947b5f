//! Lets senders write a packet to the device themselves, without the queue, when traffic is low.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use superpacket::Framing;

use crate::{Device, WriterCounters};

/// Minimum time since the last write, in nanoseconds, for a direct write. A packet that comes
/// sooner goes through the queue, where it may merge with others. A write takes some 5 us,
/// decrypting a packet 2 us, a context switch 10 us.
const GAP_NANOSECONDS: u64 = 20_000;

/// Value of `last` in [`Shortcut`] while a write is in progress.
const UNDER_WAY: u64 = u64::MAX;

/// The state that the senders of a queue share with the queue's writer.
#[derive(Debug)]
pub(crate) struct Shortcut<D> {
    device: D,
    header_length: usize,
    start: Instant,
    /// Packets that have been sent to the queue, and not yet written or dropped.
    waiting: AtomicUsize,
    /// Whether the last flush delivered exactly one packet, so that the shortcut may be taken.
    is_open: AtomicBool,
    /// Time at which the last write ended, in nanoseconds since `start`; [`UNDER_WAY`] during a
    /// write.
    last: AtomicU64,
    /// Number of packets that senders wrote to the device themselves, without the queue's writer.
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl<D: Device> Shortcut<D> {
    pub(crate) fn new(device: D, framing: Option<Framing>) -> Arc<Self> {
        Arc::new(Shortcut {
            device,
            header_length: framing.map_or(0, Framing::header_length),
            start: Instant::now(),
            waiting: AtomicUsize::new(0),
            // It starts closed, so that a burst at the start merges.
            is_open: AtomicBool::new(false),
            last: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Writes a packet directly if no others are queued and the last write is long enough ago.
    /// Returns whether the packet is written; otherwise it must be queued.
    #[inline]
    pub(crate) fn write(&self, packet: &[u8]) -> bool {
        // `Acquire`: all packets that were queued are written before this write.
        if !self.is_open.load(Ordering::Relaxed) || self.waiting.load(Ordering::Acquire) != 0 {
            return false;
        }
        let last = self.last.load(Ordering::Relaxed);
        // While a write is in progress the difference is 0.
        if self.now().saturating_sub(last) < GAP_NANOSECONDS
            || self
                .last
                .compare_exchange(last, UNDER_WAY, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        let header = [0; superpacket::virtio::Format::LONGEST];
        let slices =
            [IoSlice::new(header.get(..self.header_length).unwrap_or(&[])), IoSlice::new(packet)];
        // Without a header only one slice is passed.
        let is_written = self
            .device
            .write(slices.get(usize::from(self.header_length == 0)..).unwrap_or(&slices))
            .is_ok();
        self.last.store(self.now(), Ordering::Relaxed);
        if is_written {
            self.packets.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(packet.len() as u64, Ordering::Relaxed);
        }
        is_written
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl<D> Shortcut<D> {
    /// Counts a packet as sent to the queue. Must be called before the packet is in the queue.
    #[inline]
    pub(crate) fn count_queued(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back the count of a packet that was counted as queued but could not be queued.
    pub(crate) fn uncount_queued(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The writer's end of a [`Shortcut`]. After it is dropped, senders always use the queue.
#[derive(Debug)]
pub(crate) struct WriterShortcut<D> {
    shortcut: Arc<Shortcut<D>>,
    /// Packets that were taken from the queue, and may not have been written yet.
    count: usize,
}

impl<D: Device> WriterShortcut<D> {
    pub(crate) const fn new(shortcut: Arc<Shortcut<D>>) -> Self {
        WriterShortcut { shortcut, count: 0 }
    }

    /// Counts packets that were taken from the queue.
    pub(crate) const fn count_taken(&mut self, count: usize) {
        self.count += count;
    }

    /// Notes that all packets taken from the queue are written or dropped.
    #[inline]
    pub(crate) fn finish_batch(&mut self) {
        if self.count == 0 {
            return;
        }
        self.shortcut.is_open.store(self.count == 1, Ordering::Relaxed);
        self.shortcut.last.store(self.shortcut.now(), Ordering::Relaxed);
        self.shortcut.waiting.fetch_sub(self.count, Ordering::Release);
        self.count = 0;
    }

    /// Adds the packets that senders have written themselves to `counters`.
    pub(crate) fn add_to(&self, counters: &mut WriterCounters) {
        let packets = self.shortcut.packets.load(Ordering::Relaxed);
        counters.packets += packets;
        counters.writes += packets;
        counters.direct += packets;
        counters.bytes += self.shortcut.bytes.load(Ordering::Relaxed);
    }
}

impl<D> Drop for WriterShortcut<D> {
    /// Makes senders use the queue instead of the device. The queue's receiver is gone, so they get
    /// an error.
    fn drop(&mut self) {
        self.shortcut.count_queued();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::sync::Mutex;
    use std::time::Duration;

    use superpacket_traffic::random::Random;

    use super::*;

    /// A device that records written packets, or refuses them.
    #[derive(Debug, Default)]
    struct Recorder {
        written: Mutex<Vec<Vec<u8>>>,
        is_full: AtomicBool,
    }

    impl Device for Recorder {
        fn read(&self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
            if self.is_full.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.written
                .lock()
                .expect("not poisoned")
                .push(slices.iter().flat_map(|slice| slice.to_vec()).collect());
            Ok(())
        }

        fn wait_readable(&self) -> io::Result<()> {
            Ok(())
        }

        fn wait_writable(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns a shortcut for a device without headers, created a second ago.
    fn shortcut(device: &Recorder) -> Arc<Shortcut<&Recorder>> {
        let mut shortcut = Shortcut::new(device, None);
        let unshared = Arc::get_mut(&mut shortcut).expect("there is one");
        unshared.start = unshared
            .start
            .checked_sub(Duration::from_secs(1))
            .expect("the machine has run that long");
        shortcut
    }

    /// Runs three senders and a writer in random order.
    #[test]
    fn each_senders_packets_leave_once_and_in_order() {
        let (mut direct, mut queued) = (0, 0);
        for seed in 0..300 {
            let (mut random, device) = (Random::new(seed), Recorder::default());
            let shortcut = shortcut(&device);
            let mut writer = WriterShortcut::new(Arc::clone(&shortcut));
            let (mut queue, mut batch, mut sent) = (VecDeque::new(), Vec::new(), [0; 3]);
            let write_all = |batch: &mut Vec<Vec<u8>>| {
                device.written.lock().expect("not poisoned").append(batch)
            };
            for _ in 0..250 {
                match random.below(4) {
                    0 | 1 => {
                        let sender = random.below(3) as usize;
                        let packet = vec![sender as u8, sent[sender]];
                        sent[sender] += 1;
                        if random.chance(0.7) {
                            // Some time has passed.
                            shortcut.last.store(0, Ordering::Relaxed);
                        }
                        device.is_full.store(random.chance(0.1), Ordering::Relaxed);
                        if !shortcut.write(&packet) {
                            shortcut.count_queued();
                            queue.push_back(packet);
                            queued += 1;
                        }
                    }
                    2 if batch.is_empty() => {
                        batch.extend(queue.drain(..random.between(0, queue.len())));
                        writer.count_taken(batch.len());
                    }
                    _ => {
                        write_all(&mut batch);
                        writer.finish_batch();
                    }
                }
            }
            write_all(&mut batch);
            write_all(&mut queue.into());
            let mut counters = WriterCounters::default();
            writer.add_to(&mut counters);
            direct += counters.direct;
            let written = device.written.lock().expect("not poisoned");
            for (sender, sent) in sent.into_iter().enumerate() {
                let numbers: Vec<_> = written
                    .iter()
                    .filter(|packet| packet[0] == sender as u8)
                    .map(|packet| packet[1])
                    .collect();
                assert_eq!(numbers, (0..sent).collect::<Vec<_>>(), "sender {sender}, seed {seed}");
            }
        }
        assert!(direct > 300 && queued > 1000, "{direct} and {queued} packets");
    }

    #[test]
    fn the_shortcut_is_open_only_after_a_flush_of_one_packet() {
        let device = Recorder::default();
        let shortcut = shortcut(&device);
        let mut writer = WriterShortcut::new(Arc::clone(&shortcut));
        let mut is_open_after = |flushed: usize| {
            (0..flushed).for_each(|_| shortcut.count_queued());
            writer.count_taken(flushed);
            let before = shortcut.write(&[0]);
            writer.finish_batch();
            let at_once = shortcut.write(&[0]);
            shortcut.last.store(0, Ordering::Relaxed);
            let later = shortcut.write(&[0]);
            (before, at_once, later, shortcut.write(&[0]))
        };
        assert_eq!(is_open_after(2), (false, false, false, false));
        assert_eq!(is_open_after(1), (false, false, true, false));
        shortcut.last.store(UNDER_WAY, Ordering::Relaxed);
        assert!(!shortcut.write(&[0]), "another sender writes");
        assert_eq!(is_open_after(3), (false, false, false, false));
        assert_eq!(is_open_after(1), (false, false, true, false));
        drop(writer);
        shortcut.last.store(0, Ordering::Relaxed);
        assert!(!shortcut.write(&[0]), "the writer is gone");
    }
}
