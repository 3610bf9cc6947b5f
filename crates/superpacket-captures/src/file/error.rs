//! Errors of reading and writing capture files.

use std::fmt;
use std::io;

use super::LinkType;

/// An error of reading or writing a capture file.
///
/// `file` is the name by which it was opened (`standard input` or `standard output` for `-`).
/// `packet` is the number of the packet being read, from 1. `offset` is the first byte of its
/// record, after decompression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be opened.
    #[error("{file}: cannot be opened: {source}")]
    Open {
        /// The file's name.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file is neither pcap nor pcapng.
    #[error("{file}: not a capture file: {reason}")]
    NotCapture {
        /// The file's name.
        file: String,
        /// The file's actual format, if known.
        reason: String,
    },
    /// The file has a version or property that cannot be read.
    #[error("{file}: packet {packet}, byte {offset}: not supported: {reason}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// The unsupported property.
        reason: String,
    },
    /// The bytes cannot be a record at this position.
    #[error("{file}: packet {packet}, byte {offset}: {reason}")]
    Malformed {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// The rule that the bytes violate.
        reason: String,
    },
    /// A record claims to be longer than [`MAX_RECORD_LENGTH`](super::MAX_RECORD_LENGTH).
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
    /// The system failed to read the file.
    #[error("{file}: packet {packet}, byte {offset}: cannot be read: {source}")]
    Read {
        /// The file's name.
        file: String,
        /// The packet's number.
        packet: u64,
        /// The record's first byte.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The output could not be created.
    #[error("{file}: cannot be created: {source}")]
    Create {
        /// The file's name.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The output could not be written, or the complete file could not be renamed.
    #[error("{file}: cannot be written: {source}")]
    Write {
        /// The file's name.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The frames have several link types, but a pcap file can have only one.
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
        /// The link type of this frame.
        other: LinkType,
    },
    /// A frame belongs to an interface that was not declared to the writer.
    #[error("{file}: packet {packet} names interface {interface}, which was not declared")]
    UnknownInterface {
        /// The file's name.
        file: String,
        /// The number of the frame in the output.
        packet: u64,
        /// The index that the frame gave.
        interface: u32,
    },
    /// A frame's time cannot be expressed in the output's format.
    #[error("{file}: packet {packet}: its time cannot be expressed in this format")]
    Time {
        /// The file's name.
        file: String,
        /// The number of the frame in the output.
        packet: u64,
    },
    /// A frame is longer than a reader would accept.
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

/// The position at which a file ends in the middle of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// The file's name.
    pub file: String,
    /// The number of the incomplete packet; all packets before it were delivered.
    pub packet: u64,
    /// First byte of the incomplete record, after decompression.
    pub offset: u64,
    /// A description of the part that exists.
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

/// An error found while reading, before file, packet and offset are added.
#[derive(Debug)]
pub(super) enum ReadFault {
    /// The file ends within the record.
    Truncated(String),
    /// The bytes violate a rule of the format.
    Malformed(String),
    /// The bytes are valid, but of a kind that is not supported.
    Unsupported(String),
    /// The record claims this many bytes.
    RecordTooLong(u64),
    /// An error of the system.
    Io(io::Error),
}

impl From<io::Error> for ReadFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The decompressors report undecodable bytes with these kinds.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Self::Malformed(error.to_string())
            }
            io::ErrorKind::Unsupported => Self::Unsupported(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

impl ReadFault {
    /// Converts this to the caller's error, or to `Err(Truncated)`: a truncated file is not an
    /// error.
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
