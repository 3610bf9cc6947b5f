//! Tests of IGMP snooping in a bridge between memory ports.

use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::settings::BridgeSettings;

mod support;

use support::{Host, PATIENCE, ports, wait};

/// The roles of the ports' other ends: sender, group member, non-member, querier.
const SENDER: usize = 0;
const MEMBER: usize = 1;
const OTHER: usize = 2;
const ASKER: usize = 3;

const GROUP: [u8; 4] = [239, 1, 2, 3];

struct House {
    bridge: Bridge,
    ends: Vec<Host>,
    names: Vec<String>,
    marks: u8,
}

/// Returns the Internet checksum of the bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Returns an IPv4 frame from the host at this end.
fn frame(from: usize, source: [u8; 4], group: [u8; 4], protocol: u8, message: &[u8]) -> Vec<u8> {
    let length = (20 + message.len() as u16).to_be_bytes();
    let mut ip =
        [&[0x45, 0, length[0], length[1], 0, 0, 0, 0, 1, protocol, 0, 0][..], &source, &group]
            .concat();
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    let to = [1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]];
    [&to[..], &[2, 0, 0, 0, 0, from as u8], &[8, 0], &ip, message].concat()
}

fn igmp(from: usize, destination: [u8; 4], kind: u8, code: u8, group: [u8; 4]) -> Vec<u8> {
    igmp_from(from, [10, 0, 0, from as u8 + 1], destination, kind, code, group)
}

fn igmp_from(
    from: usize,
    source: [u8; 4],
    destination: [u8; 4],
    kind: u8,
    code: u8,
    group: [u8; 4],
) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &group].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    frame(from, source, destination, 2, &message)
}

fn data(group: [u8; 4]) -> Vec<u8> {
    frame(SENDER, [10, 0, 0, 1], group, 17, &[1, 0, 1, 0, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8])
}

impl House {
    fn new(name: &str, snooping: bool) -> House {
        let names: Vec<String> = (0..4).map(|end| format!("memory:{name}-{end}")).collect();
        let ends = names.iter().map(|name| Host::open(name)).collect();
        let ports = ports(&names);
        let settings = BridgeSettings {
            ports,
            threads: 1,
            multicast_snooping: snooping,
            ..BridgeSettings::default()
        };
        House {
            bridge: Bridge::start(settings).expect("memory needs nothing"),
            ends,
            names,
            marks: 0,
        }
    }

    fn send(&mut self, from: usize, frame: &[u8]) {
        self.ends[from].send(&[frame.to_vec()]);
    }

    /// Sends a frame from one end, and returns the other ends that receive it. A broadcast after it
    /// shows when it has been forwarded.
    fn given(&mut self, from: usize, frame: &[u8]) -> Vec<usize> {
        self.send(from, frame);
        self.marks += 1;
        let mark =
            [&[0xff; 6][..], &[2, 0, 0, 0, 0, from as u8], &[0x88, 0xb5, self.marks], &[0; 45]]
                .concat();
        self.send(from, &mark);
        let mut given = Vec::new();
        for end in (0..self.ends.len()).filter(|&end| end != from) {
            let started = Instant::now();
            let mut is_marked = false;
            while !is_marked {
                assert!(started.elapsed() < PATIENCE, "end {end}");
                for bytes in self.ends[end].receive() {
                    is_marked |= bytes == mark;
                    if bytes == frame {
                        given.push(end);
                    }
                }
                std::thread::yield_now();
            }
        }
        given
    }

    /// Sends a query, and waits until all hosts may have responded.
    fn ask(&mut self) {
        self.send(ASKER, &igmp(ASKER, [224, 0, 0, 1], 0x11, 1, [0; 4]));
        self.wait_for_querier();
    }

    fn wait_for_querier(&self) {
        wait("there is a querier", || self.bridge.mdb().querier_ipv4);
        // The response time is 0.1 s.
        std::thread::sleep(Duration::from_millis(150));
    }

    fn drops(&self, end: usize) -> u64 {
        self.bridge.stats()[end].drops["multicast"]
    }
}

#[test]
fn what_is_for_a_group_goes_to_who_has_asked_for_it_and_to_routers() {
    let mut house = House::new("snooped", true);
    let join = |kind| igmp(MEMBER, GROUP, kind, 0, GROUP);
    assert_eq!(house.given(MEMBER, &join(0x16)), [SENDER, OTHER, ASKER], "nobody asks");
    assert_eq!(house.given(SENDER, &data(GROUP)), [MEMBER, OTHER, ASKER], "others may be in it");
    house.ask();
    assert_eq!(house.given(SENDER, &data(GROUP)), [MEMBER, ASKER]);
    assert_eq!(
        house.given(SENDER, &data([239, 9, 9, 9])),
        [ASKER],
        "nobody has asked for it, but a router may want it"
    );
    for everybody in [[224, 0, 0, 5], [224, 0, 0, 251]] {
        assert_eq!(house.given(SENDER, &data(everybody)), [MEMBER, OTHER, ASKER], "{everybody:?}");
    }
    // Hosts that receive another member's report suppress their own.
    for kind in [0x12, 0x16] {
        assert_eq!(house.given(MEMBER, &join(kind)), [ASKER]);
    }
    let others =
        frame(OTHER, [10, 0, 0, 3], GROUP, 17, &[1, 0, 1, 0, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(house.given(OTHER, &others), [MEMBER, ASKER], "whoever sends");
    let third = {
        let record = [&[4, 0, 0, 0][..], &[239, 7, 7, 7]].concat();
        let mut message = [&[0x22, 0, 0, 0, 0, 0, 0, 1][..], &record].concat();
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum);
        frame(OTHER, [10, 0, 0, 3], [224, 0, 0, 22], 2, &message)
    };
    assert_eq!(house.given(OTHER, &third), [SENDER, MEMBER, ASKER]);
    assert_eq!(house.given(SENDER, &data([239, 7, 7, 7])), [OTHER, ASKER]);
    let mdb = house.bridge.mdb();
    let entries: Vec<_> = mdb
        .mdb
        .iter()
        .map(|entry| (entry.port.clone(), entry.grp.as_str(), entry.vid, entry.state.as_str()))
        .collect();
    let (member, other) = (house.names[MEMBER].clone(), house.names[OTHER].clone());
    assert_eq!(entries, [(member, "239.1.2.3", None, "temp"), (other, "239.7.7.7", None, "temp")]);
    assert!(mdb.mdb.iter().all(|entry| (240..=260).contains(&entry.timer)), "{mdb:?}");
    assert_eq!(
        mdb.router.iter().map(|router| router.port.clone()).collect::<Vec<_>>(),
        [house.names[ASKER].clone()]
    );
    assert!(mdb.querier_ipv4 && !mdb.querier_ipv6);
    // The last member leaves, and does not respond to the query.
    assert_eq!(
        house.given(MEMBER, &igmp(MEMBER, [224, 0, 0, 2], 0x17, 0, GROUP)),
        [SENDER, OTHER, ASKER]
    );
    assert_eq!(
        house.given(SENDER, &data(GROUP)),
        [MEMBER, ASKER],
        "another behind its port may be in it"
    );
    house.given(ASKER, &igmp(ASKER, GROUP, 0x11, 1, GROUP));
    // It may still respond half a second after the query.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(house.given(SENDER, &data(GROUP)), [MEMBER, ASKER]);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(house.given(SENDER, &data(GROUP)), [ASKER]);
    // The members behind a port are removed with it.
    house.bridge.remove_port(&house.names[OTHER]).expect("is there");
    assert!(house.bridge.mdb().mdb.is_empty());
}

#[test]
fn a_stranger_who_asks_as_igmp_version_1_and_then_for_the_group_cuts_nobody_off() {
    let mut house = House::new("stranger", true);
    house.ask();
    house.send(MEMBER, &igmp(MEMBER, GROUP, 0x16, 0, GROUP));
    let started = Instant::now();
    while house.bridge.mdb().mdb.is_empty() {
        assert!(started.elapsed() < PATIENCE);
    }
    // From an address higher than the querier's, a lower one, and its own.
    for (number, last) in [200, 1, ASKER as u8 + 1].into_iter().enumerate() {
        let ask = |code, group| {
            igmp_from(
                OTHER,
                [10, 0, 0, last],
                if group == [0; 4] { [224, 0, 0, 1] } else { group },
                0x11,
                code,
                group,
            )
        };
        house.send(OTHER, &ask(0, [0; 4]));
        for _ in 0..16 {
            house.send(OTHER, &ask(1, GROUP));
            std::thread::sleep(Duration::from_millis(75));
            assert!(house.given(SENDER, &data(GROUP)).contains(&MEMBER), "{last}");
        }
        // A host that has received an IGMPv1 query responds within ten seconds.
        let left = house.bridge.mdb().mdb[0].timer;
        assert!(
            if number == 0 { left > 200 } else { left >= 10 },
            "{last}: {left} seconds are left"
        );
        house.given(MEMBER, &igmp(MEMBER, GROUP, 0x12, 0, GROUP));
    }
}

#[test]
fn who_asks_without_an_address_is_given_nothing_and_what_nobody_wants_is_counted() {
    let mut house = House::new("proxy", true);
    house.send(ASKER, &igmp_from(ASKER, [0; 4], [224, 0, 0, 1], 0x11, 1, [0; 4]));
    house.wait_for_querier();
    assert_eq!((house.given(SENDER, &data(GROUP)), house.drops(SENDER)), (vec![], 1));
    house.send(MEMBER, &igmp(MEMBER, GROUP, 0x16, 0, GROUP));
    let started = Instant::now();
    while house.bridge.mdb().mdb.is_empty() {
        assert!(started.elapsed() < PATIENCE);
    }
    assert_eq!((house.given(SENDER, &data(GROUP)), house.drops(SENDER)), (vec![MEMBER], 1));
    // A PIM hello comes from a router.
    house.given(OTHER, &frame(OTHER, [10, 0, 0, 3], [224, 0, 0, 13], 103, &[0x20, 0, 0xdf, 0xff]));
    assert_eq!(house.given(SENDER, &data(GROUP)), [MEMBER, OTHER]);
}

#[test]
fn what_makes_no_sense_is_counted_and_changes_nothing() {
    let mut house = House::new("malformed", true);
    house.ask();
    let mut damaged = igmp(MEMBER, GROUP, 0x16, 0, GROUP);
    damaged[40] ^= 1;
    assert_eq!(house.given(MEMBER, &damaged), [SENDER, OTHER, ASKER]);
    // A tag names another VLAN, which a bridge without VLAN filtering does not know.
    let mut tagged = igmp(MEMBER, GROUP, 0x16, 0, GROUP);
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(house.given(MEMBER, &tagged), [SENDER, OTHER, ASKER]);
    assert!(house.bridge.mdb().mdb.is_empty());
    assert_eq!(
        house.bridge.stats().iter().map(|port| port.mcast_malformed).collect::<Vec<_>>(),
        [0, 1, 0, 0]
    );
}

#[test]
fn a_bridge_that_does_not_listen_gives_all_to_all() {
    let mut house = House::new("deaf", false);
    house.send(ASKER, &igmp(ASKER, [224, 0, 0, 1], 0x11, 1, [0; 4]));
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(house.given(MEMBER, &igmp(MEMBER, GROUP, 0x16, 0, GROUP)), [SENDER, OTHER, ASKER]);
    assert_eq!(house.given(SENDER, &data(GROUP)), [MEMBER, OTHER, ASKER]);
    assert!(!house.bridge.mdb().multicast_snooping);
    let settings = BridgeSettings { multicast_snooping: true, ..house.bridge.settings() };
    let error = house.bridge.apply(settings).expect_err("fixed").to_string();
    assert!(
        error.contains("multicast snooping cannot be changed while the bridge runs"),
        "{error}"
    );
}
