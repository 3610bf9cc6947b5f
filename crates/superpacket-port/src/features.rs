//! The offloads of a port, by the names that ethtool gives them: which are requested, supported and
//! active, and why a requested offload is inactive. The dependencies between offloads are Linux's
//! (`netdev_fix_features`).
//!
//! ```rust
//! use superpacket_port::features::{Feature, FeatureSet, WhyInactive, resolve};
//!
//! let requested = FeatureSet::all().without(Feature::TxChecksumming);
//! let supported = FeatureSet::all().without("lro".parse()?);
//! let resolved = resolve(requested, supported);
//!
//! // TSO requires checksum offload.
//! let tso = Feature::TcpSegmentationOffload;
//! assert!(!resolved.active.contains(tso));
//! assert_eq!(resolved.why_inactive(tso), Some(WhyInactive::Requires(Feature::TxChecksumming)));
//! assert_eq!(resolved.why_inactive(Feature::LargeReceiveOffload), Some(WhyInactive::Unsupported));
//! # Ok::<(), superpacket_port::features::UnknownFeature>(())
//! ```

use core::fmt;
use core::str::FromStr;

/// An offload that can be switched on or off for each port, named as in `ethtool -k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// The device verifies received checksums. If off, they are verified in software.
    RxChecksumming,
    /// The port fills in the partial checksums of sent packets. If off, software does so before
    /// sending.
    TxChecksumming,
    /// The port accepts a packet that consists of several buffers. If off, the packet is copied
    /// into one.
    ScatterGather,
    /// The port accepts TCP super-packets and segments them itself.
    TcpSegmentationOffload,
    /// The port accepts UDP super-packets and segments them itself.
    TxUdpSegmentation,
    /// Segmentation by the port may change the IPv4 identification of packets with the Don't
    /// Fragment flag (RFC 6864).
    TxTcpMangleidSegmentation,
    /// Received packets are aggregated so that the original packets can be restored.
    GenericReceiveOffload,
    /// Received UDP datagrams are aggregated too.
    RxUdpGroForwarding,
    /// Received packets are aggregated for local delivery: merged packets cannot be restored.
    LargeReceiveOffload,
    /// The flow hash that the device reports is used.
    ReceiveHashing,
}

impl Feature {
    /// All offloads, in ethtool's order.
    pub const ALL: [Feature; 10] = [
        Feature::RxChecksumming,
        Feature::TxChecksumming,
        Feature::ScatterGather,
        Feature::TcpSegmentationOffload,
        Feature::TxTcpMangleidSegmentation,
        Feature::TxUdpSegmentation,
        Feature::GenericReceiveOffload,
        Feature::RxUdpGroForwarding,
        Feature::LargeReceiveOffload,
        Feature::ReceiveHashing,
    ];

    /// Returns the name that `ethtool -k` shows.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::RxChecksumming => "rx-checksumming",
            Feature::TxChecksumming => "tx-checksumming",
            Feature::ScatterGather => "scatter-gather",
            Feature::TcpSegmentationOffload => "tcp-segmentation-offload",
            Feature::TxUdpSegmentation => "tx-udp-segmentation",
            Feature::TxTcpMangleidSegmentation => "tx-tcp-mangleid-segmentation",
            Feature::GenericReceiveOffload => "generic-receive-offload",
            Feature::RxUdpGroForwarding => "rx-udp-gro-forwarding",
            Feature::LargeReceiveOffload => "large-receive-offload",
            Feature::ReceiveHashing => "receive-hashing",
        }
    }

    /// Returns the short name that `ethtool -K` also accepts; `None` if there is none.
    pub const fn short_name(self) -> Option<&'static str> {
        match self {
            Feature::RxChecksumming => Some("rx"),
            Feature::TxChecksumming => Some("tx"),
            Feature::ScatterGather => Some("sg"),
            Feature::TcpSegmentationOffload => Some("tso"),
            Feature::GenericReceiveOffload => Some("gro"),
            Feature::LargeReceiveOffload => Some("lro"),
            Feature::ReceiveHashing => Some("rxhash"),
            Feature::TxTcpMangleidSegmentation
            | Feature::TxUdpSegmentation
            | Feature::RxUdpGroForwarding => None,
        }
    }

    /// Returns the offloads that must be active for this one to be active (as in the kernel's
    /// `netdev_fix_features`).
    pub const fn requires(self) -> &'static [Feature] {
        match self {
            // The device that segments also fills in the checksums. A segment's header and payload
            // lie in separate buffers.
            Feature::TcpSegmentationOffload | Feature::TxUdpSegmentation => {
                &[Feature::TxChecksumming, Feature::ScatterGather]
            }
            Feature::TxTcpMangleidSegmentation => &[Feature::TcpSegmentationOffload],
            Feature::RxUdpGroForwarding => &[Feature::GenericReceiveOffload],
            // A packet merged in spite of a wrong checksum would leave with a right one.
            Feature::LargeReceiveOffload => &[Feature::RxChecksumming],
            Feature::RxChecksumming
            | Feature::TxChecksumming
            | Feature::ScatterGather
            | Feature::GenericReceiveOffload
            | Feature::ReceiveHashing => &[],
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The error for a name that is not the name of an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an offload")]
pub struct UnknownFeature;

impl FromStr for Feature {
    type Err = UnknownFeature;

    fn from_str(name: &str) -> Result<Self, UnknownFeature> {
        Feature::ALL
            .into_iter()
            .find(|feature| feature.name() == name || feature.short_name() == Some(name))
            .ok_or(UnknownFeature)
    }
}

/// A set of offloads.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FeatureSet(u16);

impl FeatureSet {
    /// The empty set.
    pub const NONE: FeatureSet = FeatureSet(0);

    /// Returns the set of all offloads.
    pub const fn all() -> Self {
        FeatureSet((1 << Feature::ALL.len()) - 1)
    }

    /// Returns whether the offload is in the set.
    #[inline]
    pub const fn contains(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u16) != 0
    }

    /// Returns the set with this offload added.
    #[must_use]
    pub const fn with(self, feature: Feature) -> Self {
        FeatureSet(self.0 | 1 << feature as u16)
    }

    /// Returns the set with this offload removed.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        FeatureSet(self.0 & !(1 << feature as u16))
    }

    /// Returns the set with this offload added if `on`, else removed.
    #[must_use]
    pub const fn set(self, feature: Feature, on: bool) -> Self {
        if on { self.with(feature) } else { self.without(feature) }
    }

    /// Iterates over the offloads of the set in ethtool's order.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL.into_iter().filter(move |&feature| self.contains(feature))
    }
}

impl FromIterator<Feature> for FeatureSet {
    fn from_iter<I: IntoIterator<Item = Feature>>(features: I) -> Self {
        features.into_iter().fold(FeatureSet::NONE, FeatureSet::with)
    }
}

impl fmt::Debug for FeatureSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter().map(Feature::name)).finish()
    }
}

/// The reason why a requested offload is not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhyInactive {
    /// The port does not support the offload.
    #[error("the port cannot do it")]
    Unsupported,
    /// The offload requires another one, which is not active.
    #[error("it needs {0}, which is off")]
    Requires(Feature),
}

/// The requested, the supported and the active offloads of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The offloads that are requested.
    pub requested: FeatureSet,
    /// The offloads that the port supports.
    pub supported: FeatureSet,
    /// The offloads that are active.
    pub active: FeatureSet,
}

impl Resolved {
    /// Returns why a requested offload is not active; `None` if it is active, or not requested.
    pub fn why_inactive(&self, feature: Feature) -> Option<WhyInactive> {
        if !self.requested.contains(feature) || self.active.contains(feature) {
            None
        } else if !self.supported.contains(feature) {
            Some(WhyInactive::Unsupported)
        } else {
            let missing =
                feature.requires().iter().find(|&&required| !self.active.contains(required));
            missing.map(|&required| WhyInactive::Requires(required))
        }
    }
}

/// Determines which of the requested offloads are active on a port with these capabilities.
pub fn resolve(requested: FeatureSet, supported: FeatureSet) -> Resolved {
    let mut active = FeatureSet(requested.0 & supported.0);
    // Removing an offload may make others inactive: repeat until the set does not change, at most
    // once per offload.
    loop {
        let next = active
            .iter()
            .filter(|feature| feature.requires().iter().all(|&required| active.contains(required)))
            .collect();
        if next == active {
            return Resolved { requested, supported, active };
        }
        active = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for feature in Feature::ALL {
            assert_eq!(feature.name().parse(), Ok(feature));
            if let Some(short) = feature.short_name() {
                assert_eq!(short.parse(), Ok(feature));
            }
        }
        assert_eq!("tcp".parse::<Feature>(), Err(UnknownFeature));
    }

    #[test]
    fn an_offload_is_inactive_without_its_requirements() {
        let resolved =
            resolve(FeatureSet::all().without(Feature::ScatterGather), FeatureSet::all());
        for lost in [Feature::TcpSegmentationOffload, Feature::TxUdpSegmentation] {
            assert!(!resolved.active.contains(lost), "{lost}");
            assert_eq!(
                resolved.why_inactive(lost),
                Some(WhyInactive::Requires(Feature::ScatterGather))
            );
        }
        let mangle = Feature::TxTcpMangleidSegmentation;
        assert_eq!(
            resolved.why_inactive(mangle),
            Some(WhyInactive::Requires(Feature::TcpSegmentationOffload))
        );
        assert!(resolved.active.contains(Feature::TxChecksumming));
        assert_eq!(resolved.why_inactive(Feature::ScatterGather), None, "it was not requested");
    }

    #[test]
    fn every_set_resolves_to_a_consistent_set() {
        for requested in 0..1 << Feature::ALL.len() {
            let active = resolve(FeatureSet(requested), FeatureSet::all()).active;
            assert_eq!(active.0 & !requested, 0);
            assert!(active.iter().all(|feature| {
                feature.requires().iter().all(|&required| active.contains(required))
            }));
            assert_eq!(resolve(active, FeatureSet::all()).active, active);
        }
    }
}
