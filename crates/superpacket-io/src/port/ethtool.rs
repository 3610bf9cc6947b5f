//! What an interface's device does itself: its driver and its offloads (`SIOCETHTOOL`,
//! `linux/ethtool.h`).

use std::ffi::c_void;
use std::io;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use super::interface::Interface;

/// The offloads of a device that are in force now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceFeatures {
    /// It verifies received checksums.
    pub rx_checksumming: bool,
    /// It fills in transport checksums, of IPv4 and IPv6.
    pub tx_checksumming: bool,
    /// It takes packets in pieces.
    pub scatter_gather: bool,
    /// It cuts TCP super-packets, of IPv4 and IPv6.
    pub tcp_segmentation_offload: bool,
    /// It cuts UDP super-packets.
    pub tx_udp_segmentation: bool,
    /// The kernel cuts super-packets before it, where it does not.
    pub generic_segmentation_offload: bool,
    /// The kernel aggregates what it receives.
    pub generic_receive_offload: bool,
    /// It aggregates what it receives for local delivery.
    pub large_receive_offload: bool,
    /// It reports flow hashes.
    pub receive_hashing: bool,
}

/// The queues of a device that are in use now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

impl Interface {
    /// The driver's name: `veth`, `tun`, `virtio_net`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` from drivers without one; what else the system refused.
    pub fn driver(&self) -> io::Result<String> {
        let mut info = [0; DRIVER_INFO];
        self.ethtool(ETHTOOL_GDRVINFO, &mut info)?;
        let name = &info[4..36];
        Ok(String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or(name)).into_owned())
    }

    /// Its device's offloads: by the features' names, or, where the driver has none of them, by a
    /// call for each.
    ///
    /// # Errors
    /// What the system refused.
    pub fn features(&self) -> io::Result<DeviceFeatures> {
        match self.active_features() {
            Ok(names) => Ok(DeviceFeatures::named(&names)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(self.legacy_features()),
            Err(error) => Err(error),
        }
    }

    /// Is the feature of this name (`ethtool -k`'s long list: `tx-udp_tnl-segmentation`) in force?
    /// `false` for names that the kernel does not know.
    ///
    /// # Errors
    /// What the system refused.
    pub fn has_feature(&self, name: &str) -> io::Result<bool> {
        Ok(self.active_features()?.iter().any(|active| active == name))
    }

    /// The names of all features that are in force.
    fn active_features(&self) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, 64-bit mask of sets, then a count for each set
        // of the mask.
        let mut info = [0; 20];
        write(&mut info, 8, 1 << ETH_SS_FEATURES);
        self.ethtool(ETHTOOL_GSSET_INFO, &mut info)?;
        let count = read(&info, 16) as usize;
        if count == 0 || count > MOST_FEATURES {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // struct ethtool_gstrings: cmd, set, count, names of 32 bytes.
        let mut strings = vec![0; 12 + count * NAME];
        write(&mut strings, 4, ETH_SS_FEATURES);
        write(&mut strings, 8, count as u32);
        self.ethtool(ETHTOOL_GSTRINGS, &mut strings)?;
        // struct ethtool_gfeatures: cmd, count of blocks, for each 32 features four masks:
        // available, requested, active, never changed.
        let blocks = count.div_ceil(32);
        let mut features = vec![0; 8 + blocks * 16];
        write(&mut features, 4, blocks as u32);
        self.ethtool(ETHTOOL_GFEATURES, &mut features)?;
        let is_active = |index: &usize| read(&features, 8 + index / 32 * 16 + 8) >> (index % 32) & 1 != 0;
        let name = |index: usize| {
            let name = &strings[12 + index * NAME..][..NAME];
            String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or(name)).into_owned()
        };
        Ok((0..count).filter(is_active).map(name).collect())
    }

    /// The features that have calls of their own; what a driver refuses to tell, it does not have.
    fn legacy_features(&self) -> DeviceFeatures {
        let value = |command| {
            let mut value = [0; 8];
            self.ethtool(command, &mut value).map_or(0, |()| read(&value, 4))
        };
        let flags = value(ETHTOOL_GFLAGS);
        DeviceFeatures {
            rx_checksumming: value(ETHTOOL_GRXCSUM) != 0,
            tx_checksumming: value(ETHTOOL_GTXCSUM) != 0,
            scatter_gather: value(ETHTOOL_GSG) != 0,
            tcp_segmentation_offload: value(ETHTOOL_GTSO) != 0,
            tx_udp_segmentation: false,
            generic_segmentation_offload: value(ETHTOOL_GGSO) != 0,
            generic_receive_offload: value(ETHTOOL_GGRO) != 0,
            large_receive_offload: flags & ETH_FLAG_LRO != 0,
            receive_hashing: flags & ETH_FLAG_RXHASH != 0,
        }
    }

    /// How many receive and transmit queues are in use now, those that do both counted for each
    /// (`ethtool -l`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` from drivers that do not tell; what else the system refused.
    pub fn channels(&self) -> io::Result<Channels> {
        let mut channels = [0; CHANNELS];
        self.ethtool(ETHTOOL_GCHANNELS, &mut channels)?;
        let [rx, tx, combined] = [20, 24, 32].map(|at| read(&channels, at));
        Ok(Channels { rx: rx + combined, tx: tx + combined })
    }

    /// One `SIOCETHTOOL` call; `data` starts with room for the command.
    fn ethtool(&self, command: u32, data: &mut [u8]) -> io::Result<()> {
        write(data, 0, command);
        let mut request = Request { name: [0; libc::IFNAMSIZ], data: data.as_mut_ptr().cast(), rest: [0; REST] };
        let name = self.name().as_bytes();
        let room = request.name.get_mut(..name.len()).ok_or(io::ErrorKind::InvalidInput)?;
        room.copy_from_slice(name);
        // SAFETY: the request names an interface, and its pointer `data`, which lives until the
        // call returns. By the sizes that the callers give it and the counts they write into it,
        // the kernel writes no more than its length.
        Ok(unsafe { rustix::ioctl::ioctl(self.socket(), EthtoolCall(&mut request)) }?)
    }
}

impl DeviceFeatures {
    fn named(active: &[String]) -> Self {
        let has = |name: &str| active.iter().any(|active| active == name);
        DeviceFeatures {
            rx_checksumming: has("rx-checksum"),
            tx_checksumming: has("tx-checksum-ip-generic") || (has("tx-checksum-ipv4") && has("tx-checksum-ipv6")),
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

// Commands, sets and flags of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRXCSUM: u32 = 0x14;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GSG: u32 = 0x18;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_GGSO: u32 = 0x23;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_FEATURES: u32 = 4;
const ETH_FLAG_LRO: u32 = 1 << 15;
const ETH_FLAG_RXHASH: u32 = 1 << 28;

/// Length of `struct ethtool_drvinfo` in bytes.
const DRIVER_INFO: usize = 196;

/// Length of `struct ethtool_channels` in bytes.
const CHANNELS: usize = 36;

/// Length of a name in a string set in bytes (`ETH_GSTRING_LEN`).
const NAME: usize = 32;

/// More features than any kernel has: what a count is checked against before memory is taken for
/// it.
const MOST_FEATURES: usize = 4096;

/// What is left of `struct ifreq` behind the name and a pointer.
const REST: usize = size_of::<libc::ifreq>() - libc::IFNAMSIZ - size_of::<*mut c_void>();

/// `struct ifreq` as `SIOCETHTOOL` reads it.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut c_void,
    rest: [u8; REST],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// `ioctl(SIOCETHTOOL)`.
struct EthtoolCall<'a>(&'a mut Request);

// SAFETY: the operation takes a pointer to `struct ifreq`, which `Request` has the layout of, and
// leaves the result in what that points at.
unsafe impl Ioctl for EthtoolCall<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        libc::SIOCETHTOOL as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

fn read(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn write(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_leaves_nothing_to_do() {
        let interface = Interface::open("packet:lo", "lo").expect("every namespace has one");
        let features = interface.features().expect("every device has features");
        assert!(features.tx_checksumming && features.scatter_gather && features.generic_segmentation_offload, "{features:?}");
        assert_eq!(interface.has_feature("tx-scatter-gather").expect("asked"), features.scatter_gather);
        assert!(!interface.has_feature("tx-by-pigeon").expect("asked"));
        let legacy = interface.legacy_features();
        let known = DeviceFeatures { tx_udp_segmentation: false, ..features };
        assert_eq!(legacy, known, "both ways say the same");
    }

    #[test]
    fn both_ip_versions_count() {
        let names = ["tx-checksum-ipv4", "tx-tcp-segmentation", "tx-scatter-gather"].map(str::to_owned);
        let features = DeviceFeatures::named(&names);
        assert_eq!(features, DeviceFeatures { scatter_gather: true, ..DeviceFeatures::default() });
    }
}
