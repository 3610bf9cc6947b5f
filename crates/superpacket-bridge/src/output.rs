//! From a packet to the ports that it leaves by: what a learning bridge does.

use std::collections::BTreeSet;
use std::sync::Arc;

use superpacket::packet::VlanTag;
use superpacket::segment::Segmenter;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::MAX_HEADER;
use superpacket_port::{Buffer, Outgoing};

use crate::bucket::{Bucket, taken_by};
use crate::consumer::{Consumer, Consuming};
use crate::counters::DropReason;
use crate::egress::Egress;
use crate::frame::{ADDRESSES, Addresses, Destination, Head, addresses, network_offset};
use crate::icmp;
use crate::loops::Arrival;
use crate::monitor::{Copies, Monitors};
use crate::multicast::{Given, Snooping, Speaker};
use crate::runtime::Shared;
use crate::settings::Forwarding;
use crate::table::{Located, Table};
use crate::vlan::{PortVlans, VlanProtocol, number};

/// So many frames are sent before the round ends: what is sent should still be in the cache.
const FLUSH_AT: usize = 256;

/// All ways out, for one thread.
#[derive(Debug)]
pub(crate) struct Output {
    /// By the ports' numbers.
    pub(crate) egress: Vec<Option<Egress>>,
    outgoing: Outgoing,
    segmenter: Segmenter,
    /// What is copied for who monitors ports.
    pub(crate) copies: Copies,
    table: Arc<Table>,
    /// Who is in which group, where the bridge listens to it.
    snooping: Option<Arc<Snooping>>,
    /// The tags by which the bridge filters, if it does.
    vlan_protocol: VlanProtocol,
    /// The table's time, as of the round's start.
    tick: u64,
    /// How many senders of packets that are too long are told so.
    answers: Arc<Bucket>,
    /// A loop is suspected, as of the round's start.
    loop_suspected: bool,
    /// Ports that turned out to be gone, and which opening of them.
    pub(crate) broken: BTreeSet<(u16, u32)>,
    /// Takes the packets instead of the bridge.
    consuming: Option<Consuming>,
    /// When it wants to be called, in nanoseconds.
    pub(crate) next_call: Option<u64>,
    /// The time of the round, in nanoseconds.
    now: u64,
    /// Packets that have come since the last time that all was sent.
    unsent: u64,
}

impl Output {
    /// No way out. Packets are bridged.
    pub(crate) fn new(table: Arc<Table>, answers: Arc<Bucket>) -> Self {
        Output {
            egress: Vec::new(),
            outgoing: Outgoing::new(),
            segmenter: Segmenter::new(),
            copies: Copies::default(),
            table,
            snooping: None,
            vlan_protocol: VlanProtocol::default(),
            tick: 0,
            answers,
            loop_suspected: false,
            broken: BTreeSet::new(),
            consuming: None,
            next_call: None,
            now: 0,
            unsent: 0,
        }
    }

    /// The same, which listens to who is in which group, or does not.
    pub(crate) fn with_snooping(self, snooping: Option<Arc<Snooping>>) -> Self {
        Output { snooping, ..self }
    }

    /// The same, where tags of this protocol say a packet's VLAN.
    pub(crate) fn with_vlan_protocol(self, vlan_protocol: VlanProtocol) -> Self {
        Output { vlan_protocol, ..self }
    }

    /// Gives all packets to this consumer from now on.
    pub(crate) fn set_consumer(&mut self, consumer: Option<Box<dyn Consumer>>) {
        self.consuming = consumer.map(Consuming::new);
    }

    /// A round begins, at this time in nanoseconds.
    pub(crate) fn begin(&mut self, now: u64) {
        self.now = now;
        self.tick = self.table.now();
        self.loop_suspected = self.table.loops.is_suspected(self.tick);
    }

    /// Sends a packet, received by port `from`, on its way.
    pub(crate) fn forward(&mut self, from: &Shared, mut packet: SuperPacket<'_, Buffer>) {
        let packets = u64::from(packet.metadata.packets);
        self.unsent += packets;
        if self.consuming.is_some() {
            return self.consume(from, packet);
        }
        let came_by = self.egress.get(usize::from(from.number)).and_then(Option::as_ref);
        let vlans = came_by.and_then(|egress| egress.vlans.as_deref());
        let tag = match vlans.map(|vlans| vlans.admit(packet.metadata.vlan, self.vlan_protocol)) {
            None => None,
            Some(None) => return from.counts.dropped(DropReason::Vlan, packets),
            // From here on it says the packet's VLAN, and the addresses are of that VLAN.
            Some(tag) => {
                packet.metadata.vlan = tag;
                tag
            }
        };
        let rules = came_by.map_or_else(Forwarding::default, |egress| egress.runtime.forwarding);
        let head = Head::new(&packet, ADDRESSES);
        let Some(addresses) = addresses(head.bytes(&packet), &packet.metadata) else {
            return from.counts.dropped(DropReason::Malformed, packets);
        };
        match addresses.source {
            Some(_) if !rules.learning => {}
            Some(source) => self.table.learn(source, from.number, self.tick),
            None if packet.metadata.layer == superpacket::packet::Layer::Ethernet => {
                return from.counts.dropped(DropReason::Malformed, packets);
            }
            None => {}
        }
        let located = match addresses.destination {
            Destination::Station(key) => self.table.find(key, from.number, self.tick),
            Destination::Many | Destination::All => None,
            Destination::Neighbour => return from.counts.dropped(DropReason::Reserved, packets),
        };
        let known = located.map(|located| located.port);
        let is_disputed = located.is_some_and(|located| located.is_disputed);
        if known.is_none() && is_storm(from, &packet, &addresses.destination, self.now) {
            return from.counts.dropped(DropReason::Storm, packets);
        }
        let given = match (&self.snooping, addresses.destination) {
            (Some(snooping), Destination::Many) => {
                listen(snooping, from, rules.isolated, &packet, tag, self.now)
            }
            _ => Given::All,
        };
        // What is for a disputed address goes to two ports, which may be a loop's.
        if known.is_none() && self.loop_suspected || is_disputed {
            // Only what is delivered is remembered. What a copy says of groups was heard above: a
            // port's report counts although somebody has sent the same ahead.
            let is_delivered = is_disputed
                || flooded_to(
                    &mut self.egress,
                    from.number,
                    rules,
                    &addresses.destination,
                    tag,
                    &given,
                )
                .is_ok();
            let by = Arrival { port: from.number, is_isolated: rules.isolated };
            if is_delivered && self.table.loops.has_come_round(by, &packet, &given, self.tick) {
                return from.counts.dropped(DropReason::Loop, packets);
            }
        }
        let (known, other) = match located {
            Some(located) if is_disputed => {
                self.dispute(located, from, &addresses, rules, tag, packets)
            }
            _ => (known, None),
        };
        let Output { egress, outgoing, segmenter, table, now, .. } = self;
        let now = *now;
        let staged = outgoing.stage(&packet);
        let mut waiting = 0;
        // The MTU that a packet was too long for, where its sender is to be told. One that is
        // flooded may well have reached its destination by another port.
        let (mut exceeded_mtu, mut fits) = (None, false);
        let mut send = |egress: &mut Egress| {
            if let (Some(vlans), Some(tag)) = (&egress.vlans, tag) {
                packet.metadata.vlan = vlans.leave(tag);
            }
            if egress.add(outgoing, &staged, &packet, segmenter, now) {
                fits = true;
            } else {
                exceeded_mtu = exceeded_mtu.max(Some(egress.runtime.mtu));
            }
            waiting = waiting.max(egress.waiting());
        };
        match known.and_then(|port| egress.get_mut(usize::from(port))) {
            Some(Some(_)) if known == Some(from.number) => {
                from.counts.filtered.add(packets);
                return;
            }
            Some(Some(egress)) if !egress.is_in(tag) => {
                return from.counts.dropped(DropReason::Vlan, packets);
            }
            Some(Some(egress)) if rules.isolated && egress.runtime.forwarding.isolated => {
                return from.counts.dropped(DropReason::Forwarding, packets);
            }
            Some(Some(egress)) => {
                send(egress);
                if let Some(Some(egress)) =
                    other.and_then(|port| self.egress.get_mut(usize::from(port)))
                {
                    send(egress);
                }
            }
            // Its port is gone for now: nobody else is given what is for the station.
            _ if known.is_some() && is_static(table, &addresses.destination) => {
                return from.counts.dropped(DropReason::NoPort, packets);
            }
            _ => {
                match flooded_to(egress, from.number, rules, &addresses.destination, tag, &given) {
                    Ok(ports) => ports.for_each(&mut send),
                    Err(reason) => return from.counts.dropped(reason, packets),
                }
            }
        }
        if let Some(mtu) = exceeded_mtu.filter(|_| !fits) {
            if let (Some(vlans), Some(tag)) = (self.vlans_of(from), tag) {
                packet.metadata.vlan = vlans.leave(tag);
            }
            self.answer(from, &packet, mtu);
        }
        self.outgoing.keep(staged, &mut packet);
        if waiting >= FLUSH_AT {
            self.send();
        }
    }

    /// Returns the ports that a packet for a disputed address goes to, of those that it may leave
    /// by. It is counted if these are two, and the log says so now and then.
    #[cold]
    fn dispute(
        &self,
        located: Located,
        from: &Shared,
        addresses: &Addresses,
        rules: Forwarding,
        tag: Option<VlanTag>,
        packets: u64,
    ) -> (Option<u16>, Option<u16>) {
        let way_out = |port: u16| {
            let egress = self.egress.get(usize::from(port))?.as_ref()?;
            (egress.is_in(tag) && !(rules.isolated && egress.runtime.forwarding.isolated))
                .then_some(egress)
        };
        let other = located.other.and_then(way_out);
        let (Some(seen), Some(other)) = (way_out(located.port), other) else {
            // Why it may leave by neither, the packet's way says.
            return (other.map_or(Some(located.port), |other| Some(other.shared.number)), None);
        };
        from.counts.disputed.add(packets);
        if self.table.may_warn(self.tick) {
            let station = match addresses.destination {
                Destination::Station(key) => key.station(),
                _ => None,
            };
            let address =
                station.map_or_else(|| "an IP address".to_owned(), |station| station.to_string());
            tracing::warn!(
                address,
                first = other.shared.name,
                last = seen.shared.name,
                "an address was seen at two ports: what is for it goes to both, until it is heard at the first again"
            );
        }
        (Some(located.port), located.other)
    }

    /// The VLANs of a port, where the bridge filters by them.
    #[cold]
    fn vlans_of(&self, port: &Shared) -> Option<&PortVlans> {
        self.egress.get(usize::from(port.number))?.as_ref()?.vlans.as_deref()
    }

    /// Monitors have come or gone.
    pub(crate) fn refresh_copies(&mut self, monitors: &Monitors) {
        let ports = self.egress.iter().flatten();
        self.copies.refresh(monitors, ports.map(|egress| &*egress.shared));
    }

    /// Gives a packet to the consumer.
    fn consume(&mut self, from: &Shared, packet: SuperPacket<'_, Buffer>) {
        let packets = u64::from(packet.metadata.packets);
        let Output { consuming: Some(consuming), egress, outgoing, segmenter, .. } = self else {
            return;
        };
        let Some(Some(egress)) = egress.get_mut(usize::from(from.number)) else {
            return from.counts.dropped(DropReason::NoPort, packets);
        };
        let (consumer, mut end) = consuming.split(egress, outgoing, segmenter, self.now);
        consumer.receive(packet, self.now, &mut end);
        if egress.waiting() >= FLUSH_AT {
            self.send();
        }
    }

    /// Tells the sender of a packet that it is too long.
    #[cold]
    fn answer(&mut self, from: &Shared, packet: &SuperPacket<'_, Buffer>, mtu: usize) {
        if !self.answers.take(1, self.now) {
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

    /// Ends a batch: the consumer, if there is one, may act, then all that waits is sent.
    pub(crate) fn flush(&mut self) {
        let Output { consuming, egress, outgoing, segmenter, .. } = self;
        if let Some(consuming) = consuming
            && let Some(egress) = egress.iter_mut().flatten().next()
        {
            let (consumer, mut end) = consuming.split(egress, outgoing, segmenter, self.now);
            self.next_call = consumer.poll(self.now, &mut end);
        }
        self.send();
    }

    /// Forgets all that waits, after a panic; says how many packets may be lost with it.
    pub(crate) fn abandon(&mut self) -> u64 {
        self.egress.iter_mut().flatten().for_each(Egress::abandon);
        self.outgoing.clear();
        self.copies.abandon();
        self.next_call = None;
        std::mem::take(&mut self.unsent)
    }

    /// Sends all that waits, and lets go of the buffers.
    fn send(&mut self) {
        for egress in self.egress.iter_mut().flatten().filter(|egress| egress.waiting() != 0) {
            if egress.flush(&mut self.outgoing, &mut self.segmenter, &mut self.copies).is_err() {
                self.broken.insert((egress.shared.number, egress.opening));
            }
        }
        self.outgoing.clear();
        self.unsent = 0;
    }
}

/// Listens to a packet for many, with this tag where the bridge filters by VLAN; says who is given
/// it.
fn listen(
    snooping: &Snooping,
    from: &Shared,
    is_isolated: bool,
    packet: &SuperPacket<'_, Buffer>,
    tag: Option<VlanTag>,
    now: u64,
) -> Given {
    // Where the bridge does not know of VLANs, what is in one says nothing of what is not.
    if tag.is_none() && packet.metadata.vlan.is_some() {
        return Given::All;
    }
    let given =
        snooping.listen(Speaker::new(from.number, is_isolated), tag.map_or(0, number), packet, now);
    if given == Given::AllOfMalformed {
        from.counts.mcast_malformed.add(1);
    }
    given
}

/// The ports that are given what is flooded by port `from`, with its rules, and with this tag where
/// the bridge filters by VLAN; of what is for many, `given` says to whom it goes. Why there are
/// none.
fn flooded_to<'a>(
    egress: &'a mut [Option<Egress>],
    from: u16,
    rules: Forwarding,
    destination: &'a Destination,
    tag: Option<VlanTag>,
    given: &'a Given,
) -> Result<impl Iterator<Item = &'a mut Egress>, DropReason> {
    let is_given = move |egress: &Egress| {
        let to = &egress.runtime.forwarding;
        let flood = match (destination, given) {
            (Destination::Station(_), _) => to.flood,
            // It has asked for it.
            (Destination::Many, Given::Ports(ports)) => ports.has(egress.shared.number),
            (Destination::Many, _) => to.mcast_flood,
            (Destination::All | Destination::Neighbour, _) => to.bcast_flood,
        };
        flood && !(rules.isolated && to.isolated)
    };
    let mut others =
        egress.iter_mut().flatten().filter(move |egress| egress.shared.number != from).peekable();
    if others.peek().is_none() {
        return Err(DropReason::NoPort);
    }
    let mut others = others.filter(move |egress| egress.is_in(tag)).peekable();
    if others.peek().is_none() {
        return Err(DropReason::Vlan);
    }
    let reason = if matches!(given, Given::Ports(_)) {
        DropReason::Multicast
    } else {
        DropReason::Forwarding
    };
    let mut ports = others.filter(move |egress| is_given(egress)).peekable();
    if ports.peek().is_none() { Err(reason) } else { Ok(ports) }
}

/// Is this more than the port that it came by may send to many? What is for a known station whose
/// port is gone for the moment is none of it.
fn is_storm(
    from: &Shared,
    packet: &SuperPacket<'_, Buffer>,
    destination: &Destination,
    now: u64,
) -> bool {
    let bucket = match destination {
        Destination::Station(_) => &from.buckets.storm_unknown,
        Destination::Many => &from.buckets.storm_multicast,
        Destination::All | Destination::Neighbour => &from.buckets.storm_broadcast,
    };
    bucket.is_limited() && !bucket.take(taken_by(packet).0, now)
}

/// Is there a static entry for it?
#[cold]
fn is_static(table: &Table, destination: &Destination) -> bool {
    matches!(destination, Destination::Station(key) if table.static_port(*key).is_some())
}

#[cfg(test)]
mod tests;
