//! The packets of a device that puts a `virtio_net_hdr` before each: methods that segment a
//! received packet, and that make the header of a packet to send.

#[cfg(feature = "std")]
use super::flags;
use super::{ByteOrder, Format, Header, Offload, VirtioError};
use crate::memory::Memory;
use crate::packet::{Gathered, Layer, RxChecksum};
use crate::segment::{
    GsoPacket, GsoSupport, Portion, SegmentBuffers, SegmentError, SegmentOptions, SegmentPlan,
    Segmenter,
};
use crate::super_packet::{Metadata, SuperPacket};
use crate::wire::{Layout, MAX_HEADER};

/// The form in which a device exchanges packets: each behind a `virtio_net_hdr` of this format.
///
/// [`Segmenter::split`] processes a packet that was read; [`header`](Self::header) makes the header
/// for a packet to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Framing {
    /// Format of the header.
    pub format: Format,
    /// Byte order of the header.
    pub order: ByteOrder,
    /// Layer at which packets start.
    pub layer: Layer,
    /// The super-packets that the receiver of the header can segment.
    pub support: GsoSupport,
}

impl Framing {
    /// Framing of a TUN device with `IFF_VNET_HDR`: 10 bytes in the machine's byte order, then an
    /// IP packet.
    pub const TUN: Framing = Framing::new(Format::Plain, ByteOrder::NATIVE, Layer::Ip);

    /// Framing of a TAP device with `IFF_VNET_HDR`: 10 bytes in the machine's byte order, then an
    /// Ethernet frame.
    pub const TAP: Framing = Framing { layer: Layer::Ethernet, ..Framing::TUN };

    /// Makes the framing of any device whose receiver is [Linux](GsoSupport::LINUX). Super-packets
    /// in tunnels need the format that has fields for them.
    #[inline]
    pub const fn new(format: Format, order: ByteOrder, layer: Layer) -> Self {
        Framing { format, order, layer, support: GsoSupport::LINUX }.with_support(GsoSupport::LINUX)
    }

    /// Returns the framing for a receiver with this `support`, restricted to what a header of this
    /// format can express.
    #[inline]
    #[must_use]
    pub const fn with_support(self, support: GsoSupport) -> Self {
        let udp_tunnels = support.udp_tunnels && matches!(self.format, Format::Tunnel);
        // No field of a `virtio_net_hdr` can express these.
        let support = GsoSupport { udp_tunnels, fixed_ids: false, cwr_on_all: false, ..support };
        Framing { support, ..self }
    }

    /// Returns the length of the header in bytes.
    #[inline]
    pub const fn header_length(self) -> usize {
        self.format.length()
    }

    /// Reads the header at the start of `read`, and returns its meaning and the packet after it.
    ///
    /// # Errors
    /// [`VirtioError`] if the header contradicts the packet, or is truncated.
    #[inline]
    pub fn parse(self, read: &[u8]) -> Result<(Offload, &[u8]), VirtioError> {
        self.parse_with_layout(read).map(|(offload, _, packet)| (offload, packet))
    }

    /// Parses as [`parse`](Self::parse) does, and returns the layout of a super-packet too.
    #[inline(always)]
    fn parse_with_layout(
        self,
        read: &[u8],
    ) -> Result<(Offload, Option<Layout>, &[u8]), VirtioError> {
        let header = Header::read(read, self.format, self.order)?;
        let packet = read.get(self.header_length()..).unwrap_or(&[]);
        let (offload, layout) =
            header.offload_and_layout(self.format, packet, packet.len(), self.layer)?;
        Ok((offload, layout, packet))
    }

    /// Makes the header for a packet.
    ///
    /// # Errors
    /// [`VirtioError`] if no header describes the packet (see [`Header::describe`]), or if
    /// it is merged and the receiver cannot [segment](Self::support) it. A packet merged by an
    /// aggregator [for a framing](crate::BatchAggregator::framed) always has a header.
    ///
    /// A packet that another aggregator merged in a tunnel may need another outer checksum first;
    /// see [`Header::outer_checksum`].
    #[inline]
    pub fn header<B, M: Memory<B>>(
        &self,
        packet: &SuperPacket<'_, B, M>,
    ) -> Result<HeaderBytes, VirtioError> {
        let mut slices = packet.slices();
        let first = slices.next().unwrap_or(&[]);
        if first.len() >= MAX_HEADER || slices.next().is_none() {
            return self.describe(&packet.metadata, first, packet.length());
        }
        // The headers may lie in several buffers.
        self.describe(&packet.metadata, Gathered::new(packet.slices()).bytes(), packet.length())
    }

    /// Makes a header of zeros, for a packet whose metadata no header can express. An aggregator
    /// for this framing merges none of these.
    #[inline]
    pub(crate) fn nothing(&self) -> HeaderBytes {
        HeaderBytes { bytes: [0; Format::LONGEST], length: self.header_length() }
    }

    /// Returns the outer UDP checksum that must be written into the packet after this virtio
    /// header: its offset and its value. `None` if nothing must be written. See
    /// [`Header::outer_checksum`].
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn outer_checksum(
        &self,
        described: &[u8],
        first: &[u8],
        length: usize,
    ) -> Option<(usize, u16)> {
        if described.first().is_none_or(|described| described & flags::UDP_TUNNEL_CSUM == 0) {
            return None;
        }
        Header::read(described, self.format, self.order)
            .ok()?
            .outer_checksum(first, length, self.layer)
    }

    /// Makes the header for a packet of `length` bytes, of which `first` holds the headers.
    #[inline(always)]
    fn describe(
        &self,
        metadata: &Metadata,
        first: &[u8],
        length: usize,
    ) -> Result<HeaderBytes, VirtioError> {
        let mut made = self.nothing();
        self.write(metadata, first, length, &mut made.bytes)?;
        Ok(made)
    }

    /// Writes the header for a packet of `length` bytes, of which `first` holds the headers, to the
    /// start of the slice `place`. Writes zeros if no header can describe the packet.
    #[inline(always)]
    pub(crate) fn write(
        &self,
        metadata: &Metadata,
        first: &[u8],
        length: usize,
        place: &mut [u8],
    ) -> Result<(), VirtioError> {
        if let (Format::Plain, RxChecksum::None, None) =
            (self.format, metadata.checksum, &metadata.gso)
        {
            // The packet has no metadata. The length is constant here, so no function is called.
            let Some(place) = place.first_chunk_mut() else {
                return Err(VirtioError::Short {
                    needed: Format::Plain.length(),
                    got: place.len(),
                });
            };
            *place = [0; Format::Plain.length()];
            return Ok(());
        }
        let &Metadata { checksum, gso, hash, .. } = metadata;
        // The layout of a merged packet is known. A packet that came as a super-packet may be
        // segmented at other headers than the parse found.
        let known = metadata.layout.as_ref().filter(|_| metadata.packets > 1);
        self.write_offload(&Offload { checksum, gso, hash }, first, length, known, place)
    }

    // A function without the metadata, which would otherwise have to be stored in memory.
    #[inline(never)]
    fn write_offload(
        &self,
        offload: &Offload,
        first: &[u8],
        length: usize,
        known: Option<&Layout>,
        place: &mut [u8],
    ) -> Result<(), VirtioError> {
        let mut header = Header::default();
        // A received super-packet is handed on unchanged, since it cannot be segmented here.
        let support = known.map(|_| &self.support);
        let described =
            header.fill_in(offload, self.format, support, first, length, self.layer, known);
        if described.is_err() {
            header = Header::default();
        }
        header.write(place, self.format, self.order)?;
        described
    }
}

/// The bytes of a header, in the format and byte order of its [`Framing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBytes {
    bytes: [u8; Format::LONGEST],
    length: usize,
}

impl core::ops::Deref for HeaderBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

/// The reason why a packet that was read from a device was not split into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// The header contradicts the packet.
    #[error("virtio_net_hdr: {0}")]
    Header(#[from] VirtioError),
    /// The packet cannot be segmented, or the segments do not fit.
    #[error(transparent)]
    Segment(#[from] SegmentError),
}

impl Segmenter {
    /// Splits the header and packet of one read into segments with complete checksums, written into
    /// `buffers`. A packet that is not a super-packet is one segment.
    ///
    /// `buffers` may be a `Vec<u8>` for segments back to back,
    /// [`BackToBack`](crate::segment::BackToBack) for a slice, or
    /// [`EachBuffer`](crate::segment::EachBuffer) for one buffer per segment.
    ///
    /// # Errors
    /// [`SplitError`]; no segment was written then.
    #[inline]
    pub fn split(
        &mut self,
        framing: Framing,
        read: &[u8],
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<SegmentPlan, SplitError> {
        let (Offload { checksum, gso, .. }, layout, packet) = framing.parse_with_layout(read)?;
        let packet = GsoPacket { buffers: &[packet], layer: framing.layer, gso, checksum };
        Ok(self.segment_known(&packet, &SegmentOptions::default(), layout.as_ref(), buffers)?)
    }

    /// Splits as [`split`](Self::split) does, but writes only as many segments as the buffers hold,
    /// from number `first` on. The next call continues with the number written so far; see
    /// [`segment_portion`](Self::segment_portion).
    ///
    /// # Errors
    /// [`SplitError`]; nothing has been written then.
    #[inline]
    pub fn split_portion(
        &mut self,
        framing: Framing,
        read: &[u8],
        first: u32,
        buffers: &mut (impl SegmentBuffers + ?Sized),
    ) -> Result<Portion, SplitError> {
        let (Offload { checksum, gso, .. }, layout, packet) = framing.parse_with_layout(read)?;
        let packet = GsoPacket { buffers: &[packet], layer: framing.layer, gso, checksum };
        Ok(self.portion_known(
            &packet,
            &SegmentOptions::default(),
            layout.as_ref(),
            first,
            buffers,
        )?)
    }
}
