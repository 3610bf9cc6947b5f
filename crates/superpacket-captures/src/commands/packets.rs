//! Packets in memory that commands read and write in place of a capture file.

use std::num::NonZeroU16;
use std::ops::Range;

use crate::file::{
    ByteOrder, CaptureError, Format, Frame, FrameOptions, Interface, LinkType, OptionForm, Record,
    Source, TimeResolution, Timestamp, Truncated,
};

use crate::commands::error::Error;
use crate::commands::sink::PacketSink;

/// Packets in memory, which commands read and write in place of a capture file. All bytes are in
/// one block, and all options in another.
#[derive(Clone, Debug, Default)]
pub struct Packets {
    bytes: Vec<u8>,
    options: Vec<u8>,
    entries: Vec<PacketEntry>,
    interfaces: Vec<Interface>,
}

/// The properties of a packet that are stored besides its bytes.
#[derive(Clone, Copy, Debug)]
struct PacketEntry {
    /// Offset at which the packet's bytes end in the common block; they begin where those of the
    /// previous packet end.
    end: usize,
    time: Option<Timestamp>,
    interface: u32,
    original_length: u32,
    /// Offset at which the packet's options end in their common block.
    options_end: usize,
    form: OptionForm,
    segment_size: Option<NonZeroU16>,
}

impl Packets {
    /// Returns an empty collection.
    pub fn new() -> Self {
        Packets::default()
    }

    /// Adds a packet of this link type. `time` is its capture time in nanoseconds since 1970, if
    /// known.
    ///
    /// # Errors
    /// [`Error::Options`] for a packet of 4 GiB or more.
    pub fn push(
        &mut self,
        link_type: LinkType,
        time: Option<u64>,
        data: &[u8],
    ) -> Result<(), Error> {
        self.push_cut(link_type, time, data, data.len() as u64)
    }

    /// Adds a packet of which only the first bytes were captured. `original_length` is the length
    /// of the whole packet in bytes.
    ///
    /// # Errors
    /// [`Error::Options`] for a packet of 4 GiB or more.
    pub fn push_cut(
        &mut self,
        link_type: LinkType,
        time: Option<u64>,
        data: &[u8],
        original_length: u64,
    ) -> Result<(), Error> {
        let interface =
            match self.interfaces.iter().rposition(|interface| interface.link_type == link_type) {
                Some(index) => index,
                None => {
                    self.interfaces.push(Interface::new(link_type, TimeResolution::NANOSECONDS));
                    self.interfaces.len() - 1
                }
            };
        let Ok(original_length) = u32::try_from(original_length.max(data.len() as u64)) else {
            return Err(Error::Options(format!(
                "packet {}: {original_length} bytes; a packet must be shorter than 4 GiB",
                self.entries.len() + 1
            )));
        };
        let record = Record {
            interface: interface as u32,
            time: time.map(Timestamp::from_nanoseconds),
            original_length: Some(original_length),
            options: FrameOptions::NONE,
        };
        self.add(&record, data);
        Ok(())
    }

    /// Adds a frame of any capture with all its metadata. Its interface is added to the
    /// collection's interfaces unless it is one of them already.
    pub fn push_frame(&mut self, frame: &Frame<'_>) {
        let own = frame.interface();
        let index = frame.interface as usize;
        let known = self.interfaces.get(index).filter(|known| *known == own).map(|_| index);
        let interface = known
            .or_else(|| self.interfaces.iter().position(|known| known == own))
            .unwrap_or_else(|| {
                self.interfaces.push(own.clone());
                self.interfaces.len() - 1
            });
        self.add(&Record { interface: interface as u32, ..frame.record() }, frame.data);
    }

    fn add(&mut self, record: &Record<'_>, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        self.options.extend_from_slice(record.options.bytes());
        self.entries.push(PacketEntry {
            end: self.bytes.len(),
            time: record.time,
            interface: record.interface,
            original_length: record.original_length.unwrap_or(data.len() as u32),
            options_end: self.options.len(),
            form: record.options.form(),
            segment_size: record.options.segment_size(),
        });
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the interfaces to which the packets refer.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the bytes of all packets, one after the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the packet at `index`, counted from 0, as a frame of a capture.
    pub fn get(&self, index: usize) -> Option<Frame<'_>> {
        let entry = self.entries.get(index)?;
        let before = index.checked_sub(1).and_then(|before| self.entries.get(before));
        let options = before.map_or(0, |before| before.options_end)..entry.options_end;
        Some(Frame {
            number: index as u64 + 1,
            interface: entry.interface,
            time: entry.time,
            data: self.bytes.get(self.range(index))?,
            original_length: entry.original_length,
            options: FrameOptions::new(self.options.get(options)?, entry.form)
                .with_segment_size(entry.segment_size),
            interfaces: &self.interfaces,
        })
    }

    /// Returns all packets, as frames of a capture.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Frame<'_>> {
        (0..self.len()).map(|index| self.get(index).expect("index < len"))
    }

    fn range(&self, index: usize) -> Range<usize> {
        let start = index
            .checked_sub(1)
            .and_then(|before| self.entries.get(before))
            .map_or(0, |before| before.end);
        start..self.entries.get(index).map_or(start, |entry| entry.end)
    }
}

impl PacketSink for Packets {
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError> {
        self.interfaces = interfaces.to_vec();
        Ok(())
    }

    fn packet(&mut self, record: &Record<'_>, data: &[u8]) -> Result<(), CaptureError> {
        self.add(record, data);
        Ok(())
    }
}

/// Reads packets in memory one by one, as a source of a capture's frames.
#[derive(Debug)]
pub(crate) struct PacketCursor<'a> {
    packets: &'a Packets,
    next: usize,
}

impl<'a> PacketCursor<'a> {
    pub(crate) fn new(packets: &'a Packets) -> Self {
        PacketCursor { packets, next: 0 }
    }

    /// Returns the number of bytes of all packets.
    pub(crate) fn length(&self) -> u64 {
        self.packets.bytes().len() as u64
    }

    /// Returns the number of bytes of the packets that were read so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.packets.range(self.next).start as u64
    }
}

impl Source for PacketCursor<'_> {
    #[inline]
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError> {
        let frame = self.packets.get(self.next);
        self.next += usize::from(frame.is_some());
        Ok(frame)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.packets.interfaces
    }

    fn format(&self) -> Format {
        // The packets may have several link types, and times in nanoseconds, as in a pcapng file.
        Format::PcapNg { byte_order: ByteOrder::Little }
    }

    fn truncated(&self) -> Option<&Truncated> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_as_they_were_pushed() {
        let mut packets = Packets::new();
        packets.push(LinkType::ETHERNET, Some(1_000_000_007), &[1, 2, 3]).expect("short");
        packets.push(LinkType::RAW, None, &[]).expect("short");
        packets.push_cut(LinkType::ETHERNET, Some(0), &[4], 99).expect("short");
        let all: Vec<_> = packets
            .iter()
            .map(|frame| {
                (frame.number, frame.link_type(), frame.data.to_vec(), frame.original_length)
            })
            .collect();
        let expected = [
            (1, LinkType::ETHERNET, vec![1, 2, 3], 3),
            (2, LinkType::RAW, vec![], 0),
            (3, LinkType::ETHERNET, vec![4], 99),
        ];
        assert_eq!(all, expected);
        assert_eq!(
            packets.get(0).and_then(|frame| frame.time).map(Timestamp::nanoseconds),
            Some(1_000_000_007)
        );
        assert!(
            packets.get(1).is_some_and(|frame| frame.time.is_none()) && packets.get(3).is_none()
        );
        let mut cursor = PacketCursor::new(&packets);
        while cursor.next_frame().expect("memory").is_some() {}
        assert_eq!(cursor.bytes_read(), 4);
    }

    #[test]
    fn a_length_that_no_record_holds_is_refused() {
        let error =
            Packets::new().push_cut(LinkType::RAW, None, &[1], 1 << 32).expect_err("too long");
        assert!(error.to_string().contains("packet 1: 4294967296 bytes"), "{error}");
    }
}
