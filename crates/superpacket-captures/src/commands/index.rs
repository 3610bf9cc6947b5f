//! An index of record positions, with which a capture can be read in parts.

use std::io::Read;

use crate::file::{CapturePosition, Compression, Reader, Source};

use crate::commands::error::Error;
use crate::commands::progress::{INTERVAL, Progress};

/// Maximum number of bytes of headers and interface descriptions in a capture that is read in
/// parts. The reader of each part has to read all those that precede the part.
const MOST_PREAMBLE: usize = 8 << 20;

/// Options of [`index`].
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Minimum distance between two places, in bytes.
    pub grain: u64,
    /// The number of packets before each position of the index is a multiple of this; 0 and 1 allow
    /// any number. If it is the number of packets per poll
    /// ([`Stepping::batch`](crate::Stepping::batch)), no packet is held at these positions.
    pub multiple: u64,
}

/// A position at which a part may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedPlace {
    /// The position in the capture at which a part may begin.
    pub place: CapturePosition,
    /// Number of bytes of [`Index::preamble`] that a reader needs to start at this position.
    pub preamble: usize,
}

/// The positions in a capture at which parts may begin.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// The positions; the first is directly behind the capture's header. Empty if the capture can
    /// only be read as a whole: it is compressed, or it describes tens of thousands of interfaces.
    pub places: Vec<IndexedPlace>,
    /// The headers that readers of parts need.
    pub preamble: Vec<u8>,
    /// Number of packets in the capture.
    pub packets: u64,
}

/// Reads a capture once, and records where parts may begin. Packets are not parsed.
///
/// # Errors
/// Any error of reading. A capture that is cut short is indexed up to that point.
pub fn index(
    name: &str,
    stream: Box<dyn Read + Send>,
    options: IndexOptions,
    progress: &mut dyn Progress,
) -> Result<Index, Error> {
    let mut reader = Reader::keeping_preamble(name, stream)?;
    if reader.compression() != Compression::None {
        return Ok(Index::default());
    }
    let multiple = options.multiple.max(1);
    let mut index = Index::default();
    let mut next = 0;
    loop {
        let place = reader.place();
        if place.offset >= next && place.packets.is_multiple_of(multiple) {
            index.places.push(IndexedPlace { place, preamble: reader.preamble().len() });
            next = place.offset + options.grain;
        }
        if reader.next_frame()?.is_none() {
            break;
        }
        if place.packets.is_multiple_of(INTERVAL) {
            if reader.preamble().len() > MOST_PREAMBLE {
                return Ok(Index::default());
            }
            if progress.advance(place.packets, place.offset).is_break() {
                return Err(Error::Interrupted);
            }
        }
    }
    index.packets = reader.place().packets;
    index.preamble = reader.preamble().to_vec();
    // No part begins at the end of the capture.
    let packets = index.packets;
    index.places.retain(|noted| noted.place.packets < packets || noted.place.packets == 0);
    Ok(index)
}
