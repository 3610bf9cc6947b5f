//! A parser of bitmaps that behaves like the kernel's `bitmap_parse`.

use alloc::string::String;
use core::str::FromStr;

use super::{CpuMask, GROUP, MAX_CPUS};

/// Number of hexadecimal digits in a chunk of a bitmap.
const DIGITS: usize = GROUP / 4;

/// The reason why a bitmap is refused. Positions are byte offsets in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MaskError {
    /// A character is not a hexadecimal digit.
    #[error(
        "EINVAL: {character:?} at byte {position}, in chunk {chunk:?}, is not a hexadecimal digit"
    )]
    BadCharacter {
        /// The character.
        character: char,
        /// Byte offset of the character.
        position: usize,
        /// The chunk with the character; only its start, if it is long.
        chunk: String,
    },
    /// A chunk has more than 8 digits, leading zeros included.
    #[error(
        "EOVERFLOW: chunk {chunk:?} at byte {position} has more than 8 digits; commas separate groups of 32 CPUs"
    )]
    LongChunk {
        /// Byte offset of the chunk.
        position: usize,
        /// The chunk; only its start, if it is long.
        chunk: String,
    },
    /// There are more chunks than the CPUs need, even if the extra ones are zero.
    #[error("EOVERFLOW: chunk {chunk:?} at byte {position} is one too many: {cpus} CPUs need {}", cpus.div_ceil(GROUP))]
    TooManyChunks {
        /// Byte offset of the chunk.
        position: usize,
        /// The chunk; only its start, if it is long.
        chunk: String,
        /// Number of possible CPUs.
        cpus: usize,
    },
    /// The bitmap contains a CPU that the machine does not have.
    #[error(
        "EOVERFLOW: chunk {chunk:?} at byte {position} names CPU {cpu}, but the last possible one is {}", cpus - 1
    )]
    NoSuchCpu {
        /// The lowest CPU in the bitmap that the machine does not have.
        cpu: usize,
        /// Byte offset of the chunk.
        position: usize,
        /// The chunk; only its start, if it is long.
        chunk: String,
        /// Number of possible CPUs.
        cpus: usize,
    },
}

impl MaskError {
    /// Returns the name of the kernel's error number: `EINVAL` or `EOVERFLOW`.
    pub const fn kernel_name(&self) -> &'static str {
        match self {
            MaskError::BadCharacter { .. } => "EINVAL",
            MaskError::LongChunk { .. }
            | MaskError::TooManyChunks { .. }
            | MaskError::NoSuchCpu { .. } => "EOVERFLOW",
        }
    }
}

impl CpuMask {
    /// Parses a bitmap as the kernel parses a write to `rps_cpus`, on a machine with `cpus`
    /// possible CPUs (`nr_cpu_ids`; clamped to 1 to [`MAX_CPUS`]).
    ///
    /// The text consists of chunks of at most 8 hexadecimal digits (32 bits), the highest first.
    /// Any number of commas and white space separates chunks (`1,,5` is `1,5`). An empty text is an
    /// empty set. Text after a line feed or a zero byte is ignored.
    ///
    /// # Errors
    /// [`MaskError`], the kernel's error with the refused chunk. Of several errors it is the one
    /// nearest to the end, where the kernel begins. One check is stricter than the kernel's: a bad
    /// character directly before the last 8 digits of a chunk is refused too.
    pub fn parse(text: &str, cpus: usize) -> Result<Self, MaskError> {
        let cpus = cpus.clamp(1, MAX_CPUS);
        let line = text.split(['\n', '\0']).next().unwrap_or("");
        let mut mask = CpuMask::EMPTY;
        let mut highest = "";
        for (group, chunk) in
            line.rsplit(is_separator).filter(|chunk| !chunk.is_empty()).enumerate()
        {
            if group == cpus.div_ceil(GROUP) {
                return Err(MaskError::TooManyChunks {
                    position: byte_offset(text, chunk),
                    chunk: excerpt(chunk),
                    cpus,
                });
            }
            mask.groups[group] = number(text, chunk)?;
            highest = chunk;
        }
        match mask.iter().find(|cpu| cpu.number() >= cpus) {
            None => Ok(mask),
            Some(cpu) => Err(MaskError::NoSuchCpu {
                cpu: cpu.number(),
                position: byte_offset(text, highest),
                chunk: excerpt(highest),
                cpus,
            }),
        }
    }
}

/// Parses a bitmap like [`CpuMask::parse`], with [`MAX_CPUS`] possible CPUs.
impl FromStr for CpuMask {
    type Err = MaskError;

    fn from_str(text: &str) -> Result<Self, MaskError> {
        CpuMask::parse(text, MAX_CPUS)
    }
}

/// Returns whether a character separates chunks: a comma, or white space by the kernel's `isspace`,
/// which includes the vertical tab.
pub(super) fn is_separator(character: char) -> bool {
    matches!(character, ',' | ' ' | '\t'..='\r')
}

/// Returns the value of a chunk, whose digits are parsed from the last to the first.
fn number(text: &str, chunk: &str) -> Result<u32, MaskError> {
    let mut value = 0;
    for (index, (offset, character)) in chunk.char_indices().rev().enumerate() {
        let Some(digit) = character.to_digit(16) else {
            return Err(MaskError::BadCharacter {
                character,
                position: byte_offset(text, chunk) + offset,
                chunk: excerpt(chunk),
            });
        };
        if index == DIGITS {
            return Err(MaskError::LongChunk {
                position: byte_offset(text, chunk),
                chunk: excerpt(chunk),
            });
        }
        value |= digit << (4 * index);
    }
    Ok(value)
}

/// Returns the byte offset of `part` in `text`.
pub(super) fn byte_offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Returns the start of `part` that an error shows. Its length is limited, because the text may be
/// untrusted.
pub(super) fn excerpt(part: &str) -> String {
    const MOST: usize = 24;
    let mut text: String = part.chars().take(MOST).collect();
    if part.chars().nth(MOST).is_some() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::Cpu;
    use std::string::ToString;
    use std::vec::Vec;

    fn cpus(text: &str, room: usize) -> Vec<usize> {
        let mask = CpuMask::parse(text, room)
            .unwrap_or_else(|error| panic!("{text:?} of {room}: {error}"));
        mask.iter().map(Cpu::number).collect()
    }

    #[test]
    fn texts_that_the_kernel_accepts() {
        let none: [usize; 0] = [];
        for empty in
            ["", ",", " ", "\n", ",,,", "0", "00000000,0", " \t,\u{b}\u{c}\r", "\nff", "\0ff"]
        {
            assert_eq!(cpus(empty, 64), none, "{empty:?}");
        }
        assert_eq!(cpus("ff", 8), (0..8).collect::<Vec<_>>());
        assert_eq!(cpus("FF\n", 8), (0..8).collect::<Vec<_>>());
        assert_eq!(cpus("1,,5", 64), [0, 2, 32]);
        assert_eq!(cpus("1 5", 64), [0, 2, 32]);
        assert_eq!(cpus(",44", 7), [2, 6]);
        assert_eq!(cpus("44,", 7), [2, 6], "separators at the end part nothing");
        assert_eq!(cpus("00000000,00000001", 64), [0]);
        assert_eq!(cpus("  a ", 4), [1, 3]);
        assert_eq!(cpus("1\nzz", 1), [0], "the next line is not read");
        assert_eq!(cpus("80000000", 32), [31]);
        let all = alloc::vec!["ffffffff"; 256].join(",");
        assert_eq!(cpus(&all, MAX_CPUS).len(), MAX_CPUS);
        assert_eq!(all.parse::<CpuMask>().map(|mask| mask.len()), Ok(MAX_CPUS));
    }

    #[test]
    fn texts_that_the_kernel_refuses() {
        let chunk = |text: &str| text.to_string();
        for (text, room, error) in [
            (
                "0x3",
                64,
                MaskError::BadCharacter { character: 'x', position: 1, chunk: chunk("0x3") },
            ),
            ("-1", 64, MaskError::BadCharacter { character: '-', position: 0, chunk: chunk("-1") }),
            (
                "0-3",
                64,
                MaskError::BadCharacter { character: '-', position: 1, chunk: chunk("0-3") },
            ),
            (
                "1,é5",
                64,
                MaskError::BadCharacter { character: 'é', position: 2, chunk: chunk("é5") },
            ),
            (
                "1, 2g",
                64,
                MaskError::BadCharacter { character: 'g', position: 4, chunk: chunk("2g") },
            ),
            (
                "g12345678",
                64,
                MaskError::BadCharacter { character: 'g', position: 0, chunk: chunk("g12345678") },
            ),
            ("012345678", 64, MaskError::LongChunk { position: 0, chunk: chunk("012345678") }),
            ("0,000000000", 64, MaskError::LongChunk { position: 2, chunk: chunk("000000000") }),
            ("0,0", 32, MaskError::TooManyChunks { position: 0, chunk: chunk("0"), cpus: 32 }),
            (
                "00000000,00000001",
                4,
                MaskError::TooManyChunks { position: 0, chunk: chunk("00000000"), cpus: 4 },
            ),
            ("10", 4, MaskError::NoSuchCpu { cpu: 4, position: 0, chunk: chunk("10"), cpus: 4 }),
            ("5,0", 33, MaskError::NoSuchCpu { cpu: 34, position: 0, chunk: chunk("5"), cpus: 33 }),
            // Of two errors, the kernel reports the last.
            ("g,123456789", 64, MaskError::LongChunk { position: 2, chunk: chunk("123456789") }),
            (
                "123456789,g",
                64,
                MaskError::BadCharacter { character: 'g', position: 10, chunk: chunk("g") },
            ),
        ] {
            assert_eq!(CpuMask::parse(text, room), Err(error), "{text:?} of {room}");
        }
        let name = |text: &str| CpuMask::parse(text, 4).map_err(|error| error.kernel_name());
        assert_eq!(
            (name("z"), name("f0"), name("1,1")),
            (Err("EINVAL"), Err("EOVERFLOW"), Err("EOVERFLOW"))
        );
        let long = CpuMask::parse(&"5".repeat(1000), 4).map_err(|error| error.to_string());
        assert_eq!(
            long,
            Err("EOVERFLOW: chunk \"555555555555555555555555…\" at byte 0 has more than 8 digits; commas separate groups of 32 CPUs"
                .to_string())
        );
        assert_eq!(
            CpuMask::parse("3", 0).map(|mask| mask.len()).map_err(|error| error.kernel_name()),
            Err("EOVERFLOW"),
            "one CPU at least"
        );
    }
}
