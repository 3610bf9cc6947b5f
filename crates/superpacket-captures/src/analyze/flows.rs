//! The flows with the most bytes, found in fixed memory (the Space-Saving algorithm of Metwally,
//! Agrawal and El Abbadi, 2005).
//!
//! A fixed number of flows is counted. A new flow takes the place of the smallest and inherits its
//! bytes as an error bound, so a flow with more than a 512th of all bytes cannot be missed. What is
//! shown is what was counted since: exact for flows without inherited bytes, else a lower bound.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;
use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Protocol, Tunnel, ipv4, ipv6, parse};

use crate::ledger::Flow;
use crate::partial::be16;

/// How many flows are counted at a time.
const COUNTED: usize = 512;

/// Who talks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    version: IpVersion,
    addresses: [u8; 32],
    ports: [u16; 2],
    protocol: Protocol,
    tunnel: Option<Tunnel>,
}

impl Label {
    /// The end points of a packet; `None` if it has no ports.
    pub(super) fn of(packet: &[u8], layer: Layer) -> Option<Label> {
        let layout = parse(packet, packet.len(), layer).ok()?;
        let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
        let bytes = match layout.version {
            IpVersion::V4 => packet.get(network + ipv4::ADDRESSES..network + ipv4::ADDRESSES + 8)?,
            IpVersion::V6 => packet.get(network + ipv6::ADDRESSES..network + ipv6::ADDRESSES + 32)?,
        };
        let mut addresses = [0; 32];
        addresses.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let ports = [be16(packet, transport)?, be16(packet, transport + 2)?];
        Some(Label { version: layout.version, addresses, ports, protocol: layout.protocol, tunnel: layout.outer.map(|outer| outer.tunnel) })
    }

    fn end(&self, which: usize) -> String {
        let port = self.ports[which];
        match self.version {
            IpVersion::V4 => {
                let mut octets = [0; 4];
                octets.copy_from_slice(&self.addresses[4 * which..4 * which + 4]);
                format!("{}:{port}", Ipv4Addr::from(octets))
            }
            IpVersion::V6 => {
                let mut octets = [0; 16];
                octets.copy_from_slice(&self.addresses[16 * which..16 * which + 16]);
                format!("[{}]:{port}", Ipv6Addr::from(octets))
            }
        }
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Dccp => "DCCP",
        };
        write!(formatter, "{protocol} {} > {}", self.end(0), self.end(1))?;
        match self.tunnel {
            Some(Tunnel::Vxlan) => formatter.write_str(" (VXLAN)"),
            Some(Tunnel::Geneve) => formatter.write_str(" (Geneve)"),
            Some(Tunnel::Gre) => formatter.write_str(" (GRE)"),
            Some(Tunnel::Ip) => formatter.write_str(" (IP in IP)"),
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug)]
struct Counted {
    flow: Flow,
    label: Label,
    /// Bytes of the flows that had this place before.
    inherited: u64,
    packets: u64,
    packets_out: u64,
}

/// A line of the top list.
#[derive(Clone, Debug, Serialize)]
pub struct TopFlow {
    /// Protocol and end points: `TCP 10.0.0.1:443 > 10.3.0.0:10000`.
    pub flow: String,
    /// Packets captured.
    pub packets_in: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Packets that left, under GRO with UDP.
    pub packets_out: u64,
    /// The figures are exact; else lower bounds.
    pub exact: bool,
}

/// The flows with the most bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct TopFlows {
    places: HashMap<Flow, usize>,
    counted: Vec<Counted>,
    /// Bytes of each, inherited ones included: apart, so that the smallest is found fast.
    bytes: Vec<u64>,
}

impl TopFlows {
    /// Counts a packet that was captured.
    pub(super) fn count(&mut self, flow: Flow, label: Label, length: usize) {
        let place = self.place(flow, label);
        self.bytes[place] += length as u64;
        self.counted[place].packets += 1;
    }

    /// Counts a packet that left, if its flow is counted.
    pub(super) fn left(&mut self, flow: Flow) {
        if let Some(&place) = self.places.get(&flow) {
            self.counted[place].packets_out += 1;
        }
    }

    /// Adds the flows of another capture.
    pub(super) fn add(&mut self, other: &TopFlows) {
        for (more, bytes) in other.counted.iter().zip(&other.bytes) {
            let place = self.place(more.flow, more.label);
            self.bytes[place] += bytes;
            let counted = &mut self.counted[place];
            counted.inherited += more.inherited;
            counted.packets += more.packets;
            counted.packets_out += more.packets_out;
        }
    }

    fn place(&mut self, flow: Flow, label: Label) -> usize {
        if let Some(&place) = self.places.get(&flow) {
            return place;
        }
        let fresh = Counted { flow, label, inherited: 0, packets: 0, packets_out: 0 };
        if self.counted.len() < COUNTED {
            self.counted.push(fresh);
            self.bytes.push(0);
            self.places.insert(flow, self.counted.len() - 1);
            return self.counted.len() - 1;
        }
        let place = (0..COUNTED).min_by_key(|&place| self.bytes[place]).unwrap_or(0);
        self.places.remove(&self.counted[place].flow);
        self.places.insert(flow, place);
        self.counted[place] = Counted { inherited: self.bytes[place], ..fresh };
        place
    }

    /// The `count` flows with the most bytes.
    pub(super) fn rows(&self, count: usize) -> Vec<TopFlow> {
        let mut order: Vec<usize> = (0..self.counted.len()).collect();
        let own = |place: usize| self.bytes[place] - self.counted[place].inherited;
        order.sort_by_key(|&place| (std::cmp::Reverse(own(place)), place));
        let row = |place: usize| {
            let counted = &self.counted[place];
            TopFlow {
                flow: counted.label.to_string(),
                packets_in: counted.packets,
                bytes: own(place),
                packets_out: counted.packets_out.min(counted.packets),
                exact: counted.inherited == 0,
            }
        };
        order.into_iter().take(count).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(port: u16) -> Label {
        Label { version: IpVersion::V4, addresses: [1; 32], ports: [port, 443], protocol: Protocol::Tcp, tunnel: None }
    }

    #[test]
    fn heavy_flows_are_found_among_many() {
        let mut top = TopFlows::default();
        for round in 0..100_000u64 {
            top.count(Flow::from_number(1_000_000 + round), label(1), 60);
            if round % 50 == 0 {
                top.count(Flow::from_number(7), label(7), 15_000);
            }
            if round % 100 == 0 {
                top.count(Flow::from_number(8), label(8), 15_000);
                top.left(Flow::from_number(8));
            }
        }
        let rows = top.rows(2);
        assert_eq!(rows[0].flow, "TCP 1.1.1.1:7 > 1.1.1.1:443");
        assert_eq!((rows[0].packets_in, rows[0].bytes, rows[0].exact), (2000, 30_000_000, true));
        assert_eq!((rows[1].packets_in, rows[1].packets_out), (1000, 1000));
        assert_eq!(top.counted.len(), COUNTED);
        assert_eq!(top.places.len(), COUNTED);
        let mut both = TopFlows::default();
        both.add(&top);
        both.add(&top);
        assert_eq!(both.rows(1)[0].bytes, 60_000_000);
    }
}
