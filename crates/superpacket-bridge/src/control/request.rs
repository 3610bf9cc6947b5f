//! What goes over the control socket: requests, and why one was not granted.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::unique::UniqueObject;
use crate::monitor::MonitorDirection;
use crate::settings::{InPlace, SettingValue};

/// The version of the protocol. It changes when a client of the old one would misunderstand;
/// additions do not change it.
pub const PROTOCOL: u32 = 1;

/// The longest request in bytes, its line feed included.
pub const MAX_REQUEST: usize = 4096;

/// A request, as JSON has it:
/// `{"request":"set-feature","port":"packet:eth0","feature":"gro","on":false}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Who serves, and which protocol.
    Version {},
    /// The ports at a glance.
    Ports {
        /// Only this one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Their offloads.
    Features {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// What they counted.
    Stats {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Switches an offload.
    SetFeature {
        /// The port's name.
        port: String,
        /// The offload's name in ethtool, long or short.
        feature: String,
        /// On or off.
        on: bool,
        /// Let `large-receive-offload` through although packets are forwarded.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Sets a limit.
    SetLimit {
        /// The port's name.
        port: String,
        /// `gso_max_size`, `gro_max_size` (bytes), `gro_flush_timeout`, `gap_timeout`
        /// (nanoseconds), `lro_max_aggr` (packets), `lro_max_desc` (flows) or `address_limit`
        /// (addresses).
        name: String,
        /// The limit.
        value: u64,
    },
    /// Says what becomes of packets that are too long.
    SetTooBig {
        /// The port's name.
        port: String,
        /// `drop`, `icmp` or `fragment`.
        what: String,
    },
    /// Says how what a port receives is aggregated.
    SetAggregation {
        /// The port's name.
        port: String,
        /// `storage`, `delivery`, `gro_past_push`, `gro_udp_no_checksum`, `gro_uneven` or
        /// `lro_acks`.
        name: String,
        /// `fragments` or `linear`, `per-poll` or `at-once`, `on` or `off`.
        value: String,
    },
    /// Turns a switch of what passes between a port and the others.
    SetForwarding {
        /// The port's name.
        port: String,
        /// `isolated`, `learning`, `flood`, `mcast_flood` or `bcast_flood`.
        name: String,
        /// On or off.
        on: bool,
    },
    /// Opens another port.
    AddPort {
        /// The port string, with a name before it (`left=packet:eth1`) or not.
        port: String,
    },
    /// Changes options of a port's string, and settings of the port: all of them, or none.
    SetPort {
        /// The port's name.
        port: String,
        /// Options of its port string: text, or `null` for those that are taken away.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        options: BTreeMap<String, Option<String>>,
        /// Settings, by names of [`PortSettings::names`](crate::settings::PortSettings::names).
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        settings: BTreeMap<String, SettingValue>,
    },
    /// Closes a port for good.
    DelPort {
        /// The port's name.
        port: String,
    },
    /// The address table, in order of the VLAN, then of the address.
    Fdb {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// Only of this VLAN; 0: frames without a tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
        /// Only static ones, or only learned ones.
        #[serde(rename = "static", default, skip_serializing_if = "Option::is_none")]
        is_static: Option<bool>,
        /// Only what comes after this entry: the last of the answer before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Address>,
        /// At most so many entries; without it, and at most, as
        /// [`MOST_LISTED`](crate::fdb::MOST_LISTED) says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<usize>,
    },
    /// Adds a static entry to the address table.
    AddFdb {
        /// The port's name.
        port: String,
        /// The hardware address, as `52:54:00:12:34:56`.
        mac: String,
        /// The VLAN, 1 to 4094; without it, frames without a tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
        /// In place of an entry that is there, at this port or another.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replace: bool,
    },
    /// Deletes an entry, static or learned.
    DelFdb {
        /// The port's name.
        port: String,
        /// The hardware address, as `52:54:00:12:34:56`.
        mac: String,
        /// The VLAN, 1 to 4094; without it, frames without a tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
    /// Forgets learned addresses.
    FlushFdb {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// Only of this VLAN; 0: frames without a tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
    /// The VLANs of the ports.
    Vlan {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Puts a port in VLANs, or changes how it is in them.
    AddVlan {
        /// The port's name.
        port: String,
        /// The VLAN, or the first of several.
        vlan: u16,
        /// The last of several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan_end: Option<u16>,
        /// It is the VLAN of frames that come without a tag.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pvid: bool,
        /// Its frames leave without a tag.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        untagged: bool,
    },
    /// Takes a port out of VLANs.
    DelVlan {
        /// The port's name.
        port: String,
        /// The VLAN, or the first of several.
        vlan: u16,
        /// The last of several.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan_end: Option<u16>,
    },
    /// Who is in which IP group.
    Mdb {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// How the ports' packets are steered.
    Rps {
        /// Only of this port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Changes that: exactly one of `mask`, `cpu_list`, `auto`, `flow_count` and `in_place_below`.
    SetRps {
        /// The port's name.
        port: String,
        /// Only of this receive queue; all of them without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<u16>,
        /// `rps_cpus` in the form of sysfs; empty for off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mask: Option<String>,
        /// `rps_cpus` as a list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpu_list: Option<String>,
        /// `rps_cpus` by the caches of the machine.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        auto: bool,
        /// `rps_flow_cnt`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow_count: Option<u64>,
        /// When packets are processed where they are received: `"auto"`, or below so many a second
        /// of a queue; of all queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        in_place_below: Option<InPlace>,
    },
    /// What holds for the steering of all ports, and the workers.
    Steering {},
    /// Changes that.
    SetSteering {
        /// `rps_sock_flow_entries`, `netdev_max_backlog`, `dev_weight`, ...
        name: String,
        /// The value, as text.
        value: String,
    },
    /// Copies what ports receive and send. The answer's line is the connection's last: a stream of
    /// pcapng follows it.
    Monitor {
        /// Only these ports; all without.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<String>,
        /// `rx`, `tx` or `both`.
        #[serde(default)]
        direction: MonitorDirection,
        /// The most bytes of a packet; without it, and at most, as
        /// [`MAX_SNAPLEN`](crate::monitor::MAX_SNAPLEN) says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snaplen: Option<u32>,
        /// It ends after so many packets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
    },
}

/// An address of the table: of an entry, its `mac` and `vlan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// The hardware address, as `52:54:00:12:34:56`.
    pub mac: String,
    /// The VLAN, 1 to 4094; without it, frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

impl Request {
    /// Does it read only, and wait for nothing?
    pub(super) const fn is_report(&self) -> bool {
        matches!(
            self,
            Request::Version {}
                | Request::Ports { .. }
                | Request::Features { .. }
                | Request::Stats { .. }
                | Request::Fdb { .. }
                | Request::Vlan { .. }
                | Request::Mdb { .. }
                | Request::Rps { .. }
                | Request::Steering {}
        )
    }

    /// The names that requests have.
    pub const NAMES: [&'static str; 25] = [
        "version",
        "ports",
        "features",
        "stats",
        "set-feature",
        "set-limit",
        "set-too-big",
        "set-aggregation",
        "set-forwarding",
        "add-port",
        "set-port",
        "del-port",
        "fdb",
        "add-fdb",
        "del-fdb",
        "flush-fdb",
        "vlan",
        "add-vlan",
        "del-vlan",
        "mdb",
        "rps",
        "set-rps",
        "steering",
        "set-steering",
        "monitor",
    ];
}

/// The answer to `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedBy {
    /// The version of the protocol.
    pub protocol: u32,
    /// The version of the program.
    pub program: String,
    /// The bridge's process.
    pub pid: u32,
}

/// Why a request was not granted, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// It is no JSON object, or has a wrong or missing field.
    Malformed,
    /// It is none of the requests that are known.
    UnknownRequest,
    /// It asks for another version of the protocol.
    UnknownVersion,
    /// The bridge has no port of this name.
    UnknownPort,
    /// There is no offload, limit or word of this name.
    UnknownName,
    /// The bridge will not do it; the message says why.
    Refused,
    /// It comes from another user.
    Forbidden,
    /// It is longer than [`MAX_REQUEST`].
    TooLong,
    /// It did not come in time.
    TooSlow,
    /// All places were taken, and the connection that had been idle longest gave way to a new one.
    Busy,
    /// The bridge panicked over it, which is a fault of its own. A part of it may be done.
    Internal,
    /// A code that this version does not know.
    #[serde(other)]
    Other,
}

/// Why a request was not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Refusal {
    /// For programs.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: ErrorCode, message: impl fmt::Display) -> Self {
        Refusal { code, message: message.to_string() }
    }

    /// The bridge has no such port, but these.
    pub fn unknown_port<'a>(port: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        Refusal::new(
            ErrorCode::UnknownPort,
            format_args!("there is no port {port:?}: there are {known}"),
        )
    }
}

/// What is sent back.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply<T> {
    Ok(T),
    Error(Refusal),
}

/// Reads a line.
pub(super) fn read(line: &[u8]) -> Result<Request, Refusal> {
    let malformed = |problem: &dyn fmt::Display| {
        Refusal::new(ErrorCode::Malformed, format_args!("the request cannot be read: {problem}"))
    };
    let UniqueObject(mut object) =
        serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    if let Some(version) = object.remove("version")
        && version != PROTOCOL
    {
        return Err(Refusal::new(
            ErrorCode::UnknownVersion,
            format_args!("the bridge speaks version {PROTOCOL} of the protocol, not {version}"),
        ));
    }
    match object.get("request").map(serde_json::Value::as_str) {
        Some(Some(name)) if Request::NAMES.contains(&name) => {}
        Some(Some(name)) => {
            let known = Request::NAMES.join(", ");
            return Err(Refusal::new(
                ErrorCode::UnknownRequest,
                format_args!("{name:?} is no request: there are {known}"),
            ));
        }
        _ => return Err(malformed(&"it has no string \"request\"")),
    }
    serde_json::from_value(serde_json::Value::Object(object)).map_err(|error| malformed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_read_as_it_is_written() {
        let port = || "packet:eth0".to_owned();
        let requests = [
            Request::Version {},
            Request::Ports { port: None },
            Request::Features { port: Some(port()) },
            Request::Stats { port: None },
            Request::SetFeature { port: port(), feature: "gro".into(), on: true, force: false },
            Request::SetLimit { port: port(), name: "gro_flush_timeout".into(), value: 50_000 },
            Request::SetTooBig { port: port(), what: "icmp".into() },
            Request::SetAggregation {
                port: port(),
                name: "storage".into(),
                value: "linear".into(),
            },
            Request::SetForwarding { port: port(), name: "isolated".into(), on: true },
            Request::AddPort { port: port() },
            Request::SetPort {
                port: port(),
                options: [("ring".into(), Some("8m".into())), ("queues".into(), None)].into(),
                settings: [
                    ("isolated".into(), SettingValue::Switch(true)),
                    ("rx_byte_rate".into(), SettingValue::Number(9)),
                ]
                .into(),
            },
            Request::DelPort { port: port() },
            Request::Fdb {
                port: None,
                vlan: Some(0),
                is_static: Some(true),
                after: Some(Address { mac: "02:00:00:00:00:01".into(), vlan: None }),
                most: Some(9),
            },
            Request::AddFdb {
                port: port(),
                mac: "02:00:00:00:00:01".into(),
                vlan: Some(10),
                replace: false,
            },
            Request::DelFdb { port: port(), mac: "02:00:00:00:00:01".into(), vlan: None },
            Request::FlushFdb { port: Some(port()), vlan: None },
            Request::Vlan { port: Some(port()) },
            Request::AddVlan {
                port: port(),
                vlan: 10,
                vlan_end: Some(20),
                pvid: false,
                untagged: true,
            },
            Request::DelVlan { port: port(), vlan: 10, vlan_end: None },
            Request::Mdb { port: None },
            Request::Rps { port: None },
            Request::SetRps {
                port: port(),
                queue: Some(1),
                mask: Some("1,,5".into()),
                cpu_list: None,
                auto: false,
                flow_count: None,
                in_place_below: Some(InPlace::Automatic),
            },
            Request::Steering {},
            Request::SetSteering { name: "dev_weight".into(), value: "64".into() },
            Request::Monitor {
                ports: vec![port()],
                direction: MonitorDirection::Tx,
                snaplen: Some(96),
                count: None,
            },
        ];
        for (request, name) in requests.into_iter().zip(Request::NAMES) {
            let line = serde_json::to_string(&request).expect("JSON");
            assert!(line.starts_with(&format!("{{\"request\":\"{name}\"")), "{line}");
            assert_eq!(read(line.as_bytes()), Ok(request));
        }
        let replacing = Request::AddFdb {
            port: port(),
            mac: "02:00:00:00:00:01".into(),
            vlan: None,
            replace: true,
        };
        let line = serde_json::to_string(&replacing).expect("JSON");
        assert!(line.ends_with("\"replace\":true}"), "{line}");
        assert_eq!(read(line.as_bytes()), Ok(replacing));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (line, code, says) in [
            ("", ErrorCode::Malformed, "EOF"),
            ("[]", ErrorCode::Malformed, "expected an object"),
            (
                r#"{"request":"ports","port":"a","port":"b"}"#,
                ErrorCode::Malformed,
                "the key \"port\" is there twice at line 1 column",
            ),
            (
                r#"{"request":"ports","request":"del-port","port":"a"}"#,
                ErrorCode::Malformed,
                "the key \"request\" is there twice",
            ),
            (
                r#"{"request":"ports","version":2,"version":1}"#,
                ErrorCode::Malformed,
                "the key \"version\" is there twice",
            ),
            (
                r#"{"request":"set-port","port":"left","options":{"ring":"4m","ring":null}}"#,
                ErrorCode::Malformed,
                "the key \"ring\" is there twice",
            ),
            ("{}", ErrorCode::Malformed, "no string \"request\""),
            (r#"{"request":7}"#, ErrorCode::Malformed, "no string \"request\""),
            (r#"{"request":"reboot"}"#, ErrorCode::UnknownRequest, "there are version, ports"),
            (r#"{"request":"ports","prot":"x"}"#, ErrorCode::Malformed, "unknown field `prot`"),
            (r#"{"request":"version","x":1}"#, ErrorCode::Malformed, "unknown field `x`"),
            (
                r#"{"request":"set-feature","port":"packet:a","feature":"gro"}"#,
                ErrorCode::Malformed,
                "missing field `on`",
            ),
            (
                r#"{"request":"set-limit","port":"packet:a","name":"gro_max_size","value":-1}"#,
                ErrorCode::Malformed,
                "-1",
            ),
            (
                r#"{"request":"set-port","port":"left","settings":{"isolated":null}}"#,
                ErrorCode::Malformed,
                "SettingValue",
            ),
            (r#"{"request":"ports","version":2}"#, ErrorCode::UnknownVersion, "not 2"),
            (
                r#"{"request":"set-rps","port":"packet:a","queue":70000,"mask":"1"}"#,
                ErrorCode::Malformed,
                "70000",
            ),
            (
                r#"{"request":"set-rps","port":"packet:a","in_place_below":"never"}"#,
                ErrorCode::Malformed,
                "expected \"auto\", or a number",
            ),
        ] {
            let refusal = read(line.as_bytes()).expect_err(line);
            assert!(refusal.code == code && refusal.message.contains(says), "{line}: {refusal:?}");
        }
        assert_eq!(
            read(br#" {"version":1,"request":"ports"} "#),
            Ok(Request::Ports { port: None })
        );
    }

    #[test]
    fn a_code_of_a_later_version_is_another_one() {
        let refusal: Refusal =
            serde_json::from_str(r#"{"code":"on-fire","message":"hot"}"#).expect("reads");
        assert_eq!(refusal, Refusal::new(ErrorCode::Other, "hot"));
    }
}
