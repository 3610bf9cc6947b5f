//! A bridge without threads: the caller runs each round of polls, and supplies the time.
//!
//! It does the same work as a thread of [`Bridge`](crate::Bridge), but the result depends only on
//! the packets and rounds. Experiments and tests use it, as can programs with their own event loop.

use std::sync::Arc;
use std::time::Duration;

use superpacket::aggregate::HashKey;
use superpacket::packet::Layer;
use superpacket_port::{Port, PortError};
use superpacket_steer::FlowHashKey;

use crate::bridge::check_layer;
use crate::egress::Egress;
use crate::error::BridgeError;
use crate::handover::Doorbell;
use crate::icmp;
use crate::ingress::{Ingress, PollBuffer};
use crate::output::PacketForwarder;
use crate::report::PortStats;
use crate::runtime::SharedPort;
use crate::settings::MAX_PORTS;
use crate::settings::{InPlace, PortSettings, SteeringSettings};
use crate::steering::SteeringState;
use crate::switch::table::AddressTable;
use crate::switch::vlan::VlanProtocol;

/// A bridge without threads. The capabilities and MTU of a port are read once, when it joins.
#[derive(Debug)]
pub struct ThreadlessBridge {
    key: HashKey,
    /// The steering state, which has no workers: all packets are processed on the caller's thread.
    steering: Arc<SteeringState>,
    table: Arc<AddressTable>,
    output: PacketForwarder,
    ingress: Vec<Ingress>,
    poll_buffer: PollBuffer,
    ports: Vec<(Arc<SharedPort>, Box<dyn Port>)>,
    vlan_filtering: Option<VlanProtocol>,
}

impl ThreadlessBridge {
    /// Returns a bridge without ports that holds about `table_size` addresses (16 bytes each) for
    /// `ageing_time`. `key` is the key of the flow hash; it should be random if the traffic is not
    /// trusted. The process ends if there is no memory for the addresses.
    #[must_use]
    pub fn new(table_size: usize, ageing_time: Duration, key: HashKey) -> Self {
        let table = Arc::new(AddressTable::new(table_size, ageing_time));
        let output = PacketForwarder::new(table.clone(), Arc::new(icmp::rate_limit()));
        // The hash has no effect without workers.
        let steering = Arc::new(SteeringState::new(
            SteeringSettings::default(),
            None,
            FlowHashKey::new(0),
            InPlace::NEVER,
        ));
        let (ingress, ports, poll_buffer) = (Vec::new(), Vec::new(), PollBuffer::default());
        ThreadlessBridge {
            key,
            steering,
            table,
            output,
            ingress,
            poll_buffer,
            ports,
            vlan_filtering: None,
        }
    }

    /// Enables VLAN filtering for ports that join after this call. A packet passes only between
    /// ports that are members of its VLAN ([`PortSettings::vlans`]). `protocol` is the type of the
    /// tag that names the VLAN.
    #[must_use]
    pub fn with_vlan_filtering(self, protocol: VlanProtocol) -> Self {
        ThreadlessBridge {
            vlan_filtering: Some(protocol),
            output: self.output.with_vlan_protocol(protocol),
            ..self
        }
    }

    /// Adds an open port to the bridge, with `settings`; the port string in `settings` is not used.
    ///
    /// # Errors
    /// [`BridgeError::TooManyPorts`]; [`BridgeError::Layer`] if its packets start at another layer
    /// than those of the other ports; [`BridgeError::Port`] if it has no transmit end;
    /// [`BridgeError::System`] if there is no descriptor, or no memory for received packets.
    pub fn join(
        &mut self,
        settings: PortSettings,
        mut port: Box<dyn Port>,
    ) -> Result<(), BridgeError> {
        let number = self.ports.len();
        if number >= MAX_PORTS {
            return Err(BridgeError::TooManyPorts { limit: MAX_PORTS });
        }
        if self.ports.first().is_some_and(|(other, _)| other.layer != port.layer()) {
            let layer = if port.layer() == Layer::Ip { "IP" } else { "Ethernet" };
            return Err(BridgeError::Layer { port: settings.port.name().into(), layer });
        }
        check_layer(port.layer(), &settings)?;
        self.poll_buffer.reserve().map_err(|source| BridgeError::System {
            action: "taking memory for what is received",
            source,
        })?;
        let state = port.state();
        let (address_limit, static_entries) =
            (settings.limits.address_limit, settings.static_entries.clone());
        let shared =
            SharedPort::new(number as u16, settings, port.capabilities(), port.layer(), state);
        let shared = Arc::new(shared.with_vlan_filtering(self.vlan_filtering));
        self.output.egress.push(Some(Egress::new(shared.clone(), port.transmitter()?)));
        // The queues require a doorbell, although no thread ever sleeps here.
        let bell = Doorbell::new().map_err(|source| BridgeError::System {
            action: "making an event descriptor",
            source,
        })?;
        let bell = Arc::new(bell);
        for (queue, receive) in port.receivers().into_iter().enumerate() {
            let (token, steering, bell) =
                (self.ingress.len() as u64, self.steering.clone(), bell.clone());
            self.ingress.push(Ingress::new(
                shared.clone(),
                queue as u16,
                receive,
                self.key,
                steering,
                bell,
                token,
            ));
        }
        self.table.set_limit(number as u16, address_limit);
        self.table.set_static(number as u16, &static_entries);
        self.ports.push((shared, port));
        Ok(())
    }

    /// Polls every receive queue once, in the order in which the ports joined, forwards the
    /// packets, and returns their number. `now` is the time in nanoseconds of any clock. It matters
    /// only for `gro_flush_timeout`, for rate limits, and for the number of ICMP messages about
    /// packets that are too long.
    ///
    /// # Errors
    /// The first error of a port that is down or gone. The other ports have been polled all the
    /// same.
    pub fn round(&mut self, now: u64) -> Result<usize, PortError> {
        self.output.begin(now);
        self.table.expire(self.table.now());
        let (mut received, mut failed) = (0, None);
        for ingress in &mut self.ingress {
            match ingress.poll(&mut self.output, &mut self.poll_buffer, now) {
                Ok(packets) => received += packets,
                Err(error) => {
                    ingress.drain(&mut self.output, &mut self.poll_buffer);
                    failed = failed.or(Some(error));
                }
            }
        }
        self.output.broken.clear();
        failed.map_or(Ok(received), Err)
    }

    /// Returns when [`round`](Self::round) must be called next if no packets arrive, in nanoseconds
    /// of the clock that its caller uses. `None` if no packet is held and no port waits for its
    /// rate limit.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.ingress
            .iter()
            .flat_map(|ingress| [ingress.deadline(), ingress.throttled_until])
            .flatten()
            .min()
    }

    /// Returns the counters of the ports, in the order in which they joined.
    pub fn stats(&mut self) -> Vec<PortStats> {
        let report = |(shared, port): &mut (Arc<SharedPort>, Box<dyn Port>)| {
            shared.counts.report(&shared.name).with(port.counters(), &port.queue_drops())
        };
        self.ports.iter_mut().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket::packet::RxChecksum;
    use superpacket_model::memory::{MemoryPort, MemorySettings, pair};
    use superpacket_port::{Outgoing, TxBatch};

    /// Adds one end of a memory link to the bridge, and returns the other end.
    fn joined(bridge: &mut ThreadlessBridge, name: &str) -> MemoryPort {
        let (host, port) =
            pair(&MemorySettings::default(), &MemorySettings::default()).expect("file descriptors");
        bridge
            .join(
                PortSettings::new(format!("memory:{name}").parse().expect("a port string")),
                Box::new(port),
            )
            .expect("there is room");
        host
    }

    fn send(host: &mut MemoryPort, frames: &[Vec<u8>]) {
        let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
        frames.iter().for_each(|frame| {
            batch.push_bytes(&mut outgoing, frame, RxChecksum::None, None, Layer::Ethernet)
        });
        let sent = host.transmitter().expect("memory has many").transmit(&outgoing, &batch, 0).sent;
        assert_eq!(sent, frames.len());
    }

    #[test]
    fn a_round_forwards_all_waiting_packets() {
        let mut bridge = ThreadlessBridge::new(64, Duration::from_secs(300), HashKey::new(1));
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| joined(&mut bridge, name));
        let mut ends = [&mut b, &mut c].map(|host| host.receivers().remove(0));
        assert_eq!(bridge.round(0).expect("all are up"), 0);
        let frame = |to: u8, from: u8| {
            [&[2, 0, 0, 0, 0, to], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5][..], &[7; 46]].concat()
        };
        send(&mut a, &[frame(2, 1), frame(2, 1)]);
        assert_eq!(bridge.round(0).expect("all are up"), 2);
        let mut came = || ends.each_mut().map(|end| end.poll(&mut Vec::new(), 64).expect("up"));
        assert_eq!(came(), [2, 2], "nobody knows yet where it is");
        send(&mut b, &[frame(1, 2)]);
        send(&mut a, &[frame(2, 1)]);
        // Port A is polled first, while B is still up, so its packet goes to both.
        assert_eq!(bridge.round(0).expect("all are up"), 2);
        send(&mut a, &[frame(2, 1)]);
        assert_eq!(bridge.round(0).expect("all are up"), 1);
        assert_eq!(came(), [2, 1]);
        let stats = bridge.stats();
        assert_eq!(
            stats.iter().map(|port| (port.rx_packets, port.tx_packets)).collect::<Vec<_>>(),
            [(4, 1), (1, 4), (0, 3)]
        );
        assert_eq!(bridge.deadline(), None);
    }

    #[test]
    fn a_port_with_a_rate_waits_and_others_do_not() {
        let mut bridge = ThreadlessBridge::new(64, Duration::from_secs(300), HashKey::new(1));
        let (mut host, port) =
            pair(&MemorySettings::default(), &MemorySettings::default()).expect("file descriptors");
        let mut settings = PortSettings::new("memory:limited".parse().expect("a port string"));
        settings.limits.rates.rx_packet_rate = 1_000;
        settings.limits.rates.rx_packet_burst = 200;
        settings.features = superpacket_port::features::FeatureSet::NONE;
        bridge.join(settings, Box::new(port)).expect("there is room");
        let [mut b, mut c] = ["b", "c"].map(|name| joined(&mut bridge, name));
        let mut end = c.receivers().remove(0);
        let frame =
            |from: u8| [&[0xff; 6][..], &[2, 0, 0, 0, 0, from], &[0x88, 0xb5], &[7; 46]].concat();
        let ms = |ms: u64| ms * 1_000_000;
        send(&mut host, &vec![frame(1); 1_000]);
        let mut came = [0u64; 2];
        // Rounds run as fast as possible for 300 ms; B sends one frame in each.
        let mut rounds = 0;
        for step in 0..3_000 {
            send(&mut b, &[frame(2)]);
            rounds += 1;
            bridge.round(step * ms(1) / 10).expect("all are up");
            let mut packets = Vec::new();
            end.poll(&mut packets, 64).expect("up");
            for packet in packets.drain(..) {
                let source = packet.buffers().next().expect("one").bytes()[11];
                came[usize::from(source) - 1] += 1;
            }
            end.give_back();
        }
        assert_eq!(came[1], rounds, "nobody else waits");
        assert!((495..=500).contains(&came[0]), "200 at once and 1,000 a second: {came:?}");
        let stats = bridge.stats();
        assert!(stats[0].rx_throttled > 10 && stats[1].rx_throttled == 0, "{stats:?}");
        assert!(
            bridge.deadline().is_some_and(|time| time > ms(299) && time < ms(310)),
            "{:?}",
            bridge.deadline()
        );
        bridge.round(ms(1_000)).expect("all are up");
        assert!(bridge.stats()[0].rx_packets > came[0], "the others waited in the port");
    }

    #[test]
    fn a_port_that_is_down_does_not_stop_the_others() {
        let mut bridge = ThreadlessBridge::new(64, Duration::from_secs(300), HashKey::new(1));
        let gone = joined(&mut bridge, "gone");
        gone.control().set_state(superpacket_port::LinkState::Gone);
        let [mut a, mut b] = ["a", "b"].map(|name| joined(&mut bridge, name));
        send(&mut a, &[[&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[7; 46]].concat()]);
        assert!(matches!(bridge.round(0), Err(PortError::Gone { .. })));
        assert_eq!(b.receivers()[0].poll(&mut Vec::new(), 64).expect("up"), 1);
    }
}
