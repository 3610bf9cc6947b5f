//! A port that is closed and opened again, as the same device or by another port string: it stays
//! the same port.
//!
//! Its number, counters, settings, VLANs, static entries and, where the device stays the same,
//! learned addresses are those of the port, not of an opening. So are the places of its packets in
//! all threads: these are told of an opening as of a new port.

use std::sync::Arc;
use std::time::{Duration, Instant};

use superpacket_model::open;
use superpacket_port::{Port, PortError, PortSpec};

use super::opened::{Opened, claim, warn_of_addresses};
use super::{Inner, lock};
use crate::claim::{Claim, interface_of};
use crate::error::BridgeError;
use crate::runtime::Shared;

/// How long after a try to open a port again the next one is made.
pub(super) const TRY_AGAIN: Duration = Duration::from_millis(500);

/// What a port is of: two port strings with the same one cannot be open at a time.
pub(super) fn device_of(spec: &PortSpec) -> &str {
    match spec.inner() {
        Some(inner) => device_of(inner),
        None => spec.device(),
    }
}

/// A port that was closed to be opened by another port string.
#[derive(Debug)]
pub(super) struct Closed {
    shared: Arc<Shared>,
    /// What it was open by.
    before: PortSpec,
    /// When it was closed.
    since: Instant,
    /// It was open, and not waiting for its interface.
    was_open: bool,
}

impl Closed {
    /// Is the interface that it takes all frames of, if any, the same?
    fn keeps_interface(&self, spec: &PortSpec) -> bool {
        interface_of(&self.before) == interface_of(spec)
    }
}

impl Inner {
    /// Closes a port that is to be opened by the port string of `spec`. Its place in the bridge
    /// stays. The caller holds `changes`, and opens it again.
    pub(super) fn close_to_reopen(&self, shared: &Arc<Shared>, spec: &PortSpec) -> Closed {
        let before = shared.settings().port;
        let mut closed =
            Closed { shared: shared.clone(), before, since: Instant::now(), was_open: false };
        self.disconnect(shared.number);
        if device_of(&closed.before) != device_of(spec) {
            // Who was there may be elsewhere.
            self.forget(shared.number);
        }
        let mut places = lock(&self.places);
        let Some(Some(place)) = places.get_mut(usize::from(shared.number)) else { return closed };
        let port = place.take_port("it is being opened again");
        closed.was_open = port.is_some();
        let claim = if closed.keeps_interface(spec) { None } else { place.claim.take() };
        drop(places);
        // Without the lock: ports may be slow to close.
        drop((port, claim));
        closed
    }

    /// Opens a port again that was closed, by `spec`, or takes what has been `opened` by it.
    ///
    /// # Errors
    /// [`BridgeError`] says why it cannot be opened so. It is closed then.
    pub(super) fn reopen_as(
        &self,
        closed: &Closed,
        spec: &PortSpec,
        opened: Option<Opened>,
        shared_interfaces: bool,
    ) -> Result<(), BridgeError> {
        let shared = &closed.shared;
        let (port, claimed) = match opened {
            Some(Opened { port, claim }) => (Ok(port), claim),
            None if closed.keeps_interface(spec) => (open(spec), None),
            None => {
                let claimed = claim(spec, shared_interfaces)?;
                (open(spec), claimed)
            }
        };
        match port.and_then(|port| self.connect_again(shared, port)) {
            Ok(()) => {
                let closed_for = closed.since.elapsed();
                tracing::info!(
                    port = shared.name,
                    string = spec.string(),
                    ?closed_for,
                    "port opened again, by another port string"
                );
            }
            // It waited for its interface, and goes on to wait, by the new string.
            Err(error) if !closed.was_open && error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
        shared.change(|settings| settings.port = spec.clone());
        if let Some(Some(place)) = lock(&self.places).get_mut(usize::from(shared.number)) {
            place.kernel_notifies = self.kernel_notifies(spec);
            if !closed.keeps_interface(spec) {
                place.claim = claimed;
            }
        }
        if !closed.keeps_interface(spec) {
            warn_of_addresses(spec);
        }
        Ok(())
    }

    /// Opens a port as it was before it was closed, because it cannot be opened in the way that was
    /// asked for: `error`. Returns an error that says both.
    pub(super) fn restore(
        &self,
        closed: &Closed,
        spec: &PortSpec,
        error: BridgeError,
    ) -> BridgeError {
        let Closed { shared, before, .. } = closed;
        let number = usize::from(shared.number);
        if !closed.keeps_interface(spec) {
            let claim = Claim::of(before).unwrap_or_else(|error| {
                tracing::warn!(port = shared.name, %error, "the interface is not claimed any more");
                None
            });
            if let Some(Some(place)) = lock(&self.places).get_mut(number) {
                place.claim = claim;
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

    /// Tries to open a port again that is gone. Its place is locked only when that is done: reports
    /// need not wait for it. Says whether it is open. The caller holds `changes`.
    pub(super) fn reopen(&self, number: usize, shared: &Arc<Shared>) -> bool {
        match open(&shared.settings().port).and_then(|port| self.connect_again(shared, port)) {
            Ok(()) => {
                tracing::info!(port = %shared.name, "the port is back");
                true
            }
            Err(error) => {
                let mut places = lock(&self.places);
                let Some(Some(place)) = places.get_mut(number) else { return false };
                let text = error.problem();
                if place.error.as_deref() != Some(&text) {
                    tracing::warn!(port = %place.shared.name, error = text, "the port cannot be opened again yet");
                }
                place.error = Some(text);
                place.next_try = Instant::now() + TRY_AGAIN;
                false
            }
        }
    }

    /// Gives all threads their shares of a port that is open again.
    fn connect_again(
        &self,
        shared: &Arc<Shared>,
        mut port: Box<dyn Port>,
    ) -> Result<(), PortError> {
        if port.layer() != shared.layer {
            let reason = "its packets start elsewhere than before, with or without Ethernet header: add it as another port".to_owned();
            return Err(PortError::Unsupported { port: shared.name.clone(), reason });
        }
        shared.reopened(port.capabilities(), port.state());
        let queues = self.connect(shared, port.as_mut())?;
        let mut places = lock(&self.places);
        if let Some(Some(place)) = places.get_mut(usize::from(shared.number)) {
            place.queues = queues;
            place.state = port.state();
            place.hardware_address = port.hardware_address();
            place.error = None;
            place.reopened += 1;
            place.port = Some(port);
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
    fn a_port_that_waits_for_its_interface_waits_by_its_new_string() {
        let bridge = Bridge::start(settings("left=memory:waits")).expect("memory needs nothing");
        {
            let _alone = lock(&bridge.inner.changes);
            let mut places = lock(&bridge.inner.places);
            let place = places[0].as_mut().expect("is there");
            place.shared.change(|settings| settings.port = spec("left=packet:absent0"));
            (place.port, place.state.link) = (None, LinkState::Gone);
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
    fn strings_of_one_device_are_known_as_such() {
        let devices = ["packet:eth0?ring=1m", "xdp:eth0", "nic:page=4k@packet:eth0", "tap:eth0"]
            .map(|text| device_of(&spec(text)).to_owned());
        assert_eq!(devices, ["eth0"; 4]);
        assert_ne!(device_of(&spec("packet:eth1")), "eth0");
    }
}
