//! Two hosts joined by the bridge, with CPU times of its threads: the topology of the aggregation
//! experiments.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, setpriority_process};
use superpacket_bridge::Bridge;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::{BridgeSettings, KernelPathMode, PortSettings};

use crate::cpu::{CpuTime, allowed_cpus, pin_this_thread};
use crate::error::{Context, LabError};
use crate::host::Host;
use crate::link::Link;
use crate::load::{Route, TcpTransactions};
use crate::topology::Station;

/// Niceness of a thread that should yield: on a saturated CPU it gets about a thirtieth of the time
/// of a normal thread.
const NICE: i32 = 15;

/// Hosts A and B, each joined by a veth pair to a middle host, on which no bridge runs yet.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) a: Station,
    pub(crate) b: Station,
    pub(crate) middle: Host,
    pub(crate) a_side: Link,
    pub(crate) b_side: Link,
}

impl Hosts {
    /// Creates the hosts. A's interface name is unique on this machine, because the kernel names
    /// NAPI threads after it.
    pub(crate) fn new() -> Result<Self, LabError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // A thread name has 15 bytes, and "napi/" takes five.
        let name = format!(
            "s{:x}{:02x}",
            std::process::id() & 0x3f_ffff,
            NUMBER.fetch_add(1, Ordering::Relaxed) & 0xff
        );
        let middle = Host::new("M")?;
        let (a, a_side) = Link::veth(&Host::new("A")?, &name, &middle, "port-a")?;
        let (b, b_side) = Link::veth(&Host::new("B")?, "eth0", &middle, "port-b")?;
        for side in [&a_side, &b_side] {
            // Best effort: without IPv6 the middle host sends only the frames that it forwards.
            let _ = middle.set_sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", side.name()), "1");
        }
        for host in [a.host(), b.host()] {
            // Metrics of an earlier connection must not influence the next one. Best effort: some
            // kernels lack this sysctl.
            let _ = host.set_sysctl("net/ipv4/tcp_no_metrics_save", "1");
        }
        Ok(Self { a: Station::new(a, 1)?, b: Station::new(b, 2)?, middle, a_side, b_side })
    }

    /// Starts a bridge with a thread per port on these CPUs (an empty list means all), and lets the
    /// hosts resolve each other's addresses.
    pub(crate) fn join(
        self,
        ports: [PortSettings; 2],
        cpus: &[usize],
    ) -> Result<Testbed, LabError> {
        let settings =
            BridgeSettings { ports: ports.into(), threads: 2, ..BridgeSettings::default() };
        let bridge = start_bridge(&self.middle, settings, cpus)?;
        let bridge_threads = self.middle.run(|| -> Result<_, LabError> {
            let namespace = fs::read_link("/proc/thread-self/ns/net")
                .context(|| "the middle's namespace".into())?;
            Ok([
                thread_path(&namespace, "superpacket-0")?,
                thread_path(&namespace, "superpacket-1")?,
            ])
        })?;
        let testbed = Testbed { a: self.a, b: self.b, bridge, bridge_threads };
        let meeting =
            TcpTransactions { time: Duration::from_millis(5), ..TcpTransactions::default() };
        meeting.run(&testbed.route())?;
        Ok(testbed)
    }
}

/// Hosts, and the bridge that joins them.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) a: Station,
    pub(crate) b: Station,
    bridge: Bridge,
    /// `/proc` directories of the threads that poll the ports to A and B.
    bridge_threads: [PathBuf; 2],
}

impl Testbed {
    /// Returns the route from A to B.
    pub(crate) fn route(&self) -> Route<'_> {
        Route::ipv4(&self.a, &self.b)
    }

    /// Returns the CPU time used so far by the threads that poll the ports to A and B.
    pub(crate) fn thread_times(&self) -> Result<[Duration; 2], LabError> {
        Ok([task_time(&self.bridge_threads[0])?, task_time(&self.bridge_threads[1])?])
    }

    /// Lowers the priority of the thread that polls the port to B.
    pub(crate) fn lower_priority_of_b(&self) -> Result<(), LabError> {
        let number =
            self.bridge_threads[1].file_name().and_then(|name| name.to_str()?.parse().ok());
        // On Linux niceness is per thread, and every user may raise it (setpriority(2)).
        setpriority_process(number.and_then(Pid::from_raw), NICE)
            .context(|| "the niceness of a bridge's thread".into())
    }

    /// Returns the current counters of the ports to A and B.
    pub(crate) fn stats(&self) -> Result<[PortStats; 2], LabError> {
        let stats = self.bridge.stats();
        <[PortStats; 2]>::try_from(stats)
            .map_err(|_| LabError::system("the bridge's two ports", io::ErrorKind::NotFound))
    }
}

/// Returns the `/proc` directory of this process's thread with this name and network namespace.
fn thread_path(namespace: &Path, name: &str) -> Result<PathBuf, LabError> {
    let is_that_thread = |path: &PathBuf| {
        fs::read_link(path.join("ns/net")).is_ok_and(|found| found == namespace)
            && fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim_end() == name)
    };
    // A thread sets its name itself, so it must have run first.
    for _ in 0..1000 {
        let tasks = fs::read_dir("/proc/self/task").context(|| "/proc/self/task".into())?;
        if let Some(path) = tasks.flatten().map(|task| task.path()).find(is_that_thread) {
            return Ok(path);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(LabError::system(format!("the bridge's thread {name}"), io::ErrorKind::NotFound))
}

/// Finds the kernel thread that polls an interface with threaded NAPI (`napi/NAME-ID`), and returns
/// its PID and directory; `None` if this process cannot see it.
pub(crate) fn napi_thread(link: &Link) -> Option<(u32, PathBuf)> {
    let prefix = format!("napi/{}-", link.name());
    let prefix = &prefix[..prefix.len().min(15)];
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        name.trim_end().starts_with(prefix).then(|| (pid, entry.path()))
    })
}

/// Returns the CPU time of the task with this `/proc` directory: exact if `schedstat` has it,
/// otherwise in clock ticks.
pub(crate) fn task_time(path: &Path) -> Result<Duration, LabError> {
    // The first field is the run time in nanoseconds (Documentation/scheduler/sched-stats.rst).
    let exact = fs::read_to_string(path.join("schedstat")).ok();
    let exact = exact
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .filter(|&time| time != 0);
    match exact {
        Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
        None => {
            let stat =
                fs::read_to_string(path.join("stat")).context(|| format!("{}", path.display()))?;
            let time = CpuTime::from_stat(&stat);
            time.map(|time| time.total()).ok_or_else(|| {
                LabError::system(format!("{}", path.display()), io::ErrorKind::InvalidData)
            })
        }
    }
}

/// Starts a bridge on a host, with its threads on these CPUs (an empty list means all).
pub(crate) fn start_bridge(
    host: &Host,
    settings: BridgeSettings,
    cpus: &[usize],
) -> Result<Bridge, LabError> {
    host.run(|| {
        // Threads inherit the affinity of the thread that starts them.
        pin_this_thread(cpus)?;
        Bridge::start(settings)
            .map_err(|error| LabError::system("the bridge", io::Error::other(error)))
    })
}

/// Parses a port specification, as on the bridge's command line. Disables forwarding by the kernel,
/// because experiments measure the bridge in user space.
pub(crate) fn port(text: &str) -> Result<PortSettings, LabError> {
    let spec = text.parse().map_err(|error: superpacket_port::SpecError| LabError::Invalid {
        what: text.into(),
        reason: error.to_string(),
    });
    spec.map(|spec| PortSettings { kernel_path: KernelPathMode::Off, ..PortSettings::new(spec) })
}

/// Returns the sender's CPU, and the other usable CPUs; both are the same if there is only one.
pub(crate) fn split_cpus() -> Result<(usize, Vec<usize>), LabError> {
    let cpus = allowed_cpus()?;
    let sender = cpus.first().copied().unwrap_or(0);
    let others: Vec<_> = cpus.iter().copied().filter(|&cpu| cpu != sender).collect();
    Ok((sender, if others.is_empty() { cpus } else { others }))
}
