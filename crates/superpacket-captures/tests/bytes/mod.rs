//! Captures made byte by byte, independently of the writer under test.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{Cursor, Write};

use superpacket_captures::file::{
    ByteOrder, CaptureError, Format, Interface, Reader, Source, Timestamp, Truncated,
};

pub(crate) const MICROSECONDS: u32 = 0xA1B2_C3D4;
pub(crate) const NANOSECONDS: u32 = 0xA1B2_3C4D;
pub(crate) const MODIFIED: u32 = 0xA1B2_CD34;

#[derive(Clone)]
pub(crate) struct Bytes(pub(crate) Vec<u8>, pub(crate) ByteOrder);

impl Bytes {
    pub(crate) fn u16(mut self, value: u16) -> Self {
        self.0.extend(if self.1 == ByteOrder::Big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        });
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Self {
        self.0.extend(if self.1 == ByteOrder::Big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        });
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Self {
        self.0.extend(if self.1 == ByteOrder::Big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        });
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn padded(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn pcap_header(
        self,
        magic: u32,
        (major, minor): (u16, u16),
        link_type: u32,
    ) -> Self {
        self.u32(magic).u16(major).u16(minor).u32(0).u32(0).u32(65_535).u32(link_type)
    }

    pub(crate) fn pcap_record(
        self,
        seconds: u32,
        fraction: u32,
        original: u32,
        data: &[u8],
    ) -> Self {
        self.u32(seconds).u32(fraction).u32(data.len() as u32).u32(original).raw(data)
    }

    pub(crate) fn block(self, block_type: u32, body: impl FnOnce(Bytes) -> Bytes) -> Self {
        let body = body(Bytes(Vec::new(), self.1)).0;
        let total = body.len() as u32 + 12;
        self.u32(block_type).u32(total).raw(&body).u32(total)
    }

    pub(crate) fn option(self, code: u16, value: &[u8]) -> Self {
        self.u16(code).u16(value.len() as u16).padded(value)
    }

    pub(crate) fn section(self) -> Self {
        self.block(0x0A0D_0D0A, |b| b.u32(0x1A2B_3C4D).u16(1).u16(0).u64(u64::MAX))
    }

    pub(crate) fn interface(
        self,
        link_type: u16,
        snap: u32,
        options: impl FnOnce(Bytes) -> Bytes,
    ) -> Self {
        self.block(1, |b| options(b.u16(link_type).u16(0).u32(snap)))
    }

    pub(crate) fn enhanced(
        self,
        interface: u32,
        ticks: u64,
        original: u32,
        data: &[u8],
        options: impl FnOnce(Bytes) -> Bytes,
    ) -> Self {
        self.block(6, |b| {
            let b = b.u32(interface).u32((ticks >> 32) as u32).u32(ticks as u32);
            options(b.u32(data.len() as u32).u32(original).padded(data))
        })
    }

    pub(crate) fn obsolete(self, interface: u16, ticks: u64, original: u32, data: &[u8]) -> Self {
        self.block(2, |b| {
            let b = b.u16(interface).u16(9).u32((ticks >> 32) as u32).u32(ticks as u32);
            b.u32(data.len() as u32).u32(original).padded(data)
        })
    }

    pub(crate) fn simple(self, original: u32, data: &[u8]) -> Self {
        self.block(3, |b| b.u32(original).padded(data))
    }
}

pub(crate) fn bytes(order: ByteOrder) -> Bytes {
    Bytes(Vec::new(), order)
}

pub(crate) fn none(bytes: Bytes) -> Bytes {
    bytes
}

/// A frame as read, kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kept {
    pub(crate) interface: u32,
    pub(crate) time: Option<Timestamp>,
    pub(crate) original_length: u32,
    pub(crate) data: Vec<u8>,
}

impl Kept {
    pub(crate) fn nanoseconds(&self) -> u64 {
        self.time.unwrap().nanoseconds()
    }
}

pub(crate) struct Everything {
    pub(crate) format: Format,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) frames: Vec<Kept>,
    pub(crate) truncated: Option<Truncated>,
    pub(crate) error: Option<CaptureError>,
}

pub(crate) fn open(bytes: impl Into<Vec<u8>>) -> Result<Reader, CaptureError> {
    Reader::from_stream("test", Box::new(Cursor::new(bytes.into())))
}

pub(crate) fn drain(reader: &mut Reader) -> Everything {
    let mut frames = Vec::new();
    let error = loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                assert_eq!(frame.number, frames.len() as u64 + 1);
                assert!((frame.interface as usize) < frame.interfaces.len());
                frames.push(Kept {
                    interface: frame.interface,
                    time: frame.time,
                    original_length: frame.original_length,
                    data: frame.data.to_vec(),
                });
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    assert!(matches!(reader.next_frame(), Ok(None)), "nothing after the end");
    Everything {
        format: reader.format(),
        interfaces: reader.interfaces().to_vec(),
        frames,
        truncated: reader.truncated().cloned(),
        error,
    }
}

pub(crate) fn read(bytes: impl Into<Vec<u8>>) -> Everything {
    drain(&mut open(bytes).expect("a capture file"))
}

/// Reads a file, and expects neither an error nor truncation.
pub(crate) fn read_whole(bytes: impl Into<Vec<u8>>) -> Everything {
    let everything = read(bytes);
    assert!(everything.error.is_none(), "{:?}", everything.error);
    assert_eq!(everything.truncated, None);
    everything
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// A file of each kind that is read, several frames each.
pub(crate) fn one_of_each() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |length: usize| (0..length).map(|at| (at * 7 + length) as u8).collect::<Vec<_>>();
    let pcap = |order, magic| {
        let mut b = bytes(order).pcap_header(magic, (2, 4), 1);
        for number in 1..5 {
            let data = frame(40 + number as usize);
            b = b.u32(number).u32(number * 1000).u32(data.len() as u32).u32(100 + number);
            b = if magic == MODIFIED { b.u32(2).u16(0x0800).raw(&[0, 0]) } else { b };
            b = b.raw(&data);
        }
        b.0
    };
    let pcapng = |order| {
        let b = bytes(order)
            .section()
            .interface(1, 0, |b| b.option(2, b"eth0").option(9, &[9]).option(0, &[]));
        let b = b.interface(101, 96, |b| b.option(9, &[0x8A]).option(0, &[]));
        let b = b.enhanced(0, 1 << 40, 45, &frame(45), |b| b.option(1, b"why").u32(0));
        let b =
            b.block(4, |b| b.u32(0)).enhanced(1, 5, 300, &frame(96), none).simple(43, &frame(43));
        b.obsolete(1, 77, 44, &frame(44))
            .section()
            .interface(113, 0, none)
            .enhanced(0, 8, 50, &frame(50), none)
            .0
    };
    let little = pcap(ByteOrder::Little, MICROSECONDS);
    let mut members = gzip(&little[..50]);
    members.extend(gzip(&little[50..]));
    vec![
        ("pcap big", pcap(ByteOrder::Big, MICROSECONDS)),
        ("pcap nanoseconds", pcap(ByteOrder::Little, NANOSECONDS)),
        ("pcap modified", pcap(ByteOrder::Little, MODIFIED)),
        ("pcapng", pcapng(ByteOrder::Little)),
        ("pcapng big", pcapng(ByteOrder::Big)),
        ("pcap gzip", members),
        ("pcapng zstd", zstd(&pcapng(ByteOrder::Big))),
        ("pcap", little),
    ]
}
