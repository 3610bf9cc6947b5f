//! Applies the settings of a whole bridge to the running one.

use std::collections::BTreeMap;
use std::sync::Arc;

use superpacket_model::check;
use superpacket_port::{PortError, PortSpec};

use super::fdb::{check_layer, check_static};
use super::memory::PreviousSettings;
use super::opened::OpenedPort;
use super::reopen::{ClosedPort, device_of};
use super::{Bridge, Inner, lock, reject_duplicates};
use crate::error::BridgeError;
use crate::kernel_path::partners;
use crate::runtime::SharedPort;
use crate::settings::{BridgeSettings, PortSettings};

impl Bridge {
    /// Makes the bridge match `settings`. It opens new ports, closes ports that are no longer
    /// named, and changes the others without losing a packet. A port whose string has changed, or
    /// whose `kernel_path` is no longer off, is closed and opened again; it keeps its counters.
    ///
    /// # Errors
    /// [`BridgeError`] if a new port cannot be opened, or a setting changed that only a restart can
    /// change: the bridge is then unchanged. If a port cannot be joined, or cannot be opened with
    /// its new options, everything else is done. The latter port is opened as before
    /// ([`BridgeError::NotReopened`]).
    pub fn apply(&self, settings: BridgeSettings) -> Result<(), BridgeError> {
        let inner = &self.inner;
        inner.check_fixed(&settings)?;
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        let _alone = lock(&inner.changes);
        let sock_flows = inner.sock_flows_for(&settings.steering)?;
        inner.check_flow_limit(&settings.steering)?;
        let wanted = |name: &str| settings.ports.iter().any(|port| port.port.name() == name);
        let known: Vec<Arc<SharedPort>> =
            lock(&inner.slots).iter().flatten().map(|slot| slot.shared.clone()).collect();
        let (kept, gone): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|shared| wanted(&shared.name));
        let kept_as =
            |port: &PortSettings| kept.iter().find(|shared| shared.name == port.port.name());
        for port in &settings.ports {
            kept_as(port).map_or(Ok(()), |shared| check_layer(shared.layer, port))?;
        }
        let must_reopen = |shared: &SharedPort, port: &PortSettings| {
            shared.settings().port.string() != port.port.string()
                || self
                    .with(&shared.name, |slot| slot.needs_reopening(port.kernel_path, false))
                    .unwrap_or(false)
        };
        let reopens =
            |port: &PortSettings| kept_as(port).filter(|shared| must_reopen(shared, port));
        let changed: Vec<_> =
            settings.ports.iter().filter_map(|port| Some((reopens(port)?, port))).collect();
        // A device must be closed before it is opened with other options. Wrong options are found
        // first, while the port is still open.
        for (_, port) in &changed {
            check(&port.port).map_err(PortError::from)?;
        }
        let closing = gone
            .iter()
            .chain(changed.iter().map(|(shared, _)| *shared))
            .map(|shared| shared.settings().port);
        let closing: Vec<PortSpec> = closing.collect();
        let mut opened = BTreeMap::new();
        for (index, port) in settings.ports.iter().enumerate() {
            let is_new = kept_as(port).is_none() || reopens(port).is_some();
            if is_new && !closing.iter().any(|other| device_of(other) == device_of(&port.port)) {
                let kernel = || inner.kernel(partners(&settings.ports));
                let open = OpenedPort::new(port, settings.shared_interfaces, kernel)?;
                opened.insert(index, open);
            }
        }
        gone.iter().for_each(|shared| inner.remove(shared.number));
        let closed = |&(shared, port): &(&Arc<SharedPort>, &PortSettings)| {
            (shared.number, inner.close_to_reopen(shared, &port.port, port.kernel_path))
        };
        let mut closed: BTreeMap<u16, ClosedPort> = changed.iter().map(closed).collect();
        // A port that fails to open does not prevent the changes of the other ports.
        let (mut failed, mut refused) = (None, Vec::new());
        for (index, port) in settings.ports.iter().enumerate() {
            let done = match (kept_as(port), opened.remove(&index)) {
                (Some(shared), open) => {
                    if let Some(closed) = closed.remove(&shared.number)
                        && let Err(error) =
                            inner.reopen_as(&closed, &port.port, open, settings.shared_interfaces)
                    {
                        refused.push((closed, &port.port, error));
                    }
                    inner.change_to(shared, port)
                }
                (None, Some(open)) => inner.join(port, open),
                (None, None) => inner.add(port, settings.shared_interfaces),
            };
            failed = failed.or(done.err());
        }
        // Restored last, because two ports may have exchanged their devices.
        for (closed, spec, error) in refused {
            let error = inner.restore(&closed, spec, error);
            failed = failed.or(Some(error));
        }
        if !gone.is_empty() {
            inner.warn_of_one_port();
        }
        inner.put_steering(settings.steering.clone(), sock_flows);
        let reconciled = inner.reconcile_workers();
        inner.announce();
        {
            let mut current = lock(&inner.settings);
            (current.ports, current.shared_interfaces) =
                (settings.ports, settings.shared_interfaces);
        }
        failed.map_or(reconciled, Err)
    }
}

impl Inner {
    /// Returns an error if a setting differs that only a restart can change.
    fn check_fixed(&self, settings: &BridgeSettings) -> Result<(), BridgeError> {
        let current = lock(&self.settings);
        let fixed = [
            (settings.threads != current.threads, "the number of threads"),
            (settings.table_size != current.table_size, "the size of the address table"),
            (settings.ageing_time != current.ageing_time, "the ageing time"),
            (settings.busy_poll != current.busy_poll, "busy polling"),
            (settings.vlan_filtering != current.vlan_filtering, "VLAN filtering"),
            (settings.vlan_protocol != current.vlan_protocol, "the protocol of VLAN tags"),
            (settings.multicast_snooping != current.multicast_snooping, "multicast snooping"),
        ];
        if let Some((_, setting)) = fixed.into_iter().find(|(changed, _)| *changed) {
            return Err(BridgeError::Fixed { setting });
        }
        Ok(())
    }

    /// Gives an open port these settings, except for its port string.
    fn change_to(&self, shared: &SharedPort, port: &PortSettings) -> Result<(), BridgeError> {
        let wanted = PortSettings { port: shared.settings().port, ..port.clone() };
        if shared.settings() == wanted {
            return Ok(());
        }
        let earlier = PreviousSettings::of(shared);
        shared.change(|settings| *settings = wanted);
        let queues = lock(&self.slots)
            .get(usize::from(shared.number))
            .and_then(Option::as_ref)
            .map_or(1, |slot| slot.queues);
        let done = earlier.restore_without_memory(shared, queues);
        self.set_static(shared);
        self.forget_other_vlans(shared);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use crate::settings::TooBig;

    #[test]
    fn invalid_steering_leaves_the_bridge_unchanged() {
        let bridge = Bridge::start(settings(&["memory:steered-a", "memory:steered-b"]))
            .expect("no privilege is needed");
        let mut wrong = settings(&["memory:steered-a", "memory:steered-c"]);
        wrong.steering.sock_flow_entries = u32::MAX;
        let error = bridge.apply(wrong).expect_err("too many").to_string();
        assert!(error.contains("rps_sock_flow_entries"), "{error}");
        assert_eq!(
            bridge.ports().iter().map(|port| port.port.as_str()).collect::<Vec<_>>(),
            ["memory:steered-a", "memory:steered-b"]
        );
    }

    #[test]
    fn a_port_that_cannot_be_opened_leaves_the_bridge_unchanged() {
        let bridge = Bridge::start(settings(&["memory:kept", "memory:other"]))
            .expect("no privilege is needed");
        let names = || bridge.ports().into_iter().map(|port| port.port).collect::<Vec<_>>();
        let mut wrong = settings(&["memory:kept", "packet:no-such-port"]);
        wrong.ports[0].too_big = TooBig::Icmp;
        let error = bridge.apply(wrong).expect_err("there is none");
        assert!(error.to_string().contains("no-such-port"), "{error}");
        assert_eq!(names(), ["memory:kept", "memory:other"]);
        assert_eq!(bridge.ports()[0].settings["too_big"], "drop".into());
        bridge.apply(settings(&["memory:kept", "memory:new"])).expect("all can be opened");
        assert_eq!(names(), ["memory:kept", "memory:new"]);
    }
}
