//! `superpacket steer`: how a capture's flows and packets would spread over the CPUs of an imaginary host.

mod flows;
mod page;
mod plot;
mod text;

use serde::Serialize;
use superpacket::packet::Layer;
use superpacket::wire::MAX_HEADER;
use superpacket_io::capture::{Frame, Start, same_file, start_of, write_file};
use superpacket_steer::{
    CpuMask, DEFAULT_MAX_BACKLOG, FLOW_LIMIT_HISTORY, FlowHasher, FlowHeaders, FlowLimit, FlowTuple, Rps, ToeplitzKey,
};

use crate::arguments::Steer;
use crate::coalesce::is_stream;
use crate::failure::Failure;
use crate::input::{Input, warn};
use crate::report::{CutShort, Totals, columns, print, print_json};
use flows::{FlowRow, Flows, MOST_FLOWS};

/// A CPU's share.
#[derive(Clone, Debug, Serialize)]
struct CpuRow {
    cpu: usize,
    packets: u64,
    bytes: u64,
    /// Flows, as far as they are listed.
    flows: u64,
    /// Packets that the flow limit would drop, under [`FlowLimited`]'s assumption.
    flow_limited: u64,
}

/// What the flow limit would do if every backlog stayed half full or fuller, and nothing is lost otherwise.
#[derive(Clone, Debug, Serialize)]
struct FlowLimited {
    /// Packets that would be dropped.
    packets: u64,
    /// Flows that would lose some, as far as they are listed.
    flows: u64,
    /// Of how many packets the last are counted.
    history: usize,
}

/// Flows for which there was no room.
#[derive(Clone, Debug, Serialize)]
struct LeftOut {
    /// Flows that are listed at most: those that came first.
    most_flows: usize,
    /// Packets of other flows. They count for their CPUs, and their flows do not.
    packets: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    command: &'static str,
    file: String,
    #[serde(flatten)]
    totals: Totals,
    /// The host's CPUs as sysfs writes them, and as a list.
    mask: String,
    cpu_list: String,
    hash: &'static str,
    key: String,
    /// It is the published one.
    #[serde(skip)]
    key_is_published: bool,
    symmetric: bool,
    /// Whose headers are hashed in a tunnel: `inner` or `outer`.
    headers: &'static str,
    /// Packets of the busiest CPU over those of the average one.
    imbalance: Option<f64>,
    /// The same of flows.
    imbalance_flows: Option<f64>,
    flow_limit: FlowLimited,
    left_out: LeftOut,
    cut_short: Option<CutShort>,
    cpus: Vec<CpuRow>,
    flows: Vec<FlowRow<'a>>,
}

impl Report<'_> {
    /// Packets that were sent to a CPU.
    fn steered(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.packets).sum()
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Steer) -> Result<(), Failure> {
    if let Some(page) = &arguments.html {
        if is_stream(page) {
            return Err(Failure::Usage("--html needs a file".to_owned()));
        }
        if same_file(&arguments.input, page).unwrap_or(false) {
            return Err(Failure::Usage(format!("{}: is the input too; write the page to another file", page.display())));
        }
    }
    let mut input = Input::open(&arguments.input, &arguments.common)?;
    let mut host = Host::new(arguments);
    input.for_each(|frame| {
        host.receive(frame);
        Ok(())
    })?;
    let file = input.reader().file().to_owned();
    let cut_short = input.finish()?.map(CutShort::from);
    let report = host.report(file, cut_short, arguments);
    if report.left_out.packets > 0 {
        warn(&format!("{}: {}", report.file, text::left_out(&report.left_out)));
    }
    if let Some(path) = &arguments.html {
        write_file(path, page::render(&report, arguments.top as usize)?.as_bytes())
            .map_err(|source| Failure::Page { path: path.clone(), source })?;
    }
    if arguments.common.json {
        print_json(&report)?
    } else {
        print(&text::render(&report, arguments.top as usize, columns()), false)?
    }
    Ok(())
}

/// The imaginary host.
struct Host {
    hasher: FlowHasher,
    headers: FlowHeaders,
    rps: Rps,
    flow_limit: FlowLimit,
    cpus: Vec<CpuRow>,
    /// By CPU number: its place in `cpus`.
    places: Vec<usize>,
    flows: Flows,
    totals: Totals,
}

impl Host {
    fn new(arguments: &Steer) -> Self {
        let mask = arguments.mask();
        let hasher = FlowHasher::toeplitz(&arguments.key());
        let row = |number: usize| CpuRow { cpu: number, packets: 0, bytes: 0, flows: 0, flow_limited: 0 };
        let mut places = vec![0; mask.last().map_or(0, |last| last.number() + 1)];
        mask.iter().enumerate().for_each(|(place, cpu)| places[cpu.number()] = place);
        Host {
            hasher: if arguments.symmetric { hasher.symmetric() } else { hasher },
            headers: if arguments.outer { FlowHeaders::Outer } else { FlowHeaders::Inner },
            rps: Rps::new(mask),
            flow_limit: FlowLimit::default(),
            cpus: mask.iter().map(|cpu| row(cpu.number())).collect(),
            places,
            flows: Flows::default(),
            totals: Totals::default(),
        }
    }

    fn receive(&mut self, frame: &Frame<'_>) {
        let bytes = frame.data.len() as u64;
        self.totals.packets_in += 1;
        self.totals.bytes_in += bytes;
        let outcome = self.steer(frame, bytes);
        self.totals.reason(outcome);
    }

    /// Finds the CPU of a frame; says what became of it.
    fn steer(&mut self, frame: &Frame<'_>, bytes: u64) -> &'static str {
        let (layer, start) = match start_of(frame.link_type(), frame.data) {
            Start::Ethernet => (Layer::Ethernet, 0),
            Start::Ip { header_length } => (Layer::Ip, header_length),
            Start::Other => return "link_type",
        };
        let packet = frame.data.get(start..).unwrap_or(&[]);
        // What the snap length cut off was there when the packet was received.
        let length = packet.len().max((frame.original_length as usize).saturating_sub(start));
        let header = packet.get(..MAX_HEADER).unwrap_or(packet);
        let tuple = match self.headers {
            FlowHeaders::Inner => FlowTuple::innermost(header, length, layer),
            FlowHeaders::Outer => FlowTuple::outermost(header, length, layer),
        };
        let Some(tuple) = tuple else { return "no_hash" };
        let hash = self.hasher.hash_flow(&tuple);
        let cpu = self.rps.cpu(hash);
        let limited = cpu.is_some() && self.flow_limit.drops(hash, DEFAULT_MAX_BACKLOG, DEFAULT_MAX_BACKLOG);
        let is_new = self.flows.count(tuple, hash, cpu, limited);
        let Some(cpu) = cpu else {
            return if self.cpus.is_empty() { "no_cpus" } else { "hash_zero" };
        };
        let row = &mut self.cpus[self.places[cpu.number()]];
        row.packets += 1;
        row.bytes += bytes;
        row.flows += u64::from(is_new);
        row.flow_limited += u64::from(limited);
        "steered"
    }

    fn report(&mut self, file: String, cut_short: Option<CutShort>, arguments: &Steer) -> Report<'_> {
        self.totals.packets_out = self.totals.packets_in;
        self.totals.bytes_out = self.totals.bytes_in;
        let mask = arguments.mask();
        let flows = self.flows.rows();
        Report {
            command: "steer",
            file,
            totals: self.totals.clone(),
            mask: mask.to_string(),
            cpu_list: mask.list().to_string(),
            hash: "toeplitz",
            key: arguments.key().bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
            key_is_published: arguments.key() == ToeplitzKey::MICROSOFT,
            symmetric: arguments.symmetric,
            headers: if arguments.outer { "outer" } else { "inner" },
            imbalance: imbalance(self.cpus.iter().map(|cpu| cpu.packets)),
            imbalance_flows: imbalance(self.cpus.iter().map(|cpu| cpu.flows)),
            flow_limit: FlowLimited {
                packets: self.flow_limit.dropped(),
                flows: flows.iter().filter(|flow| flow.flow_limited > 0).count() as u64,
                history: FLOW_LIMIT_HISTORY,
            },
            left_out: LeftOut { most_flows: MOST_FLOWS, packets: self.flows.left_out() },
            cut_short,
            cpus: std::mem::take(&mut self.cpus),
            flows,
        }
    }
}

/// The most over the average: 1 if all have the same. `None` if there is nothing.
fn imbalance(shares: impl ExactSizeIterator<Item = u64> + Clone) -> Option<f64> {
    let total: u64 = shares.clone().sum();
    let most = shares.clone().max().unwrap_or(0);
    (total > 0).then(|| most as f64 * shares.len() as f64 / total as f64)
}

impl Steer {
    /// The host's CPUs.
    fn mask(&self) -> &CpuMask {
        const NONE: &CpuMask = &CpuMask::EMPTY;
        self.cpus.as_ref().or(self.cpu_list.as_ref()).unwrap_or(NONE)
    }

    /// The key: the published one if none is given.
    fn key(&self) -> ToeplitzKey {
        self.key.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imbalance_is_the_most_over_the_average() {
        assert_eq!(imbalance([3, 3, 3].into_iter()), Some(1.0));
        assert_eq!(imbalance([8, 0, 0, 0].into_iter()), Some(4.0));
        assert_eq!(imbalance([0, 0].into_iter()), None);
        assert_eq!(imbalance(std::iter::empty::<u64>().collect::<Vec<_>>().into_iter()), None);
    }
}
