//! Generated frames for comparing the kernel's GRO with the engine's, in batches of one poll.

use superpacket_traffic::generate::{
    self, Checksum, Combination, Config, Impairments, Protocol, Stream, Tunnel,
};
use superpacket_traffic::random::Random;

use crate::frames::InputFrame;
use crate::kernel::{MOST_FRAMES, Rules};
use crate::nested;

/// The UDP ports of VXLAN and Geneve.
const TUNNEL_PORTS: [u32; 2] = [4_789, 6_081];

/// Minimum length in bytes of a frame that a packet socket sends: an Ethernet header.
const SHORTEST: usize = 14;

/// Returns the combinations of protocol and tunnel with which the engine is compared to a kernel,
/// given what its GRO merges.
pub fn combinations(rules: Rules) -> Vec<Combination> {
    let seen = |combination: &Combination| match combination.tunnel {
        Tunnel::Vxlan4 | Tunnel::Vxlan6 => rules.vxlan,
        Tunnel::Geneve => rules.geneve,
        // The frames of `in_two_tunnels` include these.
        Tunnel::Nested => false,
        _ => true,
    };
    Combination::all().into_iter().filter(seen).collect()
}

/// Returns the combinations of protocol and two tunnels, and some with one tunnel. The result is
/// empty if the kernel does not merge packets in two tunnels.
pub fn in_two_tunnels(rules: Rules) -> Vec<Combination> {
    if !rules.gro_hint || !rules.vxlan {
        return Vec::new();
    }
    let share = |combination: &Combination| match (combination.tunnel, combination.protocol) {
        // No version of Linux merges DCCP, so a small share is enough.
        (Tunnel::Nested, Protocol::Dccp4 | Protocol::Dccp6) => 1,
        (Tunnel::Nested, _) => 3,
        (Tunnel::Vxlan4 | Tunnel::Geneve, _) => 1,
        _ => 0,
    };
    Combination::all()
        .into_iter()
        .flat_map(|combination| core::iter::repeat_n(combination, share(&combination)))
        .collect()
}

/// An endless sequence of batches of generated frames, reproducible by its seed.
pub struct Batches {
    seed: u64,
    stream: Stream,
    random: Random,
}

impl Batches {
    /// Creates the batches of a seed, with flows of the listed combinations of protocol and tunnel.
    pub fn new(seed: u64, combinations: Vec<Combination>) -> Self {
        Self::with_share(seed, combinations, 0.2)
    }

    /// Creates the batches of a seed. Half of the flows have VLAN tags, PPPoE or MPLS.
    pub fn encapsulated(seed: u64, combinations: Vec<Combination>) -> Self {
        Self::with_share(seed, combinations, 0.5)
    }

    fn with_share(seed: u64, combinations: Vec<Combination>, encapsulated: f64) -> Self {
        let config = Config {
            flows: 3,
            lifetime: 4,
            burst: (4, 24),
            combinations,
            encapsulated,
            unusual_headers: 0.3,
            offloaded: 0.3,
            impairments: Impairments::default(),
        };
        Batches { seed, stream: generate::stream(seed, config), random: Random::new(seed) }
    }
}

impl Iterator for Batches {
    type Item = Vec<InputFrame>;

    fn next(&mut self) -> Option<Vec<InputFrame>> {
        // The engine treats datagrams to the ports of VXLAN and Geneve as tunnels; Linux does so
        // only if it has such a device. The generator numbers flows by their ports, so flows with
        // these ports are left out.
        let fits = |packet: &generate::Generated| {
            let port = 1_024 + packet.flow / 2 % 60_000;
            !packet.starts_at_ip && packet.bytes.len() >= SHORTEST && !TUNNEL_PORTS.contains(&port)
        };
        let (seed, random) = (self.seed, &mut self.random);
        let input = |mut packet: generate::Generated| {
            if packet.combination.tunnel == Tunnel::Nested {
                // Some flows have the same false bit in the GRO hints of all frames, others have
                // any false bit in a few frames.
                let mut of_flow = Random::new(seed ^ u64::from(packet.flow).rotate_left(32));
                if of_flow.chance(0.15) {
                    nested::falsify(&mut packet.bytes, &mut of_flow);
                } else if random.chance(0.01) {
                    nested::falsify(&mut packet.bytes, random);
                }
            }
            let partial = match packet.checksum {
                Checksum::Partial { start, offset } => Some((start, offset)),
                _ => None,
            };
            InputFrame { bytes: packet.bytes, partial }
        };
        Some(self.stream.by_ref().filter(fits).take(MOST_FRAMES).map(input).collect())
    }
}
