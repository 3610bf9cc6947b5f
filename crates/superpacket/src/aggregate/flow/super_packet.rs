//! Flows with a packet that was received as a super-packet, which counts as all of its segments.

use super::super::AggregateCounters;
use super::super::examine::Constants;
use super::super::policy::Policy;
use super::super::poll::Poll;
use super::super::segments::Segments;
use super::{BadChecksum, FirstChecksum, Held};
use crate::packet::Chain;
use crate::segment::{Gso, IpId};
use crate::super_packet::Piece;
use crate::wire::{IpVersion, Protocol, byte, tcp, usual};
use superpacket_simd::Simd;

impl<B> Held<B> {
    /// [Opens](Self::open) a flow whose first packet is a super-packet, and counts its segments.
    #[cold]
    pub(super) fn open_super_packet<P: Poll<B>>(
        &mut self,
        gso: Gso,
        policy: &Policy,
        simd: Simd,
        counters: &mut AggregateCounters,
        poll: &P,
    ) -> Result<Option<Chain<B>>, BadChecksum> {
        // A device that verified a super-packet may have left the checksum of the first segment in
        // it. No payload sum follows from that.
        let sum_is_known = self.sum.is_some() || self.first_checksum == FirstChecksum::Unknown;
        let chain = self.open_as::<{ usual::NONE }, P>(policy, simd, counters, poll)?;
        if !sum_is_known {
            self.sums = false;
            self.pieces.iter_mut().for_each(|piece| piece.flags &= !Piece::<B>::SUM);
        }
        self.gso = Some(gso);
        if policy.merge_past_push {
            // PSH stays in the header.
            self.flags &= !tcp::PSH;
        }
        let layout = self.layout;
        let segments = Segments::of(&gso, layout.end - u32::from(layout.payload));
        if segments.count == 1 {
            return Ok(chain);
        }
        self.segment_size = segments.size;
        if layout.version == IpVersion::V4 && segments.id == Some(IpId::Fixed) {
            self.id_run.step = 0;
        }
        if layout.outer.is_some_and(|outer| outer.version == IpVersion::V4)
            && segments.outer_id == Some(IpId::Fixed)
        {
            self.outer_id_run.step = 0;
        }
        if layout.nested.is_some_and(|nested| nested.version == IpVersion::V4)
            && segments.nested_id == Some(IpId::Fixed)
        {
            self.nested_id_run.step = 0;
        }
        self.count_further(&segments);
        let flags = usize::from(layout.transport) + tcp::FLAGS;
        if layout.protocol == Protocol::Tcp
            && segments.cwr_on_first
            && byte(&self.header, flags) & tcp::CWR != 0
        {
            // The packets that follow do not have CWR, and their sums do not include it.
            self.flags |= tcp::CWR;
            if let Some(field) = self.header.get_mut(flags) {
                *field &= !tcp::CWR;
            }
            self.constants = Constants::new(&self.header, &layout, policy.mode).0;
        }
        Ok(chain)
    }

    /// Sets the PSH flag in the merged packet's header. The flow stays open for further packets.
    #[cold]
    pub(in crate::aggregate) fn push(&mut self) {
        if let Some(flags) = self.header.get_mut(usize::from(self.layout.transport) + tcp::FLAGS) {
            *flags |= tcp::PSH;
        }
    }

    /// Counts the segments of a super-packet after its first one, which was counted when the packet
    /// arrived.
    #[cold]
    pub(super) fn count_further(&mut self, segments: &Segments) {
        let further = segments.count - 1;
        self.packet_limit = self.packet_limit.saturating_sub(further);
        self.id_run.skip(further);
        self.outer_id_run.skip(further);
        self.nested_id_run.skip(further);
        self.ids_known = true;
    }
}
