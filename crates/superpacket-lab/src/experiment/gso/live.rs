//! Cutting late, measured: kernel TCP and UDP between hosts, through the bridge.

use std::cell::RefCell;
use std::time::Duration;

use super::{AT_EGRESS, BEFORE, ENTRY, LINEAR_TARGET, SOURCE_THROUGHPUT, TARGET};
use crate::error::LabError;
use crate::experiment::plan::{Cpus, Plan, Session, Variant};
use crate::experiment::report::{Column, Experiment, Form, Mark, Ratio, Row, Side, Table};
use crate::experiment::segmentation::bridged::{
    Bridged, Carried, Ip, Kind, Place, Several, arrange,
};
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
    /// Its mark: the target, and what a report of one screen calls it.
    mark: Option<(f64, &'static str)>,
    /// Its source is the figure of the announcement.
    is_source: bool,
    /// Only the full run has it.
    full: bool,
}

/// The comparisons of a plan, in the order in which they are to be read.
fn pairs(plan: Plan) -> Vec<Pair> {
    let (packet, tap) = (Place::new(Kind::Packet), Place::new(Kind::Tap));
    let (by_kernel, by_engine, tap_by_engine) =
        (packet.cut_by_the_kernel(), packet.cut_by_the_engine(), tap.cut_by_the_engine());
    let pair = |group, load, from, to| Pair {
        group,
        load,
        from,
        to,
        mark: None,
        is_source: false,
        full: true,
    };
    let tcp4 = Load::Tcp(Ip::V4);
    let marked = |target, brief, pair| Pair { mark: Some((target, brief)), full: false, ..pair };
    let by_kernel_v4 = pair("TCPv4, packet ports, the kernel cuts", tcp4, packet, by_kernel);
    let all = vec![
        Pair { is_source: true, ..marked(TARGET, "packet ports, the kernel cuts", by_kernel_v4) },
        marked(
            TARGET,
            "packet ports, the engine cuts",
            pair("TCPv4, packet ports, the engine cuts", tcp4, packet, by_engine),
        ),
        marked(
            TARGET,
            "TAP ports, the engine cuts",
            pair("TCPv4, TAP ports, the engine cuts", tcp4, tap, tap_by_engine),
        ),
        marked(
            LINEAR_TARGET,
            "linear packet port, the engine cuts",
            pair("TCPv4, linear packet port, the engine cuts", tcp4, packet, by_engine.linear()),
        ),
        marked(
            LINEAR_TARGET,
            "linear TAP port, the engine cuts",
            pair("TCPv4, linear TAP port, the engine cuts", tcp4, tap, tap_by_engine.linear()),
        ),
        pair("TCPv6, packet ports, the kernel cuts", Load::Tcp(Ip::V6), packet, by_kernel),
        pair("TCPv6, TAP ports, the engine cuts", Load::Tcp(Ip::V6), tap, tap_by_engine),
        pair(
            "UDP, 40,000 datagrams a second, packet ports, the kernel cuts",
            Load::Udp,
            packet,
            by_kernel,
        ),
        pair(
            "UDP, 40,000 datagrams a second, TAP ports, the engine cuts",
            Load::Udp,
            tap,
            tap_by_engine,
        ),
    ];
    all.into_iter().filter(|pair| !(pair.full && plan.quick)).collect()
}

/// How many measurements a plan asks for: each comparison before and at the egress; and two bridges
/// with two targets each.
pub(super) fn measurements(plan: Plan) -> usize {
    (pairs(plan).len() * 2 + if plan.quick { 0 } else { 4 }) * plan.rounds
}

/// Measures it.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] where this machine cannot,
/// [`LabError::Cancelled`] when its end was asked for.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let mut experiment = Experiment::new(&ENTRY);
    compare(session, &mut experiment, arrange)?;
    if !session.plan.quick {
        experiment.tables.push(mixed(session)?);
    }
    experiment.notes.extend([
        "The bridge aggregates nothing here, as nothing did in 2006: with GRO on it would join again what the sender had cut.".to_owned(),
        "The source's figures stand beside the row of packet ports of which the kernel cuts, as it did in the source: what is measured there is how late the \
         bridge hands on, not the engine's cutting. That has rows and marks of its own."
            .to_owned(),
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

/// Segmentation before the bridge against segmentation at the egress. `make` makes the hosts:
/// [`arrange`].
fn compare(
    session: &Session<'_>,
    experiment: &mut Experiment,
    make: impl FnOnce(&[Vec<Place>], &Cpus) -> Vec<Result<Bridged, LabError>>,
) -> Result<(), LabError> {
    let pairs = pairs(session.plan);
    let places =
        |pair: &Pair| [pair.from.cut_by_its_host(), pair.from].map(|from| vec![from, pair.to]);
    let made = make(&pairs.iter().flat_map(places).collect::<Vec<_>>(), session.cpus);
    let (hosts, comparisons) = comparisons(pairs, made)?;
    let mut variants = Vec::new();
    for comparison in &comparisons {
        let Some(first) = comparison.first else { continue };
        for (hosts, place) in hosts[first..].iter().zip([BEFORE, AT_EGRESS]) {
            session.check()?;
            let load = comparison.pair.load;
            comparison.attempt(|| hosts.greet(&hosts.route(0, 1, ip(load))))?;
            let measure = move || comparison.attempt(|| measure(hosts, 1, load, session.plan.time));
            variants.push(Variant::new(
                format!("gso: {}, cut {place}", comparison.pair.group),
                measure,
            ));
        }
    }
    let mut measured = session.interleaved(&mut variants)?.into_iter();
    drop(variants);
    let mut rows = Vec::new();
    for comparison in comparisons {
        let pair = &comparison.pair;
        let rounds = if comparison.first.is_some() {
            measured.by_ref().take(2).collect()
        } else {
            Vec::new()
        };
        if let Some(reason) = comparison.failed.into_inner() {
            experiment.notes.push(format!("The rows \"{}\" are missing: {reason}.", pair.group));
            experiment.marks.extend(pair.mark.map(|(target, brief)| {
                Mark::unmeasured(mark_name(pair), Side::AtLeast, target, reason)
                    .in_brief(brief, source_gain(pair))
            }));
            continue;
        }
        let rounds: Vec<Vec<Carried>> = rounds
            .into_iter()
            .map(|rounds: Vec<Option<Carried>>| rounds.into_iter().flatten().collect())
            .collect();
        let [before, after] = &rounds[..] else { continue };
        rows.push(Row { source: source(pair, 0), ..row(pair.group, BEFORE, before, None) });
        let late = row(pair.group, AT_EGRESS, after, Some((BEFORE, before)));
        // Datagrams come at a rate that both carry: what differs is what they cost.
        let late = match pair.load {
            Load::Tcp(_) => late,
            Load::Udp => Row {
                ratio: Some(Ratio::paired(BEFORE, "service_demand", &demand(after, before))),
                ..late
            },
        };
        rows.push(Row { source: source(pair, 1), source_ratio: source_gain(pair), ..late });
        if let Some((target, brief)) = pair.mark {
            experiment.marks.push(
                mark(&mark_name(pair), after, before, target).in_brief(brief, source_gain(pair)),
            );
        }
    }
    experiment.tables.push(table(
        "Segmentation before the bridge and at its egress, MTU 1500".into(),
        rows,
        session,
    ));
    Ok(())
}

/// What a comparison's mark is called.
fn mark_name(pair: &Pair) -> String {
    format!("gso: {}, cut {AT_EGRESS} against {BEFORE}", pair.group)
}

/// The source's gain, beside the comparison that is like its own.
fn source_gain(pair: &Pair) -> Option<f64> {
    pair.is_source.then(|| SOURCE_THROUGHPUT[1] / SOURCE_THROUGHPUT[0])
}

/// A comparison that is being made.
#[derive(Debug)]
struct Comparison {
    pair: Pair,
    /// The place of its hosts among all; those of the other variant follow. `None` where they could
    /// not be made.
    first: Option<usize>,
    /// Why it cannot be made. Only those on TAP devices may fail: where a machine has none, the
    /// others are measured nevertheless.
    failed: RefCell<Option<String>>,
}

/// The comparisons, and the hosts of those that can be made: two each, in order.
fn comparisons(
    pairs: Vec<Pair>,
    made: Vec<Result<Bridged, LabError>>,
) -> Result<(Several, Vec<Comparison>), LabError> {
    let (mut hosts, mut comparisons, mut made) = (Several::none(), Vec::new(), made.into_iter());
    for pair in pairs {
        let mut comparison = Comparison { pair, first: None, failed: RefCell::new(None) };
        // Both are taken, also where the first failed.
        let both: Vec<_> = made.by_ref().take(2).collect();
        if let Some(both) =
            comparison.attempt(|| both.into_iter().collect::<Result<Vec<_>, _>>())?
        {
            comparison.first = Some(hosts.len());
            both.into_iter().for_each(|bridged| hosts.push(bridged));
        }
        comparisons.push(comparison);
    }
    Ok((hosts, comparisons))
}

impl Comparison {
    /// Does a part of it; `None` where that fails, or something failed before.
    ///
    /// # Errors
    /// What fails where there are no TAP devices; [`LabError::Cancelled`] everywhere.
    fn attempt<T>(
        &self,
        work: impl FnOnce() -> Result<T, LabError>,
    ) -> Result<Option<T>, LabError> {
        if self.failed.borrow().is_some() {
            return Ok(None);
        }
        match work() {
            Ok(done) => Ok(Some(done)),
            Err(error)
                if [self.pair.from, self.pair.to].iter().all(|place| place.kind != Kind::Tap) =>
            {
                Err(error)
            }
            Err(LabError::Cancelled) => Err(LabError::Cancelled),
            Err(error) => {
                self.failed.replace(Some(error.to_string()));
                Ok(None)
            }
        }
    }
}

/// The source's figure of a row: throughput without GSO, and with it.
fn source(pair: &Pair, place: usize) -> Vec<Option<f64>> {
    if pair.is_source {
        [Some(SOURCE_THROUGHPUT[place])].into_iter().chain([None; spent::COLUMNS.len()]).collect()
    } else {
        Vec::new()
    }
}

/// A bridge of which one port has TSO and one has not: TSO for both, with the fallback; or for
/// none.
fn mixed(session: &Session<'_>) -> Result<Table, LabError> {
    let packet = Place::new(Kind::Packet);
    let ports = [packet, packet.cut_by_the_kernel()];
    let with = [packet, ports[0], ports[1]];
    let hosts =
        Several::new(&[with.map(Place::cut_by_its_host).into(), with.into()], session.cpus)?;
    let groups = [("TSO off on the whole bridge", &hosts[0]), ("with the fallback", &hosts[1])];
    let targets = [(1, "to the port with TSO"), (2, "to the port without")];
    let tcp = Load::Tcp(Ip::V4);
    let mut variants = Vec::new();
    for (group, hosts) in groups {
        for (to, name) in targets {
            hosts.greet(&hosts.route(0, to, Ip::V4))?;
            variants.push(Variant::new(format!("gso: {group}, {name}"), move || {
                measure(hosts, to, tcp, session.plan.time)
            }));
        }
    }
    let measured = session.interleaved(&mut variants)?;
    let rows = measured.iter().enumerate().map(|(place, rounds)| {
        let ((group, _), (_, name)) =
            (groups[place / targets.len()], targets[place % targets.len()]);
        let against =
            place.checked_sub(targets.len()).map(|other| (groups[0].0, &measured[other][..]));
        row(group, name, rounds, against)
    });
    Ok(table(
        "TCPv4 through a bridge of one port with TSO and one without".into(),
        rows.collect(),
        session,
    ))
}

fn table(title: String, rows: Vec<Row>, session: &Session<'_>) -> Table {
    let throughput = Column { name: "throughput", title: "throughput", unit: "Mb/s", digits: 0 };
    let columns = [throughput].into_iter().chain(spent::COLUMNS).collect();
    Table {
        title,
        form: Form::Live,
        columns,
        rows,
        rounds: session.plan.rounds,
        plot: Some(0),
        made: None,
    }
}

fn ip(load: Load) -> Ip {
    if let Load::Tcp(ip) = load { ip } else { Ip::V4 }
}

/// Sends to host number `to` of these for so long.
fn measure(hosts: &Bridged, to: usize, load: Load, time: Duration) -> Result<Carried, LabError> {
    let route = hosts.route(0, to, ip(load));
    match load {
        Load::Tcp(_) => {
            hosts.tcp(&TcpBulk { until: Until::Time(time), ..TcpBulk::default() }, &route)
        }
        // Datagrams that fill a frame, in super-packets of just below 64 KB. Faster, most would be
        // lost: the sooner the less a send call costs.
        Load::Udp => {
            let load = UdpBulk {
                datagram: 1472,
                segments: 44,
                datagrams_per_second: Some(DATAGRAMS),
                time,
                ..UdpBulk::default()
            };
            hosts.udp(&load, &route)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::available_or_skip;
    use crate::experiment::plan::Unwatched;

    const PLAN: Plan = Plan { rounds: 2, time: Duration::from_millis(30), quick: true };

    fn refusal() -> LabError {
        LabError::Invalid { what: "/dev/net/tun".into(), reason: "no such device".into() }
    }

    fn is_tap(places: &[Place]) -> bool {
        places.iter().any(|place| place.kind == Kind::Tap)
    }

    #[test]
    fn without_tap_devices_only_their_rows_are_missing() {
        let mut experiment = Experiment::new(&ENTRY);
        let without = |places: &[Vec<Place>], cpus: &Cpus| {
            let packet: Vec<_> = places.iter().filter(|places| !is_tap(places)).cloned().collect();
            let mut made = arrange(&packet, cpus).into_iter();
            places
                .iter()
                .map(|places| {
                    if is_tap(places) {
                        Err(refusal())
                    } else {
                        made.next().unwrap_or_else(|| Err(refusal()))
                    }
                })
                .collect()
        };
        let done = compare(&Session::new(PLAN, &Unwatched), &mut experiment, without);
        if available_or_skip(done).is_none() {
            return;
        }
        let groups: Vec<_> =
            experiment.tables[0].rows.iter().map(|row| row.group.as_str()).collect();
        let expected = [
            "TCPv4, packet ports, the kernel cuts",
            "TCPv4, packet ports, the engine cuts",
            "TCPv4, linear packet port, the engine cuts",
        ];
        assert_eq!(groups, expected.map(|group| [group; 2]).concat());
        assert!(
            experiment
                .notes
                .iter()
                .filter(|note| note.contains("/dev/net/tun") && note.contains("TAP"))
                .count()
                == 2,
            "{:?}",
            experiment.notes
        );
        let missing: Vec<_> = experiment
            .marks
            .iter()
            .filter(|mark| mark.value.is_none() && mark.spread == [0.0; 2])
            .collect();
        assert_eq!((experiment.marks.len(), missing.len()), (5, 2), "{:?}", experiment.marks);
        for mark in missing {
            assert!(
                mark.met.is_none()
                    && mark.name.contains("TAP")
                    && mark.reason.as_ref().is_some_and(|reason| reason.contains("/dev/net/tun")),
                "{mark:?}"
            );
        }
    }

    #[test]
    fn what_fails_elsewhere_fails_the_experiment_and_the_end_is_the_end() {
        let mut pairs = pairs(PLAN);
        let tap = pairs
            .remove(pairs.iter().position(|pair| is_tap(&[pair.from])).expect("there are some"));
        let comparison = |pair| Comparison { pair, first: None, failed: RefCell::new(None) };
        let (packet, tap) = (comparison(pairs.remove(0)), comparison(tap));
        assert!(packet.attempt(|| Err::<(), _>(refusal())).is_err());
        assert!(matches!(
            tap.attempt(|| Err::<(), _>(LabError::Cancelled)),
            Err(LabError::Cancelled)
        ));
        assert!(matches!(tap.attempt(|| Ok(1)), Ok(Some(1))));
        // In the middle of a measurement too; what comes after is not even tried.
        assert!(matches!(tap.attempt(|| Err::<(), _>(refusal())), Ok(None)));
        assert!(matches!(tap.attempt(|| Ok(1)), Ok(None)));
    }
}
