//! Frames as capture readers return them and writers take them.

use super::{CaptureError, Format, FrameOptions, Interface, LinkType, Timestamp, Truncated};

/// A frame of a capture file. It is valid until the next frame is read from its [`Source`].
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Number of the frame in its file, from 1.
    pub number: u64,
    /// Index of the frame's interface in `interfaces`.
    pub interface: u32,
    /// Time at which the frame was captured; `None` if the file has none (pcapng Simple Packet
    /// Block).
    pub time: Option<Timestamp>,
    /// The captured bytes of the frame.
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

    /// Returns the frame's properties for [`Sink::write`]; written together with `data`, they give
    /// the same frame.
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
    /// Index of the frame's interface among those that were declared to the writer.
    pub interface: u32,
    /// Time at which the frame was captured. `None` is written as 1970-01-01 where the format
    /// requires a time.
    pub time: Option<Timestamp>,
    /// Length of the frame on the wire in bytes; `None` if all of its bytes are written.
    pub original_length: Option<u32>,
    /// Additional data, which is written if the output file is of the same type as the input file.
    /// For a super-packet, use [`FrameOptions::of_merged`] of its last frame.
    pub options: FrameOptions<'a>,
}

/// A source of a capture's frames, such as a reader of a file, which returns them one by one.
pub trait Source {
    /// Returns the next frame. Returns `None` at the end, even if the file is cut short there (see
    /// [`truncated`](Self::truncated)).
    ///
    /// # Errors
    /// If reading fails. After an error, `None` is returned, except after one for which
    /// [`CaptureError::is_would_block`] returns `true`: then a later call continues.
    fn next_frame(&mut self) -> Result<Option<Frame<'_>>, CaptureError>;

    /// Returns the interfaces found so far, indexed by [`Frame::interface`]. In a pcapng file, each
    /// frame may add some.
    fn interfaces(&self) -> &[Interface];

    /// Returns the format of the capture file.
    fn format(&self) -> Format;

    /// Returns where the file is cut short. `None` if it is not, or its end has not been reached.
    fn truncated(&self) -> Option<&Truncated>;
}

/// A destination for a capture's frames, such as a writer of a file, which takes them one by one.
pub trait Sink {
    /// Declares the interfaces to which later frames refer: all interfaces of a source so far, in
    /// its order. Interfaces that were declared before are skipped, so this may be called before
    /// each frame.
    ///
    /// # Errors
    /// If writing fails.
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError>;

    /// Writes a frame. Its bytes are those of all `parts` together, so that the header and payloads
    /// of a super-packet need not be joined. The parts are iterated twice, first for their total
    /// length.
    ///
    /// # Errors
    /// If writing fails, or if the format cannot represent the frame's link type, time or length.
    fn write<'p, Parts>(&mut self, record: Record<'_>, parts: Parts) -> Result<(), CaptureError>
    where
        Parts: IntoIterator<Item = &'p [u8]>,
        Parts::IntoIter: Clone;

    /// Writes a frame of a source unchanged, and declares its interface if necessary.
    ///
    /// # Errors
    /// Those of [`declare`](Self::declare) and [`write`](Self::write).
    #[inline]
    fn copy(&mut self, frame: &Frame<'_>) -> Result<(), CaptureError> {
        self.declare(frame.interfaces)?;
        self.write(frame.record(), [frame.data])
    }
}
