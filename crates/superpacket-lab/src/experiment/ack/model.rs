//! Pure-ACK aggregation on the model NIC: counts of the ACKs delivered to its host.

use superpacket::aggregate::Policy;
use superpacket_model::nic::{NicSettings, Padding};

use super::{ENTRY, ROWS, ReceiverKind};
use crate::error::LabError;
use crate::experiment::{Column, Experiment, Form, Mark, Plot, Ratio, Row, Side, Table};
use crate::model::{Acknowledgements, CardCounts, receive};

/// Segments that the sender sends and the receiver acknowledges.
const SEGMENTS: u32 = 11_520;

/// Segments sent between two interrupts of the sender's card: 98 us at 10 Gb/s, typical of cards of
/// 2007.
const INTERVAL: u32 = 80;

const COLUMNS: [Column; 8] = [
    Column::count("acks", "ACKs at the card"),
    Column::count("delivered", "ACKs at the host"),
    Column::count("parsed", "Headers parsed by driver and host"),
    Column::count("checksums", "Checksums by the card"),
    Column::count("pages", "Pages"),
    Column::count("copied", "Bytes copied"),
    Column::count("bytes", "Bytes at the host"),
    Column::count("polls", "Wake-ups"),
];

/// The receivers to simulate. [`ReceiverKind::Delaying`] is missing, because it needs a clock.
const RECEIVERS: [ReceiverKind; 4] =
    [ReceiverKind::Aggregating, ReceiverKind::Eighth, ReceiverKind::Each, ReceiverKind::Second];

pub(super) fn run() -> Result<Experiment, LabError> {
    let (mut rows, mut most) = (Vec::new(), 0.0f64);
    for receiver in RECEIVERS {
        let [without, with] = [count(receiver, false)?, count(receiver, true)?];
        let ratio = with.delivered as f64 / without.delivered as f64;
        for (counts, name) in [without, with].into_iter().zip(ROWS) {
            let figures = [
                counts.frames,
                counts.delivered,
                counts.parsed,
                counts.checksums,
                counts.pages,
                counts.copied,
                counts.bytes,
                counts.polls,
            ];
            rows.push(Row {
                ratio: (name == ROWS[1]).then(|| Ratio::exact(ROWS[0], "delivered", ratio)),
                ..Row::counts(format!("receiver {}", receiver.name()), name, figures)
            });
        }
        most = most.max(with.delivered as f64 / with.polls as f64);
    }
    let name = "ack: ACKs that the sender's host is handed at a wake-up, pure ACKs aggregated, whatever the receiver, at most";
    let mark = Mark::exact(name, Form::Model, most, Side::AtMost, 1.0);
    let marks = vec![mark.in_brief("counted: ACKs a wake-up, aggregated", None)];
    let title = format!("ACKs for {SEGMENTS} segments, the card polled after every {INTERVAL}");
    let table = Table::new(Form::Model, title, &COLUMNS, rows, 1);
    let table = Table { plot: Plot::Marks(&[1]), ..table };
    let notes = vec![
        "Counted ACKs have 54 bytes, without timestamps, and are padded to 60 on the wire, as in the source. Merged ACKs lose their padding; single ones keep it.".to_owned(),
    ];
    Ok(Experiment { tables: vec![table], marks, notes, ..Experiment::new(&ENTRY) })
}

/// Receives the ACKs for all segments on the model NIC, and returns the counts.
fn count(receiver: ReceiverKind, acks: bool) -> Result<CardCounts, LabError> {
    let segments = receiver.segments();
    let policy = if acks { Policy::lro_with_acks() } else { Policy::lro() };
    // The number of ACKs that are due between two interrupts.
    let arrivals = (1..=SEGMENTS / INTERVAL).map(|interval| {
        let acknowledged = |segment: u32| segment / segments;
        (acknowledged(interval * INTERVAL) - acknowledged((interval - 1) * INTERVAL)) as usize
    });
    let card = NicSettings { padding: Padding::Zero, ..NicSettings::default() };
    receive(&card, Some(policy), Acknowledgements::new(SEGMENTS / segments, segments), arrivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_is_handed_is_counted_exactly() -> Result<(), LabError> {
        // ACKs at the card and, without aggregation, at the host. With it, one per wake-up.
        let expected = [
            (ReceiverKind::Eighth, 1440),
            (ReceiverKind::Aggregating, 640),
            (ReceiverKind::Each, 11_520),
            (ReceiverKind::Second, 5760),
        ];
        let polls = 144;
        for (receiver, acks) in expected {
            let (without, with) = (count(receiver, false)?, count(receiver, true)?);
            assert_eq!(
                (without.frames, without.delivered, without.polls),
                (acks, acks, polls),
                "{receiver:?}"
            );
            assert_eq!(
                (with.frames, with.delivered, with.polls),
                (acks, polls, polls),
                "{receiver:?}"
            );
            assert_eq!(
                (without.checksums, with.checksums),
                (acks, acks),
                "each is verified once, by the card"
            );
            // The driver parses each ACK in both cases, because it merges data in both.
            assert_eq!((without.parsed, with.parsed), (2 * acks, acks + polls));
            assert_eq!((without.copied, with.copied), (0, 0));
            // 54 bytes and 6 bytes of padding.
            assert_eq!(
                (without.bytes, with.bytes),
                (acks * 60, polls * 54),
                "what merges is trimmed"
            );
        }
        Ok(())
    }

    #[test]
    fn its_marks_are_met_by_these_counts() -> Result<(), LabError> {
        let experiment = run()?;
        let values: Vec<_> = experiment.marks.iter().map(|mark| (mark.value, mark.met)).collect();
        assert_eq!(values, [(Some(1.0), Some(true))]);
        assert_eq!(experiment.tables[0].rows.len(), 8);
        let again = run()?;
        for (row, other) in experiment.tables[0].rows.iter().zip(&again.tables[0].rows) {
            assert_eq!(
                (&row.name, &row.figures, &row.ratio),
                (&other.name, &other.figures, &other.ratio),
                "every run gives the same"
            );
        }
        Ok(())
    }
}
