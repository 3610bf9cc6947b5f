//! Reads packets with their `virtio_net_hdr` from captures, files of records, and memory.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Cursor as Bytes, Read};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::file::{
    CaptureError, Frame, Item, LinkType, Reader, RecordStream, Start, Truncated, start_of,
};
use superpacket::Simd;
use superpacket::packet::Layer;
use superpacket::virtio::{ByteOrder, Format, Header};

use super::packet::{FilePacket, PacketMetadata};
use super::records::{MAGIC, RecordReader};
use crate::commands::error::Error;
use crate::commands::filter::{Filter, matches_all};
use crate::commands::input::Input;
use crate::commands::packets::PacketCursor;
use crate::commands::progress::{INTERVAL, Progress};
use crate::commands::source::{InputSource, is_stream, may_block, open_stream};
use crate::commands::waiting::{EndRequests, Waited, Waiting, in_thread};

/// The beginning of a pcapng comment that contains the packet's `virtio_net_hdr` in hexadecimal
/// digits.
pub(super) const COMMENT: &[u8] = b"virtio_net_hdr=";

/// Maximum number of packets that are read ahead; `AHEAD_BYTES` limits their bytes.
pub(super) const AHEAD_PACKETS: usize = 4096;
const AHEAD_BYTES: usize = 4 << 20;

enum PacketSource<'a> {
    Capture(InputSource<'a>),
    Records(Box<RecordReader>),
}

impl Waiting for PacketSource<'_> {
    fn is_live(&self) -> bool {
        match self {
            PacketSource::Capture(source) => source.is_live(),
            PacketSource::Records(records) => records.is_live(),
        }
    }

    fn wait(&self, limit: Duration) -> bool {
        match self {
            PacketSource::Capture(source) => source.wait(limit),
            PacketSource::Records(records) => records.wait(limit),
        }
    }
}

/// A [`Progress`] that the streams of both files of a check share.
pub(super) struct SharedProgress<'a> {
    progress: RefCell<&'a mut dyn Progress>,
    /// Number of packets and bytes of the checked file that were read so far.
    read: Cell<(u64, u64)>,
}

impl<'a> SharedProgress<'a> {
    pub(super) fn new(progress: &'a mut dyn Progress) -> Rc<Self> {
        Rc::new(SharedProgress { progress: RefCell::new(progress), read: Cell::default() })
    }

    /// Borrows the progress, so that the caller can call its methods while neither file is being
    /// read.
    pub(super) fn borrow(&self) -> RefMut<'_, &'a mut dyn Progress> {
        self.progress.borrow_mut()
    }
}

/// Whether a stream reads the checked file or the original file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Checked,
    Origin,
}

/// A source of packets for `check`: an open file, or packets in memory.
pub(super) struct PacketStream<'a> {
    source: PacketSource<'a>,
    role: Role,
    progress: Rc<SharedProgress<'a>>,
    end_requests: EndRequests,
    pub(super) file: String,
    /// The file's length in bytes; `None` if it is not known.
    pub(super) length: Option<u64>,
    /// Number of packets returned so far by [`next_packet`](Self::next_packet).
    pub(super) packets: u64,
    /// Bytes of the packets returned so far, including link headers.
    pub(super) bytes: u64,
    /// Packets that have been read ahead, and will be returned next.
    ahead: VecDeque<FilePacket>,
    /// Number of packets read so far.
    read: u64,
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
    pub(super) fn open(
        input: Input<'a>,
        role: Role,
        progress: &Rc<SharedProgress<'a>>,
        simd: Simd,
    ) -> Result<Self, Error> {
        let mut length = None;
        let source = match input {
            Input::Filtered { input, expression } => {
                let filter = Filter::new(expression)?;
                let mut stream = PacketStream::open(*input, role, progress, simd)?;
                stream.filters.push(filter);
                return Ok(stream);
            }
            Input::Path(path) | Input::Recording { path, rotated: false, follow: false } => {
                let (source, of_records) = open_path(path, &mut **progress.borrow())?;
                length = of_records;
                source
            }
            Input::Recording { path, rotated, follow } => PacketSource::Capture(
                InputSource::open_recording(path, rotated, follow, &mut **progress.borrow())?,
            ),
            Input::Reader(reader) => PacketSource::Capture(InputSource::Reader(reader)),
            Input::Stream { file, stream } => open_blocking(&file, stream)?,
            Input::Live { file, stream } => {
                PacketSource::Capture(InputSource::live(file, stream, &mut **progress.borrow())?)
            }
            Input::Packets(packets) => {
                PacketSource::Capture(InputSource::Packets(PacketCursor::new(packets)))
            }
        };
        let (file, length) = match &source {
            PacketSource::Capture(source) => (source.file().to_owned(), source.length()),
            PacketSource::Records(records) => (records.file().to_owned(), length),
        };
        Ok(PacketStream {
            source,
            role,
            progress: Rc::clone(progress),
            end_requests: EndRequests::new(),
            file,
            length,
            packets: 0,
            bytes: 0,
            ahead: VecDeque::new(),
            read: 0,
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

    /// Calls `wanted` with each of the next packets, up to the limit of packets that are read
    /// ahead, and returns the first result that is not `None`. The packets remain in the stream.
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
        while !self.ended {
            if self.read.is_multiple_of(INTERVAL) && self.ask()? {
                break;
            }
            match self.read_packet() {
                Ok(Some(packet)) => {
                    self.read += 1;
                    if let Some(packet) = packet {
                        self.has_cut_packets |= packet.cut;
                        return Ok(Some(packet));
                    }
                    self.filtered_out += 1;
                }
                Err(Error::Capture(error)) if error.is_would_block() => {
                    if self.wait()? == Waited::End {
                        break;
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(error),
            }
        }
        self.ended = true;
        Ok(None)
    }

    /// Reports to the progress, and returns whether it requests that reading ends here.
    fn ask(&mut self) -> Result<bool, Error> {
        let read = self.position();
        let mut progress = self.progress.borrow();
        match self.read {
            0 => Ok(self.end_requests.ends(&self.source, &mut **progress)),
            _ => self.end_requests.ask(&self.source, read, &mut **progress),
        }
    }

    /// Waits until there is something to read, or the progress requests that reading ends.
    fn wait(&mut self) -> Result<Waited, Error> {
        let read = self.position();
        self.end_requests.wait(&self.source, read, &mut **self.progress.borrow(), None)
    }

    /// Returns the numbers of packets and bytes of the checked file that were read.
    fn position(&self) -> (u64, u64) {
        if self.role == Role::Checked {
            self.progress.read.set((self.read, self.bytes_read()));
        }
        self.progress.read.get()
    }

    /// Reads the next packet. Returns `None` at the end of the file, and `Some(None)` for a packet
    /// that does not match the filters.
    fn read_packet(&mut self) -> Result<Option<Option<FilePacket>>, Error> {
        let Self { source, filters, file, simd, .. } = self;
        let source = match source {
            PacketSource::Capture(source) => source,
            PacketSource::Records(records) => return read_record(records, filters, file, *simd),
        };
        loop {
            let frame = match source.next_item()? {
                Some(Item::Frame(frame)) => frame,
                Some(Item::Block(_)) => continue,
                None => return Ok(None),
            };
            let (link_type, length) = (frame.link_type(), frame.original_length);
            return Ok(Some(match matches_all(filters, link_type, frame.data, length)? {
                true => Some(packet_of_frame(&frame, file, *simd)?),
                false => None,
            }));
        }
    }

    /// Returns the number of bytes read from the file.
    fn bytes_read(&self) -> u64 {
        match &self.source {
            PacketSource::Capture(source) => source.bytes_read(),
            PacketSource::Records(records) => records.offset,
        }
    }

    /// Returns whether a snap length had cut a packet that was read, or the file was not read to
    /// its end, or is cut short.
    pub(super) fn is_incomplete_file(&self) -> bool {
        self.has_cut_packets || self.is_interrupted() || self.truncated().is_some()
    }

    /// Returns whether the progress has ended the reading of the file.
    pub(super) fn is_interrupted(&self) -> bool {
        self.end_requests.is_ending()
    }

    /// Returns where the file is cut short. `None` if it is not, or its end has not been reached.
    pub(super) fn truncated(&self) -> Option<&Truncated> {
        let truncated = match &self.source {
            PacketSource::Capture(source) => source.truncated(),
            PacketSource::Records(records) => records.truncated.as_ref(),
        };
        truncated.filter(|_| !self.is_interrupted())
    }
}

/// Reads the next packet of a file of records, like `PacketStream::read_packet`.
fn read_record(
    records: &mut RecordReader,
    filters: &mut [Filter],
    file: &str,
    simd: Simd,
) -> Result<Option<Option<FilePacket>>, Error> {
    let (layer, format, offset) = (records.layer, records.format, records.offset);
    let Some((number, record)) = records.next_record()? else { return Ok(None) };
    let (head, data) = record.split_at(format.map_or(0, Format::length));
    let link_type = match layer {
        Layer::Ethernet => LinkType::ETHERNET,
        Layer::Ip => LinkType::RAW,
    };
    if !matches_all(filters, link_type, data, data.len() as u32)? {
        return Ok(Some(None));
    }
    let header = match format {
        Some(format) => Some((read_header(head, format, file, number, offset)?, format)),
        None => None,
    };
    let (layer, link) = (Some(layer), &[][..]);
    let origin = PacketMetadata { number, interface: 0, layer, link, header, cut: false };
    Ok(Some(Some(FilePacket::new(origin, data, simd))))
}

/// Reads the first bytes of a stream, and returns whether it is a file of records, and the stream
/// with these bytes put back.
fn has_records(
    file: &str,
    mut stream: Box<dyn Read + Send>,
) -> Result<(bool, Box<dyn Read + Send>), CaptureError> {
    let mut head = Vec::new();
    let read = (&mut stream).take(MAGIC.len() as u64).read_to_end(&mut head);
    read.map_err(|source| CaptureError::Read {
        file: file.to_owned(),
        packet: 1,
        offset: 0,
        source,
    })?;
    Ok((head == MAGIC, Box::new(Bytes::new(head).chain(stream))))
}

/// Opens a stream that contains a capture or records, and blocks until data arrives.
fn open_blocking(
    file: &str,
    stream: Box<dyn Read + Send>,
) -> Result<PacketSource<'static>, CaptureError> {
    let (records, stream) = has_records(file, stream)?;
    Ok(match records {
        true => {
            PacketSource::Records(Box::new(RecordReader::open(file, RecordStream::new(stream))?))
        }
        false => {
            PacketSource::Capture(InputSource::Reader(Box::new(Reader::from_stream(file, stream)?)))
        }
    })
}

/// Opens the file, pipe or device at a path, which contains a capture or records and may have no
/// data for now.
fn open_live(path: &Path) -> Result<PacketSource<'static>, CaptureError> {
    let (file, stream) = open_stream(path)?;
    let (records, stream) = has_records(&file, stream)?;
    Ok(match records {
        true => {
            let stream = RecordStream::live(stream)
                .map_err(|source| CaptureError::Open { file: file.clone(), source })?;
            PacketSource::Records(Box::new(RecordReader::open(&file, stream)?))
        }
        false => PacketSource::Capture(InputSource::Reader(Box::new(Reader::live(&file, stream)?))),
    })
}

/// Opens a file; `-` is standard input. Its first bytes tell whether it is a capture or a file of
/// records. Returns the length of a file of records too.
fn open_path<'a>(
    path: &Path,
    progress: &mut dyn Progress,
) -> Result<(PacketSource<'a>, Option<u64>), Error> {
    if may_block(path) {
        let path = path.to_owned();
        return Ok((in_thread(progress, move || open_live(&path))??, None));
    }
    if is_stream(path) {
        return Ok((open_blocking("standard input", Box::new(io::stdin()))?, None));
    }
    // If opening or reading fails, the reader of captures reports the error.
    if let Ok(file) = File::open(path)
        && let Ok(metadata) = file.metadata()
        && metadata.is_file()
        && let name = path.display().to_string()
        && let Ok((true, stream)) = has_records(&name, Box::new(file))
    {
        let records = RecordReader::open(&name, RecordStream::new(stream))?;
        return Ok((PacketSource::Records(Box::new(records)), Some(metadata.len())));
    }
    Ok((PacketSource::Capture(InputSource::open(path, progress)?), None))
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
