//! Formats of capture files, and which one an output gets.

use std::path::Path;

use super::{ByteOrder, TimeResolution};

/// A capture file's format, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A pcap file.
    Pcap {
        /// Of the file's own fields.
        byte_order: ByteOrder,
        /// What its magic number says.
        variant: PcapVariant,
    },
    /// A pcapng file.
    PcapNg {
        /// Of the first section.
        byte_order: ByteOrder,
    },
}

/// The kinds of pcap file, each with its magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcapVariant {
    /// Times in microseconds: 0xA1B2C3D4.
    Microseconds,
    /// Times in nanoseconds: 0xA1B23C4D.
    Nanoseconds,
    /// Kuznetzov's: microseconds, and 8 bytes more in each record header (interface index,
    /// protocol, packet type): 0xA1B2CD34.
    Modified,
}

impl PcapVariant {
    pub(super) fn resolution(self) -> TimeResolution {
        match self {
            Self::Microseconds | Self::Modified => TimeResolution::MICROSECONDS,
            Self::Nanoseconds => TimeResolution::NANOSECONDS,
        }
    }
}

/// The two families of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// pcap: one link type, one unit of time.
    Pcap,
    /// pcapng: interfaces with a unit of time each.
    PcapNg,
}

/// How a capture file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip (RFC 1952).
    Gzip,
    /// zstd (RFC 8878).
    Zstd,
}

/// What a [`Writer`](super::Writer) writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFormat {
    /// pcap or pcapng.
    pub container: Container,
    /// Of the file's own fields.
    pub byte_order: ByteOrder,
    /// The unit of a pcap file's times; `None`: microseconds if that is enough for all interfaces
    /// declared before the first frame, else nanoseconds. pcapng keeps each interface's own unit.
    pub resolution: Option<PcapVariant>,
    /// Of the whole file.
    pub compression: Compression,
}

impl OutputFormat {
    /// The format of an input, uncompressed.
    pub fn like(input: Format) -> Self {
        match input {
            Format::Pcap { byte_order, variant } => {
                let resolution = Some(variant);
                Self {
                    container: Container::Pcap,
                    byte_order,
                    resolution,
                    compression: Compression::None,
                }
            }
            Format::PcapNg { byte_order } => Self {
                container: Container::PcapNg,
                byte_order,
                resolution: None,
                compression: Compression::None,
            },
        }
    }

    /// The format that the ending of `path` asks for: `.pcap` or `.pcapng`, then perhaps `.gz` or
    /// `.zst`, in any case. What the ending leaves open is as in `input`, except the compression:
    /// none unless the ending asks for it.
    pub fn for_path(path: impl AsRef<Path>, input: Format) -> Self {
        let mut output = Self::like(input);
        let name =
            path.as_ref().file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
        let mut name = name.as_deref().unwrap_or_default();
        for (ending, compression) in [(".gz", Compression::Gzip), (".zst", Compression::Zstd)] {
            if let Some(rest) = name.strip_suffix(ending) {
                name = rest;
                output.compression = compression;
                break;
            }
        }
        if name.ends_with(".pcap") {
            output.container = Container::Pcap;
        } else if name.ends_with(".pcapng") {
            output.container = Container::PcapNg;
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCAP: Format =
        Format::Pcap { byte_order: ByteOrder::Big, variant: PcapVariant::Nanoseconds };
    const PCAPNG: Format = Format::PcapNg { byte_order: ByteOrder::Little };

    #[test]
    fn the_ending_decides_and_the_input_fills_in() {
        let of = |path, input| OutputFormat::for_path(path, input);
        assert_eq!(of("a/b.PCAP", PCAP), OutputFormat::like(PCAP));
        assert_eq!(of("b", PCAP), OutputFormat::like(PCAP));
        assert_eq!(of("-", PCAPNG), OutputFormat::like(PCAPNG));
        assert_eq!(of("b.cap", PCAPNG).container, Container::PcapNg);
        let pcap = of("b.pcap.gz", PCAPNG);
        assert_eq!(
            (pcap.container, pcap.resolution, pcap.compression),
            (Container::Pcap, None, Compression::Gzip)
        );
        let pcapng = of("x.pcapng.zst", PCAP);
        assert_eq!(pcapng.container, Container::PcapNg);
        assert_eq!((pcapng.byte_order, pcapng.compression), (ByteOrder::Big, Compression::Zstd));
    }
}
