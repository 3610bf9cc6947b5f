//! The file that a bridge reads: `bridge.toml`. `docs/bridge.toml` is an example of everything in
//! it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use superpacket_features::Feature;
use superpacket_io::port::{PortSpec, SpecError};
use superpacket_steer::CpuMask;
use toml::Spanned;

use crate::fdb::Station;
use crate::reload::OnReload;
use crate::settings::{BridgeSettings, Forwarding, InPlace, MAX_ADDRESSES, PerQueue, PortSettings, SettingValue, TooBig, possible_cpus};
use crate::steering::queue_flows;
use crate::vlan::PortVlans;

/// The longest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The bridge.
    pub bridge: BridgeSettings,
    /// Where it is controlled.
    pub control: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The user that it becomes after it has opened its ports.
    pub user: Option<String>,
    /// What reading it again does with what commands have changed.
    pub on_reload: Option<OnReload>,
}

/// A file could not be read, or says something that makes no sense.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It could not be read.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A line makes no sense.
    #[error("{file}:{line}: {problem}, in: {text}")]
    Line {
        /// The file.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it; names the key.
        problem: String,
        /// The line as it is written.
        text: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::File::open(path).and_then(|opened| {
            let mut text = String::new();
            io::Read::read_to_string(&mut io::Read::take(opened, MAX_FILE + 1), &mut text)?;
            match text.len() as u64 > MAX_FILE {
                true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB")),
                false => Ok(text),
            }
        });
        match text {
            Ok(text) => Config::parse(&text, &file),
            Err(source) => Err(ConfigError::Unreadable { file, source }),
        }
    }

    /// Reads the text of a file that errors call `file`.
    ///
    /// # Errors
    /// [`ConfigError::Line`].
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let source = Source { text, file };
        let written: Written =
            toml::from_str(text).map_err(|error| source.wrong(&error.span().unwrap_or_default(), error.message().trim_end()))?;
        written.check(&source)
    }
}

/// The most characters of a line that an error shows.
const SHOWN: usize = 120;

/// A text, for errors that point into it.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn wrong(&self, span: &Range<usize>, problem: impl std::fmt::Display) -> ConfigError {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.bytes().filter(|&byte| byte == b'\n').count();
        let whole = self.text.lines().nth(line).unwrap_or_default().trim();
        let mut text: String = whole.chars().take(SHOWN).collect();
        if text.len() < whole.len() {
            text.push_str("...");
        }
        ConfigError::Line { file: self.file.to_owned(), line: line + 1, problem: problem.to_string(), text }
    }
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    bridge: WrittenBridge,
    /// By the names of `SteeringSettings`, with hyphens.
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

/// Settings have the names that commands, the kernel and iproute2 know them by; hyphens are taken
/// for underscores.
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
    #[serde(alias = "gro-uneven")]
    gro_uneven: Option<bool>,
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

/// The same for all receive queues, or one for each from the first on.
#[derive(Deserialize)]
#[serde(untagged)]
enum EachQueue<T> {
    All(T),
    Listed(Vec<T>),
}

impl<T> EachQueue<T> {
    /// Reads each value: those behind the last of a list have the default.
    fn read<R: PartialEq + Default>(&self, read: impl Fn(&T) -> Result<R, ConfigError>) -> Result<PerQueue<R>, ConfigError> {
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

/// The most threads: more than machines have CPUs.
const MAX_THREADS: usize = 1024;

/// The most addresses of a table.
const MAX_TABLE: usize = MAX_ADDRESSES as usize;

impl Written {
    fn check(self, source: &Source<'_>) -> Result<Config, ConfigError> {
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
                return Err(source.wrong(&threads.span(), format_args!("threads is at most {MAX_THREADS}")));
            }
            bridge.threads = threads.into_inner();
        }
        if let Some(size) = table_size {
            if !(1..=MAX_TABLE).contains(size.as_ref()) {
                return Err(source.wrong(&size.span(), format_args!("table-size is 1 to {MAX_TABLE} addresses")));
            }
            bridge.table_size = size.into_inner();
        }
        if let Some(time) = ageing_time {
            bridge.ageing_time = duration(&time, "ageing-time", source)?;
        }
        bridge.busy_poll = busy_poll.unwrap_or_default();
        bridge.vlan_filtering = vlan_filtering.unwrap_or_default();
        if let Some(word) = vlan_protocol {
            let read = word.as_ref().parse();
            bridge.vlan_protocol = read.map_err(|problem: String| source.wrong(&word.span(), format_args!("vlan-protocol: {problem}")))?;
        }
        bridge.multicast_snooping = multicast_snooping.unwrap_or_default();
        bridge.shared_interfaces = shared_interfaces.unwrap_or_default();
        for (name, value) in &self.steering {
            let set = bridge.steering.set(&name.as_ref().replace('-', "_"), &value.as_ref().to_string());
            set.map_err(|problem| source.wrong(&name.span(), problem))?;
        }
        let metrics =
            match metrics {
                None => None,
                Some(address) => Some(address.as_ref().parse().map_err(|_| {
                    source.wrong(&address.span(), "metrics takes an address and a port: \"127.0.0.1:9600\", \"[::1]:9600\"")
                })?),
            };
        for port in self.port {
            let span = port.port.span();
            let settings = port.check(source)?;
            if bridge.ports.iter().any(|known| known.port.name() == settings.port.name()) {
                let name = settings.port.name();
                return Err(source.wrong(&span, format_args!("there are two ports {name:?}: a name is one port's")));
            }
            bridge.ports.push(settings);
        }
        for entry in self.fdb {
            entry.check(source, bridge.vlan_filtering, &mut bridge.ports)?;
        }
        let on_reload = on_reload.map(|word| {
            let read = word.as_ref().parse();
            read.map_err(|problem: String| source.wrong(&word.span(), format_args!("on-reload: {problem}")))
        });
        Ok(Config { bridge, control, metrics, user, on_reload: on_reload.transpose()? })
    }
}

impl WrittenEntry {
    /// Gives the entry to its port.
    fn check(self, source: &Source<'_>, vlan_filtering: bool, ports: &mut [PortSettings]) -> Result<(), ConfigError> {
        let wrong = |problem: String| source.wrong(&self.address.span(), format_args!("fdb: {problem}"));
        let station = Station::parse(self.address.as_ref(), self.vlan).map_err(wrong)?;
        if vlan_filtering && station.vlan == 0 {
            return Err(wrong("the bridge filters by VLAN: say in which the address is (vlan)".into()));
        }
        if let Some(holder) = ports.iter().find(|port| port.static_entries.contains(&station)) {
            return Err(wrong(format!("{station} has an entry at {} already", holder.port.name())));
        }
        let known = ports.iter().map(|port| port.port.name()).collect::<Vec<_>>().join(", ");
        let port = ports.iter_mut().find(|port| port.port.name() == self.port.as_ref()).ok_or_else(|| {
            let port = self.port.as_ref();
            source.wrong(&self.port.span(), format_args!("fdb: the file has no port {port:?}: it has {known}"))
        })?;
        port.static_entries.insert(station);
        Ok(())
    }
}

impl WrittenPort {
    fn check(self, source: &Source<'_>) -> Result<PortSettings, ConfigError> {
        let parsed = self.port.as_ref().parse();
        let mut spec: PortSpec = parsed
            .map_err(|error: SpecError| source.wrong(&self.port.span(), format_args!("port: {}", error.problem(self.port.as_ref()))))?;
        if let Some(name) = &self.name {
            let wrong = |problem: &dyn std::fmt::Display| source.wrong(&name.span(), problem);
            if spec.is_named() && spec.name() != name.as_ref() {
                return Err(wrong(&format_args!("name: the port string gives the port another name, {:?}", spec.name())));
            }
            spec = spec.with_name(name.as_ref()).map_err(|error| wrong(&error.problem(self.port.as_ref())))?;
        }
        let mut settings = PortSettings::new(spec);
        let mut named: Vec<Feature> = Vec::new();
        for (name, on) in &self.features {
            let feature: Feature = name.as_ref().parse().map_err(|_| {
                let names = Feature::ALL.map(Feature::name).join(", ");
                source.wrong(&name.span(), format_args!("features: {:?} is no offload: there are {names}", name.as_ref()))
            })?;
            // By its long and by its short name: which of them should hold?
            if named.contains(&feature) {
                return Err(source.wrong(&name.span(), format_args!("features: {feature} is there twice")));
            }
            named.push(feature);
            settings.features = settings.features.set(feature, *on);
        }
        settings.force_lro = self.force_lro;
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
                settings.limits.set(name, *number.as_ref()).map_err(|problem| source.wrong(&number.span(), problem))?;
            }
        }
        for (name, word) in [("storage", &self.storage), ("delivery", &self.delivery)] {
            if let Some(word) = word {
                settings.set_aggregation(name, word.as_ref()).map_err(|problem| source.wrong(&word.span(), problem))?;
            }
        }
        settings.lro_acks = self.lro_acks.unwrap_or_default();
        settings.gro_past_push = self.gro_past_push.unwrap_or_default();
        settings.gro_udp_no_checksum = self.gro_udp_no_checksum.unwrap_or_default();
        settings.gro_uneven = self.gro_uneven.unwrap_or_default();
        for (name, time) in [("gro_flush_timeout", &self.gro_flush_timeout), ("gap_timeout", &self.gap_timeout)] {
            if let Some(time) = time {
                let nanoseconds = u64::try_from(duration(time, name, source)?.as_nanos()).unwrap_or(u64::MAX);
                settings.limits.set(name, nanoseconds).map_err(|problem| source.wrong(&time.span(), problem))?;
            }
        }
        if let Some(word) = &self.too_big {
            let known = TooBig::NAMES.into_iter().find(|(name, _)| name == word.as_ref());
            let (_, too_big) = known.ok_or_else(|| {
                let names = TooBig::NAMES.map(|(name, _)| name).join(", ");
                source.wrong(&word.span(), format_args!("too_big is one of {names}, not {:?}", word.as_ref()))
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
                let read = range.as_ref().parse().map_err(|problem: String| source.wrong(&range.span(), format_args!("vlans: {problem}")));
                settings.vlans.add(&read?);
            }
        }
        if let Some(masks) = &self.rps_cpus {
            let mask = |text: &String| {
                CpuMask::parse(text, possible_cpus()).map_err(|error| source.wrong(&masks.span(), format_args!("rps_cpus: {error}")))
            };
            settings.steering.rps_cpus = masks.as_ref().read(mask)?;
        }
        if let Some(counts) = &self.rps_flow_cnt {
            let count =
                |asked: &u64| queue_flows(*asked).map_err(|error| source.wrong(&counts.span(), format_args!("rps_flow_cnt: {error}")));
            settings.steering.rps_flow_cnt = counts.as_ref().read(count)?;
        }
        settings.steering.in_place = self.in_place_below;
        Ok(settings)
    }
}

fn duration(text: &Spanned<String>, key: &str, source: &Source<'_>) -> Result<Duration, ConfigError> {
    if text.as_ref() == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text.as_ref())
        .map_err(|error| source.wrong(&text.span(), format_args!("{key}: {error}: write \"50us\", \"1ms\" or \"300s\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{PortSteering, Rates, SteeringSettings};
    use crate::vlan::VlanProtocol;

    #[test]
    fn the_documented_example_says_what_its_comments_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bridge.toml");
        let config = Config::read(&path).expect("the example is right");
        assert_eq!(config.control.as_deref(), Some(Path::new("/run/superpacket/control.sock")));
        assert_eq!(config.metrics, Some(SocketAddr::from(([127, 0, 0, 1], 9600))));
        assert_eq!(config.user.as_deref(), Some("superpacket"));
        assert_eq!(config.on_reload, Some(OnReload::Undo));
        let BridgeSettings {
            ports,
            table_size,
            ageing_time,
            threads,
            busy_poll,
            vlan_filtering,
            vlan_protocol,
            multicast_snooping,
            shared_interfaces,
            steering,
        } = config.bridge;
        assert!(!vlan_filtering && !multicast_snooping && !shared_interfaces);
        assert_eq!(vlan_protocol, VlanProtocol::Dot1Q);
        assert_eq!((steering.max_backlog, steering.weight, steering.sock_flow_entries), (1000, 64, 0));
        assert_eq!(steering, SteeringSettings::default());
        let masks = &ports[0].steering.rps_cpus;
        assert_eq!((masks.queue(0).list().to_string(), masks.queue(7).list().to_string()), ("0".into(), "0".into()));
        assert_eq!((table_size, ageing_time, threads, busy_poll), (8192, Duration::from_secs(300), 0, false));
        assert_eq!(ports.iter().map(|port| port.port.name()).collect::<Vec<_>>(), ["uplink", "tap:tap0"]);
        assert_eq!(ports[0].port.string(), "packet:eth0");
        let first = &ports[0];
        assert!(first.features.contains(Feature::GenericReceiveOffload) && first.features.contains(Feature::RxUdpGroForwarding));
        assert!(!first.features.contains(Feature::TcpSegmentationOffload) && !first.features.contains(Feature::LargeReceiveOffload));
        assert_eq!((first.limits.gro_flush_timeout, first.limits.gro_max_size, first.too_big), (50_000, 65_535, TooBig::Icmp));
        let mut second = PortSettings::new("tap:tap0".parse().expect("a port"));
        second.static_entries.insert(Station::parse("52:54:00:12:34:56", Some(10)).expect("a station"));
        assert_eq!(ports[1], second, "nothing else said: the defaults");
    }

    #[test]
    fn what_makes_no_sense_is_named_by_file_line_and_key() {
        for (text, line, says) in [
            ("[bridge]\nthreds = 1\n", 2, "unknown field `threds`, expected one of `threads`"),
            ("[bridge]\nthreads = \"many\"\n", 2, "threads = \"many\""),
            ("[bridge]\nthreads = 5000\n", 2, "threads is at most 1024"),
            ("[bridge]\ntable-size = 0\n", 2, "table-size is 1 to"),
            ("[bridge]\n\n\nageing-time = \"300\"\n", 4, "ageing-time: "),
            ("[bridge]\nmetrics = \"9600\"\n", 2, "metrics takes an address"),
            ("[[port]]\nport = \"eth0\"\n", 2, "starts with no kind"),
            ("[[port]]\nprt = \"packet:eth0\"\n", 2, "unknown field `prt`"),
            ("[[port]]\nforce-lro = true\n", 1, "missing field `port`"),
            ("[[port]]\nport = \"packet:a\"\n[[port]]\nport = \"packet:a\"\n", 4, "there are two ports \"packet:a\""),
            (
                "[[port]]\nport = \"a=tap:x\"\n[[port]]\nname = \"a\"\nport = \"tap:y\"\n",
                5,
                "there are two ports \"a\": a name is one port's",
            ),
            ("[[port]]\nport = \"9=packet:a\"\n", 2, "port: name \"9\" does not begin with a letter"),
            ("[[port]]\nport = \"packet:a\"\nname = \"a b\"\n", 3, "name \"a b\" is not 1 to 32 letters"),
            ("[[port]]\nport = \"a=packet:a\"\nname = \"b\"\n", 3, "name: the port string gives the port another name, \"a\""),
            (
                "[[port]]\nport = \"a=packet:a\"\n[[fdb]]\naddress = \"02:00:00:00:00:01\"\nport = \"packet:a\"\n",
                5,
                "the file has no port \"packet:a\": it has a",
            ),
            ("[[port]]\nport = \"packet:a\"\nfeatures = { turbo = true }\n", 3, "\"turbo\" is no offload"),
            ("[[port]]\nport = \"packet:a\"\n[port.features]\ngro = true\ngeneric-receive-offload = false\n", 4, "is there twice"),
            (
                "[[port]]\nport = \"packet:a\"\ngso-max-size = 99999999\n",
                3,
                "gso_max_size is 0 (what the port takes) or 68 to 524280 bytes",
            ),
            ("[[port]]\nport = \"packet:a\"\ngro-max-size = 0\n", 3, "gro_max_size is 68 to 524280 bytes, not 0"),
            ("[[port]]\nport = \"packet:a\"\nlro-max-aggr = 1\n", 3, "lro_max_aggr is 0 (no limit) or 2 to 65535 packets"),
            ("[[port]]\nport = \"packet:a\"\naddress-limit = 9999999\n", 3, "address_limit is 0 (half of the table) or 1 to 1048576"),
            ("[[port]]\nport = \"packet:a\"\nstorm-unknown = -1\n", 3, "expected u64"),
            (
                "[[port]]\nport = \"packet:a\"\nrx-byte-burst = 5000000000\n",
                3,
                "rx_byte_burst is 0 (a tenth of a second's) or 1 to 4294967296",
            ),
            ("[[port]]\nport = \"packet:a\"\nstorage = \"heap\"\n", 3, "storage is fragments or linear"),
            ("[[port]]\nport = \"packet:a\"\ndelivery = 1\n", 3, "expected a string"),
            ("[[port]]\nport = \"packet:a\"\ngro-flush-timeout = \"1h\"\n", 3, "gro_flush_timeout is at most"),
            ("[[port]]\nport = \"packet:a\"\ngro_flush_timeout = \"1h\"\n", 3, "gro_flush_timeout is at most"),
            (
                "[[port]]\nport = \"packet:a\"\ngro_flush_timeout = \"1ms\"\ngro-flush-timeout = \"1ms\"\n",
                1,
                "duplicate field `gro_flush_timeout`",
            ),
            ("[[port]]\nport = \"packet:a\"\ntoo-big = \"explode\"\n", 3, "too_big is one of drop, icmp, fragment"),
            ("[[port]]\nport = \"packet:a\"\nisolated = \"on\"\n", 3, "expected a boolean"),
            ("[[port]]\nport = \"packet:a\"\nrps-cpus = \"fg\"\n", 3, "rps_cpus: EINVAL"),
            ("[[port]]\nport = \"packet:a\"\nrps-cpus = [\"1\", \"1,,x\"]\n", 3, "\"x\""),
            ("[[port]]\nport = \"packet:a\"\nrps-flow-cnt = 999999999999\n", 3, "rps_flow_cnt: EINVAL"),
            ("[[port]]\nport = \"packet:a\"\nin-place-below = \"never\"\n", 3, "expected \"auto\", or a number of packets a second"),
            ("[[port]]\nport = \"packet:a\"\nin-place-below = -1\n", 3, "expected \"auto\", or a number of packets a second"),
            ("[steering]\nmax-backlog = 9\n", 2, "no setting of steering"),
            ("[steering]\ndev-weight = 9\nnetdev-max-backlog = 0\n", 3, "netdev_max_backlog: EINVAL"),
            ("[bridge]\nvlan-filtering = 1\n", 2, "expected a boolean"),
            ("[bridge]\nvlan-protocol = \"802.1w\"\n", 2, "vlan-protocol: \"802.1w\" is no protocol of VLAN tags: there are 802.1Q and"),
            ("[bridge]\non-reload = \"forget\"\n", 2, "on-reload: it is undo or keep, not \"forget\""),
            ("[[port]]\nport = \"tap:a\"\nvlans = [\"10\", \"20-\"]\n", 3, "vlans: \"20-\" is no VLAN: write 10, 10-20"),
            ("[[port]]\nport = \"tap:a\"\nvlans = [\n\"10\",\n\"0\"]\n", 5, "vlans: a VLAN is 1 to 4094, not 0"),
            ("[[port]]\nport = \"tap:a\"\nvlans = [\"10-20 pvid\"]\n", 3, "vlans: pvid is for one VLAN"),
            (
                "[bridge]\nvlan-filtering = true\n[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"2:0:0:0:0:1\"\n",
                7,
                "fdb: the bridge filters by VLAN: say in which",
            ),
            ("[[fdb]]\naddress = \"02:00:00:00:00:01\"\n", 1, "missing field `port`"),
            ("[[fdb]]\naddress = \"02:00:00:00:00:01\"\nport = \"tap:b\"\n", 3, "fdb: the file has no port \"tap:b\""),
            (
                "[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"ff:ff:ff:ff:ff:ff\"\n",
                5,
                "fdb: ff:ff:ff:ff:ff:ff is a group's",
            ),
            (
                "[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"02:00:00:00:00:01\"\nvlan = 0\n",
                5,
                "a VLAN is 1 to 4094",
            ),
            (
                "[[port]]\nport = \"tap:a\"\n[[fdb]]\nport = \"tap:a\"\naddress = \"02:00:00:00:00:01\"\n\
                 [[fdb]]\nport = \"tap:a\"\naddress = \"2:0:0:0:0:1\"\n",
                8,
                "fdb: 02:00:00:00:00:01 has an entry at tap:a already",
            ),
            ("[ports]\n", 1, "unknown field `ports`"),
            ("[bridge\n", 1, ""),
        ] {
            let error = Config::parse(text, "bridge.toml").expect_err(text).to_string();
            assert!(error.starts_with(&format!("bridge.toml:{line}: ")), "{text}: {error}");
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn names_stand_in_the_string_or_beside_it() {
        let text = "[[port]]\nport = \"left=packet:a?ring=1m\"\n[[port]]\nname = \"right\"\nport = \"packet:b\"\n\
                    [[port]]\nport = \"both=tap:c\"\nname = \"both\"\n\
                    [[fdb]]\naddress = \"52:54:00:12:34:56\"\nport = \"right\"\n";
        let ports = Config::parse(text, "bridge.toml").expect("it is right").bridge.ports;
        let expected = ["left=packet:a?ring=1m", "right=packet:b", "both=tap:c"].map(|port| port.parse().expect("a port string"));
        assert_eq!(ports.iter().map(|port| port.port.clone()).collect::<Vec<_>>(), expected);
        assert_eq!(ports[1].static_entries.len(), 1);
    }

    #[test]
    fn rates_are_read() {
        for (number, name) in (1..).zip(Rates::NAMES) {
            let text = format!("[[port]]\nport = \"tap:a\"\n{} = {number}\n", name.replace('_', "-"));
            let port = Config::parse(&text, "bridge.toml").expect("it is right").bridge.ports.remove(0);
            let expected = Rates::NAMES.map(|other| if other == name { number } else { 0 });
            assert_eq!(Rates::NAMES.map(|name| port.limits.value(name).expect("known")), expected, "{name}");
        }
    }

    #[test]
    fn switches_of_forwarding_are_read() {
        for name in Forwarding::NAMES {
            let on = name == "isolated";
            let text = format!("[[port]]\nport = \"tap:a\"\n{} = {on}\n", name.replace('_', "-"));
            let port = Config::parse(&text, "bridge.toml").expect("it is right").bridge.ports.remove(0);
            let expected = Forwarding::NAMES.map(|other| if other == name { on } else { other != "isolated" });
            assert_eq!(Forwarding::NAMES.map(|name| port.forwarding.value(name).expect("known")), expected, "{name}");
        }
    }

    #[test]
    fn the_knobs_of_aggregation_are_read() {
        let text = "[[port]]\nport = \"tap:a\"\nfeatures = { lro = true, tx-tcp-mangleid-segmentation = true }\nforce-lro = true\n\
                    lro-max-aggr = 43\nlro-max-desc = 8\nlro-acks = true\ngro-past-push = true\ngro-udp-no-checksum = true\ngro-uneven = true\nstorage = \"linear\"\ndelivery = \"at-once\"\n";
        let port = Config::parse(text, "bridge.toml").expect("it is right").bridge.ports.remove(0);
        assert!(port.features.contains(Feature::TxTcpMangleidSegmentation) && port.features.contains(Feature::LargeReceiveOffload));
        assert_eq!((port.limits.lro_max_aggr, port.limits.lro_max_desc), (43, 8));
        let words = ["at-once", "on", "on", "on", "on", "linear"];
        assert_eq!(PortSettings::AGGREGATION.map(|name| port.aggregation(name)), words.map(Some));
    }

    #[test]
    fn static_entries_are_given_to_their_ports() {
        let text = "[[fdb]]\naddress = \"52:54:00:12:34:56\"\nport = \"tap:a\"\nvlan = 10\n\
                    [[port]]\nport = \"tap:a\"\n[[port]]\nport = \"tap:b\"\n\
                    [[fdb]]\naddress = \"52:54:00:12:34:56\"\nport = \"tap:b\"\n";
        let ports = Config::parse(text, "bridge.toml").expect("it is right").bridge.ports;
        let entries = ports.iter().map(|port| port.static_entries.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(entries.collect::<Vec<_>>(), [["52:54:00:12:34:56 vlan 10"], ["52:54:00:12:34:56"]]);
    }

    #[test]
    fn settings_of_ports_have_the_names_of_commands_and_hyphens_do_as_well() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bridge.toml");
        let example = std::fs::read_to_string(path).expect("the example is there");
        let (head, rest) = example.split_once("\n[[port]]").expect("ports");
        let hyphens = rest.lines().map(|line| match line.split_once(" = ") {
            Some((name, value)) if !line.starts_with('#') => format!("{} = {value}\n", name.replace('_', "-")),
            _ => format!("{line}\n"),
        });
        let text = format!("{head}\n[[port]]{}", hyphens.collect::<String>());
        assert!(example.contains("\nrps_flow_cnt = ") && text.contains("\nrps-flow-cnt = "));
        let read = |text: &str| Config::parse(text, "bridge.toml").expect("it is right").bridge;
        assert_eq!(read(&text), read(&example));
        for name in PortSettings::names() {
            assert!(example.contains(&format!("\n{name} = ")), "{name} is in the documented example");
        }
    }

    #[test]
    fn vlans_of_ports_are_read() {
        let text = "[bridge]\nvlan-filtering = true\nvlan-protocol = \"802.1ad\"\nmulticast-snooping = true\n[[port]]\nport = \"tap:a\"\nvlans = [\"10 pvid untagged\", \"20-30\"]\n\
                    [[port]]\nport = \"tap:b\"\n[[port]]\nport = \"tap:c\"\nvlans = []\n";
        let bridge = Config::parse(text, "bridge.toml").expect("it is right").bridge;
        assert!(bridge.vlan_filtering && bridge.multicast_snooping);
        assert_eq!(bridge.vlan_protocol, VlanProtocol::Dot1Ad);
        let vlans = bridge.ports.iter().map(|port| port.vlans.ranges().iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(vlans.collect::<Vec<_>>(), [vec!["10 pvid untagged", "20-30"], vec!["1 pvid untagged"], vec![]]);
    }

    #[test]
    fn steering_is_for_all_queues_or_for_each() {
        let text = "[steering]\nhash-symmetric = true\nhash = \"toeplitz\"\ndev-weight = 8\n\
                    [[port]]\nport = \"tap:a\"\nrps-cpus = [\"1\", \"0\"]\nrps-flow-cnt = 1000\nin-place-below = 5000\n";
        let bridge = Config::parse(text, "bridge.toml").expect("it is right").bridge;
        assert!(bridge.steering.hash.symmetric && bridge.steering.weight == 8);
        let PortSteering { rps_cpus, rps_flow_cnt, in_place } = &bridge.ports[0].steering;
        assert_eq!([0, 1, 2].map(|queue| rps_cpus.queue(queue).list().to_string()), ["0", "", ""]);
        assert_eq!((*rps_flow_cnt.queue(3), *in_place), (1024, Some(InPlace::Below(5000))));
        for (line, expected) in
            [("", None), ("in-place-below = 0\n", Some(InPlace::NEVER)), ("in-place-below = \"auto\"\n", Some(InPlace::Automatic))]
        {
            let text = format!("[[port]]\nport = \"tap:a\"\n{line}");
            assert_eq!(Config::parse(&text, "bridge.toml").expect("it is right").bridge.ports[0].steering.in_place, expected);
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("absent.toml");
        assert!(Config::read(&path).expect_err("absent").to_string().contains("absent.toml: cannot be read"));
        std::fs::write(&path, vec![b'#'; MAX_FILE as usize + 1]).expect("writes");
        assert!(Config::read(&path).expect_err("long").to_string().contains("longer than 1 MiB"));
        std::fs::write(&path, [0xff, 0xfe]).expect("writes");
        assert!(Config::read(&path).is_err());
    }
}
