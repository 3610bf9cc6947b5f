//! The savings of late segmentation on model NICs: packets through the bridge, bytes copied,
//! checksums and wake-ups.

use superpacket_model::nic::{NicSettings, TsoLimit};

use super::{AT_EGRESS, BEFORE, ENTRY};
use crate::error::LabError;
use crate::experiment::report::{Column, Experiment, Form, Mark, Ratio, Row, Side, Table};
use crate::experiment::segmentation::forwarding::{CardOutput, forward};
use crate::experiment::segmentation::stack::{SenderStack, StackProtocol};

/// Number of super-packets per stream.
const SUPER_PACKETS: u64 = 64;

const COLUMNS: [Column; 8] = [
    Column::count("parsed", "through the bridge: headers parsed"),
    Column::count("wakes", "wake-ups"),
    Column::count("segments", "cut by the engine"),
    Column::count("sent", "given to the card"),
    Column::count("copied", "bytes copied"),
    Column::count("sums", "checksums by the engine"),
    Column::count("card_sums", "checksums by the card"),
    Column::count("frames", "frames on the wire"),
];

/// Returns the settings of a card without TSO.
fn without_tso() -> NicSettings {
    NicSettings { tso: TsoLimit::Off, uso: false, ..NicSettings::default() }
}

/// Counters of one stream through the bridge.
#[derive(Clone, Debug)]
struct StreamCounts {
    handled: u64,
    wakes: u64,
    exit: CardOutput,
    /// Number of checksums that the engine computed.
    sums: u64,
}

/// Sends the payload of 64 super-packets to host number `to`: as super-packets if `whole`,
/// otherwise segmented by the sender.
fn forward_stream(
    transport: StackProtocol,
    cards: &[NicSettings],
    to: u8,
    whole: bool,
) -> Result<StreamCounts, LabError> {
    let bytes = SUPER_PACKETS * transport.longest() as u64;
    let stack = SenderStack::new(transport, to, bytes, if whole { transport.longest() } else { 0 });
    let mut counts = forward(stack, cards, |_, _| ())?;
    let place = usize::from(to) - 2;
    let exit = counts.exits.swap_remove(place);
    let sums = exit.filled + if cards[place].checksums { 0 } else { exit.segments };
    Ok(StreamCounts { handled: counts.handled, wakes: counts.wakes, exit, sums })
}

impl StreamCounts {
    fn row(&self, group: &str, name: &str, against: Option<(&str, &StreamCounts)>) -> Row {
        let Self { handled, wakes, exit, sums } = self;
        let card_sums = exit.card.tx_filled + exit.card.tx_segments;
        let figures = [
            *handled,
            *wakes,
            exit.segments,
            exit.sent.packets,
            exit.sent.copied,
            *sums,
            card_sums,
            exit.frames,
        ];
        Row {
            ratio: against.map(|(name, other)| {
                Ratio::exact(name, "parsed", *handled as f64 / other.handled as f64)
            }),
            ..Row::counts(group, name, figures)
        }
    }
}

fn table(title: String, rows: Vec<Row>) -> Table {
    Table::new(Form::Model, title, &COLUMNS, rows, 1)
}

/// Counts for all transport protocols and cards.
///
/// # Errors
/// [`LabError::System`] if the process has no more file descriptors.
pub(super) fn run() -> Result<Experiment, LabError> {
    let gathering = without_tso();
    let linear = NicSettings { scatter_gather: false, ..gathering };
    let bare = NicSettings { checksums: false, ..linear };
    let (mut rows, mut most) = (Vec::new(), 0);
    for transport in StackProtocol::ALL {
        for (card, kind) in
            [(gathering, "scatter/gather"), (linear, "linear"), (bare, "linear, no checksums")]
        {
            let before = forward_stream(transport, &[card], 2, false)?;
            let after = forward_stream(transport, &[card], 2, true)?;
            let group = format!("{}, {kind}", transport.name());
            rows.push(before.row(&group, BEFORE, None));
            rows.push(after.row(&group, AT_EGRESS, Some((BEFORE, &before))));
            most = most.max(after.handled);
        }
    }
    // With every protocol and card, super-packets segmented at the egress cross the bridge whole.
    let name =
        "gso: packets through the bridge for each super-packet that is cut at the egress, at most";
    let mark =
        Mark::exact(name, Form::Model, most as f64 / SUPER_PACKETS as f64, Side::AtMost, 1.0);
    let marks = vec![mark.in_brief("counted: packets a super-packet", None)];
    let streams = table(
        format!("{SUPER_PACKETS} super-packets of 64 KB to a card without TSO, MTU 1500"),
        rows,
    );
    let note = "DCCP is only counted, because current kernels no longer support it.";
    Ok(Experiment {
        tables: vec![streams, mixed()?],
        marks,
        notes: vec![note.into()],
        ..Experiment::new(&ENTRY)
    })
}

const WITHOUT: &str = "TSO off on the whole bridge";

/// Counts packets through a bridge of which one card has TSO and the other has not.
fn mixed() -> Result<Table, LabError> {
    let cards = [NicSettings::default(), without_tso()];
    let mut rows = Vec::new();
    for (to, name) in [(2, "to the card with TSO"), (3, "to the card without")] {
        let without = forward_stream(StackProtocol::Tcp4, &cards, to, false)?;
        let with = forward_stream(StackProtocol::Tcp4, &cards, to, true)?;
        rows.push(without.row(name, WITHOUT, None));
        rows.push(with.row(name, "with the fallback", Some((WITHOUT, &without))));
    }
    Ok(table(
        format!(
            "{SUPER_PACKETS} super-packets of 64 KB of TCPv4 through a bridge of one card with TSO and one without"
        ),
        rows,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name of each row, with its group, and the row's counts.
    fn counts(table: &Table) -> Vec<(String, Vec<u64>)> {
        let counts =
            |row: &Row| row.figures.iter().flatten().map(|figure| figure.value as u64).collect();
        table.rows.iter().map(|row| (format!("{}: {}", row.group, row.name), counts(row))).collect()
    }

    #[test]
    fn cutting_late_costs_what_it_should() {
        let experiment = run().expect("memory is there");
        let rows = counts(&experiment.tables[0]);
        // Protocol, segments per super-packet, length of a frame, and length of its headers.
        let transports = [
            ("TCPv4", 45, 1514, 66),
            ("TCPv6", 45, 1514, 86),
            ("UDP", 44, 1514, 42),
            ("DCCP", 44, 1514, 50),
        ];
        let mut expected = Vec::new();
        for (name, each, frame, headers) in transports {
            let all = 64 * each;
            // Packets through the bridge, wake-ups, segments, packets given to the card, bytes
            // copied, checksums by the engine and by the card, frames.
            for (kind, before, after) in [
                (
                    "scatter/gather",
                    [all, each, 0, all, 0, 0, all, all],
                    [64, 1, all, all, all * headers, 0, all, all],
                ),
                (
                    "linear",
                    [all, each, 0, all, 0, 0, all, all],
                    [64, 1, all, all, all * frame, 0, all, all],
                ),
                (
                    "linear, no checksums",
                    [all, each, 0, all, all * frame, all, 0, all],
                    [64, 1, all, all, all * frame, all, 0, all],
                ),
            ] {
                expected.push((format!("{name}, {kind}: {BEFORE}"), before.to_vec()));
                expected.push((format!("{name}, {kind}: {AT_EGRESS}"), after.to_vec()));
            }
        }
        assert_eq!(rows, expected);
        let marks: Vec<_> = experiment.marks.iter().map(|mark| (mark.value, mark.met)).collect();
        assert_eq!(marks, [(Some(1.0), Some(true))]);
    }

    #[test]
    fn one_port_without_tso_does_not_cost_the_others_theirs() {
        let table = mixed().expect("memory is there");
        let all = 64 * 45;
        let (with_tso, without) = ("to the card with TSO", "to the card without");
        let cut_before = [all, 45, 0, all, 0, 0, all, all];
        let expected = [
            (with_tso, WITHOUT, cut_before),
            // The card segments; no byte is copied before it.
            (with_tso, "with the fallback", [64, 1, 0, 64, 0, 0, all, all]),
            (without, WITHOUT, cut_before),
            (without, "with the fallback", [64, 1, all, all, all * 66, 0, all, all]),
        ];
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(to, name, counts)| (format!("{to}: {name}"), counts.to_vec()))
            .collect();
        assert_eq!(counts(&table), expected);
    }
}
