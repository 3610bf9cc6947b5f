//! Captures truncated and corrupted at every position: no panic, no endless loop, every record
//! before the damage, and a clear message.

use crate::bytes::*;
use crate::writing::Shared;
use superpacket_captures::file::{ByteOrder, Compression, OutputFormat, Sink, Source, Writer};

#[test]
fn a_cut_anywhere_delivers_all_before_it() {
    for (name, file) in one_of_each() {
        let whole = read_whole(file.clone()).frames;
        let mut seen_warning = false;
        for length in 0..file.len() {
            let Ok(mut reader) = open(&file[..length]) else { continue };
            let compressed = reader.compression() != Compression::None;
            let read = drain(&mut reader);
            assert!(read.error.is_none(), "{name} cut at {length}: {:?}", read.error);
            assert!(whole.starts_with(&read.frames), "{name} cut at {length}");
            if let Some(truncated) = &read.truncated {
                seen_warning = true;
                assert_eq!(truncated.packet, read.frames.len() as u64 + 1);
                assert!(
                    compressed || truncated.offset < length as u64,
                    "{name} cut at {length}: {truncated}"
                );
                assert!(truncated.to_string().starts_with("test: cut short in packet "));
            }
            // What was consumed whole and what is left over must add up to the cut.
            if !compressed {
                let next = open(&file[..(length + 1).min(file.len())])
                    .map(|mut reader| drain(&mut reader));
                let more = next.is_ok_and(|next| next.frames.len() > read.frames.len());
                assert!(
                    !more || read.truncated.is_some(),
                    "{name} cut at {length}: a record cut, and no warning"
                );
            }
        }
        assert!(seen_warning, "{name}");
    }
}

#[test]
fn every_byte_and_bit_may_be_wrong() {
    let mut errors = 0;
    for (name, file) in one_of_each() {
        for at in 0..file.len() {
            for change in [0x01, 0x80, 0xFF, file[at], 0x10] {
                let mut damaged = file.clone();
                damaged[at] ^= change;
                let Ok(mut reader) = open(damaged) else { continue };
                let read = drain(&mut reader);
                if let Some(error) = read.error {
                    errors += 1;
                    let number = read.frames.len() + 1;
                    assert!(
                        error.to_string().starts_with(&format!("test: packet {number}, byte ")),
                        "{name}: {error}"
                    );
                }
            }
        }
    }
    assert!(errors > 1000, "{errors}");
}

#[test]
fn what_a_damaged_file_yields_can_be_written_and_read_again() {
    for (name, file) in one_of_each() {
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 0xFF;
            let Ok(mut reader) = open(damaged) else { continue };
            let shared = Shared::default();
            let mut format = OutputFormat::like(reader.format());
            format.container = superpacket_captures::file::Container::PcapNg;
            let mut writer = Writer::into_stream("out", Box::new(shared.clone()), format).unwrap();
            let mut lengths = Vec::new();
            while let Ok(Some(frame)) = reader.next_frame() {
                writer.copy(&frame).unwrap();
                lengths.push(frame.data.to_vec());
            }
            writer.finish().unwrap();
            let written = shared.0.lock().unwrap().clone();
            let again: Vec<_> =
                read_whole(written).frames.into_iter().map(|frame| frame.data).collect();
            assert!(again == lengths, "{name}, byte {at}");
        }
    }
}

#[test]
fn a_cut_zstd_frame_gives_out_all_whole_blocks() {
    // Random bytes, so that blocks are as long as their content: 600 KB in blocks of 128 KiB.
    let mut random = 1u32;
    let mut data = || {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 24) as u8
    };
    let mut file = bytes(ByteOrder::Little).pcap_header(MICROSECONDS, (2, 4), 1);
    for second in 1..=600 {
        let frame: Vec<u8> = (0..984).map(|_| data()).collect();
        file = file.pcap_record(second, 0, 984, &frame);
    }
    let compressed = zstd(&file.0);
    assert!(compressed.len() > 590_000);
    let read = read(&compressed[..300_000]);
    assert!(read.truncated.unwrap().reason.contains("compressed"));
    assert!(
        (261..=300).contains(&read.frames.len()),
        "two blocks are 262 frames: {}",
        read.frames.len()
    );
}
