//! Access to a packet's payload, which lies in several byte ranges: positions, sums and copies.

use super::template::{PayloadSums, WantedSums};
use super::{SegmentError, Segmentable};
use crate::checksum::{Sum, at_offset};
use superpacket_simd::Simd;

/// A position in a packet's payload: the index of a range of bytes, and an offset in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) range: usize,
    pub(super) offset: usize,
}

impl Position {
    /// Returns the position that lies `bytes` further, or the end of the packet if it is nearer.
    #[inline(always)]
    pub(super) fn advance<P: Segmentable + ?Sized>(self, packet: &P, mut bytes: usize) -> Position {
        let mut at = self;
        while at.range < packet.ranges() {
            let rest = packet.range_length(at.range).saturating_sub(at.offset);
            if bytes < rest {
                at.offset += bytes;
                return at;
            }
            bytes -= rest;
            at = Position { range: at.range + 1, offset: 0 };
        }
        at
    }
}

/// Advances to the end of the current range, but by at most `length` bytes. Returns the number of
/// bytes and the new position, without reading any byte.
#[inline(always)]
pub(super) fn step<P: Segmentable + ?Sized>(
    packet: &P,
    at: Position,
    length: usize,
) -> Option<(usize, Position)> {
    if length == 0 || at.range >= packet.ranges() {
        return None;
    }
    let rest = packet.range_length(at.range).saturating_sub(at.offset);
    if length < rest {
        Some((length, Position { range: at.range, offset: at.offset + length }))
    } else {
        Some((rest, Position { range: at.range + 1, offset: 0 }))
    }
}

/// Returns `length` bytes of a range from a position on; an empty slice if the range has fewer.
#[inline(always)]
pub(super) fn bytes<P: Segmentable + ?Sized>(packet: &P, at: Position, length: usize) -> &[u8] {
    packet.range(at.range).get(at.offset..at.offset.saturating_add(length)).unwrap_or(&[])
}

/// Returns `length` bytes from a position on, range by range.
pub(super) fn slices<P: Segmentable + ?Sized>(
    packet: &P,
    mut at: Position,
    mut length: usize,
) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let (taken, next) = step(packet, at, length)?;
        let slice = bytes(packet, at, taken);
        (at, length) = (next, length - taken);
        Some(slice)
    })
}

/// Returns the known sum of the received payload that starts at this position, its length, and the
/// position after it. `None` if no payload starts here, its sum is not known, or it is longer than
/// `length` bytes.
#[inline(always)]
pub(super) fn known_sum<P: Segmentable + ?Sized>(
    packet: &P,
    at: Position,
    length: usize,
) -> Option<(u16, usize, Position)> {
    if at.offset != 0 {
        return None;
    }
    let sum = packet.payload_sum(at.range)?;
    let mut span = 0;
    let mut next = at.range;
    loop {
        span = packet.range_length(next).saturating_add(span);
        next += 1;
        if span > length {
            return None;
        }
        if next >= packet.ranges() || packet.starts_payload(next) {
            return Some((sum, span, Position { range: next, offset: 0 }));
        }
    }
}

/// Copies the first bytes of a packet to `out`, and returns their number.
pub(super) fn copy_first_bytes<P: Segmentable + ?Sized>(packet: &P, out: &mut [u8]) -> usize {
    let mut filled = 0;
    let slices = core::iter::once(packet.header())
        .chain((0..packet.ranges()).map(|index| packet.range(index)));
    for slice in slices {
        let room = out.get_mut(filled..).unwrap_or(&mut []);
        if room.is_empty() {
            break;
        }
        let length = slice.len().min(room.len());
        room[..length].copy_from_slice(&slice[..length]);
        filled += length;
    }
    filled
}

/// Returns the position of the byte at `offset` of the packet, which must not lie in the packet's
/// own header.
pub(super) fn position_of<P: Segmentable + ?Sized>(
    packet: &P,
    offset: usize,
) -> Result<Position, SegmentError> {
    let got = packet.header().len();
    match offset.checked_sub(got) {
        Some(bytes) => Ok(Position::default().advance(packet, bytes)),
        None => Err(SegmentError::HeaderLength { needed: offset, got }),
    }
}

/// Returns the sums that a segment's header needs of its payload: `length` bytes from a position
/// on.
#[inline(always)]
pub(super) fn payload_sums<P: Segmentable + ?Sized>(
    packet: &P,
    simd: Simd,
    at: Position,
    length: usize,
    wanted: WantedSums,
) -> PayloadSums {
    let mut sums = PayloadSums::default();
    if wanted.whole {
        sums.whole = sum_payload(packet, simd, at, length, true);
        sums.covered = sums.whole;
    }
    if let Some(covered) = wanted.covered {
        sums.covered = sum_payload(packet, simd, at, length.min(covered), true);
    }
    sums
}

/// Sums `length` bytes of payload from a position on. If `use_known` is set, uses the known sums of
/// received payloads that lie in them.
pub(super) fn sum_payload<P: Segmentable + ?Sized>(
    packet: &P,
    simd: Simd,
    mut at: Position,
    length: usize,
    use_known: bool,
) -> u16 {
    let mut total = Sum::default();
    let mut offset = 0;
    while offset < length {
        let (sum, taken, next) = match known_sum(packet, at, length - offset) {
            Some(found) if use_known => found,
            _ => match step(packet, at, length - offset) {
                Some((taken, next)) => (simd.sum(bytes(packet, at, taken)), taken, next),
                None => break,
            },
        };
        total = Sum::new(total.fold()).add(at_offset(sum, offset));
        offset += taken;
        at = next;
    }
    total.fold()
}

/// Copies payload to `out`. In the same pass it computes the sums that are wanted and not known.
/// Returns the sums and the position after the payload.
#[inline(always)]
pub(super) fn copy_payload<P: Segmentable + ?Sized>(
    packet: &P,
    simd: Simd,
    at: Position,
    out: &mut [u8],
    wanted: WantedSums,
) -> (PayloadSums, Position) {
    // Fast path: all of it lies in one range, as in a linear super-packet.
    if wanted == WantedSums::WHOLE
        && let Some((taken, next)) = step(packet, at, out.len())
        && taken == out.len()
        && known_sum(packet, at, taken).is_none()
    {
        let source = bytes(packet, at, taken);
        // Probably the payload of the next segment.
        let ahead = packet.range(at.range).get(at.offset + taken..).unwrap_or(&[]);
        let whole =
            if source.len() == taken { simd.copy_and_sum_ahead(source, out, ahead) } else { 0 };
        return (PayloadSums { whole, covered: whole }, next);
    }
    copy_ranges(packet, simd, at, out, wanted)
}

#[inline(never)]
fn copy_ranges<P: Segmentable + ?Sized>(
    packet: &P,
    simd: Simd,
    mut at: Position,
    out: &mut [u8],
    wanted: WantedSums,
) -> (PayloadSums, Position) {
    let mut total = Sum::default();
    let mut filled = 0;
    // Up to this offset the sum is known, so bytes are only copied.
    let mut known_to = 0;
    while filled < out.len() {
        if wanted.whole
            && filled >= known_to
            && let Some((sum, span, _)) = known_sum(packet, at, out.len() - filled)
        {
            total = Sum::new(total.fold()).add(at_offset(sum, filled));
            known_to = filled + span;
        }
        let Some((taken, next)) = step(packet, at, out.len() - filled) else { break };
        let source = bytes(packet, at, taken);
        let target = &mut out[filled..filled + taken];
        if source.len() == taken {
            if wanted.whole && filled >= known_to {
                total = Sum::new(total.fold())
                    .add(at_offset(simd.copy_and_sum(source, target), filled));
            } else {
                target.copy_from_slice(source);
            }
        }
        filled += taken;
        at = next;
    }
    let whole = total.fold();
    let covered = match wanted.covered {
        Some(covered) => simd.sum(&out[..covered.min(out.len())]),
        None => whole,
    };
    (PayloadSums { whole, covered }, at)
}
