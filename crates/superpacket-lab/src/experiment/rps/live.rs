//! RPS experiment on this machine: kernel TCP on both hosts, joined by the kernel's bridge or by
//! this project's.

use std::io;
use std::time::Duration;

use superpacket_bridge::Bridge;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::{BridgeSettings, InPlace, PortSettings};
use superpacket_bridge::topology::Topology;
use superpacket_steer::{Cpu, CpuMask};

use super::full::{self, CpuShares};
use super::variants::{
    CONNECTIONS, JoiningBridge, ONE, ONE_ADAPTS, OURS, OURS_ADAPTS, OURS_STEERED, QUEUES,
    QUEUES_ALONE, QUEUES_STEERED, RpsVariant, auto, configurations,
};
use super::{CPU, ENTRY, TRANSACTIONS};
use crate::cpu::allowed_cpus;
use crate::error::LabError;
use crate::experiment::cpu_costs::{self, CpuClocks, CpuCosts, LoadTotals, PollThreads};
use crate::experiment::testbed::{port, start_bridge};
use crate::experiment::{
    Column, Cpus, Experiment, Figure, Form, Mark, Plot, Ratio, Row, Session, Side, Table, Variant,
};
use crate::host::Host;
use crate::link::Link;
use crate::load::{Route, TcpTransactions};
use crate::paired::{Paired, Summary};
use crate::topology::ThreeHosts;

#[derive(Clone, Copy, Debug)]
pub(super) struct RpsSample {
    pub(super) per_second: f64,
    costs: CpuCosts,
    shares: CpuShares,
    /// CPU time of both programs and the bridge per transaction, in microseconds.
    transaction: f64,
    /// For this project's bridge: percentage of packets handed to workers, and wake-ups of workers
    /// per 1,000 packets handed over.
    pub(super) steered: Option<[f64; 2]>,
}

const COLUMNS: [Column; 4] = [
    TRANSACTIONS,
    CPU,
    Column { name: "steered", title: "steered", unit: "%", digits: 0 },
    Column::count("wake_ups", "wake-ups / 1000"),
];

/// Measures the transaction rate on this machine: without steering, with this project's steering to
/// CPU masks, and with the kernel's RPS for comparison.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] if this machine cannot run it;
/// [`LabError::Cancelled`]; errors of hosts and bridge.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let topology = Topology::read()
        .map_err(|error| LabError::system("the machine's CPUs", io::Error::other(error)))?;
    let usable = topology.usable();
    // Packets are steered only to CPUs that the bridge's threads may use.
    let steered: CpuMask = session.cpus.bridge.iter().copied().filter_map(Cpu::new).collect();
    let steered = if steered.is_empty() { usable.clone() } else { steered };
    let configurations = configurations(&steered, &topology, session.plan.quick);
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
    tables.push(fullness(&configurations, &measured, session.plan.rounds));
    tables.push(accounts(&configurations, &measured, session.plan.rounds));
    let marks = marks(&measured, usable.len());
    Ok(Experiment {
        tables,
        marks,
        notes: notes(&steered, &topology, session.cpus),
        ..Experiment::new(&ENTRY)
    })
}

/// Returns the table of CPU times.
fn accounts(configurations: &[RpsVariant], measured: &[Vec<RpsSample>], rounds: usize) -> Table {
    let rows = configurations.iter().zip(measured).map(|(configuration, measured)| {
        let name = format!("{}, {}", connections(configuration.connections), configuration.name);
        let mut row = cpu_costs::row(
            configuration.group,
            name,
            measured.iter().map(|measured| &measured.costs),
        );
        row.figures.push(Some(Summary::of(measured, |measured| measured.transaction).into()));
        row
    });
    let mut accounts = cpu_costs::table(rows.collect(), rounds);
    accounts.columns.push(Column {
        name: "transaction_demand",
        title: "all three",
        unit: "us/Tr",
        digits: 1,
    });
    accounts
}

/// Returns the table of the CPUs that were fully used or idle during each configuration.
fn fullness(configurations: &[RpsVariant], measured: &[Vec<RpsSample>], rounds: usize) -> Table {
    let rows = configurations.iter().zip(measured).map(|(configuration, measured)| {
        let name = format!("{}, {}", connections(configuration.connections), configuration.name);
        let shares = shares(measured);
        let full_cpu = Some(full::full(&shares));
        Row { full_cpu, ..Row::new(configuration.group, name, full::figures(&shares).into()) }
    });
    Table::new(Form::Live, "Which CPU was full", &full::COLUMNS, rows.collect(), rounds)
}

fn shares(measured: &[RpsSample]) -> Vec<CpuShares> {
    measured.iter().map(|measured| measured.shares).collect()
}

/// Number of CPUs from which this machine's gain is compared with that of the original report's
/// machines.
const LIKE_THE_SOURCES: usize = 8;

/// Returns the comparisons with targets for a machine with this number of CPUs. With fewer CPUs
/// than the original report's machines, the target is only that steering costs no throughput.
fn marks(measured: &[Vec<RpsSample>], cpus: usize) -> Vec<Mark> {
    let mark = |name: String, [row, against]: [usize; 2], target: f64| {
        let rates = Paired::of(&measured[row], &measured[against], |measured| measured.per_second);
        Mark::paired(name, &rates, Side::AtLeast, target)
    };
    // Whether a CPU had time for steered packets shows without steering.
    let gain = |name: String, rows: [usize; 2], target: f64| {
        let target = if cpus < LIKE_THE_SOURCES { 1.0 } else { target };
        full::judged(mark(name, rows, target), &shares(&measured[rows[1]]))
    };
    let source = |ratio: f64| (cpus >= LIKE_THE_SOURCES).then_some(ratio);
    let one_queue = if cpus < 16 { 311.0 / 108.0 } else { 404.0 / 156.0 };
    let mut marks = vec![
        gain(
            format!("rps: this bridge between two hosts on {cpus} CPUs, RPS against none"),
            [OURS_STEERED, OURS],
            2.0,
        )
        .in_brief("this bridge on this machine", source(one_queue)),
    ];
    if measured.len() > QUEUES_STEERED {
        marks.push(
            gain(format!("rps: this bridge with {QUEUES} queues per port on {cpus} CPUs, RPS against none"), [QUEUES_STEERED, QUEUES_ALONE], 1.5)
                .in_brief("the same with 4 queues per port", source(854.0 / 567.0)),
        );
    }
    marks.extend([
        mark("rps: one connection, this bridge with a mask that adapts against none".into(), [ONE_ADAPTS, ONE], 0.97)
            .in_brief("one connection, adapting", None),
        mark(
            format!("rps: {CONNECTIONS} connections, this bridge with a mask that adapts against one that always steers"),
            [OURS_ADAPTS, OURS_STEERED],
            1.0,
        )
        .in_brief("500 connections, adapting", None),
    ]);
    marks
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

fn notes(steered: &CpuMask, topology: &Topology, cpus: &Cpus) -> Vec<String> {
    let mut notes = vec![
        "In the live form both hosts, with all of their TCP, share this machine's CPUs with the bridge. Kernel TCP is most of the work, and runs on the CPU that sends packets to a host, not on \
         the CPU to which they are steered."
            .into(),
        format!(
            "{} The client is the sender. A transaction's payload is 2 bytes, so that the time per transaction (us/Tr) is more useful than the time per KB.",
            cpu_costs::NOTE
        ),
    ];
    if topology.usable().len() < LIKE_THE_SOURCES {
        notes.push(format!(
            "Without RPS, the source's machines with 8 and 16 CPUs were 33 % and 15 % busy with one queue, and 61 to 96 % with several. This machine has {} CPUs. From {LIKE_THE_SOURCES} CPUs on, \
             gains have the source's as their target.",
            topology.usable().len()
        ));
    }
    notes.push(full::NOTE.into());
    if cpus != Cpus::ANY {
        let list = |cpus: &[usize]| match cpus {
            [] => "any".to_owned(),
            cpus => {
                cpus.iter().copied().filter_map(Cpu::new).collect::<CpuMask>().list().to_string()
            }
        };
        notes.push(format!(
            "The machine was divided: sender on CPUs {}, receiver on {}, bridge and masks on {}.",
            list(&cpus.sender),
            list(&cpus.receiver),
            list(&cpus.bridge)
        ));
    }
    notes.push(format!(
        "rps_cpus auto, if CPU {} receives: {}.",
        steered.first().map_or(0, Cpu::number),
        auto(steered, topology).why
    ));
    notes
}

pub(super) fn measure(
    configuration: &RpsVariant,
    session: &Session<'_>,
) -> Result<RpsSample, LabError> {
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
    let polling = bridge.is_some().then(PollThreads::now).transpose()?;
    let before = CpuClocks::now()?;
    let report = transactions.run(&route)?;
    let shares = CpuShares::of(&report, &resolved(session.cpus)?, polling.as_ref())?;
    let bytes = transactions.request + transactions.answer;
    let costs = before.costs_of(&LoadTotals::transactions(&report, bytes as u64))?;
    Ok(RpsSample {
        per_second: report.per_second(),
        shares,
        transaction: costs.demand * bytes as f64 / 1024.0,
        // The kernel's bridge has no threads; the senders do its work.
        costs: CpuCosts { bridge: costs.bridge.filter(|_| bridge.is_some()), ..costs },
        steered: bridge
            .filter(|_| matches!(middle, JoiningBridge::Ours(mask, ..) if !mask.is_empty()))
            .map(|bridge| steered(&bridge.stats())),
    })
}

/// Returns the CPUs of the programs and the bridge, with an empty list replaced by all CPUs that
/// this process may use.
fn resolved(cpus: &Cpus) -> Result<Cpus, LabError> {
    let all = allowed_cpus()?;
    let or_all = |list: &[usize]| if list.is_empty() { all.clone() } else { list.to_vec() };
    Ok(Cpus {
        sender: or_all(&cpus.sender),
        receiver: or_all(&cpus.receiver),
        bridge: or_all(&cpus.bridge),
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
        JoiningBridge::Ours(mask, in_place, queues) => {
            let ports = [&hosts.a_side, &hosts.b_side]
                .map(|side| steered_port(side, mask, *in_place, *queues));
            let ports = ports.into_iter().collect::<Result<_, LabError>>()?;
            // A thread per queue, as far as there are CPUs.
            let most = if cpus.is_empty() { allowed_cpus()?.len() } else { cpus.len() };
            let threads = (2 * queues).min(most.max(1));
            let settings = BridgeSettings { ports, threads, ..BridgeSettings::default() };
            Ok((None, Some(start_bridge(&hosts.middle, settings, cpus)?)))
        }
    }
}

fn steered_port(
    side: &Link,
    mask: &CpuMask,
    in_place: InPlace,
    queues: usize,
) -> Result<PortSettings, LabError> {
    let mut port = port(&format!("packet:{}?queues={queues}", side.name()))?;
    port.steering.rps_cpus.set(None, mask.clone());
    port.steering.in_place = Some(in_place);
    Ok(port)
}

fn set_kernel_mask(host: &Host, link: &Link, mask: &CpuMask) -> Result<(), LabError> {
    host.set_sysfs(&format!("class/net/{}/queues/rx-0/rps_cpus", link.name()), &mask.to_string())
}
