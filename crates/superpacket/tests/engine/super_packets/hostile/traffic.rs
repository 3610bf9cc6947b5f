//! Flows of super-packets and single packets whose metadata, flags, lengths and bytes are wrong
//! here and there.

use superpacket::packet::{Layer, RxChecksum};
use superpacket::segment::{ChecksumForm, Cwr, Gso, GsoKind, IpId};
use superpacket_traffic::check::{self, FlowKey};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{
    ACK, AE, CWR, Carrier, Checksum, ECE, Extension, FIN, Frame, Ip, PSH, Pppoe, RST, SYN,
    Transport, URG, stream_bytes, timestamps,
};
use superpacket_traffic::random::Random;

use super::super::Arrival;
use super::stands_for;
use crate::support::{Packet, gso_of};

const ALL_KINDS: [GsoKind; 5] =
    [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp, GsoKind::UdpFragments, GsoKind::Dccp];

/// A flow that goes on.
struct Flow {
    next: Frame,
    size: usize,
    /// Its packets as devices of a kind report them, mostly.
    known: u64,
    fixed: bool,
}

/// A flow of any kind, whose source port is this number.
fn flow(number: u16, random: &mut Random) -> Flow {
    let sequence = if random.below(2) == 0 {
        u32::MAX - random.below(5000) as u32
    } else {
        random.below(9) as u32
    };
    let base = match random.below(9) {
        0..3 => Frame::tcp4(sequence, 1),
        3..5 => Frame::tcp6(sequence, 1),
        5..7 => Frame::udp4(1),
        7 => Frame::udp6(1),
        _ => Frame::dccp4(5, 1),
    };
    let shape = if random.below(2) == 0 { 0 } else { random.below(9) as usize };
    let mut frame = base.shapes(9)[shape].clone();
    match &mut frame.transport {
        Transport::Tcp(tcp) => {
            tcp.source_port = number;
            if random.below(3) == 0 {
                tcp.options = timestamps(5, 6);
            }
            tcp.flags = ACK | random.pick(&[0, 0, 0, ECE, AE, CWR, CWR | ECE, AE | CWR | ECE]);
        }
        Transport::Udp(udp) => udp.source_port = number,
        Transport::Dccp(dccp) => dccp.source_port = number,
        _ => {}
    }
    if frame.tunnel.is_some() && (3..=5).contains(&shape) {
        frame.outer_udp_mut().checksum =
            random.pick(&[Checksum::Zero, Checksum::Zero, Checksum::Right]);
    }
    if frame.link.is_some() && frame.vlans.is_empty() && random.below(12) == 0 {
        frame.pppoe = Some(Pppoe::default());
    }
    if let Ip::V6(ip) = &mut frame.ip
        && random.below(8) == 0
    {
        ip.extensions = vec![random.pick(&[0, 1, 2])]
            .into_iter()
            .map(|kind| match kind {
                0 => Extension::DestinationOptions(vec![1, 4, 0, 0, 0, 0]),
                1 => Extension::HopByHop(vec![1, 4, 0, 0, 0, 0]),
                _ => Extension::jumbo(4000),
            })
            .collect();
    }
    if let Ip::V4(ip) = &mut frame.ip {
        ip.id = random.pick(&[0, 0xfffd, 0x1234]);
        ip.dont_fragment = random.below(3) != 0;
    }
    Flow {
        next: frame,
        size: random.pick(&[1, 2, 3, 7, 60, 100, 101, 536, 1448]),
        known: random.below(6),
        fixed: random.below(4) == 0,
    }
}

/// A packet with what is said of it, and the flow whose order it keeps.
#[derive(Clone, Debug)]
pub struct Hostile {
    pub arrival: Arrival,
    pub flow: usize,
}

/// The frame, and what the device says of its checksum.
fn set_form(frame: &Frame, known: u64, random: &mut Random) -> Packet {
    let mut frame = frame.clone();
    let wrong = |checksum: RxChecksum, frame: &mut Frame| {
        if let Some(field) = frame.checksum_mut() {
            *field = Checksum::Wrong;
        }
        Packet::from(&*frame).with_checksum(checksum)
    };
    match known {
        0 | 1 => crate::expect::partial(&frame),
        2 => Packet::from(&frame),
        3 => {
            let level = if frame.tunnel.is_some() { random.below(2) as u8 } else { 0 };
            Packet::from(&frame).with_checksum(RxChecksum::Unnecessary { level })
        }
        4 => wrong(RxChecksum::Unnecessary { level: 1 }, &mut frame),
        // The sum is filled in once the bytes are final.
        _ => Packet::from(&frame).with_checksum(RxChecksum::Complete(0)),
    }
}

/// Returns true once in `odds` calls, on average.
fn rare(random: &mut Random, odds: u64) -> bool {
    random.below(odds) == 0
}

/// Changes flags and fields of a TCP header at random.
fn change_tcp(frame: &mut Frame, flow: &mut Flow, random: &mut Random) {
    if rare(random, 10) {
        frame.tcp_mut().flags |= PSH;
    }
    match random.below(60) {
        0 => frame.tcp_mut().flags |= FIN,
        1 => frame.tcp_mut().flags |= URG,
        2 => frame.tcp_mut().flags |= SYN,
        3 => frame.tcp_mut().flags |= RST,
        4 => frame.tcp_mut().flags ^= CWR,
        5 => frame.tcp_mut().flags ^= ECE,
        6 => frame.tcp_mut().flags ^= AE,
        7 => frame.tcp_mut().window = 0,
        8 => frame.tcp_mut().urgent ^= 1,
        9 => frame.tcp_mut().sequence ^= 1,
        10 => flow.next.tcp_mut().flags ^= CWR,
        _ => {}
    }
}

/// Makes the metadata of a super-packet, which may contradict the frame.
fn random_gso(
    frame: &Frame,
    fixed: bool,
    mut size: usize,
    payload: usize,
    random: &mut Random,
) -> Gso {
    if rare(random, 15) {
        size = random
            .pick(&[1, 65_535, payload.clamp(1, 65_535), payload + 1, payload / 2 + 1, size + 1])
            .min(65_535);
    }
    let kind = match (&frame.transport, &frame.ip) {
        _ if rare(random, 25) => random.pick(&ALL_KINDS),
        (Transport::Tcp(_), Ip::V4(_)) => GsoKind::Tcp4,
        (Transport::Tcp(_), Ip::V6(_)) => GsoKind::Tcp6,
        (Transport::Dccp(_), _) => GsoKind::Dccp,
        _ => GsoKind::Udp,
    };
    let form = |random: &mut Random| {
        if fixed ^ rare(random, 20) { IpId::Fixed } else { IpId::Increment }
    };
    let cwr = random.pick(&[Cwr::First, Cwr::All]);
    let checksum = random.pick(&[ChecksumForm::Full, ChecksumForm::Partial]);
    let (id, outer_id) = (form(random), form(random));
    gso_of(kind, size.max(1))
        .with_id(id)
        .with_outer_id(outer_id)
        .with_cwr(cwr)
        .with_checksum(checksum)
}

/// Damages the bytes of a packet, and returns the number of the flow that it belongs to now.
fn damage(
    packet: &mut Packet,
    frame: &Frame,
    number: usize,
    keys: &mut Vec<Option<FlowKey>>,
    random: &mut Random,
) -> usize {
    let mut owner = number;
    let key = |bytes: &[u8]| check::flow_key(bytes, packet.layer == Layer::Ip);
    let before = key(&packet.bytes);
    if rare(random, 3) {
        let keep = random.below(packet.bytes.len() as u64 + 1) as usize;
        packet.bytes.truncate(keep);
    } else {
        let place = random.below(frame.offsets().payload.min(packet.bytes.len()) as u64) as usize;
        packet.bytes[place] ^= 1 << random.below(8);
    }
    let after = key(&packet.bytes);
    if after != before || before.is_none() {
        // The same damage twice makes one flow.
        owner = keys.iter().position(|key| key.is_some() && *key == after).unwrap_or_else(|| {
            keys.push(after);
            keys.len() - 1
        });
    }
    owner
}

/// Makes the frame that follows the last one of a flow, which stands for `frames` frames.
fn following(flow: &Flow, payload: usize, frames: usize) -> Frame {
    let mut following = flow.next.clone();
    following.payload = stream_bytes(0, payload);
    let ids = if flow.fixed { 0 } else { frames as u16 };
    following = following.following();
    for (ip, before) in [
        (Some(&mut following.ip), Some(&flow.next.ip)),
        (
            following.tunnel.as_mut().map(|tunnel| &mut tunnel.ip),
            flow.next.tunnel.as_ref().map(|tunnel| &tunnel.ip),
        ),
    ] {
        if let (Some(Ip::V4(ip)), Some(Ip::V4(before))) = (ip, before) {
            ip.id = before.id.wrapping_add(ids);
        }
    }
    following
}

/// The next packet of a flow. One whose damage puts it into another flow gets that flow's place in
/// `keys`, which may be a new one.
fn packet(
    flow: &mut Flow,
    number: usize,
    keys: &mut Vec<Option<FlowKey>>,
    trusted: bool,
    random: &mut Random,
) -> Hostile {
    let mut frame = flow.next.clone();
    let tcp = matches!(frame.transport, Transport::Tcp(_));
    let size = if rare(random, 25) { 1 + random.below(2000) as usize } else { flow.size };
    let single = random.below(3) == 0 || matches!(frame.transport, Transport::Dccp(_));
    let most = if rare(random, 6) { 60 } else { 7 };
    let count = if single { 1 } else { 1 + random.below(most) as usize };
    let mut payload = size * count;
    if rare(random, 12) {
        payload -= random.below(size as u64 + 1) as usize;
    }
    payload = payload.min(60_000);
    let position = random.below(1 << 20) as u32;
    frame.payload = stream_bytes(position, payload);
    if tcp {
        change_tcp(&mut frame, flow, random);
    }
    if rare(random, 40) {
        flow.fixed ^= true;
    }
    if rare(random, 60)
        && let Ip::V4(ip) = &mut frame.ip
    {
        ip.id = ip.id.wrapping_add(random.below(4) as u16);
    }
    if rare(random, 80) {
        frame.trailer = vec![0; 1 + random.below(9) as usize];
    }
    if rare(random, 40)
        && matches!(&frame.tunnel, Some(tunnel) if !matches!(tunnel.carrier, Carrier::Gre(_) | Carrier::Ip))
    {
        frame.outer_udp_mut().checksum =
            random.pick(&[Checksum::Zero, Checksum::Right, Checksum::Wrong]);
    }
    if rare(random, 50)
        && let Some(field) = frame.checksum_mut()
    {
        *field = random.pick(&[
            Checksum::Zero,
            Checksum::Raw(0xffff),
            Checksum::NonCanonical,
            Checksum::PartialWithoutLength,
        ]);
    }
    let tampered_sum = frame.clone().checksum_mut().is_some_and(|field| *field != Checksum::Right);
    let has_gso = !single || rare(random, 4);
    let gso = has_gso.then(|| random_gso(&frame, flow.fixed, size, payload, random));
    let mut known = if rare(random, 12) { random.below(6) } else { flow.known };
    // Of a single packet, who says that its checksum is right must be believed.
    let one = gso.is_none_or(|gso| payload <= gso.size.get());
    if one && (known == 4 || known == 3 && tampered_sum) || tampered_sum && trusted {
        known = if tampered_sum && trusted { 0 } else { 2 };
    }
    let mut packet = if known < 2 && tampered_sum {
        Packet::from(&frame)
    } else {
        set_form(&frame, known, random)
    };
    if known < 2 && tampered_sum {
        let start = frame.offsets().transport as u16;
        let offset = if tcp { 16 } else { 6 };
        packet = packet.with_checksum(RxChecksum::Partial {
            start: start + random.below(2) as u16 * 8,
            offset,
        });
    }
    if rare(random, 60) {
        let start = random.below(200) as u16;
        packet.checksum = RxChecksum::Partial { start, offset: random.pick(&[6, 16, 0]) };
    }
    if rare(random, 80)
        && let (Some(tunnel), RxChecksum::Partial { start, .. }) =
            (frame.offsets().outer, &mut packet.checksum)
    {
        *start = tunnel as u16 + 20;
    }
    let mut owner = number;
    // Damage that nobody would look for is the device's fault.
    let unread = matches!(packet.checksum, RxChecksum::Unnecessary { .. }) || trusted;
    if rare(random, 30) && !(one && unread) {
        owner = damage(&mut packet, &frame, number, keys, random);
    }
    if let RxChecksum::Complete(sum) = &mut packet.checksum {
        let start = if packet.layer == Layer::Ethernet { 14 } else { 0 };
        *sum = checksum::sum(&packet.bytes[start.min(packet.bytes.len())..]);
    }
    if rare(random, 5) && packet.bytes.len() > 20 {
        packet = packet
            .clone()
            .in_buffers_of(packet.bytes.len().div_ceil(1 + random.below(16) as usize));
    }
    let frames = stands_for(&packet, gso);
    let following = following(flow, payload, frames.len());
    if !rare(random, 40) {
        flow.next = following;
    }
    Hostile { arrival: Arrival { packet, gso, frames }, flow: owner }
}

/// Some 80 packets of several flows, and how many flows they are of. Where input is `trusted`, no
/// checksum is wrong that nobody would look at.
pub fn hostile_traffic(seed: u64, trusted: bool) -> (Vec<Hostile>, usize) {
    let mut random = Random::new(seed);
    let count = 1 + random.below(4) as usize;
    let mut flows: Vec<_> = (0..count).map(|number| flow(1 + number as u16, &mut random)).collect();
    let key = |flow: &Flow| check::flow_key(&flow.next.to_bytes(), flow.next.link.is_none());
    let mut keys: Vec<_> = flows.iter().map(key).collect();
    let mut all = Vec::new();
    let burst = 1 + random.below(8);
    while all.len() < 80 {
        let number = random.below(count as u64) as usize;
        for _ in 0..=random.below(burst) {
            let mut hostile = packet(&mut flows[number], number, &mut keys, trusted, &mut random);
            hostile.arrival.packet.time = all.len() as u64;
            all.push(hostile);
        }
    }
    (all, keys.len())
}
