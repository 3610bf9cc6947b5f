//! What goes from a source of frames to a sink of frames.

use super::{CaptureError, Format, FrameOptions, Interface, LinkType, Timestamp, Truncated};

/// A frame lent by a [`Source`] until the next is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its place in the file, from 1.
    pub number: u64,
    /// Its interface: an index into `interfaces`.
    pub interface: u32,
    /// When it was captured; a pcapng Simple Packet Block does not say.
    pub time: Option<Timestamp>,
    /// The bytes captured.
    pub data: &'a [u8],
    /// The frame's length on the wire in bytes, as the file says it: usually at least `data.len()`,
    /// but not checked.
    pub original_length: u32,
    /// What else a pcapng file, or a modified pcap file, says of this frame.
    pub options: FrameOptions<'a>,
    /// All interfaces found in the file so far; `interface` is within it.
    pub interfaces: &'a [Interface],
}

impl<'a> Frame<'a> {
    /// Whether the capture holds less than the wire did (the snap length cut it).
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.original_length as usize > self.data.len()
    }

    /// The interface it was captured on.
    #[inline]
    pub fn interface(&self) -> &'a Interface {
        &self.interfaces[self.interface as usize]
    }

    /// What the frame begins with.
    #[inline]
    pub fn link_type(&self) -> LinkType {
        self.interface().link_type
    }

    /// The record that writes this frame unchanged, together with `data`.
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

/// All of a frame to be written but its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The index of its interface among those declared.
    pub interface: u32,
    /// When it was captured; `None` is written as 1970-01-01 where the format needs a time.
    pub time: Option<Timestamp>,
    /// Its length on the wire in bytes; `None`: as long as its bytes.
    pub original_length: Option<u32>,
    /// Written to a file of the family that it comes from. For a frame made from several others:
    /// [`FrameOptions::of_merged`] of the last.
    pub options: FrameOptions<'a>,
}

/// Lends the frames of a capture one by one.
pub trait Source {
    /// The next frame; `None` at the end, also where the file was cut short (see
    /// [`truncated`](Self::truncated)).
    ///
    /// # Errors
    /// Whatever stops the reading. After an error it returns `None`.
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError>;

    /// The interfaces found so far, in the order of [`Frame::interface`]. A pcapng file may add to
    /// them with each frame.
    fn interfaces(&self) -> &[Interface];

    /// The format of what is read.
    fn format(&self) -> Format;

    /// Where the file was cut short, once the end was reached.
    fn truncated(&self) -> Option<&Truncated>;
}

/// Takes the frames of a capture one by one.
pub trait Sink {
    /// Makes known the interfaces that frames name: all of a source's so far, in its order. Those
    /// declared by an earlier call are skipped, so that it is cheap to call before each frame.
    ///
    /// # Errors
    /// Whatever stops the writing.
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError>;

    /// Writes a frame whose bytes are `parts` in a row (a super-packet's header and payloads need
    /// not be joined). The parts are walked twice, first for their length.
    ///
    /// # Errors
    /// Whatever stops the writing; also a frame that the format cannot hold (its link type, its
    /// time, its length).
    fn write<'p, Parts>(&mut self, record: Record<'_>, parts: Parts) -> Result<(), CaptureError>
    where
        Parts: IntoIterator<Item = &'p [u8]>,
        Parts::IntoIter: Clone;

    /// Writes a source's frame unchanged, its interface with it.
    ///
    /// # Errors
    /// As [`declare`](Self::declare) and [`write`](Self::write).
    #[inline]
    fn copy(&mut self, frame: &Frame<'_>) -> Result<(), CaptureError> {
        self.declare(frame.interfaces)?;
        self.write(frame.record(), [frame.data])
    }
}
