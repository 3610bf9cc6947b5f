//! Reads any file to its end or to an error, in bounded memory.
//!
//! The frames are then written, in the same format and as pcapng of the other byte order. Reading
//! the result gives the same frames and interfaces, and writing these again gives the same bytes.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use superpacket_captures::file::{
    ByteOrder, Container, Format, FrameOptions, Interface, OptionForm, OutputFormat, Reader,
    Record, Sink, Source, Timestamp, Writer,
};
use superpacket_fuzz::SharedBytes;

/// Maximum frames of an input, and maximum bytes of frames and options: a small compressed file of
/// zeroes can have very many.
const ENOUGH: (usize, usize) = (10_000, 1 << 20);
/// No limits, for captures that the target itself has written.
const ALL: (usize, usize) = (usize::MAX, usize::MAX);

/// A frame that outlives its reader.
struct KeptFrame {
    interface: u32,
    time: Option<Timestamp>,
    original_length: u32,
    data: Vec<u8>,
    options: (Vec<u8>, OptionForm),
}

struct Capture {
    format: Format,
    interfaces: Vec<Interface>,
    frames: Vec<KeptFrame>,
    /// Whether reading ended with an error or at a limit.
    damaged: bool,
}

/// Reads up to the end, an error, or one of the limits; `None` if the bytes are no capture.
fn read(bytes: Vec<u8>, (max_frames, max_bytes): (usize, usize)) -> Option<Capture> {
    let mut reader = Reader::from_stream("fuzz", Box::new(Cursor::new(bytes))).ok()?;
    let mut frames = Vec::new();
    let mut total = 0;
    let error = loop {
        match reader.next_frame() {
            Ok(Some(frame)) => {
                assert_eq!(frame.number, frames.len() as u64 + 1);
                assert!(frame.data.len() <= 16 << 20);
                total += frame.data.len() + frame.options.bytes().len();
                if frames.len() == max_frames || total > max_bytes {
                    break false;
                }
                frames.push(KeptFrame {
                    interface: frame.interface,
                    time: frame.time,
                    original_length: frame.original_length,
                    data: frame.data.to_vec(),
                    options: (frame.options.bytes().to_vec(), frame.options.form()),
                });
            }
            Ok(None) => {
                assert!(matches!(reader.next_frame(), Ok(None)));
                break false;
            }
            Err(_) => {
                assert!(matches!(reader.next_frame(), Ok(None)));
                break true;
            }
        }
    };
    let damaged = error || reader.truncated().is_some();
    Some(Capture {
        format: reader.format(),
        interfaces: reader.interfaces().to_vec(),
        frames,
        damaged,
    })
}

fn write(capture: &Capture, format: OutputFormat) -> Vec<u8> {
    let written = SharedBytes::default();
    let mut writer = Writer::into_stream("written", Box::new(written.clone()), format)
        .expect("memory takes all");
    writer.declare(&capture.interfaces).expect("what was read of interfaces");
    for frame in &capture.frames {
        let options = FrameOptions::new(&frame.options.0, frame.options.1);
        let record = Record {
            interface: frame.interface,
            time: frame.time,
            original_length: Some(frame.original_length),
            options,
        };
        writer.write(record, [&frame.data[..]]).expect("what was read of a frame");
    }
    assert_eq!(writer.finish().expect("memory takes all"), capture.frames.len() as u64);
    written.bytes()
}

/// Asserts that `again`, read from the written file, has the contents of `capture`.
fn assert_same(again: &Capture, capture: &Capture) {
    assert!(!again.damaged);
    assert_eq!(again.interfaces.len(), capture.interfaces.len());
    for (again, interface) in again.interfaces.iter().zip(&capture.interfaces) {
        assert_eq!(
            (again.link_type, again.resolution, again.offset_seconds),
            (interface.link_type, interface.resolution, interface.offset_seconds)
        );
        assert_eq!(again.name(), interface.name());
        // The snap length must not exclude super-packets.
        assert!(again.snap_length >= interface.snap_length || again.snap_length == 0);
    }
    assert_eq!(again.frames.len(), capture.frames.len());
    for (again, frame) in again.frames.iter().zip(&capture.frames) {
        assert_eq!(
            (again.interface, again.original_length),
            (frame.interface, frame.original_length)
        );
        assert!(again.data == frame.data);
        match frame.time {
            Some(time) => assert_eq!(again.time, Some(time)),
            // Only pcapng's simple packet blocks have no time, and not every frame fits in one.
            None => assert!(again.time.is_none_or(|time| time.ticks == 0)),
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some(capture) = read(bytes.to_vec(), ENOUGH) else { return };
    let own = OutputFormat::like(capture.format);
    let turned =
        if own.byte_order == ByteOrder::Little { ByteOrder::Big } else { ByteOrder::Little };
    for format in [own, OutputFormat { container: Container::PcapNg, byte_order: turned, ..own }] {
        let written = write(&capture, format);
        let again = read(written.clone(), ALL).expect("a capture was written");
        assert_same(&again, &capture);
        // The options, names and limits are the same too: writing a second time loses nothing.
        assert!(write(&again, format) == written);
    }
});
