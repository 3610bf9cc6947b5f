//! Reads records of pcap files (draft-ietf-opsawg-pcap; old versions as in libpcap's `sf-pcap.c`).

use super::error::ReadFault;
use super::option::{MODIFIED_LENGTH, OptionForm};
use super::window::Window;
use super::{
    ByteOrder, Interface, LinkType, MAX_RECORD_LENGTH, PcapVariant, TimeResolution, Timestamp,
};

pub(super) const MAGIC_MICROSECONDS: u32 = 0xA1B2_C3D4;
pub(super) const MAGIC_NANOSECONDS: u32 = 0xA1B2_3C4D;
pub(super) const MAGIC_MODIFIED: u32 = 0xA1B2_CD34;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// The fields of a record that was found. The ranges refer to the window's buffer, and are valid
/// until more is read into it.
pub(crate) struct LocatedRecord {
    pub(super) data: std::ops::Range<usize>,
    pub(super) options: std::ops::Range<usize>,
    pub(super) interface: u32,
    pub(super) original_length: u32,
    pub(super) time: Option<Timestamp>,
}

/// The order of the two length fields in a record header. Before version 2.3, the original length
/// comes first; files of version 2.3 exist in both orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lengths {
    CapturedFirst,
    OriginalFirst,
    SmallerIsCaptured,
}

pub(super) struct PcapReader {
    byte_order: ByteOrder,
    variant: PcapVariant,
    lengths: Lengths,
    /// The file's header, if it must be kept for further readers, each of which reads a part of the
    /// file; otherwise empty.
    preamble: Vec<u8>,
}

/// Recognizes a pcap file by its first four bytes; `None` for other files.
pub(super) fn recognize(magic: [u8; 4]) -> Option<(ByteOrder, PcapVariant)> {
    [ByteOrder::Little, ByteOrder::Big].into_iter().find_map(|byte_order| {
        let variant = match byte_order.u32_at(&magic, 0) {
            MAGIC_MICROSECONDS => PcapVariant::Microseconds,
            MAGIC_NANOSECONDS => PcapVariant::Nanoseconds,
            MAGIC_MODIFIED => PcapVariant::Modified,
            _ => return None,
        };
        Some((byte_order, variant))
    })
}

impl PcapReader {
    /// Reads the file header.
    pub(super) fn open(
        window: &mut Window,
        byte_order: ByteOrder,
        variant: PcapVariant,
        keep: bool,
    ) -> Result<(Self, Interface), ReadFault> {
        if !window.has(FILE_HEADER)? {
            return Err(ReadFault::Malformed(format!(
                "the file ends within its header, after {} of {FILE_HEADER} bytes",
                window.available().len()
            )));
        }
        let header = window.available();
        let lengths = match (byte_order.u16_at(header, 4), byte_order.u16_at(header, 6)) {
            (2, 0..=2) => Lengths::OriginalFirst,
            (2, 3) => Lengths::SmallerIsCaptured,
            (2, _) | (543, 0) => Lengths::CapturedFirst,
            (major, minor) => {
                return Err(ReadFault::Unsupported(format!("pcap version {major}.{minor}")));
            }
        };
        let link_type = byte_order.u32_at(header, 20);
        let mut interface = Interface::new(LinkType(link_type as u16), variant.resolution());
        interface.pcap_flags = (link_type >> 16) as u16;
        interface.snap_length = byte_order.u32_at(header, 16);
        let preamble = if keep { header[..FILE_HEADER].to_vec() } else { Vec::new() };
        window.consume(FILE_HEADER);
        Ok((Self { byte_order, variant, lengths, preamble }, interface))
    }

    /// Returns the file's header, if it was kept; otherwise nothing.
    pub(super) fn preamble(&self) -> &[u8] {
        &self.preamble
    }

    /// Returns how the additional record fields of modified pcap are encoded.
    pub(super) fn option_form(&self) -> OptionForm {
        OptionForm::modified(self.byte_order)
    }

    /// Finds the next record; returns `None` if the file ends after a complete record.
    #[inline(always)]
    pub(super) fn next(&mut self, window: &mut Window) -> Result<Option<LocatedRecord>, ReadFault> {
        let header_length =
            RECORD_HEADER + if self.variant == PcapVariant::Modified { MODIFIED_LENGTH } else { 0 };
        if !window.has(header_length)? {
            window.finish(|| format!("a record header has {header_length} bytes"))?;
            return Ok(None);
        }
        let header = &window.available()[..RECORD_HEADER];
        let seconds = self.byte_order.u32_at(header, 0);
        let fraction = self.byte_order.u32_at(header, 4);
        let first = self.byte_order.u32_at(header, 8);
        let second = self.byte_order.u32_at(header, 12);
        let (captured, original_length) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::OriginalFirst => (second, first),
            Lengths::SmallerIsCaptured => (first.min(second), first.max(second)),
        };
        let length = header_length as u64 + u64::from(captured);
        if length > MAX_RECORD_LENGTH as u64 {
            return Err(ReadFault::RecordTooLong(length));
        }
        let length = length as usize;
        if !window.has(length)? {
            window.finish(|| format!("the record claims {length} bytes"))?;
            return Ok(None);
        }
        let at = window.consume(length);
        let (ticks_per_second, resolution) = match self.variant {
            PcapVariant::Nanoseconds => (1_000_000_000, TimeResolution::NANOSECONDS),
            PcapVariant::Microseconds | PcapVariant::Modified => {
                (1_000_000, TimeResolution::MICROSECONDS)
            }
        };
        // A fraction of a second above one is accepted: it only makes the time later.
        let ticks = u64::from(seconds) * ticks_per_second + u64::from(fraction);
        Ok(Some(LocatedRecord {
            data: at + header_length..at + length,
            options: at + RECORD_HEADER..at + header_length,
            interface: 0,
            original_length,
            time: Some(Timestamp { ticks, resolution, offset_seconds: 0 }),
        }))
    }
}
