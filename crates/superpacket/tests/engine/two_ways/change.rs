//! What can be other in one packet than in the rest of its flow.

use std::sync::LazyLock;

use superpacket::packet::{Layer, VlanTag};
use superpacket_traffic::frame::{
    ACK, CWR, Checksum, ECE, Extension, FIN, Frame, Ip, Ipv4, Ipv6, PSH, RST, SYN, Tcp, Transport,
    URG, Udp,
};
use superpacket_traffic::frame::{Vlan, stream_bytes, timestamps};

use super::traffic::Arrival;

/// An edit of one packet.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Of a frame whose lengths and checksums are then made to fit.
    Frame(fn(&mut Frame)),
    /// Of its bytes, or of what the device says of it.
    Arrival(fn(&mut Arrival)),
}

fn tcp(frame: &mut Frame, edit: impl FnOnce(&mut Tcp)) {
    if let Transport::Tcp(tcp) = &mut frame.transport {
        edit(tcp);
    }
}

fn udp(frame: &mut Frame, edit: impl FnOnce(&mut Udp)) {
    if let Transport::Udp(udp) = &mut frame.transport {
        edit(udp);
    }
}

fn v4(frame: &mut Frame, edit: impl FnOnce(&mut Ipv4)) {
    if let Ip::V4(ip) = &mut frame.ip {
        edit(ip);
    }
}

fn v6(frame: &mut Frame, edit: impl FnOnce(&mut Ipv6)) {
    if let Ip::V6(ip) = &mut frame.ip {
        edit(ip);
    }
}

/// Adds to the timestamps' value, where they are the only option.
fn tick(frame: &mut Frame, ticks: i32) {
    tcp(frame, |tcp| {
        if let [1, 1, 8, 10, a, b, c, d, ..] = tcp.options[..] {
            let value = u32::from_be_bytes([a, b, c, d]).wrapping_add_signed(ticks);
            tcp.options[4..8].copy_from_slice(&value.to_be_bytes());
        }
    });
}

/// Adds to the IPv4 total length, the IPv6 payload length or the UDP length, whatever the packet
/// has.
fn lengthen(frame: &mut Frame, by: i16) {
    let offsets = frame.offsets();
    let (total, payload) = (offsets.end - offsets.network, offsets.end - offsets.transport);
    v4(frame, |ip| ip.total_length = Some((total as u16).wrapping_add_signed(by)));
    v6(frame, |ip| ip.payload_length = Some((payload as u16).wrapping_add_signed(by)));
}

fn lengthen_datagram(frame: &mut Frame, by: i16) {
    let length = frame.payload.len() as u16 + 8;
    udp(frame, |udp| udp.length = Some(length.wrapping_add_signed(by)));
}

/// The right checksum is made 0, and sent as 0xFFFF where that is another form of it.
fn alias(frame: &mut Frame, mode: Checksum) {
    if frame.payload.len() >= 2
        && let Some(field) = frame.checksum_mut()
    {
        *field = mode;
        *frame = frame.clone().with_zero_checksum();
    }
}

fn turn_bit(arrival: &mut Arrival, from_end: usize) {
    let bytes = &mut arrival.packet.bytes;
    if let Some(at) = bytes.len().checked_sub(from_end) {
        bytes[at] ^= 0x10;
    }
}

/// The name of an edit, and the edit.
type Named<T> = (&'static str, fn(&mut T));

/// Edits of a frame, by name.
const OF_FRAMES: &[Named<Frame>] = &[
    ("sequence number one on", |frame| {
        tcp(frame, |tcp| tcp.sequence = tcp.sequence.wrapping_add(1))
    }),
    ("sequence number one back", |frame| {
        tcp(frame, |tcp| tcp.sequence = tcp.sequence.wrapping_sub(1))
    }),
    ("retransmission", |frame| {
        let length = frame.payload.len() as u32;
        tcp(frame, |tcp| tcp.sequence = tcp.sequence.wrapping_sub(length));
    }),
    ("acknowledgement forward", |frame| {
        tcp(frame, |tcp| tcp.acknowledgement = tcp.acknowledgement.wrapping_add(3_000))
    }),
    ("acknowledgement back", |frame| {
        tcp(frame, |tcp| tcp.acknowledgement = tcp.acknowledgement.wrapping_sub(1))
    }),
    ("acknowledgement half the numbers on", |frame| {
        tcp(frame, |tcp| tcp.acknowledgement ^= 1 << 31)
    }),
    ("window", |frame| tcp(frame, |tcp| tcp.window ^= 0x101)),
    ("PSH", |frame| tcp(frame, |tcp| tcp.flags |= PSH)),
    ("FIN", |frame| tcp(frame, |tcp| tcp.flags |= FIN)),
    ("PSH and FIN", |frame| tcp(frame, |tcp| tcp.flags |= PSH | FIN)),
    ("SYN", |frame| tcp(frame, |tcp| tcp.flags |= SYN)),
    ("RST", |frame| tcp(frame, |tcp| tcp.flags |= RST)),
    ("URG", |frame| tcp(frame, |tcp| tcp.flags |= URG)),
    ("no ACK", |frame| tcp(frame, |tcp| tcp.flags &= !ACK)),
    ("ECE", |frame| tcp(frame, |tcp| tcp.flags ^= ECE)),
    ("CWR", |frame| tcp(frame, |tcp| tcp.flags ^= CWR)),
    ("reserved TCP bit", |frame| tcp(frame, |tcp| tcp.flags ^= 0x400)),
    ("urgent pointer", |frame| tcp(frame, |tcp| tcp.urgent = 7)),
    ("timestamp forward", |frame| tick(frame, 5)),
    ("timestamp back", |frame| tick(frame, -1)),
    ("timestamp half the numbers on", |frame| tick(frame, i32::MIN)),
    ("no timestamp echo", |frame| {
        tcp(frame, |tcp| tcp.options.iter_mut().skip(8).for_each(|byte| *byte = 0))
    }),
    ("options in another order", |frame| tcp(frame, |tcp| tcp.options.reverse())),
    ("timestamps all of a sudden", |frame| tcp(frame, |tcp| tcp.options = timestamps(u32::MAX, 1))),
    ("last option", |frame| {
        tcp(frame, |tcp| tcp.options.iter_mut().last().into_iter().for_each(|byte| *byte ^= 1))
    }),
    ("no options", |frame| tcp(frame, |tcp| tcp.options.clear())),
    ("TCP checksum wrong", |frame| tcp(frame, |tcp| tcp.checksum = Checksum::Wrong)),
    ("TCP checksum 0", |frame| alias(frame, Checksum::Right)),
    ("TCP checksum 0xFFFF", |frame| alias(frame, Checksum::NonCanonical)),
    ("checksum field 0xFFFF", |frame| {
        frame.checksum_mut().into_iter().for_each(|mode| *mode = Checksum::Raw(0xffff))
    }),
    ("partial checksum", |frame| {
        frame.checksum_mut().into_iter().for_each(|mode| *mode = Checksum::Partial)
    }),
    ("UDP checksum wrong", |frame| udp(frame, |udp| udp.checksum = Checksum::Wrong)),
    ("no UDP checksum", |frame| udp(frame, |udp| udp.checksum = Checksum::Zero)),
    ("UDP length one more", |frame| lengthen_datagram(frame, 1)),
    ("UDP length one less", |frame| lengthen_datagram(frame, -1)),
    ("UDP length 0", |frame| udp(frame, |udp| udp.length = Some(0))),
    ("IP length one more", |frame| lengthen(frame, 1)),
    ("IP length one less", |frame| lengthen(frame, -1)),
    ("IP length without payload", |frame| lengthen(frame, -(frame.payload.len() as i16))),
    ("IP length of 0", |frame| {
        v4(frame, |ip| ip.total_length = Some(0));
        v6(frame, |ip| ip.payload_length = Some(0));
    }),
    ("TTL", |frame| {
        v4(frame, |ip| ip.ttl = ip.ttl.wrapping_sub(1));
        v6(frame, |ip| ip.hop_limit = ip.hop_limit.wrapping_sub(1));
    }),
    ("class", |frame| {
        v4(frame, |ip| ip.tos ^= 0x20);
        v6(frame, |ip| ip.traffic_class ^= 0x20);
    }),
    ("congestion experienced", |frame| {
        v4(frame, |ip| ip.tos |= 3);
        v6(frame, |ip| ip.traffic_class |= 3);
    }),
    ("flow label", |frame| v6(frame, |ip| ip.flow_label ^= 1)),
    ("extension header", |frame| {
        v6(frame, |ip| ip.extensions.push(Extension::DestinationOptions(vec![1, 4, 0, 0, 0, 0])))
    }),
    ("may be fragmented", |frame| v4(frame, |ip| ip.dont_fragment = !ip.dont_fragment)),
    ("more fragments", |frame| v4(frame, |ip| ip.more_fragments = true)),
    ("reserved IP bit", |frame| v4(frame, |ip| ip.reserved = true)),
    ("IP options", |frame| v4(frame, |ip| ip.options = vec![1; 4])),
    ("IP ID as before", |frame| v4(frame, |ip| ip.id = ip.id.wrapping_sub(1))),
    ("IP ID one too far", |frame| v4(frame, |ip| ip.id = ip.id.wrapping_add(1))),
    ("IP checksum wrong", |frame| v4(frame, |ip| ip.checksum = Checksum::Wrong)),
    ("IP checksum field 0", |frame| v4(frame, |ip| ip.checksum = Checksum::Zero)),
    ("IP checksum field 0xFFFF", |frame| v4(frame, |ip| ip.checksum = Checksum::Raw(0xffff))),
    ("IP checksum 0xFFFF for 0", |frame| v4(frame, |ip| ip.checksum = Checksum::NonCanonical)),
    ("one byte longer", |frame| frame.payload.push(0x2a)),
    ("one byte shorter", |frame| frame.payload.truncate(frame.payload.len().saturating_sub(1))),
    ("one byte", |frame| frame.payload.truncate(1)),
    ("no payload", |frame| frame.payload.clear()),
    ("acknowledgement without payload", |frame| {
        frame.payload.clear();
        tcp(frame, |tcp| tcp.acknowledgement = tcp.acknowledgement.wrapping_add(100));
    }),
    ("window update", |frame| {
        frame.payload.clear();
        tcp(frame, |tcp| tcp.window ^= 1);
    }),
    ("other payload", |frame| frame.payload = stream_bytes(0x5555, frame.payload.len())),
    ("padded with zeros", |frame| frame.trailer = vec![0; 6]),
    ("padded with ones", |frame| frame.trailer = vec![0xff; 6]),
    ("padded with noise", |frame| frame.trailer = vec![0xde, 0xad, 0xbe]),
    ("source port", |frame| {
        tcp(frame, |tcp| tcp.source_port ^= 0x4000);
        udp(frame, |udp| udp.source_port ^= 0x4000);
    }),
    ("IP source", |frame| {
        v4(frame, |ip| ip.source[1] ^= 1);
        v6(frame, |ip| ip.source[1] ^= 1);
    }),
    ("Ethernet source", |frame| frame.link.iter_mut().for_each(|link| link.source[5] ^= 1)),
    ("VLAN priority in the frame", |frame| frame.vlans.iter_mut().for_each(|tag| tag.pcp ^= 1)),
    ("one VLAN tag more", |frame| frame.vlans.push(Vlan::default())),
];

/// Edits of the bytes or of the device's knowledge, by name.
const OF_ARRIVALS: &[Named<Arrival>] = &[
    ("stripped VLAN tag", |Arrival { packet, .. }| {
        packet.vlan = Some(VlanTag { protocol: 0x8100, control: 5 })
    }),
    ("stripped priority tag", |Arrival { packet, .. }| {
        packet.vlan = Some(VlanTag { protocol: 0x8100, control: 0x2000 })
    }),
    ("other layer", |Arrival { packet, .. }| {
        packet.layer = if packet.layer == Layer::Ip { Layer::Ethernet } else { Layer::Ip }
    }),
    ("two buffers", |Arrival { packet, .. }| packet.buffers = vec![60]),
    ("headers in buffers of their own", |Arrival { packet, .. }| packet.buffers = vec![14, 20, 3]),
    ("super-packet", |arrival| arrival.super_packet = true),
    ("last bit wrong", |arrival| turn_bit(arrival, 1)),
    ("bit in the payload wrong", |arrival| turn_bit(arrival, 30)),
    ("cut short", |Arrival { packet, .. }| packet.bytes.truncate(packet.bytes.len() - 1)),
    ("cut in the headers", |Arrival { packet, .. }| packet.bytes.truncate(50)),
];

/// All changes, by name.
pub static CHANGES: LazyLock<Vec<(&str, Change)>> = LazyLock::new(|| {
    let of_frames = OF_FRAMES.iter().map(|&(name, edit)| (name, Change::Frame(edit)));
    let of_arrivals = OF_ARRIVALS.iter().map(|&(name, edit)| (name, Change::Arrival(edit)));
    of_frames.chain(of_arrivals).collect()
});
