use std::fs;
use std::path::Path;

use superpacket_steer::{Cpu, CpuMask, MAX_CPUS};
use tempfile::TempDir;

use super::{Auto, Cache, Topology, TopologyError};

/// A machine to be described by files as in sysfs.
struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new(online: &str) -> Self {
        let machine = Machine { directory: tempfile::tempdir().expect("a directory") };
        machine.write("online", online);
        machine
    }

    fn root(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    /// Adds a CPU with its core's hardware threads, its package, and its level 3 cache.
    fn cpu(&self, cpu: usize, core: &str, package: i32, level_3: &str) {
        self.write(&format!("cpu{cpu}/topology/thread_siblings_list"), format!("{core}\n"));
        self.write(&format!("cpu{cpu}/topology/physical_package_id"), format!("{package}\n"));
        self.cache(cpu, 0, "1", "Data", core);
        self.cache(cpu, 1, "1", "Instruction", core);
        self.cache(cpu, 2, "2", "Unified", core);
        self.cache(cpu, 3, "3", "Unified", level_3);
    }

    fn cache(&self, cpu: usize, index: usize, level: &str, kind: &str, shared: &str) {
        let cache = format!("cpu{cpu}/cache/index{index}");
        self.write(&format!("{cache}/level"), format!("{level}\n"));
        self.write(&format!("{cache}/type"), format!("{kind}\n"));
        self.write(&format!("{cache}/shared_cpu_list"), format!("{shared}\n"));
    }

    fn read(&self) -> Result<Topology, TopologyError> {
        self.read_allowed("0-8191")
    }

    fn read_allowed(&self, allowed: &str) -> Result<Topology, TopologyError> {
        Topology::read_from(self.root(), mask(allowed))
    }
}

fn mask(list: &str) -> CpuMask {
    CpuMask::parse_list(list, MAX_CPUS).expect("a list")
}

fn cpu(number: usize) -> Cpu {
    Cpu::new(number).expect("below 8192")
}

fn auto(topology: &Topology, receiving: usize) -> (String, String) {
    let Auto { mask, why } = topology.sharing_cache(cpu(receiving));
    (mask.list().to_string(), why)
}

/// Returns 4 cores of 2 threads: 0-3 are the first threads, 4-7 the second.
fn pairs() -> Machine {
    let machine = Machine::new("0-7\n");
    (0..8).for_each(|cpu| machine.cpu(cpu, &format!("{},{}", cpu % 4, cpu % 4 + 4), 0, "0-7"));
    machine
}

#[test]
fn the_sibling_of_the_receiving_cpu_is_left_out() {
    let topology = pairs().read().expect("well formed");
    let why = "CPUs 0,2-4,6-7 share the level 3 cache with CPU 1; CPU 5 is left out, for it shares its core";
    assert_eq!(auto(&topology, 1), ("0,2-4,6-7".into(), why.into()));
    assert_eq!(topology.last_level_cache(cpu(1)), Some(&Cache { level: 3, shared: mask("0-7") }));
    // Cores of four threads.
    let machine = Machine::new("0-7\n");
    (0..8).for_each(|cpu| machine.cpu(cpu, if cpu < 4 { "0-3" } else { "4-7" }, 0, "0-7"));
    let why = "CPUs 4-7 share the level 3 cache with CPU 2; CPUs 0-1,3 are left out, for they share its core";
    assert_eq!(auto(&machine.read().expect("well formed"), 2), ("4-7".into(), why.into()));
}

#[test]
fn only_cpus_that_may_be_used_are_chosen() {
    let machine = pairs();
    let topology = machine.read_allowed("0-2,5").expect("well formed");
    assert_eq!(topology.usable(), mask("0-2,5"));
    assert_eq!(auto(&topology, 1).0, "0,2");
    // If only the sibling is left, it is chosen.
    let topology = machine.read_allowed("1,5").expect("well formed");
    let why = "CPU 5 shares the level 3 cache with CPU 1, and the core too: no other core does";
    assert_eq!(auto(&topology, 1), ("5".into(), why.into()));
    let topology = machine.read_allowed("1").expect("well formed");
    let why = "there is no CPU but 1 to process packets: they stay where they are received";
    assert_eq!(auto(&topology, 1), (String::new(), why.into()));
    assert!(topology.sharing_cache(cpu(1)).mask.is_empty());
}

#[test]
fn steering_stays_within_a_socket_or_core_group() {
    // Two sockets, with the even CPUs on the first.
    let machine = Machine::new("0-7\n");
    (0..8).for_each(|cpu| {
        machine.cpu(
            cpu,
            &cpu.to_string(),
            (cpu % 2) as i32,
            if cpu % 2 == 0 { "0,2,4,6" } else { "1,3,5,7" },
        )
    });
    let topology = machine.read().expect("well formed");
    assert_eq!(
        auto(&topology, 3),
        ("1,5,7".into(), "CPUs 1,5,7 share the level 3 cache with CPU 3".into())
    );
    assert_eq!(auto(&topology, 0).0, "2,4,6");
    // If the socket's other CPUs are not allowed, those of the other socket are chosen.
    let topology = machine.read_allowed("0,1,3").expect("well formed");
    let why = "CPUs 2,4,6 share the level 3 cache with CPU 0 but may not be used; CPUs 1,3 are not nearer to it than others, as far as is known";
    assert_eq!(auto(&topology, 0), ("1,3".into(), why.into()));

    // One socket of four groups of four cores (CCX), two threads per core: 0-15 and 16-31.
    let machine = Machine::new("0-31\n");
    for cpu in 0..32 {
        let group = cpu % 16 / 4 * 4;
        let level_3 = format!("{}-{},{}-{}", group, group + 3, group + 16, group + 19);
        machine.cpu(cpu, &format!("{},{}", cpu % 16, cpu % 16 + 16), 0, &level_3);
    }
    let topology = machine.read().expect("well formed");
    let why = "CPUs 4,6-7,20,22-23 share the level 3 cache with CPU 21; CPU 5 is left out, for it shares its core";
    assert_eq!(auto(&topology, 21), ("4,6-7,20,22-23".into(), why.into()));
    // Only the receiving CPU of its group is allowed, so the rest of the socket is chosen.
    let topology = machine.read_allowed("5,8-9").expect("well formed");
    let why = "CPUs 4,6-7,20-23 share the level 3 cache with CPU 5 but may not be used; CPUs 8-9 share the package with CPU 5";
    assert_eq!(auto(&topology, 5), ("8-9".into(), why.into()));
}

#[test]
fn unknown_caches_are_handled() {
    // A virtual machine: sockets and siblings, no caches.
    let machine = Machine::new("0-7");
    for cpu in 0..8 {
        machine.write(
            &format!("cpu{cpu}/topology/thread_siblings_list"),
            format!("{}-{}", cpu & !1, cpu | 1),
        );
        machine.write(&format!("cpu{cpu}/topology/physical_package_id"), (cpu / 4).to_string());
    }
    let why = "the machine does not tell the caches of CPU 5; CPUs 6-7 share the package with CPU 5; CPU 4 is left out, for it shares its core";
    assert_eq!(auto(&machine.read().expect("well formed"), 5), ("6-7".into(), why.into()));
    // Only a list of CPUs, and one CPU with -1 for "not known".
    let machine = Machine::new("0-3");
    let why = "the machine does not tell the caches of CPU 0; CPUs 1-3 are not nearer to it than others, as far as is known";
    assert_eq!(auto(&machine.read().expect("well formed"), 0), ("1-3".into(), why.into()));
    (0..4).for_each(|cpu| machine.write(&format!("cpu{cpu}/topology/physical_package_id"), "-1\n"));
    assert_eq!(
        auto(&machine.read().expect("well formed"), 0).0,
        "1-3",
        "unknown packages are not one"
    );
    // Private caches only, as if level 3 were hidden.
    (0..4).for_each(|cpu| machine.cache(cpu, 0, "2", "Unified", &cpu.to_string()));
    let why = "CPU 0 shares its level 2 cache with no other; CPUs 1-3 are not nearer to it than others, as far as is known";
    assert_eq!(auto(&machine.read().expect("well formed"), 0), ("1-3".into(), why.into()));
    // A level 3 cache for instructions, or of unknown type, does not count.
    (0..4).for_each(|cpu| machine.cache(cpu, 1, "3", "Instruction", "0-3"));
    assert_eq!(
        machine.read().expect("well formed").last_level_cache(cpu(0)).map(|cache| cache.level),
        Some(2)
    );
    machine.write("cpu0/cache/index2/level", "3");
    assert_eq!(
        machine.read().expect("well formed").last_level_cache(cpu(0)).map(|cache| cache.level),
        Some(2)
    );
    // The kernel leaves the list of CPUs empty if it does not know them.
    machine.cache(0, 2, "3", "Unified", "");
    assert_eq!(
        machine.read().expect("well formed").last_level_cache(cpu(0)),
        Some(&Cache { level: 3, shared: mask("0") })
    );
}

#[test]
fn offline_cpus_are_not_chosen() {
    let machine = pairs();
    machine.write("online", "0-1,3,5-7\n");
    // The remaining contents of an offline CPU's directory do not matter.
    machine.write("cpu2/topology/physical_package_id", "gone");
    machine.cpu(0, "0", 0, "0-1,3,5-7");
    let topology = machine.read().expect("well formed");
    assert_eq!((topology.online(), topology.usable()), (&mask("0-1,3,5-7"), mask("0-1,3,5-7")));
    assert_eq!(auto(&topology, 0).0, "1,3,5-7");
    let why = "CPU 2 is offline, so that its caches are not known; CPUs 0-1,3,5-7 are not nearer to it than others, as far as is known";
    assert_eq!(auto(&topology, 2), ("0-1,3,5-7".into(), why.into()));
    assert_eq!(topology.last_level_cache(cpu(2)), None);
}

#[test]
fn errors_name_the_file_with_invalid_contents() {
    let refused = |path: &str, text: &[u8]| {
        let machine = pairs();
        machine.write(path, text);
        let error = machine.read().expect_err("garbage").to_string();
        error
            .strip_prefix(&format!("{}/", machine.root().display()))
            .expect("the path in front")
            .to_owned()
    };
    assert_eq!(
        refused("cpu3/topology/physical_package_id", b"first\n"),
        "cpu3/topology/physical_package_id: \"first\" is no number"
    );
    assert_eq!(
        refused("cpu0/cache/index3/level", b""),
        "cpu0/cache/index3/level: \"\" is no level of a cache"
    );
    assert_eq!(
        refused("cpu0/cache/index3/level", b"-3"),
        "cpu0/cache/index3/level: \"-3\" is no level of a cache"
    );
    assert_eq!(
        refused("cpu7/cache/index2/type", b"Unified\xff"),
        "cpu7/cache/index2/type: \"Unified\u{fffd}\" is no text"
    );
    let long = refused("cpu1/cache/index3/shared_cpu_list", "0,".repeat(40_000).as_bytes());
    assert!(long.ends_with(" is longer than such a file is"), "{long}");
    assert_eq!(refused("online", b"\n"), "online: \"\" is no CPU, while this runs on one");
    let range = refused("online", b"0-3,9000-9999\n");
    assert!(range.starts_with("online: ERANGE: \"9000-9999\""), "{range}");
    let list = refused("cpu2/topology/thread_siblings_list", b"0x3\n");
    assert!(list.starts_with("cpu2/topology/thread_siblings_list: EINVAL: \"0x3\""), "{list}");

    let machine = pairs();
    fs::remove_file(machine.root().join("online")).expect("it is there");
    assert!(matches!(machine.read(), Err(TopologyError::Unreadable { .. })));
    fs::create_dir(machine.root().join("online")).expect("a directory");
    assert!(
        matches!(machine.read(), Err(TopologyError::Unreadable { .. })),
        "a directory is no file"
    );
}

#[test]
fn allowed_cpus_are_read_from_the_status_file() {
    let machine = Machine::new("0");
    let path = machine.root().join("status");
    machine.write(
        "status",
        "Name:\tx\nCpus_allowed:\t00000000,0000000d\nCpus_allowed_list:\t0,2-3\nMems_allowed:\t1\n",
    );
    assert_eq!(super::read::allowed(&path).expect("well formed"), mask("0,2-3"));
    for (text, expected) in [
        ("Name:\tx\n", "without a line Cpus_allowed_list"),
        ("Cpus_allowed_list:\tall\n", "EINVAL"),
    ] {
        machine.write("status", text);
        let error = super::read::allowed(&path).expect_err("nothing to go by").to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(super::read::allowed(&machine.root().join("absent")).is_err());
}

#[test]
fn this_machine_can_be_read() {
    let topology = Topology::read().expect("Linux shows its CPUs");
    let running = cpu(rustix::thread::sched_getcpu());
    assert!(topology.usable().contains(running), "{topology:?}");
    let Auto { mask, why } = topology.sharing_cache(running);
    assert!(!mask.contains(running) && mask.is_subset(&topology.usable()), "{why}");
    assert_eq!(mask.is_empty(), topology.usable().len() == 1, "{why}");
}
