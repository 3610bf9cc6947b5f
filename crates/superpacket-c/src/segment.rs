//! Segmentation of packets. The segments are ranges of the caller's memory (scatter-gather), or are
//! copied to buffers.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::ptr;

use superpacket::segment::{ChecksumOutput, MaxSegments, Segment, SegmentPlan};
use superpacket::wire::MAX_HEADER;
use superpacket::{GsoKind, Layer, SegmentError, SegmentOptions, SegmentSize, Segmenter};

use crate::memory::{place, sp_iovec};
use crate::object::{Object, free, new, with};
use crate::offload::sp_offload;
use crate::packet::{CheckedPacket, SP_MAX_HEADER, layer, sp_packet};
use crate::policy::sized;
use crate::segment_memory::{InputPacket, OutputBuffers, OutputHeaders};
use crate::space::{Full, OutputMetadata, OutputRecords, Space, sp_space};
use crate::status::sp_status::{self, SP_OK};
use crate::status::{Failure, guard};

/// The transport checksums of segments are complete.
pub const SP_OUTPUT_FULL: u32 = 0;
/// The checksums of segments hold the sum of the pseudo-header, for a device that completes them.
/// The payload is not read.
pub const SP_OUTPUT_PARTIAL: u32 = 1;
/// The checksums of segments are partial or complete, as those of the merged packets were.
pub const SP_OUTPUT_AS_MERGED: u32 = 2;

/// Options of segmentation. Set all of it to 0, then size to sizeof(struct sp_segment_options),
/// then the fields that differ from the default. Later releases add fields at its end.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_segment_options {
    /// sizeof(struct sp_segment_options).
    pub size: usize,
    /// Where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
    pub layer: u32,
    /// How the checksums of segments are written: SP_OUTPUT_FULL or another SP_OUTPUT constant.
    pub checksum: u32,
    /// Maximum number of segments; a packet that needs more is refused. 0: no limit.
    pub max_segments: u32,
    /// Identification of IPv6 fragments, with SP_GSO_UDP_FRAGMENTS; the caller must not use one
    /// twice. 0: the segmenter chooses a different one for each packet.
    pub fragment_id: u32,
}

/// Number and lengths of a packet's segments.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct sp_plan {
    /// Number of segments; at least 1.
    pub segments: usize,
    /// Length of each segment except the last, in bytes, headers included. If there is only one
    /// segment, the length of that.
    pub segment_length: usize,
    /// Length of the last segment in bytes; at most segment_length.
    pub last_length: usize,
}

impl From<SegmentPlan> for sp_plan {
    fn from(plan: SegmentPlan) -> Self {
        sp_plan {
            segments: plan.segments as usize,
            segment_length: plan.segment_length,
            last_length: plan.last_length,
        }
    }
}

/// A segmenter of super-packets. Only creating it allocates memory.
///
/// Different threads may use it, but only one at a time.
pub struct sp_segmenter {
    pub(crate) object: Object<Segmenter>,
}

/// Creates a segmenter.
///
/// \param out receives the new object. Free it with sp_segmenter_free.
/// \return SP_OK; SP_ERROR_NULL or SP_ERROR_ARGUMENT for out.
/// \note Any thread may call it at any time. Ends the process if there is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segmenter_new(out: *mut *mut sp_segmenter) -> sp_status {
    // SAFETY: `out` is NULL or the caller's memory for a pointer.
    guard(|| unsafe { new(out, || Ok(sp_segmenter { object: Object::new(Segmenter::new()) })) })
}

/// Frees a segmenter.
///
/// \param segmenter the segmenter; NULL does nothing. No call may be running in another thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segmenter_free(segmenter: *mut sp_segmenter) {
    // SAFETY: NULL, or made by `sp_segmenter_new`, not freed yet, and not in use.
    unsafe { free(segmenter) };
}

/// Returns the number and lengths of a packet's segments, without segmenting or counting it.
///
/// \param segmenter the segmenter.
/// \param packet the packet, with gso_type and gso_size in its offload. Its bytes must not change
/// during the call.
/// \param options the options; NULL for an Ethernet frame, complete checksums and no limit.
/// \param plan receives the result.
/// \return as sp_segment, without SP_ERROR_SPACE.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segment_plan(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    plan: *mut sp_plan,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(segmenter, packet, options, |segmenter, packet, options| {
            let plan = place("plan", plan)?;
            plan.write(segmenter.plan(packet, options)?.into());
            Ok(SP_OK)
        })
    }
}

/// Segments a packet. Headers are written to the space's header memory, and the payload stays in
/// the packet's buffers. The payload is read only if a checksum needs it.
///
/// The space needs room for all segments: one output per segment, two ranges per segment and one
/// more per buffer of the packet, and SP_MAX_HEADER bytes of headers per segment. sp_segment_plan
/// returns the number of segments. A packet without gso_type is put out as one segment. Its
/// checksum is completed if it is partial and options ask for SP_OUTPUT_FULL.
///
/// \param segmenter the segmenter.
/// \param packet the packet. Its bytes must not change before the segments have been sent.
/// \param options as for sp_segment_plan.
/// \param space filled from its start, with all segments or none.
/// \return SP_OK; SP_ERROR_SPACE if not all segments fit; SP_ERROR_HEADERS to
/// SP_ERROR_PARTIAL_CHECKSUM if the packet cannot be segmented; SP_ERROR_NULL, SP_ERROR_LENGTH,
/// SP_ERROR_ARGUMENT or SP_ERROR_STRUCTURE for an invalid argument; SP_ERROR_INTERNAL. On an error
/// there is no output.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segment(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    space: *mut sp_space,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        Space::empty(space);
        call(segmenter, packet, options, |segmenter, packet, options| {
            // SAFETY: the caller's memory, which does not overlap the packet.
            Space::with(space, packet.packet.count() + 2, |space| {
                let mut shortage = None;
                let mut result = Ok(());
                let Space { records, headers } = space;
                let (outputs, iov) = records.limits();
                let room = headers.limit(outputs) * SP_MAX_HEADER;
                let needs = |segments: usize| {
                    [
                        ("space.outputs_max", outputs, segments),
                        ("space.iov_max", iov, 2 * segments + packet.packet.count()),
                        ("space.headers_max", room, segments.saturating_mul(SP_MAX_HEADER)),
                    ]
                };
                let mut headers = OutputHeaders { memory: headers, needs, shortage: &mut shortage };
                let cut =
                    segmenter.segment_with_headers(packet, options, &mut headers, |segment| {
                        result = result.and_then(|()| put(records, packet, &segment));
                    });
                if let Some(failure) = shortage {
                    return Err(failure);
                }
                cut?;
                // The check before has ensured that all segments fit.
                result.map_err(|Full| Failure::Broken)?;
                Ok(SP_OK)
            })
        })
    }
}

#[inline(always)]
fn put(
    records: &mut OutputRecords<'_>,
    packet: &InputPacket<'_>,
    segment: &Segment<'_, InputPacket<'_>>,
) -> Result<(), Full> {
    let token = packet.packet.token();
    let mut begun = records.begin(segment.header().len())?;
    for range in segment.ranges() {
        let bytes = packet
            .packet
            .bytes_of(range.range)
            .get(range.offset..range.offset + range.length)
            .unwrap_or(&[]);
        records.push(&mut begun, bytes.as_ptr().cast(), bytes.len(), token)?;
    }
    if begun.is_empty(records) {
        records.push(&mut begun, ptr::null(), 0, token)?;
    }
    begun.token = token;
    records.end(
        begun,
        1,
        sp_offload::new(segment.checksum, None, None, None),
        OutputMetadata::default(),
    )
}

/// Segments a packet into buffers, one per segment. Headers and payload are written one after the
/// other, and are summed in the same pass.
///
/// \param segmenter the segmenter.
/// \param packet the packet. Its bytes must not change during the call.
/// \param options as for sp_segment_plan.
/// \param buffers the caller's memory for segments, which must not overlap each other or the
/// packet. Each has iov_len bytes, of which the first `offset` stay unchanged. lengths says how
/// much of each was written.
/// \param count number of buffers.
/// \param offset where the segments start in their buffers, in bytes.
/// \param lengths an array of count, which receives the length of each segment without the offset.
/// \param plan receives the number and lengths of the segments; NULL if they are not needed.
/// \return as sp_segment; SP_ERROR_SPACE or SP_ERROR_TOO_MANY_SEGMENTS if the buffers have no room
/// for all segments. On an error nothing was written.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segment_each(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    buffers: *const sp_iovec,
    count: usize,
    offset: usize,
    lengths: *mut usize,
    plan: *mut sp_plan,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(segmenter, packet, options, |segmenter, packet, options| {
            let mut buffers = OutputBuffers::each(buffers, count, offset, lengths)?;
            segment_and_report(plan, |_| {
                Ok(segmenter.segment_linear(packet, options, &mut buffers)?)
            })
        })
    }
}

/// Segments a packet into one buffer, with its segments one after the other. Segment n starts at n
/// times plan->segment_length, as for Linux's UDP_SEGMENT.
///
/// \param segmenter the segmenter.
/// \param packet the packet. Its bytes must not change during the call.
/// \param options as for sp_segment_plan.
/// \param buffer the caller's memory, which must not overlap the packet.
/// \param size size of the buffer in bytes.
/// \param plan receives the number and lengths of the segments.
/// \return as sp_segment; SP_ERROR_SPACE if the segments do not fit. On an error nothing was
/// written.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segment_linear(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    buffer: *mut c_void,
    size: usize,
    plan: *mut sp_plan,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(segmenter, packet, options, |segmenter, packet, options| {
            let one = sp_iovec { iov_base: buffer, iov_len: size };
            let mut buffers = OutputBuffers::linear(&one)?;
            place("plan", plan)?;
            segment_and_report(plan, |_| {
                Ok(segmenter.segment_linear(packet, options, &mut buffers)?)
            })
        })
    }
}

/// Determines how to segment a packet so that its segments fit an MTU, and writes gso_type and
/// gso_size to its offload. A packet without gso_type is segmented by its protocol: TCP, or UDP
/// datagrams.
///
/// \param packet the packet, of which only the headers are read; its offload is changed.
/// \param layer where the packet starts: SP_LAYER_ETHERNET or SP_LAYER_IP.
/// \param mtu maximum length of a segment, in bytes from the outermost IP header on.
/// \return SP_OK, also if the packet fits and is unchanged; SP_ERROR_HEADERS;
/// SP_ERROR_SEGMENT_TOO_SMALL if the MTU has no room for the headers; SP_ERROR_NULL,
/// SP_ERROR_LENGTH, SP_ERROR_ARGUMENT.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_gso_for_mtu(
    packet: *mut sp_packet,
    layer: u32,
    mtu: usize,
) -> sp_status {
    guard(|| {
        let layer = self::layer(layer)?;
        let offload = {
            // SAFETY: the caller's packet. The reference ends before it is written.
            let checked = unsafe { CheckedPacket::check_one(packet) }?;
            let mut gathered = [0; MAX_HEADER];
            let header = checked.header(&mut gathered);
            let unparsed =
                |unparsed: superpacket::wire::Unparsed| Failure::Headers(unparsed.reason);
            let layout = superpacket::wire::parse_datagram(header, checked.length(), layer)
                .map_err(unparsed)?;
            let end = (layout.end as usize).min(checked.length());
            if end.saturating_sub(usize::from(layout.outermost())) <= mtu {
                return Ok(SP_OK);
            }
            let kind = match (layout.protocol, layout.version) {
                (superpacket::wire::Protocol::Tcp, superpacket::wire::IpVersion::V4) => {
                    GsoKind::Tcp4
                }
                (superpacket::wire::Protocol::Tcp, superpacket::wire::IpVersion::V6) => {
                    GsoKind::Tcp6
                }
                (superpacket::wire::Protocol::Udp, _) => GsoKind::Udp,
                (superpacket::wire::Protocol::Dccp, _) => GsoKind::Dccp,
            };
            let needed = usize::from(layout.payload - layout.outermost()) + 1;
            let size = SegmentSize::for_mtu(&layout, kind, mtu)
                .ok_or(SegmentError::SegmentTooSmall { needed, got: mtu })?;
            let known = checked.offload();
            let gso = superpacket::Gso::new(kind, size);
            let named = sp_offload::new(superpacket::RxChecksum::None, Some(gso), None, None);
            sp_offload { gso_type: named.gso_type, gso_size: named.gso_size, ..*known }
        };
        // SAFETY: the caller's packet, not NULL and aligned, as has been checked.
        unsafe { (*packet).offload = offload };
        Ok(SP_OK)
    })
}

/// # Safety
/// The requirements of [`sp_segment`] for `segmenter`, `packet` and `options`.
#[inline(always)]
pub(crate) unsafe fn call(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    body: impl FnOnce(&mut Segmenter, &InputPacket<'_>, &SegmentOptions) -> Result<sp_status, Failure>,
) -> sp_status {
    guard(|| {
        // SAFETY: `segmenter` is NULL, or made by `sp_segmenter_new` and not used elsewhere during
        // the call; `packet` and `options` are NULL or the caller's.
        unsafe {
            with("segmenter", segmenter, |segmenter| {
                let packet = CheckedPacket::check_one(packet)?;
                let (layer, options) = read_options(options)?;
                segmenter
                    .object
                    .call(|segmenter| body(segmenter, &InputPacket { packet, layer }, &options))
            })
        }
    })
}

/// # Safety
/// As [`sized`], except that NULL means the default options.
unsafe fn read_options(
    options: *const sp_segment_options,
) -> Result<(Layer, SegmentOptions), Failure> {
    let mut read = SegmentOptions::default();
    if options.is_null() {
        return Ok((Layer::Ethernet, read));
    }
    // SAFETY: as the caller promises; the structure consists of integers.
    let given = unsafe { sized("sp_segment_options", options, size_of::<sp_segment_options>()) }?;
    read.checksum = match given.checksum {
        SP_OUTPUT_FULL => ChecksumOutput::Full,
        SP_OUTPUT_PARTIAL => ChecksumOutput::Partial,
        SP_OUTPUT_AS_MERGED => ChecksumOutput::AsMerged,
        other => return Err(Failure::Argument { what: "options.checksum", got: u64::from(other) }),
    };
    if let Some(most) = MaxSegments::new(given.max_segments) {
        read.max_segments = most;
    }
    read.fragment_id = given.fragment_id;
    Ok((layer(given.layer)?, read))
}

/// Segments a packet by calling `cut`, and writes the number and lengths of the segments to the
/// caller's sp_plan if there is one.
pub(crate) unsafe fn segment_and_report(
    plan: *mut sp_plan,
    cut: impl FnOnce(()) -> Result<SegmentPlan, Failure>,
) -> Result<sp_status, Failure> {
    let place = match plan.is_null() {
        true => None,
        // SAFETY: as the caller promises.
        false => Some(unsafe { place("plan", plan) }?),
    };
    let cut = cut(())?;
    if let Some(place) = place {
        place.write(cut.into());
    }
    Ok(SP_OK)
}
