//! Lists and changes the VLANs of the ports for users of the bridge.

use super::{Bridge, Inner, lock};
use crate::error::BridgeError;
use crate::runtime::SharedPort;
use crate::switch::vlan::{PortVlanReport, VlanRange, VlanReport};

impl Bridge {
    /// Returns the VLANs of all ports.
    pub fn vlans(&self) -> VlanReport {
        let ports =
            lock(&self.inner.slots).iter().flatten().map(|slot| report(&slot.shared)).collect();
        let settings = lock(&self.inner.settings);
        VlanReport {
            vlan_filtering: settings.vlan_filtering,
            vlan_protocol: settings.vlan_protocol,
            ports,
        }
    }

    /// Makes a port a member of VLANs, or changes its flags in them. This has an effect only if the
    /// bridge filters by VLAN.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`].
    pub fn add_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, BridgeError> {
        self.change(port, |shared| {
            shared.change(|settings| settings.vlans.add(range));
            Ok(())
        })?;
        self.with(port, |slot| report(&slot.shared))
    }

    /// Removes a port from the VLANs `first` to `last`, and forgets the addresses that were learned
    /// behind it in these VLANs.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] if the port is a member of none of them.
    pub fn delete_vlans(
        &self,
        port: &str,
        range: &VlanRange,
    ) -> Result<PortVlanReport, BridgeError> {
        let VlanRange { first, last, .. } = *range;
        self.change(port, |shared| {
            match shared.change(|settings| settings.vlans.delete(first, last)) {
                0 => {
                    let vlans = VlanRange { pvid: false, untagged: false, ..*range };
                    Err(BridgeError::Limit {
                        port: port.into(),
                        problem: format!("it is not in VLAN {vlans}"),
                    })
                }
                _ => Ok(()),
            }
        })?;
        self.with(port, |slot| {
            self.inner.forget_other_vlans(&slot.shared);
            report(&slot.shared)
        })
    }
}

impl Inner {
    /// Forgets the addresses that were learned behind a port in VLANs of which it is no member.
    pub(super) fn forget_other_vlans(&self, shared: &SharedPort) {
        if let Some(vlans) = shared.vlans() {
            self.table.flush(|station, port| port == shared.number && !vlans.has(station.vlan));
        }
    }
}

fn report(shared: &SharedPort) -> PortVlanReport {
    PortVlanReport::new(&shared.name, &shared.settings().vlans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{BridgeSettings, PortSettings};
    use crate::switch::vlan::VlanProtocol;

    #[test]
    fn vlans_of_ports_change_while_the_bridge_runs() {
        let names = ["memory:vlan-one", "memory:vlan-two"];
        let ports =
            names.map(|name| PortSettings::new(name.parse().expect("a port string"))).to_vec();
        let settings =
            BridgeSettings { ports, threads: 1, vlan_filtering: true, ..BridgeSettings::default() };
        let bridge = Bridge::start(settings.clone()).expect("no privilege is needed");
        let range = |words: &str| words.parse::<VlanRange>().expect(words);
        let ranges = || {
            bridge.settings().ports[0]
                .vlans
                .ranges()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        bridge.add_vlans(names[0], &range("10-12")).expect("is there");
        bridge.add_vlans(names[0], &range("11 pvid untagged")).expect("is there");
        assert_eq!(ranges(), ["1 untagged", "10", "11 pvid untagged", "12"]);
        let error = bridge.delete_vlans(names[0], &range("20-30")).expect_err("not in them");
        assert_eq!(error.to_string(), "memory:vlan-one: it is not in VLAN 20-30");
        let error = bridge.add_vlans("memory:x", &range("1")).expect_err("no port");
        assert!(error.to_string().contains("there is no port \"memory:x\""), "{error}");
        let station = |vlan| crate::switch::fdb::Station { vlan, address: [2, 0, 0, 0, 0, 1] };
        [1, 12].iter().for_each(|&vlan| {
            bridge.inner.table.learn(station(vlan).into(), 0, bridge.inner.table.now())
        });
        let left = bridge.delete_vlans(names[0], &range("1-10")).expect("is in two of them");
        assert_eq!(left.vlans.iter().map(|entry| entry.vlan).collect::<Vec<_>>(), [11, 12]);
        assert_eq!(
            [1, 12].map(|vlan| bridge.inner.table.look_up(station(vlan)).is_some()),
            [false, true]
        );
        // Applying the settings again restores the VLANs that they contain.
        bridge.apply(settings.clone()).expect("applies");
        assert_eq!(
            (ranges(), bridge.inner.table.look_up(station(12))),
            (vec!["1 pvid untagged".to_owned()], None)
        );
        let provider = BridgeSettings { vlan_protocol: VlanProtocol::Dot1Ad, ..settings.clone() };
        let error = bridge.apply(provider).expect_err("fixed");
        assert!(
            error
                .to_string()
                .contains("the protocol of VLAN tags cannot be changed while the bridge runs"),
            "{error}"
        );
        assert_eq!(bridge.vlans().vlan_protocol, VlanProtocol::Dot1Q);
        let error =
            bridge.apply(BridgeSettings { vlan_filtering: false, ..settings }).expect_err("fixed");
        assert!(
            error.to_string().contains("VLAN filtering cannot be changed while the bridge runs"),
            "{error}"
        );
    }
}
