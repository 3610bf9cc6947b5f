//! Runs of packets without payload, which GRO never merges; most are pure ACKs.

use alloc::vec::Drain;

use super::super::examine::examine;
use super::super::flow::prefetch_ahead;
use super::super::poll::Poll;
use super::super::{Mode, Reason};
use super::PacketReceiver;
use crate::packet::RxPacket;
use crate::wire::{Layout, parse_usual, usual};

impl<B> PacketReceiver<B> {
    /// Returns whether packets without payload can be delivered at once, without finding their
    /// flow: GRO never merges them, and they cannot overtake a packet if none is held.
    #[inline(always)]
    pub(super) fn passes_empty(&self) -> bool {
        self.counters.held == 0 && matches!(self.in_force.mode, Mode::Gro { .. })
    }

    /// Delivers the TCP packets without payload at the start of the batch unchanged, up to the
    /// first that does not have this [usual](crate::wire::usual) layout.
    ///
    /// All of it is inlined into this loop, so that each layout is built where the sink reads it.
    /// Otherwise it would be copied while it is still being written, which stalls.
    #[inline(never)]
    pub(super) fn pass_empty<const USUAL: u8, P: Poll<B>>(
        &mut self,
        batch: &mut Drain<'_, RxPacket<B>>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        while let Some((layout, reason, length)) = self.empty::<USUAL, _>(batch.as_slice(), poll) {
            prefetch_ahead(batch.as_slice(), poll);
            let Some(packet) = self.arrived(batch, length) else { break };
            // The known lengths are asserted again, since not every compiler sees them.
            debug_assert!(
                packet.rest.is_none() && packet.gso.is_none(),
                "else it is not such a packet"
            );
            core::mem::forget(packet.rest);
            let packet = RxPacket { layer: usual::layer(USUAL), gso: None, rest: None, ..packet };
            self.out.hand_over(
                packet,
                length,
                Some(&layout),
                0,
                reason,
                &mut self.counters,
                &mut self.undelivered,
                poll,
            )?;
        }
        Ok(())
    }

    /// Returns the layout of the first packet, the reason why it is not merged, and its length;
    /// `None` if it has payload or another layout.
    #[inline(always)]
    fn empty<const USUAL: u8, P: Poll<B>>(
        &self,
        batch: &[RxPacket<B>],
        poll: &P,
    ) -> Option<(Layout, Reason, usize)> {
        let next = batch.first()?;
        if next.rest.is_some() || next.gso.is_some() {
            return None;
        }
        let header = poll.bytes(&next.first);
        let length = header.len();
        let (payload, end) = parse_usual::<USUAL>(header, length, next.layer)?;
        if end != u32::from(payload) {
            return None;
        }
        let layout = Layout::usual(USUAL, payload, end);
        let refusal = self.refusal::<USUAL, _>(next, header, &layout, length, poll);
        let reason = refusal
            .or_else(|| examine::<true, _>(next, header, &layout, None, &self.options, poll).err());
        Some((layout, reason.unwrap_or(Reason::NoPayload), length))
    }
}
