//! Copies of the frames that are held, by flow and in order, kept apart from the engine: what comes
//! out is compared with them.

use std::collections::VecDeque;
use std::collections::hash_map::{DefaultHasher, HashMap};
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};
use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Outer, Tunnel, ethernet, gre, ipv4, ipv6, parse};

use crate::lanes::LinkHeader;
use crate::partial::be16;
use crate::pool::Buffer;

/// A flow, as far as order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Flow(u64);

impl Flow {
    /// The flow of a packet: link header, MAC addresses, VLAN IDs, PPPoE session, MPLS labels,
    /// tunnel, addresses, protocol and ports. All packets whose headers cannot be read are of one
    /// flow: they are never held.
    pub(crate) fn of(packet: &[u8], layer: Layer, link: &LinkHeader) -> Flow {
        Self::of_headers(packet, packet.len(), layer, link)
    }

    /// The number that tells it from others.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The same of a packet of `length` bytes, of which only the headers are at hand.
    pub(crate) fn of_headers(
        packet: &[u8],
        length: usize,
        layer: Layer,
        link: &LinkHeader,
    ) -> Flow {
        let mut hasher = DefaultHasher::new();
        if let Ok(layout) = parse(packet, length, layer) {
            hash_link(packet, layer, link, usize::from(layout.outermost()), &mut hasher);
            layout.outers().for_each(|outer| hash_outer(packet, outer, &mut hasher));
            addresses(packet, usize::from(layout.network), layout.version).hash(&mut hasher);
            let transport = usize::from(layout.transport);
            (layout.protocol, packet.get(transport..transport + 4)).hash(&mut hasher);
        }
        Flow(hasher.finish())
    }
}

impl Flow {
    /// The flow of packets that are of none.
    pub(crate) const fn none() -> Flow {
        Flow(0)
    }

    /// A flow that somebody else has told apart.
    pub(crate) const fn from_hash(hash: u64) -> Flow {
        Flow(hash)
    }
}

#[cfg(test)]
impl Flow {
    /// A flow like no other.
    pub(crate) fn from_number(number: u64) -> Flow {
        Flow(number)
    }
}

fn hash_outer(packet: &[u8], outer: Outer, hasher: &mut impl Hasher) {
    let transport = usize::from(outer.transport);
    addresses(packet, usize::from(outer.network), outer.version).hash(hasher);
    outer.tunnel.hash(hasher);
    match outer.tunnel {
        // Destination port, and the word with the network identifier.
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

/// What tells link headers apart, up to the outermost IP header at `end`: interface, header, MAC
/// addresses and the identities in tags.
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

/// The identities in tags; priorities and TTLs may change within a flow.
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

/// The frames given to the engine that have not come out.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    flows: HashMap<Flow, VecDeque<Buffer>>,
    /// Queues that are empty, to be used again.
    spare: Vec<VecDeque<Buffer>>,
}

impl Ledger {
    /// Notes a frame of a flow behind those before it.
    pub(crate) fn enter(&mut self, flow: Flow, buffer: Buffer) {
        self.flows
            .entry(flow)
            .or_insert_with(|| self.spare.pop().unwrap_or_default())
            .push_back(buffer);
    }

    /// Takes the oldest frames of a flow, at most `count`.
    pub(crate) fn take(&mut self, flow: Flow, count: usize, taken: &mut Vec<Buffer>) {
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

    /// How many frames have not come out.
    pub(crate) fn left(&self) -> usize {
        self.flows.values().map(VecDeque::len).sum()
    }
}
