//! The keys of the configuration file, and their conversion to checked settings.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use superpacket_bridge::fdb::Station;
use superpacket_bridge::settings::{
    BridgeSettings, MAX_ADDRESSES, NamedSettings, PerQueue, PortSettings, Setting, SettingType,
    SettingValue, possible_cpus, queue_flows,
};
use superpacket_bridge::vlan::PortVlans;
use superpacket_port::features::Feature;
use superpacket_port::{PortSpec, SpecError};
use superpacket_steer::CpuMask;
use toml::Spanned;

use super::{Config, ConfigError, ConfigText};

/// The content of the file as parsed from TOML, before its values are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenConfig {
    #[serde(default)]
    bridge: WrittenBridge,
    /// Global steering settings, by the names of `SteeringSettings` with hyphens for underscores.
    #[serde(default)]
    steering: BTreeMap<Spanned<String>, Spanned<SettingValue>>,
    #[serde(default)]
    port: Vec<WrittenPort>,
    /// Static entries of the address table.
    #[serde(default)]
    fdb: Vec<WrittenEntry>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenBridge {
    threads: Option<Spanned<usize>>,
    table_size: Option<Spanned<usize>>,
    ageing_time: Option<Spanned<String>>,
    busy_poll: Option<bool>,
    vlan_filtering: Option<bool>,
    vlan_protocol: Option<Spanned<String>>,
    multicast_snooping: Option<bool>,
    shared_interfaces: Option<bool>,
    control: Option<PathBuf>,
    metrics: Option<Spanned<String>>,
    user: Option<String>,
    on_reload: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct WrittenEntry {
    address: Spanned<String>,
    port: Spanned<String>,
    vlan: Option<u16>,
}

/// A `[[port]]` table of the file: keys with a field of their own, and in `settings` those of
/// `PortSettings::SETTINGS`. Keys may have hyphens instead of underscores.
#[derive(Default)]
struct WrittenPort {
    port: Option<Spanned<String>>,
    name: Option<Spanned<String>>,
    features: BTreeMap<Spanned<String>, bool>,
    force_lro: bool,
    vlans: Option<Vec<Spanned<String>>>,
    rps_cpus: Option<Spanned<EachQueue<String>>>,
    rps_flow_cnt: Option<Spanned<EachQueue<u64>>>,
    settings: Vec<(&'static Setting<PortSettings>, Spanned<SettingValue>)>,
}

/// The keys of a `[[port]]` table that are not in `PortSettings::SETTINGS`.
const PORT_KEYS: [&str; 7] =
    ["port", "name", "features", "force_lro", "vlans", "rps_cpus", "rps_flow_cnt"];

/// A key of a `[[port]]` table in the file, with hyphens replaced by underscores.
enum PortKey {
    Named(&'static str),
    Setting(&'static Setting<PortSettings>),
}

impl PortKey {
    fn name(&self) -> &'static str {
        match self {
            PortKey::Named(name) => name,
            PortKey::Setting(setting) => setting.name,
        }
    }
}

impl<'de> Deserialize<'de> for PortKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        let name = key.replace('-', "_");
        let named = PORT_KEYS.into_iter().find(|known| *known == name).map(PortKey::Named);
        let setting = || PortSettings::setting(&name).map(PortKey::Setting);
        named.map_or_else(setting, Ok).map_err(|_| {
            let settings = PortSettings::SETTINGS.iter().map(|setting| setting.name);
            let names = PORT_KEYS.into_iter().chain(settings).collect::<Vec<_>>().join(", ");
            D::Error::custom(format_args!("unknown field `{key}`, expected one of {names}"))
        })
    }
}

impl<'de> Deserialize<'de> for WrittenPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = WrittenPort;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the table of a port")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut keys: A) -> Result<WrittenPort, A::Error> {
                let (mut port, mut seen) = (WrittenPort::default(), Vec::new());
                while let Some(key) = keys.next_key::<PortKey>()? {
                    let name = key.name();
                    if seen.contains(&name) {
                        return Err(A::Error::duplicate_field(name));
                    }
                    seen.push(name);
                    match key {
                        PortKey::Named("port") => port.port = Some(keys.next_value()?),
                        PortKey::Named("name") => port.name = Some(keys.next_value()?),
                        PortKey::Named("features") => port.features = keys.next_value()?,
                        PortKey::Named("force_lro") => port.force_lro = keys.next_value()?,
                        PortKey::Named("vlans") => port.vlans = Some(keys.next_value()?),
                        PortKey::Named("rps_cpus") => port.rps_cpus = Some(keys.next_value()?),
                        PortKey::Named(_) => port.rps_flow_cnt = Some(keys.next_value()?),
                        PortKey::Setting(setting) => {
                            port.settings.push((setting, next_value(&mut keys, setting)?));
                        }
                    }
                }
                if port.port.is_none() {
                    return Err(A::Error::missing_field("port"));
                }
                Ok(port)
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// Reads the value of a setting as the type that `setting` requires. A time is a string.
fn next_value<'de, A: MapAccess<'de>>(
    keys: &mut A,
    setting: &Setting<PortSettings>,
) -> Result<Spanned<SettingValue>, A::Error> {
    fn value<T>(read: Spanned<T>, value: impl FnOnce(T) -> SettingValue) -> Spanned<SettingValue> {
        let span = read.span();
        Spanned::new(span, value(read.into_inner()))
    }
    Ok(match setting.values {
        SettingType::Text(_) => keys.next_value()?,
        SettingType::Switch => value(keys.next_value()?, SettingValue::Switch),
        SettingType::Number { unit, .. } if unit != "ns" => {
            value(keys.next_value()?, SettingValue::Number)
        }
        SettingType::Number { .. } | SettingType::Word(_) => {
            value(keys.next_value()?, SettingValue::Word)
        }
    })
}

/// One value for all receive queues, or a list with one value per queue, starting at queue 0.
#[derive(Deserialize)]
#[serde(untagged)]
enum EachQueue<T> {
    All(T),
    Listed(Vec<T>),
}

impl<T> EachQueue<T> {
    /// Converts each queue's value with `read`. If there is a list, queues beyond its end get the
    /// default value.
    fn read<R: PartialEq + Default>(
        &self,
        read: impl Fn(&T) -> Result<R, ConfigError>,
    ) -> Result<PerQueue<R>, ConfigError> {
        Ok(match self {
            EachQueue::All(value) => PerQueue::all(read(value)?),
            EachQueue::Listed(values) => {
                let mut queues = PerQueue::default();
                for (queue, value) in (0..=u16::MAX).zip(values) {
                    queues.set(Some(queue), read(value)?);
                }
                queues
            }
        })
    }
}

/// Maximum number of threads; more than any machine has CPUs.
const MAX_THREADS: usize = 1024;

/// Seconds per day.
const DAY: u64 = 24 * 60 * 60;

/// Maximum ageing time of an address; the address table cannot represent a longer one.
const MAX_AGEING: Duration = Duration::from_secs(200 * DAY);

/// Maximum number of addresses in the address table.
const MAX_TABLE: usize = MAX_ADDRESSES as usize;

impl WrittenConfig {
    pub(super) fn check(self, source: &ConfigText<'_>) -> Result<Config, ConfigError> {
        let mut bridge = BridgeSettings::default();
        let WrittenBridge {
            threads,
            table_size,
            ageing_time,
            busy_poll,
            vlan_filtering,
            vlan_protocol,
            multicast_snooping,
            shared_interfaces,
            control,
            metrics,
            user,
            on_reload,
        } = self.bridge;
        if let Some(threads) = threads {
            if *threads.as_ref() > MAX_THREADS {
                return Err(
                    source.wrong(&threads.span(), format_args!("threads is at most {MAX_THREADS}"))
                );
            }
            bridge.threads = threads.into_inner();
        }
        if let Some(size) = table_size {
            if !(1..=MAX_TABLE).contains(size.as_ref()) {
                return Err(source.wrong(
                    &size.span(),
                    format_args!("table-size is 1 to {MAX_TABLE} addresses"),
                ));
            }
            bridge.table_size = size.into_inner();
        }
        if let Some(time) = ageing_time {
            bridge.ageing_time = duration(time.as_ref(), &time.span(), "ageing-time", source)?;
            if bridge.ageing_time > MAX_AGEING {
                return Err(source.wrong(
                    &time.span(),
                    format_args!("ageing-time is at most {} days", MAX_AGEING.as_secs() / DAY),
                ));
            }
        }
        bridge.busy_poll = busy_poll.unwrap_or_default();
        bridge.vlan_filtering = vlan_filtering.unwrap_or_default();
        if let Some(word) = vlan_protocol {
            let read = word.as_ref().parse();
            bridge.vlan_protocol = read.map_err(|problem: String| {
                source.wrong(&word.span(), format_args!("vlan-protocol: {problem}"))
            })?;
        }
        bridge.multicast_snooping = multicast_snooping.unwrap_or_default();
        bridge.shared_interfaces = shared_interfaces.unwrap_or_default();
        for (name, value) in &self.steering {
            let set = bridge.steering.set(&name.as_ref().replace('-', "_"), value.as_ref().clone());
            set.map_err(|problem| source.wrong(&name.span(), problem))?;
        }
        let metrics = match metrics {
            None => None,
            Some(address) => Some(address.as_ref().parse().map_err(|_| {
                source.wrong(
                    &address.span(),
                    "metrics takes an address and a port: \"127.0.0.1:9600\", \"[::1]:9600\"",
                )
            })?),
        };
        for port in self.port {
            let span = port.port.as_ref().map(Spanned::span).unwrap_or_default();
            let settings = port.check(source)?;
            if bridge.ports.iter().any(|known| known.port.name() == settings.port.name()) {
                let name = settings.port.name();
                return Err(source.wrong(
                    &span,
                    format_args!("there are two ports {name:?}: a name is one port's"),
                ));
            }
            bridge.ports.push(settings);
        }
        for entry in self.fdb {
            entry.check(source, bridge.vlan_filtering, &mut bridge.ports)?;
        }
        let on_reload = on_reload.map(|word| {
            let read = word.as_ref().parse();
            read.map_err(|problem: String| {
                source.wrong(&word.span(), format_args!("on-reload: {problem}"))
            })
        });
        Ok(Config { bridge, control, metrics, user, on_reload: on_reload.transpose()? })
    }
}

impl WrittenEntry {
    /// Checks a static entry of the address table, and adds it to the settings of its port.
    fn check(
        self,
        source: &ConfigText<'_>,
        vlan_filtering: bool,
        ports: &mut [PortSettings],
    ) -> Result<(), ConfigError> {
        let wrong =
            |problem: String| source.wrong(&self.address.span(), format_args!("fdb: {problem}"));
        let station = Station::parse(self.address.as_ref(), self.vlan).map_err(wrong)?;
        if vlan_filtering && station.vlan == 0 {
            return Err(wrong(
                "the bridge filters by VLAN: say in which the address is (vlan)".into(),
            ));
        }
        if let Some(holder) = ports.iter().find(|port| port.static_entries.contains(&station)) {
            return Err(wrong(format!("{station} has an entry at {} already", holder.port.name())));
        }
        let known = ports.iter().map(|port| port.port.name()).collect::<Vec<_>>().join(", ");
        let port = ports
            .iter_mut()
            .find(|port| port.port.name() == self.port.as_ref())
            .ok_or_else(|| {
                let port = self.port.as_ref();
                source.wrong(
                    &self.port.span(),
                    format_args!("fdb: the file has no port {port:?}: it has {known}"),
                )
            })?;
        port.static_entries.insert(station);
        Ok(())
    }
}

impl WrittenPort {
    /// Returns the settings of the port, or an error for the first key with a wrong value.
    fn check(&self, source: &ConfigText<'_>) -> Result<PortSettings, ConfigError> {
        let mut settings = PortSettings::new(self.spec(source)?);
        self.set_features(&mut settings, source)?;
        for (setting, written) in &self.settings {
            let value = match (setting.values.unit(), written.as_ref()) {
                (Some("ns"), SettingValue::Word(time)) => {
                    let time = duration(time, &written.span(), setting.name, source)?;
                    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
                }
                (_, value) => value.clone(),
            };
            setting
                .set(&mut settings, &value)
                .map_err(|problem| source.wrong(&written.span(), problem))?;
        }
        self.set_vlans(&mut settings, source)?;
        self.set_steering(&mut settings, source)?;
        Ok(settings)
    }

    /// Parses the port string, and adds the name from the key `name`.
    fn spec(&self, source: &ConfigText<'_>) -> Result<PortSpec, ConfigError> {
        let (text, span) = self
            .port
            .as_ref()
            .map(|port| (port.as_ref().as_str(), port.span()))
            .unwrap_or_default();
        let mut spec: PortSpec = text.parse().map_err(|error: SpecError| {
            source.wrong(&span, format_args!("port: {}", error.problem(text)))
        })?;
        if let Some(name) = &self.name {
            let wrong = |problem: &dyn std::fmt::Display| source.wrong(&name.span(), problem);
            if spec.is_named() && spec.name() != name.as_ref() {
                return Err(wrong(&format_args!(
                    "name: the port string gives the port another name, {:?}",
                    spec.name()
                )));
            }
            spec = spec.with_name(name.as_ref()).map_err(|error| wrong(&error.problem(text)))?;
        }
        Ok(spec)
    }

    /// Copies the port's offload switches from the file to `settings`.
    fn set_features(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        let mut named: Vec<Feature> = Vec::new();
        for (name, on) in &self.features {
            let feature: Feature = name.as_ref().parse().map_err(|_| {
                let names = Feature::ALL.map(Feature::name).join(", ");
                source.wrong(
                    &name.span(),
                    format_args!("features: {:?} is no offload: there are {names}", name.as_ref()),
                )
            })?;
            // A feature has a long and a short name; a file with both would be ambiguous.
            if named.contains(&feature) {
                return Err(
                    source.wrong(&name.span(), format_args!("features: {feature} is there twice"))
                );
            }
            named.push(feature);
            settings.features = settings.features.set(feature, *on);
        }
        settings.force_lro = self.force_lro;
        Ok(())
    }

    /// Copies the port's VLANs from the file to `settings`.
    fn set_vlans(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(vlans) = &self.vlans {
            settings.vlans = PortVlans::none();
            for range in vlans {
                let read = range.as_ref().parse().map_err(|problem: String| {
                    source.wrong(&range.span(), format_args!("vlans: {problem}"))
                });
                settings.vlans.add(&read?);
            }
        }
        Ok(())
    }

    /// Copies the port's `rps_cpus` masks and `rps_flow_cnt` values from the file to `settings`.
    fn set_steering(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(masks) = &self.rps_cpus {
            let mask = |text: &String| {
                CpuMask::parse(text, possible_cpus())
                    .map_err(|error| source.wrong(&masks.span(), format_args!("rps_cpus: {error}")))
            };
            settings.steering.rps_cpus = masks.as_ref().read(mask)?;
        }
        if let Some(counts) = &self.rps_flow_cnt {
            let count = |asked: &u64| {
                queue_flows(*asked).map_err(|error| {
                    source.wrong(&counts.span(), format_args!("rps_flow_cnt: {error}"))
                })
            };
            settings.steering.rps_flow_cnt = counts.as_ref().read(count)?;
        }
        Ok(())
    }
}

fn duration(
    text: &str,
    span: &Range<usize>,
    key: &str,
    source: &ConfigText<'_>,
) -> Result<Duration, ConfigError> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| {
        source.wrong(span, format_args!("{key}: {error}: write \"50us\", \"1ms\" or \"300s\""))
    })
}
