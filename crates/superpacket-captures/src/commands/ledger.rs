//! Copies of the held frames, by flow and in order. They are independent of the engine, so that its
//! output can be compared with them.

use std::collections::VecDeque;
use std::collections::hash_map::{DefaultHasher, HashMap};
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Outer, Tunnel, ethernet, gre, ipv4, ipv6, parse};

use crate::commands::lanes::LinkHeader;
use crate::commands::partial::be16;
use crate::commands::pool::Buffer;

/// A flow whose packets keep their order, identified by a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FlowId(u64);

impl FlowId {
    /// Returns the flow of a packet: link header, MAC addresses, VLAN IDs, PPPoE session, MPLS
    /// labels, tunnel, addresses, protocol and ports. All packets whose headers cannot be read
    /// share one flow: they are never held.
    pub(crate) fn of(packet: &[u8], layer: Layer, link: &LinkHeader) -> FlowId {
        Self::of_headers(packet, packet.len(), layer, link)
    }

    /// Returns the hash.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the flow of a packet of `length` bytes, of which `packet` contains at least the
    /// headers.
    pub(crate) fn of_headers(
        packet: &[u8],
        length: usize,
        layer: Layer,
        link: &LinkHeader,
    ) -> FlowId {
        let mut hasher = DefaultHasher::new();
        if let Ok(layout) = parse(packet, length, layer) {
            hash_link(packet, layer, link, usize::from(layout.outermost()), &mut hasher);
            layout.outers().for_each(|outer| hash_outer(packet, outer, &mut hasher));
            addresses(packet, usize::from(layout.network), layout.version).hash(&mut hasher);
            let transport = usize::from(layout.transport);
            (layout.protocol, packet.get(transport..transport + 4)).hash(&mut hasher);
        }
        FlowId(hasher.finish())
    }
}

impl FlowId {
    /// Returns the flow for packets that belong to no flow.
    pub(crate) const fn none() -> FlowId {
        FlowId(0)
    }

    /// Returns a flow with a hash that the caller computed.
    pub(crate) const fn from_hash(hash: u64) -> FlowId {
        FlowId(hash)
    }
}

#[cfg(test)]
impl FlowId {
    /// Returns a flow with this number.
    pub(crate) fn from_number(number: u64) -> FlowId {
        FlowId(number)
    }
}

fn hash_outer(packet: &[u8], outer: Outer, hasher: &mut impl Hasher) {
    let transport = usize::from(outer.transport);
    addresses(packet, usize::from(outer.network), outer.version).hash(hasher);
    outer.tunnel.hash(hasher);
    match outer.tunnel {
        // The destination port, and the word with the network identifier.
        Tunnel::Vxlan | Tunnel::Geneve => {
            (packet.get(transport + 2..transport + 4), packet.get(transport + 12..transport + 16))
                .hash(hasher)
        }
        Tunnel::Gre => {
            let flags = be16(packet, transport).unwrap_or(0);
            let key = transport + if flags & gre::CHECKSUM_PRESENT != 0 { 8 } else { 4 };
            let key = if flags & gre::KEY_PRESENT != 0 {
                packet.get(key..key + 4).map(<[u8]>::to_vec)
            } else {
                Some(vec![0; 4])
            };
            (packet.get(transport + 2..transport + 4), key).hash(hasher);
        }
        Tunnel::Ip => {}
    }
}

pub(crate) fn addresses(packet: &[u8], network: usize, version: IpVersion) -> Option<&[u8]> {
    match version {
        IpVersion::V4 => packet.get(network + ipv4::ADDRESSES..network + ipv4::ADDRESSES + 8),
        IpVersion::V6 => packet.get(network + ipv6::ADDRESSES..network + ipv6::ADDRESSES + 32),
    }
}

/// Hashes the identity of a link header, up to the outermost IP header at `end`: interface, header,
/// MAC addresses and identifiers in tags.
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

/// Hashes the identifiers in tags; priorities and TTLs may change within a flow.
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

/// The frames that were given to the engine and have not left it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    flows: HashMap<FlowId, VecDeque<Buffer>>,
    /// Empty queues to be reused.
    spare: Vec<VecDeque<Buffer>>,
}

impl Ledger {
    /// Appends a frame to its flow's queue.
    pub(crate) fn enter(&mut self, flow: FlowId, buffer: Buffer) {
        self.flows
            .entry(flow)
            .or_insert_with(|| self.spare.pop().unwrap_or_default())
            .push_back(buffer);
    }

    /// Moves the oldest frames of a flow into `taken`, at most `count`.
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
