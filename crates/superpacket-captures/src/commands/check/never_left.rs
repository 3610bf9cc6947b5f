//! Counts the packets of the original file that have no counterpart in the checked file.

use super::CheckReport;
use super::judge::Finding;
use super::packet::FilePacket;
use super::rule::Rule;

/// The packets of the original file that have no counterpart in the checked file.
///
/// Such a packet counts as lost only if the checked file is complete and all of its packets can be
/// read. This is known only at the end of that file, so until then the packets are counted here.
#[derive(Debug, Default)]
pub(super) struct NeverLeft {
    /// Counts of packets whose headers can be read.
    readable: Tally,
    /// Counts of packets whose headers cannot be read.
    unreadable: Tally,
    /// Maximum number of packets of each kind that are described.
    most_described: usize,
}

/// Numbers of packets without a counterpart whose headers can be read, or of those whose headers
/// cannot be read.
#[derive(Debug, Default)]
struct Tally {
    /// Number of packets that the original file contains completely.
    whole: u64,
    /// Number of packets that a snap length has cut in the original file.
    cut: u64,
    /// Descriptions of the first complete packets, for the case that they count as lost.
    described: Vec<Finding>,
}

impl NeverLeft {
    /// Returns empty counts, which will contain descriptions of the first `most_described` packets.
    pub(super) fn new(most_described: usize) -> Self {
        NeverLeft { readable: Tally::default(), unreadable: Tally::default(), most_described }
    }

    /// Counts a packet of the original file that has no counterpart.
    pub(super) fn add(&mut self, packet: &FilePacket) {
        // A packet with an invalid header is counted in `NotJudged::origin_headers`. The
        // implementation under test may have refused it.
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

    /// Adds the counts to the report at the end of the run. `is_whole` is true if the checked file
    /// is not cut short and none of its packets is cut by a snap length.
    pub(super) fn report(self, report: &mut CheckReport, is_whole: bool) {
        let NeverLeft { readable, unreadable, most_described } = self;
        let mut lost = vec![readable];
        // The packets may be in a super-packet whose headers cannot be read.
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

/// Returns the violation that a packet without a counterpart is.
fn lost(packet: &FilePacket) -> Finding {
    let what = match packet.part {
        Some(part) => {
            format!("its segment {part} never left, {} bytes of payload", packet.payload().len())
        }
        None => format!("it never left, {} bytes", packet.bytes.len()),
    };
    Finding { rule: Rule::Lost, field: "packet".to_owned(), origin: Some(packet.number), what }
}
