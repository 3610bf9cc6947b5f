//! Conversion of a ring's frame metadata into the engine's types.

use superpacket::packet::{Layer, RxChecksum, RxPacket, VlanTag};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket::virtio::{ByteOrder, Format, Header, VirtioError, flags, gso_type};
use superpacket::wire::{self, IpVersion, MAX_HEADER, Protocol, Refusal, ethernet};

use crate::Buffer;

/// Length of the virtio header before each frame, in bytes.
pub(super) const VIRTIO: usize = Format::Plain.length();

/// The metadata of a received frame that rings of `TPACKET_V2` and of `TPACKET_V3` both have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Metadata {
    /// Status bits of the frame (`TP_STATUS_...`).
    pub status: u32,
    pub seconds: u32,
    pub nanoseconds: u32,
    /// The control word (TCI) of a VLAN tag that was removed from the frame. `status` tells whether
    /// it is valid.
    pub vlan_tci: u16,
    /// The protocol (TPID) of the removed VLAN tag. `status` tells whether it is valid.
    pub vlan_tpid: u16,
    /// The flow hash; 0 if there is none.
    pub hash: u32,
}

/// Returns the packet in `buffer`, which contains a virtio header and a frame.
///
/// # Errors
/// [`VirtioError`] if the header contradicts the frame.
#[inline]
pub(super) fn packet(
    mut buffer: Buffer,
    metadata: &Metadata,
    queue: u16,
) -> Result<RxPacket<Buffer>, VirtioError> {
    let header = *buffer
        .bytes()
        .first_chunk::<VIRTIO>()
        .ok_or(VirtioError::Short { needed: VIRTIO, got: buffer.bytes().len() })?;
    buffer.skip(VIRTIO);
    let mut packet = RxPacket::new(buffer);
    packet.queue = queue;
    packet.time = u64::from(metadata.seconds) * 1_000_000_000 + u64::from(metadata.nanoseconds);
    packet.hash = (metadata.hash != 0).then_some(superpacket::packet::FlowHash(metadata.hash));
    if metadata.status & libc::TP_STATUS_VLAN_VALID != 0 {
        let known = metadata.status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let protocol = if known { metadata.vlan_tpid } else { ethernet::VLAN };
        packet.vlan = Some(VlanTag { protocol, control: metadata.vlan_tci });
    }
    // Most single frames have no flag except DATA_VALID, and no GSO type.
    if header[0] & !flags::DATA_VALID == 0 && header[1] == gso_type::NONE {
        let is_valid = header[0] != 0 || metadata.status & libc::TP_STATUS_CSUM_VALID != 0;
        packet.checksum =
            if is_valid { RxChecksum::Unnecessary { level: 0 } } else { RxChecksum::None };
        return Ok(packet);
    }
    let header = Header::read(&header, Format::Plain, ByteOrder::NATIVE)?;
    (packet.checksum, packet.gso) =
        offload(&header, packet.buffers().next().map_or(&[], Buffer::bytes))?;
    Ok(packet)
}

/// Returns the checksum state and the segmentation that a frame's virtio header describes.
fn offload(header: &Header, frame: &[u8]) -> Result<(RxChecksum, Option<Gso>), VirtioError> {
    let head = &frame[..frame.len().min(MAX_HEADER)];
    match header.offload(Format::Plain, head, frame.len(), Layer::Ethernet) {
        Ok(offload) => Ok((offload.checksum, offload.gso)),
        Err(VirtioError::Protocol { .. }) => tunnelled(header, frame, head),
        Err(error) => Err(error),
    }
}

/// Interprets the virtio header of a super-packet in a tunnel. The kernel gives the GSO type of the
/// inner packet, as if there were no tunnel (`virtio_net_hdr_from_skb`), so the type is compared
/// with the inner headers.
fn tunnelled(
    header: &Header,
    frame: &[u8],
    head: &[u8],
) -> Result<(RxChecksum, Option<Gso>), VirtioError> {
    let wrong = VirtioError::Protocol { gso_type: header.gso_type };
    let layout = wire::parse(head, frame.len(), Layer::Ethernet)
        .map_err(|unparsed| VirtioError::Headers(unparsed.reason))?;
    let kind = match (header.gso_type & !gso_type::ECN, layout.version, layout.protocol) {
        (gso_type::TCPV4, IpVersion::V4, Protocol::Tcp) => GsoKind::Tcp4,
        (gso_type::TCPV6, IpVersion::V6, Protocol::Tcp) => GsoKind::Tcp6,
        (gso_type::UDP_L4, _, Protocol::Udp) => GsoKind::Udp,
        _ => return Err(wrong),
    };
    if layout.outer.is_none() {
        return Err(wrong);
    }
    // If Linux's GRO has merged two nested tunnels by Geneve's GRO hint option, the inner headers
    // keep the lengths of the first segment (`geneve_post_decap_hint`).
    if let (Some(_), Some(refusal @ (Refusal::Padded | Refusal::Truncated | Refusal::UdpLength))) =
        (layout.nested, layout.refusal)
    {
        return Err(VirtioError::Headers(refusal));
    }
    let checksum = if header.flags & flags::NEEDS_CSUM != 0 {
        if header.csum_start != layout.transport {
            return Err(VirtioError::ChecksumStart {
                expected: layout.transport,
                got: header.csum_start,
            });
        }
        if header.csum_offset != layout.protocol.checksum_offset() {
            return Err(VirtioError::ChecksumOffset {
                expected: layout.protocol.checksum_offset(),
                got: header.csum_offset,
            });
        }
        RxChecksum::Partial { start: header.csum_start, offset: header.csum_offset }
    } else if header.flags & flags::DATA_VALID != 0 {
        RxChecksum::Unnecessary { level: 0 }
    } else {
        RxChecksum::None
    };
    let size = SegmentSize::new(usize::from(header.gso_size))
        .ok_or(VirtioError::GsoSize(header.gso_size))?;
    let payload =
        (layout.end as usize).min(frame.len()).saturating_sub(usize::from(layout.payload));
    Ok((checksum, (payload > size.get()).then_some(Gso::new(kind, size))))
}
