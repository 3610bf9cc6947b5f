//! The sending end of a `pcap` port, which records or discards frames.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use superpacket::packet::Layer;

use super::stream_writer::{NotWritten, OutputStream, StreamWriter};
use crate::{Outgoing, PortError, Progress, StopReason, Transmit, TxBatch, TxFrame};
use superpacket_captures::file::{
    ByteOrder, CaptureError, Format, FrameOptions, Interface, LinkType, OutputFormat, PcapVariant,
    Record, Sink, TimeResolution, Timestamp, Writer,
};

/// A capture that is being written. A capture file appears under its final name when this is
/// dropped.
pub(super) struct Recorder {
    text: String,
    layer: Layer,
    output: RecorderOutput,
}

/// The destination of the capture.
enum RecorderOutput {
    /// A file, written by the sending threads; `None` after an error.
    File(Box<Mutex<Option<Writer>>>),
    /// A pipe, terminal or device, written by a separate thread.
    Stream(StreamWriter),
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Recorder")
            .field("text", &self.text)
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Creates the file at `path` for the port named `text`. Properties of the file format that the
    /// path's suffix does not determine are taken from `like`. Timestamps are in nanoseconds.
    pub(super) fn create(
        text: &str,
        path: &str,
        like: Option<Format>,
        layer: Layer,
    ) -> Result<Self, PortError> {
        let capture = |source| PortError::Capture { port: text.into(), source };
        let default =
            Format::Pcap { byte_order: ByteOrder::Little, variant: PcapVariant::Nanoseconds };
        let format = OutputFormat {
            resolution: Some(PcapVariant::Nanoseconds),
            ..OutputFormat::for_path(path, like.unwrap_or(default))
        };
        let link_type = match layer {
            Layer::Ethernet => LinkType::ETHERNET,
            Layer::Ip => LinkType::RAW,
        };
        let interface = Interface::new(link_type, TimeResolution::NANOSECONDS).named(text);
        let output = match OutputStream::open(path).map_err(capture)? {
            Some(stream) => {
                RecorderOutput::Stream(StreamWriter::new(text, stream, format, interface))
            }
            None => {
                let mut writer = Writer::create(path, format).map_err(capture)?;
                writer.declare(&[interface]).map_err(capture)?;
                RecorderOutput::File(Box::new(Mutex::new(Some(writer))))
            }
        };
        Ok(Recorder { text: text.into(), layer, output })
    }

    /// Returns the number of frames refused because the reader of a pipe was too slow.
    pub(super) fn full(&self) -> u64 {
        match &self.output {
            RecorderOutput::File(_) => 0,
            RecorderOutput::Stream(stream) => stream.full(),
        }
    }

    fn record(
        &self,
        outgoing: &Outgoing,
        batch: &TxBatch,
        frame: &TxFrame,
        time: Timestamp,
    ) -> Result<(), StopReason> {
        let refused = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !frame.is_plain() {
            return Err(StopReason::Offload(refused(
                "a capture file cuts no super-packets and fills in no checksums",
            )));
        }
        if frame.layer != self.layer {
            return Err(StopReason::Refused(refused(
                "the capture file has frames of another layer",
            )));
        }
        let slices = batch.slices(frame).iter().map(|slice| outgoing.slice(*slice));
        let writer = match &self.output {
            RecorderOutput::File(writer) => writer,
            RecorderOutput::Stream(stream) => {
                return stream.write(frame.length as usize, slices, time).map_err(|refused| {
                    match refused {
                        NotWritten::Full => StopReason::Full,
                        NotWritten::Failed(error) => self.gone(error),
                    }
                });
            }
        };
        let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = writer.as_mut() else { return Err(self.gone(None)) };
        let record = Record {
            interface: 0,
            time: Some(time),
            original_length: None,
            options: FrameOptions::NONE,
        };
        open.write(record, slices).map_err(|source| {
            // A part of the record may have been written, so no other record can follow.
            *writer = None;
            self.gone(Some(source))
        })
    }

    fn gone(&self, why: Option<CaptureError>) -> StopReason {
        let port = self.text.clone();
        StopReason::Gone(why.map_or_else(
            || PortError::Gone { port: port.clone() },
            |source| PortError::Capture { port: port.clone(), source },
        ))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let RecorderOutput::File(writer) = &mut self.output else { return };
        let writer = writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = writer.map(Writer::finish) {
            tracing::error!(port = %self.text, %error, "the recorded capture is lost");
        }
    }
}

/// The sending end of a port that records. All ends of a port write into the same capture.
#[derive(Debug)]
pub(super) struct RecorderEnd {
    recorder: Arc<Recorder>,
}

impl RecorderEnd {
    pub(super) const fn new(recorder: Arc<Recorder>) -> Self {
        RecorderEnd { recorder }
    }
}

impl Transmit for RecorderEnd {
    fn transmit(&mut self, outgoing: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let time = Timestamp::from_nanoseconds(
            (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64),
        );
        for (sent, frame) in batch.frames()[from..].iter().enumerate() {
            if let Err(stopped) = self.recorder.record(outgoing, batch, frame, time) {
                return Progress { sent, stopped: Some(stopped) };
            }
        }
        Progress { sent: batch.frames().len() - from, stopped: None }
    }
}

/// The sending end of a port that only replays: it discards the frames.
#[derive(Debug)]
pub(super) struct Discard;

impl Transmit for Discard {
    fn transmit(&mut self, _: &Outgoing, batch: &TxBatch, from: usize) -> Progress {
        Progress { sent: batch.frames().len() - from, stopped: None }
    }
}
