//! Settings of the whole bridge applied to the running one.

use std::collections::BTreeMap;
use std::sync::Arc;

use superpacket_model::check;
use superpacket_port::{PortError, PortSpec};

use super::fdb::{check_layer, check_static};
use super::memory::Earlier;
use super::opened::Opened;
use super::reopen::{Closed, device_of};
use super::{Bridge, lock, reject_duplicates};
use crate::error::BridgeError;
use crate::runtime::Shared;
use crate::settings::{BridgeSettings, PortSettings};

impl Bridge {
    /// Makes the bridge be what `settings` say: ports that are new are opened, those that are not
    /// named any more are closed, and the others changed without a packet lost. A port whose name
    /// is there already and whose string is another one is closed and opened again: what it counted
    /// stays.
    ///
    /// # Errors
    /// [`BridgeError`]: a new port cannot be opened, or a setting changed that only a new start can
    /// change: then the bridge is as it was. Where a port cannot be joined with the others, or a
    /// device that a port had cannot be opened again with other options, all the rest is done; the
    /// latter is open as it was before ([`BridgeError::NotReopened`]).
    pub fn apply(&self, settings: BridgeSettings) -> Result<(), BridgeError> {
        let inner = &self.inner;
        {
            let current = lock(&inner.settings);
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
        }
        reject_duplicates(&settings.ports)?;
        check_static(&settings)?;
        let _alone = lock(&inner.changes);
        let sock_flows = inner.sock_flows_for(&settings.steering)?;
        inner.check_flow_limit(&settings.steering)?;
        let wanted = |name: &str| settings.ports.iter().any(|port| port.port.name() == name);
        let known: Vec<Arc<Shared>> =
            lock(&inner.places).iter().flatten().map(|place| place.shared.clone()).collect();
        let (kept, gone): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|shared| wanted(&shared.name));
        let kept_as =
            |port: &PortSettings| kept.iter().find(|shared| shared.name == port.port.name());
        for port in &settings.ports {
            kept_as(port).map_or(Ok(()), |shared| check_layer(shared.layer, port))?;
        }
        let changes_string = |port: &PortSettings| {
            kept_as(port).filter(|shared| shared.settings().port.string() != port.port.string())
        };
        let changed: Vec<_> = settings
            .ports
            .iter()
            .filter_map(|port| Some((changes_string(port)?, &port.port)))
            .collect();
        // A device that is to be opened in another way must be closed before. A mistake in its
        // options is no reason to close it.
        for (_, spec) in &changed {
            check(spec).map_err(PortError::from)?;
        }
        let closing = gone
            .iter()
            .chain(changed.iter().map(|(shared, _)| *shared))
            .map(|shared| shared.settings().port);
        let closing: Vec<PortSpec> = closing.collect();
        let mut opened = BTreeMap::new();
        for (index, port) in settings.ports.iter().enumerate() {
            let is_new = kept_as(port).is_none() || changes_string(port).is_some();
            if is_new && !closing.iter().any(|other| device_of(other) == device_of(&port.port)) {
                opened.insert(index, Opened::new(&port.port, settings.shared_interfaces)?);
            }
        }
        gone.iter().for_each(|shared| inner.remove(shared.number));
        let closed = |&(shared, spec): &(&Arc<Shared>, &PortSpec)| {
            (shared.number, inner.close_to_reopen(shared, spec))
        };
        let mut closed: BTreeMap<u16, Closed> = changed.iter().map(closed).collect();
        // One port that cannot be opened does not keep the others from what is asked of them.
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
                    // As it is open; all else as it is asked.
                    let wanted = PortSettings { port: shared.settings().port, ..port.clone() };
                    if shared.settings() == wanted {
                        Ok(())
                    } else {
                        let earlier = Earlier::of(shared);
                        shared.change(|settings| *settings = wanted);
                        let queues = lock(&inner.places)
                            .get(usize::from(shared.number))
                            .and_then(Option::as_ref)
                            .map_or(1, |place| place.queues);
                        let done = earlier.restore_without_memory(shared, queues);
                        inner.set_static(shared);
                        inner.forget_other_vlans(shared);
                        done
                    }
                }
                (None, Some(open)) => inner.join(port, open),
                (None, None) => inner.add(port, settings.shared_interfaces),
            };
            failed = failed.or(done.err());
        }
        // When all others have what they are to have: two ports may have asked for each other's.
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

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;
    use crate::settings::TooBig;

    #[test]
    fn steering_that_cannot_be_leaves_the_bridge_as_it_was() {
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
    fn a_port_that_cannot_be_opened_leaves_the_bridge_as_it_was() {
        let bridge = Bridge::start(settings(&["memory:kept", "memory:other"]))
            .expect("no privilege is needed");
        let names = || bridge.ports().into_iter().map(|port| port.port).collect::<Vec<_>>();
        let mut wrong = settings(&["memory:kept", "packet:no-such-port"]);
        wrong.ports[0].too_big = TooBig::Icmp;
        let error = bridge.apply(wrong).expect_err("there is none");
        assert!(error.to_string().contains("no-such-port"), "{error}");
        assert_eq!(names(), ["memory:kept", "memory:other"]);
        assert_eq!(bridge.ports()[0].too_big, "drop");
        bridge.apply(settings(&["memory:kept", "memory:new"])).expect("all can be opened");
        assert_eq!(names(), ["memory:kept", "memory:new"]);
    }
}
