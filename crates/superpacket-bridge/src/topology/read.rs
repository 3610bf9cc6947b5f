//! Reads the files of the kernel that describe a machine's CPUs.

use std::io::ErrorKind;
use std::path::Path;

use superpacket_steer::{Cpu, CpuMask, MAX_CPUS};

use super::{Cache, Processor, TopologyError};

/// Maximum number of bytes read of a file: enough for a list of 8,192 CPUs with no two in a row.
const LONGEST: usize = 1 << 16;

/// Returns the CPUs that are online.
pub(super) fn online(root: &Path) -> Result<CpuMask, TopologyError> {
    let path = root.join("online");
    match list(&path)? {
        Some(online) if !online.is_empty() => Ok(online),
        Some(_) => Err(malformed(&path, "", "no CPU, while this runs on one")),
        None => Err(TopologyError::Unreadable { path, source: ErrorKind::NotFound.into() }),
    }
}

/// Returns the CPUs that a process may use: `Cpus_allowed_list` in `/proc/PID/status`
/// (proc_pid_status(5)). Unlike sched_getaffinity(2), it needs no guess at the number of CPUs.
pub(super) fn allowed(path: &Path) -> Result<CpuMask, TopologyError> {
    let missing =
        || TopologyError::Unreadable { path: path.into(), source: ErrorKind::NotFound.into() };
    let status = text(path)?.ok_or_else(missing)?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_list(
        path,
        allowed.ok_or_else(|| malformed(path, &status, "without a line Cpus_allowed_list"))?,
    )
}

/// Reads the sysfs description of a CPU.
pub(super) fn processor(root: &Path, cpu: Cpu) -> Result<Processor, TopologyError> {
    let directory = root.join(format!("cpu{cpu}"));
    let topology = directory.join("topology");
    Ok(Processor {
        cache: last_level_cache(&directory.join("cache"), cpu)?,
        package: identifier(&topology.join("physical_package_id"))?,
        core: list(&topology.join("thread_siblings_list"))?.unwrap_or_default(),
    })
}

/// Returns the last-level cache of a CPU: the data or unified cache of the highest level. The
/// kernel numbers a CPU's caches from `index0` on without gaps.
fn last_level_cache(directory: &Path, cpu: Cpu) -> Result<Option<Cache>, TopologyError> {
    let mut last: Option<Cache> = None;
    for index in 0.. {
        let cache = directory.join(format!("index{index}"));
        let level = cache.join("level");
        let Some(text) = text(&level)? else { break };
        let level =
            text.trim().parse().map_err(|_| malformed(&level, &text, "no level of a cache"))?;
        // An instruction cache holds no packets. A cache of unknown type or sharing cannot be used.
        let (Some(kind), Some(mut shared)) =
            (self::text(&cache.join("type"))?, list(&cache.join("shared_cpu_list"))?)
        else {
            continue;
        };
        if kind.trim() != "Instruction" && last.as_ref().is_none_or(|last| last.level < level) {
            shared.insert(cpu);
            last = Some(Cache { level, shared });
        }
    }
    Ok(last)
}

/// Reads an identifier from a sysfs file, such as the number of a CPU's physical package; `None` if
/// the file has -1, which means unknown, or does not exist.
fn identifier(path: &Path) -> Result<Option<u32>, TopologyError> {
    let Some(text) = text(path)? else { return Ok(None) };
    let number: i64 = text.trim().parse().map_err(|_| malformed(path, &text, "no number"))?;
    Ok(u32::try_from(number).ok())
}

/// Reads a list of CPUs; `None` if there is no such file.
pub(super) fn list(path: &Path) -> Result<Option<CpuMask>, TopologyError> {
    text(path)?.map(|text| parse_list(path, &text)).transpose()
}

fn parse_list(path: &Path, text: &str) -> Result<CpuMask, TopologyError> {
    CpuMask::parse_list(text, MAX_CPUS)
        .map_err(|source| TopologyError::BadList { path: path.into(), source })
}

/// Reads a file; `None` if it does not exist. The files of a CPU that has just gone offline fail
/// with other errors, which count as a missing file.
fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
            return Ok(None);
        }
        Err(source) => return Err(TopologyError::Unreadable { path: path.into(), source }),
    };
    match String::from_utf8(bytes) {
        Ok(text) if text.len() <= LONGEST => Ok(Some(text)),
        Ok(text) => Err(malformed(path, &text, "longer than such a file is")),
        Err(error) => Err(malformed(path, &String::from_utf8_lossy(error.as_bytes()), "no text")),
    }
}

fn malformed(path: &Path, found: &str, expected: &'static str) -> TopologyError {
    TopologyError::Malformed {
        path: path.into(),
        found: found.trim_end().chars().take(40).collect(),
        expected,
    }
}
