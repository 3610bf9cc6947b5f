//! What the aggregation tests share: run packets through an aggregator, cut what comes out again
//! from its bytes and metadata alone, compare.

mod aggregator;
pub mod allocations;
mod bytes;
mod seen;

pub use aggregator::{Aggregator, BatchAggregator};
pub use bytes::{AnyBytes, Page};
pub use seen::Seen;

use std::collections::HashMap;

use superpacket::aggregate::{AggregateCounters, HashKey, Policy, Reason};
use superpacket::packet::{Layer, RxChecksum, RxPacket, VlanTag};
use superpacket::segment::{
    ChecksumOutput, Gso, GsoKind, GsoPacket, Segment, SegmentError, SegmentOptions, SegmentSize,
    Segmentable, Segmenter,
};
use superpacket::super_packet::{Metadata, SuperPacket};
use superpacket_traffic::check;
use superpacket_traffic::frame::Frame;
use superpacket_traffic::generate::{Checksum, Generated};

/// GRO with partial checksums.
pub const PARTIAL_GRO: Policy = Policy::gro().with_partial_checksums();

/// GRO with UDP aggregation and partial checksums.
pub const PARTIAL_GRO_UDP: Policy = Policy::gro_with_udp().with_partial_checksums();

/// The state of a checksum that the device has verified.
pub const VERIFIED: RxChecksum = RxChecksum::Unnecessary { level: 0 };

/// A packet to be received: bytes, cut into buffers when it is handed over, and what the device
/// knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The frame.
    pub bytes: Vec<u8>,
    /// Where it starts.
    pub layer: Layer,
    /// What the device knows.
    pub checksum: RxChecksum,
    /// A stripped tag.
    pub vlan: Option<VlanTag>,
    /// Lengths of its buffers; what is left goes into the last. Empty: one buffer.
    pub buffers: Vec<usize>,
    /// When it arrives, in nanoseconds.
    pub time: u64,
}

impl From<Vec<u8>> for Packet {
    fn from(bytes: Vec<u8>) -> Self {
        Packet {
            bytes,
            layer: Layer::Ethernet,
            checksum: RxChecksum::None,
            vlan: None,
            buffers: Vec::new(),
            time: 0,
        }
    }
}

impl From<&Frame> for Packet {
    fn from(frame: &Frame) -> Self {
        let layer = if frame.link.is_some() { Layer::Ethernet } else { Layer::Ip };
        Packet { layer, ..frame.to_bytes().into() }
    }
}

impl From<Frame> for Packet {
    fn from(frame: Frame) -> Self {
        Packet::from(&frame)
    }
}

impl From<Generated> for Packet {
    fn from(generated: Generated) -> Self {
        let checksum = match generated.checksum {
            Checksum::Unknown => RxChecksum::None,
            Checksum::Verified { level } => RxChecksum::Unnecessary { level },
            Checksum::Complete(sum) => RxChecksum::Complete(sum),
            Checksum::Partial { start, offset } => RxChecksum::Partial { start, offset },
        };
        Packet {
            layer: if generated.starts_at_ip { Layer::Ip } else { Layer::Ethernet },
            checksum,
            vlan: generated.stripped_vlan.map(|(protocol, control)| VlanTag { protocol, control }),
            time: generated.time_ns,
            ..generated.bytes.into()
        }
    }
}

impl Packet {
    /// The same packet with this device knowledge.
    pub fn with_checksum(self, checksum: RxChecksum) -> Self {
        Packet { checksum, ..self }
    }

    /// The same packet in buffers of `size` bytes.
    pub fn in_buffers_of(self, size: usize) -> Self {
        let count = self.bytes.len().div_ceil(size).saturating_sub(1);
        Packet { buffers: vec![size; count], ..self }
    }

    /// The same packet in one buffer, or in some that this number chooses.
    pub fn scattered(self, scatter: usize) -> Self {
        let length = |index: usize| (scatter * 7 + index * 31) % 97;
        Packet { buffers: (0..16).map(length).take(scatter % 17).collect(), ..self }
    }

    /// What the engine is given.
    pub fn receive(&self) -> RxPacket<Vec<u8>> {
        self.receive_in(<[u8]>::to_vec)
    }

    /// The same in buffers of another type.
    pub fn receive_in<'p, B>(&'p self, buffer: impl Fn(&'p [u8]) -> B) -> RxPacket<B> {
        let (mut rest, mut pieces) = (&self.bytes[..], Vec::new());
        for &length in &self.buffers {
            let (piece, others) = rest.split_at(length.min(rest.len()));
            pieces.push(piece);
            rest = others;
        }
        pieces.push(rest);
        let mut pieces = pieces.into_iter().map(buffer);
        let mut packet = RxPacket::new(pieces.next().expect("at least one buffer"));
        for piece in pieces {
            assert!(packet.push(piece).is_ok(), "at most 17 buffers");
        }
        packet.layer = self.layer;
        packet.checksum = self.checksum;
        packet.vlan = self.vlan;
        packet.time = self.time;
        packet
    }
}

/// A packet that came out.
#[derive(Clone, Debug)]
pub struct Output {
    /// All its bytes.
    pub bytes: Vec<u8>,
    /// What is known of it.
    pub metadata: Metadata,
    /// Number of pieces its payload lay in.
    pub pieces: usize,
    /// It lay in one run of bytes.
    pub contiguous: bool,
}

impl Output {
    /// Reads what a sink is given.
    pub fn of<B: AsRef<[u8]>>(packet: &SuperPacket<'_, B>) -> Self {
        let mut bytes = Vec::new();
        packet.copy_to(&mut bytes);
        assert_eq!(bytes.len(), packet.length());
        if let Some(contiguous) = packet.contiguous() {
            assert_eq!(contiguous, bytes);
        }
        Output {
            bytes,
            metadata: packet.metadata,
            pieces: packet.pieces().len(),
            contiguous: packet.contiguous().is_some(),
        }
    }

    /// Length of its transport payload in bytes, by an independent parse.
    pub fn payload(&self) -> usize {
        check::payload(&self.bytes, self.metadata.layer == Layer::Ip).map_or(0, <[u8]>::len)
    }

    /// Cuts it again, from a linear copy of its bytes and its metadata.
    pub fn cut(&self) -> Vec<Vec<u8>> {
        let Some(gso) = self.metadata.gso else {
            return vec![self.bytes.clone()];
        };
        let packet = GsoPacket::linear(&self.bytes, gso)
            .with_layer(self.metadata.layer)
            .with_checksum(self.metadata.checksum);
        let options = SegmentOptions::default().with_checksum(ChecksumOutput::AsMerged);
        segments(&packet, &options).expect("what merged can be cut")
    }
}

/// The bytes of a segment.
pub fn bytes_in<P: Segmentable + ?Sized>(segment: &Segment<'_, P>) -> Vec<u8> {
    let mut bytes = Vec::new();
    segment.copy_to(&mut bytes);
    bytes
}

/// The segments of a packet.
pub fn segments<P: Segmentable + ?Sized>(
    packet: &P,
    options: &SegmentOptions,
) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut segments = Vec::new();
    Segmenter::new().segment(packet, options, |segment| segments.push(bytes_in(&segment)))?;
    Ok(segments)
}

/// Segmentation of this kind, with `size` bytes of payload in each segment.
pub fn gso_of(kind: GsoKind, size: usize) -> Gso {
    Gso::new(kind, SegmentSize::new(size).expect("a size"))
}

/// What came out of a run, and the counters after it.
#[derive(Debug)]
pub struct Run {
    /// In the order of emission.
    pub outputs: Vec<Output>,
    /// After everything was flushed.
    pub counters: AggregateCounters,
}

impl Run {
    /// The payload lengths that arrive, as the kernel's own test compares them.
    pub fn payloads(&self) -> Vec<usize> {
        self.outputs.iter().map(Output::payload).collect()
    }

    /// The reasons in the order of emission.
    pub fn reasons(&self) -> Vec<Reason> {
        self.outputs.iter().map(|output| output.metadata.reason).collect()
    }
}

/// An aggregator with a fixed key.
pub fn aggregator(policy: Policy) -> Aggregator<Vec<u8>> {
    Aggregator::new(policy, HashKey::new(0x0123_4567_89ab_cdef_0011_2233_4455_6677))
}

/// Receives all packets as one poll, then ends it.
pub fn run(policy: Policy, packets: &[Packet]) -> Run {
    run_polls(policy, packets, usize::MAX)
}

/// Receives packets in polls of `batch` packets, with `now` the time of each packet.
pub fn run_polls(policy: Policy, packets: &[Packet], batch: usize) -> Run {
    let mut aggregator = aggregator(policy);
    let mut outputs = Vec::new();
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
    let mut now = 0;
    for poll in packets.chunks(batch.min(packets.len()).max(1)) {
        for packet in poll {
            now = packet.time.max(now);
            if policy.hold_time > 0 {
                aggregator.flush_older_than(now, policy.hold_time, &mut sink);
            }
            aggregator.receive(packet.receive(), now, &mut sink);
            assert!(aggregator.counters().balanced(), "{:?}", aggregator.counters());
        }
        aggregator.poll_end(now, &mut sink);
    }
    aggregator.flush_all(&mut sink);
    let counters = *aggregator.counters();
    assert!(counters.balanced(), "{counters:?}");
    assert_eq!((counters.held, counters.held_bytes), (0, 0));
    assert_eq!(counters.packets_in, packets.len() as u64);
    assert_eq!(counters.packets_out, outputs.len() as u64);
    assert_eq!(
        outputs.iter().map(|output| u64::from(output.metadata.packets)).sum::<u64>(),
        counters.packets_in
    );
    Run { outputs, counters }
}

/// Receives packets in batches of `size` as one poll, then ends it.
pub fn run_batches(policy: Policy, packets: &[Packet], size: usize) -> Run {
    let mut aggregator = aggregator(policy);
    let mut outputs = Vec::new();
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
    let now = packets.iter().map(|packet| packet.time).max().unwrap_or(0);
    for batch in packets.chunks(size) {
        aggregator.receive_batch(&mut batch.iter().map(Packet::receive).collect(), now, &mut sink);
        assert!(aggregator.counters().balanced(), "{:?}", aggregator.counters());
    }
    aggregator.poll_end(now, &mut sink);
    let counters = *aggregator.counters();
    Run { outputs, counters }
}

/// Bytes as packets of which nothing is known. What is borrowed is of this type wherever the type
/// does not matter: the engine is compiled anew for each.
pub fn unknown(layer: Layer, packets: &[Vec<u8>]) -> Vec<RxPacket<&[u8]>> {
    let bytes = packets.iter().map(|bytes| &bytes[..]);
    bytes
        .map(|bytes| if layer == Layer::Ip { RxPacket::ip(bytes) } else { RxPacket::new(bytes) })
        .collect()
}

/// A packet in buffers that are lent: see [`unknown`].
pub fn lent(packet: &RxPacket<Vec<u8>>) -> RxPacket<&[u8]> {
    in_buffers(packet, Vec::as_slice)
}

/// The same packet in buffers of another type.
pub fn in_buffers<'p, A, B>(packet: &'p RxPacket<A>, buffer: impl Fn(&'p A) -> B) -> RxPacket<B> {
    let mut buffers = packet.buffers().map(buffer);
    let mut same = RxPacket::new(buffers.next().expect("a packet has a buffer"));
    buffers.for_each(|buffer| assert!(same.push(buffer).is_ok(), "as many as before"));
    (same.queue, same.layer, same.hash, same.checksum) =
        (packet.queue, packet.layer, packet.hash, packet.checksum);
    (same.vlan, same.gso, same.time) = (packet.vlan, packet.gso, packet.time);
    same
}

/// Frames as packets of which the device knows nothing.
pub fn packets(frames: &[Frame]) -> Vec<Packet> {
    frames.iter().map(Packet::from).collect()
}

/// Runs frames through GRO with UDP aggregation and checks that cutting gives back the very frames,
/// per flow and in order.
pub fn reversible(frames: &[Frame]) -> Run {
    reversible_packets(PARTIAL_GRO_UDP, &packets(frames))
}

/// A frame as the comparison sees it: bytes, stripped tag, and whether its checksum is partial.
type ComparedFrame = (Vec<u8>, Option<VlanTag>, bool);

/// The same for packets and a policy.
pub fn reversible_packets(policy: Policy, packets: &[Packet]) -> Run {
    let run = run(policy, packets);
    assert_reversed(packets, &run);
    run
}

/// Checks that cutting what came out gives what went in, per flow and in order.
pub fn assert_reversed(packets: &[Packet], run: &Run) {
    let partial = |checksum: RxChecksum| matches!(checksum, RxChecksum::Partial { .. });
    let mut expected: HashMap<_, Vec<ComparedFrame>> = HashMap::new();
    for packet in packets {
        let key = (
            check::flow_key(&packet.bytes, packet.layer == Layer::Ip),
            packet.vlan.map(|tag| tag.control & 0x0fff),
        );
        expected.entry(key).or_default().push((
            packet.bytes.clone(),
            packet.vlan,
            partial(packet.checksum),
        ));
    }
    let mut found: HashMap<_, Vec<ComparedFrame>> = HashMap::new();
    for output in &run.outputs {
        let layer = output.metadata.layer;
        let form = match output.metadata.gso {
            Some(gso) => gso.checksum == superpacket::segment::ChecksumForm::Partial,
            None => partial(output.metadata.checksum),
        };
        let frames = output.cut();
        assert_eq!(
            frames.len() as u32,
            output.metadata.packets,
            "as many frames as merged: {:?}",
            output.metadata
        );
        for frame in frames {
            let key = (
                check::flow_key(&frame, layer == Layer::Ip),
                output.metadata.vlan.map(|tag| tag.control & 0x0fff),
            );
            found.entry(key).or_default().push((frame, output.metadata.vlan, form));
        }
    }
    for (key, frames) in &expected {
        let back = found.get(key).map_or(&[][..], Vec::as_slice);
        for (index, (expected, found)) in frames.iter().zip(back).enumerate() {
            assert_eq!(expected, found, "frame {index} of flow {key:?}");
        }
        assert_eq!(frames.len(), back.len(), "flow {key:?}");
    }
    assert_eq!(expected.len(), found.len());
}
