//! A sliding window over a stream, in which records are parsed in place.

use std::io::{self, ErrorKind, Read};

use super::MAX_RECORD_LENGTH;
use super::error::ReadFault;

/// Length of a new window in bytes: large enough to make the cost of system calls negligible, and
/// small enough for the L2 cache.
pub(super) const INITIAL_LENGTH: usize = 256 * 1024;

pub(super) struct Window {
    input: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// `start <= end <= buffer.len()`: the range of bytes read and not yet consumed.
    start: usize,
    end: usize,
    /// Position of `start` in the stream.
    offset: u64,
    ended: bool,
    /// The reason, if the compressed stream ended prematurely.
    cut: Option<String>,
}

impl Window {
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        let buffer = vec![0; INITIAL_LENGTH];
        Self { input, buffer, start: 0, end: 0, offset: 0, ended: false, cut: None }
    }

    /// Returns the position of the window in the stream.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes read and not yet consumed.
    #[inline]
    pub(super) fn available(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the bytes in a range of the buffer, based on a position from
    /// [`consume`](Self::consume).
    #[inline]
    pub(super) fn at(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Reads until at least `length` bytes are available; returns `false` if the stream ends
    /// before. `length` must not exceed [`MAX_RECORD_LENGTH`].
    #[inline]
    pub(super) fn has(&mut self, length: usize) -> io::Result<bool> {
        Ok(self.end - self.start >= length || self.refill(length)?)
    }

    /// Consumes `length` available bytes and returns their position in the buffer, which is valid
    /// until the next call of `has`.
    #[inline]
    pub(super) fn consume(&mut self, length: usize) -> usize {
        debug_assert!(length <= self.end - self.start);
        let at = self.start;
        self.start += length;
        self.offset += length as u64;
        at
    }

    /// Checks the end of the stream, when no complete record is available: `Ok` if it ended at a
    /// record boundary, otherwise the fault with the position. `expected` describes the record.
    pub(super) fn finish(&self, expected: impl FnOnce() -> String) -> Result<(), ReadFault> {
        let left = self.end - self.start;
        match &self.cut {
            Some(reason) => {
                Err(ReadFault::Truncated(format!("{reason}, {left} bytes into the record")))
            }
            None if left == 0 => Ok(()),
            None => Err(ReadFault::Truncated(format!("{}, {left} bytes are there", expected()))),
        }
    }

    #[cold]
    fn refill(&mut self, length: usize) -> io::Result<bool> {
        debug_assert!(length <= MAX_RECORD_LENGTH);
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < length && !self.ended {
            if self.end == self.buffer.len() {
                // Grows with the bytes that have arrived, not with the length that a record claims.
                let grown = (2 * self.buffer.len()).min(MAX_RECORD_LENGTH);
                self.buffer.reserve_exact(grown - self.end);
                self.buffer.resize(grown, 0);
            }
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    self.ended = true;
                    self.cut = Some("the compressed stream ends before its end mark".to_owned());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.end >= length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns one byte less in each call, as a pipe may.
    struct Dribble(Vec<u8>, usize);

    impl Read for Dribble {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0.drain(..length);
            self.1 = (self.1 - 1).max(1);
            Ok(length)
        }
    }

    #[test]
    fn slides_over_short_reads() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut window = Window::new(Box::new(Dribble(bytes.clone(), 20)));
        for chunk in bytes.chunks(7) {
            assert!(window.has(chunk.len()).unwrap());
            assert_eq!(&window.available()[..chunk.len()], chunk);
            let at = window.consume(chunk.len());
            assert_eq!(window.at(at..at + chunk.len()), chunk);
        }
        assert_eq!(window.offset(), 256);
        assert!(!window.has(1).unwrap());
        assert!(window.finish(String::new).is_ok());
    }

    #[test]
    fn grows_only_with_the_bytes_that_are_there() {
        let mut window = Window::new(Box::new(io::repeat(1).take(1000)));
        assert!(!window.has(MAX_RECORD_LENGTH).unwrap());
        assert_eq!(window.buffer.capacity(), INITIAL_LENGTH);
        assert!(matches!(window.finish(|| "a record".into()), Err(ReadFault::Truncated(_))));
        let mut window = Window::new(Box::new(io::repeat(1)));
        assert!(window.has(MAX_RECORD_LENGTH).unwrap());
        assert_eq!(window.buffer.capacity(), MAX_RECORD_LENGTH);
    }

    #[test]
    fn an_interrupted_read_is_tried_again() {
        struct Interrupted(bool);
        impl Read for Interrupted {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if !std::mem::replace(&mut self.0, true) {
                    return Err(ErrorKind::Interrupted.into());
                }
                buffer[0] = 9;
                Ok(1)
            }
        }
        let mut window = Window::new(Box::new(Interrupted(false)));
        assert!(window.has(1).unwrap());
        assert_eq!(window.available(), [9]);
    }
}
