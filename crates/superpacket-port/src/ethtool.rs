//! The offloads of network devices that ports use.

use std::io;

use super::interface::NetworkInterface;

/// The offloads of a network device that are currently active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceFeatures {
    /// The device verifies received checksums.
    pub rx_checksumming: bool,
    /// The device fills in transport checksums over IPv4 and IPv6.
    pub tx_checksumming: bool,
    /// The device sends packets that consist of several buffers (scatter-gather).
    pub scatter_gather: bool,
    /// The device segments TCP super-packets over IPv4 and IPv6.
    pub tcp_segmentation_offload: bool,
    /// The device segments UDP super-packets.
    pub tx_udp_segmentation: bool,
    /// The kernel segments super-packets that the device cannot segment.
    pub generic_segmentation_offload: bool,
    /// The kernel aggregates received packets.
    pub generic_receive_offload: bool,
    /// The device aggregates received packets for local delivery.
    pub large_receive_offload: bool,
    /// The device reports flow hashes.
    pub receive_hashing: bool,
}

impl DeviceFeatures {
    /// Reads the offloads of an interface's device.
    ///
    /// # Errors
    /// The system call's error.
    pub fn of(interface: &NetworkInterface) -> io::Result<Self> {
        Ok(DeviceFeatures::from_names(&active_features(interface)?))
    }

    fn from_names(active: &[String]) -> Self {
        let has = |name: &str| active.iter().any(|active| active == name);
        DeviceFeatures {
            rx_checksumming: has("rx-checksum"),
            tx_checksumming: has("tx-checksum-ip-generic")
                || (has("tx-checksum-ipv4") && has("tx-checksum-ipv6")),
            scatter_gather: has("tx-scatter-gather"),
            tcp_segmentation_offload: has("tx-tcp-segmentation") && has("tx-tcp6-segmentation"),
            tx_udp_segmentation: has("tx-udp-segmentation"),
            generic_segmentation_offload: has("tx-generic-segmentation"),
            generic_receive_offload: has("rx-gro"),
            large_receive_offload: has("rx-lro"),
            receive_hashing: has("rx-hashing"),
        }
    }
}

/// Returns whether the feature with this name is active, as shown by `ethtool -k` (such as
/// `tx-udp_tnl-segmentation`); `false` if the kernel does not know the name.
///
/// # Errors
/// The system call's error.
pub(crate) fn has_feature(interface: &NetworkInterface, name: &str) -> io::Result<bool> {
    Ok(active_features(interface)?.iter().any(|active| active == name))
}

/// Returns the names of all active features.
fn active_features(interface: &NetworkInterface) -> io::Result<Vec<String>> {
    Ok(interface
        .ethtool()
        .features()?
        .into_iter()
        .filter(|feature| feature.active)
        .map(|feature| feature.name)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_leaves_nothing_to_do() {
        let interface = NetworkInterface::open("packet:lo", "lo").expect("every namespace has one");
        let features = DeviceFeatures::of(&interface).expect("every device has features");
        assert!(
            features.tx_checksumming
                && features.scatter_gather
                && features.generic_segmentation_offload,
            "{features:?}"
        );
        assert_eq!(
            has_feature(&interface, "tx-scatter-gather").expect("asked"),
            features.scatter_gather
        );
        assert!(!has_feature(&interface, "tx-by-pigeon").expect("asked"));
    }

    #[test]
    fn both_ip_versions_count() {
        let names =
            ["tx-checksum-ipv4", "tx-tcp-segmentation", "tx-scatter-gather"].map(str::to_owned);
        let features = DeviceFeatures::from_names(&names);
        assert_eq!(features, DeviceFeatures { scatter_gather: true, ..DeviceFeatures::default() });
    }
}
