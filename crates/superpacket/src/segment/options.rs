//! Options of segmentation.

use super::{Gso, MaxSegments};

/// The form of the segments' transport checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumOutput {
    /// The complete checksum.
    #[default]
    Full,
    /// The sum of the pseudo-header with the segment's length, not inverted; a device computes the
    /// rest. IP fragments, which no device completes, have complete checksums.
    Partial,
    /// The form that the checksums had in the packets that were merged ([`Gso::checksum`]). A
    /// packet that is delivered unchanged keeps its own form.
    AsMerged,
}

/// Options for segmenting one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentOptions {
    /// How to segment the packet, instead of as its own metadata says; `None` to follow its
    /// metadata.
    pub gso: Option<Gso>,
    /// Form of the segments' checksums.
    pub checksum: ChecksumOutput,
    /// Maximum number of segments; a packet that needs more is refused.
    pub max_segments: MaxSegments,
    /// Identification of IPv6 fragments (RFC 8200, section 4.5), which the caller must not repeat.
    /// 0 lets the segmenter choose one. Its identifications differ from each other and, with high
    /// probability, from those of other segmenters (RFC 7739); without `os-random` all segmenters
    /// use the same ones.
    pub fragment_id: u32,
}

impl Default for SegmentOptions {
    fn default() -> Self {
        SegmentOptions {
            gso: None,
            checksum: ChecksumOutput::Full,
            max_segments: MaxSegments::ANY,
            fragment_id: 0,
        }
    }
}

impl SegmentOptions {
    /// Returns the options with segmentation as `gso` says, instead of as the packet's own metadata
    /// says.
    #[inline]
    #[must_use]
    pub const fn with_gso(self, gso: Gso) -> Self {
        SegmentOptions { gso: Some(gso), ..self }
    }

    /// Returns the options with this form of the segments' checksums.
    #[inline]
    #[must_use]
    pub const fn with_checksum(self, checksum: ChecksumOutput) -> Self {
        SegmentOptions { checksum, ..self }
    }

    /// Returns the options with this limit of segments.
    #[inline]
    #[must_use]
    pub const fn with_max_segments(self, max_segments: MaxSegments) -> Self {
        SegmentOptions { max_segments, ..self }
    }

    /// Returns the options with this identification of IPv6 fragments; with 0, the segmenter
    /// chooses one.
    #[inline]
    #[must_use]
    pub const fn with_fragment_id(self, fragment_id: u32) -> Self {
        SegmentOptions { fragment_id, ..self }
    }
}
