//! Every format and variant, from bytes made by the tests.

use crate::bytes::*;
use superpacket_captures::file::{
    ByteOrder, CaptureError, Compression, Format, LinkType, PcapVariant, Reader, Source,
    TimeResolution,
};

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];

#[test]
fn pcap_in_both_byte_orders_and_resolutions() {
    for byte_order in ORDERS {
        for (magic, variant, nanoseconds) in [
            (MICROSECONDS, PcapVariant::Microseconds, 1_000_000_500_000),
            (NANOSECONDS, PcapVariant::Nanoseconds, 1_000_000_000_500),
        ] {
            let file = bytes(byte_order).pcap_header(magic, (2, 4), 276);
            let read =
                read_whole(file.pcap_record(1000, 500, 90, b"abc").pcap_record(5, 0, 3, b"def").0);
            assert_eq!(read.format, Format::Pcap { byte_order, variant });
            assert_eq!(read.interfaces.len(), 1);
            assert_eq!(read.interfaces[0].link_type, LinkType::LINUX_SLL2);
            assert_eq!(read.interfaces[0].snap_length, 65_535);
            assert_eq!(read.frames.len(), 2);
            assert_eq!(read.frames[0].nanoseconds(), nanoseconds);
            assert_eq!(
                (read.frames[0].original_length, &read.frames[0].data[..]),
                (90, &b"abc"[..])
            );
            assert_eq!(read.frames[1].nanoseconds(), 5_000_000_000);
        }
    }
}

#[test]
fn a_fraction_above_a_second_moves_the_time_on() {
    let file = bytes(ByteOrder::Little)
        .pcap_header(MICROSECONDS, (2, 4), 1)
        .pcap_record(1, 2_500_000, 1, b"x");
    assert_eq!(read_whole(file.0).frames[0].nanoseconds(), 3_500_000_000);
}

#[test]
fn the_modified_format_has_longer_record_headers() {
    for byte_order in ORDERS {
        let file = bytes(byte_order).pcap_header(MODIFIED, (2, 4), 1);
        let file = file.u32(1).u32(2).u32(3).u32(64).u32(7).u16(0x0800).raw(&[4, 0]).raw(b"abc");
        let read = read_whole(
            file.u32(9).u32(2).u32(2).u32(2).u32(7).u16(0x0800).raw(&[4, 0]).raw(b"de").0,
        );
        assert_eq!(read.format, Format::Pcap { byte_order, variant: PcapVariant::Modified });
        assert_eq!(read.frames[0].data, b"abc");
        assert_eq!(read.frames[1].data, b"de");
        assert_eq!(read.frames[0].nanoseconds(), 1_000_002_000);
        assert_eq!((read.frames[0].original_length, read.frames[1].original_length), (64, 2));
    }
}

#[test]
fn old_pcap_versions_swap_the_lengths() {
    let file = |version, first: u32, second: u32| {
        let file = bytes(ByteOrder::Big).pcap_header(MICROSECONDS, version, 1);
        read_whole(file.u32(1).u32(2).u32(first).u32(second).raw(b"abc").0).frames.remove(0)
    };
    for (version, first, second) in
        [((2, 2), 9, 3), ((2, 3), 9, 3), ((2, 3), 3, 9), ((2, 4), 3, 9), ((543, 0), 3, 9)]
    {
        let frame = file(version, first, second);
        assert_eq!((frame.original_length, &frame.data[..]), (9, &b"abc"[..]), "{version:?}");
    }
    for version in [(1, 0), (3, 4), (543, 1)] {
        let file = bytes(ByteOrder::Big).pcap_header(MICROSECONDS, version, 1);
        let error = open(file.0).err().unwrap();
        assert!(matches!(error, CaptureError::Unsupported { .. }), "{error}");
    }
}

#[test]
fn pcapng_with_several_sections_interfaces_and_byte_orders() {
    let first = bytes(ByteOrder::Big).section().interface(1, 0, |b| b.option(2, b"eth0"));
    let first = first.interface(101, 0, |b| b.option(9, &[9]).option(14, &(-1i64).to_be_bytes()));
    let first = first.enhanced(1, 2_000_000_001, 5, b"hello", none).enhanced(0, 7, 1, b"x", none);
    let second = bytes(ByteOrder::Little).section().block(0xBAD, |b| b.raw(&[1; 8]));
    let second =
        second.interface(113, 0, |b| b.option(9, &[0x80 | 3])).enhanced(0, 12, 3, b"abc", none);
    let second = second.interface(229, 0, none).enhanced(1, 1 << 33, 1, b"z", none);
    let read = read_whole([first.0, second.0].concat());
    assert_eq!(read.format, Format::PcapNg { byte_order: ByteOrder::Big });
    let link_types: Vec<_> =
        read.interfaces.iter().map(|interface| interface.link_type.0).collect();
    assert_eq!(link_types, [1, 101, 113, 229]);
    assert_eq!(read.interfaces[0].name().unwrap(), "eth0");
    assert_eq!(read.interfaces[1].name(), None);
    let frames: Vec<_> =
        read.frames.iter().map(|f| (f.interface, f.nanoseconds(), f.data.as_slice())).collect();
    assert_eq!(
        frames,
        [
            (1, 1_000_000_001, &b"hello"[..]),
            (0, 7_000, b"x"),
            (2, 1_500_000_000, b"abc"),
            (3, (1 << 33) * 1000, b"z"),
        ]
    );
}

#[test]
fn simple_and_obsolete_packet_blocks() {
    for byte_order in ORDERS {
        let file = bytes(byte_order)
            .section()
            .interface(1, 5, none)
            .interface(101, 0, |b| b.option(9, &[3]));
        let file = file.simple(3, b"abc").simple(900, b"abcde").obsolete(1, 1500, 77, b"old");
        let read = read_whole(file.0);
        let frames: Vec<_> = read
            .frames
            .iter()
            .map(|f| (f.interface, f.time.map(|t| t.nanoseconds()), f.original_length))
            .collect();
        assert_eq!(frames, [(0, None, 3), (0, None, 900), (1, Some(1_500_000_000), 77)]);
        let data: Vec<_> = read.frames.iter().map(|f| f.data.as_slice()).collect();
        assert_eq!(data, [&b"abc"[..], b"abcde", b"old"], "no padding");
    }
}

#[test]
fn packet_options_are_lent() {
    let file = bytes(ByteOrder::Little).section().interface(1, 0, none);
    let file = file
        .enhanced(0, 1, 3, b"abc", |b| b.option(1, b"note").u32(0))
        .enhanced(0, 1, 3, b"abc", none);
    let mut reader = open(file.0).unwrap();
    assert!(!reader.next_frame().unwrap().unwrap().options.is_empty());
    assert!(reader.next_frame().unwrap().unwrap().options.is_empty());
}

#[test]
fn broken_pcapng_structure_is_an_error_with_its_place() {
    let good =
        || bytes(ByteOrder::Little).section().interface(1, 0, none).enhanced(0, 1, 3, b"abc", none);
    let offset = good().0.len() as u64;
    let cases: Vec<(Bytes, &str)> = vec![
        (good().enhanced(1, 1, 3, b"abc", none), "names interface 1"),
        (good().block(6, |b| b.u32(0).u32(0).u32(0).u32(5).u32(5).raw(&[0; 4])), "room for 4"),
        (good().block(6, |b| b.u32(0)), "at least 32"),
        (good().block(2, |b| b.u32(0)), "at least 32"),
        (good().block(3, none), "at least 16"),
        (good().block(3, |b| b.u32(100).u32(0)), "room for 4"),
        (good().block(1, |b| b.u32(0)), "at least 20"),
        (good().interface(1, 0, |b| b.u16(2).u16(9)), "claims 9 bytes"),
        (good().interface(1, 0, |b| b.option(9, &[0x7F])), "finer"),
        (good().u32(5).u32(13).raw(&[0; 20]), "multiple of 4"),
        (good().u32(5).u32(8).raw(&[0; 20]), "multiple of 4"),
        (good().u32(5).u32(16).u32(0).u32(20), "ends with a length of 20"),
        (good().raw(&[0; 64]), "multiple of 4"),
        (good().u32(0x0A0D_0D0A).u32(28).raw(&[9; 40]), "byte-order magic"),
        (good().block(0x0A0D_0D0A, |b| b.u32(0x1A2B_3C4D).u16(2).u16(0).u64(0)), "version 2.0"),
        (good().block(0x0A0D_0D0A, |b| b.u32(0x1A2B_3C4D).u16(1).u16(0)), "at least 28"),
        (
            good().block(0x0A0D_0D0A, |b| b.u32(0x1A2B_3C4D).u16(1).u16(0).u64(0).u16(1).u16(50)),
            "claims 50",
        ),
    ];
    for (file, reason) in cases {
        let read = read(file.0);
        assert_eq!(read.frames.len(), 1, "{reason}: all frames before it");
        let message = read.error.expect(reason).to_string();
        assert!(message.starts_with(&format!("test: packet 2, byte {offset}: ")), "{message}");
        assert!(message.contains(reason), "{message}");
    }
}

#[test]
fn a_claimed_length_above_the_limit_is_refused() {
    let pcap =
        bytes(ByteOrder::Little).pcap_header(MICROSECONDS, (2, 4), 1).pcap_record(1, 1, 1, b"x");
    let pcapng =
        bytes(ByteOrder::Big).section().interface(1, 0, none).enhanced(0, 1, 1, b"x", none);
    let cases = [
        (pcap.u32(1).u32(1).u32(1 << 31).u32(1), (1u64 << 31) + 16),
        (pcapng.u32(6).u32(1 << 30).u32(0), 1 << 30),
    ];
    for (file, length) in cases {
        let read = read(file.0);
        assert_eq!(read.frames.len(), 1);
        let Some(CaptureError::RecordTooLong { packet: 2, claimed, .. }) = read.error else {
            panic!("{:?}", read.error)
        };
        assert_eq!(claimed, length);
    }
}

#[test]
fn interfaces_without_end_are_refused() {
    let mut file = bytes(ByteOrder::Little).section();
    let one = bytes(ByteOrder::Little).interface(1, 0, none).0;
    file.0.extend(one.repeat(200_000));
    let read = read(file.0);
    assert!(read.error.unwrap().to_string().contains("interfaces"));
    assert!(read.interfaces.len() > 10_000);
}

#[test]
fn garbage_after_records_is_an_error_with_its_place() {
    let good =
        bytes(ByteOrder::Little).pcap_header(MICROSECONDS, (2, 4), 1).pcap_record(1, 1, 1, b"x");
    for garbage in [&b"this is no record header, but text"[..], &[0xFF; 40]] {
        let read = read(good.clone().raw(garbage).0);
        assert_eq!(read.frames.len(), 1);
        let message = read.error.unwrap().to_string();
        assert!(message.starts_with("test: packet 2, byte 41: "), "{message}");
    }
}

/// As in libpcap, a record header of zeros is an empty packet captured in 1970.
#[test]
fn zeros_after_records_are_empty_packets() {
    let good =
        bytes(ByteOrder::Little).pcap_header(MICROSECONDS, (2, 4), 1).pcap_record(1, 1, 1, b"x");
    let read = read(good.raw(&[0; 40]).0);
    assert_eq!(read.frames.iter().map(|frame| frame.data.len()).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(read.error.is_none() && read.truncated.is_some());
}

#[test]
fn compression_is_found_by_its_magic_number() {
    let plain = bytes(ByteOrder::Little).pcap_header(MICROSECONDS, (2, 4), 1);
    let plain = plain.pcap_record(1, 1, 3, b"abc").pcap_record(2, 2, 3, b"def").0;
    let expected = read_whole(plain.clone()).frames;
    let (a, b) = plain.split_at(30);
    // RFC 8878 section 3.1.2: a skippable frame.
    let skippable = [0x53, 0x2A, 0x4D, 0x18, 3, 0, 0, 0, 9, 9, 9];
    let cases = [
        (Compression::Gzip, gzip(&plain)),
        (Compression::Gzip, [gzip(a), gzip(&[]), gzip(b)].concat()),
        (Compression::Zstd, zstd(&plain)),
        (Compression::Zstd, [zstd(a), skippable.to_vec(), zstd(&[]), zstd(b)].concat()),
        (Compression::Zstd, [skippable.to_vec(), zstd(&plain)].concat()),
    ];
    for (compression, file) in cases {
        let mut reader = open(file.clone()).unwrap();
        assert_eq!(reader.compression(), compression);
        let read = drain(&mut reader);
        assert_eq!((read.frames, read.truncated), (expected.clone(), None));
        assert_eq!(reader.bytes_read(), file.len() as u64);
    }
}

#[test]
fn a_zstd_window_above_the_limit_is_refused() {
    // Frame header: no single segment, no checksum; window descriptor: exponent 31, so 2 TiB.
    let error = open([0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xF8, 0x01, 0x00, 0x00]).err().unwrap();
    let message = error.to_string();
    assert!(
        message.starts_with(
            "test: packet 1, byte 0: not supported: its zstd window of 2199023255552 bytes"
        ),
        "{message}"
    );
    assert!(
        message.contains("limit of 8388608: decompress it first (zstd -dc --long=31"),
        "{message}"
    );
}

#[test]
fn what_follows_a_gzip_stream_is_named() {
    let plain = bytes(ByteOrder::Little)
        .pcap_header(MICROSECONDS, (2, 4), 1)
        .pcap_record(1, 1, 3, b"abc")
        .0;
    let compressed = gzip(&plain);
    for garbage in [&b"garbage"[..], &[0; 512], b"\x1f\x8a", b"x"] {
        let read = read([&compressed[..], garbage].concat());
        assert_eq!(read.frames.len(), 1, "all before it");
        let message = read.error.expect("it is no part of the capture").to_string();
        let place = format!(
            "test: packet 2, byte {}: the gzip stream ends at byte {} ",
            plain.len(),
            compressed.len()
        );
        assert!(message.starts_with(&place), "{message}");
        let head: Vec<_> = garbage.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        assert!(
            message.contains(&format!("other data follows: [{}]", head.join(", "))),
            "{message}"
        );
    }
    // The start of a truncated member.
    for cut in [1, 2, 9, 12] {
        let read = read([&compressed[..], &compressed[..cut]].concat());
        assert!(read.error.is_none() && read.truncated.is_some(), "{cut}: {:?}", read.error);
    }
}

#[test]
fn a_wrong_checksum_of_the_compression_is_an_error() {
    let plain = bytes(ByteOrder::Little)
        .pcap_header(MICROSECONDS, (2, 4), 1)
        .pcap_record(1, 1, 3, b"abc")
        .0;
    let mut broken_zstd = zstd(&plain);
    *broken_zstd.last_mut().unwrap() ^= 1;
    let mut broken_gzip = gzip(&plain);
    let at = broken_gzip.len() - 8;
    broken_gzip[at] ^= 1;
    for file in [broken_zstd, broken_gzip] {
        let read = read(file);
        assert_eq!(read.frames.len(), 1);
        let message = read.error.expect("the checksum is checked").to_string();
        assert!(message.contains("checksum"), "{message}");
    }
}

#[test]
fn what_is_no_capture_is_named() {
    for (bytes, reason) in [
        (&b""[..], "it is empty"),
        (b"\xd4\xc3", "it ends after 2 bytes"),
        (b"snoop\0\0\0\0\0\0\x02\0\0\0\x04", "snoop, which is not supported (editcap"),
        (b"RTSS\x01\x01\x01\0", "Monitor 1, which is not supported (editcap converts it"),
        (b"GMBU\0\x02\x01\0", "Monitor 2, which is not supported (editcap converts it"),
        (b"\x1c\0\x01\xac\0\0\0\0", "Ixia lcap, which is not supported (editcap converts it"),
        (b"BZh91AY&SY", "bzip2"),
        (b"#!/bin/sh\n", "neither pcap nor pcapng"),
    ] {
        let message = open(bytes).err().unwrap().to_string();
        assert!(message.starts_with("test: not a capture file: "), "{message}");
        assert!(message.contains(reason), "{message}");
    }
    let message = open(gzip(&gzip(b"x"))).err().unwrap().to_string();
    assert!(message.contains("compressed twice"), "{message}");
    assert!(open(&b"\xd4\xc3\xb2\xa1\x02\x00"[..]).is_err());
}

#[test]
fn files_are_opened_by_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pcap");
    let file = bytes(ByteOrder::Little)
        .pcap_header(MICROSECONDS, (2, 4), 1)
        .pcap_record(1, 1, 3, b"abc")
        .0;
    std::fs::write(&path, &file).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(reader.file_length(), Some(file.len() as u64));
    assert_eq!(drain(&mut reader).frames.len(), 1);
    assert_eq!(reader.bytes_read(), file.len() as u64);
    for wrong in [directory.path().to_owned(), directory.path().join("absent")] {
        let error = Reader::open(&wrong).err().unwrap();
        assert!(matches!(error, CaptureError::Open { .. }), "{error}");
        assert!(error.to_string().starts_with(&wrong.display().to_string()));
    }
}

#[test]
fn frames_say_their_link_type_and_whether_they_are_cut() {
    let file = bytes(ByteOrder::Little)
        .section()
        .interface(1, 0, none)
        .interface(101, 0, |b| b.option(9, &[9]));
    let mut reader =
        open(file.enhanced(1, 1, 9, b"abc", none).enhanced(0, 1, 3, b"abc", none).0).unwrap();
    let frame = reader.next_frame().unwrap().unwrap();
    assert_eq!(frame.link_type(), LinkType::RAW);
    assert_eq!(frame.interface().resolution, TimeResolution::NANOSECONDS);
    assert!(frame.is_truncated());
    assert!(!reader.next_frame().unwrap().unwrap().is_truncated());
}
