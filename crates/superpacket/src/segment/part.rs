//! Parts of uneven super-packets, which Linux has no metadata for.

use super::Gso;

/// A part of an uneven TCP super-packet: packets that would have merged without the others.
///
/// If the policy allows it ([`merge_uneven`]), packets merge although a change of their IPv4
/// identification, their length or PSH exceeds what one [`Gso`] can describe. The super-packet's
/// parts tell the segmenter, in order, how to restore the merged packets. No `virtio_net_hdr` can
/// express them.
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
    /// Returns how the part is segmented.
    #[inline]
    pub const fn gso(&self) -> Gso {
        self.gso
    }

    /// Returns the bytes of payload.
    #[inline]
    pub const fn payload(&self) -> usize {
        self.payload as usize
    }

    /// Returns the number of packets in the part.
    #[inline]
    pub const fn segments(&self) -> u32 {
        self.payload.div_ceil(self.gso.size.get() as u32)
    }

    /// Returns the bytes of payload of each segment but the last, and the number of segments. If
    /// `uncut` is set, the part is one segment.
    #[inline]
    pub(super) const fn cut(&self, uncut: bool) -> (usize, u32) {
        if uncut { (self.payload(), 1) } else { (self.gso.size.get(), self.segments()) }
    }

    /// Returns the bytes of payload in the last segment.
    #[inline]
    pub(super) const fn last(&self, uncut: bool) -> usize {
        let (size, segments) = self.cut(uncut);
        self.payload() - (segments.saturating_sub(1) as usize) * size
    }
}
