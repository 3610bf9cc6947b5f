//! Errors of reading and writing capture files.

use std::fmt;
use std::io;

use super::LinkType;

/// An error of reading or writing a capture file.
///
/// `file` is the name by which the file was opened (`standard input` or `standard output` for `-`).
/// `packet` is the number, from 1, of the packet that was being read. `offset` is the position of
/// the first byte of the packet's record, after decompression.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be opened, or the TCP connection to the given address failed.
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
        /// What the file is instead, if that is known.
        reason: String,
    },
    /// The file has a version or property that cannot be read.
    #[error("{file}: packet {packet}, byte {offset}: not supported: {reason}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// Number of the packet that was being read, from 1.
        packet: u64,
        /// Position of the first byte of the record.
        offset: u64,
        /// The version or property that is not supported.
        reason: String,
    },
    /// The bytes at this position cannot be a record of a capture file.
    #[error("{file}: packet {packet}, byte {offset}: {reason}")]
    Malformed {
        /// The file's name.
        file: String,
        /// Number of the packet that was being read, from 1.
        packet: u64,
        /// Position of the first byte of the record.
        offset: u64,
        /// The rule of the format that the bytes violate.
        reason: String,
    },
    /// A record claims to be longer than [`MAX_RECORD_LENGTH`](super::MAX_RECORD_LENGTH).
    #[error(
        "{file}: packet {packet}, byte {offset}: record claims {claimed} bytes, more than the limit of {limit}"
    )]
    RecordTooLong {
        /// The file's name.
        file: String,
        /// Number of the packet that was being read, from 1.
        packet: u64,
        /// Position of the first byte of the record.
        offset: u64,
        /// The length that the record's header states, in bytes.
        claimed: u64,
        /// The maximum length, in bytes.
        limit: u64,
    },
    /// The system failed to read the file.
    #[error("{file}: packet {packet}, byte {offset}: cannot be read: {source}")]
    Read {
        /// The file's name.
        file: String,
        /// Number of the packet that was being read, from 1.
        packet: u64,
        /// Position of the first byte of the record.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The output file could not be created.
    #[error("{file}: cannot be created: {source}")]
    Create {
        /// The file's name.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// The output file could not be written, or not be renamed when it was complete.
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
        /// Number of the frame in the output file, from 1.
        packet: u64,
        /// The link type of the frames before.
        first: LinkType,
        /// The link type of this frame.
        other: LinkType,
    },
    /// A frame belongs to an interface that was not declared to the writer.
    #[error("{file}: packet {packet} names interface {interface}, which was not declared")]
    UnknownInterface {
        /// The file's name.
        file: String,
        /// Number of the frame in the output file, from 1.
        packet: u64,
        /// The interface index of the frame.
        interface: u32,
    },
    /// The timestamp of a frame cannot be represented in the format of the output file.
    #[error("{file}: packet {packet}: its time cannot be expressed in this format")]
    Time {
        /// The file's name.
        file: String,
        /// Number of the frame in the output file, from 1.
        packet: u64,
    },
    /// A frame is longer than readers of the file would accept.
    #[error("{file}: packet {packet}: a frame of {length} bytes is above the limit of {limit}")]
    FrameTooLong {
        /// The file's name.
        file: String,
        /// Number of the frame in the output file, from 1.
        packet: u64,
        /// The frame's length, in bytes.
        length: usize,
        /// The maximum length, in bytes.
        limit: usize,
    },
}

impl CaptureError {
    /// Returns whether no data is available at present ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    /// Reading can continue later.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::WouldBlock)
    }
}

/// The place at which a file ends in the middle of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// The file's name.
    pub file: String,
    /// Number of the incomplete packet, from 1; all packets before it were delivered.
    pub packet: u64,
    /// Position of the first byte of the incomplete record, after decompression.
    pub offset: u64,
    /// What exists of the record, in words.
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

/// An error of reading, before the names of file, packet and offset are added.
#[derive(Debug)]
pub(super) enum ReadFault {
    /// The file ends within the record.
    Truncated(String),
    /// The bytes violate a rule of the format.
    Malformed(String),
    /// The bytes are valid, but of a kind that is not supported.
    Unsupported(String),
    /// The record is too long: its header states this number of bytes.
    RecordTooLong(u64),
    /// An error of the system.
    Io(io::Error),
}

impl From<io::Error> for ReadFault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The decompressors report bytes that they cannot decompress with these kinds of
            // errors.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                Self::Malformed(error.to_string())
            }
            io::ErrorKind::Unsupported => Self::Unsupported(error.to_string()),
            _ => Self::Io(error),
        }
    }
}

impl ReadFault {
    /// Returns whether no data is available at present ([`WouldBlock`](io::ErrorKind::WouldBlock)).
    pub(super) fn is_would_block(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Converts the fault to the public error type, or to `Err(Truncated)` if the file is
    /// truncated, which callers do not get as an error.
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
