//! Performs the requests of the control socket, and writes the answers.

use std::collections::BTreeMap;

use serde::Serialize;
use superpacket_bridge::fdb::{FdbFilter, MOST_LISTED, Station};
use superpacket_bridge::monitor::{MAX_SNAPLEN, MonitorSettings};
use superpacket_bridge::report::{MdbReport, PortRps};
use superpacket_bridge::settings::{
    NamedSettings, PortChange, PortSettings, SettingValue, SteeringSettings, possible_cpus,
};
use superpacket_bridge::vlan::VlanRange;
use superpacket_bridge::{Bridge, BridgeError};
use superpacket_port::SpecError;
use superpacket_port::features::Feature;
use superpacket_steer::CpuMask;

use super::RpsChange;
use super::request::{Address, ControlError, ErrorCode, PROTOCOL, Reply, Request, ServedBy};
use crate::monitor::{MonitorReport, stream_to};
use crate::serve::Found;

/// Returns the answer line for a refused request.
pub(super) fn refuse(refusal: ControlError) -> Vec<u8> {
    reply(&Reply::<()>::Error(refusal))
}

/// Returns a reply as a line of JSON.
fn reply<T: Serialize>(reply: &Reply<T>) -> Vec<u8> {
    // Reports are plain structures with string keys, so serialization does not fail.
    let mut line = serde_json::to_vec(reply).unwrap_or_else(|_| {
        br#"{"error":{"code":"refused","message":"the answer cannot be written as JSON"}}"#.to_vec()
    });
    line.push(b'\n');
    line
}

/// Performs a request. Returns its answer, or for a monitor the function that takes over the
/// client's connection.
pub(super) fn perform(request: Request, bridge: &Bridge) -> Result<Found, ControlError> {
    match request {
        Request::Version {} => value(ServedBy {
            protocol: PROTOCOL,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }),
        Request::Ports { port } => {
            value(only(bridge.ports(), port.as_deref(), |report| &report.port)?)
        }
        Request::Features { port } => {
            value(only(bridge.features(), port.as_deref(), |report| &report.port)?)
        }
        Request::Stats { port } => {
            value(only(bridge.stats(), port.as_deref(), |report| &report.port)?)
        }
        Request::SetFeature { port, feature, on, force } => {
            value(bridge.set_feature(&port, offload(&feature)?, on, force)?)
        }
        Request::AddPort { port } => {
            let spec = port
                .parse()
                .map_err(|error: SpecError| ControlError::new(ErrorCode::Refused, error))?;
            value(bridge.add_port(PortSettings::new(spec))?)
        }
        Request::SetPort { port, options, settings } => {
            value(bridge.set_port(&port, &port_change(options, settings)?)?)
        }
        Request::DelPort { port } => value(bridge.remove_port(&port)?),
        Request::Fdb { port, vlan, is_static, after, most } => {
            let after = after.map(|Address { mac, vlan }| station(&mac, vlan)).transpose()?;
            let filter = FdbFilter { port, vlan, is_static };
            value(bridge.fdb(&filter, after, most.unwrap_or(MOST_LISTED))?)
        }
        Request::AddFdb { port, mac, vlan, replace } => value(match replace {
            true => bridge.replace_static_entry(&port, station(&mac, vlan)?)?,
            false => bridge.add_static_entry(&port, station(&mac, vlan)?)?,
        }),
        Request::DelFdb { port, mac, vlan } => {
            value(bridge.delete_entry(&port, station(&mac, vlan)?)?)
        }
        Request::FlushFdb { port, vlan } => {
            value(bridge.flush_fdb(&FdbFilter { port, vlan, is_static: None })?)
        }
        Request::Vlan { port } => {
            let mut report = bridge.vlans();
            report.ports = only(report.ports, port.as_deref(), |port| &port.ifname)?;
            value(report)
        }
        Request::AddVlan { port, vlan, vlan_end, pvid, untagged } => {
            value(bridge.add_vlans(&port, &range(vlan, vlan_end, pvid, untagged)?)?)
        }
        Request::DelVlan { port, vlan, vlan_end } => {
            value(bridge.delete_vlans(&port, &range(vlan, vlan_end, false, false)?)?)
        }
        Request::Mdb { port } => {
            let mut report = bridge.mdb();
            if let Some(port) = &port {
                only(bridge.ports(), Some(port), |known| &known.port)?;
                keep_port(&mut report, port);
            }
            value(report)
        }
        Request::Rps { port } => value(only(bridge.rps(), port.as_deref(), |report| &report.port)?),
        Request::SetRps { port, queue, change } => value(set_rps(bridge, &port, queue, &change)?),
        Request::Steering {} => value(bridge.steering()),
        Request::SetSteering { settings } => {
            check_names::<SteeringSettings>(&settings)?;
            value(bridge.change_steering_settings(|steering| {
                let mut named = settings.iter();
                named.try_for_each(|(name, value)| steering.set(name, value.clone()))
            })?)
        }
        Request::Monitor { ports, direction, snaplen, count } => {
            let snaplen = snaplen.unwrap_or(MAX_SNAPLEN);
            let monitor = bridge.monitor(&MonitorSettings { ports, direction, snaplen, count })?;
            let text = reply(&Reply::Ok(MonitorReport::new(&monitor)));
            Ok(Found::HandOver(Box::new(move |socket| stream_to(monitor, socket, text))))
        }
    }
}

impl From<BridgeError> for ControlError {
    fn from(error: BridgeError) -> Self {
        let code = match error {
            BridgeError::NoSuchPort { .. } => ErrorCode::UnknownPort,
            _ => ErrorCode::Refused,
        };
        ControlError::new(code, error)
    }
}

/// Returns the answer to a successful request, with this value as JSON.
fn value(report: impl Serialize) -> Result<Found, ControlError> {
    let value = serde_json::to_value(report)
        .map_err(|error| ControlError::new(ErrorCode::Refused, error))?;
    Ok(Found::Reply(reply(&Reply::Ok(value))))
}

/// Returns an error if one of the settings has an unknown name.
fn check_names<S: NamedSettings>(
    settings: &BTreeMap<String, SettingValue>,
) -> Result<(), ControlError> {
    let known = settings.keys().try_for_each(|name| S::setting(name).map(drop));
    known.map_err(|problem| ControlError::new(ErrorCode::UnknownName, problem))
}

fn offload(name: &str) -> Result<Feature, ControlError> {
    name.parse().map_err(|_| {
        let known = Feature::ALL.map(Feature::name).join(", ");
        let problem = format_args!("{name:?} is no offload: there are {known}");
        ControlError::new(ErrorCode::UnknownName, problem)
    })
}

/// Returns the change that a `set-port` request asks for. Fails if a setting is unknown, or if the
/// request changes nothing.
fn port_change(
    options: BTreeMap<String, Option<String>>,
    settings: BTreeMap<String, SettingValue>,
) -> Result<PortChange, ControlError> {
    check_names::<PortSettings>(&settings)?;
    if options.is_empty() && settings.is_empty() {
        return Err(ControlError::new(
            ErrorCode::Malformed,
            "the request cannot be read: it takes options, settings, or both",
        ));
    }
    Ok(PortChange { options, settings })
}

/// Changes the steering of a receive queue's packets; without `queue`, of all of the port's queues.
fn set_rps(
    bridge: &Bridge,
    port: &str,
    queue: Option<u16>,
    change: &RpsChange,
) -> Result<PortRps, ControlError> {
    let wrong = |problem: String| BridgeError::Mask { port: port.into(), problem };
    let mask = match change {
        RpsChange::Mask(text) => {
            CpuMask::parse(text, possible_cpus()).map_err(|error| wrong(error.to_string()))?
        }
        RpsChange::CpuList(text) => {
            CpuMask::parse_list(text, possible_cpus()).map_err(|error| wrong(error.to_string()))?
        }
        RpsChange::Auto => return Ok(bridge.set_rps_auto(port, queue)?),
        RpsChange::FlowCount(count) => return Ok(bridge.set_rps_flow_count(port, queue, *count)?),
    };
    Ok(bridge.set_rps_cpus(port, queue, &mask)?)
}

/// Removes the entries of all ports but `port` from a report of multicast memberships.
pub(super) fn keep_port(report: &mut MdbReport, port: &str) {
    report.mdb.retain(|entry| entry.port == port);
    report.router.retain(|router| router.port == port);
}

fn range(
    first: u16,
    last: Option<u16>,
    pvid: bool,
    untagged: bool,
) -> Result<VlanRange, ControlError> {
    VlanRange::new(first, last.unwrap_or(first), pvid, untagged)
        .map_err(|problem| ControlError::new(ErrorCode::Refused, problem))
}

fn station(mac: &str, vlan: Option<u16>) -> Result<Station, ControlError> {
    Station::parse(mac, vlan).map_err(|problem| ControlError::new(ErrorCode::Refused, problem))
}

/// Returns all reports, or only that of `port`, if it is given. `name` returns the port's name in a
/// report.
fn only<T>(
    mut reports: Vec<T>,
    port: Option<&str>,
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, ControlError> {
    if let Some(port) = port {
        if !reports.iter().any(|report| name(report) == port) {
            return Err(ControlError::unknown_port(port, reports.iter().map(&name)));
        }
        reports.retain(|report| name(report) == port);
    }
    Ok(reports)
}
