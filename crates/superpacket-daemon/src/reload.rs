//! Reloads of the configuration file while the bridge runs, and the changes that commands have made
//! since the file was read.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use superpacket_bridge::fdb::Station;
use superpacket_bridge::settings::{
    BridgeSettings, NamedSettings, PerQueue, PortSettings, Setting, SettingValue, SteeringSettings,
};
use superpacket_port::features::Feature;

/// What a reload of the configuration file does with changes made by commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReload {
    /// The file's values replace the values set by commands.
    #[default]
    Undo,
    /// A value set by a command stays, unless the file's own value has changed.
    Keep,
}

impl OnReload {
    /// The names of the variants on the command line and in the configuration file.
    pub const NAMES: [(&'static str, OnReload); 2] =
        [("undo", OnReload::Undo), ("keep", OnReload::Keep)];
}

impl FromStr for OnReload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = OnReload::NAMES.into_iter().find(|(name, _)| *name == text);
        known.map(|(_, what)| what).ok_or_else(|| format!("it is undo or keep, not {text:?}"))
    }
}

/// A setting that a command has changed since the file was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Name of the port; `None` for a setting of the whole bridge.
    pub port: Option<String>,
    /// Name of the setting, as commands use it.
    pub setting: String,
    /// The value set by the command.
    pub running: String,
    /// The value after the reload.
    pub after: String,
    /// Whether the value set by the command stays.
    pub kept: bool,
}

impl fmt::Display for Changed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Changed { port, setting, running, after, kept } = self;
        if let Some(port) = port {
            write!(formatter, "{port}: ")?;
        }
        match kept {
            true => write!(formatter, "{setting} stays {running}, as set by command"),
            false => write!(
                formatter,
                "{setting} is {after} now, as the file says; by command it was {running}"
            ),
        }
    }
}

/// Compares the running settings with those of the file when it was last read, and returns the
/// changes made by commands.
///
/// With [`OnReload::Keep`] the changes are copied to `file`, which is the file as it is now, unless
/// the file has changed the same setting. An added port is reported as one change. A removed port
/// comes back if the file names it.
pub fn reconcile(
    before: &BridgeSettings,
    running: &BridgeSettings,
    file: &mut BridgeSettings,
    on_reload: OnReload,
) -> Vec<Changed> {
    let mut changes = Vec::new();
    for setting in SteeringSettings::SETTINGS {
        let values = [&before.steering, &running.steering, &file.steering];
        let values = values.map(|settings| setting.get(settings).to_string());
        if let Some(changed) = changed(None, setting.name.to_owned(), values, on_reload) {
            // The running value has been validated before, so this cannot fail.
            let set = !changed.kept
                || setting.set(&mut file.steering, &setting.get(&running.steering)).is_ok();
            changes.extend(set.then_some(changed));
        }
    }
    let of = |settings: &BridgeSettings| -> BTreeMap<String, PortSettings> {
        settings.ports.iter().map(|port| (port.port.name().to_owned(), port.clone())).collect()
    };
    let (before, running) = (of(before), of(running));
    let there = |is_there: bool| if is_there { "present" } else { "absent" }.to_owned();
    for (name, added) in running.iter().filter(|(name, _)| !before.contains_key(*name)) {
        let is_named = file.ports.iter().any(|port| port.port.name() == name);
        if let Some(changed) = changed(
            Some(name),
            "the port".to_owned(),
            [false, true, is_named].map(there),
            on_reload,
        ) {
            if changed.kept {
                file.ports.push(added.clone());
            }
            changes.push(changed);
        }
    }
    let named: Vec<Station> =
        file.ports.iter().flat_map(|port| port.static_entries.iter().copied()).collect();
    for port in &mut file.ports {
        let name = port.port.name().to_owned();
        let (Some(before), Some(running)) = (before.get(&name), running.get(&name)) else {
            continue;
        };
        for part in PortPart::all() {
            let values = [before, running, port].map(|settings| part.value(settings));
            if let Some(changed) = changed(Some(&name), part.name(), values, on_reload) {
                if changed.kept {
                    part.copy(running, port);
                }
                changes.push(changed);
            }
        }
        for &station in running.static_entries.symmetric_difference(&before.static_entries) {
            let values = [before, running, port]
                .map(|settings| there(settings.static_entries.contains(&station)));
            let is_there = running.static_entries.contains(&station);
            // The file may have moved the address to another port.
            let on_reload =
                if is_there && named.contains(&station) { OnReload::Undo } else { on_reload };
            if let Some(changed) =
                changed(Some(&name), format!("static entry {station}"), values, on_reload)
            {
                match (changed.kept, is_there) {
                    (true, true) => drop(port.static_entries.insert(station)),
                    (true, false) => drop(port.static_entries.remove(&station)),
                    (false, _) => {}
                }
                changes.push(changed);
            }
        }
    }
    changes
}

/// Returns the change of one setting made by a command, or `None` if there is none. The three
/// values are those of the file when last read, of the running bridge, and of the file now; the
/// setting is unchanged if the second equals one of the others.
fn changed(
    port: Option<&str>,
    setting: String,
    [before, running, file]: [String; 3],
    on_reload: OnReload,
) -> Option<Changed> {
    if running == before || running == file {
        return None;
    }
    let kept = on_reload == OnReload::Keep && file == before;
    let after = if kept { running.clone() } else { file };
    Some(Changed { port: port.map(str::to_owned), setting, running, after, kept })
}

/// A setting of a port, or a group of them, that commands can change.
#[derive(Clone, Copy, Debug)]
enum PortPart {
    /// The port string, with its options.
    PortString,
    Feature(Feature),
    Setting(&'static Setting<PortSettings>),
    Vlans,
    RpsCpus,
    RpsFlowCount,
}

impl PortPart {
    fn all() -> impl Iterator<Item = PortPart> {
        let features = Feature::ALL.into_iter().map(PortPart::Feature);
        features
            .chain([PortPart::PortString])
            .chain(PortSettings::SETTINGS.iter().map(PortPart::Setting))
            .chain([PortPart::Vlans, PortPart::RpsCpus, PortPart::RpsFlowCount])
    }

    fn name(self) -> String {
        match self {
            PortPart::Feature(feature) => feature.name(),
            PortPart::Setting(setting) => setting.name,
            PortPart::PortString => "the port string",
            PortPart::Vlans => "vlans",
            PortPart::RpsCpus => "rps_cpus",
            PortPart::RpsFlowCount => "rps_flow_cnt",
        }
        .to_owned()
    }

    fn value(self, settings: &PortSettings) -> String {
        match self {
            PortPart::Feature(feature) => {
                let on = SettingValue::from(settings.features.contains(feature)).to_string();
                match feature {
                    Feature::LargeReceiveOffload if settings.force_lro => on + " (forced)",
                    _ => on,
                }
            }
            PortPart::Setting(setting) => setting.get(settings).to_string(),
            PortPart::PortString => settings.port.string().to_owned(),
            PortPart::Vlans => match settings.vlans.ranges().as_slice() {
                [] => "none".to_owned(),
                ranges => ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            },
            PortPart::RpsCpus => {
                per_queue(&settings.steering.rps_cpus, |mask| match mask.list().to_string() {
                    list if list.is_empty() => "none".to_owned(),
                    list => list,
                })
            }
            PortPart::RpsFlowCount => per_queue(&settings.steering.rps_flow_cnt, u32::to_string),
        }
    }

    fn copy(self, from: &PortSettings, to: &mut PortSettings) {
        match self {
            PortPart::Feature(feature) => {
                to.features = to.features.set(feature, from.features.contains(feature));
                if feature == Feature::LargeReceiveOffload {
                    to.force_lro = from.force_lro;
                }
            }
            // The running value has been validated before, so this cannot fail.
            PortPart::Setting(setting) => drop(setting.set(to, &setting.get(from))),
            // Both ports have the same name.
            PortPart::PortString => to.port = from.port.clone(),
            PortPart::Vlans => to.vlans = from.vlans.clone(),
            PortPart::RpsCpus => to.steering.rps_cpus = from.steering.rps_cpus.clone(),
            PortPart::RpsFlowCount => to.steering.rps_flow_cnt = from.steering.rps_flow_cnt.clone(),
        }
    }
}

/// Formats a setting of receive queues: the value for all queues, followed by those of queues with
/// a value of their own.
fn per_queue<T: PartialEq>(queues: &PerQueue<T>, text: impl Fn(&T) -> String) -> String {
    let own = queues.own().map(|(queue, value)| format!("; queue {queue}: {}", text(value)));
    text(queues.of_all()) + &own.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_bridge::settings::{SettingType, TooBig};

    fn bridge(ports: &[&str]) -> BridgeSettings {
        let ports = ports
            .iter()
            .map(|port| PortSettings::new(port.parse().expect("a port string")))
            .collect();
        BridgeSettings { ports, ..BridgeSettings::default() }
    }

    fn station(number: u8) -> Station {
        Station { vlan: 0, address: [2, 0, 0, 0, 0, number] }
    }

    /// Changes every setting of `settings` to another valid value.
    fn change_all<S: NamedSettings>(settings: &mut S) {
        for setting in S::SETTINGS {
            let before = setting.get(settings);
            let mut others = match setting.values {
                SettingType::Number { least, .. } => {
                    vec![least.into(), (2 * least).into(), 128.into()]
                }
                SettingType::Switch => vec![true.into(), false.into()],
                SettingType::Word(words) => words.iter().map(|word| (*word).into()).collect(),
                SettingType::Text(_) => vec!["toeplitz".into(), 0.into(), false.into()],
            };
            others.retain(|value: &SettingValue| *value != before);
            let set = others.iter().any(|value| setting.set(settings, value).is_ok());
            assert!(set && setting.get(settings) != before, "{}", setting.name);
        }
    }

    /// Returns settings that differ from `file` in everything that commands can change.
    fn all_changed(file: &BridgeSettings) -> BridgeSettings {
        let mut running = file.clone();
        change_all(&mut running.steering);
        let port = &mut running.ports[0];
        for feature in Feature::ALL {
            port.features = port.features.set(feature, !port.features.contains(feature));
        }
        port.force_lro = true;
        change_all(port);
        port.port = port.port.with_option("queues", Some("2")).expect("an option");
        port.vlans.add(&"7-9".parse().expect("VLANs"));
        port.steering.rps_cpus.set(Some(1), superpacket_steer::Cpu::new(3).into_iter().collect());
        port.steering.rps_flow_cnt.set(None, 64);
        port.static_entries.insert(station(1));
        running
    }

    #[test]
    fn all_that_commands_change_is_undone_or_kept_and_said() {
        let file = bridge(&["tap:a", "tap:b"]);
        let running = all_changed(&file);
        let expected = SteeringSettings::SETTINGS.len() + PortPart::all().count() + 1;
        let mut undone = file.clone();
        let changes = reconcile(&file, &running, &mut undone, OnReload::Undo);
        assert_eq!(
            (changes.len(), changes.iter().all(|change| !change.kept)),
            (expected, true),
            "{changes:#?}"
        );
        assert_eq!(undone, file);
        let mut kept = file.clone();
        let changes = reconcile(&file, &running, &mut kept, OnReload::Keep);
        assert_eq!(
            (changes.len(), changes.iter().all(|change| change.kept)),
            (expected, true),
            "{changes:#?}"
        );
        assert_eq!(kept, running);
        assert!(reconcile(&file, &file, &mut file.clone(), OnReload::Keep).is_empty());
    }

    #[test]
    fn what_the_file_says_anew_holds() {
        let before = bridge(&["tap:a"]);
        let mut running = before.clone();
        (running.ports[0].too_big, running.ports[0].limits.address_limit) = (TooBig::Icmp, 7);
        running.ports[0].static_entries.insert(station(1));
        let mut file = bridge(&["tap:a", "tap:new"]);
        file.ports[0].too_big = TooBig::Fragment;
        file.ports[1].static_entries.insert(station(1));
        let changes = reconcile(&before, &running, &mut file, OnReload::Keep);
        let texts = changes.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            texts,
            [
                "tap:a: address_limit stays 7, as set by command",
                "tap:a: too_big is fragment now, as the file says; by command it was icmp",
                "tap:a: static entry 02:00:00:00:00:01 is absent now, as the file says; by command it was present",
            ]
        );
        assert_eq!(
            (file.ports[0].too_big, file.ports[0].limits.address_limit),
            (TooBig::Fragment, 7)
        );
        assert!(file.ports[0].static_entries.is_empty());
        // A change that the file has adopted is no longer reported.
        let mut same = running.clone();
        assert!(reconcile(&before, &running, &mut same, OnReload::Keep).is_empty());
    }

    #[test]
    fn a_named_port_whose_string_the_file_changes_is_the_same_port() {
        let before = bridge(&["left=tap:a", "tap:b"]);
        let mut running = before.clone();
        for port in &mut running.ports {
            port.port = port.port.with_option("queues", Some("2")).expect("an option");
            port.too_big = TooBig::Icmp;
        }
        let mut file = bridge(&["left=tap:a?mtu=1400", "tap:b?mtu=1400"]);
        let changes = reconcile(&before, &running, &mut file, OnReload::Keep)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>();
        // A port without a name is identified by its string, so another string is another port.
        let said = [
            "left: the port string is tap:a?mtu=1400 now, as the file says; by command it was tap:a?queues=2",
            "left: too_big stays icmp, as set by command",
        ];
        assert_eq!(changes, said);
        assert_eq!((file.ports[0].too_big, file.ports[1].too_big), (TooBig::Icmp, TooBig::Drop));
    }

    #[test]
    fn a_port_that_was_added_stays_or_goes() {
        let before = bridge(&["tap:a"]);
        let mut running = bridge(&["tap:a", "tap:added"]);
        running.ports[1].too_big = TooBig::Icmp;
        let reloaded = |file: &[&str], on_reload| {
            let mut file = bridge(file);
            let changes = reconcile(&before, &running, &mut file, on_reload);
            (changes.iter().map(ToString::to_string).collect::<Vec<_>>(), file)
        };
        let (said, file) = reloaded(&["tap:a"], OnReload::Undo);
        assert_eq!(
            said,
            ["tap:added: the port is absent now, as the file says; by command it was present"]
        );
        assert_eq!(file, before);
        let (said, file) = reloaded(&["tap:a"], OnReload::Keep);
        assert_eq!(
            (said, file),
            (
                vec!["tap:added: the port stays present, as set by command".to_owned()],
                running.clone()
            )
        );
        let (said, file) = reloaded(&["tap:a", "tap:added"], OnReload::Keep);
        assert_eq!(
            (said, file),
            (vec![], bridge(&["tap:a", "tap:added"])),
            "the file has taken it over"
        );
    }

    #[test]
    fn an_entry_that_was_deleted_stays_away_where_that_is_kept() {
        let mut before = bridge(&["tap:a"]);
        before.ports[0].static_entries.insert(station(1));
        let running = bridge(&["tap:a"]);
        for (on_reload, left) in [(OnReload::Undo, 1), (OnReload::Keep, 0)] {
            let mut file = before.clone();
            let changes = reconcile(&before, &running, &mut file, on_reload);
            assert_eq!((changes.len(), file.ports[0].static_entries.len()), (1, left));
        }
        assert!(
            "forget"
                .parse::<OnReload>()
                .is_err_and(|error| error == "it is undo or keep, not \"forget\"")
        );
    }
}
