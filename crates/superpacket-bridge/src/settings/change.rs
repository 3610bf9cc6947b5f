//! Changes to a port of a running bridge, by the names of its settings.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Forwarding, Limits, PortSettings, TooBig};

/// Changes to a port that are applied together: all of them, or none if one is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortChange {
    /// New values of options of the port string, such as `ring`; `None` removes an option. The port
    /// is closed and opened again.
    pub options: BTreeMap<String, Option<String>>,
    /// New values of settings, by names of [`PortSettings::names`].
    pub settings: BTreeMap<String, SettingValue>,
}

/// The value of a setting. In JSON and in files it is a number, a boolean or a string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// A number in the setting's unit.
    Number(u64),
    /// A switch that is on or off.
    Switch(bool),
    /// A word that the setting allows.
    Word(String),
}

impl fmt::Display for SettingValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingValue::Number(number) => number.fmt(formatter),
            SettingValue::Switch(on) => formatter.write_str(if *on { "on" } else { "off" }),
            SettingValue::Word(word) => formatter.write_str(word),
        }
    }
}

impl PortSettings {
    /// Returns the names of the settings that [`set`](Self::set) takes: limits, rates, aggregation
    /// settings, forwarding switches, and `too_big`.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Limits::names().chain(PortSettings::AGGREGATION).chain(Forwarding::NAMES).chain(["too_big"])
    }

    /// Sets the setting with this name, one of [`names`](Self::names).
    ///
    /// # Errors
    /// Returns a message for users if the name is unknown or the setting does not allow the value.
    pub fn set(&mut self, name: &str, value: &SettingValue) -> Result<(), String> {
        let is_word = name == "too_big" || PortSettings::AGGREGATION.contains(&name);
        match value {
            SettingValue::Number(number) if Limits::names().any(|known| known == name) => {
                self.limits.set(name, *number)
            }
            SettingValue::Switch(on) if Forwarding::NAMES.contains(&name) => {
                self.forwarding.set(name, *on)
            }
            // Some settings with words have the words `on` and `off`.
            SettingValue::Word(_) | SettingValue::Switch(_) if is_word => {
                self.set_word(name, &value.to_string())
            }
            _ if Forwarding::NAMES.contains(&name) => {
                Err(format!("{name} is on or off, not {value}"))
            }
            _ if is_word => Err(format!("{name} takes a word, not {value}")),
            _ if PortSettings::names().any(|known| known == name) => {
                Err(format!("{name} takes a number, not {value}"))
            }
            _ => Err(format!(
                "{name:?} is no setting of a port: there are {}",
                PortSettings::names().collect::<Vec<_>>().join(", ")
            )),
        }
    }

    fn set_word(&mut self, name: &str, word: &str) -> Result<(), String> {
        if name != "too_big" {
            return self.set_aggregation(name, word);
        }
        let known = TooBig::NAMES.into_iter().find(|(known, _)| *known == word);
        let names = || TooBig::NAMES.map(|(known, _)| known).join(", ");
        self.too_big =
            known.ok_or_else(|| format!("too_big is one of {}, not {word:?}", names()))?.1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_set_by_its_name_and_refuses_other_values() {
        let fresh = || PortSettings::new("memory:m".parse().expect("a port string"));
        let values = [
            SettingValue::Number(1_000),
            SettingValue::Switch(true),
            SettingValue::Switch(false),
            SettingValue::Word("icmp".into()),
            SettingValue::Word("linear".into()),
            SettingValue::Word("at-once".into()),
        ];
        for name in PortSettings::names() {
            let (mut accepted, mut changed) = (0, 0);
            for value in &values {
                let mut settings = fresh();
                match settings.set(name, value) {
                    Ok(()) => {
                        (accepted, changed) =
                            (accepted + 1, changed + usize::from(settings != fresh()))
                    }
                    Err(error) => {
                        assert!(
                            error.starts_with(name) && error.contains(&value.to_string()),
                            "{error}"
                        );
                        assert_eq!(settings, fresh(), "what is refused changes nothing");
                    }
                }
            }
            assert!(
                accepted < values.len() && changed == 1,
                "{name}: one of the values is another than the default"
            );
        }
        let error = fresh().set("hairpin", &SettingValue::Switch(true)).expect_err("none");
        assert!(
            error.starts_with("\"hairpin\" is no setting of a port: there are gso_max_size")
                && error.ends_with("too_big"),
            "{error}"
        );
    }

    #[test]
    fn values_are_numbers_booleans_and_strings_in_json() {
        let read = |text: &str| serde_json::from_str::<SettingValue>(text);
        assert_eq!(read("7").expect("a number"), SettingValue::Number(7));
        assert_eq!(read("true").expect("a switch"), SettingValue::Switch(true));
        assert_eq!(read("\"icmp\"").expect("a word"), SettingValue::Word("icmp".into()));
        assert!(read("-1").is_err() && read("null").is_err() && read("[1]").is_err());
    }
}
