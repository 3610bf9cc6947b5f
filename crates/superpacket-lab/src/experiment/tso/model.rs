//! TSO on the model NIC, with a part of the same file: counters of the stack, the card and the
//! wire.

use superpacket_model::nic::{NicSettings, TsoLimit};

use super::{ENTRY, FILE, SOURCE_PAYLOAD, VARIANTS};
use crate::error::LabError;
use crate::experiment::report::{Column, Experiment, Form, Mark, Plot, Ratio, Row, Side, Table};
use crate::experiment::segmentation::forwarding::{CardOutput, ForwardingCounts, forward, send};
use crate::experiment::segmentation::lengths::{self, histogram, largest_payload};
use crate::experiment::segmentation::stack::{SenderStack, StackProtocol};

/// Number of payload bytes sent: a part of the original report's file.
const PART: u64 = FILE / 64;

const COLUMNS: [Column; 6] = [
    Column::count("sent", "packets of the stack"),
    Column::count("largest", "largest payload"),
    Column::count("wakes", "wake-ups of the card"),
    Column::count("segments", "cut by the card"),
    Column::count("card_sums", "checksums by the card"),
    Column::count("frames", "frames on the wire"),
];

/// Columns of the table for the path through the bridge, between sender and card.
const BRIDGED: [Column; 10] = [
    Column::count("parsed", "through the bridge: headers parsed"),
    Column::count("wakes", "wake-ups"),
    Column::count("segments", "made by the engine"),
    Column::count("sent", "given to the card"),
    Column::count("largest", "largest payload"),
    Column::count("copied", "bytes copied"),
    Column::count("sums", "checksums by the engine"),
    Column::count("card_segments", "cut by the card"),
    Column::count("card_sums", "checksums by the card"),
    Column::count("frames", "frames on the wire"),
];

/// TSO limit of each variant's card, and maximum payload of its host's packets.
const CARDS: [(TsoLimit, usize); 3] = [
    (TsoLimit::Off, 0),
    (TsoLimit::Payload(SOURCE_PAYLOAD), SOURCE_PAYLOAD as usize),
    (TsoLimit::Full, usize::MAX),
];

/// Maximum payload per packet in bytes, by variant: whole segments of 1,448 bytes.
const LARGEST: [u64; 3] = [1_448, SOURCE_PAYLOAD as u64, 45 * 1_448];

/// Names that short reports show for the comparisons of packet counts with the smallest possible
/// count.
const COUNTED: [&str; 2] = ["packets of 15,928 bytes over fewest", "packets of 64 KB over fewest"];

fn card(tso: TsoLimit) -> NicSettings {
    NicSettings { tso, ..NicSettings::default() }
}

/// Sends the part of the file with each variant.
fn send_all() -> Result<Vec<CardOutput>, LabError> {
    CARDS
        .map(|(tso, largest)| {
            send(SenderStack::new(StackProtocol::Tcp4, 2, PART, largest), &card(tso), |_| ())
        })
        .into_iter()
        .collect()
}

/// Sends the part of the file in super-packets of 64 KB through a bridge to each variant's card.
fn forward_all() -> Result<Vec<ForwardingCounts>, LabError> {
    let pass = |(tso, _)| {
        forward(SenderStack::new(StackProtocol::Tcp4, 2, PART, usize::MAX), &[card(tso)], |_, _| ())
    };
    CARDS.map(pass).into_iter().collect()
}

/// Sends with all variants, and returns the counters as tables.
///
/// # Errors
/// [`LabError::System`] if the process has no more file descriptors.
pub(super) fn run() -> Result<Experiment, LabError> {
    let exits = send_all()?;
    let off = exits[0].sent.packets as f64;
    let mut experiment = Experiment::new(&ENTRY);
    let mut rows = Vec::new();
    for (variant, exit) in exits.iter().enumerate() {
        let CardOutput { sent, card, frames, .. } = exit;
        let largest = u64::from(largest_payload(&sent.lengths));
        let figures = [
            sent.packets,
            largest,
            sent.calls,
            card.tx_segments,
            card.tx_segments + card.tx_filled,
            *frames,
        ];
        let ratio =
            (variant != 0).then(|| Ratio::exact(VARIANTS[0], "sent", sent.packets as f64 / off));
        rows.push(Row { ratio, ..Row::counts("", VARIANTS[variant], figures) });
        if variant != 0 {
            // The minimum number of packets of the card's largest size that hold the file.
            let fewest = PART.div_ceil(LARGEST[variant]);
            let name = format!(
                "tso: packets of the stack, {}, over the fewest that hold the file",
                VARIANTS[variant]
            );
            let mark = Mark::exact(
                name,
                Form::Model,
                sent.packets as f64 / fewest as f64,
                Side::AtMost,
                1.0,
            );
            experiment.marks.push(mark.in_brief(COUNTED[variant - 1], None));
        }
    }
    let table =
        |title: &str, columns: &[Column], rows| Table::new(Form::Model, title, columns, rows, 1);
    let sizes = exits
        .iter()
        .zip(VARIANTS)
        .flat_map(|(exit, variant)| histogram(variant, &exit.sent.lengths))
        .collect();
    let title = format!("A 64th of the file ({PART} bytes) to a model NIC, MTU 1500");
    let plot = Plot::Marks(&[0]);
    experiment.tables.push(Table { plot, ..table(&title, &COLUMNS, rows) });
    experiment.tables.push(table(
        "Payload of the frames given to the model NIC",
        &lengths::COLUMNS,
        sizes,
    ));
    let rows = forward_all()?
        .iter()
        .zip(VARIANTS)
        .map(|(counts, variant)| Row::counts("", variant, bridged(counts)))
        .collect();
    let title = "The same, sent in super-packets of 64 KB through a bridge to a model NIC with these settings";
    experiment.tables.push(table(title, &BRIDGED, rows));
    Ok(experiment)
}

/// Returns one count for each of the columns [`BRIDGED`].
fn bridged(counts: &ForwardingCounts) -> [u64; 10] {
    let ForwardingCounts { handled, wakes, exits } = counts;
    let exit = &exits[0];
    let (sent, card) = (&exit.sent, &exit.card);
    let largest = u64::from(largest_payload(&sent.lengths));
    let card_sums = card.tx_segments + card.tx_filled;
    // The cards fill in checksums; the engine does so only for packets that it did not segment.
    [
        *handled,
        *wakes,
        exit.segments,
        sent.packets,
        largest,
        sent.copied,
        exit.filled,
        card.tx_segments,
        card_sums,
        exit.frames,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_has_the_same_frames_and_the_stack_fewer_packets() {
        let exits = send_all().expect("memory is there");
        let segments = PART.div_ceil(1448);
        assert_eq!((PART, segments), (10_397_408, 7_181));
        let shown = |exit: &CardOutput| {
            (exit.sent.packets, largest_payload(&exit.sent.lengths), exit.sent.calls)
        };
        assert_eq!(
            exits.iter().map(shown).collect::<Vec<_>>(),
            [(7_181, 1_448, 113), (653, 15_928, 11), (160, 65_160, 3)]
        );
        for exit in &exits {
            assert_eq!(
                (exit.frames, exit.digest),
                (segments, exits[0].digest),
                "the same bytes on the wire"
            );
            assert_eq!(
                exit.card.tx_filled + exit.card.tx_segments,
                segments,
                "every checksum is the card's"
            );
        }
        assert_eq!(exits.iter().map(|exit| exit.card.tx_cut).collect::<Vec<_>>(), [0, 653, 160]);
    }

    #[test]
    fn a_bridge_gives_each_card_the_largest_that_it_takes() {
        let all = forward_all().expect("memory is there");
        // 45 segments are 4 x 11 + 1, and the last 26 are 2 x 11 + 4. A single segment needs no
        // TSO. The engine writes new headers of 66 bytes for its segments; the card fills in all
        // checksums.
        let expected = [
            [160, 3, 7_181, 7_181, 1_448, 7_181 * 66, 0, 0, 7_181, 7_181],
            [160, 3, 798, 798, 15_928, 798 * 66, 0, 7_181 - 159, 7_181, 7_181],
            [160, 3, 0, 160, 65_160, 0, 0, 7_181, 7_181, 7_181],
        ];
        assert_eq!(all.iter().map(bridged).collect::<Vec<_>>(), expected);
        let direct = send_all().expect("memory is there");
        assert!(
            all.iter().all(|counts| counts.exits[0].digest == direct[0].digest),
            "the same bytes on the wire"
        );
    }

    #[test]
    fn its_marks_are_met_by_these_counts() {
        let experiment = run().expect("memory is there");
        let values: Vec<_> = experiment.marks.iter().map(|mark| (mark.value, mark.met)).collect();
        assert_eq!(values, [(Some(1.0), Some(true)); 2]);
        let sizes: Vec<_> = experiment.tables[1]
            .rows
            .iter()
            .map(|row| (row.group.as_str(), row.name.as_str()))
            .collect();
        let [off, limited, full] = VARIANTS;
        // The remainder of the file is one smaller packet.
        let expected = [
            (off, "1 to 1,447 bytes"),
            (off, "1,448 bytes"),
            (limited, "1,449 to 15,927 bytes"),
            (limited, "15,928 bytes"),
            (full, "15,929 to 65,159 bytes"),
            (full, "65,160 bytes"),
        ];
        assert_eq!(sizes, expected);
    }
}
