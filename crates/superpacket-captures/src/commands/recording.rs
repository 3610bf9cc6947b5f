//! Reads captures that tcpdump has written or is writing: a file that grows, or a set of files as
//! one capture.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::file::{Block, CaptureError, Format, Frame, Interface, Item, Reader, Source, Truncated};

use crate::commands::error::Error;
use crate::commands::progress::Progress;
use crate::commands::rotated::{RotatedFile, RotatedSet, first_time};
use crate::commands::waiting::{Waiting, in_thread};

/// Time between two checks of whether a file has grown.
const LOOK: Duration = Duration::from_millis(50);

/// A capture in a file that grows, or in several files. Equal interfaces of two files count as one
/// interface, and packets are numbered across all files.
pub(crate) struct Recording {
    /// The name in reports.
    file: String,
    /// The files of the capture; `None` if there is a single one.
    set: Option<RotatedSet>,
    current: RotatedFile,
    /// The files that follow the current one and existed when the capture was opened.
    rest: VecDeque<RotatedFile>,
    reader: Reader,
    /// A handle that keeps the threads running that wait for more data at the end of the last file;
    /// `None` if its end is not followed.
    alive: Option<Arc<()>>,
    /// Number of bytes of all files; `None` if they grow.
    length: Option<u64>,
    /// Number of packets and number of bytes in the files before the current one.
    before: (u64, u64),
    interfaces: Vec<Interface>,
    /// For each interface of the current file, its index in `interfaces`.
    places: Vec<u32>,
    /// The position at which the first file that is cut short ends.
    truncated: Option<Truncated>,
}

impl Recording {
    /// Opens a file, or with `rotated` the set of files to which it belongs. With `follow`, reading
    /// waits at the end of the last file for more.
    ///
    /// # Errors
    /// Those of [`Reader::open`], and [`Error::Interrupted`] if the progress ends the wait for the
    /// header.
    pub(crate) fn open(
        path: &Path,
        rotated: bool,
        follow: bool,
        progress: &mut dyn Progress,
    ) -> Result<Self, Error> {
        let file = path.display().to_string();
        let open_error = |source| CaptureError::Open { file: file.clone(), source };
        let set = rotated.then(|| RotatedSet::find(path)).transpose().map_err(open_error)?;
        let mut rest: VecDeque<_> = match &set {
            Some(set) => set.in_order().map_err(open_error)?.into(),
            None => [RotatedFile::single(path)].into(),
        };
        let sizes = rest.iter().map(|file| Some(file.path.metadata().ok()?.len()));
        let length = if follow { None } else { sizes.sum() };
        let current = rest.pop_front().ok_or_else(|| open_error(io::ErrorKind::NotFound.into()))?;
        let alive = follow.then(|| Arc::new(()));
        let reader = match &alive {
            Some(alive) if rest.is_empty() => {
                let (file, set, alive) = (current.clone(), set.clone(), Arc::downgrade(alive));
                in_thread(progress, move || open_growing(&file, set, alive))??
            }
            _ => Reader::open(&current.path)?,
        };
        let (before, truncated) = ((0, 0), None);
        let (interfaces, places) = (Vec::new(), Vec::new());
        let mut recording = Recording {
            file,
            set,
            current,
            rest,
            reader,
            alive,
            length,
            before,
            interfaces,
            places,
            truncated,
        };
        recording.add_interfaces();
        Ok(recording)
    }

    /// Opens the next file, if there is one.
    fn open_next(&mut self) -> Result<bool, CaptureError> {
        let next = match (self.rest.pop_front(), &self.set, &self.alive) {
            (Some(next), ..) => next,
            (None, Some(set), Some(_)) => {
                let first = first_time(&self.current.path);
                match first.and_then(|first| set.successor(&self.current, first)) {
                    Some(next) => next,
                    None => return Ok(false),
                }
            }
            _ => return Ok(false),
        };
        let reader = match &self.alive {
            Some(alive) if self.rest.is_empty() => {
                open_growing(&next, self.set.clone(), Arc::downgrade(alive))?
            }
            _ => Reader::open(&next.path)?,
        };
        self.before.0 += self.reader.place().packets;
        self.before.1 += self.reader.bytes_read();
        if self.truncated.is_none() {
            self.truncated = self.reader.truncated().cloned();
        }
        self.reader = reader;
        self.current = next;
        self.places.clear();
        self.add_interfaces();
        Ok(true)
    }

    /// Adds the interfaces of the current file that are new.
    #[cold]
    fn add_interfaces(&mut self) {
        for interface in &self.reader.interfaces()[self.places.len()..] {
            let known = (0..).zip(&self.interfaces);
            let known = known
                .filter(|(place, known)| *known == interface && !self.places.contains(place))
                .map(|(place, _)| place)
                .next();
            self.places.push(known.unwrap_or_else(|| {
                self.interfaces.push(interface.clone());
                self.interfaces.len() as u32 - 1
            }));
        }
    }

    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn length(&self) -> Option<u64> {
        self.length
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.before.1 + self.reader.bytes_read()
    }

    /// Returns the next frame, or the next other block of a pcapng file.
    ///
    /// # Errors
    /// Those of [`Reader::next_item`].
    pub(crate) fn next_item(&mut self) -> Result<Option<Item<'_>>, CaptureError> {
        let located = loop {
            match self.reader.locate_next(true)? {
                Some(located) => break located,
                None if self.open_next()? => {}
                None => return Ok(None),
            }
        };
        if self.places.len() < self.reader.interfaces().len() {
            self.add_interfaces();
        }
        let interfaces = &self.interfaces;
        Ok(Some(match self.reader.item(located) {
            Item::Frame(frame) => Item::Frame(Frame {
                number: self.before.0 + frame.number,
                interface: self.places[frame.interface as usize],
                interfaces,
                ..frame
            }),
            Item::Block(block) => {
                Item::Block(Block { places: Some(&self.places), interfaces, ..block })
            }
        }))
    }

    pub(crate) fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    pub(crate) fn format(&self) -> Format {
        self.reader.format()
    }

    pub(crate) fn truncated(&self) -> Option<&Truncated> {
        self.truncated.as_ref().or_else(|| self.reader.truncated())
    }
}

impl Waiting for Recording {
    fn is_live(&self) -> bool {
        self.reader.is_live()
    }

    fn wait(&self, limit: Duration) -> bool {
        self.reader.wait(limit)
    }
}

/// Opens a file that may grow. Reading waits at its end for more, until `alive` is dropped or a
/// file of the set follows.
fn open_growing(
    file: &RotatedFile,
    set: Option<RotatedSet>,
    alive: Weak<()>,
) -> Result<Reader, CaptureError> {
    let name = file.path.display().to_string();
    let stream = File::open(&file.path)
        .map_err(|source| CaptureError::Open { file: name.clone(), source })?;
    let file = file.clone();
    let growing =
        GrowingFile { stream, file, set, alive, position: 0, first: None, is_left: false };
    Reader::live(&name, Box::new(growing))
}

/// A file that another program is writing.
struct GrowingFile {
    stream: File,
    file: RotatedFile,
    set: Option<RotatedSet>,
    alive: Weak<()>,
    /// Number of bytes read so far.
    position: u64,
    /// The time of the file's first packet; `None` until it is known.
    first: Option<u64>,
    /// Whether the program has left this file and writes to the next one.
    is_left: bool,
}

impl GrowingFile {
    /// Returns whether the program already writes to the next file of the set.
    fn has_successor(&mut self) -> bool {
        let Some(set) = &self.set else { return false };
        self.first = self.first.or_else(|| first_time(&self.file.path));
        self.first.is_some_and(|first| set.successor(&self.file, first).is_some())
    }
}

impl Read for GrowingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.stream.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.is_left || self.alive.strong_count() == 0 {
                self.position += read as u64;
                return Ok(read);
            }
            if self.stream.metadata()?.len() < self.position {
                return Err(io::Error::other("another program has shortened it"));
            }
            // What was written before the program left the file must still be read.
            self.is_left = self.has_successor();
            if !self.is_left {
                std::thread::sleep(LOOK);
            }
        }
    }
}
