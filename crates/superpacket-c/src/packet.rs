//! Packets as C programs give them: pointers, lengths, and what is known besides.

use std::ffi::c_void;
use std::slice;

use superpacket::aggregate::BorrowPacket;
use superpacket::segment::{ChecksumForm, Cwr, IpId, Segmentable};
use superpacket::wire::MAX_HEADER;
use superpacket::{FlowHash, Gso, GsoKind, Layer, RxChecksum, RxPacket, SegmentSize, VlanTag};

use crate::status::Failure;

/// A range of memory. The very `struct iovec` of POSIX systems, so that writev(2) takes an array of
/// them.
// The header says where it comes from; here it has the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_iovec {
    /// Where it starts.
    pub iov_base: *mut c_void,
    /// Its length in bytes.
    pub iov_len: usize,
}

/// The most bytes of a packet, and of one buffer of it: 16 MiB.
pub const SP_MAX_LENGTH: usize = 1 << 24;
/// The most buffers of a packet that is to be aggregated, the first included.
pub const SP_MAX_BUFFERS: usize = 17;
/// The most buffers of any other packet, the first included: what merged, and is to be cut again.
pub const SP_MAX_RANGES: usize = 1024;
/// The most packets of one call.
pub const SP_MAX_PACKETS: usize = 1 << 20;
/// The most bytes of header memory that one output takes: headers of a packet, and a
/// virtio_net_hdr.
pub const SP_MAX_HEADER: usize = 320;

const _: () = assert!(SP_MAX_BUFFERS == superpacket::packet::MAX_BUFFERS);

/// Packets start at the Ethernet header.
pub const SP_LAYER_ETHERNET: u32 = 0;
/// Packets start at the IP header: TUN devices.
pub const SP_LAYER_IP: u32 = 1;

/// Nothing is known of the checksums: they are verified in software where it matters.
pub const SP_CHECKSUM_NONE: u8 = 0;
/// The device verified checksum_level + 1 transport checksums, the outermost first; UDP checksums
/// of 0 are not counted.
pub const SP_CHECKSUM_VERIFIED: u8 = 1;
/// checksum_sum is the one's-complement sum of everything after the 14 bytes of the Ethernet
/// header (of everything, in a packet that starts at IP), as a number of the host.
pub const SP_CHECKSUM_SUM: u8 = 2;
/// The checksum field holds the sum of the pseudo-header, not inverted, and somebody must fill it
/// in: checksum_start says where to start summing, in bytes from the start of the packet, and
/// checksum_offset where the field lies from there.
pub const SP_CHECKSUM_PARTIAL: u8 = 3;

/// No super-packet.
pub const SP_GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const SP_GSO_TCP4: u8 = 1;
/// TCP over IPv6.
pub const SP_GSO_TCP6: u8 = 2;
/// UDP datagrams of equal size, of which the last may be shorter (USO).
pub const SP_GSO_UDP: u8 = 3;
/// One UDP datagram, to be cut into IP fragments (UFO).
pub const SP_GSO_UDP_FRAGMENTS: u8 = 4;
/// DCCP data packets.
pub const SP_GSO_DCCP: u8 = 5;

/// The field hash holds a flow hash that the device reported.
pub const SP_OFFLOAD_HASH: u8 = 1;
/// All segments have the super-packet's IPv4 identification; else it counts up by one.
pub const SP_OFFLOAD_FIXED_ID: u8 = 2;
/// The same of the outer IPv4 header of a tunnel.
pub const SP_OFFLOAD_FIXED_OUTER_ID: u8 = 4;
/// All segments carry CWR if the super-packet does; else the first only.
pub const SP_OFFLOAD_CWR_ALL: u8 = 8;
/// The packets that merged had partial checksums.
pub const SP_OFFLOAD_MERGED_PARTIAL: u8 = 16;

const FLAGS: u8 = SP_OFFLOAD_HASH | SP_OFFLOAD_FIXED_ID | SP_OFFLOAD_FIXED_OUTER_ID | SP_OFFLOAD_CWR_ALL | SP_OFFLOAD_MERGED_PARTIAL;

/// What is known of a packet besides its bytes. All zero: nothing.
///
/// What the library writes, it also takes: that of an output fits the packet that is made of it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct sp_offload {
    /// SP_CHECKSUM_NONE or another.
    pub checksum: u8,
    /// With SP_CHECKSUM_VERIFIED: how many checksums more than one.
    pub checksum_level: u8,
    /// With SP_CHECKSUM_PARTIAL: where to start summing, in bytes from the start of the packet.
    pub checksum_start: u16,
    /// With SP_CHECKSUM_PARTIAL: where the field lies, in bytes from checksum_start.
    pub checksum_offset: u16,
    /// With SP_CHECKSUM_SUM: the sum.
    pub checksum_sum: u16,
    /// SP_GSO_NONE, or how the packet is to be cut.
    pub gso_type: u8,
    /// SP_OFFLOAD_HASH and others.
    pub flags: u8,
    /// Bytes of payload in each segment but the last, if gso_type is not SP_GSO_NONE: at least 1.
    pub gso_size: u16,
    /// The flow hash, with SP_OFFLOAD_HASH.
    pub hash: u32,
    /// 0x8100 or 0x88a8 of a VLAN tag that the device took out of the frame; 0: none.
    pub vlan_protocol: u16,
    /// Priority, drop eligibility and VLAN ID of that tag.
    pub vlan_control: u16,
    /// 0.
    pub reserved: u32,
}

/// A packet in the caller's buffers: a received one, or a super-packet to be cut.
///
/// The library reads its bytes during the call and writes none of them. Their layout is fixed for
/// as long as the library has its soname.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_packet {
    /// The first bytes, or all.
    pub data: *const c_void,
    /// How many these are: at most SP_MAX_LENGTH.
    pub length: usize,
    /// The buffers behind the first; NULL if there are none.
    pub rest: *const sp_iovec,
    /// How many: at most SP_MAX_BUFFERS - 1 of a packet that is to be aggregated, SP_MAX_RANGES - 1 of
    /// any other.
    pub rest_count: u32,
    /// 0.
    pub reserved: u32,
    /// The caller's own; comes back with each range of the packet. The library does not look at what
    /// it points to.
    pub token: *mut c_void,
    /// What is known besides.
    pub offload: sp_offload,
}

impl sp_offload {
    /// Is every value one of those that are named?
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self { checksum, gso_type, flags, gso_size, reserved, .. } = *self;
        let wrong_gso = gso_type > SP_GSO_DCCP || (gso_type != SP_GSO_NONE && gso_size == 0);
        if checksum > SP_CHECKSUM_PARTIAL || wrong_gso || flags & !FLAGS != 0 || reserved != 0 {
            return Err(self.wrong());
        }
        Ok(())
    }

    #[cold]
    fn wrong(&self) -> Failure {
        let (what, got) = match *self {
            Self { checksum, .. } if checksum > SP_CHECKSUM_PARTIAL => ("offload.checksum", u64::from(checksum)),
            Self { gso_type, .. } if gso_type > SP_GSO_DCCP => ("offload.gso_type", u64::from(gso_type)),
            Self { flags, .. } if flags & !FLAGS != 0 => ("offload.flags", u64::from(flags)),
            Self { reserved, .. } if reserved != 0 => ("offload.reserved", u64::from(reserved)),
            Self { gso_size, .. } => ("offload.gso_size", u64::from(gso_size)),
        };
        Failure::Argument { what, got }
    }

    #[inline(always)]
    pub(crate) fn rx_checksum(&self) -> RxChecksum {
        match self.checksum {
            SP_CHECKSUM_VERIFIED => RxChecksum::Unnecessary { level: self.checksum_level },
            SP_CHECKSUM_SUM => RxChecksum::Complete(self.checksum_sum),
            SP_CHECKSUM_PARTIAL => RxChecksum::Partial { start: self.checksum_start, offset: self.checksum_offset },
            _ => RxChecksum::None,
        }
    }

    pub(crate) fn flow_hash(&self) -> Option<FlowHash> {
        (self.flags & SP_OFFLOAD_HASH != 0).then_some(FlowHash(self.hash))
    }

    #[inline(always)]
    pub(crate) fn gso(&self) -> Option<Gso> {
        if self.gso_type == SP_GSO_NONE { None } else { self.some_gso() }
    }

    fn some_gso(&self) -> Option<Gso> {
        let kind = match self.gso_type {
            SP_GSO_TCP4 => GsoKind::Tcp4,
            SP_GSO_TCP6 => GsoKind::Tcp6,
            SP_GSO_UDP => GsoKind::Udp,
            SP_GSO_UDP_FRAGMENTS => GsoKind::UdpFragments,
            SP_GSO_DCCP => GsoKind::Dccp,
            _ => return None,
        };
        let id = |flag: u8| if self.flags & flag != 0 { IpId::Fixed } else { IpId::Increment };
        Some(Gso {
            id: id(SP_OFFLOAD_FIXED_ID),
            outer_id: id(SP_OFFLOAD_FIXED_OUTER_ID),
            cwr: if self.flags & SP_OFFLOAD_CWR_ALL != 0 { Cwr::All } else { Cwr::First },
            checksum: if self.flags & SP_OFFLOAD_MERGED_PARTIAL != 0 { ChecksumForm::Partial } else { ChecksumForm::Full },
            ..Gso::new(kind, SegmentSize::new(usize::from(self.gso_size))?)
        })
    }

    /// What is known of a packet that leaves.
    #[inline(always)]
    pub(crate) fn new(checksum: RxChecksum, gso: Option<Gso>, hash: Option<FlowHash>, vlan: Option<VlanTag>) -> Self {
        let mut offload = sp_offload::default();
        match checksum {
            RxChecksum::None => {}
            RxChecksum::Unnecessary { level } => (offload.checksum, offload.checksum_level) = (SP_CHECKSUM_VERIFIED, level),
            RxChecksum::Complete(sum) => (offload.checksum, offload.checksum_sum) = (SP_CHECKSUM_SUM, sum),
            RxChecksum::Partial { start, offset } => {
                (offload.checksum, offload.checksum_start, offload.checksum_offset) = (SP_CHECKSUM_PARTIAL, start, offset);
            }
        }
        if let Some(gso) = gso {
            offload.gso_type = match gso.kind {
                GsoKind::Tcp4 => SP_GSO_TCP4,
                GsoKind::Tcp6 => SP_GSO_TCP6,
                GsoKind::Udp => SP_GSO_UDP,
                GsoKind::UdpFragments => SP_GSO_UDP_FRAGMENTS,
                GsoKind::Dccp => SP_GSO_DCCP,
                // A kind that this library does not name cannot be said.
                _ => SP_GSO_NONE,
            };
            offload.gso_size = gso.size.get() as u16;
            for (is, flag) in [
                (gso.id == IpId::Fixed, SP_OFFLOAD_FIXED_ID),
                (gso.outer_id == IpId::Fixed, SP_OFFLOAD_FIXED_OUTER_ID),
                (gso.cwr == Cwr::All, SP_OFFLOAD_CWR_ALL),
                (gso.checksum == ChecksumForm::Partial, SP_OFFLOAD_MERGED_PARTIAL),
            ] {
                offload.flags |= if is { flag } else { 0 };
            }
        }
        if let Some(FlowHash(hash)) = hash {
            offload.hash = hash;
            offload.flags |= SP_OFFLOAD_HASH;
        }
        if let Some(VlanTag { protocol, control }) = vlan {
            (offload.vlan_protocol, offload.vlan_control) = (protocol, control);
        }
        offload
    }
}

/// Where packets start, by its number.
pub(crate) fn layer(layer: u32) -> Result<Layer, Failure> {
    match layer {
        SP_LAYER_ETHERNET => Ok(Layer::Ethernet),
        SP_LAYER_IP => Ok(Layer::Ip),
        other => Err(Failure::Argument { what: "layer", got: u64::from(other) }),
    }
}

/// Checks a pointer and a length that are to become a slice.
#[inline(always)]
pub(crate) fn check_range(what: &'static str, base: *const c_void, length: usize) -> Result<(), Failure> {
    if length > SP_MAX_LENGTH || (base as usize).checked_add(length).is_none() {
        return Err(Failure::Length { what, got: length, limit: SP_MAX_LENGTH });
    }
    if base.is_null() && length != 0 {
        return Err(Failure::Null(what));
    }
    Ok(())
}

/// The bytes of a range that has been [checked](check_range).
///
/// # Safety
/// If `length` is not 0, `base` points to so many bytes that can be read, and that nobody writes
/// while the slice lives.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(base: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's; a checked length is below `isize::MAX` and does not wrap.
    unsafe { slice::from_raw_parts(base.cast(), length) }
}

/// A packet of the caller's that has been checked.
///
/// Invariant: made by [`Packet::check_all`] or [`Packet::check_one`] alone, from packets whose
/// pointers, as the functions of the C interface demand, are good for as long as the reference
/// lives.
#[repr(transparent)]
pub(crate) struct Packet(sp_packet);

impl Packet {
    /// Checks all that can be checked of a caller's packets, which have so many buffers at most.
    ///
    /// # Safety
    /// If `count` is not 0 and `packets` not NULL, `packets` points to so many packets; each points
    /// to as many bytes, and to as many further buffers, as it says, if its pointers are not NULL.
    /// Nobody writes any of these for as long as the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn check_all<'a>(packets: *const sp_packet, count: usize, buffers: usize) -> Result<&'a [Packet], Failure> {
        if count > SP_MAX_PACKETS || !fits(packets, count) {
            return Err(Failure::Length { what: "count", got: count, limit: SP_MAX_PACKETS });
        }
        if count == 0 {
            return Ok(&[]);
        }
        if packets.is_null() {
            return Err(Failure::Null("packets"));
        }
        if !packets.is_aligned() {
            return Err(Failure::Argument { what: "packets (their alignment)", got: packets as usize as u64 });
        }
        // SAFETY: the caller's; not NULL, aligned, and at most 64 MiB. `Packet` is transparent.
        let packets: &[Packet] = unsafe { slice::from_raw_parts(packets.cast(), count) };
        for packet in packets {
            if !packet.is_plain(packets[0].0.offload.checksum) {
                packet.check(buffers)?;
            }
        }
        Ok(packets)
    }

    /// As [`check_all`](Self::check_all), of one packet that is not to be aggregated.
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn check_one<'a>(packet: *const sp_packet) -> Result<&'a Packet, Failure> {
        // SAFETY: the caller's.
        match unsafe { Self::check_all(packet, 1, SP_MAX_RANGES) } {
            Ok([packet]) => Ok(packet),
            Ok(_) | Err(Failure::Null("packets")) => Err(Failure::Null("packet")),
            Err(failure) => Err(failure),
        }
    }

    /// Is it in one buffer that can be, and is nothing known of it but, if so, that a device has
    /// verified its checksum? In one expression without branches: this is asked of each packet.
    #[inline(always)]
    fn is_plain(&self, checksum: u8) -> bool {
        let sp_packet { data, length, rest, rest_count, reserved, ref offload, .. } = self.0;
        let (data, rest) = (data as usize, rest as usize);
        let place = (data != 0) & (data <= usize::MAX - SP_MAX_LENGTH) & (length <= SP_MAX_LENGTH);
        let alone = (rest == 0) & ((rest_count | reserved) == 0);
        let known = (offload.checksum == checksum) & (checksum <= SP_CHECKSUM_VERIFIED);
        let others = u32::from(offload.gso_type | offload.flags | offload.checksum_level)
            | u32::from(offload.vlan_protocol | offload.vlan_control | offload.gso_size)
            | offload.reserved;
        place & alone & known & (others == 0)
    }

    fn check(&self, buffers: usize) -> Result<(), Failure> {
        let sp_packet { data, length, rest, rest_count, reserved, .. } = self.0;
        check_range("packet.data", data, length)?;
        if rest_count != 0 || !rest.is_null() {
            self.check_rest(rest, rest_count as usize, buffers - 1)?;
        }
        if reserved != 0 {
            return Err(Failure::Argument { what: "packet.reserved", got: u64::from(reserved) });
        }
        self.0.offload.check()
    }

    #[cold]
    fn check_rest(&self, rest: *const sp_iovec, count: usize, limit: usize) -> Result<(), Failure> {
        if count > limit {
            return Err(Failure::Length { what: "packet.rest_count", got: count, limit });
        }
        if count != 0 && rest.is_null() {
            return Err(Failure::Null("packet.rest"));
        }
        if !rest.is_aligned() {
            return Err(Failure::Argument { what: "packet.rest (its alignment)", got: rest as usize as u64 });
        }
        let mut total = self.0.length;
        for buffer in self.rest() {
            check_range("packet.rest[].iov_base", buffer.iov_base, buffer.iov_len)?;
            total += buffer.iov_len;
        }
        if total > SP_MAX_LENGTH {
            return Err(Failure::Length { what: "the length of a packet", got: total, limit: SP_MAX_LENGTH });
        }
        Ok(())
    }

    /// The buffers behind the first.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &[sp_iovec] {
        match self.0.rest_count {
            0 => &[],
            // SAFETY: invariant of the type: so many buffers lie there. Not NULL, aligned and
            // no more than a limit, since `check_rest` has looked before anybody else.
            count => unsafe { slice::from_raw_parts(self.0.rest, count as usize) },
        }
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> &[u8] {
        // SAFETY: invariant of the type: the packet points to so many bytes, which live as long as
        // the reference does.
        unsafe { bytes(self.0.data, self.0.length) }
    }

    #[inline(always)]
    pub(crate) fn offload(&self) -> &sp_offload {
        &self.0.offload
    }

    #[inline(always)]
    pub(crate) fn token(&self) -> *mut c_void {
        self.0.token
    }

    #[inline(always)]
    pub(crate) fn count(&self) -> usize {
        1 + self.0.rest_count as usize
    }

    /// The bytes of a buffer; none of one that there is not.
    #[inline(always)]
    pub(crate) fn bytes_of(&self, index: usize) -> &[u8] {
        match index {
            0 => self.first(),
            // SAFETY: as in `first`, of a further buffer.
            _ => self.rest().get(index - 1).map_or(&[], |buffer| unsafe { bytes(buffer.iov_base, buffer.iov_len) }),
        }
    }

    /// The bytes of all buffers.
    #[inline(always)]
    pub(crate) fn length(&self) -> usize {
        self.0.length + self.rest().iter().map(|buffer| buffer.iov_len).sum::<usize>()
    }

    /// The first bytes: as many as headers may have, or all. They are copied to `gathered` if they
    /// lie in several buffers.
    pub(crate) fn header<'a>(&'a self, gathered: &'a mut [u8; MAX_HEADER]) -> &'a [u8] {
        let first = self.first();
        if first.len() >= MAX_HEADER || self.count() == 1 {
            return first;
        }
        let mut filled = 0;
        for index in 0..self.count() {
            let from = self.bytes_of(index);
            let room = &mut gathered[filled..];
            let length = from.len().min(room.len());
            room[..length].copy_from_slice(&from[..length]);
            filled += length;
        }
        &gathered[..filled]
    }

    /// The packet as the engine receives it.
    #[inline(always)]
    pub(crate) fn received_with<B>(&self, layer: Layer, first: B) -> RxPacket<B> {
        let offload = &self.0.offload;
        let mut packet = RxPacket::new(first);
        packet.layer = layer;
        packet.checksum = offload.rx_checksum();
        packet.gso = offload.gso();
        packet.hash = offload.flow_hash();
        packet.vlan = match offload.vlan_protocol {
            0 => None,
            protocol => Some(VlanTag { protocol, control: offload.vlan_control }),
        };
        packet
    }
}

/// Do so many values fit in the address space from there?
#[inline(always)]
pub(crate) fn fits<T>(base: *const T, count: usize) -> bool {
    match count.checked_mul(size_of::<T>()) {
        Some(length) => length <= isize::MAX as usize && (base as usize).checked_add(length).is_some(),
        None => false,
    }
}

impl BorrowPacket for Packet {
    #[inline(always)]
    fn received(&self, layer: Layer) -> RxPacket<()> {
        self.received_with(layer, ())
    }

    #[inline(always)]
    fn buffer_count(&self) -> usize {
        self.count()
    }

    #[inline(always)]
    fn buffer(&self, index: usize) -> &[u8] {
        self.bytes_of(index)
    }
}

/// A packet in one buffer, of which nothing is known but, if so, that a device has verified its
/// checksum.
///
/// Most batches are of such packets. Compiled apart, a packet is received by writing constants.
#[repr(transparent)]
pub(crate) struct PlainPacket<const VERIFIED: bool>(Packet);

impl<const VERIFIED: bool> BorrowPacket for PlainPacket<VERIFIED> {
    #[inline(always)]
    fn received(&self, layer: Layer) -> RxPacket<()> {
        let mut packet = RxPacket::new(());
        packet.layer = layer;
        if VERIFIED {
            packet.checksum = RxChecksum::Unnecessary { level: 0 };
        }
        packet
    }

    #[inline(always)]
    fn buffer(&self, _: usize) -> &[u8] {
        self.0.first()
    }
}

/// Packets as they are received fastest.
pub(crate) enum Packets<'a> {
    /// Nothing is known of any.
    Unknown(&'a [PlainPacket<false>]),
    /// Of each a device has verified one checksum.
    Verified(&'a [PlainPacket<true>]),
    /// All others.
    Any(&'a [Packet]),
}

impl<'a> Packets<'a> {
    #[inline(always)]
    pub(crate) fn of(packets: &'a [Packet]) -> Self {
        let plain = |checksum: u8| packets.iter().all(|packet| packet.is_plain(checksum));
        let (first, count) = (packets.as_ptr(), packets.len());
        match packets.first().map(|packet| packet.0.offload.checksum) {
            Some(SP_CHECKSUM_NONE) if plain(SP_CHECKSUM_NONE) => {
                // SAFETY: the same packets, in a type that is transparent and has the same invariant.
                Packets::Unknown(unsafe { slice::from_raw_parts(first.cast(), count) })
            }
            Some(SP_CHECKSUM_VERIFIED) if plain(SP_CHECKSUM_VERIFIED) => {
                // SAFETY: as above.
                Packets::Verified(unsafe { slice::from_raw_parts(first.cast(), count) })
            }
            _ => Packets::Any(packets),
        }
    }
}

/// A packet to be cut, which starts there.
pub(crate) struct ToCut<'a> {
    pub(crate) packet: &'a Packet,
    pub(crate) layer: Layer,
}

impl Segmentable for ToCut<'_> {
    #[inline(always)]
    fn layer(&self) -> Layer {
        self.layer
    }

    #[inline(always)]
    fn gso(&self) -> Option<Gso> {
        self.packet.offload().gso()
    }

    #[inline(always)]
    fn checksum(&self) -> RxChecksum {
        self.packet.offload().rx_checksum()
    }

    #[inline(always)]
    fn header(&self) -> &[u8] {
        &[]
    }

    #[inline(always)]
    fn ranges(&self) -> usize {
        self.packet.count()
    }

    #[inline(always)]
    fn range_length(&self, index: usize) -> usize {
        self.range(index).len()
    }

    #[inline(always)]
    fn range(&self, index: usize) -> &[u8] {
        self.packet.bytes_of(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn sizes_are_those_of_the_header() {
        assert_eq!((size_of::<sp_offload>(), size_of::<sp_packet>(), size_of::<sp_iovec>()), (24, 40 + 24, 16));
    }

    #[test]
    fn what_is_known_comes_back() {
        let gso = Gso {
            id: IpId::Fixed,
            cwr: Cwr::All,
            checksum: ChecksumForm::Partial,
            ..Gso::new(GsoKind::Tcp6, SegmentSize::new(1000).expect("not zero"))
        };
        let vlan = Some(VlanTag { protocol: 0x8100, control: 7 });
        for checksum in [
            RxChecksum::None,
            RxChecksum::Unnecessary { level: 1 },
            RxChecksum::Complete(77),
            RxChecksum::Partial { start: 34, offset: 16 },
        ] {
            let offload = sp_offload::new(checksum, Some(gso), Some(FlowHash(9)), vlan);
            assert_eq!(offload.check(), Ok(()));
            assert_eq!((offload.rx_checksum(), offload.gso(), offload.flow_hash()), (checksum, Some(gso), Some(FlowHash(9))));
            assert_eq!((offload.vlan_protocol, offload.vlan_control), (0x8100, 7));
        }
    }
}
