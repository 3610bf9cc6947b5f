//! `steer`: computes how the flows and packets of a capture would be distributed over the CPUs of a
//! host.

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

use crate::commands::error::Error;
use crate::commands::input::{Input, InputEnd, OpenInput};
use crate::commands::progress::Progress;
use crate::commands::totals::{CutShort, Totals};
use flows::{Flows, MOST_FLOWS};

pub use flows::SteeredFlow;

/// Options of [`steer`].
#[derive(Clone, Debug, Default)]
pub struct SteerOptions {
    /// The CPUs of the host to which packets are steered; an empty mask switches steering off.
    pub cpus: CpuMask,
    /// The key of the Toeplitz hash; the default is Microsoft's published key.
    pub key: ToeplitzKey,
    /// Whether both directions of a connection have the same hash.
    pub symmetric: bool,
    /// Whether the outermost headers of tunnelled packets are hashed instead of the innermost.
    pub outer: bool,
    /// Whether a capture that ends within a record is an error.
    pub strict: bool,
}

/// The packets and flows that are steered to one CPU.
#[derive(Clone, Debug, Serialize)]
pub struct CpuShare {
    /// The CPU's number.
    pub cpu: usize,
    /// Number of packets steered to the CPU.
    pub packets: u64,
    /// Number of bytes of the frames steered to the CPU, link headers included.
    pub bytes: u64,
    /// Number of listed flows steered to the CPU.
    pub flows: u64,
    /// Number of packets that the flow limit would drop on this CPU, under the assumptions of
    /// [`FlowLimited`].
    pub flow_limited: u64,
}

/// The packets that Linux's flow limit would drop, assuming that every backlog queue stays at least
/// half full and that no packet is lost for another reason.
#[derive(Clone, Debug, Serialize)]
pub struct FlowLimited {
    /// Number of packets that the flow limit would drop.
    pub packets: u64,
    /// Number of listed flows that would lose packets.
    pub flows: u64,
    /// Number of the latest packets among which the flow limit counts those of each flow.
    pub history: usize,
}

/// The flows that are not listed.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Maximum number of flows that are listed; these are the first flows of the capture.
    pub most_flows: usize,
    /// Number of packets of flows that are not listed. They are counted for their CPUs, but their
    /// flows are not.
    pub packets: u64,
}

/// The report of [`steer`].
#[derive(Clone, Debug, Serialize)]
pub struct SteerReport {
    command: &'static str,
    /// The name of the capture.
    pub file: String,
    /// Numbers of packets and bytes. `reasons` has the number of packets for each outcome, such as
    /// `steered`.
    #[serde(flatten)]
    pub totals: Totals,
    /// The mask of the CPUs to which packets are steered, in the format of sysfs.
    pub mask: String,
    /// The CPUs to which packets are steered as a list, such as `0-3,8`.
    pub cpu_list: String,
    /// The hash's name.
    pub hash: &'static str,
    /// The hash's key in hexadecimal digits.
    pub key: String,
    /// Whether the key is Microsoft's published key.
    #[serde(skip)]
    pub key_is_published: bool,
    /// Whether both directions of a connection have the same hash.
    pub symmetric: bool,
    /// The headers that are hashed in tunnels: `inner` or `outer`.
    pub headers: &'static str,
    /// Number of packets steered to the busiest CPU, divided by the average of all CPUs; `None` if
    /// no packet is steered.
    pub imbalance: Option<f64>,
    /// Number of listed flows of the CPU with the most flows, divided by the average of all CPUs;
    /// `None` if no flow is steered.
    pub imbalance_flows: Option<f64>,
    /// The result of the flow limit.
    pub flow_limit: FlowLimited,
    /// The flows that are not listed.
    pub left_out: LeftOut,
    /// The place where the capture was cut short, if it was.
    pub cut_short: Option<CutShort>,
    /// Whether [`Progress::end_requested`] ended the reading of the input.
    pub interrupted: bool,
    /// The packets and flows of each CPU, in the order of the CPUs' numbers.
    pub cpus: Vec<CpuShare>,
    /// The flows, those with the most packets first.
    pub flows: Vec<SteeredFlow>,
}

impl SteerReport {
    /// Returns the number of packets that are steered to a CPU.
    pub fn steered(&self) -> u64 {
        self.cpus.iter().map(|cpu| cpu.packets).sum()
    }

    /// Renders a self-contained HTML page with tables and a plot. It lists at most `top` flows.
    ///
    /// # Errors
    /// [`Error::Plot`] if the plot cannot be drawn.
    pub fn page(&self, top: usize) -> Result<String, Error> {
        page::render(self, top)
    }
}

/// Computes how the flows and packets of a capture would be distributed over the CPUs of a host by
/// receive packet steering (RPS).
///
/// # Errors
/// Any error of reading.
pub fn steer(
    input: Input<'_>,
    options: &SteerOptions,
    progress: &mut dyn Progress,
) -> Result<SteerReport, Error> {
    let mut input = OpenInput::open(input, options.strict, progress)?;
    let mut host = SteeringHost::new(options);
    input.for_each(|frame| {
        host.receive(frame);
        Ok(())
    })?;
    let file = input.file().to_owned();
    host.totals.filtered_out = input.filtered_out();
    let end = input.finish()?;
    Ok(host.report(file, end, options))
}

/// The simulated host.
struct SteeringHost {
    hasher: FlowHasher,
    headers: FlowHeaders,
    rps: Rps,
    flow_limit: FlowLimit,
    cpus: Vec<CpuShare>,
    /// For each CPU number, its index in `cpus`.
    places: Vec<usize>,
    flows: Flows,
    totals: Totals,
}

impl SteeringHost {
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
        SteeringHost {
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

    /// Steers a frame, and returns the name of the outcome, such as `steered` or `no_hash`.
    fn steer(&mut self, frame: &Frame<'_>, bytes: u64) -> &'static str {
        let (layer, start) = match start_of(frame.link_type(), frame.data) {
            Start::Ethernet => (Layer::Ethernet, 0),
            Start::Ip { header_length } => (Layer::Ip, header_length),
            Start::Other => return "link_type",
        };
        let packet = frame.data.get(start..).unwrap_or(&[]);
        // The bytes that the snap length cut off were there when the packet was received.
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

    fn report(mut self, file: String, end: InputEnd, options: &SteerOptions) -> SteerReport {
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
            cut_short: end.cut_short,
            interrupted: end.interrupted,
            cpus: self.cpus,
            flows,
        }
    }
}

/// Returns the largest number divided by the average: 1 if all are equal, `None` if all are 0.
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
