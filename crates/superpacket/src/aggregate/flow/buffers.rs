//! The buffers of a held flow: kept, or copied into one contiguous buffer.

use super::super::examine::{Facts, ranges};
use super::super::policy::Storage;
use super::super::poll::Poll;
use super::Held;
use crate::memory::Memory;
use crate::packet::{Chain, RxPacket};
use crate::super_packet::Piece;

impl<B> Held<B> {
    /// Stores the packet's buffers in the flow, or a copy of their bytes. `header` is the number of
    /// bytes before the payload. If the packet had several buffers, returns the list that held
    /// them, which is now empty and can be reused.
    #[inline(always)]
    pub(in crate::aggregate) fn attach(
        &mut self,
        packet: RxPacket<B>,
        facts: &Facts,
        header: usize,
        storage: Storage,
        memory: &impl Memory<B>,
    ) -> Option<Chain<B>> {
        let end = facts.end as usize;
        let first = self.packets == 1;
        let flags = Piece::<B>::FIRST | if facts.sum.is_some() { Piece::<B>::SUM } else { 0 };
        let sum = facts.sum.unwrap_or(0);
        match (storage, packet.rest) {
            (Storage::Fragments, None) => {
                self.pieces.push(Piece {
                    buffer: Some(packet.first),
                    start: header as u32,
                    length: facts.payload,
                    sum,
                    flags,
                });
                None
            }
            (Storage::Fragments, Some(mut chain)) => {
                let mut offset = 0;
                let mut flags = flags;
                for buffer in core::iter::once(packet.first).chain(chain.buffers_mut().drain(..)) {
                    let size = memory.bytes(&buffer).len();
                    let start = header.saturating_sub(offset).min(size);
                    let stop = end.saturating_sub(offset).min(size).max(start);
                    offset += size;
                    // The first packet may have to leave unchanged, so all its buffers are kept. Of
                    // other packets, only buffers with payload are kept.
                    if first || stop > start {
                        let has_payload = stop > start;
                        self.pieces.push(Piece {
                            buffer: Some(buffer),
                            start: start as u32,
                            length: (stop - start) as u32,
                            sum,
                            flags: if has_payload { flags } else { 0 },
                        });
                        if has_payload {
                            flags = 0;
                        }
                    }
                }
                Some(chain)
            }
            (Storage::Linear, rest) => {
                let packet = RxPacket { rest, ..RxPacket::new(packet.first) };
                let start = if first {
                    self.linear.clear();
                    packet
                        .buffers()
                        .for_each(|buffer| self.linear.extend_from_slice(memory.bytes(buffer)));
                    header as u32
                } else {
                    self.append(ranges(&packet, header, end, memory), facts.payload)
                };
                if facts.payload > 0 {
                    self.pieces.push(Piece {
                        buffer: None,
                        start,
                        length: facts.payload,
                        sum,
                        flags,
                    });
                }
                packet.rest.map(|mut chain| {
                    chain.buffers_mut().clear();
                    chain
                })
            }
        }
    }

    /// Appends a copy of a packet's payload to the payload in the first packet's buffer. The packet
    /// must have been counted by [`advance`](Self::advance) before.
    #[inline(always)]
    pub(in crate::aggregate) fn join_in_place<P: Poll<B>>(
        &mut self,
        packet: &RxPacket<B>,
        facts: &Facts,
        poll: &mut P,
    ) {
        let header = usize::from(self.layout.payload);
        if let Some(Piece { buffer: Some(first), .. }) = self.pieces.first() {
            let kept = header + (self.payload - facts.payload) as usize;
            poll.join(first, kept, &packet.first, header..facts.end as usize);
        }
    }

    /// Appends a copy of the last packet's payload to the linear storage, and returns its offset
    /// there.
    #[inline(always)]
    pub(super) fn append<'a>(
        &mut self,
        payload: impl IntoIterator<Item = &'a [u8]>,
        length: u32,
    ) -> u32 {
        // Padding behind the first packet is removed when a second packet follows.
        self.linear.truncate(usize::from(self.layout.payload) + (self.payload - length) as usize);
        let start = self.linear.len() as u32;
        payload.into_iter().for_each(|bytes| self.linear.extend_from_slice(bytes));
        start
    }
}
