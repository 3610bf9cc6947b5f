//! Forwards packets to egress ports, as a learning bridge does.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use superpacket::packet::VlanTag;
use superpacket::segment::Segmenter;
use superpacket::super_packet::SuperPacket;
use superpacket::wire::MAX_HEADER;
use superpacket_port::{Buffer, Outgoing};

use crate::consumer::{Consumer, ConsumerPort};
use crate::counters::DropReason;
use crate::egress::Egress;
use crate::icmp;
use crate::kernel_path::{KernelAvailability, RecentOffers};
use crate::monitor::{Copies, Monitors};
use crate::runtime::SharedPort;
use crate::settings::Forwarding;
use crate::switch::bucket::{TokenBucket, taken_by};
use crate::switch::frame::{
    ADDRESSES, Addresses, FrameDestination, PacketHead, addresses, network_offset,
};
use crate::switch::loops::IngressPort;
use crate::switch::multicast::{MessageSource, Recipients, Snooping};
use crate::switch::table::{AddressTable, Located};
use crate::switch::vlan::{PortVlans, VlanProtocol, number};

/// Number of frames after which a batch is sent before the round ends, while the frames are still
/// in the CPU's cache.
const FLUSH_AT: usize = 256;

/// Forwards the packets that one thread receives to the egress ports. Each thread that moves
/// packets has a forwarder.
#[derive(Debug)]
pub(crate) struct PacketForwarder {
    /// The sending ends of the ports, indexed by port number.
    pub(crate) egress: Vec<Option<Egress>>,
    outgoing: Outgoing,
    segmenter: Segmenter,
    /// Copies packets for monitors (`superpacket monitor`).
    pub(crate) copies: Copies,
    table: Arc<AddressTable>,
    /// The members of multicast groups; `None` without multicast snooping.
    snooping: Option<Arc<Snooping>>,
    /// The type of VLAN tag by which the bridge filters, if VLAN filtering is enabled.
    vlan_protocol: VlanProtocol,
    /// Time at the start of the round, in ticks of the address table.
    tick: u64,
    /// The rate limit of ICMP answers to packets that are too long.
    answers: Arc<TokenBucket>,
    /// Whether a loop in the network was suspected at the start of the round.
    loop_suspected: bool,
    /// Ports whose interfaces turned out to be gone: the port's number, and how often it had been
    /// reopened.
    pub(crate) broken: BTreeSet<(u16, u32)>,
    /// The consumer that takes all packets instead of the egress ports; `None` in a bridge.
    consumer_port: Option<ConsumerPort>,
    /// The time at which the consumer asked to be called next, in nanoseconds.
    pub(crate) next_call: Option<u64>,
    /// Time at the start of the round, in nanoseconds.
    now: u64,
    /// The forwarding in the kernel, once it has been set up.
    kernel: Arc<OnceLock<KernelAvailability>>,
    /// The pairs of stations that were recently offered to the kernel.
    offered: RecentOffers,
    /// Number of packets received since queued frames were last sent, which would be lost in a
    /// panic.
    unsent: u64,
}

/// The addresses of a packet that may enter the bridge, with the rules by which it is forwarded.
#[derive(Clone, Copy)]
struct Admitted {
    addresses: Addresses,
    /// The forwarding flags of the ingress port.
    rules: Forwarding,
    /// The tag that names the packet's VLAN, if the bridge filters by VLAN; otherwise `None`.
    tag: Option<VlanTag>,
}

impl PacketForwarder {
    /// Returns a forwarder without ports, which bridges packets.
    pub(crate) fn new(table: Arc<AddressTable>, answers: Arc<TokenBucket>) -> Self {
        PacketForwarder {
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
            consumer_port: None,
            next_call: None,
            now: 0,
            unsent: 0,
            kernel: Arc::default(),
            offered: RecentOffers::default(),
        }
    }

    /// Sets the cell that will hold the forwarding in the kernel once it is set up.
    pub(crate) fn with_kernel_path(self, kernel: Arc<OnceLock<KernelAvailability>>) -> Self {
        PacketForwarder { kernel, ..self }
    }

    /// Enables multicast snooping, or disables it with `None`.
    pub(crate) fn with_snooping(self, snooping: Option<Arc<Snooping>>) -> Self {
        PacketForwarder { snooping, ..self }
    }

    /// Sets the type of tag that names a packet's VLAN.
    pub(crate) fn with_vlan_protocol(self, vlan_protocol: VlanProtocol) -> Self {
        PacketForwarder { vlan_protocol, ..self }
    }

    /// Passes all packets from now on to `consumer`; with `None`, to the egress ports.
    pub(crate) fn set_consumer(&mut self, consumer: Option<Box<dyn Consumer>>) {
        self.consumer_port = consumer.map(ConsumerPort::new);
    }

    /// Starts a round of polls, at the time `now` in nanoseconds.
    pub(crate) fn begin(&mut self, now: u64) {
        self.now = now;
        self.tick = self.table.now();
        self.loop_suspected = self.table.loops.is_suspected(self.tick);
    }

    /// Forwards a packet that port `from` received, or passes it to the consumer.
    pub(crate) fn forward(&mut self, from: &SharedPort, mut packet: SuperPacket<'_, Buffer>) {
        let packets = u64::from(packet.metadata.packets);
        self.unsent += packets;
        if self.consumer_port.is_some() {
            return self.consume(from, packet);
        }
        let Some(admitted) = self.admit(from, &mut packet) else { return };
        let Admitted { addresses, rules, tag } = admitted;
        let located = match addresses.destination {
            FrameDestination::Station(key) => self.table.find(key, from.number, self.tick),
            FrameDestination::Many | FrameDestination::All => None,
            FrameDestination::Neighbour => {
                return from.counts.dropped(DropReason::Reserved, packets);
            }
        };
        let known = located.map(|located| located.port);
        let is_disputed = located.is_some_and(|located| located.is_disputed);
        if known.is_none() && is_storm(from, &packet, &addresses.destination, self.now) {
            return from.counts.dropped(DropReason::Storm, packets);
        }
        let recipients = match (&self.snooping, addresses.destination) {
            (Some(snooping), FrameDestination::Many) => {
                listen(snooping, from, rules.isolated, &packet, tag, self.now)
            }
            _ => Recipients::All,
        };
        // A packet for an address that was seen at two ports is sent to both, which may be part of
        // a loop.
        if (known.is_none() && self.loop_suspected || is_disputed)
            && self.has_come_round(from, &admitted, &recipients, &packet, is_disputed)
        {
            return from.counts.dropped(DropReason::Loop, packets);
        }
        let (known, other) = match located {
            Some(located) if is_disputed => {
                self.dispute(located, from, &addresses, rules, tag, packets)
            }
            _ => (known, None),
        };
        self.offer(from, known, &addresses);
        let PacketForwarder { egress, outgoing, segmenter, table, now, .. } = self;
        let now = *now;
        outgoing.stage(&packet);
        let mut waiting = 0;
        // The MTU to report to the sender. A flooded packet is not reported if it fits any port,
        // since it may have reached its destination there.
        let (mut exceeded_mtu, mut fits) = (None, false);
        let mut send = |egress: &mut Egress| {
            if let (Some(vlans), Some(tag)) = (&egress.vlans, tag) {
                packet.metadata.vlan = vlans.leave(tag);
            }
            if egress.add(outgoing, &packet, segmenter, now) {
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
            // The destination has a static entry, but its port is closed for now. No other port may
            // get the packet.
            _ if known.is_some() && is_static(table, &addresses.destination) => {
                return from.counts.dropped(DropReason::NoPort, packets);
            }
            _ => {
                match flooded_to(
                    egress,
                    from.number,
                    rules,
                    &addresses.destination,
                    tag,
                    &recipients,
                ) {
                    Ok(ports) => ports.for_each(&mut send),
                    Err(reason) => return from.counts.dropped(reason, packets),
                }
            }
        }
        if let Some(mtu) = exceeded_mtu.filter(|_| !fits) {
            if let (Some(vlans), Some(tag)) = (self.vlans_of(from), tag) {
                packet.metadata.vlan = vlans.leave(tag);
            }
            self.send_too_big(from, &packet, mtu);
        }
        self.outgoing.keep(&mut packet);
        if waiting >= FLUSH_AT {
            self.send();
        }
    }

    /// Checks the VLAN and the addresses of a packet, and learns its source. Returns `None` if the
    /// packet is dropped.
    #[inline(always)]
    fn admit(
        &mut self,
        from: &SharedPort,
        packet: &mut SuperPacket<'_, Buffer>,
    ) -> Option<Admitted> {
        let packets = u64::from(packet.metadata.packets);
        let from_egress = self.egress.get(usize::from(from.number)).and_then(Option::as_ref);
        let vlans = from_egress.and_then(|egress| egress.vlans.as_deref());
        let tag = match vlans.map(|vlans| vlans.admit(packet.metadata.vlan, self.vlan_protocol)) {
            None => None,
            Some(None) => {
                from.counts.dropped(DropReason::Vlan, packets);
                return None;
            }
            // From here on, the metadata's tag names the packet's VLAN, and addresses are looked up
            // in that VLAN.
            Some(tag) => {
                packet.metadata.vlan = tag;
                tag
            }
        };
        let rules =
            from_egress.map_or_else(Forwarding::default, |egress| egress.runtime.forwarding);
        let head = PacketHead::new(packet, ADDRESSES);
        let Some(addresses) = addresses(head.bytes(packet), &packet.metadata) else {
            from.counts.dropped(DropReason::Malformed, packets);
            return None;
        };
        match addresses.source {
            Some(_) if !rules.learning => {}
            Some(source) => self.table.learn(source, from.number, self.tick),
            None if packet.metadata.layer == superpacket::packet::Layer::Ethernet => {
                from.counts.dropped(DropReason::Malformed, packets);
                return None;
            }
            None => {}
        }
        Some(Admitted { addresses, rules, tag })
    }

    /// Offers the source and destination stations of a packet to the kernel, if it may forward
    /// later frames between the packet's two ports.
    #[inline]
    fn offer(&mut self, from: &SharedPort, to: Option<u16>, addresses: &Addresses) {
        if let (Some(to), Some(Ok(kernel))) = (to, self.kernel.get())
            && kernel.joins(from.number, to)
        {
            self.offered.offer(kernel, &self.table, addresses, self.tick);
        }
    }

    /// Returns whether a packet has returned through a loop. Packets that would not reach any port
    /// are not checked.
    #[inline]
    fn has_come_round(
        &mut self,
        from: &SharedPort,
        admitted: &Admitted,
        recipients: &Recipients,
        packet: &SuperPacket<'_, Buffer>,
        is_disputed: bool,
    ) -> bool {
        let Admitted { addresses, rules, tag } = admitted;
        // Only packets that leave by a port are recorded. Snooping has already seen this copy, so a
        // membership report counts even if another host replayed it earlier.
        let is_delivered = is_disputed
            || flooded_to(
                &mut self.egress,
                from.number,
                *rules,
                &addresses.destination,
                *tag,
                recipients,
            )
            .is_ok();
        let by = IngressPort { port: from.number, is_isolated: rules.isolated };
        is_delivered && self.table.loops.has_come_round(by, packet, recipients, self.tick)
    }

    /// Returns the one or two ports to which a packet is sent whose destination was seen at two
    /// ports. Only ports that may receive the packet are returned. If there are two, the packet is
    /// counted, and logged now and then.
    #[cold]
    fn dispute(
        &self,
        located: Located,
        from: &SharedPort,
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
            // If neither port is allowed, the caller finds the reason, and counts the drop.
            return (other.map_or(Some(located.port), |other| Some(other.shared.number)), None);
        };
        from.counts.disputed.add(packets);
        if self.table.may_warn(self.tick) {
            let station = match addresses.destination {
                FrameDestination::Station(key) => key.station(),
                _ => None,
            };
            let address =
                station.map_or_else(|| "an IP address".to_owned(), |station| station.to_string());
            tracing::warn!(
                address,
                first = other.shared.name,
                last = seen.shared.name,
                "an address was seen at two ports: its packets go to both, until it is seen at the first again"
            );
        }
        (Some(located.port), located.other)
    }

    /// Returns the VLANs of a port; `None` if the bridge does not filter by VLAN.
    #[cold]
    fn vlans_of(&self, port: &SharedPort) -> Option<&PortVlans> {
        self.egress.get(usize::from(port.number))?.as_ref()?.vlans.as_deref()
    }

    /// Updates the list of monitors.
    pub(crate) fn refresh_copies(&mut self, monitors: &Monitors) {
        let ports = self.egress.iter().flatten();
        self.copies.refresh(monitors, ports.map(|egress| &*egress.shared));
    }

    /// Passes a packet to the consumer.
    fn consume(&mut self, from: &SharedPort, packet: SuperPacket<'_, Buffer>) {
        let packets = u64::from(packet.metadata.packets);
        let PacketForwarder {
            consumer_port: Some(consumer_port), egress, outgoing, segmenter, ..
        } = self
        else {
            return;
        };
        let Some(Some(egress)) = egress.get_mut(usize::from(from.number)) else {
            return from.counts.dropped(DropReason::NoPort, packets);
        };
        let (consumer, mut end) = consumer_port.split(egress, outgoing, segmenter, self.now);
        consumer.receive(packet, self.now, &mut end);
        if egress.waiting() >= FLUSH_AT {
            self.send();
        }
    }

    /// Tells the sender of a packet by ICMP that it is too long.
    #[cold]
    fn send_too_big(&mut self, from: &SharedPort, packet: &SuperPacket<'_, Buffer>, mtu: usize) {
        if !self.answers.take(1, self.now) {
            return;
        }
        let head = PacketHead::new(packet, MAX_HEADER);
        let bytes = head.bytes(packet);
        let network = network_offset(bytes, &packet.metadata);
        let Some(answer) = icmp::too_big(bytes, network, packet.metadata.vlan, mtu) else { return };
        if let Some(Some(egress)) = self.egress.get_mut(usize::from(from.number)) {
            egress.add_bytes(&mut self.outgoing, &answer, packet.metadata.layer);
        }
    }

    /// Ends a batch: calls the consumer, if there is one, and sends all queued frames of all ports.
    pub(crate) fn flush(&mut self) {
        let PacketForwarder { consumer_port, egress, outgoing, segmenter, .. } = self;
        if let Some(consumer_port) = consumer_port
            && let Some(egress) = egress.iter_mut().flatten().next()
        {
            let (consumer, mut end) = consumer_port.split(egress, outgoing, segmenter, self.now);
            self.next_call = consumer.poll(self.now, &mut end);
        }
        self.send();
    }

    /// Discards all waiting frames after a panic, and returns how many packets may be lost with
    /// them.
    pub(crate) fn abandon(&mut self) -> u64 {
        self.egress.iter_mut().flatten().for_each(Egress::abandon);
        self.outgoing.clear();
        self.copies.abandon();
        self.next_call = None;
        std::mem::take(&mut self.unsent)
    }

    /// Sends the waiting frames of all ports, and releases their buffers.
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

/// Lets multicast snooping learn from a packet, and returns the packet's recipients. `tag` is its
/// VLAN tag if the bridge filters by VLAN.
fn listen(
    snooping: &Snooping,
    from: &SharedPort,
    is_isolated: bool,
    packet: &SuperPacket<'_, Buffer>,
    tag: Option<VlanTag>,
    now: u64,
) -> Recipients {
    // Without VLAN filtering, groups in a VLAN are not told apart from untagged groups, so a tagged
    // packet is not used.
    if tag.is_none() && packet.metadata.vlan.is_some() {
        return Recipients::All;
    }
    let recipients = snooping.listen(
        MessageSource::new(from.number, is_isolated),
        tag.map_or(0, number),
        packet,
        now,
    );
    if recipients == Recipients::AllMalformed {
        from.counts.mcast_malformed.add(1);
    }
    recipients
}

/// Returns the ports to which a packet from port `from` is flooded. The choice depends on the
/// forwarding flags of the ingress and egress ports, on the VLAN tag if the bridge filters by VLAN,
/// and on `recipients` for multicast.
///
/// # Errors
/// The reason for the drop if no port may receive the packet.
fn flooded_to<'a>(
    egress: &'a mut [Option<Egress>],
    from: u16,
    rules: Forwarding,
    destination: &'a FrameDestination,
    tag: Option<VlanTag>,
    recipients: &'a Recipients,
) -> Result<impl Iterator<Item = &'a mut Egress>, DropReason> {
    let is_given = move |egress: &Egress| {
        let to = &egress.runtime.forwarding;
        let flood = match (destination, recipients) {
            (FrameDestination::Station(_), _) => to.flood,
            // The port has a member of the group, or leads to a router.
            (FrameDestination::Many, Recipients::Ports(ports)) => ports.has(egress.shared.number),
            (FrameDestination::Many, _) => to.mcast_flood,
            (FrameDestination::All | FrameDestination::Neighbour, _) => to.bcast_flood,
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
    let reason = if matches!(recipients, Recipients::Ports(_)) {
        DropReason::Multicast
    } else {
        DropReason::Forwarding
    };
    let mut ports = others.filter(move |egress| is_given(egress)).peekable();
    if ports.peek().is_none() { Err(reason) } else { Ok(ports) }
}

/// Returns whether a flooded packet exceeds the ingress port's storm limits. `destination` selects
/// the limit.
fn is_storm(
    from: &SharedPort,
    packet: &SuperPacket<'_, Buffer>,
    destination: &FrameDestination,
    now: u64,
) -> bool {
    let bucket = match destination {
        FrameDestination::Station(_) => &from.buckets.storm_unknown,
        FrameDestination::Many => &from.buckets.storm_multicast,
        FrameDestination::All | FrameDestination::Neighbour => &from.buckets.storm_broadcast,
    };
    bucket.is_limited() && !bucket.take(taken_by(packet).0, now)
}

/// Returns whether the address table has a static entry for the destination.
#[cold]
fn is_static(table: &AddressTable, destination: &FrameDestination) -> bool {
    matches!(destination, FrameDestination::Station(key) if table.static_port(*key).is_some())
}

#[cfg(test)]
mod tests;
