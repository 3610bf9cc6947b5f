//! Where superpacket's frames come from and where they go.
//!
//! The engine (crate `superpacket`) does no input or output. This crate does it: capture files, read and
//! written as streams ([`capture`]), and, on Linux, live ports ([`port`]): TAP and TUN devices, packet sockets, AF_XDP, links in memory, and a model
//! of a network card.
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

pub mod capture;
#[cfg(target_os = "linux")]
pub mod port;
