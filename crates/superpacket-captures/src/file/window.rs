//! A window over a stream, in which records of a capture file are parsed without copying them.

use std::io::{self, ErrorKind, Read};

use super::MAX_RECORD_LENGTH;
use super::error::ReadFault;

/// Length of a new window in bytes: so large that system calls cost little, and so small that it
/// fits in the L2 cache.
pub(super) const INITIAL_LENGTH: usize = 256 * 1024;

pub(super) struct Window {
    input: Box<dyn Read + Send>,
    buffer: Vec<u8>,
    /// The bytes that were read and not yet consumed are `start..end` in the buffer.
    start: usize,
    end: usize,
    /// Position in the stream of the byte at `start`.
    offset: u64,
    ended: bool,
    /// If the compressed stream is cut short: what is missing, in words.
    cut: Option<String>,
}

impl Window {
    pub(super) fn new(input: Box<dyn Read + Send>) -> Self {
        let buffer = vec![0; INITIAL_LENGTH];
        Self { input, buffer, start: 0, end: 0, offset: 0, ended: false, cut: None }
    }

    /// Returns the position in the stream of the first byte that was not yet consumed.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes that were read and not yet consumed.
    #[inline]
    pub(super) fn available(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Returns the bytes in a range of the buffer, given by a position that
    /// [`consume`](Self::consume) has returned.
    #[inline]
    pub(super) fn at(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Reads until at least `length` bytes are available that were not consumed. Returns `false` if
    /// the stream ends before. `length` must not exceed [`MAX_RECORD_LENGTH`].
    #[inline]
    pub(super) fn has(&mut self, length: usize) -> io::Result<bool> {
        Ok(self.end - self.start >= length || self.refill(length)?)
    }

    /// Consumes `length` available bytes, and returns their position in the buffer, which is valid
    /// until the next call of `has`.
    #[inline]
    pub(super) fn consume(&mut self, length: usize) -> usize {
        debug_assert!(length <= self.end - self.start);
        let at = self.start;
        self.start += length;
        self.offset += length as u64;
        at
    }

    /// Checks whether the stream has ended at a record boundary, and returns an error otherwise.
    /// Called when no complete record is left; `expected` describes the record that should follow.
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
                // The buffer grows with the bytes that arrive, not with the length that a record
                // claims.
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

    /// A reader that returns fewer bytes than requested, one less in each call, as a pipe may.
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
