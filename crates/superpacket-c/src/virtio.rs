//! Reads and writes virtio_net_hdr.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use superpacket::virtio::{Format, Header, Offload};
use superpacket::wire::MAX_HEADER;

use crate::memory::{bytes, check_range, memory, place};
use crate::offload::sp_offload;
use crate::packet::{CheckedPacket, layer, sp_packet};
use crate::policy::framing;
use crate::status::sp_status::{self, SP_OK};
use crate::status::{Failure, guard};

/// Reads the virtio_net_hdr before a packet, checks it against the packet, and makes an sp_packet
/// of both, for sp_segment and other functions.
///
/// A header that contradicts the packet's own headers is refused.
///
/// \param virtio_length length of the header: 10, 12, 20 or 24 bytes.
/// \param virtio_order byte order of the header: SP_ORDER_NATIVE or another.
/// \param layer where the packet starts: SP_LAYER_ETHERNET, or SP_LAYER_IP for a TUN device.
/// \param read the data of read(2): the header, and the packet behind it. Must not change during
/// the call.
/// \param length length of the data in bytes.
/// \param packet receives the packet. It points to the data, and is valid as long as the data is
/// unchanged. Its token is NULL.
/// \return SP_OK; SP_ERROR_VIRTIO, with the wrong field in sp_message; SP_ERROR_NULL,
/// SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error nothing is written.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_virtio_read(
    virtio_length: u32,
    virtio_order: u32,
    layer: u32,
    read: *const c_void,
    length: usize,
    packet: *mut sp_packet,
) -> sp_status {
    guard(|| {
        let framing = framing(virtio_length, virtio_order, self::layer(layer)?)?;
        check_range("read", read, length)?;
        // SAFETY: the caller's memory for a packet.
        let place = unsafe { place("packet", packet) }?;
        // SAFETY: the caller's bytes; the length has been checked.
        let (offload, packet) = framing.parse(unsafe { bytes(read, length) })?;
        let Offload { checksum, gso, hash, .. } = offload;
        place.write(sp_packet {
            data: packet.as_ptr().cast(),
            length: packet.len(),
            rest: ptr::null(),
            rest_count: 0,
            reserved: 0,
            token: ptr::null_mut(),
            offload: sp_offload::new(checksum, gso, hash, None),
        });
        Ok(SP_OK)
    })
}

/// Writes the virtio_net_hdr that describes a packet.
///
/// \param virtio_length length of the header: 10, 12, 20 or 24 bytes.
/// \param virtio_order byte order of the header: SP_ORDER_NATIVE or another.
/// \param layer where the packet starts: SP_LAYER_ETHERNET, or SP_LAYER_IP for a TUN device.
/// \param packet the packet, of which only the headers are read. Must not change during the call.
/// \param header receives the header.
/// \param size room for the header in bytes; at least virtio_length.
/// \return SP_OK; SP_ERROR_VIRTIO if no header of this length can express the packet's offload: a
/// super-packet with a complete checksum, DCCP, a tunnel; SP_ERROR_SPACE; SP_ERROR_NULL,
/// SP_ERROR_LENGTH, SP_ERROR_ARGUMENT. On an error nothing is written.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_virtio_write(
    virtio_length: u32,
    virtio_order: u32,
    layer: u32,
    packet: *const sp_packet,
    header: *mut c_void,
    size: usize,
) -> sp_status {
    guard(|| {
        let framing = framing(virtio_length, virtio_order, self::layer(layer)?)?;
        // SAFETY: the caller's packet, unchanged during the call.
        let packet = unsafe { CheckedPacket::check_one(packet) }?;
        // SAFETY: the caller's memory for a header.
        let place: &mut [MaybeUninit<u8>] = unsafe { memory("header", header.cast::<u8>(), size) }?;
        let needed = framing.header_length();
        let place =
            place.get_mut(..needed).ok_or(Failure::Space { what: "header", got: size, needed })?;
        let known = packet.offload();
        let offload = Offload::new(known.rx_checksum(), known.gso()).with_hash(known.flow_hash());
        let mut gathered = [0; MAX_HEADER];
        let described = Header::describe(
            &offload,
            framing.format,
            packet.header(&mut gathered),
            packet.length(),
            framing.layer,
        )?;
        let mut made = [0; Format::LONGEST];
        described.write(&mut made, framing.format, framing.order)?;
        for (place, byte) in place.iter_mut().zip(made) {
            place.write(byte);
        }
        Ok(SP_OK)
    })
}
