//! Where the records of a capture begin, so that it can be read in parts.

use std::io::Read;

use crate::file::{Compression, Place, Reader, Source};

use crate::error::Error;
use crate::progress::{INTERVAL, Progress};

/// Headers and interface descriptions that a capture may have to be read in parts, in bytes: each
/// part reads all before it anew.
const MOST_PREAMBLE: usize = 8 << 20;

/// Which places [`index`] notes.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Bytes from one place to the next, at least.
    pub grain: u64,
    /// Only places with a multiple of so many packets before them: if it is the packets in a poll
    /// ([`Stepping::batch`](crate::Stepping::batch)), nothing is held there. 0 and 1: any.
    pub multiple: u64,
}

/// A place at which a part may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedPlace {
    /// Where it is.
    pub place: Place,
    /// How many bytes of [`Index::preamble`] its reader needs.
    pub preamble: usize,
}

/// Places of a capture at which parts may begin.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// The places, the first behind the capture's header. None if it can only be read as a whole:
    /// it is compressed, or describes tens of thousands of interfaces.
    pub places: Vec<IndexedPlace>,
    /// Headers that readers of parts need.
    pub preamble: Vec<u8>,
    /// All packets.
    pub packets: u64,
}

/// Reads a capture once, and notes where parts may begin. No packet is looked into.
///
/// # Errors
/// Whatever stops the reading. A capture that is cut short is indexed as far as it goes.
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
    // Nothing begins at the end.
    let packets = index.packets;
    index.places.retain(|noted| noted.place.packets < packets || noted.place.packets == 0);
    Ok(index)
}
