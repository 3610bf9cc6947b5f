//! Super-packets with each combination of headers that the engine merges, to be segmented by a
//! kernel. They differ in link header, tunnel, protocol, extension headers, size and flags.

use superpacket::segment::{Cwr, GsoPacket, IpId, Segment, SegmentSize};
use superpacket::virtio::gso_type;
use superpacket::{Gso, GsoKind, Layer, RxChecksum, SegmentError, SegmentOptions, Segmenter};
use superpacket_lab::VnetHeader;
use superpacket_traffic::frame::{
    ACK, CWR, Carrier, Checksum, Extension, Frame, Gre, Ip, Mpls, Transport, Vlan,
};

use crate::segment::{header_of, outer_transport, write_outer_pseudo_sum};

/// Number of payload bytes per segment.
const SIZE: usize = 1_200;

/// Payload bytes of a super-packet: five full segments and a shorter one.
const PAYLOAD: usize = 5 * SIZE + 700;

/// A super-packet of the matrix, with the names of its headers and properties.
#[derive(Clone, Debug)]
pub struct MatrixCell {
    /// Name of the link header, as in [`LINKS`].
    pub link: &'static str,
    /// Name of the tunnel or of another special property, as in [`TUNNELS`] or [`SPECIALS`].
    pub special: &'static str,
    /// Name of the transport protocol and IP version, for example `TCP/IPv4`.
    pub protocol: &'static str,
    /// The super-packet, with a partial checksum.
    pub frame: Frame,
    /// Whether the outer UDP checksum field holds the pseudo-header's sum, as Linux leaves it.
    /// Otherwise the field holds a checksum that becomes valid when the inner checksum is
    /// completed.
    pub outer_pseudo: bool,
}

/// A function that returns a frame with additional headers in front.
pub type Wrap = fn(Frame) -> Frame;
/// A function that changes a frame, or returns `None` if the change does not apply to the frame.
pub type CellChange = fn(Frame) -> Option<Frame>;

/// The link headers that the engine parses, by name.
pub const LINKS: &[(&str, Wrap)] = &[
    ("Ethernet", |frame| frame),
    ("VLAN", |frame| frame.tagged(5)),
    ("service VLAN (0x88a8)", |frame| tags(frame, &[0x88a8])),
    ("QinQ (0x88a8, 0x8100)", |frame| tags(frame, &[0x88a8, 0x8100])),
    ("two VLANs (0x8100)", |frame| tags(frame, &[0x8100, 0x8100])),
    ("tag 0x9100", |frame| tags(frame, &[0x9100])),
    ("tags 0x9100, 0x8100", |frame| tags(frame, &[0x9100, 0x8100])),
    ("PPPoE", Frame::in_pppoe),
    ("PPPoE in VLAN", |frame| frame.tagged(5).in_pppoe()),
    ("MPLS", |frame| labelled(frame, 1)),
    ("MPLS, two labels", |frame| labelled(frame, 2)),
    ("MPLS in VLAN", |frame| labelled(frame.tagged(5), 1)),
    ("MPLS multicast (0x8848)", |frame| {
        labelled(frame, 1)
            .with(|frame| frame.link.as_mut().expect("Ethernet").ethertype = Some(0x8848))
    }),
];

/// The tunnels that the engine parses, by name.
pub const TUNNELS: &[(&str, Wrap)] = &[
    ("none", |frame| frame),
    ("VXLAN/IPv4", |frame| outer(frame.in_vxlan4(), Checksum::Zero)),
    ("VXLAN/IPv4, checksum", |frame| outer(frame.in_vxlan4(), Checksum::Right)),
    ("VXLAN/IPv6, checksum", |frame| outer(frame.in_vxlan6(), Checksum::Right)),
    ("VXLAN/IPv6", |frame| outer(frame.in_vxlan6(), Checksum::Zero)),
    ("Geneve/IPv4", |frame| outer(frame.in_geneve(), Checksum::Zero)),
    ("Geneve/IPv4, checksum", |frame| outer(frame.in_geneve(), Checksum::Right)),
    ("Geneve/IPv4 of IP", |frame| {
        outer(frame.in_geneve(), Checksum::Right).with(|frame| frame.tunnel_mut().link = None)
    }),
    ("Geneve/IPv6, checksum", |frame| outer(frame.in_geneve6(), Checksum::Right)),
    ("GRE/IPv4", |frame| gre(frame, Gre::default(), false)),
    ("GRE/IPv4, key", |frame| frame.in_gre()),
    ("GRE/IPv4, checksum", |frame| {
        gre(frame, Gre { checksum: Some(Checksum::Right), ..Gre::default() }, false)
    }),
    ("GRE/IPv4 of Ethernet", |frame| gre(frame, Gre { key: Some(1), ..Gre::default() }, true)),
    ("GRE/IPv6", |frame| {
        let ip = Frame::default().in_ip6().tunnel_mut().ip.clone();
        gre(frame, Gre::default(), false).with(|frame| frame.tunnel_mut().ip = ip)
    }),
    ("IP/IPv4 (IPIP, SIT)", |frame| frame.in_ip4()),
    ("IP/IPv6 (4in6, 6in6)", |frame| frame.in_ip6()),
    ("VXLAN/IPv4 in VXLAN/IPv4", |frame| outer(frame.in_vxlan4().in_vxlan4(), Checksum::Zero)),
    ("VXLAN/IPv6 in Geneve/IPv4", |frame| outer(frame.in_vxlan6().in_geneve(), Checksum::Zero)),
];

/// Special properties of packets outside tunnels, such as header options, lengths and flags, by
/// name. The function returns `None` if the property does not exist for the frame's IP version or
/// protocol.
pub const SPECIALS: &[(&str, CellChange)] = &[
    ("IPv4 options", |frame| v4(frame, |frame| frame.ipv4_mut().options = vec![0x94, 4, 0, 0])),
    ("may be fragmented", |frame| v4(frame, |frame| frame.ipv4_mut().dont_fragment = false)),
    ("hop-by-hop options", |frame| v6(frame, &[hop_by_hop()])),
    ("destination options", |frame| {
        v6(frame, &[Extension::DestinationOptions(vec![0x1e, 4, 1, 2, 3, 4])])
    }),
    ("routing header, no segments left", |frame| {
        v6(frame, &[Extension::Routing(vec![4, 0, 0, 0, 0, 0])])
    }),
    ("hop-by-hop and destination options", |frame| {
        v6(frame, &[hop_by_hop(), Extension::DestinationOptions(vec![0x1e, 4, 1, 2, 3, 4])])
    }),
    ("atomic fragment", |frame| {
        v6(frame, &[Extension::Fragment { offset: 0, more: false, id: 7 }])
    }),
    ("64,500 bytes of IP", |frame| of_ip_length(frame, 64_500)),
    ("65,535 bytes of IP", |frame| of_ip_length(frame, 65_535)),
    ("65,575 bytes of IP", |frame| of_ip_length(frame, 65_575)),
    ("100,000 bytes of IP (BIG TCP)", |frame| {
        tcp(frame).and_then(|frame| of_ip_length(frame, 100_000))
    }),
    ("180,000 bytes of IP (BIG TCP)", |frame| {
        tcp(frame).and_then(|frame| of_ip_length(frame, 180_000))
    }),
    ("100,000 bytes, jumbo option", |frame| {
        let frame = tcp(frame).and_then(|frame| of_ip_length(frame, 100_000))?;
        v6(frame, &[Extension::jumbo(100_000 - 40 + 8)])
    }),
    ("100,000 bytes, length not in the checksum", |frame| {
        let mut frame = tcp(frame).and_then(|frame| of_ip_length(frame, 100_000))?;
        *frame.checksum_mut()? = Checksum::PartialWithoutLength;
        Some(frame)
    }),
    ("CWR on the first segment", |frame| tcp(frame).map(|frame| frame.with_flags(ACK | CWR))),
    ("CWR on all segments", |frame| tcp(frame).map(|frame| frame.with_flags(ACK | CWR))),
    ("identifications stay, DF", |frame| tcp(frame).and_then(|frame| v4(frame, |_| ()))),
    ("identifications stay, may be fragmented", |frame| {
        tcp(frame).and_then(|frame| v4(frame, |frame| frame.ipv4_mut().dont_fragment = false))
    }),
];

impl MatrixCell {
    /// Returns all super-packets of the matrix: each tunnel behind each link header, and each
    /// special property behind plain Ethernet.
    pub fn all() -> Vec<MatrixCell> {
        let mut cells = Vec::new();
        for (protocol, frame) in protocols() {
            for (link, behind) in LINKS {
                for (special, through) in TUNNELS {
                    // Link headers are inserted after tunnels, so that all lengths fit the final
                    // frame.
                    let frame = behind(through(frame.clone()));
                    let has_checksum = special.contains("checksum") && !special.starts_with("GRE")
                        || special.contains("of IP");
                    cells.push(MatrixCell {
                        link,
                        special,
                        protocol,
                        frame: frame.clone(),
                        outer_pseudo: has_checksum,
                    });
                    if has_checksum && *link == "Ethernet" {
                        cells.push(MatrixCell {
                            link: "Ethernet, outer checksum for local checksum offload",
                            special,
                            protocol,
                            frame,
                            outer_pseudo: false,
                        });
                    }
                }
            }
            for (special, make) in SPECIALS {
                if let Some(frame) = make(frame.clone()) {
                    cells.push(MatrixCell {
                        link: "Ethernet",
                        special,
                        protocol,
                        frame,
                        outer_pseudo: false,
                    });
                }
            }
        }
        cells
    }

    /// Returns the bytes of the super-packet.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.frame.to_bytes();
        if self.outer_pseudo {
            write_outer_pseudo_sum(&self.frame, &mut bytes);
        }
        bytes
    }

    /// Returns the virtio header that tells the kernel how to segment the packet.
    ///
    /// If no header can express the packet's headers, the virtio header describes the innermost
    /// packet alone, or with the outermost tunnel.
    pub fn header(&self) -> VnetHeader {
        let mut header = header_of(&self.frame, SIZE as u16);
        if self.special == "CWR on the first segment" {
            header.gso_type |= gso_type::ECN;
        }
        header
    }

    /// Returns the segmentation metadata by which the engine segments the packet.
    pub fn gso(&self) -> Gso {
        let v6 = matches!(self.frame.ip, Ip::V6(_));
        let kind = match self.frame.transport {
            Transport::Tcp(_) if v6 => GsoKind::Tcp6,
            Transport::Tcp(_) => GsoKind::Tcp4,
            _ => GsoKind::Udp,
        };
        let gso = Gso::new(kind, SegmentSize::new(SIZE).expect("a size"));
        match self.special {
            special if special.starts_with("identifications stay") => gso.with_id(IpId::Fixed),
            "CWR on all segments" => gso.with_cwr(Cwr::All),
            _ => gso,
        }
    }

    /// Returns the name of the header or field to which the byte at offset `at` belongs.
    pub fn field(&self, at: usize) -> &'static str {
        let offsets = self.frame.offsets();
        let v4 = matches!(self.frame.ip, Ip::V4(_));
        let checksum = offsets.transport + usize::from(self.header().csum_offset);
        let outer_checksum = outer_transport(&self.frame) + 6;
        if offsets.outer.is_some() && (outer_checksum..outer_checksum + 2).contains(&at) {
            return "outer checksum";
        }
        match at {
            _ if at < offsets.network => "headers before the innermost",
            _ if v4 && (offsets.network + 4..offsets.network + 6).contains(&at) => "identification",
            _ if v4 && (offsets.network + 10..offsets.network + 12).contains(&at) => {
                "header checksum"
            }
            _ if at < offsets.transport => "IP header",
            _ if (checksum..checksum + 2).contains(&at) => "checksum",
            _ if (offsets.transport + 12..offsets.transport + 14).contains(&at) => "flags",
            _ if at < offsets.payload => "transport header",
            _ => "payload",
        }
    }

    /// Returns the super-packet without its link header; `None` if its link header is not plain
    /// Ethernet.
    pub fn at_ip(&self) -> Option<MatrixCell> {
        (self.link == "Ethernet").then(|| MatrixCell {
            link: "none (TUN)",
            frame: self.frame.clone().at_ip(),
            ..self.clone()
        })
    }

    /// Returns the super-packet as a router forwards it, with a TTL or hop limit that is lower by
    /// one.
    pub fn after_hop(&self) -> MatrixCell {
        let frame = self.frame.clone().with(|frame| {
            match frame.tunnel.as_mut().map_or(&mut frame.ip, |tunnel| &mut tunnel.ip) {
                Ip::V4(ip) => ip.ttl -= 1,
                Ip::V6(ip) => ip.hop_limit -= 1,
            }
        });
        MatrixCell { frame, ..self.clone() }
    }

    /// Segments the super-packet with the engine.
    ///
    /// # Errors
    /// The engine's error if it refuses the super-packet.
    pub fn cut(&self) -> Result<Vec<Vec<u8>>, SegmentError> {
        let bytes = self.bytes();
        let header = self.header();
        let layer = if self.frame.link.is_some() { Layer::Ethernet } else { Layer::Ip };
        let checksum = RxChecksum::Partial { start: header.csum_start, offset: header.csum_offset };
        let packet =
            GsoPacket::linear(&bytes, self.gso()).with_checksum(checksum).with_layer(layer);
        let mut segments = Vec::new();
        Segmenter::new().segment(
            &packet,
            &SegmentOptions::default(),
            |segment: Segment<'_, _>| {
                let mut bytes = Vec::new();
                segment.copy_to(&mut bytes);
                segments.push(bytes);
            },
        )?;
        Ok(segments)
    }
}

/// Returns whether every Linux version since 6.2 (TCP: 6.1) segments the super-packet, whether a
/// packet socket, a TAP device or a TUN device sends it.
pub fn is_segmented_since_6_2(cell: &MatrixCell) -> bool {
    let tags = [
        "Ethernet",
        "VLAN",
        "service VLAN (0x88a8)",
        "QinQ (0x88a8, 0x8100)",
        "two VLANs (0x8100)",
    ];
    let special =
        ["none", "IPv4 options", "may be fragmented", "hop-by-hop options", "destination options"];
    tags.contains(&cell.link)
        && (special.contains(&cell.special) || cell.special.starts_with("64,500"))
}

fn protocols() -> [(&'static str, Frame); 4] {
    let frames = [
        ("TCP/IPv4", Frame::tcp4(1, PAYLOAD)),
        ("TCP/IPv6", Frame::tcp6(1, PAYLOAD)),
        ("UDP/IPv4", Frame::udp4(PAYLOAD)),
        ("UDP/IPv6", Frame::udp6(PAYLOAD)),
    ];
    frames.map(|(name, frame)| (name, frame.with_checksum(Checksum::Partial)))
}

fn tags(frame: Frame, types: &[u16]) -> Frame {
    frame.with(|frame| {
        frame.vlans = types.iter().map(|&tpid| Vlan { tpid, vid: 5, ..Vlan::default() }).collect()
    })
}

fn labelled(frame: Frame, labels: usize) -> Frame {
    frame.with(|frame| frame.mpls = vec![Mpls::default(); labels])
}

fn outer(frame: Frame, checksum: Checksum) -> Frame {
    frame.with_outer_checksum(checksum)
}

fn gre(frame: Frame, gre: Gre, ethernet: bool) -> Frame {
    let ip = frame.clone().in_gre().tunnel_mut().ip.clone();
    frame.through(ip, Carrier::Gre(gre), ethernet)
}

fn hop_by_hop() -> Extension {
    // A PadN option of four bytes, which routers ignore.
    Extension::HopByHop(vec![1, 4, 0, 0, 0, 0])
}

fn v4(frame: Frame, edit: impl FnOnce(&mut Frame)) -> Option<Frame> {
    matches!(frame.ip, Ip::V4(_)).then(|| frame.with(edit))
}

fn v6(frame: Frame, extensions: &[Extension]) -> Option<Frame> {
    matches!(frame.ip, Ip::V6(_)).then(|| frame.with_ipv6(|ip| ip.extensions = extensions.to_vec()))
}

fn tcp(frame: Frame) -> Option<Frame> {
    matches!(frame.transport, Transport::Tcp(_)).then_some(frame)
}

fn of_ip_length(frame: Frame, length: usize) -> Option<Frame> {
    let offsets = frame.offsets();
    let headers = offsets.payload - offsets.network;
    if matches!(frame.ip, Ip::V4(_)) && length == 65_575
        || matches!(frame.transport, Transport::Udp(_)) && length > 65_535
    {
        return None;
    }
    Some(frame.with(|frame| {
        frame.payload = superpacket_traffic::frame::stream_bytes(1, length - headers)
    }))
}
