//! LRO on the model NIC: counts of the packets delivered to the receiver's host.

use superpacket::aggregate::{Policy, Storage};
use superpacket_model::nic::{NicSettings, PageSize};

use super::{Buffers, ENTRY, Merge, Mtus, count_limit, is_limited};
use crate::error::LabError;
use crate::experiment::{Column, Experiment, Figure, Form, Mark, Ratio, Row, Side, Table};
use crate::model::{CardCounts, Segments, receive};

/// Length of the stream in bytes: 10,240 full segments at an MTU of 1500, without timestamps.
const BYTES: u64 = 10_240 * 1_460;

/// Number of frames per poll: the limit of a driver's poll (`NAPI_POLL_WEIGHT`).
const POLL: usize = 64;

const COLUMNS: [Column; 6] = [
    Column::count("frames", "Frames"),
    Column::count("delivered", "Packets at the host"),
    Column::count("parsed", "Headers parsed by driver and host"),
    Column::count("checksums", "Checksums by the card"),
    Column::count("copied", "Bytes copied"),
    Column::count("polls", "Wake-ups"),
];

/// Columns of the table of receive buffers, whose counts depend on the page size and not on the
/// merging.
const BUFFERS: [Column; 4] = [
    Column::count("pages", "Buffers, MTU 1500"),
    Column::count("pieces", "Pieces in them"),
    Column::count("jumbo_pages", "Buffers, MTU 9000"),
    Column::count("jumbo_pieces", "Pieces in them"),
];

pub(super) fn run() -> Result<Experiment, LabError> {
    let mut tables: Vec<Table> = Vec::new();
    let mut most = [0.0f64; 2];
    for mtus in Mtus::ALL {
        let mut groups: Vec<(Vec<&str>, Vec<Row>)> = Vec::new();
        for buffers in Buffers::ALL {
            let none = count(buffers, mtus, Merge::Not)?;
            let mut rows = Vec::new();
            for merge in Merge::ALL
                .into_iter()
                .filter(|merge| *merge != Merge::LimitedLro || is_limited(mtus))
            {
                let counts = count(buffers, mtus, merge)?;
                rows.push(row(merge, counts, none));
                if merge == Merge::Lro && mtus != Mtus::JUMBO {
                    let most = &mut most[usize::from(mtus == Mtus::MIXED)];
                    *most = most.max(counts.delivered as f64 / counts.polls as f64);
                }
            }
            match groups.last_mut() {
                Some((names, same)) if figures(same) == figures(&rows) => {
                    names.push(buffers.name())
                }
                _ => groups.push((vec![buffers.name()], rows)),
            }
        }
        let rows = groups.into_iter().flat_map(|(names, rows)| {
            let group = names.join(", ");
            rows.into_iter().map(move |row| Row { group: group.clone(), ..row })
        });
        let title = format!(
            "{BYTES} bytes by MTU {} to {}, {POLL} frames a poll",
            mtus.sender, mtus.receiver
        );
        let table = Table::new(Form::Model, title, &COLUMNS, rows.collect(), 1);
        tables.push(table);
    }
    let rows = Buffers::ALL.into_iter().map(|buffers| {
        let [small, jumbo] =
            [Mtus::SMALL, Mtus::JUMBO].map(|mtus| count(buffers, mtus, Merge::Not));
        let (small, jumbo) = (small?, jumbo?);
        let counts = [small.pages, small.pieces, jumbo.pages, jumbo.pieces];
        Ok(Row::counts("", buffers.name(), counts))
    });
    let rows = rows.collect::<Result<Vec<_>, LabError>>()?;
    let title = "What the card fills, however it is merged";
    tables.push(Table::new(Form::Model, title, &BUFFERS, rows, 1));
    let briefs = ["counted: packets of 64 frames", "counted: the same, MTU 1500 to 9000"];
    let marks = ["1500 to 1500", "1500 to 9000"].into_iter().zip(most).zip(briefs).map(|((mtus, most), brief)| {
        let name = format!("lro: packets that the host is handed of {POLL} frames by LRO, MTU {mtus}, whatever the buffers, at most");
        // 64 KB hold 44 frames of 1500 bytes.
        Mark::exact(name, Form::Model, most, Side::AtMost, 2.0).in_brief(brief, None)
    });
    Ok(Experiment { marks: marks.collect(), tables, ..Experiment::new(&ENTRY) })
}

/// Returns the figures of each row, for comparing groups of rows.
fn figures(rows: &[Row]) -> Vec<&[Option<Figure>]> {
    rows.iter().map(|row| row.figures.as_slice()).collect()
}

fn row(merge: Merge, counts: CardCounts, none: CardCounts) -> Row {
    let figures = [
        counts.frames,
        counts.delivered,
        counts.parsed,
        counts.checksums,
        counts.copied,
        counts.polls,
    ];
    let ratio = counts.delivered as f64 / none.delivered as f64;
    Row {
        // The factor by which fewer packets reach the host.
        ratio: (merge != Merge::Not).then(|| Ratio::exact(Merge::Not.name(), "delivered", ratio)),
        ..Row::counts("", merge.name(), figures)
    }
}

/// Receives the stream on the model NIC, and returns the counts.
fn count(buffers: Buffers, mtus: Mtus, merge: Merge) -> Result<CardCounts, LabError> {
    let (page, storage) = match buffers {
        Buffers::Page4K => (PageSize::Page4K, Storage::Fragments),
        Buffers::Page8K => (PageSize::Page8K, Storage::Fragments),
        Buffers::Page16K => (PageSize::Page16K, Storage::Fragments),
        Buffers::Page32K => (PageSize::Page32K, Storage::Fragments),
        Buffers::Linear => (PageSize::Linear, Storage::Linear),
    };
    let policy = match merge {
        Merge::Lro => Some(Policy::lro().with_storage(storage)),
        Merge::LimitedLro => {
            let mut policy = Policy::lro().with_storage(storage);
            policy.max_packets = count_limit(mtus);
            Some(policy)
        }
        Merge::Gro => Some(Policy::gro().with_partial_checksums().with_storage(storage)),
        Merge::Not => None,
    };
    let settings = NicSettings { page, mtu: mtus.receiver, ..NicSettings::default() };
    let frames = Segments::new(mtus.sender as usize, BYTES);
    let polls = frames.clone().count().div_ceil(POLL);
    receive(&settings, policy, frames, std::iter::repeat_n(POLL, polls))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of frames, packets at the host, pieces of these packets, receive
    /// buffers, bytes copied, and wake-ups.
    fn counted(buffers: Buffers, mtus: Mtus, merge: Merge) -> Result<[u64; 6], LabError> {
        let counts = count(buffers, mtus, merge)?;
        assert_eq!(counts.checksums, counts.frames, "the card verifies each once");
        // A merging driver parses each frame, and the host each delivered packet.
        let by_driver = if merge == Merge::Not { 0 } else { counts.frames };
        assert_eq!(counts.parsed, by_driver + counts.delivered);
        Ok([
            counts.frames,
            counts.delivered,
            counts.pieces,
            counts.pages,
            counts.copied,
            counts.polls,
        ])
    }

    #[test]
    fn pages_are_shared_and_what_lro_merges_is_handed_over_whole() -> Result<(), LabError> {
        for mtus in [Mtus::SMALL, Mtus::MIXED] {
            for (buffers, pages) in [
                (Buffers::Page4K, 5120),
                (Buffers::Page8K, 2560),
                (Buffers::Page16K, 1280),
                (Buffers::Page32K, 640),
            ] {
                // The 64 frames of a poll become one packet of 44 segments, the most that 64 KB
                // hold, and one of 20. The receiver's MTU is no limit.
                for merge in [Merge::Lro, Merge::Gro] {
                    assert_eq!(
                        counted(buffers, mtus, merge)?,
                        [10_240, 320, 10_240, pages, 0, 160],
                        "{buffers:?} {mtus:?} {merge:?}"
                    );
                }
                assert_eq!(
                    counted(buffers, mtus, Merge::Not)?,
                    [10_240, 10_240, 10_240, pages, 0, 160],
                    "{buffers:?} {mtus:?}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn counted_as_the_source_counted_runs_end_after_seven_frames() -> Result<(), LabError> {
        assert_eq!(
            (count_limit(Mtus::SMALL), count_limit(Mtus::MIXED), count_limit(Mtus::JUMBO)),
            (43, 7, 7)
        );
        // Per poll nine packets of seven frames and one of one, instead of two packets.
        assert_eq!(
            counted(Buffers::Page4K, Mtus::MIXED, Merge::LimitedLro)?,
            [10_240, 1600, 10_240, 5120, 0, 160]
        );
        // With equal MTUs, the frame limit is no lower than the content of 64 KB.
        for mtus in [Mtus::SMALL, Mtus::JUMBO] {
            let both =
                [Merge::Lro, Merge::LimitedLro].map(|merge| counted(Buffers::Page4K, mtus, merge));
            let [by_bytes, by_count] = both;
            assert_eq!(by_bytes?, by_count?, "{mtus:?}");
        }
        Ok(())
    }

    #[test]
    fn linear_buffers_cost_a_copy_of_every_byte_that_merges() -> Result<(), LabError> {
        assert_eq!(
            counted(Buffers::Linear, Mtus::SMALL, Merge::Lro)?,
            [10_240, 320, 10_240, 10_240, BYTES, 160]
        );
        assert_eq!(
            counted(Buffers::Linear, Mtus::SMALL, Merge::Not)?,
            [10_240, 10_240, 10_240, 10_240, 0, 160]
        );
        Ok(())
    }

    #[test]
    fn jumbo_frames_span_small_pages() -> Result<(), LabError> {
        // Seven of them fill 64 KB: ten packets per poll.
        let expected = [
            (Buffers::Page4K, 5006, 5006),
            (Buffers::Page8K, 3337, 3336),
            (Buffers::Page16K, 1669, 1668),
            (Buffers::Page32K, 1669, 574),
        ];
        for (buffers, pieces, pages) in expected {
            assert_eq!(
                counted(buffers, Mtus::JUMBO, Merge::Lro)?,
                [1669, 261, pieces, pages, 0, 27],
                "{buffers:?}"
            );
            assert_eq!(
                counted(buffers, Mtus::JUMBO, Merge::Not)?,
                [1669, 1669, pieces, pages, 0, 27],
                "{buffers:?}"
            );
        }
        Ok(())
    }

    #[test]
    fn headers_are_parsed_once_more_by_a_driver_that_merges() -> Result<(), LabError> {
        let parsed = |mtus, merge| Ok::<_, LabError>(count(Buffers::Page4K, mtus, merge)?.parsed);
        assert_eq!(
            (parsed(Mtus::SMALL, Merge::Lro)?, parsed(Mtus::SMALL, Merge::Not)?),
            (10_560, 10_240)
        );
        assert_eq!(
            (parsed(Mtus::JUMBO, Merge::Gro)?, parsed(Mtus::JUMBO, Merge::Not)?),
            (1930, 1669)
        );
        Ok(())
    }

    #[test]
    fn its_marks_are_met_by_these_counts_and_buffers_that_count_alike_are_one_row()
    -> Result<(), LabError> {
        let experiment = run()?;
        let shown: Vec<_> = experiment.tables.iter().map(|table| table.rows.len()).collect();
        assert_eq!(
            shown,
            [6, 8, 6, 5],
            "pages and linear buffers; by count where MTUs differ; and what the sizes of pages change"
        );
        assert_eq!(experiment.tables[0].rows[0].group, "4K pg, 8K pg, 16Kpg, 32Kpg");
        let values: Vec<_> = experiment.marks.iter().map(|mark| (mark.value, mark.met)).collect();
        assert_eq!(values, [(Some(2.0), Some(true)); 2]);
        Ok(())
    }
}
