//! Keyed hashes that identify the flow and the address pair of a packet.
//!
//! Two packets are of the same flow if these agree: MAC addresses, VLAN IDs, PPPoE session, MPLS
//! labels, tunnel kind, end points and identifier, inner addresses, protocol and ports. Other
//! fields (priorities, TTLs, flow labels, the outer source port) end a merge when they change but
//! do not make another flow, so that order is kept.
//!
//! The table compares only hashes. Whether packets merge is decided by comparing headers, so a
//! collision of two 64-bit hashes costs a merge, but never a byte. The key is secret, so collisions
//! cannot be forced (a multiply and a fold, as in wyhash).

use crate::packet::{Layer, VlanTag};
use crate::wire::link::{LinkWalk, Next, Tag};
use crate::wire::{IpVersion, Layout, be16, be32, ethernet, ipv4, ipv6, pppoe};

/// The secret of a flow table's hash: 128 random bits.
#[derive(Clone, Copy)]
pub struct HashKey {
    first: u64,
    second: u64,
}

impl core::fmt::Debug for HashKey {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("HashKey(secret)")
    }
}

impl HashKey {
    /// Makes a key from 128 bits. They should be random if traffic may be hostile.
    pub const fn new(bits: u128) -> Self {
        HashKey {
            first: bits as u64 ^ 0x9e37_79b9_7f4a_7c15,
            second: (bits >> 64) as u64 ^ 0xd1b5_4a32_d192_ed03,
        }
    }

    /// Makes a key from the operating system's random numbers.
    ///
    /// # Panics
    /// If the operating system provides none.
    #[cfg(feature = "os-random")]
    pub fn random() -> Self {
        let mut bits = [0; 16];
        getrandom::fill(&mut bits).expect("the operating system gives random numbers");
        Self::new(u128::from_ne_bytes(bits))
    }

    #[inline(always)]
    pub(crate) fn mix(self, state: u64, word: u64) -> u64 {
        let product = u128::from(state ^ self.first) * u128::from(word ^ self.second);
        (product as u64) ^ ((product >> 64) as u64)
    }

    /// Returns the hash of the addresses of the IP header at `network`.
    #[inline(always)]
    pub(crate) fn pair(self, header: &[u8], network: usize, version: IpVersion) -> u64 {
        match version {
            IpVersion::V4 => self.mix(4, word(header, network + ipv4::ADDRESSES)),
            IpVersion::V6 => {
                let addresses = network + ipv6::ADDRESSES;
                let source = self.mix(6 ^ word(header, addresses), word(header, addresses + 8));
                self.mix(source ^ word(header, addresses + 16), word(header, addresses + 24))
            }
        }
    }

    /// Returns the hash of a packet's flow.
    #[inline(always)]
    pub(crate) fn flow(
        self,
        header: &[u8],
        layout: &Layout,
        layer: Layer,
        vlan: Option<VlanTag>,
    ) -> Identity {
        let pair = self.pair(header, usize::from(layout.network), layout.version);
        // Source and destination ports have the same offset in TCP, UDP and DCCP.
        let ports = u64::from(be32(header, usize::from(layout.transport)));
        let mut flow = self.mix(pair, ports << 8 | u64::from(layout.protocol.number()));
        let mut outer = None;
        if layer == Layer::Ethernet {
            let macs = header
                .first_chunk::<12>()
                .map_or(0, |macs| self.mix(word(macs, 0), u64::from(be32(macs, 8))));
            flow = self.mix(flow, macs);
            if usize::from(layout.outermost()) != ethernet::HEADER_LENGTH {
                flow = self.mix(flow, self.tags(header, layout));
            }
        }
        if let Some(tag) = vlan {
            flow = self.mix(flow, u64::from(tag.protocol) << 16 | u64::from(tag.control & 0x0fff));
        }
        if let Some(outermost) = layout.outer {
            let pair = self.pair(header, usize::from(outermost.network), outermost.version);
            flow = self.mix(self.mix(flow, pair), outermost.identifier(header));
            let mut pairs = OuterPairs { outermost: pair, nested: None };
            if let Some(nested) = layout.nested {
                let pair = self.pair(header, usize::from(nested.network), nested.version);
                flow = self.mix(self.mix(flow, pair), nested.identifier(header));
                pairs.nested = Some(pair);
            }
            outer = Some(pairs);
        }
        Identity { flow, pair, outer }
    }

    /// Returns the hash of the identities in the link header's tags: VLAN IDs, PPPoE session and
    /// MPLS labels, without priorities, drop bits and TTLs.
    #[cold]
    fn tags(self, header: &[u8], layout: &Layout) -> u64 {
        let end = usize::from(layout.outermost());
        let mut state = 1;
        let mut link = LinkWalk::new(header, 0);
        while let Next::Tag(tag) = link.next
            && link.offset < end
        {
            let identity = match tag {
                Tag::Vlan(ethertype) => {
                    u64::from(ethertype) << 16 | u64::from(be16(header, link.offset) & 0x0fff)
                }
                Tag::Pppoe => 0x1_0000_0000 | u64::from(be16(header, link.offset + pppoe::SESSION)),
                Tag::Mpls => 0x2_0000_0000 | u64::from(be32(header, link.offset) >> 12),
            };
            state = self.mix(state, identity);
            link.step_over(tag);
        }
        state
    }
}

/// The hashes by which a held packet is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// Hash of the flow.
    pub(crate) flow: u64,
    /// Hash of the innermost address pair.
    pub(crate) pair: u64,
    /// Hashes of the tunnels' address pairs, if there are tunnels.
    pub(super) outer: Option<OuterPairs>,
}

/// The hashes of the address pairs of a packet's tunnels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OuterPairs {
    pub(super) outermost: u64,
    /// Hash of the second tunnel's address pair, if one tunnel is in another.
    pub(super) nested: Option<u64>,
}

#[inline(always)]
fn word(bytes: &[u8], offset: usize) -> u64 {
    match bytes.get(offset..offset + 8) {
        Some(word) => u64::from_ne_bytes([
            word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
        ]),
        None => 0,
    }
}
