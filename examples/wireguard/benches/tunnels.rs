//! One TCP flow, one each way, and one request at a time, through tunnels between two network
//! namespaces: this endpoint, the same without verifying checksums, gotatun with its own TUN device
//! and socket, and wireguard-go, in turn. It must be run as root, since wireguard-go keeps its
//! control socket in `/var/run/wireguard`.
//!
//! `cargo bench --features plain [-- ROUNDS]`; wireguard-go is found by `WIREGUARD_GO`, else in the
//! search path, else left out.
#[path = "../tests/tunnel/mod.rs"]
mod tunnel;

use std::cell::RefCell;
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use superpacket_lab::{
    Direction, DirectionReport, LabError, Paired, Summary, TcpBulk, TcpTransactions, TwoHosts,
    Until, interleaved,
};
use tunnel::{Program, Tunnel};

/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(2);

/// The figures of a tunnel, one per round.
#[derive(Default)]
struct Figures {
    gigabits: Vec<f64>,
    /// CPU seconds of the whole machine per gigabyte.
    demand: Vec<f64>,
    /// Gb/s of two flows together, one in each direction.
    both: Vec<f64>,
    /// Microseconds from a request to its answer: the median of each round.
    median: Vec<f64>,
    /// Microseconds that 99 of 100 requests of a round did not exceed.
    tail: Vec<f64>,
}

/// A column of the table.
type Column = (&'static str, fn(&Figures) -> &[f64]);

const COLUMNS: [Column; 5] = [
    ("Gb/s", |figures| &figures.gigabits),
    ("CPU s/GB", |figures| &figures.demand),
    ("both ways, Gb/s", |figures| &figures.both),
    ("request, us", |figures| &figures.median),
    ("its p99, us", |figures| &figures.tail),
];

fn measure(tunnel: &Tunnel, figures: &RefCell<Figures>) -> Result<f64, LabError> {
    let route = tunnel.route(false, false);
    let report = TcpBulk { until: Until::Time(TIME), ..TcpBulk::default() }.run(&route)?;
    let direction = report.forward.as_ref().expect("forward is the default");
    let both =
        TcpBulk { until: Until::Time(TIME / 2), direction: Direction::Both, ..TcpBulk::default() }
            .run(&route)?;
    let requests = TcpTransactions { connections: 1, time: TIME / 2, ..TcpTransactions::default() }
        .run(&route)?;
    let microseconds = |part| requests.latency.percentile(part).as_secs_f64() * 1e6;
    let mut figures = figures.borrow_mut();
    figures.gigabits.push(direction.gigabits_per_second());
    figures.demand.push(report.machine.total.busy() / (direction.bytes as f64 / 1e9));
    figures.both.push(
        [both.forward, both.reverse]
            .iter()
            .flatten()
            .map(DirectionReport::gigabits_per_second)
            .sum(),
    );
    figures.median.push(microseconds(0.5));
    figures.tail.push(microseconds(0.99));
    Ok(direction.gigabits_per_second())
}

/// Measures all programs over a wire that passes runs of datagrams whole, or over one that segments
/// them.
fn compare(
    programs: &[(&str, Program)],
    rounds: usize,
    segmentation: bool,
) -> Result<(), LabError> {
    let mut tunnels = Vec::new();
    for (name, program) in programs {
        let hosts = TwoHosts::new()?;
        for link in [&hosts.a.link, &hosts.b.link] {
            link.set_feature("tx-udp-segmentation", segmentation)?;
        }
        let tunnel = Tunnel::between(hosts, program, false)?;
        // The handshake, and a check of the bytes.
        TcpBulk {
            until: Until::Bytes(1 << 20),
            verify: Some(3),
            stall: Duration::from_secs(30),
            ..TcpBulk::default()
        }
        .run(&tunnel.route(false, false))?;
        tunnels.push((*name, tunnel, RefCell::new(Figures::default())));
    }
    let mut variants: Vec<_> =
        tunnels.iter().map(|(_, tunnel, figures)| move || measure(tunnel, figures)).collect();
    let mut variants: Vec<&mut dyn FnMut() -> Result<f64, LabError>> =
        variants.iter_mut().map(|variant| variant as _).collect();
    interleaved(rounds, &mut variants)?;

    println!(
        "\ntx-udp-segmentation {}, {rounds} rounds of {} s",
        if segmentation { "on" } else { "off" },
        TIME.as_secs()
    );
    println!("{:<14}{}", "medians", COLUMNS.map(|(name, _)| format!("{name:>20}")).concat());
    for (name, _, figures) in &tunnels {
        let figures = figures.borrow();
        println!(
            "{name:<14}{}",
            COLUMNS.map(|(_, of)| format!("{:>20.2}", Summary::new(of(&figures)).median)).concat()
        );
    }
    println!("{:<14}median of the rounds' ratios (least-greatest)", "ours to it");
    let ours = tunnels[0].2.borrow();
    for (name, _, figures) in &tunnels[1..] {
        let figures = figures.borrow();
        let ratios = COLUMNS.map(|(_, of)| {
            let ratio = Paired::new(of(&ours), of(&figures)).ratio;
            format!(
                "{:>20}",
                format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.least, ratio.greatest)
            )
        });
        println!("{name:<14}{}", ratios.concat());
    }
    Ok(())
}

/// Returns the path of wireguard-go, if it is installed.
fn wireguard_go() -> Option<PathBuf> {
    let path =
        env::var_os("WIREGUARD_GO").map_or_else(|| PathBuf::from("wireguard-go"), PathBuf::from);
    Command::new(&path).arg("--version").output().is_ok().then_some(path)
}

fn main() -> Result<(), LabError> {
    superpacket_lab::enter_user_namespace_if_needed()?;
    let rounds = env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(7);
    let mut programs = vec![
        ("superpacket", Program::Superpacket),
        ("trusting", Program::Trusting),
        ("gotatun", Program::Gotatun),
    ];
    match wireguard_go() {
        Some(path) => programs.push(("wireguard-go", Program::Go(path))),
        None => {
            println!("wireguard-go is left out: neither WIREGUARD_GO nor the search path has it")
        }
    }
    compare(&programs, rounds, true)?;
    compare(&programs, rounds, false)
}
