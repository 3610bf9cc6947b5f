//! `analyze` of a corpus: parts of captures that are read apart, by workers that need not be on
//! one machine, and added up.

use serde::{Deserialize, Serialize};

use super::flows::TopFlows;
use super::rows::{Rows, Tables};
use super::{
    AnalyzeOptions, AnalyzeReport, Bounds, DEFAULT, Effects, FileAnalysis, Findings, Timeline,
    Traffic, pass,
};
use crate::error::Error;
use crate::input::Input;
use crate::progress::Progress;
use crate::totals::{CutShort, Unreadable};

/// Flows that the analysis of a part lists: what is not listed is a bound in sums.
const LISTED_FLOWS: usize = 64;

/// Captures that a corpus's report lists; the others count in its sums.
const LISTED_FILES: usize = 1000;

/// How [`analyze_part`] counts.
#[derive(Clone, Debug)]
pub struct PartOptions {
    /// How aggregation is stepped, and whether a capture may end within a record.
    pub analyze: AnalyzeOptions,
    /// The intervals of packets by time, in nanoseconds.
    pub interval: u64,
    /// The number of the part's first packet, from 1. What is read before it is of the part before,
    /// and not counted: from it, the engine learns what its flows acknowledged last.
    pub first: u64,
    /// Another part follows in the same capture: what is held at the end was cut off.
    pub continues: bool,
}

/// Packets of which each policy might have made something else, had captures not been cut into
/// parts: those held at a part's end, which might have merged with more of the next one; and under
/// LRO with pure ACKs, those that may repeat what a part before acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// LRO.
    pub lro: u64,
    /// GRO without UDP.
    pub gro: u64,
    /// GRO with UDP.
    pub gro_udp: u64,
    /// LRO that absorbs pure ACKs too.
    pub lro_acks: u64,
}

impl Held {
    pub(super) fn new([lro, gro, gro_udp, lro_acks]: [u64; super::POLICIES]) -> Self {
        Held { lro, gro, gro_udp, lro_acks }
    }

    /// Returns the numbers in the order of the policies in reports.
    pub fn in_order(&self) -> [u64; super::POLICIES] {
        [self.lro, self.gro, self.gro_udp, self.lro_acks]
    }

    fn add(&mut self, other: &Held) {
        self.lro += other.lro;
        self.gro += other.gro;
        self.gro_udp += other.gro_udp;
        self.lro_acks += other.lro_acks;
    }
}

/// Captures that were read in parts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cuts {
    /// How many captures.
    pub files: u64,
    /// Into how many parts.
    pub parts: u64,
    /// Packets that the cuts concern.
    pub held: Held,
}

/// What was found in a part of a capture, or in a whole one: written as JSON where it was read, and
/// read where it is added up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartAnalysis {
    /// The interfaces known at the part's end, the first 64.
    pub interfaces: Vec<String>,
    /// What is in the part.
    pub traffic: Traffic,
    /// What each policy would do.
    pub policies: Effects,
    /// Packets that the cuts at the part's ends concern; 0 of a whole capture.
    pub held: Held,
    /// When the part's first packets were captured, in nanoseconds since 1970.
    pub first_time: Option<u64>,
    /// When its last ones were.
    pub last_time: Option<u64>,
    /// Where the capture was cut short.
    pub cut_short: Option<CutShort>,
    pub(super) timeline: Timeline,
    pub(super) flows: TopFlows,
}

/// Analyzes a part of a capture ([`Reader::of_part`](crate::Reader::of_part)), or a whole one, and
/// gives rows of flows and of packets by time and size away while it is read.
///
/// # Errors
/// Whatever stops the reading, and what the taker of rows fails with.
pub fn analyze_part(
    input: Input<'_>,
    options: &PartOptions,
    rows: &mut dyn Rows,
    progress: &mut dyn Progress,
) -> Result<PartAnalysis, Error> {
    let mut tables = Tables::new(rows, options.interval);
    let bounds = Bounds { first: options.first, continues: options.continues };
    let (_, mut found) = pass(input, &options.analyze, bounds, Some(&mut tables), progress)?;
    tables.give_all()?;
    found.flows = found.flows.largest(LISTED_FLOWS);
    Ok(found)
}

/// Parts of one capture, put together.
struct Whole {
    file: FileAnalysis,
    flows: TopFlows,
    held: Held,
}

impl Whole {
    /// Adds the parts, in their order in the capture.
    fn of(file: String, parts: Vec<PartAnalysis>, top: usize) -> Whole {
        let mut whole = Whole {
            file: FileAnalysis {
                file,
                interfaces: Vec::new(),
                findings: Findings::default(),
                cut_short: None,
            },
            flows: TopFlows::default(),
            held: Held::default(),
        };
        let findings = &mut whole.file.findings;
        for part in parts {
            whole.file.interfaces = part.interfaces;
            findings.traffic.add(&part.traffic);
            findings.policies.add(&part.policies);
            findings.timeline.add(&part.timeline);
            whole.flows.add(&part.flows);
            whole.held.add(&part.held);
            whole.file.cut_short = part.cut_short;
        }
        findings.totals = findings.policies.in_order()[DEFAULT].1.totals.clone();
        findings.top_flows = whole.flows.rows(top);
        whole
    }
}

/// Adds up what was found in many captures, each of which may have been read in parts.
///
/// Memory is bounded: of the captures, the first thousand are listed, and of the flows, 512 are
/// counted.
#[derive(Clone, Debug)]
pub struct Corpus {
    report: AnalyzeReport,
    flows: TopFlows,
    top: usize,
}

impl Corpus {
    /// Returns a corpus without captures, with what the report says of the options.
    pub fn new(options: &AnalyzeOptions) -> Self {
        Corpus {
            report: AnalyzeReport::empty(options, Unreadable::default()),
            flows: TopFlows::default(),
            top: options.top,
        }
    }

    /// Adds a capture: its parts in their order, or the whole as one.
    ///
    /// The same captures in the same order give the same report.
    pub fn add(&mut self, file: String, parts: Vec<PartAnalysis>) {
        let count = parts.len() as u64;
        let whole = Whole::of(file, parts, self.top);
        if count > 1 {
            let cuts = self.report.cuts.get_or_insert_default();
            cuts.files += 1;
            cuts.parts += count;
            cuts.held.add(&whole.held);
        }
        self.add_file(whole.file, &whole.flows);
    }

    pub(super) fn add_file(&mut self, file: FileAnalysis, flows: &TopFlows) {
        self.report.findings.totals.add(&file.findings.totals);
        self.report.findings.traffic.add(&file.findings.traffic);
        self.report.findings.policies.add(&file.findings.policies);
        self.flows.add(flows);
        self.report.captures += 1;
        if self.report.files.len() < LISTED_FILES {
            self.report.files.push(file);
        }
    }

    /// Adds a capture that could not be read, and what is wrong with it.
    pub fn unreadable(&mut self, words: &str) {
        self.report.unreadable_captures += 1;
        if self.report.unreadable.messages.len() < LISTED_FILES {
            self.report.unreadable.add(words);
        }
    }

    /// Returns what was found in all of them.
    pub fn report(&self) -> AnalyzeReport {
        let mut report = self.report.clone();
        report.findings.top_flows = self.flows.rows(self.top);
        if let ([only], 1) = (report.files.as_slice(), report.captures) {
            report.findings.timeline = only.findings.timeline.clone();
        }
        report
    }
}
