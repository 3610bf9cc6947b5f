//! Offloads for a VPN's TUN device: 29 lines of the user's own and 6 imported names.
//!
//! A TUN device that was opened with `IFF_VNET_HDR`, and then told by `TUNSETOFFLOAD` that its user
//! takes `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`, `TUN_F_USO4` and `TUN_F_USO6`, puts a
//! `virtio_net_hdr` of 10 bytes before each packet. [`split`] cuts what is read into packets for
//! the tunnel. [`join`] writes what the tunnel delivered in few large packets.
//!
//! `main` plays both ends in memory, so it needs no privileges: `cargo run --example tun`.

use std::error::Error;
use std::io::IoSlice;

use etherparse::PacketBuilder;

// The user's own lines begin here.
use std::io::{self, Write};
use std::slice::Chunks;

use superpacket::{BatchAggregator, Framing, HashKey, Policy, Segmenter, SplitError};

/// Makes what [`join`] needs: one for each queue of the device. Checksums are verified before
/// packets merge, since the peer may have sealed a packet that reached it damaged. The kernel
/// completes those of what merged.
fn aggregator() -> BatchAggregator {
    BatchAggregator::framed(Framing::TUN, Policy::gro_with_udp(), HashKey::random())
}

/// Splits what one `read` of the device gave into packets for the tunnel.
fn split<'a>(
    segmenter: &mut Segmenter,
    read: &[u8],
    out: &'a mut Vec<u8>,
) -> Result<Chunks<'a, u8>, SplitError> {
    out.clear();
    let plan = segmenter.split(Framing::TUN, read, out)?;
    Ok(out.chunks(plan.segment_length.max(1)))
}

/// Joins the packets that the tunnel delivered and writes them to the device, with one gathered
/// write for each that leaves.
fn join(
    aggregator: &mut BatchAggregator,
    packets: &[Vec<u8>],
    device: &mut impl Write,
) -> io::Result<()> {
    aggregator.poll_gathered(packets, |slices| device.write_vectored(slices).map(drop))
}

/// Goes on with a [`join`] whose write failed, from the packet on that was refused. `packets` are
/// those of that call.
fn resume(
    aggregator: &mut BatchAggregator,
    packets: &[Vec<u8>],
    device: &mut impl Write,
) -> io::Result<()> {
    aggregator.resume_gathered(packets, |slices| device.write_vectored(slices).map(drop))
}
// The user's own lines end here.

/// A device for the example: each write is one packet.
#[derive(Default)]
struct Tun {
    written: Vec<Vec<u8>>,
    /// After how many more writes the device takes nothing, once.
    full_after: Option<usize>,
}

impl Write for Tun {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.full_after == Some(0) {
            self.full_after = None;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.full_after = self.full_after.map(|writes| writes - 1);
        let packet: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let length = packet.len();
        self.written.push(packet);
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Joins these packets for a device that is full once, and tries again until all of them are
/// written.
fn deliver(packets: &[Vec<u8>], full_after: usize) -> io::Result<Tun> {
    let mut aggregator = aggregator();
    let mut device = Tun { full_after: Some(full_after), ..Tun::default() };
    let mut result = join(&mut aggregator, packets, &mut device);
    // A program would wait for the device here.
    while result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        result = resume(&mut aggregator, packets, &mut device);
    }
    result.map(|()| device)
}

/// Splits what the device was given, as if it had been read from it.
fn split_all(device: &Tun) -> Result<Vec<Vec<u8>>, SplitError> {
    let (mut segmenter, mut out, mut packets) = (Segmenter::new(), Vec::new(), Vec::new());
    for read in &device.written {
        packets.extend(split(&mut segmenter, read, &mut out)?.map(<[u8]>::to_vec));
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
    let device = deliver(&packets, 0)?;
    let split = split_all(&device)?;
    println!(
        "{} packets from the tunnel took {} write to the device; split again: {} packets, the same bytes: {}",
        packets.len(),
        device.written.len(),
        split.len(),
        split == packets
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::frame::Frame;

    use super::*;

    fn runs() -> impl Iterator<Item = Vec<Vec<u8>>> {
        [Frame::tcp4(1, 1348), Frame::tcp6(1, 1328), Frame::udp4(1200), Frame::udp6(1200)]
            .into_iter()
            .map(|frame| frame.at_ip().run(40).iter().map(Frame::to_bytes).collect())
    }

    #[test]
    fn many_packets_take_few_writes_and_come_back() {
        for packets in runs() {
            let mut device = Tun::default();
            join(&mut aggregator(), &packets, &mut device).expect("the device takes all");
            assert!(device.written.len() <= 2, "{}", device.written.len());
            assert_eq!(split_all(&device).expect("valid packets"), packets);
        }
    }

    #[test]
    fn after_a_write_that_fails_nothing_is_lost_and_nothing_written_twice() {
        let packets: Vec<_> = runs().flatten().collect();
        let mut at_once = Tun::default();
        join(&mut aggregator(), &packets, &mut at_once).expect("the device takes all");
        for full_after in 0..at_once.written.len() {
            let mut aggregator = aggregator();
            let mut device = Tun { full_after: Some(full_after), ..Tun::default() };
            let error =
                join(&mut aggregator, &packets, &mut device).expect_err("the device is full");
            assert_eq!(
                (error.kind(), device.written.len()),
                (io::ErrorKind::WouldBlock, full_after)
            );
            resume(&mut aggregator, &packets, &mut device).expect("the device takes all again");
            assert_eq!(device.written, at_once.written, "full after {full_after}");
            assert_eq!(aggregator.unfinished(), 0);
        }
        assert_eq!(
            deliver(&packets, 1).expect("the device is full only once").written,
            at_once.written
        );
    }

    #[test]
    fn a_bad_header_is_an_error_that_names_the_field() {
        let mut read = vec![0; 10];
        read.extend(Frame::tcp4(1, 3000).at_ip().to_bytes());
        (read[0], read[1]) = (1, 77);
        let error = split(&mut Segmenter::new(), &read, &mut Vec::new()).expect_err("type 77");
        assert!(error.to_string().contains("gso_type"), "{error}");
        assert!(split(&mut Segmenter::new(), &read[..7], &mut Vec::new()).is_err());
    }

    #[test]
    fn a_header_without_a_packet_is_no_packet() {
        let mut out = vec![1, 2, 3];
        assert_eq!(split(&mut Segmenter::new(), &[0; 10], &mut out).map(Iterator::count), Ok(0));
    }
}
