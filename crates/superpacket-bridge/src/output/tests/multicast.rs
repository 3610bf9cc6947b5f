//! Tests of multicast groups, with and without VLANs, and of messages in several buffers.

use superpacket::packet::VlanTag;

use super::*;
use crate::switch::multicast::message::tests::{igmp, packet4};
use crate::switch::vlan::PortVlans;

const SECOND: u64 = 1_000_000_000;

/// The roles of the ports: sender, group member, non-member, querier.
const SENDER: usize = 0;
const MEMBER: usize = 1;
const OTHER: usize = 2;
const ASKER: usize = 3;

fn frame(from: usize, protocol: u8, group: &str, message: &[u8]) -> Vec<u8> {
    let source = format!("10.0.0.{}", from + 1);
    let packet = packet4(protocol, &source, group, message);
    let to = [1, 0, 0x5e, packet[17] & 0x7f, packet[18], packet[19]];
    [&to[..], &[2, 0, 0, 0, 0, from as u8, 8, 0], &packet].concat()
}

fn data(group: &str) -> Vec<u8> {
    frame(SENDER, 17, group, &[0; 16])
}

/// Returns four ports of a snooping bridge; the last sent a query long enough ago.
fn listening(vlans: Option<&str>) -> Bench {
    let mut bench = Bench::new(&[1500; 4], |_| ());
    bench.forwarder.snooping = Some(Arc::default());
    for egress in bench.forwarder.egress.iter_mut().flatten() {
        egress.vlans = vlans.map(|words| {
            let mut vlans = PortVlans::none();
            vlans.add(&words.parse().expect(words));
            Arc::new(vlans)
        });
    }
    bench
}

impl Bench {
    /// Receives a frame with a tag in its metadata, and returns the ports that it is sent to.
    fn recipients(&mut self, from: usize, frame: &[u8], vlan: Option<u16>) -> Vec<usize> {
        let mut packet = RxPacket::new(Buffer::from(frame.to_vec()));
        packet.vlan = vlan.map(|control| VlanTag { protocol: 0x8100, control });
        self.ports_given(from, packet)
    }

    fn ports_given(&mut self, from: usize, packet: RxPacket<Buffer>) -> Vec<usize> {
        let sent = self.pass(from, packet);
        sent.iter().enumerate().filter(|(_, left)| !left.is_empty()).map(|(port, _)| port).collect()
    }

    /// The last port sends a query, and ten seconds pass.
    fn ask(&mut self, vlan: Option<u16>) {
        self.recipients(ASKER, &frame(ASKER, 2, "224.0.0.1", &igmp(0x11, 100, "0.0.0.0")), vlan);
        self.forwarder.begin(11 * SECOND);
    }
}

#[test]
fn groups_are_separate_per_vlan() {
    let mut bench = listening(Some("10-20"));
    bench.ask(Some(10));
    let join = frame(MEMBER, 2, "239.1.2.3", &igmp(0x16, 0, "239.1.2.3"));
    assert_eq!(bench.recipients(MEMBER, &join, Some(10)), [ASKER]);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), Some(10)), [MEMBER, ASKER]);
    // A priority tag does not change the VLAN.
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), Some(0xe00a)), [MEMBER, ASKER]);
    // This VLAN has no querier, so its members are unknown.
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), Some(20)), [MEMBER, OTHER, ASKER]);
    bench.forwarder.begin(0);
    bench.ask(Some(20));
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), Some(20)), [ASKER]);
    // A port that has left the VLAN receives none of its frames.
    bench.forwarder.egress[MEMBER].as_mut().expect("is there").vlans =
        Some(Arc::new(PortVlans::none()));
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), Some(10)), [ASKER]);
}

#[test]
fn tags_have_no_effect_without_filtering() {
    let mut bench = listening(None);
    bench.ask(None);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), None), [ASKER]);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), Some(10)), [MEMBER, OTHER, ASKER]);
    let join = frame(MEMBER, 2, "239.1.2.3", &igmp(0x16, 0, "239.1.2.3"));
    assert_eq!(bench.recipients(MEMBER, &join, Some(10)), [SENDER, OTHER, ASKER]);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), None), [ASKER]);
}

#[test]
fn a_message_in_several_buffers_is_parsed_and_flags_apply() {
    let mut bench = listening(None);
    bench.ask(None);
    let join = frame(MEMBER, 2, "239.1.2.3", &igmp(0x16, 0, "239.1.2.3"));
    let mut packet = RxPacket::new(Buffer::from(join[..20].to_vec()));
    packet.push(Buffer::from(join[20..41].to_vec())).expect("there is room");
    packet.push(Buffer::from(join[41..].to_vec())).expect("there is room");
    assert_eq!(bench.ports_given(MEMBER, packet), [ASKER]);
    let mut forwarding = |port: usize, change: fn(&mut Forwarding)| {
        change(&mut bench.forwarder.egress[port].as_mut().expect("is there").runtime.forwarding);
    };
    // A group that a port has joined does not count as flooded.
    forwarding(MEMBER, |forwarding| forwarding.mcast_flood = false);
    forwarding(ASKER, |forwarding| forwarding.isolated = true);
    forwarding(SENDER, |forwarding| forwarding.isolated = true);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), None), [MEMBER]);
    assert_eq!(
        (bench.recipients(SENDER, &data("239.9.9.9"), None), bench.drops(SENDER, "multicast")),
        (vec![], 1)
    );
    assert_eq!(bench.recipients(SENDER, &data("224.0.0.5"), None), [OTHER]);
}

#[test]
fn a_query_that_hosts_ignore_changes_nothing() {
    let mut bench = listening(None);
    let question = frame(ASKER, 2, "224.0.0.1", &igmp(0x11, 100, "0.0.0.0"));
    let mut elsewhere = question.clone();
    elsewhere[5] = 77;
    bench.recipients(ASKER, &elsewhere, None);
    bench.forwarder.begin(11 * SECOND);
    assert_eq!(
        bench.recipients(SENDER, &data("239.1.2.3"), None),
        [MEMBER, OTHER, ASKER],
        "nobody has been asked"
    );
    assert_eq!(bench.ports[ASKER].0.counts.report("").mcast_malformed, 1);
    // Other isolated ports do not receive an isolated port's query.
    let isolate = |bench: &mut Bench, is_isolated| {
        for port in [MEMBER, ASKER] {
            bench.forwarder.egress[port].as_mut().expect("is there").runtime.forwarding.isolated =
                is_isolated;
        }
    };
    isolate(&mut bench, true);
    bench.recipients(ASKER, &question, None);
    bench.forwarder.begin(22 * SECOND);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), None), [MEMBER, OTHER, ASKER]);
    isolate(&mut bench, false);
    bench.recipients(ASKER, &question, None);
    bench.forwarder.begin(33 * SECOND);
    assert_eq!(bench.recipients(SENDER, &data("239.1.2.3"), None), [ASKER]);
}
