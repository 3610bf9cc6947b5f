//! Performs the requests of the control socket, and writes the answers.

use std::collections::BTreeMap;

use serde::Serialize;
use superpacket_bridge::fdb::{FdbFilter, MOST_LISTED, Station};
use superpacket_bridge::monitor::{MAX_SNAPLEN, MonitorSettings};
use superpacket_bridge::report::MdbReport;
use superpacket_bridge::settings::{
    NamedSettings, PortChange, PortSettings, SettingValue, SteeringSettings,
};
use superpacket_bridge::vlan::VlanRange;
use superpacket_port::SpecError;
use superpacket_port::features::Feature;

use super::Control;
use super::request::{Address, ControlError, ErrorCode, PROTOCOL, Reply, Request, ServedBy};
use crate::monitor::{MonitorReport, stream_to};
use crate::serve::Found;

/// Performs a request, and returns its answer or the takeover of its connection.
pub(super) fn answer(request: Request, control: &dyn Control) -> Found {
    perform(request, control).unwrap_or_else(|refusal| Found::Reply(refuse(refusal)))
}

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

/// Performs a request, by the function of `control` with its name.
fn perform(request: Request, control: &dyn Control) -> Result<Found, ControlError> {
    match request {
        Request::Version {} => value(ServedBy {
            protocol: PROTOCOL,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }),
        Request::Ports { port } => {
            value(only(control.ports(), port.as_deref(), |report| &report.port)?)
        }
        Request::Features { port } => {
            value(only(control.features(), port.as_deref(), |report| &report.port)?)
        }
        Request::Stats { port } => {
            value(only(control.stats(), port.as_deref(), |report| &report.port)?)
        }
        Request::SetFeature { port, feature, on, force } => {
            value(control.set_feature(&port, offload(&feature)?, on, force)?)
        }
        Request::AddPort { port } => {
            let spec = port
                .parse()
                .map_err(|error: SpecError| ControlError::new(ErrorCode::Refused, error))?;
            value(control.add_port(spec)?)
        }
        Request::SetPort { port, options, settings } => {
            value(control.set_port(&port, &port_change(options, settings)?)?)
        }
        Request::DelPort { port } => value(control.remove_port(&port)?),
        Request::Fdb { port, vlan, is_static, after, most } => {
            let after = after.map(|Address { mac, vlan }| station(&mac, vlan)).transpose()?;
            let filter = FdbFilter { port, vlan, is_static };
            value(control.fdb(&filter, after, most.unwrap_or(MOST_LISTED))?)
        }
        Request::AddFdb { port, mac, vlan, replace } => value(match replace {
            true => control.replace_static_entry(&port, station(&mac, vlan)?)?,
            false => control.add_static_entry(&port, station(&mac, vlan)?)?,
        }),
        Request::DelFdb { port, mac, vlan } => {
            value(control.delete_entry(&port, station(&mac, vlan)?)?)
        }
        Request::FlushFdb { port, vlan } => {
            value(control.flush_fdb(&FdbFilter { port, vlan, is_static: None })?)
        }
        Request::Vlan { port } => {
            let mut report = control.vlans();
            report.ports = only(report.ports, port.as_deref(), |port| &port.ifname)?;
            value(report)
        }
        Request::AddVlan { port, vlan, vlan_end, pvid, untagged } => {
            value(control.add_vlans(&port, &range(vlan, vlan_end, pvid, untagged)?)?)
        }
        Request::DelVlan { port, vlan, vlan_end } => {
            value(control.delete_vlans(&port, &range(vlan, vlan_end, false, false)?)?)
        }
        Request::Mdb { port } => value(mdb(control, port.as_deref())?),
        Request::Rps { port } => {
            value(only(control.rps(), port.as_deref(), |report| &report.port)?)
        }
        Request::SetRps { port, queue, change } => value(control.set_rps(&port, queue, &change)?),
        Request::Steering {} => value(control.steering()),
        Request::SetSteering { settings } => {
            check_names::<SteeringSettings>(&settings)?;
            value(control.set_steering(&settings)?)
        }
        Request::Monitor { ports, direction, snaplen, count } => {
            let snaplen = snaplen.unwrap_or(MAX_SNAPLEN);
            let monitor = control.monitor(&MonitorSettings { ports, direction, snaplen, count })?;
            let text = reply(&Reply::Ok(MonitorReport::new(&monitor)));
            Ok(Found::HandOver(Box::new(move |socket| stream_to(monitor, socket, text))))
        }
    }
}

/// Returns the answer with this report.
fn value(report: impl Serialize) -> Result<Found, ControlError> {
    let value = serde_json::to_value(report)
        .map_err(|error| ControlError::new(ErrorCode::Refused, error))?;
    Ok(Found::Reply(reply(&Reply::Ok(value))))
}

/// Returns an error if one of the names is unknown.
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

/// Returns the change of a `set-port` request, if its settings are known and it has any change.
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

/// Returns the memberships in multicast groups of all ports, or of one.
fn mdb(control: &dyn Control, port: Option<&str>) -> Result<MdbReport, ControlError> {
    let mut report = control.mdb();
    if let Some(port) = port {
        only(control.ports(), Some(port), |known| &known.port)?;
        report.mdb.retain(|entry| entry.port == port);
        report.router.retain(|router| router.port == port);
    }
    Ok(report)
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

/// Returns all reports, or only the one of `port`; `name` returns the port of a report.
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
