//! Verifies, completes and computes checksums; copies bytes while summing them.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::slice;

use superpacket::Simd;
use superpacket::checksum::{Sum, complete_partial, ipv4_header, pseudo_header, sum_ranges};
use superpacket::wire::{
    IpVersion, MAX_HEADER, Protocol, Refusal, checksum_addresses, dccp, ipv4, parse, udp,
};
use superpacket::{RxChecksum, SegmentError};

use crate::memory::{bytes, check_range, place};
use crate::packet::{CheckedPacket, layer, sp_packet};
use crate::status::sp_status::{self, SP_NONE, SP_OK};
use crate::status::{Failure, guard};

/// Verifies the checksums of a packet: IPv4 header checksums, and those of TCP, UDP or DCCP and of
/// a tunnel around it. All bytes of the packet are read.
///
/// \param packet the packet; must not change during the call. Of its offload, only
/// SP_CHECKSUM_PARTIAL is used.
/// \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
/// \return SP_OK if all are correct; SP_NONE if the IPv4 header checksums are correct and there is
/// no transport checksum to verify: a UDP datagram without one, or a partial one;
/// SP_ERROR_CHECKSUM; SP_ERROR_IP_CHECKSUM; SP_ERROR_HEADERS if it is not TCP, UDP or DCCP over IP,
/// or is a fragment; SP_ERROR_TRUNCATED; SP_ERROR_INNER_LENGTH; SP_ERROR_NULL, SP_ERROR_LENGTH,
/// SP_ERROR_ARGUMENT.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_checksum_verify(packet: *const sp_packet, layer: u32) -> sp_status {
    guard(|| {
        let layer = self::layer(layer)?;
        // SAFETY: the caller's packet, unchanged during the call.
        let packet = unsafe { CheckedPacket::check_one(packet) }?;
        let mut gathered = [0; MAX_HEADER];
        let (header, length) = (packet.header(&mut gathered), packet.length());
        let layout =
            parse(header, length, layer).map_err(|unparsed| Failure::Headers(unparsed.reason))?;
        let end = layout.end as usize;
        if end > length {
            return Err(SegmentError::Truncated { needed: end, got: length }.into());
        }
        let at = |offset: usize| header.get(offset..).unwrap_or(&[]);
        for level in layout.levels() {
            verify_ip_header(header, level.network, level.transport, level.version)?;
        }
        if let RxChecksum::Partial { .. } = packet.offload().rx_checksum() {
            return Ok(SP_NONE);
        }
        let sum = |start: usize, end: usize| sum_ranges(Simd::detect(), ranges(packet, start, end));
        let known = |network: u16, version| match checksum_addresses(at(network.into()), version) {
            Some(_) => Ok(()),
            None => Err(Failure::Headers(Refusal::FinalDestination)),
        };
        for outer in layout.outers().filter(|outer| outer.checksum(header).is_some()) {
            if outer.tunnel.is_udp() {
                known(outer.network, outer.version)?;
            }
            let start = usize::from(outer.transport);
            let pseudo = match outer.tunnel.is_udp() {
                true => pseudo_header(
                    at(outer.network.into()),
                    outer.version,
                    Protocol::Udp.number(),
                    (end - start) as u32,
                ),
                false => Sum::default(),
            };
            if !pseudo.add(sum(start, end)).is_valid() {
                return Err(Failure::Checksum);
            }
        }
        let transport = usize::from(layout.transport);
        let available = end - transport;
        let Some((counted, covered)) = transport_lengths(at(transport), layout.protocol, available)
        else {
            return Ok(SP_NONE);
        };
        if covered > available {
            return Err(SegmentError::Length { needed: available, got: covered }.into());
        }
        known(layout.network, layout.version)?;
        let pseudo = pseudo_header(
            at(layout.network.into()),
            layout.version,
            layout.protocol.number(),
            counted as u32,
        );
        if pseudo.add(sum(transport, transport + covered)).is_valid() {
            Ok(SP_OK)
        } else {
            Err(Failure::Checksum)
        }
    })
}

/// Verifies the checksum of an IPv4 header, which lies from `start` to `end` in `header`.
fn verify_ip_header(
    header: &[u8],
    start: u16,
    end: u16,
    version: IpVersion,
) -> Result<(), Failure> {
    if version == IpVersion::V6 {
        return Ok(());
    }
    let header = header.get(usize::from(start)..usize::from(end)).unwrap_or(&[]);
    let length = header.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    let header = header.get(..length).unwrap_or(header);
    let field = header
        .get(ipv4::CHECKSUM..)
        .and_then(|bytes| bytes.first_chunk())
        .map(|bytes| u16::from_be_bytes(*bytes));
    if field == Some(ipv4_header(header)) { Ok(()) } else { Err(Failure::IpChecksum) }
}

/// Returns the length in the pseudo-header and the length of the summed bytes; `None` for a UDP
/// datagram without a checksum.
///
/// `transport` begins with the transport header, and `available` bytes are there in all.
fn transport_lengths(
    transport: &[u8],
    protocol: Protocol,
    available: usize,
) -> Option<(usize, usize)> {
    let byte = |offset: usize| transport.get(offset).copied().map_or(0, usize::from);
    let be16 = |offset: usize| byte(offset) << 8 | byte(offset + 1);
    match protocol {
        Protocol::Udp if be16(udp::CHECKSUM) == 0 => None,
        Protocol::Udp => match be16(udp::LENGTH) {
            0 => Some((available, available)),
            length => Some((length, length)),
        },
        Protocol::Dccp => match byte(dccp::COVERAGE) & 0x0f {
            0 => Some((available, available)),
            words => Some((available, byte(dccp::DATA_OFFSET) * 4 + (words - 1) * 4)),
        },
        Protocol::Tcp => Some((available, available)),
    }
}

/// Returns the bytes of a packet from the offset `start` to the offset `end`, as slices of its
/// buffers.
fn ranges(packet: &CheckedPacket, start: usize, end: usize) -> impl Iterator<Item = &[u8]> {
    let mut before = 0;
    (0..packet.count()).map(move |index| {
        let bytes = packet.bytes_of(index);
        let range = start.saturating_sub(before).min(bytes.len())
            ..end.saturating_sub(before).min(bytes.len());
        before += bytes.len();
        bytes.get(range).unwrap_or(&[])
    })
}

/// Completes a partial checksum of TCP, UDP, DCCP or SCTP in place.
///
/// \param packet the whole packet, in one buffer of the caller; the checksum field is written.
/// \param length length of the packet in bytes.
/// \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
/// \param start where the sum starts, in bytes from the start of the packet: csum_start of a
/// virtio_net_hdr.
/// \param offset position of the checksum field, in bytes from start: csum_offset.
/// \return SP_OK; SP_ERROR_CHECKSUM_PLACE if the field lies outside the bytes that it covers;
/// SP_ERROR_PARTIAL_CHECKSUM if it cannot be completed, with the reason in sp_message;
/// SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error the packet is unchanged.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_checksum_complete(
    packet: *mut c_void,
    length: usize,
    layer: u32,
    start: u16,
    offset: u16,
) -> sp_status {
    guard(|| {
        let layer = self::layer(layer)?;
        check_range("packet", packet, length)?;
        let packet = match length {
            0 => &mut [],
            // SAFETY: the caller's packet, not used elsewhere during the call; not NULL, and the
            // length has been checked.
            _ => unsafe { slice::from_raw_parts_mut(packet.cast(), length) },
        };
        complete_partial(packet, layer, start, offset, Simd::detect())?;
        Ok(SP_OK)
    })
}

/// Computes the one's-complement sum of bytes (RFC 1071). A checksum field holds its complement.
///
/// \param bytes the bytes; NULL if length is 0. Must not change during the call.
/// \param length number of bytes; at most SP_MAX_LENGTH.
/// \param sum receives the sum in host byte order, as if each pair of bytes were a big-endian
/// number.
/// \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_checksum_sum(
    bytes: *const c_void,
    length: usize,
    sum: *mut u16,
) -> sp_status {
    guard(|| {
        check_range("bytes", bytes, length)?;
        // SAFETY: the caller's memory for a number.
        let place = unsafe { place("sum", sum) }?;
        // SAFETY: the caller's bytes; the length has been checked.
        place.write(Simd::detect().sum(unsafe { self::bytes(bytes, length) }));
        Ok(SP_OK)
    })
}

/// Copies bytes and sums them in the same pass.
///
/// \param to the destination; must not overlap `from`.
/// \param from the source; must not change during the call.
/// \param length number of bytes; at most SP_MAX_LENGTH.
/// \param sum receives the sum, as with sp_checksum_sum.
/// \return SP_OK; SP_ERROR_NULL, SP_ERROR_LENGTH; SP_ERROR_ARGUMENT also if the ranges overlap. On
/// an error nothing is written.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_checksum_copy(
    to: *mut c_void,
    from: *const c_void,
    length: usize,
    sum: *mut u16,
) -> sp_status {
    guard(|| {
        check_range("to", to, length)?;
        check_range("from", from, length)?;
        if (to as usize) < from as usize + length && (from as usize) < to as usize + length {
            let (first_address, second_address) = (to as usize, from as usize);
            return Err(Failure::Overlap {
                first: "to",
                first_address,
                second: "from",
                second_address,
                length,
            });
        }
        // SAFETY: the caller's memory for a number.
        let place = unsafe { place("sum", sum) }?;
        // SAFETY: the caller's bytes; the length has been checked.
        let from = unsafe { bytes(from, length) };
        let to = match length {
            0 => &mut [],
            // SAFETY: the caller's memory, not used elsewhere during the call, without overlap with
            // `from`; not NULL, and the length has been checked.
            _ => unsafe { slice::from_raw_parts_mut(to.cast(), length) },
        };
        place.write(Simd::detect().copy_and_sum(from, to));
        Ok(SP_OK)
    })
}
