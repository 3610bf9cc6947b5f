//! Segmentation of packets that were read behind a virtio_net_hdr.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;

use superpacket::{Framing, Segmenter};

use crate::memory::{bytes, check_range, place, sp_iovec};
use crate::object::with;
use crate::packet::layer;
use crate::policy::framing;
use crate::segment::{segment_and_report, sp_plan, sp_segmenter};
use crate::segment_memory::OutputBuffers;
use crate::status::sp_status;
use crate::status::{Failure, guard};

/// Segments the data of one read(2) from a device, a virtio_net_hdr and a packet, into buffers, as
/// sp_segment_each. Segments have complete checksums. A packet that is no super-packet is one
/// segment.
///
/// \param segmenter the segmenter.
/// \param virtio_length length of the header: 10, 12, 20 or 24 bytes.
/// \param virtio_order byte order of the header: SP_ORDER_NATIVE or another.
/// \param layer where packets start: SP_LAYER_ETHERNET, or SP_LAYER_IP for a TUN device.
/// \param read the data. Must not change during the call.
/// \param length length of the data in bytes.
/// \param buffers, count, offset, lengths, plan as for sp_segment_each.
/// \return as sp_segment_each, and SP_ERROR_VIRTIO if the header contradicts the packet. On an
/// error nothing was written.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_split_each(
    segmenter: *mut sp_segmenter,
    virtio_length: u32,
    virtio_order: u32,
    layer: u32,
    read: *const c_void,
    length: usize,
    buffers: *const sp_iovec,
    count: usize,
    offset: usize,
    lengths: *mut usize,
    plan: *mut sp_plan,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        split(
            segmenter,
            [virtio_length, virtio_order, layer],
            read,
            length,
            |segmenter, framing, read| {
                let mut buffers = OutputBuffers::each(buffers, count, offset, lengths)?;
                segment_and_report(plan, |_| Ok(segmenter.split(framing, read, &mut buffers)?))
            },
        )
    }
}

/// Segments the data of one read(2) like sp_split_each, but into one buffer, like
/// sp_segment_linear.
///
/// \param segmenter the segmenter.
/// \param virtio_length, virtio_order, layer, read, length as for sp_split_each.
/// \param buffer, size, plan as for sp_segment_linear.
/// \return as sp_split_each.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_split_linear(
    segmenter: *mut sp_segmenter,
    virtio_length: u32,
    virtio_order: u32,
    layer: u32,
    read: *const c_void,
    length: usize,
    buffer: *mut c_void,
    size: usize,
    plan: *mut sp_plan,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        split(
            segmenter,
            [virtio_length, virtio_order, layer],
            read,
            length,
            |segmenter, framing, read| {
                let one = sp_iovec { iov_base: buffer, iov_len: size };
                let mut buffers = OutputBuffers::linear(&one)?;
                place("plan", plan)?;
                segment_and_report(plan, |_| Ok(segmenter.split(framing, read, &mut buffers)?))
            },
        )
    }
}

/// # Safety
/// The requirements of [`sp_split_each`] for `segmenter` and `read`.
unsafe fn split(
    segmenter: *mut sp_segmenter,
    [virtio_length, virtio_order, layer]: [u32; 3],
    read: *const c_void,
    length: usize,
    body: impl FnOnce(&mut Segmenter, Framing, &[u8]) -> Result<sp_status, Failure>,
) -> sp_status {
    guard(|| {
        // SAFETY: `segmenter` is NULL, or made by `sp_segmenter_new` and not used elsewhere during
        // the call; what was read has been checked, and is the caller's.
        unsafe {
            with("segmenter", segmenter, |segmenter| {
                let framing = framing(virtio_length, virtio_order, self::layer(layer)?)?;
                check_range("read", read, length)?;
                let read = bytes(read, length);
                segmenter.object.call(|segmenter| body(segmenter, framing, read))
            })
        }
    })
}
