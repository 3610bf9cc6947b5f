//! `analyze`: compares in one pass how different kinds of aggregation would change a capture.

mod all_flows;
mod flows;
mod page;
mod parts;
mod plots;
mod rows;
mod sizes;
mod timeline;
mod uncertain;
#[doc(hidden)]
pub mod words;

use crate::file::{Frame, FrameOptions};
use serde::{Deserialize, Serialize};
use superpacket::Simd;
use superpacket::aggregate::Policy;
use superpacket::packet::Layer;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Layout, Protocol, parse, tcp};

use crate::commands::error::Error;
use crate::commands::input::{Input, OpenInput};
use crate::commands::lanes::{
    ArrivedFrame, CaptureAggregator, Discard, FrameSink, LinkHeader, PassReason, Stepping,
    clock_start,
};
use crate::commands::ledger::FlowId;
use crate::commands::pool::{Buffer, BufferPool};
use crate::commands::present::{average, ratio};
use crate::commands::progress::{Progress, is_interrupted};
use crate::commands::repair::Repair;
use crate::commands::totals::{CutShort, Tally, Totals, Unreadable};
use all_flows::FlowTable;
use flows::{Label, TopFlows};
use rows::Tables;
use uncertain::UncertainAcks;

pub use all_flows::{CaptureFlows, FlowCell, FlowEffect, MAX_LISTED_FLOWS};
pub use flows::TopFlow;
pub use parts::{Corpus, Cuts, Held, PartAnalysis, PartOptions, analyze_part};
pub use rows::{FlowRow, PacketsRow, Rows};
pub use sizes::{Counts, Sizes};
pub use timeline::Timeline;

/// Number of policies that are compared.
const POLICIES: usize = 4;

/// Index of the policy that `coalesce` uses by default. The report's common figures are its
/// results.
const DEFAULT: usize = 2;

/// Index of the policy that remembers across polls what each flow last acknowledged.
const WITH_ACKS: usize = 3;

/// The policies: JSON key, name, and the engine's settings.
const POLICY: [(&str, &str, Policy); POLICIES] = [
    ("lro", "LRO", Policy::lro()),
    ("gro", "GRO", Policy::gro().with_partial_checksums()),
    ("gro_udp", "GRO with UDP", Policy::gro_with_udp().with_partial_checksums()),
    ("lro_acks", "LRO with pure ACKs", Policy::lro_with_acks()),
];

/// The result of one policy on a capture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Effect {
    /// Packets and bytes before and after aggregation.
    #[serde(flatten)]
    pub totals: Totals,
    /// Pure ACKs that were absorbed; `merged` includes them.
    pub absorbed_acks: u64,
    /// Average number of packets per super-packet.
    pub packets_per_super_packet: f64,
    /// Super-packets by the number of packets that merged into them.
    pub super_packet_sizes: Counts,
    /// Frames that left, by length.
    pub sizes: Sizes,
    /// Bytes of the frames that left, by the length of the frame.
    pub bytes_by_length: Sizes,
}

impl Effect {
    fn add(&mut self, other: &Effect) {
        self.totals.add(&other.totals);
        self.absorbed_acks += other.absorbed_acks;
        self.super_packet_sizes.add(&other.super_packet_sizes);
        self.sizes.add(&other.sizes);
        self.bytes_by_length.add(&other.bytes_by_length);
        self.average();
    }

    /// Returns the average number of packets per super-packet, as reports print it.
    pub fn packets_in_one(&self) -> String {
        average(self.totals.merged + self.totals.super_packets, self.totals.super_packets, 1)
    }

    fn average(&mut self) {
        self.packets_per_super_packet =
            ratio(self.totals.merged + self.totals.super_packets, self.totals.super_packets);
    }
}

/// The packets of a capture, by kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// All packets.
    pub packets: u64,
    /// Number of bytes of the packets' frames, link headers included.
    pub bytes: u64,
    /// Packets of TCP.
    pub tcp_packets: u64,
    /// Packets of UDP.
    pub udp_packets: u64,
    /// Packets of DCCP.
    pub dccp_packets: u64,
    /// Packets of other protocols, or whose headers cannot be read.
    pub other_packets: u64,
    /// TCP packets without payload that only acknowledge.
    pub pure_acks: u64,
    /// Share of pure ACKs among all packets, from 0 to 1.
    pub ack_share: f64,
    /// Frames by length.
    pub sizes: Sizes,
    /// Bytes of frames by the length of the frame.
    pub bytes_by_length: Sizes,
}

impl Traffic {
    fn add(&mut self, other: &Traffic) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.tcp_packets += other.tcp_packets;
        self.udp_packets += other.udp_packets;
        self.dccp_packets += other.dccp_packets;
        self.other_packets += other.other_packets;
        self.pure_acks += other.pure_acks;
        self.sizes.add(&other.sizes);
        self.bytes_by_length.add(&other.bytes_by_length);
        self.ack_share = ratio(self.pure_acks, self.packets);
    }

    fn count(&mut self, frame: usize, packet: &[u8], layer: Option<Layer>) {
        self.packets += 1;
        self.bytes += frame as u64;
        self.sizes.count(frame);
        self.bytes_by_length.weigh(frame, frame as u64);
        let layout = layer.and_then(|layer| parse(packet, packet.len(), layer).ok());
        match layout.map(|layout| layout.protocol) {
            Some(Protocol::Tcp) => self.tcp_packets += 1,
            Some(Protocol::Udp) => self.udp_packets += 1,
            Some(Protocol::Dccp) => self.dccp_packets += 1,
            None => self.other_packets += 1,
        }
        self.pure_acks += u64::from(layout.is_some_and(|layout| {
            layout.protocol == Protocol::Tcp && is_pure_ack(packet, &layout)
        }));
        self.ack_share = ratio(self.pure_acks, self.packets);
    }
}

/// Returns whether this TCP packet only acknowledges: ACK is its only flag but for ECN, and it has
/// no payload.
fn is_pure_ack(packet: &[u8], layout: &Layout) -> bool {
    let flags = packet.get(usize::from(layout.transport) + tcp::FLAGS).copied().unwrap_or(0);
    u32::from(layout.payload) == layout.end
        && flags & (tcp::SYN | tcp::FIN | tcp::RST | tcp::PSH | tcp::URG | tcp::ACK) == tcp::ACK
}

/// The results of all policies. Each field has the policy's JSON key as its name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Effects {
    /// The result of LRO.
    pub lro: Effect,
    /// The result of GRO without UDP.
    pub gro: Effect,
    /// The result of GRO with UDP.
    pub gro_udp: Effect,
    /// The result of LRO that absorbs pure ACKs too.
    pub lro_acks: Effect,
}

impl Effects {
    /// Returns the policies' names and effects, in the order of reports.
    pub fn in_order(&self) -> [(&'static str, &Effect); POLICIES] {
        [
            (POLICY[0].1, &self.lro),
            (POLICY[1].1, &self.gro),
            (POLICY[2].1, &self.gro_udp),
            (POLICY[3].1, &self.lro_acks),
        ]
    }

    fn add(&mut self, other: &Effects) {
        self.lro.add(&other.lro);
        self.gro.add(&other.gro);
        self.gro_udp.add(&other.gro_udp);
        self.lro_acks.add(&other.lro_acks);
    }
}

/// The results for one capture, or for all captures together.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// Totals of merging the packets with the policy `gro_udp`, the default of the command
    /// `coalesce`.
    #[serde(flatten)]
    pub totals: Totals,
    /// The packets of the capture, by kind.
    pub traffic: Traffic,
    /// The result of each policy.
    pub policies: Effects,
    /// The flows with the most bytes.
    pub top_flows: Vec<TopFlow>,
    /// Packets over time, before and after aggregation; empty for several captures together.
    #[serde(skip)]
    pub timeline: Timeline,
}

/// The results for one capture.
#[derive(Clone, Debug, Serialize)]
pub struct FileAnalysis {
    /// The name of the capture.
    pub file: String,
    /// Its first 64 interfaces: the name, if there is one, and the link type.
    pub interfaces: Vec<String>,
    /// The results.
    #[serde(flatten)]
    pub findings: Findings,
    /// The place where the capture was cut short, if it was.
    pub cut_short: Option<CutShort>,
}

/// Options of [`analyze`].
#[derive(Clone, Debug)]
pub struct AnalyzeOptions {
    /// The length of polls, and the hold time.
    pub stepping: Stepping,
    /// Number of flows in the list of flows with the most bytes.
    pub top: usize,
    /// Whether a capture that ends within a record is an error.
    pub strict: bool,
}

impl Default for AnalyzeOptions {
    fn default() -> Self {
        AnalyzeOptions { stepping: Stepping::default(), top: 10, strict: false }
    }
}

/// The report of [`analyze`].
#[derive(Clone, Debug, Serialize)]
pub struct AnalyzeReport {
    command: &'static str,
    /// Number of packets that are aggregated together, as by one poll of a receive queue.
    pub batch: u64,
    /// Maximum time that a packet is held, in nanoseconds.
    pub hold_ns: u64,
    /// The results for all captures together.
    #[serde(flatten)]
    pub findings: Findings,
    /// Each capture.
    pub files: Vec<FileAnalysis>,
    /// Captures that could not be read.
    pub unreadable: Unreadable,
    /// Whether [`Progress::end_requested`] ended the reading. The last capture may then not have
    /// been read to its end, and those behind it were not read.
    pub interrupted: bool,
    /// The captures that were read in parts, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuts: Option<Cuts>,
    /// Number of captures in the results. After reading a corpus, `files` lists only the first
    /// thousand of them.
    #[serde(skip)]
    pub captures: u64,
    /// Number of captures that could not be read; `unreadable` lists the first thousand.
    #[serde(skip)]
    pub unreadable_captures: u64,
}

impl AnalyzeReport {
    fn empty(options: &AnalyzeOptions, unreadable: Unreadable) -> Self {
        AnalyzeReport {
            command: "analyze",
            batch: options.stepping.batch,
            hold_ns: options.stepping.hold,
            findings: Findings::default(),
            files: Vec::new(),
            unreadable,
            interrupted: false,
            cuts: None,
            captures: 0,
            unreadable_captures: 0,
        }
    }

    /// Renders a self-contained HTML page with tables and plots.
    ///
    /// # Errors
    /// [`Error::Plot`] if a plot cannot be drawn.
    pub fn page(&self) -> Result<String, Error> {
        page::render(self)
    }
}

/// Reports in one pass what LRO, GRO, GRO with UDP, and LRO with pure ACKs would merge, and which
/// reasons kept packets apart.
///
/// # Errors
/// Any error that ends the reading of the only capture. If there are several, the report lists
/// those that cannot be read.
pub fn analyze(
    inputs: Vec<Input<'_>>,
    options: &AnalyzeOptions,
    progress: &mut dyn Progress,
) -> Result<AnalyzeReport, Error> {
    run(inputs, options, None, progress)
}

/// Does the same as [`analyze`], and calls `each` with all flows of each capture that was read.
///
/// Memory grows with the number of flows of a capture, up to [`MAX_LISTED_FLOWS`]. The packets of
/// all further flows are counted together.
///
/// # Errors
/// Those of [`analyze`], and any error of `each`.
pub fn analyze_flows(
    inputs: Vec<Input<'_>>,
    options: &AnalyzeOptions,
    each: &mut FlowReceiver<'_>,
    progress: &mut dyn Progress,
) -> Result<AnalyzeReport, Error> {
    run(inputs, options, Some(each), progress)
}

/// A function that receives all flows of a capture, for [`analyze_flows`].
pub type FlowReceiver<'a> = dyn FnMut(&CaptureFlows) -> Result<(), Error> + 'a;

fn run(
    inputs: Vec<Input<'_>>,
    options: &AnalyzeOptions,
    mut each: Option<&mut FlowReceiver<'_>>,
    progress: &mut dyn Progress,
) -> Result<AnalyzeReport, Error> {
    let mut report = AnalyzeReport::empty(options, Unreadable::among(inputs.len()));
    let mut all_flows = TopFlows::default();
    for input in inputs {
        let mut table = each.is_some().then(FlowTable::default);
        let found = pass(input, options, Bounds::WHOLE, None, table.as_mut(), progress);
        if is_interrupted(&found, &report.files, progress) {
            report.interrupted = true;
            break;
        }
        let Some((file, part)) = report.unreadable.note_failure(found, progress)? else { continue };
        report.interrupted = part.interrupted;
        if let (Some(each), Some(table)) = (&mut each, table) {
            each(&CaptureFlows::new(&file, table))?;
        }
        let totals = part.policies.in_order()[DEFAULT].1.totals.clone();
        let (top_flows, traffic) = (part.flows.rows(options.top), part.traffic);
        let findings = Findings {
            totals,
            traffic,
            policies: part.policies,
            top_flows,
            timeline: part.timeline,
        };
        report.findings.totals.add(&findings.totals);
        report.findings.traffic.add(&findings.traffic);
        report.findings.policies.add(&findings.policies);
        all_flows.add(&part.flows);
        report.files.push(FileAnalysis {
            file,
            interfaces: part.interfaces,
            findings,
            cut_short: part.cut_short,
        });
        if report.interrupted {
            break;
        }
    }
    report.captures = report.files.len() as u64;
    report.unreadable_captures = report.unreadable.messages.len() as u64;
    report.findings.top_flows = all_flows.rows(options.top);
    if let [only] = report.files.as_slice() {
        report.findings.timeline = only.findings.timeline.clone();
    }
    Ok(report)
}

/// The state of one policy during a pass.
struct PolicyRun {
    aggregator: CaptureAggregator,
    tally: Tally,
    sizes: Sizes,
    bytes_by_length: Sizes,
    super_packet_sizes: Counts,
}

impl PolicyRun {
    fn new(policy: Policy, stepping: Stepping, simd: Simd) -> Self {
        PolicyRun {
            aggregator: CaptureAggregator::new(policy, stepping, simd),
            tally: Tally::default(),
            sizes: Sizes::default(),
            bytes_by_length: Sizes::default(),
            super_packet_sizes: Counts::default(),
        }
    }

    /// Returns the aggregator, and the sink that counts the packets that leave it.
    #[inline(always)]
    fn counting<'a, 'r>(
        &'a mut self,
        detail: Option<PolicyDetail<'a, 'r>>,
        all_flows: Option<(&'a mut FlowTable, usize, usize)>,
    ) -> (&'a mut CaptureAggregator, PolicyCounts<'a, 'r>) {
        let PolicyRun { aggregator, tally, sizes, bytes_by_length, super_packet_sizes } = self;
        let counts =
            PolicyCounts { tally, sizes, bytes_by_length, super_packet_sizes, detail, all_flows };
        (aggregator, counts)
    }

    fn effect(&self) -> Effect {
        let mut effect = Effect {
            totals: self.tally.totals(),
            absorbed_acks: self.tally.absorbed_acks,
            packets_per_super_packet: 0.0,
            super_packet_sizes: self.super_packet_sizes.clone(),
            sizes: self.sizes.clone(),
            bytes_by_length: self.bytes_by_length.clone(),
        };
        effect.average();
        effect
    }
}

/// The range of a capture's packets that is counted.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The number of the first packet of this part of the capture. Earlier packets belong to the
    /// previous part, and are not counted.
    first: u64,
    /// Whether another part of the capture follows.
    continues: bool,
}

impl Bounds {
    const WHOLE: Bounds = Bounds { first: 1, continues: false };
}

/// Reads a capture, or a part of one, to its end. Returns its name and the results.
fn pass(
    input: Input<'_>,
    options: &AnalyzeOptions,
    bounds: Bounds,
    tables: Option<&mut Tables<'_>>,
    all_flows: Option<&mut FlowTable>,
    progress: &mut dyn Progress,
) -> Result<(String, PartAnalysis), Error> {
    let simd = Simd::detect();
    let mut input = OpenInput::open(input, options.strict, progress)?;
    let mut pass = Pass {
        bounds,
        simd,
        repair: Repair::default(),
        pool: BufferPool::default(),
        runs: POLICY.map(|(_, _, policy)| PolicyRun::new(policy, options.stepping, simd)),
        traffic: Traffic::default(),
        flows: TopFlows::default(),
        timeline: Timeline::default(),
        first_time: None,
        last_time: None,
        uncertain: None,
        is_first: true,
        clock_start: 0,
        tables,
        all_flows,
    };
    input.for_each(|frame| pass.frame(frame))?;
    let held = pass.finish();
    let file = input.file().to_owned();
    let interfaces = input.interfaces().iter().map(|interface| match interface.name() {
        Some(name) => format!("{name}: {}", interface.link_type),
        None => interface.link_type.to_string(),
    });
    let interfaces = interfaces.take(64).collect();
    pass.runs.iter_mut().for_each(|run| run.tally.totals.filtered_out = input.filtered_out());
    let end = input.finish()?;
    let [lro, gro, gro_udp, lro_acks] = pass.runs.each_ref().map(PolicyRun::effect);
    let Pass { traffic, flows, timeline, first_time, last_time, .. } = pass;
    let part = PartAnalysis {
        interfaces,
        traffic,
        policies: Effects { lro, gro, gro_udp, lro_acks },
        held,
        first_time,
        last_time,
        cut_short: end.cut_short,
        interrupted: end.interrupted,
        timeline,
        flows,
    };
    Ok((file, part))
}

/// The state of a pass over a capture or a part of one.
struct Pass<'t, 'r> {
    bounds: Bounds,
    simd: Simd,
    repair: Repair,
    pool: BufferPool,
    runs: [PolicyRun; POLICIES],
    traffic: Traffic,
    flows: TopFlows,
    timeline: Timeline,
    /// The earliest capture time, in nanoseconds since 1970.
    first_time: Option<u64>,
    /// The latest capture time, in nanoseconds since 1970.
    last_time: Option<u64>,
    /// Counts the packets whose result depends on earlier parts. Set only if reading starts behind
    /// the capture's first packet.
    uncertain: Option<UncertainAcks>,
    /// Whether no frame has been read yet.
    is_first: bool,
    clock_start: i64,
    tables: Option<&'t mut Tables<'r>>,
    all_flows: Option<&'t mut FlowTable>,
}

impl Pass<'_, '_> {
    /// Counts a frame, and passes it to all policies.
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        // Options are not needed, so they are not kept in memory.
        let frame = &Frame { options: FrameOptions::NONE, ..*frame };
        let arrival = ArrivedFrame::new(frame, &self.pool, Some(&mut self.repair), self.simd);
        let flow = arrival.link.as_ref().and_then(|link| {
            let label = Label::of(arrival.buffer.as_ref(), link.layer())?;
            Some((FlowId::of(arrival.buffer.as_ref(), link.layer(), link), label, link))
        });
        // A filter may leave out the first packets of a capture, which is no reason.
        if std::mem::take(&mut self.is_first) && frame.number > 1 && self.bounds.first > 1 {
            self.uncertain = Some(UncertainAcks::default());
        }
        if let (Some(uncertain), Some((flow, _, link))) = (&mut self.uncertain, flow) {
            uncertain.note_packet(
                arrival.buffer.as_ref(),
                flow,
                link,
                frame.number >= self.bounds.first,
                &self.runs[WITH_ACKS].aggregator,
            );
        }
        if frame.number < self.bounds.first {
            for run in &mut self.runs {
                run.aggregator.receive(arrival.clone(), &self.pool, &mut Discard);
                if frame.number + 1 == self.bounds.first {
                    run.aggregator.finish(&mut Discard);
                }
            }
            return Ok(());
        }
        self.count(frame, &arrival, flow.map(|(flow, label, _)| (flow, label)));
        let place = match &mut self.all_flows {
            Some(table) => table.count(flow, arrival.buffer.as_ref(), frame.data.len()),
            None => 0,
        };
        let flow = flow.map(|(flow, ..)| flow);
        self.clock_start = clock_start(frame);
        let clock_start = self.clock_start;
        let Pass { runs, pool, flows, timeline, tables, all_flows, .. } = self;
        for (index, run) in runs.iter_mut().enumerate() {
            run.tally.arrived(frame.data.len());
            let detail = (index == DEFAULT).then_some(PolicyDetail {
                flows: &mut *flows,
                timeline: &mut *timeline,
                clock_start,
                tables: tables.as_deref_mut(),
                arrived: flow,
            });
            let all_flows = all_flows.as_deref_mut().map(|table| (table, index, place));
            let (aggregator, mut counts) = run.counting(detail, all_flows);
            aggregator.receive(arrival.clone(), pool, &mut counts);
        }
        if let Some(uncertain) = &mut self.uncertain {
            uncertain.update(&self.runs[WITH_ACKS].aggregator);
        }
        match &mut self.tables {
            Some(tables) => tables.emit_full(),
            None => Ok(()),
        }
    }

    /// Counts a frame as captured.
    #[inline(always)]
    fn count(&mut self, frame: &Frame<'_>, arrival: &ArrivedFrame, flow: Option<(FlowId, Label)>) {
        let layer = arrival.link.as_ref().map(LinkHeader::layer);
        self.traffic.count(frame.data.len(), arrival.buffer.as_ref(), layer);
        if let Some(time) = arrival.time {
            self.timeline.before(time);
        }
        let time = frame.time.map(|time| time.nanoseconds());
        if let Some(time) = time {
            self.first_time = Some(self.first_time.map_or(time, |first: u64| first.min(time)));
            self.last_time = self.last_time.max(Some(time));
        }
        if let Some((flow, label)) = flow {
            self.flows.count(flow, label, frame.data.len());
            if let Some(tables) = &mut self.tables {
                tables.flow(flow, label, frame.data.len(), time);
            }
        }
        if let Some(tables) = &mut self.tables {
            tables.before(frame.data.len(), time);
        }
    }

    /// Flushes the aggregators of all policies. Returns the number of packets that might have
    /// merged differently if the capture had not been cut at the start and the end of this part.
    fn finish(&mut self) -> Held {
        let mut held = match self.bounds.continues {
            true => self.runs.each_ref().map(|run| run.aggregator.held()),
            false => [0; POLICIES],
        };
        if let Some(mut uncertain) = self.uncertain.take() {
            held[WITH_ACKS] += uncertain.finish(&self.runs[WITH_ACKS].aggregator);
        }
        let clock_start = self.clock_start;
        let Pass { runs, flows, timeline, tables, all_flows, .. } = self;
        for (index, run) in runs.iter_mut().enumerate() {
            let detail = (index == DEFAULT).then_some(PolicyDetail {
                flows: &mut *flows,
                timeline: &mut *timeline,
                clock_start,
                tables: tables.as_deref_mut(),
                arrived: None,
            });
            // At the end, no packet passes that has just been read and has a place.
            let all_flows = all_flows.as_deref_mut().map(|table| (table, index, 0));
            let (aggregator, mut counts) = run.counting(detail, all_flows);
            aggregator.finish(&mut counts);
        }
        Held::new(held)
    }
}

/// A sink that counts the packets that leave the aggregator of one policy.
struct PolicyCounts<'a, 'r> {
    tally: &'a mut Tally,
    sizes: &'a mut Sizes,
    bytes_by_length: &'a mut Sizes,
    super_packet_sizes: &'a mut Counts,
    /// Counts that are made for the default policy only.
    detail: Option<PolicyDetail<'a, 'r>>,
    /// For the table of all flows, if it is requested: the table, the index of the policy, and the
    /// table row of the packet that has just been read.
    all_flows: Option<(&'a mut FlowTable, usize, usize)>,
}

/// Counts the packets of each flow and over time, and fills the tables of rows if these are
/// requested.
struct PolicyDetail<'a, 'r> {
    flows: &'a mut TopFlows,
    timeline: &'a mut Timeline,
    /// The start of the capture's clock, in seconds since 1970; the times of packets are relative
    /// to it.
    clock_start: i64,
    tables: Option<&'a mut Tables<'r>>,
    /// The flow of the packet that has just been read.
    arrived: Option<FlowId>,
}

impl FrameSink for PolicyCounts<'_, '_> {
    fn packet(&mut self, link: &LinkHeader, packet: SuperPacket<'_, Buffer>) {
        let length = link.header().len() + packet.length();
        self.tally.left(&packet.metadata, length);
        self.sizes.count(length);
        self.bytes_by_length.weigh(length, length as u64);
        if let Some((table, policy, _)) = &mut self.all_flows {
            table.left(*policy, link, &packet);
        }
        if packet.is_merged() {
            self.super_packet_sizes.count(packet.metadata.packets as usize);
        }
        if let Some(detail) = &mut self.detail {
            let layer = packet.metadata.layer;
            // As in the output of `coalesce`, a merged packet has the time of its first frame.
            let frame = packet.pieces().first().and_then(|piece| piece.buffer());
            let time = frame.and_then(Buffer::time);
            if let Some(time) = time {
                detail.timeline.after(time.nanoseconds_since(detail.clock_start));
            }
            // All headers lie in the first slice: the rewritten header, or the packet as it came.
            let first = packet.slices().next();
            let flow = first.map(|first| FlowId::of_headers(first, packet.length(), layer, link));
            if let Some(flow) = flow {
                detail.flows.left(flow);
            }
            if let Some(tables) = &mut detail.tables {
                tables.after(length, time.map(|time| time.nanoseconds()));
                if let (Some(flow), Some(first)) = (flow, first) {
                    tables.flow_left(flow, || Label::of(first, layer));
                }
            }
        }
    }

    fn passed(&mut self, _interface: u32, buffer: &Buffer, why: PassReason) {
        let length = buffer.frame().len();
        self.tally.passed(why, length);
        self.sizes.count(length);
        self.bytes_by_length.weigh(length, length as u64);
        if let Some((table, policy, place)) = &mut self.all_flows {
            table.passed(*policy, *place, why);
        }
        if let Some(detail) = &mut self.detail {
            if let Some(time) = buffer.time() {
                detail.timeline.after(time.nanoseconds_since(detail.clock_start));
            }
            // A packet that passes is the one that has just been read.
            if let Some(flow) = detail.arrived {
                detail.flows.left(flow);
            }
            if let Some(tables) = &mut detail.tables {
                tables.after(length, buffer.time().map(|time| time.nanoseconds()));
                if let Some(flow) = detail.arrived {
                    tables.flow_left(flow, || None);
                }
            }
        }
    }
}
