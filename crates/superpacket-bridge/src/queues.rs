//! Counters of packets and bytes per queue of a port.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::count::Count;
use crate::report::QueueStats;

/// The packets and bytes that one thread has received or sent by a queue. Aligned so that threads
/// do not write to the same cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct QueueCounts {
    pub(crate) packets: Count,
    pub(crate) bytes: Count,
}

/// The counters of all queues of a port.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// The counters of the receive queues, indexed by queue number.
    receive: Mutex<Vec<Arc<QueueCounts>>>,
    /// For each sender, its transmit queue's number and its counters. When a sender ends, a later
    /// one on the same queue takes over its counters, so that the list grows only with the number
    /// of simultaneous senders.
    send: Mutex<Vec<(u16, Arc<QueueCounts>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Queues {
    /// Returns the counters of this receive queue.
    pub(crate) fn receives_by(&self, queue: u16) -> Arc<QueueCounts> {
        let mut receive = lock(&self.receive);
        let queue = usize::from(queue);
        if receive.len() <= queue {
            receive.resize_with(queue + 1, Arc::default);
        }
        receive[queue].clone()
    }

    /// Returns the counters for a further sender on this transmit queue.
    pub(crate) fn sends_by(&self, queue: u16) -> Arc<QueueCounts> {
        let mut send = lock(&self.send);
        let free = |(number, counts): &&(u16, Arc<QueueCounts>)| {
            *number == queue && Arc::strong_count(counts) == 1
        };
        if let Some((_, counts)) = send.iter().find(free) {
            return counts.clone();
        }
        let counts = Arc::<QueueCounts>::default();
        send.push((queue, counts.clone()));
        counts
    }

    /// Returns the current values of the receive queues.
    pub(crate) fn received(&self) -> Vec<QueueStats> {
        let receive = lock(&self.receive);
        (0..).zip(&*receive).map(|(queue, counts)| stats(queue, counts)).collect()
    }

    /// Returns the current values for the transmit queues that are or were in use.
    pub(crate) fn sent(&self) -> Vec<QueueStats> {
        let mut queues: Vec<QueueStats> = Vec::new();
        for (queue, counts) in &*lock(&self.send) {
            let more = stats(*queue, counts);
            match queues.iter_mut().find(|known| known.queue == *queue) {
                Some(known) => {
                    (known.packets, known.bytes) =
                        (known.packets + more.packets, known.bytes + more.bytes)
                }
                None => queues.push(more),
            }
        }
        queues.sort_by_key(|queue| queue.queue);
        queues
    }
}

fn stats(queue: u16, counts: &QueueCounts) -> QueueStats {
    QueueStats { queue, packets: counts.packets.value(), bytes: counts.bytes.value(), drops: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_queues_ends_are_summed_and_closed_ends_counted_once() {
        let queues = Queues::default();
        let ends = [1, 0, 1].map(|queue| queues.sends_by(queue));
        for (end, packets) in ends.iter().zip([3, 5, 7]) {
            end.packets.add(packets);
            end.bytes.add(100 * packets);
        }
        let sent = |queues: &Queues| {
            queues
                .sent()
                .into_iter()
                .map(|queue| (queue.queue, queue.packets, queue.bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(sent(&queues), [(0, 5, 500), (1, 10, 1_000)]);
        drop(ends);
        assert_eq!(sent(&queues), [(0, 5, 500), (1, 10, 1_000)], "what was counted stays");
        // Workers come and go all the time.
        for _ in 0..100 {
            queues.sends_by(1).packets.add(1);
        }
        assert_eq!((sent(&queues)[1].1, lock(&queues.send).len()), (110, 3));
    }

    #[test]
    fn a_reopened_queue_keeps_its_counters() {
        let queues = Queues::default();
        queues.receives_by(1).packets.add(4);
        queues.receives_by(1).packets.add(5);
        assert_eq!(
            queues.received().iter().map(|queue| (queue.queue, queue.packets)).collect::<Vec<_>>(),
            [(0, 0), (1, 9)]
        );
    }
}
