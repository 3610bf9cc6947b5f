//! The way past the aggregator.

use super::{Aggregator, Reason};
use crate::packet::RxPacket;
use crate::super_packet::Sink;

impl<B: AsRef<[u8]>> Aggregator<B> {
    /// Gives a packet to the sink as it came, unread, after what is held of its flow: where aggregation is switched off. Its layout is not known then.
    #[inline]
    pub fn bypass<S: Sink<B> + ?Sized>(&mut self, packet: RxPacket<B>, sink: &mut S) {
        if self.counters.held != 0 {
            self.flush_flow(&packet, sink);
        }
        let length = packet.length();
        self.counters.packets_in += 1;
        self.counters.bytes_in += length as u64;
        self.out.pass_unknown(packet, length, Reason::Requested, &mut self.counters, sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Simd;
    use crate::aggregate::{HashKey, Policy};
    use crate::super_packet::SuperPacket;

    #[test]
    fn a_packet_that_passes_by_comes_after_its_flow_and_untouched() {
        let frames = superpacket_traffic::workload::w1(3);
        let mut aggregator = Aggregator::new(Policy::gro(), HashKey::new(1), Simd::detect());
        let mut out = vec![];
        let mut sink = |packet: SuperPacket<'_, &[u8]>| {
            out.push((packet.metadata.packets, packet.slices().flatten().copied().collect::<alloc::vec::Vec<u8>>()))
        };
        aggregator.receive(RxPacket::new(&frames[0][..]), 0, &mut sink);
        aggregator.receive(RxPacket::new(&frames[1][..]), 0, &mut sink);
        aggregator.bypass(RxPacket::new(&frames[2][..]), &mut sink);
        aggregator.bypass(RxPacket::new(&[1u8, 2, 3][..]), &mut sink);
        assert!(aggregator.counters().balance());
        assert_eq!(out.iter().map(|(packets, _)| *packets).collect::<alloc::vec::Vec<_>>(), [2, 1, 1]);
        assert_eq!((&out[1].1, &out[2].1[..]), (&frames[2], &[1u8, 2, 3][..]));
    }
}
