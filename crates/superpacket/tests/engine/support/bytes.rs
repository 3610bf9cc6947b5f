//! Bytes of many types as one, so that one packet can have them all, and the engine is compiled
//! once for all.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// A page of which a part is the buffer, as drivers have it.
pub struct Page {
    memory: [u8; 2048],
    start: usize,
    length: usize,
}

impl Page {
    pub fn holding(bytes: &[u8]) -> Self {
        let mut page = Page { memory: [0xee; 2048], start: 2, length: bytes.len() };
        page.memory[2..][..bytes.len()].copy_from_slice(bytes);
        page
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }
}

/// Bytes of one of several types.
pub enum AnyBytes<'a> {
    Vector(Vec<u8>),
    Boxed(Box<[u8]>),
    Shared(Arc<[u8]>),
    Counted(Rc<[u8]>),
    Borrowed(&'a [u8]),
    Exclusive(&'a mut [u8]),
    Either(Cow<'a, [u8]>),
    Page(Box<Page>),
    /// It counts how often its bytes are asked for.
    Watched {
        bytes: Vec<u8>,
        reads: &'a Cell<u32>,
    },
}

impl AsRef<[u8]> for AnyBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            AnyBytes::Vector(bytes) => bytes.as_ref(),
            AnyBytes::Boxed(bytes) => bytes.as_ref(),
            AnyBytes::Shared(bytes) => bytes.as_ref(),
            AnyBytes::Counted(bytes) => bytes.as_ref(),
            AnyBytes::Borrowed(bytes) => bytes,
            AnyBytes::Exclusive(bytes) => bytes,
            AnyBytes::Either(bytes) => bytes.as_ref(),
            AnyBytes::Page(page) => (**page).as_ref(),
            AnyBytes::Watched { bytes, reads } => {
                reads.set(reads.get() + 1);
                bytes
            }
        }
    }
}
