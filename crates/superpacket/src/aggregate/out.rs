//! Delivers packets that leave unchanged.

use alloc::vec::Vec;

use super::poll::Poll;
use super::{AggregateCounters, Reason};
use crate::packet::{Chain, RxPacket, with_checksum_form};
use crate::packet_batch::PacketBatch;
use crate::super_packet::{Metadata, Piece, SuperPacket};
use crate::wire::Layout;

/// Maximum number of empty chains (lists of a packet's further buffers) that are kept for reuse:
/// enough for one poll.
const KEPT_CHAINS: usize = 512;

/// Memory for delivering a packet unchanged; reused from packet to packet.
#[derive(Debug)]
pub(super) struct PassThrough<B> {
    /// The buffer ranges of the packet that is being delivered.
    pub(super) pieces: Vec<Piece<B>>,
    /// Empty lists of buffers that later packets can reuse.
    pub(super) chains: Vec<Chain<B>>,
}

impl<B> PassThrough<B> {
    /// Delivers a packet unchanged, with its metadata. `layout` is `None` if its headers could not
    /// be parsed.
    // Compiled separately with and without a layout, so that the layout is copied directly to the
    // place where the sink reads it. A second copy would stall on the writes of the first.
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "they are the packet, what is known of it, and where it goes"
    )]
    pub(super) fn pass<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        layout: Option<&Layout>,
        reason: Reason,
        counters: &mut AggregateCounters,
        undelivered: &mut PacketBatch<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        match layout {
            Some(layout) => {
                self.pass_known(packet, length, layout, reason, counters, undelivered, poll)
            }
            None => self.pass_unknown(packet, length, reason, counters, undelivered, poll),
        }
    }

    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "as `pass`")]
    fn pass_known<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        layout: &Layout,
        reason: Reason,
        counters: &mut AggregateCounters,
        undelivered: &mut PacketBatch<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let payload = layout.end.saturating_sub(u32::from(layout.payload));
        self.hand_over(packet, length, Some(layout), payload, reason, counters, undelivered, poll)
    }

    #[inline(never)]
    fn pass_unknown<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        reason: Reason,
        counters: &mut AggregateCounters,
        undelivered: &mut PacketBatch<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        self.hand_over(packet, length, None, 0, reason, counters, undelivered, poll)
    }

    /// Delivers a packet unchanged. `layout` is the layout of its headers, if known, and `payload`
    /// the length of its payload.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "as `pass`")]
    pub(super) fn hand_over<P: Poll<B>>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        layout: Option<&Layout>,
        payload: u32,
        reason: Reason,
        counters: &mut AggregateCounters,
        undelivered: &mut PacketBatch<B>,
        poll: &mut P,
    ) -> Result<(), P::Error> {
        let whole = |buffer: B| Piece {
            length: poll.bytes(&buffer).len() as u32,
            buffer: Some(buffer),
            start: 0,
            sum: 0,
            flags: 0,
        };
        // Pieces are left only if a sink panicked.
        self.pieces.clear();
        self.pieces.push(whole(packet.first));
        if let Some(mut chain) = packet.rest {
            self.pieces.extend(chain.buffers_mut().drain(..).map(whole));
            self.recycle(chain);
        }
        counters.packets_out += 1;
        counters.bytes_out += length as u64;
        counters.reasons[reason as usize] += 1;
        // Built last: otherwise values that were read from the packet would be spilled to the
        // stack.
        let metadata = Metadata {
            layer: packet.layer,
            layout: layout.copied(),
            gso: with_checksum_form(packet.gso, packet.checksum),
            checksum: packet.checksum,
            hash: packet.hash,
            vlan: packet.vlan,
            queue: packet.queue,
            time: packet.time,
            packets: 1,
            absorbed_acks: 0,
            largest_payload: payload,
            reason,
        };
        let result = poll.deliver(whole_packet(metadata, &mut self.pieces));
        if result.is_err() {
            keep(undelivered, whole_packet(metadata, &mut self.pieces), 1);
        }
        self.pieces.clear();
        result
    }
}

/// Keeps a packet that the sink refused for later delivery, unless the sink has taken its buffers.
/// `pieces` is the number of its buffers before delivery.
#[cold]
pub(super) fn keep<B>(
    undelivered: &mut PacketBatch<B>,
    mut packet: SuperPacket<'_, B, ()>,
    pieces: usize,
) {
    if pieces == 0 || !packet.pieces.is_empty() {
        undelivered.push(&mut packet);
    }
}

/// Returns a packet that is delivered unchanged and consists of these pieces.
#[inline(always)]
fn whole_packet<B>(metadata: Metadata, pieces: &mut Vec<Piece<B>>) -> SuperPacket<'_, B, ()> {
    SuperPacket { metadata, header: &[], pieces, linear: &[], memory: () }
}

impl<B> PassThrough<B> {
    /// Keeps an empty chain for the next packet of several buffers. The number is limited, so that
    /// memory stays bounded if the caller never asks for a chain.
    pub(super) fn recycle(&mut self, chain: Chain<B>) {
        if self.chains.len() < KEPT_CHAINS {
            self.chains.push(chain);
        }
    }
}
