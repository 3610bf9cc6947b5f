//! Super-packets that the engine merges of generated frames for a device, each with its virtio
//! header. A kernel or any other reader of the header must make the same segments as the engine.

use std::collections::VecDeque;

use superpacket::virtio::{Format, Header, gso_type};
use superpacket::{BatchAggregator, Framing, HashKey, Policy, RxChecksum, RxPacket};
use superpacket_traffic::generate::Combination;
use superpacket_traffic::random::Random;

use crate::frames::InputFrame;
use crate::segment::GsoInput;
use crate::traffic::Batches;

/// An endless sequence of super-packets that the engine merged, reproducible by its seed.
pub struct Merged {
    batches: Batches,
    random: Random,
    engine: BatchAggregator,
    framing: Framing,
    ready: VecDeque<GsoInput>,
    /// The buffers in which packets are joined in place, kept to reuse their memory.
    buffers: Vec<Vec<u8>>,
}

impl Merged {
    /// Creates the sequence of a seed, for a device with virtio headers of the format.
    ///
    /// The super-packets include all protocols, tunnels and link headers.
    pub fn new(seed: u64, format: Format) -> Self {
        let framing = Framing::new(format, Framing::TAP.order, Framing::TAP.layer);
        let mut random = Random::new(seed);
        let key = HashKey::new(u128::from(random.bits()) << 64 | u128::from(random.bits()));
        let engine = BatchAggregator::framed(framing, Policy::gro_with_udp(), key);
        Merged {
            batches: Batches::encapsulated(seed, Combination::all()),
            random,
            engine,
            framing,
            ready: VecDeque::new(),
            buffers: Vec::new(),
        }
    }

    /// Merges the frames of one poll, either gathered as slices or joined in their own buffers.
    fn poll(&mut self, frames: &[InputFrame]) {
        let (framing, ready) = (self.framing, &mut self.ready);
        let mut take = |slices: &[&[u8]]| {
            let start = slices.first().copied().unwrap_or(&[]);
            let header = Header::read(start, framing.format, framing.order)
                .expect("the engine's own header");
            if header.gso_type != gso_type::NONE {
                let bytes = slices.concat().split_off(framing.header_length());
                ready.push_back(GsoInput { header, format: framing.format, bytes });
            }
        };
        if self.random.chance(0.5) {
            let packets: Vec<_> = frames.iter().map(rx_packet).collect();
            self.engine.poll_gathered(&packets, |slices| {
                take(&slices.iter().map(|slice| &**slice).collect::<Vec<_>>())
            });
            return;
        }
        let offset = framing.header_length();
        self.buffers.resize_with(frames.len(), Vec::new);
        for (buffer, frame) in self.buffers.iter_mut().zip(frames) {
            buffer.clear();
            buffer.resize(offset, 0);
            buffer.extend_from_slice(&frame.bytes);
            buffer.reserve_exact(65_600);
        }
        let written = self
            .engine
            .join_in_place(&mut self.buffers, offset)
            .expect("there is room for the header");
        written.iter().for_each(|&index| take(&[&self.buffers[index]]));
    }
}

fn rx_packet(frame: &InputFrame) -> RxPacket<&[u8]> {
    let checksum = frame
        .partial
        .map_or(RxChecksum::None, |(start, offset)| RxChecksum::Partial { start, offset });
    RxPacket::new(&frame.bytes[..]).with_checksum(checksum)
}

impl Iterator for Merged {
    type Item = GsoInput;

    fn next(&mut self) -> Option<GsoInput> {
        while self.ready.is_empty() {
            let frames = self.batches.next()?;
            self.poll(&frames);
        }
        self.ready.pop_front()
    }
}
