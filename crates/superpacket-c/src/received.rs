//! Conversion of the caller's packets to the type with which the engine receives packets.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::slice;

use superpacket::aggregate::BorrowPacket;
use superpacket::{Layer, RxChecksum, RxPacket, VlanTag};

use crate::packet::{CheckedPacket, CommonState};

impl CheckedPacket {
    /// Returns the caller's packet as an [`RxPacket`], whose first buffer is `first`.
    #[inline(always)]
    pub(crate) fn received_with<B>(&self, layer: Layer, first: B) -> RxPacket<B> {
        let offload = self.offload();
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

/// A packet of the caller, with its token.
pub(crate) trait TokenPacket: BorrowPacket {
    fn token(&self) -> *mut c_void;
}

impl TokenPacket for CheckedPacket {
    #[inline(always)]
    fn token(&self) -> *mut c_void {
        CheckedPacket::token(self)
    }
}

impl BorrowPacket for CheckedPacket {
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

/// A packet that lies in one buffer and has no metadata, except that a device has verified its
/// checksum if `VERIFIED` is true.
///
/// Most batches consist of such packets. With code of its own, receiving one only writes constants.
#[repr(transparent)]
pub(crate) struct PlainPacket<const VERIFIED: bool>(CheckedPacket);

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

impl<const VERIFIED: bool> TokenPacket for PlainPacket<VERIFIED> {
    #[inline(always)]
    fn token(&self) -> *mut c_void {
        self.0.token()
    }
}

/// The packets of a call, grouped by the fastest way to receive them.
pub(crate) enum ReceivedPackets<'a> {
    /// The checksum state of all packets is unknown, and each has one buffer.
    Unknown(&'a [PlainPacket<false>]),
    /// A device has verified one checksum of each packet, and each has one buffer.
    Verified(&'a [PlainPacket<true>]),
    /// The packets differ in their checksum state, or some have several buffers or other metadata.
    Any(&'a [CheckedPacket]),
}

impl<'a> ReceivedPackets<'a> {
    #[inline(always)]
    pub(crate) fn of(packets: &'a [CheckedPacket], plain: CommonState) -> Self {
        let (first, count) = (packets.as_ptr(), packets.len());
        match plain {
            CommonState::Unknown => {
                // SAFETY: the same packets, in a transparent type that has the same invariant.
                ReceivedPackets::Unknown(unsafe { slice::from_raw_parts(first.cast(), count) })
            }
            CommonState::Verified => {
                // SAFETY: as above.
                ReceivedPackets::Verified(unsafe { slice::from_raw_parts(first.cast(), count) })
            }
            CommonState::Not => ReceivedPackets::Any(packets),
        }
    }
}
