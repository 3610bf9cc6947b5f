//! Restores the order of a capture's packets after their aggregation.
//!
//! Aggregation lets single packets pass while it holds earlier ones, so packets leave it in another
//! order than their frames came in. Each frame has a place in a queue. A packet that leaves takes
//! the place of one of its frames, and waits there until no earlier frame is held.
//!
//! Frames are numbered from 1 as [`CaptureAggregator`](super::lanes::CaptureAggregator) numbers
//! them. Only the low 32 bits of a number are used, since far fewer frames wait at a time.

use std::collections::VecDeque;

use crate::file::Timestamp;

/// Number of positions above which the caller must release all held packets. It bounds the memory
/// for positions that no packet will take, because their frames were merged into earlier packets.
pub(super) const MAX_PLACES: usize = 1 << 16;

/// The output positions of frames, from the oldest frame that is still held to the newest one. `T`
/// is a packet that waits until no earlier frame is held.
#[derive(Debug)]
pub(super) struct InOrder<T> {
    places: VecDeque<Place>,
    /// Number of the frame to which the first element of `places` belongs.
    first: u32,
    /// The packets that wait for earlier frames; `None` for an unused element.
    waiting: Vec<Option<T>>,
    /// Indices of the unused elements of `waiting`.
    room: Vec<u32>,
}

/// The output position of a frame. Most positions become empty at once, so this type is kept small.
#[derive(Debug)]
struct Place {
    time: Option<Timestamp>,
    content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The aggregator holds the frame, or has merged it into an earlier packet without this being
    /// known yet.
    Held,
    /// No packet takes this position, or its packet has been written.
    Nothing,
    /// The packet at this index of [`InOrder::waiting`] takes this position.
    Waiting(u32),
}

impl<T> Default for InOrder<T> {
    fn default() -> Self {
        InOrder { places: VecDeque::new(), first: 1, waiting: Vec::new(), room: Vec::new() }
    }
}

impl<T> InOrder<T> {
    /// Adds an output position for the next frame, which was captured at `time`.
    #[inline]
    pub(super) fn add(&mut self, time: Option<Timestamp>) {
        self.places.push_back(Place { time, content: Content::Held });
    }

    /// Returns the number of output positions that are kept.
    #[inline]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of the newest frame.
    #[inline]
    pub(super) fn newest(&self) -> u32 {
        self.first.wrapping_add(self.places.len() as u32).wrapping_sub(1)
    }

    /// Assigns the output position of a held frame to a packet. If no earlier frame is held,
    /// returns the packet with the time of that position, and the caller writes it at once.
    #[inline]
    pub(super) fn fill(&mut self, number: u32, packet: T) -> Option<(Option<Timestamp>, T)> {
        let is_first = number == self.first;
        let place = self.places.get_mut(number.wrapping_sub(self.first) as usize)?;
        if is_first {
            place.content = Content::Nothing;
            return Some((place.time, packet));
        }
        let index = self.room.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() as u32 - 1
        });
        self.waiting[index as usize] = Some(packet);
        place.content = Content::Waiting(index);
        None
    }

    /// Leaves the output position of a frame empty, unless a packet has taken it.
    #[inline]
    pub(super) fn leave_empty(&mut self, number: u32) {
        if let Some(place) = self.places.get_mut(number.wrapping_sub(self.first) as usize)
            && place.content == Content::Held
        {
            place.content = Content::Nothing;
        }
    }

    /// Returns the next packet in order, with the time of its position; `None` if the next frame in
    /// order is still held.
    #[inline]
    pub(super) fn next(&mut self) -> Option<(Option<Timestamp>, T)> {
        loop {
            let &Place { time, content } = self.places.front()?;
            if content == Content::Held {
                return None;
            }
            self.places.pop_front();
            self.first = self.first.wrapping_add(1);
            if let Content::Waiting(index) = content {
                self.room.push(index);
                return Some((time, self.waiting.get_mut(index as usize)?.take()?));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(order: &mut InOrder<&'static str>) -> Vec<(u64, &'static str)> {
        std::iter::from_fn(|| order.next())
            .map(|(time, packet)| (time.map_or(0, |time| time.nanoseconds()), packet))
            .collect()
    }

    #[test]
    fn packets_wait_for_earlier_ones_and_have_the_time_of_their_place() {
        let mut order = InOrder::default();
        (1..=5).for_each(|time| order.add(Some(Timestamp::from_nanoseconds(time))));
        assert_eq!((order.places(), order.newest()), (5, 5));
        assert_eq!(order.fill(2, "passed"), None);
        order.leave_empty(3);
        assert_eq!(drain(&mut order), [], "1 is held");
        let first = Some(Timestamp::from_nanoseconds(1));
        assert_eq!(order.fill(1, "1 and 3"), Some((first, "1 and 3")), "at once");
        assert_eq!(drain(&mut order), [(2, "passed")]);
        assert_eq!(order.fill(5, "4 and 5"), None);
        order.leave_empty(5);
        assert_eq!(drain(&mut order), [], "4 is held");
        order.leave_empty(4);
        assert_eq!(drain(&mut order), [(5, "4 and 5")], "a place that is taken stays taken");
        order.leave_empty(5);
        assert_eq!((order.places(), order.newest()), (0, 5), "a place in the past");
    }

    #[test]
    fn numbers_wrap() {
        let mut order = InOrder { first: u32::MAX, ..InOrder::default() };
        order.add(None);
        order.add(None);
        assert_eq!(order.newest(), 0);
        assert_eq!(order.fill(0, "second"), None);
        assert_eq!(order.fill(u32::MAX, "first"), Some((None, "first")));
        assert_eq!(drain(&mut order), [(0, "second")]);
    }
}
