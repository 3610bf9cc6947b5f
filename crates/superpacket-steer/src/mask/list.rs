//! Lists of CPUs: `0-3,8`.

use alloc::string::String;
use core::fmt;

use super::parse::{byte_offset, excerpt, is_separator};
use super::{Cpu, CpuMask, MAX_CPUS};

/// The reason why a list is refused. Positions are byte offsets in the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// An item is neither a number, nor a range `first-last`, nor a range with a pattern
    /// `first-last:used/group`.
    #[error(
        "EINVAL: {item:?} at byte {position} is neither a CPU nor a range of CPUs: write 8, 0-3 or 0-15:2/4"
    )]
    BadItem {
        /// The item; only its start, if it is long.
        item: String,
        /// Byte offset of the item.
        position: usize,
    },
    /// A range ends before it begins, or a pattern uses more CPUs than its group has.
    #[error(
        "EINVAL: {item:?} at byte {position} is an invalid range: the lower number comes first, and a pattern uses at most its whole group"
    )]
    BadRange {
        /// The item; only its start, if it is long.
        item: String,
        /// Byte offset of the item.
        position: usize,
    },
    /// The item names a CPU that the machine does not have.
    #[error("ERANGE: {item:?} at byte {position} exceeds CPU {}, the last possible one", cpus - 1)]
    NoSuchCpu {
        /// The item; only its start, if it is long.
        item: String,
        /// Byte offset of the item.
        position: usize,
        /// Number of possible CPUs.
        cpus: usize,
    },
}

impl ListError {
    /// Returns the name of the kernel's error number: `EINVAL` or `ERANGE`.
    pub const fn kernel_name(&self) -> &'static str {
        match self {
            ListError::BadItem { .. } | ListError::BadRange { .. } => "EINVAL",
            ListError::NoSuchCpu { .. } => "ERANGE",
        }
    }
}

impl CpuMask {
    /// Parses a list of CPUs and ranges (`0-3,8`), as in `taskset -c` and the kernel's `cpulist`
    /// files, on a machine with `cpus` possible CPUs (clamped to 1 to [`MAX_CPUS`]). `0-15:2/4`
    /// selects the first 2 of every 4 CPUs. Commas and white space separate items. The kernel's
    /// keywords `all` and `N` are not supported.
    ///
    /// # Errors
    /// [`ListError`], with the refused item.
    pub fn parse_list(text: &str, cpus: usize) -> Result<Self, ListError> {
        let cpus = cpus.clamp(1, MAX_CPUS);
        let mut mask = CpuMask::EMPTY;
        for item in text.split(is_separator).filter(|item| !item.is_empty()) {
            let position = byte_offset(text, item);
            let range = Range::read(item)
                .ok_or_else(|| ListError::BadItem { item: excerpt(item), position })?;
            if range.first > range.last || range.group == 0 || range.used > range.group {
                return Err(ListError::BadRange { item: excerpt(item), position });
            }
            if range.last as usize >= cpus {
                return Err(ListError::NoSuchCpu { item: excerpt(item), position, cpus });
            }
            let used = (range.first..=range.last)
                .filter(|cpu| (cpu - range.first) % range.group < range.used);
            mask.extend(used.filter_map(|cpu| Cpu::new(cpu as usize)));
        }
        Ok(mask)
    }
}

/// An item of a list of CPUs, `first-last:used/group`: the first `used` of every `group` CPUs from
/// `first` to `last`.
struct Range {
    first: u32,
    last: u32,
    used: u32,
    group: u32,
}

impl Range {
    fn read(item: &str) -> Option<Self> {
        let Some((first, rest)) = item.split_once('-') else {
            let cpu = number(item)?;
            return Some(Range { first: cpu, last: cpu, used: 1, group: 1 });
        };
        let (last, pattern) = rest.split_once(':').unwrap_or((rest, "1/1"));
        let (used, group) = pattern.split_once('/')?;
        Some(Range {
            first: number(first)?,
            last: number(last)?,
            used: number(used)?,
            group: number(group)?,
        })
    }
}

/// Parses a number that consists of digits only; `parse` alone would accept a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// A set of CPUs, formatted as a list: see [`CpuMask::list`].
#[derive(Clone, Copy, Debug)]
pub struct CpuList<'a>(&'a CpuMask);

impl<'a> CpuList<'a> {
    pub(super) const fn new(mask: &'a CpuMask) -> Self {
        CpuList(mask)
    }
}

impl fmt::Display for CpuList<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().map(Cpu::number).peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|&next| next == last + 1) {
                last = next;
            }
            write!(formatter, "{separator}{first}")?;
            if last > first {
                write!(formatter, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn lists_are_read_and_written() {
        for (text, written) in [
            ("0-3,8", "0-3,8"),
            ("", ""),
            (" 8, 0-3\n", "0-3,8"),
            ("5,4,3-3", "3-5"),
            ("0-15:2/4", "0-1,4-5,8-9,12-13"),
            ("1-7:0/3", ""),
            ("8191", "8191"),
        ] {
            let mask = CpuMask::parse_list(text, MAX_CPUS)
                .unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(mask.list().to_string(), written, "{text:?}");
        }
    }

    #[test]
    fn list_errors_name_the_item_and_its_position() {
        for (text, name, item, at) in [
            ("0-3,x", "EINVAL", "x", 4),
            ("0-", "EINVAL", "0-", 0),
            ("-3", "EINVAL", "-3", 0),
            ("+3", "EINVAL", "+3", 0),
            ("0-3:2", "EINVAL", "0-3:2", 0),
            ("3:1/2", "EINVAL", "3:1/2", 0),
            ("99999999999", "EINVAL", "99999999999", 0),
            ("ff", "EINVAL", "ff", 0),
            ("1,3-0", "EINVAL", "3-0", 2),
            ("0-3:3/2", "EINVAL", "0-3:3/2", 0),
            ("0-3:0/0", "EINVAL", "0-3:0/0", 0),
            ("1 8", "ERANGE", "8", 2),
            ("0-8", "ERANGE", "0-8", 0),
        ] {
            let error = CpuMask::parse_list(text, 8).expect_err(text);
            assert_eq!(error.kernel_name(), name, "{text:?}");
            let words = format!("{name}: {item:?} at byte {at} ");
            assert!(error.to_string().starts_with(&words), "{text:?}: {error}");
        }
    }
}
