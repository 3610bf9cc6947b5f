//! Files of frames. Each frame follows its length, a little-endian 32-bit number.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Writes frames to a file.
///
/// # Errors
/// The system's error, with the path.
pub fn write(path: &Path, frames: &[Vec<u8>]) -> Result<()> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend_from_slice(&(frame.len() as u32).to_le_bytes());
        bytes.extend_from_slice(frame);
    }
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// Reads a file of [`write`].
///
/// # Errors
/// The system's error with the path, or the position of a truncated frame.
pub fn read(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let (mut frames, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let length = bytes[at..].first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
        let frame = length.and_then(|length| bytes.get(at + 4..)?.get(..length));
        ensure!(
            frame.is_some(),
            "{}: no whole frame at byte {at} of {}",
            path.display(),
            bytes.len()
        );
        frames.extend(frame.map(<[u8]>::to_vec));
        at += 4 + length.unwrap_or(0);
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_and_half_a_frame_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let frames = [vec![1, 2, 3], Vec::new(), vec![4; 2_000]];
        write(file.path(), &frames).expect("written");
        assert_eq!(read(file.path()).expect("read"), frames);

        let bytes = fs::read(file.path()).expect("read");
        for length in [2, 6, bytes.len() - 1] {
            fs::write(file.path(), &bytes[..length]).expect("written");
            let error = read(file.path()).expect_err("cut off").to_string();
            assert!(error.contains("no whole frame at byte"), "{error}");
        }
    }
}
