//! Offloads and limits of a running bridge: switching, `--force`, counters.

use super::*;

#[test]
fn offloads_and_limits_are_switched_while_it_runs() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&[PORTS[0], PORTS[1], "--feature", "packet:right:gro=off"]);
    let (_, text, _) = network.text(&["features", PORTS[0]]);
    assert!(text.starts_with("Features for packet:left:\nrx-checksumming: on\n"), "{text}");
    assert!(
        text.contains("\ngeneric-receive-offload: on\n")
            && text.contains("\nlarge-receive-offload: off\n"),
        "{text}"
    );
    let (_, text, _) = network.text(&["features", PORTS[1]]);
    assert!(text.contains("\ngeneric-receive-offload: off\n"), "{text}");
    let (code, text, _) = network.text(&["features", PORTS[0], "gro", "off"]);
    assert_eq!((code, text.as_str()), (Some(0), "generic-receive-offload: off\n"));
    // TSO depends on checksums, so switching them off switches TSO off too.
    let (_, text, _) = network.text(&["features", PORTS[0], "tx-checksumming", "off"]);
    assert!(text.contains("tx-checksumming: off\n"), "{text}");
    if text.contains("tcp-segmentation-offload") {
        assert!(text.contains("tcp-segmentation-offload: off [requested on: "), "{text}");
    }
    network.refuses(&["features", PORTS[0], "lro", "on"], "large-receive-offload is refused");
    let forced = network.ask(&["features", PORTS[0], "lro", "on", "--force"]);
    let lro = forced["features"]
        .as_array()
        .expect("an array")
        .iter()
        .find(|report| report["feature"] == "large-receive-offload");
    assert_eq!(lro.expect("is there")["asked"], true);
    let limits = network.ask(&["limits", PORTS[0], "gro-flush-timeout", "50us"]);
    assert_eq!(limits[0]["settings"]["gro_flush_timeout"], 50_000);
    let (code, text, _) = network.text(&["limits", PORTS[0], "too_big", "icmp"]);
    assert!(
        code == Some(0)
            && text.contains("gro_flush_timeout: 50000 ns\n")
            && text.contains("\ntoo_big: icmp\n"),
        "{text}"
    );
    assert!(text.contains("\nstorage: fragments [linear, with gro_flush_timeout]\n"), "{text}");
    let (code, text, _) =
        network.text(&["features", PORTS[0], "tx-tcp-mangleid-segmentation", "on"]);
    assert!(code == Some(0) && text.starts_with("tx-tcp-mangleid-segmentation: o"), "{text}");
    for (arguments, says) in [
        (&["features", "packet:up"][..], "there are packet:left, packet:right"),
        (&["features", PORTS[0], "turbo", "on"], "\"turbo\" is not an offload"),
        (&["limits", PORTS[0], "mtu", "9000"], "is not a setting of a port"),
        (&["limits", PORTS[0], "gro_flush_timeout", "2s"], "at most"),
        (
            &["limits", PORTS[0], "gro_flush_timeout", "50000"],
            "gro_flush_timeout: time unit needed",
        ),
        (
            &["limits", PORTS[0], "gso_max_size", "1"],
            "packet:left: gso_max_size is 0 (what the port takes) or 68 to 524280 bytes, not 1",
        ),
        (
            &["limits", PORTS[0], "gro_max_size", "0"],
            "packet:left: gro_max_size is 68 to 524280 bytes, not 0",
        ),
        (
            &["limits", PORTS[0], "storage", "heap"],
            "packet:left: storage is fragments or linear, not \"heap\"",
        ),
        (&["limits", PORTS[0], "isolated", "yes"], "isolated is on or off, not \"yes\""),
        (&["features", PORTS[0], "gso", "off"], "\"gso\" is not an offload"),
        (&["features", PORTS[0], "gro"], "Usage"),
    ] {
        network.refuses(arguments, says);
    }
    assert!(network.reaches());
    let rates = network.ask("top --interval 200ms");
    assert!(rates[0]["port"] == PORTS[0] && rates[0]["rx_packets"].is_number(), "{rates}");
}

#[test]
fn lro_is_managed_and_counted_while_packets_flow() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&PORTS);
    // Single frames, because LRO passes packets that the sender's kernel has merged.
    network.left.ip("link set eth0 gso_max_segs 1");
    // Packets that LRO accepted and sessions that it delivered, at the previous check.
    let mut before = [0; 2];
    let mut counted = || {
        let stats = network.ask(&["stats", PORTS[0]])[0].clone();
        let now =
            ["lro_aggregated", "lro_flushed"].map(|name| stats[name].as_u64().expect("a number"));
        let new = [now[0] - before[0], now[1] - before[1]];
        before = now;
        (new, stats)
    };
    network.ask(&["features", PORTS[0], "lro", "on", "--force"]);
    assert_eq!(
        network.ask(&["limits", PORTS[0], "lro-max-aggr", "2"])[0]["settings"]["lro_max_aggr"],
        2
    );
    network.load();
    let ([aggregated, flushed], stats) = counted();
    assert!(aggregated > 1_000 && aggregated <= 2 * flushed, "{stats}");
    assert!(
        stats["reasons"]["packet_limit"].as_u64() > Some(0) && stats["rx_super_segments"] == 0,
        "{stats}"
    );
    assert_eq!(
        network.ask(&["limits", PORTS[0], "lro_max_aggr", "0"])[0]["settings"]["lro_max_aggr"],
        0
    );
    network.load();
    let ([aggregated, flushed], stats) = counted();
    assert!(aggregated > 2 * flushed, "more than two in one: {aggregated}, {flushed}: {stats}");
    // Two flows, one in each direction, and one descriptor for both.
    for (name, word, shown) in [
        ("storage", "linear", Value::from("linear")),
        ("delivery", "at-once", "at-once".into()),
        ("lro_acks", "on", true.into()),
    ] {
        let limits = network.ask(&["limits", PORTS[0], name, word]);
        assert_eq!(limits[0]["settings"][name], shown);
    }
    network.ask(&["limits", PORTS[0], "lro_max_desc", "1"]);
    network.load();
    let ([aggregated, _], _) = counted();
    assert!(aggregated > 1_000, "every byte came, and LRO was at work");
    let (code, text, _) = network.text(&["stats", PORTS[0], "--reasons"]);
    assert!(
        code == Some(0)
            && text.contains("Reasons for which packets left")
            && text.contains("\n  packet_limit "),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let rates = network.ask("top --interval 100ms");
    assert!(rates[0]["lro"]["aggregated"]["total"].as_u64() > Some(3_000), "{rates}");
    assert!(rates[0]["reasons"]["packet_limit"]["total"].as_u64() > Some(0), "{rates}");
    // A packet that the sender's kernel has merged counts as its frames.
    network.left.ip("link set eth0 gso_max_segs 65535");
    network.load();
    let (_, stats) = counted();
    let [packets, segments] = ["rx_super_packets", "rx_super_segments"]
        .map(|name| stats[name].as_u64().expect("a number"));
    assert!(packets > 0 && segments >= 2 * packets, "{stats}");
    // 8 MiB in segments of at most 1448 bytes.
    assert!(
        number(&stats["rx_packets"]) - packets + segments >= 4 * (8 << 20) / 1448,
        "all loads together: {stats}"
    );
}

#[test]
fn segmentation_for_constant_identifications_is_reported_and_can_be_avoided() {
    let Some(network) = TestNetwork::new() else { return };
    let flow: Vec<_> =
        (0..40).map(|number| Frame::tcp4(1 + number * 1_000, 1_000).with_id(7)).collect();
    let file = network.bench.capture("ids.pcap", &spaced(&flow));
    let replayed = format!("pcap:{}?speed=max&loop=forever", file.display());
    let _bridge = network.bridge(&[&replayed, PORTS[1]]);
    let stats = || network.ask(&["stats", PORTS[1]])[0].clone();
    network.wait_for("packets that are cut for their identifications", || {
        stats()["segmented_for_ids"].as_u64() > Some(0)
    });
    let (_, text, _) = network.text(&["stats", PORTS[1]]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("merged and then segmented again, to no benefit"), "{text}");
    let command = "`superpacket features 'packet:right' tx-tcp-mangleid-segmentation on`";
    assert!(
        words.contains(command) && text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let (code, text, _) =
        network.text(&["features", PORTS[1], "tx-tcp-mangleid-segmentation", "on"]);
    assert_eq!((code, text.as_str()), (Some(0), "tx-tcp-mangleid-segmentation: on\n"));
    network.wait_for("packets that go whole", || stats()["tx_super_packets"].as_u64() > Some(0));
    let before = stats();
    network.wait_for("more of them", || {
        stats()["tx_super_packets"].as_u64() > before["tx_super_packets"].as_u64()
    });
    assert_eq!(stats()["segmented_for_ids"], before["segmented_for_ids"], "none is cut any more");
}
