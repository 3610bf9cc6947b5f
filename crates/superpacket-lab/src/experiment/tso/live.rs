//! The file, sent between hosts by sendfile(2).

use std::sync::Arc;

use superpacket_port::features::Feature;

use super::{
    BETA, BETA_SPEED, Client, ENTRY, FILE, SOURCE_PAYLOAD, SOURCE_SPEED, TARGET, VARIANTS, mark,
};
use crate::error::LabError;
use crate::experiment::plan::{Session, Variant};
use crate::experiment::report::{Column, Experiment, Figure, Form, Ratio, Row, Table};
use crate::experiment::segmentation::bridged::{Bridged, Carried, Ip, Kind, Place, Several};
use crate::experiment::segmentation::carried::{self, costs, speed, summed};
use crate::experiment::segmentation::lengths::{
    self, Lengths, histogram, largest_payload, payload, while_doing,
};
use crate::experiment::spent;
use crate::load::{PatternFile, Source, TcpBulk, Until};

/// `gso_max_size` in bytes with which Linux sends at most 11 segments of 1,448 bytes at once: it
/// leaves room for headers (`MAX_TCP_HEADER`) and takes whole segments of the rest. Whether it does
/// is seen by the frames.
const GSO_MAX_SIZE: u32 = 16_384;

/// A quick run sends a part of the file.
const QUICK_PART: u64 = 10;

/// Measures it.
///
/// # Errors
/// [`LabError::Forbidden`] and [`LabError::Unsupported`] where this machine cannot,
/// [`LabError::Cancelled`] when its end was asked for.
pub(super) fn run(session: &Session<'_>) -> Result<Experiment, LabError> {
    let plan = session.plan;
    let file = PatternFile::new(if plan.quick { FILE / QUICK_PART } else { FILE }, 3)?;
    let settings = Client::ALL.into_iter().flat_map(|client| {
        let variants = VARIANTS.into_iter().zip(senders()).take(client.variants(plan));
        variants.map(move |(variant, sender)| {
            (format!("tso: {}, {variant}", client.name()), arrange(sender, client))
        })
    });
    let (names, arrangements): (Vec<_>, Vec<_>) = settings.unzip();
    let hosts = Several::new(&arrangements, session.cpus)?;
    for hosts in hosts.iter() {
        session.check()?;
        hosts.greet(&hosts.route(0, 1, Ip::V4))?;
    }
    let mut sizes = Vec::new();
    for hosts in &hosts[..VARIANTS.len()] {
        session.check()?;
        sizes.push(frames(hosts, &file)?);
    }
    let mut variants: Vec<Variant<'_, Carried>> = names
        .into_iter()
        .zip(hosts.iter())
        .map(|(name, hosts)| Variant::new(name, || transfer(hosts, &file, file.size())))
        .collect();
    let measured = session.interleaved(&mut variants)?;

    let mut experiment = Experiment::new(&ENTRY);
    // As in the source, the first half is for warming up; of few transfers all are needed.
    let last = if plan.rounds >= 6 { plan.rounds / 2 } else { plan.rounds };
    let mut rows = Vec::new();
    let mut measured = measured.iter().map(|rounds| &rounds[rounds.len() - last..]);
    for client in Client::ALL {
        let rounds: Vec<&[Carried]> = measured.by_ref().take(client.variants(plan)).collect();
        let is_source = client == Client::Wire;
        for (variant, loads) in rounds.iter().enumerate() {
            let paired = speed(loads, rounds[0]);
            rows.push(Row {
                group: client.name().into(),
                name: VARIANTS[variant].into(),
                figures: speeds(loads).into_iter().chain(costs(loads)).collect(),
                source: SOURCE_SPEED
                    .get(variant)
                    .filter(|_| is_source)
                    .map_or_else(Vec::new, |speeds| source(*speeds)),
                ratio: (variant != 0).then(|| Ratio::paired(VARIANTS[0], "average", &paired)),
                source_ratio: (is_source && variant == 1)
                    .then(|| SOURCE_SPEED[1][0] / SOURCE_SPEED[0][0]),
            });
            if variant != 0 {
                let mark = carried::mark(&mark(client, variant), loads, rounds[0], TARGET);
                let slower =
                    (is_source && variant == 1).then(|| SOURCE_SPEED[1][0] / SOURCE_SPEED[0][0]);
                experiment.marks.push(mark.in_brief(client.briefs()[variant - 1], slower));
            }
        }
    }
    rows.extend(BETA_SPEED.into_iter().zip(VARIANTS).enumerate().map(
        |(variant, (speeds, name))| Row {
            group: BETA.into(),
            name: name.into(),
            figures: vec![None; 2 + spent::COLUMNS.len()],
            source: source(speeds),
            ratio: None,
            source_ratio: (variant == 1).then(|| BETA_SPEED[1][0] / BETA_SPEED[0][0]),
        },
    ));
    let speed = |name, title| Column { name, title, unit: "MB/s", digits: 1 };
    let columns = [speed("average", "average speed"), speed("best", "max speed")]
        .into_iter()
        .chain(spent::COLUMNS)
        .collect();
    let which = if last == plan.rounds {
        format!("all {last}")
    } else {
        format!("the last {last} of {}", plan.rounds)
    };
    let part = if plan.quick { "a tenth of the source's file, " } else { "" };
    let title = format!(
        "{part}{} bytes by sendfile, {} transfers with each setting",
        file.size(),
        plan.rounds
    );
    let made = format!(
        "measured, average and best of {which} transfers, and between what half of these lie; CPU and us/KB are their medians"
    );
    experiment.tables.push(Table {
        title,
        form: Form::Live,
        columns,
        rows,
        rounds: last,
        plot: Some(0),
        made: Some(made),
    });
    let rows =
        sizes.iter().zip(VARIANTS).flat_map(|(sizes, variant)| histogram(variant, sizes)).collect();
    let title = format!(
        "Payload of the frames that the sender's device gave to the port, in a transfer of its own to the {}",
        Client::Wire.name()
    );
    // More than all: what was sent again.
    let seen =
        |sizes: &Lengths| format!("{:.1} %", payload(sizes) as f64 / file.size() as f64 * 100.0);
    let seen = sizes.iter().map(seen).collect::<Vec<_>>().join(", ");
    let made = format!(
        "measured once, over the whole of a transfer of {} bytes: the frames seen hold {seen} of them",
        file.size()
    );
    experiment.tables.push(Table {
        title,
        form: Form::Live,
        columns: lengths::COLUMNS.into(),
        rows,
        rounds: 1,
        plot: None,
        made: Some(made.clone()),
    });
    experiment.notes.push(format!(
        "The histogram was {made}, in the order of its settings. It is taken by a packet socket that watches the sender's port; frames for which that has no room are missed."
    ));
    experiment.notes.extend(notes(largest_payload(&sizes[1])));
    Ok(experiment)
}

/// The sender's settings, in the order of [`VARIANTS`].
fn senders() -> [Place; 3] {
    let packet = Place::new(Kind::Packet);
    [packet.cut_by_its_host(), Place { gso_max_size: Some(GSO_MAX_SIZE), ..packet }, packet]
}

/// The sender, and a client of this kind.
fn arrange(sender: Place, client: Client) -> Vec<Place> {
    let receiver = Place::new(Kind::Packet);
    // The device in front of the client has no TSO: the kernel cuts right before it, and frames of
    // the MTU arrive.
    let wire = receiver.cut_by_the_kernel();
    let with_gro = |place: Place, gro_past_push| {
        let features = place.features.with(Feature::GenericReceiveOffload);
        Place { features, gro_past_push, ..place }
    };
    match client {
        Client::Wire => vec![sender, wire],
        Client::Whole => vec![sender, receiver],
        Client::Gro => vec![with_gro(sender, false), with_gro(wire, false)],
        Client::GroPastPush => vec![with_gro(sender, true), with_gro(wire, true)],
    }
}

/// Sends so much of the file.
fn transfer(hosts: &Bridged, file: &Arc<PatternFile>, bytes: u64) -> Result<Carried, LabError> {
    let load = TcpBulk {
        source: Source::File(Arc::clone(file)),
        until: Until::Bytes(bytes),
        ..TcpBulk::default()
    };
    hosts.tcp(&load, &hosts.route(0, 1, Ip::V4))
}

/// The lengths of the frames that arrive at the sender's port while the file is sent once.
fn frames(hosts: &Bridged, file: &Arc<PatternFile>) -> Result<Lengths, LabError> {
    let Some(port) = &hosts.sides[0] else {
        return Err(LabError::Invalid {
            what: "a TAP device".into(),
            reason: "it has no other side to be watched".into(),
        });
    };
    Ok(while_doing(port, || transfer(hosts, file, file.size()))?.1)
}

/// The average and the best speed in 10^6 bytes a second.
fn speeds(loads: &[Carried]) -> [Option<Figure>; 2] {
    let all = summed(loads, |load| load.megabytes);
    let average = loads.iter().map(|load| load.megabytes).sum::<f64>() / loads.len().max(1) as f64;
    [
        Some(Figure { value: average, low: all.lower_quartile, high: all.upper_quartile }),
        Some(Figure::exact(all.greatest)),
    ]
}

/// The source's figures as a row has them: it measured no CPU.
fn source(speeds: [f64; 2]) -> Vec<Option<f64>> {
    speeds.into_iter().map(Some).chain([None; spent::COLUMNS.len()]).collect()
}

fn notes(largest: u32) -> Vec<String> {
    vec![
        "The source's figures beside those measured here are of its client Alpha (dual Opteron 248), with which TSO on was of 15,928 bytes. Its client Beta was a machine of another kind \
         (quad Opteron 848): a second host of this machine would be the first again, so that only the source's figures stand there. The source measured no CPU, and between its hosts was a wire of \
         1 Gb/s."
            .to_owned(),
        "Behind a wire of 1500 bytes the device in front of the client has no TSO, so that frames of the MTU arrive whatever was sent; a client that takes \
         super-packets gets them whole, as virtual machines do. The bridge aggregates nothing, but where it is said."
            .to_owned(),
        "Linux sets PSH on each super-packet, and what has it merges no further by default. With gro_past_push, off by default, it does; given up is where PSH was: what is cut again has it on \
         its last segment only."
            .to_owned(),
        format!(
            "15,928 bytes ({SOURCE_PAYLOAD} = 11 x 1448) are asked for by a gso_max_size of {GSO_MAX_SIZE} bytes on the sender's device; the largest payload then \
             seen was {largest} bytes. Why the source's card was given no more, and why TSO was slower there, its text does not say, and these runs do not show."
        ),
        spent::NOTE.to_owned(),
    ]
}
