//! Streams that have nothing to read for some time.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use superpacket_captures::file::{Reader, Source};

use crate::bytes::{gzip, one_of_each, read_whole};

/// A stream that returns one byte per read. Once `waits` is set, every other read returns none.
struct Dribble {
    bytes: io::Cursor<Vec<u8>>,
    waits: Arc<AtomicBool>,
    is_next: bool,
}

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.is_next = !self.is_next;
        if !self.is_next && self.waits.load(Ordering::Relaxed) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = buffer.len().min(1);
        self.bytes.read(&mut buffer[..length])
    }
}

#[test]
fn reading_continues_after_a_wait_anywhere() {
    let mut files = one_of_each();
    files.retain(|(name, _)| !name.contains("zstd"));
    let (name, plain) = files.first().cloned().expect("there are several");
    let compressed = [gzip(&plain[..60]), gzip(&[]), gzip(&plain[60..])].concat();
    files.push((name, compressed));
    for (name, bytes) in files {
        let expected = read_whole(bytes.clone());
        let waits = Arc::new(AtomicBool::new(false));
        let length = bytes.len();
        let stream =
            Dribble { bytes: io::Cursor::new(bytes), waits: Arc::clone(&waits), is_next: false };
        let mut reader = Reader::from_stream("test", Box::new(stream)).expect(name);
        waits.store(true, Ordering::Relaxed);
        let (mut frames, mut blocked) = (Vec::new(), 0);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push((frame.number, frame.data.to_vec())),
                Ok(None) => break,
                Err(error) if error.is_would_block() => blocked += 1,
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert!(blocked > 0 && blocked <= length + 1, "{name}: {blocked}");
        let expected: Vec<_> =
            (1..).zip(expected.frames).map(|(number, frame)| (number, frame.data)).collect();
        assert_eq!(frames, expected, "{name}");
        assert_eq!(reader.truncated(), None, "{name}");
    }
}
