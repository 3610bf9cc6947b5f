//! The caller's memory as the segmenter uses it: the packet, headers, and whole segments.

#![expect(unsafe_code, reason = "the border to C")]

use std::mem::MaybeUninit;
use std::slice;

use superpacket::segment::{SegmentBuffers, SegmentPlan, Segmentable};
use superpacket::{Gso, Layer, RxChecksum, SegmentError};

use crate::memory::{
    check_range, fits, impossible, impossible_array, memory, misaligned, sp_iovec,
};
use crate::packet::CheckedPacket;
use crate::space::HeaderMemory;
use crate::status::Failure;

/// A packet to be segmented, with the layer at which it starts.
pub(crate) struct InputPacket<'a> {
    pub(crate) packet: &'a CheckedPacket,
    pub(crate) layer: Layer,
}

impl Segmentable for InputPacket<'_> {
    #[inline(always)]
    fn layer(&self) -> Layer {
        self.layer
    }

    #[inline(always)]
    fn gso(&self) -> Option<Gso> {
        self.packet.offload().gso()
    }

    #[inline(always)]
    fn checksum(&self) -> RxChecksum {
        self.packet.offload().rx_checksum()
    }

    #[inline(always)]
    fn header(&self) -> &[u8] {
        &[]
    }

    #[inline(always)]
    fn ranges(&self) -> usize {
        self.packet.count()
    }

    #[inline(always)]
    fn range_length(&self, index: usize) -> usize {
        self.range(index).len()
    }

    #[inline(always)]
    fn range(&self, index: usize) -> &[u8] {
        self.packet.bytes_of(index)
    }
}

/// The caller's memory for the headers of segments.
pub(crate) struct OutputHeaders<'a, 'b, F> {
    pub(crate) memory: &'a mut HeaderMemory<'b>,
    /// Returns, for a number of segments, each kind of memory that they need: its name, the
    /// available and the needed size.
    pub(crate) needs: F,
    /// Receives the error if there is not enough memory.
    pub(crate) shortage: &'a mut Option<Failure>,
}

impl<const N: usize, F: Fn(usize) -> [(&'static str, usize, usize); N]> SegmentBuffers
    for OutputHeaders<'_, '_, F>
{
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        for (what, got, needed) in (self.needs)(plan.segments as usize) {
            if got < needed {
                *self.shortage = Some(Failure::Space { what, got, needed });
                return Err(SegmentError::OutputTooSmall { needed, got });
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        // SAFETY: C's memory for headers.
        unsafe { self.memory.next_bytes(length) }
    }
}

/// The caller's memory for whole segments: a buffer for each, or one buffer for all.
pub(crate) struct OutputBuffers<'a> {
    buffers: &'a [sp_iovec],
    /// Whether all segments go to the first buffer, one after the other.
    linear: bool,
    offset: usize,
    lengths: &'a mut [MaybeUninit<usize>],
    used: usize,
}

impl<'a> OutputBuffers<'a> {
    /// Checks buffers that receive one segment each.
    pub(crate) unsafe fn each(
        buffers: *const sp_iovec,
        count: usize,
        offset: usize,
        lengths: *mut usize,
    ) -> Result<Self, Failure> {
        if !fits(buffers, count) {
            return Err(impossible_array("buffers", buffers, count));
        }
        let buffers = match count {
            0 => &[],
            _ if buffers.is_null() => return Err(Failure::Null("buffers")),
            _ if !buffers.is_aligned() => return Err(misaligned("buffers", buffers)),
            // SAFETY: as the caller promises; it is not NULL, aligned, and not too long.
            _ => unsafe { slice::from_raw_parts(buffers, count) },
        };
        // SAFETY: as the caller promises.
        let lengths = unsafe { memory("lengths", lengths, count) }?;
        for buffer in buffers {
            check_range("buffers[]", buffer.iov_base, buffer.iov_len)?;
        }
        Ok(OutputBuffers { buffers, linear: false, offset, lengths, used: 0 })
    }

    /// Checks a buffer that receives all segments.
    pub(crate) unsafe fn linear(buffer: &'a sp_iovec) -> Result<Self, Failure> {
        // Together, segments are longer than the packet, by the headers of all but one.
        if buffer.iov_len > isize::MAX as usize
            || (buffer.iov_base as usize).checked_add(buffer.iov_len).is_none()
        {
            return Err(impossible(
                "buffer",
                buffer.iov_base as usize,
                buffer.iov_len,
                isize::MAX as usize,
            ));
        }
        if buffer.iov_base.is_null() {
            return Err(Failure::Null("buffer"));
        }
        Ok(OutputBuffers {
            buffers: slice::from_ref(buffer),
            linear: true,
            offset: 0,
            lengths: &mut [],
            used: 0,
        })
    }
}

impl SegmentBuffers for OutputBuffers<'_> {
    fn prepare(&mut self, plan: &SegmentPlan) -> Result<(), SegmentError> {
        let too_small = |needed: usize, got: usize| {
            if needed > got { Err(SegmentError::OutputTooSmall { needed, got }) } else { Ok(()) }
        };
        if self.linear {
            return too_small(
                plan.total_length(),
                self.buffers.first().map_or(0, |buffer| buffer.iov_len),
            );
        }
        if plan.segments as usize > self.buffers.len() {
            return Err(SegmentError::TooManySegments {
                needed: plan.segments,
                limit: self.buffers.len() as u32,
            });
        }
        let last = plan.segments as usize - 1;
        for (index, buffer) in self.buffers[..=last].iter().enumerate() {
            let length = if index == last { plan.last_length } else { plan.segment_length };
            too_small(self.offset.saturating_add(length), buffer.iov_len)?;
        }
        Ok(())
    }

    #[inline]
    fn buffer(&mut self, length: usize) -> Option<&mut [u8]> {
        let (buffer, start) = match self.linear {
            true => (self.buffers.first()?, self.used),
            false => (self.buffers.get(self.used)?, self.offset),
        };
        let end = start.checked_add(length)?;
        if end > buffer.iov_len {
            return None;
        }
        if self.linear {
            self.used = end;
        } else {
            self.lengths.get_mut(self.used)?.write(length);
            self.used += 1;
        }
        if length == 0 {
            return Some(&mut []);
        }
        // SAFETY: the caller's memory has this many bytes, and is used only by this call. No
        // earlier slice contains them: it ends where this one begins, or is in another buffer. The
        // pointer is not NULL since the length is not 0, as `check_range` or `linear` has checked.
        Some(unsafe { slice::from_raw_parts_mut(buffer.iov_base.cast::<u8>().add(start), length) })
    }
}
