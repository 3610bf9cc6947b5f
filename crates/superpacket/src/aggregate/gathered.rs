//! Delivers merged packets as lists of slices, each for one gathering write (`writev`).

use alloc::vec::Vec;
use std::io::IoSlice;

use super::batch::{BorrowPacket, Borrowed};
use super::{BatchAggregator, BufferIndex};
use crate::packet::Gathered;
use crate::super_packet::{Outcome, SuperPacket};
use crate::virtio::{Format, Framing};

/// Maximum number of slices in one write: the limit of Linux's `writev` (`UIO_MAXIOV`).
pub const MAX_SLICES: usize = 1024;

/// Maximum number of slices of a packet before its payload: one for the `virtio_net_hdr`, one for
/// the packet's headers.
const HEADERS: usize = 2;

impl BatchAggregator {
    /// Aggregates these packets, in order, and gives each result to `sink` as slices for one
    /// `writev`: the header of an aggregator made by [`framed`](Self::framed), then the packet.
    /// Returns what the sink returns.
    ///
    /// A packet has at most [`MAX_SLICES`] slices, and at most two more than the policy's
    /// [fragments](crate::Policy::max_fragments). Only a packet that came in more buffers than this
    /// leaves unchanged in as many slices.
    ///
    /// If the sink fails, the call stops and returns its error. No packet is lost:
    /// [`resume_gathered`](Self::resume_gathered) continues with the packet that was refused.
    ///
    /// Packets that no header can describe, such as a tunnel in a format without fields for it, do
    /// not merge.
    ///
    /// # Panics
    /// With more than `u32::MAX` packets.
    #[inline]
    pub fn poll_gathered<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        sink: impl FnMut(&[IoSlice<'_>]) -> O,
    ) -> O {
        let (mut gather, mut sink) = (Gather::of(self), sink);
        let outcome = self.poll_pieces(packets, (MAX_SLICES - HEADERS) as u32, |packet| {
            gather.give(&packet, &mut sink)
        });
        self.slices = gather.slices;
        outcome
    }

    /// Continues a call of [`poll_gathered`](Self::poll_gathered) that failed. `packets` must be
    /// the packets of that call.
    pub fn resume_gathered<P: BorrowPacket, O: Outcome>(
        &mut self,
        packets: &[P],
        sink: impl FnMut(&[IoSlice<'_>]) -> O,
    ) -> O {
        let (mut gather, mut sink) = (Gather::of(self), sink);
        let outcome = self.resume(packets, |packet| gather.give(&packet, &mut sink));
        self.slices = gather.slices;
        outcome
    }
}

/// Converts merged packets to lists of slices for `writev`.
struct Gather {
    framing: Option<Framing>,
    /// The slices of the current packet. Empty between packets, but the memory is reused.
    slices: Vec<IoSlice<'static>>,
}

impl Gather {
    fn of(aggregator: &mut BatchAggregator) -> Self {
        Gather { framing: aggregator.framing, slices: core::mem::take(&mut aggregator.slices) }
    }

    #[inline]
    fn give<P: BorrowPacket, O: Outcome>(
        &mut self,
        packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, P>>,
        sink: &mut impl FnMut(&[IoSlice<'_>]) -> O,
    ) -> O {
        let described = self
            .framing
            .as_ref()
            .map(|framing| framing.header(packet).unwrap_or_else(|_| framing.nothing()));
        let mut slices = reused(core::mem::take(&mut self.slices));
        slices.extend(described.as_deref().map(IoSlice::new));
        let front = match (&self.framing, described.as_deref()) {
            // A packet that merged here has the outer checksum that its `virtio_net_hdr` requires.
            (Some(framing), Some(described)) if !packet.is_merged() => {
                front_of(framing, described, packet)
            }
            _ => None,
        };
        match &front {
            None => slices.extend(packet.slices().map(IoSlice::new)),
            Some(front) => {
                slices.push(IoSlice::new(front.bytes()));
                let mut skip = front.bytes().len();
                slices.extend(packet.slices().filter_map(|slice| {
                    let rest = slice.get(skip..).filter(|rest| !rest.is_empty());
                    skip = skip.saturating_sub(slice.len());
                    rest.map(IoSlice::new)
                }));
            }
        }
        let outcome = sink(&slices);
        self.slices = reused(slices);
        outcome
    }
}

/// Returns a copy of the first bytes of a packet, up to and including its outer checksum, if that
/// checksum must be changed. This is the case if the packet was received as a super-packet in a
/// tunnel and the `virtio_net_hdr` before it requires another value.
#[inline]
fn front_of<P: BorrowPacket>(
    framing: &Framing,
    described: &[u8],
    packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, P>>,
) -> Option<Gathered> {
    // Most packets have no tunnel, so their headers are not gathered.
    if framing.format != Format::Tunnel || packet.metadata.gso.is_none() {
        return None;
    }
    let first = Gathered::new(packet.slices());
    let (place, value) = framing.outer_checksum(described, first.bytes(), packet.length())?;
    Some(first.ending_with(place, value))
}

/// Reuses the memory of a vector for slices with another lifetime. Collecting in place allocates
/// nothing.
fn reused<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
