//! The CPU topology: which CPUs share a cache, for the choice of CPU masks for steering.
//!
//! Packet headers are in the cache of the CPU that received them. A worker on a CPU that shares
//! this cache finds them there; any other waits for memory or for another socket, once per cache
//! line. So [`Topology::sharing_cache`] picks the CPUs that share the last-level cache with the
//! receiving CPU, and explains the choice.
//! CPU, and explains the choice.
//!
//! The data is read from sysfs (`Documentation/ABI/stable/sysfs-devices-system-cpu`,
//! `Documentation/admin-guide/cputopology.rst`).

mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use superpacket_steer::{Cpu, CpuMask, ListError};

/// The directory in which the kernel describes its CPUs.
pub const SYSFS: &str = "/sys/devices/system/cpu";

/// The status file of this process's main thread.
const STATUS: &str = "/proc/self/status";

/// Returns the CPUs that are online.
pub(crate) fn online() -> Result<CpuMask, TopologyError> {
    read::online(Path::new(SYSFS))
}

/// Returns the CPUs that this process's main thread may run on, whichever thread calls.
pub(crate) fn allowed() -> Result<CpuMask, TopologyError> {
    read::allowed(Path::new(STATUS))
}

/// Returns the CPUs that this kernel may ever have; `None` if that is not known.
pub(crate) fn possible() -> Result<Option<CpuMask>, TopologyError> {
    read::list(&Path::new(SYSFS).join("possible"))
}

/// The CPUs of a machine, those that a process may use, and the caches they share.
#[derive(Clone, Debug)]
pub struct Topology {
    online: CpuMask,
    allowed: CpuMask,
    processors: BTreeMap<Cpu, Processor>,
}

/// An online CPU. Properties that the kernel does not report are left empty: a virtual machine, for
/// example, may not show caches.
#[derive(Clone, Debug, Default)]
struct Processor {
    cache: Option<Cache>,
    package: Option<u32>,
    /// The hardware threads of the CPU's core, including this CPU.
    core: CpuMask,
}

/// The last-level cache of a CPU, and the CPUs that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The cache level; 1 is nearest to the core.
    pub level: u32,
    /// The CPUs that share the cache, including the one it was looked up for.
    pub shared: CpuMask,
}

/// The CPU mask that was chosen for a receiving CPU, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// The CPUs to which packets should be steered. Empty if there is no other CPU; steering should
    /// then be off.
    pub mask: CpuMask,
    /// The reason for the choice, as a sentence.
    pub why: String,
}

/// The error that results if the description of the machine's CPUs cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not contain a valid list of CPUs.
    #[error("{}: {source}", path.display())]
    BadList {
        /// The file.
        path: PathBuf,
        /// The error in the list.
        source: ListError,
    },
    /// A file contains something unexpected.
    #[error("{}: {found:?} is {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The contents of the file, shortened if long.
        found: String,
        /// How the contents of the file are wrong: ends the message, such as `no number`.
        expected: &'static str,
    },
}

impl Topology {
    /// Reads the CPUs of this machine, and those that this process's main thread may run on,
    /// whichever thread calls.
    ///
    /// # Errors
    /// [`TopologyError`] with the file. Files that some machines do not have, such as those of
    /// caches, may be missing.
    pub fn read() -> Result<Self, TopologyError> {
        Self::read_from(Path::new(SYSFS), allowed()?)
    }

    /// Reads the CPUs from a directory with the structure of [`SYSFS`], for a process that may use
    /// the CPUs in `allowed`.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn read_from(root: &Path, allowed: CpuMask) -> Result<Self, TopologyError> {
        let online = read::online(root)?;
        let processors = online
            .iter()
            .map(|cpu| Ok((cpu, read::processor(root, cpu)?)))
            .collect::<Result<_, TopologyError>>()?;
        Ok(Topology { online, allowed, processors })
    }

    /// Returns the CPUs that are online.
    pub const fn online(&self) -> &CpuMask {
        &self.online
    }

    /// Returns the CPUs that the process may use, including offline ones.
    pub const fn allowed(&self) -> &CpuMask {
        &self.allowed
    }

    /// Returns the CPUs on which workers can run: online and allowed.
    pub fn usable(&self) -> CpuMask {
        &self.online & &self.allowed
    }

    /// Returns the last-level cache of a CPU. `None` if the CPU is offline, or its caches are not
    /// known.
    pub fn last_level_cache(&self, cpu: Cpu) -> Option<&Cache> {
        self.processors.get(&cpu)?.cache.as_ref()
    }

    /// Returns the CPUs to which the packets that the given CPU receives should be steered. They
    /// are [usable](Self::usable), and never include the receiving CPU. The first of these sets
    /// that is not empty is chosen:
    ///
    /// 1. The CPUs that share its last-level cache. The hardware threads of its own core count only
    ///    if there are no others, because they compete with the receiving thread.
    /// 2. The CPUs of its package (socket), if its cache is private or unknown.
    /// 3. All other CPUs.
    ///
    /// ```no_run
    /// use superpacket_steer::Cpu;
    /// use superpacket_bridge::topology::Topology;
    ///
    /// let auto = Topology::read()?.sharing_cache(Cpu::new(0).expect("below 8192"));
    /// println!("{}: {}", auto.mask, auto.why);
    /// # Ok::<(), superpacket_bridge::topology::TopologyError>(())
    /// ```
    pub fn sharing_cache(&self, cpu: Cpu) -> Auto {
        let mut others = self.usable();
        others.remove(cpu);
        if others.is_empty() {
            return Auto {
                mask: CpuMask::EMPTY,
                why: format!(
                    "there is no CPU but {cpu} to process packets: they stay where they are received"
                ),
            };
        }
        let unknown = Processor::default();
        let processor = self.processors.get(&cpu).unwrap_or(&unknown);
        let near = processor
            .cache
            .as_ref()
            .map(|cache| (cache.level, &cache.shared & &others))
            .filter(|(_, near)| !near.is_empty());
        if let Some((level, near)) = near {
            return beside_core(cpu, near, &processor.core, &format!("the level {level} cache"));
        }
        let reason = self.why_no_cache(cpu, processor);
        let package = &self.same_package(processor.package) & &others;
        if !package.is_empty() {
            let mut auto = beside_core(cpu, package, &processor.core, "the package");
            auto.why = format!("{reason}; {}", auto.why);
            return auto;
        }
        let why = format!(
            "{reason}; {} {} nearer to it than others, as far as is known",
            named(&others),
            if others.len() == 1 { "is not" } else { "are not" }
        );
        Auto { mask: others, why }
    }

    /// Returns the reason why the choice is not by a shared cache, for the explanation of the
    /// choice.
    fn why_no_cache(&self, cpu: Cpu, processor: &Processor) -> String {
        match &processor.cache {
            _ if !self.online.contains(cpu) => {
                format!("CPU {cpu} is offline, so that its caches are not known")
            }
            None => format!("the machine does not tell the caches of CPU {cpu}"),
            Some(Cache { level, shared }) if shared.len() <= 1 => {
                format!("CPU {cpu} shares its level {level} cache with no other")
            }
            Some(Cache { level, shared }) => {
                let mut sharing = shared.clone();
                sharing.remove(cpu);
                format!(
                    "{} {} the level {level} cache with CPU {cpu} but may not be used",
                    named(&sharing),
                    share(&sharing)
                )
            }
        }
    }

    fn same_package(&self, package: Option<u32>) -> CpuMask {
        self.processors
            .iter()
            .filter(|(_, other)| package.is_some() && other.package == package)
            .map(|(&cpu, _)| cpu)
            .collect()
    }
}

/// Returns the CPUs of the set `near` that are outside the receiving CPU's core or, if there are
/// none, those of that core. `what` is the description of `near` in the explanation of the choice.
fn beside_core(cpu: Cpu, near: CpuMask, core: &CpuMask, what: &str) -> Auto {
    let siblings = &near & core;
    let mask = &near - core;
    if mask.is_empty() {
        let why = format!(
            "{} {} {what} with CPU {cpu}, and the core too: no other core does",
            named(&near),
            share(&near)
        );
        return Auto { mask: near, why };
    }
    let mut why = format!("{} {} {what} with CPU {cpu}", named(&mask), share(&mask));
    if !siblings.is_empty() {
        let (verb, pronoun) =
            if siblings.len() == 1 { ("is", "it shares") } else { ("are", "they share") };
        why += &format!("; {} {verb} left out, for {pronoun} its core", named(&siblings));
    }
    Auto { mask, why }
}

fn named(cpus: &CpuMask) -> String {
    format!("CPU{} {}", if cpus.len() == 1 { "" } else { "s" }, cpus.list())
}

fn share(cpus: &CpuMask) -> &'static str {
    if cpus.len() == 1 { "shares" } else { "share" }
}
