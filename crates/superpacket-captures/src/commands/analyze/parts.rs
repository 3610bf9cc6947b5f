//! `analyze` for a corpus: parts of captures are read by separate workers, possibly on several
//! machines, and their results are added.

use serde::{Deserialize, Serialize};

use super::flows::TopFlows;
use super::rows::{Rows, Tables};
use super::{
    AnalyzeOptions, AnalyzeReport, Bounds, DEFAULT, Effects, FileAnalysis, Findings, Timeline,
    Traffic, pass,
};
use crate::commands::error::Error;
use crate::commands::input::Input;
use crate::commands::progress::Progress;
use crate::commands::totals::{CutShort, Unreadable};

/// Maximum number of flows that are listed for each part. When parts are added up, an upper bound
/// stands for the bytes of flows that a part does not list.
const LISTED_FLOWS: usize = 64;

/// Maximum captures listed in the report of a corpus; the others count in its sums.
const LISTED_FILES: usize = 1000;

/// Options of [`analyze_part`].
#[derive(Clone, Debug)]
pub struct PartOptions {
    /// The options of aggregation and reading.
    pub analyze: AnalyzeOptions,
    /// Length of the intervals in rows of packets by time, in nanoseconds.
    pub interval: u64,
    /// The number of the part's first packet, from 1. Packets read before it belong to the previous
    /// part and are not counted; the engine learns from them what flows last acknowledged.
    pub first: u64,
    /// Whether another part follows in the same capture. If so, packets held at the end are counted
    /// in [`Held`].
    pub continues: bool,
}

/// Number of packets per policy that might have merged differently if captures had not been cut
/// into parts. These are packets held at the end of a part, which might have merged with the next
/// part's. With LRO and pure ACKs, they include ACKs that may repeat an acknowledgement of an
/// earlier part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Number of packets that LRO might have merged differently.
    pub lro: u64,
    /// Number of packets that GRO without UDP might have merged differently.
    pub gro: u64,
    /// Number of packets that GRO with UDP might have merged differently.
    pub gro_udp: u64,
    /// Number of packets that LRO with absorption of pure ACKs might have merged differently.
    pub lro_acks: u64,
}

impl Held {
    pub(super) fn new([lro, gro, gro_udp, lro_acks]: [u64; super::POLICIES]) -> Self {
        Held { lro, gro, gro_udp, lro_acks }
    }

    /// Returns the numbers in the order in which reports list the policies.
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

/// The captures that were read in parts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Cuts {
    /// Number of captures that were read in parts.
    pub files: u64,
    /// Number of parts of all these captures together.
    pub parts: u64,
    /// Number of packets, per policy, that might have merged differently if the captures had not
    /// been cut into parts.
    pub held: Held,
}

/// The results for a part of a capture, or for a whole one. Workers write it as JSON; [`Corpus`]
/// adds it up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartAnalysis {
    /// The first 64 interfaces known at the end of the part.
    pub interfaces: Vec<String>,
    /// The packets of the part, by kind.
    pub traffic: Traffic,
    /// The result of each policy.
    pub policies: Effects,
    /// Number of packets, per policy, that might have merged differently if the capture had not
    /// been cut at the start and the end of this part; 0 for a whole capture.
    pub held: Held,
    /// The earliest capture time in the part, in nanoseconds since 1970.
    pub first_time: Option<u64>,
    /// The latest capture time in the part, in nanoseconds since 1970.
    pub last_time: Option<u64>,
    /// The place where the capture was cut short, if it was.
    pub cut_short: Option<CutShort>,
    /// Whether [`Progress::end_requested`](crate::Progress::end_requested) ended the reading of
    /// this part early.
    pub interrupted: bool,
    pub(super) timeline: Timeline,
    pub(super) flows: TopFlows,
}

/// Analyzes a part of a capture ([`Reader::of_part`](crate::Reader::of_part)), or a whole one.
/// Hands out rows of flows, and of packets by time and size, during the reading.
///
/// # Errors
/// Any error that ends the reading, and any error of `rows`. [`Error::Options`] for a part of a
/// capture that has a filter: its polls would not be those of the whole.
pub fn analyze_part(
    input: Input<'_>,
    options: &PartOptions,
    rows: &mut dyn Rows,
    progress: &mut dyn Progress,
) -> Result<PartAnalysis, Error> {
    if matches!(input, Input::Filtered { .. }) && (options.first > 1 || options.continues) {
        return Err(Error::Options("filter: only a whole capture can have one".to_owned()));
    }
    let mut tables = Tables::new(rows, options.interval);
    let bounds = Bounds { first: options.first, continues: options.continues };
    let (_, mut found) = pass(input, &options.analyze, bounds, Some(&mut tables), None, progress)?;
    tables.emit_all()?;
    found.flows = found.flows.largest(LISTED_FLOWS);
    Ok(found)
}

/// The combined results for the parts of one capture.
struct JoinedParts {
    file: FileAnalysis,
    flows: TopFlows,
    held: Held,
}

impl JoinedParts {
    /// Combines parts, which are in their order in the capture.
    fn of(file: String, parts: Vec<PartAnalysis>, top: usize) -> JoinedParts {
        let mut whole = JoinedParts {
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

/// The sum of the results for many captures, each of which may have been read in parts.
///
/// Memory is bounded: the first 1,000 captures are listed, and at most 512 flows of
/// all captures are counted individually.
#[derive(Clone, Debug)]
pub struct Corpus {
    report: AnalyzeReport,
    flows: TopFlows,
    top: usize,
}

impl Corpus {
    /// Returns an empty corpus with these options.
    pub fn new(options: &AnalyzeOptions) -> Self {
        Corpus {
            report: AnalyzeReport::empty(options, Unreadable::default()),
            flows: TopFlows::default(),
            top: options.top,
        }
    }

    /// Adds a capture: its parts in their order, or the whole capture as one part.
    ///
    /// The same captures in the same order give the same report.
    pub fn add(&mut self, file: String, parts: Vec<PartAnalysis>) {
        let count = parts.len() as u64;
        let whole = JoinedParts::of(file, parts, self.top);
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

    /// Adds a capture that could not be read, with the error message.
    pub fn unreadable(&mut self, words: &str) {
        self.report.unreadable_captures += 1;
        if self.report.unreadable.messages.len() < LISTED_FILES {
            self.report.unreadable.add(words);
        }
    }

    /// Returns the report on all captures.
    pub fn report(&self) -> AnalyzeReport {
        let mut report = self.report.clone();
        report.findings.top_flows = self.flows.rows(self.top);
        if let ([only], 1) = (report.files.as_slice(), report.captures) {
            report.findings.timeline = only.findings.timeline.clone();
        }
        report
    }
}
