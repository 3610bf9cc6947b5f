//! The results of calls, and the reasons of failures.

#![expect(unsafe_code, reason = "the border to C")]

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::fmt::Write;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use superpacket::checksum::CompletionError;
use superpacket::wire::Refusal;
use superpacket::{SegmentError, SplitError};

/// The result of a call: SP_OK, a positive number that is no error, or a negative number for an
/// error.
///
/// Further values may be added. Treat unknown negative values as errors. Before C23 the type
/// sp_status is int32_t, so that it has 32 bits with every compiler.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum sp_status {
    /// The call is complete.
    SP_OK = 0,
    /// The sp_space is full. Use its outputs. The function's comment names the call that continues.
    SP_FULL = 1,
    /// There is no result: no checksum in this packet, no flow to hash, or no held flow.
    SP_NONE = 2,
    /// A pointer that must not be NULL is NULL.
    SP_ERROR_NULL = -1,
    /// A length or a count is above its limit, or reaches beyond the end of the address space.
    SP_ERROR_LENGTH = -2,
    /// A value is not one of the allowed ones, or a reserved field is not 0.
    SP_ERROR_ARGUMENT = -3,
    /// The size of a structure is smaller than in any release, or larger than this library knows
    /// and the rest of the structure is not 0.
    SP_ERROR_STRUCTURE = -4,
    /// The space, or a buffer, has no room for a single output or for all segments.
    SP_ERROR_SPACE = -5,
    /// An earlier call returned SP_FULL and has been neither continued nor abandoned.
    SP_ERROR_UNFINISHED = -6,
    /// The packets are not those of the call that is to be continued.
    SP_ERROR_OTHER_PACKETS = -7,
    /// A fault of the library was caught in this call or an earlier one. From then on, the object
    /// refuses all calls except its sp_..._free.
    SP_ERROR_INTERNAL = -8,
    /// A transport checksum is wrong.
    SP_ERROR_CHECKSUM = -9,
    /// An IPv4 header checksum is wrong.
    SP_ERROR_IP_CHECKSUM = -10,
    /// A virtio_net_hdr contradicts its packet, or none can describe it.
    SP_ERROR_VIRTIO = -11,
    /// The object is in use by another call: in another thread, or in code that a signal handler
    /// interrupted. This call had no effect. Calls that only read counters or a deadline are not
    /// refused.
    SP_ERROR_BUSY = -12,
    /// The headers of a packet cannot be parsed.
    SP_ERROR_HEADERS = -16,
    /// The gso_type does not match the packet's headers.
    SP_ERROR_KIND = -17,
    /// The packet is shorter than its headers say.
    SP_ERROR_TRUNCATED = -18,
    /// An inner length field contradicts an outer length field.
    SP_ERROR_INNER_LENGTH = -19,
    /// The packet has more segments than allowed.
    SP_ERROR_TOO_MANY_SEGMENTS = -20,
    /// A segment is too long for the length fields of its headers.
    SP_ERROR_SEGMENT_TOO_LONG = -21,
    /// A segment has no room for its headers.
    SP_ERROR_SEGMENT_TOO_SMALL = -22,
    /// A DCCP checksum covers more than the shortest segment holds.
    SP_ERROR_COVERAGE = -23,
    /// The packet must not be fragmented.
    SP_ERROR_DONT_FRAGMENT = -24,
    /// A partial checksum lies outside its packet.
    SP_ERROR_CHECKSUM_PLACE = -25,
    /// A header is longer than the headers of the packet that were parsed.
    SP_ERROR_HEADER_LENGTH = -26,
    /// A partial checksum cannot be completed.
    SP_ERROR_PARTIAL_CHECKSUM = -28,
}

use sp_status::*;

/// Each status, with its name and its text.
const STATUSES: &[(sp_status, &str, &str)] = &[
    (SP_OK, "SP_OK\0", "done\0"),
    (SP_FULL, "SP_FULL\0", "the space is full\0"),
    (SP_NONE, "SP_NONE\0", "there is no result\0"),
    (SP_ERROR_NULL, "SP_ERROR_NULL\0", "a pointer is NULL\0"),
    (SP_ERROR_LENGTH, "SP_ERROR_LENGTH\0", "a length or count is above its limit\0"),
    (SP_ERROR_ARGUMENT, "SP_ERROR_ARGUMENT\0", "a value is not allowed\0"),
    (
        SP_ERROR_STRUCTURE,
        "SP_ERROR_STRUCTURE\0",
        "a structure is of another release, and uses fields that this library lacks\0",
    ),
    (SP_ERROR_SPACE, "SP_ERROR_SPACE\0", "the space is too small\0"),
    (
        SP_ERROR_UNFINISHED,
        "SP_ERROR_UNFINISHED\0",
        "an earlier call has been neither continued nor abandoned\0",
    ),
    (
        SP_ERROR_OTHER_PACKETS,
        "SP_ERROR_OTHER_PACKETS\0",
        "the packets are not those of the call to be continued\0",
    ),
    (SP_ERROR_INTERNAL, "SP_ERROR_INTERNAL\0", "a fault of the library\0"),
    (SP_ERROR_CHECKSUM, "SP_ERROR_CHECKSUM\0", "a transport checksum is wrong\0"),
    (SP_ERROR_IP_CHECKSUM, "SP_ERROR_IP_CHECKSUM\0", "an IPv4 header checksum is wrong\0"),
    (
        SP_ERROR_VIRTIO,
        "SP_ERROR_VIRTIO\0",
        "a virtio_net_hdr and its packet contradict each other\0",
    ),
    (SP_ERROR_BUSY, "SP_ERROR_BUSY\0", "the object is in use by another call\0"),
    (SP_ERROR_HEADERS, "SP_ERROR_HEADERS\0", "the headers cannot be read\0"),
    (SP_ERROR_KIND, "SP_ERROR_KIND\0", "the gso_type does not match the packet's headers\0"),
    (SP_ERROR_TRUNCATED, "SP_ERROR_TRUNCATED\0", "the packet is shorter than its headers say\0"),
    (SP_ERROR_INNER_LENGTH, "SP_ERROR_INNER_LENGTH\0", "an inner length contradicts the outer\0"),
    (
        SP_ERROR_TOO_MANY_SEGMENTS,
        "SP_ERROR_TOO_MANY_SEGMENTS\0",
        "more segments than are allowed\0",
    ),
    (
        SP_ERROR_SEGMENT_TOO_LONG,
        "SP_ERROR_SEGMENT_TOO_LONG\0",
        "a segment does not fit its length fields\0",
    ),
    (
        SP_ERROR_SEGMENT_TOO_SMALL,
        "SP_ERROR_SEGMENT_TOO_SMALL\0",
        "a segment has no room for its headers\0",
    ),
    (SP_ERROR_COVERAGE, "SP_ERROR_COVERAGE\0", "a checksum covers more than a segment holds\0"),
    (SP_ERROR_DONT_FRAGMENT, "SP_ERROR_DONT_FRAGMENT\0", "the packet must not be fragmented\0"),
    (
        SP_ERROR_CHECKSUM_PLACE,
        "SP_ERROR_CHECKSUM_PLACE\0",
        "a partial checksum lies outside its packet\0",
    ),
    (
        SP_ERROR_HEADER_LENGTH,
        "SP_ERROR_HEADER_LENGTH\0",
        "a header is longer than the parsed headers\0",
    ),
    (
        SP_ERROR_PARTIAL_CHECKSUM,
        "SP_ERROR_PARTIAL_CHECKSUM\0",
        "a partial checksum cannot be completed\0",
    ),
];

/// The reason why a call failed, with the data for its message.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no call has failed on this thread")]
    Nothing,
    #[error("{0} is NULL")]
    Null(&'static str),
    #[error("{what} is {got}, at most {limit} are allowed")]
    Length { what: &'static str, got: usize, limit: usize },
    #[error("{what} is {length} bytes long, at most {limit} are allowed")]
    Bytes { what: &'static str, length: usize, limit: usize },
    #[error("{what} has {count} elements, at most {limit} are allowed")]
    Elements { what: &'static str, count: usize, limit: usize },
    #[error("{what}: {length} bytes at {address:#x} reach beyond the end of the address space")]
    Wraps { what: &'static str, address: usize, length: usize },
    #[error("{what}: {got} is not allowed")]
    Argument { what: &'static str, got: u64 },
    #[error("{what} is {address:#x}, which is not aligned: it must be a multiple of {alignment}")]
    Alignment { what: &'static str, address: usize, alignment: usize },
    #[error(
        "{first} and {second} overlap: {length} bytes at {first_address:#x} and at {second_address:#x}"
    )]
    Overlap {
        first: &'static str,
        first_address: usize,
        second: &'static str,
        second_address: usize,
        length: usize,
    },
    #[error("{what} has a size of {got}, but this library supports {known}")]
    Structure { what: &'static str, got: usize, known: usize },
    #[error("{what}: there are {got}, {needed} are needed")]
    Space { what: &'static str, got: usize, needed: usize },
    #[error("{0} packets of an earlier call, which returned SP_FULL, are unfinished")]
    Unfinished(usize),
    #[error("the packets are not those of the call that returned SP_FULL")]
    OtherPackets,
    #[error(
        "a fault of the library was caught in this call or an earlier one: the object can only be freed"
    )]
    Broken,
    #[error("the object is in use by another call: one thread at a time may use it")]
    Busy,
    #[error("the transport checksum is wrong")]
    Checksum,
    #[error("the IPv4 header checksum is wrong")]
    IpChecksum,
    #[error("the headers cannot be read: {0}")]
    Headers(Refusal),
    #[error(transparent)]
    Split(#[from] SplitError),
    #[error(transparent)]
    Segment(#[from] SegmentError),
    #[error(transparent)]
    Virtio(#[from] superpacket::virtio::VirtioError),
    #[error(transparent)]
    Completion(#[from] CompletionError),
}

impl Failure {
    pub(crate) fn status(&self) -> sp_status {
        match self {
            Failure::Nothing => SP_OK,
            Failure::Null(_) => SP_ERROR_NULL,
            Failure::Length { .. }
            | Failure::Bytes { .. }
            | Failure::Elements { .. }
            | Failure::Wraps { .. } => SP_ERROR_LENGTH,
            Failure::Argument { .. } | Failure::Alignment { .. } | Failure::Overlap { .. } => {
                SP_ERROR_ARGUMENT
            }
            Failure::Structure { .. } => SP_ERROR_STRUCTURE,
            Failure::Space { .. } => SP_ERROR_SPACE,
            Failure::Unfinished(_) => SP_ERROR_UNFINISHED,
            Failure::OtherPackets => SP_ERROR_OTHER_PACKETS,
            Failure::Broken => SP_ERROR_INTERNAL,
            Failure::Busy => SP_ERROR_BUSY,
            Failure::Checksum => SP_ERROR_CHECKSUM,
            Failure::IpChecksum => SP_ERROR_IP_CHECKSUM,
            Failure::Headers(_) => SP_ERROR_HEADERS,
            Failure::Split(SplitError::Segment(error)) | Failure::Segment(error) => {
                of_segment(error)
            }
            // Newer kinds of errors concern the header.
            Failure::Split(_) | Failure::Virtio(_) => SP_ERROR_VIRTIO,
            Failure::Completion(CompletionError::Place { .. }) => SP_ERROR_CHECKSUM_PLACE,
            Failure::Completion(_) => SP_ERROR_PARTIAL_CHECKSUM,
        }
    }
}

fn of_segment(error: &SegmentError) -> sp_status {
    match error {
        SegmentError::Headers(_) => SP_ERROR_HEADERS,
        SegmentError::Kind { .. } => SP_ERROR_KIND,
        SegmentError::Truncated { .. } => SP_ERROR_TRUNCATED,
        SegmentError::Length { .. } => SP_ERROR_INNER_LENGTH,
        SegmentError::TooManySegments { .. } => SP_ERROR_TOO_MANY_SEGMENTS,
        SegmentError::SegmentTooLong { .. } => SP_ERROR_SEGMENT_TOO_LONG,
        SegmentError::SegmentTooSmall { .. } => SP_ERROR_SEGMENT_TOO_SMALL,
        SegmentError::Coverage { .. } => SP_ERROR_COVERAGE,
        SegmentError::DontFragment => SP_ERROR_DONT_FRAGMENT,
        SegmentError::ChecksumPlace { .. } => SP_ERROR_CHECKSUM_PLACE,
        SegmentError::PartialChecksum(_) => SP_ERROR_PARTIAL_CHECKSUM,
        SegmentError::HeaderLength { .. } => SP_ERROR_HEADER_LENGTH,
        SegmentError::OutputTooSmall { .. } => SP_ERROR_SPACE,
        // The engine may have newer kinds of errors. Until they have a status, this is the closest
        // one.
        _ => SP_ERROR_ARGUMENT,
    }
}

thread_local! {
    static LAST: Cell<Failure> = const { Cell::new(Failure::Nothing) };
}

/// Runs the body of a library function. A panic becomes SP_ERROR_INTERNAL.
///
/// Unwinding never crosses the border even without this: an `extern "C"` function aborts the
/// process on a panic.
#[inline(always)]
pub(crate) fn guard(body: impl FnOnce() -> Result<sp_status, Failure>) -> sp_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(failure)) => failed(failure),
        Err(panic) => {
            // Unless it is text, the payload of a panic could panic again when it is dropped.
            if !panic.is::<String>() && !panic.is::<&str>() {
                std::mem::forget(panic);
            }
            failed(Failure::Broken)
        }
    }
}

#[cold]
fn failed(failure: Failure) -> sp_status {
    LAST.set(failure);
    failure.status()
}

/// Returns the entry of a status in [`STATUSES`], if the number is that of a status.
fn entry(status: c_int) -> Option<&'static (sp_status, &'static str, &'static str)> {
    STATUSES.iter().find(|(known, ..)| *known as c_int == status)
}

/// Returns the text of a status, in English, such as "the space is too small".
///
/// \param status any number; an unknown status results in "unknown status".
/// \return a static string, never NULL.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sp_strerror(status: c_int) -> *const c_char {
    entry(status).map_or(c"unknown status".as_ptr(), |(_, _, text)| text.as_ptr().cast())
}

/// Returns the name of a status, such as "SP_ERROR_SPACE".
///
/// \param status any number; an unknown status results in "SP_UNKNOWN".
/// \return a static string, never NULL.
/// \note Any thread may call it at any time.
#[unsafe(no_mangle)]
pub extern "C" fn sp_errname(status: c_int) -> *const c_char {
    entry(status).map_or(c"SP_UNKNOWN".as_ptr(), |(_, name, _)| name.as_ptr().cast())
}

/// Writes the details of the last failed call on this thread: which argument, which length, and the
/// expected value.
///
/// As with snprintf(3), the text is truncated to fit, and ends with a zero byte unless `size` is 0.
///
/// \param text the caller's memory; may be NULL if `size` is 0.
/// \param size size of the memory in bytes.
/// \return the length of the whole text, without the zero byte.
/// \note Any thread may call it at any time, for its own calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sp_message(text: *mut c_char, size: usize) -> usize {
    let size = if text.is_null() { 0 } else { size };
    let mut out = Text { place: text.cast(), room: size.saturating_sub(1), length: 0 };
    // The writer never returns an error: text that does not fit is dropped.
    let _ = write!(out, "{}", LAST.get());
    if size > 0 {
        // SAFETY: `size` is at least 1, and `written` at most `size - 1`: so the byte is in the
        // caller's memory.
        unsafe { out.place.add(out.length.min(out.room)).write(MaybeUninit::new(0)) };
    }
    out.length
}

/// A writer of text to the caller's memory. Text that does not fit is cut off.
struct Text {
    place: *mut MaybeUninit<u8>,
    room: usize,
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let fits = text.len().min(self.room.saturating_sub(self.length));
        if fits > 0 {
            // SAFETY: `place` has `room` bytes of the caller's memory, and `length + fits` is at
            // most `room`. The library's own text does not overlap them.
            unsafe {
                ptr::copy_nonoverlapping(text.as_ptr().cast(), self.place.add(self.length), fits)
            };
        }
        self.length += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn every_status_has_its_name_and_a_text() {
        for (index, (status, name, text)) in STATUSES.iter().enumerate() {
            assert_eq!(format!("{status:?}\0"), **name);
            assert!(
                CStr::from_bytes_with_nul(text.as_bytes()).is_ok_and(|text| !text.is_empty()),
                "{name}"
            );
            assert!(STATUSES[..index].iter().all(|(other, ..)| other != status), "{name} twice");
        }
    }

    #[test]
    fn messages_name_the_cause_and_write_addresses_in_hexadecimal() {
        let address = 0x1001;
        for (failure, status, text) in [
            (
                Failure::Alignment { what: "packets", address, alignment: 8 },
                SP_ERROR_ARGUMENT,
                "packets is 0x1001, which is not aligned: it must be a multiple of 8",
            ),
            (
                Failure::Overlap {
                    first: "to",
                    first_address: address,
                    second: "from",
                    second_address: 0x1000,
                    length: 7,
                },
                SP_ERROR_ARGUMENT,
                "to and from overlap: 7 bytes at 0x1001 and at 0x1000",
            ),
            (
                Failure::Wraps { what: "read", address, length: 7 },
                SP_ERROR_LENGTH,
                "read: 7 bytes at 0x1001 reach beyond the end of the address space",
            ),
            (
                Failure::Busy,
                SP_ERROR_BUSY,
                "the object is in use by another call: one thread at a time may use it",
            ),
        ] {
            assert_eq!((failure.status(), failure.to_string().as_str()), (status, text));
        }
    }

    #[test]
    fn a_message_is_cut_to_fit() {
        assert_eq!(failed(Failure::Null("packets")), SP_ERROR_NULL);
        let mut text = [1 as c_char; 20];
        // SAFETY: the array has at least 20 bytes.
        let length = unsafe { sp_message(text.as_mut_ptr(), 20) };
        assert_eq!(length, "packets is NULL".len());
        // SAFETY: `sp_message` has written a zero byte.
        assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"packets is NULL");
        // SAFETY: as above.
        assert_eq!(unsafe { sp_message(text.as_mut_ptr(), 4) }, length);
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"pac");
        // SAFETY: nothing is written to NULL.
        assert_eq!(unsafe { sp_message(ptr::null_mut(), 4) }, length);
    }
}
