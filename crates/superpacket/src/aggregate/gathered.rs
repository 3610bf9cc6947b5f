//! Packets that leave as slices, for one gathering write each.

use alloc::vec::Vec;
use std::io::IoSlice;

use super::batch::{BorrowPacket, Borrowed};
use super::{BatchAggregator, BufferIndex};
use crate::packet::Gathered;
use crate::super_packet::{Outcome, SuperPacket};
use crate::virtio::{Format, Framing};

/// The most slices of one write: Linux takes no more in a `writev` (`UIO_MAXIOV`).
pub const MAX_SLICES: usize = 1024;

/// Slices that are none of a packet's payload: the device's header, and the packet's own.
const HEADERS: usize = 2;

impl BatchAggregator {
    /// Aggregates these packets, in order, and gives each that leaves to `sink` as slices for one
    /// `writev`: the header of an aggregator made by [`framed`](Self::framed), then the packet. At
    /// most [`MAX_SLICES`], or as many as the policy's [fragments](crate::Policy::max_fragments)
    /// and two headers, if that is less; only a packet that came in more buffers than this leaves
    /// as it came, in as many slices. Returns what the sink returns.
    ///
    /// If the sink fails, the call stops and returns its error. No packet is lost:
    /// [`resume_gathered`](Self::resume_gathered) goes on with the packet that was refused.
    ///
    /// What no header could describe (a tunnel, where the format has no place for it) does not
    /// merge.
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

    /// Goes on with a call of [`poll_gathered`](Self::poll_gathered) that failed. `packets` must be
    /// those of that call.
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

/// Makes slices of packets.
struct Gather {
    framing: Option<Framing>,
    /// Empty, but for its memory.
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
            // One that merged here has the right outer checksum.
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

/// Returns the first bytes of a packet that came as a super-packet in a tunnel, up to its outer
/// checksum, if its header demands another one there.
#[inline]
fn front_of<P: BorrowPacket>(
    framing: &Framing,
    described: &[u8],
    packet: &SuperPacket<'_, BufferIndex, Borrowed<'_, P>>,
) -> Option<Gathered> {
    // Most packets name no tunnel: their headers are not gathered.
    if framing.format != Format::Tunnel || packet.metadata.gso.is_none() {
        return None;
    }
    let first = Gathered::new(packet.slices());
    let (place, value) = framing.outer_checksum(described, first.bytes(), packet.length())?;
    Some(first.ending_with(place, value))
}

/// The memory of a vector, for slices of other bytes: collected in place, so that nothing is
/// allocated.
fn reused<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}
