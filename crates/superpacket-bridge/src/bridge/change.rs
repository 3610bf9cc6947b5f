//! Changes of a port while it runs: one setting, or several that hold together, options of its port
//! string among them.

use superpacket_features::Feature;
use superpacket_io::port::PortError;
use superpacket_model::check;

use super::memory::Earlier;
use super::{Bridge, lock};
use crate::error::BridgeError;
use crate::report::{PortFeatures, PortReport};
use crate::runtime::Shared;
#[cfg(doc)]
use crate::settings::{Forwarding, PortSettings};
use crate::settings::{Limits, PortChange, TooBig};

impl Bridge {
    /// Switches an offload of a port. Whether it is in force then, and why not, is in the answer.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Forwarded`] for LRO that is not forced.
    pub fn set_feature(
        &self,
        port: &str,
        feature: Feature,
        on: bool,
        force: bool,
    ) -> Result<PortFeatures, BridgeError> {
        self.change(port, |shared| {
            if feature == Feature::LargeReceiveOffload && on && !force {
                return Err(BridgeError::Forwarded { port: port.into() });
            }
            shared.change(|settings| {
                settings.features = settings.features.set(feature, on);
                if feature == Feature::LargeReceiveOffload {
                    settings.force_lro = on && force;
                }
            });
            Ok(())
        })?;
        self.with(port, |place| place.shared.features())
    }

    /// Sets a limit of a port, by a name of [`Limits::names`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a limit that is none or out of
    /// range.
    pub fn set_limit(&self, port: &str, name: &str, value: u64) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            let set = |limits: &mut Limits| {
                limits
                    .set(name, value)
                    .map_err(|problem| BridgeError::Limit { port: port.into(), problem })
            };
            shared.change(|settings| set(&mut settings.limits))
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Sets what becomes of packets that are too long for a port.
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`].
    pub fn set_too_big(&self, port: &str, too_big: TooBig) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            shared.change(|settings| settings.too_big = too_big);
            Ok(())
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Says how what a port receives is aggregated, by a name of
    /// [`PortSettings::AGGREGATION`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a name or a word that is none.
    pub fn set_aggregation(
        &self,
        port: &str,
        name: &str,
        word: &str,
    ) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            let set = shared.change(|settings| settings.set_aggregation(name, word));
            set.map_err(|problem| BridgeError::Limit { port: port.into(), problem })
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Turns a switch of what passes between a port and the others, by a name of
    /// [`Forwarding::NAMES`].
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a name that is none.
    pub fn set_forwarding(
        &self,
        port: &str,
        name: &str,
        on: bool,
    ) -> Result<PortReport, BridgeError> {
        self.change(port, |shared| {
            let set = shared.change(|settings| settings.forwarding.set(name, on));
            set.map_err(|problem| BridgeError::Limit { port: port.into(), problem })
        })?;
        self.with(port, |place| place.report(&self.inner.table))
    }

    /// Changes options of a port's string, and settings of it. Where the string is another one
    /// then, the port is closed and opened again: it stays the same port, as with
    /// [`apply`](Self::apply), and the others go on. Packets that arrive in between are lost, as
    /// are those that it had received and not read; what is for it is dropped (`no_port`).
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a setting that is none or out of
    /// range; [`BridgeError::Port`] for an option that is none or out of range: nothing has changed
    /// then. [`BridgeError::NotReopened`] if the port cannot be opened so: it is open as before,
    /// and has the settings that it had.
    pub fn set_port(&self, port: &str, change: &PortChange) -> Result<PortReport, BridgeError> {
        let inner = &self.inner;
        let _alone = lock(&inner.changes);
        let shared = self.with(port, |place| place.shared.clone())?;
        let before = shared.settings();
        let wrong = |problem: String| BridgeError::Limit { port: port.into(), problem };
        // Whatever is wrong shows before anything is done.
        let mut wanted = before.clone();
        change
            .settings
            .iter()
            .try_for_each(|(name, value)| wanted.set(name, value))
            .map_err(wrong)?;
        let mut spec = before.port.clone();
        for (key, value) in &change.options {
            spec = spec.with_option(key, value.as_deref()).map_err(PortError::from)?;
        }
        let reopened = if spec.string() == before.port.string() {
            Ok(())
        } else {
            check(&spec).map_err(PortError::from)?;
            let closed = inner.close_to_reopen(&shared, &spec);
            let shared_interfaces = lock(&inner.settings).shared_interfaces;
            let reopened = inner.reopen_as(&closed, &spec, None, shared_interfaces);
            reopened.map_err(|error| inner.restore(&closed, &spec, error))
        };
        if reopened.is_ok() && !change.settings.is_empty() {
            // What else is set meanwhile stays.
            let (earlier, queues) = (Earlier::of(&shared), self.with(port, |place| place.queues)?);
            let set = shared.change(|settings| {
                change.settings.iter().try_for_each(|(name, value)| settings.set(name, value))
            });
            set.map_err(wrong)?;
            if let Err(error) = earlier.restore_without_memory(&shared, queues) {
                inner.announce();
                return Err(error);
            }
        }
        // There may be other queues now.
        let reconciled = inner.reconcile_workers();
        inner.announce();
        reopened.and(reconciled)?;
        self.with(port, |place| place.report(&inner.table))
    }

    pub(super) fn change(
        &self,
        port: &str,
        change: impl FnOnce(&Shared) -> Result<(), BridgeError>,
    ) -> Result<(), BridgeError> {
        self.with(port, |place| {
            let earlier = Earlier::of(&place.shared);
            change(&place.shared)?;
            earlier.restore_without_memory(&place.shared, place.queues)
        })??;
        self.inner.announce();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{BridgeSettings, PortSettings, SettingValue};

    fn change(options: &[(&str, Option<&str>)], settings: &[&(&str, SettingValue)]) -> PortChange {
        PortChange {
            options: options
                .iter()
                .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
                .collect(),
            settings: settings
                .iter()
                .map(|&&(name, ref value)| (name.to_owned(), value.clone()))
                .collect(),
        }
    }

    #[test]
    fn changes_of_a_port_hold_together_or_not_at_all() {
        let ports = ["left=memory:set-a", "memory:set-b"]
            .map(|port| PortSettings::new(port.parse().expect("a port string")));
        let bridge = Bridge::start(BridgeSettings {
            ports: ports.into(),
            threads: 1,
            ..BridgeSettings::default()
        })
        .expect("memory needs nothing");
        let isolated = ("isolated", SettingValue::Switch(true));
        let report = bridge
            .set_port("left", &change(&[("slots", Some("64"))], &[&isolated]))
            .expect("both can be");
        assert_eq!(
            (report.string.as_str(), report.forwarding["isolated"], report.reopened),
            ("memory:set-a?slots=64", true, 1)
        );
        let report = bridge
            .set_port(
                "left",
                &change(&[("slots", Some("64"))], &[&("address_limit", SettingValue::Number(9))]),
            )
            .expect("can be");
        assert_eq!(
            (report.limits["address_limit"], report.reopened),
            (9, 1),
            "the string is the same"
        );
        let off = ("isolated", SettingValue::Switch(false));
        for (refused, says) in [
            (change(&[("slots", Some("none"))], &[&off]), "option \"slots=none\" takes a number"),
            (change(&[("mode", Some("1"))], &[&off]), "option \"mode=1\" is not known"),
            (
                change(&[("full", None)], &[&off]),
                "option \"full\" is not set, so it cannot be removed",
            ),
            (
                change(
                    &[("slots", None)],
                    &[&off, &("address_limit", SettingValue::Number(u64::MAX))],
                ),
                "left: address_limit is 0",
            ),
        ] {
            let error = bridge.set_port("left", &refused).expect_err(says).to_string();
            assert!(
                error.contains(says) && !error.contains("cannot be opened"),
                "before anything is closed: {error}"
            );
        }
        let report = bridge.ports().remove(0);
        assert_eq!(
            (report.string.as_str(), report.forwarding["isolated"], report.reopened),
            ("memory:set-a?slots=64", true, 1)
        );
        // One without a name is called as before, although its string is another one now.
        let report =
            bridge.set_port("memory:set-b", &change(&[("slots", Some("9"))], &[])).expect("can be");
        assert_eq!(
            (report.port.as_str(), report.string.as_str()),
            ("memory:set-b", "memory:set-b?slots=9")
        );
        let error = bridge
            .set_port("memory:set-b?slots=9", &change(&[], &[&isolated]))
            .expect_err("no name")
            .to_string();
        assert!(error.contains("there are left, memory:set-b"), "{error}");
    }
}
