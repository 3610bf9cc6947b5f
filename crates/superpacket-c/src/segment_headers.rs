//! Segmentation that writes only headers, for callers that walk the payload themselves.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;

use superpacket::GsoKind;
use superpacket::segment::{Segment, Segmentable};

use crate::memory::place;
use crate::offload::sp_offload;
use crate::packet::sp_packet;
use crate::segment::{call, sp_plan, sp_segment_options, sp_segmenter};
use crate::segment_memory::{InputPacket, OutputHeaders};
use crate::space::{HeaderMemory, read_places};
use crate::status::Failure;
use crate::status::sp_status::{self, SP_OK};

/// The result of sp_segment_headers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_headers {
    /// Number of segments, and their lengths including headers.
    pub plan: sp_plan,
    /// Length of the headers of each segment in bytes. 0: the only segment is the unchanged packet.
    pub header_length: usize,
    /// Offset of the first segment's payload in the packet, in bytes. The payloads of the next
    /// segments follow directly; each except the last has plan.segment_length - header_length
    /// bytes.
    pub payload_start: usize,
    /// The metadata of each segment.
    pub offload: sp_offload,
}

/// Segments a packet as sp_segment does, but writes only the headers. The caller's own descriptors
/// refer to the payload.
///
/// \param segmenter the segmenter.
/// \param packet the packet. Its bytes must not change before the segments have been sent.
/// \param options as for sp_segment_plan.
/// \param places an array of count pointers to SP_MAX_HEADER bytes each, which must not overlap
/// each other or the packet. The headers of segment n are written to where pointer n points.
/// \param count maximum number of segments.
/// \param headers receives the result.
/// \return as sp_segment; SP_ERROR_SPACE if there are more segments than places; SP_ERROR_ARGUMENT
/// for SP_GSO_UDP_FRAGMENTS, whose headers differ in length. On an error nothing was written to the
/// places.
/// \note Only one thread at a time may use an sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segment_headers(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    places: *const *mut c_void,
    count: usize,
    headers: *mut sp_headers,
) -> sp_status {
    // SAFETY: the function's comment demands this of the caller.
    unsafe {
        call(segmenter, packet, options, |segmenter, packet, options| {
            let answer = place("headers", headers)?;
            // SAFETY: the caller promises `count` elements.
            let places = read_places(["places", "places[]"], places, count)?
                .ok_or(Failure::Null("places"))?;
            if packet.gso().is_some_and(|gso| gso.kind == GsoKind::UdpFragments) {
                return Err(Failure::Argument {
                    what: "packet.offload.gso_type",
                    got: u64::from(packet.packet.offload().gso_type),
                });
            }
            let mut shortage = None;
            let mut memory = HeaderMemory::of_places(places);
            let mut memory = OutputHeaders {
                memory: &mut memory,
                needs: |segments| [("count", count, segments)],
                shortage: &mut shortage,
            };
            let mut first = (0, 0, sp_offload::default());
            let cut = segmenter.segment_with_headers(packet, options, &mut memory, |segment| {
                if segment.index == 0 {
                    let offload = sp_offload::new(segment.checksum, None, None, None);
                    first = (segment.header().len(), payload_start(packet, &segment), offload);
                }
            });
            if let Some(failure) = shortage {
                return Err(failure);
            }
            let (header_length, payload_start, offload) = first;
            answer.write(sp_headers { plan: cut?.into(), header_length, payload_start, offload });
            Ok(SP_OK)
        })
    }
}

/// Returns the offset of a segment's payload in its packet; the packet's end if it has no payload.
fn payload_start(packet: &InputPacket<'_>, segment: &Segment<'_, InputPacket<'_>>) -> usize {
    let (range, offset) =
        segment.ranges().next().map_or((packet.ranges(), 0), |range| (range.range, range.offset));
    (0..range).map(|index| packet.range_length(index)).sum::<usize>() + offset
}
