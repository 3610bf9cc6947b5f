//! Options of pcapng blocks, and the additional record fields of modified pcap files. They are
//! stored as bytes, parsed with checks, and written in the byte order of the output file.
//!
//! An option is a code and a length (16 bits each, in the section's byte order), followed by a
//! value padded to 4 bytes (draft-ietf-opsawg-pcapng section 3.5).

use std::num::NonZeroU16;

use super::ByteOrder;

/// `opt_endofopt`: ends a list of options.
const END: u16 = 0;

/// `opt_comment`: a text.
pub(super) const COMMENT: u16 = 1;

/// `opt_custom`: the number of an organization, and text or bytes of its own.
pub(super) const CUSTOM_TEXT: u16 = 2988;
pub(super) const CUSTOM_BINARY: u16 = 2989;

/// Like [`CUSTOM_TEXT`] and [`CUSTOM_BINARY`], but the option must not be copied if the packets of
/// the file are changed.
pub(super) const CUSTOM_TEXT_KEPT_OUT: u16 = 19372;
pub(super) const CUSTOM_BINARY_KEPT_OUT: u16 = 19373;

/// `epb_flags`: flags of a packet, of which the lowest two bits are the direction.
const EPB_FLAGS: u16 = 2;

/// `epb_hash`: a hash of the packet's bytes.
const EPB_HASH: u16 = 3;

/// Number of bytes that Kuznetzov's pcap adds to each record header: interface index (32 bits),
/// protocol (16), packet type (8), padding (8).
pub(super) const MODIFIED_LENGTH: usize = 8;

/// Additional data of a packet in a capture file: the options of a pcapng packet (`epb_flags`,
/// comments...), or the additional record fields of a modified pcap file. Empty for other pcap
/// files.
///
/// If the packet is written to a file of the same type, the data is kept; in other files it is
/// lost. The size of a super-packet's segments is kept by packets in memory only.
#[derive(Clone, Copy, Debug)]
pub struct FrameOptions<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) form: OptionForm,
    segment_size: Option<NonZeroU16>,
}

/// The direction of a packet at the captured interface (`epb_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The interface received the packet.
    Inbound,
    /// The interface sent the packet.
    Outbound,
}

/// Options for a packet that is written to a new capture. Only pcapng files store them.
///
/// ```
/// use superpacket_captures::file::{Direction, OptionList};
///
/// let mut list = OptionList::new();
/// list.direction(Direction::Inbound);
/// list.comment("the first one");
/// assert_eq!(list.options().direction(), Some(Direction::Inbound));
/// assert!(list.options().comments().eq([b"the first one"]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionList {
    /// The encoded options, in the machine's byte order.
    bytes: Vec<u8>,
}

impl OptionList {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all options, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Appends the packet's direction.
    pub fn direction(&mut self, direction: Direction) {
        let flags: u32 = match direction {
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        };
        put(&mut self.bytes, ByteOrder::NATIVE, EPB_FLAGS, &flags.to_ne_bytes(), 1);
    }

    /// Appends a comment, cut to 1,000 bytes.
    pub fn comment(&mut self, text: &str) {
        put(&mut self.bytes, ByteOrder::NATIVE, COMMENT, &text.as_bytes()[..cut_at(text, 1000)], 1);
    }

    /// Returns the options for a [`Record`](super::Record).
    pub fn options(&self) -> FrameOptions<'_> {
        FrameOptions::new(&self.bytes, OptionForm::list(ByteOrder::NATIVE))
    }
}

/// Returns the length in bytes of the longest prefix of `text` that has at most `most` bytes and
/// ends at a character boundary.
pub(super) fn cut_at(text: &str, most: usize) -> usize {
    (0..=text.len().min(most)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

/// How the bytes of a [`FrameOptions`] are encoded. If this value is kept together with a copy of
/// the bytes, the options can outlive their frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionForm {
    pub(super) byte_order: ByteOrder,
    pub(super) kind: OptionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionKind {
    /// A list of options of a pcapng packet.
    List,
    /// A list of options of a pcapng packet that is the result of a merge: `epb_hash` is ignored.
    MergedList,
    /// The additional record fields of Kuznetzov's "modified" pcap.
    Modified,
}

impl<'a> FrameOptions<'a> {
    /// No options.
    pub const NONE: FrameOptions<'static> = FrameOptions::new(&[], OptionForm::NONE);

    /// Creates options from values that [`bytes`](Self::bytes) and [`form`](Self::form) have
    /// returned before.
    pub const fn new(bytes: &'a [u8], form: OptionForm) -> Self {
        FrameOptions { bytes, form, segment_size: None }
    }

    /// Returns these options with the number of payload bytes in each segment of a super-packet but
    /// the last. Pass `None` for a packet that is not a super-packet.
    #[must_use]
    pub const fn with_segment_size(self, segment_size: Option<NonZeroU16>) -> Self {
        FrameOptions { segment_size, ..self }
    }

    /// Returns the number of payload bytes in each segment of a super-packet but the last; `None`
    /// if the packet is not a super-packet, or if the number is unknown.
    pub const fn segment_size(&self) -> Option<NonZeroU16> {
        self.segment_size
    }

    /// Returns whether there are no options.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the options as encoded in the file.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns how the bytes are encoded.
    pub const fn form(&self) -> OptionForm {
        self.form
    }

    /// Returns the comments on a pcapng packet (`opt_comment`), up to the first malformed option.
    /// They should be UTF-8, but this is not checked.
    pub fn comments(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let list = if self.form.kind == OptionKind::Modified { &[] } else { self.bytes };
        walk(list, self.form.byte_order)
            .map_while(Result::ok)
            .filter(|(code, _)| *code == COMMENT)
            .map(|(_, text)| text)
    }

    /// Returns the direction of a pcapng packet (`epb_flags`), or `None` if the file does not give
    /// it.
    pub fn direction(&self) -> Option<Direction> {
        let list = if self.form.kind == OptionKind::Modified { &[] } else { self.bytes };
        let mut options = walk(list, self.form.byte_order).map_while(Result::ok);
        let flags = options
            .find_map(|(code, value)| (code == EPB_FLAGS && value.len() == 4).then_some(value))?;
        match self.form.byte_order.u32_at(flags, 0) & 3 {
            1 => Some(Direction::Inbound),
            2 => Some(Direction::Outbound),
            _ => None,
        }
    }

    /// Returns the options that are valid for a super-packet of which this is the last packet: all
    /// except the hash of the packet's bytes (`epb_hash`).
    #[must_use]
    pub fn of_merged(self) -> Self {
        let kind = if self.form.kind == OptionKind::List {
            OptionKind::MergedList
        } else {
            self.form.kind
        };
        FrameOptions { form: OptionForm { kind, ..self.form }, ..self }
    }

    /// Returns the options that are valid for each segment of this packet. The additional fields of
    /// modified pcap files are; the options of a pcapng packet apply only to the whole packet.
    #[must_use]
    pub fn of_segment(self) -> Self {
        if self.form.kind == OptionKind::Modified { self } else { Self::NONE }
    }

    /// Returns a pcapng packet's options as they are encoded, without `opt_endofopt` and up to the
    /// first malformed option; `None` if they must be changed to be written in this byte order.
    pub(super) fn verbatim(&self, byte_order: ByteOrder) -> Option<&'a [u8]> {
        if self.form != OptionForm::list(byte_order) {
            return None;
        }
        let options = walk(self.bytes, byte_order).map_while(Result::ok);
        self.bytes.get(..options.map(|(_, value)| 4 + value.len().next_multiple_of(4)).sum())
    }

    /// Appends a pcapng packet's options to `out` in the given byte order, without `opt_endofopt`.
    /// Stops at the first malformed option.
    pub(super) fn write_list(&self, byte_order: ByteOrder, out: &mut Vec<u8>) {
        let skipped = match self.form.kind {
            OptionKind::List => None,
            OptionKind::MergedList => Some(EPB_HASH),
            OptionKind::Modified => return,
        };
        for (code, value) in walk(self.bytes, self.form.byte_order)
            .map_while(Result::ok)
            .filter(|&(code, _)| Some(code) != skipped)
        {
            put(
                out,
                byte_order,
                code,
                value,
                if byte_order == self.form.byte_order { 1 } else { packet_unit(code) },
            );
        }
    }

    /// Returns the additional record fields of a modified pcap file in the given byte order; zeros
    /// if the packet comes from another format.
    pub(super) fn modified(&self, byte_order: ByteOrder) -> [u8; MODIFIED_LENGTH] {
        let mut bytes = match (self.form.kind, self.bytes.first_chunk()) {
            (OptionKind::Modified, Some(bytes)) => *bytes,
            _ => return [0; MODIFIED_LENGTH],
        };
        if byte_order != self.form.byte_order {
            bytes[..4].reverse();
            bytes[4..6].reverse();
        }
        bytes
    }
}

impl OptionForm {
    /// The encoding of an empty list of options.
    pub const NONE: OptionForm = OptionForm::list(ByteOrder::NATIVE);

    pub(super) const fn list(byte_order: ByteOrder) -> Self {
        OptionForm { byte_order, kind: OptionKind::List }
    }

    pub(super) const fn modified(byte_order: ByteOrder) -> Self {
        OptionForm { byte_order, kind: OptionKind::Modified }
    }
}

/// Iterates over an encoded list of options. Yields an error for an option that is longer than the
/// rest of the list.
pub(super) fn walk(
    bytes: &[u8],
    byte_order: ByteOrder,
) -> impl Iterator<Item = Result<(u16, &[u8]), String>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if rest.len() < 4 {
            let left = std::mem::take(&mut rest).len();
            return Some(Err(format!("{left} bytes after the last option")));
        }
        let code = byte_order.u16_at(rest, 0);
        let length = usize::from(byte_order.u16_at(rest, 2));
        if code == END {
            rest = &[];
            return None;
        }
        let Some(value) = rest.get(4..4 + length) else {
            let left = std::mem::take(&mut rest).len() - 4;
            return Some(Err(format!(
                "option {code} claims {length} bytes, {left} are left in its block"
            )));
        };
        rest = rest.get(4 + length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Ok((code, value)))
    })
}

/// Appends one option to `out`. If its value is a number that must change its byte order, `unit` is
/// the length of the number in bytes; otherwise `unit` is 1, and the value is copied.
pub(super) fn put(out: &mut Vec<u8>, byte_order: ByteOrder, code: u16, value: &[u8], unit: usize) {
    out.extend_from_slice(&byte_order.u16_bytes(code));
    out.extend_from_slice(&byte_order.u16_bytes(value.len() as u16));
    if unit > 1 && value.len() == unit {
        out.extend(value.iter().rev());
    } else {
        out.extend_from_slice(value);
    }
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends `opt_endofopt` if any options were written after the offset `start` of `out`.
pub(super) fn put_end(out: &mut Vec<u8>, start: usize) {
    if out.len() > start {
        out.extend_from_slice(&[0; 4]);
    }
}

/// Returns the length in bytes of the number that is the value of an option of an Enhanced Packet
/// Block; 1 if the value is not a number.
fn packet_unit(code: u16) -> usize {
    match code {
        2 | 6 => 4, // epb_flags, epb_queue
        4 | 5 => 8, // epb_dropcount, epb_packetid
        _ => 1,
    }
}

/// Returns the length in bytes of the number that is the value of an option of an Interface
/// Description Block; 1 if the value is not a number.
pub(super) fn interface_unit(code: u16) -> usize {
    match code {
        10 => 4,               // if_tzone
        8 | 14 | 16 | 17 => 8, // if_speed, if_tsoffset, if_txspeed, if_rxspeed
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_turned_around_for_another_byte_order() {
        let mut big = Vec::new();
        put(&mut big, ByteOrder::Big, 1, b"hello", 1);
        put(&mut big, ByteOrder::Big, 2, &1u32.to_be_bytes(), 1);
        put(&mut big, ByteOrder::Big, 4, &9u64.to_be_bytes(), 1);
        put_end(&mut big, 0);
        assert_eq!(big.len() % 4, 0);
        let options = FrameOptions::new(&big, OptionForm::list(ByteOrder::Big));
        let mut little = Vec::new();
        options.write_list(ByteOrder::Little, &mut little);
        let read: Vec<_> = walk(&little, ByteOrder::Little).map(Result::unwrap).collect();
        let (flags, drops) = (1u32.to_le_bytes(), 9u64.to_le_bytes());
        assert_eq!(read, [(1, &b"hello"[..]), (2, &flags), (4, &drops)]);
        let mut same = Vec::new();
        options.write_list(ByteOrder::Big, &mut same);
        assert_eq!(same, big[..big.len() - 4], "without the end");
        assert_eq!(options.verbatim(ByteOrder::Big), Some(same.as_slice()));
        assert_eq!(options.verbatim(ByteOrder::Little), None);
    }

    #[test]
    fn comments_are_found_among_other_options() {
        let mut list = Vec::new();
        for (code, value) in [(2, &[0; 4][..]), (1, b"one"), (6, &[0; 4]), (1, b"two")] {
            put(&mut list, ByteOrder::Big, code, value, 1);
        }
        put_end(&mut list, 0);
        let options = FrameOptions::new(&list, OptionForm::list(ByteOrder::Big));
        assert_eq!(options.comments().collect::<Vec<_>>(), [b"one", b"two"]);
        assert_eq!(
            FrameOptions::new(&list, OptionForm::modified(ByteOrder::Big)).comments().count(),
            0
        );
        assert_eq!(FrameOptions::NONE.comments().count(), 0);
    }

    #[test]
    fn a_list_that_is_made_is_read_in_either_byte_order() {
        for (direction, flags) in [(Direction::Inbound, 1u32), (Direction::Outbound, 2)] {
            let mut list = OptionList::new();
            list.comment("forgotten");
            list.clear();
            list.direction(direction);
            list.comment(&"é".repeat(700));
            let options = list.options();
            assert_eq!(options.direction(), Some(direction));
            assert!(options.comments().eq(["é".repeat(500).as_bytes()]), "cut between characters");
            let mut big = Vec::new();
            options.write_list(ByteOrder::Big, &mut big);
            assert_eq!(big[..8], [[0, 2, 0, 4], flags.to_be_bytes()].concat());
            assert_eq!(
                FrameOptions::new(&big, OptionForm::list(ByteOrder::Big)).direction(),
                Some(direction)
            );
        }
        for flags in [0u32, 3, 4] {
            let mut list = Vec::new();
            put(&mut list, ByteOrder::Little, EPB_FLAGS, &flags.to_le_bytes(), 1);
            assert_eq!(
                FrameOptions::new(&list, OptionForm::list(ByteOrder::Little)).direction(),
                None,
                "{flags}"
            );
        }
        assert_eq!(FrameOptions::NONE.direction(), None);
        assert_eq!(
            FrameOptions::new(&[2, 0, 2, 0, 1, 0, 0, 0], OptionForm::list(ByteOrder::Little))
                .direction(),
            None,
            "too short"
        );
    }

    #[test]
    fn a_malformed_list_is_an_error_and_is_not_written_on() {
        let mut bytes = Vec::new();
        put(&mut bytes, ByteOrder::Little, 1, b"good", 1);
        let good = bytes.len();
        bytes.extend_from_slice(&[2, 0, 255, 0, 1]);
        assert!(walk(&bytes, ByteOrder::Little).nth(1).unwrap().is_err());
        assert!(walk(&bytes[..good + 2], ByteOrder::Little).nth(1).unwrap().is_err());
        assert_eq!(walk(&bytes, ByteOrder::Little).count(), 2, "nothing after the error");
        let mut out = Vec::new();
        let options = FrameOptions::new(&bytes, OptionForm::list(ByteOrder::Little));
        options.write_list(ByteOrder::Little, &mut out);
        assert_eq!(out, bytes[..good]);
        assert_eq!(options.verbatim(ByteOrder::Little), Some(out.as_slice()));
        // A value that lacks its padding must be padded first.
        let unpadded = FrameOptions::new(&[1, 0, 1, 0, b'x'], options.form());
        assert_eq!(unpadded.verbatim(ByteOrder::Little), None);
    }

    #[test]
    fn a_merged_packet_has_no_hash_of_one_that_it_was_made_from() {
        let mut list = Vec::new();
        put(&mut list, ByteOrder::Little, 3, &[2, 1, 2, 3, 4], 1);
        let options = FrameOptions::new(&list, OptionForm::list(ByteOrder::Little));
        let mut out = Vec::new();
        options.of_merged().write_list(ByteOrder::Big, &mut out);
        assert_eq!(out, [0; 0], "no list without options");
        let end = list.len();
        put(&mut list, ByteOrder::Little, 1, b"note", 1);
        put_end(&mut list, 0);
        let options = FrameOptions::new(&list, OptionForm::list(ByteOrder::Little));
        options.of_merged().write_list(ByteOrder::Little, &mut out);
        assert_eq!(out, list[end..list.len() - 4]);
        assert_eq!(options.of_merged().verbatim(ByteOrder::Little), None);
        assert!(options.of_segment().is_empty());
    }

    #[test]
    fn what_a_modified_record_adds_is_turned_around_and_stays_out_of_lists() {
        let bytes = [0, 0, 0, 7, 0x08, 0x00, 4, 0];
        let options = FrameOptions::new(&bytes, OptionForm::modified(ByteOrder::Big));
        for options in [options, options.of_merged(), options.of_segment()] {
            assert_eq!(options.modified(ByteOrder::Big), bytes);
            assert_eq!(options.modified(ByteOrder::Little), [7, 0, 0, 0, 0x00, 0x08, 4, 0]);
            let mut out = Vec::new();
            options.write_list(ByteOrder::Big, &mut out);
            assert_eq!((out.len(), options.verbatim(ByteOrder::Big)), (0, None));
        }
        assert_eq!(FrameOptions::new(&bytes[..7], options.form()).modified(ByteOrder::Big), [0; 8]);
        assert_eq!(FrameOptions::NONE.modified(ByteOrder::Big), [0; 8]);
    }
}
