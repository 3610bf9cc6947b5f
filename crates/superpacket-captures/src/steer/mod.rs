//! `steer`: how a capture's flows and packets would spread over the CPUs of an imaginary host.

mod flows;
mod page;
mod plot;
#[doc(hidden)]
pub mod words;

use crate::file::{Frame, Start, start_of};
use serde::Serialize;
use superpacket::packet::Layer;
use superpacket::wire::MAX_HEADER;
use superpacket_steer::{
    CpuMask, DEFAULT_MAX_BACKLOG, FLOW_LIMIT_HISTORY, FlowHasher, FlowHeaders, FlowLimit,
    FlowTuple, Rps, ToeplitzKey,
};

use crate::error::Error;
use crate::input::{Input, Opened};
use crate::progress::Progress;
use crate::totals::{CutShort, Totals};
use flows::{Flows, MOST_FLOWS};

pub use flows::SteeredFlow;

/// How [`steer`] spreads flows.
#[derive(Clone, Debug, Default)]
pub struct SteerOptions {
    /// The host's CPUs; none switches steering off.
    pub cpus: CpuMask,
    /// The hash's key: the published one by default.
    pub key: ToeplitzKey,
    /// Hashes both directions of a connection alike.
    pub symmetric: bool,
    /// Hashes the outermost headers of tunnelled packets, not the innermost.
    pub outer: bool,
    /// Fails if the capture ends within a record.
    pub strict: bool,
}

/// A CPU's share.
#[derive(Clone, Debug, Serialize)]
pub struct CpuShare {
    /// The CPU's number.
    pub cpu: usize,
    /// Packets steered to it.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Flows, as far as they are listed.
    pub flows: u64,
    /// Packets that the flow limit would drop, under [`FlowLimited`]'s assumption.
    pub flow_limited: u64,
}

/// What the flow limit would do if every backlog stayed half full or fuller, and nothing is lost
/// otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct FlowLimited {
    /// Packets that would be dropped.
    pub packets: u64,
    /// Flows that would lose some, as far as they are listed.
    pub flows: u64,
    /// Of how many packets the last are counted.
    pub history: usize,
}

/// Flows for which there was no room.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Flows that are listed at most: those that came first.
    pub most_flows: usize,
    /// Packets of other flows. They count for their CPUs, and their flows do not.
    pub packets: u64,
}

/// What [`steer`] found.
#[derive(Clone, Debug, Serialize)]
pub struct SteerReport {
    command: &'static str,
    /// The capture.
    pub file: String,
    /// What went in and came out; reasons say what became of the packets.
    #[serde(flatten)]
    pub totals: Totals,
    /// The host's CPUs as sysfs writes them.
    pub mask: String,
    /// The same as a list.
    pub cpu_list: String,
    /// The hash's name.
    pub hash: &'static str,
    /// The hash's key in hexadecimal digits.
    pub key: String,
    /// It is the published one.
    #[serde(skip)]
    pub key_is_published: bool,
    /// Both directions of a connection are hashed alike.
    pub symmetric: bool,
    /// Whose headers are hashed in a tunnel: `inner` or `outer`.
    pub headers: &'static str,
    /// Packets of the busiest CPU over those of the average one.
    pub imbalance: Option<f64>,
    /// The same of flows.
    pub imbalance_flows: Option<f64>,
    /// What the flow limit would do.
    pub flow_limit: FlowLimited,
    /// Flows for which there was no room.
    pub left_out: LeftOut,
    /// Where the capture was cut short.
    pub cut_short: Option<CutShort>,
    /// Each CPU.
    pub cpus: Vec<CpuShare>,
    /// Each flow, those with the most packets first.
    pub flows: Vec<SteeredFlow>,
}

impl SteerReport {
    /// Returns how many packets were sent to a CPU.
    pub fn steered(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.packets).sum()
    }

    /// Renders a page with tables and a plot, which needs nothing else, with so many flows.
    ///
    /// # Errors
    /// [`Error::Plot`] if the plot cannot be drawn.
    pub fn page(&self, top: usize) -> Result<String, Error> {
        page::render(self, top)
    }
}

/// Says how a capture's flows and packets would spread over the CPUs of a host, by receive packet
/// steering (RPS).
///
/// # Errors
/// Whatever stops the reading.
pub fn steer(
    input: Input<'_>,
    options: &SteerOptions,
    progress: &mut dyn Progress,
) -> Result<SteerReport, Error> {
    let mut input = Opened::open(input, options.strict, progress)?;
    let mut host = Host::new(options);
    input.for_each(|frame| {
        host.receive(frame);
        Ok(())
    })?;
    let file = input.file().to_owned();
    let cut_short = input.finish()?.map(CutShort::from);
    Ok(host.report(file, cut_short, options))
}

/// The imaginary host.
struct Host {
    hasher: FlowHasher,
    headers: FlowHeaders,
    rps: Rps,
    flow_limit: FlowLimit,
    cpus: Vec<CpuShare>,
    /// By CPU number: its place in `cpus`.
    places: Vec<usize>,
    flows: Flows,
    totals: Totals,
}

impl Host {
    fn new(options: &SteerOptions) -> Self {
        let mask = &options.cpus;
        let hasher = FlowHasher::toeplitz(&options.key);
        let row = |number: usize| CpuShare {
            cpu: number,
            packets: 0,
            bytes: 0,
            flows: 0,
            flow_limited: 0,
        };
        let mut places = vec![0; mask.last().map_or(0, |last| last.number() + 1)];
        mask.iter().enumerate().for_each(|(place, cpu)| places[cpu.number()] = place);
        Host {
            hasher: if options.symmetric { hasher.symmetric() } else { hasher },
            headers: if options.outer { FlowHeaders::Outer } else { FlowHeaders::Inner },
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
        let limited =
            cpu.is_some() && self.flow_limit.drops(hash, DEFAULT_MAX_BACKLOG, DEFAULT_MAX_BACKLOG);
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

    fn report(
        mut self,
        file: String,
        cut_short: Option<CutShort>,
        options: &SteerOptions,
    ) -> SteerReport {
        self.totals.packets_out = self.totals.packets_in;
        self.totals.bytes_out = self.totals.bytes_in;
        let mask = &options.cpus;
        let left_out = LeftOut { most_flows: MOST_FLOWS, packets: self.flows.left_out() };
        let flows = self.flows.into_rows();
        SteerReport {
            command: "steer",
            file,
            totals: self.totals,
            mask: mask.to_string(),
            cpu_list: mask.list().to_string(),
            hash: "toeplitz",
            key: options.key.bytes().iter().map(|byte| format!("{byte:02x}")).collect(),
            key_is_published: options.key == ToeplitzKey::MICROSOFT,
            symmetric: options.symmetric,
            headers: if options.outer { "outer" } else { "inner" },
            imbalance: imbalance(self.cpus.iter().map(|cpu| cpu.packets)),
            imbalance_flows: imbalance(self.cpus.iter().map(|cpu| cpu.flows)),
            flow_limit: FlowLimited {
                packets: self.flow_limit.dropped(),
                flows: flows.iter().filter(|flow| flow.flow_limited() > 0).count() as u64,
                history: FLOW_LIMIT_HISTORY,
            },
            left_out,
            cut_short,
            cpus: self.cpus,
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
