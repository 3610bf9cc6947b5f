//! The form of a frame on the socket: with a virtio header, or without.
//!
//! Without a header, a peer may still send super-packets and partial checksums: libkrun removes the
//! header of what its guest left undone. Both are recognized here, and become metadata as if a
//! header had told of them.

use std::io;
use std::ops::Range;

use superpacket::checksum::{pseudo_header, sum_ranges, transport_field};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::virtio::{ByteOrder, Format, Framing, Header, Offload, VirtioError};
use superpacket::wire::{IpVersion, MAX_HEADER, Protocol, checksum_addresses, parse_datagram, udp};
use superpacket_simd::Simd;

use crate::{Outgoing, StopReason, TxBatch, TxFrame};

/// The shortest frame in bytes: an Ethernet header. passt resets a connection with shorter ones.
pub(super) const MIN_FRAME: usize = 14;

/// The longest frame in bytes, without a virtio header. Peers refuse longer ones.
pub(super) const MAX_FRAME: usize = 65_535;

/// The form of the frames of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameFormat {
    /// The format of the virtio header; `None` for no header.
    pub(super) header: Option<Format>,
    /// The longest IP packet of the peer in bytes.
    pub(super) mtu: u32,
}

impl FrameFormat {
    /// Returns the length of the virtio header in bytes.
    pub(super) const fn header_length(&self) -> usize {
        match self.header {
            Some(format) => format.length(),
            None => 0,
        }
    }

    /// Returns the accepted lengths of a header and a frame together.
    pub(super) const fn lengths(&self) -> std::ops::RangeInclusive<usize> {
        MIN_FRAME + self.header_length()..=MAX_FRAME + self.header_length()
    }

    /// Returns the offloads of a received frame: those that its virtio header describes, or without
    /// a virtio header those recognized in the frame itself. In the latter case, the checksum field
    /// of a super-packet is changed into a partial checksum.
    ///
    /// # Errors
    /// [`VirtioError`] if the header contradicts the frame.
    pub(super) fn offload(&self, bytes: &mut [u8]) -> Result<Offload, VirtioError> {
        match self.header {
            None => Ok(self.recognize(bytes).unwrap_or_default()),
            Some(format) => {
                let framing = Framing::new(format, ByteOrder::Little, Layer::Ethernet);
                framing.parse(bytes).map(|(offload, _)| offload)
            }
        }
    }

    /// Recognizes a super-packet or a partial checksum in a frame without virtio header; `None` if
    /// the frame is neither.
    fn recognize(&self, frame: &mut [u8]) -> Option<Offload> {
        let length = frame.len();
        let header = &frame[..length.min(MAX_HEADER)];
        let layout = parse_datagram(header, length, Layer::Ethernet).ok()?;
        let network = header.get(usize::from(layout.network)..)?;
        // A guest leaves no work for a packet in a tunnel, nor for a fragment.
        if layout.outer.is_some()
            || layout.refusal.is_some()
            || checksum_addresses(network, layout.version).is_none()
        {
            return None;
        }
        let sum = pseudo_header(
            network,
            layout.version,
            layout.protocol.number(),
            layout.end.saturating_sub(u32::from(layout.transport)),
        )
        .fold()
        .to_be_bytes();
        let place = usize::from(layout.checksum());
        let field = frame.get_mut(place..place + 2)?;
        let partial = RxChecksum::Partial {
            start: layout.transport,
            offset: layout.protocol.checksum_offset(),
        };
        let is_long = layout.end as usize > usize::from(layout.network) + self.mtu as usize;
        if is_long && layout.protocol == Protocol::Tcp {
            let kind = match layout.version {
                IpVersion::V4 => GsoKind::Tcp4,
                IpVersion::V6 => GsoKind::Tcp6,
            };
            let size = SegmentSize::for_mtu(&layout, kind, self.mtu as usize)?;
            // The checksum may be partial or complete. It is computed again in any case.
            field.copy_from_slice(&sum);
            return Some(Offload::new(partial, Some(Gso::new(kind, size))));
        }
        // A complete checksum that happens to have this value is computed again, to the same value.
        (*field == sum && sum != [0; 2]).then(|| Offload::new(partial, None))
    }
}

/// The bytes that are sent before each frame of a batch, or that replace its first bytes.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    bytes: Vec<u8>,
    prefixes: Vec<Prefix>,
}

#[derive(Clone, Debug)]
struct Prefix {
    range: Range<usize>,
    /// Number of bytes of the frame that the prefix replaces.
    replaced: usize,
}

impl Prefixes {
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.prefixes.clear();
    }

    /// Returns the number of frames whose prefixes were added.
    pub(super) fn count(&self) -> usize {
        self.prefixes.len()
    }

    /// Adds the prefix of a frame. It consists of the length field, if `with_length`; the virtio
    /// header, if the format has one; otherwise, for a frame with a partial checksum, its first
    /// bytes with the completed checksum.
    ///
    /// # Errors
    /// The reason why the frame cannot be sent in this form.
    pub(super) fn add(
        &mut self,
        format: &FrameFormat,
        with_length: bool,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<(), StopReason> {
        let length = frame.length as usize;
        if length > MAX_FRAME {
            return Err(StopReason::TooLong);
        }
        // A datagram without bytes stops QEMU's reading.
        if length < MIN_FRAME {
            let says = "the frame is shorter than an Ethernet header";
            return Err(StopReason::Refused(io::Error::new(io::ErrorKind::InvalidInput, says)));
        }
        let begin = self.bytes.len();
        if with_length {
            let length = (length + format.header_length()) as u32;
            self.bytes.extend_from_slice(&length.to_be_bytes());
        }
        let added = match format.header {
            Some(header) => self.add_header(header, outgoing, batch, frame),
            None => self.add_start(outgoing, batch, frame),
        };
        match added {
            Ok(replaced) => {
                self.prefixes.push(Prefix { range: begin..self.bytes.len(), replaced });
                Ok(())
            }
            Err(error) => {
                self.bytes.truncate(begin);
                Err(StopReason::Offload(io::Error::new(io::ErrorKind::InvalidInput, error)))
            }
        }
    }

    fn add_header(
        &mut self,
        format: Format,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<usize, VirtioError> {
        let described = if frame.is_plain() {
            Header { num_buffers: 1, ..Header::default() }
        } else {
            let offload = Offload::new(frame.checksum, frame.gso);
            let mut scratch = [0; MAX_HEADER];
            let head = batch.head(outgoing, frame, &mut scratch);
            Header::describe(&offload, format, head, frame.length as usize, Layer::Ethernet)?
        };
        let begin = self.bytes.len();
        self.bytes.resize(begin + format.length(), 0);
        described.write(&mut self.bytes[begin..], format, ByteOrder::Little)?;
        Ok(0)
    }

    /// Adds the first bytes of a frame with a partial checksum, up to and including the completed
    /// checksum. Returns their number.
    fn add_start(
        &mut self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
    ) -> Result<usize, VirtioError> {
        let RxChecksum::Partial { start, offset } = frame.checksum else { return Ok(0) };
        let (start, place) = (usize::from(start), usize::from(start) + usize::from(offset));
        let end = place + 2;
        if end > frame.length as usize {
            return Err(VirtioError::ChecksumPlace { needed: end, got: frame.length as usize });
        }
        let slices = || batch.slices(frame).iter().map(|slice| outgoing.slice(*slice));
        let begin = self.bytes.len();
        for bytes in slices() {
            let missing = begin + end - self.bytes.len();
            self.bytes.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        }
        let mut skipped = start;
        let covered = slices().map(|bytes| {
            let skip = skipped.min(bytes.len());
            skipped -= skip;
            &bytes[skip..]
        });
        // The field holds the sum of the pseudo-header, which belongs to the sum.
        let sum = !sum_ranges(Simd::detect(), covered);
        let protocol =
            if usize::from(offset) == udp::CHECKSUM { Protocol::Udp } else { Protocol::Tcp };
        let field = transport_field(protocol, sum).to_be_bytes();
        self.bytes[begin + place..begin + end].copy_from_slice(&field);
        Ok(end)
    }

    /// Returns the bytes of frame number `index`, whose slices are `slices`: its prefix, then the
    /// rest of the frame.
    pub(super) fn parts<'a>(
        &'a self,
        index: usize,
        outgoing: &'a Outgoing,
        batch: &'a TxBatch,
        frame: &'a TxFrame,
    ) -> impl Iterator<Item = &'a [u8]> {
        let Prefix { range, mut replaced } = self.prefixes[index].clone();
        let rest = batch.slices(frame).iter().map(move |slice| {
            let bytes = outgoing.slice(*slice);
            let skip = replaced.min(bytes.len());
            replaced -= skip;
            &bytes[skip..]
        });
        std::iter::once(&self.bytes[range]).chain(rest).filter(|part| !part.is_empty())
    }

    /// Returns the length of frame number `index` with its prefix, in bytes.
    pub(super) fn length(&self, index: usize, frame: &TxFrame) -> usize {
        let Prefix { range, replaced } = &self.prefixes[index];
        range.len() + frame.length as usize - replaced
    }
}
