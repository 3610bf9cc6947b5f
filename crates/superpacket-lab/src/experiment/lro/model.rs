//! LRO on the model of a card: what the receiver's host is handed, counted.

use superpacket::aggregate::{Policy, Storage};
use superpacket_io::port::nic::{NicSettings, PageSize};

use super::{Buffers, Merge, Mtus, NAME, SOURCE, SUMMARY};
use crate::error::LabError;
use crate::experiment::{Column, Experiment, Figure, Form, Mark, Ratio, Row, Side, Table};
use crate::model::{Counts, Segments, receive};

/// Bytes of the stream.
const BYTES: u64 = 14_827_520;

/// Frames that a poll finds: as many as a driver's poll may take (`NAPI_POLL_WEIGHT`).
const POLL: usize = 64;

const COLUMNS: [Column; 8] = [
    Column { name: "frames", title: "Frames", unit: "", digits: 0 },
    Column { name: "delivered", title: "Packets at the host", unit: "", digits: 0 },
    Column { name: "pieces", title: "Their pieces", unit: "", digits: 0 },
    Column { name: "pages", title: "Buffers", unit: "", digits: 0 },
    Column { name: "parsed", title: "Headers parsed by driver and host", unit: "", digits: 0 },
    Column { name: "checksums", title: "Checksums by the card", unit: "", digits: 0 },
    Column { name: "copied", title: "Bytes copied", unit: "", digits: 0 },
    Column { name: "polls", title: "Wake-ups", unit: "", digits: 0 },
];

pub(super) fn run() -> Result<Experiment, LabError> {
    let (mut tables, mut marks) = (Vec::new(), Vec::new());
    for mtus in Mtus::ALL {
        let mut rows = Vec::new();
        for buffers in Buffers::ALL {
            let none = count(buffers, mtus, Merge::Not)?;
            let lro = count(buffers, mtus, Merge::Lro)?;
            for (merge, counts) in [(Merge::Lro, lro), (Merge::Gro, count(buffers, mtus, Merge::Gro)?), (Merge::Not, none)] {
                rows.push(row(buffers, merge, counts, none));
            }
            let mark = |what: &str, a: Counts, b: Counts, target| {
                let name = format!("{NAME}: {}, packets at the host, {what}", buffers.name());
                Mark::exact(name, Form::Model, a.delivered as f64 / b.delivered as f64, Side::AtLeast, target)
            };
            match mtus {
                Mtus::SMALL => {
                    marks.push(mark("none over LRO at MTU 1500", none, lro, if buffers == Buffers::Linear { 1.34 } else { 2.5 }))
                }
                Mtus::MIXED => {
                    let small = count(buffers, Mtus::SMALL, Merge::Lro)?;
                    marks.push(mark("LRO at MTU 1500 to 1500 over 1500 to 9000", small, lro, 0.98));
                }
                _ => {}
            }
        }
        let title = format!("{BYTES} bytes by MTU {} to {}, {POLL} frames a poll", mtus.sender, mtus.receiver);
        tables.push(Table { title, form: Form::Model, columns: COLUMNS.into(), rows, rounds: 1, plot: Some(1), made: None });
    }
    Ok(Experiment { name: NAME, source: SOURCE, summary: SUMMARY, tables, marks, notes: Vec::new() })
}

fn row(buffers: Buffers, merge: Merge, counts: Counts, none: Counts) -> Row {
    let figures =
        [counts.frames, counts.delivered, counts.pieces, counts.pages, counts.parsed, counts.checksums, counts.copied, counts.polls];
    let ratio = counts.delivered as f64 / none.delivered as f64;
    Row {
        group: buffers.name().into(),
        name: merge.name().into(),
        figures: figures.into_iter().map(|count| Some(Figure::exact(count as f64))).collect(),
        source: vec![None; COLUMNS.len()],
        // How many times fewer packets the host is handed.
        ratio: (merge != Merge::Not).then(|| Ratio::exact(Merge::Not.name(), "delivered", ratio)),
        source_ratio: None,
    }
}

/// Receives the stream.
fn count(buffers: Buffers, mtus: Mtus, merge: Merge) -> Result<Counts, LabError> {
    let (page, storage) = match buffers {
        Buffers::Page4K => (PageSize::Page4K, Storage::Fragments),
        Buffers::Page8K => (PageSize::Page8K, Storage::Fragments),
        Buffers::Page16K => (PageSize::Page16K, Storage::Fragments),
        Buffers::Page32K => (PageSize::Page32K, Storage::Fragments),
        Buffers::Linear => (PageSize::Linear, Storage::Linear),
    };
    let policy = match merge {
        Merge::Lro => Some(Policy::lro().with_storage(storage)),
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

    /// Frames, packets at the host, their pieces, buffers, bytes copied, wake-ups.
    fn counted(buffers: Buffers, mtus: Mtus, merge: Merge) -> Result<[u64; 6], LabError> {
        let counts = count(buffers, mtus, merge)?;
        assert_eq!(counts.checksums, counts.frames, "the card verifies each once");
        // Merging reads the headers of each frame once more; the host reads those of what it is handed.
        let by_driver = if merge == Merge::Not { 0 } else { counts.frames };
        assert_eq!(counts.parsed, by_driver + counts.delivered);
        Ok([counts.frames, counts.delivered, counts.pieces, counts.pages, counts.copied, counts.polls])
    }

    #[test]
    fn pages_are_shared_and_what_lro_merges_is_handed_over_whole() -> Result<(), LabError> {
        for mtus in [Mtus::SMALL, Mtus::MIXED] {
            for (buffers, pages) in [(Buffers::Page4K, 5120), (Buffers::Page8K, 2560), (Buffers::Page16K, 1280), (Buffers::Page32K, 640)] {
                // A poll's 64 frames are one packet of 45 segments, as many as 64 KB hold, and one of 19: the receiver's MTU is no limit.
                for merge in [Merge::Lro, Merge::Gro] {
                    assert_eq!(counted(buffers, mtus, merge)?, [10_240, 320, 10_240, pages, 0, 160], "{buffers:?} {mtus:?} {merge:?}");
                }
                assert_eq!(counted(buffers, mtus, Merge::Not)?, [10_240, 10_240, 10_240, pages, 0, 160], "{buffers:?} {mtus:?}");
            }
        }
        Ok(())
    }

    #[test]
    fn linear_buffers_cost_a_copy_of_every_byte_that_merges() -> Result<(), LabError> {
        assert_eq!(counted(Buffers::Linear, Mtus::SMALL, Merge::Lro)?, [10_240, 320, 10_240, 10_240, BYTES, 160]);
        assert_eq!(counted(Buffers::Linear, Mtus::SMALL, Merge::Not)?, [10_240, 10_240, 10_240, 10_240, 0, 160]);
        Ok(())
    }

    #[test]
    fn jumbo_frames_span_small_pages() -> Result<(), LabError> {
        // Seven of them fill 64 KB: ten packets a poll.
        let expected =
            [(Buffers::Page4K, 4972, 4971), (Buffers::Page8K, 3315, 3314), (Buffers::Page16K, 1658, 1657), (Buffers::Page32K, 1658, 569)];
        for (buffers, pieces, pages) in expected {
            assert_eq!(counted(buffers, Mtus::JUMBO, Merge::Lro)?, [1658, 259, pieces, pages, 0, 26], "{buffers:?}");
            assert_eq!(counted(buffers, Mtus::JUMBO, Merge::Not)?, [1658, 1658, pieces, pages, 0, 26], "{buffers:?}");
        }
        Ok(())
    }

    #[test]
    fn headers_are_parsed_once_more_by_a_driver_that_merges() -> Result<(), LabError> {
        let parsed = |mtus, merge| Ok::<_, LabError>(count(Buffers::Page4K, mtus, merge)?.parsed);
        assert_eq!((parsed(Mtus::SMALL, Merge::Lro)?, parsed(Mtus::SMALL, Merge::Not)?), (10_560, 10_240));
        assert_eq!((parsed(Mtus::JUMBO, Merge::Gro)?, parsed(Mtus::JUMBO, Merge::Not)?), (1917, 1658));
        Ok(())
    }

    #[test]
    fn its_marks_are_met_by_these_counts() -> Result<(), LabError> {
        let experiment = run()?;
        assert_eq!(experiment.tables.iter().map(|table| table.rows.len()).collect::<Vec<_>>(), [15; 3]);
        let values: Vec<_> = experiment.marks.iter().map(|mark| (mark.value, mark.met)).collect();
        assert_eq!(values, [[(Some(32.0), Some(true)); 5], [(Some(1.0), Some(true)); 5]].concat());
        Ok(())
    }
}
