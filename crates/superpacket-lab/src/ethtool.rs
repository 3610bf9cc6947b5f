//! The offload features of an interface, by any name that ethtool(8) accepts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use superpacket_port::system::{Ethtool, Feature, FeatureSwitch, RouteSocket};

use crate::error::{Context, LabError};
use crate::link::Link;

/// Names of ethtool(8) that stand for several features.
const GROUPS: [(&[&str], FeatureSwitch); 6] = [
    (&["rx-checksumming", "rx"], FeatureSwitch::RxChecksumming),
    (&["tx-checksumming", "tx"], FeatureSwitch::TxChecksumming),
    (&["scatter-gather", "sg"], FeatureSwitch::ScatterGather),
    (&["tcp-segmentation-offload", "tso"], FeatureSwitch::TcpSegmentation),
    (&["generic-segmentation-offload", "gso"], FeatureSwitch::GenericSegmentation),
    (&["generic-receive-offload", "gro"], FeatureSwitch::GenericReceive),
];

/// Names of ethtool(8) for single features, and the kernel's names.
const SYNONYMS: [(&str, &str); 7] = [
    ("large-receive-offload", "rx-lro"),
    ("lro", "rx-lro"),
    ("rx-vlan-offload", "rx-vlan-hw-parse"),
    ("tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple-filters", "rx-ntuple-filter"),
    ("receive-hashing", "rx-hashing"),
    ("rxhash", "rx-hashing"),
];

impl Link {
    /// Returns all features by the kernel's names, such as `tx-tcp-segmentation`,
    /// `tx-udp-segmentation` or `rx-gro-list`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] if there is no such interface.
    pub fn features(&self) -> Result<BTreeMap<String, Feature>, LabError> {
        let features = self.ethtool("features", |device| device.features())?;
        let named = features.into_iter().filter(|feature| !feature.name.is_empty());
        Ok(named.map(|feature| (feature.name.clone(), feature)).collect())
    }

    /// Returns whether a feature is active. The name may be the kernel's, ethtool's
    /// (`tcp-segmentation-offload`) or its short form (`tso`).
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a name that the kernel does not know; [`LabError::System`] if
    /// there is no such interface.
    pub fn feature(&self, name: &str) -> Result<bool, LabError> {
        if let Some(switch) = group(name) {
            return self.ethtool(name, |device| device.switch(switch));
        }
        let known = self.features()?;
        known.get(kernel_name(name)).map(|feature| feature.active).ok_or_else(|| self.unknown(name))
    }

    /// Switches a feature on or off, by any of its names.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a name that the kernel does not know, or if the feature does not
    /// change: the device has fixed it, or a feature that it requires is off.
    /// [`LabError::System`] if the kernel refuses.
    pub fn set_feature(&self, name: &str, on: bool) -> Result<(), LabError> {
        let switched = match group(name) {
            Some(switch) => self.ethtool(name, |device| device.set_switch(switch, on)),
            None => self.ethtool(name, |device| device.set_feature(kernel_name(name), on)),
        };
        match switched {
            Err(LabError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(self.unknown(name));
            }
            other => other?,
        }
        if self.feature(name)? == on {
            return Ok(());
        }
        let reason = "the device has fixed it, or a feature that it requires is off";
        Err(LabError::Invalid {
            what: format!("{self}: {name} {}", if on { "on" } else { "off" }),
            reason: reason.into(),
        })
    }

    /// Switches several features, in the given order.
    ///
    /// # Errors
    ///
    /// Those of [`Link::set_feature`].
    pub fn set_features(&self, features: &[(&str, bool)]) -> Result<(), LabError> {
        features.iter().try_for_each(|&(name, on)| self.set_feature(name, on))
    }

    fn unknown(&self, name: &str) -> LabError {
        LabError::Invalid {
            what: format!("{self}: feature {name:?}"),
            reason: "unknown feature name".into(),
        }
    }

    fn ethtool<T: Send>(
        &self,
        what: &str,
        work: impl Fn(Ethtool<'_>) -> io::Result<T> + Sync,
    ) -> Result<T, LabError> {
        self.host().run(|| {
            let socket = RouteSocket::open().context(|| format!("{self}: {what}"))?;
            work(Ethtool::new(socket.as_fd(), self.name())).context(|| format!("{self}: {what}"))
        })
    }
}

fn group(name: &str) -> Option<FeatureSwitch> {
    GROUPS.iter().find(|(names, _)| names.contains(&name)).map(|&(_, switch)| switch)
}

fn kernel_name(name: &str) -> &str {
    SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, kernel)| kernel)
}
