//! Closes a port and opens it again, as the same device or with another port string.
//!
//! The port keeps its number, counters, settings, VLANs and static entries. If the device is the
//! same, it also keeps its learned addresses. Threads handle a reopened port like a new one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use superpacket_model::open;
use superpacket_port::{Port, PortError, PortSpec};

use super::kernel_path::{self, JoinedKernelPath};
use super::opened::{OpenedPort, claim, warn_of_interface};
use super::{Inner, lock};
use crate::claim::{Claim, interface_of};
use crate::error::BridgeError;
use crate::runtime::SharedPort;
use crate::settings::KernelPathMode;

/// Interval between attempts to open a port again that was lost.
pub(super) const TRY_AGAIN: Duration = Duration::from_millis(500);

/// Returns the name of the device of a port. Two port strings with the same device cannot be open
/// at the same time.
pub(super) fn device_of(spec: &PortSpec) -> &str {
    match spec.inner() {
        Some(inner) => device_of(inner),
        None => spec.device(),
    }
}

/// A port that was closed so that it can be opened again with another port string.
#[derive(Debug)]
pub(super) struct ClosedPort {
    shared: Arc<SharedPort>,
    /// The port string with which the port was open before.
    before: PortSpec,
    /// The setting `kernel_path` with which the port was open before.
    kernel_path: KernelPathMode,
    /// The time at which the port was closed.
    since: Instant,
    /// Whether the port was open before it was closed; otherwise it was waiting for its interface.
    was_open: bool,
}

impl ClosedPort {
    /// Returns whether a port with `spec` can keep the claim of the closed port: both have the same
    /// interface, or neither has one.
    fn keeps_interface(&self, spec: &PortSpec) -> bool {
        interface_of(&self.before) == interface_of(spec)
    }
}

impl Inner {
    /// Closes a port that is to be opened again with the port string of `spec` and this setting of
    /// `kernel_path`. It keeps its number in the bridge. The caller must hold the lock `changes`,
    /// and must open the port again.
    pub(super) fn close_to_reopen(
        &self,
        shared: &Arc<SharedPort>,
        spec: &PortSpec,
        kernel_path: KernelPathMode,
    ) -> ClosedPort {
        let before = shared.settings();
        shared.change(|settings| settings.kernel_path = kernel_path);
        let mut closed = ClosedPort {
            shared: shared.clone(),
            before: before.port,
            kernel_path: before.kernel_path,
            since: Instant::now(),
            was_open: false,
        };
        self.disconnect(shared.number);
        if device_of(&closed.before) != device_of(spec) {
            // Stations that were behind this port may be elsewhere.
            self.forget(shared.number);
        }
        let mut slots = lock(&self.slots);
        let Some(Some(slot)) = slots.get_mut(usize::from(shared.number)) else { return closed };
        let port = slot.take_port("it is being opened again");
        closed.was_open = port.is_some();
        let claim = if closed.keeps_interface(spec) { None } else { slot.claim.take() };
        drop(slots);
        // Dropped after the lock is released, because ports may be slow to close.
        drop((port, claim));
        closed
    }

    /// Opens a closed port again, as `spec` says. If `opened` is given, it is that port, already
    /// open.
    ///
    /// # Errors
    /// [`BridgeError`] if the port cannot be opened. It then stays closed.
    pub(super) fn reopen_as(
        &self,
        closed: &ClosedPort,
        spec: &PortSpec,
        opened: Option<OpenedPort>,
        shared_interfaces: bool,
    ) -> Result<(), BridgeError> {
        let shared = &closed.shared;
        let open = || self.open_again(shared, spec);
        let (port, claimed) = match opened {
            Some(OpenedPort { port, claim, kernel_path }) => (Ok((port, kernel_path)), claim),
            None if closed.keeps_interface(spec) => (open(), None),
            None => {
                let claimed = claim(spec, shared_interfaces)?;
                (open(), claimed)
            }
        };
        match port.and_then(|(port, kernel_path)| self.connect_again(shared, port, kernel_path)) {
            Ok(()) => {
                let closed_for = closed.since.elapsed();
                tracing::info!(
                    port = shared.name,
                    string = spec.string(),
                    ?closed_for,
                    "port opened again, by another port string"
                );
            }
            // The port was waiting for its interface, and goes on waiting with the new port string.
            Err(error) if !closed.was_open && error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
        shared.change(|settings| settings.port = spec.clone());
        if let Some(Some(slot)) = lock(&self.slots).get_mut(usize::from(shared.number)) {
            slot.kernel_notifies = self.kernel_notifies(spec);
            if !closed.keeps_interface(spec) {
                slot.claim = claimed;
            }
        }
        if !closed.keeps_interface(spec) {
            warn_of_interface(spec);
        }
        Ok(())
    }

    /// Opens a port as it was before it was closed, because opening it with new settings failed
    /// with `error`. Returns an error that describes that failure and whether the port is open
    /// again.
    pub(super) fn restore(
        &self,
        closed: &ClosedPort,
        spec: &PortSpec,
        error: BridgeError,
    ) -> BridgeError {
        let ClosedPort { shared, before, .. } = closed;
        shared.change(|settings| settings.kernel_path = closed.kernel_path);
        let number = usize::from(shared.number);
        if !closed.keeps_interface(spec) {
            let claim = Claim::of(before).unwrap_or_else(|error| {
                tracing::warn!(port = shared.name, %error, "the interface is no longer claimed");
                None
            });
            if let Some(Some(slot)) = lock(&self.slots).get_mut(number) {
                slot.claim = claim;
            }
        }
        let restored = self.reopen(number, shared);
        BridgeError::NotReopened {
            port: shared.name.clone(),
            string: spec.string().to_owned(),
            problem: error.problem(spec),
            before: before.string().to_owned(),
            restored,
        }
    }

    /// Tries to open a port again that was lost, and returns whether it is open now. The slot of
    /// the port is locked only at the end, so that reports need not wait. The caller must hold the
    /// lock `changes`.
    pub(super) fn reopen(&self, number: usize, shared: &Arc<SharedPort>) -> bool {
        let opened = self.open_again(shared, &shared.settings().port);
        match opened.and_then(|(port, kernel_path)| self.connect_again(shared, port, kernel_path)) {
            Ok(()) => {
                tracing::info!(port = %shared.name, "the port is back");
                true
            }
            Err(error) => {
                let mut slots = lock(&self.slots);
                let Some(Some(slot)) = slots.get_mut(number) else { return false };
                let text = error.problem();
                if slot.error.as_deref() != Some(&text) {
                    tracing::warn!(port = %slot.shared.name, error = text, "the port cannot be reopened yet");
                }
                slot.error = Some(text);
                slot.next_try = Instant::now() + TRY_AGAIN;
                false
            }
        }
    }

    /// Opens a port, and lets the kernel forward its frames as far as its settings allow it.
    fn open_again(
        &self,
        shared: &SharedPort,
        spec: &PortSpec,
    ) -> Result<(Box<dyn Port>, JoinedKernelPath), PortError> {
        let mut port = open(spec)?;
        let mode = shared.settings().kernel_path;
        let kernel_path = kernel_path::join(port.as_mut(), spec.kind(), mode, || {
            self.kernel(self.kernel_partners(&shared.name))
        })?;
        Ok((port, kernel_path))
    }

    /// Gives each thread its receive queues and a transmit end of a reopened port.
    fn connect_again(
        &self,
        shared: &Arc<SharedPort>,
        mut port: Box<dyn Port>,
        kernel_path: JoinedKernelPath,
    ) -> Result<(), PortError> {
        if port.layer() != shared.layer {
            let reason = "its packets start elsewhere than before, with or without Ethernet header: add it as another port".to_owned();
            return Err(PortError::Unsupported { port: shared.name.clone(), reason });
        }
        shared.reopened(port.capabilities(), port.state());
        let queues = self.connect(shared, port.as_mut())?;
        let mut slots = lock(&self.slots);
        if let Some(Some(slot)) = slots.get_mut(usize::from(shared.number)) {
            slot.queues = queues;
            slot.state = port.state();
            slot.hardware_address = port.hardware_address();
            slot.error = None;
            slot.reopened += 1;
            slot.port = Some(port);
            slot.kernel_path.rejoin(kernel_path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use superpacket_port::LinkState;

    use super::super::Bridge;
    use super::*;
    use crate::settings::{BridgeSettings, PortSettings};

    fn spec(text: &str) -> PortSpec {
        text.parse().expect("a port string")
    }

    fn settings(port: &str) -> BridgeSettings {
        BridgeSettings {
            ports: vec![PortSettings::new(spec(port))],
            threads: 1,
            ..BridgeSettings::default()
        }
    }

    #[test]
    fn a_port_that_waits_for_its_interface_uses_its_new_string() {
        let bridge = Bridge::start(settings("left=memory:waits")).expect("memory needs nothing");
        {
            let _alone = lock(&bridge.inner.changes);
            let mut slots = lock(&bridge.inner.slots);
            let slot = slots[0].as_mut().expect("is there");
            slot.shared.change(|settings| settings.port = spec("left=packet:absent0"));
            (slot.port, slot.state.link) = (None, LinkState::Gone);
        }
        let report = || bridge.ports().remove(0);
        bridge
            .apply(settings("left=packet:absent0?ring=1m"))
            .expect("the interface was not there before either");
        assert_eq!(
            (report().string.as_str(), report().state.as_str()),
            ("packet:absent0?ring=1m", "gone")
        );
        let error = bridge
            .apply(settings("left=packet:absent0?ring=x"))
            .expect_err("no number")
            .to_string();
        assert!(
            error.starts_with("port \"left=packet:absent0?ring=x\": option \"ring=x\" takes"),
            "{error}"
        );
        assert_eq!(report().string, "packet:absent0?ring=1m");
    }

    #[test]
    fn port_strings_of_one_device_are_recognized() {
        let devices = ["packet:eth0?ring=1m", "xdp:eth0", "nic:page=4k@packet:eth0", "tap:eth0"]
            .map(|text| device_of(&spec(text)).to_owned());
        assert_eq!(devices, ["eth0"; 4]);
        assert_ne!(device_of(&spec("packet:eth1")), "eth0");
    }
}
