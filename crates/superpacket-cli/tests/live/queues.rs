//! `superpacket stats --queues`: the counters of each queue of a port.

use super::*;

#[test]
fn queues_are_counted_one_by_one() {
    let Some(network) = TestNetwork::new() else { return };
    let left = "packet:left?queues=2";
    let _bridge = network.bridge(&[left, PORTS[1], "--metrics", "127.0.0.1:9600"]);
    network.load();
    let stats = network.ask(&["stats", left])[0].clone();
    let queues = stats["rx_queues"].as_array().expect("a list");
    assert_eq!(
        queues.iter().map(|queue| queue["queue"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(1)],
        "{stats}"
    );
    for (of, total) in [("packets", "rx_packets"), ("bytes", "rx_bytes")] {
        let sum: u64 = queues.iter().map(|queue| queue[of].as_u64().expect("a number")).sum();
        assert_eq!(Some(sum), stats[total].as_u64(), "{stats}");
    }
    let drops: u64 = queues
        .iter()
        .map(|queue| queue["drops"].as_u64().expect("the kernel tells it by socket"))
        .sum();
    assert_eq!(Some(drops), stats["drops"]["rx_ring"].as_u64(), "{stats}");
    assert_eq!(
        stats["tx_queues"].as_array().map(Vec::len),
        Some(1),
        "the kernel chooses the device's: {stats}"
    );
    let (code, text, _) = network.text(&["stats", left, "--queues"]);
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.contains("_queue_"))
        .collect();
    let of_rx =
        |queue: u32| ["packets", "bytes", "drops"].map(|what| format!("rx_queue_{queue}_{what}"));
    let expected = [
        &of_rx(0)[..],
        &of_rx(1),
        &["tx_queue_0_packets".to_owned(), "tx_queue_0_bytes".to_owned()],
    ]
    .concat();
    assert!(code == Some(0) && names == expected, "{text}");
    assert!(!network.text(&["stats", left]).1.contains("_queue_"), "only where they are asked for");
    let script = "exec 3<>/dev/tcp/127.0.0.1/9600; printf 'GET /metrics HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n' >&3; cat <&3";
    let output = network.middle.run("timeout", &["5", "bash", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    let first = format!("superpacket_port_rx_queue_packets_total{{port=\"{left}\",queue=\"0\"}} ");
    assert!(text.lines().any(|line| line.starts_with(&first)), "{text}");
}
