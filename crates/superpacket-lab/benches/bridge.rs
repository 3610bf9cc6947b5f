//! Throughput of the bridge in user space, with and without an offload, and in comparison with the
//! kernel's bridge: kernel TCP between two hosts.
//!
//! `cargo bench -p superpacket-lab --bench bridge [-- [--rounds N] [--seconds S] [ROW...]]`: each
//! row measures two variants in turn and prints the median of the rounds' ratios. `ROW` selects
//! rows by a part of their name.

use std::fs;
use std::time::Duration;

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, KernelPathMode, PortSettings};
use superpacket_lab::{
    Blast, Host, LabError, Link, Paired, Receive, Route, Station, Summary, TcpBulk,
    TcpTransactions, ThreeHosts, Until,
};
use superpacket_port::features::Feature;

superpacket_lab::enter_user_namespace_before_main!();

/// The bridge between the hosts.
#[derive(Clone, Copy, PartialEq)]
enum Middle {
    /// The kernel's bridge, with GRO on its ports or not.
    Kernel { gro: bool },
    /// This project's bridge on packet sockets, with GRO or not.
    Ours { gro: bool, options: &'static str },
    /// This project's bridge on AF_XDP sockets over veth, with GRO.
    Xdp,
    /// This project's bridge on TAP devices, with GRO or not.
    Taps { gro: bool },
}

const OURS: Middle = Middle::Ours { gro: true, options: "" };
const OURS_WITHOUT_GRO: Middle = Middle::Ours { gro: false, options: "" };
const KERNEL: Middle = Middle::Kernel { gro: false };
const KERNEL_WITH_GRO: Middle = Middle::Kernel { gro: true };

/// A configuration of hosts and bridge.
#[derive(Clone, Copy)]
struct Setup {
    middle: Middle,
    /// Whether the sender's device accepts super-packets.
    sender_tso: bool,
    /// Whether the device to the receiver accepts super-packets.
    egress_tso: bool,
}

/// The load that is measured.
#[derive(Clone, Copy)]
enum Load {
    Bulk,
    Transactions(usize),
    Small,
}

/// A figure, and its CPU time in seconds per unit of the figure.
#[derive(Clone, Copy, Default)]
struct Figure {
    value: f64,
    cpu: f64,
    receiver_cpu: f64,
    bridge_busy: f64,
}

struct Row {
    name: &'static str,
    a: Setup,
    b: Setup,
    load: Load,
    mark: f64,
    stretch: f64,
    cpu_marks: Option<CpuMarks>,
}

/// Highest permitted CPU time per unit of the figure, as a share of the other variant's.
#[derive(Clone, Copy)]
struct CpuMarks {
    /// Share for the whole machine.
    machine: f64,
    /// Share for the receiver's thread.
    receiver: f64,
}

impl Row {
    /// Formats the marks.
    fn marks(&self) -> String {
        let cpu = self
            .cpu_marks
            .map(|marks| format!("; CPU {:.2}x, receiver's {:.2}x", marks.machine, marks.receiver));
        format!("{:.2}x ({:.2}x){}", self.mark, self.stretch, cpu.unwrap_or_default())
    }

    /// Returns whether the marks are met, or which are missed.
    fn verdict(&self, value: &Summary, cpu: &Summary, receiver: &Summary) -> String {
        if self.mark == 0.0 {
            return "no mark".into();
        }
        let cpu_marks = self.cpu_marks.map(|marks| {
            [
                ("CPU", cpu.median > marks.machine),
                ("receiver's CPU", receiver.median > marks.receiver),
            ]
        });
        let marks = [("figure", value.median < self.mark)]
            .into_iter()
            .chain(cpu_marks.into_iter().flatten());
        let missed: Vec<_> = marks.filter_map(|(what, missed)| missed.then_some(what)).collect();
        if missed.is_empty() { "met".into() } else { format!("missed: {}", missed.join(", ")) }
    }
}

const fn setup(middle: Middle) -> Setup {
    Setup { middle, sender_tso: true, egress_tso: true }
}

const fn tso_off(middle: Middle) -> Setup {
    Setup { middle, sender_tso: false, egress_tso: true }
}

const ROWS: &[Row] = &[
    Row {
        name: "gro: on against off, sender's TSO off",
        a: tso_off(OURS),
        b: tso_off(OURS_WITHOUT_GRO),
        load: Load::Bulk,
        mark: 2.5,
        stretch: 3.0,
        cpu_marks: Some(CpuMarks { machine: 0.45, receiver: 0.2 }),
    },
    Row {
        name: "base: GRO off against the kernel's bridge",
        a: tso_off(OURS_WITHOUT_GRO),
        b: tso_off(KERNEL),
        load: Load::Bulk,
        mark: 0.55,
        stretch: 0.7,
        cpu_marks: None,
    },
    Row {
        name: "kernel-gro: GRO on against the kernel's bridge with GRO",
        a: tso_off(OURS),
        b: tso_off(KERNEL_WITH_GRO),
        load: Load::Bulk,
        mark: 0.85,
        stretch: 1.0,
        cpu_marks: None,
    },
    Row {
        name: "kernel-plain: GRO on against the kernel's bridge without GRO",
        a: tso_off(OURS),
        b: tso_off(KERNEL),
        load: Load::Bulk,
        mark: 1.5,
        stretch: 2.0,
        cpu_marks: None,
    },
    Row {
        name: "tap: TAP to TAP, GRO on against off, sender's TSO off",
        a: tso_off(Middle::Taps { gro: true }),
        b: tso_off(Middle::Taps { gro: false }),
        load: Load::Bulk,
        mark: 2.2,
        stretch: 3.0,
        cpu_marks: None,
    },
    Row {
        name: "xdp: AF_XDP on veth (copy mode) against packet sockets, sender's TSO off",
        a: tso_off(Middle::Xdp),
        b: tso_off(OURS),
        load: Load::Bulk,
        mark: 0.0,
        stretch: 0.0,
        cpu_marks: None,
    },
    Row {
        name: "pass: super-packets through against the kernel's bridge",
        a: setup(OURS),
        b: setup(KERNEL),
        load: Load::Bulk,
        mark: 0.58,
        stretch: 0.8,
        cpu_marks: None,
    },
    Row {
        name: "cut: our segmentation against the kernel's, egress without TSO",
        a: Setup {
            middle: Middle::Ours { gro: true, options: "?tso=device" },
            sender_tso: true,
            egress_tso: false,
        },
        b: Setup { middle: OURS, sender_tso: true, egress_tso: false },
        load: Load::Bulk,
        mark: 1.0,
        stretch: 1.5,
        cpu_marks: None,
    },
    Row {
        name: "small: 60-byte frames against the kernel's bridge",
        a: setup(OURS),
        b: setup(KERNEL),
        load: Load::Small,
        mark: 1.2,
        stretch: 2.0,
        cpu_marks: None,
    },
    Row {
        name: "rr500-gro: 500 x TCP_RR, GRO on against off",
        a: setup(OURS),
        b: setup(OURS_WITHOUT_GRO),
        load: Load::Transactions(500),
        mark: 0.98,
        stretch: 1.0,
        cpu_marks: None,
    },
    Row {
        name: "rr500: 500 x TCP_RR against the kernel's bridge",
        a: setup(OURS),
        b: setup(KERNEL),
        load: Load::Transactions(500),
        mark: 0.85,
        stretch: 0.95,
        cpu_marks: None,
    },
    Row {
        name: "rr1-gro: 1 x TCP_RR, GRO on against off",
        a: setup(OURS),
        b: setup(OURS_WITHOUT_GRO),
        load: Load::Transactions(1),
        mark: 0.98,
        stretch: 1.0,
        cpu_marks: None,
    },
    Row {
        name: "rr1: 1 x TCP_RR against the kernel's bridge",
        a: setup(OURS),
        b: setup(KERNEL),
        load: Load::Transactions(1),
        mark: 0.55,
        stretch: 0.75,
        cpu_marks: None,
    },
];

/// Returns the CPU time of the threads that move packets.
fn bridge_cpu() -> f64 {
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let stats =
        tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats
        .filter(|stat| stat.contains("(superpacket-"))
        .filter_map(|stat| {
            let fields: Vec<f64> = stat
                .rsplit_once(')')?
                .1
                .split_ascii_whitespace()
                .skip(11)
                .take(2)
                .map(|field| field.parse().unwrap_or(0.0))
                .collect();
            Some(fields.iter().sum::<f64>() * tick)
        })
        .sum()
}

/// Hosts and the bridge between them.
struct Arrangement {
    a: Station,
    b: Station,
    _kernel: Option<Link>,
    bridge: Option<Bridge>,
}

fn start(middle: &Host, ports: [String; 2], gro: bool) -> Result<Bridge, LabError> {
    let more = std::env::var("BRIDGE_OPTIONS").unwrap_or_default();
    let port = |text: String| {
        let text = if text.contains('?') {
            format!("{text}{}", more.replace('?', "&"))
        } else {
            format!("{text}{more}")
        };
        let mut port = PortSettings::new(text.parse().expect("a port string"));
        port.features = port.features.set(Feature::GenericReceiveOffload, gro);
        port.kernel_path = KernelPathMode::Off;
        port
    };
    let threads =
        std::env::var("BRIDGE_THREADS").ok().and_then(|threads| threads.parse().ok()).unwrap_or(0);
    let settings =
        BridgeSettings { ports: ports.map(port).into(), threads, ..BridgeSettings::default() };
    middle.run(|| {
        Bridge::start(settings).map_err(|error| {
            LabError::system(error.to_string(), std::io::Error::other("the bridge"))
        })
    })
}

fn arrange(setup: Setup) -> Result<Arrangement, LabError> {
    let arrangement = match setup.middle {
        Middle::Taps { gro } => {
            let middle = Host::new("M")?;
            let bridge = start(&middle, ["tap:tap-a".into(), "tap:tap-b".into()], gro)?;
            let station = |device: &str, host: &str, number| {
                let link = middle.link(device).move_to(&Host::new(host)?)?;
                link.up()?;
                Station::new(link, number)
            };
            Arrangement {
                a: station("tap-a", "A", 1)?,
                b: station("tap-b", "B", 2)?,
                _kernel: None,
                bridge: Some(bridge),
            }
        }
        Middle::Kernel { gro } => {
            let hosts = ThreeHosts::new()?;
            for side in [&hosts.a_side, &hosts.b_side] {
                side.set_feature("generic-receive-offload", gro)?;
            }
            hosts.b_side.set_feature("tcp-segmentation-offload", setup.egress_tso)?;
            let kernel = Some(hosts.with_kernel_bridge()?);
            Arrangement { a: hosts.a, b: hosts.b, _kernel: kernel, bridge: None }
        }
        Middle::Ours { .. } | Middle::Xdp => {
            let hosts = ThreeHosts::new()?;
            hosts.b_side.set_feature("tcp-segmentation-offload", setup.egress_tso)?;
            let names = |prefix: &str, options: &str| {
                [&hosts.a_side, &hosts.b_side]
                    .map(|side| format!("{prefix}:{}{options}", side.name()))
            };
            let bridge = if let Middle::Ours { gro, options } = setup.middle {
                start(&hosts.middle, names("packet", options), gro)?
            } else {
                // AF_XDP cannot describe offloaded work, so the hosts complete their packets.
                for link in [&hosts.a.link, &hosts.b.link] {
                    link.set_features(&[
                        ("tx-checksumming", false),
                        ("tcp-segmentation-offload", false),
                    ])?;
                }
                start(&hosts.middle, names("xdp", ""), true)?
            };
            Arrangement { a: hosts.a, b: hosts.b, _kernel: None, bridge: Some(bridge) }
        }
    };
    // Without checksum offload a device has no TSO that could be switched off.
    if !setup.sender_tso && setup.middle != Middle::Xdp {
        arrangement.a.link.set_feature("tcp-segmentation-offload", false)?;
    }
    Ok(arrangement)
}

fn measure(setup: Setup, load: Load, time: Duration) -> Result<Figure, LabError> {
    let hosts = arrange(setup)?;
    let route = Route::ipv4(&hosts.a, &hosts.b);
    // Resolves and learns addresses before the measurement.
    TcpTransactions { time: Duration::from_millis(20), ..TcpTransactions::default() }
        .run(&route)?;
    let before = bridge_cpu();
    let figure = match load {
        Load::Bulk => {
            let report =
                TcpBulk { until: Until::Time(time), receive: Receive::Copy, ..TcpBulk::default() }
                    .run(&route)?;
            let direction = report.forward.unwrap_or_default();
            let gigabits = direction.bytes as f64 * 8e-9;
            Figure {
                value: direction.gigabits_per_second(),
                cpu: report.machine.total.busy() / gigabits,
                receiver_cpu: direction.receiver.total().as_secs_f64() / gigabits,
                bridge_busy: (bridge_cpu() - before) / direction.seconds,
            }
        }
        Load::Transactions(connections) => {
            let threads = Some(1);
            let load = TcpTransactions { connections, time, threads, ..TcpTransactions::default() };
            let report = load.run(&route)?;
            Figure {
                value: report.per_second(),
                cpu: report.machine.total.busy() / report.transactions as f64,
                bridge_busy: (bridge_cpu() - before) / report.seconds,
                ..Figure::default()
            }
        }
        Load::Small => {
            let frame = Blast::minimal([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
            let report = Blast { time, ..frame }.run(&hosts.a.link, &hosts.b.link)?;
            Figure {
                value: report.received_per_second(),
                bridge_busy: (bridge_cpu() - before) / report.seconds,
                ..Figure::default()
            }
        }
    };
    if let Some(bridge) = &hosts.bridge
        && std::env::var_os("BRIDGE_STATS").is_some()
    {
        bridge.stats().iter().for_each(|stats| eprintln!("{stats:?}"));
    }
    Ok(figure)
}

fn main() -> Result<(), LabError> {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let (mut rounds, mut seconds, mut wanted) = (10, 1.0, Vec::new());
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
    println!(
        "| row | median ratio (quartiles) | figures | bridge busy | CPU per unit | receiver's CPU per unit | mark | |\n|---|---|---|---|---|---|---|---|"
    );
    for row in ROWS.iter().filter(|row| {
        wanted.is_empty() || wanted.iter().any(|part| row.name.starts_with(part.as_str()))
    }) {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            if round % 2 == 0 {
                a.push(measure(row.a, row.load, time)?);
                b.push(measure(row.b, row.load, time)?);
            } else {
                b.push(measure(row.b, row.load, time)?);
                a.push(measure(row.a, row.load, time)?);
            }
        }
        let values = |figures: &[Figure], value: fn(&Figure) -> f64| {
            figures.iter().map(value).collect::<Vec<_>>()
        };
        let paired =
            |value: fn(&Figure) -> f64| Paired::new(&values(&a, value), &values(&b, value));
        let (value, cpu, receiver) = (
            paired(|figure| figure.value),
            paired(|figure| figure.cpu),
            paired(|figure| figure.receiver_cpu),
        );
        let busy = Summary::new(&values(&a, |figure| figure.bridge_busy)).median;
        let ratio = value.ratio;
        println!(
            "| {} | {:.3}x ({:.3}-{:.3}) | {:.2} / {:.2} | {:.0} % | {:.2}x | {:.2}x | {} | {} |",
            row.name,
            ratio.median,
            ratio.lower_quartile,
            ratio.upper_quartile,
            value.a.median,
            value.b.median,
            busy * 100.0,
            cpu.ratio.median,
            receiver.ratio.median,
            row.marks(),
            row.verdict(&ratio, &cpu.ratio, &receiver.ratio),
        );
    }
    Ok(())
}
