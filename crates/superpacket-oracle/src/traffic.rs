//! Frames to compare with: the traffic of `superpacket-traffic`, in batches for one poll.

use superpacket_traffic::generate::{self, Checksum, Combination, Config, Impairments, Stream, Tunnel};

use crate::frames::Input;
use crate::kernel::MOST_FRAMES;

/// The ports of VXLAN and Geneve.
const TUNNEL_PORTS: [u32; 2] = [4_789, 6_081];

/// The shortest frame that a packet socket sends, in bytes: an Ethernet header.
const SHORTEST: usize = 14;

/// The protocols and tunnels that are compared.
pub fn combinations() -> Vec<Combination> {
    // To Linux, VXLAN and Geneve are datagrams like others where no tunnel device listens.
    let to_ports = [Tunnel::Vxlan4, Tunnel::Vxlan6, Tunnel::Geneve, Tunnel::Nested];
    Combination::all().into_iter().filter(|combination| !to_ports.contains(&combination.tunnel)).collect()
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
        // To Linux, what comes to the ports of VXLAN and Geneve is like other datagrams where no
        // tunnel device listens. The generator's ports are numbers of flows.
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
