//! The CPUs of this machine, and which of them this process may use.

use superpacket_steer::{Cpu, CpuMask, MAX_CPUS};

use crate::topology::{allowed, online, possible};

/// The CPUs on which this process can have workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsableCpus {
    /// The CPUs that are online.
    pub online: CpuMask,
    /// The CPUs that the process may run on (`taskset`, `cpuset`).
    pub affinity: CpuMask,
}

impl UsableCpus {
    /// Reads the online CPUs from `/sys/devices/system/cpu/online`, and the affinity of the
    /// process's main thread from `/proc/self/status`. A mask that cannot be read allows all CPUs.
    pub fn read() -> Self {
        let all = |_| CpuMask::first_cpus(MAX_CPUS);
        UsableCpus { online: online().unwrap_or_else(all), affinity: allowed().unwrap_or_else(all) }
    }

    /// Returns the CPUs that are online and in the process's affinity.
    pub fn mask(&self) -> CpuMask {
        &self.online & &self.affinity
    }

    /// Returns why there can be no worker on this CPU; `None` if there can be one.
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

/// Returns the number of CPUs that a mask has room for: one more than the highest that this kernel
/// may ever have (`nr_cpu_ids`).
pub fn possible_cpus() -> usize {
    let possible = possible().ok().flatten().and_then(|possible| possible.last());
    possible.map_or_else(
        || std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        |last| last.number() + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_can_be_pinned_to_this_machines_cpus() {
        let usable = UsableCpus::read();
        let mask = usable.mask();
        assert!(mask.last().is_some_and(|last| last.number() < possible_cpus()), "{usable:?}");
        let allowed = superpacket_port::system::allowed_cpus().expect("Linux says it");
        assert!(
            allowed.into_iter().filter_map(Cpu::new).all(|cpu| usable.affinity.contains(cpu)),
            "{usable:?}"
        );
        for cpu in mask.iter() {
            let pinned = std::thread::spawn(move || {
                superpacket_port::system::pin_thread(None, &[cpu.number()])
            });
            pinned.join().expect("no panic").expect("it may");
        }
    }

    #[test]
    fn unusable_cpus_have_a_reason() {
        let cpu = |number| Cpu::new(number).expect("below 8192");
        let usable =
            UsableCpus { online: CpuMask::first_cpus(3), affinity: CpuMask::first_cpus(2) };
        assert_eq!(usable.why_unusable(cpu(1)), None);
        assert_eq!(usable.why_unusable(cpu(2)), Some("outside the process's affinity"));
        assert_eq!(usable.why_unusable(cpu(3)), Some("offline"));
        assert_eq!(usable.mask(), CpuMask::first_cpus(2));
    }
}
