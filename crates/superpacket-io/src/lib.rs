//! Where superpacket's frames come from and where they go.
//!
//! The engine (crate `superpacket`) does no input or output. This crate does it: today capture files, read and
//! written as streams ([`capture`]).
//!
//! ```no_run
//! use superpacket_io::capture::{OutputFormat, Reader, Sink, Source, Writer};
//!
//! # fn main() -> Result<(), superpacket_io::capture::CaptureError> {
//! let mut reader = Reader::open("in.pcap.gz")?;
//! let mut writer = Writer::create("out.pcapng", OutputFormat::for_path("out.pcapng", reader.format()))?;
//! while let Some(frame) = reader.next_frame()? {
//!     writer.copy(&frame)?;
//! }
//! writer.finish()?;
//! if let Some(truncated) = reader.truncated() {
//!     eprintln!("warning: {truncated}");
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod capture;
