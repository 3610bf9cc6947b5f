//! Tells frames that came round a loop from all others.
//!
//! An address that is seen at two ports is only a hint: anybody can send with the address of
//! another. What nobody but a loop does is to bring the very same frame back, by a port that this
//! bridge has just sent it to. A frame that is dropped for it has been delivered already, so
//! whoever repeats the frames of others takes nothing from them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::super_packet::SuperPacket;
use superpacket_io::port::Buffer;

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
    /// Random: who chooses the traffic must not choose the places.
    hasher: RandomState,
    frames: Box<[[AtomicU64; WAYS]]>,
    /// By port: when a frame that had first come by another port came back there; 0: never.
    returned: Box<[AtomicU64]>,
    /// When an address was last seen at two ports; 0: never.
    suspected: AtomicU64,
    /// When the log last spoke of a loop; 0: never.
    warned: AtomicU64,
}

/// A flooded frame: 32 bits of its hash, 16 of the tick of its first copy, the port of that copy
/// (10 bits), how often that port has repeated it (5 bits), and whether another port has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Flooded(u64);

impl Flooded {
    fn new(tag: u32, tick: u16, port: u16) -> Flooded {
        Flooded(u64::from(tag) << 32 | u64::from(tick) << 16 | u64::from(port & 0x3ff) << 6)
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
        self.0 >> 1 & 0x1f
    }

    fn has_returned(self) -> bool {
        self.0 & 1 != 0
    }

    fn repeated(self) -> Flooded {
        if self.repeats() == 0x1f { self } else { Flooded(self.0 + 2) }
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

    /// Has this frame, which a port received and which is to be flooded, come round a loop? If it
    /// is the first of its kind, it is remembered.
    #[cold]
    pub(crate) fn has_come_round(&self, port: u16, packet: &SuperPacket<'_, Buffer>, now: u64) -> bool {
        let hash = self.hash(packet);
        let set = &self.frames[hash as usize % self.frames.len()];
        // 0 is a free place.
        let (tag, tick) = (((hash >> 32) as u32).max(1), now as u16);
        // Again if another thread has just changed the place; a frame that comes round comes again.
        for _ in 0..WAYS {
            let words = set.each_ref().map(|place| Flooded(place.load(Ordering::Relaxed)));
            let known = words.iter().position(|known| known.tag() == tag && known.age(tick) < WINDOW);
            let (index, next, came_round) = match known {
                Some(index) => {
                    let (next, came_round) = self.came_again(words[index], port, now);
                    (index, next, came_round)
                }
                // The time stays that of the first: what is sent again and again passes now and
                // then.
                None => match oldest(&words, tick) {
                    Some(index) => (index, Flooded::new(tag, tick, port), false),
                    // It has its turn when there is a place.
                    None => return false,
                },
            };
            let (before, place) = (words[index], &set[index]);
            if next == before || place.compare_exchange(before.0, next.0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return came_round;
            }
        }
        false
    }

    /// A frame that is known came again: what is remembered of it now, and has it come round?
    fn came_again(&self, known: Flooded, port: u16, now: u64) -> (Flooded, bool) {
        let returned = &self.returned[usize::from(port) % MAX_PORTS];
        if known.port() != port {
            returned.store(now, Ordering::Relaxed);
            self.warn(known.port(), port, now);
            return (known.returned(), true);
        }
        let is_of_loop = known.has_returned() || is_recent(returned, now);
        (known.repeated(), is_of_loop && known.repeats() >= MOST_REPEATS)
    }

    fn hash(&self, packet: &SuperPacket<'_, Buffer>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        identify(packet, &mut hasher);
        hasher.finish()
    }

    /// Says that there is a loop, unless it has just been said.
    fn warn(&self, first: u16, port: u16, now: u64) {
        let warned = self.warned.load(Ordering::Relaxed);
        if (warned == 0 || now.saturating_sub(warned) >= WARN_INTERVAL)
            && self.warned.compare_exchange(warned, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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

/// So many bytes of a frame's start are hashed, and as many of its end: all of most frames that are
/// flooded, and the headers and checksums of the others.
const HASHED: usize = 128;

/// Feeds a hasher with what tells a frame from others, its VLAN included: the same bytes in another
/// VLAN go to others. Of a super-packet it is the start and the end, so that floods of long packets
/// cost no more than floods of short ones.
fn identify(packet: &SuperPacket<'_, Buffer>, hasher: &mut impl Hasher) {
    let length = packet.length();
    hasher.write_u16(packet.metadata.vlan.map_or(0, |tag| tag.control & 0x0fff | 1 << 12));
    hasher.write_usize(length);
    let end = length.saturating_sub(HASHED).max(HASHED);
    let mut offset = 0;
    for slice in packet.slices() {
        // What lies of this slice in the first bytes, and in the last.
        for range in [0..HASHED, end..length] {
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
    use superpacket::packet::RxPacket;

    use super::*;

    /// Keeps what it is fed.
    #[derive(Default)]
    struct Fed(Vec<u8>);

    impl Hasher for Fed {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    fn fed(frame: &[u8]) -> Vec<u8> {
        let mut aggregator = Aggregator::new(Policy::gro().with_partial_checksums(), HashKey::new(1));
        let mut fed = Fed::default();
        let packet = RxPacket::new(Buffer::from(frame.to_vec()));
        aggregator.bypass(packet, &mut |packet: SuperPacket<'_, Buffer>| identify(&packet, &mut fed));
        fed.0
    }

    #[test]
    fn the_bytes_that_are_looked_at_are_bounded() {
        for length in [60, 127, 128, 129, 200, 256, 257, 300, 1_514, 65_549] {
            let frame: Vec<u8> = (0..length).map(|index| (index * 7 + index / 256) as u8).collect();
            let fed = fed(&frame);
            let bytes = &fed[size_of::<u16>() + size_of::<usize>()..];
            if length <= 2 * HASHED {
                assert_eq!(bytes, frame, "all of it");
            } else {
                assert_eq!(bytes, [&frame[..HASHED], &frame[length - HASHED..]].concat(), "{length}");
            }
        }
    }

    #[test]
    fn length_and_both_ends_tell_frames_apart() {
        let frame = vec![0u8; 2_000];
        let changed = |index: usize| {
            let mut frame = frame.clone();
            frame[index] = 1;
            fed(&frame)
        };
        for index in [0, 12, HASHED - 1, 2_000 - HASHED, 1_999] {
            assert_ne!(changed(index), fed(&frame), "{index}");
        }
        assert_ne!(fed(&frame[..1_999]), fed(&frame));
    }
}
