//! Forwarding between hosts: isolated ports, static addresses, VLANs.

use super::*;

#[test]
fn isolated_ports_do_not_reach_each_other_until_one_is_not() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&PORTS);
    assert!(network.reaches());
    for port in PORTS {
        assert!(network.reaches(), "one isolated port reaches the other");
        let (code, text, _) = network.text(&["limits", port, "isolated", "on"]);
        assert!(code == Some(0) && text.contains("\nisolated: on\n"), "{text}");
    }
    assert!(network.is_cut_off(), "both are isolated");
    let stats = network.ask(&["stats", PORTS[0]]);
    assert!(stats[0]["drops"]["forwarding"].as_u64() > Some(0), "{stats}");
    network.ask(&["limits", PORTS[1], "isolated", "off"]);
    assert!(network.reaches(), "{}", network.log());
}

#[test]
fn static_addresses_are_added_and_hold_whoever_sends_with_them() {
    let Some(network) = TestNetwork::new() else { return };
    let file = network.bench.path("bridge.toml");
    let ports = "[[port]]\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n";
    std::fs::write(&file, ports).expect("writes");
    let bridge = network.bridge(&["--config", &file.display().to_string()]);
    assert!(network.reaches());
    let hardware_address = |host: &Namespace| {
        // Sysfs shows the interfaces of the namespace that mounted it, so `ip` is used instead.
        let output = host.run("ip", &["-o", "link", "show", "eth0"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1)
            .expect("an Ethernet interface")
            .to_owned()
    };
    let [left, right] = [&network.left, &network.right].map(hardware_address);
    let shown = |words: &[&str]| network.ask(&[&["fdb", "show"], words].concat());
    let learned = shown(&["dev", PORTS[1]]);
    let entry =
        learned.as_array().expect("a list").iter().find(|entry| entry["mac"] == right.as_str());
    assert_eq!(
        *entry.expect("is there"),
        json!({"mac": right, "ifname": PORTS[1], "flags": [], "state": ""})
    );
    let (code, text, _) = network.text("fdb -s");
    assert!(
        code == Some(0)
            && text
                .lines()
                .any(|line| line.starts_with(&format!("{left} dev packet:left updated "))),
        "{text}"
    );
    // The right host's address is assigned to the left port: frames for it go there and nowhere
    // else.
    let (code, text, error) = network.text(&["fdb", "add", &right, "dev", PORTS[0], "static"]);
    assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "", ""));
    assert!(network.is_cut_off(), "it sends, and gets nothing");
    assert_eq!(network.text("fdb flush").0, Some(0));
    assert!(network.is_cut_off(), "static entries stay");
    let (_, text, _) = network.text("fdb show static");
    assert_eq!(text, format!("{right} dev packet:left sticky static\n"));
    let vlan = network.ask(&["fdb", "add", &right, "dev", PORTS[1], "vlan", "10", "static"]);
    assert_eq!(
        vlan,
        json!({"mac": right, "ifname": PORTS[1], "vlan": 10, "updated": 0, "flags": ["sticky"], "state": "static"})
    );
    for (words, says) in [
        (
            &["add", &right, "dev", PORTS[1], "static"][..],
            "there is a static entry for it at packet:left already",
        ),
        (
            &["add", &left, "dev", "packet:up", "static"],
            "there is no port \"packet:up\": there are packet:left, packet:right",
        ),
        (
            &["add", "ff:ff:ff:ff:ff:ff", "dev", PORTS[0], "static"],
            "ff:ff:ff:ff:ff:ff is a group's address",
        ),
        (
            &["add", "00:00:00:00:00:00", "dev", PORTS[0], "static"],
            "00:00:00:00:00:00 is no station's address",
        ),
        (
            &["del", &right, "dev", PORTS[1]],
            "there is no entry for it at packet:right: it is at packet:left",
        ),
        (
            &["del", "02:00:00:00:00:77", "dev", PORTS[1]],
            "02:00:00:00:00:77: there is no entry for it at packet:right",
        ),
        (&["show", "dev", "packet:up"], "there is no port \"packet:up\""),
        (&["flush", "dev", "packet:up"], "there is no port \"packet:up\""),
        (&["prune"], "invalid value 'prune'"),
    ] {
        network.refuses(&[&["fdb"], words].concat(), says);
    }
    assert_eq!(network.text(&["fdb", "del", &right, "dev", PORTS[0]]).0, Some(0));
    assert!(network.reaches(), "{}", network.log());
    // When the file is read again, it decides which entries are static. An entry of an unknown port
    // is an error.
    std::fs::write(
        &file,
        format!("{ports}[[fdb]]\naddress = \"{right}\"\nport = \"packet:left\"\n"),
    )
    .expect("writes");
    bridge.signal(Signal::HUP);
    let expected =
        json!([{"mac": right, "ifname": PORTS[0], "flags": ["sticky"], "state": "static"}]);
    network.wait_for("the file's entry, and no other", || shown(&["static"]) == expected);
    assert!(network.is_cut_off());
    std::fs::write(&file, format!("{ports}[[fdb]]\naddress = \"{right}\"\nport = \"packet:up\"\n"))
        .expect("writes");
    bridge.signal(Signal::HUP);
    network.wait_for("the error", || {
        network.log().contains("bridge.toml:7: fdb: the file has no port \"packet:up\": it has packet:left, packet:right")
    });
    assert_eq!(shown(&["static"]), expected);
    std::fs::write(&file, ports).expect("writes");
    bridge.signal(Signal::HUP);
    network.wait_for("the entry to go", || shown(&["static"]) == json!([]));
    assert!(network.reaches(), "{}", network.log());
}

#[test]
fn hosts_reach_each_other_within_their_vlan_only() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&[PORTS[0], PORTS[1], "--vlan-filtering"]);
    assert!(network.reaches(), "both are in VLAN 1");
    let (_, text, _) = network.text(&["vlan"]);
    let expected = "port          vlan-id\npacket:left   1 PVID Egress Untagged\npacket:right  1 PVID Egress Untagged\n";
    assert_eq!(text, expected);
    let set = |words: &[&str]| {
        let (code, text, error) = network.text(&[&["vlan"], words].concat());
        assert!(code == Some(0) && text.is_empty(), "{words:?}: {error}");
    };
    set(&["add", "dev", PORTS[0], "vid", "10", "pvid", "untagged"]);
    set(&["del", "dev", PORTS[0], "vid", "1"]);
    assert!(network.is_cut_off(), "one is in VLAN 10, the other in VLAN 1");
    let drops = network.ask(&["stats", PORTS[0]])[0]["drops"].clone();
    assert!(drops["vlan"].as_u64() > Some(0), "{drops}");
    set(&["add", "dev", PORTS[1], "vid", "10-20"]);
    assert!(network.is_cut_off(), "its frames leave with a tag, and come without");
    let expected = json!([
        {"ifname": PORTS[1], "vlans": [{"vlan": 1, "flags": ["PVID", "Egress Untagged"]}, {"vlan": 10, "vlanEnd": 20}]},
    ]);
    assert_eq!(network.ask(&["vlan", "show", "dev", PORTS[1]]), expected);
    set(&["add", "dev", PORTS[1], "vid", "10", "pvid", "untagged"]);
    assert!(network.reaches(), "{}", network.log());
    let (_, text, _) = network.text(&["fdb", "show", "dev", PORTS[0]]);
    assert!(
        !text.is_empty() && text.lines().all(|line| line.ends_with(" dev packet:left vlan 10")),
        "{text}"
    );
    for (arguments, says) in [
        (&["vlan", "add", "dev", PORTS[0], "vid", "4095"][..], "a VLAN is 1 to 4094, not 4095"),
        (
            &["vlan", "add", "dev", PORTS[0], "vid", "10-20", "pvid"],
            "pvid is for one VLAN, not for 10-20",
        ),
        (
            &["vlan", "add", "dev", "packet:up", "vid", "10"],
            "there is no port \"packet:up\": there are packet:left, packet:right",
        ),
        (&["vlan", "del", "dev", PORTS[0], "vid", "1"], "packet:left: it is not in VLAN 1"),
        (&["vlan", "show", "dev", "packet:up"], "there is no port \"packet:up\""),
        (
            &["fdb", "add", "02:00:00:00:00:01", "dev", PORTS[0], "static"],
            "the bridge filters by VLAN: say in which the address is",
        ),
    ] {
        network.refuses(arguments, says);
    }
    network.ask(&["fdb", "add", "02:00:00:00:00:01", "dev", PORTS[0], "vlan", "10", "static"]);
}

#[test]
fn super_packets_cross_a_trunk_with_their_tag() {
    cross_a_trunk("802.1Q");
}

#[test]
fn super_packets_cross_a_provider_s_trunk_with_its_tag() {
    cross_a_trunk("802.1ad");
}

/// Connects two bridges between the hosts by a trunk with tags of this protocol. With a service
/// tag, the customers have their own tags below it.
fn cross_a_trunk(protocol: &str) {
    let Some(network) = TestNetwork::new() else { return };
    network.middle.ip("link add trunk0 type veth peer name trunk1");
    // Packet sockets accept a frame of the MTU plus one 802.1Q tag, but no other tag.
    ["trunk0", "trunk1"]
        .iter()
        .for_each(|name| network.middle.ip(&format!("link set {name} mtu 1508 up")));
    let is_provider = protocol == "802.1ad";
    // Kernels without VLAN interfaces are tested with untagged customers.
    if is_provider
        && network
            .left
            .run("ip", &["link", "add", "link", "eth0", "name", "probe", "type", "vlan", "id", "8"])
            .status
            .success()
    {
        for (host, address) in [(&network.left, "10.9.0.1/24"), (&network.right, "10.9.0.2/24")] {
            host.ip("addr flush dev eth0");
            host.ip("link add link eth0 name customer type vlan id 7");
            host.ip("link set customer up");
            host.ip(&format!("addr add {address} dev customer"));
        }
    }
    let (near, far) = ("packet:trunk0", "packet:trunk1");
    let filtering = ["--vlan-filtering", "--vlan-protocol", protocol];
    let _bridge = network.bridge(&[&[PORTS[0], near], &filtering[..]].concat());
    let (_other, socket) = network.other_bridge(&[&[far, PORTS[1]], &filtering[..]].concat());
    let (_, text, _) = network.text(&["vlan"]);
    assert_eq!(text.ends_with("\n\nTags are of 802.1ad.\n"), is_provider, "{text}");
    let socket = socket.display().to_string();
    let other = |arguments: &[&str]| {
        let mut command = network.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let output =
            command.args(arguments).args(["--json", "--control", &socket]).output().expect("runs");
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON and nothing else")
    };
    // The trunk carries only VLAN 10, tagged.
    for words in [
        &["add", "dev", PORTS[0], "vid", "10", "pvid", "untagged"][..],
        &["add", "dev", near, "vid", "10"],
        &["del", "dev", near, "vid", "1"],
    ] {
        network.ask(&[&["vlan"], words].concat());
    }
    for words in [
        &["add", "dev", PORTS[1], "vid", "10", "pvid", "untagged"][..],
        &["add", "dev", far, "vid", "10"],
        &["del", "dev", far, "vid", "1"],
    ] {
        other(&[&["vlan"], words].concat());
    }
    assert!(network.reaches(), "{}", network.log());
    let sent = || network.ask(&["stats", near])[0].clone();
    let came = || other(&["stats", far])[0].clone();
    // First super-packets of the sender's kernel, then those that the bridge merges from single
    // frames, then single frames.
    network.load();
    let (before, received) = (sent(), came());
    assert!(
        before["tx_super_packets"].as_u64() > Some(0)
            && received["rx_super_packets"].as_u64() > Some(0),
        "{before} {received}"
    );
    network.left.ip("link set eth0 gso_max_segs 1");
    network.load();
    let merged = sent();
    assert!(merged["tx_super_packets"].as_u64() > before["tx_super_packets"].as_u64(), "{merged}");
    for (port, feature) in [(PORTS[0], "gro"), (near, "tso"), (near, "tx-checksumming")] {
        network.ask(&["features", port, feature, "off"]);
    }
    network.load();
    let single = sent();
    assert_eq!(single["tx_super_packets"], merged["tx_super_packets"], "{single}");
    for stats in [single, came()] {
        // The machine's own ends of the trunk may have sent untagged frames.
        assert!(
            stats["drops"]["malformed"] == 0 && stats["drops"]["vlan"].as_u64() < Some(20),
            "{stats}"
        );
    }
    // A frame in another VLAN does not arrive.
    let before = came()["drops"]["vlan"].as_u64();
    other(&["vlan", "del", "dev", far, "vid", "10"]);
    assert!(network.is_cut_off());
    assert!(came()["drops"]["vlan"].as_u64() > before);
}
