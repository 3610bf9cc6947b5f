//! Reads a simple format for packets with their `virtio_net_hdr`. A test in any language can write
//! it in ten lines.
//!
//! The file has a line of text and then a record for each packet: a length as a 32-bit
//! little-endian number, the header, and the packet. The length counts header and packet.
//! `docs/check.md` describes the format with an example.

use std::io::{self, BufReader, Read};

use crate::file::{CaptureError, MAX_RECORD_LENGTH, Truncated};
use superpacket::packet::Layer;
use superpacket::virtio::Format;

/// The bytes with which a file of records begins.
pub(super) const MAGIC: &[u8] = b"superpacket-records ";

/// Maximum length in bytes of the first line of a file of records.
const LONGEST_LINE: usize = 64;

/// Reads a file of records.
pub(super) struct RecordReader {
    file: String,
    stream: BufReader<Box<dyn Read + Send>>,
    pub(super) layer: Layer,
    /// The format of the packets' headers; `None` if the packets have no headers.
    pub(super) format: Option<Format>,
    /// Number of bytes read from the file.
    pub(super) offset: u64,
    /// Number of packets read from the file.
    number: u64,
    record: Vec<u8>,
    pub(super) truncated: Option<Truncated>,
}

impl RecordReader {
    /// Starts to read a file of records: reads the first line.
    pub(super) fn open(file: &str, stream: Box<dyn Read + Send>) -> Result<Self, CaptureError> {
        let mut stream = BufReader::with_capacity(1 << 16, stream);
        let not_records =
            |reason: String| CaptureError::NotCapture { file: file.to_owned(), reason };
        let mut line = Vec::new();
        let mut byte = [0];
        while line.len() < LONGEST_LINE {
            match stream.read_exact(&mut byte) {
                Ok(()) if byte == *b"\n" => break,
                Ok(()) => line.push(byte[0]),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(source) => {
                    return Err(CaptureError::Read {
                        file: file.to_owned(),
                        packet: 1,
                        offset: line.len() as u64,
                        source,
                    });
                }
            }
        }
        let text = String::from_utf8_lossy(&line).into_owned();
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
        let offset = line.len() as u64 + 1;
        Ok(RecordReader {
            file: file.to_owned(),
            stream,
            layer,
            format,
            offset,
            number: 0,
            record: Vec::new(),
            truncated: None,
        })
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Returns the next record: its number, from 1, and its header and packet. Returns `None` at
    /// the end, even if the file was cut short.
    pub(super) fn next_record(&mut self) -> Result<Option<(u64, &[u8])>, CaptureError> {
        let mut length = [0; 4];
        let got = self.fill(&mut length)?;
        match got {
            0 => return Ok(None),
            4 => {}
            _ => return self.cut(format!("{got} of the 4 bytes of its length")),
        }
        let length = u32::from_le_bytes(length) as usize;
        let least = self.format.map_or(0, Format::length);
        let malformed = |reason: String| {
            Err(CaptureError::Malformed {
                file: self.file.clone(),
                packet: self.number + 1,
                offset: self.offset,
                reason,
            })
        };
        if length < least {
            return malformed(format!(
                "a record of {length} bytes cannot hold a virtio_net_hdr of {least}"
            ));
        }
        if length > MAX_RECORD_LENGTH {
            let (file, packet, offset) = (self.file.clone(), self.number + 1, self.offset);
            return Err(CaptureError::RecordTooLong {
                file,
                packet,
                offset,
                claimed: length as u64,
                limit: MAX_RECORD_LENGTH as u64,
            });
        }
        // Memory is allocated only as bytes arrive, whatever length the record claims.
        let mut record = std::mem::take(&mut self.record);
        record.clear();
        let read = (&mut self.stream).take(length as u64).read_to_end(&mut record);
        self.record = record;
        if let Err(source) = read {
            return Err(CaptureError::Read {
                file: self.file.clone(),
                packet: self.number + 1,
                offset: self.offset,
                source,
            });
        }
        if self.record.len() < length {
            return self.cut(format!("{} of {length} bytes", self.record.len()));
        }
        self.offset += 4 + length as u64;
        self.number += 1;
        Ok(Some((self.number, &self.record)))
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

    /// Reads until `bytes` are full or the stream ends, and returns the number of bytes read.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<usize, CaptureError> {
        let mut got = 0;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.stream.read(rest) {
                Ok(0) => break,
                Ok(read) => got += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(CaptureError::Read {
                        file: self.file.clone(),
                        packet: self.number + 1,
                        offset: self.offset,
                        source,
                    });
                }
            }
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(bytes: &[u8]) -> Result<RecordReader, CaptureError> {
        RecordReader::open("x", Box::new(io::Cursor::new(bytes.to_vec())))
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
