//! `check`: judges whether another implementation's output is a faithful aggregation or
//! segmentation of its input.
//!
//! Aggregation and segmentation are judged in the same way. The input ("the original") is first cut
//! into the packets that a wire would have carried, as the headers of its super-packets say
//! ([`window`]). Each packet of the output ("the checked file") then stands for one or more of
//! these packets, which are found by flow, sequence number and payload ([`matching`]). A packet
//! that stands for one packet is compared directly; a merged packet after this project's segmenter
//! has cut it again ([`judge`]). Each difference violates a rule ([`rule`]).

mod fields;
mod fragment_ids;
mod judge;
mod judge_alone;
mod linux_flow;
mod matching;
mod never_left;
mod packet;
mod pairs;
mod records;
mod rule;
mod stream;
mod virtio;
mod window;

use std::collections::BTreeMap;

use serde::Serialize;
use superpacket::Simd;

pub use self::rule::{Rule, Strictness};

use self::judge::{Finding, Judge};
use self::matching::Matched;
use self::packet::{FilePacket, PacketStart};
use self::pairs::Departure;
use self::stream::{AHEAD_PACKETS, PacketStream, Role, SharedProgress};
use self::window::{Overtaken, Window};
use crate::commands::error::Error;
use crate::commands::input::Input;
use crate::commands::progress::Progress;
use crate::commands::totals::CutShort;

/// Options of [`check`].
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// The rules by which packets are judged.
    pub rules: Strictness,
    /// Maximum number of violations that the report describes; all of them are counted.
    pub most_described: usize,
    /// Whether a file that ends within a record is an error.
    pub strict: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { rules: Strictness::Linux, most_described: 10, strict: false }
    }
}

/// A violation of a rule by a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Number of the packet in the checked file, from 1; `None` for a packet that is missing there.
    pub packet: Option<u64>,
    /// Number of the packet in the original file with which it was compared, from 1.
    pub origin: Option<u64>,
    /// Name of the header field in question.
    pub field: String,
    /// The rule that was violated.
    pub rule: Rule,
    /// A description of the violation.
    pub found: String,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// All packets were judged, and no rule was violated.
    Faithful,
    /// A rule was violated.
    Unfaithful,
    /// No rule was violated, but some packets could not be judged: see
    /// [`NotJudged::is_incomplete`].
    #[default]
    Incomplete,
}

impl Verdict {
    /// Returns the name of the result in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Faithful => "faithful",
            Verdict::Unfaithful => "unfaithful",
            Verdict::Incomplete => "incomplete",
        }
    }
}

/// Numbers of packets that could not be judged, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotJudged {
    /// Merged packets of the checked file without a `virtio_net_hdr`. Only that header tells how to
    /// segment them, and whether their checksums are unfinished.
    pub headers: u64,
    /// Packets of the original file that were segmented although they had no `virtio_net_hdr`. The
    /// size of their segments was taken from the first segment in the checked file.
    pub sizes: u64,
    /// Packets of the original file whose `virtio_net_hdr` contradicts them, or would give more
    /// than 16,384 segments. They were not segmented.
    pub origin_headers: u64,
    /// Packets of either file that a snap length has cut, so that the missing bytes could not be
    /// compared.
    pub snap_length: u64,
    /// Packets of the original file without a counterpart that may be in a missing part of the
    /// checked file: that file was cut short, or a snap length cut packets of either file.
    pub missing: u64,
    /// Packets of the checked file without a counterpart that may come from a part of the original
    /// file which is missing or was not judged: that file was cut short, a snap length cut its
    /// packets, or a header contradicts its packet.
    pub without_origin: u64,
    /// Super-packets of the checked file whose headers cannot be read, such as those in a tunnel
    /// with reserved bits, and packets of the original file that may be in them.
    pub unreadable: u64,
    /// Whether link headers were not compared, because packets of the two files begin with
    /// different ones.
    pub link_headers: bool,
}

impl NotJudged {
    /// Returns whether packets were not judged, so that the files cannot be called faithful. Only
    /// information that files cannot contain (`headers`, `sizes`, `link_headers`) may be missing.
    pub const fn is_incomplete(&self) -> bool {
        self.origin_headers
            + self.snap_length
            + self.missing
            + self.without_origin
            + self.unreadable
            > 0
    }
}

/// The report of [`check`].
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    command: &'static str,
    /// The name of the checked file.
    pub checked: String,
    /// The name of the original file, to which the checked file was compared.
    pub origin: String,
    /// The rules by which packets were judged.
    pub rules: Strictness,
    /// The result.
    pub verdict: Verdict,
    /// Number of packets in the original file.
    pub packets_in: u64,
    /// Number of packets in the checked file.
    pub packets_out: u64,
    /// Number of packets of the checked file that its filter left out; `packets_out` does not
    /// include them.
    pub filtered_out: u64,
    /// Number of packets of the original file that its filter left out; `packets_in` does not
    /// include them.
    pub origin_filtered_out: u64,
    /// Number of packets of the checked file that stand for several packets of the original file.
    pub super_packets: u64,
    /// Number of packets of the original file, or of their segments, that were merged with another.
    pub merged: u64,
    /// Number of packets of the checked file that are segments of a packet of the original file.
    pub segments: u64,
    /// Number of violations of rules.
    pub violations: u64,
    /// Number of violations of each rule.
    pub by_rule: BTreeMap<Rule, u64>,
    /// Descriptions of the first violations.
    pub described: Vec<Violation>,
    /// Numbers of packets that could not be judged, by reason.
    pub not_judged: NotJudged,
    /// The place where the checked file was cut short, if it was.
    pub cut_short: Option<CutShort>,
    /// The place where the original was cut short, if it was.
    pub origin_cut_short: Option<CutShort>,
    /// Whether [`Progress::end_requested`] ended the reading of a file. Packets after the position
    /// that was reached are not judged.
    pub interrupted: bool,
}

impl CheckReport {
    /// Returns the result, which follows from all counts.
    fn outcome(&self) -> Verdict {
        let cut_short =
            self.cut_short.is_some() || self.origin_cut_short.is_some() || self.interrupted;
        match self.violations {
            0 if cut_short || self.not_judged.is_incomplete() => Verdict::Incomplete,
            0 => Verdict::Faithful,
            _ => Verdict::Unfaithful,
        }
    }

    fn violation(&mut self, most: usize, packet: Option<u64>, finding: Finding) {
        let Finding { rule, field, origin, what } = finding;
        if rule.strictness() == Strictness::Reversible && self.rules == Strictness::Linux {
            return;
        }
        self.violations += 1;
        *self.by_rule.entry(rule).or_default() += 1;
        if self.described.len() < most {
            self.described.push(Violation { packet, origin, field, rule, found: what });
        }
    }

    /// Counts packets that are missing in the checked file as violations. Describes the first of
    /// them, as long as the report has at most `most` descriptions.
    fn lost(&mut self, most: usize, packets: u64, first: Vec<Finding>) {
        let described = first.len() as u64;
        first.into_iter().for_each(|finding| self.violation(most, None, finding));
        if packets > described {
            self.violations += packets - described;
            *self.by_rule.entry(Rule::Lost).or_default() += packets - described;
        }
    }
}

/// Judges whether the packets of `checked` are a faithful aggregation or segmentation of those of
/// `origin`. If so, the report's [`verdict`](CheckReport::verdict) is [`Verdict::Faithful`].
///
/// Each input is a capture or a file of records (docs/check.md). Packets may have a
/// `virtio_net_hdr`, in a file of records or as a comment `virtio_net_hdr=HEX` on a pcapng packet.
/// Memory is bounded for files of any size, provided that the packets have about the same order in
/// both.
///
/// # Errors
/// Any error that ends the reading of either file. [`Error::Options`] if both files mix packets
/// with different link headers, but one of them only after its first 4,096 packets or 4 MiB.
pub fn check(
    checked: Input<'_>,
    origin: Input<'_>,
    options: &CheckOptions,
    progress: &mut dyn Progress,
) -> Result<CheckReport, Error> {
    let simd = Simd::detect();
    let progress = SharedProgress::new(progress);
    let checked = PacketStream::open(checked, Role::Checked, &progress, simd)?;
    let origin = PacketStream::open(origin, Role::Origin, &progress, simd)?;
    progress.borrow().begin(&checked.file, checked.length);
    let report = CheckReport {
        command: "check",
        checked: checked.file.clone(),
        origin: origin.file.clone(),
        rules: options.rules,
        ..CheckReport::default()
    };
    let mut check = Check {
        report,
        most: options.most_described,
        simd,
        window: Window::new(origin, options.most_described, simd),
        judge: Judge::new(simd),
    };
    let result = check.run(checked, options.strict, &progress);
    progress.borrow().end();
    result?;
    Ok(check.report)
}

struct Check<'a> {
    report: CheckReport,
    most: usize,
    simd: Simd,
    window: Window<'a>,
    judge: Judge,
}

impl Check<'_> {
    fn run(
        &mut self,
        mut checked: PacketStream<'_>,
        strict: bool,
        progress: &SharedProgress<'_>,
    ) -> Result<(), Error> {
        let starts = self.find_link_headers(&mut checked)?;
        if let Some(starts) = starts {
            self.window.ignore_link_headers(starts.checked);
            self.report.not_judged.link_headers = true;
        }
        let mut first_like_other = None;
        while let Some(packet) = checked.next_packet()? {
            match starts {
                Some(starts) => {
                    if packet.start() == Some(starts.origin) {
                        first_like_other.get_or_insert(packet.number);
                    }
                    self.judge_or_fragment(&packet.without_link())?;
                    if let (Some(one), Some(other)) =
                        (first_like_other, self.window.first_like_other)
                    {
                        return Err(Error::Options(starts.contradicted(&self.report, one, other)));
                    }
                }
                None => self.judge_or_fragment(&packet)?,
            }
        }
        self.report.packets_out = checked.packets;
        let cut = checked.truncated().cloned();
        self.window.finish()?.report(&mut self.report, !checked.is_incomplete_file());
        let origin_cut = self.window.stream.truncated().cloned();
        for cut in [&cut, &origin_cut].into_iter().flatten() {
            match strict {
                true => return Err(Error::CutShort(cut.clone())),
                false => progress.borrow().cut_short(cut),
            }
        }
        self.report.interrupted = checked.is_interrupted() || self.window.stream.is_interrupted();
        self.report.cut_short = cut.map(CutShort::from);
        self.report.origin_cut_short = origin_cut.map(CutShort::from);
        self.report.packets_in = self.window.stream.packets;
        self.report.filtered_out = checked.filtered_out;
        self.report.origin_filtered_out = self.window.stream.filtered_out;
        self.report.not_judged.origin_headers = self.window.bad_headers;
        self.report.not_judged.sizes = self.window.sizes_inferred;
        self.report.verdict = self.report.outcome();
        Ok(())
    }

    /// Returns the kinds of headers with which packets of the two files begin, if link headers
    /// cannot be compared; `None` if they can, because the files begin alike or both of them
    /// contain both kinds.
    fn find_link_headers(
        &mut self,
        checked: &mut PacketStream<'_>,
    ) -> Result<Option<FileStarts>, Error> {
        let stream = &mut self.window.stream;
        let (Some(one), Some(other)) =
            (checked.find_ahead(FilePacket::start)?, stream.find_ahead(FilePacket::start)?)
        else {
            return Ok(None);
        };
        let begins =
            |start| move |packet: &FilePacket| packet.start().filter(|found| *found == start);
        let mixed = one == other
            || (checked.find_ahead(begins(other))?.is_some()
                && stream.find_ahead(begins(one))?.is_some());
        Ok((!mixed).then_some(FileStarts { checked: one, origin: other }))
    }

    /// Judges a packet of the checked file. If its header asks for IP fragmentation, its fragments
    /// are judged instead, since the same was done with the original file.
    fn judge_or_fragment(&mut self, packet: &FilePacket) -> Result<(), Error> {
        match self.window.fragments(packet) {
            Some(fragments) => {
                fragments.iter().try_for_each(|fragment| self.judge_packet(fragment))
            }
            None => self.judge_packet(packet),
        }
    }

    /// Finds the packets of the original file for which a packet of the checked file stands, and
    /// judges it.
    fn judge_packet(&mut self, packet: &FilePacket) -> Result<(), Error> {
        if packet.is_unreadable_super_packet() {
            self.report.not_judged.unreadable += 1;
            return Ok(());
        }
        self.judge.begin();
        let Matched { indices, foreign, .. } = self.window.find(packet)?;
        let endpoints = packet.endpoints;
        let refused = packet.is_refused_by_linux(self.simd) && indices.len() == 1;
        let overtaken =
            indices.first().map(|&first| self.mark_overtaken(packet, first, &indices, refused));
        // This is done before the packets are removed: the order within an address pair is known
        // only as long as one of its packets is held.
        let overtaken_in_pair = indices.iter().enumerate().find_map(|(place, &index)| {
            let entry = self.window.entry(endpoints, index)?;
            Some((place, self.window.pairs.overtook(entry.packet.pairs, entry.packet.number)?))
        });
        let entries = self.window.take(endpoints, &indices);
        for entry in &entries {
            self.window.pairs.left(
                entry.packet.pairs,
                Departure { packet: packet.number, origin: entry.packet.number },
            );
        }
        for entry in &entries {
            if let Some(Overtaken { by, origin, refused }) = entry.overtaken {
                let rule = if refused { Rule::RefusedOrder } else { Rule::Order };
                let what = format!(
                    "packet {by}, which is packet {origin} of the original, left before it"
                );
                self.judge.note(rule, "order", Some(&entry.packet), what);
            }
        }
        if let Some((place, Departure { packet: by, origin })) = overtaken_in_pair
            && let Some(entry) = entries.get(place)
        {
            let what = format!(
                "packet {by}, which is packet {origin} of the original and of the same addresses, left before it"
            );
            self.judge.note(Rule::PairOrder, "order", Some(&entry.packet), what);
        }
        if let (Some(true), Some(entry)) = (overtaken, entries.first()) {
            let what = "the packets in it came in another order".to_owned();
            self.judge.note(Rule::Order, "order", Some(&entry.packet), what);
        }
        let origins: Vec<&FilePacket> = entries.iter().map(|entry| &entry.packet).collect();
        match origins.as_slice() {
            [] if packet.cut => self.report.not_judged.snap_length += 1,
            [] if self.window.stream.is_incomplete_file() || self.window.bad_headers > 0 => {
                self.report.not_judged.without_origin += 1
            }
            [] => {
                let what = "it matches no packet of the original that has not left yet".to_owned();
                self.judge.note(Rule::Invented, "packet", None, what);
                self.judge.judge_alone(packet, false);
            }
            [origin] if origin.is_same(packet) && packet.link == origin.link => {
                self.report.segments += u64::from(origin.part.is_some());
                self.report.not_judged.snap_length += u64::from(packet.cut || origin.cut);
                self.judge.judge_fragment_id(packet, origin);
                // The checksum and lengths are the same as in the original file, but the
                // `virtio_net_hdr` is not.
                if packet.bytes == origin.bytes && origin.is_valid(self.simd) {
                    self.judge.judge_virtio_header(packet, false);
                }
            }
            origins if packet.cut || origins.iter().any(|origin| origin.cut) => {
                self.report.not_judged.snap_length += 1
            }
            // The original packet was counted as one with an invalid header, and may be cut in any
            // way.
            [origin] if origin.has_invalid_header() => {}
            // The original file ends among the packets that were merged.
            _ if foreign > 0 && self.window.stream.truncated().is_some() => {
                self.report.not_judged.without_origin += 1
            }
            origins => self.compare(packet, origins, foreign),
        }
        for finding in self.judge.findings.drain(..) {
            self.report.violation(self.most, Some(packet.number), finding);
        }
        Ok(())
    }

    fn compare(&mut self, packet: &FilePacket, origins: &[&FilePacket], foreign: usize) {
        let payload = packet.payload();
        let mut place = 0;
        let mut whole = foreign == 0;
        for origin in origins {
            let then = origin.payload();
            let now = payload.get(place..).unwrap_or(&[]);
            let now = now.get(..then.len()).unwrap_or(now);
            let differs = now.iter().zip(then).position(|(now, then)| now != then);
            let what = match differs {
                Some(at) => format!(
                    "byte {} of its payload is {:#04x}, and was {:#04x}",
                    place + at,
                    now[at],
                    then[at]
                ),
                None if now.len() < then.len() => format!(
                    "its payload lacks the last {} bytes of that packet's payload",
                    then.len() - now.len()
                ),
                None => {
                    place += then.len();
                    continue;
                }
            };
            whole = false;
            self.judge.note(Rule::Bytes, "payload", Some(origin), what);
            place += then.len();
        }
        if foreign > 0 && !self.judge.findings.iter().any(|finding| finding.rule == Rule::Bytes) {
            let what = format!(
                "the last {foreign} of the {} bytes of its payload come from no packet of its flow",
                payload.len()
            );
            self.judge.note(Rule::Bytes, "payload", origins.last().copied(), what);
        }
        if let [origin] = origins {
            self.report.segments += u64::from(origin.part.is_some());
            if whole {
                self.judge.judge_single(packet, origin);
            } else {
                self.judge.judge_alone(packet, false);
            }
            return;
        }
        self.report.super_packets += 1;
        self.report.merged += origins.len() as u64 - 1;
        self.report.not_judged.headers += u64::from(packet.virtio.is_none());
        if whole {
            self.judge.judge_merged(packet, origins, packet.virtio.is_some());
        } else {
            self.judge.judge_alone(packet, true);
        }
    }

    /// Marks packets of the original file that the current packet of the checked file has
    /// overtaken: earlier packets of the same flow that have no counterpart so far. Returns whether
    /// the packets that were merged into the current packet are out of order themselves.
    fn mark_overtaken(
        &mut self,
        packet: &FilePacket,
        first: usize,
        indices: &[usize],
        refused: bool,
    ) -> bool {
        let endpoints = packet.endpoints;
        let Some(last) = indices.iter().max().copied() else { return false };
        let (Some(flow), Some(origin)) = (
            self.window.entry(endpoints, first).map(|entry| entry.packet.order_scope),
            self.window.entry(endpoints, last).map(|entry| entry.packet.number),
        ) else {
            return false;
        };
        let mut sorted = indices.to_vec();
        sorted.sort_unstable();
        for index in (0..last).filter(|index| sorted.binary_search(index).is_err()) {
            if let Some(entry) = self.window.entry_mut(endpoints, index)
                && entry.packet.order_scope == flow
            {
                let refused = refused || entry.packet.linux_flow != packet.linux_flow;
                if entry.overtaken.is_none_or(|overtaken| overtaken.refused && !refused) {
                    entry.overtaken = Some(Overtaken { by: packet.number, origin, refused });
                }
            }
        }
        !indices.is_sorted()
    }
}

/// The kinds of headers with which packets of the two files begin, if link headers are not
/// compared.
#[derive(Clone, Copy)]
struct FileStarts {
    checked: PacketStart,
    origin: PacketStart,
}

impl FileStarts {
    /// Returns the error message for two files that both turn out to contain both kinds of link
    /// headers, after it was decided not to compare link headers.
    fn contradicted(&self, report: &CheckReport, in_checked: u64, in_origin: u64) -> String {
        let FileStarts { checked, origin } = self;
        format!(
            "{}: it begins with packets that have {checked}, and packet {in_checked} has {origin}; {}: it begins with packets \
             that have {origin}, and packet {in_origin} has {checked}; files that mix both must do so within the first \
             {AHEAD_PACKETS} packets and 4 MiB of each",
            report.checked, report.origin,
        )
    }
}
