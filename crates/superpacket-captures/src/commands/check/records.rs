//! Reads a simple format for packets with their `virtio_net_hdr`. A test in any language can write
//! it in ten lines.
//!
//! The file has a line of text and then a record for each packet: a length as a 32-bit
//! little-endian number, the header, and the packet. The length counts header and packet.
//! `docs/check.md` describes the format with an example.

use std::time::Duration;

use crate::file::{CaptureError, MAX_RECORD_LENGTH, RecordStream, Truncated};
use superpacket::packet::Layer;
use superpacket::virtio::Format;

/// The bytes with which a file of records begins.
pub(super) const MAGIC: &[u8] = b"superpacket-records ";

/// Maximum length in bytes of the first line of a file of records.
const LONGEST_LINE: usize = 64;

/// Number of bytes of the length field that precedes each record.
const LENGTH: usize = 4;

/// Reads a file of records.
pub(super) struct RecordReader {
    file: String,
    stream: RecordStream,
    pub(super) layer: Layer,
    /// The format of the packets' headers; `None` if the packets have no headers.
    pub(super) format: Option<Format>,
    /// Number of bytes read from the file.
    pub(super) offset: u64,
    /// Number of packets read from the file.
    number: u64,
    pub(super) truncated: Option<Truncated>,
}

impl RecordReader {
    /// Starts to read a file of records: reads the first line.
    pub(super) fn open(file: &str, mut stream: RecordStream) -> Result<Self, CaptureError> {
        let not_records =
            |reason: String| CaptureError::NotCapture { file: file.to_owned(), reason };
        let read_fault = |offset: usize, source| CaptureError::Read {
            file: file.to_owned(),
            packet: 1,
            offset: offset as u64,
            source,
        };
        let mut end = 0;
        while end < LONGEST_LINE
            && stream.has(end + 1).map_err(|source| read_fault(end, source))?
            && stream.available().get(end) != Some(&b'\n')
        {
            end += 1;
        }
        let line = stream.available().get(..end).unwrap_or_default();
        let text = String::from_utf8_lossy(line).into_owned();
        let words: Vec<&str> = text.split(' ').collect();
        let &["superpacket-records", version, link, length] = words.as_slice() else {
            return Err(not_records(format!(
                "its first line is {text:?}, not \"superpacket-records 1 LINK LENGTH\""
            )));
        };
        if version != "1" {
            return Err(not_records(format!("records of version {version:?}; only 1 is known")));
        }
        let layer = match link {
            "ethernet" => Layer::Ethernet,
            "ip" => Layer::Ip,
            _ => {
                return Err(not_records(format!(
                    "records of link type {link:?}; only \"ethernet\" and \"ip\" are known"
                )));
            }
        };
        let format = match length.parse().ok() {
            Some(0) => None,
            Some(bytes) if Format::of_length(bytes).is_some() => Format::of_length(bytes),
            _ => {
                return Err(not_records(format!(
                    "headers of {length:?} bytes; a virtio_net_hdr has 10, 12, 20 or 24, or 0 if there is none"
                )));
            }
        };
        stream.consume((end + 1).min(stream.available().len()));
        stream.stop_blocking();
        let offset = end as u64 + 1;
        Ok(RecordReader {
            file: file.to_owned(),
            stream,
            layer,
            format,
            offset,
            number: 0,
            truncated: None,
        })
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Returns the next record: its number, from 1, and its header and packet. Returns `None` at
    /// the end, even if the file was cut short. After an error for which
    /// [`CaptureError::is_would_block`] returns `true`, a later call continues.
    pub(super) fn next_record(&mut self) -> Result<Option<(u64, &[u8])>, CaptureError> {
        if !self.has(LENGTH)? {
            return match self.stream.available().len() {
                0 => Ok(None),
                got => self.cut(format!("{got} of the {LENGTH} bytes of its length")),
            };
        }
        let length = self
            .stream
            .available()
            .first_chunk()
            .map_or(0, |&length| u32::from_le_bytes(length) as usize);
        let least = self.format.map_or(0, Format::length);
        if length < least {
            return Err(CaptureError::Malformed {
                file: self.file.clone(),
                packet: self.number + 1,
                offset: self.offset,
                reason: format!(
                    "a record of {length} bytes cannot hold a virtio_net_hdr of {least}"
                ),
            });
        }
        if length > MAX_RECORD_LENGTH - LENGTH {
            let (file, packet, offset) = (self.file.clone(), self.number + 1, self.offset);
            return Err(CaptureError::RecordTooLong {
                file,
                packet,
                offset,
                claimed: length as u64,
                limit: (MAX_RECORD_LENGTH - LENGTH) as u64,
            });
        }
        if !self.has(LENGTH + length)? {
            let got = self.stream.available().len() - LENGTH;
            return self.cut(format!("{got} of {length} bytes"));
        }
        self.offset += (LENGTH + length) as u64;
        self.number += 1;
        let at = self.stream.consume(LENGTH + length) + LENGTH;
        Ok(Some((self.number, self.stream.at(at..at + length))))
    }

    /// Waits until there is something to read, but at most for `limit`. Returns whether there is.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        self.stream.wait(limit)
    }

    /// Returns whether reading may have to wait for data.
    pub(super) fn is_live(&self) -> bool {
        self.stream.is_live()
    }

    /// Reads until at least `length` bytes are available. Returns `false` if the file ends before.
    fn has(&mut self, length: usize) -> Result<bool, CaptureError> {
        self.stream.has(length).map_err(|source| CaptureError::Read {
            file: self.file.clone(),
            packet: self.number + 1,
            offset: self.offset,
            source,
        })
    }

    fn cut(&mut self, reason: String) -> Result<Option<(u64, &[u8])>, CaptureError> {
        self.truncated = Some(Truncated {
            file: self.file.clone(),
            packet: self.number + 1,
            offset: self.offset,
            reason,
        });
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(bytes: &[u8]) -> Result<RecordReader, CaptureError> {
        RecordReader::open("x", RecordStream::new(Box::new(std::io::Cursor::new(bytes.to_vec()))))
    }

    #[test]
    fn records_are_read() {
        let mut file = b"superpacket-records 1 ip 10\n".to_vec();
        for length in [10u32, 13] {
            file.extend(length.to_le_bytes());
            file.extend((0..length).map(|byte| byte as u8));
        }
        let mut records = open(&file).expect("records");
        assert_eq!((records.layer, records.format), (Layer::Ip, Some(Format::Plain)));
        assert_eq!(
            records.next_record().expect("whole").map(|(number, bytes)| (number, bytes.len())),
            Some((1, 10))
        );
        assert_eq!(
            records.next_record().expect("whole").map(|(number, bytes)| (number, bytes.len())),
            Some((2, 13))
        );
        assert!(records.next_record().expect("the end").is_none() && records.truncated.is_none());
        for cut in [1, 14, 16] {
            let mut records = open(&file[..file.len() - cut]).expect("records");
            records.next_record().expect("whole");
            assert!(records.next_record().expect("the end").is_none());
            assert_eq!(records.truncated.as_ref().map(|cut| cut.packet), Some(2), "{cut}");
        }
    }

    #[test]
    fn errors_describe_the_fault() {
        for (file, words) in [
            (&b"superpacket-records 2 ip 10\n"[..], "version \"2\""),
            (b"superpacket-records 1 wifi 10\n", "link type \"wifi\""),
            (b"superpacket-records 1 ip 11\n", "headers of \"11\" bytes"),
            (b"superpacket-records 1 ip\n", "its first line is"),
            (b"superpacket-records \xff", "its first line is"),
        ] {
            let error = open(file).map(|_| ()).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        }
        let mut short =
            open(b"superpacket-records 1 ip 10\n\x09\0\0\x00123456789").expect("records");
        assert!(
            short
                .next_record()
                .expect_err("too short")
                .to_string()
                .contains("cannot hold a virtio_net_hdr of 10")
        );
        let mut long = open(b"superpacket-records 1 ip 0\n\xff\xff\xff\xff").expect("records");
        assert!(matches!(long.next_record(), Err(CaptureError::RecordTooLong { .. })));
    }
}
