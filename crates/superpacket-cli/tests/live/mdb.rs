//! `superpacket mdb`: what kernels of hosts say of groups is understood.

use superpacket_captures::file::{Reader, Source};

use super::*;

/// A query of IGMPv2 for all groups, to be answered within a tenth of a second (RFC 2236).
const QUERY: [u8; 46] = [
    0x01, 0x00, 0x5e, 0x00, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, 0xfa, 0x08,
    0x00, // Ethernet
    0x46, 0xc0, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x01, 0x02, 0x39, 0x14, // IPv4 ...
    0x0a, 0x09, 0x00, 0xfa, 0xe0, 0x00, 0x00, 0x01, 0x94, 0x04, 0x00,
    0x00, // ... with a router alert
    0x11, 0x01, 0xee, 0xfe, 0x00, 0x00, 0x00, 0x00, // IGMP
];

/// How many packets for this address a capture has.
fn packets_for(path: &std::path::Path, group: [u8; 4]) -> usize {
    let mut reader = Reader::open(path).expect("a capture");
    let mut count = 0;
    while let Some(frame) = reader.next_frame().expect("reads") {
        count += usize::from(
            frame.data[12..14] == [8, 0] && frame.data[23] == 17 && frame.data[30..34] == group,
        );
    }
    count
}

#[test]
fn hosts_that_have_joined_a_group_are_given_it_and_others_are_not() {
    let Some(house) = House::new() else { return };
    let third = house.middle.host("third", "10.9.0.3/24").expect("as the others");
    house.bench.capture("query.pcap", &[crate::support::Captured::at(0, QUERY.to_vec())]);
    let asker = format!("pcap:{}", house.bench.path("query.pcap").display());
    // The kernel reports it.
    house.right.ip("addr add 239.1.2.3/32 dev eth0 autojoin");
    house.left.ip("route add 239.0.0.0/8 dev eth0");
    let _bridge =
        house.bridge(&[PORTS[0], PORTS[1], "packet:third", &asker, "--multicast-snooping"]);
    let mdb = || house.ask(&["mdb"]).expect("answers");
    house.wait_for("the answer to the query", || {
        let report = mdb();
        let is_right = |entry: &Value| entry["port"] == PORTS[1] && entry["grp"] == "239.1.2.3";
        report["mdb"].as_array().expect("a list").iter().any(is_right)
    });
    let report = mdb();
    assert_eq!(
        (&report["querier_ipv4"], &report["router"][0]["port"]),
        (&true.into(), &asker.clone().into()),
        "{report}"
    );
    // MLD, as kernels speak it: each address has a group.
    third.ip("-6 addr add fd00::1:5/64 dev eth0");
    house.wait_for("a report of MLD", || {
        let (code, text, _) = house.text(&["mdb", "show", "dev", "packet:third"]);
        assert_eq!(code, Some(0));
        text.contains("port packet:third grp ff02::1:ff01:5 temp\n")
            && text.contains("no querier of IPv6")
    });
    let files = ["right.pcapng", "third.pcapng"];
    let monitors = [PORTS[1], "packet:third"]
        .iter()
        .zip(files)
        .map(|(port, file)| house.monitor_to(file, &[port, "--direction", "tx"]));
    let monitors: Vec<_> = monitors.collect();
    for _ in 0..5 {
        assert!(
            house
                .left
                .run("bash", &["-c", "echo to the group >/dev/udp/239.1.2.3/5000"])
                .status
                .success()
        );
        assert!(
            house
                .left
                .run("bash", &["-c", "echo to another >/dev/udp/239.9.9.9/5000"])
                .status
                .success()
        );
    }
    house.wait_for("what is for the group", || {
        house.ask(&["stats", &asker]).expect("answers")[0]["tx_packets"].as_u64() >= Some(10)
    });
    monitors.into_iter().for_each(|monitor| drop(monitor.interrupt()));
    let counted = files.map(|file| {
        let path = house.bench.path(file);
        (packets_for(&path, [239, 1, 2, 3]), packets_for(&path, [239, 9, 9, 9]))
    });
    assert_eq!(counted, [(5, 0), (0, 0)]);
    let (code, _, error) = house.text(&["mdb", "add"]);
    assert!(code == Some(2) && error.contains("invalid value 'add'"), "{error}");
    let (code, _, error) = house.text(&["mdb", "show", "dev", "packet:up"]);
    assert!(code == Some(2) && error.contains("there is no port \"packet:up\""), "{error}");
}

#[test]
fn a_bridge_that_does_not_listen_says_so() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&PORTS);
    let (code, text, _) = house.text(&["mdb"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(0), "multicast snooping is off: superpacket bridge --multicast-snooping\n")
    );
}
