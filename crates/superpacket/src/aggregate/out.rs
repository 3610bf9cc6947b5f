//! The way out of packets that stay as they came.

use alloc::vec::Vec;

use super::{Counters, Reason};
use crate::packet::{Chain, RxPacket};
use crate::super_packet::{Metadata, Piece, Sink, SuperPacket};
use crate::wire::Layout;

/// How many empty chains are kept: a poll's worth.
const KEPT_CHAINS: usize = 512;

/// What passing a packet on needs, to be used again for the next.
#[derive(Debug)]
pub(super) struct Out<B> {
    /// The pieces of the packet that passes.
    pub(super) pieces: Vec<Piece<B>>,
    /// Empty chains to be had again.
    pub(super) chains: Vec<Chain<B>>,
}

impl<B: AsRef<[u8]>> Out<B> {
    /// Gives a packet to the sink as it came, with what is known of it.
    #[inline(never)]
    pub(super) fn pass<S: Sink<B> + ?Sized>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        layout: &Layout,
        reason: Reason,
        counters: &mut Counters,
        sink: &mut S,
    ) {
        let payload = layout.end.saturating_sub(u32::from(layout.payload));
        self.hand_over(packet, length, Some(*layout), payload, reason, counters, sink);
    }

    /// Gives a packet of which nothing is known to the sink as it came.
    #[inline(never)]
    pub(super) fn pass_unknown<S: Sink<B> + ?Sized>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        reason: Reason,
        counters: &mut Counters,
        sink: &mut S,
    ) {
        self.hand_over(packet, length, None, 0, reason, counters, sink);
    }

    // Compiled into both, so that the layout is copied straight to where the sink looks at it: a copy of what was just written waits for it.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "it is the body of the two above")]
    fn hand_over<S: Sink<B> + ?Sized>(
        &mut self,
        packet: RxPacket<B>,
        length: usize,
        layout: Option<Layout>,
        largest_payload: u32,
        reason: Reason,
        counters: &mut Counters,
        sink: &mut S,
    ) {
        let gso = packet.whole_gso();
        let whole = |buffer: B| Piece { length: buffer.as_ref().len() as u32, buffer: Some(buffer), start: 0, sum: 0, flags: 0 };
        self.pieces.extend(core::iter::once(packet.first).map(whole));
        if let Some(mut chain) = packet.rest {
            self.pieces.extend(chain.buffers_mut().drain(..).map(whole));
            self.recycle(chain);
        }
        counters.packets_out += 1;
        counters.bytes_out += length as u64;
        counters.reasons[reason as usize] += 1;
        let metadata = Metadata {
            layer: packet.layer,
            layout,
            gso,
            checksum: packet.checksum,
            hash: packet.hash,
            vlan: packet.vlan,
            queue: packet.queue,
            time: packet.time,
            packets: 1,
            absorbed_acks: 0,
            largest_payload,
            reason,
        };
        sink.receive(SuperPacket { metadata, header: &[], pieces: &mut self.pieces, linear: &[] });
        self.pieces.clear();
    }
}

impl<B> Out<B> {
    /// Keeps an empty chain for the next packet of several buffers, up to a number: a caller that never asks for one must not fill the memory.
    pub(super) fn recycle(&mut self, chain: Chain<B>) {
        if self.chains.len() < KEPT_CHAINS {
            self.chains.push(chain);
        }
    }
}
