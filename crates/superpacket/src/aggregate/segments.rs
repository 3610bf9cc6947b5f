//! The segments that a received packet stands for. Those of a super-packet merge as if they had
//! come one by one.

use super::examine::outer_checksums;
use super::{Mode, Reason};
use crate::segment::{Cwr, Gso, GsoKind, IpId};
use crate::wire::{IpVersion, Layout, Protocol};

/// The segments of a received packet: several if it is a super-packet, otherwise one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segments {
    pub(super) count: u32,
    /// Payload bytes of each segment except the last.
    pub(super) size: u32,
    /// How the innermost IPv4 identification changes from segment to segment; `None` for one
    /// segment.
    pub(super) id: Option<IpId>,
    /// How the identification in a tunnel's outer IPv4 header changes from segment to segment;
    /// `None` for one segment.
    pub(super) outer_id: Option<IpId>,
    /// How the identification in the second tunnel's IPv4 header changes from segment to segment;
    /// `None` for one segment.
    pub(super) nested_id: Option<IpId>,
    /// Whether only the first segment carries the CWR flag.
    pub(super) cwr_on_first: bool,
}

impl Segments {
    /// Returns the description of a packet that is a single segment, with `payload` bytes of
    /// payload.
    #[inline(always)]
    pub(super) const fn one(payload: u32) -> Self {
        Segments {
            count: 1,
            size: payload,
            id: None,
            outer_id: None,
            nested_id: None,
            cwr_on_first: false,
        }
    }

    /// Returns the segments of a super-packet with `payload` bytes of payload.
    pub(super) fn of(gso: &Gso, payload: u32) -> Self {
        let size = gso.size.get() as u32;
        match payload.div_ceil(size) {
            0 | 1 => Segments::one(payload),
            count => Segments {
                count,
                size,
                id: Some(gso.id),
                outer_id: Some(gso.outer_id),
                nested_id: Some(gso.nested_id),
                cwr_on_first: gso.cwr == Cwr::First,
            },
        }
    }

    /// Returns the payload bytes of the last segment of a packet with this payload.
    #[inline(always)]
    pub(super) const fn last(&self, payload: u32) -> u32 {
        payload - (self.count - 1) * self.size
    }

    /// Returns the reason why no packet may be appended to these segments in a merged packet of at
    /// most `most` segments; `None` if one may.
    pub(super) fn ending(&self, payload: u32, most: u32) -> Option<Reason> {
        if self.count == 1 {
            // As any packet.
            None
        } else if self.last(payload) < self.size {
            Some(Reason::ShortSegment)
        } else {
            (self.count >= most).then_some(Reason::PacketLimit)
        }
    }
}

/// Returns whether a received super-packet may merge with other packets. It may not if its GSO kind
/// contradicts its headers, or if its segments could not be restored after merging.
pub(super) fn may_merge(gso: &Gso, header: &[u8], layout: &Layout, mode: Mode) -> bool {
    let kind_fits = matches!(
        (gso.kind, layout.version, layout.protocol),
        (GsoKind::Tcp4, IpVersion::V4, Protocol::Tcp)
            | (GsoKind::Tcp6, IpVersion::V6, Protocol::Tcp)
            | (GsoKind::Udp, _, Protocol::Udp)
    );
    // A device never receives super-packets, so LRO does not merge any. A sender leaves a tunnel's
    // own checksum to the device that segments.
    matches!(mode, Mode::Gro { .. })
        && kind_fits
        && outer_checksums(header, layout.outer, layout.nested) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::SegmentSize;

    fn gso(size: usize) -> Gso {
        Gso::new(GsoKind::Tcp4, SegmentSize::new(size).expect("not 0"))
    }

    #[test]
    fn segments_are_counted_as_they_will_be_cut() {
        for (payload, count, last) in
            [(100, 1, 100), (101, 2, 1), (200, 2, 100), (1100, 11, 100), (1099, 11, 99)]
        {
            let segments = Segments::of(&gso(100), payload);
            assert_eq!((segments.count, segments.last(payload)), (count, last), "{payload}");
        }
        assert_eq!(Segments::of(&gso(100), 60), Segments::one(60));
        assert_eq!(Segments::of(&gso(100), 0), Segments::one(0));
    }

    #[test]
    fn nothing_follows_a_short_segment_or_the_last_that_may_merge() {
        let ending = |payload, most| Segments::of(&gso(100), payload).ending(payload, most);
        assert_eq!(ending(60, 1), None, "as a packet of 60 bytes");
        assert_eq!(ending(300, 4), None);
        assert_eq!(ending(300, 3), Some(Reason::PacketLimit));
        assert_eq!(ending(299, 9), Some(Reason::ShortSegment));
    }
}
