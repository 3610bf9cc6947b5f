//! Checksums: verified, completed, computed; a copy that sums.

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
use crate::packet::{Packet, layer, sp_packet};
use crate::status::sp_status::{self, SP_NONE, SP_OK};
use crate::status::{Failure, guard};

/// Verifies the checksums of a packet: those of its IPv4 headers, of TCP, UDP or DCCP, and of a
/// tunnel around it. All its bytes are read.
///
/// \param packet the packet. Its offload is looked at for SP_CHECKSUM_PARTIAL alone. Must not
/// change during the call.
/// \param layer where it starts.
/// \return SP_OK if all are right; SP_NONE if those of IPv4 headers are right and there is no
/// transport checksum to verify: a UDP datagram without one, or a partial one; SP_ERROR_CHECKSUM;
/// SP_ERROR_IP_CHECKSUM; SP_ERROR_HEADERS if it is not TCP, UDP or DCCP over IP, or a fragment;
/// SP_ERROR_TRUNCATED; SP_ERROR_INNER_LENGTH; SP_ERROR_NULL, SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_checksum_verify(packet: *const sp_packet, layer: u32) -> sp_status {
    guard(|| {
        let layer = self::layer(layer)?;
        // SAFETY: the caller's packet, unchanged during the call.
        let packet = unsafe { Packet::check_one(packet) }?;
        let mut gathered = [0; MAX_HEADER];
        let (header, length) = (packet.header(&mut gathered), packet.length());
        let layout =
            parse(header, length, layer).map_err(|unparsed| Failure::Headers(unparsed.reason))?;
        let end = layout.end as usize;
        if end > length {
            return Err(SegmentError::Truncated { needed: end, got: length }.into());
        }
        let at = |offset: usize| header.get(offset..).unwrap_or(&[]);
        let be16 =
            |offset: usize| at(offset).first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes));
        let network = |offset: u16, version, end: u16| {
            let header = header.get(usize::from(offset)..usize::from(end)).unwrap_or(&[]);
            match version {
                IpVersion::V6 => Ok(()),
                IpVersion::V4 => {
                    let length = header.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
                    let header = header.get(..length).unwrap_or(header);
                    let field = header
                        .get(ipv4::CHECKSUM..)
                        .and_then(|bytes| bytes.first_chunk())
                        .map(|bytes| u16::from_be_bytes(*bytes));
                    if field == Some(ipv4_header(header)) {
                        Ok(())
                    } else {
                        Err(Failure::IpChecksum)
                    }
                }
            }
        };
        network(layout.network, layout.version, layout.transport)?;
        for outer in layout.outers() {
            network(outer.network, outer.version, outer.transport)?;
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
        // What the pseudo-header counts, and what is summed.
        let (counted, covered) = match layout.protocol {
            Protocol::Udp if be16(transport + udp::CHECKSUM) == 0 => return Ok(SP_NONE),
            Protocol::Udp => match usize::from(be16(transport + udp::LENGTH)) {
                0 => (available, available),
                length => (length, length),
            },
            Protocol::Dccp => match at(transport + dccp::COVERAGE)
                .first()
                .map_or(0, |byte| usize::from(byte & 0x0f))
            {
                0 => (available, available),
                words => (
                    available,
                    at(transport + dccp::DATA_OFFSET)
                        .first()
                        .map_or(0, |byte| usize::from(*byte) * 4)
                        + (words - 1) * 4,
                ),
            },
            Protocol::Tcp => (available, available),
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

/// The bytes of a packet from one offset to another.
fn ranges(packet: &Packet, start: usize, end: usize) -> impl Iterator<Item = &[u8]> {
    let mut before = 0;
    (0..packet.count()).map(move |index| {
        let bytes = packet.bytes_of(index);
        let range = start.saturating_sub(before).min(bytes.len())
            ..end.saturating_sub(before).min(bytes.len());
        before += bytes.len();
        bytes.get(range).unwrap_or(&[])
    })
}

/// Completes a partial checksum of TCP, UDP, DCCP or SCTP where it lies.
///
/// \param packet the whole packet, in one buffer of the caller's; the checksum field is written.
/// \param length how many bytes.
/// \param layer where the packet starts.
/// \param start where to start summing, in bytes from the start of the packet: csum_start of a
/// virtio_net_hdr.
/// \param offset where the field lies from there: csum_offset.
/// \return SP_OK; SP_ERROR_CHECKSUM_PLACE if the field lies outside what it covers;
/// SP_ERROR_PARTIAL_CHECKSUM if it cannot be completed, and sp_message tells why; SP_ERROR_NULL,
/// SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error the packet has not been touched.
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
            // SAFETY: the caller's packet, nobody else's during the call; not NULL, and the length
            // has been checked.
            _ => unsafe { slice::from_raw_parts_mut(packet.cast(), length) },
        };
        complete_partial(packet, layer, start, offset, Simd::detect())?;
        Ok(SP_OK)
    })
}

/// Computes the one's-complement sum of bytes (RFC 1071): what a checksum field holds is its
/// complement.
///
/// \param bytes the bytes; NULL if length is 0. Must not change during the call.
/// \param length how many: at most SP_MAX_LENGTH.
/// \param sum where the sum goes, as a number of the host: as if each pair of bytes were read as a
/// big-endian number.
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
        // SAFETY: the caller's place for a number.
        let place = unsafe { place("sum", sum) }?;
        // SAFETY: the caller's bytes; the length has been checked.
        place.write(Simd::detect().sum(unsafe { self::bytes(bytes, length) }));
        Ok(SP_OK)
    })
}

/// Copies bytes and sums them in the same pass.
///
/// \param to where to; apart from `from`.
/// \param from where from. Must not change during the call.
/// \param length how many: at most SP_MAX_LENGTH.
/// \param sum where the sum goes, as that of sp_checksum_sum.
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
        // SAFETY: the caller's place for a number.
        let place = unsafe { place("sum", sum) }?;
        // SAFETY: the caller's bytes; the length has been checked.
        let from = unsafe { bytes(from, length) };
        let to = match length {
            0 => &mut [],
            // SAFETY: the caller's memory, nobody else's during the call, and apart from `from`;
            // not NULL, and the length has been checked.
            _ => unsafe { slice::from_raw_parts_mut(to.cast(), length) },
        };
        place.write(Simd::detect().copy_and_sum(from, to));
        Ok(SP_OK)
    })
}
