//! Changes to a port of a running bridge.

use std::collections::BTreeMap;

use super::SettingValue;

/// Changes to a port that are applied together: all of them, or none if one is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortChange {
    /// New values of options of the port string, such as `ring`; `None` removes an option. The port
    /// is closed and opened again.
    pub options: BTreeMap<String, Option<String>>,
    /// New values of settings, by their names ([`NamedSettings`](super::NamedSettings)).
    pub settings: BTreeMap<String, SettingValue>,
}

impl PortChange {
    /// Creates the change of one setting.
    pub fn setting(name: &str, value: impl Into<SettingValue>) -> Self {
        PortChange { settings: [(name.to_owned(), value.into())].into(), ..PortChange::default() }
    }
}
