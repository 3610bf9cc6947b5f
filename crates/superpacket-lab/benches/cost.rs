//! CPU time that a unit of work costs between two hosts: through the kernel's bridge, and through
//! this project's, with and without the kernel's own path (`kernel_path`).
//!
//! `cargo bench -p superpacket-lab --bench cost [-- [--rounds N] [--seconds S] [ROW...]]`: each
//! round measures all bridges in turn. A cell has the median cost, and how many times cheaper that
//! is than the first bridge: the median of the rounds' ratios, with the least and the greatest.
//! `ROW` selects rows by the beginning of their name.
//!
//! A cost is the CPU time of this process, of which hosts, load and bridge are threads, and of the
//! kernel's `ksoftirqd` threads. The kernel counts a softirq for the thread that it runs on, so
//! these times include what the kernel forwards. Of other programs, only the softirqs that happen
//! to run on their threads are missing. The row `idle` has what is counted while nothing is sent.
//! Beside other programs, `nice -n -20` (as root) keeps the threads from waiting for a CPU.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, KernelPathMode, PortSettings};
use superpacket_lab::{
    Blast, CpuTime, Host, LabError, Link, Paired, RawOptions, RawSocket, Route, Station, Summary,
    TcpBulk, TcpTransactions, ThreeHosts, TwoHosts, Until,
};

superpacket_lab::enter_user_namespace_before_main!();

/// Number of frames that are sent at once.
const BURST: usize = 64;

/// Time between bursts, in which every bridge can forward one.
const PAUSE: Duration = Duration::from_micros(500);

/// Number of frames after which the sender waits until all have arrived. Each queue between the
/// hosts holds about as many, so that no frame is lost if a thread has to wait for a CPU.
const WINDOW: u64 = 1024;

/// Longest time in which a frame arrives.
const FRAME_PATIENCE: Duration = Duration::from_secs(1);

/// Longest time until the kernel forwards frames by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// The bridge between the hosts.
#[derive(Clone, Copy, PartialEq)]
enum Middle {
    /// No bridge: a veth pair joins the hosts. What the hosts themselves cost.
    Nothing,
    /// The kernel's bridge, with GRO on its ports or not.
    Kernel { gro: bool },
    /// This project's bridge between packet sockets.
    Ours(KernelPathMode),
    /// This project's bridge between a packet socket and a TAP device.
    ToTap(KernelPathMode),
}

impl Middle {
    fn name(self) -> String {
        match self {
            Middle::Nothing => "no bridge".into(),
            Middle::Kernel { gro: false } => "kernel's bridge".into(),
            Middle::Kernel { gro: true } => "the same, GRO on its ports".into(),
            Middle::Ours(mode) | Middle::ToTap(mode) => format!("`kernel_path={mode}`"),
        }
    }
}

/// The load that is measured.
#[derive(Clone, Copy)]
enum Load {
    /// One TCP stream, with the sender's TSO or without.
    Stream { tso: bool },
    /// Requests and answers of one byte, on this many TCP connections.
    Requests(usize),
    /// Frames of 60 bytes.
    Frames,
    /// Nothing.
    Idle,
}

/// What the last of a table's bridges is to reach.
#[derive(Clone, Copy)]
struct Target {
    /// The least ratio.
    ratio: f64,
    /// The index of the bridge whose cost is divided.
    against: usize,
}

struct Row {
    name: &'static str,
    what: &'static str,
    load: Load,
    target: Option<Target>,
}

struct Table {
    middles: &'static [Middle],
    rows: &'static [Row],
}

const TABLES: [Table; 2] = [
    Table {
        middles: &[
            Middle::Kernel { gro: false },
            Middle::Kernel { gro: true },
            Middle::Nothing,
            Middle::Ours(KernelPathMode::Off),
            Middle::Ours(KernelPathMode::Auto),
        ],
        rows: &[
            Row {
                name: "stream",
                what: "one stream of single packets, s/GB",
                load: Load::Stream { tso: false },
                target: Some(Target { ratio: 1.0, against: 1 }),
            },
            Row {
                name: "super-packets",
                what: "one stream of super-packets, s/GB",
                load: Load::Stream { tso: true },
                target: Some(Target { ratio: 1.0, against: 0 }),
            },
            Row {
                name: "rr1",
                what: "1 x TCP_RR, us",
                load: Load::Requests(1),
                target: Some(Target { ratio: 1.2, against: 0 }),
            },
            Row {
                name: "rr500",
                what: "500 x TCP_RR, us",
                load: Load::Requests(500),
                target: Some(Target { ratio: 1.0, against: 0 }),
            },
            Row {
                name: "frames",
                what: "a 60-byte frame, us",
                load: Load::Frames,
                target: Some(Target { ratio: 1.8, against: 0 }),
            },
            Row { name: "idle", what: "idle, ms/s", load: Load::Idle, target: None },
        ],
    },
    Table {
        middles: &[Middle::ToTap(KernelPathMode::Off), Middle::ToTap(KernelPathMode::Auto)],
        rows: &[
            Row {
                name: "tap-stream",
                what: "veth to TAP: one stream of single packets, s/GB",
                load: Load::Stream { tso: false },
                target: None,
            },
            Row {
                name: "tap-rr1",
                what: "veth to TAP: 1 x TCP_RR, us",
                load: Load::Requests(1),
                target: None,
            },
            Row {
                name: "tap-frames",
                what: "veth to TAP: a 60-byte frame, us",
                load: Load::Frames,
                target: None,
            },
        ],
    },
];

/// Reads CPU time.
struct CpuClock {
    /// `schedstat` of the kernel's threads that process packets.
    softirq_threads: Vec<PathBuf>,
}

impl CpuClock {
    fn new() -> Result<Self, LabError> {
        let unsupported = |reason: &str| LabError::Unsupported {
            what: "the CPU time of packets".into(),
            reason: reason.into(),
        };
        let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        if symbols.contains("irqtime_account_irq") {
            return Err(unsupported(
                "the kernel counts softirqs for no thread (CONFIG_IRQ_TIME_ACCOUNTING)",
            ));
        }
        let processes = fs::read_dir("/proc")
            .map_err(|error| LabError::system("/proc", error))?
            .flatten()
            .map(|process| process.path());
        let softirq_threads: Vec<_> = processes
            .filter(|path| {
                fs::read_to_string(path.join("comm"))
                    .is_ok_and(|name| name.starts_with("ksoftirqd/"))
            })
            .map(|path| path.join("schedstat"))
            .collect();
        if softirq_threads.is_empty() {
            return Err(unsupported("the kernel's threads are not in /proc"));
        }
        Ok(Self { softirq_threads })
    }

    /// Returns the CPU time so far of this process and of the kernel's threads, in seconds.
    fn seconds(&self) -> Result<f64, LabError> {
        let mut time = CpuTime::of_this_process().total();
        for path in &self.softirq_threads {
            let what = || format!("{}", path.display());
            let text = fs::read_to_string(path).map_err(|error| LabError::system(what(), error))?;
            // The first field is the run time in nanoseconds.
            let run = text.split_ascii_whitespace().next().and_then(|field| field.parse().ok());
            time += Duration::from_nanos(
                run.ok_or_else(|| LabError::system(what(), std::io::ErrorKind::InvalidData))?,
            );
        }
        Ok(time.as_secs_f64())
    }
}

/// Hosts and the bridge between them.
struct Arrangement {
    a: Station,
    b: Station,
    _kernel: Option<Link>,
    bridge: Option<Bridge>,
}

fn start(middle: &Host, ports: [&str; 2], mode: KernelPathMode) -> Result<Bridge, LabError> {
    let ports = ports.map(|port| PortSettings {
        kernel_path: mode,
        ..PortSettings::new(port.parse().expect("a port string"))
    });
    let settings = BridgeSettings { ports: ports.into(), ..BridgeSettings::default() };
    middle.run(|| {
        Bridge::start(settings)
            .map_err(|error| LabError::system("the bridge", std::io::Error::other(error)))
    })
}

impl Arrangement {
    fn new(middle: Middle) -> Result<Self, LabError> {
        match middle {
            Middle::Nothing => {
                let TwoHosts { a, b } = TwoHosts::new()?;
                Ok(Self { a, b, _kernel: None, bridge: None })
            }
            Middle::Kernel { gro } => {
                let hosts = ThreeHosts::new()?;
                for side in [&hosts.a_side, &hosts.b_side] {
                    side.set_feature("generic-receive-offload", gro)?;
                }
                let kernel = Some(hosts.with_kernel_bridge()?);
                Ok(Self { a: hosts.a, b: hosts.b, _kernel: kernel, bridge: None })
            }
            Middle::Ours(mode) => {
                let hosts = ThreeHosts::new()?;
                let bridge = start(&hosts.middle, ["packet:port-a", "packet:port-b"], mode)?;
                Ok(Self { a: hosts.a, b: hosts.b, _kernel: None, bridge: Some(bridge) })
            }
            Middle::ToTap(mode) => {
                let host = Host::new("M")?;
                let (a, _) = Link::veth(&Host::new("A")?, "eth0", &host, "port-a")?;
                let bridge = start(&host, ["packet:port-a", "tap:tap-b"], mode)?;
                let b = host.link("tap-b").move_to(&Host::new("B")?)?;
                b.up()?;
                let (a, b) = (Station::new(a, 1)?, Station::new(b, 2)?);
                Ok(Self { a, b, _kernel: None, bridge: Some(bridge) })
            }
        }
    }

    fn route(&self) -> Route<'_> {
        Route::ipv4(&self.a, &self.b)
    }

    /// Returns the packets that the bridge received, and how many of them the kernel forwarded.
    fn packets(&self) -> [u64; 2] {
        let stats = self.bridge.as_ref().map(Bridge::stats).unwrap_or_default();
        stats.iter().fold([0; 2], |[all, kernel], port| {
            [all + port.rx_packets, kernel + port.kernel_rx_packets]
        })
    }

    /// Lets the hosts and the bridge learn the addresses, and waits until the kernel forwards
    /// frames by itself, if it is to.
    fn warm_up(&self, middle: Middle) -> Result<(), LabError> {
        let start = Instant::now();
        loop {
            let before = self.packets()[1];
            TcpTransactions { time: Duration::from_millis(20), ..TcpTransactions::default() }
                .run(&self.route())?;
            if middle != Middle::Ours(KernelPathMode::Auto) || self.packets()[1] > before + 10 {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let features = self.bridge.as_ref().map(Bridge::features).unwrap_or_default();
                let reports: Vec<_> = features.iter().map(|port| &port.kernel_path).collect();
                return Err(LabError::Unsupported {
                    what: "the kernel's path".into(),
                    reason: format!("{reports:?}"),
                });
            }
        }
    }
}

/// Sends frames of 60 bytes from A to B for a time, and returns how many arrived.
fn send_frames(hosts: &Arrangement, time: Duration) -> Result<u64, LabError> {
    let options = RawOptions { promiscuous: false, ..RawOptions::default() };
    let socket = RawSocket::open(&hosts.a.link, options)?;
    let frames = vec![Blast::minimal([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]).frame; BURST];
    let before = hosts.b.link.statistics()?.rx_packets;
    let (mut sent, start) = (0, Instant::now());
    loop {
        socket.send(&frames)?;
        sent += BURST as u64;
        thread::sleep(PAUSE);
        if sent.is_multiple_of(WINDOW) {
            let mut arrived = hosts.b.link.statistics()?.rx_packets - before;
            let waiting = Instant::now();
            while arrived < sent && waiting.elapsed() < FRAME_PATIENCE {
                thread::sleep(Duration::from_millis(1));
                arrived = hosts.b.link.statistics()?.rx_packets - before;
            }
            if arrived < sent {
                eprintln!("{} of {sent} frames were lost", sent - arrived);
            }
            if arrived < sent || start.elapsed() > time {
                return Ok(arrived);
            }
        }
    }
}

/// The outcome of a measurement.
#[derive(Clone, Copy)]
struct Sample {
    /// CPU time per unit of work, in the row's unit.
    cost: f64,
    /// Share of the packets that the kernel forwarded by itself, 0 to 1.
    by_kernel: f64,
}

fn measure(
    clock: &CpuClock,
    middle: Middle,
    load: Load,
    time: Duration,
) -> Result<Sample, LabError> {
    let hosts = Arrangement::new(middle)?;
    if let Load::Stream { tso } = load {
        hosts.a.link.set_feature("tcp-segmentation-offload", tso)?;
    }
    hosts.warm_up(middle)?;
    let (packets, before) = (hosts.packets(), clock.seconds()?);
    // Seconds divided by this are in the row's unit.
    let work = match load {
        Load::Stream { .. } => {
            let load = TcpBulk { until: Until::Time(time), ..TcpBulk::default() };
            load.run(&hosts.route())?.bytes() as f64 * 1e-9
        }
        Load::Requests(connections) => {
            let load = TcpTransactions { connections, time, ..TcpTransactions::default() };
            load.run(&hosts.route())?.transactions as f64 * 1e-6
        }
        Load::Frames => send_frames(&hosts, time)? as f64 * 1e-6,
        Load::Idle => {
            thread::sleep(time);
            time.as_secs_f64() * 1e-3
        }
    };
    let cost = (clock.seconds()? - before) / work;
    let after = hosts.packets();
    let [all, kernel] = [after[0] - packets[0], after[1] - packets[1]];
    Ok(Sample { cost, by_kernel: kernel as f64 / all.max(1) as f64 })
}

/// Measures a row, and returns its line of the table.
fn line(
    clock: &CpuClock,
    middles: &[Middle],
    row: &Row,
    rounds: usize,
    time: Duration,
) -> Result<String, LabError> {
    let mut samples = vec![Vec::with_capacity(rounds); middles.len()];
    for round in 0..rounds {
        for turn in 0..middles.len() {
            // Every second round runs in reverse order, so that drift affects all alike.
            let index = if round % 2 == 0 { turn } else { middles.len() - 1 - turn };
            samples[index].push(measure(clock, middles[index], row.load, time)?);
        }
    }
    let values = |index: usize, value: fn(&Sample) -> f64| -> Vec<f64> {
        samples[index].iter().map(value).collect()
    };
    let costs = |index| values(index, |sample| sample.cost);
    let last = middles.len() - 1;
    let mut line = format!("| {} |", row.what);
    for index in 0..middles.len() {
        let paired = Paired::new(&costs(0), &costs(index));
        line += &format!(" {}", digits(paired.b.median));
        if index > 0 && !matches!(row.load, Load::Idle) {
            line += &format!(": {}", ratio(&paired.ratio));
        }
        line += " |";
    }
    let by_kernel = Summary::new(&values(last, |sample| sample.by_kernel * 100.0)).median;
    let target = row.target.map(|target| {
        let against = Paired::new(&costs(target.against), &costs(last)).ratio;
        let verdict = if against.median < target.ratio { "missed" } else { "met" };
        if target.against == 0 {
            format!("{:.1}x: {verdict}", target.ratio)
        } else {
            format!("{:.1}x of GRO's: {}, {verdict}", target.ratio, ratio(&against))
        }
    });
    Ok(format!("{line} {by_kernel:.1} % | {} |", target.unwrap_or_default()))
}

/// Formats a figure with about three digits.
fn digits(value: f64) -> String {
    let places = match value {
        ..1.0 => 3,
        1.0..10.0 => 2,
        _ => 1,
    };
    format!("{value:.places$}")
}

/// Formats the median, the least and the greatest ratio.
fn ratio(summary: &Summary) -> String {
    let Summary { median, least, greatest, .. } = summary;
    format!("{median:.2}x ({least:.2}-{greatest:.2})")
}

fn main() -> Result<(), LabError> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut rounds, mut seconds, mut wanted) = (7, 1.0, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut number = || {
            arguments.next().and_then(|value| value.parse::<f64>().ok()).expect("a number follows")
        };
        match argument.as_str() {
            "--rounds" => rounds = number() as usize,
            "--seconds" => seconds = number(),
            _ => wanted.push(argument),
        }
    }
    let time = Duration::from_secs_f64(seconds);
    let clock = CpuClock::new()?;
    let is_wanted = |row: &&Row| {
        wanted.is_empty() || wanted.iter().any(|part| row.name.starts_with(part.as_str()))
    };
    let mut separator = "";
    for Table { middles, rows } in &TABLES {
        let mut rows = rows.iter().filter(is_wanted).peekable();
        if rows.peek().is_none() {
            continue;
        }
        let names: Vec<_> = middles.iter().map(|middle| middle.name()).collect();
        println!("{separator}| CPU time | {} | by the kernel | target |", names.join(" | "));
        println!("{}|", "|---".repeat(middles.len() + 3));
        for row in rows {
            println!("{}", line(&clock, middles, row, rounds, time)?);
        }
        separator = "\n";
    }
    Ok(())
}
