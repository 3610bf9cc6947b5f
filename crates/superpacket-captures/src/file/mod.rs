//! Capture files: pcap and pcapng, plain or compressed, as streams.
//!
//! [`Reader`] lends one frame at a time from a window over the file, and [`Writer`] takes frames as
//! lists of slices; both use constant memory, whatever the file's size, and allocate nothing per
//! frame.
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
//! The modified format is written as such, with what its records add. A zstd window above 8 MiB
//! (`zstd --ultra -20` and beyond, `--long`) is refused, as it takes twice that of memory.
//!
//! Blocks of a pcapng file that hold no packets (name resolution, statistics, secrets, custom) are
//! skipped and not written again. Sections are flattened into one: [`Frame::interface`] counts over
//! the whole file.
//!
//! # A broken file
//! - Cut in mid-record (or in mid-stream of its compression): every record before is delivered,
//!   then the end, and [`Source::truncated`] says where. The caller decides what that is worth.
//! - Anything else that is wrong is a [`CaptureError`] naming file, packet number, byte offset and
//!   reason. The byte offset counts bytes after decompression.
//! - No length in a file is believed: a record above [`MAX_RECORD_LENGTH`] is refused, and the
//!   window grows only as bytes really arrive.
//!
//! # Why the block framing is our own
//! The published parsers own or copy a packet's payload on the way out, so that a super-packet must
//! first be joined; they refuse records that real writers make (longer than the snap length, a
//! fraction above one second); they report a cut file and a garbled one alike, without the byte
//! offset; and they do not keep the file's own time units. The framing of both formats is small
//! enough to be written for these promises.
//!
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng,
//! <https://www.tcpdump.org/linktypes.html>; libpcap's `sf-pcap.c` for old versions and the
//! modified format.

mod byte_order;
mod compress;
mod declared;
mod decompress;
mod destination;
mod error;
mod format;
mod interface;
mod link_type;
mod option;
mod output;
mod pcap_reader;
mod pcap_writer;
mod pcapng_reader;
mod pcapng_writer;
mod reader;
mod record;
mod time;
mod window;
mod writer;

pub use byte_order::ByteOrder;
#[cfg(unix)]
pub use destination::replace_file;
#[doc(hidden)]
pub use destination::{OutputPlace, open_special};
pub use destination::{can_write_file, remove_unfinished, same_file, write_file};
pub use error::{CaptureError, Truncated};
pub use format::{Compression, Container, Format, OutputFormat, PcapVariant};
pub use interface::{Interface, InterfaceStatistics};
pub use link_type::{LinkType, Start, start_of};
pub use option::{Direction, FrameOptions, OptionForm, OptionList};
pub use reader::{Place, Reader};
pub use record::{Frame, Record, Sink, Source};
pub use time::{TimeResolution, Timestamp};
pub use writer::Writer;

/// The longest record read or written, in bytes, headers included: what one length field can at
/// most make this crate allocate.
pub const MAX_RECORD_LENGTH: usize = 16_000_000;
