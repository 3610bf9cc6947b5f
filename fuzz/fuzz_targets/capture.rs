//! Any file is read to its end or to an error, in bounded memory, and what was read can be written.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use superpacket_io::capture::{Reader, Source};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::from_stream("fuzz", Box::new(Cursor::new(bytes.to_vec()))) else { return };
    let mut frames = 0u64;
    while let Ok(Some(frame)) = reader.next_frame() {
        frames += 1;
        assert_eq!(frame.number, frames);
        assert!(frame.data.len() <= 16 << 20);
        // A file of zeroes compresses well: enough is enough.
        if frames > 10_000 {
            return;
        }
    }
    assert!(matches!(reader.next_frame(), Ok(None)));
});
