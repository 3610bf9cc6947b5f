//! Frames to compare with: the traffic of `superpacket-traffic`, in batches for one poll.

use superpacket_traffic::generate::{self, Checksum, Combination, Config, Impairments, Stream, Tunnel};

use crate::frames::Input;
use crate::kernel::{MOST_FRAMES, Rules};

/// The ports of VXLAN and Geneve.
const TUNNEL_PORTS: [u32; 2] = [4_789, 6_081];

/// The shortest frame that a packet socket sends, in bytes: an Ethernet header.
const SHORTEST: usize = 14;

/// The protocols and tunnels that are compared with a kernel of these rules.
pub fn combinations(rules: Rules) -> Vec<Combination> {
    let seen = |combination: &Combination| match combination.tunnel {
        Tunnel::Vxlan4 | Tunnel::Vxlan6 => rules.vxlan,
        Tunnel::Geneve => rules.geneve,
        // Linux enters a second level only where Geneve's hint asks for it, which these have not.
        Tunnel::Nested => false,
        _ => true,
    };
    Combination::all().into_iter().filter(seen).collect()
}

/// Batches of generated frames without end, of one seed.
pub struct Batches {
    stream: Stream,
}

impl Batches {
    /// Makes the batches of a seed, of flows of these combinations.
    pub fn new(seed: u64, combinations: Vec<Combination>) -> Self {
        let config = Config {
            flows: 3,
            lifetime: 4,
            burst: (4, 24),
            combinations,
            encapsulated: 0.2,
            unusual_headers: 0.3,
            offloaded: 0.3,
            impairments: Impairments::default(),
        };
        Batches { stream: generate::stream(seed, config) }
    }
}

impl Iterator for Batches {
    type Item = Vec<Input>;

    fn next(&mut self) -> Option<Vec<Input>> {
        // What comes to the ports of VXLAN and Geneve is a tunnel to the engine, and to Linux where
        // a device listens. The generator's ports are numbers of flows.
        let fits = |packet: &generate::Generated| {
            let port = 1_024 + packet.flow / 2 % 60_000;
            !packet.starts_at_ip && packet.bytes.len() >= SHORTEST && !TUNNEL_PORTS.contains(&port)
        };
        let input = |packet: generate::Generated| {
            let partial = match packet.checksum {
                Checksum::Partial { start, offset } => Some((start, offset)),
                _ => None,
            };
            Input { bytes: packet.bytes, partial }
        };
        Some(self.stream.by_ref().filter(fits).take(MOST_FRAMES).map(input).collect())
    }
}
