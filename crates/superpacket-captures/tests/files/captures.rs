//! Each real capture is read whole or gives a clear error, and is read again as it was written.

use crate::bytes::drain;
use superpacket_captures::file::{OutputFormat, Reader, Sink, Source, Writer};
use superpacket_traffic::captures;

#[test]
fn real_captures_are_read_and_written_again() {
    let files = captures::real();
    let directory = tempfile::tempdir().unwrap();
    let (mut whole, mut frames) = (0, 0);
    for path in &files {
        let name = path.display().to_string();
        let malformed = name.contains("malformed");
        let mut reader = match Reader::open(path) {
            Ok(reader) => reader,
            Err(error) => {
                assert!(malformed || name.ends_with(".snoop"), "{error}");
                assert!(error.to_string().starts_with(&name), "{error}");
                println!("{error}");
                continue;
            }
        };
        let read = drain(&mut reader);
        match (&read.error, &read.truncated) {
            (Some(error), _) => {
                assert!(malformed, "{error}");
                println!("{error}");
            }
            (None, Some(truncated)) => println!("warning: {truncated}"),
            (None, None) => whole += 1,
        }
        frames += read.frames.len();

        // Written as it was, and as pcapng.
        for ending in ["", "x.pcapng"] {
            let out = directory.path().join(format!("out{ending}"));
            let mut reader = Reader::open(path).unwrap();
            let mut writer =
                Writer::create(&out, OutputFormat::for_path(&out, reader.format())).unwrap();
            while let Ok(Some(frame)) = reader.next_frame() {
                writer.copy(&frame).unwrap();
            }
            assert_eq!(writer.finish().unwrap(), read.frames.len() as u64);
            let again = drain(&mut Reader::open(&out).unwrap());
            assert!(again.error.is_none() && again.truncated.is_none(), "{name}");
            let time = |time: Option<superpacket_captures::file::Timestamp>| {
                time.map_or(0, |time| time.nanoseconds())
            };
            for (a, b) in read.frames.iter().zip(&again.frames) {
                assert!(a.data == b.data && a.original_length == b.original_length, "{name}");
                assert_eq!((a.interface, time(a.time)), (b.interface, time(b.time)), "{name}");
                let (a, b) = (
                    &read.interfaces[a.interface as usize],
                    &again.interfaces[b.interface as usize],
                );
                assert_eq!(
                    (a.link_type, a.resolution, a.name()),
                    (b.link_type, b.resolution, b.name())
                );
            }
        }
    }
    println!("{} files, {whole} whole, {frames} frames", files.len());
    assert!(whole > 200, "{whole}");
    assert!(frames > 25_000, "{frames}");
}
