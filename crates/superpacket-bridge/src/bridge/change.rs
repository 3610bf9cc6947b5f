//! Changes settings of a running port, including options of its port string.

use superpacket_model::check;
use superpacket_port::PortError;
use superpacket_port::features::Feature;

use super::memory::PreviousSettings;
use super::slot::PortSlot;
use super::{Bridge, lock};
use crate::error::BridgeError;
use crate::report::{PortFeatures, PortReport};
use crate::runtime::SharedPort;
use crate::settings::{NamedSettings, PortChange, PortSettings};

impl Bridge {
    /// Switches an offload of a port on or off. The result says whether the offload is in use, and
    /// if not, why.
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
        self.with(port, PortSlot::features)
    }

    /// Changes options of a port's string, and settings of the port. If the string changes, or
    /// [`kernel_path`](PortSettings::kernel_path) is no longer off, the port is closed and opened
    /// again, as by [`apply`](Self::apply), while the others go on. Packets that arrive in between,
    /// or that the port had not yet delivered, are lost. Packets for the port are dropped meanwhile
    /// (`no_port`).
    ///
    /// # Errors
    /// [`BridgeError::NoSuchPort`]; [`BridgeError::Limit`] for a wrong setting or
    /// [`BridgeError::Port`] for a wrong option: nothing has changed then.
    /// [`BridgeError::NotReopened`] if the port cannot be opened with the new options: it is opened
    /// as before, with its former settings.
    pub fn set_port(&self, port: &str, change: &PortChange) -> Result<PortReport, BridgeError> {
        let inner = &self.inner;
        let _alone = lock(&inner.changes);
        let shared = self.with(port, |slot| slot.shared.clone())?;
        let before = shared.settings();
        let wrong = |problem: String| BridgeError::Limit { port: port.into(), problem };
        // All errors are found before anything is changed.
        let set = |settings: &mut PortSettings| {
            let mut named = change.settings.iter();
            named.try_for_each(|(name, value)| settings.set(name, value.clone())).map_err(wrong)
        };
        let mut after = before.clone();
        set(&mut after)?;
        let mode = after.kernel_path;
        let is_asked = change.settings.contains_key("kernel_path");
        let joins_kernel = self.with(port, |slot| slot.needs_reopening(mode, is_asked))?;
        let mut spec = before.port.clone();
        for (key, value) in &change.options {
            spec = spec.with_option(key, value.as_deref()).map_err(PortError::from)?;
        }
        let reopened = if spec.string() == before.port.string() && !joins_kernel {
            Ok(())
        } else {
            check(&spec).map_err(PortError::from)?;
            let closed = inner.close_to_reopen(&shared, &spec, mode);
            let shared_interfaces = lock(&inner.settings).shared_interfaces;
            let reopened = inner.reopen_as(&closed, &spec, None, shared_interfaces);
            reopened.map_err(|error| inner.restore(&closed, &spec, error))
        };
        if reopened.is_ok() && !change.settings.is_empty() {
            // Settings that somebody else changes meanwhile are kept.
            let (earlier, queues) =
                (PreviousSettings::of(&shared), self.with(port, |slot| slot.queues)?);
            shared.change(set)?;
            if let Err(error) = earlier.restore_without_memory(&shared, queues) {
                inner.announce();
                return Err(error);
            }
        }
        // The number of receive queues may have changed.
        let reconciled = inner.reconcile_workers();
        inner.announce();
        reopened.and(reconciled)?;
        self.with(port, |slot| slot.report(&inner.table))
    }

    pub(super) fn change(
        &self,
        port: &str,
        change: impl FnOnce(&SharedPort) -> Result<(), BridgeError>,
    ) -> Result<(), BridgeError> {
        self.with(port, |slot| {
            let earlier = PreviousSettings::of(&slot.shared);
            change(&slot.shared)?;
            earlier.restore_without_memory(&slot.shared, slot.queues)
        })??;
        self.inner.announce();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{BridgeSettings, SettingValue};

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
    fn changes_of_a_port_are_applied_all_or_not_at_all() {
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
            (report.string.as_str(), report.settings["isolated"].clone(), report.reopened),
            ("memory:set-a?slots=64", true.into(), 1)
        );
        let report = bridge
            .set_port(
                "left",
                &change(&[("slots", Some("64"))], &[&("address_limit", SettingValue::Number(9))]),
            )
            .expect("can be");
        assert_eq!(
            (report.settings["address_limit"].clone(), report.reopened),
            (9.into(), 1),
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
            (report.string.as_str(), report.settings["isolated"].clone(), report.reopened),
            ("memory:set-a?slots=64", true.into(), 1)
        );
        // A port without an explicit name keeps its name, although its string has changed.
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
