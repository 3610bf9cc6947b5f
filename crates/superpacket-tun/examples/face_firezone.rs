//! The interface of firezone's `packet-coalescer`, `enqueue` and `drain`, implemented with the
//! engine.
//!
//! Callers of these functions can try superpacket by changing an import: any packet type that is
//! `AsRef<[u8]>` replaces its `IpPacket`. Copy this file; `main` runs it in memory.
//!
//! Differences: headers with ECE, CWR or extension headers merge too. Packets merge only if they
//! can be cut into the same packets again (the flow label is compared). The packets of a refused
//! super-packet can be restored: see `superpacket_tun::Writer`.

use std::mem;

use superpacket::wire::{IpVersion, Protocol as Transport};
use superpacket::{BatchAggregator, GsoKind, HashKey, Layer, Policy};

/// How the transport checksums of merged packets are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumMode {
    /// Complete checksums, for WinTUN.
    Complete,
    /// Partial checksums, for a TUN device with a `virtio_net_hdr`.
    Offloaded,
}

/// A protocol whose packets may merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Merges packets, in the order of each flow.
#[derive(Debug)]
pub struct PacketCoalescer<P> {
    packets: Vec<P>,
    aggregator: BatchAggregator,
    tcp: bool,
    udp: bool,
    checksum_mode: ChecksumMode,
}

/// The data needed to complete a packet with a partial checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadMetadata {
    /// The protocol.
    pub protocol: Protocol,
    /// The IP version.
    pub ip_version: IpVersion,
    /// Length of the IP header in bytes.
    pub ip_header_len: usize,
    /// Length of the transport header in bytes.
    pub transport_header_len: usize,
    /// Payload bytes of each segment, but the last.
    pub segment_size: usize,
}

/// A packet to be written.
#[derive(Debug)]
pub enum CoalescedPacket<P> {
    /// A single packet, unchanged.
    Packet(P),
    /// Several packets, merged.
    Batch {
        /// The bytes of the merged packet.
        buf: Vec<u8>,
        /// The number of packets that were merged.
        num_segments: usize,
        /// The data needed to complete the merged packet, if its checksum is partial.
        offload_metadata: Option<OffloadMetadata>,
    },
}

impl<P: AsRef<[u8]>> CoalescedPacket<P> {
    /// Returns the number of packets of which this one consists.
    pub fn num_segments(&self) -> usize {
        match self {
            CoalescedPacket::Packet(_) => 1,
            CoalescedPacket::Batch { num_segments, .. } => *num_segments,
        }
    }

    /// Returns the bytes of the IP packet.
    pub fn packet(&self) -> &[u8] {
        match self {
            CoalescedPacket::Packet(packet) => packet.as_ref(),
            CoalescedPacket::Batch { buf, .. } => buf,
        }
    }

    /// Returns the data needed to complete the packet, if its checksum is partial.
    pub fn offload_metadata(&self) -> Option<OffloadMetadata> {
        match self {
            CoalescedPacket::Packet(_) => None,
            CoalescedPacket::Batch { offload_metadata, .. } => *offload_metadata,
        }
    }
}

/// A packet that leaves the aggregator. A single packet is given by its index in the queue.
enum Leaving {
    Single(usize),
    Merged(Vec<u8>, usize, OffloadMetadata),
}

impl<P: AsRef<[u8]>> PacketCoalescer<P> {
    /// Merges packets of these protocols after verification of their checksums.
    pub fn new(protocols: impl IntoIterator<Item = Protocol>, checksum_mode: ChecksumMode) -> Self {
        let protocols: Vec<_> = protocols.into_iter().collect();
        let (tcp, udp) = (protocols.contains(&Protocol::Tcp), protocols.contains(&Protocol::Udp));
        let policy = if udp { Policy::gro_with_udp() } else { Policy::gro() };
        let policy = if checksum_mode == ChecksumMode::Offloaded {
            policy.with_partial_checksums()
        } else {
            policy
        };
        let aggregator = BatchAggregator::new(Layer::Ip, policy, HashKey::random());
        PacketCoalescer { packets: Vec::new(), aggregator, tcp, udp, checksum_mode }
    }

    /// Returns a coalescer that merges no packets.
    pub fn passthrough() -> Self {
        Self::new([], ChecksumMode::Complete)
    }

    /// Queues a packet.
    pub fn enqueue(&mut self, packet: P) {
        self.packets.push(packet);
    }

    /// Merges the queued packets, and returns the results in the order in which they are to be
    /// written.
    pub fn drain(&mut self) -> impl Iterator<Item = CoalescedPacket<P>> + '_ {
        let (packets, mut leaving) = (mem::take(&mut self.packets), Vec::new());
        let (tcp, udp) = (self.tcp, self.udp);
        if tcp || udp {
            self.aggregator.poll(&packets, |packet| {
                let merges = packet.metadata.gso.filter(|gso| match gso.kind {
                    GsoKind::Tcp4 | GsoKind::Tcp6 => tcp,
                    GsoKind::Udp => udp,
                    _ => false,
                });
                match (merges, packet.metadata.layout) {
                    (Some(gso), Some(layout)) if packet.is_merged() && layout.outer.is_none() => {
                        let mut bytes = Vec::with_capacity(packet.length());
                        packet.copy_to(&mut bytes);
                        let metadata = OffloadMetadata {
                            protocol: if layout.protocol == Transport::Udp {
                                Protocol::Udp
                            } else {
                                Protocol::Tcp
                            },
                            ip_version: layout.version,
                            ip_header_len: usize::from(layout.transport),
                            transport_header_len: usize::from(layout.payload - layout.transport),
                            segment_size: gso.size.get(),
                        };
                        leaving.push(Leaving::Merged(
                            bytes,
                            packet.metadata.packets as usize,
                            metadata,
                        ));
                    }
                    // Unchanged packets are in one buffer each.
                    _ => leaving.extend(
                        packet
                            .pieces()
                            .iter()
                            .filter_map(|piece| piece.buffer())
                            .map(|at| Leaving::Single(at.packet())),
                    ),
                }
            });
        } else {
            leaving.extend((0..packets.len()).map(Leaving::Single));
        }
        let mut packets: Vec<_> = packets.into_iter().map(Some).collect();
        let with_metadata = self.checksum_mode == ChecksumMode::Offloaded;
        leaving.into_iter().filter_map(move |leaving| match leaving {
            Leaving::Single(index) => packets.get_mut(index)?.take().map(CoalescedPacket::Packet),
            Leaving::Merged(buf, num_segments, metadata) => Some(CoalescedPacket::Batch {
                buf,
                num_segments,
                offload_metadata: with_metadata.then_some(metadata),
            }),
        })
    }
}

fn main() {
    let mut coalescer = PacketCoalescer::new([Protocol::Tcp], ChecksumMode::Complete);
    coalescer.enqueue(vec![0x45; 20]);
    for packet in coalescer.drain() {
        println!("{} bytes, {} packets", packet.packet().len(), packet.num_segments());
    }
}

/// The test cases of firezone's `packet-coalescer`, `lib.rs`, rewritten.
#[cfg(test)]
mod tests {
    use superpacket_traffic::check::{Expect, frame};
    use superpacket_traffic::frame::{ACK, Frame, PSH};

    use super::*;

    const AT_IP: Expect =
        Expect { starts_at_ip: true, trailing: false, partial: false, big: false };

    fn tcp(sequence: u32, payload: usize) -> Vec<u8> {
        Frame::tcp4(sequence, payload).at_ip().to_bytes()
    }

    fn other_tcp(sequence: u32, payload: usize) -> Vec<u8> {
        let other = |frame: &mut Frame| {
            (frame.tcp_mut().source_port, frame.tcp_mut().destination_port) = (7000, 8000)
        };
        Frame::tcp4(sequence, payload).with(other).at_ip().to_bytes()
    }

    fn udp(payload: usize) -> Vec<u8> {
        Frame::udp4(payload).at_ip().to_bytes()
    }

    fn drained(
        protocols: &[Protocol],
        mode: ChecksumMode,
        packets: &[Vec<u8>],
    ) -> Vec<CoalescedPacket<Vec<u8>>> {
        let mut coalescer = PacketCoalescer::new(protocols.iter().copied(), mode);
        packets.iter().for_each(|packet| coalescer.enqueue(packet.clone()));
        coalescer.drain().collect()
    }

    fn counts(out: &[CoalescedPacket<Vec<u8>>]) -> Vec<usize> {
        out.iter().map(CoalescedPacket::num_segments).collect()
    }

    fn complete(packets: &[Vec<u8>]) -> Vec<CoalescedPacket<Vec<u8>>> {
        drained(&[Protocol::Tcp], ChecksumMode::Complete, packets)
    }

    #[test]
    fn complete_checksum_mode_emits_one_fully_checksummed_packet() {
        let packets = [tcp(1000, 100), tcp(1100, 100), tcp(1200, 50)];
        let out = complete(&packets);
        assert_eq!((counts(&out), out[0].offload_metadata()), (vec![3], None));
        let payload: Vec<u8> = packets.iter().flat_map(|packet| packet[40..].to_vec()).collect();
        assert_eq!(out[0].packet()[40..], payload);
        assert!(
            frame(out[0].packet(), &AT_IP).is_ok_and(|checked| checked.checksums == 1),
            "TCP's, beside the header's"
        );
    }

    #[test]
    fn offloaded_checksum_mode_emits_checksum_seed_and_metadata() {
        let out =
            drained(&[Protocol::Tcp], ChecksumMode::Offloaded, &[tcp(1000, 100), tcp(1100, 100)]);
        let metadata = OffloadMetadata {
            protocol: Protocol::Tcp,
            ip_version: IpVersion::V4,
            ip_header_len: 20,
            transport_header_len: 20,
            segment_size: 100,
        };
        assert_eq!((counts(&out), out[0].offload_metadata()), (vec![2], Some(metadata)));
        let partial = Expect { partial: true, ..AT_IP };
        assert!(
            frame(out[0].packet(), &partial).is_ok_and(|checked| checked.partial.is_some()),
            "the pseudo-header's sum"
        );
    }

    #[test]
    fn disabled_protocol_does_not_change_packet_boundaries() {
        assert_eq!(counts(&complete(&[udp(100), udp(100)])), [1, 1]);
        let out = drained(
            &[Protocol::Udp],
            ChecksumMode::Offloaded,
            &[tcp(1000, 100), tcp(1100, 100), udp(100), udp(100)],
        );
        assert_eq!(counts(&out), [1, 1, 2]);
    }

    #[test]
    fn passthrough_preserves_packet_boundaries() {
        let mut coalescer = PacketCoalescer::passthrough();
        coalescer.enqueue(tcp(1000, 100));
        coalescer.enqueue(tcp(1100, 100));
        assert_eq!(counts(&coalescer.drain().collect::<Vec<_>>()), [1, 1]);
        assert_eq!(coalescer.drain().count(), 0);
    }

    #[test]
    fn coalesces_enabled_udp_datagrams() {
        let out = drained(
            &[Protocol::Tcp, Protocol::Udp],
            ChecksumMode::Offloaded,
            &[udp(100), udp(100), udp(30)],
        );
        assert_eq!((counts(&out), out[0].packet().len()), (vec![3], 28 + 230));
        let metadata = out[0].offload_metadata().expect("it is offloaded");
        assert_eq!((metadata.protocol, metadata.segment_size), (Protocol::Udp, 100));
    }

    #[test]
    fn coalesces_interleaved_flows_independently() {
        assert_eq!(
            counts(&complete(&[tcp(1000, 100), other_tcp(9999, 100), tcp(1100, 100)])),
            [2, 1]
        );
    }

    #[test]
    fn out_of_order_segment_starts_new_batch() {
        assert_eq!(counts(&complete(&[tcp(1000, 100), tcp(1500, 100)])), [1, 1]);
    }

    #[test]
    fn psh_closes_the_batch() {
        let pushed = Frame::tcp4(1100, 100).with_flags(ACK | PSH).at_ip().to_bytes();
        let out = complete(&[tcp(1000, 100), pushed, tcp(1200, 100)]);
        assert_eq!((counts(&out), u16::from(out[0].packet()[33]) & PSH), (vec![2, 1], PSH));
    }

    #[test]
    fn short_segment_closes_the_batch() {
        assert_eq!(counts(&complete(&[tcp(1000, 100), tcp(1100, 40), tcp(1140, 100)])), [2, 1]);
    }

    #[test]
    fn non_candidate_preserves_same_flow_order() {
        let packets = [tcp(1000, 100), tcp(1100, 100), tcp(1200, 0)];
        let out = complete(&packets);
        assert_eq!((counts(&out), out[1].packet()), (vec![2, 1], packets[2].as_slice()));
    }
}
