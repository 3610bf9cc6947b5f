//! Frames as nested layers of plain data, and their bytes.
//!
//! Every field is public and has a usual default; every length and checksum is right unless it is
//! set otherwise.
//!
//! ```
//! use superpacket_traffic::frame::{ACK, Checksum, Frame, PSH};
//!
//! let mut frame = Frame::tcp4(1_000, 100).in_vxlan4();
//! frame.tcp_mut().flags = ACK | PSH;
//! frame.tcp_mut().checksum = Checksum::Wrong;
//! assert_eq!(frame.to_bytes().len(), 14 + 20 + 8 + 8 + 14 + 20 + 20 + 100);
//! ```

mod ip;
mod link;
mod shortcuts;
mod transport;
mod tunnel;

pub use ip::{Extension, Ip, Ipv4, Ipv6};
pub use link::{Ethernet, Mpls, Pppoe, Vlan};
pub use shortcuts::stream_bytes;
pub use transport::{ACK, AE, CWR, ECE, FIN, PSH, RESERVED, RST, SYN, URG};
pub use transport::{Dccp, Icmp, Sctp, Tcp, Transport, Udp, sack, timestamps};
pub use tunnel::{Carrier, Geneve, Gre, Tunnel, Vxlan};

/// A frame: its layers, outermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The Ethernet header. `None` for a packet that starts at IP; VLAN tags, PPPoE and MPLS are
    /// then ignored.
    pub link: Option<Ethernet>,
    /// VLAN tags, outermost first.
    pub vlans: Vec<Vlan>,
    /// The PPPoE session header.
    pub pppoe: Option<Pppoe>,
    /// The MPLS label stack, top first; not used together with PPPoE.
    pub mpls: Vec<Mpls>,
    /// The outermost tunnel around the packet.
    pub tunnel: Option<Tunnel>,
    /// The second tunnel, inside `tunnel`.
    pub nested: Option<Tunnel>,
    /// The innermost IP header.
    pub ip: Ip,
    /// The transport header.
    pub transport: Transport,
    /// The transport's payload.
    pub payload: Vec<u8>,
    /// Bytes behind the end of the outermost IP packet, such as padding or a frame check sequence.
    pub trailer: Vec<u8>,
}

impl Default for Frame {
    /// Returns a TCP/IPv4 packet without payload in an Ethernet frame.
    fn default() -> Self {
        Frame {
            link: Some(Ethernet::default()),
            vlans: Vec::new(),
            pppoe: None,
            mpls: Vec::new(),
            tunnel: None,
            nested: None,
            ip: Ip::V4(Ipv4::default()),
            transport: Transport::Tcp(Tcp::default()),
            payload: Vec::new(),
            trailer: Vec::new(),
        }
    }
}

/// How a checksum field is written: correct, wrong, or left to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The correct value; a UDP checksum of 0 is sent as 0xFFFF.
    #[default]
    Right,
    /// An invalid value: the correct one with some bits inverted, never 0.
    Wrong,
    /// The value 0. In UDP, it means that there is no checksum; in other protocols, 0 is usually
    /// invalid.
    Zero,
    /// 0xFFFF if the correct value is 0x0000 (valid, but not canonical), otherwise the correct one.
    /// [`Frame::with_zero_checksum`] makes it 0.
    NonCanonical,
    /// The pseudo-header's sum, not inverted, which a sender leaves for a device to complete
    /// (`CHECKSUM_PARTIAL`). Outer checksums are those of the completed packet.
    Partial,
    /// As [`Checksum::Partial`], but without the length in the sum. Captures have this form if the
    /// frame's IP length is 0.
    PartialWithoutLength,
    /// The checksum field holds this value, right or wrong.
    Raw(u16),
}

impl Checksum {
    fn field(self, right: u16, partial: u16, without_length: u16) -> u16 {
        match self {
            Checksum::Right => right,
            // Neither a partial checksum nor 0, which stands for none.
            Checksum::Wrong => [0x5a5a, 0x1234, 0xa5a5]
                .map(|bits| right ^ bits)
                .into_iter()
                .find(|wrong| ![0, partial, without_length].contains(wrong))
                .unwrap_or(right ^ 0x4321),
            Checksum::Zero => 0,
            Checksum::NonCanonical => match right {
                0 => 0xffff,
                right => right,
            },
            Checksum::Partial => partial,
            Checksum::PartialWithoutLength => without_length,
            Checksum::Raw(value) => value,
        }
    }
}

/// The offsets of a frame's headers, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Offset of the outermost IP header; `None` without a tunnel.
    pub outer: Option<usize>,
    /// Offset of the outer IP header of the second tunnel; `None` without one.
    pub nested: Option<usize>,
    /// Offset of the innermost IP header.
    pub network: usize,
    /// Offset of the transport header.
    pub transport: usize,
    /// Offset of the payload.
    pub payload: usize,
    /// Offset of the end of the outermost IP packet.
    pub end: usize,
}

impl Frame {
    /// Returns the bytes of the frame.
    ///
    /// # Panics
    /// If options exceed the maximum of their header's length field.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.build().0
    }

    /// Returns the offsets of the headers.
    ///
    /// # Panics
    /// As [`Frame::to_bytes`].
    pub fn offsets(&self) -> Offsets {
        self.build().1
    }

    fn build(&self) -> (Vec<u8>, Offsets) {
        let mut out = Vec::with_capacity(256 + self.payload.len() + self.trailer.len());
        let outermost = self.tunnel.as_ref().map_or(&self.ip, |tunnel| &tunnel.ip);
        let pppoe = self.write_link(&mut out, outermost);

        let inside = self.nested.as_ref().map_or(&self.ip, |nested| &nested.ip);
        let outer = self.tunnel.as_ref().map(|tunnel| tunnel.write(&mut out, inside));
        let nested = self.nested.as_ref().map(|tunnel| tunnel.write(&mut out, &self.ip));

        let network = out.len();
        self.ip.write(&mut out, self.transport.number(&self.ip));
        let transport = out.len();
        self.transport.write(&mut out);
        let payload = out.len();
        out.extend(&self.payload);

        // From the inside out, since each checksum covers everything inside it.
        let mut deferred = vec![self.transport.finish(&mut out, transport, payload, &self.ip)];
        self.ip.finish(&mut out, network);
        for (tunnel, places) in [(&self.nested, nested), (&self.tunnel, outer)] {
            if let (Some(tunnel), Some((network, carrier))) = (tunnel, places) {
                deferred.push(tunnel.carrier.finish(&mut out, carrier, &tunnel.ip));
                tunnel.ip.finish(&mut out, network);
            }
        }
        deferred.into_iter().flatten().for_each(|deferred| deferred.write(&mut out));
        if let (Some(start), Some(header)) = (pppoe, &self.pppoe) {
            let length = header.length.unwrap_or((out.len() - start - 6) as u16);
            out[start + 4..start + 6].copy_from_slice(&length.to_be_bytes());
        }
        let end = out.len();
        out.extend(&self.trailer);
        let [outer, nested] = [outer, nested].map(|places| places.map(|(network, _)| network));
        (out, Offsets { outer, nested, network, transport, payload, end })
    }

    /// Appends the headers before the outermost IP header, and returns the offset of the PPPoE
    /// header.
    fn write_link(&self, out: &mut Vec<u8>, outermost: &Ip) -> Option<usize> {
        let ethernet = self.link.as_ref()?;
        let ethertype = match (&self.pppoe, self.mpls.is_empty()) {
            (Some(_), _) => 0x8864,
            (None, false) => 0x8847,
            (None, true) => outermost.ethertype(),
        };
        link::write_ethernet(out, ethernet, &self.vlans, ethertype);
        if let Some(pppoe) = &self.pppoe {
            let start = out.len();
            out.extend([pppoe.version_type, pppoe.code]);
            out.extend(pppoe.session.to_be_bytes());
            out.extend([0, 0]);
            out.extend(if matches!(outermost, Ip::V4(_)) { [0x00, 0x21] } else { [0x00, 0x57] });
            return Some(start);
        }
        link::write_mpls(out, &self.mpls);
        None
    }
}
