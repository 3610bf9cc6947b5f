//! Packets as the engine receives them.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::slice;

use superpacket::aggregate::BorrowPacket;
use superpacket::{Layer, RxChecksum, RxPacket, VlanTag};

use crate::packet::{Packet, Plain};

impl Packet {
    /// The packet as the engine receives it.
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

/// A packet of the caller's, with his token.
pub(crate) trait Given: BorrowPacket {
    fn token(&self) -> *mut c_void;
}

impl Given for Packet {
    #[inline(always)]
    fn token(&self) -> *mut c_void {
        Packet::token(self)
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

impl<const VERIFIED: bool> Given for PlainPacket<VERIFIED> {
    #[inline(always)]
    fn token(&self) -> *mut c_void {
        self.0.token()
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
    pub(crate) fn of(packets: &'a [Packet], plain: Plain) -> Self {
        let (first, count) = (packets.as_ptr(), packets.len());
        match plain {
            Plain::Unknown => {
                // SAFETY: the same packets, in a transparent type that has the same invariant.
                Packets::Unknown(unsafe { slice::from_raw_parts(first.cast(), count) })
            }
            Plain::Verified => {
                // SAFETY: as above.
                Packets::Verified(unsafe { slice::from_raw_parts(first.cast(), count) })
            }
            Plain::Not => Packets::Any(packets),
        }
    }
}
