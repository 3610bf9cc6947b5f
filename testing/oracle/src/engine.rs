//! Gives a batch of frames to the engine under test, in one poll.

use superpacket::aggregate::BufferIndex;
use superpacket::memory::Memory;
use superpacket::packet::RxPacket;
use superpacket::segment::Cwr;
use superpacket::virtio::{Format, Header, Offload, VirtioError, gso_type};
use superpacket::{
    Aggregator, BatchAggregator, GsoKind, HashKey, Layer, Policy, Reason, RxChecksum, SuperPacket,
};
use superpacket_traffic::checksum;
use superpacket_traffic::random::Random;

use crate::frames::hexadecimal;
use crate::frames::{Group, GsoFields, InputFrame, ResultPacket};

/// The bytes of a frame, with the frame's number in the order of arrival.
struct NumberedFrame<'a>(usize, &'a [u8]);

impl AsRef<[u8]> for NumberedFrame<'_> {
    fn as_ref(&self) -> &[u8] {
        self.1
    }
}

/// A packet that left the engine, with the reason for leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnginePacket {
    /// The packet, and the numbers of the frames that it contains.
    pub group: Group,
    /// The reason for which the engine released the packet.
    pub reason: Reason,
}

/// Gives frames to the engine in one poll, with [`Policy::gro_with_udp`] and partial checksums, and
/// returns the packets that leave. `seed` determines the hash key.
///
/// # Panics
/// If a merged packet has no valid virtio header, or if a virtio header can describe a packet in
/// two tunnels: both are faults of the engine.
pub fn receive(frames: &[InputFrame], seed: u64) -> Vec<EnginePacket> {
    receive_owned(frames, seed, policy().with_partial_checksums())
}

fn policy() -> Policy {
    Policy::gro_with_udp()
}

fn receive_owned(frames: &[InputFrame], seed: u64, policy: Policy) -> Vec<EnginePacket> {
    let mut aggregator = Aggregator::new(policy, key(seed));
    let mut poll: Vec<_> =
        frames.iter().enumerate().map(|(place, frame)| packet(place, frame)).collect();
    let mut left = Vec::new();
    let mut sink =
        |packet: SuperPacket<'_, NumberedFrame<'_>>| left.push(emitted(&packet, |buffer| buffer.0));
    aggregator.receive_batch(&mut poll, 0, &mut sink);
    aggregator.poll_end(0, &mut sink);
    left
}

/// Gives the frames to the engine twice more: with borrowed buffers, and with complete checksums in
/// merged packets. Describes the first packet that differs from `left`, the result of [`receive`];
/// with complete checksums, checksums may differ.
///
/// # Panics
/// As [`receive`].
pub fn disagreement(frames: &[InputFrame], seed: u64, left: &[EnginePacket]) -> Option<String> {
    let packets: Vec<_> =
        frames.iter().enumerate().map(|(place, frame)| packet(place, frame)).collect();
    let mut borrowed = Vec::new();
    let mut aggregator =
        BatchAggregator::new(Layer::Ethernet, policy().with_partial_checksums(), key(seed));
    aggregator.poll(&packets, |packet| {
        borrowed.push(emitted(&packet, |buffer: &BufferIndex| buffer.packet()))
    });
    let complete = receive_owned(frames, seed, policy());
    let completed: Vec<_> = left.iter().map(with_complete_checksum).collect();
    [("borrowed buffers", left, borrowed), ("complete checksums", &completed[..], complete)]
        .into_iter()
        .find_map(|(way, wanted, got)| {
            // The coverage of a DCCP checksum depends on the DCCP header. The campaign tests such
            // packets.
            let is_dccp = |left: &EnginePacket| {
                left.group.packet.cut.is_some_and(|cut| cut.kind == gso_type::NONE)
            };
            let same = |wanted: &EnginePacket, got: &EnginePacket| match is_dccp(wanted) {
                true => (&wanted.group.frames, wanted.reason) == (&got.group.frames, got.reason),
                false => wanted == got,
            };
            let both = |index: usize| wanted.get(index).zip(got.get(index));
            let differs = (0..wanted.len().max(got.len()))
                .find(|&index| !both(index).is_some_and(|(wanted, got)| same(wanted, got)))?;
            let said = |left: Option<&EnginePacket>| {
                let EnginePacket { group: Group { packet, frames }, reason } = left?;
                Some(format!(
                    "{frames:?} {reason:?} {:?} {:?} {}",
                    packet.cut,
                    packet.partial,
                    hexadecimal(&packet.bytes)
                ))
            };
            Some(format!(
                "with {way}, packet {differs} is {:?} instead of {:?}",
                said(got.get(differs)),
                said(wanted.get(differs))
            ))
        })
}

/// Returns the packet with a complete checksum if it is merged; otherwise the packet unchanged.
fn with_complete_checksum(left: &EnginePacket) -> EnginePacket {
    let mut complete = left.clone();
    let packet = &mut complete.group.packet;
    if let (Some(_), Some((start, offset))) = (packet.cut, packet.partial.take()) {
        let (start, field) = (usize::from(start), usize::from(start) + usize::from(offset));
        let sum = match !checksum::sum(&packet.bytes[start..]) {
            // In UDP, 0 means that there is no checksum.
            0 if offset == 6
                && left.group.packet.cut.is_some_and(|cut| cut.kind != gso_type::NONE) =>
            {
                0xffff
            }
            sum => sum,
        };
        packet.bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    } else {
        packet.partial = left.group.packet.partial;
    }
    complete
}

fn key(seed: u64) -> HashKey {
    let mut random = Random::new(seed);
    HashKey::new(u128::from(random.bits()) << 64 | u128::from(random.bits()))
}

fn packet(place: usize, frame: &InputFrame) -> RxPacket<NumberedFrame<'_>> {
    let packet = RxPacket::new(NumberedFrame(place, &frame.bytes));
    match frame.partial {
        Some((start, offset)) => packet.with_checksum(RxChecksum::Partial { start, offset }),
        None => packet,
    }
}

fn emitted<B, M: Memory<B>>(
    packet: &SuperPacket<'_, B, M>,
    place: impl Fn(&B) -> usize,
) -> EnginePacket {
    let mut bytes = Vec::new();
    packet.copy_to(&mut bytes);
    let metadata = &packet.metadata;
    let mut frames: Vec<usize> =
        packet.pieces().iter().filter_map(|piece| piece.buffer().map(&place)).collect();
    frames.dedup();
    let cut = metadata.gso.filter(|_| metadata.packets > 1).map(|gso| {
        // No virtio header can express CWR on all segments, so the header for CWR on the first
        // segment is compared. Nor can a header for segmentation express complete checksums.
        let checksum = match (metadata.checksum, metadata.layout) {
            (checksum @ RxChecksum::Partial { .. }, _) | (checksum, None) => checksum,
            (_, Some(layout)) => RxChecksum::Partial {
                start: layout.transport,
                offset: layout.protocol.checksum_offset(),
            },
        };
        let offload = Offload::new(checksum, Some(gso.with_cwr(Cwr::First)));
        if metadata.layout.is_some_and(|layout| layout.nested.is_some()) {
            let header =
                Header::describe(&offload, Format::Tunnel, &bytes, bytes.len(), Layer::Ethernet);
            assert!(
                matches!(header, Err(VirtioError::Unnamed(_))),
                "no virtio header names two tunnels: {header:?}"
            );
        }
        let in_tunnel = metadata.layout.is_some_and(|layout| layout.outer.is_some());
        let kind = match gso.kind {
            GsoKind::Dccp => gso_type::NONE,
            // For packets in tunnels, the kernel's packet sockets report the GSO type of the inner
            // packet.
            GsoKind::Tcp4 if in_tunnel => gso_type::TCPV4,
            GsoKind::Tcp6 if in_tunnel => gso_type::TCPV6,
            _ if in_tunnel => gso_type::UDP_L4,
            _ => {
                let header =
                    Header::describe(&offload, Format::Plain, &bytes, bytes.len(), Layer::Ethernet);
                header.expect("a merged packet can be said in virtio").gso_type
            }
        };
        GsoFields { kind, size: gso.size.get() as u16 }
    });
    let partial = match metadata.checksum {
        RxChecksum::Partial { start, offset } => Some((start, offset)),
        _ => None,
    };
    EnginePacket {
        group: Group { packet: ResultPacket { bytes, cut, partial }, frames },
        reason: metadata.reason,
    }
}
