//! Reads from a device, and cuts super-packets into packets for a tunnel.

use std::io;

use superpacket::segment::{Portion, SegmentBuffers, SegmentCounters, SegmentPlan};
use superpacket::{Framing, GsoPacket, Layer, SegmentError, SegmentOptions, Segmenter, SplitError};

use crate::Device;

/// Length of the longest read in bytes: a `virtio_net_hdr`, an Ethernet header with two VLAN tags,
/// an IP packet, and one byte by which a longer packet is noticed.
const LONGEST: usize = 24 + 22 + 65_535 + 1;

/// A reader of packets from one queue of a device. A super-packet from the kernel is cut into the
/// packets that a wire would carry, with complete checksums.
#[derive(Debug)]
pub struct Reader<D> {
    device: D,
    framing: Option<Framing>,
    segmenter: Segmenter,
    buffer: Box<[u8]>,
    /// The part of the last read that did not fit the caller's buffers.
    rest: Option<PartialRead>,
    counters: ReaderCounters,
}

/// The packets of a read that the caller has not received yet. They are in the reader's buffer.
#[derive(Clone, Copy, Debug)]
struct PartialRead {
    /// Length in bytes of the packet or super-packet that was read from the device.
    length: usize,
    /// Number of packets of this read that the caller has already received.
    done: u32,
}

/// Counters of a [`Reader`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderCounters {
    /// Packets and super-packets read from the device; each counts once.
    pub reads: u64,
    /// Number of packets returned to the caller.
    pub packets: u64,
    /// Total length in bytes of the packets returned to the caller.
    pub bytes: u64,
    /// Number of super-packets read: reads that were cut into more than one packet.
    pub super_packets: u64,
    /// Number of reads that yielded no packet, because the `virtio_net_hdr` contradicts the packet
    /// or the packet cannot be cut.
    pub malformed: u64,
    /// Reads of which some packets were [discarded](Reader::discard).
    pub discarded: u64,
    /// Packets that the kernel dropped because it could not describe or deliver them. They are not
    /// counted in `reads`.
    pub dropped: u64,
}

/// An error of reading.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The device has no packet to read, or it failed.
    #[error("reading from the TUN device: {0}")]
    Device(#[source] io::Error),
    /// The caller's buffers have no room for the next packet. Nothing is lost: the next call
    /// continues with this packet, and [`Reader::discard`] drops it.
    #[error("the buffers have no room for a single packet of the read: {0}")]
    NoRoom(#[source] SegmentError),
}

impl ReadError {
    /// Returns whether there is no packet to read now.
    pub fn would_block(&self) -> bool {
        matches!(self, ReadError::Device(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Device(error) => error,
            ReadError::NoRoom(_) => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}

impl<D: Device> Reader<D> {
    /// Returns a reader of a device whose packets begin with the `virtio_net_hdr` that `framing`
    /// describes; `None` means that packets have no such header.
    pub fn new(device: D, framing: Option<Framing>) -> Self {
        Reader {
            device,
            framing,
            segmenter: Segmenter::new(),
            buffer: vec![0; LONGEST].into_boxed_slice(),
            rest: None,
            counters: ReaderCounters::default(),
        }
    }

    /// Reads one packet or super-packet from the device, cuts it, and writes the resulting packets
    /// into `buffers`. Waits until there is something to read.
    ///
    /// If the buffers have no room for all packets of a super-packet, the call writes as many as
    /// fit. The next call continues with the others, so a fixed pool of buffers may be smaller than
    /// a super-packet. [`has_more`](Self::has_more) returns whether there are others.
    ///
    /// Returns the number and the length of the packets. Returns `None` if the read has no packet
    /// for the tunnel: its header contradicts it, or the kernel dropped it. This is counted
    /// ([`counters`](Self::counters)), and the next call continues with the next packet.
    ///
    /// `buffers` may be a `Vec<u8>`, or a `BytesMut` with `superpacket`'s feature `bytes`, to which
    /// the packets are appended; [`EachBuffer`](superpacket::EachBuffer) for buffers of a pool;
    /// [`NewBuffers`](crate::NewBuffers) for a new buffer per packet;
    /// [`BackToBack`](superpacket::BackToBack) for a slice; or the caller's own [`SegmentBuffers`].
    ///
    /// ```no_run
    /// # #[cfg(any(target_os = "linux", target_os = "android"))] {
    /// use superpacket_tun::{EachBuffer, Tun};
    ///
    /// let (mut reader, writer) = Tun::builder("vpn0").open()?.split();
    /// # let _: superpacket_tun::Writer<_, Vec<u8>> = writer;
    /// // A super-packet of 112 packets takes three calls. Each packet has 16 bytes before it for the
    /// // tunnel's header, and room after it for a cipher's tag.
    /// let (mut pool, mut sizes) = (vec![[0; 1536]; 46], [0; 46]);
    /// loop {
    ///     let mut buffers = EachBuffer::new(&mut pool, 16, &mut sizes);
    ///     reader.read_into(&mut buffers)?;
    ///     println!("{} packets, more: {}", buffers.used(), reader.has_more());
    /// }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ReadError`]; no packet is lost.
    pub fn read_into(
        &mut self,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Option<SegmentPlan>, ReadError> {
        loop {
            match self.try_read_into(buffers) {
                Err(error) if error.would_block() => {
                    self.device.wait_readable().map_err(ReadError::Device)?
                }
                read => return read,
            }
        }
    }

    /// Like [`read_into`](Self::read_into), but does not wait. An event loop calls it again while
    /// the reader [has more](Self::has_more), before it waits for the device.
    ///
    /// # Errors
    /// [`ReadError`]; [`would_block`](ReadError::would_block) returns `true` if there is no packet
    /// to read. No packet is lost.
    pub fn try_read_into(
        &mut self,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Option<SegmentPlan>, ReadError> {
        let PartialRead { length, done } = match self.rest.take() {
            Some(rest) => rest,
            None => match self.device.read(&mut self.buffer) {
                Ok(length) => {
                    self.counters.reads += 1;
                    PartialRead { length, done: 0 }
                }
                Err(error) if concerns_packet(&error) => {
                    self.counters.dropped += 1;
                    return Ok(None);
                }
                Err(error) => return Err(ReadError::Device(error)),
            },
        };
        let read = self.buffer.get(..length.min(LONGEST - 1)).unwrap_or(&[]);
        let split = match self.framing {
            Some(framing) => self.segmenter.split_portion(framing, read, done, buffers),
            None => copy_uncut(&mut self.segmenter, read, buffers),
        };
        match split {
            // A header without a packet.
            Ok(Portion { plan, .. }) if plan.segment_length == 0 => {
                self.counters.malformed += 1;
                Ok(None)
            }
            Ok(Portion { plan, left, .. }) => {
                self.counters.packets += u64::from(plan.segments);
                self.counters.bytes += plan.total_length() as u64;
                self.counters.super_packets += u64::from(done == 0 && plan.segments + left > 1);
                if left != 0 {
                    self.rest = Some(PartialRead { length, done: done + plan.segments });
                }
                Ok(Some(plan))
            }
            Err(SplitError::Segment(
                error
                @ (SegmentError::OutputTooSmall { .. } | SegmentError::TooManySegments { .. }),
            )) => {
                self.rest = Some(PartialRead { length, done });
                Err(ReadError::NoRoom(error))
            }
            Err(_) => {
                self.counters.malformed += 1;
                Ok(None)
            }
        }
    }

    /// Returns whether packets of the last read did not fit the buffers. The next call returns
    /// them, and does not wait for the device.
    pub const fn has_more(&self) -> bool {
        self.rest.is_some()
    }

    /// Drops the packets of the last read that did not fit the buffers, and returns whether there
    /// were any.
    pub fn discard(&mut self) -> bool {
        let had_more = self.rest.take().is_some();
        self.counters.discarded += u64::from(had_more);
        had_more
    }

    /// Returns the counters of reading.
    pub const fn counters(&self) -> &ReaderCounters {
        &self.counters
    }

    /// Returns the engine's counters of segmentation, with reasons for packets that were not cut.
    pub const fn segmentation(&self) -> &SegmentCounters {
        self.segmenter.counters()
    }

    /// Returns the device.
    pub const fn device(&self) -> &D {
        &self.device
    }
}

/// Writes a packet of a device without headers to the buffers, unchanged.
fn copy_uncut(
    segmenter: &mut Segmenter,
    read: &[u8],
    buffers: &mut (impl SegmentBuffers + ?Sized),
) -> Result<Portion, SplitError> {
    let packet = GsoPacket::uncut(std::slice::from_ref(&read)).with_layer(Layer::Ip);
    Ok(segmenter.segment_portion(&packet, &SegmentOptions::default(), 0, buffers)?)
}

/// Returns whether the error concerns one packet, which the kernel has dropped (`tun_put_user`),
/// and not the device.
fn concerns_packet(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}
