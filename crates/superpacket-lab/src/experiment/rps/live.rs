//! The same load on this machine: kernel TCP on both hosts, and between them the kernel's bridge or
//! ours.

use std::io;
use std::time::Duration;

use superpacket_bridge::Bridge;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::{BridgeSettings, InPlace, PortSettings};
use superpacket_bridge::topology::{Auto, Topology};
use superpacket_steer::{Cpu, CpuMask};

use super::{CPU, TRANSACTIONS, empty};
use crate::cpu::pin_this_thread;
use crate::error::LabError;
use crate::experiment::spent::{self, Clocks, Load, Spent};
use crate::experiment::{
    Column, Experiment, Figure, Form, Mark, Ratio, Row, Session, Side, Table, Variant,
};
use crate::host::Host;
use crate::link::Link;
use crate::load::{Route, TcpTransactions};
use crate::paired::{Paired, Summary};
use crate::topology::ThreeHosts;

/// Connections, as in the source.
const CONNECTIONS: usize = 500;

/// What joins the hosts.
#[derive(Clone, Debug)]
enum Middle {
    /// The kernel's bridge; every interface on the way has this `rps_cpus`.
    Kernel(CpuMask),
    /// Ours; both ports have this `rps_cpus`, and process packets in place then.
    Ours(CpuMask, InPlace),
}

/// What is measured in turn.
struct Arrangement {
    connections: usize,
    group: &'static str,
    name: String,
    middle: Middle,
    /// The row that it is compared with.
    against: Option<usize>,
}

#[derive(Clone, Copy)]
struct Measured {
    per_second: f64,
    spent: Spent,
    /// CPU time of both programs and the bridge for a transaction, in microseconds.
    transaction: f64,
    /// Of this bridge: packets handed to workers, of 100 that it received, and wake-ups of sleeping
    /// workers, for 1,000 handed over.
    steered: Option<[f64; 2]>,
}

const COLUMNS: [Column; 4] = [
    TRANSACTIONS,
    CPU,
    Column { name: "steered", title: "steered", unit: "%", digits: 0 },
    Column { name: "wake_ups", title: "wake-ups / 1000", unit: "", digits: 0 },
];

/// Measures it: the tables, a mark on this bridge, and what is to be said of them.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let topology = Topology::read()
        .map_err(|error| LabError::system("the machine's CPUs", io::Error::other(error)))?;
    let usable = topology.usable();
    let arrangements = arrangements(&usable, &topology, session.plan.quick);
    let mut variants: Vec<Variant<'_, Measured>> = arrangements
        .iter()
        .map(|arrangement| {
            let Arrangement { group, name, .. } = arrangement;
            let what = match arrangement.connections {
                CONNECTIONS => format!("rps: {group}, {name}"),
                count => format!("rps, {}: {name}", connections(count)),
            };
            Variant::new(what, || measure(arrangement, session))
        })
        .collect();
    let measured = session.interleaved(&mut variants)?;
    let rates = |row: usize| values(&measured[row], |measured| measured.per_second);
    let tables = [CONNECTIONS, 1].into_iter().map(|count| {
        let rows = (0..arrangements.len())
            .filter(|&row| arrangements[row].connections == count)
            .map(|row| {
                let arrangement = &arrangements[row];
                let ratio = arrangement.against.map(|against| {
                    let paired = Paired::new(&rates(row), &rates(against));
                    Ratio::paired(
                        format!("{}, {}", arrangements[against].group, arrangements[against].name),
                        TRANSACTIONS.name,
                        &paired,
                    )
                });
                row_of(arrangement, &measured[row], ratio)
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
            plot: None,
            made: None,
        }
    });
    let mut tables: Vec<Table> = tables.collect();
    let accounts = arrangements.iter().zip(&measured).map(|(arrangement, measured)| {
        let name = format!("{}, {}", connections(arrangement.connections), arrangement.name);
        let mut row =
            spent::row(arrangement.group, name, measured.iter().map(|measured| &measured.spent));
        row.figures
            .push(Some(Summary::new(&values(measured, |measured| measured.transaction)).into()));
        row
    });
    let mut accounts = spent::table(accounts.collect(), session.plan.rounds);
    accounts.columns.push(Column {
        name: "transaction_demand",
        title: "all three",
        unit: "us/Tr",
        digits: 1,
    });
    tables.push(accounts);
    let mark = |name: String, [row, against]: [usize; 2], target: f64| {
        Mark::paired(name, &Paired::new(&rates(row), &rates(against)), Side::AtLeast, target)
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
    Ok(Experiment { tables, marks, notes: notes(&usable, &topology), ..empty() })
}

fn values(rounds: &[Measured], value: fn(&Measured) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

fn connections(count: usize) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

fn row_of(arrangement: &Arrangement, measured: &[Measured], ratio: Option<Ratio>) -> Row {
    let steered = |place: usize| -> Option<Figure> {
        let values: Vec<f64> =
            measured.iter().filter_map(|measured| Some(measured.steered?[place])).collect();
        (!values.is_empty()).then(|| Summary::new(&values).into())
    };
    let [rates, cpu] = [
        values(measured, |measured| measured.per_second),
        values(measured, |measured| measured.spent.machine),
    ];
    Row {
        group: arrangement.group.into(),
        name: arrangement.name.clone(),
        figures: vec![
            Some(Summary::new(&rates).into()),
            Some(Summary::new(&cpu).into()),
            steered(0),
            steered(1),
        ],
        source: vec![None; COLUMNS.len()],
        ratio,
        source_ratio: None,
    }
}

/// The first usable CPU stands for the one that receives: the bridge's threads are not pinned.
fn auto(usable: &CpuMask, topology: &Topology) -> Auto {
    match usable.first() {
        Some(receiving) => topology.sharing_cache(receiving),
        None => Auto { mask: CpuMask::EMPTY, why: "no CPU may be used".into() },
    }
}

/// The places of this bridge's arrangements: without RPS, with a mask that always steers, and with
/// one that adapts; then the same for one connection.
const OURS: usize = 2;
const OURS_STEERED: usize = 3;
const OURS_ADAPTS: usize = 4;
const ONE: usize = 5;
const ONE_ADAPTS: usize = 7;

fn arrangements(usable: &CpuMask, topology: &Topology, quick: bool) -> Vec<Arrangement> {
    const KERNEL: &str = "the kernel's bridge";
    const BRIDGE: &str = "this bridge";
    let arrangement = |group, name: String, middle, against| Arrangement {
        group,
        name,
        middle,
        against,
        connections: CONNECTIONS,
    };
    let mask = |mask: &CpuMask| format!("with RPS, mask {mask}");
    let adapting = |mask: &CpuMask| format!("with RPS, mask {mask}, adapting");
    let one = |arrangement: Arrangement| Arrangement { connections: 1, ..arrangement };
    let without = || Middle::Ours(CpuMask::EMPTY, InPlace::NEVER);
    let steers = |mask: &CpuMask| Middle::Ours(mask.clone(), InPlace::NEVER);
    let adapts = |mask: &CpuMask| Middle::Ours(mask.clone(), InPlace::Automatic);
    let mut all = vec![
        arrangement(KERNEL, "without RPS".into(), Middle::Kernel(CpuMask::EMPTY), None),
        arrangement(KERNEL, mask(usable), Middle::Kernel(usable.clone()), Some(0)),
        arrangement(BRIDGE, "without RPS".into(), without(), None),
        arrangement(BRIDGE, mask(usable), steers(usable), Some(OURS)),
        arrangement(BRIDGE, adapting(usable), adapts(usable), Some(OURS)),
        one(arrangement(BRIDGE, "without RPS".into(), without(), None)),
        one(arrangement(BRIDGE, mask(usable), steers(usable), Some(ONE))),
        one(arrangement(BRIDGE, adapting(usable), adapts(usable), Some(ONE))),
    ];
    let Auto { mask: near, .. } = auto(usable, topology);
    if !quick && !near.is_empty() && near != *usable {
        all.push(arrangement(BRIDGE, format!("{}: auto", mask(&near)), steers(&near), Some(OURS)));
    }
    all
}

fn notes(usable: &CpuMask, topology: &Topology) -> Vec<String> {
    let mut notes = vec![
        "Live, both hosts and all of their TCP share this machine's CPUs with what joins them, and kernel TCP is most of the work: it runs where packets are sent to a host, not where they are \
         steered to."
            .into(),
        format!("{} The client is the sender; a transaction's payload is 2 bytes, so that its time in microseconds (us/Tr) says more than that of a KB.", spent::NOTE),
    ];
    if usable.len() < 8 {
        notes.push(format!(
            "Without RPS, the source's machines of 8 and 16 CPUs were busy for 33 % and 15 % with one queue, and for 61 to 96 % with several. Here are {} CPUs, and the load fills them without \
             steering: no gain is to be expected.",
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

fn measure(arrangement: &Arrangement, session: &Session<'_>) -> Result<Measured, LabError> {
    let Arrangement { middle, connections, .. } = arrangement;
    let connections = *connections;
    let hosts = ThreeHosts::new()?;
    let (_kernel, bridge) = join(&hosts, middle, &session.cpus.bridge)?;
    let route = Route::ipv4(&hosts.a, &hosts.b);
    // Addresses are resolved and learned before anything is timed, and workers started.
    TcpTransactions { connections, time: Duration::from_millis(20), ..TcpTransactions::default() }
        .run(&route)?;
    let (time, pinning) = (session.plan.time, session.cpus.pinning());
    let transactions = TcpTransactions { connections, time, pinning, ..TcpTransactions::default() };
    let before = Clocks::now()?;
    let report = transactions.run(&route)?;
    let bytes = transactions.request + transactions.answer;
    let spent = before.spent(&Load::transactions(&report, bytes as u64))?;
    Ok(Measured {
        per_second: report.per_second(),
        transaction: spent.demand * bytes as f64 / 1024.0,
        // What the kernel's bridge does is done by whoever sends.
        spent: Spent { bridge: spent.bridge.filter(|_| bridge.is_some()), ..spent },
        steered: bridge
            .filter(|_| matches!(middle, Middle::Ours(mask, _) if !mask.is_empty()))
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
    middle: &Middle,
    cpus: &[usize],
) -> Result<(Option<Link>, Option<Bridge>), LabError> {
    match middle {
        Middle::Kernel(mask) => {
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
        Middle::Ours(mask, in_place) => {
            let ports = [&hosts.a_side, &hosts.b_side].map(|side| port(side, mask, *in_place));
            let ports = ports.into_iter().collect::<Result<_, LabError>>()?;
            let settings = BridgeSettings { ports, ..BridgeSettings::default() };
            let start = || {
                // Threads run where the thread that starts them may run.
                pin_this_thread(cpus)?;
                Bridge::start(settings)
                    .map_err(|error| LabError::system("the bridge", io::Error::other(error)))
            };
            Ok((None, Some(hosts.middle.run(start)?)))
        }
    }
}

fn port(side: &Link, mask: &CpuMask, in_place: InPlace) -> Result<PortSettings, LabError> {
    let text = format!("packet:{}", side.name());
    let spec = text
        .parse()
        .map_err(|error| LabError::Invalid { what: text, reason: format!("{error}") })?;
    let mut port = PortSettings::new(spec);
    port.steering.rps_cpus.set(None, mask.clone());
    port.steering.in_place = Some(in_place);
    Ok(port)
}

fn set_kernel_mask(host: &Host, link: &Link, mask: &CpuMask) -> Result<(), LabError> {
    host.set_sysfs(&format!("class/net/{}/queues/rx-0/rps_cpus", link.name()), &mask.to_string())
}
