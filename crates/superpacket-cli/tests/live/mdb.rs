//! `superpacket mdb`: the group memberships that the hosts' kernels report.

use superpacket_captures::file::{Reader, Source};

use super::*;

/// An IGMPv2 general query, with a maximum response time of a tenth of a second (RFC 2236).
const QUERY: [u8; 46] = [
    0x01, 0x00, 0x5e, 0x00, 0x00, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00, 0xfa, 0x08,
    0x00, // Ethernet
    0x46, 0xc0, 0x00, 0x20, 0x00, 0x00, 0x00, 0x00, 0x01, 0x02, 0x39, 0x14, // IPv4 ...
    0x0a, 0x09, 0x00, 0xfa, 0xe0, 0x00, 0x00, 0x01, 0x94, 0x04, 0x00,
    0x00, // ... with a router alert
    0x11, 0x01, 0xee, 0xfe, 0x00, 0x00, 0x00, 0x00, // IGMP
];

/// Returns the number of packets for a group in a capture.
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
fn only_hosts_that_joined_a_group_receive_its_packets() {
    let Some(network) = TestNetwork::new() else { return };
    let third = network.middle.host("third", "10.9.0.3/24").expect("as the others");
    network.bench.capture("query.pcap", &[crate::support::CapturedFrame::at(0, QUERY.to_vec())]);
    let asker = format!("pcap:{}", network.bench.path("query.pcap").display());
    // The kernel reports the membership.
    network.right.ip("addr add 239.1.2.3/32 dev eth0 autojoin");
    network.left.ip("route add 239.0.0.0/8 dev eth0");
    let _bridge =
        network.bridge(&[PORTS[0], PORTS[1], "packet:third", &asker, "--multicast-snooping"]);
    let mdb = || network.ask(&["mdb"]);
    network.wait_for("the answer to the query", || {
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
    // MLD as kernels use it: each address has a solicited-node group.
    third.ip("-6 addr add fd00::1:5/64 dev eth0");
    network.wait_for("a report of MLD", || {
        let (code, text, _) = network.text("mdb show dev packet:third");
        assert_eq!(code, Some(0));
        text.contains("port packet:third grp ff02::1:ff01:5 temp\n")
            && text.contains("no IPv6 querier")
    });
    let files = ["right.pcapng", "third.pcapng"];
    let monitors = [PORTS[1], "packet:third"]
        .iter()
        .zip(files)
        .map(|(port, file)| network.monitor_to(file, &[port, "--direction", "tx"]));
    let monitors: Vec<_> = monitors.collect();
    for _ in 0..5 {
        assert!(
            network
                .left
                .run("bash", &["-c", "echo to the group >/dev/udp/239.1.2.3/5000"])
                .status
                .success()
        );
        assert!(
            network
                .left
                .run("bash", &["-c", "echo to another >/dev/udp/239.9.9.9/5000"])
                .status
                .success()
        );
    }
    network.wait_for("what is for the group", || {
        network.ask(&["stats", &asker])[0]["tx_packets"].as_u64() >= Some(10)
    });
    monitors.into_iter().for_each(|monitor| drop(monitor.interrupt()));
    let counted = files.map(|file| {
        let path = network.bench.path(file);
        (packets_for(&path, [239, 1, 2, 3]), packets_for(&path, [239, 9, 9, 9]))
    });
    assert_eq!(counted, [(5, 0), (0, 0)]);
    network.refuses("mdb add", "invalid value 'add'");
    network.refuses("mdb show dev packet:up", "there is no port \"packet:up\"");
}

#[test]
fn a_bridge_without_snooping_says_so() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&PORTS);
    let (code, text, _) = network.text(&["mdb"]);
    assert_eq!(
        (code, text.as_str()),
        (Some(0), "multicast snooping is off: superpacket bridge --multicast-snooping\n")
    );
}
