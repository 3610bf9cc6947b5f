//! Variations of one header field in a single packet, and flows with an unusual header in all
//! packets.

use crate::frame::*;
use crate::random::Random;

/// A change of a frame; returns false if the frame does not have the field.
type Variation = fn(&mut Frame, &mut Random) -> bool;

/// Changes one field of one layer at random.
pub(super) fn vary(frame: &mut Frame, random: &mut Random) {
    apply_one(VARIATIONS, frame, random);
}

/// Changes one field in the headers of a flow to an unusual, mostly valid, value.
pub(super) fn make_unusual(frame: &mut Frame, random: &mut Random) {
    apply_one(UNUSUAL_HEADERS, frame, random);
}

fn apply_one(variations: &[(&str, Variation)], frame: &mut Frame, random: &mut Random) {
    // The variation applies to either of the two tunnels.
    let swapped = frame.nested.is_some() && random.chance(0.5);
    if swapped {
        core::mem::swap(&mut frame.tunnel, &mut frame.nested);
    }
    // Every frame has an IP header, so a few attempts find a variation that applies.
    for _ in 0..100 {
        let (_, variation) = random.pick(variations);
        if variation(frame, random) {
            break;
        }
    }
    if swapped {
        core::mem::swap(&mut frame.tunnel, &mut frame.nested);
    }
}

/// Defines functions that edit a header, and return whether the frame has it.
macro_rules! editors {
    ($($name:ident: $header:ty, $layer:ident, $pattern:pat => $found:ident;)*) => {$(
        fn $name(frame: &mut Frame, edit: impl FnOnce(&mut $header)) -> bool {
            match &mut frame.$layer {
                $pattern => edit($found),
                _ => return false,
            }
            true
        }
    )*};
}

editors! {
    v4: Ipv4, ip, Ip::V4(ip) => ip;
    v6: Ipv6, ip, Ip::V6(ip) => ip;
    outer4: Ipv4, tunnel, Some(Tunnel { ip: Ip::V4(ip), .. }) => ip;
    outer6: Ipv6, tunnel, Some(Tunnel { ip: Ip::V6(ip), .. }) => ip;
    outer_udp: Udp, tunnel, Some(Tunnel {
        carrier: Carrier::Vxlan(Vxlan { udp, .. }) | Carrier::Geneve(Geneve { udp, .. }), ..
    }) => udp;
    vxlan: Vxlan, tunnel, Some(Tunnel { carrier: Carrier::Vxlan(vxlan), .. }) => vxlan;
    geneve: Geneve, tunnel, Some(Tunnel { carrier: Carrier::Geneve(geneve), .. }) => geneve;
    gre: Gre, tunnel, Some(Tunnel { carrier: Carrier::Gre(gre), .. }) => gre;
    tcp: Tcp, transport, Transport::Tcp(tcp) => tcp;
    udp: Udp, transport, Transport::Udp(udp) => udp;
    inner_vlans: Vec<Vlan>, tunnel, Some(Tunnel { link: Some(_), vlans, .. }) => vlans;
    inner_ethernet: Ethernet, tunnel, Some(Tunnel { link: Some(ethernet), .. }) => ethernet;
    dccp: Dccp, transport, Transport::Dccp(dccp) => dccp;
}

fn ethernet(frame: &mut Frame, edit: impl FnOnce(&mut Ethernet)) -> bool {
    frame.link.as_mut().map(edit).is_some()
}

fn vlan(frame: &mut Frame, edit: impl FnOnce(&mut Vlan)) -> bool {
    frame.link.is_some() && frame.vlans.last_mut().map(edit).is_some()
}

fn mpls(frame: &mut Frame, edit: impl FnOnce(&mut Mpls)) -> bool {
    frame.link.is_some() && frame.pppoe.is_none() && frame.mpls.last_mut().map(edit).is_some()
}

fn pppoe(frame: &mut Frame, edit: impl FnOnce(&mut Pppoe)) -> bool {
    frame.link.is_some() && frame.pppoe.as_mut().map(edit).is_some()
}

/// Sets how the transport checksum is written to `mode`, and gives the frame a payload whose
/// checksum can be written as 0x0000 or 0xFFFF. Returns false if the frame cannot have such a
/// payload.
fn set_checksum_with_two_forms(frame: &mut Frame, mode: Checksum) -> bool {
    if frame.payload.len() < 2
        || !matches!(frame.transport, Transport::Tcp(_) | Transport::Udp(_) | Transport::Dccp(_))
    {
        return false;
    }
    // With partial coverage, the sum may not include the first payload bytes.
    if let Transport::Dccp(Dccp { coverage: 1.., .. }) = frame.transport {
        return false;
    }
    frame.set_checksum(mode);
    *frame = frame.clone().with_zero_checksum();
    true
}

/// Returns a segment routing header with any number of segments left.
fn segment_route(random: &mut Random) -> Extension {
    let stops: Vec<_> = (0..random.between(1, 3)).map(|_| random.address()).collect();
    Extension::segment_route(&stops, random.between(0, stops.len()) as u8)
}

/// Returns an IPv4 loose or strict source route option, with a random number of its addresses still
/// to be visited.
fn source_route(random: &mut Random) -> Vec<u8> {
    let stops = random.between(1, 3);
    let pointer = 4 + 4 * random.between(0, stops);
    let option = [random.pick(&[131, 137]), (3 + 4 * stops) as u8, pointer as u8];
    [&[1], &option[..], &random.bytes(4 * stops)].concat()
}

/// Variations of every field of every layer, by name.
pub(super) const VARIATIONS: &[(&str, Variation)] = &[
    ("ethernet source", |frame, _| ethernet(frame, |ethernet| ethernet.source[1] ^= 0x10)),
    ("ethernet destination", |frame, _| {
        ethernet(frame, |ethernet| ethernet.destination[1] ^= 0x10)
    }),
    ("ethertype", |frame, _| ethernet(frame, |ethernet| ethernet.ethertype = Some(0x88b5))),
    ("vlan id", |frame, _| vlan(frame, |tag| tag.vid ^= 1)),
    ("vlan id 0", |frame, _| vlan(frame, |tag| tag.vid = 0)),
    ("vlan priority", |frame, _| vlan(frame, |tag| tag.pcp ^= 3)),
    ("vlan drop eligible", |frame, _| vlan(frame, |tag| tag.dei = !tag.dei)),
    ("vlan protocol", |frame, _| {
        vlan(frame, |tag| tag.tpid = if tag.tpid == 0x8100 { 0x88a8 } else { 0x8100 })
    }),
    ("vlan added", |frame, random| {
        frame.vlans.push(Vlan { vid: random.below(4_096) as u16, ..Vlan::default() });
        frame.link.is_some()
    }),
    ("vlan removed", |frame, _| frame.link.is_some() && frame.vlans.pop().is_some()),
    ("mpls label", |frame, _| mpls(frame, |entry| entry.label ^= 1)),
    ("mpls class", |frame, _| mpls(frame, |entry| entry.exp ^= 1)),
    ("mpls ttl", |frame, _| mpls(frame, |entry| entry.ttl = entry.ttl.wrapping_sub(1))),
    ("mpls bottom", |frame, _| mpls(frame, |entry| entry.bottom = Some(false))),
    ("pppoe session", |frame, _| pppoe(frame, |header| header.session ^= 1)),
    ("pppoe code", |frame, _| pppoe(frame, |header| header.code = 9)),
    ("pppoe length", |frame, random| {
        pppoe(frame, |header| header.length = Some(random.bits() as u16))
    }),
    ("ipv4 ttl", |frame, _| v4(frame, |ip| ip.ttl = ip.ttl.wrapping_sub(1))),
    ("ipv4 dscp", |frame, _| v4(frame, |ip| ip.tos ^= 0x20)),
    ("ipv4 ecn", |frame, _| v4(frame, |ip| ip.tos ^= 3)),
    ("ipv4 id", |frame, random| {
        v4(frame, |ip| ip.id = ip.id.wrapping_add(random.between(1, 9) as u16))
    }),
    ("ipv4 reserved", |frame, _| v4(frame, |ip| ip.reserved = !ip.reserved)),
    ("ipv4 do not fragment", |frame, _| v4(frame, |ip| ip.dont_fragment = !ip.dont_fragment)),
    ("ipv4 more fragments", |frame, _| v4(frame, |ip| ip.more_fragments = true)),
    ("ipv4 fragment offset", |frame, random| {
        v4(frame, |ip| ip.fragment_offset = random.between(1, 0x1fff) as u16)
    }),
    ("ipv4 options", |frame, _| v4(frame, |ip| ip.options = vec![0x94, 4, 0, 0])),
    ("ipv4 options of nothing", |frame, _| v4(frame, |ip| ip.options = vec![1, 1, 1, 1])),
    ("ipv4 protocol", |frame, _| v4(frame, |ip| ip.protocol = Some(89))),
    ("ipv4 source", |frame, _| v4(frame, |ip| ip.source[0] ^= 0x40)),
    ("ipv4 destination", |frame, _| v4(frame, |ip| ip.destination[0] ^= 0x40)),
    ("ipv4 total length", |frame, random| {
        v4(frame, |ip| ip.total_length = Some(random.bits() as u16))
    }),
    ("ipv4 total length 0", |frame, _| v4(frame, |ip| ip.total_length = Some(0))),
    ("ipv4 header length", |frame, random| v4(frame, |ip| ip.ihl = Some(random.below(16) as u8))),
    ("ipv4 checksum wrong", |frame, _| v4(frame, |ip| ip.checksum = Checksum::Wrong)),
    ("ipv4 checksum zero", |frame, _| v4(frame, |ip| ip.checksum = Checksum::Zero)),
    ("ipv4 checksum alias", |frame, _| {
        let applies = v4(frame, |ip| ip.checksum = Checksum::NonCanonical);
        if applies {
            *frame = frame.clone().with_zero_header_checksum();
        }
        applies
    }),
    ("ipv6 hop limit", |frame, _| v6(frame, |ip| ip.hop_limit = ip.hop_limit.wrapping_sub(1))),
    ("ipv6 class", |frame, _| v6(frame, |ip| ip.traffic_class ^= 0x20)),
    ("ipv6 ecn", |frame, _| v6(frame, |ip| ip.traffic_class ^= 3)),
    ("ipv6 flow label", |frame, _| v6(frame, |ip| ip.flow_label ^= 1)),
    ("ipv6 source", |frame, _| v6(frame, |ip| ip.source[15] ^= 0x40)),
    ("ipv6 destination", |frame, _| v6(frame, |ip| ip.destination[15] ^= 0x40)),
    ("ipv6 next header", |frame, _| v6(frame, |ip| ip.next_header = Some(59))),
    ("ipv6 payload length", |frame, random| {
        v6(frame, |ip| ip.payload_length = Some(random.bits() as u16))
    }),
    ("ipv6 payload length 0", |frame, _| v6(frame, |ip| ip.payload_length = Some(0))),
    ("ipv6 hop-by-hop", |frame, _| {
        v6(frame, |ip| ip.extensions.insert(0, Extension::HopByHop(vec![5, 2, 0, 0, 1, 0])))
    }),
    ("ipv6 routing", |frame, _| {
        v6(frame, |ip| ip.extensions.push(Extension::Routing(vec![4, 0, 0, 0, 0, 0])))
    }),
    ("ipv6 segment route", |frame, random| {
        v6(frame, |ip| ip.extensions.push(segment_route(random)))
    }),
    ("ipv6 source route", |frame, random| {
        let (stops, left) = ([random.address(), random.address()], random.below(3) as u8);
        v6(frame, |ip| ip.extensions.push(Extension::source_route(0, &stops, left)))
    }),
    ("ipv6 compressed route", |frame, random| {
        // All but the last two bytes of each address are those of the destination.
        let (left, bytes) = (random.below(3) as u8, random.bytes(4));
        let contents = [&[3, left, 0xee, 4 << 4, 0, 0], &bytes[..]].concat();
        v6(frame, |ip| ip.extensions.push(Extension::Routing(contents)))
    }),
    ("ipv6 home route", |frame, random| {
        v6(frame, |ip| ip.extensions.push(Extension::source_route(2, &[random.address()], 1)))
    }),
    ("ipv6 home address", |frame, random| {
        v6(frame, |ip| ip.extensions.push(Extension::home_address(random.address())))
    }),
    ("ipv6 routing of any kind", |frame, random| {
        let contents = [
            vec![random.below(6) as u8, random.below(4) as u8, random.below(3) as u8],
            random.bytes(19),
        ]
        .concat();
        v6(frame, |ip| ip.extensions.push(Extension::Routing(contents)))
    }),
    ("ipv4 source route", |frame, random| v4(frame, |ip| ip.options = source_route(random))),
    ("ipv6 destination options", |frame, random| {
        let value = random.bits() as u8;
        v6(frame, |ip| {
            ip.extensions.push(Extension::DestinationOptions(vec![0x1e, 4, value, 0, 0, 0]))
        })
    }),
    ("ipv6 atomic fragment", |frame, _| {
        v6(frame, |ip| ip.extensions.push(Extension::Fragment { offset: 0, more: false, id: 7 }))
    }),
    ("ipv6 jumbogram", |frame, _| {
        let length = (frame.offsets().end - frame.offsets().network + 8) as u32;
        v6(frame, |ip| {
            ip.extensions.insert(0, Extension::jumbo(length - 40));
            ip.payload_length = Some(0);
        })
    }),
    ("tcp source port", |frame, _| tcp(frame, |tcp| tcp.source_port ^= 0x8000)),
    ("tcp destination port", |frame, _| tcp(frame, |tcp| tcp.destination_port ^= 0x8000)),
    ("tcp sequence plus 1", |frame, _| {
        tcp(frame, |tcp| tcp.sequence = tcp.sequence.wrapping_add(1))
    }),
    ("tcp sequence", |frame, random| tcp(frame, |tcp| tcp.sequence = random.bits() as u32)),
    ("tcp acknowledgement", |frame, _| {
        tcp(frame, |tcp| tcp.acknowledgement = tcp.acknowledgement.wrapping_add(1))
    }),
    ("tcp acknowledgement back", |frame, _| {
        tcp(frame, |tcp| tcp.acknowledgement = tcp.acknowledgement.wrapping_sub(1_000))
    }),
    ("tcp data offset", |frame, random| {
        tcp(frame, |tcp| tcp.data_offset = Some(random.below(16) as u8))
    }),
    ("tcp window", |frame, _| tcp(frame, |tcp| tcp.window ^= 1)),
    ("tcp urgent pointer", |frame, random| tcp(frame, |tcp| tcp.urgent = random.bits() as u16 | 1)),
    ("tcp fin", |frame, _| tcp(frame, |tcp| tcp.flags ^= FIN)),
    ("tcp syn", |frame, _| tcp(frame, |tcp| tcp.flags ^= SYN)),
    ("tcp rst", |frame, _| tcp(frame, |tcp| tcp.flags ^= RST)),
    ("tcp psh", |frame, _| tcp(frame, |tcp| tcp.flags ^= PSH)),
    ("tcp ack", |frame, _| tcp(frame, |tcp| tcp.flags ^= ACK)),
    ("tcp urg", |frame, _| tcp(frame, |tcp| tcp.flags ^= URG)),
    ("tcp ece", |frame, _| tcp(frame, |tcp| tcp.flags ^= ECE)),
    ("tcp cwr", |frame, _| tcp(frame, |tcp| tcp.flags ^= CWR)),
    ("tcp ae", |frame, _| tcp(frame, |tcp| tcp.flags ^= AE)),
    ("tcp reserved", |frame, random| {
        let bit = random.pick(&[0x200, 0x400, 0x800]);
        tcp(frame, |tcp| tcp.flags ^= bit)
    }),
    ("tcp option added", |frame, _| {
        tcp(frame, |tcp| tcp.options.splice(0..0, [1, 1, 1, 1]).for_each(drop))
    }),
    ("tcp option order", |frame, _| match &mut frame.transport {
        Transport::Tcp(tcp) if tcp.options.len() == 12 => {
            tcp.options.rotate_left(2);
            true
        }
        _ => false,
    }),
    ("tcp timestamp", |frame, _| match &mut frame.transport {
        Transport::Tcp(tcp) if tcp.options.len() == 12 => {
            tcp.options[7] ^= 1;
            true
        }
        _ => false,
    }),
    ("tcp after end of options", |frame, _| {
        tcp(frame, |tcp| tcp.options.splice(0..0, [0, 0xde, 0xad, 0xbe]).for_each(drop))
    }),
    ("tcp checksum zero", |frame, _| tcp(frame, |tcp| tcp.checksum = Checksum::Zero)),
    ("udp source port", |frame, _| udp(frame, |udp| udp.source_port ^= 0x8000)),
    ("udp destination port", |frame, _| udp(frame, |udp| udp.destination_port ^= 0x8000)),
    ("udp length below the payload", |frame, random| {
        let whole = frame.payload.len() + 8;
        udp(frame, |udp| udp.length = Some(random.between(8, whole) as u16))
    }),
    ("udp length", |frame, random| udp(frame, |udp| udp.length = Some(random.bits() as u16))),
    ("udp length 0", |frame, _| udp(frame, |udp| udp.length = Some(0))),
    ("udp checksum zero", |frame, _| udp(frame, |udp| udp.checksum = Checksum::Zero)),
    ("udp empty", |frame, _| {
        let applies = matches!(frame.transport, Transport::Udp(_));
        if applies {
            frame.payload.clear();
        }
        applies
    }),
    ("dccp source port", |frame, _| dccp(frame, |dccp| dccp.source_port ^= 0x8000)),
    ("dccp destination port", |frame, _| dccp(frame, |dccp| dccp.destination_port ^= 0x8000)),
    ("dccp sequence", |frame, random| {
        dccp(frame, |dccp| dccp.sequence = dccp.sequence.wrapping_add(random.between(1, 9) as u64))
    }),
    ("dccp number size", |frame, _| dccp(frame, |dccp| dccp.extended = !dccp.extended)),
    ("dccp ccval", |frame, _| dccp(frame, |dccp| dccp.ccval ^= 1)),
    ("dccp coverage", |frame, random| dccp(frame, |dccp| dccp.coverage = random.below(16) as u8)),
    ("dccp coverage beyond the data", |frame, _| {
        let applies = dccp(frame, |dccp| dccp.coverage = 15);
        if applies {
            frame.payload.truncate(40);
        }
        applies
    }),
    ("dccp type", |frame, random| dccp(frame, |dccp| dccp.kind = random.below(16) as u8)),
    ("dccp data offset", |frame, random| {
        dccp(frame, |dccp| dccp.data_offset = Some(random.below(40) as u8))
    }),
    ("dccp acknowledgement", |frame, _| {
        dccp(frame, |dccp| {
            dccp.acknowledgement =
                Some(dccp.acknowledgement.map_or(1, |number| number.wrapping_add(1)))
        })
    }),
    ("dccp options", |frame, _| dccp(frame, |dccp| dccp.options = vec![0, 0, 0, 1])),
    ("transport checksum wrong", |frame, _| {
        frame.checksum_mut().map(|mode| *mode = Checksum::Wrong).is_some()
    }),
    ("transport checksum alias", |frame, _| {
        set_checksum_with_two_forms(frame, Checksum::NonCanonical)
    }),
    ("transport checksum canonical zero", |frame, _| {
        set_checksum_with_two_forms(frame, Checksum::Right)
    }),
    ("transport checksum partial", |frame, _| {
        frame.checksum_mut().map(|mode| *mode = Checksum::Partial).is_some()
    }),
    ("transport checksum partial without length", |frame, _| {
        frame.checksum_mut().map(|mode| *mode = Checksum::PartialWithoutLength).is_some()
    }),
    ("payload shorter", |frame, random| {
        let length = random.below(frame.payload.len() as u64) as usize;
        frame.payload.pop().map(|_| frame.payload.truncate(length)).is_some()
    }),
    ("payload longer", |frame, _| {
        frame.payload.push(0x2a);
        true
    }),
    ("outer ipv4 ttl", |frame, _| outer4(frame, |ip| ip.ttl = ip.ttl.wrapping_sub(1))),
    ("outer ipv4 dscp", |frame, _| outer4(frame, |ip| ip.tos ^= 0x20)),
    ("outer ipv4 ecn", |frame, _| outer4(frame, |ip| ip.tos ^= 3)),
    ("outer ipv4 id", |frame, _| outer4(frame, |ip| ip.id = ip.id.wrapping_add(3))),
    ("outer ipv4 reserved", |frame, _| outer4(frame, |ip| ip.reserved = !ip.reserved)),
    ("outer ipv4 do not fragment", |frame, _| {
        outer4(frame, |ip| ip.dont_fragment = !ip.dont_fragment)
    }),
    ("outer ipv4 more fragments", |frame, _| outer4(frame, |ip| ip.more_fragments = true)),
    ("outer ipv4 options", |frame, _| outer4(frame, |ip| ip.options = vec![1, 1, 1, 0])),
    ("outer ipv4 addresses", |frame, _| outer4(frame, |ip| ip.source[3] ^= 0x40)),
    ("outer ipv4 total length", |frame, random| {
        outer4(frame, |ip| ip.total_length = Some(random.bits() as u16))
    }),
    ("outer ipv4 checksum wrong", |frame, _| outer4(frame, |ip| ip.checksum = Checksum::Wrong)),
    ("outer ipv6 hop limit", |frame, _| {
        outer6(frame, |ip| ip.hop_limit = ip.hop_limit.wrapping_sub(1))
    }),
    ("outer ipv6 class", |frame, _| outer6(frame, |ip| ip.traffic_class ^= 3)),
    ("outer ipv6 flow label", |frame, _| outer6(frame, |ip| ip.flow_label ^= 1)),
    ("outer ipv6 addresses", |frame, _| outer6(frame, |ip| ip.source[15] ^= 0x40)),
    ("outer ipv6 payload length", |frame, random| {
        outer6(frame, |ip| ip.payload_length = Some(random.bits() as u16))
    }),
    ("outer ipv6 destination options", |frame, _| {
        outer6(frame, |ip| {
            ip.extensions.push(Extension::DestinationOptions(vec![4, 1, 4, 1, 1, 0]))
        })
    }),
    ("outer udp source port", |frame, _| outer_udp(frame, |udp| udp.source_port ^= 1)),
    ("outer udp length", |frame, random| {
        outer_udp(frame, |udp| udp.length = Some(random.bits() as u16))
    }),
    ("outer udp checksum zero or not", |frame, _| {
        outer_udp(frame, |udp| {
            udp.checksum =
                if udp.checksum == Checksum::Zero { Checksum::Right } else { Checksum::Zero }
        })
    }),
    ("outer udp checksum wrong", |frame, _| outer_udp(frame, |udp| udp.checksum = Checksum::Wrong)),
    ("outer udp checksum ffff", |frame, _| {
        outer_udp(frame, |udp| udp.checksum = Checksum::Raw(0xffff))
    }),
    ("vxlan flags", |frame, _| vxlan(frame, |vxlan| vxlan.flags ^= 0x08)),
    ("vxlan reserved", |frame, _| vxlan(frame, |vxlan| vxlan.reserved = 1)),
    ("vxlan protocol extension", |frame, _| {
        vxlan(frame, |vxlan| (vxlan.flags, vxlan.reserved) = (0x0c, 3))
    }),
    ("vxlan last reserved", |frame, _| vxlan(frame, |vxlan| vxlan.last_reserved = 0x80)),
    ("vxlan vni", |frame, _| vxlan(frame, |vxlan| vxlan.vni ^= 1)),
    ("geneve version", |frame, _| geneve(frame, |geneve| geneve.version = 1)),
    ("geneve control", |frame, _| geneve(frame, |geneve| geneve.flags ^= 0x80)),
    ("geneve critical", |frame, _| geneve(frame, |geneve| geneve.flags ^= 0x40)),
    ("geneve reserved", |frame, _| geneve(frame, |geneve| geneve.flags ^= 0x01)),
    ("geneve last reserved", |frame, _| geneve(frame, |geneve| geneve.last_reserved = 1)),
    ("geneve vni", |frame, _| geneve(frame, |geneve| geneve.vni ^= 1)),
    ("geneve options", |frame, _| {
        geneve(frame, |geneve| geneve.options.extend([0x01, 0x02, 0x04, 0x00]))
    }),
    ("geneve option contents", |frame, _| {
        geneve(frame, |geneve| geneve.options = vec![0x01, 0x02, 0x03, 0x01, 1, 2, 3, 4])
    }),
    ("geneve option length", |frame, random| {
        geneve(frame, |geneve| geneve.option_words = Some(random.below(64) as u8))
    }),
    ("geneve protocol", |frame, _| geneve(frame, |geneve| geneve.protocol = Some(0x88b5))),
    ("gre key", |frame, _| {
        gre(frame, |gre| gre.key = gre.key.map_or(Some(1), |key| Some(key ^ 1)))
    }),
    ("gre key or none", |frame, _| gre(frame, |gre| gre.key = gre.key.xor(Some(1)))),
    ("gre sequence", |frame, random| gre(frame, |gre| gre.sequence = Some(random.bits() as u32))),
    ("gre checksum", |frame, _| {
        gre(frame, |gre| gre.checksum = gre.checksum.xor(Some(Checksum::Right)))
    }),
    ("gre checksum wrong", |frame, _| gre(frame, |gre| gre.checksum = Some(Checksum::Wrong))),
    ("gre reserved after checksum", |frame, _| {
        gre(frame, |gre| (gre.checksum, gre.reserved1) = (Some(Checksum::Right), 1))
    }),
    ("gre version", |frame, _| gre(frame, |gre| gre.flags |= 1)),
    ("gre routing", |frame, _| gre(frame, |gre| gre.flags |= 0x4000)),
    ("gre protocol", |frame, _| gre(frame, |gre| gre.protocol = Some(0x88b5))),
    ("inner vlan", |frame, _| inner_vlans(frame, |vlans| vlans.push(Vlan::default()))),
    ("inner ethernet", |frame, _| inner_ethernet(frame, |ethernet| ethernet.source[5] ^= 1)),
];

/// Unusual headers of whole flows, by name.
const UNUSUAL_HEADERS: &[(&str, Variation)] = &[
    ("may be fragmented", |frame, _| v4(frame, |ip| ip.dont_fragment = false)),
    ("ECN capable", |frame, _| v4(frame, |ip| ip.tos = 2)),
    ("congestion experienced", |frame, _| v4(frame, |ip| ip.tos = 3)),
    ("reserved bit", |frame, _| v4(frame, |ip| ip.reserved = true)),
    ("router alert", |frame, _| v4(frame, |ip| ip.options = vec![0x94, 4, 0, 0])),
    ("ECN capable v6", |frame, _| v6(frame, |ip| ip.traffic_class = 2)),
    ("hop-by-hop", |frame, _| {
        v6(frame, |ip| ip.extensions.push(Extension::HopByHop(vec![5, 2, 0, 0, 1, 0])))
    }),
    ("destination options", |frame, _| {
        v6(frame, |ip| ip.extensions.push(Extension::DestinationOptions(vec![0x1e, 12])))
    }),
    ("routing header", |frame, _| {
        v6(frame, |ip| ip.extensions.push(Extension::Routing(vec![4, 0, 0, 0, 0, 0])))
    }),
    ("segment route", |frame, random| v6(frame, |ip| ip.extensions.push(segment_route(random)))),
    ("home route", |frame, random| {
        v6(frame, |ip| ip.extensions.push(Extension::source_route(2, &[random.address()], 1)))
    }),
    ("home address", |frame, random| {
        v6(frame, |ip| ip.extensions.push(Extension::home_address(random.address())))
    }),
    ("IPv4 source route", |frame, random| v4(frame, |ip| ip.options = source_route(random))),
    ("outer segment route", |frame, random| {
        outer6(frame, |ip| ip.extensions.push(segment_route(random)))
    }),
    ("atomic fragments", |frame, _| {
        v6(frame, |ip| ip.extensions.push(Extension::Fragment { offset: 0, more: false, id: 9 }))
    }),
    ("TCP reserved bits", |frame, _| tcp(frame, |tcp| tcp.flags |= 0x400)),
    ("urgent pointer without URG", |frame, _| tcp(frame, |tcp| tcp.urgent = 0x1234)),
    ("bytes after end of options", |frame, _| {
        tcp(frame, |tcp| tcp.options = vec![0, 0xca, 0xfe, 0x01])
    }),
    // Invalid over IPv6 (RFC 8200, section 8.1).
    ("no UDP checksum", |frame, _| {
        matches!(frame.ip, Ip::V4(_)) && udp(frame, |udp| udp.checksum = Checksum::Zero)
    }),
    ("partial coverage", |frame, _| dccp(frame, |dccp| dccp.coverage = 3)),
    ("header coverage", |frame, _| dccp(frame, |dccp| dccp.coverage = 1)),
    ("DCCP options", |frame, _| dccp(frame, |dccp| dccp.options = vec![0, 0, 0, 0])),
    ("outer may be fragmented", |frame, _| outer4(frame, |ip| ip.dont_fragment = false)),
    ("outer flow label", |frame, random| {
        outer6(frame, |ip| ip.flow_label = random.below(1 << 20) as u32)
    }),
    ("outer destination options", |frame, _| {
        outer6(frame, |ip| {
            ip.extensions.push(Extension::DestinationOptions(vec![4, 1, 4, 1, 1, 0]))
        })
    }),
    ("VXLAN protocol extension", |frame, _| {
        vxlan(frame, |vxlan| (vxlan.flags, vxlan.reserved) = (0x0c, 3))
    }),
    ("Geneve critical options", |frame, _| geneve(frame, |geneve| geneve.flags = 0x40)),
    ("Geneve without options", |frame, _| geneve(frame, |geneve| geneve.options.clear())),
    ("GRE sequence numbers", |frame, _| gre(frame, |gre| gre.sequence = Some(1))),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Combination, Config, flow::GeneratedFlow};

    #[test]
    fn each_variation_applies_somewhere_and_changes_the_bytes_where_it_applies() {
        let mut random = Random::new(3);
        let config =
            Config { encapsulated: 0.8, unusual_headers: 0.0, offloaded: 0.0, ..Config::default() };
        let mut frames = Vec::new();
        for number in 0..8 * Combination::all().len() as u32 {
            let mut flow = GeneratedFlow::new(number, &config, &mut random);
            frames.push(flow.packet(0, 100, &mut random));
        }
        for (name, variation) in VARIATIONS.iter().chain(UNUSUAL_HEADERS) {
            let mut applied = 0;
            let mut changed = 0;
            for frame in &frames {
                let mut varied = frame.clone();
                if variation(&mut varied, &mut random) {
                    applied += 1;
                    changed += usize::from(varied.to_bytes() != frame.to_bytes());
                }
            }
            assert!(applied > 0, "{name} never applied");
            // A random value may be the old one, and a flow may have the unusual header already.
            assert!(changed * 3 > applied, "{name}: {changed} of {applied} changed");
        }
    }
}
