//! Generated super-packets, which the kernel and the engine segment.

use superpacket::virtio::{Format, flags, gso_type};
use superpacket::{Framing, Segmenter, SplitError};
use superpacket_lab::VnetHeader;
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{
    AE, CWR, Carrier, Checksum, ECE, Extension, FIN, Frame, Geneve, Ip, Ipv6, PSH, Transport, URG,
    Vlan, Vxlan,
};
use superpacket_traffic::random::Random;

/// A super-packet, and the virtio header that says how to segment it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GsoInput {
    /// The virtio header that says how to segment the packet.
    pub header: VnetHeader,
    /// The format of the virtio header.
    pub format: Format,
    /// The packet, starting with the destination MAC address.
    pub bytes: Vec<u8>,
}

impl GsoInput {
    /// Segments the packet with the engine.
    ///
    /// # Errors
    /// The engine's reason for refusing the packet.
    pub fn cut(&self) -> Result<Vec<Vec<u8>>, SplitError> {
        let framing = Framing::new(self.format, Framing::TAP.order, Framing::TAP.layer);
        let mut read = vec![0; framing.header_length()];
        self.header.write(&mut read, framing.format, framing.order).expect("there is room for it");
        read.extend_from_slice(&self.bytes);
        let mut out = Vec::new();
        let plan = Segmenter::new().split(framing, &read, &mut out)?;
        Ok(out.chunks(plan.segment_length.max(1)).map(<[u8]>::to_vec).collect())
    }
}

/// Maximum segments per super-packet of TCP. The queue of the receiving namespace holds more.
const MOST_SEGMENTS: usize = 400;

impl GsoInput {
    /// Returns the type and the length in bytes of the first IPv6 extension header; `None` for
    /// IPv4.
    ///
    /// Without extension headers, the type is that of the transport header, and the length is
    /// meaningless.
    pub fn extension(&self) -> Option<(u8, usize)> {
        let (network, [0x86, 0xdd]) = network(&self.bytes)? else { return None };
        Some((*self.bytes.get(network + 6)?, 8 * (1 + usize::from(*self.bytes.get(network + 41)?))))
    }

    /// Returns the offset and the EtherType of the innermost IP header.
    fn network(&self) -> Option<(usize, [u8; 2])> {
        if self.header.gso_type & gso_type::UDP_TUNNEL == 0 {
            return network(&self.bytes);
        }
        let inner = usize::from(self.header.inner_nh_offset);
        Some((inner, if self.bytes.get(inner)? >> 4 == 6 { [0x86, 0xdd] } else { [0x08, 0x00] }))
    }

    /// Returns the packet with NEEDS_CSUM, and with a partial checksum whose seed covers the
    /// addresses in the IP header, regardless of routing headers and options.
    ///
    /// `None` if the checksum field has this seed already.
    pub fn seeded_by_header(&self) -> Option<GsoInput> {
        let (network, kind) = self.network()?;
        let start = usize::from(self.header.csum_start);
        let length = u32::try_from(self.bytes.len().checked_sub(start)?).ok()?;
        let addresses =
            |at: usize, bytes: usize| self.bytes.get(network + at..network + at + bytes);
        let number = if matches!(self.header.gso_type & 7, gso_type::TCPV4 | gso_type::TCPV6) {
            6
        } else {
            17
        };
        let seed = match kind {
            [0x86, 0xdd] => {
                let (source, destination) =
                    (addresses(8, 16)?.try_into().ok()?, addresses(24, 16)?.try_into().ok()?);
                checksum::pseudo_v6(source, destination, number, length)
            }
            _ => checksum::pseudo_v4(
                addresses(12, 4)?.try_into().ok()?,
                addresses(16, 4)?.try_into().ok()?,
                number,
                length,
            ),
        };
        let place = start + usize::from(self.header.csum_offset);
        let mut bytes = self.bytes.clone();
        bytes.get_mut(place..place + 2)?.copy_from_slice(&seed.to_be_bytes());
        let header = VnetHeader { flags: self.header.flags | flags::NEEDS_CSUM, ..self.header };
        (bytes != self.bytes).then_some(GsoInput { header, bytes, ..self.clone() })
    }
}

/// Replaces the identification of IPv6 fragments by zeros, since the kernel and the engine choose
/// different ones. Frames that are no fragments of one packet are returned unchanged.
pub fn without_fragment_id(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let id = |frame: &Vec<u8>| {
        fragment_header(frame)
            .map(|at| [frame[at + 4], frame[at + 5], frame[at + 6], frame[at + 7]])
    };
    let first = frames.first().and_then(id);
    if first.is_some() && frames.iter().all(|frame| id(frame) == first) {
        for frame in &mut frames {
            if let Some(at) = fragment_header(frame) {
                frame[at + 4..at + 8].fill(0);
            }
        }
    }
    frames
}

/// Returns an IPv4 frame without DF and the reserved bit; `None` for other frames.
pub fn without_flags(frame: &[u8]) -> Option<Vec<u8>> {
    let (network, [0x08, 0x00]) = network(frame)? else { return None };
    let mut bytes = frame.to_vec();
    let header = network..network + 4 * usize::from(bytes.get(network)? & 0xf);
    *bytes.get_mut(network + 6)? &= 0x3f;
    bytes.get_mut(network + 10..network + 12)?.fill(0);
    let sum = !checksum::sum(bytes.get(header)?);
    bytes[network + 10..network + 12].copy_from_slice(&sum.to_be_bytes());
    Some(bytes)
}

/// Sets the offset of an IPv6 fragment to 0, and returns the old offset in bytes; `None` for other
/// frames.
pub fn take_offset(frame: &mut [u8]) -> Option<usize> {
    let at = fragment_header(frame)? + 2;
    let field = u16::from_be_bytes([frame[at], frame[at + 1]]);
    frame[at..at + 2].copy_from_slice(&(field & 7).to_be_bytes());
    Some(usize::from(field & !7))
}

/// Returns the joined payloads of IPv6 fragments; `None` if a frame is no fragment.
pub fn joined_fragments(frames: &[Vec<u8>]) -> Option<Vec<u8>> {
    frames
        .iter()
        .map(|frame| fragment_header(frame).map(|at| &frame[at + 8..]))
        .collect::<Option<Vec<_>>>()
        .map(|carried| carried.concat())
}

/// Returns the offset of a frame's outermost IP header, behind VLAN tags, and its EtherType.
fn network(frame: &[u8]) -> Option<(usize, [u8; 2])> {
    let mut at = 12;
    loop {
        match *frame.get(at..at + 2)? {
            [0x81, 0x00] => at += 4,
            [high, low] => return Some((at + 2, [high, low])),
            _ => return None,
        }
    }
}

/// Returns the offset of the fragment header in an IPv6 frame, behind other extension headers;
/// `None` if the frame has no complete one.
fn fragment_header(frame: &[u8]) -> Option<usize> {
    let (network, [0x86, 0xdd]) = network(frame)? else { return None };
    let (mut next, mut at) = (*frame.get(network + 6)?, network + 40);
    // Hop-by-hop, routing and destination options (RFC 8200, section 4).
    while let 0 | 43 | 60 = next {
        next = *frame.get(at)?;
        at += 8 * (1 + usize::from(*frame.get(at + 1)?));
    }
    (next == 44 && frame.len() >= at + 8).then_some(at)
}

/// An endless sequence of generated super-packets, reproducible by its seed.
///
/// The packets are TCP and UDP over IPv4 and IPv6, with random values in the header fields. Some
/// segment sizes divide the payload, and some virtio headers contradict the packet. Outside
/// tunnels, some UDP datagrams are to be fragmented.
pub struct GeneratedPackets {
    random: Random,
    tunnels: bool,
}

impl GeneratedPackets {
    /// Creates the sequence of a seed, with super-packets outside tunnels.
    pub fn new(seed: u64) -> Self {
        GeneratedPackets { random: Random::new(seed), tunnels: false }
    }

    /// Creates the sequence of a seed, with super-packets in VXLAN and Geneve.
    pub fn in_tunnels(seed: u64) -> Self {
        GeneratedPackets { random: Random::new(seed), tunnels: true }
    }

    fn frame(&mut self, length: usize) -> Frame {
        let random = &mut self.random;
        let mut frame = match random.below(4) {
            0 => Frame::tcp4(random.bits() as u32, length),
            1 => Frame::tcp6(random.bits() as u32, length),
            2 => Frame::udp4(length),
            _ => Frame::udp6(length),
        };
        frame.payload = random.bytes(length);
        match &mut frame.ip {
            Ip::V4(ip) => {
                (ip.id, ip.tos, ip.ttl) =
                    (random.bits() as u16, random.bits() as u8, random.between(1, 255) as u8);
                ip.dont_fragment = random.chance(0.5);
                ip.reserved = random.chance(0.1);
                (ip.source, ip.destination) =
                    ((random.bits() as u32).to_be_bytes(), (random.bits() as u32).to_be_bytes());
                match random.below(10) {
                    0 => ip.options = vec![0x94, 4, 0, 0],
                    1 => ip.options = source_route(random),
                    _ => {}
                }
            }
            Ip::V6(ip) => Self::vary_v6(ip, random),
        }
        if let Transport::Tcp(tcp) = &mut frame.transport {
            for flag in [PSH, FIN, CWR, ECE, AE, URG] {
                if random.chance(0.25) {
                    tcp.flags |= flag;
                }
            }
            (tcp.acknowledgement, tcp.window) = (random.bits() as u32, random.bits() as u16);
            tcp.urgent = if random.chance(0.2) { random.bits() as u16 } else { 0 };
            tcp.options = random.bytes(4 * random.clone().below(11) as usize);
        }
        if let Some(mode) = frame.checksum_mut() {
            // The checksum field's value is never verified: segmentation adjusts any value by
            // difference.
            *mode = if random.chance(0.05) {
                Checksum::Raw(random.bits() as u16 | 1)
            } else {
                Checksum::Partial
            };
        }
        if self.tunnels {
            return Self::through(frame, random);
        }
        for _ in 0..[0, 0, 0, 1, 2][random.below(5) as usize] {
            frame.vlans.push(Vlan {
                pcp: random.below(8) as u8,
                vid: random.below(4_095) as u16,
                ..Vlan::default()
            });
        }
        frame
    }

    /// Puts a frame into a VXLAN or Geneve tunnel with random outer headers.
    fn through(frame: Frame, random: &mut Random) -> Frame {
        let mut frame = match random.below(3) {
            0 => frame.in_vxlan4(),
            1 => frame.in_vxlan6(),
            _ => frame.in_geneve(),
        };
        let tunnel = frame.tunnel_mut();
        match &mut tunnel.ip {
            Ip::V4(ip) => {
                (ip.id, ip.tos, ip.ttl) =
                    (random.bits() as u16, random.bits() as u8, random.between(1, 255) as u8);
                ip.dont_fragment = random.chance(0.5);
            }
            Ip::V6(ip) => {
                (ip.flow_label, ip.traffic_class) =
                    (random.below(1 << 20) as u32, random.bits() as u8)
            }
        }
        if let Carrier::Vxlan(Vxlan { udp, vni, .. }) | Carrier::Geneve(Geneve { udp, vni, .. }) =
            &mut tunnel.carrier
        {
            udp.checksum = random.pick(&[Checksum::Zero, Checksum::Right]);
            (udp.source_port, *vni) = (random.bits() as u16, random.below(1 << 24) as u32);
        }
        frame
    }

    fn vary_v6(ip: &mut Ipv6, random: &mut Random) {
        (ip.flow_label, ip.traffic_class, ip.hop_limit) =
            (random.below(1 << 20) as u32, random.bits() as u8, random.between(1, 255) as u8);
        let stops: Vec<_> = (0..random.between(1, 3)).map(|_| random.address()).collect();
        let left = random.between(0, stops.len()) as u8;
        let extension = match random.below(14) {
            0 => Extension::DestinationOptions(vec![0x1e, 4, 1, 2, 3, 4]),
            1 => Extension::HopByHop(vec![5, 2, 0, 0, 1, 0]),
            // A segment routing header with any number of segments left.
            2 | 3 => Extension::segment_route(&stops, left),
            4 => Extension::source_route(0, &stops, left),
            5 => Extension::source_route(2, &stops[..1], 1),
            // A routing header with two addresses, which share all but the last two bytes with the
            // destination.
            6 => Extension::Routing(
                [&[3, random.below(3) as u8, 0xee, 4 << 4, 0, 0], &random.bytes(4)[..]].concat(),
            ),
            7 => Extension::home_address(stops[0]),
            // A routing header of an unknown type: only the checksum's seed tells which addresses
            // are covered.
            8 => Extension::Routing([&[253, 1, 0, 0, 0, 0], &random.bytes(16)[..]].concat()),
            _ => return,
        };
        ip.extensions.push(extension);
    }

    /// Returns a virtio header that says how to segment a frame.
    fn header(&mut self, frame: &Frame, size: usize) -> VnetHeader {
        let mut header = header_of(frame, size as u16);
        match &frame.transport {
            Transport::Tcp(tcp) => {
                if tcp.flags & CWR != 0 && self.random.chance(0.7) {
                    header.gso_type |= gso_type::ECN;
                }
            }
            // A datagram is either split into IP fragments, or segmented into several datagrams.
            _ => {
                if frame.tunnel.is_none() && self.random.chance(0.3) {
                    header.gso_type = gso_type::UDP;
                }
            }
        }
        header
    }
}

impl Iterator for GeneratedPackets {
    type Item = GsoInput;

    fn next(&mut self) -> Option<GsoInput> {
        let length = match self.random.below(4) {
            0 => self.random.between(1, 60),
            1 | 2 => self.random.between(1, 12_000),
            _ => self.random.between(1, 64_000),
        };
        let frame = self.frame(length);
        let least = length
            .div_ceil(if matches!(frame.transport, Transport::Udp(_)) {
                128
            } else {
                MOST_SEGMENTS
            })
            .max(1);
        let size = match self.random.below(6) {
            0 => self.random.pick(&[1_448, 1_460, 1_428, 1_200, 536]).max(least),
            1 => length,
            // A segment size that divides the payload, or nearly.
            2 => length / self.random.between(1, (length / least).max(1)),
            _ => self.random.between(least, length.max(least)),
        };
        let mut header = self.header(&frame, size);
        // Fragment offsets count units of 8 bytes, and the first fragment needs the UDP header.
        if header.gso_type == gso_type::UDP && self.random.chance(0.9) {
            header.gso_size = (header.gso_size / 8 * 8).max(8);
        }
        let flags = header.flags;
        if self.random.chance(0.1) {
            let random = &mut self.random;
            match random.below(if self.tunnels { 9 } else { 7 }) {
                0 => header.gso_type = random.pick(&[0, 1, 2, 4, 5, 0x81, 0x84, 0x85, 9, 0x7f]),
                1 => header.gso_size = random.pick(&[0, 65_535]),
                2 => {
                    header.csum_start = header.csum_start.wrapping_add(random.between(1, 40) as u16)
                }
                3 => header.csum_offset = random.pick(&[0, 6, 16, 60_000]),
                4 => header.flags = 0,
                5 => header.hdr_len = random.bits() as u16,
                7 => {
                    header.outer_th_offset =
                        header.outer_th_offset.wrapping_add(random.between(1, 40) as u16)
                }
                8 => {
                    header.inner_nh_offset =
                        header.inner_nh_offset.wrapping_add(random.between(1, 40) as u16)
                }
                _ => header.csum_start = random.bits() as u16,
            }
        }
        let mut bytes = frame.to_bytes();
        if flags & flags::UDP_TUNNEL_CSUM != 0 {
            write_outer_pseudo_sum(&frame, &mut bytes);
        }
        let format = if self.tunnels { Format::Tunnel } else { Format::Plain };
        Some(GsoInput { header, format, bytes })
    }
}

/// Returns an IPv4 loose or strict source route option, with a random number of its addresses still
/// to be visited.
fn source_route(random: &mut Random) -> Vec<u8> {
    let stops = random.between(1, 3);
    let option =
        [random.pick(&[131, 137]), (3 + 4 * stops) as u8, 4 + 4 * random.between(0, stops) as u8];
    [&option[..], &random.bytes(4 * stops)].concat()
}

/// Returns the virtio header that tells a kernel to segment a TCP or UDP frame with `size` payload
/// bytes per segment.
///
/// The header describes the innermost packet, and the outermost tunnel if that is VXLAN or Geneve.
pub(crate) fn header_of(frame: &Frame, size: u16) -> VnetHeader {
    let offsets = frame.offsets();
    let v6 = matches!(frame.ip, Ip::V6(_));
    let (kind, csum_offset) = match frame.transport {
        Transport::Tcp(_) if v6 => (gso_type::TCPV6, 16),
        Transport::Tcp(_) => (gso_type::TCPV4, 16),
        _ => (gso_type::UDP_L4, 6),
    };
    let mut header = VnetHeader {
        flags: flags::NEEDS_CSUM,
        gso_type: kind,
        hdr_len: offsets.payload as u16,
        gso_size: size,
        csum_start: offsets.transport as u16,
        csum_offset,
        ..VnetHeader::default()
    };
    if let Some(tunnel) = &frame.tunnel
        && let Carrier::Vxlan(Vxlan { udp, .. }) | Carrier::Geneve(Geneve { udp, .. }) =
            &tunnel.carrier
    {
        header.gso_type |= if matches!(tunnel.ip, Ip::V4(_)) {
            gso_type::UDP_TUNNEL_IPV4
        } else {
            gso_type::UDP_TUNNEL_IPV6
        };
        header.outer_th_offset = outer_transport(frame) as u16;
        header.inner_nh_offset = offsets.network as u16;
        header.flags |= if udp.checksum == Checksum::Zero { 0 } else { flags::UDP_TUNNEL_CSUM };
    }
    header
}

/// Returns the offset of the header behind the outermost IP header, which has no options.
pub(crate) fn outer_transport(frame: &Frame) -> usize {
    let is_v4 = frame.tunnel.as_ref().is_some_and(|tunnel| matches!(tunnel.ip, Ip::V4(_)));
    frame.offsets().outer.unwrap_or(0) + if is_v4 { 20 } else { 40 }
}

/// Writes the pseudo-header's sum to a tunnel's outer UDP checksum, as Linux does before
/// segmentation, which adds to the sum in this field (`__skb_udp_tunnel_segment`).
pub(crate) fn write_outer_pseudo_sum(frame: &Frame, bytes: &mut [u8]) {
    let Some(tunnel) = &frame.tunnel else { return };
    let transport = outer_transport(frame);
    let length = (bytes.len() - transport) as u32;
    let sum = match &tunnel.ip {
        Ip::V4(ip) => checksum::pseudo_v4(ip.source, ip.destination, 17, length),
        Ip::V6(ip) => checksum::pseudo_v6(ip.source, ip.destination, 17, length),
    };
    bytes[transport + 6..transport + 8].copy_from_slice(&sum.to_be_bytes());
}
