//! Which CPUs share a cache, so that a mask for steering can be chosen by it.
//!
//! What a packet's headers are read from lies in the cache of the CPU that received it. A worker
//! that shares that cache finds them there; another waits for memory, or for the connection between
//! two sockets, once for each line. So [`Topology::sharing_cache`] picks the CPUs that share the
//! last-level cache with the receiving one, and says why.
//!
//! All of it stands in sysfs (`Documentation/ABI/stable/sysfs-devices-system-cpu`,
//! `Documentation/admin-guide/cputopology.rst`).

mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use superpacket_steer::{Cpu, CpuMask, ListError};

/// Where the kernel describes its CPUs.
pub const SYSFS: &str = "/sys/devices/system/cpu";

/// What the kernel says of this process's main thread.
const STATUS: &str = "/proc/self/status";

/// The CPUs that are online.
pub(crate) fn online() -> Result<CpuMask, TopologyError> {
    read::online(Path::new(SYSFS))
}

/// The CPUs that this process may use: what its main thread may run on, whichever thread asks.
pub(crate) fn allowed() -> Result<CpuMask, TopologyError> {
    read::allowed(Path::new(STATUS))
}

/// The CPUs that this kernel may ever have; `None` where it does not tell.
pub(crate) fn possible() -> Result<Option<CpuMask>, TopologyError> {
    read::list(&Path::new(SYSFS).join("possible"))
}

/// The CPUs of a machine: which there are, which a process may use, and what they share.
#[derive(Clone, Debug)]
pub struct Topology {
    online: CpuMask,
    allowed: CpuMask,
    processors: BTreeMap<Cpu, Processor>,
}

/// What is known of a CPU that is online. What a machine does not tell is left out: a virtual
/// machine may have no caches to show.
#[derive(Clone, Debug, Default)]
struct Processor {
    cache: Option<Cache>,
    package: Option<u32>,
    /// The hardware threads of its core, itself included.
    core: CpuMask,
}

/// The last-level cache of a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// 1 is the nearest to the core.
    pub level: u32,
    /// The CPUs that share it, the asked one included.
    pub shared: CpuMask,
}

/// A mask that was chosen for a receiving CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auto {
    /// The CPUs to steer to; empty where there is none but the receiving one: steering is best left
    /// off.
    pub mask: CpuMask,
    /// Why these, in a sentence.
    pub why: String,
}

/// The machine's CPUs could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file holds something else than a list of CPUs.
    #[error("{}: {source}", path.display())]
    BadList {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ListError,
    },
    /// A file holds something else than it should.
    #[error("{}: {found:?} is {expected}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds; its start, if that is long.
        found: String,
        /// What should be there: `no number`.
        expected: &'static str,
    },
}

impl Topology {
    /// This machine's CPUs, and those of them that this process may use: what its main thread may
    /// run on, whichever thread asks.
    ///
    /// # Errors
    /// [`TopologyError`], with the file that it is about. Files that a machine does not have, such
    /// as those of caches, are no error.
    pub fn read() -> Result<Self, TopologyError> {
        Self::read_from(Path::new(SYSFS), allowed()?)
    }

    /// The CPUs that a directory describes as [`SYSFS`] does, for a process that may use those of
    /// `allowed`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_from(root: &Path, allowed: CpuMask) -> Result<Self, TopologyError> {
        let online = read::online(root)?;
        let processors = online
            .iter()
            .map(|cpu| Ok((cpu, read::processor(root, cpu)?)))
            .collect::<Result<_, TopologyError>>()?;
        Ok(Topology { online, allowed, processors })
    }

    /// The CPUs that are online.
    pub const fn online(&self) -> &CpuMask {
        &self.online
    }

    /// The CPUs that the process may use, offline ones among them.
    pub const fn allowed(&self) -> &CpuMask {
        &self.allowed
    }

    /// The CPUs that workers can run on: online, and allowed.
    pub fn usable(&self) -> CpuMask {
        &self.online & &self.allowed
    }

    /// The cache that a CPU has farthest from its core. `None` if the CPU is offline, or the
    /// machine does not tell.
    pub fn last_level_cache(&self, cpu: Cpu) -> Option<&Cache> {
        self.processors.get(&cpu)?.cache.as_ref()
    }

    /// The CPUs to steer to from the one that receives, of those that are [usable](Self::usable),
    /// the receiving one never among them: the first of these that are not empty.
    ///
    /// 1. Those that share its last-level cache. The hardware threads of its own core only if there
    ///    are no others: they compete with the receiving thread for the core.
    /// 2. Those of its package (socket), if it shares no cache with anyone or the machine does not
    ///    tell.
    /// 3. All others.
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

    /// Why the CPUs that share a cache are no choice.
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

/// The CPUs without those of the receiving one's core, if others are left.
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
