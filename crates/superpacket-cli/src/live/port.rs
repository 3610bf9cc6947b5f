//! `superpacket port`: adds, changes and removes ports of a running bridge, in the syntax of
//! iproute2's `bridge link set`.

use clap::{Args, ValueEnum};
use superpacket_bridge::settings::PortChange;

use super::connection::{ControlOptions, connect};
use super::limits::{port_setting, value};
use crate::failure::Failure;
use crate::report::print_json;

/// The actions of `superpacket port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PortAction {
    /// Open a port and add it to the bridge
    Add,
    /// Change options of a port's string, and its settings
    Set,
    /// Close a port and remove it from the bridge
    #[value(alias = "delete")]
    Del,
}

/// The arguments of `superpacket port`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PortArguments {
    /// Action
    #[arg(value_enum)]
    pub(crate) action: PortAction,
    /// To add a port: its port string, optionally with a name as in left=packet:eth0. To change or
    /// remove one: its name, or its port string if it has none
    pub(crate) port: String,
    /// Changes: OPTION=VALUE or SETTING VALUE, once or several times
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print the port as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Adds, removes or changes a port.
pub(crate) fn run(arguments: &PortArguments) -> Result<(), Failure> {
    let request = PortRequest::read(arguments.action, &arguments.port, &arguments.words)?;
    let mut client = connect(&arguments.connection)?;
    let report = match &request {
        PortRequest::Add(string) => client.add_port(string)?,
        PortRequest::Delete(name) => client.remove_port(name)?,
        PortRequest::Set(name, change) => client.set_port(name, change)?,
    };
    if arguments.json {
        print_json(&report)?;
    }
    Ok(())
}

/// A request to the bridge, parsed from the command line.
#[derive(Debug, PartialEq, Eq)]
enum PortRequest {
    Add(String),
    Delete(String),
    Set(String, PortChange),
}

impl PortRequest {
    /// Parses the words after the action.
    fn read(action: PortAction, first: &str, rest: &[String]) -> Result<PortRequest, Failure> {
        let (name, form) = match action {
            PortAction::Add => ("add", "PORT"),
            PortAction::Del => ("del", "NAME"),
            PortAction::Set => ("set", "NAME [OPTION=VALUE]... [SETTING VALUE]..."),
        };
        let wrong = |problem: String| {
            Failure::Usage(format!("port {name}: {problem}: write port {name} {form}"))
        };
        let mut words = std::iter::once(first).chain(rest.iter().map(String::as_str));
        let mut next = || words.next();
        let mut port = next();
        // `dev` is optional, as in iproute2. No port has this name.
        if port == Some("dev") {
            port = next();
        }
        let port = port.ok_or_else(|| wrong("no port".into()))?.to_owned();
        if action != PortAction::Set {
            return match (next(), action) {
                (Some(word), _) => Err(wrong(format!("{word:?} is not allowed here"))),
                (None, PortAction::Add) => Ok(PortRequest::Add(port)),
                (None, _) => Ok(PortRequest::Delete(port)),
            };
        }
        let mut change = PortChange::default();
        while let Some(word) = next() {
            let is_new = if let Some((key, value)) = word.split_once('=') {
                let value = Some(value.to_owned()).filter(|value| !value.is_empty());
                change.options.insert(key.to_owned(), value).is_none()
            } else {
                let text = next().ok_or_else(|| wrong(format!("no value after {word:?}")))?;
                let setting = port_setting(word)?;
                let value = value(setting, text)?;
                change.settings.insert(setting.name.to_owned(), value).is_none()
            };
            if !is_new {
                return Err(wrong(format!(
                    "{:?} is repeated",
                    word.split('=').next().unwrap_or(word)
                )));
            }
        }
        if change == PortChange::default() {
            return Err(wrong(format!(
                "nothing to set for {port}: give an option of its port string, such as ring=8m, or a setting, such as isolated on"
            )));
        }
        Ok(PortRequest::Set(port, change))
    }
}

#[cfg(test)]
mod tests {
    use superpacket_bridge::settings::SettingValue;

    use super::*;

    fn read(words: &str) -> Result<PortRequest, String> {
        let (action, words) = words.split_once(' ').unwrap_or((words, ""));
        let action = PortAction::from_str(action, false)?;
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        PortRequest::read(action, &words[0], &words[1..]).map_err(|error| error.to_string())
    }

    #[test]
    fn options_have_equals_signs_and_settings_are_words_of_iproute2() {
        let set = |options: &[(&str, Option<&str>)], settings: &[(&str, SettingValue)]| {
            let options = options
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
                .collect();
            let settings =
                settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            Ok(PortRequest::Set("left".into(), PortChange { options, settings }))
        };
        let (on, off) = (SettingValue::Switch(true), SettingValue::Switch(false));
        assert_eq!(
            read("set left ring=8m queues="),
            set(&[("ring", Some("8m")), ("queues", None)], &[])
        );
        let forwarding = [("isolated", on), ("learning", off.clone()), ("mcast_flood", off)];
        assert_eq!(
            read("set dev left isolated on learning off mcast-flood off"),
            set(&[], &forwarding)
        );
        let mixed = [
            ("rx_byte_rate", SettingValue::Number(12 << 20)),
            ("too_big", SettingValue::Word("icmp".into())),
            ("gro_flush_timeout", SettingValue::Number(50_000)),
        ];
        let words = "left rx_byte_rate 12M ring=8m too_big icmp gro_flush_timeout 50us";
        assert_eq!(read(&format!("set {words}")), set(&[("ring", Some("8m"))], &mixed));
        assert_eq!(
            read("add left=tap:a?queues=2"),
            Ok(PortRequest::Add("left=tap:a?queues=2".into()))
        );
        assert_eq!(read("del dev left"), Ok(PortRequest::Delete("left".into())));
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (words, says) in [
            ("set left", "port set: nothing to set for left"),
            ("set dev", "port set: no port: write port set NAME [OPTION=VALUE]..."),
            ("set left isolated", "no value after \"isolated\""),
            ("set left isolated yes", "isolated is on or off, not \"yes\""),
            (
                "set left hairpin on",
                "\"hairpin\" is not a setting of a port; choose one of gso_max_size, ",
            ),
            ("set left ring=8m ring=4m", "\"ring\" is repeated"),
            ("set left isolated on isolated off", "\"isolated\" is repeated"),
            ("set left storm_unknown many", "storm_unknown: \"many\" is not a number of packets/s"),
            (
                "add tap:a isolated on",
                "port add: \"isolated\" is not allowed here: write port add PORT",
            ),
            ("del left right", "\"right\" is not allowed here"),
        ] {
            let error = read(words).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
    }
}
