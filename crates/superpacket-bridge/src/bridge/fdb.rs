//! Lists and changes the entries of the address table for users of the bridge.

use std::collections::BTreeMap;

use superpacket::packet::Layer;

use super::{Bridge, lock};
use crate::error::BridgeError;
use crate::runtime::SharedPort;
use crate::settings::{BridgeSettings, PortSettings};
use crate::switch::fdb::{FdbEntry, FdbFilter, FdbPage, MOST_LISTED, Station};
use crate::switch::table::{AddressInfo, most_static};

/// Returns an error if two ports have the same static entry, or if there are more static entries
/// than the table can hold.
pub(super) fn check_static(settings: &BridgeSettings) -> Result<(), BridgeError> {
    let mut holders: BTreeMap<Station, &str> = BTreeMap::new();
    for port in &settings.ports {
        for &station in &port.static_entries {
            check_vlan(station, settings.vlan_filtering)?;
            if let Some(holder) = holders.insert(station, port.port.name()) {
                return Err(taken(station, holder));
            }
        }
    }
    match most_static(settings.table_size) {
        most if holders.len() > most => Err(BridgeError::TooManyStatic { limit: most }),
        _ => Ok(()),
    }
}

/// Returns an error if there are static entries for a port whose packets have no hardware
/// addresses.
pub(crate) fn check_layer(layer: Layer, settings: &PortSettings) -> Result<(), BridgeError> {
    match layer {
        Layer::Ip if !settings.static_entries.is_empty() => {
            Err(BridgeError::NoHardwareAddresses { port: settings.port.name().into() })
        }
        _ => Ok(()),
    }
}

/// Returns an error if a static entry without a VLAN is meant for a bridge that filters by VLAN,
/// where no packet would match it.
fn check_vlan(station: Station, vlan_filtering: bool) -> Result<(), BridgeError> {
    match station.vlan {
        0 if vlan_filtering => {
            let problem =
                "the bridge filters by VLAN: say in which the address is (vlan VID)".to_owned();
            Err(BridgeError::Entry { station, problem })
        }
        _ => Ok(()),
    }
}

fn taken(station: Station, holder: &str) -> BridgeError {
    BridgeError::Entry {
        station,
        problem: format!("there is a static entry for it at {holder} already"),
    }
}

impl Bridge {
    /// Returns the entries of the address table that `filter` selects and that come after `after`:
    /// at most `most`, and at most [`MOST_LISTED`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::NoHardwareAddresses`].
    pub fn fdb(
        &self,
        filter: &FdbFilter,
        after: Option<Station>,
        most: usize,
    ) -> Result<FdbPage, BridgeError> {
        let numbers = self.numbers(filter)?;
        let wanted = |station: Station, port: u16| {
            numbers.contains_key(&port)
                && filter.vlan.is_none_or(|vlan| vlan == station.vlan)
                && after.is_none_or(|after| station > after)
        };
        let mut known = self.inner.table.list(wanted);
        known.retain(|known| filter.is_static.is_none_or(|is_static| is_static == known.is_static));
        known.sort_unstable_by_key(|known| (known.station, !known.is_static));
        // A static entry may have replaced a learned one between reading the two.
        known.dedup_by_key(|known| known.station);
        let most = most.min(MOST_LISTED);
        let entries = known
            .iter()
            .take(most)
            .filter_map(|known| Some(entry(known, numbers.get(&known.port)?)))
            .collect();
        Ok(FdbPage { entries, more: known.len().saturating_sub(most) })
    }

    /// Adds a static entry to the address table. The address then stays behind this port until the
    /// entry is deleted, even if other ports receive frames from it.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Entry`] if the entry exists already;
    /// [`BridgeError::TooManyStatic`]; [`BridgeError::NoHardwareAddresses`].
    pub fn add_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, BridgeError> {
        self.put_static_entry(port, station, false)
    }

    /// Adds a static entry like [`add_static_entry`](Self::add_static_entry), but replaces an
    /// existing one with the same address, whether at this or another port.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Entry`] if a VLAN is missing;
    /// [`BridgeError::TooManyStatic`]; [`BridgeError::NoHardwareAddresses`].
    pub fn replace_static_entry(
        &self,
        port: &str,
        station: Station,
    ) -> Result<FdbEntry, BridgeError> {
        self.put_static_entry(port, station, true)
    }

    fn put_static_entry(
        &self,
        port: &str,
        station: Station,
        replace: bool,
    ) -> Result<FdbEntry, BridgeError> {
        let _alone = lock(&self.inner.changes);
        let shared = self.with(port, |slot| slot.shared.clone())?;
        if shared.layer == Layer::Ip {
            return Err(BridgeError::NoHardwareAddresses { port: port.into() });
        }
        check_vlan(station, shared.vlan_filtering.is_some())?;
        let ports: Vec<PortSettings> =
            lock(&self.inner.slots).iter().flatten().map(|slot| slot.shared.settings()).collect();
        let holder = ports
            .iter()
            .find(|known| known.static_entries.contains(&station))
            .map(|holder| holder.port.name());
        match holder {
            Some(holder) if !replace => return Err(taken(station, holder)),
            Some(holder) => {
                let other = Some(self.with(holder, |slot| slot.shared.clone())?)
                    .filter(|other| other.number != shared.number);
                shared.change_static_entries(|entries| entries.insert(station));
                // The new entry overwrites the old one, so that one of them exists at every moment.
                self.inner.set_static(&shared);
                if let Some(other) = other {
                    other.change_static_entries(|entries| entries.remove(&station));
                }
                return Ok(added(station, shared.number, port));
            }
            None => {}
        }
        let most = most_static(lock(&self.inner.settings).table_size);
        if ports.iter().map(|port| port.static_entries.len()).sum::<usize>() >= most {
            return Err(BridgeError::TooManyStatic { limit: most });
        }
        shared.change_static_entries(|entries| entries.insert(station));
        self.inner.set_static(&shared);
        Ok(added(station, shared.number, port))
    }

    /// Deletes an entry of the address table, whether static or learned.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Entry`] if this port has no such entry.
    pub fn delete_entry(&self, port: &str, station: Station) -> Result<FdbEntry, BridgeError> {
        let _alone = lock(&self.inner.changes);
        let shared = self.with(port, |slot| slot.shared.clone())?;
        let absent = |problem: String| BridgeError::Entry { station, problem };
        let known = match self.inner.table.look_up(station) {
            Some(known) if known.port == shared.number => known,
            Some(known) => {
                let name = self.inner.name(known.port).unwrap_or_default();
                return Err(absent(format!("there is no entry for it at {port}: it is at {name}")));
            }
            None => return Err(absent(format!("there is no entry for it at {port}"))),
        };
        if known.is_static {
            shared.change_static_entries(|entries| entries.remove(&station));
            self.inner.set_static(&shared);
        } else {
            self.inner.table.flush(|other, at| other == station && at == shared.number);
        }
        Ok(entry(&known, port))
    }

    /// Deletes the learned addresses that `filter` selects, and returns their number. Static
    /// entries stay.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::NoHardwareAddresses`].
    pub fn flush_fdb(&self, filter: &FdbFilter) -> Result<usize, BridgeError> {
        let _alone = lock(&self.inner.changes);
        let numbers = self.numbers(filter)?;
        let goes = |station: Station, port: u16| {
            numbers.contains_key(&port) && filter.vlan.is_none_or(|vlan| vlan == station.vlan)
        };
        Ok(self.inner.table.flush(goes))
    }

    /// Returns the numbers and names of the ports that `filter` selects.
    fn numbers(&self, filter: &FdbFilter) -> Result<BTreeMap<u16, String>, BridgeError> {
        if let Some(port) = &filter.port {
            self.with(port, |_| ())?;
        }
        let slots = lock(&self.inner.slots);
        let ports = slots.iter().flatten().map(|slot| &slot.shared);
        let meant =
            ports.filter(|shared| filter.port.as_ref().is_none_or(|port| *port == shared.name));
        let named = |shared: &std::sync::Arc<SharedPort>| match shared.layer {
            Layer::Ip => Err(BridgeError::NoHardwareAddresses { port: shared.name.clone() }),
            Layer::Ethernet => Ok((shared.number, shared.name.clone())),
        };
        meant.map(named).collect()
    }
}

/// Returns the description of a static entry that was just added to the table.
fn added(station: Station, number: u16, port: &str) -> FdbEntry {
    entry(
        &AddressInfo {
            station,
            port: number,
            is_static: true,
            age: Some(std::time::Duration::ZERO),
        },
        port,
    )
}

fn entry(known: &AddressInfo, port: &str) -> FdbEntry {
    let AddressInfo { station, is_static, age, .. } = *known;
    FdbEntry {
        mac: station.mac(),
        ifname: port.to_owned(),
        vlan: Some(station.vlan).filter(|&vlan| vlan != 0),
        updated: age.map(|age| age.as_secs()),
        flags: if is_static { vec!["sticky".to_owned()] } else { Vec::new() },
        state: if is_static { "static" } else { "" }.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(ports: &[(&str, &[&str])]) -> BridgeSettings {
        let port = |(name, addresses): &(&str, &[&str])| {
            let mut settings = PortSettings::new(name.parse().expect("a port string"));
            settings.static_entries.extend(
                addresses.iter().map(|address| Station::parse(address, None).expect("one")),
            );
            settings
        };
        BridgeSettings {
            ports: ports.iter().map(port).collect(),
            threads: 1,
            table_size: 8,
            ..BridgeSettings::default()
        }
    }

    fn listed(bridge: &Bridge) -> Vec<String> {
        let page =
            bridge.fdb(&FdbFilter::default(), None, MOST_LISTED).expect("hardware addresses");
        page.entries
            .iter()
            .map(|entry| format!("{} {} {}", entry.mac, entry.ifname, entry.state))
            .collect()
    }

    const A: &str = "02:00:00:00:00:0a";
    const B: &str = "02:00:00:00:00:0b";

    #[test]
    fn static_entries_come_and_go_with_the_file_and_with_their_ports() {
        let (one, two) = ("memory:fdb-one", "memory:fdb-two");
        let bridge =
            Bridge::start(settings(&[(one, &[A]), (two, &[])])).expect("no privilege is needed");
        assert_eq!(listed(&bridge), [format!("{A} {one} static")]);
        let station = |text: &str| Station::parse(text, None).expect("one");
        let added = bridge.add_static_entry(two, station(B)).expect("is new");
        assert_eq!(
            (added.state.as_str(), added.flags.as_slice()),
            ("static", &["sticky".to_owned()][..])
        );
        assert_eq!(listed(&bridge), [format!("{A} {one} static"), format!("{B} {two} static")]);
        assert_eq!(
            bridge.settings().ports[1].static_entries.len(),
            1,
            "it is what the port is asked to be"
        );
        assert_eq!(bridge.flush_fdb(&FdbFilter::default()).expect("flushes"), 0);
        // One address moves from one port to the other; the new settings lack the other address.
        bridge.apply(settings(&[(one, &[]), (two, &[A])])).expect("applies");
        assert_eq!(listed(&bridge), [format!("{A} {two} static")]);
        bridge.apply(settings(&[(one, &[A]), (two, &[])])).expect("and back");
        assert_eq!(listed(&bridge), [format!("{A} {one} static")]);
        bridge.apply(settings(&[(two, &[])])).expect("applies");
        assert!(listed(&bridge).is_empty(), "the port has gone");
    }

    #[test]
    fn an_entry_of_any_port_can_be_replaced() {
        let (one, two) = ("memory:fdb-six", "memory:fdb-seven");
        let bridge =
            Bridge::start(settings(&[(one, &[A]), (two, &[])])).expect("no privilege is needed");
        let a = Station::parse(A, None).expect("one");
        for port in [two, two, one] {
            let entry = bridge.replace_static_entry(port, a).expect("is there or is not");
            assert_eq!((entry.ifname.as_str(), entry.state.as_str()), (port, "static"));
            assert_eq!(listed(&bridge), [format!("{A} {port} static")]);
            let holders = bridge
                .settings()
                .ports
                .iter()
                .filter(|port| port.static_entries.contains(&a))
                .count();
            assert_eq!(holders, 1, "the other has let go of it");
        }
        let error = bridge.add_static_entry(two, a).expect_err("add does not replace");
        assert!(error.to_string().contains("at memory:fdb-six already"), "{error}");
        bridge
            .replace_static_entry(two, Station::parse(B, None).expect("one"))
            .expect("what is not there is added");
        assert_eq!(listed(&bridge), [format!("{A} {one} static"), format!("{B} {two} static")]);
    }

    #[test]
    fn errors_name_the_entry_that_cannot_be_added_or_deleted() {
        let (one, two) = ("memory:fdb-three", "memory:fdb-four");
        let bridge =
            Bridge::start(settings(&[(one, &[A]), (two, &[])])).expect("no privilege is needed");
        let station = |number: u8| Station { vlan: 3, address: [2, 0, 0, 0, 1, number] };
        let a = Station::parse(A, None).expect("one");
        let says =
            |error: BridgeError, says: &str| assert!(error.to_string().contains(says), "{error}");
        says(
            bridge.add_static_entry(two, a).expect_err("there"),
            "02:00:00:00:00:0a: there is a static entry for it at memory:fdb-three",
        );
        says(bridge.add_static_entry(one, a).expect_err("there"), "at memory:fdb-three already");
        says(
            bridge.add_static_entry("memory:x", a).expect_err("no port"),
            "there is no port \"memory:x\": there are memory:fdb-three",
        );
        says(
            bridge.delete_entry(two, a).expect_err("elsewhere"),
            "no entry for it at memory:fdb-four: it is at memory:fdb-three",
        );
        says(
            bridge.delete_entry(one, station(1)).expect_err("absent"),
            "02:00:00:00:01:01 vlan 3: there is no entry for it",
        );
        (1..4).for_each(|number| {
            drop(bridge.add_static_entry(two, station(number)).expect("half of eight"))
        });
        says(
            bridge.add_static_entry(two, station(4)).expect_err("full"),
            "at most 4 static entries",
        );
        bridge.delete_entry(two, station(2)).expect("is there");
        bridge.add_static_entry(one, station(4)).expect("there is room again");
        let page = bridge
            .fdb(&FdbFilter { vlan: Some(3), ..FdbFilter::default() }, Some(station(1)), 1)
            .expect("hardware addresses");
        assert_eq!(
            (page.entries[0].mac.as_str(), page.entries[0].vlan, page.more),
            ("02:00:00:00:01:03", Some(3), 1)
        );
        let learned = FdbFilter { is_static: Some(false), ..FdbFilter::default() };
        assert_eq!(bridge.fdb(&learned, None, 9).expect("hardware addresses"), FdbPage::default());
        let page = bridge
            .fdb(&FdbFilter { port: Some(one.into()), ..FdbFilter::default() }, None, 9)
            .expect("hardware addresses");
        assert_eq!((page.entries.len(), page.more), (2, 0));
        let filtering =
            BridgeSettings { vlan_filtering: true, ..settings(&[("memory:fdb-five", &[A])]) };
        says(
            Bridge::start(filtering).expect_err("no VLAN"),
            "02:00:00:00:00:0a: the bridge filters by VLAN: say in which",
        );
        says(
            bridge.apply(settings(&[(one, &[A]), (two, &[A])])).expect_err("two"),
            "static entry for it at memory:fdb-three already",
        );
    }
}
