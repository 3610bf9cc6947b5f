//! From a packet to the ports that it leaves by: what a learning bridge does.

use std::sync::Arc;
use std::time::Instant;

use superpacket::Simd;
use superpacket::segment::Segmenter;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::MAX_HEADER;
use superpacket_io::port::{Buffer, Outgoing};

use crate::counters::Drop;
use crate::egress::Egress;
use crate::frame::{ADDRESSES, Destination, Head, addresses, network_offset};
use crate::icmp::{self, RateLimit};
use crate::runtime::Shared;
use crate::table::{Learned, Table};

/// So many frames are sent before the round ends: what is sent should still be in the cache.
const FLUSH_AT: usize = 256;

/// Answers to packets that are too long, a second.
const ANSWERS: u32 = 100;

/// All ways out, for one thread.
#[derive(Debug)]
pub(crate) struct Output {
    /// By the ports' numbers.
    pub(crate) egress: Vec<Option<Egress>>,
    outgoing: Outgoing,
    segmenter: Segmenter,
    table: Arc<Table>,
    /// The table's time, as of the round's start.
    tick: u64,
    answers: RateLimit,
    /// Ports that turned out to be gone.
    pub(crate) broken: Vec<u16>,
}

impl Output {
    /// No way out.
    pub(crate) fn new(table: Arc<Table>) -> Self {
        Output {
            egress: Vec::new(),
            outgoing: Outgoing::new(),
            segmenter: Segmenter::new(Simd::detect()),
            table,
            tick: 0,
            answers: RateLimit::new(ANSWERS),
            broken: Vec::new(),
        }
    }

    /// A round begins.
    pub(crate) fn begin(&mut self) {
        self.tick = self.table.now();
    }

    /// Sends a packet, received by port `from`, on its way.
    pub(crate) fn forward(&mut self, from: &Shared, mut packet: SuperPacket<'_, Buffer>) {
        let packets = u64::from(packet.metadata.packets);
        let head = Head::new(&packet, ADDRESSES);
        let Some(addresses) = addresses(head.bytes(&packet), &packet.metadata) else {
            return from.counts.dropped(Drop::Malformed, packets);
        };
        match addresses.source.map(|source| self.table.learn(source, from.number, self.tick)) {
            Some(Learned::Here) => {}
            Some(Learned::Loop) => return from.counts.dropped(Drop::Loop, packets),
            None if packet.metadata.layer == superpacket::packet::Layer::Ethernet => return from.counts.dropped(Drop::Malformed, packets),
            None => {}
        }
        let known = match addresses.destination {
            Destination::Station(key) => self.table.find(key, self.tick),
            Destination::Many => None,
            Destination::Neighbour => return from.counts.dropped(Drop::Reserved, packets),
        };
        let Output { egress, outgoing, segmenter, .. } = self;
        let staged = outgoing.stage(&packet);
        let mut waiting = 0;
        // The MTU that a packet was too long for, where its sender is to be told.
        let mut told = None;
        let mut send = |egress: &mut Egress| {
            if !egress.add(outgoing, &staged, &packet, segmenter) {
                told = Some(egress.runtime.mtu);
            }
            waiting = waiting.max(egress.waiting());
        };
        match known.and_then(|port| egress.get_mut(usize::from(port))) {
            Some(Some(_)) if known == Some(from.number) => {
                from.counts.filtered.add(packets);
                return;
            }
            Some(Some(egress)) => send(egress),
            _ => {
                let mut others = egress.iter_mut().flatten().filter(|egress| egress.shared.number != from.number).peekable();
                if others.peek().is_none() {
                    return from.counts.dropped(Drop::NoPort, packets);
                }
                others.for_each(send);
            }
        }
        if let Some(mtu) = told {
            self.answer(from, &packet, mtu);
        }
        self.outgoing.keep(staged, &mut packet);
        if waiting >= FLUSH_AT {
            self.flush();
        }
    }

    /// Tells the sender of a packet that it is too long.
    #[cold]
    fn answer(&mut self, from: &Shared, packet: &SuperPacket<'_, Buffer>, mtu: usize) {
        if !self.answers.allows(Instant::now()) {
            return;
        }
        let head = Head::new(packet, MAX_HEADER);
        let bytes = head.bytes(packet);
        let network = network_offset(bytes, &packet.metadata);
        let Some(answer) = icmp::too_big(bytes, network, packet.metadata.vlan, mtu) else { return };
        if let Some(Some(egress)) = self.egress.get_mut(usize::from(from.number)) {
            egress.add_bytes(&mut self.outgoing, &answer, packet.metadata.layer);
        }
    }

    /// Sends all that waits, and lets go of the buffers.
    pub(crate) fn flush(&mut self) {
        for egress in self.egress.iter_mut().flatten().filter(|egress| egress.waiting() != 0) {
            if egress.flush(&mut self.outgoing, &mut self.segmenter).is_err() {
                self.broken.push(egress.shared.number);
            }
        }
        self.outgoing.clear();
    }
}
