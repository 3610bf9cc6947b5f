//! Tells frames that came round a loop from all others.
//!
//! An address that is seen at two ports is only a hint: anybody can send with the address of
//! another. What nobody but a loop does is to bring the very same frame back, by a port that this
//! bridge has just sent it to. A frame that is dropped for it has gone to all ports that it would
//! go to now, but for the one that its first copy came by: so whoever repeats the frames of others,
//! or sends them ahead, takes nothing from them.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::packet::RxChecksum;
use superpacket::super_packet::SuperPacket;
use superpacket_port::Buffer;

use crate::multicast::Given;
use crate::settings::MAX_PORTS;

/// A flooded frame that is the same as one within this time may have come round, in ticks of the
/// table. Who asks again does so later: ARP and neighbour discovery after a second.
pub(crate) const WINDOW: u16 = 50;

/// How many frames are remembered while a loop is suspected.
pub(crate) const REMEMBERED: usize = 4096;

/// Frames whose hashes leave them the same places: a cache line.
const WAYS: usize = 8;

/// For so many ticks, a frame keeps its place although others have none. A frame of a loop is back
/// in less; if frames took their places from each other at once, all of them would go round for
/// ever.
const KEPT: u16 = 2;

/// How often a port that is part of a loop may repeat a frame within [`WINDOW`]. A frame that goes
/// round in one direction comes back to the port that it first came by, as if its sender repeated
/// it.
pub(crate) const MOST_REPEATS: u64 = 8;

/// How long a hint or a frame that came back counts, in ticks: what goes round in one direction
/// only shows itself when somebody else speaks to all, as ARP does about once a minute.
const SUSPICION: u64 = 6000;

/// How seldom the log speaks of loops, in ticks: who chooses the traffic must not fill it.
const WARN_INTERVAL: u64 = 100;

/// The frames that were flooded within the last half second, while a loop is suspected. Shared by
/// all threads, without a lock.
#[derive(Debug)]
pub(crate) struct LoopGuard {
    /// Random: who chooses the traffic must not choose the places, nor know which bytes of a long
    /// packet are looked at.
    hasher: RandomState,
    frames: Box<[[AtomicU64; WAYS]]>,
    /// By port: when a frame that had first come by another port came back there; 0: never.
    returned: Box<[AtomicU64]>,
    /// When an address was last seen at two ports; 0: never.
    suspected: AtomicU64,
    /// When the log last spoke of a loop; 0: never.
    warned: AtomicU64,
}

/// A port that a frame came by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) port: u16,
    /// What comes by it goes to no isolated port.
    pub(crate) is_isolated: bool,
}

/// A flooded frame: 32 bits of its hash, 16 of the tick of its first copy, the port of that copy
/// (10 bits), how often that port has repeated it (4 bits), whether that port was isolated, and
/// whether another port has repeated the frame.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Flooded(u64);

/// The greatest number of repeats that is counted.
const COUNTED: u64 = 0xf;

const _: () = assert!(MOST_REPEATS <= COUNTED);

impl Flooded {
    fn new(tag: u32, tick: u16, by: Arrival) -> Flooded {
        let place = u64::from(tag) << 32 | u64::from(tick) << 16;
        Flooded(place | u64::from(by.port & 0x3ff) << 6 | u64::from(by.is_isolated) << 1)
    }

    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn tick(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// How long ago the first copy came, for a frame that is there.
    fn age(self, tick: u16) -> u16 {
        match tick.wrapping_sub(self.tick()) {
            age if age <= u16::MAX / 2 => age,
            // Another thread's round began later.
            _ => 0,
        }
    }

    fn port(self) -> u16 {
        (self.0 >> 6 & 0x3ff) as u16
    }

    fn repeats(self) -> u64 {
        self.0 >> 2 & COUNTED
    }

    /// Did the first copy come by an isolated port?
    fn is_of_isolated(self) -> bool {
        self.0 & 2 != 0
    }

    fn has_returned(self) -> bool {
        self.0 & 1 != 0
    }

    fn repeated(self) -> Flooded {
        if self.repeats() == COUNTED { self } else { Flooded(self.0 + 4) }
    }

    fn returned(self) -> Flooded {
        Flooded(self.0 | 1)
    }
}

impl LoopGuard {
    /// Nothing is suspected.
    pub(crate) fn new() -> Self {
        LoopGuard {
            hasher: RandomState::new(),
            frames: (0..REMEMBERED / WAYS).map(|_| Default::default()).collect(),
            returned: (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect(),
            suspected: AtomicU64::new(0),
            warned: AtomicU64::new(0),
        }
    }

    /// An address was seen at two ports at once: there may be a loop.
    pub(crate) fn suspect(&self, now: u64) {
        self.suspected.store(now, Ordering::Relaxed);
    }

    /// Are flooded frames to be looked at?
    pub(crate) fn is_suspected(&self, now: u64) -> bool {
        is_recent(&self.suspected, now)
    }

    /// Has this frame, which a port received and which is about to be flooded to at least one port,
    /// come round a loop? If it is the first of its kind, it is remembered. `given` says to whom it
    /// goes if it is for many.
    #[cold]
    pub(crate) fn has_come_round(
        &self,
        by: Arrival,
        packet: &SuperPacket<'_, Buffer>,
        given: &Given,
        now: u64,
    ) -> bool {
        let hash = self.hash(packet, given);
        let set = &self.frames[hash as usize % self.frames.len()];
        // 0 is a free place.
        let (tag, tick) = (((hash >> 32) as u32).max(1), now as u16);
        // Again if another thread has just changed the place; a frame that comes round comes again.
        for _ in 0..WAYS {
            let words = set.each_ref().map(|place| Flooded(place.load(Ordering::Relaxed)));
            let known =
                words.iter().position(|known| known.tag() == tag && known.age(tick) < WINDOW);
            let (index, next, came_round) = match known {
                Some(index) => {
                    let (next, came_round) = self.came_again(words[index], tick, by, now);
                    (index, next, came_round)
                }
                // The time stays that of the first: what is sent again and again passes now and
                // then.
                None => match oldest(&words, tick) {
                    Some(index) => (index, Flooded::new(tag, tick, by), false),
                    // It has its turn when there is a place.
                    None => return false,
                },
            };
            let (before, place) = (words[index], &set[index]);
            if next == before
                || place
                    .compare_exchange(before.0, next.0, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                return came_round;
            }
        }
        false
    }

    /// A frame that is known came again: what is remembered of it now, and has it come round?
    fn came_again(&self, known: Flooded, tick: u16, by: Arrival, now: u64) -> (Flooded, bool) {
        let port = by.port;
        if known.port() != port && known.is_of_isolated() && !by.is_isolated {
            // No isolated port has had it yet, and this copy goes to them. The next one has gone
            // to all.
            return (Flooded::new(known.tag(), tick, by), false);
        }
        let returned = &self.returned[usize::from(port) % MAX_PORTS];
        if known.port() != port {
            returned.store(now, Ordering::Relaxed);
            self.warn(known.port(), port, now);
            return (known.returned(), true);
        }
        let is_of_loop = known.has_returned() || is_recent(returned, now);
        (known.repeated(), is_of_loop && known.repeats() >= MOST_REPEATS)
    }

    fn hash(&self, packet: &SuperPacket<'_, Buffer>, given: &Given) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        identify(packet, given, &mut hasher);
        hasher.finish()
    }

    /// Says that there is a loop, unless it has just been said.
    fn warn(&self, first: u16, port: u16, now: u64) {
        let warned = self.warned.load(Ordering::Relaxed);
        if (warned == 0 || now.saturating_sub(warned) >= WARN_INTERVAL)
            && self
                .warned
                .compare_exchange(warned, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            tracing::warn!(
                first,
                again = port,
                "a loop: a frame that was flooded came back by another port (by number, from 0 on), and is dropped there"
            );
        }
    }
}

/// The place that a frame may have that has none: a free one, or that of the oldest.
fn oldest(words: &[Flooded; WAYS], tick: u16) -> Option<usize> {
    let age = |known: &Flooded| if known.0 == 0 { u16::MAX } else { known.age(tick) };
    let (index, age) = words.iter().map(age).enumerate().max_by_key(|&(_, age)| age)?;
    (age >= KEPT).then_some(index)
}

/// Was this within the time that a hint counts?
fn is_recent(time: &AtomicU64, now: u64) -> bool {
    let time = time.load(Ordering::Relaxed);
    time != 0 && now.saturating_sub(time) <= SUSPICION
}

/// Packets of at most so many bytes are hashed whole: all that are not super-packets or jumbo
/// frames.
const WHOLE: usize = 2_048;

/// So many bytes of a longer packet's start are hashed, and as many of its end.
const END: usize = 128;

/// So many ranges between them are hashed, and of so many bytes.
const RANGES: usize = 16;
const RANGE: usize = 64;

/// Feeds a hasher with what tells a packet from others: its bytes, and whatever else decides who is
/// given what. The same bytes in another VLAN go to others; cut otherwise, or with a checksum that
/// nobody fills in, they are not what the receiver was to have.
///
/// Of packets of more than [`WHOLE`] bytes it is a part, so that floods of long packets cost no
/// more than floods of short ones: both ends, and ranges between them that nobody can know who does
/// not know the hasher's key.
fn identify(packet: &SuperPacket<'_, Buffer>, given: &Given, hasher: &mut impl Hasher) {
    let length = packet.length();
    let metadata = &packet.metadata;
    let partial =
        matches!(metadata.checksum, RxChecksum::Partial { .. }).then_some(metadata.checksum);
    (metadata.vlan, metadata.gso, partial, given, length).hash(hasher);
    if length <= WHOLE {
        return packet.slices().for_each(|slice| hasher.write(slice));
    }
    feed(packet, &[0..END, length - END..length], hasher);
    feed(packet, &between(length, hasher.finish()), hasher);
}

/// The ranges that are hashed between a packet's ends: one in each part of equal length, at a place
/// that the seed says.
fn between(length: usize, mut seed: u64) -> [Range<usize>; RANGES] {
    let part = (length - 2 * END) / RANGES;
    std::array::from_fn(|index| {
        // Knuth's linear congruential generator, of which the upper bits are the random ones.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = ((u128::from(seed) * (part - RANGE + 1) as u128) >> 64) as usize;
        let start = END + index * part + offset;
        start..start + RANGE
    })
}

/// Feeds a hasher with these ranges of a packet, which lie one behind the other.
fn feed(packet: &SuperPacket<'_, Buffer>, ranges: &[Range<usize>], hasher: &mut impl Hasher) {
    let mut offset = 0;
    for slice in packet.slices() {
        for range in ranges {
            let from = range.start.saturating_sub(offset).min(slice.len());
            let to = range.end.saturating_sub(offset).clamp(from, slice.len());
            hasher.write(&slice[from..to]);
        }
        offset += slice.len();
    }
}

#[cfg(test)]
mod tests {
    use superpacket::aggregate::{Aggregator, HashKey, Policy};
    use superpacket::packet::{RxPacket, VlanTag};
    use superpacket::segment::{Gso, GsoKind, SegmentSize};

    use super::*;

    /// Keeps what it is fed.
    struct Fed {
        bytes: Vec<u8>,
        /// The hash of anything.
        hash: u64,
    }

    impl Hasher for Fed {
        fn write(&mut self, bytes: &[u8]) {
            self.bytes.extend_from_slice(bytes);
        }

        fn finish(&self) -> u64 {
            self.hash
        }
    }

    fn with<T>(packet: RxPacket<Buffer>, then: impl FnOnce(&SuperPacket<'_, Buffer>) -> T) -> T {
        let mut aggregator =
            Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1));
        let (mut then, mut result) = (Some(then), None);
        aggregator.bypass(packet, &mut |packet: SuperPacket<'_, Buffer>| {
            result = then.take().map(|then| then(&packet))
        });
        result.expect("one packet")
    }

    fn received(frame: &[u8]) -> RxPacket<Buffer> {
        RxPacket::new(Buffer::from(frame.to_vec()))
    }

    fn fed_packet(packet: RxPacket<Buffer>, hash: u64) -> Vec<u8> {
        let mut fed = Fed { bytes: Vec::new(), hash };
        with(packet, |packet| identify(packet, &Given::All, &mut fed));
        fed.bytes
    }

    fn fed(frame: &[u8]) -> Vec<u8> {
        fed_packet(received(frame), 0x9e37_79b9_7f4a_7c15)
    }

    /// What is said of a frame besides its bytes.
    fn besides() -> usize {
        fed(&[]).len()
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 + index / 256) as u8).collect()
    }

    #[test]
    fn the_bytes_that_are_looked_at_are_bounded() {
        for length in [60, 127, 128, 257, 600, 1_514, WHOLE] {
            let frame = numbered(length);
            assert_eq!(fed(&frame)[besides()..], frame, "all of it");
        }
        for length in [WHOLE + 1, 9_014, 65_549, 524_294] {
            let frame = numbered(length);
            let bytes = &fed(&frame)[besides()..];
            assert_eq!(bytes.len(), 2 * END + RANGES * RANGE, "{length}");
            assert_eq!(
                bytes[..2 * END],
                [&frame[..END], &frame[length - END..]].concat(),
                "{length}"
            );
        }
    }

    #[test]
    fn every_byte_of_a_frame_and_both_ends_of_a_long_packet_tell_it_from_others() {
        let differs = |length: usize, index: usize| {
            let mut frame = vec![0u8; length];
            let before = fed(&frame);
            frame[index] = 1;
            fed(&frame) != before
        };
        for index in [0, 12, 127, 128, 299, 300, 471, 472, 599] {
            assert!(differs(600, index), "{index}");
        }
        for index in [0, 12, END - 1, 9_000 - END, 8_999] {
            assert!(differs(9_000, index), "{index}");
        }
        assert_ne!(fed(&[0; 1_999]), fed(&[0; 2_000]));
    }

    #[test]
    fn where_a_long_packet_is_looked_at_nobody_knows() {
        let length = 65_549;
        let mut looked_at = vec![0; length];
        for seed in 0..2_000u64 {
            // As a hash is: another one altogether for each packet.
            let ranges = between(length, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(ranges.is_sorted_by_key(|range| range.start), "{ranges:?}");
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
            assert!(ranges[0].start >= END && ranges[RANGES - 1].end <= length - END, "{ranges:?}");
            ranges.into_iter().flatten().for_each(|index| looked_at[index] += 1);
        }
        let seldom = looked_at[END + RANGE..length - END - RANGE]
            .iter()
            .filter(|&&times| times == 0)
            .count();
        assert!(seldom * 20 < length, "{seldom} bytes are never looked at");
        let hash = |guard: &LoopGuard| {
            with(received(&numbered(600)), |packet| guard.hash(packet, &Given::All))
        };
        assert_ne!(
            hash(&LoopGuard::new()),
            hash(&LoopGuard::new()),
            "each bridge has a key of its own"
        );
        assert_ne!(
            fed_packet(received(&numbered(9_000)), 1 << 60),
            fed_packet(received(&numbered(9_000)), 2 << 60)
        );
    }

    #[test]
    fn the_same_bytes_are_another_packet_where_others_are_given_it_or_it_is_cut_otherwise() {
        let plain = || received(&numbered(600));
        let gso = |size| Gso::new(GsoKind::Udp, SegmentSize::new(size).expect("not zero"));
        let tagged = |protocol, control| {
            let mut packet = plain();
            packet.vlan = Some(VlanTag { protocol, control });
            packet
        };
        let cut = |size| {
            let mut packet = plain().with_checksum(RxChecksum::Partial { start: 34, offset: 6 });
            packet.gso = Some(gso(size));
            packet
        };
        let packets = [
            plain(),
            tagged(0x8100, 10),
            tagged(0x8100, 11),
            tagged(0x88a8, 10),
            plain().with_checksum(RxChecksum::Partial { start: 34, offset: 6 }),
            plain().with_checksum(RxChecksum::Partial { start: 34, offset: 16 }),
            cut(100),
            cut(200),
        ];
        let fed: std::collections::HashSet<_> =
            packets.into_iter().map(|packet| fed_packet(packet, 0)).collect();
        assert_eq!(fed.len(), 8);
        // What a port has verified is no part of it.
        assert_eq!(
            fed_packet(plain().with_checksum(RxChecksum::Unnecessary { level: 0 }), 0),
            fed_packet(plain(), 0)
        );
        let guard = LoopGuard::new();
        let to = |given: Given| with(plain(), |packet| guard.hash(packet, &given));
        assert_ne!(to(Given::All), to(Given::Ports([1, 2].into_iter().collect())));
        assert_ne!(
            to(Given::Ports([1].into_iter().collect())),
            to(Given::Ports([1, 2].into_iter().collect()))
        );
    }
}
