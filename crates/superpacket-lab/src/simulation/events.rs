//! The queue of future events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A request of this connection arrives at the device.
    Arrival(u32),
    /// This CPU has finished its current work.
    Done(usize),
    /// An inter-processor interrupt reaches this CPU.
    Ipi(usize),
}

/// Events ordered by time; events of the same time stay in the order in which they were scheduled.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
}

impl Events {
    pub(super) fn schedule(&mut self, time: u64, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((time, self.scheduled, event)));
    }

    /// Removes and returns the next event before `end`.
    pub(super) fn next_before(&mut self, end: u64) -> Option<(u64, Event)> {
        let Reverse((time, ..)) = self.queue.peek()?;
        if *time >= end {
            return None;
        }
        self.queue.pop().map(|Reverse((time, _, event))| (time, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_turn() {
        let mut events = Events::default();
        for (time, event) in
            [(5, Event::Done(1)), (3, Event::Ipi(7)), (5, Event::Arrival(0)), (9, Event::Done(0))]
        {
            events.schedule(time, event);
        }
        let order: Vec<_> = std::iter::from_fn(|| events.next_before(9)).collect();
        assert_eq!(order, [(3, Event::Ipi(7)), (5, Event::Done(1)), (5, Event::Arrival(0))]);
        assert_eq!(events.next_before(10), Some((9, Event::Done(0))));
        assert_eq!(events.next_before(u64::MAX), None);
    }
}
