//! `superpacket limits`: shows and sets the limits of a bridge's ports.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command};
use serde_json::json;
use superpacket_bridge::report::PortReport;
use superpacket_bridge::settings::{
    NamedSettings, PortChange, PortSettings, Setting, SettingType, SettingValue,
};

use super::connection::{ControlOptions, connect};
use crate::amount::{nanoseconds, size};
use crate::failure::Failure;
use crate::report::{printable, show};

/// The arguments of `superpacket limits`.
#[derive(Clone, Debug, Args)]
pub(crate) struct LimitsArguments {
    /// Only this port, by its name, or by its port string if it has none (packet:eth0)
    pub(crate) port: Option<String>,
    /// Setting to change
    #[arg(requires = "value", value_parser = SettingName, hide_possible_values = true)]
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
    let ports =
        match (&arguments.port, &arguments.name, &arguments.value) {
            (Some(port), Some(name), Some(text)) => {
                vec![client.set_port(
                    port,
                    &PortChange::setting(name, value(port_setting(name)?, text)?),
                )?]
            }
            (port, ..) => client.ports(port.as_deref())?,
        };
    let limits_json = |port: &PortReport| json!({ "port": port.port, "settings": port.settings });
    let report = ports.iter().map(limits_json).collect::<Vec<_>>();
    Ok(show(arguments.json, &report, || ports.iter().map(limits).collect::<Vec<_>>().join("\n"))?)
}

/// Finds a setting by its name, in which hyphens are accepted as in the configuration file.
pub(super) fn port_setting(name: &str) -> Result<&'static Setting<PortSettings>, Failure> {
    PortSettings::setting(&name.replace('-', "_")).map_err(Failure::Usage)
}

/// Sets a setting of a port that is not open yet, from its text on the command line.
pub(super) fn set(settings: &mut PortSettings, name: &str, text: &str) -> Result<(), Failure> {
    let setting = port_setting(name)?;
    setting.set(settings, &value(setting, text)?).map_err(Failure::Usage)
}

/// Parses the value of a setting. Durations need a unit; for sizes it is optional.
pub(super) fn value<S>(setting: &Setting<S>, text: &str) -> Result<SettingValue, Failure> {
    let parsed = match setting.values.unit() {
        Some("ns") => nanoseconds(text),
        Some("bytes" | "bytes/s") => size(text),
        Some(unit) => text.parse().map_err(|_| format!("{text:?} is not a number of {unit}")),
        None if setting.values == SettingType::Switch => {
            return setting.check(&text.into()).map(|()| text.into()).map_err(Failure::Usage);
        }
        None => return Ok(text.into()),
    };
    let name = setting.name;
    parsed.map(SettingValue::Number).map_err(|problem| Failure::Usage(format!("{name}: {problem}")))
}

/// Parses the name of a port's setting. Completion scripts offer all names.
#[derive(Clone, Copy, Debug)]
struct SettingName;

impl TypedValueParser for SettingName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let known = |name: &str| port_setting(name).map(|setting| setting.name.to_owned());
        known.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        let value = |setting: &Setting<_>| PossibleValue::new(setting.name).help(setting.help);
        Some(Box::new(PortSettings::SETTINGS.iter().map(value)))
    }
}

/// Returns the list of all settings of the type `S` with their meanings for a help text, wrapped at
/// 80 columns.
pub(super) fn listed<S: NamedSettings>() -> String {
    let options = textwrap::Options::new(80).initial_indent("  ").subsequent_indent("      ");
    let entry = |setting: &Setting<S>| {
        let text = format!("{} ({}): {}", setting.name, setting.values, setting.help);
        textwrap::fill(&text, &options)
    };
    S::SETTINGS.iter().map(entry).collect::<Vec<_>>().join("\n")
}

/// Renders the settings of a port.
fn limits(port: &PortReport) -> String {
    let mut text = format!("Limits for {}:\n", printable(&port.port));
    let has = |name: &str, value: SettingValue| port.settings.get(name) == Some(&value);
    // With a flush timeout, packets are copied: a held packet must not block its receive ring.
    let copies = !has("gro_flush_timeout", 0.into()) && has("delivery", "per-poll".into());
    let known = PortSettings::SETTINGS.iter();
    for (setting, value) in
        known.filter_map(|setting| Some((setting, port.settings.get(setting.name)?)))
    {
        let unit = setting.values.unit().map(|unit| format!(" {unit}")).unwrap_or_default();
        let why = match setting.name {
            "storage" if copies && has("storage", "fragments".into()) => {
                " [linear, with gro_flush_timeout]"
            }
            _ => "",
        };
        text.push_str(&format!("{}: {}{unit}{why}\n", setting.name, printable(&value.to_string())));
    }
    text
}

#[cfg(test)]
mod tests {
    use superpacket::aggregate::Storage;
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
            let setting = port_setting(name).expect(name);
            assert_eq!(value(setting, text).expect(text), SettingValue::Number(expected));
        }
        for (name, text, says) in [
            ("gso_max_size", "big", "unknown suffix \"big\": k, M, G or T"),
            ("gro_flush_timeout", "50000", "write 50us, 1ms or 3600s"),
            ("lro_max_desc", "8k", "\"8k\" is not a number of flows"),
            ("storm_unknown", "8k", "\"8k\" is not a number of packets/s"),
        ] {
            let setting = port_setting(name).expect(name);
            let error = value(setting, text).expect_err(text).to_string();
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
        assert!(settings.forwarding.isolated && settings.storage == Storage::Linear);
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
            settings: [
                ("gro_flush_timeout".to_owned(), 0.into()),
                ("lro_max_desc".to_owned(), 64.into()),
                ("too_big".to_owned(), "drop".into()),
                ("delivery".to_owned(), "per-poll".into()),
                ("storage".to_owned(), "fragments".into()),
            ]
            .into(),
        };
        let expected = "Limits for packet:eth0:\ngro_flush_timeout: 0 ns\nstorage: fragments\n\
                        delivery: per-poll\nlro_max_desc: 64 flows\ntoo_big: drop\n";
        assert_eq!(limits(&port), expected);
        port.settings.insert("gro_flush_timeout".into(), 50_000.into());
        assert!(limits(&port).contains("storage: fragments [linear, with gro_flush_timeout]\n"));
        port.settings.insert("delivery".into(), "at-once".into());
        assert!(limits(&port).contains("storage: fragments\n"));
        port.settings =
            [("isolated".to_owned(), true.into()), ("learning".to_owned(), false.into())].into();
        assert!(limits(&port).ends_with("isolated: on\nlearning: off\n"));
    }
}
