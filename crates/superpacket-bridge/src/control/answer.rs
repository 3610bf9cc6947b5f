//! Performs the requests of the control socket, and writes the answers.

use serde::Serialize;
use superpacket_port::SpecError;
use superpacket_port::features::Feature;

use super::request::{Address, ErrorCode, PROTOCOL, Refusal, Reply, Request, ServedBy};
use super::{Control, RpsChange};
use crate::fdb::{FdbFilter, MOST_LISTED, Station};
use crate::monitor::{MAX_SNAPLEN, MonitorSettings};
use crate::serve::Found;
use crate::settings::{Forwarding, PortChange, PortSettings, SteeringSettings, TooBig};
use crate::vlan::VlanRange;

/// Performs a request, and returns its answer or the takeover of its connection.
pub(super) fn answer(request: Request, control: &dyn Control) -> Found {
    perform(request, control).unwrap_or_else(|refusal| Found::Reply(refuse(refusal)))
}

/// Returns the answer line for a refused request.
pub(super) fn refuse(refusal: Refusal) -> Vec<u8> {
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

fn perform(request: Request, control: &dyn Control) -> Result<Found, Refusal> {
    fn value(report: impl Serialize) -> Result<Found, Refusal> {
        let value = serde_json::to_value(report)
            .map_err(|error| Refusal::new(ErrorCode::Refused, error))?;
        Ok(Found::Reply(reply(&Reply::Ok(value))))
    }
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
            let known: Feature = feature.parse().map_err(|_| {
                let names = Feature::ALL.map(Feature::name).join(", ");
                Refusal::new(
                    ErrorCode::UnknownName,
                    format_args!("{feature:?} is no offload: there are {names}"),
                )
            })?;
            value(control.set_feature(&port, known, on, force)?)
        }
        Request::SetLimit { port, name, value: limit } => {
            value(control.set_limit(&port, &name, limit)?)
        }
        Request::SetTooBig { port, what } => {
            let known = TooBig::NAMES.into_iter().find(|(name, _)| *name == what);
            let (_, known) = known.ok_or_else(|| {
                let names = TooBig::NAMES.map(|(name, _)| name).join(", ");
                Refusal::new(
                    ErrorCode::UnknownName,
                    format_args!(
                        "{what:?} is not what can be done with a packet that is too long: {names}"
                    ),
                )
            })?;
            value(control.set_too_big(&port, known)?)
        }
        Request::SetAggregation { port, name, value: word } => {
            if !PortSettings::AGGREGATION.contains(&name.as_str()) {
                let names = PortSettings::AGGREGATION.join(", ");
                return Err(Refusal::new(
                    ErrorCode::UnknownName,
                    format_args!("{name:?} is not said of aggregation: there are {names}"),
                ));
            }
            value(control.set_aggregation(&port, &name, &word)?)
        }
        Request::SetForwarding { port, name, on } => {
            if !Forwarding::NAMES.contains(&name.as_str()) {
                let names = Forwarding::NAMES.join(", ");
                return Err(Refusal::new(
                    ErrorCode::UnknownName,
                    format_args!("{name:?} is no switch of forwarding: there are {names}"),
                ));
            }
            value(control.set_forwarding(&port, &name, on)?)
        }
        Request::AddPort { port } => {
            let spec =
                port.parse().map_err(|error: SpecError| Refusal::new(ErrorCode::Refused, error))?;
            value(control.add_port(spec)?)
        }
        Request::SetPort { port, options, settings } => {
            if let Some(name) =
                settings.keys().find(|name| !PortSettings::names().any(|known| known == *name))
            {
                let names = PortSettings::names().collect::<Vec<_>>().join(", ");
                return Err(Refusal::new(
                    ErrorCode::UnknownName,
                    format_args!("{name:?} is no setting of a port: there are {names}"),
                ));
            }
            if options.is_empty() && settings.is_empty() {
                return Err(Refusal::new(
                    ErrorCode::Malformed,
                    "the request cannot be read: it takes options, settings, or both",
                ));
            }
            value(control.set_port(&port, &PortChange { options, settings })?)
        }
        Request::DelPort { port } => value(control.remove_port(&port)?),
        Request::Fdb { port, vlan, is_static, after, most } => {
            let after = after.map(|Address { mac, vlan }| station(&mac, vlan)).transpose()?;
            value(control.fdb(
                &FdbFilter { port, vlan, is_static },
                after,
                most.unwrap_or(MOST_LISTED),
            )?)
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
        Request::Mdb { port } => {
            let mut report = control.mdb();
            if let Some(port) = &port {
                only(control.ports(), Some(port), |known| &known.port)?;
                report.mdb.retain(|entry| entry.port == *port);
                report.router.retain(|router| router.port == *port);
            }
            value(report)
        }
        Request::Rps { port } => {
            value(only(control.rps(), port.as_deref(), |report| &report.port)?)
        }
        Request::SetRps { port, queue, mask, cpu_list, auto, flow_count, in_place_below } => {
            let change =
                RpsChange::from_request(queue, mask, cpu_list, auto, flow_count, in_place_below)?;
            value(control.set_rps(&port, queue, &change)?)
        }
        Request::Steering {} => value(control.steering()),
        Request::SetSteering { name, value: text } => {
            if !SteeringSettings::NAMES.contains(&name.as_str()) {
                let names = SteeringSettings::NAMES.join(", ");
                return Err(Refusal::new(
                    ErrorCode::UnknownName,
                    format_args!("{name:?} is no setting of steering: there are {names}"),
                ));
            }
            value(control.set_steering(&name, &text)?)
        }
        Request::Monitor { ports, direction, snaplen, count } => {
            let settings = MonitorSettings {
                ports,
                direction,
                snaplen: snaplen.unwrap_or(MAX_SNAPLEN),
                count,
            };
            let monitor = control.monitor(&settings)?;
            let text = reply(&Reply::Ok(monitor.report()));
            Ok(Found::HandOver(Box::new(move |socket| monitor.stream_to(socket, text))))
        }
    }
}

fn range(first: u16, last: Option<u16>, pvid: bool, untagged: bool) -> Result<VlanRange, Refusal> {
    VlanRange::new(first, last.unwrap_or(first), pvid, untagged)
        .map_err(|problem| Refusal::new(ErrorCode::Refused, problem))
}

fn station(mac: &str, vlan: Option<u16>) -> Result<Station, Refusal> {
    Station::parse(mac, vlan).map_err(|problem| Refusal::new(ErrorCode::Refused, problem))
}

/// Returns all reports, or only the one of `port`; `name` returns the port of a report.
fn only<T>(
    mut reports: Vec<T>,
    port: Option<&str>,
    name: impl Fn(&T) -> &str,
) -> Result<Vec<T>, Refusal> {
    if let Some(port) = port {
        if !reports.iter().any(|report| name(report) == port) {
            return Err(Refusal::unknown_port(port, reports.iter().map(&name)));
        }
        reports.retain(|report| name(report) == port);
    }
    Ok(reports)
}
