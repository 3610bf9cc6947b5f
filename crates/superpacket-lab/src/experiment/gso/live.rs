//! Cutting late, measured: kernel TCP and UDP between hosts, through the bridge.

use std::time::Duration;

use super::{AT_EGRESS, BEFORE, ENTRY, LINEAR_TARGET, MARKS, SOURCE_THROUGHPUT, TARGET};
use crate::error::LabError;
use crate::experiment::plan::{Session, Variant};
use crate::experiment::report::{Column, Experiment, Form, Ratio, Row, Table};
use crate::experiment::segmentation::bridged::{Bridged, Carried, Ip, Kind, Place, Several};
use crate::experiment::segmentation::carried::{demand, mark, row};
use crate::experiment::spent;
use crate::load::{TcpBulk, UdpBulk, Until};

/// Datagrams a second: 0.47 Gb/s.
const DATAGRAMS: f64 = 40_000.0;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Tcp(Ip),
    Udp,
}

/// One comparison: a sender, and a port that leaves what it sends to be cut.
#[derive(Clone, Copy, Debug)]
struct Pair {
    group: &'static str,
    load: Load,
    from: Place,
    to: Place,
    /// Its mark, and the target of it.
    mark: Option<(&'static str, f64)>,
    /// Its source is the figure of the announcement.
    is_source: bool,
    /// Only the full run has it.
    full: bool,
}

/// The comparisons, in the order in which they are to be read.
fn pairs() -> Vec<Pair> {
    let (packet, tap) = (Place::new(Kind::Packet), Place::new(Kind::Tap));
    let (by_kernel, by_engine, tap_by_engine) = (packet.cut_by_the_kernel(), packet.cut_by_the_engine(), tap.cut_by_the_engine());
    let pair = |group, load, from, to| Pair { group, load, from, to, mark: None, is_source: false, full: true };
    let tcp4 = Load::Tcp(Ip::V4);
    vec![
        Pair {
            mark: Some((MARKS[0], TARGET)),
            is_source: true,
            full: false,
            ..pair("TCPv4, packet ports, the kernel cuts", tcp4, packet, by_kernel)
        },
        pair("TCPv4, packet ports, the engine cuts", tcp4, packet, by_engine),
        Pair { mark: Some((MARKS[1], TARGET)), full: false, ..pair("TCPv4, TAP ports, the engine cuts", tcp4, tap, tap_by_engine) },
        Pair {
            mark: Some(("gso: TCPv4, linear packet port, cut at the egress against before the bridge", LINEAR_TARGET)),
            full: false,
            ..pair("TCPv4, linear packet port", tcp4, packet, by_engine.linear())
        },
        Pair {
            mark: Some(("gso: TCPv4, linear TAP port, cut at the egress against before the bridge", LINEAR_TARGET)),
            full: false,
            ..pair("TCPv4, linear TAP port", tcp4, tap, tap_by_engine.linear())
        },
        pair("TCPv6, packet ports, the kernel cuts", Load::Tcp(Ip::V6), packet, by_kernel),
        pair("TCPv6, TAP ports, the engine cuts", Load::Tcp(Ip::V6), tap, tap_by_engine),
        pair("UDP, 40,000 datagrams a second, packet ports, the kernel cuts", Load::Udp, packet, by_kernel),
        pair("UDP, 40,000 datagrams a second, TAP ports, the engine cuts", Load::Udp, tap, tap_by_engine),
    ]
}

/// Measures it.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] where this machine cannot, [`LabError::Cancelled`] when its end was asked for.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let mut experiment = Experiment::new(&ENTRY);
    compare(session, &mut experiment)?;
    if !session.plan.quick {
        experiment.tables.push(mixed(session)?);
    }
    experiment.notes.extend([
        "The bridge aggregates nothing here, as nothing did in 2006: with GRO on it would join again what the sender had cut.".to_owned(),
        "Packet ports leave the cutting to the kernel, which does it right before the device (\"tso=kernel\", the default): the segments of a super-packet then \
         reach the receiving host in one go. The engine's own segments are sent one by one, and each ends in a soft interrupt of the receiving host; that cost is \
         the same whether they were cut before the bridge or at its egress, so little is gained there. With TAP ports there is no kernel that would cut, and the \
         engine does."
            .to_owned(),
        "At a linear port a segment is copied twice: into one piece, and by the kernel when it is sent.".to_owned(),
        spent::NOTE.to_owned(),
    ]);
    Ok(experiment)
}

/// Segmentation before the bridge against segmentation at the egress.
fn compare(session: &Session<'_>, experiment: &mut Experiment) -> Result<(), LabError> {
    let pairs: Vec<Pair> = pairs().into_iter().filter(|pair| !(pair.full && session.plan.quick)).collect();
    let places = |pair: &Pair| [pair.from.cut_by_its_host(), pair.from].map(|from| vec![from, pair.to]);
    let hosts = Several::new(&pairs.iter().flat_map(places).collect::<Vec<_>>(), session.cpus)?;
    let mut variants = Vec::new();
    for (pair, hosts) in pairs.iter().zip(hosts.chunks_exact(2)) {
        for (hosts, place) in hosts.iter().zip([BEFORE, AT_EGRESS]) {
            session.check()?;
            hosts.greet(&hosts.route(0, 1, ip(pair.load)))?;
            let name = format!("gso: {}, cut {place}", pair.group);
            variants.push(Variant::new(name, || measure(hosts, 1, pair.load, session.plan.time)));
        }
    }
    let measured = session.interleaved(&mut variants)?;
    let mut rows = Vec::new();
    for (pair, rounds) in pairs.iter().zip(measured.chunks_exact(2)) {
        let [before, after] = [&rounds[0][..], &rounds[1][..]];
        rows.push(Row { source: source(pair, 0), ..row(pair.group, BEFORE, before, None) });
        let late = row(pair.group, AT_EGRESS, after, Some((BEFORE, before)));
        // Datagrams come at a rate that both carry: what differs is what they cost.
        let late = match pair.load {
            Load::Tcp(_) => late,
            Load::Udp => Row { ratio: Some(Ratio::paired(BEFORE, "service_demand", &demand(after, before))), ..late },
        };
        let source_ratio = pair.is_source.then(|| SOURCE_THROUGHPUT[1] / SOURCE_THROUGHPUT[0]);
        rows.push(Row { source: source(pair, 1), source_ratio, ..late });
        if let Some((name, target)) = pair.mark {
            experiment.marks.push(mark(name, after, before, target));
        }
    }
    experiment.tables.push(table("Segmentation before the bridge and at its egress, MTU 1500".into(), rows, session));
    Ok(())
}

/// The source's figure of a row: throughput without GSO, and with it.
fn source(pair: &Pair, place: usize) -> Vec<Option<f64>> {
    if pair.is_source { [Some(SOURCE_THROUGHPUT[place])].into_iter().chain([None; spent::COLUMNS.len()]).collect() } else { Vec::new() }
}

/// A bridge of which one port has TSO and one has not: TSO for both, with the fallback; or for none.
fn mixed(session: &Session<'_>) -> Result<Table, LabError> {
    let packet = Place::new(Kind::Packet);
    let ports = [packet, packet.cut_by_the_kernel()];
    let with = [packet, ports[0], ports[1]];
    let hosts = Several::new(&[with.map(Place::cut_by_its_host).into(), with.into()], session.cpus)?;
    let groups = [("TSO off on the whole bridge", &hosts[0]), ("with the fallback", &hosts[1])];
    let targets = [(1, "to the port with TSO"), (2, "to the port without")];
    let tcp = Load::Tcp(Ip::V4);
    let mut variants = Vec::new();
    for (group, hosts) in groups {
        for (to, name) in targets {
            hosts.greet(&hosts.route(0, to, Ip::V4))?;
            variants.push(Variant::new(format!("gso: {group}, {name}"), move || measure(hosts, to, tcp, session.plan.time)));
        }
    }
    let measured = session.interleaved(&mut variants)?;
    let rows = measured.iter().enumerate().map(|(place, rounds)| {
        let ((group, _), (_, name)) = (groups[place / targets.len()], targets[place % targets.len()]);
        let against = place.checked_sub(targets.len()).map(|other| (groups[0].0, &measured[other][..]));
        row(group, name, rounds, against)
    });
    Ok(table("TCPv4 through a bridge of one port with TSO and one without".into(), rows.collect(), session))
}

fn table(title: String, rows: Vec<Row>, session: &Session<'_>) -> Table {
    let throughput = Column { name: "throughput", title: "throughput", unit: "Gb/s", digits: 2 };
    let columns = [throughput].into_iter().chain(spent::COLUMNS).collect();
    Table { title, form: Form::Live, columns, rows, rounds: session.plan.rounds, plot: Some(0), made: None }
}

fn ip(load: Load) -> Ip {
    if let Load::Tcp(ip) = load { ip } else { Ip::V4 }
}

/// Sends to host number `to` of these for so long.
fn measure(hosts: &Bridged, to: usize, load: Load, time: Duration) -> Result<Carried, LabError> {
    let route = hosts.route(0, to, ip(load));
    match load {
        Load::Tcp(_) => hosts.tcp(&TcpBulk { until: Until::Time(time), ..TcpBulk::default() }, &route),
        // Datagrams that fill a frame, in super-packets of just below 64 KB. Faster, most would be lost: the sooner the less a send call costs.
        Load::Udp => {
            let load = UdpBulk { datagram: 1472, segments: 44, datagrams_per_second: Some(DATAGRAMS), time, ..UdpBulk::default() };
            hosts.udp(&load, &route)
        }
    }
}
