//! The flow hash by which packets are steered: the device's hash if it reports one, else a computed
//! one.

use superpacket::packet::{FlowHash, Layer, RxPacket};
use superpacket::super_packet::SuperPacket;
use superpacket::wire::{Layout, MAX_HEADER};

use crate::header::GatheredHeader;
use crate::key::FlowHashKey;
use crate::toeplitz::{Toeplitz, ToeplitzKey};
use crate::tuple::{Addresses, FlowHeaders, FlowTuple};

/// The function that computes a hash if the device reports none.
#[derive(Clone, Debug)]
enum Function {
    /// A keyed hash, computed by 128-bit multiplications whose halves are combined by XOR.
    Keyed(FlowHashKey),
    /// The hash that network devices compute.
    Toeplitz(Toeplitz),
}

/// Numbers of packets by the origin of their hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashCounters {
    /// Packets whose hash the device reported; their bytes were not read.
    pub reported: u64,
    /// Number of packets whose hash was computed.
    pub computed: u64,
    /// Packets without a hash: they are not IP, or too short.
    pub none: u64,
}

/// Computes the flow hashes of packets, unless the device has reported them.
///
/// A hash that the device reports is used as it is, and no byte of the packet is read. Otherwise
/// addresses and ports are hashed; in fragments, and in protocols other than TCP, UDP and DCCP, the
/// addresses alone.
///
/// ```
/// use superpacket::packet::{FlowHash, RxPacket};
/// use superpacket_steer::{FlowHashKey, FlowHasher};
///
/// let mut hasher = FlowHasher::keyed(FlowHashKey::new(42));
/// let mut packet = RxPacket::new(&[0u8; 60][..]);
/// assert_eq!(hasher.hash_packet(&packet), None, "it is not IP");
/// packet.hash = Some(FlowHash(7));
/// assert_eq!(hasher.hash_packet(&packet), Some(FlowHash(7)));
/// assert_eq!((hasher.counters().reported, hasher.counters().none), (1, 1));
/// ```
#[derive(Clone, Debug)]
pub struct FlowHasher {
    function: Function,
    symmetric: bool,
    headers: FlowHeaders,
    trusts_device: bool,
    counters: HashCounters,
}

impl FlowHasher {
    /// Creates a hasher with a secret key (128-bit multiplications, folded). It is fast, and
    /// without the key an attacker cannot direct flows to one CPU. Its hashes are never 0, as in
    /// Linux.
    pub const fn keyed(key: FlowHashKey) -> Self {
        FlowHasher::new(Function::Keyed(key))
    }

    /// Creates a hasher that computes the same hash as network devices ([`Toeplitz`]).
    pub fn toeplitz(key: &ToeplitzKey) -> Self {
        FlowHasher::new(Function::Toeplitz(Toeplitz::new(key)))
    }

    const fn new(function: Function) -> Self {
        let counters = HashCounters { reported: 0, computed: 0, none: 0 };
        FlowHasher {
            function,
            symmetric: false,
            headers: FlowHeaders::Inner,
            trusts_device: true,
            counters,
        }
    }

    /// Gives both directions of a connection the same hash. Toeplitz hashes the [XOR of both
    /// ends](FlowTuple::symmetric), as devices do; the keyed hash puts the [lower end
    /// first](FlowTuple::ordered).
    #[must_use]
    pub fn symmetric(mut self) -> Self {
        self.symmetric = true;
        self.function = match self.function {
            Function::Toeplitz(toeplitz) => Function::Toeplitz(toeplitz.symmetric()),
            keyed @ Function::Keyed(_) => keyed,
        };
        self
    }

    /// Sets which headers of tunnelled packets are hashed.
    #[must_use]
    pub fn with_headers(self, headers: FlowHeaders) -> Self {
        FlowHasher { headers, ..self }
    }

    /// Ignores the hashes that devices report, and computes the hash of every packet.
    #[must_use]
    pub fn without_device(self) -> Self {
        FlowHasher { trusts_device: false, ..self }
    }

    /// Returns the counters since the hasher was created.
    pub const fn counters(&self) -> &HashCounters {
        &self.counters
    }

    /// Returns the hash of a received packet, or `None` if it has none ([`HashCounters::none`]).
    #[inline]
    pub fn hash_packet<B: AsRef<[u8]>>(&mut self, packet: &RxPacket<B>) -> Option<FlowHash> {
        if let Some(hash) = self.reported(packet.hash) {
            return Some(hash);
        }
        let mut buffers = packet.buffers().map(AsRef::as_ref);
        let first = buffers.next().unwrap_or(&[]);
        if first.len() < MAX_HEADER && buffers.next().is_some() {
            let gathered = GatheredHeader::new(packet.buffers().map(AsRef::as_ref));
            return self.computed(gathered.bytes(), packet.length(), packet.layer, None);
        }
        self.computed(first, packet.length(), packet.layer, None)
    }

    /// Returns the hash of a packet that an aggregator emitted, or `None` if it has none.
    #[inline]
    pub fn hash_super_packet<B: AsRef<[u8]>>(
        &mut self,
        packet: &SuperPacket<'_, B>,
    ) -> Option<FlowHash> {
        let metadata = &packet.metadata;
        if let Some(hash) = self.reported(metadata.hash) {
            return Some(hash);
        }
        let mut slices = packet.slices();
        let first = slices.next().unwrap_or(&[]);
        // The headers of a merged packet are contiguous. Those of a packet received in several
        // buffers may not be.
        if !packet.is_merged() && first.len() < MAX_HEADER && slices.next().is_some() {
            let gathered = GatheredHeader::new(packet.slices());
            return self.computed(
                gathered.bytes(),
                packet.length(),
                metadata.layer,
                metadata.layout.as_ref(),
            );
        }
        self.computed(first, packet.length(), metadata.layer, metadata.layout.as_ref())
    }

    /// Returns the hash of a flow.
    #[inline]
    pub fn hash_flow(&self, tuple: &FlowTuple) -> FlowHash {
        match &self.function {
            Function::Toeplitz(toeplitz) => toeplitz.hash_flow(tuple),
            Function::Keyed(key) if self.symmetric => keyed(*key, &tuple.ordered()),
            Function::Keyed(key) => keyed(*key, tuple),
        }
    }

    #[inline]
    fn reported(&mut self, hash: Option<FlowHash>) -> Option<FlowHash> {
        let hash = hash.filter(|_| self.trusts_device)?;
        self.counters.reported += 1;
        Some(hash)
    }

    fn computed(
        &mut self,
        header: &[u8],
        length: usize,
        layer: Layer,
        layout: Option<&Layout>,
    ) -> Option<FlowHash> {
        let tuple = match (self.headers, layout) {
            (FlowHeaders::Inner, Some(layout)) => Some(FlowTuple::from_layout(header, layout)),
            (FlowHeaders::Outer, Some(layout)) if layout.outer.is_none() => {
                Some(FlowTuple::from_layout(header, layout))
            }
            (FlowHeaders::Inner, None) => FlowTuple::innermost(header, length, layer),
            (FlowHeaders::Outer, _) => FlowTuple::outermost(header, length, layer),
        };
        match tuple {
            Some(_) => self.counters.computed += 1,
            None => self.counters.none += 1,
        }
        Some(self.hash_flow(&tuple?))
    }
}

/// Computes the keyed hash of a flow.
#[inline]
fn keyed(key: FlowHashKey, tuple: &FlowTuple) -> FlowHash {
    let ports = tuple.port_bytes();
    // The length distinguishes IP versions, and flows with ports from flows without.
    let seed = |addresses: u64| addresses + if ports.is_some() { 4 } else { 0 };
    let ports = u64::from(u32::from_ne_bytes(ports.unwrap_or_default()));
    let state = match tuple.addresses() {
        Addresses::V4(source, destination) => {
            let both = u64::from(u32::from_be_bytes(source)) << 32
                | u64::from(u32::from_be_bytes(destination));
            key.fold(key.fold(seed(8), both), ports)
        }
        Addresses::V6(source, destination) => {
            let ([from, from_last], [to, to_last]) = (halves(source), halves(destination));
            let source = key.fold(seed(32) ^ from, from_last);
            key.fold(key.fold(source ^ to, to_last), ports)
        }
    };
    let folded = (state ^ state >> 32) as u32;
    // 0 means that there is no hash (the kernel's __flow_hash_from_keys).
    FlowHash(folded.max(1))
}

fn halves(address: [u8; 16]) -> [u64; 2] {
    let both = u128::from_ne_bytes(address);
    [both as u64, (both >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;
    use superpacket_traffic::frame::Frame;

    const KEY: FlowHashKey = FlowHashKey::new(0x0123_4567_89ab_cdef_1122_3344_5566_7788);

    fn all(hasher: FlowHasher) -> Vec<FlowHasher> {
        let outer = hasher.clone().with_headers(FlowHeaders::Outer);
        vec![hasher.clone(), hasher.clone().symmetric(), outer.clone(), outer.symmetric()]
    }

    fn hash(hasher: &mut FlowHasher, frame: &Frame) -> Option<FlowHash> {
        hasher.hash_packet(&RxPacket::new(frame.to_bytes()))
    }

    #[test]
    fn the_hash_of_a_flow_is_independent_of_buffers() {
        for mut hasher in
            [all(FlowHasher::keyed(KEY)), all(FlowHasher::toeplitz(&ToeplitzKey::MICROSOFT))]
                .concat()
        {
            for frame in [
                Frame::tcp4(1, 700),
                Frame::tcp6(1, 700),
                Frame::udp4(700),
                Frame::dccp6(1, 700),
                Frame::tcp4(1, 700).in_vxlan6(),
            ] {
                let one = hash(&mut hasher, &frame);
                assert!(one.is_some());
                assert_eq!(hash(&mut hasher, &frame.following()), one);
                assert_eq!(hash(&mut hasher, &frame.clone().tagged(9)), one);
                let bytes = frame.to_bytes();
                for cut in [1, 14, 34, 60, 300] {
                    let mut packet = RxPacket::new(&bytes[..cut]);
                    packet.push(&bytes[cut..]).expect("two buffers");
                    assert_eq!(hasher.hash_packet(&packet), one, "cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn directions_share_a_hash_only_on_request() {
        for hasher in [FlowHasher::keyed(KEY), FlowHasher::toeplitz(&ToeplitzKey::MICROSOFT)] {
            let (mut plain, mut symmetric) = (hasher.clone(), hasher.symmetric());
            for frame in [Frame::tcp4(1, 10), Frame::tcp6(1, 10), Frame::udp6(10)] {
                let back = frame.reversed();
                assert_eq!(hash(&mut symmetric, &frame), hash(&mut symmetric, &back));
                assert_ne!(hash(&mut plain, &frame), hash(&mut plain, &back));
            }
        }
    }

    #[test]
    fn tunnels_are_one_flow_or_many() {
        let flows: Vec<Frame> = (0..50u16)
            .map(|port| Frame::tcp4(1, 10).with_tcp(|tcp| tcp.source_port = 1000 + port).in_gre())
            .collect();
        let distinct = |mut hasher: FlowHasher| {
            flows
                .iter()
                .map(|frame| hash(&mut hasher, frame).expect("IP").0)
                .collect::<BTreeSet<_>>()
                .len()
        };
        assert_eq!(distinct(FlowHasher::keyed(KEY)), 50);
        assert_eq!(distinct(FlowHasher::keyed(KEY).with_headers(FlowHeaders::Outer)), 1);
    }

    #[test]
    fn the_keyed_hash_spreads_and_depends_on_its_key() {
        let flow = |index: u32| {
            FlowTuple::v4(
                [10, 0, (index >> 8) as u8, index as u8],
                [10, 1, 0, 1],
                Some([40_000, 443]),
            )
        };
        let hashes = |key: FlowHashKey| {
            (0..40_000)
                .map(|index| FlowHasher::keyed(key).hash_flow(&flow(index)).0)
                .collect::<Vec<_>>()
        };
        let own = hashes(KEY);
        // Expected collisions of 32-bit hashes among 40,000: 0.19.
        assert!(own.iter().collect::<BTreeSet<_>>().len() >= 39_990);
        // Tests both the high bits, which choose the CPU, and the low ones.
        for share in [|hash: u32| (hash >> 28) as usize, |hash: u32| hash as usize % 16] {
            let mut counts = [0u32; 16];
            own.iter().for_each(|&hash| counts[share(hash)] += 1);
            assert!(counts.iter().all(|count| (2200..=2800).contains(count)), "{counts:?}");
        }
        let others = hashes(FlowHashKey::new(99));
        assert!(own.iter().zip(&others).filter(|(own, other)| own == other).count() < 10);
        let with = FlowHasher::keyed(KEY).hash_flow(&FlowTuple::v4([1; 4], [2; 4], Some([0, 0])));
        assert_ne!(
            with,
            FlowHasher::keyed(KEY).hash_flow(&FlowTuple::v4([1; 4], [2; 4], None)),
            "port 0 is a port"
        );
        assert_ne!(
            FlowHasher::keyed(KEY).hash_flow(&FlowTuple::v6([0; 16], [0; 16], None)),
            FlowHasher::keyed(KEY).hash_flow(&FlowTuple::v4([0; 4], [0; 4], None))
        );
    }

    // Words are folded in host byte order, so a big-endian machine computes other hashes.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_keyed_hash_stays_as_it_is() {
        let flows = [
            FlowTuple::v4([66, 9, 149, 187], [161, 142, 100, 80], Some([2794, 1766])),
            FlowTuple::v4([66, 9, 149, 187], [161, 142, 100, 80], None),
            FlowTuple::v6([0x20; 16], [0xfe; 16], Some([40_000, 443])),
            FlowTuple::v6([0x20; 16], [0xfe; 16], None),
        ];
        for (bits, hashes) in [
            (0, [0x4e17_e876, 0x284e_dafe, 0x332f_8fe9, 0xd8b4_e908]),
            (42, [0x81f8_965f, 0x0a5d_7b92, 0xe4ec_6866, 0xf7d7_4eb2]),
            (
                0x0123_4567_89ab_cdef_1122_3344_5566_7788,
                [0xb013_c84f, 0xa294_acab, 0xdcd7_91e9, 0xc71d_75be],
            ),
            (u128::MAX, [0xf4da_f1c4, 0x029f_db85, 0xae98_9faa, 0x779f_fe6c]),
        ] {
            let hasher = FlowHasher::keyed(FlowHashKey::new(bits));
            assert_eq!(flows.each_ref().map(|flow| hasher.hash_flow(flow).0), hashes, "{bits:x}");
        }
    }
}
