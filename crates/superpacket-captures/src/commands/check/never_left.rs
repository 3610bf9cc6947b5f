//! The packets of the original that never left.

use super::CheckReport;
use super::judge::Finding;
use super::packet::FilePacket;
use super::rule::Rule;

/// The packets of the original that never left, until the end of the run.
///
/// A packet is lost only if the checked file is whole and all of its packets can be read. This is
/// known at the end of that file, so packets that were given up earlier are counted here.
#[derive(Debug, Default)]
pub(super) struct NeverLeft {
    /// Packets whose headers can be read.
    readable: Tally,
    /// Packets whose headers cannot be read.
    unreadable: Tally,
    /// The most findings that are kept for each tally.
    most_described: usize,
}

/// Packets that never left, of one kind.
#[derive(Debug, Default)]
struct Tally {
    /// Packets that are complete in the original.
    whole: u64,
    /// Packets that a snap length cut in the original.
    cut: u64,
    /// The first complete packets, as lost packets.
    described: Vec<Finding>,
}

impl NeverLeft {
    /// Counts from zero, and keeps the findings of the first `most_described` packets.
    pub(super) fn new(most_described: usize) -> Self {
        NeverLeft { readable: Tally::default(), unreadable: Tally::default(), most_described }
    }

    /// Counts a packet.
    pub(super) fn add(&mut self, packet: &FilePacket) {
        // Such a packet is counted in `NotJudged::origin_headers`; its receiver may have refused
        // it.
        if packet.has_invalid_header() {
            return;
        }
        let tally = if packet.layout.is_some() { &mut self.readable } else { &mut self.unreadable };
        if packet.cut {
            tally.cut += 1;
            return;
        }
        tally.whole += 1;
        if tally.described.len() < self.most_described {
            tally.described.push(lost(packet));
        }
    }

    /// Adds all packets to the report at the end of the run. `is_whole` says that the checked file
    /// is neither cut short nor cut by a snap length.
    pub(super) fn report(self, report: &mut CheckReport, is_whole: bool) {
        let NeverLeft { readable, unreadable, most_described } = self;
        let mut lost = vec![readable];
        // They may be in a super-packet whose headers cannot be read.
        if report.not_judged.unreadable > 0 {
            report.not_judged.unreadable += unreadable.whole + unreadable.cut;
        } else {
            lost.push(unreadable);
        }
        for tally in &lost {
            report.not_judged.missing += tally.cut + if is_whole { 0 } else { tally.whole };
        }
        if is_whole {
            let packets = lost.iter().map(|tally| tally.whole).sum();
            let mut described: Vec<_> =
                lost.into_iter().flat_map(|tally| tally.described).collect();
            described.sort_by_key(|finding| finding.origin);
            report.lost(most_described, packets, described);
        }
    }
}

/// Describes a packet that never left.
fn lost(packet: &FilePacket) -> Finding {
    let what = match packet.part {
        Some(part) => {
            format!("its segment {part} never left, {} bytes of payload", packet.payload().len())
        }
        None => format!("it never left, {} bytes", packet.bytes.len()),
    };
    Finding { rule: Rule::Lost, field: "packet".to_owned(), origin: Some(packet.number), what }
}
