//! The metadata of a packet as a C structure, and its conversion to and from the engine's types.

use superpacket::segment::{ChecksumForm, Cwr, IpId};
use superpacket::{FlowHash, Gso, GsoKind, RxChecksum, SegmentSize, VlanTag};

use crate::status::Failure;

/// The state of the checksums is unknown. They are verified in software where needed.
pub const SP_CHECKSUM_NONE: u8 = 0;
/// The device verified checksum_level + 1 transport checksums, from the outermost on. UDP checksums
/// of 0 are not counted.
pub const SP_CHECKSUM_VERIFIED: u8 = 1;
/// checksum_sum is the one's-complement sum of all bytes behind the 14 bytes of the Ethernet header
/// (of all bytes, if the packet starts at IP), in host byte order.
pub const SP_CHECKSUM_SUM: u8 = 2;
/// The checksum field holds the sum of the pseudo-header, not inverted, and must be completed.
/// checksum_start is where the sum starts, in bytes from the start of the packet. checksum_offset
/// is the position of the checksum field, in bytes from checksum_start.
pub const SP_CHECKSUM_PARTIAL: u8 = 3;

/// The packet is no super-packet.
pub const SP_GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const SP_GSO_TCP4: u8 = 1;
/// TCP over IPv6.
pub const SP_GSO_TCP6: u8 = 2;
/// UDP datagrams of equal size; the last one may be shorter (USO).
pub const SP_GSO_UDP: u8 = 3;
/// One UDP datagram, to be split into IP fragments (UFO).
pub const SP_GSO_UDP_FRAGMENTS: u8 = 4;
/// DCCP data packets.
pub const SP_GSO_DCCP: u8 = 5;

/// The field hash contains a flow hash from the device.
pub const SP_OFFLOAD_HASH: u8 = 1;
/// All segments have the super-packet's IPv4 identification. Without this flag, the identification
/// increments by one with each segment.
pub const SP_OFFLOAD_FIXED_ID: u8 = 2;
/// All segments have the super-packet's identification in the outer IPv4 header of a tunnel; in the
/// outermost one, if there are two tunnels.
pub const SP_OFFLOAD_FIXED_OUTER_ID: u8 = 4;
/// All segments have CWR if the super-packet has it. Without this flag, only the first segment has
/// it.
pub const SP_OFFLOAD_CWR_ALL: u8 = 8;
/// The merged packets had partial checksums.
pub const SP_OFFLOAD_MERGED_PARTIAL: u8 = 16;
/// All segments have the super-packet's identification in the IPv4 header of the second of two
/// tunnels.
pub const SP_OFFLOAD_FIXED_NESTED_ID: u8 = 32;

const FLAGS: u8 = SP_OFFLOAD_HASH
    | SP_OFFLOAD_FIXED_ID
    | SP_OFFLOAD_FIXED_OUTER_ID
    | SP_OFFLOAD_CWR_ALL
    | SP_OFFLOAD_MERGED_PARTIAL
    | SP_OFFLOAD_FIXED_NESTED_ID;

/// The metadata of a packet. If all fields are zero, nothing is known.
///
/// The library accepts what it writes: the metadata of an output is valid for the packet made of
/// that output.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct sp_offload {
    /// State of the checksums: SP_CHECKSUM_NONE or another SP_CHECKSUM constant.
    pub checksum: u8,
    /// With SP_CHECKSUM_VERIFIED: number of verified checksums, minus one.
    pub checksum_level: u8,
    /// With SP_CHECKSUM_PARTIAL: where the sum starts, in bytes from the start of the packet.
    pub checksum_start: u16,
    /// With SP_CHECKSUM_PARTIAL: position of the checksum field, in bytes from checksum_start.
    pub checksum_offset: u16,
    /// With SP_CHECKSUM_SUM: the sum that the comment of this constant describes.
    pub checksum_sum: u16,
    /// How to segment the packet: SP_GSO_NONE or another SP_GSO constant.
    pub gso_type: u8,
    /// SP_OFFLOAD_HASH and the other SP_OFFLOAD flags.
    pub flags: u8,
    /// Payload bytes per segment, except the last; at least 1, unless gso_type is SP_GSO_NONE.
    pub gso_size: u16,
    /// The flow hash, with SP_OFFLOAD_HASH.
    pub hash: u32,
    /// Protocol of a VLAN tag that the device stripped from the frame, 0x8100 or 0x88a8; 0: none.
    pub vlan_protocol: u16,
    /// Priority, drop eligibility and VLAN ID of the stripped tag; see vlan_protocol.
    pub vlan_control: u16,
    /// Must be 0.
    pub reserved: u32,
}

impl sp_offload {
    /// Mask of the fields that [`has_only`](Self::has_only) compares. Fields whose use depends on
    /// other fields, such as the hash and the fields of a partial checksum, are left out.
    const METADATA_MASK: Self = sp_offload {
        checksum: u8::MAX,
        checksum_level: u8::MAX,
        checksum_start: 0,
        checksum_offset: 0,
        checksum_sum: 0,
        gso_type: u8::MAX,
        flags: u8::MAX,
        gso_size: u16::MAX,
        hash: 0,
        vlan_protocol: u16::MAX,
        vlan_control: u16::MAX,
        reserved: u32::MAX,
    };

    /// Returns whether the checksum state is `checksum` and all other metadata is absent. Fields
    /// that are not in [`METADATA_MASK`](Self::METADATA_MASK) are ignored.
    #[inline(always)]
    pub(crate) fn has_only(&self, checksum: u8) -> bool {
        let ([a, b, c], [d, e, f]) = (self.words(), Self::METADATA_MASK.words());
        let [form, ..] = sp_offload { checksum, ..Self::default() }.words();
        ((a & d) ^ form) | (b & e) | (c & f) == 0
    }

    /// Returns all fields as three 64-bit words, so that they are loaded with three instructions
    /// instead of twelve.
    #[inline(always)]
    #[expect(unsafe_code, reason = "reads adjacent integers as larger ones")]
    const fn words(self) -> [u64; 3] {
        // SAFETY: integers without padding between them, of the same total size.
        unsafe { std::mem::transmute(self) }
    }

    /// Checks that every value is one of the named constants.
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
            Self { checksum, .. } if checksum > SP_CHECKSUM_PARTIAL => {
                ("offload.checksum", u64::from(checksum))
            }
            Self { gso_type, .. } if gso_type > SP_GSO_DCCP => {
                ("offload.gso_type", u64::from(gso_type))
            }
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
            SP_CHECKSUM_PARTIAL => {
                RxChecksum::Partial { start: self.checksum_start, offset: self.checksum_offset }
            }
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
        Some(
            Gso::new(kind, SegmentSize::new(usize::from(self.gso_size))?)
                .with_id(id(SP_OFFLOAD_FIXED_ID))
                .with_outer_id(id(SP_OFFLOAD_FIXED_OUTER_ID))
                .with_nested_id(id(SP_OFFLOAD_FIXED_NESTED_ID))
                .with_cwr(if self.flags & SP_OFFLOAD_CWR_ALL != 0 { Cwr::All } else { Cwr::First })
                .with_checksum(if self.flags & SP_OFFLOAD_MERGED_PARTIAL != 0 {
                    ChecksumForm::Partial
                } else {
                    ChecksumForm::Full
                }),
        )
    }

    /// Returns the metadata of a packet that the engine puts out.
    #[inline(always)]
    pub(crate) fn new(
        checksum: RxChecksum,
        gso: Option<Gso>,
        hash: Option<FlowHash>,
        vlan: Option<VlanTag>,
    ) -> Self {
        let mut offload = sp_offload::default();
        match checksum {
            RxChecksum::None => {}
            RxChecksum::Unnecessary { level } => {
                (offload.checksum, offload.checksum_level) = (SP_CHECKSUM_VERIFIED, level)
            }
            RxChecksum::Complete(sum) => {
                (offload.checksum, offload.checksum_sum) = (SP_CHECKSUM_SUM, sum)
            }
            RxChecksum::Partial { start, offset } => {
                (offload.checksum, offload.checksum_start, offload.checksum_offset) =
                    (SP_CHECKSUM_PARTIAL, start, offset);
            }
        }
        if let Some(gso) = gso {
            offload.gso_type = match gso.kind {
                GsoKind::Tcp4 => SP_GSO_TCP4,
                GsoKind::Tcp6 => SP_GSO_TCP6,
                GsoKind::Udp => SP_GSO_UDP,
                GsoKind::UdpFragments => SP_GSO_UDP_FRAGMENTS,
                GsoKind::Dccp => SP_GSO_DCCP,
                // This library has no constant for newer kinds.
                _ => SP_GSO_NONE,
            };
            offload.gso_size = gso.size.get() as u16;
            for (is, flag) in [
                (gso.id == IpId::Fixed, SP_OFFLOAD_FIXED_ID),
                (gso.outer_id == IpId::Fixed, SP_OFFLOAD_FIXED_OUTER_ID),
                (gso.nested_id == IpId::Fixed, SP_OFFLOAD_FIXED_NESTED_ID),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_offload_says_nothing_but_the_form_of_its_checksum_and_a_hash() {
        let partial = sp_offload {
            checksum_start: 1,
            checksum_offset: 2,
            checksum_sum: 3,
            hash: 4,
            ..sp_offload::default()
        };
        for checksum in [SP_CHECKSUM_NONE, SP_CHECKSUM_VERIFIED] {
            let plain = sp_offload { checksum, ..partial };
            assert!(plain.has_only(checksum) && !plain.has_only(checksum ^ 1));
            let others = [
                sp_offload { checksum_level: 1, ..plain },
                sp_offload { gso_type: SP_GSO_TCP4, ..plain },
                sp_offload { flags: 1, ..plain },
                sp_offload { gso_size: 0x100, ..plain },
                sp_offload { vlan_protocol: 0x8100, ..plain },
                sp_offload { vlan_control: 1, ..plain },
                sp_offload { reserved: 1 << 31, ..plain },
            ];
            for other in others {
                assert!(!other.has_only(checksum), "{other:?}");
            }
        }
    }

    #[test]
    fn what_is_known_comes_back() {
        let gso = Gso::new(GsoKind::Tcp6, SegmentSize::new(1000).expect("not zero"))
            .with_id(IpId::Fixed)
            .with_cwr(Cwr::All)
            .with_checksum(ChecksumForm::Partial);
        let vlan = Some(VlanTag { protocol: 0x8100, control: 7 });
        for checksum in [
            RxChecksum::None,
            RxChecksum::Unnecessary { level: 1 },
            RxChecksum::Complete(77),
            RxChecksum::Partial { start: 34, offset: 16 },
        ] {
            let offload = sp_offload::new(checksum, Some(gso), Some(FlowHash(9)), vlan);
            assert_eq!(offload.check(), Ok(()));
            assert_eq!(
                (offload.rx_checksum(), offload.gso(), offload.flow_hash()),
                (checksum, Some(gso), Some(FlowHash(9)))
            );
            assert_eq!((offload.vlan_protocol, offload.vlan_control), (0x8100, 7));
        }
    }
}
