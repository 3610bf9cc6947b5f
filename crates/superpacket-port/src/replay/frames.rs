//! The frames of a capture that can be replayed.

use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::packet::Layer;

use superpacket_captures::file::{CaptureError, Frame, Reader, Source, Start, start_of};

/// Frames that were left out.
#[derive(Debug, Default)]
pub(super) struct Errors(AtomicU64);

impl Errors {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A frame that was read ahead.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) bytes: Vec<u8>,
    /// When it was captured, in nanoseconds; `None` if the file does not say.
    pub(super) time: Option<u64>,
}

/// What was read of a capture.
#[derive(Debug)]
pub(super) enum Read {
    /// A frame, and what it starts with.
    Frame(Ready, Layer),
    /// Nothing but frames that cannot be replayed, as many as were to be looked at.
    LeftOut,
    /// The end.
    End,
}

/// The next frame that can be replayed: whole, and of this layer, or of any if none is given.
pub(super) fn read(
    reader: &mut Reader,
    layer: Option<Layer>,
    errors: &Errors,
) -> Result<Option<(Ready, Layer)>, CaptureError> {
    loop {
        match read_among(reader, usize::MAX, layer, errors)? {
            Read::Frame(frame, layer) => return Ok(Some((frame, layer))),
            Read::LeftOut => {}
            Read::End => return Ok(None),
        }
    }
}

/// The same among the next `most` frames.
pub(super) fn read_among(
    reader: &mut Reader,
    most: usize,
    layer: Option<Layer>,
    errors: &Errors,
) -> Result<Read, CaptureError> {
    for _ in 0..most {
        let Some(frame) = reader.next_frame()? else { return Ok(Read::End) };
        match payload(&frame) {
            Some((bytes, found)) if layer.is_none_or(|layer| layer == found) => {
                let time = frame.time.map(|time| time.nanoseconds());
                return Ok(Read::Frame(Ready { bytes: bytes.to_vec(), time }, found));
            }
            _ => errors.add(),
        }
    }
    Ok(Read::LeftOut)
}

/// The frame without what its link type put before it; `None` if it is not whole, or neither
/// Ethernet nor IP.
fn payload<'a>(frame: &Frame<'a>) -> Option<(&'a [u8], Layer)> {
    if frame.is_truncated() || frame.data.is_empty() {
        return None;
    }
    match start_of(frame.link_type(), frame.data) {
        Start::Ethernet => Some((frame.data, Layer::Ethernet)),
        Start::Ip { header_length } => Some((&frame.data[header_length..], Layer::Ip)),
        Start::Other => None,
    }
}
