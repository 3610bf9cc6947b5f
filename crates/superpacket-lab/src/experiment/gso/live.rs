//! Late segmentation between live hosts: kernel TCP and UDP through the bridge.

use std::cell::RefCell;
use std::time::Duration;

use super::{AT_EGRESS, BEFORE, ENTRY, LINEAR_TARGET, SOURCE_THROUGHPUT, TARGET};
use crate::error::LabError;
use crate::experiment::cpu_costs;
use crate::experiment::plan::{Cpus, Plan, Session, Variant};
use crate::experiment::report::{Column, Experiment, Form, Mark, Plot, Ratio, Row, Side, Table};
use crate::experiment::segmentation::hosts::{
    BridgedHosts, BridgedHostsGroup, HostSetup, IpFamily, LoadResult, PortDevice, create_all,
};
use crate::experiment::segmentation::load_rows::{demand, mark, row};
use crate::load::{TcpBulk, UdpBulk, Until};

/// Number of UDP datagrams sent per second, together 0.47 Gb/s.
const DATAGRAMS: f64 = 40_000.0;

/// The traffic that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Tcp(IpFamily),
    Udp,
}

/// The setup of a comparison: a sender, and an egress port that segments the sender's
/// super-packets.
#[derive(Clone, Copy, Debug)]
struct ComparisonSetup {
    group: &'static str,
    load: Traffic,
    from: HostSetup,
    to: HostSetup,
    /// Target for the gain in throughput, and its name in short reports; `None` if there is no
    /// target.
    mark: Option<(f64, &'static str)>,
    /// Whether the original report measured this comparison too, so that its figures can be shown.
    is_source: bool,
    /// Whether only full runs include this comparison.
    full: bool,
}

/// Returns the comparisons to measure, in the order in which the report lists them.
fn pairs(plan: Plan) -> Vec<ComparisonSetup> {
    let (packet, tap) = (HostSetup::new(PortDevice::Packet), HostSetup::new(PortDevice::Tap));
    let (by_kernel, by_engine, tap_by_engine) =
        (packet.segmented_by_kernel(), packet.segmented_by_engine(), tap.segmented_by_engine());
    let pair = |group, load, from, to| ComparisonSetup {
        group,
        load,
        from,
        to,
        mark: None,
        is_source: false,
        full: true,
    };
    let tcp4 = Traffic::Tcp(IpFamily::V4);
    let marked =
        |target, brief, pair| ComparisonSetup { mark: Some((target, brief)), full: false, ..pair };
    let by_kernel_v4 = pair("TCPv4, packet ports, the kernel cuts", tcp4, packet, by_kernel);
    let all = vec![
        ComparisonSetup {
            is_source: true,
            ..marked(TARGET, "packet ports, the kernel cuts", by_kernel_v4)
        },
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
        pair("TCPv6, packet ports, the kernel cuts", Traffic::Tcp(IpFamily::V6), packet, by_kernel),
        pair("TCPv6, TAP ports, the engine cuts", Traffic::Tcp(IpFamily::V6), tap, tap_by_engine),
        pair(
            "UDP, 40,000 datagrams a second, packet ports, the kernel cuts",
            Traffic::Udp,
            packet,
            by_kernel,
        ),
        pair(
            "UDP, 40,000 datagrams a second, TAP ports, the engine cuts",
            Traffic::Udp,
            tap,
            tap_by_engine,
        ),
    ];
    all.into_iter().filter(|pair| !(pair.full && plan.quick)).collect()
}

/// Returns the number of measurements: in every round two per comparison (segmented before the
/// bridge, segmented at the egress), and in a full run four more for the bridge on which only one
/// port has TSO.
pub(super) fn measurements(plan: Plan) -> usize {
    (pairs(plan).len() * 2 + if plan.quick { 0 } else { 4 }) * plan.rounds
}

/// Measures all comparisons.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] if this machine cannot run it,
/// [`LabError::Cancelled`] if it was cancelled.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let mut experiment = Experiment::new(&ENTRY);
    compare(session, &mut experiment, create_all)?;
    if !session.plan.quick {
        experiment.tables.push(mixed(session)?);
    }
    experiment.notes.extend([
        "GRO is off on the bridge, as in 2006: it would merge the sender's segments again.".to_owned(),
        "The source's figures are beside the packet ports whose packets the kernel segments, as in the source. This row shows the effect of late segmentation, not the speed of the engine's \
         segmentation, which has separate rows and marks."
            .to_owned(),
        "Packet ports leave segmentation to the kernel, which does it before the device (\"tso=kernel\", the default): the segments of a super-packet then reach the receiving host together. \
         The engine's segments are sent one by one, and each causes a softirq of the receiving host. This cost is the same before the bridge and at its egress, so that the gain is small. Behind \
         a TAP port there is no kernel that could segment, so the engine does."
            .to_owned(),
        "At a linear port a segment is copied twice: into one piece by the engine, and by the kernel when it is sent.".to_owned(),
        cpu_costs::NOTE.to_owned(),
    ]);
    Ok(experiment)
}

/// Compares segmentation before the bridge with segmentation at the egress. `create` creates the
/// hosts; it is [`create_all`] except in tests.
fn compare(
    session: &Session<'_>,
    experiment: &mut Experiment,
    create: impl FnOnce(&[Vec<HostSetup>], &Cpus) -> Vec<Result<BridgedHosts, LabError>>,
) -> Result<(), LabError> {
    let pairs = pairs(session.plan);
    let setups = |pair: &ComparisonSetup| {
        [pair.from.segmented_by_host(), pair.from].map(|from| vec![from, pair.to])
    };
    let created = create(&pairs.iter().flat_map(setups).collect::<Vec<_>>(), session.cpus);
    let (hosts, comparisons) = comparisons(pairs, created)?;
    let mut variants = Vec::new();
    for comparison in &comparisons {
        let Some(first) = comparison.first else { continue };
        for (hosts, place) in hosts[first..].iter().zip([BEFORE, AT_EGRESS]) {
            session.check()?;
            let load = comparison.pair.load;
            comparison.attempt(|| hosts.warm_up(&hosts.route(0, 1, ip(load))))?;
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
        let rounds: Vec<Vec<LoadResult>> = rounds
            .into_iter()
            .map(|rounds: Vec<Option<LoadResult>>| rounds.into_iter().flatten().collect())
            .collect();
        let [before, after] = &rounds[..] else { continue };
        rows.push(Row { source: source(pair, 0), ..row(pair.group, BEFORE, before, None) });
        let late = row(pair.group, AT_EGRESS, after, Some((BEFORE, before)));
        // Both variants carry the same rate of datagrams, so that their costs are compared.
        let late = match pair.load {
            Traffic::Tcp(_) => late,
            Traffic::Udp => Row {
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
    let title = "Segmentation before the bridge and at its egress, MTU 1500";
    let plot = Plot::Marks(&[0]);
    experiment.tables.push(Table { plot, ..table(title.into(), rows, session) });
    Ok(())
}

/// Returns the name of the `Mark` that compares throughput with the target.
fn mark_name(pair: &ComparisonSetup) -> String {
    format!("gso: {}, cut {AT_EGRESS} against {BEFORE}", pair.group)
}

/// Returns the gain that the original report measured; `None` for a comparison that it lacks.
fn source_gain(pair: &ComparisonSetup) -> Option<f64> {
    pair.is_source.then(|| SOURCE_THROUGHPUT[1] / SOURCE_THROUGHPUT[0])
}

/// The progress of a comparison.
#[derive(Debug)]
struct Comparison {
    pair: ComparisonSetup,
    /// Index of the first variant's hosts among the hosts of all comparisons; those of the second
    /// variant follow. `None` if they could not be created.
    first: Option<usize>,
    /// The reason of a failure. Only comparisons on TAP devices may fail, so that a machine without
    /// them can measure the others.
    failed: RefCell<Option<String>>,
}

/// Collects the comparisons, and the hosts of those that could be created: two each, in order.
fn comparisons(
    pairs: Vec<ComparisonSetup>,
    created: Vec<Result<BridgedHosts, LabError>>,
) -> Result<(BridgedHostsGroup, Vec<Comparison>), LabError> {
    let (mut hosts, mut comparisons, mut created) =
        (BridgedHostsGroup::none(), Vec::new(), created.into_iter());
    for pair in pairs {
        let mut comparison = Comparison { pair, first: None, failed: RefCell::new(None) };
        // Takes both results, even if the first is an error.
        let both: Vec<_> = created.by_ref().take(2).collect();
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
    /// Runs a step of the comparison; returns `None` if it fails or an earlier step failed.
    ///
    /// # Errors
    /// The step's error if the comparison uses no TAP device; [`LabError::Cancelled`] always.
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
                if [self.pair.from, self.pair.to]
                    .iter()
                    .all(|place| place.kind != PortDevice::Tap) =>
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

/// Returns the original report's throughput for a row, without GSO (`place` 0) or with it (`place`
/// 1); empty for a comparison that it lacks.
fn source(pair: &ComparisonSetup, place: usize) -> Vec<Option<f64>> {
    if pair.is_source {
        [Some(SOURCE_THROUGHPUT[place])]
            .into_iter()
            .chain([None; cpu_costs::COLUMNS.len()])
            .collect()
    } else {
        Vec::new()
    }
}

/// Measures a bridge of which one port has TSO and the other has not: with TSO off on the whole
/// bridge, and with TSO kept and a software fallback for the port without it.
fn mixed(session: &Session<'_>) -> Result<Table, LabError> {
    let packet = HostSetup::new(PortDevice::Packet);
    let ports = [packet, packet.segmented_by_kernel()];
    let with = [packet, ports[0], ports[1]];
    let hosts = BridgedHostsGroup::new(
        &[with.map(HostSetup::segmented_by_host).into(), with.into()],
        session.cpus,
    )?;
    let groups = [("TSO off on the whole bridge", &hosts[0]), ("with the fallback", &hosts[1])];
    let targets = [(1, "to the port with TSO"), (2, "to the port without")];
    let tcp = Traffic::Tcp(IpFamily::V4);
    let mut variants = Vec::new();
    for (group, hosts) in groups {
        for (to, name) in targets {
            hosts.warm_up(&hosts.route(0, to, IpFamily::V4))?;
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
    let columns: Vec<_> = [throughput].into_iter().chain(cpu_costs::COLUMNS).collect();
    Table::new(Form::Live, title, &columns, rows, session.plan.rounds)
}

fn ip(load: Traffic) -> IpFamily {
    if let Traffic::Tcp(ip) = load { ip } else { IpFamily::V4 }
}

/// Sends to host number `to` for `time`.
fn measure(
    hosts: &BridgedHosts,
    to: usize,
    load: Traffic,
    time: Duration,
) -> Result<LoadResult, LabError> {
    let route = hosts.route(0, to, ip(load));
    match load {
        Traffic::Tcp(_) => {
            hosts.run_tcp(&TcpBulk { until: Until::Time(time), ..TcpBulk::default() }, &route)
        }
        // Datagrams that fill a frame, in super-packets just below 64 KB. At a higher rate most
        // would be lost, depending on the cost of a send call.
        Traffic::Udp => {
            let load = UdpBulk {
                datagram: 1472,
                segments: 44,
                datagrams_per_second: Some(DATAGRAMS),
                time,
                ..UdpBulk::default()
            };
            hosts.run_udp(&load, &route)
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

    fn is_tap(setups: &[HostSetup]) -> bool {
        setups.iter().any(|place| place.kind == PortDevice::Tap)
    }

    #[test]
    fn without_tap_devices_only_their_rows_are_missing() {
        let mut experiment = Experiment::new(&ENTRY);
        let without = |setups: &[Vec<HostSetup>], cpus: &Cpus| {
            let packet: Vec<_> = setups.iter().filter(|setups| !is_tap(setups)).cloned().collect();
            let mut created = create_all(&packet, cpus).into_iter();
            setups
                .iter()
                .map(|setups| {
                    if is_tap(setups) {
                        Err(refusal())
                    } else {
                        created.next().unwrap_or_else(|| Err(refusal()))
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
        // Also in the middle of a measurement; later steps are not tried.
        assert!(matches!(tap.attempt(|| Err::<(), _>(refusal())), Ok(None)));
        assert!(matches!(tap.attempt(|| Ok(1)), Ok(None)));
    }
}
