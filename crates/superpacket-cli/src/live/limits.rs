//! `superpacket limits`: shows and sets the limits of a bridge's ports.

use clap::Args;
use superpacket_bridge::report::PortReport;
use superpacket_bridge::settings::{Forwarding, Limits, PortSettings, Rates, SettingValue};

use super::connection::{ControlOptions, connect};
use crate::amount::{nanoseconds, size};
use crate::failure::Failure;
use crate::report::{print, print_json, printable};

/// The arguments of `superpacket limits`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LimitsArguments {
    /// Only this port, by its name, or by its port string if it has none (packet:eth0)
    pub(crate) port: Option<String>,
    /// Limit to set: gso_max_size, gro_max_size, gro_flush_timeout, gap_timeout, too_big,
    /// lro_max_aggr, lro_max_desc, lro_acks, gro_past_push, gro_udp_no_checksum,
    /// storage, delivery, address_limit, isolated, learning, flood, mcast_flood, bcast_flood,
    /// storm_broadcast, storm_multicast, storm_unknown, and rx_byte_rate, rx_byte_burst,
    /// rx_packet_rate, rx_packet_burst, and the same with tx
    #[arg(requires = "value")]
    pub(crate) name: Option<String>,
    /// Value: a size (32k), a duration (50us), a number, or a word
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Shows the limits, or sets one and shows the result.
pub(crate) fn run(arguments: &LimitsArguments) -> Result<(), Failure> {
    let mut client = connect(&arguments.connection)?;
    let ports = match (&arguments.port, &arguments.name, &arguments.value) {
        (Some(port), Some(name), Some(text)) => {
            // Hyphens are accepted as in the configuration file.
            let name = name.replace('-', "_");
            vec![match name.as_str() {
                "too_big" => client.set_too_big(port, text)?,
                name if PortSettings::AGGREGATION.contains(&name) => {
                    client.set_aggregation(port, name, text)?
                }
                name if Forwarding::NAMES.contains(&name) => {
                    client.set_forwarding(port, name, switch(name, text)?)?
                }
                name => client.set_limit(port, name, value(name, text)?)?,
            }]
        }
        (port, ..) => client.ports(port.as_deref())?,
    };
    if arguments.json {
        let limits = |port: &PortReport| {
            serde_json::json!({
                "port": port.port,
                "limits": port.limits,
                "too_big": port.too_big,
                "aggregation": port.aggregation,
                "forwarding": port.forwarding,
            })
        };
        print_json(&ports.iter().map(limits).collect::<Vec<_>>())?;
    } else {
        print(&ports.iter().map(limits).collect::<Vec<_>>().join("\n"), false)?;
    }
    Ok(())
}

/// Sets a limit of a port that is not open yet, from its text on the command line.
pub(super) fn set(settings: &mut PortSettings, name: &str, text: &str) -> Result<(), Failure> {
    let name = name.replace('-', "_");
    settings.set(&name, &setting(&name, text)?).map_err(Failure::Usage)
}

/// Parses the value of a port's setting, with its unit if it has one.
pub(super) fn setting(name: &str, text: &str) -> Result<SettingValue, Failure> {
    match name {
        name if Forwarding::NAMES.contains(&name) => Ok(SettingValue::Switch(switch(name, text)?)),
        name if Limits::names().any(|known| known == name) => {
            Ok(SettingValue::Number(value(name, text)?))
        }
        name if PortSettings::names().any(|known| known == name) => {
            Ok(SettingValue::Word(text.to_owned()))
        }
        _ => {
            let names = PortSettings::names().collect::<Vec<_>>().join(", ");
            Err(Failure::Usage(format!(
                "{name:?} is not a setting of a port; choose one of {names}"
            )))
        }
    }
}

/// Returns the unit of a limit.
fn unit(name: &str) -> &'static str {
    match name {
        "gro_flush_timeout" | "gap_timeout" => "ns",
        "lro_max_aggr" => "packets",
        "lro_max_desc" => "flows",
        "address_limit" => "addresses",
        _ => Rates::unit(name).unwrap_or("bytes"),
    }
}

/// Parses the value of a limit. Durations need a unit; for sizes it is optional.
fn value(name: &str, text: &str) -> Result<u64, Failure> {
    let parsed = match unit(name) {
        "ns" => nanoseconds(text),
        "bytes" | "bytes/s" => size(text),
        unit => text.parse().map_err(|_| format!("{text:?} is not a number of {unit}")),
    };
    parsed.map_err(|problem| Failure::Usage(format!("{name}: {problem}")))
}

/// Parses `on` or `off`.
fn switch(name: &str, text: &str) -> Result<bool, Failure> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Failure::Usage(format!("{name} is on or off, not {text:?}"))),
    }
}

fn limits(port: &PortReport) -> String {
    let mut text = format!("Limits for {}:\n", printable(&port.port));
    for (name, value) in &port.limits {
        text.push_str(&format!("{}: {value} {}\n", printable(name), unit(name)));
    }
    text.push_str(&format!("too_big: {}\n", printable(&port.too_big)));
    let holds_packets = port.limits.get("gro_flush_timeout").is_some_and(|time| *time != 0);
    let per_poll = port.aggregation.get("delivery").is_some_and(|delivery| delivery == "per-poll");
    for (name, word) in &port.aggregation {
        // With a flush timeout, packets are copied: a held packet must not block its receive ring.
        let why = if name == "storage" && word == "fragments" && holds_packets && per_poll {
            " [linear, with gro_flush_timeout]"
        } else {
            ""
        };
        text.push_str(&format!("{}: {}{why}\n", printable(name), printable(word)));
    }
    for (name, on) in &port.forwarding {
        text.push_str(&format!("{}: {}\n", printable(name), if *on { "on" } else { "off" }));
    }
    text
}

#[cfg(test)]
mod tests {
    use superpacket_bridge::settings::TooBig;

    use super::*;

    #[test]
    fn times_and_sizes_have_units() {
        for (name, text, expected) in [
            ("gro_flush_timeout", "50us", 50_000),
            ("gro_flush_timeout", "0", 0),
            ("gso_max_size", "32k", 32_768),
            ("gro_max_size", "65535", 65_535),
            ("lro_max_aggr", "43", 43),
            ("rx_byte_rate", "10M", 10 << 20),
            ("storm_unknown", "1000", 1_000),
        ] {
            assert_eq!(value(name, text).expect(text), expected);
        }
        for (name, text, says) in [
            ("gso_max_size", "big", "unknown suffix \"big\": k, M, G or T"),
            ("gro_flush_timeout", "50000", "write 50us, 1ms or 3600s"),
            ("lro_max_desc", "8k", "\"8k\" is not a number of flows"),
            ("storm_unknown", "8k", "\"8k\" is not a number of packets/s"),
        ] {
            let error = value(name, text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("{name}: ")) && error.contains(says), "{error}");
        }
    }

    #[test]
    fn limits_can_be_set_by_all_their_names_before_a_port_is_open() {
        let mut settings = PortSettings::new("tap:a".parse().expect("a port"));
        for (name, text) in [
            ("storm-broadcast", "100"),
            ("too_big", "icmp"),
            ("isolated", "on"),
            ("storage", "linear"),
        ] {
            set(&mut settings, name, text).expect(name);
        }
        assert_eq!((settings.limits.rates.storm_broadcast, settings.too_big), (100, TooBig::Icmp));
        assert!(settings.forwarding.isolated && settings.linear);
        for (name, text, says) in [
            ("too_big", "explode", "too_big is one of drop, icmp, fragment, not \"explode\""),
            ("storm", "1", "\"storm\" is not a setting of a port; choose one of gso_max_size, "),
            ("isolated", "1", "isolated is on or off"),
            ("rx_byte_burst", "1T", "rx_byte_burst is 0 (a tenth of a second's)"),
        ] {
            let error = set(&mut settings, name, text).expect_err(name).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn inactive_offloads_are_shown_with_the_reason() {
        let mut port = PortReport {
            port: "packet:eth0".into(),
            string: "packet:eth0".into(),
            state: "up".into(),
            error: None,
            mtu: 1500,
            hardware_address: None,
            queues: 1,
            reopened: 0,
            addresses: 0,
            limits: [("gro_flush_timeout".to_owned(), 0), ("lro_max_desc".to_owned(), 64)].into(),
            too_big: "drop".into(),
            aggregation: [("delivery", "per-poll"), ("storage", "fragments")]
                .map(|(name, word)| (name.into(), word.into()))
                .into(),
            forwarding: Default::default(),
        };
        let expected = "Limits for packet:eth0:\ngro_flush_timeout: 0 ns\nlro_max_desc: 64 flows\ntoo_big: drop\n\
                        delivery: per-poll\nstorage: fragments\n";
        assert_eq!(limits(&port), expected);
        port.limits.insert("gro_flush_timeout".into(), 50_000);
        assert!(limits(&port).ends_with("storage: fragments [linear, with gro_flush_timeout]\n"));
        port.aggregation.insert("delivery".into(), "at-once".into());
        assert!(limits(&port).ends_with("storage: fragments\n"));
        port.forwarding = [("isolated".to_owned(), true), ("learning".to_owned(), false)].into();
        assert!(limits(&port).ends_with("isolated: on\nlearning: off\n"));
        assert!(
            switch("isolated", "yes").is_err_and(|error| error
                .to_string()
                .contains("isolated is on or off, not \"yes\""))
        );
    }
}
