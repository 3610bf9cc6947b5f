//! TUN and TAP devices that read and write super-packets.

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroUsize;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken};
use smoltcp::time::Instant;
use superpacket::checksum::{complete_partial, pseudo_header};
use superpacket::virtio::{Header, Offload};
use superpacket::wire::{IpVersion, Layout, Protocol, parse};
use superpacket::{Framing, Gso, GsoKind, Layer, RxChecksum, SegmentSize, Segmenter, Simd};
use superpacket_tun::{Device as _, Offloads, Queue, Tun};

use crate::device::{ETHERNET_HEADER, MAX_IP_LENGTH};

/// A TUN or TAP device of Linux for smoltcp, which reads and writes packets of up to 64 KB by one
/// call each. The kernel merges and segments them; if the other end is on this host, or behind a
/// kernel bridge, they may stay whole all the way.
///
/// Checksums that the kernel has left partial are completed, and smoltcp verifies them like all
/// others. If the kernel refuses a super-packet, its segments are written, and no super-packets are
/// sent from then on.
///
/// ```no_run
/// use smoltcp::phy::Medium;
/// use superpacket_smoltcp::TunDevice;
///
/// let mut device = TunDevice::open("tun0", Medium::Ip)?;
/// // `Medium::Ethernet` makes it a TAP device. An `Interface` takes the device;
/// // `smoltcp::phy::wait` takes its descriptor.
/// # let _ = &mut device;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TunDevice {
    mtu: usize,
    reader: TunReader,
    writer: TunWriter,
}

/// The reading side of a TUN or TAP device.
#[derive(Debug)]
struct TunReader {
    queue: Queue,
    layer: Layer,
    simd: Simd,
    received: Vec<u8>,
    counters: TunCounters,
}

/// The writing side of a TUN or TAP device.
#[derive(Debug)]
struct TunWriter {
    queue: Queue,
    layer: Layer,
    segmenter: Segmenter,
    /// Whether the device accepts super-packets; if not, packets are segmented before they are
    /// written.
    takes_super_packets: bool,
    /// Buffer into which smoltcp writes a packet, after room for the virtio header.
    sending: Vec<u8>,
    /// Buffer for the segments of a super-packet, back to back.
    segments: Vec<u8>,
    counters: TunCounters,
}

/// Counters of the packets read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TunCounters {
    /// Number of packets read.
    pub read: u64,
    /// Number of bytes of the packets read.
    pub bytes_read: u64,
    /// Packets read with a header that contradicts the packet; they are dropped.
    pub malformed: u64,
    /// Number of packets written.
    pub written: u64,
    /// Number of bytes of the packets written.
    pub bytes_written: u64,
    /// Packets that the device refused, or that could not be segmented; they are dropped.
    pub rejected: u64,
    /// Super-packets that the kernel refused; their segments were written instead.
    pub refused: u64,
}

impl TunDevice {
    /// Opens a TUN device ([`Medium::Ip`]) or a TAP device, creating it if necessary, and sets it
    /// up.
    ///
    /// # Errors
    /// Any system call that fails.
    pub fn open(name: &str, medium: Medium) -> io::Result<Self> {
        let layer = if medium == Medium::Ip { Layer::Ip } else { Layer::Ethernet };
        // smoltcp's UDP sockets would take a super-packet of datagrams for a single datagram.
        Self::new(Tun::builder(name).layer(layer).offloads(Offloads::TCP).open()?)
    }

    /// Uses an open device, which must have one queue and must not deliver UDP super-packets.
    ///
    /// # Errors
    /// Any system call that fails; [`InvalidInput`](io::ErrorKind::InvalidInput) if the device has
    /// several queues, or delivers UDP super-packets.
    pub fn new(tun: Tun) -> io::Result<Self> {
        if tun.offloads().udp {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "device with UDP super-packets, which smoltcp does not support",
            ));
        }
        let (mtu, takes_super_packets) = (tun.mtu()? as usize, tun.switches().on().tcp4);
        let mut queues = tun.into_queues();
        if queues.len() != 1 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "device with several queues: expected one",
            ));
        }
        let queue = queues.remove(0);
        let header = queue.framing().map_or(0, Framing::header_length);
        let layer = queue.framing().map_or(Layer::Ip, |framing| framing.layer);
        let received = vec![0; header + link_length(layer) + MAX_IP_LENGTH];
        let reader = TunReader {
            queue: queue.clone(),
            layer,
            simd: Simd::detect(),
            received,
            counters: TunCounters::default(),
        };
        let writer = TunWriter {
            takes_super_packets: takes_super_packets && queue.framing().is_some(),
            queue,
            layer,
            segmenter: Segmenter::new(),
            sending: Vec::new(),
            segments: Vec::new(),
            counters: TunCounters::default(),
        };
        Ok(TunDevice { mtu, reader, writer })
    }

    /// Returns the counters of packets read and written.
    pub const fn counters(&self) -> TunCounters {
        let TunCounters { read, bytes_read, malformed, .. } = self.reader.counters;
        TunCounters { read, bytes_read, malformed, ..self.writer.counters }
    }
}

impl TunReader {
    /// Reads a packet and completes its checksum. Returns its range in the buffer.
    fn read(&mut self) -> Option<core::ops::Range<usize>> {
        loop {
            // An error counts as "no packet", as in smoltcp's own devices.
            let length = self.queue.read(&mut self.received).ok()?;
            let Some(framing) = self.queue.framing() else {
                self.count_read(length);
                return Some(0..length);
            };
            let start = framing.header_length().min(length);
            let partial = match framing.parse(self.received.get(..length).unwrap_or(&[])) {
                Ok((Offload { checksum: RxChecksum::Partial { start, offset }, .. }, _)) => {
                    Some((start, offset))
                }
                Ok(_) => None,
                Err(_) => {
                    self.counters.malformed += 1;
                    continue;
                }
            };
            if let Some((from, offset)) = partial
                && let Some(packet) = self.received.get_mut(start..length)
                && complete_partial(packet, self.layer, from, offset, self.simd).is_err()
            {
                self.counters.malformed += 1;
                continue;
            }
            self.count_read(length - start);
            return Some(start..length);
        }
    }

    fn count_read(&mut self, length: usize) {
        self.counters.read += 1;
        self.counters.bytes_read += length as u64;
    }
}

impl TunWriter {
    /// Returns the length in bytes of the virtio header before each packet.
    fn header_length(&self) -> usize {
        self.queue.framing().map_or(0, Framing::header_length)
    }

    /// Writes the packet that smoltcp has made, in segments of at most `size` bytes of TCP payload.
    fn write(&mut self, size: Option<usize>) {
        let start = self.header_length();
        let (header, packet) = self.sending.split_at_mut(start);
        // smoltcp omits only the checksum of TCP.
        let tcp = parse(packet, packet.len(), self.layer)
            .ok()
            .filter(|layout| layout.protocol == Protocol::Tcp);
        let Some(layout) = tcp else {
            header.fill(0);
            return self.write_one();
        };
        write_pseudo_header_sum(packet, &layout);
        let offload = Offload::new(
            RxChecksum::Partial {
                start: layout.transport,
                offset: Protocol::Tcp.checksum_offset(),
            },
            size.and_then(SegmentSize::new)
                .filter(|size| packet.len() - usize::from(layout.payload) > size.get())
                .map(|size| {
                    let kind =
                        if layout.version == IpVersion::V4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
                    Gso::new(kind, size)
                }),
        );
        let whole = self
            .queue
            .framing()
            .filter(|_| self.takes_super_packets || offload.gso.is_none())
            .and_then(|framing| {
                let described =
                    Header::describe(&offload, framing.format, packet, packet.len(), self.layer)
                        .ok()?;
                described.write(header, framing.format, framing.order).ok()?;
                Some(framing)
            });
        if whole.is_none() {
            return self.write_segments(&offload);
        }
        match self.queue.write(&[IoSlice::new(&self.sending)]) {
            Err(error) if offload.gso.is_some() && error.kind() == io::ErrorKind::InvalidInput => {
                self.takes_super_packets = false;
                self.counters.refused += 1;
                self.write_segments(&offload);
            }
            result => self.count_written(result, self.sending.len() - start),
        }
    }

    /// Segments the packet in `sending`, whose checksum is partial, and writes segments with
    /// complete checksums.
    fn write_segments(&mut self, offload: &Offload) {
        let start = self.header_length();
        let whole = self.sending.get(start..).unwrap_or(&[]);
        let packet = superpacket::GsoPacket::linear(&whole, offload.gso)
            .with_layer(self.layer)
            .with_checksum(offload.checksum);
        self.segments.clear();
        let Ok(plan) = self.segmenter.segment_linear(
            &packet,
            &superpacket::SegmentOptions::default(),
            &mut self.segments,
        ) else {
            self.counters.rejected += 1;
            return;
        };
        let segments = core::mem::take(&mut self.segments);
        for segment in segments.chunks(plan.segment_length.max(1)) {
            self.sending.truncate(start);
            self.sending.fill(0);
            self.sending.extend_from_slice(segment);
            self.write_one();
        }
        self.segments = segments;
    }

    /// Writes the packet in `sending` as it is.
    fn write_one(&mut self) {
        let length = self.sending.len() - self.header_length();
        let result = self.queue.write(&[IoSlice::new(&self.sending)]);
        self.count_written(result, length);
    }

    fn count_written(&mut self, result: io::Result<()>, length: usize) {
        match result {
            Ok(()) => {
                self.counters.written += 1;
                self.counters.bytes_written += length as u64;
            }
            Err(_) => self.counters.rejected += 1,
        }
    }
}

/// Returns the length in bytes of the link-layer header.
fn link_length(layer: Layer) -> usize {
    if layer == Layer::Ip { 0 } else { ETHERNET_HEADER }
}

/// Writes the sum of the pseudo-header into the checksum field. The checksum is then a partial one,
/// which is completed later.
fn write_pseudo_header_sum(packet: &mut [u8], layout: &Layout) {
    let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
    let length = packet.len().min(layout.end as usize).saturating_sub(transport);
    let sum = pseudo_header(
        packet.get(network..).unwrap_or(&[]),
        layout.version,
        Protocol::Tcp.number(),
        length as u32,
    )
    .fold();
    let field = usize::from(layout.checksum());
    if let Some(field) = packet.get_mut(field..field + 2) {
        field.copy_from_slice(&sum.to_be_bytes());
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.queue.as_fd()
    }
}

impl Device for TunDevice {
    type RxToken<'a> = TunRxToken<'a>;
    type TxToken<'a> = TunTxToken<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let layer = self.reader.layer;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = if layer == Layer::Ip { Medium::Ip } else { Medium::Ethernet };
        capabilities.max_transmission_unit = link_length(layer) + self.mtu;
        capabilities.checksum.tcp = Checksum::Rx;
        // If the device accepts no super-packets, they are segmented in this module. The limit
        // leaves room for the link header: when a packet leaves by another device, the kernel
        // segments those of 65,536 bytes or more, link header included (`GSO_LEGACY_MAX_SIZE`).
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(MAX_IP_LENGTH);
        capabilities
    }

    fn receive(&mut self, _: Instant) -> Option<(TunRxToken<'_>, TunTxToken<'_>)> {
        let range = self.reader.read()?;
        let packet = self.reader.received.get(range)?;
        Some((TunRxToken(packet), TunTxToken { writer: &mut self.writer, size: None }))
    }

    fn transmit(&mut self, _: Instant) -> Option<TunTxToken<'_>> {
        Some(TunTxToken { writer: &mut self.writer, size: None })
    }
}

/// A packet that was read, which may be a super-packet.
#[derive(Debug)]
pub struct TunRxToken<'a>(&'a [u8]);

impl RxToken for TunRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// A token to write one packet, which may be a super-packet.
#[derive(Debug)]
pub struct TunTxToken<'a> {
    writer: &'a mut TunWriter,
    /// Maximum TCP payload per segment in bytes; `None` if the packet is a single segment.
    size: Option<usize>,
}

impl TxToken for TunTxToken<'_> {
    fn set_meta(&mut self, meta: PacketMeta) {
        self.size = meta.segmentation_offload_size.map(|size| size.get().into());
    }

    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let start = self.writer.header_length();
        self.writer.sending.resize(start + length, 0);
        let result = fill(self.writer.sending.get_mut(start..).unwrap_or(&mut []));
        self.writer.write(self.size);
        result
    }
}
