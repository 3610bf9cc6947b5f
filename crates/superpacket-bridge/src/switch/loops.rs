//! Detects frames that return through a loop in the network.
//!
//! An address seen at two ports is only a reason for suspicion, because anybody can send with
//! another's address. The proof of a loop is an identical frame that returns by a port to which
//! this bridge has just sent it. The bridge drops a copy of a frame only if the first copy went to
//! every port that this copy would go to, except the port that received the first copy. So a host
//! that replays other hosts' frames, or sends them ahead, cannot suppress them.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::packet::RxChecksum;
use superpacket::super_packet::SuperPacket;
use superpacket_port::Buffer;

use crate::settings::MAX_PORTS;
use crate::switch::multicast::Recipients;

/// Time in ticks of the address table within which a copy of a flooded frame may have come from a
/// loop. Hosts retry later: ARP and neighbour discovery repeat after a second.
pub(crate) const WINDOW: u16 = 50;

/// Number of flooded frames that are remembered while a loop is suspected.
pub(crate) const REMEMBERED: usize = 4096;

/// Frames per set of the hash table of flooded frames; a set is one cache line.
const WAYS: usize = 8;

/// Ticks for which a remembered frame cannot be replaced by another. A frame in a loop returns
/// sooner. If frames replaced each other at once, no loop would be found, and all of them would
/// circulate for ever.
const MIN_KEEP: u16 = 2;

/// Number of times within [`WINDOW`] that a port which is part of a loop may receive the same
/// frame. In a loop in one direction a frame always returns to the port of its first copy, as if
/// its sender repeated it, so only the number shows the loop.
pub(crate) const MAX_LOOP_REPEATS: u64 = 8;

/// Ticks for which a suspicion of a loop, or the return of a frame, counts. A loop in one direction
/// shows only when another host broadcasts, which ARP does about once a minute.
const SUSPICION: u64 = 6000;

/// Minimum interval between log messages about loops, in ticks, so that traffic cannot fill the
/// log.
const WARN_INTERVAL: u64 = 100;

/// The frames flooded within the last half second, while a loop is suspected. Shared by all threads
/// without a lock.
#[derive(Debug)]
pub(crate) struct LoopGuard {
    /// Random hash function, so that a sender can predict neither the slots of frames nor which
    /// bytes of a long packet are hashed.
    hasher: RandomState,
    frames: Box<[[AtomicU64; WAYS]]>,
    /// For each port: when it last received a frame that another port had received first; 0 for
    /// never.
    last_return: Box<[AtomicU64]>,
    /// When an address was last seen at two ports; 0 for never.
    last_suspicion: AtomicU64,
    /// When a loop was last logged; 0 for never.
    last_warning: AtomicU64,
}

/// The port that received a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IngressPort {
    pub(crate) port: u16,
    /// Whether the port has the flag `isolated`, so that its frames are sent to no other isolated
    /// port.
    pub(crate) is_isolated: bool,
}

/// A record of a flooded frame. It contains 32 bits of the frame's hash, the tick and the port of
/// the first copy (16 and 10 bits), how often that port repeated the frame (4 bits), whether that
/// port was isolated, and whether another port received the frame as well.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FloodedFrame(u64);

/// Highest number of repeats that a record of a flooded frame can hold.
const MAX_REPEATS: u64 = 0xf;

const _: () = assert!(MAX_LOOP_REPEATS <= MAX_REPEATS);

impl FloodedFrame {
    fn new(tag: u32, tick: u16, by: IngressPort) -> FloodedFrame {
        let place = u64::from(tag) << 32 | u64::from(tick) << 16;
        FloodedFrame(place | u64::from(by.port & 0x3ff) << 6 | u64::from(by.is_isolated) << 1)
    }

    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn tick(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the ticks since the first copy of the frame was received.
    fn age(self, tick: u16) -> u16 {
        match tick.wrapping_sub(self.tick()) {
            age if age <= u16::MAX / 2 => age,
            // Another thread, whose round began later, recorded the frame.
            _ => 0,
        }
    }

    fn port(self) -> u16 {
        (self.0 >> 6 & 0x3ff) as u16
    }

    fn repeats(self) -> u64 {
        self.0 >> 2 & MAX_REPEATS
    }

    /// Returns whether the first copy was received by an isolated port.
    fn is_from_isolated_port(self) -> bool {
        self.0 & 2 != 0
    }

    fn has_returned(self) -> bool {
        self.0 & 1 != 0
    }

    fn repeated(self) -> FloodedFrame {
        if self.repeats() == MAX_REPEATS { self } else { FloodedFrame(self.0 + 4) }
    }

    fn returned(self) -> FloodedFrame {
        FloodedFrame(self.0 | 1)
    }
}

impl LoopGuard {
    /// Returns a detector that has seen no frames and suspects no loop.
    pub(crate) fn new() -> Self {
        LoopGuard {
            hasher: RandomState::new(),
            frames: (0..REMEMBERED / WAYS).map(|_| Default::default()).collect(),
            last_return: (0..MAX_PORTS).map(|_| AtomicU64::new(0)).collect(),
            last_suspicion: AtomicU64::new(0),
            last_warning: AtomicU64::new(0),
        }
    }

    /// Records that an address was seen at two ports, so that there may be a loop.
    pub(crate) fn suspect(&self, now: u64) {
        self.last_suspicion.store(now, Ordering::Relaxed);
    }

    /// Returns whether a loop is suspected, so that flooded frames must be checked.
    pub(crate) fn is_suspected(&self, now: u64) -> bool {
        is_recent(&self.last_suspicion, now)
    }

    /// Returns whether a frame, which is about to be flooded to at least one port, has returned
    /// through a loop. If this is the first copy of the frame, it is recorded. `recipients` lists
    /// the receivers of a multicast frame.
    #[cold]
    pub(crate) fn has_come_round(
        &self,
        by: IngressPort,
        packet: &SuperPacket<'_, Buffer>,
        recipients: &Recipients,
        now: u64,
    ) -> bool {
        let hash = self.hash(packet, recipients);
        let set = &self.frames[hash as usize % self.frames.len()];
        // 0 marks a free slot.
        let (tag, tick) = (((hash >> 32) as u32).max(1), now as u16);
        // Retried if another thread has just changed the slot. If all attempts fail, the frame
        // passes; a frame in a loop comes again.
        for _ in 0..WAYS {
            let words = set.each_ref().map(|place| FloodedFrame(place.load(Ordering::Relaxed)));
            let known =
                words.iter().position(|known| known.tag() == tag && known.age(tick) < WINDOW);
            let (index, next, came_round) = match known {
                Some(index) => {
                    let (next, came_round) = self.came_again(words[index], tick, by, now);
                    (index, next, came_round)
                }
                // A record keeps the time of the first copy, so that a frame that a host repeats
                // without end passes now and then.
                None => match oldest(&words, tick) {
                    Some(index) => (index, FloodedFrame::new(tag, tick, by), false),
                    // No slot can be used. A frame in a loop comes again and may find one.
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

    /// Handles another copy of a recorded frame. Returns the changed record, and whether the frame
    /// has returned through a loop.
    fn came_again(
        &self,
        known: FloodedFrame,
        tick: u16,
        by: IngressPort,
        now: u64,
    ) -> (FloodedFrame, bool) {
        let port = by.port;
        if known.port() != port && known.is_from_isolated_port() && !by.is_isolated {
            // The first copy did not go to isolated ports, but this one does. So this one is
            // recorded instead, and only the next copy has gone to all ports before.
            return (FloodedFrame::new(known.tag(), tick, by), false);
        }
        let returned = &self.last_return[usize::from(port) % MAX_PORTS];
        if known.port() != port {
            returned.store(now, Ordering::Relaxed);
            self.warn(known.port(), port, now);
            return (known.returned(), true);
        }
        let is_of_loop = known.has_returned() || is_recent(returned, now);
        (known.repeated(), is_of_loop && known.repeats() >= MAX_LOOP_REPEATS)
    }

    fn hash(&self, packet: &SuperPacket<'_, Buffer>, recipients: &Recipients) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        identify(packet, recipients, &mut hasher);
        hasher.finish()
    }

    /// Logs that there is a loop, at most once per [`WARN_INTERVAL`].
    fn warn(&self, first: u16, port: u16, now: u64) {
        let last_warning = self.last_warning.load(Ordering::Relaxed);
        if (last_warning == 0 || now.saturating_sub(last_warning) >= WARN_INTERVAL)
            && self
                .last_warning
                .compare_exchange(last_warning, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            tracing::warn!(
                first,
                again = port,
                "a loop: a flooded frame returned by another port (numbered from 0), and is dropped"
            );
        }
    }
}

/// Returns the slot for a new frame: a free one, or that of the oldest frame. `None` if all frames
/// are too new to be replaced.
fn oldest(words: &[FloodedFrame; WAYS], tick: u16) -> Option<usize> {
    let age = |known: &FloodedFrame| if known.0 == 0 { u16::MAX } else { known.age(tick) };
    let (index, age) = words.iter().map(age).enumerate().max_by_key(|&(_, age)| age)?;
    (age >= MIN_KEEP).then_some(index)
}

/// Returns whether the event at `time`, a suspicion of a loop or the return of a frame, is recent
/// enough to count.
fn is_recent(time: &AtomicU64, now: u64) -> bool {
    let time = time.load(Ordering::Relaxed);
    time != 0 && now.saturating_sub(time) <= SUSPICION
}

/// Maximum length in bytes of packets that are hashed completely. Only super-packets and jumbo
/// frames are longer.
const WHOLE: usize = 2_048;

/// Number of bytes that are hashed at the start, and at the end, of a packet longer than [`WHOLE`].
const END: usize = 128;

/// Number of ranges that are hashed between the two ends of a packet longer than [`WHOLE`].
const RANGES: usize = 16;
/// Number of bytes in each of the [`RANGES`].
const RANGE: usize = 64;

/// Feeds a hasher with all that identifies a packet: its bytes, VLAN, recipients, segmentation and
/// partial checksum. Copies that differ in one of these are sent to other ports, or with other
/// contents.
///
/// Of a packet longer than [`WHOLE`], only the two ends and some ranges between them are hashed, so
/// that floods of long packets cost no more than floods of short ones. The hasher's secret key
/// determines the ranges.
fn identify(packet: &SuperPacket<'_, Buffer>, recipients: &Recipients, hasher: &mut impl Hasher) {
    let length = packet.length();
    let metadata = &packet.metadata;
    let partial =
        matches!(metadata.checksum, RxChecksum::Partial { .. }).then_some(metadata.checksum);
    (metadata.vlan, metadata.gso, partial, recipients, length).hash(hasher);
    if length <= WHOLE {
        return packet.slices().for_each(|slice| hasher.write(slice));
    }
    feed(packet, &[0..END, length - END..length], hasher);
    feed(packet, &between(length, hasher.finish()), hasher);
}

/// Returns the ranges that are hashed between the two ends of a long packet. The packet is divided
/// into equal parts, and each part has one range, at a position derived from the seed.
fn between(length: usize, mut seed: u64) -> [Range<usize>; RANGES] {
    let part = (length - 2 * END) / RANGES;
    std::array::from_fn(|index| {
        // Knuth's linear congruential generator. Its upper bits are random enough.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = ((u128::from(seed) * (part - RANGE + 1) as u128) >> 64) as usize;
        let start = END + index * part + offset;
        start..start + RANGE
    })
}

/// Feeds a hasher with the bytes of a packet in `ranges`, which are in ascending order.
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
    use crate::egress::recorder::pass;
    use superpacket::packet::{RxPacket, VlanTag};
    use superpacket::segment::{Gso, GsoKind, SegmentSize};

    use super::*;

    /// A hasher for tests that keeps the bytes it is fed.
    struct Fed {
        bytes: Vec<u8>,
        /// The hash value that `finish` returns.
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
        let (mut then, mut result) = (Some(then), None);
        pass(packet, &mut |packet| result = then.take().map(|then| then(&packet)));
        result.expect("one packet")
    }

    fn received(frame: &[u8]) -> RxPacket<Buffer> {
        RxPacket::new(Buffer::from(frame.to_vec()))
    }

    fn fed_packet(packet: RxPacket<Buffer>, hash: u64) -> Vec<u8> {
        let mut fed = Fed { bytes: Vec::new(), hash };
        with(packet, |packet| identify(packet, &Recipients::All, &mut fed));
        fed.bytes
    }

    fn fed(frame: &[u8]) -> Vec<u8> {
        fed_packet(received(frame), 0x9e37_79b9_7f4a_7c15)
    }

    /// Returns the number of bytes that are hashed for each packet besides its own bytes.
    fn besides() -> usize {
        fed(&[]).len()
    }

    fn numbered(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 + index / 256) as u8).collect()
    }

    #[test]
    fn the_number_of_hashed_bytes_is_bounded() {
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
    fn every_byte_of_a_frame_and_both_ends_of_a_long_packet_are_hashed() {
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
    fn the_hashed_ranges_of_a_long_packet_are_random() {
        let length = 65_549;
        let mut looked_at = vec![0; length];
        for seed in 0..2_000u64 {
            // Pseudo-random and different for each packet, as a hash is.
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
            with(received(&numbered(600)), |packet| guard.hash(packet, &Recipients::All))
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
    fn equal_bytes_with_other_recipients_or_segmentation_are_another_packet() {
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
        // The device's verdict on the checksum must not change the hash.
        assert_eq!(
            fed_packet(plain().with_checksum(RxChecksum::Unnecessary { level: 0 }), 0),
            fed_packet(plain(), 0)
        );
        let guard = LoopGuard::new();
        let to = |recipients: Recipients| with(plain(), |packet| guard.hash(packet, &recipients));
        assert_ne!(to(Recipients::All), to(Recipients::Ports([1, 2].into_iter().collect())));
        assert_ne!(
            to(Recipients::Ports([1].into_iter().collect())),
            to(Recipients::Ports([1, 2].into_iter().collect()))
        );
    }
}
