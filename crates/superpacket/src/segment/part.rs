//! Uneven super-packets: what Linux has no header for.

use super::Gso;

/// A part of an uneven TCP super-packet: packets that would have merged without the others.
///
/// Where the policy says so ([`merge_uneven`]), packets merge although their IPv4 identification,
/// their length, or PSH before them ends what one [`Gso`] can say. The super-packet's parts then
/// say, one after the other, how it comes apart into the very packets that merged: the segmenter
/// goes by them. No `virtio_net_hdr` can.
///
/// [`merge_uneven`]: crate::aggregate::Policy::merge_uneven
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub(crate) gso: Gso,
    /// Bytes of payload, at least 1.
    pub(crate) payload: u32,
    /// The IPv4 identification of its first packet.
    pub(crate) identification: u16,
    /// PSH, FIN, and a CWR that only the first packet carries.
    pub(crate) flags: u8,
}

impl Part {
    /// Returns how the part is cut.
    #[inline]
    pub const fn gso(&self) -> Gso {
        self.gso
    }

    /// Returns its bytes of payload.
    #[inline]
    pub const fn payload(&self) -> usize {
        self.payload as usize
    }

    /// Returns how many packets it stands for.
    #[inline]
    pub const fn segments(&self) -> u32 {
        self.payload.div_ceil(self.gso.size.get() as u32)
    }

    /// Returns the bytes of payload of each segment but the last, and how many there are, if it is
    /// cut; else it is one.
    #[inline]
    pub(super) const fn cut(&self, uncut: bool) -> (usize, u32) {
        if uncut { (self.payload(), 1) } else { (self.gso.size.get(), self.segments()) }
    }

    /// Returns the bytes of payload of its last segment.
    #[inline]
    pub(super) const fn last(&self, uncut: bool) -> usize {
        let (size, segments) = self.cut(uncut);
        self.payload() - (segments.saturating_sub(1) as usize) * size
    }
}
