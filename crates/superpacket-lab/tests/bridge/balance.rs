//! No packet is lost without being counted: each received packet leaves by the other port or
//! appears in a counter.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::NamedSettings;
use superpacket_lab::{Direction, LabError, RawOptions, RawSocket, TcpBulk, UdpBulk, Until};
use superpacket_port::features::Feature;

use crate::joined::{Joined, KEY, by_packet};
use crate::steering::{steer, two_cpus};

/// Drop causes counted at the ingress port, before the egress port is known.
const INGRESS_CAUSES: [&str; 11] = [
    "loop",
    "reserved",
    "malformed",
    "no_port",
    "forwarding",
    "vlan",
    "multicast",
    "storm",
    "backlog",
    "flow_limit",
    "panic",
];
/// Drop causes counted at the egress port.
const EGRESS_CAUSES: [&str; 7] =
    ["too_big", "cannot_segment", "full", "down", "gone", "refused", "tx_rate"];
/// Drop causes of packets that never entered the bridge: lost or refused in the port's ring.
const RING_CAUSES: [&str; 2] = ["rx_ring", "rx_errors"];

fn drops(stats: &PortStats, causes: &[&str]) -> u64 {
    assert_eq!(
        stats.drops.len(),
        INGRESS_CAUSES.len() + EGRESS_CAUSES.len() + RING_CAUSES.len(),
        "a cause is missing here: {:?}",
        stats.drops
    );
    causes.iter().map(|&cause| stats.drops[cause]).sum()
}

/// Returns two sums of the packets between two ports, which must be equal: received and sent.
fn sums(from: &PortStats, to: &PortStats) -> [u64; 2] {
    let left = to.tx_packets + to.segmented + drops(to, &EGRESS_CAUSES);
    [
        from.rx_packets + to.segments,
        left + from.merged + from.filtered + drops(from, &INGRESS_CAUSES),
    ]
}

impl Joined {
    /// Waits until all received packets have left.
    fn balances(&self, after: &str) {
        let mut stats = [self.stats(0), self.stats(1)];
        self.wait("what came has left, or is counted", |joined| {
            stats = [joined.stats(0), joined.stats(1)];
            let [a, b] = &stats;
            let balanced = [(a, b), (b, a)].into_iter().all(|(from, to)| {
                let [came, left] = sums(from, to);
                came == left
            });
            if !balanced {
                eprintln!("after {after}: {:?} {:?}", sums(a, b), sums(b, a));
            }
            balanced
        });
    }

    /// Returns the packets that B's interface received or lost, minus those that the bridge counts
    /// as sent. A few may be older than the bridge.
    fn uncounted(&self) -> Result<u64, LabError> {
        let sent = self.stats(1).tx_packets;
        let side = &self.sides.as_ref().expect("veth pairs")[1];
        // A veth device whose peer has no room drops packets without telling the sender.
        Ok((self.b.link.statistics()?.rx_packets + side.statistics()?.tx_dropped)
            .wrapping_sub(sent))
    }
}

fn streams(joined: &Joined) -> Result<(), LabError> {
    TcpBulk {
        flows: 4,
        direction: Direction::Both,
        until: Until::Bytes(4 << 20),
        verify: Some(KEY),
        ..TcpBulk::default()
    }
    .run(&joined.route())
    .map(drop)
}

fn flood(joined: &Joined) -> Result<(), LabError> {
    UdpBulk { datagram: 200, flows: 4, time: Duration::from_millis(300), ..UdpBulk::default() }
        .run(&joined.route())
        .map(drop)
}

#[test]
fn what_comes_leaves_or_is_counted() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let side = &joined.sides.as_ref().expect("veth pairs")[1];
    joined.carries(1, 1 << 20)?;
    joined.balances("the first bytes");
    let mut uncounted = joined.uncounted()?;
    joined.wait("the hosts are silent", |joined| {
        // Packets in the middle of being sent are counted only here.
        std::thread::sleep(Duration::from_millis(50));
        let now = joined.uncounted().expect("B is there");
        std::mem::replace(&mut uncounted, now) == now
    });

    // Super-packets: forwarded whole, merged, and segmented.
    for (sender, receiver) in [(true, true), (false, true), (true, false), (false, false)] {
        joined.a.link.set_feature("tcp-segmentation-offload", sender)?;
        joined.switch(1, Feature::TcpSegmentationOffload, receiver);
        streams(&joined)?;
        joined.balances("TCP");
    }
    let [a, b] = [joined.stats(0), joined.stats(1)];
    assert!(
        a.merged > 0 && a.rx_super_packets > 0 && b.segmented > 0 && b.tx_super_packets > 0,
        "{a:?} {b:?}"
    );
    // More than the buffers may hold.
    flood(&joined)?;
    joined.balances("a flood of datagrams");

    // Too long for their port.
    let socket = |address: IpAddr| {
        UdpSocket::bind((address, 0)).map_err(|error| LabError::system("a UDP socket", error))
    };
    let from = joined.a.host.run(|| socket(joined.a.ipv4))?;
    side.set_mtu(1200)?;
    joined.wait("the MTU is seen", |joined| joined.bridge.ports()[1].mtu == 1200);
    let send = |length: usize| {
        (0..10).for_each(|_| {
            assert_eq!(from.send_to(&[0; 1400][..length], (joined.b.ipv4, 9)).expect("up"), length)
        })
    };
    let count = |side: usize, cause: &str| joined.stats(side).drops[cause];
    send(1400);
    joined.wait("they are counted", |_| count(1, "too_big") == 10);
    joined.balances("datagrams that are too long");

    // Frames that no bridge forwards, have no source, or are for a station on the same port.
    let frame = |to: u8, from: u8| {
        [&[to, 0x80, 0xc2, 0, 0, 1][..], &[from, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[0; 46]].concat()
    };
    let near = [&[2, 0, 0, 0, 0, 9][..], &[2, 0, 0, 0, 0, 8], &[0x88, 0xb5], &[0; 46]].concat();
    let raw = RawSocket::open(&joined.a.link, RawOptions::default())?;
    raw.send(
        &[
            &[frame(3, 2), frame(1, 2)][..],
            &vec![frame(1, 2); 6],
            &vec![frame(3, 3); 5],
            &vec![near; 4],
        ]
        .concat(),
    )?;
    joined.wait("each has its cause", |joined| {
        (count(0, "reserved"), count(0, "malformed"), joined.stats(0).filtered) == (7, 5, 4)
    });
    joined.balances("frames that go nowhere");
    joined.wait("B had what is said to be sent", |joined| {
        joined.uncounted().is_ok_and(|now| now == uncounted)
    });

    // To a port that is down.
    side.down()?;
    joined.wait("down is seen", |joined| joined.bridge.ports()[1].state == "down");
    send(1000);
    joined.wait("they are counted", |_| count(1, "down") >= 10);
    joined.balances("a port that is down");
    Ok(())
}

#[test]
fn what_workers_process_leaves_or_is_counted() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    steer(&joined, &cpus.into_iter().collect())?;
    let room = |packets: &str| {
        let changed = joined
            .bridge
            .change_steering_settings(|settings| settings.set("netdev_max_backlog", packets));
        assert!(changed.is_ok(), "{changed:?}");
    };
    // A merged packet that finds no room in a backlog counts as all of its packets.
    room("65536");
    streams(&joined)?;
    joined.balances("TCP");
    room("8");
    flood(&joined)?;
    joined.balances("a flood of datagrams");
    let a = joined.stats(0);
    assert!(a.steered > 0 && a.merged > 0 && a.drops["backlog"] > 0, "{a:?}");
    Ok(())
}
