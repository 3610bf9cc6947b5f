//! RPS experiment on this machine: kernel TCP on both hosts, joined by the kernel's bridge or by
//! this project's.

use std::io;
use std::time::Duration;

use superpacket_bridge::Bridge;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::{BridgeSettings, InPlace, PortSettings};
use superpacket_bridge::topology::{Auto, Topology};
use superpacket_steer::{Cpu, CpuMask};

use super::{CPU, ENTRY, TRANSACTIONS};
use crate::error::LabError;
use crate::experiment::cpu_costs::{self, CpuClocks, CpuCosts, LoadTotals};
use crate::experiment::testbed::{port, start_bridge};
use crate::experiment::{
    Column, Experiment, Figure, Form, Mark, Plot, Ratio, Row, Session, Side, Table, Variant,
};
use crate::host::Host;
use crate::link::Link;
use crate::load::{Route, TcpTransactions};
use crate::paired::{Paired, Summary};
use crate::topology::ThreeHosts;

/// Number of connections, as in the original report.
const CONNECTIONS: usize = 500;

/// The bridge between the hosts.
#[derive(Clone, Debug)]
enum JoiningBridge {
    /// The kernel's bridge; every interface on the way has this `rps_cpus`.
    Kernel(CpuMask),
    /// This project's bridge; both ports have this `rps_cpus` and this in-place setting.
    Ours(CpuMask, InPlace),
}

/// A configuration to measure.
struct RpsVariant {
    connections: usize,
    group: &'static str,
    name: String,
    middle: JoiningBridge,
    /// Index of the configuration that it is compared with.
    against: Option<usize>,
}

#[derive(Clone, Copy)]
struct RpsSample {
    per_second: f64,
    costs: CpuCosts,
    /// CPU time of both programs and the bridge per transaction, in microseconds.
    transaction: f64,
    /// For this project's bridge: percentage of packets handed to workers, and wake-ups of workers
    /// per 1,000 packets handed over.
    steered: Option<[f64; 2]>,
}

const COLUMNS: [Column; 4] = [
    TRANSACTIONS,
    CPU,
    Column { name: "steered", title: "steered", unit: "%", digits: 0 },
    Column::count("wake_ups", "wake-ups / 1000"),
];

/// Measures on this machine: without steering, with masks, and with the kernel's RPS for
/// comparison.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] if this machine cannot run it;
/// [`LabError::Cancelled`]; errors of hosts and bridge.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let topology = Topology::read()
        .map_err(|error| LabError::system("the machine's CPUs", io::Error::other(error)))?;
    let usable = topology.usable();
    let configurations = configurations(&usable, &topology, session.plan.quick);
    let mut variants: Vec<Variant<'_, RpsSample>> = configurations
        .iter()
        .map(|configuration| {
            let RpsVariant { group, name, .. } = configuration;
            let what = match configuration.connections {
                CONNECTIONS => format!("rps: {group}, {name}"),
                count => format!("rps, {}: {name}", connections(count)),
            };
            Variant::new(what, || measure(configuration, session))
        })
        .collect();
    let measured = session.interleaved(&mut variants)?;
    let rates = |row: usize, against: usize| {
        Paired::of(&measured[row], &measured[against], |measured| measured.per_second)
    };
    let tables = [CONNECTIONS, 1].into_iter().map(|count| {
        let rows = (0..configurations.len())
            .filter(|&row| configurations[row].connections == count)
            .map(|row| {
                let configuration = &configurations[row];
                let ratio = configuration.against.map(|against| {
                    Ratio::paired(
                        format!(
                            "{}, {}",
                            configurations[against].group, configurations[against].name
                        ),
                        TRANSACTIONS.name,
                        &rates(row, against),
                    )
                });
                row_of(configuration, &measured[row], ratio)
            });
        Table {
            title: format!(
                "{} x TCP_RR of 1 byte between two hosts on this machine ({} CPUs)",
                count,
                usable.len()
            ),
            form: Form::Live,
            columns: COLUMNS.into(),
            rows: rows.collect(),
            rounds: session.plan.rounds,
            plot: Plot::Marks(&[0]),
            made: None,
        }
    });
    let mut tables: Vec<Table> = tables.collect();
    let accounts = configurations.iter().zip(&measured).map(|(configuration, measured)| {
        let name = format!("{}, {}", connections(configuration.connections), configuration.name);
        let mut row = cpu_costs::row(
            configuration.group,
            name,
            measured.iter().map(|measured| &measured.costs),
        );
        row.figures.push(Some(Summary::of(measured, |measured| measured.transaction).into()));
        row
    });
    let mut accounts = cpu_costs::table(accounts.collect(), session.plan.rounds);
    accounts.columns.push(Column {
        name: "transaction_demand",
        title: "all three",
        unit: "us/Tr",
        digits: 1,
    });
    tables.push(accounts);
    let mark = |name: String, [row, against]: [usize; 2], target: f64| {
        Mark::paired(name, &rates(row, against), Side::AtLeast, target)
    };
    let marks = vec![
        mark(format!("rps: this bridge between two hosts on {} CPUs, RPS against none", usable.len()), [OURS_STEERED, OURS], 1.0)
            .in_brief("this bridge on this machine", None),
        mark("rps: one connection, this bridge with a mask that adapts against none".into(), [ONE_ADAPTS, ONE], 0.95)
            .in_brief("one connection, adapting", None),
        mark(
            format!("rps: {CONNECTIONS} connections, this bridge with a mask that adapts against one that always steers"),
            [OURS_ADAPTS, OURS_STEERED],
            1.0,
        )
        .in_brief("500 connections, adapting", None),
    ];
    Ok(Experiment { tables, marks, notes: notes(&usable, &topology), ..Experiment::new(&ENTRY) })
}

fn connections(count: usize) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

fn row_of(configuration: &RpsVariant, measured: &[RpsSample], ratio: Option<Ratio>) -> Row {
    let steered = |place: usize| -> Option<Figure> {
        let values: Vec<f64> =
            measured.iter().filter_map(|measured| Some(measured.steered?[place])).collect();
        (!values.is_empty()).then(|| Summary::new(&values).into())
    };
    let rates = Summary::of(measured, |measured| measured.per_second);
    let cpu = Summary::of(measured, |measured| measured.costs.machine);
    let figures = vec![Some(rates.into()), Some(cpu.into()), steered(0), steered(1)];
    Row { ratio, ..Row::new(configuration.group, &configuration.name, figures) }
}

/// Returns the automatic mask. The first usable CPU stands for the receiving one, because the
/// bridge's threads are not pinned.
fn auto(usable: &CpuMask, topology: &Topology) -> Auto {
    match usable.first() {
        Some(receiving) => topology.sharing_cache(receiving),
        None => Auto { mask: CpuMask::EMPTY, why: "no CPU is usable".into() },
    }
}

/// Index of the configuration of this bridge without RPS.
const OURS: usize = 2;
/// Index of the configuration of this bridge with a mask that always steers.
const OURS_STEERED: usize = 3;
/// Index of the configuration of this bridge with a mask that adapts.
const OURS_ADAPTS: usize = 4;
/// Index of the configuration of this bridge without RPS, for one connection.
const ONE: usize = 5;
/// Index of the configuration of this bridge with a mask that adapts, for one connection.
const ONE_ADAPTS: usize = 7;

fn configurations(usable: &CpuMask, topology: &Topology, quick: bool) -> Vec<RpsVariant> {
    const KERNEL: &str = "the kernel's bridge";
    const BRIDGE: &str = "this bridge";
    let configuration = |group, name: String, middle, against| RpsVariant {
        group,
        name,
        middle,
        against,
        connections: CONNECTIONS,
    };
    let mask = |mask: &CpuMask| format!("with RPS, mask {mask}");
    let adapting = |mask: &CpuMask| format!("with RPS, mask {mask}, adapting");
    let one = |configuration: RpsVariant| RpsVariant { connections: 1, ..configuration };
    let without = || JoiningBridge::Ours(CpuMask::EMPTY, InPlace::NEVER);
    let steers = |mask: &CpuMask| JoiningBridge::Ours(mask.clone(), InPlace::NEVER);
    let adapts = |mask: &CpuMask| JoiningBridge::Ours(mask.clone(), InPlace::Automatic);
    let mut all = vec![
        configuration(KERNEL, "without RPS".into(), JoiningBridge::Kernel(CpuMask::EMPTY), None),
        configuration(KERNEL, mask(usable), JoiningBridge::Kernel(usable.clone()), Some(0)),
        configuration(BRIDGE, "without RPS".into(), without(), None),
        configuration(BRIDGE, mask(usable), steers(usable), Some(OURS)),
        configuration(BRIDGE, adapting(usable), adapts(usable), Some(OURS)),
        one(configuration(BRIDGE, "without RPS".into(), without(), None)),
        one(configuration(BRIDGE, mask(usable), steers(usable), Some(ONE))),
        one(configuration(BRIDGE, adapting(usable), adapts(usable), Some(ONE))),
    ];
    let Auto { mask: near, .. } = auto(usable, topology);
    if !quick && !near.is_empty() && near != *usable {
        all.push(configuration(
            BRIDGE,
            format!("{}: auto", mask(&near)),
            steers(&near),
            Some(OURS),
        ));
    }
    all
}

fn notes(usable: &CpuMask, topology: &Topology) -> Vec<String> {
    let mut notes = vec![
        "In the live form both hosts, with all of their TCP, share this machine's CPUs with the bridge. Kernel TCP is most of the work, and runs on the CPU that sends packets to a host, not on \
         the CPU to which they are steered."
            .into(),
        format!(
            "{} The client is the sender. A transaction's payload is 2 bytes, so that the time per transaction (us/Tr) is more useful than the time per KB.",
            cpu_costs::NOTE
        ),
    ];
    if usable.len() < 8 {
        notes.push(format!(
            "Without RPS, the source's machines with 8 and 16 CPUs were 33 % and 15 % busy with one queue, and 61 to 96 % with several. This machine has {} CPUs, which the load saturates \
             without steering: no gain is expected.",
            usable.len()
        ));
    }
    notes.push(format!(
        "rps_cpus auto, if CPU {} receives: {}.",
        usable.first().map_or(0, Cpu::number),
        auto(usable, topology).why
    ));
    notes
}

fn measure(configuration: &RpsVariant, session: &Session<'_>) -> Result<RpsSample, LabError> {
    let RpsVariant { middle, connections, .. } = configuration;
    let connections = *connections;
    let hosts = ThreeHosts::new()?;
    let (_kernel, bridge) = join(&hosts, middle, &session.cpus.bridge)?;
    let route = Route::ipv4(&hosts.a, &hosts.b);
    // Resolves and learns addresses, and starts workers, before the measurement.
    TcpTransactions { connections, time: Duration::from_millis(20), ..TcpTransactions::default() }
        .run(&route)?;
    let (time, pinning) = (session.plan.time, session.cpus.pinning());
    let transactions = TcpTransactions { connections, time, pinning, ..TcpTransactions::default() };
    let before = CpuClocks::now()?;
    let report = transactions.run(&route)?;
    let bytes = transactions.request + transactions.answer;
    let costs = before.costs_of(&LoadTotals::transactions(&report, bytes as u64))?;
    Ok(RpsSample {
        per_second: report.per_second(),
        transaction: costs.demand * bytes as f64 / 1024.0,
        // The kernel's bridge has no threads; the senders do its work.
        costs: CpuCosts { bridge: costs.bridge.filter(|_| bridge.is_some()), ..costs },
        steered: bridge
            .filter(|_| matches!(middle, JoiningBridge::Ours(mask, _) if !mask.is_empty()))
            .map(|bridge| steered(&bridge.stats())),
    })
}

fn steered(ports: &[PortStats]) -> [f64; 2] {
    let sum = |value: fn(&PortStats) -> u64| ports.iter().map(value).sum::<u64>() as f64;
    let steered = sum(|port| port.steered);
    [
        steered * 100.0 / sum(|port| port.rx_packets).max(1.0),
        sum(|port| port.wake_ups) * 1000.0 / steered.max(1.0),
    ]
}

fn join(
    hosts: &ThreeHosts,
    middle: &JoiningBridge,
    cpus: &[usize],
) -> Result<(Option<Link>, Option<Bridge>), LabError> {
    match middle {
        JoiningBridge::Kernel(mask) => {
            let bridge = hosts.with_kernel_bridge()?;
            if !mask.is_empty() {
                let links = [
                    (&hosts.a.host, &hosts.a.link),
                    (&hosts.b.host, &hosts.b.link),
                    (&hosts.middle, &hosts.a_side),
                    (&hosts.middle, &hosts.b_side),
                ];
                links.into_iter().try_for_each(|(host, link)| set_kernel_mask(host, link, mask))?;
            }
            Ok((Some(bridge), None))
        }
        JoiningBridge::Ours(mask, in_place) => {
            let ports =
                [&hosts.a_side, &hosts.b_side].map(|side| steered_port(side, mask, *in_place));
            let ports = ports.into_iter().collect::<Result<_, LabError>>()?;
            let settings = BridgeSettings { ports, ..BridgeSettings::default() };
            Ok((None, Some(start_bridge(&hosts.middle, settings, cpus)?)))
        }
    }
}

fn steered_port(side: &Link, mask: &CpuMask, in_place: InPlace) -> Result<PortSettings, LabError> {
    let mut port = port(&format!("packet:{}", side.name()))?;
    port.steering.rps_cpus.set(None, mask.clone());
    port.steering.in_place = Some(in_place);
    Ok(port)
}

fn set_kernel_mask(host: &Host, link: &Link, mask: &CpuMask) -> Result<(), LabError> {
    host.set_sysfs(&format!("class/net/{}/queues/rx-0/rps_cpus", link.name()), &mask.to_string())
}
