//! Two hosts and the bridge between them, with an account of who spent how much CPU time: what the
//! experiments on aggregation are played on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, setpriority_process};
use superpacket_bridge::Bridge;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};

use crate::cpu::{CpuTime, allowed_cpus, pin_this_thread};
use crate::error::{Context, LabError};
use crate::host::Host;
use crate::link::Link;
use crate::load::{Route, TcpTransactions};
use crate::topology::Station;

/// Of a thread that gives way to others: on a full CPU it gets about a thirtieth of what each of
/// them does.
const NICE: i32 = 15;

/// Hosts A and B, each joined by a veth pair to a middle host, before a bridge runs there.
#[derive(Debug)]
pub(crate) struct Hosts {
    pub(crate) a: Station,
    pub(crate) b: Station,
    pub(crate) middle: Host,
    pub(crate) a_side: Link,
    pub(crate) b_side: Link,
}

impl Hosts {
    /// Makes them. A's interface has a name that no other on this machine has: the kernel names the
    /// threads that serve it by it.
    pub(crate) fn new() -> Result<Self, LabError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Fifteen bytes are what is left of a thread's name, and "napi/" takes five.
        let name = format!(
            "s{:x}{:02x}",
            std::process::id() & 0x3f_ffff,
            NUMBER.fetch_add(1, Ordering::Relaxed) & 0xff
        );
        let middle = Host::new("M")?;
        let (a, a_side) = Link::veth(&Host::new("A")?, &name, &middle, "port-a")?;
        let (b, b_side) = Link::veth(&Host::new("B")?, "eth0", &middle, "port-b")?;
        for side in [&a_side, &b_side] {
            // Best effort: the middle is no party to the traffic, and says little if it cannot be
            // silenced.
            let _ = middle.set_sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", side.name()), "1");
        }
        for host in [a.host(), b.host()] {
            // What an earlier connection found out about the path is no business of the next; best
            // effort, as older kernels keep it.
            let _ = host.set_sysctl("net/ipv4/tcp_no_metrics_save", "1");
        }
        Ok(Self { a: Station::new(a, 1)?, b: Station::new(b, 2)?, middle, a_side, b_side })
    }

    /// Joins them by a bridge with a thread for each port, on these CPUs (all, if none is named),
    /// and has the hosts find each other.
    pub(crate) fn join(self, ports: [PortSettings; 2], cpus: &[usize]) -> Result<Stage, LabError> {
        let settings =
            BridgeSettings { ports: ports.into(), threads: 2, ..BridgeSettings::default() };
        let (bridge, bridge_threads) = self.middle.run(|| -> Result<_, LabError> {
            // Threads run where the thread that starts them may run.
            pin_this_thread(cpus)?;
            let bridge = Bridge::start(settings).map_err(|error| {
                LabError::system(error.to_string(), io::Error::other("the bridge"))
            })?;
            let namespace = fs::read_link("/proc/thread-self/ns/net")
                .context(|| "the middle's namespace".into())?;
            let bridge_threads = [
                thread_path(&namespace, "superpacket-0")?,
                thread_path(&namespace, "superpacket-1")?,
            ];
            Ok((bridge, bridge_threads))
        })?;
        let stage = Stage { a: self.a, b: self.b, bridge, bridge_threads };
        let meeting =
            TcpTransactions { time: Duration::from_millis(5), ..TcpTransactions::default() };
        meeting.run(&stage.route())?;
        Ok(stage)
    }
}

/// Hosts, and the bridge that joins them.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) a: Station,
    pub(crate) b: Station,
    bridge: Bridge,
    /// The threads that poll the ports towards A and B.
    bridge_threads: [PathBuf; 2],
}

impl Stage {
    /// From A to B.
    pub(crate) fn route(&self) -> Route<'_> {
        Route::ipv4(&self.a, &self.b)
    }

    /// CPU time of the threads that poll the ports towards A and B, up to now.
    pub(crate) fn thread_times(&self) -> Result<[Duration; 2], LabError> {
        Ok([task_time(&self.bridge_threads[0])?, task_time(&self.bridge_threads[1])?])
    }

    /// Has the thread that polls the port towards B run only when its CPU has little else to do.
    pub(crate) fn let_others_run_before_b(&self) -> Result<(), LabError> {
        let number =
            self.bridge_threads[1].file_name().and_then(|name| name.to_str()?.parse().ok());
        // A thread's niceness is its own on Linux, and anybody may raise it (setpriority(2)).
        setpriority_process(number.and_then(Pid::from_raw), NICE)
            .context(|| "the niceness of a bridge's thread".into())
    }

    /// What the ports towards A and B have counted up to now.
    pub(crate) fn stats(&self) -> Result<[PortStats; 2], LabError> {
        let stats = self.bridge.stats();
        <[PortStats; 2]>::try_from(stats)
            .map_err(|_| LabError::system("the bridge's two ports", io::ErrorKind::NotFound))
    }
}

/// The thread of this process that has this name and is in this network namespace.
fn thread_path(namespace: &Path, name: &str) -> Result<PathBuf, LabError> {
    let is_that_thread = |path: &PathBuf| {
        fs::read_link(path.join("ns/net")).is_ok_and(|found| found == namespace)
            && fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim_end() == name)
    };
    // A thread gives itself its name: it must have run.
    for _ in 0..1000 {
        let tasks = fs::read_dir("/proc/self/task").context(|| "/proc/self/task".into())?;
        if let Some(path) = tasks.flatten().map(|task| task.path()).find(is_that_thread) {
            return Ok(path);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(LabError::system(format!("the bridge's thread {name}"), io::ErrorKind::NotFound))
}

/// The kernel's thread that serves an interface whose softirqs were given to one (`napi/NAME-ID`),
/// where this process sees it.
pub(crate) fn napi_thread(link: &Link) -> Option<(u32, PathBuf)> {
    let prefix = format!("napi/{}-", link.name());
    let prefix = &prefix[..prefix.len().min(15)];
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        name.trim_end().starts_with(prefix).then(|| (pid, entry.path()))
    })
}

/// CPU time of a task, of which `path` is the directory below `/proc`: exact where the scheduler
/// tells it, else in clock ticks.
pub(crate) fn task_time(path: &Path) -> Result<Duration, LabError> {
    // The first field is the time on a CPU in nanoseconds
    // (Documentation/scheduler/sched-stats.rst).
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

/// A port as a bridge is asked for it.
pub(crate) fn port(text: &str) -> Result<PortSettings, LabError> {
    let spec = text.parse().map_err(|error: superpacket_port::SpecError| LabError::Invalid {
        what: text.into(),
        reason: error.to_string(),
    });
    spec.map(PortSettings::new)
}

/// The CPU of the sender, and those of everything else; the same where there is but one.
pub(crate) fn split_cpus() -> Result<(usize, Vec<usize>), LabError> {
    let cpus = allowed_cpus()?;
    let sender = cpus.first().copied().unwrap_or(0);
    let others: Vec<_> = cpus.iter().copied().filter(|&cpu| cpu != sender).collect();
    Ok((sender, if others.is_empty() { cpus } else { others }))
}
