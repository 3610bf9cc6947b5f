//! Reading the replayable frames of a capture.

use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::packet::Layer;

use superpacket_captures::file::{CaptureError, Frame, Reader, Source, Start, start_of};

/// Number of frames of a capture that were skipped because they cannot be replayed.
#[derive(Debug, Default)]
pub(super) struct SkippedFrames(AtomicU64);

impl SkippedFrames {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A frame of a capture, read in advance.
#[derive(Debug)]
pub(super) struct ReadyFrame {
    pub(super) bytes: Vec<u8>,
    /// Time of capture in nanoseconds; `None` if the file does not give it.
    pub(super) time: Option<u64>,
}

/// The result of reading a capture.
#[derive(Debug)]
pub(super) enum ReadResult {
    /// A frame, and the header with which it begins.
    Frame(ReadyFrame, Layer),
    /// All frames that were looked at have been skipped, since they cannot be replayed; more may
    /// follow.
    LeftOut,
    /// The end of the capture.
    End,
}

/// Reads the next frame that can be replayed: a complete frame whose first header is that of
/// `layer`, or either Ethernet or IP if `layer` is `None`.
pub(super) fn read(
    reader: &mut Reader,
    layer: Option<Layer>,
    errors: &SkippedFrames,
) -> Result<Option<(ReadyFrame, Layer)>, CaptureError> {
    loop {
        match read_among(reader, usize::MAX, layer, errors)? {
            ReadResult::Frame(frame, layer) => return Ok(Some((frame, layer))),
            ReadResult::LeftOut => {}
            ReadResult::End => return Ok(None),
        }
    }
}

/// Like [`read`], but looks at no more than the next `most` frames.
pub(super) fn read_among(
    reader: &mut Reader,
    most: usize,
    layer: Option<Layer>,
    errors: &SkippedFrames,
) -> Result<ReadResult, CaptureError> {
    for _ in 0..most {
        let Some(frame) = reader.next_frame()? else { return Ok(ReadResult::End) };
        match payload(&frame) {
            Some((bytes, found)) if layer.is_none_or(|layer| layer == found) => {
                let time = frame.time.map(|time| time.nanoseconds());
                return Ok(ReadResult::Frame(ReadyFrame { bytes: bytes.to_vec(), time }, found));
            }
            _ => errors.add(),
        }
    }
    Ok(ReadResult::LeftOut)
}

/// Returns the frame without the header of its link type, and the header with which the rest
/// begins. Returns `None` if the frame is incomplete, or neither Ethernet nor IP.
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
