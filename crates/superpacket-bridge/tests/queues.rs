//! Tests of the counters of each queue of a port.

use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::report::{PortStats, QueueStats};
use superpacket_bridge::settings::{BridgeSettings, PortChange};
use superpacket_port::features::FeatureSet;
use superpacket_traffic::frame::Frame;

mod support;

use support::{Host, ports};

/// Returns a frame of one of many flows, with this payload length.
fn frame(flow: u8, payload: usize) -> Vec<u8> {
    let mut frame = Frame::tcp4(0, payload).to_bytes();
    // The source port. The checksum is not updated; it is not verified here.
    frame[35] = flow;
    frame
}

fn wait(bridge: &Bridge, what: &str, holds: impl Fn(&[PortStats]) -> bool) -> Vec<PortStats> {
    let started = Instant::now();
    loop {
        let stats = bridge.stats();
        if holds(&stats) {
            return stats;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn sum(queues: &[QueueStats], of: fn(&QueueStats) -> u64) -> u64 {
    queues.iter().map(of).sum()
}

#[test]
fn each_queue_has_its_numbers_and_the_port_their_sums() {
    let specs = ["memory:queues-a?queues=2&slots=64&full=drop", "memory:queues-b?slots=4096"];
    // Open, and so up, but never read.
    let mut ends = ["memory:queues-a?slots=4096", "memory:queues-b?slots=4096"].map(Host::open);
    let mut ports = ports(specs);
    // Packets leave without aggregation.
    ports.iter_mut().for_each(|port| port.features = FeatureSet::NONE);
    let bridge = Bridge::start(BridgeSettings { ports, threads: 2, ..BridgeSettings::default() })
        .expect("memory needs nothing");
    let frames: Vec<_> = (0..40).map(|flow| frame(flow, 100)).collect();
    for round in 1..=10 {
        ends[0].send(&frames);
        wait(&bridge, "all are received", |stats| stats[0].rx_packets == 40 * round);
    }
    let stats = wait(&bridge, "all are sent", |stats| stats[1].tx_packets == 400);
    let queues = &stats[0].rx_queues;
    assert_eq!(
        queues.iter().map(|queue| (queue.queue, queue.drops)).collect::<Vec<_>>(),
        [(0, Some(0)), (1, Some(0))]
    );
    assert!(
        queues.iter().all(|queue| queue.packets >= 10 && queue.packets % 10 == 0),
        "a flow has one queue: {queues:?}"
    );
    assert!(queues.iter().all(|queue| queue.bytes == 154 * queue.packets), "{queues:?}");
    assert_eq!(
        (sum(queues, |queue| queue.packets), sum(queues, |queue| queue.bytes)),
        (stats[0].rx_packets, stats[0].rx_bytes)
    );
    // Both threads send by the port's only transmit queue.
    let sent = QueueStats { queue: 0, packets: 400, bytes: 400 * 154, drops: None };
    assert_eq!(
        (&stats[1].tx_queues, stats[1].tx_packets, stats[1].tx_bytes),
        (&vec![sent], 400, 400 * 154)
    );
    // A burst of one flow that exceeds its queue; the other queue loses no packet.
    ends[0].send(&vec![frame(7, 100); 100]);
    let stats = wait(&bridge, "the rest is received", |stats| stats[0].rx_packets == 464);
    let drops: Vec<_> =
        stats[0].rx_queues.iter().map(|queue| queue.drops.expect("memory knows")).collect();
    assert!(drops == [36, 0] || drops == [0, 36], "{drops:?}");
    assert_eq!(stats[0].drops["rx_ring"], 36);
    // A port opened again with other options keeps its identity.
    let change = PortChange {
        options: [("slots".to_owned(), Some("128".to_owned()))].into(),
        ..PortChange::default()
    };
    assert_eq!(bridge.set_port(specs[0], &change).expect("can be").reopened, 1);
    let stats = bridge.stats();
    assert_eq!(
        stats[0]
            .rx_queues
            .iter()
            .map(|queue| queue.drops.expect("memory knows"))
            .collect::<Vec<_>>(),
        drops
    );
    assert_eq!(stats[0].drops["rx_ring"], 36);
    bridge.stop();
}
