//! Table rows that are passed to a receiver while a capture is read: flows, and packets by time and
//! size.
//!
//! Memory is bounded: a full table is handed out and started anew. So a flow, or a size class of an
//! interval, may have several rows that must be added.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use super::flows::Label;
use super::sizes::{LENGTH_CLASSES, Sizes, longest};
use crate::commands::error::Error;
use crate::commands::ledger::FlowId;

/// Maximum number of flows that are counted before their rows are passed to the receiver.
const MOST_FLOWS: usize = 1 << 15;

/// Maximum number of intervals that are counted before their rows are passed to the receiver.
const MOST_INTERVALS: usize = 1 << 11;

/// The packets of one flow that were counted since the flow's previous row.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowRow {
    /// The flow's number: a hash of link header, MAC addresses, VLANs, tunnel, addresses, protocol
    /// and ports. It is the same in all captures for one version of this crate.
    pub flow: u64,
    /// "TCP", "UDP" or "DCCP".
    pub protocol: &'static str,
    /// The outermost tunnel, by its [title](superpacket::wire::Tunnel::title).
    pub tunnel: Option<&'static str>,
    /// The innermost source address.
    pub source: IpAddr,
    /// The transport port of the source.
    pub source_port: u16,
    /// The innermost destination address.
    pub destination: IpAddr,
    /// The transport port of the destination.
    pub destination_port: u16,
    /// Number of packets in the capture.
    pub packets_in: u64,
    /// Number of bytes of the captured frames, link headers included.
    pub bytes_in: u64,
    /// Number of packets after aggregation by the policy GRO with UDP.
    pub packets_out: u64,
    /// The first packet's time, in nanoseconds since 1970.
    pub first_time: Option<u64>,
    /// The last packet's time, in nanoseconds since 1970.
    pub last_time: Option<u64>,
}

/// The packets of one size class in one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketsRow {
    /// Start of the interval, in nanoseconds since 1970; `None` for packets without a time.
    pub time: Option<u64>,
    /// Length of the longest frames of the class, in bytes; `None` for the class of the longest
    /// frames, which has no limit.
    pub longest: Option<u32>,
    /// Number of packets in the capture.
    pub packets_in: u64,
    /// Number of bytes of the captured frames, link headers included.
    pub bytes_in: u64,
    /// Number of packets after aggregation by the policy GRO with UDP.
    pub packets_out: u64,
    /// Number of bytes of the frames that left, link headers included.
    pub bytes_out: u64,
}

/// A receiver of rows while a capture is read. `()` ignores them, and a pair of vectors keeps them.
pub trait Rows {
    /// Receives flows, in the order in which they were first seen.
    ///
    /// # Errors
    /// Any error; it ends the reading.
    fn flows(&mut self, rows: &[FlowRow]) -> Result<(), Error>;

    /// Receives packets by time and size, in this order.
    ///
    /// # Errors
    /// Any error; it ends the reading.
    fn packets(&mut self, rows: &[PacketsRow]) -> Result<(), Error>;
}

impl Rows for () {
    fn flows(&mut self, _rows: &[FlowRow]) -> Result<(), Error> {
        Ok(())
    }

    fn packets(&mut self, _rows: &[PacketsRow]) -> Result<(), Error> {
        Ok(())
    }
}

impl Rows for (Vec<FlowRow>, Vec<PacketsRow>) {
    fn flows(&mut self, rows: &[FlowRow]) -> Result<(), Error> {
        self.0.extend_from_slice(rows);
        Ok(())
    }

    fn packets(&mut self, rows: &[PacketsRow]) -> Result<(), Error> {
        self.1.extend_from_slice(rows);
        Ok(())
    }
}

/// A hasher for keys that are hashes already: it returns the key.
#[derive(Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only `u64` keys are used; others would still be distributed.
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[derive(Debug)]
struct FlowCount {
    flow: FlowId,
    label: Label,
    packets_in: u64,
    bytes_in: u64,
    packets_out: u64,
    first_time: Option<u64>,
    last_time: Option<u64>,
}

/// Counts of one size class in one interval: packets and bytes before, packets and bytes after
/// aggregation.
type ClassCounts = [u64; 4];

/// The start of an interval, and the counts of its size classes.
type Interval = (Option<u64>, [ClassCounts; LENGTH_CLASSES]);

/// Counts of flows and intervals that have not been passed to the receiver of rows yet.
pub(super) struct Tables<'a> {
    rows: &'a mut dyn Rows,
    /// Length of the intervals, in nanoseconds.
    interval: u64,
    places: HashMap<FlowId, usize, BuildHasherDefault<IdentityHasher>>,
    flows: Vec<FlowCount>,
    interval_places: HashMap<Option<u64>, usize>,
    intervals: Vec<Interval>,
    /// Index of the interval used last.
    last: usize,
}

impl<'a> Tables<'a> {
    /// Returns empty tables with intervals of this length in nanoseconds.
    pub(super) fn new(rows: &'a mut dyn Rows, interval: u64) -> Self {
        Tables {
            rows,
            interval: interval.max(1),
            places: HashMap::default(),
            flows: Vec::new(),
            interval_places: HashMap::new(),
            intervals: Vec::new(),
            last: 0,
        }
    }

    /// Counts a captured packet of a flow.
    pub(super) fn flow(&mut self, flow: FlowId, label: Label, length: usize, time: Option<u64>) {
        let count = self.flow_count(flow, || Some(label));
        if let Some(count) = count {
            count.packets_in += 1;
            count.bytes_in += length as u64;
            count.first_time = count.first_time.into_iter().chain(time).min();
            count.last_time = count.last_time.max(time);
        }
    }

    /// Counts a packet of a flow that left the aggregator. `label` is called to begin a new row if
    /// the flow's previous row has already been passed to the receiver.
    pub(super) fn flow_left(&mut self, flow: FlowId, label: impl FnOnce() -> Option<Label>) {
        if let Some(count) = self.flow_count(flow, label) {
            count.packets_out += 1;
        }
    }

    fn flow_count(
        &mut self,
        flow: FlowId,
        label: impl FnOnce() -> Option<Label>,
    ) -> Option<&mut FlowCount> {
        let place = match self.places.get(&flow) {
            Some(&place) => place,
            None => {
                let fresh = FlowCount {
                    flow,
                    label: label()?,
                    packets_in: 0,
                    bytes_in: 0,
                    packets_out: 0,
                    first_time: None,
                    last_time: None,
                };
                self.flows.push(fresh);
                self.places.insert(flow, self.flows.len() - 1);
                self.flows.len() - 1
            }
        };
        self.flows.get_mut(place)
    }

    /// Counts a captured frame.
    pub(super) fn before(&mut self, length: usize, time: Option<u64>) {
        let counts = self.class(length, time);
        counts[0] += 1;
        counts[1] += length as u64;
    }

    /// Counts a frame that left the aggregator.
    pub(super) fn after(&mut self, length: usize, time: Option<u64>) {
        let counts = self.class(length, time);
        counts[2] += 1;
        counts[3] += length as u64;
    }

    fn class(&mut self, length: usize, time: Option<u64>) -> &mut ClassCounts {
        let start = time.map(|time| time - time % self.interval);
        if self.intervals.get(self.last).is_none_or(|interval| interval.0 != start) {
            self.last = *self.interval_places.entry(start).or_insert_with(|| {
                self.intervals.push((start, [[0; 4]; LENGTH_CLASSES]));
                self.intervals.len() - 1
            });
        }
        &mut self.intervals[self.last].1[Sizes::class(length)]
    }

    /// Passes the rows of the tables that are full to the receiver.
    #[inline]
    pub(super) fn emit_full(&mut self) -> Result<(), Error> {
        if self.flows.len() >= MOST_FLOWS {
            self.emit_flows()?;
        }
        if self.intervals.len() >= MOST_INTERVALS {
            self.emit_intervals()?;
        }
        Ok(())
    }

    /// Passes all remaining rows to the receiver.
    pub(super) fn emit_all(&mut self) -> Result<(), Error> {
        self.emit_flows()?;
        self.emit_intervals()
    }

    fn emit_flows(&mut self) -> Result<(), Error> {
        self.places.clear();
        let rows: Vec<FlowRow> = self.flows.drain(..).map(FlowCount::into_row).collect();
        if rows.is_empty() { Ok(()) } else { self.rows.flows(&rows) }
    }

    fn emit_intervals(&mut self) -> Result<(), Error> {
        self.interval_places.clear();
        self.last = 0;
        let mut intervals = std::mem::take(&mut self.intervals);
        intervals.sort_by_key(|interval| interval.0);
        let rows: Vec<PacketsRow> = intervals.iter().flat_map(rows_of).collect();
        if rows.is_empty() { Ok(()) } else { self.rows.packets(&rows) }
    }
}

fn rows_of(interval: &Interval) -> impl Iterator<Item = PacketsRow> + '_ {
    let classes =
        interval.1.iter().enumerate().filter(|(_, counts)| counts.iter().any(|&count| count > 0));
    classes.map(|(class, &[packets_in, bytes_in, packets_out, bytes_out])| PacketsRow {
        time: interval.0,
        longest: longest(class),
        packets_in,
        bytes_in,
        packets_out,
        bytes_out,
    })
}

impl FlowCount {
    fn into_row(self) -> FlowRow {
        FlowRow {
            flow: self.flow.number(),
            protocol: self.label.protocol(),
            tunnel: self.label.tunnel(),
            source: self.label.address(0),
            source_port: self.label.port(0),
            destination: self.label.address(1),
            destination_port: self.label.port(1),
            packets_in: self.packets_in,
            bytes_in: self.bytes_in,
            packets_out: self.packets_out,
            first_time: self.first_time,
            last_time: self.last_time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_tables_are_handed_out_and_rows_add_up() {
        let label = {
            let frame = superpacket_traffic::frame::Frame::tcp4(1, 99).to_bytes();
            Label::of(&frame, superpacket::packet::Layer::Ethernet).expect("TCP")
        };
        let mut kept = (Vec::new(), Vec::new());
        let mut tables = Tables::new(&mut kept, 1000);
        let count = MOST_FLOWS as u64 + 10;
        for number in 0..count {
            tables.flow(FlowId::from_number(number), label, 100, Some(number * 1000));
            tables.before(100, Some(number * 1000));
            tables.emit_full().expect("kept");
            assert!(tables.flows.len() < MOST_FLOWS && tables.intervals.len() < MOST_INTERVALS);
        }
        tables.flow_left(FlowId::from_number(3), || Some(label));
        tables.flow_left(FlowId::from_number(count - 1), || None);
        tables.flow_left(FlowId::from_number(count + 1), || None);
        tables.after(9999, None);
        tables.after(70_000, Some(5_000_500));
        tables.emit_all().expect("kept");
        let (flows, packets) = kept;
        assert_eq!(flows.len() as u64, count + 1);
        assert_eq!(flows.iter().map(|row| row.packets_in).sum::<u64>(), count);
        let third: Vec<_> = flows
            .iter()
            .filter(|row| row.flow == 3)
            .map(|row| (row.packets_in, row.packets_out, row.first_time))
            .collect();
        assert_eq!(third, [(1, 0, Some(3000)), (0, 1, None)]);
        assert_eq!(flows.iter().map(|row| row.packets_out).sum::<u64>(), 2);
        assert_eq!(packets.iter().map(|row| row.bytes_in).sum::<u64>(), 100 * count);
        let left: Vec<_> = packets
            .iter()
            .filter(|row| row.packets_out > 0)
            .map(|row| (row.time, row.longest, row.bytes_out))
            .collect();
        assert_eq!(left, [(None, Some(16_384), 9999), (Some(5_000_000), None, 70_000)]);
    }
}
