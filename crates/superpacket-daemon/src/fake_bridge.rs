//! A bridge without packets, for tests of the control socket and of the metrics.

use std::collections::BTreeMap;
use std::sync::Mutex;

use superpacket_bridge::fdb::{FdbEntry, FdbFilter, FdbPage, Station};
use superpacket_bridge::monitor::{Monitor, MonitorSettings};
use superpacket_bridge::report::{
    FeatureReport, MdbEntry, MdbReport, MdbRouter, PortFeatures, PortReport, PortRps, PortStats,
    QueueRps, QueueStats, SteeringReport, WorkerReport,
};
use superpacket_bridge::settings::{
    InPlace, NamedSettings, PortChange, PortSettings, SettingValue, SteeringSettings,
};
use superpacket_bridge::vlan::{PortVlanReport, VlanProtocol, VlanRange, VlanReport};
use superpacket_port::PortSpec;
use superpacket_port::features::{Feature, FeatureSet, resolve};
use superpacket_steer::CpuMask;

use crate::control::{Control, ControlError, ErrorCode, RpsChange};

/// A bridge that stores its settings and reports fixed counters. It starts with two ports, of
/// which `packet:a` does not support TSO.
#[derive(Debug)]
pub(crate) struct FakeBridge {
    /// The ports' settings. If the lock is poisoned, every request about ports panics.
    pub(crate) ports: Mutex<Vec<PortSettings>>,
    steering: Mutex<SteeringSettings>,
    /// A lock that `set_port` takes to change options. A test holds it to make `set_port` slow, and
    /// poisons it to make `set_port` panic.
    pub(crate) opening: Mutex<()>,
}

impl FakeBridge {
    pub(crate) fn new() -> Self {
        let ports =
            ["packet:a", "tap:b"].map(|port| PortSettings::new(port.parse().expect("a port")));
        FakeBridge {
            ports: Mutex::new(ports.into()),
            steering: Mutex::default(),
            opening: Mutex::default(),
        }
    }

    /// Changes the settings of a port, and returns its report.
    fn change<T>(
        &self,
        port: &str,
        change: impl FnOnce(&mut PortSettings) -> Result<(), ControlError>,
        report: fn(&PortSettings) -> T,
    ) -> Result<T, ControlError> {
        let mut ports = self.ports.lock().expect("no panic");
        let names: Vec<String> = ports.iter().map(|port| port.port.name().to_owned()).collect();
        let found = ports.iter_mut().find(|known| known.port.name() == port);
        let found = found
            .ok_or_else(|| ControlError::unknown_port(port, names.iter().map(String::as_str)))?;
        change(found)?;
        Ok(report(found))
    }

    /// Returns a report of each port.
    fn each<T>(&self, report: fn(&PortSettings) -> T) -> Vec<T> {
        self.ports.lock().expect("no panic").iter().map(report).collect()
    }
}

fn port(settings: &PortSettings) -> PortReport {
    PortReport {
        port: settings.port.name().to_owned(),
        string: settings.port.string().to_owned(),
        state: "up".into(),
        error: None,
        mtu: 1500,
        hardware_address: Some("02:00:00:00:00:01".into()),
        queues: 1,
        reopened: 2,
        addresses: 3,
        settings: settings.values(),
    }
}

fn features(settings: &PortSettings) -> PortFeatures {
    let supported = if settings.port.device() == "a" {
        FeatureSet::all().without(Feature::TcpSegmentationOffload)
    } else {
        FeatureSet::all()
    };
    let resolved = resolve(settings.features, supported);
    let report = |feature: Feature| FeatureReport {
        feature: feature.name().into(),
        requested: resolved.requested.contains(feature),
        active: resolved.active.contains(feature),
        reason: resolved.why_inactive(feature).map(|reason| reason.to_string()),
    };
    PortFeatures {
        port: settings.port.name().to_owned(),
        features: Feature::ALL.map(report).into(),
        segmentation: None,
    }
}

fn stats(settings: &PortSettings) -> PortStats {
    let drops = BTreeMap::from([("too_long".to_owned(), 5), ("table \"full\"".to_owned(), 6)]);
    let reasons = BTreeMap::from([("sequence".to_owned(), 4)]);
    PortStats {
        port: settings.port.name().to_owned(),
        rx_packets: 7,
        rx_bytes: 8000,
        merged: 9,
        lro_no_desc: 3,
        tx_full: 12,
        tx_refused: 13,
        drops,
        reasons,
        rx_queues: vec![QueueStats { queue: 0, packets: 7, bytes: 8000, drops: Some(2) }],
        tx_queues: vec![QueueStats { queue: 3, packets: 1, bytes: 60, drops: None }],
        ..PortStats::default()
    }
}

impl Control for FakeBridge {
    fn ports(&self) -> Vec<PortReport> {
        self.each(port)
    }

    fn features(&self) -> Vec<PortFeatures> {
        self.each(features)
    }

    fn stats(&self) -> Vec<PortStats> {
        self.each(stats)
    }

    fn set_feature(
        &self,
        port: &str,
        feature: Feature,
        on: bool,
        force: bool,
    ) -> Result<PortFeatures, ControlError> {
        let change = |settings: &mut PortSettings| {
            if feature == Feature::LargeReceiveOffload && on && !force {
                return Err(ControlError::new(
                    ErrorCode::Refused,
                    "large-receive-offload: what it merges cannot be restored",
                ));
            }
            settings.features = settings.features.set(feature, on);
            Ok(())
        };
        self.change(port, change, features)
    }

    fn fdb(
        &self,
        filter: &FdbFilter,
        after: Option<Station>,
        most: usize,
    ) -> Result<FdbPage, ControlError> {
        let mut entries = Vec::new();
        for settings in self.ports.lock().expect("no panic").iter() {
            if filter.port.as_ref().is_none_or(|port| port == settings.port.name()) {
                let stations = settings
                    .static_entries
                    .iter()
                    .filter(|&&station| after.is_none_or(|after| station > after));
                entries.extend(stations.map(|&station| entry(settings, station)));
            }
        }
        let more = entries.len().saturating_sub(most);
        entries.truncate(most);
        Ok(FdbPage { entries, more })
    }

    fn add_port(&self, added: PortSpec) -> Result<PortReport, ControlError> {
        let mut ports = self.ports.lock().expect("no panic");
        if ports.iter().any(|known| known.port.name() == added.name()) {
            return Err(ControlError::new(
                ErrorCode::Refused,
                format_args!("{added}: it is there already"),
            ));
        }
        ports.push(PortSettings::new(added));
        Ok(port(ports.last().expect("just added")))
    }

    fn set_port(&self, name: &str, change: &PortChange) -> Result<PortReport, ControlError> {
        let refused = |why: &dyn std::fmt::Display| ControlError::new(ErrorCode::Refused, why);
        let set = |settings: &mut PortSettings| {
            for (key, value) in &change.options {
                settings.port = settings
                    .port
                    .with_option(key, value.as_deref())
                    .map_err(|why| refused(&why))?;
            }
            change
                .settings
                .iter()
                .try_for_each(|(name, value)| settings.set(name, value.clone()))
                .map_err(|why| refused(&why))
        };
        if !change.options.is_empty() {
            drop(self.opening.lock().expect("no panic"));
        }
        self.change(name, set, port)
    }

    fn remove_port(&self, name: &str) -> Result<PortReport, ControlError> {
        let report = self.change(name, |_| Ok(()), port)?;
        self.ports.lock().expect("no panic").retain(|known| known.port.name() != name);
        Ok(report)
    }

    fn add_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError> {
        let change = |settings: &mut PortSettings| {
            settings.static_entries.insert(station);
            Ok(())
        };
        self.change(port, change, |settings| settings.clone())
            .map(|settings| entry(&settings, station))
    }

    fn replace_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError> {
        for settings in self.ports.lock().expect("no panic").iter_mut() {
            settings.static_entries.remove(&station);
        }
        self.add_static_entry(port, station)
    }

    fn delete_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError> {
        let change = |settings: &mut PortSettings| match settings.static_entries.remove(&station) {
            true => Ok(()),
            false => Err(ControlError::new(
                ErrorCode::Refused,
                format_args!("{station}: there is no entry for it"),
            )),
        };
        self.change(port, change, |settings| settings.clone())
            .map(|settings| entry(&settings, station))
    }

    fn flush_fdb(&self, _filter: &FdbFilter) -> Result<usize, ControlError> {
        Ok(3)
    }

    fn vlans(&self) -> VlanReport {
        VlanReport {
            vlan_filtering: true,
            vlan_protocol: VlanProtocol::Dot1Ad,
            ports: self.each(vlans),
        }
    }

    fn add_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, ControlError> {
        let change = |settings: &mut PortSettings| {
            settings.vlans.add(range);
            Ok(())
        };
        self.change(port, change, vlans)
    }

    fn delete_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, ControlError> {
        let change = |settings: &mut PortSettings| {
            settings.vlans.delete(range.first, range.last);
            Ok(())
        };
        self.change(port, change, vlans)
    }

    fn mdb(&self) -> MdbReport {
        let entry = |port: &str, vid| MdbEntry {
            port: port.into(),
            grp: "239.1.2.3".into(),
            vid,
            state: "temp".into(),
            timer: 259,
        };
        let router = vec![MdbRouter { port: "packet:a".into(), timer: 255 }];
        let mdb = vec![entry("packet:a", None), entry("tap:b", Some(10))];
        MdbReport { multicast_snooping: true, querier_ipv4: true, querier_ipv6: false, mdb, router }
    }

    fn rps(&self) -> Vec<PortRps> {
        self.each(rps)
    }

    fn set_rps(
        &self,
        port: &str,
        queue: Option<u16>,
        change: &RpsChange,
    ) -> Result<PortRps, ControlError> {
        let refused = |error: &dyn std::fmt::Display| ControlError::new(ErrorCode::Refused, error);
        let change = |settings: &mut PortSettings| {
            match change {
                RpsChange::Mask(text) => settings
                    .steering
                    .rps_cpus
                    .set(queue, CpuMask::parse(text, 4).map_err(|error| refused(&error))?),
                RpsChange::CpuList(text) => settings
                    .steering
                    .rps_cpus
                    .set(queue, CpuMask::parse_list(text, 4).map_err(|error| refused(&error))?),
                RpsChange::Auto => settings.steering.rps_cpus.set(queue, CpuMask::first_cpus(4)),
                RpsChange::FlowCount(count) => {
                    settings.steering.rps_flow_cnt.set(queue, *count as u32)
                }
            }
            Ok(())
        };
        self.change(port, change, rps)
    }

    fn steering(&self) -> SteeringReport {
        let settings = self.steering.lock().expect("no panic").clone();
        let workers = vec![WorkerReport {
            cpu: 1,
            state: "running".into(),
            processed: 11,
            turns: 12,
            wake_ups: 13,
            panics: 14,
        }];
        SteeringReport {
            settings: settings.values(),
            possible_cpus: 4,
            usable_cpus: "0-3".into(),
            workers,
            receive_panics: 15,
        }
    }

    fn set_steering(
        &self,
        settings: &BTreeMap<String, SettingValue>,
    ) -> Result<SteeringReport, ControlError> {
        let mut steering = self.steering.lock().expect("no panic");
        let mut named = settings.iter();
        named
            .try_for_each(|(name, value)| steering.set(name, value.clone()))
            .map_err(|problem| ControlError::new(ErrorCode::Refused, problem))?;
        drop(steering);
        Ok(self.steering())
    }

    fn monitor(&self, _: &MonitorSettings) -> Result<Monitor, ControlError> {
        Err(ControlError::new(ErrorCode::Refused, "this bridge has no packets"))
    }
}

fn vlans(settings: &PortSettings) -> PortVlanReport {
    PortVlanReport::new(settings.port.name(), &settings.vlans)
}

fn entry(settings: &PortSettings, station: Station) -> FdbEntry {
    FdbEntry {
        mac: station.mac(),
        ifname: settings.port.name().to_owned(),
        vlan: Some(station.vlan).filter(|&vlan| vlan != 0),
        updated: None,
        flags: vec!["sticky".into()],
        state: "static".into(),
    }
}

fn rps(settings: &PortSettings) -> PortRps {
    let steering = &settings.steering;
    let mask = steering.rps_cpus.queue(0);
    let queue = QueueRps {
        queue: 0,
        rps_cpus: mask.sysfs(4).to_string(),
        effective: mask.sysfs(4).to_string(),
        effective_list: mask.list().to_string(),
        dropped: Vec::new(),
        rps_flow_cnt: *steering.rps_flow_cnt.queue(0),
        in_place: true,
    };
    PortRps {
        port: settings.port.name().to_owned(),
        queues: vec![queue],
        in_place_below: steering.in_place.unwrap_or(InPlace::Automatic),
        why: None,
    }
}
