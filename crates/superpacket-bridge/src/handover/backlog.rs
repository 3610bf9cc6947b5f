//! The packets that a receiving thread hands to a worker: one queue per receive queue and worker.
//!
//! Packets are handed over in batches through a ring with one producer and one consumer. Emptied
//! batches return through a second ring, so no batch is allocated in steady state. The ring limits
//! the number of batches, not of packets: if it is full, packets are added to the batch that waits
//! in front of it. [`BacklogLimit`](superpacket_steer::BacklogLimit) limits the number of packets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};
use superpacket::packet_batch::PacketBatch;
use superpacket::super_packet::SuperPacket;
use superpacket_port::Buffer;

use super::doorbell::Doorbell;
use super::protocol::{Head, Sleep};
/// Maximum number of batches in the ring from a receiving thread to a worker.
const RING_BATCHES: usize = 256;

/// Number of packets at which a batch is sent before the receiving thread's poll round ends, so
/// that the worker can begin.
const BATCH_PACKETS: usize = 64;

type Batch = Box<PacketBatch<Buffer>>;

/// The progress of the workers of one CPU with the packets of one receive queue. It is shared by
/// the queue's thread and the workers that follow each other on the CPU.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Completion {
    /// Number of packets that the workers have finished; a new worker continues the count.
    pub(crate) head: Head,
    /// Whether the receive queue's thread sleeps until a worker finishes packets.
    pub(crate) watch: Sleep,
    /// The doorbell of the receive queue's thread, which wakes that thread.
    receiver_bell: Arc<Doorbell>,
    /// Time that workers have spent on the queue's packets, in nanoseconds.
    spent: AtomicU64,
    /// Number of finished packets, where a packet that was merged counts as the packets it was made
    /// of.
    received: AtomicU64,
}

impl Completion {
    /// Creates the progress record of the workers of one CPU for one receive queue. `receiver_bell`
    /// wakes the queue's thread.
    pub(crate) fn new(receiver_bell: Arc<Doorbell>) -> Self {
        Completion {
            head: Head::new(),
            watch: Sleep::new(),
            receiver_bell,
            spent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    /// Returns the time that workers have spent on the queue's packets, in nanoseconds.
    pub(crate) fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Returns the number of finished packets, where a packet that was merged counts as the packets
    /// it was made of.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// State shared by both ends of a backlog: whether the sender was dropped, and the sender's last
/// packets.
#[derive(Debug, Default)]
struct SenderEnd {
    /// The sender's last batch, if the ring had no room for it.
    last: Mutex<Option<Batch>>,
    closed: AtomicBool,
}

/// Creates a backlog. `worker` wakes the worker that processes it, and `from` is the port that
/// received its packets.
pub(crate) fn backlog<F>(
    completion: Arc<Completion>,
    worker: Arc<Doorbell>,
    from: F,
) -> (BacklogSender, BacklogReceiver<F>) {
    let (full, filled) = RingBuffer::new(RING_BATCHES);
    let (emptied, empty) = RingBuffer::new(RING_BATCHES);
    let end = Arc::<SenderEnd>::default();
    let sender = BacklogSender {
        open: Batch::default(),
        full,
        empty,
        worker,
        end: end.clone(),
        worker_knows: true,
    };
    let receiver = BacklogReceiver {
        completion,
        from,
        filled,
        emptied,
        current: None,
        end,
        taken: 0,
        received: 0,
    };
    (sender, receiver)
}

/// The receiving thread's end of a backlog. Packets that it still holds when it is dropped are left
/// for the worker.
#[derive(Debug)]
pub(crate) struct BacklogSender {
    open: Batch,
    full: Producer<Batch>,
    empty: Consumer<Batch>,
    worker: Arc<Doorbell>,
    end: Arc<SenderEnd>,
    /// Whether the worker needs no wake-up, because no packets were sent since it was last woken.
    worker_knows: bool,
}

impl BacklogSender {
    /// Adds a packet to the backlog. The worker gets it when a batch is full or the receiving
    /// thread's poll round ends.
    #[inline]
    pub(crate) fn push(&mut self, packet: &mut SuperPacket<'_, Buffer>) {
        self.open.push(packet);
        if self.open.len() >= BATCH_PACKETS {
            self.send();
        }
    }

    /// Sends the unfinished batch, and wakes the worker if it sleeps. Returns whether it slept.
    pub(crate) fn end_of_round(&mut self) -> bool {
        if !self.open.is_empty() {
            self.send();
        }
        !std::mem::replace(&mut self.worker_knows, true) && self.worker.ring()
    }

    /// Returns whether packets wait because the ring has no room.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.open.is_empty()
    }

    /// Returns whether `worker` is the doorbell of the worker that processes this backlog.
    pub(crate) fn leads_to(&self, worker: &Arc<Doorbell>) -> bool {
        Arc::ptr_eq(&self.worker, worker)
    }

    fn send(&mut self) {
        if self.full.is_full() {
            return;
        }
        let next = self.empty.pop().unwrap_or_default();
        // The push cannot fail: there is room, and no other thread adds batches.
        let _ = self.full.push(std::mem::replace(&mut self.open, next));
        self.worker_knows = false;
    }
}

impl Drop for BacklogSender {
    fn drop(&mut self) {
        self.send();
        if !self.open.is_empty() {
            *self.end.last.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(std::mem::take(&mut self.open));
        }
        // Release: a worker that sees the flag also sees all batches that were sent before.
        self.end.closed.store(true, Ordering::Release);
        self.worker.force();
    }
}

/// The worker's end of a backlog.
#[derive(Debug)]
pub(crate) struct BacklogReceiver<F> {
    completion: Arc<Completion>,
    /// The port that received the packets of the backlog.
    pub(crate) from: F,
    filled: Consumer<Batch>,
    emptied: Producer<Batch>,
    current: Option<Batch>,
    end: Arc<SenderEnd>,
    /// Number of packets that were taken from the backlog but not yet published as finished.
    taken: u64,
    /// Like `taken`, but a packet that was merged counts as the packets it was made of.
    received: u64,
}

impl<F> BacklogReceiver<F> {
    /// Removes at most `limit` packets from the backlog, passes each to `take`, and returns their
    /// number. They count as finished only after [`publish`](Self::publish).
    pub(crate) fn take(
        &mut self,
        limit: usize,
        mut take: impl FnMut(&F, SuperPacket<'_, Buffer>),
    ) -> usize {
        let mut count = 0;
        while count < limit && self.fetch() {
            let Some(current) = &mut self.current else { break };
            while count < limit
                && let Some(packet) = current.next_packet()
            {
                count += 1;
                // Counted first: if `take` panics, the packet still counts as taken.
                self.taken += 1;
                self.received += u64::from(packet.metadata.packets);
                take(&self.from, packet);
            }
            if current.is_empty()
                && let Some(mut emptied) = self.current.take()
            {
                emptied.clear();
                // If the ring is full, there are enough empty batches and this one is freed.
                let _ = self.emptied.push(emptied);
            }
        }
        count
    }

    /// Publishes the packets taken so far as finished, so that the receive queue may move their
    /// flows to another CPU. Returns their number.
    pub(crate) fn publish(&mut self) -> u64 {
        let taken = std::mem::take(&mut self.taken);
        if taken != 0 {
            self.completion.head.publish(taken);
            if self.completion.watch.must_be_woken() {
                self.completion.receiver_bell.force();
            }
        }
        taken
    }

    /// Adds the time in nanoseconds for which the worker processed the packets of the last
    /// [`take`](Self::take).
    pub(crate) fn add_spent(&mut self, nanoseconds: u64) {
        let (completion, received) = (&self.completion, std::mem::take(&mut self.received));
        // Only the worker that owns the backlog writes these counters, so load and store suffice.
        completion.spent.store(completion.spent() + nanoseconds, Ordering::Relaxed);
        completion.received.store(completion.received() + received, Ordering::Relaxed);
    }

    /// Returns whether the backlog has packets, or has lost its sender, so that
    /// [`is_over`](Self::is_over) must be called.
    pub(crate) fn has_work(&self) -> bool {
        self.current.is_some() || !self.filled.is_empty() || self.is_closed()
    }

    /// Returns whether the sending end was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.end.closed.load(Ordering::Acquire)
    }

    /// Returns whether the sending end was dropped and no packets are left.
    pub(crate) fn is_over(&mut self) -> bool {
        self.is_closed() && !self.fetch()
    }

    /// Ensures that the current batch has packets, taking the next batch from the ring if
    /// necessary. Returns false if there are no packets.
    fn fetch(&mut self) -> bool {
        if self.current.as_ref().is_some_and(|current| !current.is_empty()) {
            return true;
        }
        // Read before the ring: if the sender has ended, all its batches are in the ring by then.
        let closed = self.is_closed();
        let next = self.filled.pop().ok();
        let last = || self.end.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.current = next.or_else(|| if closed { last() } else { None });
        self.current.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use superpacket::aggregate::{Aggregator, HashKey, Policy};
    use superpacket::packet::RxPacket;

    use super::*;

    /// Adds one packet for each number to a backlog; the number is the packet's content.
    fn push(sender: &mut BacklogSender, numbers: std::ops::Range<u32>) {
        let mut aggregator =
            Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1));
        for number in numbers {
            let packet = RxPacket::new(Buffer::from(number.to_be_bytes().to_vec()));
            aggregator.bypass(packet, &mut |mut packet: SuperPacket<'_, Buffer>| {
                sender.push(&mut packet)
            });
        }
    }

    fn number(packet: &SuperPacket<'_, Buffer>) -> u32 {
        u32::from_be_bytes(packet.contiguous().expect("one piece").try_into().expect("four bytes"))
    }

    fn pair() -> (BacklogSender, BacklogReceiver<()>, Arc<Completion>, Arc<Doorbell>) {
        let receiver_bell = Arc::new(Doorbell::new().expect("a descriptor"));
        let worker = Arc::new(Doorbell::new().expect("a descriptor"));
        let completion = Arc::new(Completion::new(receiver_bell.clone()));
        let (sender, receiver) = backlog(completion.clone(), worker, ());
        (sender, receiver, completion, receiver_bell)
    }

    #[test]
    fn packets_come_in_order_and_no_more_than_asked_for() {
        let (mut sender, mut receiver, completion, _) = pair();
        push(&mut sender, 0..200);
        assert!(receiver.has_work(), "full batches do not wait");
        sender.end_of_round();
        let mut expected = 0..200;
        for limit in [1, 63, 64, 7, 1000] {
            let before = expected.start;
            let count = receiver
                .take(limit, |_, packet| assert_eq!(Some(number(&packet)), expected.next()));
            assert_eq!(count, limit.min(200 - before as usize));
            assert_eq!(completion.head.done(), u64::from(before), "not before it is sent");
            receiver.publish();
        }
        assert_eq!(
            (completion.head.done(), receiver.has_work(), receiver.is_over()),
            (200, false, false)
        );
    }

    #[test]
    fn where_the_ring_is_full_packets_wait_and_all_come() {
        let (mut sender, mut receiver, ..) = pair();
        for number in 0..2 * RING_BATCHES as u32 {
            push(&mut sender, number..number + 1);
            sender.end_of_round();
        }
        assert!(sender.is_stuck());
        let mut expected = VecDeque::from_iter(0..2 * RING_BATCHES as u32);
        let mut take = |limit| {
            receiver
                .take(limit, |_, packet| assert_eq!(expected.pop_front(), Some(number(&packet))))
        };
        assert_eq!(take(RING_BATCHES + 9), RING_BATCHES);
        drop(sender);
        assert_eq!(take(1000), RING_BATCHES);
        assert!(receiver.has_work() && receiver.is_over());
    }

    #[test]
    fn what_the_ring_has_no_room_for_is_left_at_the_end() {
        let (mut sender, mut receiver, ..) = pair();
        for number in 0..2 * RING_BATCHES as u32 {
            push(&mut sender, number..number + 1);
            sender.end_of_round();
        }
        drop(sender);
        assert!(!receiver.is_over());
        let mut expected = 0..2 * RING_BATCHES as u32;
        receiver.take(usize::MAX, |_, packet| assert_eq!(Some(number(&packet)), expected.next()));
        assert!(expected.is_empty() && receiver.is_over());
    }

    #[test]
    fn who_waits_for_the_head_is_told_once() {
        let (mut sender, mut receiver, completion, receiver_bell) = pair();
        push(&mut sender, 0..2);
        sender.end_of_round();
        completion.watch.fall_asleep();
        for heard in [true, false] {
            receiver.take(1, |_, _| ());
            receiver.publish();
            let mut count = [0u8; 8];
            assert_eq!(rustix::io::read(&*receiver_bell, &mut count).is_ok(), heard);
        }
    }

    /// Returns how often the bell was rung since the last call, which is the count of its event
    /// descriptor.
    fn heard(bell: &Doorbell) -> u64 {
        let mut count = [0u8; 8];
        rustix::io::read(bell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn a_sleeping_worker_is_woken_once_for_all_that_waits_and_one_that_is_awake_never() {
        let (mut sender, _receiver, _, receiver_bell) = pair();
        let worker = sender.worker.clone();
        let (mut other, _other_receiver) =
            backlog(Arc::new(Completion::new(receiver_bell)), worker.clone(), ());
        push(&mut sender, 0..200);
        assert!(!sender.end_of_round(), "it is awake");
        assert_eq!(heard(&worker), 0);
        worker.fall_asleep();
        assert!(!sender.end_of_round(), "there is nothing new for it");
        // Three full batches, which are sent before the round ends, and a partial one.
        push(&mut sender, 200..400);
        push(&mut other, 0..200);
        assert_eq!(heard(&worker), 0, "not before the round ends");
        let mut woke = vec![sender.end_of_round(), other.end_of_round(), sender.end_of_round()];
        // The worker has not read its bell yet.
        push(&mut sender, 400..600);
        woke.push(sender.end_of_round());
        assert_eq!(woke, [true, false, false, false]);
        assert_eq!((heard(&worker), worker.rung()), (1, 1));
        worker.awake();
        push(&mut sender, 600..700);
        assert!(!sender.end_of_round());
        worker.fall_asleep();
        push(&mut other, 200..201);
        assert!(other.end_of_round(), "each backlog can wake it");
        assert_eq!((heard(&worker), worker.rung()), (1, 2));
    }
}
