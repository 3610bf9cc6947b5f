//! Capture files: pcap and pcapng, plain or compressed, as streams.
//!
//! [`Reader`] returns one frame after the other, each valid until the next is read, from a window
//! over the file. [`Writer`] takes frames as lists of slices. Both need constant memory, whatever
//! the file's size, and allocate nothing per frame.
//!
//! ```text
//! file or stdin -> gzip / zstd -> window (256 KiB) -> pcap or pcapng records -> Frame<'_>
//! Record + slices -> pcap or pcapng records -> buffer (256 KiB) -> gzip / zstd -> temporary file -> rename
//! ```
//!
//! | read | |
//! | --- | --- |
//! | pcap | microseconds, nanoseconds, Kuznetzov's "modified" records; both byte orders; versions 2.0 to 2.4 |
//! | pcapng | several sections and interfaces, both byte orders, `if_tsresol`, `if_tsoffset`; Enhanced, Simple and (obsolete) Packet Blocks |
//! | compression | gzip (also several members), zstd (also several frames; windows up to 8 MiB), found by magic number |
//!
//! The modified format is written with its additional fields. A zstd window above 8 MiB (`zstd
//! --ultra -20` and above, `--long`) is refused, since decoding takes twice that memory.
//!
//! [`Source::next_frame`] skips pcapng blocks without packets (names, statistics, secrets,
//! custom, section headers). [`Reader::next_item`] returns them in their place, and
//! [`Writer::block`] writes them. All sections become one: [`Frame::interface`] counts over the
//! whole file.
//!
//! # Broken files
//! - If a file ends within a record, or within its compressed stream, all earlier records are
//!   delivered, and [`Source::truncated`] then returns the position. The caller decides whether
//!   that is an error.
//! - Every other defect is a [`CaptureError`] with file, packet number, byte offset (after
//!   decompression) and reason.
//! - No length in a file is trusted: a record above [`MAX_RECORD_LENGTH`] is refused, and the
//!   window grows only as bytes arrive.
//!
//! # Why not an existing parser
//! Published parsers own or copy the payload of each packet, so a super-packet would have to be
//! joined first. They refuse some records that existing programs write (longer than the snap
//! length, or with a fraction of a second above one). They do not distinguish truncated from
//! malformed files, give no byte offset, and do not keep the file's unit of time.
//!
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng,
//! <https://www.tcpdump.org/linktypes.html>; libpcap's `sf-pcap.c` for old versions and the
//! modified format.

mod block;
mod byte_order;
mod compress;
mod declared;
mod decompress;
mod destination;
mod error;
mod format;
mod interface;
mod link_type;
#[cfg(feature = "commands")]
mod live;
mod option;
mod output;
mod pcap_reader;
mod pcap_writer;
mod pcapng_reader;
mod pcapng_writer;
mod reader;
mod record;
mod tcp;
mod time;
mod window;
mod writer;

pub use block::{Block, BlockCounts, BlockKind, Item};
pub use byte_order::ByteOrder;
#[cfg(unix)]
pub use destination::replace_file;
pub use destination::{OutputFile, can_write_file, remove_unfinished, same_file, write_file};
#[doc(hidden)]
pub use destination::{OutputPlace, open_special};
pub use error::{CaptureError, Truncated};
pub use format::{Compression, Container, Format, OutputFormat, PcapVariant, check_output_name};
pub use interface::{Interface, InterfaceStatistics};
pub use link_type::{LinkType, Start, start_of};
#[cfg(feature = "commands")]
pub(crate) use live::RecordStream;
pub use option::{Direction, FrameOptions, OptionForm, OptionList};
pub use reader::{CapturePosition, Reader};
pub use record::{Frame, Record, Sink, Source};
#[cfg(feature = "commands")]
pub(crate) use tcp::TcpEnd;
pub use time::{TimeResolution, Timestamp};
pub use writer::Writer;

/// Maximum length of a record in bytes, headers included. It bounds the memory that this crate
/// allocates because of one length field.
pub const MAX_RECORD_LENGTH: usize = 16_000_000;
