//! The bursts that a flow sends.

use super::Config;
use super::flow::GeneratedFlow;
use crate::frame::*;
use crate::random::Random;

/// A packet of a burst, and its direction: 0 (client) or 1 (server).
pub(super) type BurstPacket = (usize, Frame);

/// Returns the next burst of a flow.
pub(super) fn burst(
    flow: &mut GeneratedFlow,
    config: &Config,
    random: &mut Random,
) -> Vec<BurstPacket> {
    flow.left -= 1;
    let mut sent = Vec::new();
    let direction = usize::from(random.chance(0.6));
    let tcp = matches!(flow.directions[0].template.transport, Transport::Tcp(_));
    if let Some(clock) = &mut flow.clock {
        *clock = clock.wrapping_add(random.below(5) as u32);
    }
    if tcp && !flow.opened {
        handshake(flow, random, &mut sent);
    }
    flow.opened = true;
    match (tcp, random.below(100)) {
        (true, 0..=9) => unusual_segments(flow, direction, random, &mut sent),
        (true, 10..=15) => sent.push((direction, segment(flow, direction, 1, PSH, random))),
        _ => bulk(flow, direction, config, random, &mut sent),
    }
    if tcp && flow.left == 0 {
        let flags = if random.chance(0.2) { RST } else { FIN };
        sent.push((0, segment(flow, 0, 0, flags, random)));
    }
    for (_, packet) in &mut sent {
        let end = packet.offsets().end;
        if flow.padded && packet.link.is_some() && end < 60 {
            packet.trailer = vec![0; 60 - end];
        }
    }
    sent
}

/// Returns a TCP segment of `length` bytes. Its flags are `flags`, ACK, and those that all segments
/// of the flow have.
fn segment(
    flow: &mut GeneratedFlow,
    direction: usize,
    length: usize,
    flags: u16,
    random: &mut Random,
) -> Frame {
    let mut packet = flow.packet(direction, length, random);
    let always = if length > 0 { flow.flags } else { 0 };
    packet.tcp_mut().flags |= ACK | flags | always;
    // SYN and FIN take a sequence number each.
    flow.directions[direction].next += u64::from((flags & (SYN | FIN)).count_ones());
    packet
}

fn handshake(flow: &mut GeneratedFlow, random: &mut Random, sent: &mut Vec<BurstPacket>) {
    let mut syn = segment(flow, 0, 0, SYN, random);
    syn.tcp_mut().flags &= !ACK;
    syn.tcp_mut().acknowledgement = 0;
    syn.tcp_mut().options.splice(0..0, [2, 4, 5, 0xb4]);
    flow.catch_up(1);
    let mut answer = segment(flow, 1, 0, SYN, random);
    answer.tcp_mut().options.splice(0..0, [2, 4, 5, 0xb4]);
    flow.catch_up(0);
    let done = segment(flow, 0, 0, 0, random);
    sent.extend([(0, syn), (1, answer), (0, done)]);
}

/// Appends full-sized packets to `sent`, often with a shorter one at the end, and the
/// acknowledgements for them.
fn bulk(
    flow: &mut GeneratedFlow,
    direction: usize,
    config: &Config,
    random: &mut Random,
    sent: &mut Vec<BurstPacket>,
) {
    let full = random.between(config.burst.0, config.burst.1);
    let tail = match random.below(10) {
        0 => Some(1),
        1..=4 => Some(random.between(1, flow.mss)),
        _ => None,
    };
    let count = full + usize::from(tail.is_some());
    let per_ack = random.chance(0.5).then(|| random.pick(&[2, 4, 8]));
    let head_cwr = random.chance(0.03);
    let end = [PSH, 0, FIN | PSH][random.weighted(&[70, 28, 2])];
    for index in 0..count {
        let last = index + 1 == count;
        let length = if last { tail.unwrap_or(flow.mss) } else { flow.mss };
        let is_tcp = matches!(flow.directions[direction].template.transport, Transport::Tcp(_));
        // The clock sometimes ticks within a burst.
        if let Some(clock) = flow.clock.as_mut().filter(|_| random.chance(0.01)) {
            *clock = clock.wrapping_add(1);
        }
        let packet = if is_tcp {
            let flags = if last { end } else { 0 } | if head_cwr && index == 0 { CWR } else { 0 };
            segment(flow, direction, length, flags, random)
        } else {
            flow.packet(direction, length, random)
        };
        sent.push((direction, packet));
        if per_ack.is_some_and(|per_ack| (index + 1) % per_ack == 0) {
            acknowledge(flow, 1 - direction, random, sent);
        }
    }
}

/// Adds a pure ACK, a DCCP-Ack, or a small datagram to `sent`, in the opposite direction of the
/// data.
fn acknowledge(
    flow: &mut GeneratedFlow,
    direction: usize,
    random: &mut Random,
    sent: &mut Vec<BurstPacket>,
) {
    flow.catch_up(direction);
    let acknowledged = flow.directions[direction].acknowledged;
    let packet = match flow.directions[direction].template.transport {
        Transport::Tcp(_) => segment(flow, direction, 0, 0, random),
        Transport::Dccp(_) => flow
            .packet(direction, 0, random)
            .with_dccp(|dccp| (dccp.kind, dccp.acknowledgement) = (Dccp::ACK, Some(acknowledged))),
        _ => flow.packet(direction, 24, random),
    };
    sent.push((direction, packet));
}

/// Adds TCP segments other than data and plain ACKs to `sent`.
fn unusual_segments(
    flow: &mut GeneratedFlow,
    direction: usize,
    random: &mut Random,
    sent: &mut Vec<BurstPacket>,
) {
    let other = flow.directions[1 - direction].next as u32;
    match random.below(4) {
        // Duplicate ACKs, some of them selective.
        0 => {
            let selective = random.chance(0.5);
            for block in 1..=random.between(2, 4) as u32 {
                let mut ack = segment(flow, direction, 0, 0, random);
                if selective {
                    let mut option = sack(&[(
                        other.wrapping_add(1_448),
                        other.wrapping_add(1_448 * (block + 1)),
                    )]);
                    ack.tcp_mut().options.append(&mut option);
                }
                sent.push((direction, ack));
            }
        }
        // The same ACK with a larger window.
        1 => {
            for step in 0..2 {
                let mut ack = segment(flow, direction, 0, 0, random);
                ack.tcp_mut().window = ack.tcp_mut().window.wrapping_add(step * 64);
                sent.push((direction, ack));
            }
        }
        // A keep-alive: one byte that was acknowledged before, or none, before the next sequence
        // number.
        2 => {
            let old = u64::from(random.chance(0.5));
            flow.directions[direction].next = flow.directions[direction].next.wrapping_sub(1);
            sent.push((direction, segment(flow, direction, old as usize, 0, random)));
            flow.directions[direction].next = flow.directions[direction].next.wrapping_add(1 - old);
            sent.push((1 - direction, segment(flow, 1 - direction, 0, 0, random)));
        }
        // Several ACKs in a row, each for one more segment.
        _ => {
            for _ in 0..random.between(2, 6) {
                flow.directions[1 - direction].next =
                    flow.directions[1 - direction].next.wrapping_add(flow.mss as u64);
                acknowledge(flow, direction, random, sent);
            }
        }
    }
}
