//! The headers of segments alone, for callers that walk the payload themselves.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;

use superpacket::GsoKind;
use superpacket::segment::{Segment, Segmentable};

use crate::memory::place;
use crate::offload::sp_offload;
use crate::packet::sp_packet;
use crate::segment::{call, sp_plan, sp_segment_options, sp_segmenter};
use crate::segment_memory::{Headers, ToCut};
use crate::space::{HeaderMemory, read_places};
use crate::status::Failure;
use crate::status::sp_status::{self, SP_OK};

/// What sp_segment_headers says of the segments whose headers it wrote.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_headers {
    /// How many segments, and how long they are with their headers.
    pub plan: sp_plan,
    /// The length of the headers of each in bytes. 0: it is the packet as it came.
    pub header_length: usize,
    /// Where the first segment's payload starts in the packet, in bytes. That of the next follows
    /// it, and so on: of each but the last, plan.segment_length - header_length bytes.
    pub payload_start: usize,
    /// What is known of each segment besides its bytes.
    pub offload: sp_offload,
}

/// Cuts as sp_segment does, but writes headers alone: for a caller whose own descriptors are to
/// refer to the payload, which he walks himself.
///
/// \param segmenter the segmenter.
/// \param packet the packet. Its bytes are the caller's, and must not change before the segments
/// have been sent.
/// \param options as for sp_segment_plan.
/// \param places an array of count pointers to SP_MAX_HEADER bytes each, apart from each other and
/// from the packet: the headers of segment n go to where pointer n points.
/// \param count how many segments there may be.
/// \param headers where the answer goes.
/// \return as sp_segment; SP_ERROR_SPACE if there are more segments than places;
/// SP_ERROR_ARGUMENT for SP_GSO_UDP_FRAGMENTS, whose headers differ in length. On an error no place
/// has been written.
/// \note One thread at a time for each sp_segmenter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_segment_headers(
    segmenter: *mut sp_segmenter,
    packet: *const sp_packet,
    options: *const sp_segment_options,
    places: *const *mut c_void,
    count: usize,
    headers: *mut sp_headers,
) -> sp_status {
    // SAFETY: as the comment demands of the caller.
    unsafe {
        call(segmenter, packet, options, |segmenter, packet, options| {
            let answer = place("headers", headers)?;
            // SAFETY: the caller's: as many as count.
            let places = read_places(["places", "places[]"], places, count)?
                .ok_or(Failure::Null("places"))?;
            if packet.gso().is_some_and(|gso| gso.kind == GsoKind::UdpFragments) {
                return Err(Failure::Argument {
                    what: "packet.offload.gso_type",
                    got: u64::from(packet.packet.offload().gso_type),
                });
            }
            let mut lacks = None;
            let mut memory = HeaderMemory::of_places(places);
            let mut memory = Headers {
                memory: &mut memory,
                needs: |segments| [("count", count, segments)],
                lacks: &mut lacks,
            };
            let mut first = (0, 0, sp_offload::default());
            let cut = segmenter.segment_with_headers(packet, options, &mut memory, |segment| {
                if segment.index == 0 {
                    let offload = sp_offload::new(segment.checksum, None, None, None);
                    first = (segment.header().len(), payload_start(packet, &segment), offload);
                }
            });
            if let Some(failure) = lacks {
                return Err(failure);
            }
            let (header_length, payload_start, offload) = first;
            answer.write(sp_headers { plan: cut?.into(), header_length, payload_start, offload });
            Ok(SP_OK)
        })
    }
}

/// Where a segment's payload starts in its packet; the packet's end, if it has none.
fn payload_start(packet: &ToCut<'_>, segment: &Segment<'_, ToCut<'_>>) -> usize {
    let (range, offset) =
        segment.ranges().next().map_or((packet.ranges(), 0), |range| (range.range, range.offset));
    (0..range).map(|index| packet.range_length(index)).sum::<usize>() + offset
}
