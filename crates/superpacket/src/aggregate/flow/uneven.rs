//! A flow whose packets merge though they are not alike: what each part of it differs in.

use alloc::vec::Vec;

use super::super::Reason;
use super::super::examine::Facts;
use super::super::policy::{Mode, Policy};
use super::super::poll::Poll;
use super::super::segments::Segments;
use super::{ChecksumField, Held, IdRun};
use crate::segment::{IpId, Part};
use crate::wire::{Layout, Protocol, tcp};

/// How many parts a flow keeps room for after its packet has left.
const KEPT_PARTS: usize = 64;

/// May packets of this layout merge that are not alike ([`Policy::merge_uneven`])?
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
    /// Another part may follow where else the packet would end.
    pub(super) on: bool,
    /// What comes next begins a part.
    pub(super) ended: bool,
    /// Of the part at hand: the identification of its first packet.
    id: u16,
    /// Of the parts before it: payload bytes, and packets.
    payload: u32,
    packets: u32,
    /// All parts, once the packet leaves; those before the one at hand until then.
    pub(super) parts: Vec<Part>,
}

impl Uneven {
    /// A packet differs so: it begins a part, or ends the flow.
    #[inline(always)]
    pub(super) fn new_part_or(&self, reason: Reason) -> Result<bool, Reason> {
        if self.on { Ok(true) } else { Err(reason) }
    }
}

impl<B> Held<B> {
    /// Begins the first part, with a packet of this identification, if the flow may have several.
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

    /// May the packet have several parts?
    pub(in crate::aggregate) const fn is_uneven(&self) -> bool {
        self.uneven.on
    }

    /// Does only a part end for this reason, and not the packet?
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

    /// Lets what comes next begin a part.
    pub(super) fn end_part(&mut self) {
        self.uneven.ended = true;
        // No run: the long way begins the part.
        self.in_sequence = false;
    }

    /// Is the part at hand one packet, which does not tell how identifications run?
    #[inline(always)]
    pub(super) fn only_one(&self) -> bool {
        self.packets == self.uneven.packets + 1 && !self.ids_known
    }

    /// Begins a part with the next packet, which has not been counted in.
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

    /// Adds the part at hand to those before it.
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

    /// The packet leaves: with all flags of its parts, and without parts if it is only one.
    #[cold]
    pub(super) fn finish_parts(&mut self) {
        if !self.uneven.parts.is_empty() {
            self.close_part();
            self.flags = self.uneven.parts.iter().fold(0, |flags, part| flags | part.flags);
        }
    }
}
