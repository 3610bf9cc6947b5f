//! The machine on which the experiments ran.

use std::fs;

use serde::Serialize;
use superpacket_lab::allowed_cpus;

/// The properties of a machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    /// Name of the processor; empty if the kernel does not report one.
    pub(super) cpu: String,
    /// Number of CPUs that this process may use.
    pub(super) cores: usize,
    /// The kernel's name and release.
    pub(super) kernel: String,
    /// Memory in bytes.
    pub(super) memory: u64,
    /// Whether the machine is a virtual one: others may share its processor unnoticed.
    pub(super) virtual_machine: bool,
    /// Load average over the minute before the run.
    pub(super) load: f64,
    /// This program's version.
    pub(super) version: &'static str,
    /// Whether the program was built with optimisation. A debug build measures mainly its own
    /// slowness.
    pub(super) optimised: bool,
}

impl Machine {
    /// Returns the properties of this machine.
    pub(super) fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpuinfo, system) = (read("/proc/cpuinfo"), rustix::system::uname());
        Self {
            // The name of the field on x86. Arm has no such field, but the device tree may name the
            // board.
            cpu: field(&cpuinfo, "model name")
                .map_or_else(|| printed(&read("/proc/device-tree/model")), printed),
            cores: allowed_cpus().map_or(1, |cpus| cpus.len()),
            kernel: format!(
                "{} {}",
                system.sysname().to_string_lossy(),
                system.release().to_string_lossy()
            ),
            memory: field(&read("/proc/meminfo"), "MemTotal").and_then(kilobytes).unwrap_or(0),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            version: env!("CARGO_PKG_VERSION"),
            optimised: !cfg!(debug_assertions),
        }
    }

    /// Describes the machine in one line.
    pub(super) fn line(&self) -> String {
        let [cores, cpu, guest] = self.processors();
        let Self { kernel, load, .. } = self;
        format!("{cores} of {cpu}{guest}, {}, {kernel}, load {load:.2}", self.memory_text())
    }

    /// Describes the machine in one line of `width` columns; a long processor name is cut.
    pub(super) fn brief(&self, width: usize) -> String {
        let [cores, mut cpu, guest] = self.processors();
        let rest = format!("{guest}, {}, load {:.2}", self.kernel, self.load);
        let room = width.saturating_sub(cores.len() + " of ".len() + rest.chars().count()).max(1);
        if cpu.chars().count() > room {
            cpu = cpu.chars().take(room - 1).chain(['…']).collect();
        }
        format!("{cores} of {cpu}{rest}")
    }

    /// Returns texts for the number of cores, the name of the processor, and whether the machine is
    /// virtual.
    fn processors(&self) -> [String; 3] {
        let cores = if self.cores == 1 { "core" } else { "cores" };
        let cpu = if self.cpu.is_empty() { "an unnamed processor" } else { &self.cpu };
        let guest = if self.virtual_machine { " (virtual)" } else { "" };
        [format!("{} {cores}", self.cores), cpu.to_owned(), guest.to_owned()]
    }

    /// Formats the size of the memory.
    pub(super) fn memory_text(&self) -> String {
        format!("{:.1} GB of memory", self.memory as f64 / 1e9)
    }

    /// Returns the reasons, if any, why the figures of this run are not reliable.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.optimised {
            warnings.push(
                "this is a debug build, which is several times slower: use cargo run --release"
                    .into(),
            );
        }
        // More than half of the cores: a terminal and a browser need less.
        if self.load > 0.5 * self.cores as f64 {
            warnings.push(format!(
                "the machine was busy before the run: load {:.2} on {} cores",
                self.load, self.cores
            ));
        }
        warnings
    }
}

/// Returns the value of the first line that begins with `name:`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kilobytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse().ok().map(|kilobytes: u64| kilobytes * 1024)
}

/// Removes the terminating zero byte and surrounding blanks of a device tree string.
fn printed(text: &str) -> String {
    text.trim_end_matches('\0').trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 17\nmodel name\t: A: B\nflags\t: fpu hypervisor\n";
        assert_eq!(
            (field(text, "model name"), field(text, "model"), field(text, "mode")),
            (Some("A: B"), Some("17"), None)
        );
        assert_eq!(kilobytes("16316412 kB"), Some(16_316_412 * 1024));
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::this();
        assert!(
            machine.cores >= 1 && machine.memory > 1 << 20 && machine.kernel.starts_with("Linux "),
            "{machine:?}"
        );
        assert!(machine.line().contains(&machine.kernel));
        let long = Machine { cpu: "P".repeat(100), ..machine };
        assert_eq!(
            (long.brief(80).chars().count(), long.brief(80).lines().count()),
            (80, 1),
            "{}",
            long.brief(80)
        );
    }

    #[test]
    fn a_busy_machine_causes_a_warning() {
        let calm = Machine { load: 0.1, cores: 2, optimised: true, ..Machine::this() };
        assert!(calm.warnings().is_empty());
        let busy = Machine { load: 6.5, ..calm.clone() };
        assert!(busy.warnings().iter().any(|warning| warning.contains("load 6.50 on 2 cores")));
        assert!(
            Machine { optimised: false, ..calm }
                .warnings()
                .iter()
                .any(|warning| warning.contains("--release"))
        );
    }
}
