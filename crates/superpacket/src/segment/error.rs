//! Errors of segmentation.

use super::GsoKind;
use crate::checksum::CompletionError;
use crate::wire::{IpVersion, Protocol, Refusal};

/// The reason why a packet was not segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The headers could not be parsed up to the payload.
    #[error("the headers cannot be read: {0}")]
    Headers(Refusal),
    /// The protocol or IP version in the headers does not match the requested kind of segments.
    #[error("{kind:?} segments cannot be cut from a packet of {protocol:?} over IP{version:?}")]
    Kind {
        /// The requested kind of segments.
        kind: GsoKind,
        /// Version of the innermost IP header.
        version: IpVersion,
        /// The transport protocol in the headers.
        protocol: Protocol,
    },
    /// An IP length reaches beyond the end of the packet.
    #[error("an IP length ends the packet at byte {needed}, but there are {got}")]
    Truncated {
        /// End of the packet by its length field, in bytes from the start of the frame.
        needed: usize,
        /// Length of the packet in bytes.
        got: usize,
    },
    /// A length field contradicts the length of the header around it: UDP, PPPoE, an IP packet in a
    /// tunnel, a jumbo payload option.
    #[error("an inner length field says {got} bytes, {needed} were expected")]
    Length {
        /// The length in bytes that remains for the inner header and its contents, according to the
        /// outer header.
        needed: usize,
        /// The length in bytes that the inner length field says.
        got: usize,
    },
    /// The packet would have more segments than the limit.
    #[error("{needed} segments are needed, at most {limit} are allowed")]
    TooManySegments {
        /// Number of segments that the packet needs.
        needed: u32,
        /// Number of segments that are allowed.
        limit: u32,
    },
    /// A segment would be too long for its length fields.
    #[error("a segment of {needed} bytes does not fit a length field of {limit}")]
    SegmentTooLong {
        /// Length in bytes that the field would have to hold.
        needed: usize,
        /// Maximum length in bytes that the field can hold.
        limit: usize,
    },
    /// A segment is too small: a fragment below 8 bytes or below the headers that it must hold, or
    /// an MTU below the headers.
    #[error("a segment has room for {got} bytes, {needed} are needed")]
    SegmentTooSmall {
        /// The minimum size in bytes.
        needed: usize,
        /// The requested size in bytes.
        got: usize,
    },
    /// The DCCP checksum covers more payload than the shortest segment has.
    #[error("the checksum covers {needed} bytes of payload, a segment has {got}")]
    Coverage {
        /// Number of payload bytes that the checksum covers.
        needed: usize,
        /// Length of the shortest segment's payload in bytes.
        got: usize,
    },
    /// The packet must not be fragmented: it has the don't-fragment bit, or is IPv6 and the caller
    /// gave no identification.
    #[error("the packet must not be fragmented")]
    DontFragment,
    /// The field of a partial checksum lies outside the packet, or beyond the headers that are
    /// read.
    #[error("a partial checksum ends at byte {needed}, but {got} can be reached")]
    ChecksumPlace {
        /// End of the checksum field, in bytes from the start of the packet.
        needed: usize,
        /// End of the bytes that can be read, in bytes from the start of the packet.
        got: usize,
    },
    /// A partial checksum cannot be completed.
    #[error("a partial checksum cannot be completed: {0}")]
    PartialChecksum(CompletionError),
    /// The separate header of the packet ([`Segmentable::header`](super::Segmentable::header)) is
    /// longer than the headers that were parsed, so it contains payload.
    #[error("the header has {got} bytes, {needed} were parsed")]
    HeaderLength {
        /// Length of the headers that were parsed, in bytes.
        needed: usize,
        /// Length of the packet's own header, in bytes.
        got: usize,
    },
    /// The caller's buffers are too small for the segments.
    #[error("{needed} bytes are needed for the segments, there is room for {got}")]
    OutputTooSmall {
        /// Number of bytes that the segments need.
        needed: usize,
        /// Number of bytes that the buffers have.
        got: usize,
    },
}

impl SegmentError {
    /// Number of kinds of errors.
    pub const COUNT: usize = Self::NAMES.len();

    /// Names that reports and JSON use, in the order of [`number`](Self::number).
    pub const NAMES: [&'static str; 13] = [
        "headers",
        "kind",
        "truncated",
        "length",
        "too_many_segments",
        "segment_too_long",
        "segment_too_small",
        "coverage",
        "dont_fragment",
        "checksum_place",
        "header_length",
        "output_too_small",
        "partial_checksum",
    ];

    /// Returns the number of this kind of error, from 0: the index of its counter.
    pub const fn number(&self) -> usize {
        match self {
            SegmentError::Headers(_) => 0,
            SegmentError::Kind { .. } => 1,
            SegmentError::Truncated { .. } => 2,
            SegmentError::Length { .. } => 3,
            SegmentError::TooManySegments { .. } => 4,
            SegmentError::SegmentTooLong { .. } => 5,
            SegmentError::SegmentTooSmall { .. } => 6,
            SegmentError::Coverage { .. } => 7,
            SegmentError::DontFragment => 8,
            SegmentError::ChecksumPlace { .. } => 9,
            SegmentError::HeaderLength { .. } => 10,
            SegmentError::OutputTooSmall { .. } => 11,
            SegmentError::PartialChecksum(_) => 12,
        }
    }

    /// Returns the name that reports and JSON use.
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.number()]
    }
}

impl From<CompletionError> for SegmentError {
    fn from(error: CompletionError) -> Self {
        match error {
            CompletionError::Place { needed, got } => SegmentError::ChecksumPlace { needed, got },
            other => SegmentError::PartialChecksum(other),
        }
    }
}
