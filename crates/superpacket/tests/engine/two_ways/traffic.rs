//! Streams of one or several flows in which packets are changed.

use superpacket::aggregate::{Mode, Policy};
use superpacket::packet::{Layer, RxChecksum};
use superpacket_traffic::checksum;
use superpacket_traffic::frame::{ACK, Checksum, Frame, Ip, Transport, stream_bytes};

use super::change::{CHANGES, Change};
use crate::support::{Packet, VERIFIED};

/// A packet as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub packet: Packet,
    /// The device says that it is one already.
    pub super_packet: bool,
}

/// The packet of a stream that is changed where just one is: enough come before it to be in a run.
pub const CHANGED: usize = 5;

/// What the device says of a packet's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    Nothing,
    Verified,
    Complete,
    Partial,
}

impl Knowledge {
    pub const ALL: [Knowledge; 4] =
        [Knowledge::Nothing, Knowledge::Verified, Knowledge::Complete, Knowledge::Partial];

    /// The frame as a packet of which the device says this, right or wrong.
    fn of(self, frame: &Frame) -> Packet {
        let mut frame = frame.clone();
        if self == Knowledge::Partial
            && let Some(mode) = frame.checksum_mut()
            && *mode == Checksum::Right
        {
            *mode = Checksum::Partial;
        }
        let packet = Packet::from(&frame);
        let checksum = match self {
            Knowledge::Nothing => RxChecksum::None,
            Knowledge::Verified => VERIFIED,
            Knowledge::Complete => {
                let start = if packet.layer == Layer::Ethernet { 14 } else { 0 };
                RxChecksum::Complete(checksum::sum(&packet.bytes[start..]))
            }
            Knowledge::Partial => {
                let offset = if matches!(frame.transport, Transport::Udp(_)) { 6 } else { 16 };
                RxChecksum::Partial { start: frame.offsets().transport as u16, offset }
            }
        };
        packet.with_checksum(checksum)
    }
}

/// A flow: its next frame, and how its IPv4 identifications run.
#[derive(Clone, Debug)]
pub struct Flow {
    pub next: Frame,
    pub fixed_id: bool,
}

impl Flow {
    /// Goes on from this frame, with as much payload as before. What has none acknowledges more.
    fn advance(&mut self, from: &Frame) {
        let length = self.next.payload.len();
        self.next = from.following();
        if let (0, Transport::Tcp(tcp)) = (length, &mut self.next.transport) {
            tcp.acknowledgement = tcp.acknowledgement.wrapping_add(1_448);
        }
        let position =
            if let Transport::Tcp(tcp) = &self.next.transport { tcp.sequence } else { 0 };
        self.next.payload = stream_bytes(position, length);
        if let (true, Ip::V4(ip), Ip::V4(before)) = (self.fixed_id, &mut self.next.ip, &from.ip) {
            ip.id = before.id;
        }
    }

    /// The packets of these steps, all of which are its.
    pub fn stream(&self, steps: &[Step]) -> Vec<Arrival> {
        stream(core::slice::from_ref(self), steps)
    }

    /// The flow as the `number`th of several between the same hosts.
    pub fn numbered(mut self, number: u16) -> Self {
        match &mut self.next.transport {
            Transport::Tcp(tcp) => tcp.source_port += number,
            Transport::Udp(udp) => udp.source_port += number,
            _ => {}
        }
        self
    }
}

/// One packet of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Which flow sends it.
    pub flow: usize,
    /// The [change](CHANGES) made to it.
    pub change: Option<usize>,
    /// The flow goes on from the changed packet, not from what it would have been.
    pub persists: bool,
    /// What the device knows of it.
    pub knowledge: Knowledge,
}

impl Step {
    pub fn plain(knowledge: Knowledge) -> Self {
        Step { flow: 0, change: None, persists: false, knowledge }
    }
}

/// The packets of these steps.
pub fn stream(flows: &[Flow], steps: &[Step]) -> Vec<Arrival> {
    let mut flows = flows.to_vec();
    let mut arrivals = Vec::new();
    for (time, step) in steps.iter().enumerate() {
        let flow = &mut flows[step.flow];
        let plain = flow.next.clone();
        let (mut frame, mut after) = (plain.clone(), None);
        match step.change.map(|index| CHANGES[index].1) {
            Some(Change::Frame(edit)) => edit(&mut frame),
            Some(Change::Arrival(edit)) => after = Some(edit),
            None => {}
        }
        let packet = Packet { time: time as u64, ..step.knowledge.of(&frame) };
        let mut arrival = Arrival { packet, super_packet: false };
        if let Some(edit) = after {
            edit(&mut arrival);
        }
        arrivals.push(arrival);
        flow.advance(if step.persists { &frame } else { &plain });
    }
    arrivals
}

/// TCP and UDP with headers of many lengths, of all that a run is compiled for, and of what it
/// leaves alone.
pub fn flows(payload: usize) -> Vec<Flow> {
    let plain = [Frame::tcp4(1_000, payload), Frame::tcp6(u32::MAX - 250, payload)];
    let timestamps = plain.clone().map(|frame| frame.with_timestamps(u32::MAX - 2, 9));
    let datagrams = [Frame::udp4(payload), Frame::udp6(payload)];
    let ethernet = [&plain[..], &timestamps, &datagrams].concat();
    let mut frames: Vec<Frame> = ethernet.iter().map(|frame| frame.clone().at_ip()).collect();
    frames.extend(ethernet.iter().map(|frame| frame.clone().tagged(5)));
    frames.extend(ethernet);
    frames.push(Frame::tcp4(9, payload).in_pppoe());
    frames.push(Frame::tcp4(9, payload).in_vxlan4());
    frames.push(Frame::tcp6(9, payload).in_ip4());
    // Other options than a timestamp, and an IPv6 extension header.
    frames.push(Frame::tcp4(9, payload).with_tcp(|tcp| tcp.options = vec![1; 8]));
    // Headers of 94 and 114 bytes: longer than those that runs are compiled for.
    frames.push(Frame::tcp4(9, payload).with_tcp(|tcp| tcp.options = vec![1; 40]));
    frames.push(Frame::tcp6(9, payload).with_tcp(|tcp| tcp.options = vec![1; 40]));
    frames.push(Frame::tcp4(9, payload).with_flags(ACK).with_ipv4(|ip| ip.tos = 2));
    let mut flows: Vec<_> = frames.into_iter().map(|next| Flow { next, fixed_id: false }).collect();
    flows.push(Flow { next: Frame::tcp4(5, payload).with_id(77), fixed_id: true });
    flows.push(Flow { next: Frame::udp4(payload).with_id(77), fixed_id: true });
    // The packet at `CHANGED` has an identification by which the IPv4 checksum is 0.
    let mut zero = Frame::tcp4(5, payload).with_zero_header_checksum();
    let id = zero.ipv4_mut().id.wrapping_sub(CHANGED as u16);
    flows.push(Flow { next: zero.with_id(id), fixed_id: false });
    flows
}

/// The TCP flows among them as pure ACKs.
pub fn acks() -> Vec<Flow> {
    flows(0).into_iter().filter(|flow| matches!(flow.next.transport, Transport::Tcp(_))).collect()
}

impl Flow {
    /// Do its packets merge under this policy?
    pub fn joins(&self, policy: &Policy) -> bool {
        let datagrams = matches!(self.next.transport, Transport::Udp(_));
        match policy.mode {
            Mode::Gro { udp } => udp || !datagrams,
            Mode::Lro { .. } => {
                !datagrams && self.next.tunnel.is_none() && !self.has_other_options()
            }
        }
    }

    /// Do its packets join in runs, where they merge?
    pub fn may_run(&self) -> bool {
        self.next.tunnel.is_none() && self.next.pppoe.is_none()
    }

    /// Is it TCP in IP, in Ethernet without tags or by itself?
    pub fn has_usual_layout(&self) -> bool {
        self.may_run()
            && self.next.vlans.is_empty()
            && matches!(self.next.transport, Transport::Tcp(_))
    }

    /// Has it TCP options other than an aligned timestamp?
    fn has_other_options(&self) -> bool {
        matches!(&self.next.transport, Transport::Tcp(tcp) if tcp.options.starts_with(&[1, 1, 1]))
    }
}
