//! Offloads for a VPN's TUN device: cut what the kernel sends in super-packets, join what the tunnel delivers in MTU-size packets.
//!
//! A TUN device opened with `IFF_VNET_HDR` (and `TUNSETOFFLOAD` of `TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6`) puts a 10-byte `virtio_net_hdr` before
//! each packet. [`split`] and [`join`] are all that a VPN has to write. `main` plays both ends in memory, so it runs without privileges:
//! `cargo run --example tun`.

use std::error::Error;
use std::io::{self, IoSlice, Write};

use etherparse::PacketBuilder;
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{Layer, RxPacket};
use superpacket::segment::{GsoPacket, SegmentOptions, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket::virtio::{ByteOrder, Format, Header, Offload};

/// Cuts what one `read` of the device gave into packets for the wire, back to back in `out`; returns the length of each but the last.
fn split(read: &[u8], segmenter: &mut Segmenter, out: &mut Vec<u8>) -> Result<usize, Box<dyn Error>> {
    let header = Header::read(read, Format::Plain, ByteOrder::NATIVE)?;
    let packet = read.get(Format::Plain.length()..).unwrap_or(&[]);
    let offload = header.offload(Format::Plain, packet, packet.len(), Layer::Ip)?;
    let packet = GsoPacket { buffers: &[packet], layer: Layer::Ip, gso: offload.gso, checksum: offload.checksum };
    Ok(segmenter.segment_linear(&packet, &SegmentOptions::default(), out)?.segment_length)
}

/// Joins the packets that the tunnel delivered in one batch, and writes each super-packet to the device with one gathered write.
fn join(packets: &mut Vec<RxPacket<Vec<u8>>>, aggregator: &mut Aggregator<Vec<u8>>, device: &mut impl Write) -> io::Result<()> {
    let mut result = Ok(());
    let mut write = |packet: SuperPacket<'_, Vec<u8>>| {
        let offload = Offload { checksum: packet.metadata.checksum, gso: packet.metadata.gso, hash: None };
        let head = packet.slices().next().unwrap_or(&[]);
        let mut bytes = [0; 10];
        let written = Header::describe(&offload, Format::Plain, head, packet.length(), Layer::Ip)
            .and_then(|header| header.write(&mut bytes, Format::Plain, ByteOrder::NATIVE));
        let slices: Vec<_> = [&bytes[..]].into_iter().chain(packet.slices()).map(IoSlice::new).collect();
        result = std::mem::replace(&mut result, Ok(()))
            .and(written.map_err(io::Error::other))
            .and_then(|_| device.write_vectored(&slices).map(drop));
    };
    aggregator.receive_batch(packets, 0, &mut write);
    aggregator.poll_end(0, &mut write);
    result
}

/// A device for the example: each write is one packet.
#[derive(Default)]
struct Tun {
    packets: Vec<Vec<u8>>,
}

impl Write for Tun {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.packets.push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.packets.push(slices.iter().flat_map(|slice| slice.iter().copied()).collect());
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many writes to the device it took, and the packets that were cut from what was written.
struct Trip {
    writes: usize,
    cut: Vec<Vec<u8>>,
}

/// Joins these IP packets, then cuts what was written.
fn there_and_back(packets: &[Vec<u8>]) -> Result<Trip, Box<dyn Error>> {
    // A key of random bits belongs here where others choose the traffic.
    let mut aggregator = Aggregator::new(Policy::gro_with_udp().with_partial_checksums(), HashKey::new(0x5eed));
    let mut segmenter = Segmenter::new();
    let mut device = Tun::default();
    join(&mut packets.iter().cloned().map(RxPacket::ip).collect(), &mut aggregator, &mut device)?;
    let mut cut = Vec::new();
    for read in &device.packets {
        let mut out = Vec::new();
        let length = split(read, &mut segmenter, &mut out)?;
        cut.extend(out.chunks(length).map(<[u8]>::to_vec));
    }
    Ok(Trip { writes: device.packets.len(), cut })
}

/// A segment of 1348 bytes of payload of one TCP flow, this many segments after its first.
fn tcp_segment(index: u32) -> Vec<u8> {
    let builder = PacketBuilder::ipv6([1; 16], [2; 16], 64).tcp(443, 40_000, index * 1348, 500).ack(1);
    let mut packet = Vec::new();
    builder.write(&mut packet, &[0x55; 1348]).expect("a vector takes all");
    packet
}

fn main() -> Result<(), Box<dyn Error>> {
    let packets: Vec<_> = (0..40).map(tcp_segment).collect();
    let Trip { writes, cut } = there_and_back(&packets)?;
    println!(
        "{} packets from the tunnel: {writes} write to the device; cut again: {} packets, the same bytes: {}",
        packets.len(),
        cut.len(),
        cut == packets
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use superpacket_traffic::frame::Frame;

    use super::*;

    #[test]
    fn many_packets_take_few_writes_and_come_back() {
        for frame in [Frame::tcp4(1, 1348), Frame::tcp6(1, 1328), Frame::udp4(1200), Frame::udp6(1200)] {
            let packets: Vec<_> = frame.at_ip().run(40).iter().map(Frame::to_bytes).collect();
            let Trip { writes, cut } = there_and_back(&packets).expect("valid packets");
            assert!(writes <= 2, "{writes}");
            assert_eq!(cut, packets);
        }
    }

    #[test]
    fn a_bad_header_is_an_error_that_names_the_field() {
        let mut read = vec![0; 10];
        read.extend(Frame::tcp4(1, 3000).at_ip().to_bytes());
        (read[0], read[1]) = (1, 77);
        let error = split(&read, &mut Segmenter::new(), &mut Vec::new()).expect_err("type 77");
        assert!(error.to_string().contains("gso_type"), "{error}");
        assert!(split(&read[..7], &mut Segmenter::new(), &mut Vec::new()).is_err());
    }
}
