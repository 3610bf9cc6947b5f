//! Packets of any kind that Python offers: those of this package, bytes, and whatever
//! `superpacket._packets.parts` takes apart.

use std::num::NonZeroU16;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use superpacket_captures::file::{Frame, FrameOptions, OptionList, TimeResolution, Timestamp};
use superpacket_captures::{Interface, LinkType};

use crate::packet::Packet;

/// What is said of a packet beside it.
#[derive(Debug, Default)]
pub(crate) struct Details {
    /// Of packets that do not say it themselves.
    pub(crate) link_type: u16,
    /// Time of the packet, in nanoseconds since 1970.
    pub(crate) time: Option<u64>,
    pub(crate) original_length: Option<u64>,
    pub(crate) interface: Option<String>,
    pub(crate) comments: Option<Vec<String>>,
}

/// A packet taken apart: its bytes or a packet of this package, link type, time in nanoseconds,
/// length on the wire, and size of its segments.
type Parts<'py> = (Bound<'py, PyAny>, u16, Option<u64>, Option<u64>, Option<NonZeroU16>);

/// Calls `then` with a packet as the frame of a capture. `number` names it in errors.
pub(crate) fn with_frame<T>(
    packet: &Bound<'_, PyAny>,
    number: u64,
    mut details: Details,
    then: impl FnOnce(&Frame<'_>) -> PyResult<T>,
) -> PyResult<T> {
    let py = packet.py();
    let mut segment_size = None;
    let mut packet = packet.clone();
    if !packet.is_instance_of::<Packet>() && !packet.is_instance_of::<PyBytes>() {
        static PARTS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let parts = PARTS.import(py, "superpacket._packets", "parts")?;
        let (inner, link_type, time, original_length, size): Parts<'_> =
            parts.call1((packet, details.link_type, number))?.extract()?;
        details.link_type = link_type;
        details.time = details.time.or(time);
        details.original_length = details.original_length.or(original_length);
        (packet, segment_size) = (inner, size);
    }
    if let Ok(packet) = packet.cast::<Packet>() {
        return with_details(packet.get().frame(py), number, &details, then);
    }
    let data = packet.cast::<PyBytes>()?.as_bytes();
    let interface = Interface::new(LinkType(details.link_type), TimeResolution::NANOSECONDS);
    let frame = Frame {
        number,
        interface: 0,
        time: None,
        data,
        original_length: 0,
        options: FrameOptions::NONE.with_segment_size(segment_size),
        interfaces: &[interface],
    };
    let original_length = Some(details.original_length.unwrap_or(data.len() as u64));
    with_details(frame, number, &Details { original_length, ..details }, then)
}

/// Calls `then` with a frame of which something else is said.
fn with_details<T>(
    frame: Frame<'_>,
    number: u64,
    details: &Details,
    then: impl FnOnce(&Frame<'_>) -> PyResult<T>,
) -> PyResult<T> {
    let (mut list, own) = (OptionList::new(), details.interface.as_ref());
    let own = own.map(|name| {
        let before = frame.interface();
        [Interface::new(before.link_type, before.resolution).named(name)]
    });
    let mut frame: Frame<'_> = frame;
    if let Some(time) = details.time {
        frame.time = Some(Timestamp::from_nanoseconds(time));
    }
    if let Some(length) = details.original_length {
        let length = length.max(frame.data.len() as u64);
        frame.original_length = u32::try_from(length).map_err(|_| {
            PyValueError::new_err(format!(
                "packet {number}: {length} bytes; a packet must be shorter than 4 GiB"
            ))
        })?;
    }
    if let Some(comments) = &details.comments {
        frame.options.direction().into_iter().for_each(|direction| list.direction(direction));
        comments.iter().for_each(|comment| list.comment(comment));
        frame.options = list.options().with_segment_size(frame.options.segment_size());
    }
    if let Some(own) = &own {
        (frame.interface, frame.interfaces) = (0, own);
    }
    then(&frame)
}
