//! Sources of the payload that bulk senders send.

use std::fs::File;
use std::hash::Hasher;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use twox_hash::XxHash3_64;

use crate::error::{Context, LabError};
use crate::pattern::Pattern;

/// Source of the payload of a bulk sender.
#[derive(Clone, Debug, Default)]
pub enum Source {
    /// A buffer in memory, sent with send(2): TCP_STREAM.
    #[default]
    Memory,
    /// A file, sent with sendfile(2): TCP_SENDFILE. It is repeated if the flow is longer.
    File(Arc<PatternFile>),
}

/// A file in memory (memfd_create(2)), filled with a pattern. It has no name, and is freed when its
/// last reference is dropped.
#[derive(Debug)]
pub struct PatternFile {
    file: File,
    size: u64,
    pattern: Pattern,
}

impl PatternFile {
    /// Creates a file of `size` bytes with the pattern of `key`.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for size 0; [`LabError::System`] if there is not enough memory.
    pub fn new(size: u64, key: u64) -> Result<Arc<Self>, LabError> {
        if size == 0 {
            return Err(LabError::Invalid {
                what: "file of 0 bytes".into(),
                reason: "expected at least 1".into(),
            });
        }
        let what = || format!("file in memory of {size} bytes");
        let pattern = Pattern::new(key);
        let mut file =
            File::from(memfd_create("superpacket-lab", MemfdFlags::CLOEXEC).context(what)?);
        let mut block = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(block.len() as u64) as usize;
            pattern.fill(offset, &mut block[..length]);
            file.write_all(&block[..length]).context(what)?;
            offset += length as u64;
        }
        Ok(Arc::new(Self { file, size, pattern }))
    }

    /// Returns the file's size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the XXH3 hash of the first `bytes` bytes of the repeated file, computed from the
    /// file's actual content.
    pub(crate) fn digest(&self, bytes: u64) -> Result<u64, LabError> {
        let mut sum = XxHash3_64::new();
        let mut block = vec![0; 1 << 18];
        let mut offset = 0;
        while offset < bytes {
            let within = offset % self.size;
            let length = (bytes - offset).min(self.size - within).min(block.len() as u64) as usize;
            self.file
                .read_exact_at(&mut block[..length], within)
                .context(|| "reading the file sent".into())?;
            sum.write(&block[..length]);
            offset += length as u64;
        }
        Ok(sum.finish())
    }

    /// Returns the index of the first byte of `bytes` that differs from the repeated file at
    /// `offset`; `None` if all are equal.
    pub(crate) fn first_difference(&self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let within = (offset + done as u64) % self.size;
            let length = (self.size - within).min((bytes.len() - done) as u64) as usize;
            if let Some(index) = self.pattern.first_difference(within, &bytes[done..done + length])
            {
                return Some(done + index);
            }
            done += length;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_sent_twice_is_its_pattern_twice() -> Result<(), LabError> {
        let file = PatternFile::new(1_500_007, 5)?;
        let mut twice = vec![0; 2 * file.size() as usize];
        let (first, second) = twice.split_at_mut(file.size() as usize);
        Pattern::new(5).fill(0, first);
        Pattern::new(5).fill(0, second);
        assert_eq!(file.first_difference(0, &twice), None);
        assert_eq!(file.first_difference(1, &twice), Some(0));
        let mut sum = XxHash3_64::new();
        sum.write(&twice);
        assert_eq!(file.digest(twice.len() as u64)?, sum.finish());
        Ok(())
    }
}
