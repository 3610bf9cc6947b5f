//! A flow: its headers in both directions, and its current sequence numbers and IDs.

use super::vary;
use super::{Combination, Config, Protocol, ReportedState, Tunnel};
use crate::frame::{self, *};
use crate::random::Random;

/// The way in which the IPv4 ID changes from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdStep {
    Increment,
    Fixed,
    Random,
}

/// The packets of a flow in one direction.
pub(super) struct FlowDirection {
    /// The headers of the packets.
    pub(super) template: Frame,
    /// The position of the next byte in the stream (TCP) or payload pattern (UDP), or the next
    /// sequence number (DCCP).
    pub(super) next: u64,
    /// The sequence number of the other direction up to which this direction has acknowledged.
    pub(super) acknowledged: u64,
    id: u16,
    outer_id: u16,
    nested_id: u16,
}

/// A flow between a client (direction 0) and a server (direction 1).
pub(super) struct GeneratedFlow {
    pub(super) number: u32,
    pub(super) combination: Combination,
    pub(super) directions: [FlowDirection; 2],
    pub(super) stripped_vlan: Option<(u16, u16)>,
    pub(super) knowledge: ReportedState,
    /// Payload bytes of a full packet.
    pub(super) mss: usize,
    /// The current value of the clock of TCP timestamps; `None` without timestamps.
    pub(super) clock: Option<u32>,
    /// Whether frames shorter than 60 bytes are padded.
    pub(super) padded: bool,
    /// TCP flags that all data segments have.
    pub(super) flags: u16,
    /// Number of bursts that the flow still has to send.
    pub(super) left: usize,
    pub(super) opened: bool,
    id_step: IdStep,
    outer_id_step: IdStep,
    nested_id_step: IdStep,
}

impl GeneratedFlow {
    pub(super) fn new(number: u32, config: &Config, random: &mut Random) -> Self {
        let combination = config.combinations[number as usize % config.combinations.len()];
        let mss = random.pick(&[1448, 1448, 1448, 1460, 1200, 536, 100, 33, 8948]);
        let mut template = template(number, combination, random);
        let mut stripped_vlan = None;
        if random.chance(config.encapsulated) {
            stripped_vlan = encapsulate(&mut template, random);
        }
        let mut knowledge = if random.chance(config.offloaded) {
            random.pick(&[
                ReportedState::Verified,
                ReportedState::Verified,
                ReportedState::Complete,
                ReportedState::Complete,
                ReportedState::Partial,
            ])
        } else {
            ReportedState::Unknown
        };
        let mut flags = 0;
        if random.chance(config.unusual_headers) {
            match random.below(6) {
                0 => flags = random.pick(&[CWR, ECE, AE, AE | CWR | ECE]),
                _ => vary::make_unusual(&mut template, random),
            }
        }
        if knowledge == ReportedState::Partial && !leave_checksum_to_device(&mut template) {
            knowledge = ReportedState::Unknown;
        }
        let mut reply = template.reversed();
        for tunnel in reply.tunnel.iter_mut().chain(&mut reply.nested) {
            let (Carrier::Vxlan(Vxlan { udp, .. }) | Carrier::Geneve(Geneve { udp, .. })) =
                &mut tunnel.carrier
            else {
                continue;
            };
            // The other end derives the port from a hash of the inner flow.
            udp.source_port = 49_152 + random.below(16_384) as u16;
        }
        let [to_server, to_client] = [template, reply].map(|template| {
            let next = match (random.chance(0.3), combination.protocol) {
                (true, Protocol::Tcp4 | Protocol::Tcp6) => {
                    u64::from(u32::MAX) - random.below(60_000)
                }
                (true, Protocol::Dccp4 | Protocol::Dccp6) => {
                    random.pick(&[0xff_ffff, 0xffff_ffff_ffff]) - random.below(60)
                }
                _ => random.below(1 << 32),
            };
            let id = |random: &mut Random| {
                if random.chance(0.3) {
                    0xffff - random.below(40) as u16
                } else {
                    random.bits() as u16
                }
            };
            FlowDirection {
                template,
                next,
                acknowledged: 0,
                id: id(random),
                outer_id: id(random),
                nested_id: id(random),
            }
        });
        let mut flow = GeneratedFlow {
            number,
            combination,
            directions: [to_server, to_client],
            stripped_vlan,
            knowledge,
            mss,
            clock: random.chance(0.6).then(|| random.bits() as u32),
            padded: random.chance(0.6),
            flags,
            left: config.lifetime,
            opened: random.chance(0.5),
            id_step: id_step(random),
            outer_id_step: id_step(random),
            nested_id_step: id_step(random),
        };
        for direction in 0..2 {
            flow.directions[direction].acknowledged = flow.directions[1 - direction].next;
        }
        flow
    }

    /// Returns the next packet from `direction` with `length` payload bytes, and advances numbers
    /// and IDs.
    pub(super) fn packet(&mut self, direction: usize, length: usize, random: &mut Random) -> Frame {
        let (id_step, outer_id_step, nested_id_step) =
            (self.id_step, self.outer_id_step, self.nested_id_step);
        let clock = self.clock;
        let flow = &mut self.directions[direction];
        let mut packet = flow.template.clone();
        if let Ip::V4(ip) = &mut packet.ip {
            ip.id = advance(&mut flow.id, id_step, random);
        }
        if let Some(frame::Tunnel { ip: Ip::V4(ip), .. }) = &mut packet.tunnel {
            ip.id = advance(&mut flow.outer_id, outer_id_step, random);
        }
        if let Some(frame::Tunnel { ip: Ip::V4(ip), .. }) = &mut packet.nested {
            ip.id = advance(&mut flow.nested_id, nested_id_step, random);
        }
        packet.payload = stream_bytes(flow.next as u32, length);
        match &mut packet.transport {
            Transport::Tcp(tcp) => {
                tcp.sequence = flow.next as u32;
                tcp.acknowledgement = flow.acknowledged as u32;
                if let Some(clock) = clock {
                    let mut options = timestamps(clock, clock ^ 0x5555);
                    options.append(&mut tcp.options);
                    tcp.options = options;
                }
                flow.next = flow.next.wrapping_add(length as u64);
            }
            Transport::Dccp(dccp) => {
                dccp.sequence = flow.next;
                // Coverage beyond the data is an error (RFC 4340, section 9.2).
                dccp.coverage = dccp.coverage.min((1 + length / 4).min(15) as u8);
                if dccp.acknowledgement.is_some() {
                    dccp.acknowledgement = Some(flow.acknowledged);
                }
                flow.next = flow.next.wrapping_add(1);
            }
            _ => flow.next = flow.next.wrapping_add(length as u64),
        }
        packet
    }

    /// Acknowledges all that the other direction has sent.
    pub(super) fn catch_up(&mut self, direction: usize) {
        self.directions[direction].acknowledged = self.directions[1 - direction].next;
    }
}

/// Makes the transport checksum partial, if all headers before it can be parsed, so that a device
/// can complete it. Returns whether it is partial.
pub(super) fn leave_checksum_to_device(frame: &mut Frame) -> bool {
    // Enough payload for each checksum coverage of DCCP.
    let mut probe = Frame { payload: vec![0; 64], ..frame.clone() };
    let Some(mode) = probe.checksum_mut() else { return false };
    *mode = Checksum::Partial;
    let known = ReportedState::Partial.true_for(&probe.to_bytes(), probe.link.is_none());
    let is_found = matches!(known, super::Checksum::Partial { .. });
    if is_found {
        frame.transport = probe.transport;
    }
    is_found
}

fn id_step(random: &mut Random) -> IdStep {
    [IdStep::Increment, IdStep::Fixed, IdStep::Random][random.weighted(&[72, 25, 3])]
}

fn advance(id: &mut u16, step: IdStep, random: &mut Random) -> u16 {
    let now = *id;
    *id = match step {
        IdStep::Increment => now.wrapping_add(1),
        IdStep::Fixed => now,
        IdStep::Random => random.bits() as u16,
    };
    now
}

/// Returns the headers of a flow's packets from the client.
fn template(number: u32, combination: Combination, random: &mut Random) -> Frame {
    // Four flows share a pair of hosts, and differ only in their ports.
    let host = number / 4;
    let [_, high, middle, low] = host.to_be_bytes();
    let mut frame = match combination.protocol {
        Protocol::Tcp4 | Protocol::Tcp6 => Frame::tcp4(0, 0),
        Protocol::Udp4 | Protocol::Udp6 => Frame::udp4(0),
        Protocol::Dccp4 | Protocol::Dccp6 => Frame::dccp4(0, 0),
    };
    frame.ip = if combination.protocol.is_v6() {
        let mut ip = Ipv6 {
            flow_label: random.below(1 << 20) as u32,
            hop_limit: random.pick(&[64, 255, 8]),
            ..Ipv6::default()
        };
        (ip.source[8..12]).copy_from_slice(&[1, high, middle, low]);
        (ip.destination[8..12]).copy_from_slice(&[2, high, middle, low]);
        Ip::V6(ip)
    } else {
        let ttl = random.pick(&[64, 128, 8]);
        Ip::V4(Ipv4 {
            source: [10, high, middle, low],
            destination: [11, high, middle, low],
            ttl,
            ..Ipv4::default()
        })
    };
    let port = 1_024 + (number % 60_000) as u16;
    match &mut frame.transport {
        Transport::Tcp(tcp) => {
            tcp.source_port = port;
            tcp.window = random.bits() as u16;
        }
        Transport::Udp(udp) => udp.source_port = port,
        Transport::Dccp(dccp) => {
            dccp.source_port = port;
            dccp.extended = random.chance(0.6);
            dccp.ccval = random.below(16) as u8;
            if random.chance(0.4) {
                (dccp.kind, dccp.acknowledgement) = (Dccp::DATA_ACK, Some(0));
            }
        }
        _ => {}
    }
    if let Some(ethernet) = &mut frame.link {
        ethernet.source[3..].copy_from_slice(&[high, middle, low]);
    }
    let ethernet = random.chance(0.5);
    let v6 = random.chance(0.4);
    let mut frame = match combination.tunnel {
        Tunnel::None => frame,
        Tunnel::Vxlan4 => frame.in_vxlan4(),
        Tunnel::Vxlan6 => frame.in_vxlan6(),
        Tunnel::Geneve => {
            let mut frame = if v6 { frame.in_geneve6() } else { frame.in_geneve() };
            if !ethernet {
                frame.tunnel_mut().link = None;
            }
            frame
        }
        Tunnel::Gre => {
            let key = random.chance(0.5).then(|| random.bits() as u32);
            let checksum = random.chance(0.3).then_some(Checksum::Right);
            let mut outer = if v6 { Frame::default().in_ip6() } else { Frame::default().in_ip4() };
            let ip = outer.tunnel_mut().ip.clone();
            frame.through(ip, Carrier::Gre(Gre { key, checksum, ..Gre::default() }), ethernet)
        }
        Tunnel::Ipip | Tunnel::Sit => frame.in_ip4(),
        Tunnel::FourInSix | Tunnel::SixInSix => frame.in_ip6(),
        Tunnel::Nested => {
            let frame = in_udp_tunnel(in_udp_tunnel(frame, random), random);
            frame.with(|frame| {
                // The end points of the first tunnel may be those of another flow's second tunnel.
                if let Ip::V4(ip) = &mut frame.nested_mut().ip {
                    (ip.source[2], ip.destination[2]) = (low, low);
                }
            })
        }
    };
    for tunnel in frame.tunnel.iter_mut().chain(&mut frame.nested) {
        let checksum = random.pick(&[Checksum::Zero, Checksum::Right]);
        match &mut tunnel.carrier {
            Carrier::Vxlan(Vxlan { udp, vni, .. }) | Carrier::Geneve(Geneve { udp, vni, .. }) => {
                udp.checksum = checksum;
                udp.source_port = 49_152 + (number % 16_384) as u16;
                *vni = random.below(1 << 24) as u32;
            }
            Carrier::Gre(_) | Carrier::Ip => {}
        }
        if tunnel.link.is_some() && random.chance(0.2) {
            tunnel.vlans.push(Vlan { vid: random.below(4_095) as u16, ..Vlan::default() });
        }
    }
    let may_have_hint = combination.tunnel == Tunnel::Nested
        && matches!(frame.tunnel_mut().carrier, Carrier::Geneve(_));
    if may_have_hint && random.chance(0.5) { frame.with_gro_hint() } else { frame }
}

/// Puts a packet into VXLAN or Geneve over either IP version, in Geneve with or without an inner
/// Ethernet header.
fn in_udp_tunnel(frame: Frame, random: &mut Random) -> Frame {
    match random.below(4) {
        0 => frame.in_vxlan4(),
        1 => frame.in_vxlan6(),
        kind => {
            let mut frame = if kind == 2 { frame.in_geneve6() } else { frame.in_geneve() };
            if random.chance(0.5) {
                frame.tunnel_mut().link = None;
            }
            frame
        }
    }
}

/// Adds VLAN tags, PPPoE or MPLS to a flow, or VLAN tags with one of the others, or removes its
/// link header. Returns the VLAN tag that the device strips, if there is one.
fn encapsulate(frame: &mut Frame, random: &mut Random) -> Option<(u16, u16)> {
    let tag = Vlan {
        pcp: random.below(8) as u8,
        dei: random.chance(0.1),
        vid: random.below(4_095) as u16,
        ..Vlan::default()
    };
    let service = Vlan { tpid: 0x88a8, vid: random.below(4_095) as u16, ..Vlan::default() };
    // The tag type of providers before IEEE 802.1ad, which Linux does not know.
    let old = Vlan { tpid: 0x9100, vid: random.below(4_095) as u16, ..Vlan::default() };
    match random.below(11) {
        0 | 1 => frame.vlans = vec![tag],
        2 => frame.vlans = vec![service, tag],
        3 => return Some((tag.tpid, tag.tci())),
        4 => {
            frame.vlans = vec![tag];
            return Some((service.tpid, service.tci()));
        }
        5 => frame.pppoe = Some(pppoe(random)),
        6 => frame.mpls = labels(frame, random),
        7 => frame.vlans = if random.chance(0.5) { vec![old] } else { vec![old, tag] },
        8 => (frame.vlans, frame.pppoe) = (vec![tag], Some(pppoe(random))),
        9 => (frame.vlans, frame.mpls) = (vec![tag], labels(frame, random)),
        _ => frame.link = None,
    }
    None
}

fn pppoe(random: &mut Random) -> Pppoe {
    Pppoe { session: random.bits() as u16, ..Pppoe::default() }
}

/// Returns an MPLS label stack, and in a quarter of the flows sets the EtherType of MPLS multicast.
fn labels(frame: &mut Frame, random: &mut Random) -> Vec<Mpls> {
    if let Some(ethernet) = frame.link.as_mut().filter(|_| random.chance(0.25)) {
        ethernet.ethertype = Some(0x8848);
    }
    (0..random.between(1, 3))
        .map(|_| Mpls { label: 16 + random.below(1_000) as u32, ..Mpls::default() })
        .collect()
}
