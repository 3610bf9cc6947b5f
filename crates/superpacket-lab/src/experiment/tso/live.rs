//! TSO between live hosts: the file is sent by sendfile(2).

use std::sync::Arc;

use superpacket_port::features::Feature;

use super::{
    BETA, BETA_SPEED, Client, ENTRY, FILE, SOURCE_PAYLOAD, SOURCE_SPEED, TARGET, VARIANTS, mark,
};
use crate::error::LabError;
use crate::experiment::cpu_costs;
use crate::experiment::plan::{Plan, Session, Variant};
use crate::experiment::report::{Column, Experiment, Figure, Form, Mark, Plot, Ratio, Row, Table};
use crate::experiment::segmentation::hosts::{
    BridgedHosts, BridgedHostsGroup, HostSetup, IpFamily, LoadResult, PortDevice,
};
use crate::experiment::segmentation::lengths::{
    self, Lengths, histogram, largest_payload, measure_lengths, payload,
};
use crate::experiment::segmentation::load_rows::{self, costs, speed};
use crate::load::{PatternFile, Source, TcpBulk, Until};
use crate::paired::Summary;

/// `gso_max_size` in bytes with which Linux sends at most 11 segments of 1,448 bytes at once: Linux
/// subtracts room for headers (`MAX_TCP_HEADER`), and rounds down to whole segments. The measured
/// frame lengths confirm it.
const GSO_MAX_SIZE: u32 = 16_384;

/// Divisor of the file's size in a quick run.
const QUICK_PART: u64 = 10;

/// Measures all clients and variants.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] if this machine cannot run it,
/// [`LabError::Cancelled`] if it was cancelled.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let plan = session.plan;
    let file = PatternFile::new(if plan.quick { FILE / QUICK_PART } else { FILE }, 3)?;
    let settings = Client::ALL.into_iter().flat_map(|client| {
        let variants = VARIANTS.into_iter().zip(senders()).take(client.variants(plan));
        variants.map(move |(variant, sender)| {
            (format!("tso: {}, {variant}", client.name()), host_setups(sender, client))
        })
    });
    let (names, groups): (Vec<_>, Vec<_>) = settings.unzip();
    let hosts = BridgedHostsGroup::new(&groups, session.cpus)?;
    for hosts in hosts.iter() {
        session.check()?;
        hosts.warm_up(&hosts.route(0, 1, IpFamily::V4))?;
    }
    let mut sizes = Vec::new();
    for hosts in &hosts[..VARIANTS.len()] {
        session.check()?;
        sizes.push(frames(hosts, &file)?);
    }
    let mut variants: Vec<Variant<'_, LoadResult>> = names
        .into_iter()
        .zip(hosts.iter())
        .map(|(name, hosts)| Variant::new(name, || transfer(hosts, &file, file.size())))
        .collect();
    let measured = session.interleaved(&mut variants)?;

    let mut experiment = Experiment::new(&ENTRY);
    // As in the original report, the first half is a warm-up; with few transfers all count.
    let last = if plan.rounds >= 6 { plan.rounds / 2 } else { plan.rounds };
    let mut rows = Vec::new();
    let mut measured = measured.iter().map(|rounds| &rounds[rounds.len() - last..]);
    for client in Client::ALL {
        let rounds: Vec<&[LoadResult]> = measured.by_ref().take(client.variants(plan)).collect();
        rows.extend(client_rows(client, &rounds));
        experiment.marks.extend(client_marks(client, &rounds));
    }
    rows.extend(beta_rows());
    experiment.tables.push(speed_table(plan, file.size(), last, rows));
    let seen = observed_shares(&sizes, file.size());
    experiment.tables.push(length_table(&sizes, &seen));
    experiment.notes.push(format!(
        "The histogram was {seen}, in the order of its settings. A packet socket on the sender's port counts the frames, and misses those that exceed its buffer."
    ));
    experiment.notes.extend(notes(largest_payload(&sizes[1])));
    Ok(experiment)
}

/// Returns the rows of a client, one per variant.
fn client_rows(client: Client, rounds: &[&[LoadResult]]) -> Vec<Row> {
    let row = |(variant, loads): (usize, &&[LoadResult])| Row {
        group: client.name().into(),
        name: VARIANTS[variant].into(),
        figures: speeds(loads).into_iter().chain(costs(loads)).collect(),
        source: SOURCE_SPEED
            .get(variant)
            .filter(|_| client == Client::Wire)
            .map_or_else(Vec::new, |speeds| source(*speeds)),
        ratio: (variant != 0)
            .then(|| Ratio::paired(VARIANTS[0], "average", &speed(loads, rounds[0]))),
        source_ratio: source_ratio(client, variant),
        full_cpu: None,
    };
    rounds.iter().enumerate().map(row).collect()
}

/// Returns a client's comparisons with targets: each variant with TSO against the one without.
fn client_marks(client: Client, rounds: &[&[LoadResult]]) -> Vec<Mark> {
    let mark = |(variant, loads): (usize, &&[LoadResult])| {
        let mark = load_rows::mark(&mark(client, variant), loads, rounds[0], TARGET);
        mark.in_brief(client.briefs()[variant - 1], source_ratio(client, variant))
    };
    rounds.iter().enumerate().skip(1).map(mark).collect()
}

/// Returns the original report's ratio of the speeds with TSO on and off; `None` for a row that it
/// lacks.
fn source_ratio(client: Client, variant: usize) -> Option<f64> {
    let has_source = client == Client::Wire && variant == 1;
    has_source.then(|| SOURCE_SPEED[1][0] / SOURCE_SPEED[0][0])
}

/// Returns the rows of the original report's client Beta, which have no measured figures.
fn beta_rows() -> impl Iterator<Item = Row> {
    BETA_SPEED.into_iter().zip(VARIANTS).enumerate().map(|(variant, (speeds, name))| Row {
        group: BETA.into(),
        name: name.into(),
        figures: vec![None; 2 + cpu_costs::COLUMNS.len()],
        source: source(speeds),
        ratio: None,
        source_ratio: (variant == 1).then(|| BETA_SPEED[1][0] / BETA_SPEED[0][0]),
        full_cpu: None,
    })
}

/// Returns the table of speeds, from the last `last` transfers of `size` bytes with each setting.
fn speed_table(plan: Plan, size: u64, last: usize, rows: Vec<Row>) -> Table {
    let speed = |name, title| Column { name, title, unit: "MB/s", digits: 1 };
    let columns = [speed("average", "average speed"), speed("best", "max speed")]
        .into_iter()
        .chain(cpu_costs::COLUMNS)
        .collect();
    let which = if last == plan.rounds {
        format!("all {last}")
    } else {
        format!("the last {last} of {}", plan.rounds)
    };
    let part = if plan.quick { "a tenth of the source's file, " } else { "" };
    let title =
        format!("{part}{size} bytes by sendfile, {} transfers with each setting", plan.rounds);
    let made = format!(
        "measured: average and best of {which} transfers, with their quartiles; CPU and us/KB are medians"
    );
    Table {
        title,
        form: Form::Live,
        columns,
        rows,
        rounds: last,
        plot: Plot::Marks(&[0]),
        made: Some(made),
    }
}

/// Describes how the frame lengths were measured, and which share of the file's bytes was in the
/// counted frames of each variant.
fn observed_shares(sizes: &[Lengths], size: u64) -> String {
    // More than 100 % means retransmissions.
    let share = |sizes: &Lengths| format!("{:.1} %", payload(sizes) as f64 / size as f64 * 100.0);
    let shares = sizes.iter().map(share).collect::<Vec<_>>().join(", ");
    format!(
        "measured once, over a whole transfer of {size} bytes: the counted frames hold {shares} of them"
    )
}

/// Returns the table of frame lengths, which `made` describes.
fn length_table(sizes: &[Lengths], made: &str) -> Table {
    let rows =
        sizes.iter().zip(VARIANTS).flat_map(|(sizes, variant)| histogram(variant, sizes)).collect();
    let title = format!(
        "Payload of the frames that the sender's device gave to the port, in a transfer of its own to the {}",
        Client::Wire.name()
    );
    let table = Table::new(Form::Live, title, &lengths::COLUMNS, rows, 1);
    Table { made: Some(made.into()), ..table }
}

/// Returns the sender's settings, in the order of [`VARIANTS`].
fn senders() -> [HostSetup; 3] {
    let packet = HostSetup::new(PortDevice::Packet);
    [packet.segmented_by_host(), HostSetup { gso_max_size: Some(GSO_MAX_SIZE), ..packet }, packet]
}

/// Returns the settings of both hosts, for this sender and this kind of client.
fn host_setups(sender: HostSetup, client: Client) -> Vec<HostSetup> {
    let receiver = HostSetup::new(PortDevice::Packet);
    // The device in front of the client has no TSO. The kernel segments before it, and frames of
    // the MTU arrive.
    let wire = receiver.segmented_by_kernel();
    let with_gro = |setup: HostSetup, gro_past_push| {
        let features = setup.features.with(Feature::GenericReceiveOffload);
        HostSetup { features, gro_past_push, ..setup }
    };
    match client {
        Client::Wire => vec![sender, wire],
        Client::Whole => vec![sender, receiver],
        Client::Gro => vec![with_gro(sender, false), with_gro(wire, false)],
        Client::GroPastPush => vec![with_gro(sender, true), with_gro(wire, true)],
    }
}

/// Sends `bytes` of the file.
fn transfer(
    hosts: &BridgedHosts,
    file: &Arc<PatternFile>,
    bytes: u64,
) -> Result<LoadResult, LabError> {
    let load = TcpBulk {
        source: Source::File(Arc::clone(file)),
        until: Until::Bytes(bytes),
        ..TcpBulk::default()
    };
    hosts.run_tcp(&load, &hosts.route(0, 1, IpFamily::V4))
}

/// Sends the file once, and returns the lengths of the frames that arrive at the sender's port.
fn frames(hosts: &BridgedHosts, file: &Arc<PatternFile>) -> Result<Lengths, LabError> {
    let Some(port) = &hosts.bridge_links[0] else {
        return Err(LabError::Invalid {
            what: "a TAP device".into(),
            reason: "it has no other side to be watched".into(),
        });
    };
    Ok(measure_lengths(port, || transfer(hosts, file, file.size()))?.1)
}

/// Returns the average and the best speed, in 10^6 bytes per second.
fn speeds(loads: &[LoadResult]) -> [Option<Figure>; 2] {
    let all = Summary::of(loads, |load| load.megabytes);
    let average = loads.iter().map(|load| load.megabytes).sum::<f64>() / loads.len().max(1) as f64;
    [
        Some(Figure { value: average, low: all.lower_quartile, high: all.upper_quartile }),
        Some(Figure::exact(all.greatest)),
    ]
}

/// Returns the original report's figures for the columns of a row; it has no CPU usage.
fn source(speeds: [f64; 2]) -> Vec<Option<f64>> {
    speeds.into_iter().map(Some).chain([None; cpu_costs::COLUMNS.len()]).collect()
}

fn notes(largest: u32) -> Vec<String> {
    vec![
        "The source's figures beside the measured ones are of its client Alpha (dual Opteron 248), for which TSO on meant 15,928 bytes. Its client Beta (quad Opteron 848) was another type of \
         machine, which is not available here: only the source's figures are shown. The source measured no CPU usage, and had a wire of 1 Gb/s between its hosts."
            .to_owned(),
        "\"Behind a wire of 1500 bytes\": the device in front of the client has no TSO, so that frames of the MTU arrive in each case. A client that takes super-packets receives them whole, as \
         virtual machines do. The bridge aggregates only where the row says so."
            .to_owned(),
        "Linux sets PSH on each super-packet, and by default packets with PSH merge no further. With gro_past_push (off by default) they do, but the positions of PSH are lost: after \
         segmentation only the last segment has it."
            .to_owned(),
        format!(
            "15,928 bytes ({SOURCE_PAYLOAD} = 11 x 1448) result from a gso_max_size of {GSO_MAX_SIZE} bytes on the sender's device; the largest observed payload was then {largest} bytes. \
             The source does not say why its card received no more and why TSO was slower, and these runs do not show it."
        ),
        cpu_costs::NOTE.to_owned(),
    ]
}
