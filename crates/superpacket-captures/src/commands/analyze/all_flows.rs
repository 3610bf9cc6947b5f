//! All flows of a capture, each with the number of packets that remain with each aggregation
//! policy.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::net::IpAddr;

use superpacket::aggregate::Reason;
use superpacket::packet::Layer;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::ethernet;

use super::flows::Label;
use super::rows::IdentityHasher;
use super::{DEFAULT, POLICIES};
use crate::commands::checksums::be16;
use crate::commands::explain::explain;
use crate::commands::lanes::{LinkHeader, PassReason};
use crate::commands::ledger::FlowId;
use crate::commands::pool::Buffer;
use crate::commands::totals::PASS_REASONS;

/// Maximum number of flows of a capture that are listed each. One takes about 300 bytes of memory.
pub const MAX_LISTED_FLOWS: usize = 1_000_000;

/// The packets of one flow, in one direction, before and after aggregation.
///
/// [`columns`](Self::columns) names and returns all of this as the cells of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowEffect {
    /// "TCP", "UDP" or "DCCP"; "other" for the packets that belong to no such flow, and "unlisted"
    /// for those of flows beyond the first [`MAX_LISTED_FLOWS`]. These two have no end points.
    pub protocol: &'static str,
    /// The innermost source address; `None` for "other" and "unlisted".
    pub source: Option<IpAddr>,
    /// The transport port of the source.
    pub source_port: Option<u16>,
    /// The innermost destination address; `None` for "other" and "unlisted".
    pub destination: Option<IpAddr>,
    /// The transport port of the destination.
    pub destination_port: Option<u16>,
    /// The outermost tunnel, by its [title](superpacket::wire::Tunnel::title).
    pub tunnel: Option<&'static str>,
    /// The VLAN ID. If there are two tags, both IDs, the outer one first: `5.7`.
    pub vlan: Option<String>,
    /// Index of the interface in the capture, from 0.
    pub interface: Option<u32>,
    /// Number of packets of the flow in the capture.
    pub packets: u64,
    /// Number of bytes of the flow's frames in the capture, link headers included.
    pub bytes: u64,
    /// Number of packets after aggregation by the policy GRO with UDP.
    pub packets_after: u64,
    /// Number of super-packets among `packets_after`: packets into which several were merged.
    pub super_packets: u64,
    /// Number of packets after aggregation by the policy LRO.
    pub packets_after_lro: u64,
    /// Number of packets after aggregation by the policy GRO.
    pub packets_after_gro: u64,
    /// Number of packets after aggregation by the policy LRO with pure ACKs.
    pub packets_after_lro_acks: u64,
    /// The reasons why packets left, with the policy GRO with UDP. The sum is `packets_after`.
    pub reasons: BTreeMap<&'static str, u64>,
}

/// A cell in a table of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowCell<'a> {
    /// A text; `None` for an empty cell.
    Text(Option<Cow<'a, str>>),
    /// A number; `None` for an empty cell.
    Number(Option<u64>),
    /// Number of packets out for each reason, by its name.
    Reasons(&'a BTreeMap<&'static str, u64>),
}

impl FlowEffect {
    /// Returns the most frequent of the [`reasons`](Self::reasons).
    pub fn main_reason(&self) -> Option<&'static str> {
        let most = self.reasons.iter().max_by_key(|&(name, &count)| (count, Reverse(name)));
        most.map(|(&name, _)| name)
    }

    /// Returns the names of the columns of a table of flows, and this flow's cells. `file` is the
    /// name of the capture.
    pub fn columns<'a>(&'a self, file: &'a str) -> [(&'static str, FlowCell<'a>); 20] {
        let word = |word: Option<&'static str>| FlowCell::Text(word.map(Cow::Borrowed));
        let address =
            |address: Option<IpAddr>| FlowCell::Text(address.map(|ip| ip.to_string().into()));
        let number = |number: u64| FlowCell::Number(Some(number));
        let port = |port: Option<u16>| FlowCell::Number(port.map(u64::from));
        let main = self.main_reason();
        [
            ("protocol", word(Some(self.protocol))),
            ("source", address(self.source)),
            ("source_port", port(self.source_port)),
            ("destination", address(self.destination)),
            ("destination_port", port(self.destination_port)),
            ("tunnel", word(self.tunnel)),
            ("vlan", FlowCell::Text(self.vlan.as_deref().map(Cow::Borrowed))),
            ("interface", FlowCell::Number(self.interface.map(u64::from))),
            ("packets", number(self.packets)),
            ("bytes", number(self.bytes)),
            ("packets_after", number(self.packets_after)),
            ("packets_saved", number(self.packets.saturating_sub(self.packets_after))),
            ("super_packets", number(self.super_packets)),
            ("packets_after_lro", number(self.packets_after_lro)),
            ("packets_after_gro", number(self.packets_after_gro)),
            ("packets_after_lro_acks", number(self.packets_after_lro_acks)),
            ("main_reason", word(main)),
            ("main_reason_means", word(main.and_then(explain))),
            ("reasons", FlowCell::Reasons(&self.reasons)),
            ("file", FlowCell::Text(Some(file.into()))),
        ]
    }
}

/// All flows of a capture.
#[derive(Debug)]
pub struct CaptureFlows {
    /// The name of the capture.
    pub file: String,
    table: FlowTable,
}

impl CaptureFlows {
    pub(super) fn new(file: &str, table: FlowTable) -> Self {
        CaptureFlows { file: file.to_owned(), table }
    }

    /// Returns the flows, those with the most bytes first, and at the end the rows "other" and
    /// "unlisted", which are no flows. The packets of all rows together are the packets of the
    /// capture.
    pub fn rows(&self) -> impl Iterator<Item = FlowEffect> {
        let FlowTable { tallies, .. } = &self.table;
        let mut order: Vec<usize> = (0..tallies.len()).collect();
        order.sort_by_key(|&place| (place < FIRST_FLOW, Reverse(tallies[place].bytes), place));
        order.into_iter().map(|place| self.table.effect(place)).filter(|row| row.packets > 0)
    }

    /// Returns about how many flows the capture has beyond the first [`MAX_LISTED_FLOWS`].
    pub fn unlisted(&self) -> u64 {
        self.table.unlisted.estimate()
    }
}

/// Indices of two rows of the table: of the packets that belong to no flow, and of the packets of
/// flows that are not listed.
const OTHER: usize = 0;
const UNLISTED: usize = 1;

/// Index of the row of the first flow in the table.
const FIRST_FLOW: usize = 2;

/// End points, VLANs and interface of a flow.
#[derive(Clone, Debug)]
struct FlowEnds {
    label: Label,
    vlans: [Option<u16>; 2],
    interface: u32,
}

#[derive(Clone, Debug, Default)]
struct FlowTally {
    ends: Option<FlowEnds>,
    packets: u64,
    bytes: u64,
    super_packets: u64,
    packets_after: [u64; POLICIES],
    /// Number of packets that left the aggregator of the default policy, for each reason. The first
    /// number is an argument of [`reason_name`].
    reasons: Vec<(u8, u64)>,
}

/// The flows of a capture while it is read.
#[derive(Debug)]
pub(super) struct FlowTable {
    places: HashMap<FlowId, u32, BuildHasherDefault<IdentityHasher>>,
    tallies: Vec<FlowTally>,
    unlisted: DistinctCount,
    most: usize,
}

impl Default for FlowTable {
    fn default() -> Self {
        FlowTable::with_most(MAX_LISTED_FLOWS)
    }
}

impl FlowTable {
    fn with_most(most: usize) -> Self {
        FlowTable {
            places: HashMap::default(),
            tallies: vec![FlowTally::default(); FIRST_FLOW],
            unlisted: DistinctCount::default(),
            most,
        }
    }

    /// Counts a captured packet whose frame has the given length. Returns the index of its flow's
    /// row in the table.
    pub(super) fn count(
        &mut self,
        flow: Option<(FlowId, Label, &LinkHeader)>,
        packet: &[u8],
        length: usize,
    ) -> usize {
        let place = match flow {
            Some((flow, label, link)) => self.place(flow, label, link, packet),
            None => OTHER,
        };
        let tally = &mut self.tallies[place];
        tally.packets += 1;
        tally.bytes += length as u64;
        place
    }

    fn place(&mut self, flow: FlowId, label: Label, link: &LinkHeader, packet: &[u8]) -> usize {
        if let Some(&place) = self.places.get(&flow) {
            return place as usize;
        }
        let place = self.tallies.len();
        if place - FIRST_FLOW == self.most {
            self.unlisted.count(flow);
            return UNLISTED;
        }
        let vlans = vlans(packet, link.layer());
        let ends = FlowEnds { label, vlans, interface: link.interface };
        self.tallies.push(FlowTally { ends: Some(ends), ..FlowTally::default() });
        self.places.insert(flow, place as u32);
        place
    }

    /// Counts a packet that left the aggregator of one of the policies.
    pub(super) fn left(
        &mut self,
        policy: usize,
        link: &LinkHeader,
        packet: &SuperPacket<'_, Buffer>,
    ) {
        let Some(first) = packet.slices().next() else { return };
        let (metadata, layer) = (&packet.metadata, packet.metadata.layer);
        let flow = FlowId::of_headers(first, packet.length(), layer, link);
        let place = match self.places.get(&flow) {
            Some(&place) => place as usize,
            None if Label::of(first, layer).is_some() => UNLISTED,
            None => OTHER,
        };
        self.count_left(policy, place, metadata.reason as usize);
        if policy == DEFAULT && packet.is_merged() {
            self.tallies[place].super_packets += 1;
        }
    }

    /// Counts a packet that one of the policies passed on without aggregation. `place` is the index
    /// of its flow's row in the table.
    pub(super) fn passed(&mut self, policy: usize, place: usize, why: PassReason) {
        self.count_left(policy, place, Reason::COUNT + why.index());
    }

    fn count_left(&mut self, policy: usize, place: usize, reason: usize) {
        let tally = &mut self.tallies[place];
        tally.packets_after[policy] += 1;
        if policy != DEFAULT {
            return;
        }
        let reason = reason as u8;
        match tally.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => tally.reasons.push((reason, 1)),
        }
    }

    fn effect(&self, place: usize) -> FlowEffect {
        let tally = &self.tallies[place];
        let ends = tally.ends.as_ref();
        let label = ends.map(|ends| ends.label);
        let [packets_after_lro, packets_after_gro, packets_after, packets_after_lro_acks] =
            tally.packets_after;
        FlowEffect {
            protocol: match (label, place) {
                (Some(label), _) => label.protocol(),
                (None, UNLISTED) => "unlisted",
                (None, _) => "other",
            },
            source: label.map(|label| label.address(0)),
            source_port: label.map(|label| label.port(0)),
            destination: label.map(|label| label.address(1)),
            destination_port: label.map(|label| label.port(1)),
            tunnel: label.and_then(|label| label.tunnel()),
            vlan: ends.and_then(|ends| match ends.vlans {
                [None, _] => None,
                [Some(vlan), None] => Some(vlan.to_string()),
                [Some(outer), Some(inner)] => Some(format!("{outer}.{inner}")),
            }),
            interface: ends.map(|ends| ends.interface),
            packets: tally.packets,
            bytes: tally.bytes,
            packets_after,
            super_packets: tally.super_packets,
            packets_after_lro,
            packets_after_gro,
            packets_after_lro_acks,
            reasons: tally
                .reasons
                .iter()
                .map(|&(reason, count)| (reason_name(usize::from(reason)), count))
                .collect(),
        }
    }
}

/// Returns the name of a reason. An index below [`Reason::COUNT`] is a reason of the engine; a
/// larger one is an index into [`PASS_REASONS`], plus that count.
fn reason_name(index: usize) -> &'static str {
    match Reason::ALL.get(index) {
        Some(reason) => reason.name(),
        None => PASS_REASONS[index - Reason::COUNT],
    }
}

/// Returns the IDs of a frame's first two VLAN tags.
fn vlans(packet: &[u8], layer: Layer) -> [Option<u16>; 2] {
    let mut found = [None; 2];
    let mut offset = ethernet::ETHERTYPE;
    if layer == Layer::Ethernet {
        for place in &mut found {
            if !be16(packet, offset).is_some_and(ethernet::is_vlan) {
                break;
            }
            *place = be16(packet, offset + 2).map(|tag| tag & 0x0fff);
            offset += 4;
        }
    }
    found
}

/// Estimates a number of different flows in fixed memory, by linear counting (Whang, Vander-Zanden
/// and Taylor, 1990): each flow sets one of many bits, and the share of bits that are still clear
/// tells how many flows there were. The error is below 2 % up to eight million.
#[derive(Debug, Default)]
struct DistinctCount {
    /// The bits; empty if nothing was counted.
    words: Vec<u64>,
}

/// Number of bits.
const BITS: u64 = 1 << 20;

impl DistinctCount {
    fn count(&mut self, flow: FlowId) {
        if self.words.is_empty() {
            self.words = vec![0; (BITS / 64) as usize];
        }
        let bit = flow.number() % BITS;
        self.words[(bit / 64) as usize] |= 1 << (bit % 64);
    }

    fn estimate(&self) -> u64 {
        let set: u32 = self.words.iter().map(|word| word.count_ones()).sum();
        let bits = BITS as f64;
        // At least one bit counts as clear: the logarithm of 0 is infinite.
        let clear = (bits - f64::from(set)).max(1.0);
        (-bits * (clear / bits).ln()).round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, DefaultHasher};
    use superpacket_traffic::frame::Frame;

    fn link() -> LinkHeader {
        LinkHeader::new(3, Layer::Ethernet, &[]).expect("short")
    }

    fn count(table: &mut FlowTable, number: u64, frame: &[u8]) -> usize {
        let label = Label::of(frame, Layer::Ethernet).expect("it has ports");
        table.count(Some((FlowId::from_number(number), label, &link())), frame, frame.len())
    }

    #[test]
    fn flows_beyond_the_limit_share_a_row_and_are_estimated() {
        let frame = Frame::tcp4(1, 46).to_bytes();
        let mut table = FlowTable::with_most(10);
        let numbers = (0..300_000u64)
            .map(|number| BuildHasherDefault::<DefaultHasher>::new().hash_one(number));
        for number in numbers.clone().chain(numbers) {
            let place = count(&mut table, number, &frame);
            table.count_left(DEFAULT, place, Reason::Push as usize);
        }
        let place = table.count(None, &[0; 60], 60);
        table.passed(DEFAULT, place, PassReason::LinkType);
        let flows = CaptureFlows::new("in.pcap", table);
        let rows: Vec<_> = flows.rows().collect();
        assert_eq!(rows.len(), 12);
        let protocols: Vec<_> = rows.iter().skip(8).map(|row| row.protocol).collect();
        assert_eq!(protocols, ["TCP", "TCP", "unlisted", "other"]);
        assert_eq!(rows.iter().map(|row| row.packets).sum::<u64>(), 600_001);
        assert_eq!(rows.iter().map(|row| row.bytes).sum::<u64>(), 60_000_060);
        assert_eq!((rows[10].packets, rows[10].packets_after), (599_980, 599_980));
        assert_eq!(rows[11].reasons, BTreeMap::from([("link_type", 1)]));
        assert!((294_000..306_000).contains(&flows.unlisted()), "{}", flows.unlisted());
    }

    #[test]
    fn a_row_has_all_that_tells_a_flow_from_others() {
        let mut table = FlowTable::default();
        let tagged = Frame::udp6(100).tagged(7).tagged(5).to_bytes();
        let place = count(&mut table, 1, &tagged);
        for (reason, times) in [(Reason::Push, 2), (Reason::Alone, 2), (Reason::PollEnd, 1)] {
            (0..times).for_each(|_| table.count_left(DEFAULT, place, reason as usize));
        }
        count(&mut table, 2, &Frame::tcp4(1, 9).in_vxlan4().to_bytes());
        let flows = CaptureFlows::new("in.pcap", table);
        let rows: Vec<_> = flows.rows().collect();
        assert_eq!(rows[0].vlan.as_deref(), Some("7.5"), "{:?}", rows[0]);
        assert_eq!((rows[0].interface, rows[0].main_reason()), (Some(3), Some("alone")));
        let columns = rows[0].columns(&flows.file);
        assert!(columns.iter().any(|(name, cell)| {
            *name == "main_reason_means"
                && *cell == FlowCell::Text(explain("alone").map(Cow::Borrowed))
        }));
        assert_eq!((rows[1].tunnel, rows[1].vlan.as_deref()), (Some("VXLAN"), None));
        assert_eq!(flows.unlisted(), 0);
    }
}
