//! Packets as they are pickled: a pcapng file, and what it does not hold.

use std::io::{self, Cursor, Write};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use superpacket_captures::file::{
    ByteOrder, CaptureError, Format, Frame, OutputFormat, Reader, Sink, Source, Writer,
};
use superpacket_captures::{PacketSink, Packets};

use crate::errors::capture_error;

/// Packets as they are pickled.
#[derive(FromPyObject, IntoPyObject)]
pub(crate) struct PickledPackets(
    /// The number of the first packet in its capture.
    u64,
    Py<PyBytes>,
    /// What pcapng does not hold: the index of a packet, its segments' size or 0, and whether it
    /// has no time.
    Vec<(usize, u16, bool)>,
);

/// Memory that a writer writes to.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn encode(packets: &Packets) -> Result<Vec<u8>, CaptureError> {
    let file = Shared::default();
    let format = Format::PcapNg { byte_order: ByteOrder::NATIVE };
    let format = OutputFormat::for_path(Path::new(""), format);
    let mut writer = Writer::into_stream("pickle", Box::new(file.clone()), format)?;
    writer.declare(packets.interfaces())?;
    packets.iter().try_for_each(|frame| writer.copy(&frame))?;
    writer.finish()?;
    Ok(std::mem::take(&mut *file.0.lock().unwrap_or_else(PoisonError::into_inner)))
}

impl PickledPackets {
    pub(crate) fn new(py: Python<'_>, packets: &Packets, first: u64) -> PyResult<Self> {
        let file = encode(packets).map_err(|error| capture_error(py, &error))?;
        let more = packets.iter().enumerate().filter_map(|(index, frame)| {
            let size = frame.options.segment_size().map_or(0, NonZeroU16::get);
            (size > 0 || frame.time.is_none()).then_some((index, size, frame.time.is_none()))
        });
        Ok(PickledPackets(first, PyBytes::new(py, &file).unbind(), more.collect()))
    }

    /// The number of the first packet.
    pub(crate) fn first(&self) -> u64 {
        self.0
    }

    /// The packets.
    pub(crate) fn packets(&self, py: Python<'_>) -> PyResult<Packets> {
        let file = Cursor::new(self.1.as_bytes(py).to_vec());
        let decode = || {
            let mut packets = Packets::new();
            let mut more = self.2.iter().peekable();
            let mut reader = Reader::from_stream("pickle", Box::new(file))?;
            let mut index = 0;
            while let Some(frame) = reader.next_frame()? {
                if packets.interfaces().len() != frame.interfaces.len() {
                    packets.declare(frame.interfaces)?;
                }
                let mut frame = Frame { ..frame };
                if let Some(&(_, size, is_untimed)) = more.next_if(|more| more.0 == index) {
                    frame.options = frame.options.with_segment_size(NonZeroU16::new(size));
                    frame.time = frame.time.filter(|_| !is_untimed);
                }
                packets.packet(&frame.record(), frame.data)?;
                index += 1;
            }
            Ok(packets)
        };
        decode().map_err(|error: CaptureError| capture_error(py, &error))
    }
}
