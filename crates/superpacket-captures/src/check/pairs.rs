//! Order between the packets of an address pair: one whose ports are not known, such as a fragment,
//! may belong to any flow between its addresses.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use superpacket::packet::Layer;
use superpacket::wire::{IpVersion, Layout, Scope, ip_headers, parse, protocol_number};

use crate::lanes::LinkHeader;
use crate::ledger::{addresses, hash_link};

/// The address pairs that a packet keeps order with, as hashes of link header, addresses and
/// protocol.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairKeys {
    /// Are its ports known? Then it keeps order with packets whose ports are not, else with those
    /// whose ports are.
    has_ports: bool,
    /// That of the innermost IP header and, in tunnels, those of the outer ones; of a packet whose
    /// ports are not known, that of the IP header read last.
    keys: [Option<u64>; 3],
}

impl PairKeys {
    /// The pairs of a packet; none of what is not IP, or of a protocol without ports.
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

/// A packet that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    /// Its number in the file that is checked.
    pub(super) packet: u64,
    /// That of the packet of the original that it holds.
    pub(super) origin: u64,
}

#[derive(Debug, Default)]
struct Pair {
    /// Packets of the original that have not left.
    held: u32,
    /// Of the packets without known ports, and of those with, the one that left and came latest.
    latest: [Option<Departure>; 2],
}

/// What has left of each address pair of which something is held: nothing else can be overtaken.
#[derive(Debug, Default)]
pub(super) struct Pairs(HashMap<u64, Pair>);

impl Pairs {
    /// Bytes of memory that a packet takes here, at most.
    pub(super) const OVERHEAD: usize = 4 * size_of::<(u64, Pair)>();

    /// A packet of the original is held from now on.
    pub(super) fn enter(&mut self, keys: PairKeys) {
        for key in keys.iter() {
            self.0.entry(key).or_default().held += 1;
        }
    }

    /// A packet of the original is no longer held.
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

    /// What the packet of the original with this number, which is held, was overtaken by: one that
    /// it keeps order with, came later and has left.
    pub(super) fn overtook(&self, keys: PairKeys, origin: u64) -> Option<Departure> {
        let others = usize::from(!keys.has_ports);
        let latest = keys.iter().filter_map(|key| self.0.get(&key)?.latest[others]);
        latest
            .filter(|departure| departure.origin > origin)
            .max_by_key(|departure| departure.origin)
    }

    /// Notes that a packet of the original has left.
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
