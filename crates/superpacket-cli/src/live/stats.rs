//! `superpacket stats`: what a bridge's ports counted.

use superpacket_bridge::report::PortStats;

use super::arguments::Stats;
use super::connect;
use crate::failure::Failure;
use crate::report::{grouped, print, print_json, printable, table};

/// Shows the counters of all ports, or of one.
pub(crate) fn run(arguments: &Stats) -> Result<(), Failure> {
    let ports = connect(&arguments.connection)?.stats(arguments.port.as_deref())?;
    if arguments.json {
        print_json(&ports)?;
    } else {
        print(&text(&ports), false)?;
    }
    Ok(())
}

/// The counters as a list for each port: names and numbers, easy to grep; of the causes of drops, those that there were.
fn text(ports: &[PortStats]) -> String {
    let each = ports.iter().map(|port| {
        let causes = port.drops.iter().filter(|(_, count)| **count > 0).map(|(cause, count)| (format!("  {}", printable(cause)), *count));
        let drops = std::iter::once(("drops".to_owned(), port.drops.values().sum())).chain(causes);
        let rows = counters(port).into_iter().map(|(name, count)| (name.to_owned(), count)).chain(drops);
        table([printable(&port.port), String::new()].each_ref().map(String::as_str), rows.map(|(name, count)| [name, grouped(count)]))
    });
    each.collect::<Vec<_>>().join("\n")
}

/// The counters by their names in JSON, but for the drops.
fn counters(port: &PortStats) -> [(&'static str, u64); 22] {
    [
        ("rx_packets", port.rx_packets),
        ("rx_bytes", port.rx_bytes),
        ("tx_packets", port.tx_packets),
        ("tx_bytes", port.tx_bytes),
        ("rx_super_packets", port.rx_super_packets),
        ("tx_super_packets", port.tx_super_packets),
        ("tx_super_segments", port.tx_super_segments),
        ("merged", port.merged),
        ("aggregated", port.aggregated),
        ("segmented", port.segmented),
        ("segments", port.segments),
        ("checksummed", port.checksummed),
        ("fallbacks", port.fallbacks),
        ("filtered", port.filtered),
        ("steered", port.steered),
        ("in_place", port.in_place),
        ("held_back", port.held_back),
        ("flow_moves", port.flow_moves),
        ("hashes_reported", port.hashes_reported),
        ("hashes_computed", port.hashes_computed),
        ("wake_ups", port.wake_ups),
        ("in_place_switches", port.in_place_switches),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_the_json_is_in_the_text() {
        let stats = PortStats {
            port: "packet:eth0".into(),
            rx_packets: 1234,
            drops: [("too_long".into(), 5), ("full".into(), 0)].into(),
            ..PortStats::default()
        };
        let text = text(std::slice::from_ref(&stats));
        let json = serde_json::to_value(&stats).expect("JSON");
        for name in json.as_object().expect("an object").keys().filter(|name| !["port", "drops"].contains(&name.as_str())) {
            assert!(text.contains(&format!("  {name} ")), "{name}\n{text}");
        }
        assert!(text.starts_with("  packet:eth0"), "{text}");
        assert!(text.lines().any(|line| line.split_whitespace().eq(["rx_packets", "1,234"])), "{text}");
        assert!(text.lines().any(|line| line.split_whitespace().eq(["drops", "5"])), "{text}");
        assert!(text.lines().any(|line| line.split_whitespace().eq(["too_long", "5"])) && !text.contains("full"), "{text}");
    }
}
