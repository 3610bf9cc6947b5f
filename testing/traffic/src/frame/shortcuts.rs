//! Constructors of the frames with which most tests begin, and functions to change them.
//!
//! Functions for a header or a checksum panic if the frame does not have it.

use super::*;
use crate::checksum;

/// Returns `length` bytes of a fixed, endless pattern, starting at byte `position`.
///
/// The bytes depend only on the position (modulo 2^32), so that lost, repeated and moved bytes are
/// detected.
pub fn stream_bytes(position: u32, length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|index| (position.wrapping_add(index).wrapping_mul(0x9e37_79b1) >> 23) as u8)
        .collect()
}

/// Defines methods that return a header, and methods that apply a function to it.
macro_rules! headers {
    ($($what:literal $get:ident $with:ident: $header:ty = $layer:ident, $pattern:pat => $found:ident;)*) => {
        impl Frame {$(
            #[doc = concat!("Returns the ", $what, " header.")]
            pub fn $get(&mut self) -> &mut $header {
                match &mut self.$layer {
                    $pattern => $found,
                    other => panic!("not {}: {other:?}", $what),
                }
            }

            #[doc = concat!("Applies `edit` to the ", $what, " header.")]
            #[must_use]
            pub fn $with(mut self, edit: impl FnOnce(&mut $header)) -> Self {
                edit(self.$get());
                self
            }
        )*}
    };
}

headers! {
    "TCP" tcp_mut with_tcp: Tcp = transport, Transport::Tcp(tcp) => tcp;
    "UDP" udp_mut with_udp: Udp = transport, Transport::Udp(udp) => udp;
    "DCCP" dccp_mut with_dccp: Dccp = transport, Transport::Dccp(dccp) => dccp;
    "innermost IPv4" ipv4_mut with_ipv4: Ipv4 = ip, Ip::V4(ip) => ip;
    "innermost IPv6" ipv6_mut with_ipv6: Ipv6 = ip, Ip::V6(ip) => ip;
}

impl Frame {
    /// Returns a TCP/IPv4 segment with `payload` bytes in an Ethernet frame: TTL 64, DF, ID 0, ACK,
    /// window 501, no options.
    pub fn tcp4(sequence: u32, payload: usize) -> Self {
        Frame {
            transport: Transport::Tcp(Tcp { sequence, ..Tcp::default() }),
            payload: stream_bytes(sequence, payload),
            ..Frame::default()
        }
    }

    /// Returns a TCP/IPv6 segment, otherwise as [`Frame::tcp4`].
    pub fn tcp6(sequence: u32, payload: usize) -> Self {
        Frame { ip: Ip::V6(Ipv6::default()), ..Frame::tcp4(sequence, payload) }
    }

    /// Returns a UDP/IPv4 datagram with `payload` bytes.
    pub fn udp4(payload: usize) -> Self {
        Frame {
            transport: Transport::Udp(Udp::default()),
            payload: stream_bytes(0, payload),
            ..Frame::default()
        }
    }

    /// Returns a UDP/IPv6 datagram with `payload` bytes.
    pub fn udp6(payload: usize) -> Self {
        Frame { ip: Ip::V6(Ipv6::default()), ..Frame::udp4(payload) }
    }

    /// Returns a DCCP-Data packet over IPv4 with a 48-bit sequence number.
    pub fn dccp4(sequence: u64, payload: usize) -> Self {
        Frame {
            transport: Transport::Dccp(Dccp { sequence, ..Dccp::default() }),
            payload: stream_bytes(sequence as u32, payload),
            ..Frame::default()
        }
    }

    /// Returns a DCCP-Data packet over IPv6 with a 48-bit sequence number.
    pub fn dccp6(sequence: u64, payload: usize) -> Self {
        Frame { ip: Ip::V6(Ipv6::default()), ..Frame::dccp4(sequence, payload) }
    }

    /// Applies `edit` to the frame.
    #[must_use]
    pub fn with(mut self, edit: impl FnOnce(&mut Frame)) -> Self {
        edit(&mut self);
        self
    }

    /// Sets how the transport checksum is written.
    #[must_use]
    pub fn with_checksum(mut self, checksum: Checksum) -> Self {
        self.set_checksum(checksum);
        self
    }

    /// Sets how the outer UDP checksum is written.
    #[must_use]
    pub fn with_outer_checksum(self, checksum: Checksum) -> Self {
        self.with(|frame| frame.outer_udp_mut().checksum = checksum)
    }

    /// Puts the packet into a PPPoE session.
    #[must_use]
    pub fn in_pppoe(self) -> Self {
        self.with(|frame| frame.pppoe = Some(Pppoe::default()))
    }

    /// Sets the IPv4 ID of the innermost header.
    #[must_use]
    pub fn with_id(self, id: u16) -> Self {
        self.with(|frame| frame.ipv4_mut().id = id)
    }

    /// Sets the TCP flags to exactly these ([`ACK`] is not added).
    #[must_use]
    pub fn with_flags(self, flags: u16) -> Self {
        self.with(|frame| frame.tcp_mut().flags = flags)
    }

    /// Sets TCP timestamps as the only option.
    #[must_use]
    pub fn with_timestamps(self, value: u32, echo_reply: u32) -> Self {
        self.with(|frame| frame.tcp_mut().options = timestamps(value, echo_reply))
    }

    /// Adds an 802.1Q tag inside the existing ones.
    #[must_use]
    pub fn tagged(self, vid: u16) -> Self {
        self.with(|frame| frame.vlans.push(Vlan { vid, ..Vlan::default() }))
    }

    /// Removes the link header, so that the frame starts at IP.
    #[must_use]
    pub fn at_ip(self) -> Self {
        self.with(|frame| frame.link = None)
    }

    /// Pads a shorter frame with zeros to `length` bytes.
    #[must_use]
    pub fn padded_to(self, length: usize) -> Self {
        let end = self.offsets().end;
        self.with(|frame| frame.trailer = vec![0; length.saturating_sub(end)])
    }

    /// Puts the packet into a VXLAN tunnel over IPv4, with an outer UDP checksum of 0.
    #[must_use]
    pub fn in_vxlan4(self) -> Self {
        self.through(outer4(), Carrier::Vxlan(Vxlan::default()), true)
    }

    /// Puts the packet into a VXLAN tunnel over IPv6, with a correct outer UDP checksum.
    #[must_use]
    pub fn in_vxlan6(self) -> Self {
        let mut vxlan = Vxlan::default();
        vxlan.udp.checksum = Checksum::Right;
        self.through(outer6(), Carrier::Vxlan(vxlan), true)
    }

    /// Puts the packet into a Geneve tunnel over IPv4, with an inner Ethernet header and one
    /// option.
    #[must_use]
    pub fn in_geneve(self) -> Self {
        self.through(outer4(), Carrier::Geneve(geneve()), true)
    }

    /// Puts the packet into a Geneve tunnel over IPv6, with a correct outer UDP checksum, an inner
    /// Ethernet header and one option.
    #[must_use]
    pub fn in_geneve6(self) -> Self {
        let mut geneve = geneve();
        geneve.udp.checksum = Checksum::Right;
        self.through(outer6(), Carrier::Geneve(geneve), true)
    }

    /// Puts the packet into a GRE tunnel over IPv4, with a key and without an inner Ethernet
    /// header.
    #[must_use]
    pub fn in_gre(self) -> Self {
        self.through(outer4(), Carrier::Gre(Gre { key: Some(7), ..Gre::default() }), false)
    }

    /// Puts the packet directly into IPv4: IPIP or SIT.
    #[must_use]
    pub fn in_ip4(self) -> Self {
        self.through(outer4(), Carrier::Ip, false)
    }

    /// Puts the packet directly into IPv6: 4in6 or 6in6.
    #[must_use]
    pub fn in_ip6(self) -> Self {
        self.through(outer6(), Carrier::Ip, false)
    }

    /// Returns nine variants of the frame: unchanged, with a VLAN tag, without a link header, and
    /// in one tunnel of each kind.
    #[must_use]
    pub fn shapes(&self, vid: u16) -> [Self; 9] {
        let frame = || self.clone();
        [
            frame(),
            frame().tagged(vid),
            frame().at_ip(),
            frame().in_vxlan4(),
            frame().in_vxlan6(),
            frame().in_geneve(),
            frame().in_gre(),
            frame().in_ip4(),
            frame().in_ip6(),
        ]
    }

    /// Puts the packet into the tunnel of these headers. A tunnel that the packet already has
    /// becomes the [nested] one.
    ///
    /// [nested]: Frame::nested
    #[must_use]
    pub fn through(self, ip: Ip, carrier: Carrier, inner_ethernet: bool) -> Self {
        let link = inner_ethernet.then_some(Ethernet {
            destination: [2, 0, 0, 0, 1, 2],
            source: [2, 0, 0, 0, 1, 1],
            ethertype: None,
        });
        self.with(|frame| {
            assert!(frame.nested.is_none(), "a third tunnel");
            frame.nested = frame.tunnel.replace(Tunnel { ip, carrier, link, vlans: Vec::new() });
        })
    }

    /// Adds Linux's GRO hint to the options of the outermost tunnel, Geneve. It gives the positions
    /// of the nested tunnel's headers (`struct geneve_opt_gro_hint`).
    #[must_use]
    pub fn with_gro_hint(mut self) -> Self {
        let offsets = self.offsets();
        let Carrier::Geneve(geneve) = &self.tunnel_mut().carrier else { panic!("not in Geneve") };
        let header = geneve.options.len().next_multiple_of(4) + 16;
        let start =
            offsets.outer.expect("a tunnel") + self.tunnel_mut().ip.header_length() + header;
        let network = offsets.nested.expect("a nested tunnel");
        let inner_is_v6 = matches!(self.ip, Ip::V6(_));
        let nested = self.nested_mut();
        let transport = network + nested.ip.header_length();
        let (length, protocol) = match (&nested.carrier, &nested.link) {
            (Carrier::Geneve(geneve), link) => {
                let protocol = if link.is_some() { 0 } else { 2 - u8::from(inner_is_v6) };
                (16 + geneve.options.len().next_multiple_of(4), protocol)
            }
            _ => (16, 0),
        };
        let flags = protocol | if matches!(nested.ip, Ip::V6(_)) { 4 } else { 0 };
        let places = [network, transport, transport + length].map(|place| (place - start) as u8);
        let Carrier::Geneve(geneve) = &mut self.tunnel_mut().carrier else {
            unreachable!("seen above")
        };
        geneve.options.resize(header - 16, 0);
        geneve.options.extend([0x01, 0x00, 1, 1, flags]);
        geneve.options.extend(places);
        self
    }

    /// Returns the nested tunnel.
    pub fn nested_mut(&mut self) -> &mut Tunnel {
        self.nested.as_mut().expect("a frame in two tunnels")
    }

    /// Returns the outermost tunnel.
    pub fn tunnel_mut(&mut self) -> &mut Tunnel {
        self.tunnel.as_mut().expect("a tunnelled frame")
    }

    /// Returns the IPv4 header of the outermost tunnel.
    pub fn outer_ipv4_mut(&mut self) -> &mut Ipv4 {
        self.tunnel_mut().ipv4_mut()
    }

    /// Returns the IPv6 header of the outermost tunnel.
    pub fn outer_ipv6_mut(&mut self) -> &mut Ipv6 {
        match &mut self.tunnel_mut().ip {
            Ip::V6(ip) => ip,
            Ip::V4(_) => panic!("the outer header is not IPv6"),
        }
    }

    /// Returns the UDP header of the outermost tunnel, VXLAN or Geneve.
    pub fn outer_udp_mut(&mut self) -> &mut Udp {
        self.tunnel_mut().udp_mut()
    }

    /// Sets how the transport checksum is written.
    pub fn set_checksum(&mut self, checksum: Checksum) {
        *self.checksum_mut().expect("a transport with a checksum") = checksum;
    }

    /// Returns the PPPoE session header.
    pub fn pppoe_mut(&mut self) -> &mut Pppoe {
        self.pppoe.as_mut().expect("a frame in PPPoE")
    }

    /// Returns a mutable reference to the setting of how the transport checksum is written:
    /// correct, wrong, or left to a device. `None` if the transport has no checksum.
    pub fn checksum_mut(&mut self) -> Option<&mut Checksum> {
        match &mut self.transport {
            Transport::Tcp(tcp) => Some(&mut tcp.checksum),
            Transport::Udp(udp) => Some(&mut udp.checksum),
            Transport::Dccp(dccp) => Some(&mut dccp.checksum),
            Transport::Sctp(sctp) => Some(&mut sctp.checksum),
            Transport::Icmp(icmp) => Some(&mut icmp.checksum),
            Transport::Raw(_) => None,
        }
    }

    /// Returns the next frame of the flow, with the same payload length.
    ///
    /// The TCP sequence number advances by the payload (and SYN, FIN), the DCCP sequence number and
    /// every IPv4 ID by one.
    #[must_use]
    pub fn following(&self) -> Self {
        let mut frame = self.clone();
        let outers = frame.tunnel.iter_mut().chain(&mut frame.nested).map(|tunnel| &mut tunnel.ip);
        for ip in outers.chain([&mut frame.ip]) {
            if let Ip::V4(ip) = ip {
                ip.id = ip.id.wrapping_add(1);
            }
        }
        let length = frame.payload.len();
        match &mut frame.transport {
            Transport::Tcp(tcp) => {
                tcp.sequence = tcp
                    .sequence
                    .wrapping_add(length as u32)
                    .wrapping_add(u32::from((tcp.flags & (SYN | FIN)).count_ones() as u16));
                frame.payload = stream_bytes(tcp.sequence, length);
            }
            Transport::Dccp(dccp) => {
                dccp.sequence = dccp.sequence.wrapping_add(1) & 0xffff_ffff_ffff;
                frame.payload = stream_bytes(dccp.sequence as u32, length);
            }
            _ => {}
        }
        frame
    }

    /// Returns this frame and the following ones of its flow, `count` in total.
    pub fn run(&self, count: usize) -> Vec<Frame> {
        core::iter::successors(Some(self.clone()), |frame| Some(frame.following()))
            .take(count)
            .collect()
    }

    /// Returns the bytes of [`Frame::run`].
    pub fn run_bytes(&self, count: usize) -> Vec<Vec<u8>> {
        self.run(count).iter().map(Frame::to_bytes).collect()
    }

    /// Returns a frame in the opposite direction: MAC and IP addresses, outer and inner, and the
    /// transport's ports are swapped.
    ///
    /// Outer UDP ports stay, since the destination port identifies the tunnel.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let mut frame = self.clone();
        let swap_link = |ethernet: &mut Ethernet| {
            core::mem::swap(&mut ethernet.source, &mut ethernet.destination)
        };
        let swap_ip = |ip: &mut Ip| match ip {
            Ip::V4(ip) => core::mem::swap(&mut ip.source, &mut ip.destination),
            Ip::V6(ip) => core::mem::swap(&mut ip.source, &mut ip.destination),
        };
        frame.link.as_mut().map(swap_link);
        swap_ip(&mut frame.ip);
        for tunnel in frame.tunnel.iter_mut().chain(&mut frame.nested) {
            tunnel.link.as_mut().map(swap_link);
            swap_ip(&mut tunnel.ip);
        }
        match &mut frame.transport {
            Transport::Tcp(tcp) => core::mem::swap(&mut tcp.source_port, &mut tcp.destination_port),
            Transport::Udp(udp) => core::mem::swap(&mut udp.source_port, &mut udp.destination_port),
            Transport::Dccp(dccp) => {
                core::mem::swap(&mut dccp.source_port, &mut dccp.destination_port)
            }
            Transport::Sctp(sctp) => {
                core::mem::swap(&mut sctp.source_port, &mut sctp.destination_port)
            }
            Transport::Icmp(_) | Transport::Raw(_) => {}
        }
        frame
    }

    /// Sets the first two payload bytes so that the correct transport checksum is 0x0000 (in UDP
    /// 0xFFFF), the only sum that can be written in two ways.
    ///
    /// # Panics
    /// If the payload is shorter than two bytes or starts at an odd offset, or the transport has no
    /// 16-bit checksum.
    #[must_use]
    pub fn with_zero_checksum(mut self) -> Self {
        assert!(self.payload.len() >= 2, "no payload to tune");
        let wanted = self
            .checksum_mut()
            .map(|mode| core::mem::replace(mode, Checksum::Zero))
            .expect("a checksum");
        self.payload[..2].copy_from_slice(&[0, 0]);
        let (bytes, offsets) = self.build();
        let number = self.transport.number(&self.ip);
        let length = offsets.end - offsets.transport;
        let sum = checksum::add(
            self.ip.pseudo(number, length as u32),
            checksum::sum(&bytes[offsets.transport..offsets.end]),
        );
        // With the field set to zero, the words must add up to 0xFFFF.
        self.payload[..2].copy_from_slice(&(!sum).to_be_bytes());
        *self.checksum_mut().expect("a checksum") = wanted;
        self
    }

    /// Sets the IPv4 ID so that the correct checksum of the innermost IP header is 0x0000.
    #[must_use]
    pub fn with_zero_header_checksum(mut self) -> Self {
        let wanted = core::mem::replace(&mut self.ipv4_mut().checksum, Checksum::Zero);
        self.ipv4_mut().id = 0;
        let (bytes, offsets) = self.build();
        let sum = checksum::sum(
            &bytes[offsets.network
                ..offsets.network + 20 + self.ipv4_mut().options.len().next_multiple_of(4)],
        );
        self.ipv4_mut().id = !sum;
        self.ipv4_mut().checksum = wanted;
        self
    }

    /// Splits the innermost IP packet into fragments whose contents have at most `size` bytes each
    /// (rounded down to a multiple of 8).
    ///
    /// IPv6 fragments get the identification `id`. IPv4 fragments keep their identification, and
    /// lose DF.
    ///
    /// # Panics
    /// If `size` is below 8.
    pub fn fragments(&self, size: usize, id: u32) -> Vec<Frame> {
        let size = size / 8 * 8;
        assert!(size > 0, "fragments of less than 8 bytes");
        let (bytes, offsets) = self.build();
        let contents = &bytes[offsets.transport..offsets.end];
        let number = self.transport.number(&self.ip);
        let count = contents.len().div_ceil(size);
        let mut fragments = Vec::with_capacity(count);
        for (index, piece) in contents.chunks(size).enumerate() {
            let mut fragment = Frame {
                transport: Transport::Raw(number),
                payload: piece.to_vec(),
                ..self.clone()
            };
            let (offset, more) = ((index * size / 8) as u16, index + 1 < count);
            match &mut fragment.ip {
                Ip::V4(ip) => {
                    (ip.dont_fragment, ip.fragment_offset, ip.more_fragments) =
                        (false, offset, more)
                }
                Ip::V6(ip) => ip.extensions.push(Extension::Fragment { offset, more, id }),
            }
            fragments.push(fragment);
        }
        fragments
    }
}

/// Returns a Geneve header with one option.
fn geneve() -> Geneve {
    Geneve { options: vec![0x01, 0x02, 0x03, 0x01, 0xaa, 0xbb, 0xcc, 0xdd], ..Geneve::default() }
}

fn outer4() -> Ip {
    Ip::V4(Ipv4 { source: [192, 0, 2, 1], destination: [192, 0, 2, 2], ..Ipv4::default() })
}

fn outer6() -> Ip {
    let mut ip = Ipv6::default();
    (ip.source[1], ip.destination[1]) = (1, 1);
    Ip::V6(ip)
}
