//! Packets that were received as super-packets merge further, and come apart again into the
//! segments that each of them stood for.

mod generated;
mod hostile;
mod rules;

use superpacket::aggregate::{HashKey, Policy, Reason, Storage};
use superpacket::packet::RxPacket;
use superpacket::segment::{Cwr, Gso, GsoKind, IpId, SegmentSize};
use superpacket::super_packet::SuperPacket;
use superpacket_traffic::frame::{CWR, Checksum, FIN, Frame, Ip, PSH, Transport};

use crate::expect::partial;
use crate::support::{Aggregator, Output, Packet, VERIFIED};

/// What the device says of a packet's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing, and it is right.
    Nothing,
    /// That it is right.
    Verified,
    /// That it is right, which is true of the segments; the field is that of nothing.
    Vouched,
    /// That it is still to be filled in.
    Partial,
}

/// A packet as it is received, and the frames that it stands for.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub packet: Packet,
    pub gso: Option<Gso>,
    pub frames: Vec<Vec<u8>>,
}

impl Arrival {
    /// Several frames of a flow as one super-packet, or one as itself.
    pub fn of(frames: &[Frame], known: Known) -> Self {
        let (first, last) = (&frames[0], &frames[frames.len() - 1]);
        let mut whole = first.clone();
        whole.payload = frames.iter().flat_map(|frame| frame.payload.clone()).collect();
        if let (Transport::Tcp(whole), Transport::Tcp(last)) =
            (&mut whole.transport, &last.transport)
        {
            whole.flags |= last.flags & (PSH | FIN);
        }
        let in_form = |frame: &Frame| {
            if known == Known::Partial { partial(frame) } else { Packet::from(frame) }
        };
        let mut packet = in_form(&whole);
        if known == Known::Vouched {
            whole.set_checksum(Checksum::Wrong);
            packet = Packet::from(&whole);
        }
        if matches!(known, Known::Verified | Known::Vouched) {
            packet.checksum = VERIFIED;
        }
        let gso = (frames.len() > 1).then(|| gso(frames));
        Arrival { packet, gso, frames: frames.iter().map(|frame| in_form(frame).bytes).collect() }
    }

    /// The same, to be cut otherwise.
    pub fn cut_by(mut self, edit: impl FnOnce(Gso) -> Gso) -> Self {
        self.gso = self.gso.map(edit);
        self
    }

    /// What the engine is given.
    pub fn receive(&self) -> RxPacket<Vec<u8>> {
        let mut packet = self.packet.receive();
        packet.gso = self.gso;
        packet
    }
}

/// How the super-packet of these frames is cut into them.
fn gso(frames: &[Frame]) -> Gso {
    let kind = match (&frames[0].transport, &frames[0].ip) {
        (Transport::Tcp(_), Ip::V4(_)) => GsoKind::Tcp4,
        (Transport::Tcp(_), Ip::V6(_)) => GsoKind::Tcp6,
        (Transport::Dccp(_), _) => GsoKind::Dccp,
        _ => GsoKind::Udp,
    };
    let size = SegmentSize::new(frames[0].payload.len()).expect("a payload");
    let form = |first: &Ip, second: &Ip| match (first, second) {
        (Ip::V4(first), Ip::V4(second)) if first.id == second.id => IpId::Fixed,
        _ => IpId::Increment,
    };
    let outer = match (&frames[0].tunnel, &frames[1].tunnel) {
        (Some(first), Some(second)) => form(&first.ip, &second.ip),
        _ => IpId::Increment,
    };
    let cwr =
        |frame: &Frame| matches!(&frame.transport, Transport::Tcp(tcp) if tcp.flags & CWR != 0);
    let all = if cwr(&frames[1]) { Cwr::All } else { Cwr::First };
    Gso::new(kind, size)
        .with_id(form(&frames[0].ip, &frames[1].ip))
        .with_outer_id(outer)
        .with_cwr(all)
}

/// Frames as super-packets of so many each; what is left is one more packet.
pub fn grouped(frames: &[Frame], count: usize, known: Known) -> Vec<Arrival> {
    frames.chunks(count).map(|frames| Arrival::of(frames, known)).collect()
}

/// What comes out if this is received in batches of `size`, all in one poll.
pub fn run(policy: Policy, arrivals: &[Arrival], size: usize) -> Vec<Output> {
    let mut aggregator: Aggregator<Vec<u8>> = Aggregator::new(policy, HashKey::new(0x5eed));
    let mut outputs = Vec::new();
    let mut sink = |packet: SuperPacket<'_, Vec<u8>>| outputs.push(Output::of(&packet));
    for batch in arrivals.chunks(size) {
        aggregator.receive_batch(&mut batch.iter().map(Arrival::receive).collect(), 0, &mut sink);
        assert!(aggregator.counters().balanced(), "{:?}", aggregator.counters());
    }
    aggregator.poll_end(0, &mut sink);
    let counters = *aggregator.counters();
    assert_eq!((counters.held, counters.held_bytes), (0, 0));
    assert_eq!(counters.packets_in, arrivals.len() as u64);
    outputs
}

/// Of each packet that comes out: for how many received packets and segments it stands, and why it
/// left.
pub type Out = (u32, usize, Reason);

/// Arrivals of one flow come out so, whether taken one by one or at once, in one buffer or many;
/// cut again they are the frames that the arrivals stood for, in their order.
#[track_caller]
pub fn arrive(policy: Policy, arrivals: &[Arrival], expected: &[Out]) -> Vec<Output> {
    let scattered: Vec<_> = arrivals
        .iter()
        .map(|arrival| Arrival {
            packet: arrival
                .packet
                .clone()
                .in_buffers_of(arrival.packet.bytes.len().div_ceil(17).max(50)),
            ..arrival.clone()
        })
        .collect();
    let frames: Vec<_> = arrivals.iter().flat_map(|arrival| arrival.frames.clone()).collect();
    for size in [1, arrivals.len()] {
        for arrivals in [arrivals, &scattered] {
            for policy in
                [policy, policy.with_storage(Storage::Linear), policy.with_partial_checksums()]
            {
                let outputs = run(policy, arrivals, size);
                let cut: Vec<_> = outputs.iter().map(Output::cut).collect();
                let found: Vec<Out> = outputs
                    .iter()
                    .zip(&cut)
                    .map(|(output, cut)| {
                        (output.metadata.packets, cut.len(), output.metadata.reason)
                    })
                    .collect();
                assert_eq!(found, expected, "{policy:?}, {size} at a time");
                for (index, (found, expected)) in cut.into_iter().flatten().zip(&frames).enumerate()
                {
                    assert_eq!(&found, expected, "frame {index}: {policy:?}");
                }
            }
        }
    }
    run(policy, arrivals, arrivals.len())
}
