//! The engine under test: the same frames as one poll.

use superpacket::packet::RxPacket;
use superpacket::segment::Cwr;
use superpacket::virtio::{Format, Header, Offload, VirtioError, gso_type};
use superpacket::{Aggregator, GsoKind, HashKey, Layer, Policy, Reason, RxChecksum, SuperPacket};
use superpacket_traffic::random::Random;

use crate::frames::{Cut, Group, Input, Packet};

/// A frame and its place among those received.
struct Numbered<'a>(usize, &'a [u8]);

impl AsRef<[u8]> for Numbered<'_> {
    fn as_ref(&self) -> &[u8] {
        self.1
    }
}

/// A packet that left the engine, and why.
#[derive(Clone, Debug)]
pub struct Left {
    /// The packet and its frames.
    pub group: Group,
    /// Why it left as it did.
    pub reason: Reason,
}

/// Gives the engine these frames as one poll, by GRO's rules with UDP, and returns what leaves.
/// `seed` makes the key of its hash.
///
/// # Panics
/// If a merged packet has no valid virtio header, or one in two tunnels has: a fault of the engine.
pub fn receive(frames: &[Input], seed: u64) -> Vec<Left> {
    let policy = Policy::gro_with_udp().with_partial_checksums();
    let mut aggregator = Aggregator::new(policy, key(seed));
    let mut poll: Vec<_> = frames.iter().enumerate().map(|(place, frame)| packet(place, frame)).collect();
    let mut left = Vec::new();
    let mut sink = |packet: SuperPacket<'_, Numbered<'_>>| left.push(taken(&packet));
    aggregator.receive_batch(&mut poll, 0, &mut sink);
    aggregator.poll_end(0, &mut sink);
    left
}

fn key(seed: u64) -> HashKey {
    let mut random = Random::new(seed);
    HashKey::new(u128::from(random.bits()) << 64 | u128::from(random.bits()))
}

fn packet(place: usize, frame: &Input) -> RxPacket<Numbered<'_>> {
    let packet = RxPacket::new(Numbered(place, &frame.bytes));
    match frame.partial {
        Some((start, offset)) => packet.with_checksum(RxChecksum::Partial { start, offset }),
        None => packet,
    }
}

fn taken(packet: &SuperPacket<'_, Numbered<'_>>) -> Left {
    let mut bytes = Vec::new();
    packet.copy_to(&mut bytes);
    let metadata = &packet.metadata;
    let mut frames: Vec<usize> = packet.pieces().iter().filter_map(|piece| piece.buffer().map(|buffer| buffer.0)).collect();
    frames.dedup();
    let cut = metadata.gso.filter(|_| metadata.packets > 1).map(|gso| {
        // No header says CWR on all segments; compared is that for CWR on the first.
        let offload = Offload::new(metadata.checksum, Some(gso.with_cwr(Cwr::First)));
        if metadata.layout.is_some_and(|layout| layout.nested.is_some()) {
            let header = Header::describe(&offload, Format::Tunnel, &bytes, bytes.len(), Layer::Ethernet);
            assert!(matches!(header, Err(VirtioError::Unnamed(_))), "no virtio header names two tunnels: {header:?}");
        }
        let in_tunnel = metadata.layout.is_some_and(|layout| layout.outer.is_some());
        let kind = match gso.kind {
            GsoKind::Dccp => gso_type::NONE,
            // The kernel's packet sockets leave tunnels out, and so does this form of the header.
            GsoKind::Tcp4 if in_tunnel => gso_type::TCPV4,
            GsoKind::Tcp6 if in_tunnel => gso_type::TCPV6,
            _ if in_tunnel => gso_type::UDP_L4,
            _ => {
                let header = Header::describe(&offload, Format::Plain, &bytes, bytes.len(), Layer::Ethernet);
                header.expect("a merged packet can be said in virtio").gso_type
            }
        };
        Cut { kind, size: gso.size.get() as u16 }
    });
    let partial = match metadata.checksum {
        RxChecksum::Partial { start, offset } => Some((start, offset)),
        _ => None,
    };
    Left { group: Group { packet: Packet { bytes, cut, partial }, frames }, reason: metadata.reason }
}
