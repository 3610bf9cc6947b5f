//! The keys of the configuration file, and their conversion to checked settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use superpacket_bridge::fdb::Station;
use superpacket_bridge::settings::{
    BridgeSettings, Forwarding, InPlace, MAX_ADDRESSES, PerQueue, PortSettings, SettingValue,
    TooBig, possible_cpus, queue_flows,
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

/// A port's table in the file. The keys are the names used by commands, the kernel and iproute2.
/// Hyphens may stand for underscores.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPort {
    port: Spanned<String>,
    name: Option<Spanned<String>>,
    #[serde(default)]
    features: BTreeMap<Spanned<String>, bool>,
    #[serde(default, alias = "force-lro")]
    force_lro: bool,
    #[serde(alias = "gso-max-size")]
    gso_max_size: Option<Spanned<u64>>,
    #[serde(alias = "gro-max-size")]
    gro_max_size: Option<Spanned<u64>>,
    #[serde(alias = "gro-flush-timeout")]
    gro_flush_timeout: Option<Spanned<String>>,
    #[serde(alias = "gap-timeout")]
    gap_timeout: Option<Spanned<String>>,
    #[serde(alias = "too-big")]
    too_big: Option<Spanned<String>>,
    #[serde(alias = "lro-max-aggr")]
    lro_max_aggr: Option<Spanned<u64>>,
    #[serde(alias = "lro-max-desc")]
    lro_max_desc: Option<Spanned<u64>>,
    #[serde(alias = "address-limit")]
    address_limit: Option<Spanned<u64>>,
    #[serde(alias = "rx-byte-rate")]
    rx_byte_rate: Option<Spanned<u64>>,
    #[serde(alias = "rx-byte-burst")]
    rx_byte_burst: Option<Spanned<u64>>,
    #[serde(alias = "rx-packet-rate")]
    rx_packet_rate: Option<Spanned<u64>>,
    #[serde(alias = "rx-packet-burst")]
    rx_packet_burst: Option<Spanned<u64>>,
    #[serde(alias = "tx-byte-rate")]
    tx_byte_rate: Option<Spanned<u64>>,
    #[serde(alias = "tx-byte-burst")]
    tx_byte_burst: Option<Spanned<u64>>,
    #[serde(alias = "tx-packet-rate")]
    tx_packet_rate: Option<Spanned<u64>>,
    #[serde(alias = "tx-packet-burst")]
    tx_packet_burst: Option<Spanned<u64>>,
    #[serde(alias = "storm-broadcast")]
    storm_broadcast: Option<Spanned<u64>>,
    #[serde(alias = "storm-multicast")]
    storm_multicast: Option<Spanned<u64>>,
    #[serde(alias = "storm-unknown")]
    storm_unknown: Option<Spanned<u64>>,
    #[serde(alias = "lro-acks")]
    lro_acks: Option<bool>,
    #[serde(alias = "gro-past-push")]
    gro_past_push: Option<bool>,
    #[serde(alias = "gro-udp-no-checksum")]
    gro_udp_no_checksum: Option<bool>,
    storage: Option<Spanned<String>>,
    delivery: Option<Spanned<String>>,
    isolated: Option<bool>,
    learning: Option<bool>,
    flood: Option<bool>,
    #[serde(alias = "mcast-flood")]
    mcast_flood: Option<bool>,
    #[serde(alias = "bcast-flood")]
    bcast_flood: Option<bool>,
    vlans: Option<Vec<Spanned<String>>>,
    #[serde(alias = "rps-cpus")]
    rps_cpus: Option<Spanned<EachQueue<String>>>,
    #[serde(alias = "rps-flow-cnt")]
    rps_flow_cnt: Option<Spanned<EachQueue<u64>>>,
    #[serde(alias = "in-place-below")]
    in_place_below: Option<InPlace>,
}

/// One value for all receive queues, or a list with one value per queue, starting at queue 0.
#[derive(Deserialize)]
#[serde(untagged)]
enum EachQueue<T> {
    All(T),
    Listed(Vec<T>),
}

impl<T> EachQueue<T> {
    /// Converts each value with `read`. Queues beyond the end of a list get the default value.
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
            bridge.ageing_time = duration(&time, "ageing-time", source)?;
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
            let set =
                bridge.steering.set(&name.as_ref().replace('-', "_"), &value.as_ref().to_string());
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
            let span = port.port.span();
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
    /// Adds the entry to the static entries of its port.
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
        self.set_limits(&mut settings, source)?;
        self.set_aggregation(&mut settings, source)?;
        self.set_timeouts(&mut settings, source)?;
        self.set_forwarding(&mut settings, source)?;
        self.set_steering(&mut settings, source)?;
        Ok(settings)
    }

    /// Parses the port string, and adds the name from the key `name`.
    fn spec(&self, source: &ConfigText<'_>) -> Result<PortSpec, ConfigError> {
        let parsed = self.port.as_ref().parse();
        let mut spec: PortSpec = parsed.map_err(|error: SpecError| {
            source.wrong(
                &self.port.span(),
                format_args!("port: {}", error.problem(self.port.as_ref())),
            )
        })?;
        if let Some(name) = &self.name {
            let wrong = |problem: &dyn std::fmt::Display| source.wrong(&name.span(), problem);
            if spec.is_named() && spec.name() != name.as_ref() {
                return Err(wrong(&format_args!(
                    "name: the port string gives the port another name, {:?}",
                    spec.name()
                )));
            }
            spec = spec
                .with_name(name.as_ref())
                .map_err(|error| wrong(&error.problem(self.port.as_ref())))?;
        }
        Ok(spec)
    }

    /// Sets the offloads.
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

    /// Sets the numeric limits and rates.
    fn set_limits(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        let numbers = [
            ("gso_max_size", &self.gso_max_size),
            ("gro_max_size", &self.gro_max_size),
            ("lro_max_aggr", &self.lro_max_aggr),
            ("lro_max_desc", &self.lro_max_desc),
            ("address_limit", &self.address_limit),
            ("rx_byte_rate", &self.rx_byte_rate),
            ("rx_byte_burst", &self.rx_byte_burst),
            ("rx_packet_rate", &self.rx_packet_rate),
            ("rx_packet_burst", &self.rx_packet_burst),
            ("tx_byte_rate", &self.tx_byte_rate),
            ("tx_byte_burst", &self.tx_byte_burst),
            ("tx_packet_rate", &self.tx_packet_rate),
            ("tx_packet_burst", &self.tx_packet_burst),
            ("storm_broadcast", &self.storm_broadcast),
            ("storm_multicast", &self.storm_multicast),
            ("storm_unknown", &self.storm_unknown),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                settings
                    .limits
                    .set(name, *number.as_ref())
                    .map_err(|problem| source.wrong(&number.span(), problem))?;
            }
        }
        Ok(())
    }

    /// Sets the aggregation of received packets.
    fn set_aggregation(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        for (name, word) in [("storage", &self.storage), ("delivery", &self.delivery)] {
            if let Some(word) = word {
                settings
                    .set_aggregation(name, word.as_ref())
                    .map_err(|problem| source.wrong(&word.span(), problem))?;
            }
        }
        settings.lro_acks = self.lro_acks.unwrap_or_default();
        settings.gro_past_push = self.gro_past_push.unwrap_or_default();
        settings.gro_udp_no_checksum = self.gro_udp_no_checksum.unwrap_or_default();
        Ok(())
    }

    /// Sets the timeouts.
    fn set_timeouts(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        for (name, time) in
            [("gro_flush_timeout", &self.gro_flush_timeout), ("gap_timeout", &self.gap_timeout)]
        {
            if let Some(time) = time {
                let nanoseconds =
                    u64::try_from(duration(time, name, source)?.as_nanos()).unwrap_or(u64::MAX);
                settings
                    .limits
                    .set(name, nanoseconds)
                    .map_err(|problem| source.wrong(&time.span(), problem))?;
            }
        }
        Ok(())
    }

    /// Sets the treatment of long packets, the forwarding switches and the VLANs.
    fn set_forwarding(
        &self,
        settings: &mut PortSettings,
        source: &ConfigText<'_>,
    ) -> Result<(), ConfigError> {
        if let Some(word) = &self.too_big {
            let known = TooBig::NAMES.into_iter().find(|(name, _)| name == word.as_ref());
            let (_, too_big) = known.ok_or_else(|| {
                let names = TooBig::NAMES.map(|(name, _)| name).join(", ");
                source.wrong(
                    &word.span(),
                    format_args!("too_big is one of {names}, not {:?}", word.as_ref()),
                )
            })?;
            settings.too_big = too_big;
        }
        let usual = settings.forwarding;
        settings.forwarding = Forwarding {
            isolated: self.isolated.unwrap_or(usual.isolated),
            learning: self.learning.unwrap_or(usual.learning),
            flood: self.flood.unwrap_or(usual.flood),
            mcast_flood: self.mcast_flood.unwrap_or(usual.mcast_flood),
            bcast_flood: self.bcast_flood.unwrap_or(usual.bcast_flood),
        };
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

    /// Sets the masks and the other settings of steering.
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
        settings.steering.in_place = self.in_place_below;
        Ok(())
    }
}

fn duration(
    text: &Spanned<String>,
    key: &str,
    source: &ConfigText<'_>,
) -> Result<Duration, ConfigError> {
    if text.as_ref() == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text.as_ref()).map_err(|error| {
        source.wrong(
            &text.span(),
            format_args!("{key}: {error}: write \"50us\", \"1ms\" or \"300s\""),
        )
    })
}
