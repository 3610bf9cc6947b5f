//! What the writer writes, read again by the reader.

use std::path::Path;

use crate::bytes::*;
use superpacket_captures::file::{
    ByteOrder, CaptureError, Compression, Container, Direction, Format, FrameOptions, Interface,
    InterfaceStatistics, LinkType, MAX_RECORD_LENGTH, OptionList, OutputFormat, PcapVariant,
    Reader, Record, Sink, Source, TimeResolution, Timestamp, Writer,
};

const PCAP: OutputFormat = OutputFormat {
    container: Container::Pcap,
    byte_order: ByteOrder::Little,
    resolution: None,
    compression: Compression::None,
};
const PCAPNG: OutputFormat = OutputFormat { container: Container::PcapNg, ..PCAP };

fn record(interface: u32, nanoseconds: u64) -> Record<'static> {
    let time = Some(Timestamp::from_nanoseconds(nanoseconds));
    Record { interface, time, original_length: None, options: FrameOptions::NONE }
}

/// Copies a capture through a file and reads it again.
fn copy(file: &[u8], name: &str) -> (Vec<u8>, Everything) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    let mut reader = open(file).unwrap();
    let mut writer = Writer::create(&path, OutputFormat::for_path(&path, reader.format())).unwrap();
    while let Some(frame) = reader.next_frame().unwrap() {
        writer.copy(&frame).unwrap();
    }
    writer.finish().unwrap();
    let written = std::fs::read(&path).unwrap();
    let everything = read_whole(written.clone());
    (written, everything)
}

#[test]
fn a_pcap_file_comes_out_as_it_went_in() {
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        for magic in [MICROSECONDS, NANOSECONDS] {
            // An FCS length in the link type field (draft-ietf-opsawg-pcap section 4) must stay.
            let file = bytes(byte_order).pcap_header(magic, (2, 4), 0x2400_0001);
            let mut file =
                file.pcap_record(1000, 500, 90, b"abc").pcap_record(u32::MAX, 7, 3, b"def").0;
            let (written, _) = copy(&file, "out");
            // All but the snap length, which grows.
            let snap = if byte_order == ByteOrder::Big { [0, 4, 0, 0] } else { [0, 0, 4, 0] };
            file[16..20].copy_from_slice(&snap);
            assert_eq!(written, file);
        }
    }
}

#[test]
fn the_modified_format_is_kept_with_what_its_records_add() {
    // Seconds, microseconds, length, length on the wire; interface, protocol, packet type.
    let records = |file: Bytes| {
        let file = file.u32(9).u32(2).u32(3).u32(90).u32(7).u16(0x86dd).raw(&[4, 0]).raw(b"abc");
        let file = file.u32(10).u32(3).u32(2).u32(2);
        file.u32(0xffff_fffe).u16(0x0800).raw(&[0, 9]).raw(b"de")
    };
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        let mut file = records(bytes(byte_order).pcap_header(MODIFIED, (2, 4), 113)).0;
        let (written, after) = copy(&file, "out");
        let snap = if byte_order == ByteOrder::Big { [0, 4, 0, 0] } else { [0, 0, 4, 0] };
        file[16..20].copy_from_slice(&snap);
        assert_eq!(written, file);
        assert_eq!(after.format, Format::Pcap { byte_order, variant: PcapVariant::Modified });
        // In the other byte order, numbers are turned around; a frame from elsewhere has zeros.
        let other = if byte_order == ByteOrder::Big { ByteOrder::Little } else { ByteOrder::Big };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let format =
            OutputFormat { byte_order: other, resolution: Some(PcapVariant::Modified), ..PCAP };
        let mut reader = open(file).unwrap();
        let mut writer = Writer::create(&path, format).unwrap();
        while let Some(frame) = reader.next_frame().unwrap() {
            writer.copy(&frame).unwrap();
        }
        writer.write(record(0, 5_000_000_000), [&b"new"[..]]).unwrap();
        writer.finish().unwrap();
        let expected = records(bytes(other)).u32(5).u32(0).u32(3).u32(3).u64(0).raw(b"new").0;
        assert_eq!(std::fs::read(&path).unwrap()[24..], expected);
        // Other formats have no place for it.
        let (pcapng, _) = copy(&written, "out.pcapng");
        assert!(drain(&mut open(pcapng.clone()).unwrap()).frames.len() == 2);
        let mut reader = open(pcapng).unwrap();
        while let Some(frame) = reader.next_frame().unwrap() {
            assert!(frame.options.is_empty());
        }
    }
}

#[test]
fn options_outlive_their_frame_as_bytes_and_form() {
    let file = bytes(ByteOrder::Big).section().interface(1, 0, none);
    let file = file.enhanced(0, 1, 3, b"abc", |b| {
        b.option(1, b"note").option(3, &[2, 1, 2, 3, 4]).option(2, &[0, 0, 0, 1]).u32(0)
    });
    let mut reader = open(file.0).unwrap();
    let (kept, form) = {
        let frame = reader.next_frame().unwrap().unwrap();
        (frame.options.bytes().to_vec(), frame.options.form())
    };
    let options = FrameOptions::new(&kept, form);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let mut writer = Writer::create(&path, PCAPNG).unwrap();
    writer.declare(reader.interfaces()).unwrap();
    writer.write(Record { options, ..record(0, 0) }, [&b"whole"[..]]).unwrap();
    writer
        .write(Record { options: options.of_merged(), ..record(0, 0) }, [&b"merged"[..]])
        .unwrap();
    writer.finish().unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let mut found = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        found.push(frame.options.bytes().to_vec());
    }
    let little = || bytes(ByteOrder::Little).option(1, b"note");
    let flags = [1, 0, 0, 0];
    let whole = little().option(3, &[2, 1, 2, 3, 4]).option(2, &flags).u32(0).0;
    assert_eq!(found, [whole, little().option(2, &flags).u32(0).0]);
}

#[test]
fn a_pcapng_file_keeps_interfaces_times_and_options() {
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        let offset = match byte_order {
            ByteOrder::Big => 100i64.to_be_bytes(),
            ByteOrder::Little => 100i64.to_le_bytes(),
        };
        let file = bytes(byte_order).section();
        let file =
            file.interface(1, 96, |b| b.option(2, b"eth0").option(3, b"the first").option(0, &[]));
        let file = file.interface(101, 0, |b| {
            b.option(2, b"tun0").option(9, &[0x80 | 20]).option(14, &offset)
        });
        let file = file
            .simple(3, b"abc")
            .enhanced(1, 12345, 9, b"abcde", |b| b.option(1, b"note").option(0, &[]));
        let other = if byte_order == ByteOrder::Big { ByteOrder::Little } else { ByteOrder::Big };
        let second = bytes(other).section().interface(113, 262_145, |b| b.option(9, &[12]));
        let second = second.enhanced(0, u64::MAX, 3, b"xyz", none).simple(3, b"xyz");
        let file = [file.0, second.0].concat();
        let before = read_whole(file.clone());
        let (written, after) = copy(&file, "out.pcapng");
        assert_eq!(after.format, Format::PcapNg { byte_order });
        assert_eq!(after.frames[..3], before.frames[..3]);
        let last = &after.frames[3];
        assert_eq!(
            (last.interface, last.time.unwrap().ticks),
            (2, 0),
            "a simple packet of another section has no time"
        );
        for (a, b) in before.interfaces.iter().zip(&after.interfaces) {
            assert_eq!(
                (a.link_type, a.resolution, a.offset_seconds),
                (b.link_type, b.resolution, b.offset_seconds)
            );
            assert_eq!(a.name(), b.name());
        }
        let snap_lengths: Vec<_> =
            after.interfaces.iter().map(|interface| interface.snap_length).collect();
        assert_eq!(snap_lengths, [262_144, 0, 262_145]);
        let note = bytes(byte_order).option(1, b"note").option(0, &[]).0;
        let description = bytes(byte_order).option(3, b"the first").0;
        for part in [note, description] {
            assert!(written.windows(part.len()).any(|window| window == part), "options are kept");
        }
    }
}

#[test]
fn every_format_becomes_every_other() {
    for (name, file) in one_of_each() {
        let before = read_whole(file.clone());
        for ending in [".pcapng", ".pcapng.gz", ".pcapng.zst"] {
            let (_, after) = copy(&file, &format!("out{ending}"));
            let data = |everything: &Everything| -> Vec<_> {
                let frames = everything.frames.iter();
                frames
                    .map(|f| (f.interface, f.time.map(|t| t.nanoseconds()), f.data.clone()))
                    .collect()
            };
            assert_eq!(data(&after), data(&before), "{name} to {ending}");
        }
        if !matches!(before.format, Format::PcapNg { .. }) {
            for ending in [".pcap", ".pcap.gz", ".pcap.zst"] {
                let (_, after) = copy(&file, &format!("out{ending}"));
                assert_eq!(after.frames, before.frames, "{name} to {ending}");
            }
        }
    }
}

#[test]
fn pcap_from_pcapng_takes_the_coarsest_unit_that_is_exact() {
    for (resolutions, variant) in [
        (&[6, 3][..], PcapVariant::Microseconds),
        (&[6, 9], PcapVariant::Nanoseconds),
        (&[0x80 | 10], PcapVariant::Nanoseconds),
        (&[0x80 | 6], PcapVariant::Microseconds),
    ] {
        let mut file = bytes(ByteOrder::Little).section();
        for &resolution in resolutions {
            file = file.interface(1, 0, |b| b.option(9, &[resolution]));
        }
        let (_, after) = copy(&file.enhanced(0, 12_345, 3, b"abc", none).0, "out.pcap");
        assert_eq!(after.format, Format::Pcap { byte_order: ByteOrder::Little, variant });
        assert_eq!(after.interfaces[0].snap_length, 0);
    }
}

#[test]
fn super_packets_are_written_from_their_parts() {
    let directory = tempfile::tempdir().unwrap();
    let payload: Vec<u8> = (0..524_288).map(|at| (at / 3) as u8).collect();
    for (name, format) in [("a.pcap", PCAP), ("a.pcapng", PCAPNG)] {
        let path = directory.path().join(name);
        let mut writer = Writer::create(&path, format).unwrap();
        writer
            .declare(&[
                Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS).named("eth9")
            ])
            .unwrap();
        let parts: Vec<&[u8]> =
            std::iter::once(&b"header"[..]).chain(payload.chunks(1448)).collect();
        for number in 0..20 {
            writer.write(record(0, number), parts.iter().copied()).unwrap();
            writer.write(record(0, number), [&b"small"[..]]).unwrap();
        }
        assert_eq!(writer.frames(), 40);
        assert_eq!(writer.finish().unwrap(), 40);
        let read = drain(&mut Reader::open(&path).unwrap());
        assert_eq!(read.frames.len(), 40);
        for (at, frames) in read.frames.chunks(2).enumerate() {
            assert_eq!(frames[0].data[..6], *b"header");
            assert!(frames[0].data[6..] == payload);
            assert_eq!(frames[0].original_length as usize, 6 + payload.len());
            assert_eq!(frames[0].nanoseconds(), at as u64);
            assert_eq!(frames[1].data, b"small");
        }
        let name = if format == PCAPNG { Some("eth9".into()) } else { None };
        assert_eq!(read.interfaces[0].name(), name);
    }
}

#[test]
fn what_a_format_cannot_hold_is_refused() {
    let ethernet = Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS);
    let raw = Interface::new(LinkType::RAW, TimeResolution::NANOSECONDS);
    let mut writer = Writer::into_stream("out", Box::new(std::io::sink()), PCAP).unwrap();
    let error = writer.write(record(0, 0), [&b"x"[..]]).unwrap_err();
    assert!(
        matches!(error, CaptureError::UnknownInterface { packet: 1, interface: 0, .. }),
        "{error}"
    );
    writer.declare(&[ethernet, raw]).unwrap();
    writer.write(record(0, 0), [&b"x"[..]]).unwrap();
    let error = writer.write(record(1, 0), [&b"x"[..]]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "out: a pcap file holds one link type, but packet 2 is link type 101 (RAW) after link type 1 (ETHERNET): write pcapng"
    );
    let error = writer.write(record(0, u64::MAX), [&b"x"[..]]).unwrap_err();
    assert!(matches!(error, CaptureError::Time { packet: 2, .. }), "{error}");
    let long = vec![0; MAX_RECORD_LENGTH - 63];
    for format in [PCAP, PCAPNG] {
        let mut writer = Writer::into_stream("out", Box::new(std::io::sink()), format).unwrap();
        writer.declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)]).unwrap();
        let error = writer.write(record(0, 0), [&long[..]]).unwrap_err();
        assert!(matches!(error, CaptureError::FrameTooLong { packet: 1, .. }), "{error}");
        writer.write(record(0, 0), [&long[1..]]).unwrap();
    }
}

#[test]
fn a_capture_without_frames_is_a_whole_file() {
    let empty = bytes(ByteOrder::Big).pcap_header(NANOSECONDS, (2, 4), 113).0;
    let (_, after) = copy(&empty, "out");
    let format = Format::Pcap { byte_order: ByteOrder::Big, variant: PcapVariant::Nanoseconds };
    assert_eq!((after.format, after.frames.len()), (format, 0));
    let (_, after) = copy(&bytes(ByteOrder::Little).section().0, "out.pcap");
    assert_eq!(after.interfaces[0].link_type, LinkType::ETHERNET);
}

#[test]
fn an_unfinished_output_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcap");
    let entries = |directory: &Path| std::fs::read_dir(directory).unwrap().count();
    let mut writer = Writer::create(&path, PCAP).unwrap();
    writer.declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)]).unwrap();
    writer.write(record(0, 0), [&[0; 1 << 20][..]]).unwrap();
    assert_eq!(entries(directory.path()), 1);
    assert!(!path.exists());
    drop(writer);
    assert_eq!(entries(directory.path()), 0);
    let error = Writer::create(directory.path().join("absent/out.pcap"), PCAP).err().unwrap();
    assert!(matches!(error, CaptureError::Create { .. }), "{error}");
}

/// A stream that a test looks into while it is written.
#[derive(Clone, Default)]
pub struct Shared(pub std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_is_flushed_can_be_read_before_the_end() {
    for compression in [Compression::None, Compression::Gzip] {
        let stream = Shared::default();
        let format = OutputFormat { compression, ..PCAPNG };
        let mut writer = Writer::into_stream("live", Box::new(stream.clone()), format).unwrap();
        let mut list = OptionList::new();
        list.direction(Direction::Outbound);
        list.comment("first");
        writer
            .declare(&[
                Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS).named("eth0")
            ])
            .unwrap();
        writer.write(Record { options: list.options(), ..record(0, 7) }, [&[1; 60][..]]).unwrap();
        assert_eq!(stream.0.lock().unwrap().len(), 0, "it is kept for a large write");
        writer.flush().unwrap();
        let so_far = stream.0.lock().unwrap().clone();
        let mut reader =
            Reader::from_stream("live", Box::new(std::io::Cursor::new(so_far))).unwrap();
        let frame = reader.next_frame().unwrap().expect("it has been written");
        assert_eq!(
            (frame.data, frame.options.direction()),
            (&[1; 60][..], Some(Direction::Outbound))
        );
        assert!(frame.options.comments().eq([b"first"]));
    }
}

#[test]
fn statistics_of_an_interface_are_a_block_that_readers_skip() {
    let counted = InterfaceStatistics {
        start: Some(Timestamp::from_nanoseconds(1 << 33)),
        packets: 9,
        dropped: 2,
    };
    for byte_order in [ByteOrder::Little, ByteOrder::Big] {
        let stream = Shared::default();
        let format = OutputFormat { byte_order, ..PCAPNG };
        let mut writer = Writer::into_stream("x", Box::new(stream.clone()), format).unwrap();
        let interface = Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS);
        writer.declare(&[interface.clone(), interface]).unwrap();
        writer.write(record(1, 7), [&b"abcd"[..]]).unwrap();
        writer.flush().unwrap();
        let before = stream.0.lock().unwrap().len();
        writer.statistics(1, Timestamp::from_nanoseconds((1 << 33) + 5), &counted).unwrap();
        let error = writer
            .statistics(2, Timestamp::from_nanoseconds(1), &counted)
            .expect_err("there are two");
        assert!(matches!(error, CaptureError::UnknownInterface { interface: 2, .. }), "{error}");
        writer.write(record(0, 8), [&b"efgh"[..]]).unwrap();
        writer.finish().unwrap();
        let written = stream.0.lock().unwrap().clone();
        // draft-ietf-opsawg-pcapng, section 4.6: a time's higher word comes first.
        let time = |low: u32| bytes(byte_order).u32(2).u32(low).0;
        let count = |count: u64| bytes(byte_order).u64(count).0;
        let block = bytes(byte_order).block(5, |block| {
            let block = block.u32(1).raw(&time(5)).option(2, &time(0)).option(3, &time(5));
            block.option(4, &count(9)).option(5, &count(2)).u32(0)
        });
        assert_eq!(written[before..before + block.0.len()], block.0);
        let mut reader = Reader::from_stream("x", Box::new(std::io::Cursor::new(written))).unwrap();
        let mut data = Vec::new();
        while let Some(frame) = reader.next_frame().unwrap() {
            data.push(frame.data.to_vec());
        }
        assert_eq!(data, [b"abcd", b"efgh"]);
    }
    let mut writer = Writer::into_stream("x", Box::new(std::io::sink()), PCAP).unwrap();
    writer.declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::NANOSECONDS)]).unwrap();
    writer.statistics(0, Timestamp::from_nanoseconds(1), &counted).expect("pcap leaves it out");
}
