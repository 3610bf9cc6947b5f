//! Offloads for a VPN's TUN device in the VPN's own buffers: 26 lines of the user's own and 8
//! imported names.
//!
//! A VPN that seals and opens packets where they lie keeps a pool of buffers, with room before each
//! packet. [`join`] joins the packets in these buffers and puts a `virtio_net_hdr` right before
//! each that is to be written. [`split`] cuts what was read from the device into packets for the
//! tunnel, one in each buffer, with room for the tunnel's own header.
//!
//! `main` plays both ends in memory, so it needs no privileges: `cargo run --example in_place`.

use std::error::Error;

use etherparse::PacketBuilder;

// The user's own lines begin here.
use superpacket::{
    BatchAggregator, EachBuffer, Framing, HashKey, NoHeadroom, Policy, Segmenter, SplitError,
};

/// Bytes before each packet in its buffer: enough for the tunnel's header, and for the device's in
/// its place.
const HEADROOM: usize = 16;

/// Makes what [`join`] needs: one for each queue of the device. Checksums are verified before
/// packets merge, since the peer may have sealed a packet that reached it damaged. The kernel
/// completes those of what merged.
fn aggregator() -> BatchAggregator {
    BatchAggregator::framed(Framing::TUN, Policy::gro_with_udp(), HashKey::random())
}

/// Joins the packets that the tunnel has opened in these buffers. Returns the indices of those that
/// are to be written.
fn join<'a>(
    aggregator: &'a mut BatchAggregator,
    pool: &mut [Vec<u8>],
) -> Result<&'a [usize], NoHeadroom> {
    aggregator.join_in_place(pool, HEADROOM)
}

/// Returns what the device is given of a buffer: its header, and the packet.
fn to_write(buffer: &[u8]) -> &[u8] {
    &buffer[HEADROOM - Framing::TUN.header_length()..]
}

/// Splits what one `read` of the device gave into the first of these buffers, behind the headroom,
/// and writes the length of each packet into `sizes`. Returns how many packets there are.
fn split(
    segmenter: &mut Segmenter,
    read: &[u8],
    pool: &mut [Vec<u8>],
    sizes: &mut [usize],
) -> Result<usize, SplitError> {
    let mut buffers = EachBuffer::new(pool, HEADROOM, sizes);
    segmenter.split(Framing::TUN, read, &mut buffers)?;
    Ok(buffers.used())
}
// The user's own lines end here.

/// The longest packet of the tunnel in bytes.
const MTU: usize = 1420;

/// Puts packets into buffers of a pool, as the tunnel does when it opens them. Others can be joined
/// to each, up to 65,535 bytes.
fn opened(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let open = |packet: &Vec<u8>| {
        let mut buffer = Vec::with_capacity(HEADROOM + 65_535);
        buffer.resize(HEADROOM, 0);
        buffer.extend_from_slice(packet);
        buffer
    };
    packets.iter().map(open).collect()
}

/// What is written to the device for these packets.
fn joined(packets: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, NoHeadroom> {
    let (mut aggregator, mut pool) = (aggregator(), opened(packets));
    let written = join(&mut aggregator, &mut pool)?;
    Ok(written.iter().map(|&index| to_write(&pool[index]).to_vec()).collect())
}

/// The packets for the tunnel that come of these reads.
fn split_all(reads: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, SplitError> {
    let mut pool = vec![vec![0; HEADROOM + MTU]; 128];
    let (mut segmenter, mut sizes, mut packets) = (Segmenter::new(), [0; 128], Vec::new());
    for read in reads {
        let count = split(&mut segmenter, read, &mut pool, &mut sizes)?;
        // Here a tunnel would seal each packet where it lies, and send all of them with one call.
        packets.extend(
            pool.iter()
                .zip(sizes)
                .take(count)
                .map(|(buffer, size)| buffer[HEADROOM..HEADROOM + size].to_vec()),
        );
    }
    Ok(packets)
}

/// A segment with 1348 bytes of payload of one TCP flow, this many segments after its first.
fn tcp_segment(index: u32) -> Vec<u8> {
    let builder =
        PacketBuilder::ipv6([1; 16], [2; 16], 64).tcp(443, 40_000, index * 1348, 500).ack(1);
    let mut packet = Vec::new();
    builder.write(&mut packet, &[0x55; 1348]).expect("a vector takes all");
    packet
}

fn main() -> Result<(), Box<dyn Error>> {
    let packets: Vec<_> = (0..40).map(tcp_segment).collect();
    let written = joined(&packets)?;
    let split = split_all(&written)?;
    println!(
        "{} packets from the tunnel took {} write to the device; split again: {} packets, the same bytes: {}",
        packets.len(),
        written.len(),
        split.len(),
        split == packets
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::frame::Frame;

    use super::*;

    fn run(frame: Frame) -> Vec<Vec<u8>> {
        frame.at_ip().run(40).iter().map(Frame::to_bytes).collect()
    }

    #[test]
    fn many_packets_take_few_writes_and_come_back() {
        for frame in
            [Frame::tcp4(1, 1348), Frame::tcp6(1, 1328), Frame::udp4(1200), Frame::udp6(1200)]
        {
            let packets = run(frame);
            let written = joined(&packets).expect("there is headroom");
            assert!(written.len() <= 2, "{}", written.len());
            assert_eq!(split_all(&written).expect("valid packets"), packets);
        }
    }

    #[test]
    fn what_does_not_fit_the_pool_is_refused_before_a_byte_is_written() {
        let written = joined(&run(Frame::tcp4(1, 1348))).expect("there is headroom");
        let mut pool = vec![vec![7; HEADROOM + MTU]; 39];
        assert!(matches!(
            split(&mut Segmenter::new(), &written[0], &mut pool, &mut [0; 128]),
            Err(SplitError::Segment(_))
        ));
        let mut short = vec![vec![7; HEADROOM + 1000]; 40];
        assert!(matches!(
            split(&mut Segmenter::new(), &written[0], &mut short, &mut [0; 128]),
            Err(SplitError::Segment(_))
        ));
        assert!(pool.iter().chain(&short).flatten().all(|&byte| byte == 7));
    }
}
