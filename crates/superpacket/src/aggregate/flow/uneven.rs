//! Uneven flows: packets merge although they differ, and each part records its differences.

use alloc::vec::Vec;

use super::super::Reason;
use super::super::examine::Facts;
use super::super::policy::{Mode, Policy};
use super::super::poll::Poll;
use super::super::segments::Segments;
use super::{ChecksumField, Held, IdRun};
use crate::segment::{IpId, Part};
use crate::wire::{Layout, Protocol, tcp};

/// Number of parts for which a flow keeps memory after its packet has left.
const KEPT_PARTS: usize = 64;

/// Returns whether packets with this layout may merge although they differ
/// ([`Policy::merge_uneven`]).
#[inline(always)]
pub(in crate::aggregate) fn may_be_uneven<B, P: Poll<B>>(layout: &Layout, policy: &Policy) -> bool {
    policy.merge_uneven
        && !P::IN_PLACE
        && matches!(policy.mode, Mode::Gro { .. })
        && layout.protocol == Protocol::Tcp
        && layout.outer.is_none()
        && layout.pppoe == 0
}

/// The parts of a flow.
#[derive(Debug, Default)]
pub(super) struct Uneven {
    /// Whether a new part may begin where a packet would otherwise end.
    pub(super) on: bool,
    /// Whether the next packet begins a new part.
    pub(super) ended: bool,
    /// IPv4 identification of the first packet in the current part.
    id: u16,
    /// Bytes of payload and number of packets in the parts before the current one.
    payload: u32,
    packets: u32,
    /// The parts before the current one; all parts once the packet leaves.
    pub(super) parts: Vec<Part>,
}

impl Uneven {
    /// Returns `Ok(true)` if a packet that differs may begin a new part, otherwise the reason as an
    /// error.
    #[inline(always)]
    pub(super) fn new_part_or(&self, reason: Reason) -> Result<bool, Reason> {
        if self.on { Ok(true) } else { Err(reason) }
    }
}

impl<B> Held<B> {
    /// Begins the first part with a packet of this identification, if the flow may have several
    /// parts.
    #[cold]
    pub(super) fn open_uneven<P: Poll<B>>(&mut self, policy: &Policy, id: u16) {
        let on = may_be_uneven::<B, P>(&self.layout, policy);
        let mut parts = core::mem::take(&mut self.uneven.parts);
        parts.clear();
        parts.shrink_to(KEPT_PARTS);
        self.uneven = Uneven { on, id, parts, ..Uneven::default() };
        if on && self.flags & tcp::PSH != 0 {
            self.end_part();
        }
    }

    /// Returns whether the packet may have several parts.
    pub(in crate::aggregate) const fn is_uneven(&self) -> bool {
        self.uneven.on
    }

    /// Returns whether this reason ends only a part, not the packet.
    #[inline(always)]
    pub(in crate::aggregate) fn goes_on(&mut self, reason: Reason) -> bool {
        self.uneven.on && self.goes_on_behind(reason)
    }

    #[cold]
    fn goes_on_behind(&mut self, reason: Reason) -> bool {
        let goes_on =
            matches!(reason, Reason::Push | Reason::ShortSegment) && self.flags & tcp::FIN == 0;
        if goes_on {
            self.end_part();
        }
        goes_on
    }

    /// Makes the next packet begin a new part.
    pub(super) fn end_part(&mut self) {
        self.uneven.ended = true;
        // The next packet must not join in a run, since a run does not begin a part.
        self.in_sequence = false;
    }

    /// Returns whether the current part is a single packet, which does not show how identifications
    /// change.
    #[inline(always)]
    pub(super) fn only_one(&self) -> bool {
        self.packets == self.uneven.packets + 1 && !self.ids_known
    }

    /// Begins a part with the next packet, which is not counted yet.
    #[cold]
    pub(super) fn begin_part(&mut self, facts: &Facts, segments: &Segments) {
        self.close_part();
        self.uneven.ended = false;
        self.uneven.id = facts.id;
        (self.uneven.payload, self.uneven.packets) = (self.payload, self.packets);
        self.segment_size = segments.size;
        self.ids_known = false;
        self.id_run = match segments.id {
            Some(IpId::Fixed) => IdRun { first: facts.id, step: 0 },
            _ => IdRun::new(facts.id.wrapping_sub(self.packets as u16)),
        };
        self.in_sequence = self.field == ChecksumField::Full;
    }

    /// Appends the current part to the parts before it.
    fn close_part(&mut self) {
        if let Some(gso) = self.gso(&self.layout) {
            let payload = self.payload - self.uneven.payload;
            self.uneven.parts.push(Part {
                gso,
                payload,
                identification: self.uneven.id,
                flags: self.flags,
            });
        }
        self.flags = 0;
    }

    /// Finishes the parts of a packet that leaves: it gets the flags of all parts, and no parts if
    /// there is only one.
    #[cold]
    pub(super) fn finish_parts(&mut self) {
        if !self.uneven.parts.is_empty() {
            self.close_part();
            self.flags = self.uneven.parts.iter().fold(0, |flags, part| flags | part.flags);
        }
    }
}
