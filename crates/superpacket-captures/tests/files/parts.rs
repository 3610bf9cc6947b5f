//! Reading parts of files that begin at any record.

use std::io::Cursor;

use crate::bytes::*;
use superpacket_captures::file::{ByteOrder, CapturePosition, Compression, Reader, Source};

/// A frame: number, interface, link type, time, length on the wire and bytes.
type Seen = (u64, u32, u16, Option<u64>, u32, Vec<u8>);

fn next(reader: &mut Reader) -> Option<Seen> {
    let frame = reader.next_frame().unwrap()?;
    let time = frame.time.map(|time| time.nanoseconds());
    Some((
        frame.number,
        frame.interface,
        frame.link_type().0,
        time,
        frame.original_length,
        frame.data.to_vec(),
    ))
}

fn part(file: &[u8], preamble: &[u8], place: CapturePosition) -> Reader {
    let records = file[place.offset as usize..].to_vec();
    Reader::of_part("part", preamble.to_vec(), place, Box::new(Cursor::new(records))).unwrap()
}

#[test]
fn a_part_gives_what_the_whole_file_gives_there() {
    for (name, file) in one_of_each() {
        let mut whole =
            Reader::keeping_preamble("file", Box::new(Cursor::new(file.clone()))).unwrap();
        if whole.compression() != Compression::None {
            continue;
        }
        let mut places = vec![(whole.place(), whole.preamble().to_vec())];
        let mut frames = Vec::new();
        while let Some(frame) = next(&mut whole) {
            frames.push(frame);
            places.push((whole.place(), whole.preamble().to_vec()));
        }
        assert!(frames.len() >= 4);
        for (place, preamble) in places {
            let mut reader = part(&file, &preamble, place);
            let rest: Vec<_> = std::iter::from_fn(|| next(&mut reader)).collect();
            assert_eq!(rest, frames[place.packets as usize..], "{name} from {place:?}");
            assert_eq!(
                reader.place(),
                CapturePosition { offset: file.len() as u64, packets: frames.len() as u64 }
            );
            assert_eq!(reader.interfaces(), whole.interfaces(), "{name} from {place:?}");
            // A truncated or malformed file: positions in errors are those of the whole file.
            let cut = &file[..file.len() - 1];
            let mut of_whole =
                Reader::from_stream("part", Box::new(Cursor::new(cut.to_vec()))).unwrap();
            while next(&mut of_whole).is_some() {}
            if place.packets < frames.len() as u64 {
                let mut of_part = part(cut, &preamble, place);
                while next(&mut of_part).is_some() {}
                assert_eq!(of_part.truncated(), of_whole.truncated(), "{name} from {place:?}");
                assert!(of_part.truncated().is_some());
            }
        }
    }
}

#[test]
fn headers_are_kept_only_when_asked_for() {
    let file =
        bytes(ByteOrder::Little).section().interface(1, 0, none).enhanced(0, 1, 3, b"abc", none).0;
    let mut reader = Reader::from_stream("file", Box::new(Cursor::new(file.clone()))).unwrap();
    assert!(next(&mut reader).is_some());
    assert!(reader.preamble().is_empty());
    let mut keeping = Reader::keeping_preamble("file", Box::new(Cursor::new(file))).unwrap();
    let section = keeping.preamble().len();
    assert_eq!(section, 28);
    assert!(next(&mut keeping).is_some());
    assert!(keeping.preamble().len() > section);
}
