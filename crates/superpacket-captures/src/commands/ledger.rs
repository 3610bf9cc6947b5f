//! Copies of the frames that the engine holds, by flow and in order. They do not depend on the
//! engine, so that its output can be compared with them.

use std::collections::VecDeque;
use std::collections::hash_map::{DefaultHasher, HashMap};
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, ethernet, ipv4, ipv6, parse};

use crate::commands::checksums::be16;
use crate::commands::lanes::LinkHeader;
use crate::commands::pool::Buffer;

/// A flow, within which packets keep their order. It is identified by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FlowId(u64);

impl FlowId {
    /// Returns the flow of a packet, which depends on link header, MAC addresses, VLAN IDs, PPPoE
    /// session, MPLS labels, tunnel, addresses, protocol and ports. All packets whose headers
    /// cannot be read share one flow: the engine never holds them.
    pub(crate) fn of(packet: &[u8], layer: Layer, link: &LinkHeader) -> FlowId {
        Self::of_headers(packet, packet.len(), layer, link)
    }

    /// Returns the hash that identifies the flow.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the flow of a packet of `length` bytes. `packet` contains its first bytes, at least
    /// all of the headers.
    pub(crate) fn of_headers(
        packet: &[u8],
        length: usize,
        layer: Layer,
        link: &LinkHeader,
    ) -> FlowId {
        let mut hasher = DefaultHasher::new();
        if let Ok(layout) = parse(packet, length, layer) {
            hash_link(packet, layer, link, usize::from(layout.outermost()), &mut hasher);
            for outer in layout.outers() {
                (outer.tunnel, outer.identifier(packet)).hash(&mut hasher);
            }
            for level in layout.levels() {
                addresses(packet, usize::from(level.network), level.version).hash(&mut hasher);
            }
            let transport = usize::from(layout.transport);
            (layout.protocol, packet.get(transport..transport + 4)).hash(&mut hasher);
        }
        FlowId(hasher.finish())
    }
}

impl FlowId {
    /// Returns the value that stands for no flow, for packets that belong to none.
    pub(crate) const fn none() -> FlowId {
        FlowId(0)
    }

    /// Returns the flow with a hash that the caller has computed.
    pub(crate) const fn from_hash(hash: u64) -> FlowId {
        FlowId(hash)
    }
}

#[cfg(test)]
impl FlowId {
    /// Returns the flow with this number, for tests.
    pub(crate) fn from_number(number: u64) -> FlowId {
        FlowId(number)
    }
}

pub(crate) fn addresses(packet: &[u8], network: usize, version: IpVersion) -> Option<&[u8]> {
    match version {
        IpVersion::V4 => packet.get(network + ipv4::ADDRESSES..network + ipv4::ADDRESSES + 8),
        IpVersion::V6 => packet.get(network + ipv6::ADDRESSES..network + ipv6::ADDRESSES + 32),
    }
}

/// Hashes the identifying fields of a packet's link header: interface, bytes of the link header,
/// MAC addresses, and identifiers in tags. `end` is the offset of the outermost IP header.
pub(crate) fn hash_link(
    packet: &[u8],
    layer: Layer,
    link: &LinkHeader,
    end: usize,
    hasher: &mut impl Hasher,
) {
    (link.interface, link.header()).hash(hasher);
    if layer == Layer::Ethernet {
        packet.get(..12).hash(hasher);
        hash_tags(packet, end, hasher);
    }
}

/// Hashes the identifiers in VLAN tags, PPPoE headers and MPLS labels. Priorities and TTLs are left
/// out, because they may change within a flow.
fn hash_tags(packet: &[u8], end: usize, hasher: &mut impl Hasher) {
    let mut kind = be16(packet, ethernet::ETHERTYPE).unwrap_or(0);
    let mut offset = ethernet::HEADER_LENGTH;
    while offset < end {
        let word = be16(packet, offset).unwrap_or(0);
        if ethernet::is_vlan(kind) {
            (kind, word & 0x0fff).hash(hasher);
            kind = be16(packet, offset + 2).unwrap_or(0);
        } else if kind == ethernet::PPPOE_SESSION {
            be16(packet, offset + 2).hash(hasher);
            return;
        } else {
            (word, packet.get(offset + 2).map(|byte| byte >> 4)).hash(hasher);
        }
        offset += 4;
    }
}

/// The frames that were given to the engine and have not left it, by flow.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    flows: HashMap<FlowId, VecDeque<Buffer>>,
    /// Queues without frames, kept so that their memory is used again.
    spare: Vec<VecDeque<Buffer>>,
}

impl Ledger {
    /// Appends a frame to the queue of its flow.
    pub(crate) fn enter(&mut self, flow: FlowId, buffer: Buffer) {
        self.flows
            .entry(flow)
            .or_insert_with(|| self.spare.pop().unwrap_or_default())
            .push_back(buffer);
    }

    /// Moves the oldest frames of a flow from its queue to `taken`, `count` at most.
    pub(crate) fn take(&mut self, flow: FlowId, count: usize, taken: &mut Vec<Buffer>) {
        taken.clear();
        let Some(queue) = self.flows.get_mut(&flow) else { return };
        taken.extend(queue.drain(..count.min(queue.len())));
        if queue.is_empty()
            && let Some(queue) = self.flows.remove(&flow)
            && self.spare.len() < 64
        {
            self.spare.push(queue);
        }
    }

    /// Returns the number of frames that have not left the engine.
    pub(crate) fn left(&self) -> usize {
        self.flows.values().map(VecDeque::len).sum()
    }
}
