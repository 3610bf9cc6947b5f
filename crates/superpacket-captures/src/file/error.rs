//! What can be wrong with a capture file, as values a caller can act on and print.

use std::fmt;
use std::io;

use super::LinkType;

/// Why a capture file could not be read or written.
///
/// `file` is the name it was opened by (`standard input` or `standard output` for `-`), `packet`
/// the 1-based number of the packet that was being read, `offset` the byte where its record begins
/// (after decompression).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be opened.
    #[error("{file}: cannot be opened: {source}")]
    Open {
        /// The file's name.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file is something else than pcap or pcapng.
    #[error("{file}: not a capture file: {reason}")]
    NotCapture {
        /// The file's name.
        file: String,
        /// What it is instead, where known.
        reason: String,
    },
    /// A capture file of a version or with a property that cannot be read.
    #[error("{file}: packet {packet}, byte {offset}: not supported: {reason}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// What is not supported.
        reason: String,
    },
    /// Bytes that cannot be a record at this place.
    #[error("{file}: packet {packet}, byte {offset}: {reason}")]
    Malformed {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// Which rule the bytes break.
        reason: String,
    },
    /// A record that claims to be longer than [`MAX_RECORD_LENGTH`](super::MAX_RECORD_LENGTH).
    #[error(
        "{file}: packet {packet}, byte {offset}: record claims {claimed} bytes, more than the limit of {limit}"
    )]
    RecordTooLong {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// The length in the record's header, in bytes.
        claimed: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The system could not read on.
    #[error("{file}: packet {packet}, byte {offset}: cannot be read: {source}")]
    Read {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The output could not be created.
    #[error("{file}: cannot be created: {source}")]
    Create {
        /// The file's name.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The output could not be written, or not be put in its place.
    #[error("{file}: cannot be written: {source}")]
    Write {
        /// The file's name.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A pcap file has one link type, the frames have several.
    #[error(
        "{file}: a pcap file holds one link type, but packet {packet} is {other} after {first}: write pcapng"
    )]
    SeveralLinkTypes {
        /// The file's name.
        file: String,
        /// The number of the frame in the output.
        packet: u64,
        /// The link type of the frames so far.
        first: LinkType,
        /// This frame's.
        other: LinkType,
    },
    /// A frame of an interface that was not declared to the writer.
    #[error("{file}: packet {packet} names interface {interface}, which was not declared")]
    UnknownInterface {
        /// The file's name.
        file: String,
        /// The number of the frame in the output.
        packet: u64,
        /// The index it named.
        interface: u32,
    },
    /// A frame whose time the output's format cannot express.
    #[error("{file}: packet {packet}: its time cannot be expressed in this format")]
    Time {
        /// The file's name.
        file: String,
        /// The number of the frame in the output.
        packet: u64,
    },
    /// A frame too long to be written, since it could not be read again.
    #[error("{file}: packet {packet}: a frame of {length} bytes is above the limit of {limit}")]
    FrameTooLong {
        /// The file's name.
        file: String,
        /// The number of the frame in the output.
        packet: u64,
        /// The frame's length, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
}

/// Where a file ends in the middle of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// The file's name.
    pub file: String,
    /// The number that the cut packet would have had; all before it were delivered.
    pub packet: u64,
    /// Where the cut record begins, in bytes after decompression.
    pub offset: u64,
    /// What is there of it.
    pub reason: String,
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, packet, offset, reason } = self;
        write!(
            f,
            "{file}: cut short in packet {packet}, whose record begins at byte {offset}: {reason}"
        )
    }
}

/// A fault found while reading, before the file, the packet and the offset are put to it.
#[derive(Debug)]
pub(super) enum Fault {
    /// The file ends within the record.
    Truncated(String),
    /// The bytes break a rule.
    Malformed(String),
    /// The bytes are right, but of a kind that is not read.
    Unsupported(String),
    /// The record claims this many bytes.
    RecordTooLong(u64),
    /// The system's error.
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // What the decompressors say of bytes that they cannot decode.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Self::Malformed(error.to_string())
            }
            io::ErrorKind::Unsupported => Self::Unsupported(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

impl Fault {
    /// The error for the caller; `None` for a cut file, which is not one.
    pub(super) fn into_error(
        self,
        file: &str,
        packet: u64,
        offset: u64,
    ) -> Result<CaptureError, Truncated> {
        let file = file.to_owned();
        Ok(match self {
            Self::Truncated(reason) => return Err(Truncated { file, packet, offset, reason }),
            Self::Malformed(reason) => CaptureError::Malformed { file, packet, offset, reason },
            Self::Unsupported(reason) => CaptureError::Unsupported { file, packet, offset, reason },
            Self::RecordTooLong(claimed) => CaptureError::RecordTooLong {
                file,
                packet,
                offset,
                claimed,
                limit: super::MAX_RECORD_LENGTH as u64,
            },
            Self::Io(source) => CaptureError::Read { file, packet, offset, source },
        })
    }
}
