//! The caller's arrays, which a call fills with outputs.

#![expect(unsafe_code, reason = "the border to C")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use superpacket::super_packet::Metadata;
use superpacket::wire::Layout;

use crate::layout::sp_layout;
use crate::memory::{fits, impossible_array, memory, misaligned, sp_iovec};
use crate::offload::sp_offload;
use crate::packet::SP_MAX_HEADER;
use crate::policy::sized;
use crate::status::Failure;

/// A packet that a call puts out: a merged packet, a packet that did not merge, or a segment.
///
/// The layout of this structure does not change while the library keeps its soname.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_output {
    /// The bytes of the packet, in order: ranges in the space's array iov.
    pub iov: *mut sp_iovec,
    /// Number of ranges; at least 1.
    pub iov_count: u32,
    /// Number of bytes of the first range that are in the space's header memory: a virtio_net_hdr,
    /// if the policy asks for one, and the headers of a merged packet or a segment. 0: none; the
    /// first range is in the caller's buffers.
    pub header_length: u32,
    /// The token of the packet in whose buffer each range lies, and NULL for a range in header
    /// memory. This points into the space's array tokens. NULL if the space has no such array.
    ///
    /// In SP_MODE_GRO and SP_MODE_GRO_UDP, the tokens name all packets that merged, in the order of
    /// their payload. A packet in several buffers occurs several times in a row. If a device
    /// refuses the merged packet, the original packets can be sent instead.
    pub tokens: *mut *mut c_void,
    /// Total length of all ranges in bytes.
    pub length: usize,
    /// The token of the first packet in this output.
    pub token: *mut c_void,
    /// Number of received packets that this output represents, absorbed ACKs included; 1 for a
    /// segment.
    pub packets: u32,
    /// Number of absorbed ACKs that this output represents, whose own bytes are not in it.
    pub absorbed_acks: u32,
    /// Maximum payload of a packet in this output, in bytes; 0 if unknown.
    pub largest_payload: u32,
    /// The reason why this output left the aggregator, a number for sp_reason_name; 0 for a
    /// segment.
    pub reason: u32,
    /// The metadata of the output.
    pub offload: sp_offload,
}

/// The caller's memory for outputs.
///
/// Set size to sizeof(struct sp_space), and the pointers with their sizes. Each call fills the
/// arrays from their start, overwrites the previous outputs, and sets the fields whose names end in
/// _used. The library keeps none of the pointers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sp_space {
    /// sizeof(struct sp_space). Later releases add fields at the end, for which 0 means the old
    /// behaviour.
    pub size: usize,
    /// Memory for the outputs.
    pub outputs: *mut sp_output,
    /// Maximum number of outputs; at least 1.
    pub outputs_max: usize,
    /// Memory for the ranges of outputs.
    pub iov: *mut sp_iovec,
    /// Maximum number of ranges; at least the policy's max_fragments + 2, and SP_MAX_BUFFERS + 2.
    pub iov_max: usize,
    /// Memory for the token of each range's packet: an array of iov_max, to which the field tokens
    /// of outputs points. NULL if tokens are not needed.
    pub tokens: *mut *mut c_void,
    /// Memory for headers, one after the other.
    pub headers: *mut u8,
    /// Size of headers in bytes; at least SP_MAX_HEADER.
    pub headers_max: usize,
    /// Separate memory for the headers of each output, instead of headers and headers_max: an array
    /// of outputs_max pointers to SP_MAX_HEADER bytes each. The headers of output n are written to
    /// where pointer n points. NULL: headers is used.
    pub header_places: *const *mut c_void,
    /// Set by the library: number of outputs.
    pub outputs_used: usize,
    /// Set by the library: number of ranges.
    pub iov_used: usize,
    /// Set by the library: number of header bytes.
    pub headers_used: usize,
    /// Memory for the header positions of each output: an array of outputs_max, whose element n
    /// belongs to output n. NULL if they are not needed. The layouts of sp_segment's outputs are
    /// all zero.
    pub layouts: *mut sp_layout,
}

/// Size of the structure in the first release, which had no layouts.
const FIRST_SIZE: usize = std::mem::offset_of!(sp_space, layouts);

/// The error for an output for which a space has no room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A checked sp_space, and how much of it is in use. Records and header memory are separate, so
/// that one can be written while the other is borrowed.
pub(crate) struct Space<'a> {
    pub(crate) records: OutputRecords<'a>,
    pub(crate) headers: HeaderMemory<'a>,
}

/// The arrays of a space: outputs, their ranges, the tokens of the ranges, and the layouts of the
/// outputs.
pub(crate) struct OutputRecords<'a> {
    outputs: &'a mut [MaybeUninit<sp_output>],
    iov: &'a mut [MaybeUninit<sp_iovec>],
    tokens: Option<&'a mut [MaybeUninit<*mut c_void>]>,
    layouts: Option<&'a mut [MaybeUninit<sp_layout>]>,
    /// The caller's own pointer to the array of ranges. Pointers in outputs are derived from it,
    /// since a pointer derived from a slice becomes invalid at the slice's next use.
    own_iov: *mut sp_iovec,
    /// The caller's own pointer to the array of tokens.
    own_tokens: *mut *mut c_void,
    /// The caller's own pointer to the contiguous header memory.
    own_headers: *mut u8,
    places: Option<&'a [*mut c_void]>,
    outputs_used: usize,
    iov_used: usize,
    headers_used: usize,
}

/// Memory for headers: contiguous, or separate for each output.
pub(crate) struct HeaderMemory<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    places: Option<&'a [*mut c_void]>,
    /// Number of used bytes in contiguous memory.
    used: usize,
    /// Number of outputs that have got separate memory.
    places_used: usize,
}

/// Checks the caller's array of separate header memory for each output. `names` are the names of
/// the array and of one element, for error messages.
///
/// # Safety
/// `places` is NULL, or points to this number of pointers.
pub(crate) unsafe fn read_places<'a>(
    names: [&'static str; 2],
    places: *const *mut c_void,
    count: usize,
) -> Result<Option<&'a [*mut c_void]>, Failure> {
    let [array, place] = names;
    if places.is_null() {
        return Ok(None);
    }
    if !places.is_aligned() {
        return Err(misaligned(array, places));
    }
    if !fits(places, count) {
        return Err(impossible_array(array, places, count));
    }
    // SAFETY: as the caller promises; it is not NULL, aligned, and not too long.
    let places = unsafe { slice::from_raw_parts(places, count) };
    if places
        .iter()
        .any(|place| place.is_null() || !fits(place.cast_const().cast::<u8>(), SP_MAX_HEADER))
    {
        return Err(Failure::Null(place));
    }
    Ok(Some(places))
}

impl Space<'_> {
    /// Checks a caller's sp_space, sets its numbers of used elements to 0, and runs `body` with it.
    ///
    /// # Safety
    /// `space` is NULL, or points to a structure whose pointers are NULL or point to memory for as
    /// many values as their sizes say: memory of the caller that overlaps neither the rest nor the
    /// packets of the call.
    #[inline(always)]
    pub(crate) unsafe fn with<T>(
        space: *mut sp_space,
        iov_needed: usize,
        body: impl FnOnce(&mut Space<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        // SAFETY: as the caller promises; the structure consists of pointers and integers.
        let given = unsafe { sized("sp_space", space.cast_const(), FIRST_SIZE) }?;
        // SAFETY: the caller promises `outputs_max` elements.
        let places = unsafe {
            read_places(
                ["space.header_places", "space.header_places[]"],
                given.header_places,
                given.outputs_max,
            )
        }?;
        let records = OutputRecords {
            // SAFETY: as the caller promises.
            outputs: unsafe { memory("space.outputs", given.outputs, given.outputs_max) }?,
            // SAFETY: as the caller promises.
            iov: unsafe { memory("space.iov", given.iov, given.iov_max) }?,
            tokens: match given.tokens.is_null() {
                true => None,
                // SAFETY: the caller promises `iov_max` elements.
                false => Some(unsafe { memory("space.tokens", given.tokens, given.iov_max) }?),
            },
            layouts: match given.layouts.is_null() {
                true => None,
                false => {
                    // SAFETY: the caller promises `outputs_max` elements.
                    Some(unsafe { memory("space.layouts", given.layouts, given.outputs_max) }?)
                }
            },
            own_iov: given.iov,
            own_tokens: given.tokens,
            own_headers: given.headers,
            places,
            outputs_used: 0,
            iov_used: 0,
            headers_used: 0,
        };
        let headers = HeaderMemory {
            // SAFETY: as the caller promises.
            memory: unsafe { memory("space.headers", given.headers, given.headers_max) }?,
            places,
            used: 0,
            places_used: 0,
        };
        let headers_needed = if headers.places.is_some() { 0 } else { SP_MAX_HEADER };
        let needed = [
            ("space.outputs_max", given.outputs_max, 1),
            ("space.iov_max", given.iov_max, iov_needed),
            ("space.headers_max", given.headers_max, headers_needed),
        ];
        for (what, got, needed) in needed {
            if got < needed {
                return Err(Failure::Space { what, got, needed });
            }
        }
        let mut checked = Space { records, headers };
        let result = body(&mut checked);
        let OutputRecords { outputs_used, iov_used, .. } = checked.records;
        let headers_used = checked.headers.used;
        // After an error, the space counts as empty.
        let [outputs_used, iov_used, headers_used] =
            if result.is_ok() { [outputs_used, iov_used, headers_used] } else { [0; 3] };
        // SAFETY: it still points to the caller's structure, to which no reference is left.
        unsafe {
            (*space).outputs_used = outputs_used;
            (*space).iov_used = iov_used;
            (*space).headers_used = headers_used;
        }
        result
    }

    /// Sets an sp_space's numbers of used elements to 0, if its memory can be written.
    ///
    /// # Safety
    /// As [`with`](Self::with).
    #[inline(always)]
    pub(crate) unsafe fn empty(space: *mut sp_space) {
        // SAFETY: NULL, or the caller's structure, which begins with its size.
        if !space.is_null() && space.is_aligned() && unsafe { (*space).size } >= FIRST_SIZE {
            // SAFETY: it is at least as long as the known structure, and writable.
            unsafe {
                (*space).outputs_used = 0;
                (*space).iov_used = 0;
                (*space).headers_used = 0;
            }
        }
    }

    /// Returns an error unless the space has room for one more output, with `iov` ranges and
    /// `headers` bytes of headers.
    #[inline(always)]
    pub(crate) fn room(&self, iov: usize, headers: usize) -> Result<(), Full> {
        let Space { records, headers: memory } = self;
        let fits = records.outputs.len() > records.outputs_used
            && records.iov.len() - records.iov_used >= iov
            && (memory.places.is_some() || memory.memory.len() - memory.used >= headers);
        if fits { Ok(()) } else { Err(Full) }
    }

    /// Begins an output, and copies its headers to the header memory. The caller must have checked
    /// that there is [room](Self::room).
    #[inline(always)]
    pub(crate) fn begin(&mut self, headers: [&[u8]; 2]) -> Result<OpenOutput, Full> {
        let [first, second] = headers;
        let place = self.headers.next(first.len() + second.len()).ok_or(Full)?;
        let mut written = 0;
        for part in headers {
            if !part.is_empty() {
                let place = place.get_mut(written..written + part.len()).ok_or(Full)?;
                // SAFETY: `place` is as long as `part`, and the caller's memory for headers alone.
                unsafe {
                    ptr::copy_nonoverlapping(part.as_ptr(), place.as_mut_ptr().cast(), part.len())
                };
                written += part.len();
            }
        }
        self.records.begin(written)
    }
}

impl<'a> HeaderMemory<'a> {
    /// Creates header memory that consists of a separate block for each output. The blocks have
    /// been checked by [`read_places`].
    pub(crate) fn of_places(places: &'a [*mut c_void]) -> Self {
        HeaderMemory { memory: &mut [], places: Some(places), used: 0, places_used: 0 }
    }
}

impl HeaderMemory<'_> {
    /// Returns the memory for the next output's headers, with at least this length.
    #[inline(always)]
    fn next(&mut self, length: usize) -> Option<&mut [MaybeUninit<u8>]> {
        let place = match self.places {
            None => self.memory.get_mut(self.used..).filter(|rest| rest.len() >= length)?,
            Some(places) => {
                let place = places.get(self.places_used)?;
                // SAFETY: the caller promises that each place has this many bytes, which are not
                // used elsewhere. It was checked not to be NULL, and no other output has this
                // place.
                Some(unsafe { slice::from_raw_parts_mut(place.cast(), SP_MAX_HEADER) })
                    .filter(|place| place.len() >= length)?
            }
        };
        self.places_used += 1;
        self.used += length;
        Some(place)
    }

    /// Returns the same memory as [`next`](Self::next), but as bytes that are already initialized,
    /// which the engine needs.
    ///
    /// # Safety
    /// The compiler must be able to treat the bytes as initialized: they come from outside of Rust,
    /// or were written before.
    #[inline(always)]
    pub(crate) unsafe fn next_bytes(&mut self, length: usize) -> Option<&mut [u8]> {
        let place = self.next(length)?;
        // SAFETY: the same bytes, which the caller promises are initialized.
        Some(unsafe { slice::from_raw_parts_mut(place.as_mut_ptr().cast(), place.len()) })
    }

    /// Returns the number of outputs whose headers fit if each has the maximum length. With
    /// separate memory per output, it is `outputs`.
    pub(crate) fn limit(&self, outputs: usize) -> usize {
        if self.places.is_some() { outputs } else { self.memory.len() / SP_MAX_HEADER }
    }
}

impl OutputRecords<'_> {
    /// Returns the maximum number of outputs and of ranges.
    pub(crate) fn limits(&self) -> (usize, usize) {
        (self.outputs.len(), self.iov.len())
    }

    /// Begins an output whose headers have already been written to the next [header
    /// memory](HeaderMemory). `length` is their number of bytes.
    #[inline(always)]
    pub(crate) fn begin(&mut self, length: usize) -> Result<OpenOutput, Full> {
        let mut open = OpenOutput {
            iov: self.iov_used,
            header_length: length as u32,
            length: 0,
            token: ptr::null_mut(),
        };
        if length != 0 {
            let headers: *const c_void = match self.places {
                None => self.own_headers.wrapping_add(self.headers_used).cast(),
                Some(places) => *places.get(self.outputs_used).ok_or(Full)?,
            };
            self.headers_used += length;
            self.push(&mut open, headers, length, ptr::null_mut())?;
        }
        Ok(open)
    }

    /// Adds a range to an output.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        open: &mut OpenOutput,
        base: *const c_void,
        length: usize,
        token: *mut c_void,
    ) -> Result<(), Full> {
        self.iov
            .get_mut(self.iov_used)
            .ok_or(Full)?
            .write(sp_iovec { iov_base: base.cast_mut(), iov_len: length });
        if let Some(place) =
            self.tokens.as_deref_mut().and_then(|tokens| tokens.get_mut(self.iov_used))
        {
            place.write(token);
        }
        self.iov_used += 1;
        open.length += length;
        Ok(())
    }

    /// Adds buffer ranges, at most `most`, to an output; each is given as base address, length and
    /// token.
    #[inline(always)]
    pub(crate) fn extend(
        &mut self,
        open: &mut OpenOutput,
        most: usize,
        ranges: impl Iterator<Item = (*const c_void, usize, *mut c_void)>,
    ) -> Result<(), Full> {
        let places = self.iov_used..self.iov_used + most;
        let iov = self.iov.get_mut(places.clone()).ok_or(Full)?;
        let (mut count, mut total) = (0, 0);
        match &mut self.tokens {
            Some(tokens) => {
                let tokens = tokens.get_mut(places).ok_or(Full)?;
                ranges.for_each(|(base, length, token)| {
                    if let (Some(place), Some(token_place)) =
                        (iov.get_mut(count), tokens.get_mut(count))
                    {
                        place.write(sp_iovec { iov_base: base.cast_mut(), iov_len: length });
                        token_place.write(token);
                        count += 1;
                        total += length;
                    }
                });
            }
            None => ranges.for_each(|(base, length, _)| {
                if let Some(place) = iov.get_mut(count) {
                    place.write(sp_iovec { iov_base: base.cast_mut(), iov_len: length });
                    count += 1;
                    total += length;
                }
            }),
        }
        self.iov_used += count;
        open.length += total;
        Ok(())
    }

    /// Completes an output: writes its sp_output to the caller's array.
    #[inline(always)]
    pub(crate) fn end(
        &mut self,
        open: OpenOutput,
        packets: u32,
        offload: sp_offload,
        known: OutputMetadata<'_>,
    ) -> Result<(), Full> {
        let iov = self.own_iov.wrapping_add(open.iov);
        let tokens = if self.tokens.is_some() {
            self.own_tokens.wrapping_add(open.iov)
        } else {
            ptr::null_mut()
        };
        let place = self.outputs.get_mut(self.outputs_used).ok_or(Full)?;
        place.write(sp_output {
            iov,
            tokens,
            iov_count: (self.iov_used - open.iov) as u32,
            header_length: open.header_length,
            length: open.length,
            token: open.token,
            packets,
            absorbed_acks: known.absorbed_acks,
            largest_payload: known.largest_payload,
            reason: known.reason,
            offload,
        });
        if let Some(place) =
            self.layouts.as_deref_mut().and_then(|layouts| layouts.get_mut(self.outputs_used))
        {
            place.write(known.layout.map_or_else(sp_layout::default, sp_layout::from));
        }
        self.outputs_used += 1;
        Ok(())
    }
}

/// An output that is being written.
pub(crate) struct OpenOutput {
    iov: usize,
    header_length: u32,
    length: usize,
    /// The token of the first packet in the output.
    pub(crate) token: *mut c_void,
}

impl OpenOutput {
    /// Returns whether the output has no range yet.
    #[inline(always)]
    pub(crate) fn is_empty(&self, records: &OutputRecords<'_>) -> bool {
        records.iov_used == self.iov
    }
}

/// The metadata of an output of an aggregator.
#[derive(Clone, Copy, Default)]
pub(crate) struct OutputMetadata<'a> {
    absorbed_acks: u32,
    largest_payload: u32,
    reason: u32,
    layout: Option<&'a Layout>,
}

impl<'a> OutputMetadata<'a> {
    #[inline(always)]
    pub(crate) fn of(metadata: &'a Metadata) -> Self {
        let &Metadata { absorbed_acks, largest_payload, reason, ref layout, .. } = metadata;
        OutputMetadata {
            absorbed_acks,
            largest_payload,
            reason: reason as u32,
            layout: layout.as_ref(),
        }
    }
}
