//! Requests of the control socket, performed by a [`Bridge`].

use std::collections::BTreeMap;

use superpacket_bridge::fdb::{FdbEntry, FdbFilter, FdbPage, Station};
use superpacket_bridge::monitor::{Monitor, MonitorSettings};
use superpacket_bridge::report::{
    MdbReport, PortFeatures, PortReport, PortRps, PortStats, SteeringReport,
};
use superpacket_bridge::settings::{
    NamedSettings, PortChange, PortSettings, SettingValue, possible_cpus,
};
use superpacket_bridge::vlan::{PortVlanReport, VlanRange, VlanReport};
use superpacket_bridge::{Bridge, BridgeError};
use superpacket_port::PortSpec;
use superpacket_port::features::Feature;
use superpacket_steer::CpuMask;

use super::{Control, ControlError, ErrorCode, RpsChange};

impl From<BridgeError> for ControlError {
    fn from(error: BridgeError) -> Self {
        let code = match error {
            BridgeError::NoSuchPort { .. } => ErrorCode::UnknownPort,
            _ => ErrorCode::Refused,
        };
        ControlError::new(code, error)
    }
}

impl Control for Bridge {
    fn ports(&self) -> Vec<PortReport> {
        Bridge::ports(self)
    }

    fn features(&self) -> Vec<PortFeatures> {
        Bridge::features(self)
    }

    fn stats(&self) -> Vec<PortStats> {
        Bridge::stats(self)
    }

    fn set_feature(
        &self,
        port: &str,
        feature: Feature,
        on: bool,
        force: bool,
    ) -> Result<PortFeatures, ControlError> {
        Ok(Bridge::set_feature(self, port, feature, on, force)?)
    }

    fn add_port(&self, port: PortSpec) -> Result<PortReport, ControlError> {
        Ok(Bridge::add_port(self, PortSettings::new(port))?)
    }

    fn set_port(&self, port: &str, change: &PortChange) -> Result<PortReport, ControlError> {
        Ok(Bridge::set_port(self, port, change)?)
    }

    fn remove_port(&self, port: &str) -> Result<PortReport, ControlError> {
        Ok(Bridge::remove_port(self, port)?)
    }

    fn fdb(
        &self,
        filter: &FdbFilter,
        after: Option<Station>,
        most: usize,
    ) -> Result<FdbPage, ControlError> {
        Ok(Bridge::fdb(self, filter, after, most)?)
    }

    fn add_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError> {
        Ok(Bridge::add_static_entry(self, port, station)?)
    }

    fn replace_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError> {
        Ok(Bridge::replace_static_entry(self, port, station)?)
    }

    fn delete_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError> {
        Ok(Bridge::delete_entry(self, port, station)?)
    }

    fn flush_fdb(&self, filter: &FdbFilter) -> Result<usize, ControlError> {
        Ok(Bridge::flush_fdb(self, filter)?)
    }

    fn vlans(&self) -> VlanReport {
        Bridge::vlans(self)
    }

    fn add_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, ControlError> {
        Ok(Bridge::add_vlans(self, port, range)?)
    }

    fn delete_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, ControlError> {
        Ok(Bridge::delete_vlans(self, port, range)?)
    }

    fn mdb(&self) -> MdbReport {
        Bridge::mdb(self)
    }

    fn rps(&self) -> Vec<PortRps> {
        Bridge::rps(self)
    }

    fn set_rps(
        &self,
        port: &str,
        queue: Option<u16>,
        change: &RpsChange,
    ) -> Result<PortRps, ControlError> {
        let wrong = |problem: &dyn std::fmt::Display| BridgeError::Mask {
            port: port.into(),
            problem: problem.to_string(),
        };
        Ok(match change {
            RpsChange::Mask(text) => {
                let mask = CpuMask::parse(text, possible_cpus()).map_err(|error| wrong(&error))?;
                self.set_rps_cpus(port, queue, &mask)?
            }
            RpsChange::CpuList(text) => {
                let mask =
                    CpuMask::parse_list(text, possible_cpus()).map_err(|error| wrong(&error))?;
                self.set_rps_cpus(port, queue, &mask)?
            }
            RpsChange::Auto => self.set_rps_auto(port, queue)?,
            RpsChange::FlowCount(count) => self.set_rps_flow_count(port, queue, *count)?,
        })
    }

    fn steering(&self) -> SteeringReport {
        Bridge::steering(self)
    }

    fn set_steering(
        &self,
        settings: &BTreeMap<String, SettingValue>,
    ) -> Result<SteeringReport, ControlError> {
        Ok(self.change_steering_settings(|steering| {
            let mut named = settings.iter();
            named.try_for_each(|(name, value)| steering.set(name, value.clone()))
        })?)
    }

    fn monitor(&self, settings: &MonitorSettings) -> Result<Monitor, ControlError> {
        Ok(Bridge::monitor(self, settings)?)
    }
}
