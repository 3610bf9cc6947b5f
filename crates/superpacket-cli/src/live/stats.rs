//! `superpacket stats`: the counters of a bridge's ports.

use clap::Args;
use superpacket_bridge::report::{PortStats, QueueStats};

use super::connection::{PortQuery, connect};
use crate::failure::Failure;
use crate::report::{
    columns, grouped, paragraph, print, print_json, printable, reasons_table, table,
};

/// The arguments of `superpacket stats`.
#[derive(Clone, Debug, Args)]
pub(crate) struct StatsArguments {
    #[command(flatten)]
    pub(crate) query: PortQuery,
    /// Also show why packets left aggregation, by reason
    #[arg(long)]
    pub(crate) reasons: bool,
    /// Also show the counters of each receive and transmit queue
    #[arg(long)]
    pub(crate) queues: bool,
}

/// Shows the counters of all ports, or of one.
pub(crate) fn run(arguments: &StatsArguments) -> Result<(), Failure> {
    let ports = connect(&arguments.query.connection)?.stats(arguments.query.port.as_deref())?;
    if arguments.query.json {
        print_json(&ports)?;
    } else {
        print(&text(&ports, arguments, columns()), false)?;
    }
    Ok(())
}

/// Renders the counters as one list of names and numbers per port, which is easy to grep. Causes
/// without drops are left out.
fn text(ports: &[PortStats], arguments: &StatsArguments, columns: usize) -> String {
    let each = ports.iter().map(|port| {
        let causes = port
            .drops
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(cause, count)| (format!("  {}", printable(cause)), *count));
        let drops = std::iter::once(("drops".to_owned(), port.drops.values().sum())).chain(causes);
        let queues = if arguments.queues { queue_counters(port) } else { Vec::new() };
        let rows = PortStats::COUNTERS
            .iter()
            .map(|counter| (counter.name.to_owned(), (counter.read)(port)))
            .chain(queues)
            .chain(drops);
        let mut text = format!("{}\n", printable(&port.port));
        text.push_str(
            table(["", ""], rows.map(|(name, count)| [name, grouped(count)]))
                .trim_start_matches('\n'),
        );
        if port.segmented_for_ids > 0 {
            text.push('\n');
            text.push_str(&paragraph(&id_advice(port), 2, columns));
        }
        if arguments.reasons {
            text.push('\n');
            text.push_str(&paragraph("Reasons for which packets left aggregation:", 2, columns));
            match port.reasons.is_empty() {
                true => text.push_str("  none\n"),
                false => text.push_str(&reasons_table(
                    port.reasons.iter().map(|(name, count)| (name.as_str(), *count)),
                )),
            }
        }
        text
    });
    each.collect::<Vec<_>>().join("\n")
}

/// Returns advice about packets that were merged and then segmented again only because of their IP
/// identifications.
fn id_advice(port: &PortStats) -> String {
    format!(
        "{} packets were merged and then segmented again, to no benefit: this port cannot send packets whose IP identifications are all the same. \
         `superpacket features '{}' tx-tcp-mangleid-segmentation on` lets the port renumber those with the don't-fragment bit (RFC 6864).",
        grouped(port.segmented_for_ids),
        printable(&port.port),
    )
}

/// Returns the counters of the queues, with the names that drivers use for `ethtool -S`.
fn queue_counters(port: &PortStats) -> Vec<(String, u64)> {
    let directions = [("rx", &port.rx_queues), ("tx", &port.tx_queues)];
    let each = directions
        .into_iter()
        .flat_map(|(direction, queues)| queues.iter().map(move |queue| (direction, queue)));
    let counters = each.flat_map(|(direction, QueueStats { queue, packets, bytes, drops })| {
        let named =
            move |what: &str, count: u64| (format!("{direction}_queue_{queue}_{what}"), count);
        [named("packets", *packets), named("bytes", *bytes)]
            .into_iter()
            .chain(drops.map(|drops| named("drops", drops)))
    });
    counters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::connection::ControlOptions;

    fn stats() -> PortStats {
        PortStats {
            port: "packet:eth0".into(),
            rx_packets: 1234,
            drops: [("too_long".into(), 5), ("full".into(), 0)].into(),
            ..PortStats::default()
        }
    }

    /// Returns arguments that select which sections are shown in addition to the counters.
    fn arguments(reasons: bool, queues: bool) -> StatsArguments {
        let connection = ControlOptions { control: None };
        StatsArguments { query: PortQuery { port: None, connection, json: false }, reasons, queues }
    }

    #[test]
    fn queues_are_shown_where_they_are_asked_for() {
        let queue =
            |queue, packets, drops| QueueStats { queue, packets, bytes: 100 * packets, drops };
        let mut stats = stats();
        (stats.rx_queues, stats.tx_queues) =
            (vec![queue(0, 3, Some(7)), queue(1, 4, Some(0))], vec![queue(0, 5_000, None)]);
        assert!(
            !text(std::slice::from_ref(&stats), &arguments(true, false), 80).contains("queue_0")
        );
        let text = text(&[stats], &arguments(false, true), 80);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.contains("_queue_"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let expected = [
            ["rx_queue_0_packets", "3"],
            ["rx_queue_0_bytes", "300"],
            ["rx_queue_0_drops", "7"],
            ["rx_queue_1_packets", "4"],
            ["rx_queue_1_bytes", "400"],
            ["rx_queue_1_drops", "0"],
            ["tx_queue_0_packets", "5,000"],
            ["tx_queue_0_bytes", "500,000"],
        ];
        assert_eq!(rows, expected, "{text}");
    }

    #[test]
    fn every_counter_of_the_json_is_in_the_text() {
        let stats = stats();
        let text = text(std::slice::from_ref(&stats), &arguments(false, false), 80);
        let json = serde_json::to_value(&stats).expect("JSON");
        for name in json.as_object().expect("an object").keys().filter(|name| {
            !["port", "drops", "reasons", "rx_queues", "tx_queues"].contains(&name.as_str())
        }) {
            assert!(text.contains(&format!("  {name} ")), "{name}\n{text}");
        }
        assert!(text.starts_with("packet:eth0\n"), "{text}");
        assert!(
            text.lines().any(|line| line.split_whitespace().eq(["rx_packets", "1,234"])),
            "{text}"
        );
        assert!(text.lines().any(|line| line.split_whitespace().eq(["drops", "5"])), "{text}");
        assert!(text.lines().any(|line| line.split_whitespace().eq(["too_long", "5"])), "{text}");
        assert!(
            !text.lines().any(|line| line.trim_start().starts_with("full")),
            "what never happened is no cause: {text}"
        );
        assert!(!text.contains("reason") && !text.contains("identifications"), "{text}");
    }

    #[test]
    fn reasons_are_shown_where_they_are_asked_for() {
        let mut stats = stats();
        assert!(
            text(std::slice::from_ref(&stats), &arguments(true, false), 80).contains("\n  none\n")
        );
        stats.reasons = [("sequence".to_owned(), 1), ("poll_end".to_owned(), 3)].into();
        let text = text(&[stats], &arguments(true, false), 80);
        let rows: Vec<_> = text
            .lines()
            .skip_while(|line| !line.contains("Reasons for which packets left"))
            .skip(2)
            .map(str::trim)
            .collect();
        assert_eq!(rows, ["poll_end        3  75.0 %", "sequence        1  25.0 %"], "{text}");
    }

    #[test]
    fn packets_segmented_for_their_identifications_are_reported_with_advice() {
        let stats = PortStats {
            port: format!("packet:{}", "e".repeat(15)),
            segmented_for_ids: 4_321,
            ..stats()
        };
        for columns in [40, 80] {
            let text = text(std::slice::from_ref(&stats), &arguments(true, false), columns);
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains("4,321 packets were merged and then segmented again, to no benefit"),
                "{text}"
            );
            assert!(words.contains("tx-tcp-mangleid-segmentation on`"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
    }
}
