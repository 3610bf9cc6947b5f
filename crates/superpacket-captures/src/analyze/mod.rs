//! `analyze`: what each kind of aggregation would do to a capture, side by side in one pass.

mod cut;
mod flows;
mod page;
mod parts;
mod plots;
mod rows;
mod sizes;
mod timeline;
#[doc(hidden)]
pub mod words;

use crate::file::{Frame, FrameOptions};
use serde::{Deserialize, Serialize};
use superpacket::Simd;
use superpacket::aggregate::Policy;
use superpacket::packet::Layer;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Layout, Protocol, parse, tcp};

use crate::error::Error;
use crate::figures::{average, ratio};
use crate::input::{Input, Opened};
use crate::lanes::{Arrival, Lanes, LinkHeader, Nobody, Seeds, Stepping, Taker, Why};
use crate::ledger::Flow;
use crate::pool::{Buffer, Pool};
use crate::progress::Progress;
use crate::totals::{CutShort, Tally, Totals, Unreadable};
use cut::Unknown;
use flows::{Label, TopFlows};
use rows::Tables;

pub use flows::TopFlow;
pub use parts::{Corpus, Cuts, Held, PartAnalysis, PartOptions, analyze_part};
pub use rows::{FlowRow, PacketsRow, Rows};
pub use sizes::{Counts, Sizes};
pub use timeline::Timeline;

/// How many policies are compared.
const POLICIES: usize = 4;

/// The one whose results are the report's common figures: what `coalesce` does by default.
const DEFAULT: usize = 2;

/// The one that remembers what flows acknowledged, beyond the end of a poll.
const WITH_ACKS: usize = 3;

/// The policies: JSON key, name, and what the engine is told.
const POLICY: [(&str, &str, Policy); POLICIES] = [
    ("lro", "LRO", Policy::lro()),
    ("gro", "GRO", Policy::gro().with_partial_checksums()),
    ("gro_udp", "GRO with UDP", Policy::gro_with_udp().with_partial_checksums()),
    ("lro_acks", "LRO with pure ACKs", Policy::lro_with_acks()),
];

/// What one policy does to a capture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Effect {
    /// What went in and came out.
    #[serde(flatten)]
    pub totals: Totals,
    /// Pure ACKs that were absorbed; in `merged` too.
    pub absorbed_acks: u64,
    /// Packets in the average super-packet.
    pub packets_per_super_packet: f64,
    /// Super-packets by how many packets merged in them.
    pub super_packet_sizes: Counts,
    /// Frames that left, by length.
    pub sizes: Sizes,
}

impl Effect {
    fn add(&mut self, other: &Effect) {
        self.totals.add(&other.totals);
        self.absorbed_acks += other.absorbed_acks;
        self.super_packet_sizes.add(&other.super_packet_sizes);
        self.sizes.add(&other.sizes);
        self.average();
    }

    /// Packets in the average super-packet, as reports print it.
    pub fn packets_in_one(&self) -> String {
        average(self.totals.merged + self.totals.super_packets, self.totals.super_packets, 1)
    }

    fn average(&mut self) {
        self.packets_per_super_packet =
            ratio(self.totals.merged + self.totals.super_packets, self.totals.super_packets);
    }
}

/// What is in a capture.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// All packets.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Packets of TCP.
    pub tcp_packets: u64,
    /// Packets of UDP.
    pub udp_packets: u64,
    /// Packets of DCCP.
    pub dccp_packets: u64,
    /// All others.
    pub other_packets: u64,
    /// TCP packets without payload that only acknowledge.
    pub pure_acks: u64,
    /// Of all packets, those that are pure ACKs.
    pub ack_share: f64,
    /// Frames by length.
    pub sizes: Sizes,
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
        self.ack_share = ratio(self.pure_acks, self.packets);
    }

    fn count(&mut self, frame: usize, packet: &[u8], layer: Option<Layer>) {
        self.packets += 1;
        self.bytes += frame as u64;
        self.sizes.count(frame);
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

/// Does this TCP packet only acknowledge?
fn is_pure_ack(packet: &[u8], layout: &Layout) -> bool {
    let flags = packet.get(usize::from(layout.transport) + tcp::FLAGS).copied().unwrap_or(0);
    u32::from(layout.payload) == layout.end
        && flags & (tcp::SYN | tcp::FIN | tcp::RST | tcp::PSH | tcp::URG | tcp::ACK) == tcp::ACK
}

/// The effects of all policies, by JSON key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Effects {
    /// LRO.
    pub lro: Effect,
    /// GRO without UDP.
    pub gro: Effect,
    /// GRO with UDP.
    pub gro_udp: Effect,
    /// LRO that absorbs pure ACKs too.
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

/// What was found, in one file or in all.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Findings {
    /// The policy `gro_udp`: what `coalesce` does by default.
    #[serde(flatten)]
    pub totals: Totals,
    /// What is in the capture.
    pub traffic: Traffic,
    /// What each policy would do.
    pub policies: Effects,
    /// The flows with the most bytes.
    pub top_flows: Vec<TopFlow>,
    /// Packets over time, before and after; of several captures together, none.
    #[serde(skip)]
    pub timeline: Timeline,
}

/// What was found in one capture.
#[derive(Clone, Debug, Serialize)]
pub struct FileAnalysis {
    /// The capture.
    pub file: String,
    /// Its interfaces, the first 64: names, if they have any, and link types.
    pub interfaces: Vec<String>,
    /// What was found.
    #[serde(flatten)]
    pub findings: Findings,
    /// Where the capture was cut short.
    pub cut_short: Option<CutShort>,
}

/// How [`analyze`] aggregates, and what it lists.
#[derive(Clone, Debug)]
pub struct AnalyzeOptions {
    /// How aggregation is stepped through each capture.
    pub stepping: Stepping,
    /// Flows in the top list.
    pub top: usize,
    /// Fails if a capture ends within a record.
    pub strict: bool,
}

impl Default for AnalyzeOptions {
    fn default() -> Self {
        AnalyzeOptions { stepping: Stepping::default(), top: 10, strict: false }
    }
}

/// What [`analyze`] found.
#[derive(Clone, Debug, Serialize)]
pub struct AnalyzeReport {
    command: &'static str,
    /// Packets in a poll.
    pub batch: u64,
    /// How long something is held at most, in nanoseconds.
    pub hold_ns: u64,
    /// What was found in all captures.
    #[serde(flatten)]
    pub findings: Findings,
    /// Each capture.
    pub files: Vec<FileAnalysis>,
    /// Captures that could not be read.
    pub unreadable: Unreadable,
    /// Captures that were read in parts, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuts: Option<Cuts>,
    /// Captures that count in the findings; of a corpus, the first thousand are listed.
    #[serde(skip)]
    pub captures: u64,
    /// Captures that could not be read; the same.
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
            cuts: None,
            captures: 0,
            unreadable_captures: 0,
        }
    }

    /// Renders a page with tables and plots, which needs nothing else.
    ///
    /// # Errors
    /// [`Error::Plot`] if a plot cannot be drawn.
    pub fn page(&self) -> Result<String, Error> {
        page::render(self)
    }
}

/// Says what LRO, GRO, GRO with UDP and pure-ACK aggregation would merge, and what kept packets
/// apart, in one pass.
///
/// # Errors
/// Whatever stops the reading of the only capture; of several, those that cannot be read are listed
/// in the report.
pub fn analyze(
    inputs: Vec<Input<'_>>,
    options: &AnalyzeOptions,
    progress: &mut dyn Progress,
) -> Result<AnalyzeReport, Error> {
    let mut report = AnalyzeReport::empty(options, Unreadable::among(inputs.len()));
    let mut all_flows = TopFlows::default();
    for input in inputs {
        let found = pass(input, options, Bounds::WHOLE, None, progress);
        let Some((file, part)) = report.unreadable.sort(found, progress)? else { continue };
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
    }
    report.captures = report.files.len() as u64;
    report.unreadable_captures = report.unreadable.messages.len() as u64;
    report.findings.top_flows = all_flows.rows(options.top);
    if let [only] = report.files.as_slice() {
        report.findings.timeline = only.findings.timeline.clone();
    }
    Ok(report)
}

/// One policy at work.
struct Run {
    lanes: Lanes,
    tally: Tally,
    sizes: Sizes,
    super_packet_sizes: Counts,
}

impl Run {
    fn effect(&self) -> Effect {
        let mut effect = Effect {
            totals: self.tally.totals(),
            absorbed_acks: self.tally.absorbed_acks,
            packets_per_super_packet: 0.0,
            super_packet_sizes: self.super_packet_sizes.clone(),
            sizes: self.sizes.clone(),
        };
        effect.average();
        effect
    }
}

/// Which packets of what is read belong to a part.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The number of its first packet. Those before it are of the part before.
    first: u64,
    /// Another part follows.
    continues: bool,
}

impl Bounds {
    const WHOLE: Bounds = Bounds { first: 1, continues: false };
}

/// Reads a capture, or a part of one, to its end. Returns its name and what was found.
fn pass(
    input: Input<'_>,
    options: &AnalyzeOptions,
    bounds: Bounds,
    mut tables: Option<&mut Tables<'_>>,
    progress: &mut dyn Progress,
) -> Result<(String, PartAnalysis), Error> {
    let simd = Simd::detect();
    let mut input = Opened::open(input, options.strict, progress)?;
    let pool = Pool::default();
    let mut runs = POLICY.map(|(_, _, policy)| Run {
        lanes: Lanes::new(policy, options.stepping, simd),
        tally: Tally::default(),
        sizes: Sizes::default(),
        super_packet_sizes: Counts::default(),
    });
    let mut traffic = Traffic::default();
    let mut flows = TopFlows::default();
    let mut timeline = Timeline::default();
    let (mut first_time, mut last_time) = (None, None);
    // What is read from a capture's first packet on lacks nothing.
    let mut unknown = None;
    let mut is_first = true;
    input.for_each(|frame| {
        // Options are not looked at, so they are not held.
        let frame = &Frame { options: FrameOptions::NONE, ..*frame };
        let arrival = Arrival::new(frame, &pool, Seeds::Rewrite, simd);
        let arrived = arrival.link.as_ref().and_then(|link| {
            let label = Label::of(arrival.buffer.as_ref(), link.layer())?;
            Some((Flow::of(arrival.buffer.as_ref(), link.layer(), link), label, link))
        });
        if std::mem::take(&mut is_first) && frame.number > 1 {
            unknown = Some(Unknown::default());
        }
        if let (Some(unknown), Some((flow, _, link))) = (&mut unknown, arrived) {
            unknown.arrives(
                arrival.buffer.as_ref(),
                flow,
                link,
                frame.number >= bounds.first,
                &runs[WITH_ACKS].lanes,
            );
        }
        if frame.number < bounds.first {
            for run in &mut runs {
                run.lanes.receive(arrival.clone(), &pool, &mut Nobody);
                if frame.number + 1 == bounds.first {
                    run.lanes.finish(&mut Nobody);
                }
            }
            return Ok(());
        }
        let layer = arrival.link.as_ref().map(LinkHeader::layer);
        traffic.count(frame.data.len(), arrival.buffer.as_ref(), layer);
        if let Some(time) = arrival.time {
            timeline.before(time);
            first_time = Some(first_time.map_or(time, |first: u64| first.min(time)));
            last_time = last_time.max(Some(time));
        }
        if let Some((flow, label, _)) = arrived {
            flows.count(flow, label, frame.data.len());
            if let Some(tables) = &mut tables {
                tables.flow(flow, label, frame.data.len(), arrival.time);
            }
        }
        let arrived = arrived.map(|(flow, ..)| flow);
        if let Some(tables) = &mut tables {
            tables.before(frame.data.len(), arrival.time);
        }
        for (index, run) in runs.iter_mut().enumerate() {
            run.tally.arrived(frame.data.len());
            let mut step = Step {
                tally: &mut run.tally,
                sizes: &mut run.sizes,
                super_packet_sizes: &mut run.super_packet_sizes,
                detail: None,
            };
            if index == DEFAULT {
                step.detail = Some(Detail {
                    flows: &mut flows,
                    timeline: &mut timeline,
                    tables: tables.as_deref_mut(),
                    arrived,
                });
            }
            run.lanes.receive(arrival.clone(), &pool, &mut step);
        }
        if let Some(unknown) = &mut unknown {
            unknown.settle(&runs[WITH_ACKS].lanes);
        }
        match &mut tables {
            Some(tables) => tables.give_full(),
            None => Ok(()),
        }
    })?;
    let mut held =
        if bounds.continues { runs.each_ref().map(|run| run.lanes.held()) } else { [0; POLICIES] };
    if let Some(mut unknown) = unknown {
        held[WITH_ACKS] += unknown.finish(&runs[WITH_ACKS].lanes);
    }
    for (index, run) in runs.iter_mut().enumerate() {
        let mut step = Step {
            tally: &mut run.tally,
            sizes: &mut run.sizes,
            super_packet_sizes: &mut run.super_packet_sizes,
            detail: None,
        };
        if index == DEFAULT {
            step.detail = Some(Detail {
                flows: &mut flows,
                timeline: &mut timeline,
                tables: tables.as_deref_mut(),
                arrived: None,
            });
        }
        run.lanes.finish(&mut step);
    }
    let file = input.file().to_owned();
    let interfaces = input.interfaces().iter().map(|interface| match interface.name() {
        Some(name) => format!("{name}: {}", interface.link_type),
        None => interface.link_type.to_string(),
    });
    let interfaces = interfaces.take(64).collect();
    let cut_short = input.finish()?.map(CutShort::from);
    let [lro, gro, gro_udp, lro_acks] = runs.each_ref().map(Run::effect);
    let policies = Effects { lro, gro, gro_udp, lro_acks };
    Ok((
        file,
        PartAnalysis {
            interfaces,
            traffic,
            policies,
            held: Held::new(held),
            first_time,
            last_time,
            cut_short,
            timeline,
            flows,
        },
    ))
}

/// Counts what leaves one policy.
struct Step<'a, 'r> {
    tally: &'a mut Tally,
    sizes: &'a mut Sizes,
    super_packet_sizes: &'a mut Counts,
    /// For the default policy.
    detail: Option<Detail<'a, 'r>>,
}

/// Flows and times, and rows of them if they are asked for.
struct Detail<'a, 'r> {
    flows: &'a mut TopFlows,
    timeline: &'a mut Timeline,
    tables: Option<&'a mut Tables<'r>>,
    /// The flow of the packet that has just arrived.
    arrived: Option<Flow>,
}

impl Taker for Step<'_, '_> {
    fn packet(&mut self, link: &LinkHeader, packet: SuperPacket<'_, Buffer>) {
        let length = link.header().len() + packet.length();
        self.tally.left(&packet.metadata, length);
        self.sizes.count(length);
        if packet.is_merged() {
            self.super_packet_sizes.count(packet.metadata.packets as usize);
        }
        if let Some(detail) = &mut self.detail {
            let (time, layer) = (packet.metadata.time, packet.metadata.layer);
            detail.timeline.after(time);
            // All headers lie in the first slice: the rewritten header, or the packet as it came.
            let first = packet.slices().next();
            let flow = first.map(|first| Flow::of_headers(first, packet.length(), layer, link));
            if let Some(flow) = flow {
                detail.flows.left(flow);
            }
            if let Some(tables) = &mut detail.tables {
                tables.after(length, Some(time));
                if let (Some(flow), Some(first)) = (flow, first) {
                    tables.flow_left(flow, || Label::of(first, layer));
                }
            }
        }
    }

    fn passed(&mut self, _interface: u32, buffer: &Buffer, why: Why) {
        self.tally.passed(why, buffer.frame().len());
        self.sizes.count(buffer.frame().len());
        if let Some(detail) = &mut self.detail {
            let time = buffer.time().map(|time| time.nanoseconds());
            if let Some(time) = time {
                detail.timeline.after(time);
            }
            // What passes is what has just arrived.
            if let Some(flow) = detail.arrived {
                detail.flows.left(flow);
            }
            if let Some(tables) = &mut detail.tables {
                tables.after(buffer.frame().len(), time);
                if let Some(flow) = detail.arrived {
                    tables.flow_left(flow, || None);
                }
            }
        }
    }
}
