//! Formats of capture files, and how the format of an output file is chosen.

use std::path::Path;

use super::{ByteOrder, TimeResolution};

/// The format of a capture file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A pcap file.
    Pcap {
        /// Byte order of the file's own fields.
        byte_order: ByteOrder,
        /// The variant of pcap, which the file's first bytes tell.
        variant: PcapVariant,
    },
    /// A pcapng file.
    PcapNg {
        /// Byte order of the first section.
        byte_order: ByteOrder,
    },
}

/// The variants of pcap files, each with its magic number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcapVariant {
    /// Magic number 0xA1B2C3D4: times are in microseconds.
    Microseconds,
    /// Magic number 0xA1B23C4D: times are in nanoseconds.
    Nanoseconds,
    /// Magic number 0xA1B2CD34: Kuznetzov's "modified" format. Times are in microseconds, and each
    /// record header has 8 more bytes (interface index, protocol, packet type).
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

/// The type of a capture file, without its compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// pcap: one link type and one unit of time per file.
    Pcap,
    /// pcapng: several interfaces, each with a link type and a unit of time.
    PcapNg,
}

/// The compression of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip (RFC 1952).
    Gzip,
    /// zstd (RFC 8878).
    Zstd,
}

/// The format that a [`Writer`](super::Writer) writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFormat {
    /// Whether the file is pcap or pcapng.
    pub container: Container,
    /// Byte order of the file's own fields.
    pub byte_order: ByteOrder,
    /// The variant of a pcap file, which determines its unit of time. `None` means microseconds if
    /// these can express the times of all interfaces declared before the first frame, otherwise
    /// nanoseconds. A pcapng file keeps the unit of each interface.
    pub resolution: Option<PcapVariant>,
    /// Compression of the whole file.
    pub compression: Compression,
}

impl OutputFormat {
    /// Returns the format of an input file, but without compression.
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

    /// Returns the format for an output file at `path`. Its suffix `.pcap` or `.pcapng` selects the
    /// type of file, and a following `.gz` or `.zst` the compression, in upper or lower case. What
    /// the suffix does not say is as in `input`, but without compression.
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

/// File name extensions of formats and compressions that cannot be written.
const OTHER_ENDINGS: [&str; 36] = [
    "xz", "lzma", "bz2", "lz", "lz4", "lzo", "br", "z", "7z", "zip", "rar", "tar", "tgz", "tzst",
    "gzip", "zstd", "snoop", "erf", "lcap", "5vw", "blf", "txt", "md", "csv", "tsv", "json",
    "jsonl", "html", "htm", "xml", "pdml", "psml", "pdf", "svg", "png", "parquet",
];

/// Returns the extension of the file name, without a final `.gz` or `.zst`, if it stands for a
/// format that cannot be written, as in `out.pcap.xz` and `flows.csv.gz`.
fn other_ending(path: &Path) -> Option<String> {
    let mut name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    if let Some(rest) = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")) {
        name = rest.to_owned();
    }
    let (_, ending) = name.rsplit_once('.')?;
    OTHER_ENDINGS.contains(&ending).then(|| ending.to_owned())
}

/// Checks that the extension of an output file's name does not stand for a format that cannot be
/// written. Names without an extension, or with an unknown one such as `.cap`, are allowed.
///
/// # Errors
/// A text that names the ending, and those that are written.
pub fn check_output_name(path: impl AsRef<Path>) -> Result<(), String> {
    let path = path.as_ref();
    match other_ending(path) {
        Some(ending) => Err(format!(
            "{}: a capture is not written as .{ending}: choose a name that ends in .pcap or \
             .pcapng, and in .gz or .zst to compress it",
            path.display()
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCAP: Format =
        Format::Pcap { byte_order: ByteOrder::Big, variant: PcapVariant::Nanoseconds };
    const PCAPNG: Format = Format::PcapNg { byte_order: ByteOrder::Little };

    #[test]
    fn names_that_promise_another_format_are_refused() {
        for name in ["a.xz", "a.pcap.XZ", "b/c.snoop", "a.txt", "a.pcap.bz2", "x.json"] {
            let error = check_output_name(name).expect_err(name);
            assert!(error.contains("choose a name that ends in .pcap"), "{error}");
        }
        for name in ["-", "a", "a.cap", "a.dump", "a.pcap0", "xz", "txt.pcap", "a.xz/b.pcap.gz"] {
            assert_eq!(check_output_name(name), Ok(()), "{name}");
        }
    }

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

    #[test]
    fn endings_of_other_formats_are_found() {
        for (name, ending) in [
            ("out.pcap.xz", "xz"),
            ("a/b.SNOOP", "snoop"),
            ("flows.csv.gz", "csv"),
            ("out.pcap.zstd", "zstd"),
        ] {
            assert_eq!(other_ending(Path::new(name)).as_deref(), Some(ending), "{name}");
        }
        for name in [
            "out.pcap",
            "out.cap",
            "out.dump",
            "out",
            "out.pcap0",
            "out.pcapng.gz",
            "out.gz",
            "a.txt/out",
            ".zst",
            "-",
            "xz",
        ] {
            assert_eq!(other_ending(Path::new(name)), None, "{name}");
        }
    }
}
