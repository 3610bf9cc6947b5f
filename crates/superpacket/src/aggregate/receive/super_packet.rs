//! Receives super-packets: one joins its flow as its segments would, begins a flow, or is delivered
//! unchanged.

use super::super::Reason;
use super::super::examine::{Facts, examine};
use super::super::flow::{Attempt, packet_limit};
use super::super::poll::Poll;
use super::super::segments::{self, Segments};
use super::super::table::NONE;
use super::PacketReceiver;
use crate::packet::{Gathered, RxPacket};
use crate::wire::{Layout, tcp};

/// The result of receiving a super-packet.
pub(super) enum SuperPacketOutcome {
    /// The packet joined its flow; its buffers are still to be stored. The number is the payload
    /// length of its last segment in bytes.
    Joined(Facts, u32),
    /// The packet may not merge: it is delivered unchanged, after the held packets of its flow have
    /// left.
    Refused(Reason),
    /// The packet may begin a flow; the held packets of its flow have left.
    Begins(Facts),
    /// The packet is delivered unchanged, because no packet could be appended to it. The held
    /// packets of its flow have left.
    Ended(Reason),
}

impl<B> PacketReceiver<B> {
    /// Joins a received super-packet to the flow in `slot`, if it fits; otherwise that flow leaves.
    /// `gathered` holds the packet's first bytes if they lie in several buffers.
    #[cold]
    #[inline(never)]
    pub(super) fn receive_super_packet<P: Poll<B>>(
        &mut self,
        packet: &RxPacket<B>,
        slot: u32,
        layout: &Layout,
        gathered: Option<&Gathered>,
        poll: &mut P,
    ) -> Result<SuperPacketOutcome, P::Error> {
        let header = gathered.map_or(poll.bytes(&packet.first), Gathered::bytes);
        let merges = packet
            .gso
            .as_ref()
            .filter(|gso| segments::may_merge(gso, header, layout, self.in_force.mode));
        let Some(gso) = merges else { return Ok(SuperPacketOutcome::Refused(Reason::SuperPacket)) };
        let segments = Segments::of(gso, layout.end - u32::from(layout.payload));
        let tried = match slot {
            NONE => examine::<true, _>(packet, header, layout, None, &self.options, poll)
                .map(|facts| (None, facts)),
            _ => self
                .try_join::<true, _>(slot, packet, header, layout, poll)
                .map(|(attempt, facts)| (Some(attempt), facts)),
        };
        let (attempt, facts) = match tried {
            Ok(tried) => tried,
            Err(reason) => return Ok(SuperPacketOutcome::Refused(reason)),
        };
        match attempt {
            Some(Attempt::Joined(_)) => {
                return Ok(SuperPacketOutcome::Joined(facts, segments.last(facts.payload)));
            }
            Some(Attempt::Ended(reason)) => self.emit(slot, reason, poll)?,
            None => {}
        }
        Ok(match segments.ending(facts.payload, packet_limit(layout, &self.in_force)) {
            Some(reason) => SuperPacketOutcome::Ended(reason),
            None if self.in_force.merge_past_push => {
                SuperPacketOutcome::Begins(Facts { flags: facts.flags & !tcp::PSH, ..facts })
            }
            None => SuperPacketOutcome::Begins(facts),
        })
    }
}
