//! Joins a packet to its held flow if the rules of GRO or LRO allow it, and otherwise returns the
//! reason.

use super::super::Reason;
use super::super::examine::{Facts, outer_checksums};
use super::super::lro::eligible_ack;
use super::super::policy::{Mode, Policy, Storage};
use super::super::segments::Segments;
use super::Held;
use crate::packet::RxPacket;
use crate::wire::{IpVersion, Outer, Protocol, be16, be32, byte, ipv4, put16, put32, tcp};

impl<B> Held<B> {
    /// Joins a packet whose headers [match](Self::matches) to the flow, if the rules allow it;
    /// otherwise the flow is unchanged. `Err` means that the held flow must leave and that the
    /// packet may not begin a new one: it is delivered unchanged.
    #[inline(always)]
    pub(in crate::aggregate) fn attempt(
        &mut self,
        packet: &RxPacket<B>,
        header: &[u8],
        facts: &Facts,
        segments: &Segments,
        policy: &Policy,
    ) -> Result<Attempt, Reason> {
        if facts.payload == 0 {
            eligible_ack(policy.mode, facts.flags)?;
        }
        let joined = if facts.payload > 0 && self.too_many_fragments(packet, policy) {
            Err(Reason::FragmentLimit)
        } else {
            match policy.mode {
                Mode::Gro { .. } => self.join_gro(packet, header, facts, segments),
                Mode::Lro { .. } => self.join_lro(packet, header, facts),
            }
        };
        match joined {
            Ok(joined) => Ok(Attempt::Joined(joined)),
            // An ACK that may not be absorbed tells the sender something, so it must leave as a
            // packet of its own.
            Err(reason)
                if facts.payload == 0
                    && matches!(
                        reason,
                        Reason::DuplicateAck | Reason::WindowUpdate | Reason::AckOlder
                    ) =>
            {
                Err(reason)
            }
            Err(reason) => Ok(Attempt::Ended(reason)),
        }
    }

    /// Joins a packet whose headers [match](Self::matches), by the rules of GRO. `Err` holds the
    /// reason why the packet may not join, so that the held flow must leave before it.
    #[inline(always)]
    fn join_gro(
        &mut self,
        packet: &RxPacket<B>,
        header: &[u8],
        facts: &Facts,
        segments: &Segments,
    ) -> Result<Joined, Reason> {
        let is_super_packet = segments.count > 1;
        if facts.sequence != self.next_sequence {
            return Err(Reason::Sequence);
        }
        if segments.size > self.segment_size {
            return Err(Reason::LongerSegment);
        }
        if is_super_packet && segments.size < self.segment_size {
            return Err(Reason::ShortSegment);
        }
        if facts.field != self.field {
            return Err(Reason::ChecksumForm);
        }
        if self.payload + facts.payload > self.payload_limit {
            return Err(Reason::ByteLimit);
        }
        // A flow that a single packet brings to its limit is complete.
        if is_super_packet && self.packets + segments.count > self.packet_limit {
            return Err(Reason::PacketLimit);
        }
        // Each earlier packet had a CWR, or only their first segment did.
        let flags = usize::from(self.layout.transport) + tcp::FLAGS;
        if segments.cwr_on_first
            && self.layout.protocol == Protocol::Tcp
            && byte(header, flags) & tcp::CWR != 0
        {
            return Err(Reason::FlagsChanged);
        }
        // DCCP counts packets, not bytes, so all packets must have the same length.
        if self.layout.protocol == Protocol::Dccp && facts.payload != self.segment_size {
            return Err(Reason::ShortSegment);
        }
        let only_one = self.packets == 1 && !self.ids_known;
        let mut id_run = self.id_run;
        if self.layout.version == IpVersion::V4 {
            let next = id_run.next(self.packets, only_one, facts.id, segments.id);
            id_run = next.ok_or(Reason::IpId)?;
        }
        if let Some(outer) = &self.layout.outer {
            if outer_checksums(header, Some(*outer), self.layout.nested) != self.outer_checksums {
                return Err(Reason::TunnelHeader);
            }
            let (mut outer_run, mut nested_run) = (self.outer_id_run, self.nested_id_run);
            if outer.version == IpVersion::V4 {
                let next =
                    outer_run.next(self.packets, only_one, facts.outer_id, segments.outer_id);
                outer_run = next.ok_or(Reason::IpId)?;
            }
            if let Some(Outer { version: IpVersion::V4, network, .. }) = self.layout.nested {
                let id = be16(header, usize::from(network) + ipv4::ID);
                let next = nested_run.next(self.packets, only_one, id, segments.nested_id);
                nested_run = next.ok_or(Reason::IpId)?;
            }
            (self.outer_id_run, self.nested_id_run) = (outer_run, nested_run);
        }
        self.id_run = id_run;
        self.advance(packet, facts, self.layout.protocol);
        if is_super_packet {
            self.count_further(segments);
        }
        Ok(Joined::Merged)
    }

    /// Joins a packet whose headers match, by the rules of LRO. `Err` holds the reason why the
    /// packet may not join, so that the held flow must leave before it.
    #[inline]
    pub(super) fn join_lro(
        &mut self,
        packet: &RxPacket<B>,
        header: &[u8],
        facts: &Facts,
    ) -> Result<Joined, Reason> {
        if facts.sequence != self.next_sequence {
            return Err(Reason::Sequence);
        }
        if let Some(reason) = self.is_older(header) {
            return Err(reason);
        }
        let pure = facts.payload == 0;
        let transport = usize::from(self.layout.transport);
        if pure
            && be32(header, transport + tcp::ACKNOWLEDGEMENT)
                == be32(&self.header, transport + tcp::ACKNOWLEDGEMENT)
        {
            let same_window = be16(header, transport + tcp::WINDOW)
                == be16(&self.header, transport + tcp::WINDOW);
            return Err(if same_window { Reason::DuplicateAck } else { Reason::WindowUpdate });
        }
        if self.payload + facts.payload > self.payload_limit {
            return Err(Reason::ByteLimit);
        }
        self.copy_newest_fields(header);
        // Data that follows a held pure ACK absorbs that ACK.
        let absorbs = pure || self.payload == 0;
        self.absorbed_acks += u32::from(absorbs);
        self.advance(packet, facts, self.layout.protocol);
        Ok(if pure {
            Joined::Absorbed
        } else if absorbs {
            Joined::AbsorbedHead
        } else {
            Joined::Merged
        })
    }

    /// LRO: returns why a packet with these headers is older than the merged packets; `None` if it
    /// is newer.
    #[inline(always)]
    pub(super) fn is_older(&self, header: &[u8]) -> Option<Reason> {
        let transport = usize::from(self.layout.transport);
        let before = |offset: usize| {
            is_before(be32(header, transport + offset), be32(&self.header, transport + offset))
        };
        if usize::from(self.layout.payload) - transport > tcp::HEADER_LENGTH
            && before(tcp::TIMESTAMP_VALUE)
        {
            return Some(Reason::TimestampOlder);
        }
        before(tcp::ACKNOWLEDGEMENT).then_some(Reason::AckOlder)
    }

    /// LRO: copies the newest acknowledgement, window and timestamps to the merged packet.
    #[inline(always)]
    pub(super) fn copy_newest_fields(&mut self, header: &[u8]) {
        let transport = usize::from(self.layout.transport);
        let mut newest = |offset: usize| {
            put32(&mut self.header, transport + offset, be32(header, transport + offset))
        };
        newest(tcp::ACKNOWLEDGEMENT);
        if usize::from(self.layout.payload) - transport > tcp::HEADER_LENGTH {
            newest(tcp::TIMESTAMP_VALUE);
            newest(tcp::TIMESTAMP_ECHO);
        }
        put16(&mut self.header, transport + tcp::WINDOW, be16(header, transport + tcp::WINDOW));
    }

    /// Returns whether the merged packet would have more buffers than the policy allows if this
    /// packet joined.
    #[inline(always)]
    fn too_many_fragments(&self, packet: &RxPacket<B>, policy: &Policy) -> bool {
        let more = match &packet.rest {
            None => 1,
            Some(chain) => 1 + chain.buffers().len(),
        };
        policy.storage == Storage::Fragments
            && self.pieces.len() + more > policy.max_fragments as usize
    }
}

/// The result of joining a packet to a held flow.
#[derive(Clone, Copy, Debug)]
pub(in crate::aggregate) enum Attempt {
    /// The packet joined the flow; its buffers are still to be stored.
    Joined(Joined),
    /// The packet did not join: the held flow must leave, and the packet may begin a new one.
    Ended(Reason),
}

/// How a packet joined a held flow; in GRO mode always `Merged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::aggregate) enum Joined {
    /// The packet's payload was added.
    Merged,
    /// The packet's payload was added to a held pure ACK, which it absorbed.
    AbsorbedHead,
    /// The packet was a pure ACK and was absorbed.
    Absorbed,
}

/// Returns whether sequence number `left` is before `right` (RFC 9293, section 3.4).
#[inline(always)]
fn is_before(left: u32, right: u32) -> bool {
    (left.wrapping_sub(right) as i32) < 0
}
