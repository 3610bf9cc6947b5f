//! The CPUs of this machine, and which of them this process may use.

use std::fs;

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use superpacket_steer::{Cpu, CpuMask, MAX_CPUS};

/// Where the kernel lists its CPUs.
const SYSFS: &str = "/sys/devices/system/cpu";

/// The CPUs on which this process can have workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableCpus {
    /// Those that are online.
    pub online: CpuMask,
    /// Those that the process may run on (`taskset`, `cpuset`).
    pub affinity: CpuMask,
}

impl UsableCpus {
    /// Reads both: what is online from `/sys/devices/system/cpu/online`, the affinity of the
    /// process's first thread from `sched_getaffinity(2)`. Where one of them cannot be read, it
    /// limits nothing.
    pub fn read() -> Self {
        let all = || CpuMask::first_cpus(MAX_CPUS);
        let online = list("online").filter(|online| !online.is_empty());
        let affinity = sched_getaffinity(Some(getpid())).ok().map(|set| {
            let may = |number: &usize| set.is_set(*number);
            (0..CpuSet::MAX_CPU).filter(may).filter_map(Cpu::new).collect::<CpuMask>()
        });
        UsableCpus { online: online.unwrap_or_else(all), affinity: affinity.unwrap_or_else(all) }
    }

    /// The CPUs that are both.
    pub fn mask(&self) -> CpuMask {
        &self.online & &self.affinity
    }

    /// Returns why there can be no worker on this CPU; `None` if there can.
    pub fn why_unusable(&self, cpu: Cpu) -> Option<&'static str> {
        if !self.online.contains(cpu) {
            Some("offline")
        } else if !self.affinity.contains(cpu) {
            Some("outside the process's affinity")
        } else {
            None
        }
    }
}

/// How many CPUs a mask has room for: one more than the highest that this kernel may ever have
/// (`nr_cpu_ids`).
pub fn possible_cpus() -> usize {
    let possible = list("possible").and_then(|possible| possible.last());
    possible.map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), |last| last.number() + 1)
}

fn list(name: &str) -> Option<CpuMask> {
    let text = fs::read_to_string(format!("{SYSFS}/{name}")).ok()?;
    CpuMask::parse_list(text.trim(), MAX_CPUS).ok()
}

/// Keeps the calling thread on one CPU.
pub(crate) fn pin(cpu: Cpu) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    if cpu.number() >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::Unsupported.into());
    }
    set.set(cpu.number());
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_and_a_thread_can_be_kept_on_each() {
        let usable = UsableCpus::read();
        let mask = usable.mask();
        assert!(!mask.is_empty() && mask.last().is_some_and(|last| last.number() < possible_cpus()), "{usable:?}");
        for cpu in mask.iter() {
            let runs_on = std::thread::spawn(move || {
                pin(cpu)?;
                Ok::<_, std::io::Error>((rustix::thread::sched_getcpu(), sched_getaffinity(None)?.count()))
            });
            assert_eq!(runs_on.join().expect("no panic").expect("it may"), (cpu.number(), 1));
        }
    }

    #[test]
    fn who_may_not_is_told_why() {
        let cpu = |number| Cpu::new(number).expect("below 8192");
        let usable = UsableCpus { online: CpuMask::first_cpus(3), affinity: CpuMask::first_cpus(2) };
        assert_eq!(usable.why_unusable(cpu(1)), None);
        assert_eq!(usable.why_unusable(cpu(2)), Some("outside the process's affinity"));
        assert_eq!(usable.why_unusable(cpu(3)), Some("offline"));
        assert_eq!(usable.mask(), CpuMask::first_cpus(2));
    }
}
