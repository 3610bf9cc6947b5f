//! Blocks of pcapng files that hold neither a packet nor an interface (draft-ietf-opsawg-pcapng
//! section 4), and how they are written to another file.

use std::collections::BTreeMap;

use super::option::{
    CUSTOM_BINARY, CUSTOM_BINARY_KEPT_OUT, CUSTOM_TEXT, CUSTOM_TEXT_KEPT_OUT, put, put_end, walk,
};
use super::{ByteOrder, Frame, Interface};

/// Type of a Section Header Block. The number is the same in either byte order.
pub(super) const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const NAME_RESOLUTION: u32 = 4;
pub(super) const INTERFACE_STATISTICS: u32 = 5;
const JOURNAL_ENTRY: u32 = 9;
const DECRYPTION_SECRETS: u32 = 10;
const CUSTOM: u32 = 0x0000_0BAD;
const CUSTOM_KEPT_OUT: u32 = 0x4000_0BAD;

pub(super) const ISB_STARTTIME: u16 = 2;
pub(super) const ISB_ENDTIME: u16 = 3;
pub(super) const ISB_IFRECV: u16 = 4;
pub(super) const ISB_IFDROP: u16 = 5;
const ISB_USRDELIV: u16 = 8;

/// Number of bytes of a Section Header Block before its options.
const SECTION_OPTIONS: usize = 24;

/// A frame of a capture file, or another block between the frames of a pcapng file.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// A block with a captured frame.
    Frame(Frame<'a>),
    /// A block that holds neither a packet nor an interface.
    Block(Block<'a>),
}

/// A block of a pcapng file that holds neither a packet nor an interface. It is valid until the
/// next item is read from its [`Reader`](super::Reader).
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// The whole block, from its type to its second length. The lengths were checked, the content
    /// was not.
    pub bytes: &'a [u8],
    /// The byte order of the section to which the block belongs.
    pub byte_order: ByteOrder,
    /// The index of the section's interface 0 among all interfaces of the file.
    pub first_interface: u32,
    /// Maps the index of an interface in the file to its index in `interfaces`; `None` if the two
    /// are equal.
    pub(crate) places: Option<&'a [u32]>,
    /// All interfaces found so far.
    pub interfaces: &'a [Interface],
}

/// The kinds of blocks that hold neither a packet nor an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BlockKind {
    /// The header of a section, with comments and the names of the hardware, operating system and
    /// application that captured it.
    SectionHeader,
    /// A block with the names of addresses.
    NameResolution,
    /// A block with the packet counts of an interface.
    InterfaceStatistics,
    /// Secrets with which packets can be decrypted, such as TLS keys.
    DecryptionSecrets,
    /// An entry of the systemd journal.
    JournalEntry,
    /// A custom block that may be copied when the packets of the file are changed (type 0xBAD).
    Custom,
    /// A custom block that must not be copied when the packets of the file are changed (type
    /// 0x40000BAD).
    CustomKeptOut,
    /// A block of a type that this version does not know.
    Unknown,
}

impl BlockKind {
    /// Returns the name of the kind, as in `decryption_secrets`.
    pub const fn name(self) -> &'static str {
        match self {
            BlockKind::SectionHeader => "section_header",
            BlockKind::NameResolution => "name_resolution",
            BlockKind::InterfaceStatistics => "interface_statistics",
            BlockKind::DecryptionSecrets => "decryption_secrets",
            BlockKind::JournalEntry => "journal_entry",
            BlockKind::Custom | BlockKind::CustomKeptOut => "custom",
            BlockKind::Unknown => "unknown",
        }
    }
}

impl<'a> Block<'a> {
    /// Returns the kind of the block.
    pub fn kind(&self) -> BlockKind {
        match self.block_type() {
            SECTION_HEADER => BlockKind::SectionHeader,
            NAME_RESOLUTION => BlockKind::NameResolution,
            INTERFACE_STATISTICS => BlockKind::InterfaceStatistics,
            JOURNAL_ENTRY => BlockKind::JournalEntry,
            DECRYPTION_SECRETS => BlockKind::DecryptionSecrets,
            CUSTOM => BlockKind::Custom,
            CUSTOM_KEPT_OUT => BlockKind::CustomKeptOut,
            _ => BlockKind::Unknown,
        }
    }

    pub(super) fn block_type(&self) -> u32 {
        self.byte_order.u32_at(self.bytes, 0)
    }

    /// Returns the block without type and lengths.
    fn body(&self) -> &'a [u8] {
        &self.bytes[8..self.bytes.len() - 4]
    }

    /// Returns the options of a section header, up to the first malformed one.
    pub(super) fn section_options(&self) -> impl Iterator<Item = (u16, &'a [u8])> + use<'a> {
        let options = self.bytes.get(SECTION_OPTIONS..self.bytes.len() - 4).unwrap_or(&[]);
        walk(options, self.byte_order).map_while(Result::ok)
    }

    /// Appends the block's body to `out`, for a file in the given byte order that has all
    /// interfaces of this one in a single section. Returns how many options were left out, or
    /// `None`, with nothing appended, if the block cannot be written there.
    pub(super) fn write_body(&self, byte_order: ByteOrder, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        let written = self.write_content(byte_order, out);
        if written.is_none() {
            out.truncate(start);
        }
        written
    }

    fn write_content(&self, byte_order: ByteOrder, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        let body = self.body();
        let word = |at: usize| (body.len() >= at + 4).then(|| self.byte_order.u32_at(body, at));
        let options = match self.kind() {
            // Nobody but their maker knows which bytes of these blocks are numbers.
            BlockKind::Custom | BlockKind::Unknown if byte_order == self.byte_order => body.len(),
            BlockKind::SectionHeader
            | BlockKind::CustomKeptOut
            | BlockKind::Custom
            | BlockKind::Unknown => return None,
            // An entry is text, and its binary fields are little endian in any section.
            BlockKind::JournalEntry => body.len(),
            BlockKind::NameResolution => {
                let mut end = 0;
                for record in walk(body, self.byte_order) {
                    let (kind, value) = record.ok()?;
                    put(out, byte_order, kind, value, 1);
                    end += 4 + value.len().next_multiple_of(4);
                }
                // The end mark of the records, which is the same in either byte order.
                out.extend_from_slice(&[0; 4]);
                let options = body.get(end + 4..).unwrap_or(&[]);
                return Some(self.write_options(options, byte_order, out));
            }
            BlockKind::DecryptionSecrets => {
                let length = word(4)?;
                out.extend_from_slice(&byte_order.u32_bytes(word(0)?));
                out.extend_from_slice(&byte_order.u32_bytes(length));
                8 + (length as usize).checked_next_multiple_of(4)?
            }
            BlockKind::InterfaceStatistics => {
                let number = word(0)?.checked_add(self.first_interface)?;
                let interface = match self.places {
                    Some(places) => *places.get(number as usize)?,
                    None => number,
                };
                self.interfaces.get(interface as usize)?;
                for number in [interface, word(4)?, word(8)?] {
                    out.extend_from_slice(&byte_order.u32_bytes(number));
                }
                12
            }
        };
        out.extend_from_slice(body.get(out.len() - start..options)?);
        Some(self.write_options(body.get(options..)?, byte_order, out))
    }

    /// Appends a list of options in the given byte order, up to the first malformed one, with the
    /// end mark. Returns how many were left out.
    fn write_options(&self, options: &[u8], byte_order: ByteOrder, out: &mut Vec<u8>) -> u64 {
        let start = out.len();
        let options = walk(options, self.byte_order).map_while(Result::ok);
        let left_out =
            options.filter(|(code, value)| !self.write_option(*code, value, byte_order, out));
        let left_out = left_out.count() as u64;
        put_end(out, start);
        left_out
    }

    /// Appends an option of the block in the given byte order. Returns `false` if it must not be
    /// copied to files with other packets, or cannot be converted.
    pub(super) fn write_option(
        &self,
        code: u16,
        value: &[u8],
        byte_order: ByteOrder,
        out: &mut Vec<u8>,
    ) -> bool {
        let turned = byte_order != self.byte_order;
        if matches!(code, CUSTOM_TEXT_KEPT_OUT | CUSTOM_BINARY_KEPT_OUT)
            || turned && code == CUSTOM_BINARY
        {
            return false;
        }
        let at = out.len() + 4;
        put(out, byte_order, code, value, 1);
        let value = &mut out[at..at + value.len()];
        match (self.kind(), code) {
            _ if !turned => {}
            // A time has two 32-bit words, the higher one first.
            (BlockKind::InterfaceStatistics, ISB_STARTTIME | ISB_ENDTIME) => {
                value.chunks_exact_mut(4).for_each(<[u8]>::reverse);
            }
            (BlockKind::InterfaceStatistics, ISB_IFRECV..=ISB_USRDELIV) => value.reverse(),
            // The number of the organization comes before its text.
            (_, CUSTOM_TEXT) => value.chunks_exact_mut(4).take(1).for_each(<[u8]>::reverse),
            _ => {}
        }
        true
    }
}

/// Counts of the pcapng blocks with neither a packet nor an interface that a
/// [`Writer`](super::Writer) has written or left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Blocks that were written. The headers of sections do not count.
    pub kept: u64,
    /// Number of blocks that the output format cannot hold, by kind. A section header counts if any
    /// of its options were left out.
    pub left_out: BTreeMap<BlockKind, u64>,
    /// Number of options that the output cannot hold, of blocks that were themselves written.
    pub options_left_out: u64,
}

impl BlockCounts {
    pub(super) fn keep(&mut self, options_left_out: u64) {
        self.kept += 1;
        self.options_left_out += options_left_out;
    }

    pub(super) fn leave_out(&mut self, kind: BlockKind) {
        *self.left_out.entry(kind).or_default() += 1;
    }

    pub(super) fn leave_out_option(&mut self) {
        self.options_left_out += 1;
    }
}
