//! Reads packets with their `virtio_net_hdr` from captures, files of records, and memory.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Cursor as Bytes, Read};
use std::path::Path;

use crate::file::{CaptureError, Frame, LinkType, Reader, Source, Start, Truncated, start_of};
use superpacket::Simd;
use superpacket::packet::Layer;
use superpacket::virtio::{ByteOrder, Format, Header};

use super::packet::{FilePacket, PacketMetadata};
use super::records::{MAGIC, RecordReader};
use crate::commands::error::Error;
use crate::commands::filter::{Filter, matches_all};
use crate::commands::input::{Input, is_stream};
use crate::commands::packets::PacketCursor;

/// The beginning of a pcapng comment that contains the packet's `virtio_net_hdr` in hexadecimal
/// digits.
pub(super) const COMMENT: &[u8] = b"virtio_net_hdr=";

/// Maximum number of packets that are read ahead; `AHEAD_BYTES` limits their bytes.
pub(super) const AHEAD_PACKETS: usize = 4096;
const AHEAD_BYTES: usize = 4 << 20;

enum PacketSource<'a> {
    Reader(Box<Reader>),
    Records(RecordReader),
    Packets(PacketCursor<'a>),
}

impl PacketSource<'_> {
    fn file(&self) -> &str {
        match self {
            PacketSource::Reader(reader) => reader.file(),
            PacketSource::Records(records) => records.file(),
            PacketSource::Packets(_) => "memory",
        }
    }
}

/// A source of packets for `check`: an open file, or packets in memory.
pub(super) struct PacketStream<'a> {
    source: PacketSource<'a>,
    pub(super) file: String,
    /// The file's length in bytes; `None` if it is not known.
    pub(super) length: Option<u64>,
    /// Number of packets returned so far by [`next_packet`](Self::next_packet).
    pub(super) packets: u64,
    /// Bytes of the packets returned so far, including link headers.
    pub(super) bytes: u64,
    /// Packets that have been read ahead, and will be returned next.
    ahead: VecDeque<FilePacket>,
    ended: bool,
    /// Whether a snap length had cut a packet that was read.
    has_cut_packets: bool,
    /// The filters that packets must match.
    filters: Vec<Filter>,
    /// Number of packets that did not match.
    pub(super) filtered_out: u64,
    simd: Simd,
}

impl<'a> PacketStream<'a> {
    pub(super) fn open(input: Input<'a>, simd: Simd) -> Result<Self, Error> {
        let (source, file, length) = match input {
            Input::Filtered { input, expression } => {
                let filter = Filter::new(expression)?;
                let mut stream = PacketStream::open(*input, simd)?;
                stream.filters.push(filter);
                return Ok(stream);
            }
            Input::Path(path) => {
                let (source, length) = open_path(path)?;
                let file = source.file().to_owned();
                (source, file, length)
            }
            Input::Reader(reader) => {
                let (file, length) = (reader.file().to_owned(), reader.file_length());
                (PacketSource::Reader(reader), file, length)
            }
            Input::Stream { file, stream } => (open_stream(&file, stream)?, file, None),
            Input::Packets(packets) => (
                PacketSource::Packets(PacketCursor::new(packets)),
                "memory".to_owned(),
                Some(packets.bytes().len() as u64),
            ),
        };
        Ok(PacketStream {
            source,
            file,
            length,
            packets: 0,
            bytes: 0,
            ahead: VecDeque::new(),
            ended: false,
            has_cut_packets: false,
            filters: Vec::new(),
            filtered_out: 0,
            simd,
        })
    }

    /// Returns the next packet; `None` at the end.
    pub(super) fn next_packet(&mut self) -> Result<Option<FilePacket>, Error> {
        let packet = match self.ahead.pop_front() {
            Some(packet) => packet,
            None => match self.read()? {
                Some(packet) => packet,
                None => return Ok(None),
            },
        };
        self.packets += 1;
        self.bytes += packet.length() as u64;
        Ok(Some(packet))
    }

    /// Calls `wanted` with each of the next packets, as many as can be read ahead, and returns the
    /// first result that is not `None`. The packets stay in the stream.
    pub(super) fn find_ahead<T>(
        &mut self,
        wanted: impl Fn(&FilePacket) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let (mut place, mut bytes) = (0, 0);
        loop {
            if place == self.ahead.len() {
                if place == AHEAD_PACKETS || bytes >= AHEAD_BYTES {
                    return Ok(None);
                }
                let Some(packet) = self.read()? else { return Ok(None) };
                self.ahead.push_back(packet);
            }
            let Some(packet) = self.ahead.get(place) else { return Ok(None) };
            if let Some(found) = wanted(packet) {
                return Ok(Some(found));
            }
            bytes += packet.length();
            place += 1;
        }
    }

    fn read(&mut self) -> Result<Option<FilePacket>, Error> {
        if self.ended {
            return Ok(None);
        }
        let packet = self.read_packet()?;
        self.ended = packet.is_none();
        self.has_cut_packets |= packet.as_ref().is_some_and(|packet| packet.cut);
        Ok(packet)
    }

    /// Reads the next packet that matches the filters.
    fn read_packet(&mut self) -> Result<Option<FilePacket>, Error> {
        let Self { source, filters, filtered_out, file, simd, .. } = self;
        loop {
            let frame = match source {
                PacketSource::Reader(reader) => reader.next_frame()?,
                PacketSource::Packets(cursor) => cursor.next_frame()?,
                PacketSource::Records(records) => {
                    return read_record(records, filters, filtered_out, file, *simd);
                }
            };
            let Some(frame) = frame else { return Ok(None) };
            if matches_all(filters, frame.link_type(), frame.data, frame.original_length)? {
                return packet_of_frame(&frame, file, *simd).map(Some);
            }
            *filtered_out += 1;
        }
    }

    /// Returns the number of bytes read from the file.
    pub(super) fn bytes_read(&self) -> u64 {
        match &self.source {
            PacketSource::Reader(reader) => reader.bytes_read(),
            PacketSource::Records(records) => records.offset,
            PacketSource::Packets(cursor) => cursor.bytes_read(),
        }
    }

    /// Returns whether a snap length had cut a packet that was read, or the file is cut short.
    pub(super) fn is_incomplete_file(&self) -> bool {
        self.has_cut_packets || self.truncated().is_some()
    }

    /// Returns where the file is cut short. `None` if it is not, or its end has not been reached.
    pub(super) fn truncated(&self) -> Option<&Truncated> {
        match &self.source {
            PacketSource::Reader(reader) => reader.truncated(),
            PacketSource::Records(records) => records.truncated.as_ref(),
            PacketSource::Packets(_) => None,
        }
    }
}

/// Reads the next packet that matches the filters from a file of records.
fn read_record(
    records: &mut RecordReader,
    filters: &mut [Filter],
    filtered_out: &mut u64,
    file: &str,
    simd: Simd,
) -> Result<Option<FilePacket>, Error> {
    let (layer, format) = (records.layer, records.format);
    let link_type = match layer {
        Layer::Ethernet => LinkType::ETHERNET,
        Layer::Ip => LinkType::RAW,
    };
    loop {
        let offset = records.offset;
        let Some((number, record)) = records.next_record()? else { return Ok(None) };
        let (head, data) = record.split_at(format.map_or(0, Format::length));
        if !matches_all(filters, link_type, data, data.len() as u32)? {
            *filtered_out += 1;
            continue;
        }
        let header = match format {
            Some(format) => Some((read_header(head, format, file, number, offset)?, format)),
            None => None,
        };
        let (layer, link) = (Some(layer), &[][..]);
        let origin = PacketMetadata { number, interface: 0, layer, link, header, cut: false };
        return Ok(Some(FilePacket::new(origin, data, simd)));
    }
}

/// Opens a stream. Its first bytes tell whether it is a capture or a file of records.
fn open_stream(
    file: &str,
    mut stream: Box<dyn Read + Send>,
) -> Result<PacketSource<'static>, Error> {
    let mut head = Vec::new();
    let read = (&mut stream).take(MAGIC.len() as u64).read_to_end(&mut head);
    read.map_err(|source| CaptureError::Read {
        file: file.to_owned(),
        packet: 1,
        offset: 0,
        source,
    })?;
    let is_records = head == MAGIC;
    let whole: Box<dyn Read + Send> = Box::new(Bytes::new(head).chain(stream));
    Ok(match is_records {
        true => PacketSource::Records(RecordReader::open(file, whole)?),
        false => PacketSource::Reader(Box::new(Reader::from_stream(file, whole)?)),
    })
}

/// Opens a file; `-` is standard input. Its first bytes tell whether it is a capture or a file of
/// records.
fn open_path(path: &Path) -> Result<(PacketSource<'static>, Option<u64>), Error> {
    if is_stream(path) {
        return Ok((open_stream("standard input", Box::new(io::stdin()))?, None));
    }
    let mut head = Vec::new();
    // If opening or reading fails, the reader of captures reports the error.
    if let Ok(file) = File::open(path)
        && (&file).take(MAGIC.len() as u64).read_to_end(&mut head).is_ok()
        && head == MAGIC
    {
        let length =
            file.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len());
        let records = RecordReader::open(
            &path.display().to_string(),
            Box::new(Bytes::new(head).chain(file)),
        )?;
        return Ok((PacketSource::Records(records), length));
    }
    let reader = Reader::open(path)?;
    let length = reader.file_length();
    Ok((PacketSource::Reader(Box::new(reader)), length))
}

fn packet_of_frame(frame: &Frame<'_>, file: &str, simd: Simd) -> Result<FilePacket, Error> {
    let (layer, length) = match start_of(frame.link_type(), frame.data) {
        Start::Ethernet => (Some(Layer::Ethernet), 0),
        Start::Ip { header_length } => (Some(Layer::Ip), header_length),
        Start::Other => (None, 0),
    };
    let (link, data) = frame.data.split_at(length.min(frame.data.len()));
    let header = match frame.options.comments().find_map(|comment| comment.strip_prefix(COMMENT)) {
        Some(digits) => Some(header_of_comment(digits).ok_or_else(|| CaptureError::Malformed {
            file: file.to_owned(),
            packet: frame.number,
            offset: 0,
            reason: format!(
                "its comment \"virtio_net_hdr={}\" needs 20, 24, 40 or 48 hexadecimal digits",
                String::from_utf8_lossy(digits)
            ),
        })?),
        None => None,
    };
    let origin = PacketMetadata {
        number: frame.number,
        interface: frame.interface,
        layer,
        link,
        header,
        cut: frame.is_truncated(),
    };
    Ok(FilePacket::new(origin, data, simd))
}

/// Reads a `virtio_net_hdr` from the hexadecimal digits of a comment.
fn header_of_comment(digits: &[u8]) -> Option<(Header, Format)> {
    let digits = digits.trim_ascii_end();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes: Option<Vec<u8>> =
        digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
    let bytes = bytes?;
    let format = Format::of_length(bytes.len())?;
    Some((Header::read(&bytes, format, ByteOrder::Little).ok()?, format))
}

fn read_header(
    bytes: &[u8],
    format: Format,
    file: &str,
    number: u64,
    offset: u64,
) -> Result<Header, CaptureError> {
    Header::read(bytes, format, ByteOrder::Little).map_err(|error| CaptureError::Malformed {
        file: file.to_owned(),
        packet: number,
        offset,
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_holds_a_header_of_any_length() {
        for (digits, format) in
            [(20, Format::Plain), (24, Format::Buffers), (40, Format::Hash), (48, Format::Tunnel)]
        {
            let text = "0181".to_owned() + &"0".repeat(digits - 4);
            let (header, found) = header_of_comment(text.as_bytes()).expect("a header");
            assert_eq!((header.flags, header.gso_type, found), (1, 0x81, format));
        }
        for digits in ["", "01", "0x000000000000000000", &"0".repeat(21), &"0".repeat(22)] {
            assert!(header_of_comment(digits.as_bytes()).is_none(), "{digits}");
        }
    }
}
