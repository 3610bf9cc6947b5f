//! The interface of tun-rs 2.8, `handle_gro`, `GROTable::apply_gro`, `gso_split` and
//! `gso_none_checksum`, implemented with the engine.
//!
//! Callers of these functions can try superpacket by changing an import: packets are joined in
//! their own buffers, in the spare capacity of the first, and cut into the given buffers. Copy this
//! file and `virtio_net_hdr/mod.rs`; `main` runs both ends in memory.
//!
//! Differences: `to_write` is public, since writing is left to the caller. Everything merges that
//! the engine merges (IPv6 extension headers, any number of flows), and no bit is lost.

mod virtio_net_hdr;

use std::io;

use bytes::BytesMut;
use superpacket::checksum::complete_partial;
use superpacket::virtio::{Format, Header};
use superpacket::wire::MAX_HEADER;
use superpacket::{
    BatchAggregator, EachBuffer, Framing, GsoPacket, HashKey, Layer, PacketBuffer, Policy,
    SegmentOptions, Segmenter, Simd,
};

pub use virtio_net_hdr::VirtioNetHdr;

/// Length of the header before each packet, in bytes.
pub const VIRTIO_NET_HDR_LEN: usize = 10;

/// A buffer with spare capacity.
pub trait ExpandBuffer: AsRef<[u8]> + AsMut<[u8]> {
    /// Returns the buffer's capacity in bytes.
    fn buf_capacity(&self) -> usize;

    /// Changes the length; new bytes get this value.
    fn buf_resize(&mut self, new_len: usize, value: u8);

    /// Appends bytes.
    fn buf_extend_from_slice(&mut self, src: &[u8]);
}

/// The buffer types of tun-rs.
macro_rules! expand {
    ($($buffer:ty),*) => {$(
        impl ExpandBuffer for $buffer {
            fn buf_capacity(&self) -> usize {
                self.capacity()
            }

            fn buf_resize(&mut self, new_len: usize, value: u8) {
                self.resize(new_len, value);
            }

            fn buf_extend_from_slice(&mut self, src: &[u8]) {
                self.extend_from_slice(src);
            }
        }
    )*};
}

expand!(Vec<u8>, &mut Vec<u8>, BytesMut, &mut BytesMut);

/// The engine's view of such a buffer.
struct Expanding<'a, B>(&'a mut B);

impl<B: ExpandBuffer> AsRef<[u8]> for Expanding<'_, B> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl<B: ExpandBuffer> AsMut<[u8]> for Expanding<'_, B> {
    fn as_mut(&mut self) -> &mut [u8] {
        (*self.0).as_mut()
    }
}

impl<B: ExpandBuffer> PacketBuffer for Expanding<'_, B> {
    fn spare(&self) -> usize {
        self.0.buf_capacity() - self.as_ref().len()
    }

    fn truncate(&mut self, length: usize) {
        if length < self.as_ref().len() {
            self.0.buf_resize(length, 0);
        }
    }

    fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.buf_extend_from_slice(bytes);
    }
}

/// Joins TCP packets; only memory is kept between calls.
#[derive(Debug)]
pub struct TcpGROTable(BatchAggregator);

impl Default for TcpGROTable {
    fn default() -> Self {
        TcpGROTable(BatchAggregator::framed(Framing::TUN, Policy::gro(), HashKey::random()))
    }
}

/// Joins UDP packets too; only memory is kept between calls.
#[derive(Debug)]
pub struct UdpGROTable(BatchAggregator);

impl Default for UdpGROTable {
    fn default() -> Self {
        Self::new()
    }
}

impl UdpGROTable {
    /// Makes a table.
    pub fn new() -> Self {
        UdpGROTable(BatchAggregator::framed(
            Framing::TUN,
            Policy::gro_with_udp(),
            HashKey::random(),
        ))
    }
}

/// Both tables, and the packets to be written.
#[derive(Debug, Default)]
pub struct GROTable {
    /// The buffers to be written after a call, by index, each from `offset - VIRTIO_NET_HDR_LEN`
    /// on.
    pub to_write: Vec<usize>,
    tcp_gro_table: TcpGROTable,
    udp_gro_table: UdpGROTable,
}

impl GROTable {
    /// Makes a table.
    pub fn new() -> GROTable {
        Self::default()
    }

    /// Like [`handle_gro`], but appends to `to_write`, which is cleared first.
    ///
    /// # Errors
    /// As [`handle_gro`].
    pub fn apply_gro<B: ExpandBuffer>(
        &mut self,
        bufs: &mut [B],
        offset: usize,
        can_udp_gro: bool,
    ) -> io::Result<()> {
        self.to_write.clear();
        handle_gro(
            bufs,
            offset,
            &mut self.tcp_gro_table,
            &mut self.udp_gro_table,
            can_udp_gro,
            &mut self.to_write,
        )
    }
}

/// Joins packets. Each starts `offset` bytes into its buffer, behind room for the header. Appends
/// the indices of the buffers to be written to `to_write`.
///
/// # Errors
/// `InvalidInput` if there is no room for the header, or no packet behind it.
pub fn handle_gro<B: ExpandBuffer>(
    bufs: &mut [B],
    offset: usize,
    tcp_table: &mut TcpGROTable,
    udp_table: &mut UdpGROTable,
    can_udp_gro: bool,
    to_write: &mut Vec<usize>,
) -> io::Result<()> {
    if bufs.iter().any(|buffer| offset >= buffer.as_ref().len()) {
        return Err(invalid("invalid offset"));
    }
    let mut expanding: Vec<_> = bufs.iter_mut().map(Expanding).collect();
    let aggregator = if can_udp_gro { &mut udp_table.0 } else { &mut tcp_table.0 };
    to_write.extend_from_slice(aggregator.join_in_place(&mut expanding, offset).map_err(invalid)?);
    Ok(())
}

/// Completes the checksum of a single packet, whose field holds the sum of the pseudo-header. A
/// packet whose headers contradict this is not changed.
pub fn gso_none_checksum(in_buf: &mut [u8], csum_start: u16, csum_offset: u16) {
    complete_partial(in_buf, Layer::Ip, csum_start, csum_offset, Simd::detect())
        .unwrap_or_default();
}

/// Cuts a super-packet into buffers, starting `out_offset` bytes into each, and writes the packets'
/// lengths into `sizes`. Returns the number of packets.
///
/// # Errors
/// `InvalidInput` if the header contradicts the packet, or the buffers are too few or too short.
/// Then nothing is written.
pub fn gso_split<B: AsRef<[u8]> + AsMut<[u8]>>(
    input: &mut [u8],
    hdr: VirtioNetHdr,
    out_bufs: &mut [B],
    sizes: &mut [usize],
    out_offset: usize,
    is_v6: bool,
) -> io::Result<usize> {
    if hdr.gso_size == 0 {
        return Err(invalid("gso_size is 0"));
    }
    if sizes.len() < out_bufs.len() {
        return Err(invalid("there are fewer sizes than buffers"));
    }
    if input.first().map(|byte| byte >> 4) != Some(if is_v6 { 6 } else { 4 }) {
        return Err(invalid("the packet is of another IP version"));
    }
    let header = Header::from(hdr);
    let first = input.get(..MAX_HEADER).unwrap_or(input);
    let offload = header.offload(Format::Plain, first, input.len(), Layer::Ip).map_err(invalid)?;
    let whole = &*input;
    let packet = GsoPacket::linear(&whole, offload.gso)
        .with_layer(Layer::Ip)
        .with_checksum(offload.checksum);
    let mut buffers = EachBuffer::new(out_bufs, out_offset, sizes);
    Segmenter::new()
        .segment_linear(&packet, &SegmentOptions::default(), &mut buffers)
        .map_err(invalid)?;
    Ok(buffers.used())
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn main() -> io::Result<()> {
    let mut packet = vec![0; VIRTIO_NET_HDR_LEN + 40];
    packet[VIRTIO_NET_HDR_LEN] = 0x45;
    let (mut table, mut packets) = (GROTable::new(), vec![packet.clone(), packet]);
    table.apply_gro(&mut packets, VIRTIO_NET_HDR_LEN, true)?;
    println!(
        "{} buffers are to be written: what is no TCP or UDP packet is not joined",
        table.to_write.len()
    );
    Ok(())
}

/// The test cases of tun-rs 2.8.16, `src/platform/linux/offload.rs`, rewritten. Those of its hash
/// table and its checksum functions test internals and are left out.
#[cfg(test)]
mod tests {
    use superpacket::virtio::ByteOrder;
    use superpacket_traffic::frame::{ACK, CWR, FIN, Frame, PSH};

    use super::*;

    const TCPV4: u8 = 1;
    const TCPV6: u8 = 4;
    const UDP_L4: u8 = 5;
    const ECN: u8 = 0x80;

    fn packet(payload: usize) -> Vec<u8> {
        Frame::tcp4(1, payload).at_ip().to_bytes()
    }

    fn header(gso_type: u8, gso_size: u16) -> VirtioNetHdr {
        VirtioNetHdr {
            gso_type,
            hdr_len: 40,
            gso_size,
            csum_start: 20,
            csum_offset: 16,
            ..VirtioNetHdr::default()
        }
    }

    fn refused(input: &mut [u8], hdr: VirtioNetHdr, out: &mut [Vec<u8>], is_v6: bool) {
        let before = input.to_vec();
        let error = gso_split(input, hdr, out, &mut [0; 8], 0, is_v6).expect_err("it is invalid");
        assert_eq!((error.kind(), &*input), (io::ErrorKind::InvalidInput, &before[..]));
    }

    #[test]
    fn handle_gro_rejects_invalid_offset() {
        let mut table = GROTable::new();
        for (length, offset) in
            [(VIRTIO_NET_HDR_LEN, VIRTIO_NET_HDR_LEN), (100, VIRTIO_NET_HDR_LEN - 1), (100, 200)]
        {
            let error = table
                .apply_gro(&mut [vec![0u8; length]], offset, false)
                .expect_err("no header or no packet");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn handle_gro_ignores_truncated_tcp_header_without_panic() {
        let mut truncated = vec![0u8; VIRTIO_NET_HDR_LEN + 60];
        truncated[VIRTIO_NET_HDR_LEN] = 0x4f;
        truncated[VIRTIO_NET_HDR_LEN + 3] = 60;
        truncated[VIRTIO_NET_HDR_LEN + 9] = 6;
        let before = truncated.clone();
        let (mut table, mut buffers) = (GROTable::new(), vec![truncated.clone(), truncated]);
        table.apply_gro(&mut buffers, VIRTIO_NET_HDR_LEN, false).expect("it passes");
        assert_eq!((&table.to_write[..], &buffers[0]), (&[0, 1][..], &before));
    }

    #[test]
    fn gso_split_rejects_zero_gso_size() {
        refused(&mut packet(128), header(TCPV4, 0), &mut vec![vec![0; 1500]; 2], false);
    }

    #[test]
    fn gso_split_rejects_small_output_buffer() {
        refused(&mut packet(512), header(TCPV4, 256), &mut vec![vec![0; 64]; 4], false);
    }

    #[test]
    fn gso_split_ignores_unused_output_buffers() {
        let mut out = vec![vec![0u8; 296], vec![0u8; 296], Vec::new()];
        let mut sizes = [0; 3];
        assert_eq!(
            gso_split(&mut packet(512), header(TCPV4, 256), &mut out, &mut sizes, 0, false)
                .expect("it fits"),
            2
        );
        assert_eq!(sizes, [296, 296, 0]);
    }

    #[test]
    fn gso_split_accepts_tcpv4_with_ecn_flag() {
        let mut input = Frame::tcp4(1000, 8).with_flags(ACK | CWR | FIN | PSH).at_ip().to_bytes();
        let (mut out, mut sizes) = (vec![vec![0u8; 44]; 2], [0; 2]);
        assert_eq!(
            gso_split(&mut input, header(TCPV4 | ECN, 4), &mut out, &mut sizes, 0, false)
                .expect("it is valid"),
            2
        );
        assert_eq!(sizes, [44, 44]);
        let flags = |segment: usize| u16::from(out[segment][33]);
        assert_eq!((flags(0) & (CWR | FIN | PSH), flags(1) & (CWR | FIN | PSH)), (CWR, FIN | PSH));
    }

    #[test]
    fn accepts_matching_tcp_types_with_ecn_and_udp_without() {
        let tcp6 = Frame::tcp6(1, 100).at_ip().to_bytes();
        let udp = |frame: Frame| frame.at_ip().to_bytes();
        let needs_checksum = |start| VirtioNetHdr {
            flags: 1,
            csum_start: start,
            csum_offset: 6,
            ..header(UDP_L4, 50)
        };
        for (mut input, hdr, is_v6) in [
            (tcp6, VirtioNetHdr { csum_start: 40, ..header(TCPV6 | ECN, 50) }, true),
            (udp(Frame::udp4(100)), needs_checksum(20), false),
            (udp(Frame::udp6(100)), needs_checksum(40), true),
        ] {
            let mut out = vec![vec![0; 200]; 4];
            assert_eq!(
                gso_split(&mut input, hdr, &mut out, &mut [0; 4], 0, is_v6).expect("it is valid"),
                2
            );
        }
    }

    #[test]
    fn rejects_invalid_gso_type_combinations() {
        for (gso_type, is_v6) in
            [(TCPV4, true), (TCPV6, false), (UDP_L4 | ECN, false), (0xff, false)]
        {
            refused(&mut packet(100), header(gso_type, 50), &mut vec![vec![0; 200]; 4], is_v6);
        }
    }

    #[test]
    fn gso_split_rejects_checksum_field_outside_header_without_mutating_input() {
        let outside = VirtioNetHdr { flags: 1, csum_offset: 30, ..header(TCPV4, 4) };
        refused(&mut packet(20), outside, &mut vec![vec![0; 60]; 5], false);
        let mut malformed = vec![0; 60];
        malformed[0] = 0x45;
        refused(
            &mut malformed,
            VirtioNetHdr { csum_offset: 30, ..header(TCPV4, 4) },
            &mut vec![vec![0; 60]; 5],
            false,
        );
    }

    #[test]
    fn gso_split_rejects_segment_lengths_that_do_not_fit_wire_fields() {
        let mut input = packet(40_000);
        input.resize(40 + 65_535, 0);
        input[2..4].fill(0);
        refused(&mut input, header(TCPV4, u16::MAX), &mut [vec![0; 70_000]], false);
    }

    /// From the documentation of its trait: a buffer of each type that implements it.
    #[test]
    fn expand_buffer_resizes_and_appends_to_every_type() {
        fn joins<B: ExpandBuffer>(mut buffers: [B; 2]) {
            let (mut tcp, mut udp, mut to_write) =
                (TcpGROTable::default(), UdpGROTable::new(), vec![7]);
            handle_gro(&mut buffers, VIRTIO_NET_HDR_LEN, &mut tcp, &mut udp, true, &mut to_write)
                .expect("there is room");
            assert_eq!(
                (&to_write[..], buffers[0].as_ref().len()),
                (&[7, 0][..], VIRTIO_NET_HDR_LEN + 40 + 2 * 1000)
            );
            let [mut buffer, _] = buffers;
            buffer.buf_resize(2, 0);
            buffer.buf_resize(3, 9);
            buffer.buf_extend_from_slice(b"data");
            assert_eq!(buffer.as_ref(), [1, 1, 9, b'd', b'a', b't', b'a']);
            assert!(buffer.buf_capacity() >= 7);
        }
        let frames = Frame::tcp4(1, 1000).at_ip().run(2);
        let buffers = || {
            [0, 1].map(|index: usize| {
                let mut buffer = Vec::with_capacity(4000);
                buffer.resize(VIRTIO_NET_HDR_LEN, 0);
                buffer.extend_from_slice(&frames[index].to_bytes());
                buffer
            })
        };
        let bytes = || {
            buffers().map(|buffer| {
                let mut bytes = BytesMut::with_capacity(4000);
                bytes.extend_from_slice(&buffer);
                bytes
            })
        };
        joins(buffers());
        joins(buffers().each_mut());
        joins(bytes());
        joins(bytes().each_mut());
    }

    /// From `read_multiple`, which calls it: a single packet with `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
    #[test]
    fn gso_none_checksum_completes_what_the_header_asks_for() {
        for (frame, start, offset) in [
            (Frame::tcp4(1, 100), 20, 16),
            (Frame::tcp6(1, 101), 40, 16),
            (Frame::udp4(100), 20, 6),
            (Frame::udp6(101), 40, 6),
        ] {
            let complete = frame.at_ip().to_bytes();
            let mut packet = complete.clone();
            let field = usize::from(start + offset);
            let (addresses, protocol) = if start == 20 {
                (&complete[12..20], complete[9])
            } else {
                (&complete[8..40], complete[6])
            };
            let length = (complete.len() - usize::from(start)) as u16;
            let words =
                addresses.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
            let sum = words.sum::<u32>() + u32::from(protocol) + u32::from(length);
            let folded = (sum & 0xffff) + (sum >> 16);
            packet[field..field + 2]
                .copy_from_slice(&(((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
            assert_ne!(packet, complete);
            gso_none_checksum(&mut packet, start, offset);
            assert_eq!(packet, complete);
        }
        let mut short = packet(10);
        let before = short.clone();
        gso_none_checksum(&mut short, 20, 200);
        assert_eq!(short, before, "the field lies behind the packet");
    }

    /// From its tests with a device: packets that are joined come back.
    #[test]
    fn what_is_joined_is_split_into_the_same_packets() {
        for (frame, is_v6, udp) in
            [(Frame::tcp4(1, 1000), false, false), (Frame::udp6(1000), true, true)]
        {
            let packets: Vec<_> = frame.at_ip().run(20).iter().map(Frame::to_bytes).collect();
            let in_buffer = |packet: &Vec<u8>| {
                let mut buffer = Vec::with_capacity(VIRTIO_NET_HDR_LEN + 65_535);
                buffer.resize(VIRTIO_NET_HDR_LEN, 0);
                buffer.extend_from_slice(packet);
                buffer
            };
            let (mut table, mut buffers) =
                (GROTable::new(), packets.iter().map(in_buffer).collect::<Vec<_>>());
            table.apply_gro(&mut buffers, VIRTIO_NET_HDR_LEN, udp).expect("there is room");
            assert_eq!(table.to_write, [0]);
            let (described, joined) = buffers[0].split_at_mut(VIRTIO_NET_HDR_LEN);
            let hdr =
                Header::read(described, Format::Plain, ByteOrder::NATIVE).expect("it is whole");
            let (mut out, mut sizes) = (vec![vec![0; 1100]; 30], [0; 30]);
            let count = gso_split(joined, hdr.into(), &mut out, &mut sizes, 16, is_v6)
                .expect("it is valid");
            assert!(
                out.iter()
                    .zip(sizes)
                    .take(count)
                    .map(|(out, size)| &out[16..16 + size])
                    .eq(&packets)
            );
        }
    }
}
