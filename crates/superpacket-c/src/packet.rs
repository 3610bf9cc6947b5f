//! Packets from C programs: pointers and lengths, which are checked once.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::slice;

use superpacket::Layer;
use superpacket::wire::MAX_HEADER;

use crate::memory::{
    SP_MAX_LENGTH, bytes, check_range, fits, impossible_array, misaligned, sp_iovec,
};
use crate::offload::{SP_CHECKSUM_NONE, SP_CHECKSUM_VERIFIED, sp_offload};
use crate::status::Failure;

/// Maximum number of buffers of a packet that is to be aggregated, the first included.
pub const SP_MAX_BUFFERS: usize = 17;
/// Maximum number of buffers of any other packet, such as a merged packet that is to be segmented,
/// the first included.
pub const SP_MAX_RANGES: usize = 1024;
/// Maximum packets per call.
pub const SP_MAX_PACKETS: usize = 1 << 20;
/// Maximum header memory per output in bytes: the headers of a packet, and a virtio_net_hdr.
pub const SP_MAX_HEADER: usize = 320;

const _: () = assert!(SP_MAX_BUFFERS == superpacket::packet::MAX_BUFFERS);

/// Packets start at the Ethernet header.
pub const SP_LAYER_ETHERNET: u32 = 0;
/// Packets start at the IP header, as with TUN devices.
pub const SP_LAYER_IP: u32 = 1;

/// A packet in the caller's buffers: a received packet, or a super-packet to be segmented.
///
/// The library reads its bytes during the call, and never writes to them. The layout of this
/// structure does not change while the library keeps its soname.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_packet {
    /// The first buffer of the packet.
    pub data: *const c_void,
    /// Length of the first buffer in bytes; at most SP_MAX_LENGTH.
    pub length: usize,
    /// The buffers of the packet after the first one; NULL if there are none.
    pub rest: *const sp_iovec,
    /// Number of buffers in rest: at most SP_MAX_BUFFERS - 1 for a packet that is to be aggregated,
    /// and SP_MAX_RANGES - 1 for any other.
    pub rest_count: u32,
    /// Must be 0.
    pub reserved: u32,
    /// A value of the caller, which is returned with each range of the packet. The library does not
    /// dereference it.
    pub token: *mut c_void,
    /// The packet's metadata.
    pub offload: sp_offload,
}

/// Returns the layer at which packets start, given as an SP_LAYER constant.
pub(crate) fn layer(layer: u32) -> Result<Layer, Failure> {
    match layer {
        SP_LAYER_ETHERNET => Ok(Layer::Ethernet),
        SP_LAYER_IP => Ok(Layer::Ip),
        other => Err(Failure::Argument { what: "layer", got: u64::from(other) }),
    }
}

/// Checks the total length of a packet whose buffers have the given lengths.
///
/// The sum saturates: 1,024 buffers of 16 MiB exceed 32 bits.
fn check_total(lengths: impl Iterator<Item = usize>) -> Result<(), Failure> {
    let total = lengths.fold(0, usize::saturating_add);
    match total > SP_MAX_LENGTH {
        true => Err(Failure::Length {
            what: "the length of a packet",
            got: total,
            limit: SP_MAX_LENGTH,
        }),
        false => Ok(()),
    }
}

/// Whether all packets of a call have one buffer each and the same checksum state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommonState {
    /// All packets have one buffer each, and the checksum state of all is unknown.
    Unknown,
    /// All packets have one buffer each, and a device has verified one checksum of each.
    Verified,
    /// The packets differ in their checksum state, or some have several buffers or other metadata.
    Not,
}

/// A packet of the caller that has been checked.
///
/// Invariant: made only by [`CheckedPacket::check_all`] or [`CheckedPacket::check_one`], from
/// packets whose pointers are valid while the reference lives, as the functions of the C interface
/// demand.
#[repr(transparent)]
pub(crate) struct CheckedPacket(sp_packet);

impl CheckedPacket {
    /// Checks everything that can be checked of a caller's packets, each of which may have at most
    /// `buffers` buffers.
    ///
    /// # Safety
    /// If `count` is not 0 and `packets` not NULL, `packets` points to as many packets. Each points
    /// to as many bytes, and to as many further buffers, as it says, if its pointers are not NULL.
    /// None of these are written to while the slice lives.
    #[inline(always)]
    pub(crate) unsafe fn check_all<'a>(
        packets: *const sp_packet,
        count: usize,
        buffers: usize,
    ) -> Result<(&'a [CheckedPacket], CommonState), Failure> {
        if count > SP_MAX_PACKETS {
            return Err(Failure::Length { what: "count", got: count, limit: SP_MAX_PACKETS });
        }
        if !fits(packets, count) {
            return Err(impossible_array("packets", packets, count));
        }
        if count == 0 {
            return Ok((&[], CommonState::Not));
        }
        if packets.is_null() {
            return Err(Failure::Null("packets"));
        }
        if !packets.is_aligned() {
            return Err(misaligned("packets", packets));
        }
        // SAFETY: as the caller promises; not NULL, aligned, and at most 64 MiB. `CheckedPacket` is
        // transparent.
        let packets: &[CheckedPacket] = unsafe { slice::from_raw_parts(packets.cast(), count) };
        let checksum = packets[0].0.offload.checksum;
        let mut plain = match checksum {
            SP_CHECKSUM_NONE => CommonState::Unknown,
            SP_CHECKSUM_VERIFIED => CommonState::Verified,
            _ => CommonState::Not,
        };
        for packet in packets {
            if !packet.is_plain(checksum) {
                packet.check(buffers)?;
                plain = CommonState::Not;
            }
        }
        Ok((packets, plain))
    }

    /// Checks everything that can be checked of one packet that is not to be aggregated, as
    /// [`check_all`](Self::check_all) does for several packets.
    ///
    /// # Safety
    /// As for [`check_all`](Self::check_all).
    pub(crate) unsafe fn check_one<'a>(
        packet: *const sp_packet,
    ) -> Result<&'a CheckedPacket, Failure> {
        // SAFETY: as the caller promises.
        match unsafe { Self::check_all(packet, 1, SP_MAX_RANGES) } {
            Ok(([packet], _)) => Ok(packet),
            Ok(_) | Err(Failure::Null("packets")) => Err(Failure::Null("packet")),
            Err(failure) => Err(failure),
        }
    }

    /// Returns whether the packet has one valid buffer, and no metadata except the checksum state
    /// `checksum`. It is an expression without branches, since it runs for each packet.
    #[inline(always)]
    fn is_plain(&self, checksum: u8) -> bool {
        let sp_packet { data, length, rest, rest_count, reserved, ref offload, .. } = self.0;
        // Not NULL, and at least the maximum length of a packet before the end of the address
        // space.
        let place = ((data as usize).wrapping_sub(1) < usize::MAX - SP_MAX_LENGTH)
            & (length <= SP_MAX_LENGTH);
        let alone = (rest as usize | rest_count as usize | reserved as usize) == 0;
        place & alone & (checksum <= SP_CHECKSUM_VERIFIED) & offload.has_only(checksum)
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
            return Err(misaligned("packet.rest", rest));
        }
        for buffer in self.rest() {
            check_range("packet.rest[]", buffer.iov_base, buffer.iov_len)?;
        }
        check_total(self.rest().iter().map(|buffer| buffer.iov_len).chain([self.0.length]))
    }

    /// Returns the buffers behind the first one.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &[sp_iovec] {
        match self.0.rest_count {
            0 => &[],
            // SAFETY: invariant of the type: there are this many buffers. `check_rest` ran before,
            // so the pointer is not NULL and aligned, and the count is at most the limit.
            count => unsafe { slice::from_raw_parts(self.0.rest, count as usize) },
        }
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> &[u8] {
        // SAFETY: invariant of the type: the packet points to this many bytes, which live as long
        // as the reference.
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

    /// Returns the bytes of a buffer; none if there is no such buffer.
    #[inline(always)]
    pub(crate) fn bytes_of(&self, index: usize) -> &[u8] {
        match index {
            0 => self.first(),
            // SAFETY: as in `first`, for another buffer.
            _ => self
                .rest()
                .get(index - 1)
                .map_or(&[], |buffer| unsafe { bytes(buffer.iov_base, buffer.iov_len) }),
        }
    }

    /// Returns the length of all buffers together, in bytes.
    #[inline(always)]
    pub(crate) fn length(&self) -> usize {
        self.0.length + self.rest().iter().map(|buffer| buffer.iov_len).sum::<usize>()
    }

    /// Returns the first bytes of the packet: the maximum length of headers, or all. They are
    /// copied to `gathered` if they lie in several buffers.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn sizes_are_those_of_the_header() {
        assert_eq!(
            (size_of::<sp_offload>(), size_of::<sp_packet>(), size_of::<sp_iovec>()),
            (24, 40 + 24, 16)
        );
    }

    #[test]
    fn lengths_that_wrap_in_their_sum_are_too_long() {
        let refused = |total| {
            Err(Failure::Length {
                what: "the length of a packet",
                got: total,
                limit: SP_MAX_LENGTH,
            })
        };
        assert_eq!(check_total([SP_MAX_LENGTH - 7, 7].into_iter()), Ok(()));
        assert_eq!(check_total([SP_MAX_LENGTH - 7, 8].into_iter()), refused(SP_MAX_LENGTH + 1));
        assert_eq!(check_total([usize::MAX - 7, 8 + 100].into_iter()), refused(usize::MAX));
        assert_eq!(check_total([usize::MAX / 2 + 1; 3].into_iter()), refused(usize::MAX));
    }
}
