//! Puts packets in order: by a counter that the caller supplies, such as the sequence number of a
//! tunnel or a queue ([`Order`]), or by TCP's sequence numbers, where packets may wait for a short
//! time ([`Gaps`]).
//!
//! Packets of a flow that were reordered on their way do not merge, because the engine keeps the
//! order in which they came. A program that decrypts packets on several threads, or receives them
//! from several queues, often knows the order in which they were sent.
//!
//! ```
//! use superpacket::order::{Order, OrderKey};
//! use superpacket::{Aggregator, HashKey, Policy, RxPacket, SuperPacket};
//! # use superpacket_traffic::frame::Frame;
//!
//! # let segment = |number: u32| Frame::tcp4(1 + number * 100, 100).with_id(number as u16).to_bytes();
//! // The third packet of a tunnel's peer overtook the second.
//! let received = [(7, segment(0)), (9, segment(2)), (8, segment(1))];
//! let mut packets: Vec<_> = received.iter().map(|(_, bytes)| RxPacket::new(bytes.as_slice())).collect();
//!
//! let mut order = Order::new();
//! let moved = order.restore(&mut packets, |index| Some(OrderKey::new(1, received[index].0)));
//! assert_eq!(moved, 2);
//!
//! let mut aggregator = Aggregator::new(Policy::gro(), HashKey::random());
//! let mut left = Vec::new();
//! let mut sink = |packet: SuperPacket<'_, &[u8]>| left.push(packet.metadata.packets);
//! aggregator.receive_batch(&mut packets, 0, &mut sink);
//! aggregator.poll_end(0, &mut sink);
//! assert_eq!(left, [3]);
//! ```

mod gaps;

use alloc::vec::Vec;

pub use gaps::{GapCounters, GapLimits, Gaps};

/// The position of a packet in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct OrderKey {
    /// The stream: a tunnel's peer or a queue. Only packets of the same stream are put in order.
    pub stream: u64,
    /// The packet's number in its stream, which increases with each packet sent. The caller extends
    /// a counter that wraps.
    pub position: u64,
}

impl OrderKey {
    /// Makes the key of the packet with this number in a stream.
    pub const fn new(stream: u64, position: u64) -> Self {
        OrderKey { stream, position }
    }
}

/// Puts the packets of a batch in order, and keeps its memory for the next batch.
#[derive(Debug, Default)]
pub struct Order {
    /// The order key of each packet that has one, with the packet's index in the batch as received.
    keys: Vec<(OrderKey, u32)>,
    /// Indices in the batch at which the packets with keys are placed: grouped by stream, and in
    /// increasing order within a stream.
    places: Vec<u32>,
    /// For each index of the ordered batch, the index at which its packet was received.
    from: Vec<u32>,
}

impl Order {
    /// Makes an `Order` that has not allocated memory yet.
    pub const fn new() -> Self {
        Order { keys: Vec::new(), places: Vec::new(), from: Vec::new() }
    }

    /// Puts the packets of each stream in the order of their positions, and returns the number of
    /// packets that moved. `key` returns the key of the packet at an index.
    ///
    /// The packets of a stream are exchanged only with each other. Packets without a key, and those
    /// of other streams, stay where they are. Packets with equal positions keep their order.
    ///
    /// A batch that is already sorted by stream and position costs one comparison per packet.
    /// Otherwise the keys are sorted, with about `n log n` comparisons for `n` packets whatever the
    /// traffic.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` packets.
    pub fn restore<T>(
        &mut self,
        packets: &mut [T],
        key: impl Fn(usize) -> Option<OrderKey>,
    ) -> usize {
        let count = u32::try_from(packets.len()).expect("at most u32::MAX packets");
        // Interleaved streams may not look sorted here; the steps below then move no packet.
        if (0..packets.len()).filter_map(&key).is_sorted() {
            return 0;
        }
        let Order { keys, places, from } = self;
        keys.clear();
        keys.extend((0..count).filter_map(|place| Some((key(place as usize)?, place))));
        // The index decides between equal positions.
        keys.sort_unstable();
        places.clear();
        places.extend(keys.iter().map(|&(_, place)| place));
        from.clear();
        from.extend(0..count);
        let mut begin = 0;
        for stream in keys.chunk_by(|(one, _), (other, _)| one.stream == other.stream) {
            let places = &mut places[begin..begin + stream.len()];
            begin += stream.len();
            places.sort_unstable();
            for (&place, &(_, comes_from)) in places.iter().zip(stream) {
                from[place as usize] = comes_from;
            }
        }
        permute(packets, from)
    }
}

/// Moves the packet at index `from[i]` to index `i`, for every `i`, and returns the number of
/// packets that moved.
fn permute<T>(packets: &mut [T], from: &mut [u32]) -> usize {
    let mut moved = 0;
    for start in 0..packets.len() {
        let mut place = start;
        loop {
            let comes_from = core::mem::replace(&mut from[place], place as u32) as usize;
            moved += usize::from(comes_from != place);
            if comes_from == start {
                break;
            }
            packets.swap(place, comes_from);
            place = comes_from;
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A packet in a test: its index before ordering, and its order key.
    type Came = (usize, Option<OrderKey>);

    fn restored(keys: &[Option<OrderKey>]) -> (Vec<Came>, usize) {
        let mut packets: Vec<Came> = keys.iter().copied().enumerate().collect();
        let moved = Order::new().restore(&mut packets, |place| keys[place]);
        (packets, moved)
    }

    #[test]
    fn those_of_a_stream_change_places_among_themselves() {
        let key = |stream, position| Some(OrderKey::new(stream, position));
        let (packets, moved) =
            restored(&[key(2, 9), None, key(1, 5), key(2, 7), key(1, 4), key(1, 5), key(3, 0)]);
        assert_eq!(
            packets.iter().map(|packet| packet.0).collect::<Vec<_>>(),
            [3, 1, 4, 0, 2, 5, 6],
            "of equal ones the first stays first"
        );
        assert_eq!(moved, 4);
        assert_eq!(
            restored(&[key(2, 1), key(1, 1), key(2, 2), key(1, 2)]).1,
            0,
            "in turn, and in order"
        );
        assert_eq!(restored(&[]).1, 0);
    }

    proptest! {
        #[test]
        fn any_keys(keys in proptest::collection::vec(proptest::option::weighted(0.8, (0..4_u64, 0..20_u64)), 0..80)) {
            let keys: Vec<_> = keys.into_iter().map(|key| key.map(|(stream, position)| OrderKey::new(stream, position))).collect();
            let (packets, moved) = restored(&keys);
            let streams = |key: Option<OrderKey>| key.map(|key| key.stream);
            let mut expected = Vec::new();
            for (place, key) in keys.iter().enumerate() {
                // The packet expected at this index: if `before` packets of its stream have lower
                // indices, the one that `before` others precede in the stream's order.
                let before = keys[..place].iter().filter(|other| streams(**other) == streams(*key)).count();
                let mut stream: Vec<_> = (0..keys.len()).filter(|&other| streams(keys[other]) == streams(*key)).collect();
                if key.is_some() {
                    stream.sort_by_key(|&other| keys[other]);
                }
                expected.push(stream[before]);
            }
            prop_assert_eq!(packets.iter().map(|packet| packet.0).collect::<Vec<_>>(), &expected[..]);
            prop_assert_eq!(moved, expected.iter().enumerate().filter(|(place, from)| place != *from).count());
        }
    }
}
