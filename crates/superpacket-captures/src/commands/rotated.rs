//! The files into which tcpdump divides a capture (`-C`, `-W`): their names, and their order.
//!
//! Without `-W`, tcpdump appends a number to the name of all files but the first: `out.pcap`,
//! `out.pcap1`, `out.pcap2`. With `-W 12`, all names have a number of as many digits as the last:
//! `out.pcap00` to `out.pcap11`. After the last one, tcpdump overwrites the first.

use std::io;
use std::path::{Path, PathBuf};

use crate::file::{Reader, Source};

/// File name extensions of files that were compressed after they were written (`-z`).
const COMPRESSED: [&str; 2] = [".gz", ".zst"];

/// The files of one capture.
#[derive(Clone, Debug)]
pub(crate) struct RotatedSet {
    directory: PathBuf,
    /// The file name that was given to tcpdump, to which it appends numbers.
    base: String,
    /// Whether tcpdump overwrites the first file again after it has written the last one.
    is_ring: bool,
}

/// A file of a [`RotatedSet`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RotatedFile {
    /// The number at the end of its name; 0 if there is none.
    number: u64,
    /// Number of digits of the number; 0 if there is none.
    digits: usize,
    is_compressed: bool,
    pub(crate) path: PathBuf,
}

impl RotatedFile {
    /// Returns a file that belongs to no set.
    pub(crate) fn single(path: &Path) -> Self {
        RotatedFile { number: 0, digits: 0, is_compressed: false, path: path.to_owned() }
    }
}

impl RotatedSet {
    /// Finds the set of a file. `path` is a file of the set, or the name that was given to tcpdump.
    ///
    /// # Errors
    /// If the directory cannot be read, or has no such file.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
        let name = without_compression(&name).0;
        let stripped = name.trim_end_matches(|character: char| character.is_ascii_digit());
        let number = name.strip_prefix(stripped).unwrap_or_default();
        let exists = |name: &str| directory.join(name).exists();
        // The name that was given to tcpdump may itself end with a digit.
        let is_base = stripped.is_empty()
            || (exists(name) && exists(&format!("{name}1")) && !exists(stripped));
        let base = if is_base { name } else { stripped }.to_owned();
        let is_ring = !is_base && (number.starts_with('0') || !exists(stripped));
        let mut set = RotatedSet { directory, base, is_ring };
        let files = set.files()?;
        if files.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // Without its first file, a set that never begins again looks like a ring.
        set.is_ring &= files.iter().any(|file| file.number == 0);
        Ok(set)
    }

    /// Returns the files that are not empty, by number.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn files(&self) -> io::Result<Vec<RotatedFile>> {
        let mut files = Vec::new();
        for entry in self.directory.read_dir()? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let (name, is_compressed) = without_compression(&name);
            let Some(digits) = name.strip_prefix(self.base.as_str()) else { continue };
            let number = if digits.is_empty() { Ok(0) } else { digits.parse() };
            let is_numbered = digits.bytes().all(|digit| digit.is_ascii_digit());
            let fits = if self.is_ring { !digits.is_empty() } else { !digits.starts_with('0') };
            if let Ok(number) = number
                && is_numbered
                && fits
                && entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
            {
                // The path is joined, so that it is as the user has written it.
                let path = match self.directory == Path::new(".") {
                    true => PathBuf::from(entry.file_name()),
                    false => self.directory.join(entry.file_name()),
                };
                files.push(RotatedFile { number, digits: digits.len(), is_compressed, path });
            }
        }
        files.sort_by_key(|file| (file.number, file.digits, file.is_compressed));
        if self.is_ring
            && let Some(first) = files.first().map(|first| first.digits)
        {
            files.retain(|file| file.digits == first);
        }
        // A file that is being compressed is there twice.
        files.dedup_by_key(|file| file.number);
        Ok(files)
    }

    /// Returns the files in the order in which they were written: by number but, if tcpdump has
    /// begun to overwrite the first files, beginning with the file that has the oldest first
    /// packet.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub(crate) fn in_order(&self) -> io::Result<Vec<RotatedFile>> {
        let mut files = self.files()?;
        if self.is_ring {
            let oldest = (0..files.len())
                .filter_map(|index| Some((first_time(&files[index].path)?, index)))
                .min();
            files.rotate_left(oldest.map_or(0, |(_, index)| index));
        }
        Ok(files)
    }

    /// Returns the file that follows `current`, whose first packet has the time `first`. The first
    /// packet of the following file must not be older. This excludes files of an earlier capture,
    /// and files that tcpdump has not yet overwritten.
    pub(crate) fn successor(&self, current: &RotatedFile, first: u64) -> Option<RotatedFile> {
        let files = self.files().ok()?;
        let next = files.iter().find(|file| file.number > current.number);
        let next = next.or_else(|| files.first().filter(|_| self.is_ring))?;
        let follows = next.number != current.number && first_time(&next.path)? >= first;
        follows.then(|| next.clone())
    }
}

/// Returns the name without the extension of a compressed file, and whether there was one.
fn without_compression(name: &str) -> (&str, bool) {
    match COMPRESSED.iter().find_map(|extension| name.strip_suffix(extension)) {
        Some(name) => (name, true),
        None => (name, false),
    }
}

/// Returns the time of a file's first packet, in nanoseconds since 1970. `None` if the file has no
/// packet yet, or the packet has no time.
pub(crate) fn first_time(path: &Path) -> Option<u64> {
    let mut reader = Reader::open(path).ok()?;
    let frame = reader.next_frame().ok()??;
    Some(frame.time?.nanoseconds())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{
        ByteOrder, Compression, Container, FrameOptions, Interface, LinkType, OutputFormat, Record,
        Sink, TimeResolution, Timestamp, Writer,
    };

    /// Writes a capture with a packet at this time.
    fn write(path: &Path, time: u64) {
        let format = OutputFormat {
            container: Container::Pcap,
            byte_order: ByteOrder::Little,
            resolution: None,
            compression: Compression::None,
        };
        let mut writer = Writer::create(path, format).expect("creates");
        writer
            .declare(&[Interface::new(LinkType::RAW, TimeResolution::NANOSECONDS)])
            .expect("declares");
        let record = Record {
            interface: 0,
            time: Some(Timestamp::from_nanoseconds(time)),
            original_length: None,
            options: FrameOptions::NONE,
        };
        writer.write(record, [&[1][..]]).expect("writes");
        writer.finish().expect("finishes");
    }

    /// Writes captures, and returns the order in which the set of `given` is read.
    fn order(given: &str, files: &[(&str, u64)]) -> Vec<String> {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, time) in files {
            write(&directory.path().join(name), *time);
        }
        let set = RotatedSet::find(&directory.path().join(given)).expect("a set");
        let files = set.in_order().expect("a directory").into_iter();
        files
            .map(|file| file.path.file_name().expect("a name").to_string_lossy().into_owned())
            .collect()
    }

    #[test]
    fn files_without_a_limit_are_read_by_number() {
        let files =
            [("o.pcap10", 9), ("o.pcap", 1), ("o.pcap2", 3), ("o.pcap1", 2), ("o.pcap1x", 0)];
        for given in ["o.pcap", "o.pcap2", "o.pcap10"] {
            assert_eq!(order(given, &files), ["o.pcap", "o.pcap1", "o.pcap2", "o.pcap10"]);
        }
    }

    #[test]
    fn a_ring_is_read_from_its_oldest_file_on() {
        let files = [("o.pcap00", 12), ("o.pcap01", 13), ("o.pcap02", 3), ("o.pcap03", 4)];
        for given in ["o.pcap", "o.pcap00", "o.pcap03"] {
            assert_eq!(order(given, &files), ["o.pcap02", "o.pcap03", "o.pcap00", "o.pcap01"]);
        }
        assert_eq!(order("o0", &[("o0", 2), ("o1", 1), ("o", 0)]), ["o1", "o0"]);
    }

    #[test]
    fn a_name_may_end_with_a_digit() {
        assert_eq!(
            order("eth0", &[("eth0", 1), ("eth01", 2), ("eth02", 3)]),
            ["eth0", "eth01", "eth02"]
        );
        assert_eq!(order("7", &[("7", 1), ("71", 2)]), ["7", "71"]);
    }

    #[test]
    fn a_successor_is_not_older() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        for (name, time) in [("o0", 10), ("o1", 20), ("o2", 30)] {
            write(&path(name), time);
        }
        let set = RotatedSet::find(&path("o0")).expect("a set");
        let files = set.files().expect("a directory");
        assert_eq!(set.successor(&files[0], 10).as_ref(), Some(&files[1]));
        assert_eq!(set.successor(&files[2], 30), None, "the first is not yet overwritten");
        write(&path("o0"), 40);
        assert_eq!(set.successor(&files[2], 30).as_ref(), Some(&files[0]));
        assert_eq!(set.successor(&files[0], 40), None);
        assert!(RotatedSet::find(&path("absent")).is_err());
    }
}
