//! tun-rs, which joins and segments for TUN devices as wireguard-go does.
//!
//! Both tun-rs and the engine in place verify the checksums, copy the payloads behind the first
//! packet's, change the headers, and make the `virtio_net_hdr`. The buffers are therefore restored
//! before each call, outside of the measured time.

use std::cell::RefCell;
use std::hint::black_box;

use anyhow::Result;
use superpacket_traffic::workload::{TCP_PAYLOAD, TRAIN};
use tun_rs::{GROTable, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_LEN, VirtioNetHdr, gso_split};

use crate::clock::{Clock, Work};
use crate::rows::{ETHERNET, Join, scattered, super_packets};

/// Offset of a packet in its buffer, behind the room for a `virtio_net_hdr`.
pub const OFFSET: usize = VIRTIO_NET_HDR_LEN;

/// Bytes of IP and TCP headers before the payload of a super-packet.
const HEADERS: u16 = 52;

/// Returns the version of tun-rs, as in the lock file.
pub fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let (_, package) = lock.split_once("name = \"tun-rs\"\nversion = \"").expect("it is locked");
    package.split('"').next().expect("a first part")
}

/// Packets in buffers as tun-rs needs them, with room for a header before each and for 64 KB in
/// all.
pub struct Buffers {
    packets: Vec<Vec<u8>>,
    cycles: Vec<Vec<Vec<u8>>>,
}

impl Buffers {
    pub fn new(join: &Join) -> Self {
        let packets = join.packets();
        let cycles = scattered(&packets, join.copies(), 2 * OFFSET + 65_536);
        Buffers { packets, cycles }
    }

    pub fn copies(&self) -> usize {
        self.cycles.len()
    }

    /// Returns the number of packets per cycle.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Restores the buffers of a copy.
    pub fn restore(&mut self, copy: usize) {
        for (buffer, packet) in self.cycles[copy].iter_mut().zip(&self.packets) {
            buffer.clear();
            buffer.resize(OFFSET, 0);
            buffer.extend_from_slice(packet);
        }
    }

    pub fn cycle(&mut self, copy: usize) -> &mut [Vec<u8>] {
        &mut self.cycles[copy]
    }
}

/// tun-rs, joining packets.
pub struct TunJoiner<'a> {
    buffers: &'a RefCell<Buffers>,
    batch: usize,
    table: GROTable,
}

impl<'a> TunJoiner<'a> {
    pub fn new(join: &Join, buffers: &'a RefCell<Buffers>) -> Self {
        TunJoiner { buffers, batch: join.batch, table: GROTable::new() }
    }

    /// Returns the super-packets that the packets of a cycle make: header and packet. Single
    /// packets are not included, since tun-rs does not say which buffers were joined to others.
    ///
    /// # Errors
    /// The error of tun-rs.
    pub fn merged(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut buffers = self.buffers.borrow_mut();
        buffers.restore(0);
        for batch in buffers.cycle(0).chunks_mut(self.batch) {
            self.table.apply_gro(batch, OFFSET, false)?;
        }
        let Buffers { packets, cycles } = &*buffers;
        let grown = cycles[0]
            .iter()
            .zip(packets)
            .filter(|(buffer, packet)| buffer.len() > OFFSET + packet.len());
        Ok(grown.map(|(buffer, _)| buffer.clone()).collect())
    }
}

impl Work for TunJoiner<'_> {
    fn copies(&self) -> usize {
        self.buffers.borrow().copies()
    }

    fn units(&self) -> usize {
        self.buffers.borrow().packets()
    }

    fn prepare(&mut self, copy: usize) {
        self.buffers.borrow_mut().restore(copy);
    }

    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64 {
        let mut buffers = self.buffers.borrow_mut();
        let join = |batch: &mut [Vec<u8>]| {
            clock.time(|| {
                self.table.apply_gro(black_box(batch), OFFSET, false).expect("valid buffers")
            })
        };
        buffers.cycle(copy).chunks_mut(self.batch).map(join).sum()
    }
}

/// The data of a read from a TUN device: a `virtio_net_hdr` and a super-packet.
pub struct Read {
    pub bytes: Vec<u8>,
}

/// Returns reads of the same super-packet, given as an Ethernet frame.
///
/// # Errors
/// If tun-rs cannot write the header.
pub fn reads(frame: &[u8]) -> Result<Vec<Read>> {
    let header = VirtioNetHdr {
        flags: 1,
        gso_type: VIRTIO_NET_HDR_GSO_TCPV4,
        hdr_len: HEADERS,
        gso_size: TCP_PAYLOAD as u16,
        csum_start: 20,
        csum_offset: 16,
    };
    let mut bytes = vec![0; OFFSET];
    header.encode(&mut bytes)?;
    bytes.extend_from_slice(&frame[ETHERNET..]);
    Ok(super_packets(&bytes).into_iter().map(|bytes| Read { bytes }).collect())
}

/// Buffers for segments, which are reused.
#[derive(Debug, PartialEq)]
pub struct SegmentBuffers {
    pub buffers: Vec<Vec<u8>>,
    pub sizes: Vec<usize>,
    pub segments: usize,
}

impl SegmentBuffers {
    pub fn new() -> Self {
        SegmentBuffers {
            buffers: vec![vec![0; OFFSET + 1_600]; TRAIN + 1],
            sizes: vec![0; TRAIN + 1],
            segments: 0,
        }
    }

    /// Returns the segments, as IP packets.
    pub fn segments(&self) -> Vec<&[u8]> {
        let whole = self.buffers.iter().zip(&self.sizes).take(self.segments);
        whole.map(|(buffer, &size)| &buffer[OFFSET..OFFSET + size]).collect()
    }
}

/// tun-rs, segmenting super-packets.
pub struct TunCutter<'a> {
    reads: &'a RefCell<Vec<Read>>,
    pub out: SegmentBuffers,
}

impl<'a> TunCutter<'a> {
    pub fn new(reads: &'a RefCell<Vec<Read>>) -> Self {
        TunCutter { reads, out: SegmentBuffers::new() }
    }
}

impl Work for TunCutter<'_> {
    fn copies(&self) -> usize {
        self.reads.borrow().len()
    }

    fn units(&self) -> usize {
        TRAIN
    }

    fn cycle(&mut self, copy: usize, clock: &Clock) -> f64 {
        let mut reads = self.reads.borrow_mut();
        let (read, out) = (&mut reads[copy].bytes, &mut self.out);
        clock.time(|| {
            let header = VirtioNetHdr::decode(black_box(read)).expect("a whole header");
            let packet = &mut read[OFFSET..];
            out.segments = gso_split(
                black_box(packet),
                header,
                &mut out.buffers,
                &mut out.sizes,
                OFFSET,
                false,
            )
            .expect("a super-packet");
            black_box(&out);
        })
    }
}
