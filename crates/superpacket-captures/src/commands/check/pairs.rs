//! Checks the order between packets with the same pair of addresses. A packet whose ports are not
//! known, such as a fragment, may belong to any flow between its addresses.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Layout, Scope, ip_headers, parse, protocol_number};

use crate::commands::lanes::LinkHeader;
use crate::commands::ledger::{addresses, hash_link};

/// The address pairs of a packet, within each of which packets must keep their order. They are
/// hashes of link header, addresses and protocol.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairKeys {
    /// Whether the packet's ports are known. If so, it keeps order with packets whose ports are not
    /// known; otherwise with packets whose ports are known.
    has_ports: bool,
    /// The address pair of the innermost IP header and, in tunnels, the pairs of the outer headers.
    /// If the ports are not known, only the pair of the last IP header that could be read.
    keys: [Option<u64>; 3],
}

impl PairKeys {
    /// Returns the address pairs of a packet. There are none for packets that are not IP, or of a
    /// protocol without ports.
    pub(super) fn of(
        bytes: &[u8],
        layer: Layer,
        link: &LinkHeader,
        layout: Option<&Layout>,
    ) -> PairKeys {
        let key = |outermost: u16, network: u16, version: IpVersion| {
            let network = usize::from(network);
            let mut hasher = DefaultHasher::new();
            hash_link(bytes, layer, link, usize::from(outermost), &mut hasher);
            (addresses(bytes, network, version), protocol_number(bytes, network, version))
                .hash(&mut hasher);
            hasher.finish()
        };
        if let Some(layout) = layout {
            let outermost = layout.outermost();
            let [outer, nested] = [layout.outer, layout.nested]
                .map(|outer| outer.map(|outer| key(outermost, outer.network, outer.version)));
            return PairKeys {
                has_ports: true,
                keys: [Some(key(outermost, layout.network, layout.version)), outer, nested],
            };
        }
        let scope = match parse(bytes, bytes.len(), layer) {
            Err(unparsed) => unparsed.scope,
            Ok(_) => Scope::None,
        };
        let [outermost, ..] = ip_headers(bytes, bytes.len(), layer);
        let only = match (scope, outermost) {
            (Scope::Pair { network, version }, Some((outermost, _))) => {
                Some(key(outermost, network, version))
            }
            _ => None,
        };
        PairKeys { has_ports: false, keys: [only, None, None] }
    }

    fn iter(self) -> impl Iterator<Item = u64> {
        self.keys.into_iter().flatten()
    }
}

/// A packet of the original file that was found in the checked file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    /// Number of the packet of the checked file.
    pub(super) packet: u64,
    /// Number, in the original file, of the packet that was found in it.
    pub(super) origin: u64,
}

#[derive(Debug, Default)]
struct Pair {
    /// Number of packets with this address pair that have been read from the original file, but not
    /// yet found in the checked file.
    held: u32,
    /// The packet that comes last in the original file among those found in the checked file: the
    /// first element is for packets without known ports, the second for packets with known ports.
    latest: [Option<Departure>; 2],
}

/// For each address pair, the last packets that were found in the checked file. A pair is forgotten
/// when none of its packets is held, since none can be overtaken then.
#[derive(Debug, Default)]
pub(super) struct Pairs(HashMap<u64, Pair>);

impl Pairs {
    /// Maximum number of bytes that these tables need for each held packet.
    pub(super) const OVERHEAD: usize = 4 * size_of::<(u64, Pair)>();

    /// Adds a packet of the original file that was not yet found in the checked file.
    pub(super) fn enter(&mut self, keys: PairKeys) {
        for key in keys.iter() {
            self.0.entry(key).or_default().held += 1;
        }
    }

    /// Removes a packet of the original file that is no longer held.
    pub(super) fn leave(&mut self, keys: PairKeys) {
        for key in keys.iter() {
            if let Some(pair) = self.0.get_mut(&key) {
                pair.held -= 1;
                if pair.held == 0 {
                    self.0.remove(&key);
                }
            }
        }
    }

    /// Returns the packet that has overtaken the packet with number `origin`: one that comes later
    /// in the original file, but was found earlier in the checked file, although the two must keep
    /// order.
    pub(super) fn overtook(&self, keys: PairKeys, origin: u64) -> Option<Departure> {
        let others = usize::from(!keys.has_ports);
        let latest = keys.iter().filter_map(|key| self.0.get(&key)?.latest[others]);
        latest
            .filter(|departure| departure.origin > origin)
            .max_by_key(|departure| departure.origin)
    }

    /// Records that a packet of the original file was found in the checked file.
    pub(super) fn left(&mut self, keys: PairKeys, departure: Departure) {
        for key in keys.iter() {
            if let Some(pair) = self.0.get_mut(&key) {
                let latest = &mut pair.latest[usize::from(keys.has_ports)];
                if latest.is_none_or(|latest| latest.origin < departure.origin) {
                    *latest = Some(departure);
                }
            }
        }
    }
}
