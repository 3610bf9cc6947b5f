//! Tests that replaying other hosts' frames suppresses none of them, and that loops still end.

use super::*;
use crate::settings::NamedSettings;
use crate::switch::multicast::message::tests::{igmp, packet4};

const ATTACKER: usize = 0;
const GUEST: usize = 1;
const GATEWAY: usize = 2;

/// Makes the bridge suspect a loop: the attacker sends with the gateway's address.
fn arm(bench: &mut Bench) {
    bench.receive(GATEWAY, &broadcast(9, 100));
    bench.receive(ATTACKER, &broadcast(9, 101));
    bench.forwarder.begin(0);
    assert!(bench.forwarder.loop_suspected);
}

#[test]
fn an_isolated_port_cannot_suppress_frames_of_other_ports() {
    let mut bench = switched(3, &[ATTACKER, GUEST], "isolated", true);
    arm(&mut bench);
    for round in 0..5 {
        let frame = broadcast(9, round);
        assert_eq!(bench.receive(ATTACKER, &frame), [0, 0, 1], "round {round}");
        assert_eq!(
            bench.receive(GATEWAY, &frame),
            [1, 1, 0],
            "round {round}: the guest has not had it"
        );
        assert_eq!(bench.receive(ATTACKER, &frame), [0; 3], "round {round}: all have had it");
    }
    assert_eq!(bench.drops(GATEWAY, "loop"), 0);
    // In the other order: frames of a port that is not isolated have reached all ports.
    let frame = broadcast(9, 200);
    assert_eq!(bench.receive(GATEWAY, &frame), [1, 1, 0]);
    assert_eq!(bench.receive(GUEST, &frame), [0; 3]);
    // Between isolated ports no frame passes in any case.
    let frame = broadcast(9, 201);
    assert_eq!(bench.receive(ATTACKER, &frame), [0, 0, 1]);
    assert_eq!(bench.receive(GUEST, &frame), [0; 3]);
}

#[test]
fn frames_dropped_by_storm_limits_are_not_recorded() {
    let mut bench = Bench::new(&[1500; 3], |_| ());
    bench.ports[ATTACKER]
        .0
        .change(|settings| settings.set("storm_broadcast", 1))
        .expect("it is a limit");
    arm(&mut bench);
    for round in 0..5 {
        let frame = broadcast(9, round);
        let ahead = bench.receive(ATTACKER, &frame)[GUEST];
        assert_eq!(ahead + bench.receive(GATEWAY, &frame)[GUEST], 1, "round {round}");
    }
    assert_eq!((bench.drops(ATTACKER, "storm"), bench.drops(GATEWAY, "loop")), (5, 0));
}

#[test]
fn frames_without_recipients_are_not_recorded() {
    let mut bench = switched(3, &[GUEST, GATEWAY], "bcast_flood", false);
    arm(&mut bench);
    let frame = broadcast(9, 0);
    assert_eq!(bench.receive(ATTACKER, &frame), [0; 3], "nobody else is given broadcasts");
    assert_eq!(bench.receive(GATEWAY, &frame), [1, 0, 0]);
}

#[test]
fn a_frame_with_another_middle_is_another_frame() {
    let mut bench = Bench::new(&[1500; 3], |_| ());
    arm(&mut bench);
    let mut frame = broadcast(9, 0);
    frame.resize(600, 0);
    let mut forged = frame.clone();
    // The checksum of the forged frame is the same.
    forged[300] = 1;
    frame[400] = 1;
    assert_eq!(bench.receive(ATTACKER, &forged), [0, 1, 1]);
    assert_eq!(bench.receive(GATEWAY, &frame), [1, 1, 0]);
}

#[test]
fn a_replayed_report_does_not_hide_the_original() {
    let mut bench = Bench::new(&[1500; 4], |_| ());
    bench.forwarder.snooping = Some(Arc::default());
    let message = |source: &str, to: &str, message: &[u8]| {
        let packet = packet4(2, source, to, message);
        [
            &[1, 0, 0x5e, packet[17] & 0x7f, packet[18], packet[19], 2, 0, 0, 0, 0, 9, 8, 0][..],
            &packet,
        ]
        .concat()
    };
    // The last port sends a query, and ten seconds pass.
    bench.receive(3, &message("10.0.0.4", "224.0.0.1", &igmp(0x11, 100, "0.0.0.0")));
    arm(&mut bench);
    bench.forwarder.begin(11_000_000_000);
    let join = message("10.0.0.2", "239.1.2.3", &igmp(0x16, 0, "239.1.2.3"));
    assert_eq!(bench.receive(ATTACKER, &join), [0, 0, 0, 1], "to the router");
    bench.receive(GUEST, &join);
    let data = [
        &[1, 0, 0x5e, 1, 2, 3, 2, 0, 0, 0, 0, 8, 8, 0][..],
        &packet4(17, "10.0.0.3", "239.1.2.3", &[0; 16]),
    ]
    .concat();
    assert_eq!(bench.receive(GATEWAY, &data)[GUEST], 1, "it is in the group");
}

#[test]
fn a_loop_between_an_isolated_port_and_another_ends() {
    // Frames that leave by port 1 return by port 2, and the other way round; port 3 is isolated
    // too.
    for isolated in [1, 2] {
        let mut bench = switched(4, &[isolated, 3], "isolated", true);
        bench.receive(1, &broadcast(7, 100));
        bench.receive(2, &broadcast(7, 101));
        // Frames of a host in the loop arrive by both ports. A one-directional loop is only
        // detected after a frame of another host.
        let said: [&[usize]; 6] = [&[1, 2], &[2, 1], &[0], &[3], &[1], &[2]];
        for (content, first) in said.into_iter().enumerate() {
            let frame = broadcast(if first == [0] { 8 } else { 7 }, content as u8);
            let mut waiting: VecDeque<usize> = first.iter().copied().collect();
            let (mut rounds, mut heard) = (0, [0; 4]);
            while let Some(port) = waiting.pop_front() {
                rounds += 1;
                assert!(
                    rounds < 30,
                    "isolated {isolated}, first at {first:?}: it goes round and round"
                );
                bench.forwarder.begin(0);
                let sent = bench.receive(port, &frame);
                for (other, back) in [(1, 2), (2, 1)] {
                    waiting.extend((0..sent[other]).map(|_| back));
                }
                (0..4).for_each(|port| heard[port] += sent[port]);
            }
            for port in [0, 3].into_iter().filter(|port| !first.contains(port)) {
                let hears = port == 0 || first != [isolated] && first != [3];
                assert!(
                    !hears || heard[port] > 0,
                    "isolated {isolated}, first at {first:?}: port {port}"
                );
            }
        }
        assert!(bench.drops(1, "loop") > 0 && bench.drops(2, "loop") > 0, "isolated {isolated}");
    }
}
