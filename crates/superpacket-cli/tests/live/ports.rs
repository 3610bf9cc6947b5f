//! Ports that are added and removed while the bridge runs, their names, and their settings.

use super::*;

#[test]
fn ports_are_added_and_removed_while_it_runs() {
    let Some(network) = TestNetwork::new() else { return };
    let running = network.bridge(&[PORTS[0]]);
    let warnings = || network.log().matches("the bridge has only one port").count();
    assert_eq!(warnings(), 1, "{}", network.log());
    assert!(network.is_cut_off(), "there is nobody to reach");
    let added = network.ask(&["port", "add", PORTS[1]]);
    assert_eq!((&added["port"], &added["state"]), (&Value::from(PORTS[1]), &Value::from("up")));
    network.wait_for("the other host", || network.reaches());
    network.load();
    network.refuses(&["port", "add", PORTS[1]], PORTS[1]);
    network.refuses("port add packet:nowhere", "nowhere");
    network.refuses("port add pigeon:a", "starts with no kind of port");
    assert_eq!(network.text(&["port", "del", PORTS[1]]), (Some(0), String::new(), String::new()));
    assert!(network.is_cut_off(), "its port is gone");
    assert_eq!(warnings(), 2, "{}", network.log());
    network.refuses(&["port", "del", PORTS[1]], "there are packet:left");
    network.ask(&["port", "add", PORTS[1]]);
    network.wait_for("the other host", || network.reaches());
    network.stop(running);
}

#[test]
fn every_output_calls_a_port_by_its_name() {
    let Some(network) = TestNetwork::new() else { return };
    let options = [
        "--feature",
        "left:gro=off",
        "--limit",
        "right:storm_broadcast=1000",
        "--metrics",
        "127.0.0.1:9600",
        "--log-format",
        "json",
    ];
    let bridge = network
        .bridge(&[&["left=packet:left?ring=1m", "right=packet:right"][..], &options].concat());
    assert!(network.reaches(), "{}", network.log());
    let ports = network.ask(&["ports"]);
    assert_json(&ports[0], json!({ "port": "left", "string": "packet:left?ring=1m" }));
    let (_, text, _) = network.text(&["ports"]);
    assert!(
        text.lines().any(|line| line.split_whitespace().take(3).eq(["left", "packet:left", "up"])),
        "{text}"
    );
    let (_, text, _) = network.text("features left");
    assert!(
        text.starts_with("Features for left:\n")
            && text.contains("\ngeneric-receive-offload: off\n"),
        "{text}"
    );
    assert_eq!(network.text("features left gro on").1, "generic-receive-offload: on\n");
    assert_eq!(network.ask("limits right")[0]["settings"]["storm_broadcast"], 1_000);
    assert!(network.ask("stats left")[0]["rx_packets"].as_u64() >= Some(2));
    assert_eq!(network.ask("rps left")["ports"][0]["port"], "left");
    assert_eq!(network.ask("top --interval 100ms")[0]["port"], "left");
    network.ask("vlan add dev left vid 10");
    assert!(
        network.text(&["vlan"]).1.contains("\nleft   1 PVID Egress Untagged\n       10\n"),
        "{}",
        network.text(&["vlan"]).1
    );
    network.ask("fdb add 02:00:00:00:00:77 dev right static");
    let (_, text, _) = network.text(&["fdb"]);
    assert!(
        text.contains("02:00:00:00:00:77 dev right sticky static\n")
            && text.contains(" dev left\n"),
        "{text}"
    );
    names_are_unique_and_complete(&network);
    metrics_have_names(&network);
    network.stop(bridge);
    log_has_names(&network);
}

/// Checks that a name is accepted once, and that a named port is not found by its port string.
fn names_are_unique_and_complete(network: &TestNetwork) {
    let added = network.ask("port add third=tap:named0");
    assert_eq!((&added["port"], &added["string"]), (&"third".into(), &"tap:named0".into()));
    for (arguments, says) in [
        (
            &["features", "packet:left"][..],
            "there is no port \"packet:left\": there are left, right, third",
        ),
        (&["port", "add", "third=tap:named1"], "port \"third\" is named twice"),
        (
            &["port", "add", "all=tap:named1"],
            "port \"all=tap:named1\": name \"all\" is a word of commands",
        ),
        (&["port", "del", "tap:named0"], "there is no port \"tap:named0\""),
    ] {
        network.refuses(arguments, says);
    }
    network.ask("port del third");
}

/// Checks that the labels of the metrics are the ports' names.
fn metrics_have_names(network: &TestNetwork) {
    let script =
        "exec 3<>/dev/tcp/127.0.0.1/9600; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3";
    let output = network.middle.run("timeout", &["5", "bash", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("\nsuperpacket_port_up{port=\"left\"} 1\n")
            && !text.contains("port=\"packet:"),
        "{text}"
    );
}

/// Checks that each line of the log has the port's name, and that of opening has its string too.
fn log_has_names(network: &TestNetwork) {
    let log: Vec<Value> =
        network.log().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let opened: Vec<_> = log
        .iter()
        .filter(|line| line["message"] == "port opened")
        .map(|line| (&line["port"], &line["string"]))
        .collect();
    assert_eq!(
        opened[..2],
        [
            (&"left".into(), &"packet:left?ring=1m".into()),
            (&"right".into(), &"packet:right".into())
        ],
        "{log:?}"
    );
    assert!(
        log.iter().all(|line| !line["port"].as_str().is_some_and(|port| port.contains(':'))),
        "{log:?}"
    );
}

#[test]
fn options_and_settings_of_a_port_are_set_while_packets_flow() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&["left=packet:left", PORTS[1]]);
    let left = || network.ask("ports left")[0].clone();
    // TCP retransmits the packets that are lost while the port is closed.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                network.load();
            }
        });
        for ring in ["ring=1m", "ring=8m"] {
            let before = network.ask("stats left")[0]["rx_bytes"].as_u64();
            network
                .wait_for("packets", || network.ask("stats left")[0]["rx_bytes"].as_u64() > before);
            let set = network.ask(&["port", "set", "left", ring]);
            assert_json(&set, json!({ "port": "left", "string": format!("packet:left?{ring}") }));
        }
        done.store(true, Ordering::Relaxed);
        loads.join().expect("every byte arrives");
    });
    assert_eq!(
        (&left()["reopened"], &network.ask(&["ports", PORTS[1]])[0]["reopened"]),
        (&2.into(), &0.into())
    );
    assert!(
        network.ask("stats left")[0]["rx_bytes"].as_u64() > Some(4 << 20),
        "what it counted stays"
    );
    assert_eq!(
        network.text("port set dev left isolated on learning off flood off"),
        (Some(0), String::new(), String::new())
    );
    let forwarding = &left()["settings"];
    assert_json(
        forwarding,
        json!({
            "isolated": true, "learning": false, "flood": false, "mcast_flood": true
        }),
    );
    assert_eq!(left()["reopened"], 2, "the string is the same");
    let set = network.ask("port set left ring= rx_packet_rate 100000 flood on");
    assert_eq!(
        (&set["string"], &set["settings"]["rx_packet_rate"], &set["settings"]["flood"]),
        (&"packet:left".into(), &100_000.into(), &true.into())
    );
    // A port without a name keeps its old one.
    let set = network.ask(&["port", "set", PORTS[1], "ring=8m"]);
    assert_eq!((&set["port"], &set["string"]), (&PORTS[1].into(), &"packet:right?ring=8m".into()));
    assert!(network.reaches(), "{}", network.log());
    // A refused command changes nothing, whether it has an error or the port cannot be opened.
    network.middle.ip("tuntap add dev keep0 mode tap");
    network.ask("port add keep=tap:keep0");
    for (words, says) in [
        (
            &["left", "flood", "off", "ring=many"][..],
            "option \"ring=many\" takes a number of bytes",
        ),
        (&["left", "flood", "off", "rign=8m"], "\"rign=8m\" is not known"),
        (
            &["left", "flood", "off", "queues="],
            "option \"queues\" is not set, so it cannot be removed",
        ),
        (
            &["left", "flood", "off", "rx_byte_burst", "1T"],
            "left: rx_byte_burst is 0 (a tenth of a second's)",
        ),
        (&["left", "hairpin", "on"], "\"hairpin\" is not a setting of a port"),
        (
            &["packet:left", "flood", "off"],
            "there is no port \"packet:left\": there are left, packet:right, keep",
        ),
        (
            &["keep", "isolated", "on", "queues=2"],
            "keep: it cannot be opened as tap:keep0?queues=2: ",
        ),
        (&["keep", "isolated", "on", "queues=2"], "; it is open as before, as tap:keep0"),
    ] {
        network.refuses(&[&["port", "set"], words].concat(), says);
    }
    assert_eq!(
        (&left()["string"], &left()["settings"]["flood"], &left()["reopened"]),
        (&"packet:left".into(), &true.into(), &3.into())
    );
    let keep = &network.ask("ports keep")[0];
    assert_eq!((&keep["string"], &keep["error"]), (&"tap:keep0".into(), &Value::Null), "{keep}");
    assert_eq!(keep["settings"]["isolated"], false, "{keep}");
    assert!(network.reaches(), "{}", network.log());
}
