//! Frames as exchanged between capture readers and writers.

use super::{CaptureError, Format, FrameOptions, Interface, LinkType, Timestamp, Truncated};

/// A frame lent by a [`Source`] until the next one is read.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Position in the file, counted from 1.
    pub number: u64,
    /// Index of the frame's interface in `interfaces`.
    pub interface: u32,
    /// Time of capture; `None` for a pcapng Simple Packet Block.
    pub time: Option<Timestamp>,
    /// The captured bytes.
    pub data: &'a [u8],
    /// Length of the frame on the wire in bytes, as given in the file. Usually at least
    /// `data.len()`, but this is not checked.
    pub original_length: u32,
    /// Additional data of this frame in a pcapng or modified pcap file.
    pub options: FrameOptions<'a>,
    /// All interfaces found in the file so far; `interface` is a valid index.
    pub interfaces: &'a [Interface],
}

impl<'a> Frame<'a> {
    /// Returns whether the snap length has cut the frame: fewer bytes were captured than were on
    /// the wire.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.original_length as usize > self.data.len()
    }

    /// Returns the interface on which the frame was captured.
    #[inline]
    pub fn interface(&self) -> &'a Interface {
        &self.interfaces[self.interface as usize]
    }

    /// Returns the type of the frame's first header.
    #[inline]
    pub fn link_type(&self) -> LinkType {
        self.interface().link_type
    }

    /// Returns the record that, together with `data`, writes this frame unchanged.
    #[inline]
    pub fn record(&self) -> Record<'a> {
        Record {
            interface: self.interface,
            time: self.time,
            original_length: Some(self.original_length),
            options: self.options,
        }
    }
}

/// The properties of a frame to be written, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Index of its interface among those declared.
    pub interface: u32,
    /// Time of capture; `None` is written as 1970-01-01 where the format requires a time.
    pub time: Option<Timestamp>,
    /// Length on the wire in bytes; `None` if it equals the number of bytes written.
    pub original_length: Option<u32>,
    /// Additional data, written if the output is of the same family as the input. For a
    /// super-packet, use [`FrameOptions::of_merged`] of the last frame.
    pub options: FrameOptions<'a>,
}

/// A source of frames, lent one by one.
pub trait Source {
    /// Returns the next frame, or `None` at the end, including the end of a truncated file (see
    /// [`truncated`](Self::truncated)).
    ///
    /// # Errors
    /// If reading fails. After an error, `None` is returned.
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError>;

    /// Returns the interfaces found so far, indexed by [`Frame::interface`]. In a pcapng file, each
    /// frame may add some.
    fn interfaces(&self) -> &[Interface];

    /// Returns the input's format.
    fn format(&self) -> Format;

    /// Returns the position at which the file was truncated, once the end was reached.
    fn truncated(&self) -> Option<&Truncated>;
}

/// A sink that takes the frames of a capture one by one.
pub trait Sink {
    /// Declares the interfaces that frames refer to: all of a source's interfaces so far, in its
    /// order. Interfaces declared earlier are skipped, so it is cheap to call this before each
    /// frame.
    ///
    /// # Errors
    /// If writing fails.
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError>;

    /// Writes a frame whose bytes are the concatenated `parts`. Header and payloads of a
    /// super-packet need not be joined. The parts are iterated twice, first for the total length.
    ///
    /// # Errors
    /// If writing fails, or if the format cannot represent the frame's link type, time or length.
    fn write<'p, Parts>(&mut self, record: Record<'_>, parts: Parts) -> Result<(), CaptureError>
    where
        Parts: IntoIterator<Item = &'p [u8]>,
        Parts::IntoIter: Clone;

    /// Writes a source's frame unchanged, together with its interface.
    ///
    /// # Errors
    /// As for [`declare`](Self::declare) and [`write`](Self::write).
    #[inline]
    fn copy(&mut self, frame: &Frame<'_>) -> Result<(), CaptureError> {
        self.declare(frame.interfaces)?;
        self.write(frame.record(), [frame.data])
    }
}
