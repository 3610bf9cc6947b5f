//! `check`: is what another implementation made of these packets a faithful aggregation, or a
//! faithful segmentation?
//!
//! Both are one question. The original is brought into the packets that a wire would have carried:
//! a super-packet is cut as its header says ([`window`]). Each packet that left then stands for one
//! of these, or for several. Those are found by flow, sequence number and payload ([`matching`]),
//! and what left is compared with them: one with one, or a merged packet after this project's own
//! segmenter has cut it again ([`judge`]). Each difference is the violation of a rule ([`rule`]).

mod fields;
mod fragment_ids;
mod judge;
mod linux_flow;
mod matching;
mod never_left;
mod packet;
mod pairs;
mod records;
mod rule;
mod stream;
mod window;

use std::collections::BTreeMap;

use serde::Serialize;
use superpacket::Simd;

pub use self::rule::{Rule, Strictness};

use self::judge::{Finding, Judge};
use self::matching::Matched;
use self::packet::{Packet, PacketStart};
use self::pairs::Departure;
use self::stream::{AHEAD_PACKETS, Stream};
use self::window::{Overtaken, Window};
use crate::error::Error;
use crate::input::Input;
use crate::progress::{INTERVAL, Progress};
use crate::totals::CutShort;

/// How [`check`] judges.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// By which rules.
    pub rules: Strictness,
    /// Violations that the report describes; all are counted.
    pub most_described: usize,
    /// Fails if a file ends within a record.
    pub strict: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { rules: Strictness::Linux, most_described: 10, strict: false }
    }
}

/// A rule that a packet breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The packet, from 1, in the file that is checked; `None` for a packet that never left.
    pub packet: Option<u64>,
    /// The packet of the original that is concerned, from 1.
    pub origin: Option<u64>,
    /// The field.
    pub field: String,
    /// The rule.
    pub rule: Rule,
    /// What was found, in words.
    pub found: String,
}

/// The outcome of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// All that the files hold was judged, and no rule is broken.
    Faithful,
    /// A rule is broken.
    Unfaithful,
    /// No rule is broken, but some packets could not be judged: see
    /// [`NotJudged::is_incomplete`].
    #[default]
    Incomplete,
}

impl Verdict {
    /// Returns the name that JSON uses.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Faithful => "faithful",
            Verdict::Unfaithful => "unfaithful",
            Verdict::Incomplete => "incomplete",
        }
    }
}

/// What could not be judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotJudged {
    /// Merged packets without a `virtio_net_hdr`: what it would say of their segments and their
    /// checksum.
    pub headers: u64,
    /// Packets of the original that were cut, and had no `virtio_net_hdr`: the size of their
    /// segments was taken from the first of them.
    pub sizes: u64,
    /// Packets of the original whose own header contradicts them, or asks for more than 16,384
    /// segments: they were taken for whole.
    pub origin_headers: u64,
    /// Packets that a snap length cut, or whose original it cut: the missing bytes could not be
    /// compared.
    pub snap_length: u64,
    /// Packets of the original that did not leave, where the file that was checked was cut short or
    /// a snap length cut its packets: they may be in the missing part.
    pub missing: u64,
    /// Packets that are like none of the original, where that was cut short, a snap length cut its
    /// packets, or a header contradicts its packet: they may come of those.
    pub without_origin: u64,
    /// Super-packets whose headers cannot be read, such as those in a tunnel with reserved bits,
    /// and packets of the original that may be in them.
    pub unreadable: u64,
    /// Were link headers left out, since the files have different ones?
    pub link_headers: bool,
}

impl NotJudged {
    /// Returns whether packets were not judged, so that no verdict on the whole is possible. What a
    /// file has no place for (`headers`, `sizes`, `link_headers`) does not count.
    pub const fn is_incomplete(&self) -> bool {
        self.origin_headers
            + self.snap_length
            + self.missing
            + self.without_origin
            + self.unreadable
            > 0
    }
}

/// What [`check`] found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    command: &'static str,
    /// The file that was checked.
    pub checked: String,
    /// The original.
    pub origin: String,
    /// By which rules.
    pub rules: Strictness,
    /// The outcome.
    pub verdict: Verdict,
    /// Packets of the original.
    pub packets_in: u64,
    /// Packets of the file that was checked.
    pub packets_out: u64,
    /// Packets that left and stand for several.
    pub super_packets: u64,
    /// Packets of the original, or segments of these, that joined another.
    pub merged: u64,
    /// Packets that left and are segments of one of the original.
    pub segments: u64,
    /// Violations.
    pub violations: u64,
    /// Violations by rule.
    pub by_rule: BTreeMap<Rule, u64>,
    /// The first violations.
    pub described: Vec<Violation>,
    /// What could not be judged.
    pub not_judged: NotJudged,
    /// Where the file that was checked was cut short.
    pub cut_short: Option<CutShort>,
    /// Where the original was cut short.
    pub origin_cut_short: Option<CutShort>,
}

impl CheckReport {
    /// Returns the outcome of all that was found.
    fn outcome(&self) -> Verdict {
        let cut_short = self.cut_short.is_some() || self.origin_cut_short.is_some();
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

    /// Counts this many lost packets, and describes the first of them as long as there is room.
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
/// `origin`: the report's [`verdict`](CheckReport::verdict) is [`Verdict::Faithful`] if they are.
///
/// Either is a capture, or a file of records (docs/check.md). Packets may have a `virtio_net_hdr`:
/// in a file of records, or as a comment `virtio_net_hdr=HEX` on a pcapng packet. Memory is bounded
/// whatever their sizes, as long as packets leave near their place in the original.
///
/// # Errors
/// Whatever stops the reading of either file; [`Error::Options`] for files that both mix packets
/// with different link headers, but the one or the other only behind its first 4,096 packets or
/// 4 MiB.
pub fn check(
    checked: Input<'_>,
    origin: Input<'_>,
    options: &CheckOptions,
    progress: &mut dyn Progress,
) -> Result<CheckReport, Error> {
    let simd = Simd::detect();
    let (checked, origin) = (Stream::open(checked, simd)?, Stream::open(origin, simd)?);
    progress.begin(&checked.file, checked.length);
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
    let result = check.run(checked, options.strict, progress);
    progress.end();
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
        mut checked: Stream<'_>,
        strict: bool,
        progress: &mut dyn Progress,
    ) -> Result<(), Error> {
        let left_out = self.find_link_headers(&mut checked)?;
        if let Some(starts) = left_out {
            self.window.leave_link_headers_out(starts.checked);
            self.report.not_judged.link_headers = true;
        }
        let mut begins_as_other = None;
        while let Some(packet) = checked.next_packet()? {
            match left_out {
                Some(starts) => {
                    if packet.start() == Some(starts.origin) {
                        begins_as_other.get_or_insert(packet.number);
                    }
                    self.packet(&packet.without_link())?;
                    if let (Some(one), Some(other)) = (begins_as_other, self.window.begins_as_other)
                    {
                        return Err(Error::Options(starts.contradicted(&self.report, one, other)));
                    }
                }
                None => self.packet(&packet)?,
            }
            if checked.packets.is_multiple_of(INTERVAL)
                && progress.advance(checked.packets, checked.bytes_read()).is_break()
            {
                return Err(Error::Interrupted);
            }
        }
        self.report.packets_out = checked.packets;
        let cut = checked.truncated().cloned();
        self.window.finish()?.report(&mut self.report, !checked.lacks_a_part());
        let origin_cut = self.window.stream.truncated().cloned();
        for cut in [&cut, &origin_cut].into_iter().flatten() {
            match strict {
                true => return Err(Error::CutShort(cut.clone())),
                false => progress.cut_short(cut),
            }
        }
        self.report.cut_short = cut.map(CutShort::from);
        self.report.origin_cut_short = origin_cut.map(CutShort::from);
        self.report.packets_in = self.window.stream.packets;
        self.report.not_judged.origin_headers = self.window.bad_headers;
        self.report.not_judged.sizes = self.window.sizes_inferred;
        self.report.verdict = self.report.outcome();
        Ok(())
    }

    /// Finds out whether link headers are left out: what either file begins with if it is not the
    /// same, and not both files have packets that begin either way.
    fn find_link_headers(&mut self, checked: &mut Stream<'_>) -> Result<Option<Starts>, Error> {
        let stream = &mut self.window.stream;
        let (Some(one), Some(other)) =
            (checked.find_ahead(Packet::start)?, stream.find_ahead(Packet::start)?)
        else {
            return Ok(None);
        };
        let begins = |start| move |packet: &Packet| packet.start().filter(|found| *found == start);
        let mixed = one == other
            || (checked.find_ahead(begins(other))?.is_some()
                && stream.find_ahead(begins(one))?.is_some());
        Ok((!mixed).then_some(Starts { checked: one, origin: other }))
    }

    /// Judges a packet; of a datagram to be fragmented its fragments, as the original was cut.
    fn packet(&mut self, packet: &Packet) -> Result<(), Error> {
        match self.window.fragments(packet) {
            Some(fragments) => fragments.iter().try_for_each(|fragment| self.judged(fragment)),
            None => self.judged(packet),
        }
    }

    /// Finds what a packet stands for, and judges it.
    fn judged(&mut self, packet: &Packet) -> Result<(), Error> {
        if packet.is_unreadable_super_packet() {
            self.report.not_judged.unreadable += 1;
            return Ok(());
        }
        self.judge.begin();
        let Matched { indices, foreign, .. } = self.window.find(packet)?;
        let endpoints = packet.endpoints;
        let refused = packet.is_refused(self.simd) && indices.len() == 1;
        let overtaken =
            indices.first().map(|&first| self.mark_overtaken(packet, first, &indices, refused));
        // Before they leave: what is known of a pair is kept as long as something of it is held.
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
                self.judge.find(rule, "order", Some(&entry.packet), what);
            }
        }
        if let Some((place, Departure { packet: by, origin })) = overtaken_in_pair
            && let Some(entry) = entries.get(place)
        {
            let what = format!(
                "packet {by}, which is packet {origin} of the original and of the same addresses, left before it"
            );
            self.judge.find(Rule::PairOrder, "order", Some(&entry.packet), what);
        }
        if let (Some(true), Some(entry)) = (overtaken, entries.first()) {
            let what = "the packets in it did not come in this order".to_owned();
            self.judge.find(Rule::Order, "order", Some(&entry.packet), what);
        }
        let origins: Vec<&Packet> = entries.iter().map(|entry| &entry.packet).collect();
        match origins.as_slice() {
            [] if packet.cut => self.report.not_judged.snap_length += 1,
            [] if self.window.stream.lacks_a_part() || self.window.bad_headers > 0 => {
                self.report.not_judged.without_origin += 1
            }
            [] => {
                let what = "no packet of the original that has not left yet is like it".to_owned();
                self.judge.find(Rule::Invented, "packet", None, what);
                self.judge.itself(packet, false);
            }
            [origin] if origin.is_same(packet) && packet.link == origin.link => {
                self.report.segments += u64::from(origin.part.is_some());
                self.report.not_judged.snap_length += u64::from(packet.cut || origin.cut);
                self.judge.fragment_id(packet, origin);
                // Checksum and lengths came so, but its header did not.
                if packet.bytes == origin.bytes && origin.is_valid(self.simd) {
                    self.judge.header(packet, false);
                }
            }
            origins if packet.cut || origins.iter().any(|origin| origin.cut) => {
                self.report.not_judged.snap_length += 1
            }
            // Counted already: whoever cuts it does as it likes.
            [origin] if origin.is_contradicted() => {}
            // The original ends in the midst of what merged.
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

    fn compare(&mut self, packet: &Packet, origins: &[&Packet], foreign: usize) {
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
                    "its payload lacks the last {} bytes of that packet's",
                    then.len() - now.len()
                ),
                None => {
                    place += then.len();
                    continue;
                }
            };
            whole = false;
            self.judge.find(Rule::Bytes, "payload", Some(origin), what);
            place += then.len();
        }
        if foreign > 0 && !self.judge.findings.iter().any(|finding| finding.rule == Rule::Bytes) {
            let what = format!(
                "the last {foreign} of the {} bytes of its payload are of no packet of its flow",
                payload.len()
            );
            self.judge.find(Rule::Bytes, "payload", origins.last().copied(), what);
        }
        if let [origin] = origins {
            self.report.segments += u64::from(origin.part.is_some());
            if whole {
                self.judge.single(packet, origin);
            } else {
                self.judge.itself(packet, false);
            }
            return;
        }
        self.report.super_packets += 1;
        self.report.merged += origins.len() as u64 - 1;
        self.report.not_judged.headers += u64::from(packet.virtio.is_none());
        if whole {
            self.judge.group(packet, origins, packet.virtio.is_some());
        } else {
            self.judge.itself(packet, true);
        }
    }

    /// Marks the packets of a flow that came before what leaves now; returns whether what leaves
    /// now is not in order itself.
    fn mark_overtaken(
        &mut self,
        packet: &Packet,
        first: usize,
        indices: &[usize],
        refused: bool,
    ) -> bool {
        let endpoints = packet.endpoints;
        let Some(last) = indices.iter().max().copied() else { return false };
        let (Some(flow), Some(origin)) = (
            self.window.entry(endpoints, first).map(|entry| entry.packet.ordered_in),
            self.window.entry(endpoints, last).map(|entry| entry.packet.number),
        ) else {
            return false;
        };
        let mut sorted = indices.to_vec();
        sorted.sort_unstable();
        for index in (0..last).filter(|index| sorted.binary_search(index).is_err()) {
            if let Some(entry) = self.window.entry_mut(endpoints, index)
                && entry.packet.ordered_in == flow
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

/// What the first packets of the files begin with, where link headers are left out.
#[derive(Clone, Copy)]
struct Starts {
    checked: PacketStart,
    origin: PacketStart,
}

impl Starts {
    /// What to say where either file has packets that begin as those of the other, too far from its
    /// first for that to have been seen.
    fn contradicted(&self, report: &CheckReport, in_checked: u64, in_origin: u64) -> String {
        let Starts { checked, origin } = self;
        format!(
            "{}: it begins with packets that have {checked}, and packet {in_checked} has {origin}; {}: it begins with packets \
             that have {origin}, and packet {in_origin} has {checked}; what is mixed in both files must begin so in the first \
             {AHEAD_PACKETS} packets and 4 MiB of each",
            report.checked, report.origin,
        )
    }
}
