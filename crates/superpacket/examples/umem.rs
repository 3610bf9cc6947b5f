//! AF_XDP in 55 lines of the user's own: packets are joined where they lie in the UMEM, without a
//! copy, and cut into free frames of the UMEM, to which each segment is copied: one descriptor
//! each, which any socket takes. `xdp_forward.rs` of `superpacket-port` has sockets, and sends
//! payload from where it was received, behind new headers, by several descriptors a frame.
//!
//! A `Vec<u8>` stands for the UMEM, and arrays of descriptors for the rings, so it runs anywhere:
//! `cargo run --example umem`. With a socket, `received` comes from the RX ring, `ring` goes to the
//! TX ring, and what the completion ring gives is put back into `free`. Frames to receive into and
//! frames to send from are apart, since some are read while others are written.

use std::error::Error;

use etherparse::PacketBuilder;
use superpacket::{HashKey, Layer, Policy};

// The user's own lines begin here.
use superpacket::{
    BatchAggregator, SegmentBuffers, SegmentError, SegmentOptions, SegmentPlan, Segmenter,
};

/// Bytes of a frame of the UMEM.
const FRAME: usize = 2048;
/// Maximum number of packets per poll.
const BATCH: usize = 64;

/// Where a packet lies in the UMEM, in bytes: `struct xdp_desc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    address: u64,
    length: u32,
}

/// Joins the packets of a poll and cuts what was joined: for a forwarder that decides once for many
/// packets. Then the frames of `received` may go to the fill ring.
///
/// # Errors
/// If frames to send from are missing. When more are free, call it again with the same descriptors:
/// it goes on where it stopped.
///
/// # Panics
/// With more than [`BATCH`] packets, or one outside `umem`.
fn forward(
    umem: &[u8],
    received: &[Descriptor],
    aggregator: &mut BatchAggregator,
    segmenter: &mut Segmenter,
    transmit: &mut Transmit<'_>,
) -> Result<(), SegmentError> {
    let mut packets = [&umem[..0]; BATCH];
    for (packet, at) in packets.iter_mut().zip(received) {
        *packet = &umem[at.address as usize..][..at.length as usize];
    }
    let (packets, options) = (&packets[..received.len()], SegmentOptions::default());
    if aggregator.unfinished() == 0 {
        aggregator
            .poll(packets, |packet| segmenter.segment_linear(&packet, &options, transmit).map(drop))
    } else {
        aggregator.resume(packets, |packet| {
            segmenter.segment_linear(&packet, &options, transmit).map(drop)
        })
    }
}

/// What is sent from: a part of the UMEM.
struct Transmit<'u> {
    umem: &'u mut [u8],
    /// Where the part starts in the UMEM, in bytes.
    start: u64,
    /// Addresses of the free frames.
    free: Vec<u64>,
    /// Descriptors of the frames to be sent.
    ring: Vec<Descriptor>,
}

impl SegmentBuffers for Transmit<'_> {
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        match (plan.segments, self.free.len() as u32) {
            (needed, limit) if needed > limit => {
                Err(SegmentError::TooManySegments { needed, limit })
            }
            _ if plan.segment_length > FRAME => {
                Err(SegmentError::OutputTooSmall { needed: plan.segment_length, got: FRAME })
            }
            _ => Ok(()),
        }
    }

    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        let address = self.free.pop()?;
        self.ring.push(Descriptor { address, length: length as u32 });
        self.umem.get_mut((address - self.start) as usize..)?.get_mut(..length)
    }
}
// The user's own lines end here.

/// Frames of each part of the UMEM.
const FRAMES: usize = 64;
/// Bytes before a received packet (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;

/// Puts these packets where a card would have received them.
fn arrive(umem: &mut [u8], packets: &[Vec<u8>]) -> Vec<Descriptor> {
    let frames = umem.chunks_exact_mut(FRAME).enumerate();
    let write = |((number, frame), packet): ((usize, &mut [u8]), &Vec<u8>)| {
        frame[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
        Descriptor { address: (number * FRAME + HEADROOM) as u64, length: packet.len() as u32 }
    };
    frames.zip(packets).map(write).collect()
}

/// The packets that were forwarded.
struct Forwarded {
    /// The packets that left, in order.
    packets: Vec<Vec<u8>>,
    /// How many packets, single or joined, were decided on.
    decisions: u64,
    /// How often frames to send from were missing.
    waits: u32,
}

/// Forwards at most [`BATCH`] packets with this many frames to send from. Whenever one is missing,
/// all that wait in the TX ring are sent.
fn forwarded(packets: &[Vec<u8>], free: usize) -> Result<Forwarded, SegmentError> {
    let mut umem = vec![0; 2 * FRAMES * FRAME];
    let (receive, send) = umem.split_at_mut(FRAMES * FRAME);
    let received = arrive(receive, packets);
    let start = receive.len() as u64;
    let mut transmit = Transmit {
        umem: send,
        start,
        free: (0..free).map(|number| start + (number * FRAME) as u64).collect(),
        ring: Vec::new(),
    };
    // What is joined must not need more frames than there are.
    let policy = Policy::gro_with_udp().with_max_packets(free as u32);
    let mut aggregator = BatchAggregator::new(Layer::Ethernet, policy, HashKey::random());
    let mut segmenter = Segmenter::new();
    let mut out = Forwarded { packets: Vec::new(), decisions: 0, waits: 0 };
    loop {
        let result = forward(receive, &received, &mut aggregator, &mut segmenter, &mut transmit);
        let sent: Vec<_> = transmit.ring.drain(..).collect();
        out.packets.extend(sent.iter().map(|at| {
            transmit.umem[(at.address - start) as usize..][..at.length as usize].to_vec()
        }));
        transmit.free.extend(sent.iter().map(|at| at.address));
        match result {
            Err(SegmentError::TooManySegments { .. }) if !sent.is_empty() => out.waits += 1,
            result => {
                out.decisions = aggregator.counters().packets_out;
                return result.map(|()| out);
            }
        }
    }
}

/// A segment of 1400 bytes of payload of one TCP flow, this many segments after its first.
fn tcp_segment(index: u32) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv6([1; 16], [2; 16], 64)
        .tcp(443, 40_000, index * 1400, 500)
        .ack(1);
    let mut packet = Vec::new();
    builder.write(&mut packet, &[0x55; 1400]).expect("a vector takes all");
    packet
}

fn main() -> Result<(), Box<dyn Error>> {
    let packets: Vec<_> = (0..40).map(tcp_segment).collect();
    let out = forwarded(&packets, FRAMES)?;
    println!(
        "{} packets received, {} decided on; {} sent, the same bytes: {}",
        packets.len(),
        out.decisions,
        out.packets.len(),
        out.packets == packets
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::frame::Frame;
    use superpacket_traffic::workload;

    use super::*;

    #[test]
    fn what_is_joined_leaves_as_it_came() {
        for frame in
            [Frame::tcp4(1, 1448), Frame::tcp6(1, 1428), Frame::udp4(1200), Frame::udp6(1200)]
        {
            let packets: Vec<_> = frame.run(40).iter().map(Frame::to_bytes).collect();
            let out = forwarded(&packets, FRAMES).expect("there are frames");
            assert!(out.decisions <= 2, "{}", out.decisions);
            assert_eq!((out.packets == packets, out.waits), (true, 0));
        }
    }

    #[test]
    fn what_finds_no_free_frames_waits_for_them() {
        let packets = workload::w2(3, BATCH);
        let mut sorted = packets.clone();
        sorted.sort();
        for free in [1, 2, 21, 22, 30] {
            let out = forwarded(&packets, free).expect("frames come back");
            assert!(out.waits >= (BATCH / free) as u32 - 1, "{free} frames: {} waits", out.waits);
            let mut left = out.packets;
            left.sort();
            assert!(left == sorted, "{free} frames: {} packets", left.len());
        }
    }

    #[test]
    fn a_packet_longer_than_a_frame_is_refused() {
        let mut umem = vec![0; FRAME];
        let mut transmit = Transmit { umem: &mut umem, start: 0, free: vec![0], ring: Vec::new() };
        let packet = Frame::tcp4(1, FRAME).to_bytes();
        let mut aggregator =
            BatchAggregator::new(Layer::Ethernet, Policy::gro(), HashKey::random());
        let at = [Descriptor { address: 0, length: packet.len() as u32 }];
        let refused = forward(&packet, &at, &mut aggregator, &mut Segmenter::new(), &mut transmit);
        assert_eq!(refused, Err(SegmentError::OutputTooSmall { needed: packet.len(), got: FRAME }));
        assert_eq!((transmit.free.len(), transmit.ring.len()), (1, 0));
    }

    #[test]
    fn the_first_comment_tells_how_many_lines_the_user_writes() {
        let source = include_str!("umem.rs");
        let own = source
            .split_once("begin here.\n")
            .and_then(|(_, rest)| rest.split_once("// The user's own lines end"))
            .expect("two comments")
            .0;
        let own = own
            .lines()
            .map(str::trim_start)
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count();
        assert!(own <= 60, "{own}");
        assert!(
            source.starts_with(&format!("//! AF_XDP in {own} lines of the user's own")),
            "{own}"
        );
    }
}
