//! Metrics over HTTP.

use super::*;

#[test]
fn metrics_are_served_over_http() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&[PORTS[0], PORTS[1], "--metrics", "127.0.0.1:9600"]);
    assert!(network.reaches());
    // The listener is in the bridge's namespace, so bash sends the HTTP request there.
    let script = "exec 3<>/dev/tcp/127.0.0.1/9600; printf 'GET /metrics HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n' >&3; cat <&3";
    let output = network.middle.run("timeout", &["5", "bash", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text} {}", stderr(&output));
    let received = text.lines().find_map(|line| {
        line.strip_prefix("superpacket_port_rx_packets_total{port=\"packet:left\"} ")
    });
    assert!(
        received.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count > 0),
        "{text}"
    );
    // The first packet of the connection is counted, and LRO has merged none.
    assert!(
        text.contains("superpacket_port_reasons_total{port=\"packet:left\",reason=\"tcp_flags\"} "),
        "{text}"
    );
    assert!(
        text.contains("superpacket_port_lro_no_desc_total{port=\"packet:left\"} 0\n"),
        "{text}"
    );
    // Packets that the kernel did not accept are in the metrics and in the JSON of `stats`.
    let stats = network.ask(&["stats", PORTS[0]])[0].clone();
    for name in ["tx_full", "tx_refused"] {
        assert!(
            text.contains(&format!("superpacket_port_{name}_total{{port=\"packet:left\"}} ")),
            "{name}: {text}"
        );
        assert!(stats[name].is_u64(), "{name}: {stats}");
    }
}
