//! The messages of the control socket: requests, and errors with their codes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use superpacket_bridge::monitor::MonitorDirection;
use superpacket_bridge::settings::SettingValue;

use super::RpsChange;
use super::unique::UniqueObject;

/// The version of the protocol. It changes if clients of the previous version would misunderstand
/// the bridge, and not for additions.
pub const PROTOCOL: u32 = 2;

/// Maximum length of a request in bytes, with its line feed.
pub const MAX_REQUEST: usize = 4096;

/// A request. Example in JSON:
/// `{"request":"set-feature","port":"packet:eth0","feature":"gro","on":false}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the versions of the protocol and of the program; see [`ServedBy`].
    Version {},
    /// Asks for a summary of each port.
    Ports {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Asks for the offloads of each port.
    Features {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Asks for the counters of each port.
    Stats {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Switches an offload of a port.
    SetFeature {
        /// The port's name.
        port: String,
        /// The offload's name in ethtool, long or short.
        feature: String,
        /// `true` to switch it on, `false` to switch it off.
        on: bool,
        /// Whether `large-receive-offload` is allowed although packets are forwarded.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
    /// Adds and opens a port.
    AddPort {
        /// The port string, optionally after a name: `left=packet:eth1`.
        port: String,
    },
    /// Changes settings of a port, and options in its port string (`tap:NAME?option=value`): all of
    /// them, or none if one is refused.
    SetPort {
        /// The port's name.
        port: String,
        /// New values of options of the port string; `null` removes an option.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        options: BTreeMap<String, Option<String>>,
        /// New values of settings, by the names in
        /// [`PortSettings::SETTINGS`](superpacket_bridge::settings::NamedSettings::SETTINGS).
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        settings: BTreeMap<String, SettingValue>,
    },
    /// Closes and removes a port.
    DelPort {
        /// The port's name.
        port: String,
    },
    /// Asks for entries of the address table, sorted by VLAN, then by address.
    Fdb {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// The VLAN, or 0 for frames without a tag; without it, all VLANs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
        /// `true` for static entries only, `false` for learned entries only; without it, both.
        #[serde(rename = "static", default, skip_serializing_if = "Option::is_none")]
        is_static: Option<bool>,
        /// Lists only entries after this one, which is the last entry of the previous answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Address>,
        /// Maximum number of entries in the answer; the default and the upper limit are
        /// [`MOST_LISTED`](superpacket_bridge::fdb::MOST_LISTED).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<usize>,
    },
    /// Adds a static entry to the address table.
    AddFdb {
        /// The port's name.
        port: String,
        /// The hardware address, as `52:54:00:12:34:56`.
        mac: String,
        /// The VLAN, 1 to 4094; `None` stands for frames without a tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
        /// Whether to replace the address's entry, at this port or another, if there is one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replace: bool,
    },
    /// Deletes a static or learned entry of the address table.
    DelFdb {
        /// The port's name.
        port: String,
        /// The hardware address, as `52:54:00:12:34:56`.
        mac: String,
        /// The VLAN, 1 to 4094; `None` stands for frames without a tag.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
    /// Deletes learned addresses.
    FlushFdb {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// The VLAN, or 0 for frames without a tag; without it, all VLANs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<u16>,
    },
    /// Asks for the VLANs of each port.
    Vlan {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Adds a port to VLANs, or changes its flags in them.
    AddVlan {
        /// The port's name.
        port: String,
        /// The VLAN, or the first VLAN of a range.
        vlan: u16,
        /// The last VLAN of a range.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan_end: Option<u16>,
        /// Whether received frames without a tag belong to this VLAN.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pvid: bool,
        /// Whether the port sends frames of these VLANs without a tag.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        untagged: bool,
    },
    /// Removes a port from VLANs.
    DelVlan {
        /// The port's name.
        port: String,
        /// The VLAN, or the first VLAN of a range.
        vlan: u16,
        /// The last VLAN of a range.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan_end: Option<u16>,
    },
    /// Asks for the ports' memberships in IP multicast groups.
    Mdb {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Asks for the steering of each port's packets.
    Rps {
        /// The port's name; without it, all ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Changes the steering of a port's packets.
    SetRps {
        /// The port's name.
        port: String,
        /// The receive queue; without it, all queues of the port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<u16>,
        /// The change of the steering settings.
        change: RpsChange,
    },
    /// Asks for the steering settings that apply to all ports, and for the workers.
    Steering {},
    /// Changes steering settings that apply to all ports: all of them, or none if one is refused.
    SetSteering {
        /// New values, by the names in
        /// [`SteeringSettings::SETTINGS`](superpacket_bridge::settings::NamedSettings::SETTINGS).
        settings: BTreeMap<String, SettingValue>,
    },
    /// Starts a monitor, which copies packets that ports receive and send. A pcapng stream follows
    /// the answer, and the connection takes no more requests.
    Monitor {
        /// The names of the ports; if empty, all ports.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<String>,
        /// Whether received packets (`rx`), sent packets (`tx`) or `both` are copied.
        #[serde(default)]
        direction: MonitorDirection,
        /// Maximum number of bytes copied per packet; the default and the upper limit are
        /// [`MAX_SNAPLEN`](superpacket_bridge::monitor::MAX_SNAPLEN).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snaplen: Option<u32>,
        /// Number of packets after which the monitor ends; without it, the client ends it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
    },
}

/// The key of an entry in the address table: its hardware address and VLAN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// The hardware address, as `52:54:00:12:34:56`.
    pub mac: String,
    /// The VLAN, 1 to 4094; `None` stands for frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
}

impl Request {
    /// Returns whether the request only reads the bridge's state, so that it is answered at once
    /// and not queued.
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

    /// The names of all requests, in the order of the variants.
    pub const NAMES: [&'static str; 21] = [
        "version",
        "ports",
        "features",
        "stats",
        "set-feature",
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

/// The version of a running bridge: the answer to the request `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedBy {
    /// The version of the protocol.
    pub protocol: u32,
    /// The version of the program.
    pub program: String,
    /// The bridge's process ID.
    pub pid: u32,
}

/// The reason why a request was refused, as a code that programs can evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The request is not a JSON object, or a field is wrong or missing.
    Malformed,
    /// The bridge knows no request of this name.
    UnknownRequest,
    /// The request is for another version of the protocol.
    UnknownVersion,
    /// The bridge has no port of this name.
    UnknownPort,
    /// The request contains an unknown name of an offload or a setting.
    UnknownName,
    /// The bridge refuses the request; the message gives the reason.
    Refused,
    /// The client's user is neither root nor the user that the bridge runs as.
    Forbidden,
    /// The request is longer than [`MAX_REQUEST`].
    TooLong,
    /// The client did not send a complete request in time.
    TooSlow,
    /// The server is overloaded: this connection had been idle longest and was closed to make room
    /// for a new one, or too many requests are queued behind one that takes long.
    Busy,
    /// The bridge panicked, which is a bug. It may have performed a part of the request.
    Internal,
    /// A code of a later version, unknown to this one.
    #[serde(other)]
    Other,
}

/// The error with which a bridge refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ControlError {
    /// The reason as a code that programs can evaluate.
    pub code: ErrorCode,
    /// The reason as a message for users.
    pub message: String,
}

impl ControlError {
    /// Creates an error with this code and message.
    pub fn new(code: ErrorCode, message: impl fmt::Display) -> Self {
        ControlError { code, message: message.to_string() }
    }

    /// Creates the error for an unknown port; the message lists the `known` ports.
    pub fn unknown_port<'a>(port: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        ControlError::new(
            ErrorCode::UnknownPort,
            format_args!("there is no port {port:?}: there are {known}"),
        )
    }
}

/// An answer in JSON: `{"ok":...}` or `{"error":...}`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply<T> {
    Ok(T),
    Error(ControlError),
}

/// Parses a line with a request. In addition to the request's own fields, it may have the
/// protocol's `version`.
///
/// # Errors
/// [`ControlError`] with the code [`Malformed`](ErrorCode::Malformed),
/// [`UnknownVersion`](ErrorCode::UnknownVersion) or
/// [`UnknownRequest`](ErrorCode::UnknownRequest).
pub(super) fn read(line: &[u8]) -> Result<Request, ControlError> {
    let malformed = |problem: &dyn fmt::Display| {
        ControlError::new(
            ErrorCode::Malformed,
            format_args!("the request cannot be read: {problem}"),
        )
    };
    let UniqueObject(mut object) =
        serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    if let Some(version) = object.remove("version")
        && version != PROTOCOL
    {
        return Err(ControlError::new(
            ErrorCode::UnknownVersion,
            format_args!("the bridge speaks version {PROTOCOL} of the protocol, not {version}"),
        ));
    }
    match object.get("request").map(serde_json::Value::as_str) {
        Some(Some(name)) if Request::NAMES.contains(&name) => {}
        Some(Some(name)) => {
            let known = Request::NAMES.join(", ");
            return Err(ControlError::new(
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
    fn every_request_reads_back_what_was_written() {
        let port = || "packet:eth0".to_owned();
        let requests = [
            Request::Version {},
            Request::Ports { port: None },
            Request::Features { port: Some(port()) },
            Request::Stats { port: None },
            Request::SetFeature { port: port(), feature: "gro".into(), on: true, force: false },
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
                change: RpsChange::Mask("1,,5".into()),
            },
            Request::Steering {},
            Request::SetSteering {
                settings: [("dev_weight".into(), SettingValue::Number(64))].into(),
            },
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
    fn an_invalid_request_is_refused_with_the_reason() {
        for (line, code, says) in [
            ("", ErrorCode::Malformed, "EOF"),
            ("[]", ErrorCode::Malformed, "expected an object"),
            (
                r#"{"request":"ports","port":"a","port":"b"}"#,
                ErrorCode::Malformed,
                "the key \"port\" occurs twice at line 1 column",
            ),
            (
                r#"{"request":"ports","request":"del-port","port":"a"}"#,
                ErrorCode::Malformed,
                "the key \"request\" occurs twice",
            ),
            (
                r#"{"request":"ports","version":2,"version":1}"#,
                ErrorCode::Malformed,
                "the key \"version\" occurs twice",
            ),
            (
                r#"{"request":"set-port","port":"left","options":{"ring":"4m","ring":null}}"#,
                ErrorCode::Malformed,
                "the key \"ring\" occurs twice",
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
                r#"{"request":"set-port","port":"packet:a","settings":{"gro_max_size":-1}}"#,
                ErrorCode::Malformed,
                "expected a number, a boolean or a word",
            ),
            (
                r#"{"request":"set-port","port":"left","settings":{"isolated":null}}"#,
                ErrorCode::Malformed,
                "expected a number, a boolean or a word",
            ),
            (r#"{"request":"ports","version":1}"#, ErrorCode::UnknownVersion, "not 1"),
            (
                r#"{"request":"set-rps","port":"packet:a","queue":70000,"change":"auto"}"#,
                ErrorCode::Malformed,
                "70000",
            ),
            (
                r#"{"request":"set-rps","port":"packet:a","change":{"mask":"1","flow_count":2}}"#,
                ErrorCode::Malformed,
                "expected map with a single key",
            ),
        ] {
            let refusal = read(line.as_bytes()).expect_err(line);
            assert!(refusal.code == code && refusal.message.contains(says), "{line}: {refusal:?}");
        }
        assert_eq!(
            read(br#" {"version":2,"request":"ports"} "#),
            Ok(Request::Ports { port: None })
        );
    }

    #[test]
    fn an_unknown_error_code_is_read_as_other() {
        let refusal: ControlError =
            serde_json::from_str(r#"{"code":"on-fire","message":"hot"}"#).expect("reads");
        assert_eq!(refusal, ControlError::new(ErrorCode::Other, "hot"));
    }
}
