//! The offload switches of an interface, by any of the names that ethtool(8) takes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use superpacket_port::system::{Ethtool, Feature, RouteSocket, Switch};

use crate::error::{Context, LabError};
use crate::link::Link;

/// Switches that stand for several features, in ethtool(8)'s words.
const GROUPS: [(&[&str], Switch); 6] = [
    (&["rx-checksumming", "rx"], Switch::RxChecksumming),
    (&["tx-checksumming", "tx"], Switch::TxChecksumming),
    (&["scatter-gather", "sg"], Switch::ScatterGather),
    (&["tcp-segmentation-offload", "tso"], Switch::TcpSegmentation),
    (&["generic-segmentation-offload", "gso"], Switch::GenericSegmentation),
    (&["generic-receive-offload", "gro"], Switch::GenericReceive),
];

/// ethtool's other words for single features of the kernel.
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
    /// All features by the kernel's names, such as `tx-tcp-segmentation`, `tx-udp-segmentation`,
    /// `rx-gro-list`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where there is no such interface.
    pub fn features(&self) -> Result<BTreeMap<String, Feature>, LabError> {
        let features = self.ethtool("features", |device| device.features())?;
        let named = features.into_iter().filter(|feature| !feature.name.is_empty());
        Ok(named.map(|feature| (feature.name.clone(), feature)).collect())
    }

    /// Whether a feature is in force: by the kernel's name, by ethtool's
    /// (`tcp-segmentation-offload`) or by its short one (`tso`).
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a name that the kernel does not know; [`LabError::System`] where
    /// there is no such interface.
    pub fn feature(&self, name: &str) -> Result<bool, LabError> {
        if let Some(switch) = group(name) {
            return self.ethtool(name, |device| device.switch(switch));
        }
        let known = self.features()?;
        known.get(kernel_name(name)).map(|feature| feature.active).ok_or_else(|| self.unknown(name))
    }

    /// Switches a feature, by any of its names.
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a name that the kernel does not know, and where the feature is not
    /// as asked for afterwards, because the device has it fixed or because something that it needs
    /// is off; [`LabError::System`] where the kernel refuses.
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
        let reason = "the device has it fixed, or something that it needs is off";
        Err(LabError::Invalid {
            what: format!("{self}: {name} {}", if on { "on" } else { "off" }),
            reason: reason.into(),
        })
    }

    /// Switches several features, in order.
    ///
    /// # Errors
    ///
    /// As [`Link::set_feature`].
    pub fn set_features(&self, features: &[(&str, bool)]) -> Result<(), LabError> {
        features.iter().try_for_each(|&(name, on)| self.set_feature(name, on))
    }

    fn unknown(&self, name: &str) -> LabError {
        LabError::Invalid {
            what: format!("{self}: feature {name:?}"),
            reason: "this kernel knows none of that name".into(),
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

fn group(name: &str) -> Option<Switch> {
    GROUPS.iter().find(|(names, _)| names.contains(&name)).map(|&(_, switch)| switch)
}

fn kernel_name(name: &str) -> &str {
    SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, kernel)| kernel)
}
