//! Lists of CPUs to which threads are pinned, as arguments of commands.

use std::fmt;

use superpacket_lab::allowed_cpus;
use superpacket_steer::{Cpu, CpuMask, MAX_CPUS};

/// A list of CPUs on which this process may run, with at least one CPU. Its `Display` output can be
/// parsed to the same list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(Box<CpuMask>);

impl CpuList {
    /// Parses a list such as `0,2-3`. All CPUs in it must be available to this process.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mask = CpuMask::parse_list(text, MAX_CPUS).map_err(|error| error.to_string())?;
        let allowed: CpuMask = allowed_cpus()
            .map_err(|error| error.to_string())?
            .into_iter()
            .filter_map(Cpu::new)
            .collect();
        match mask.iter().find(|cpu| !allowed.contains(*cpu)) {
            Some(cpu) => Err(format!(
                "CPU {} is not available to this program; available: {}",
                cpu.number(),
                allowed.list()
            )),
            None if mask.is_empty() => Err("a list of CPUs like 0,2-3".into()),
            None => Ok(CpuList(Box::new(mask))),
        }
    }

    /// Returns the numbers of the CPUs in `list`; empty for `None`.
    pub(crate) fn numbers(list: Option<&Self>) -> Vec<usize> {
        list.iter().flat_map(|list| list.0.iter()).map(Cpu::number).collect()
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.list().fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_those_that_there_are() {
        let first = allowed_cpus().expect("Linux says")[0];
        assert_eq!(
            CpuList::read(&format!("{first}")).map(|list| CpuList::numbers(Some(&list))),
            Ok(vec![first])
        );
        for (wrong, words) in [
            ("", "a list of CPUs"),
            ("0,x-1", "\"x-1\""),
            ("3-1", "\"3-1\""),
            ("8191", "CPU 8191 is not available"),
        ] {
            assert!(
                CpuList::read(wrong).is_err_and(|error| error.contains(words)),
                "{wrong}: {:?}",
                CpuList::read(wrong)
            );
        }
    }
}
