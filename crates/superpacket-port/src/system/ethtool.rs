//! Features and queues of network devices (`SIOCETHTOOL`, `linux/ethtool.h`).
//!
//! Uses the `ioctl`s, which every kernel has. The netlink family for the same purpose exists only
//! since Linux 5.6, and was completed later.

#![expect(unsafe_code, reason = "ioctls of ethtool(8)")]

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// A handle to the network device of one interface.
///
/// Every call may fail with the system call's error: `ENODEV` if the interface no longer exists,
/// `EPERM` for changes without `CAP_NET_ADMIN`, `EOPNOTSUPP` if the driver does not support the
/// command.
#[derive(Clone, Copy, Debug)]
pub struct Ethtool<'a> {
    socket: BorrowedFd<'a>,
    interface: &'a str,
}

/// One feature of a device, as `ethtool -k` lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feature {
    /// The kernel's name, such as `tx-tcp-segmentation`; empty for an unused bit.
    pub name: String,
    /// Whether the feature is in force.
    pub active: bool,
    /// Whether the feature was requested. Differs from `active` if another feature that it depends
    /// on is off.
    pub requested: bool,
    /// Whether the feature can be switched at all.
    pub changeable: bool,
}

/// A switch for a group of features. It has its own commands, which are older than named features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSwitch {
    /// Verification of received checksums (`rx-checksumming`).
    RxChecksumming,
    /// Completion of the checksums of sent packets (`tx-checksumming`).
    TxChecksumming,
    /// Sending of packets that lie in several pieces (`scatter-gather`).
    ScatterGather,
    /// Segmentation of TCP super-packets by the device (`tcp-segmentation-offload`).
    TcpSegmentation,
    /// Segmentation of super-packets by the kernel (`generic-segmentation-offload`).
    GenericSegmentation,
    /// Aggregation of received packets by the kernel (`generic-receive-offload`).
    GenericReceive,
}

/// Number of a device's queues in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Number of receive queues in use.
    pub rx: u32,
    /// Number of transmit queues in use.
    pub tx: u32,
}

impl FeatureSwitch {
    /// Returns the commands that read and set the switch (`ETHTOOL_G...`, `ETHTOOL_S...`).
    const fn commands(self) -> [u32; 2] {
        match self {
            FeatureSwitch::RxChecksumming => [0x14, 0x15],
            FeatureSwitch::TxChecksumming => [0x16, 0x17],
            FeatureSwitch::ScatterGather => [0x18, 0x19],
            FeatureSwitch::TcpSegmentation => [0x1e, 0x1f],
            FeatureSwitch::GenericSegmentation => [0x23, 0x24],
            FeatureSwitch::GenericReceive => [0x2b, 0x2c],
        }
    }
}

impl<'a> Ethtool<'a> {
    /// Creates a handle to the device of `interface`. The interface is looked up in the network
    /// namespace in which `socket`, of any family, was opened.
    pub const fn new(socket: BorrowedFd<'a>, interface: &'a str) -> Self {
        Ethtool { socket, interface }
    }

    /// Returns the driver's name: `veth`, `tun`, `virtio_net`.
    ///
    /// # Errors
    /// The system call's error.
    pub fn driver(&self) -> io::Result<String> {
        let mut info = [0; DRIVER_INFO];
        self.call(ETHTOOL_GDRVINFO, &mut info)?;
        let bytes = bytes(&info);
        Ok(text(&bytes[4..36]))
    }

    /// Returns all features of the device, ordered by their bits.
    ///
    /// # Errors
    /// The system call's error; `EOPNOTSUPP` if the kernel has no named features.
    pub fn features(&self) -> io::Result<Vec<Feature>> {
        let names = self.feature_names()?;
        // struct ethtool_gfeatures: cmd, number of blocks; then four masks for each 32 features:
        // available, requested, active, never changed.
        let blocks = names.len().div_ceil(32);
        let mut words = vec![0; 2 + blocks * 4];
        words[1] = blocks as u32;
        self.call(ETHTOOL_GFEATURES, &mut words)?;
        let feature = |(bit, name)| {
            let has = |mask: usize| words[2 + bit / 32 * 4 + mask] >> (bit % 32) & 1 == 1;
            Feature { name, active: has(2), requested: has(1), changeable: has(0) && !has(3) }
        };
        Ok(names.into_iter().enumerate().map(feature).collect())
    }

    /// Requests a feature, or withdraws the request. [`features`] tells whether it is in force
    /// afterwards.
    ///
    /// # Errors
    /// The system call's error; [`NotFound`](io::ErrorKind::NotFound) if this kernel does not know
    /// the name.
    ///
    /// [`features`]: Self::features
    pub fn set_feature(&self, name: &str, on: bool) -> io::Result<()> {
        let names = self.feature_names()?;
        let bit = names.iter().position(|known| known == name).ok_or(io::ErrorKind::NotFound)?;
        // struct ethtool_sfeatures: cmd, number of blocks; then two masks for each 32 features:
        // those to change, and their new values.
        let blocks = names.len().div_ceil(32);
        let mut words = vec![0; 2 + blocks * 2];
        words[1] = blocks as u32;
        words[2 + bit / 32 * 2] = 1 << (bit % 32);
        words[3 + bit / 32 * 2] = u32::from(on) << (bit % 32);
        self.call(ETHTOOL_SFEATURES, &mut words)
    }

    /// Returns whether a group of features is switched on.
    ///
    /// # Errors
    /// The system call's error.
    pub fn switch(&self, switch: FeatureSwitch) -> io::Result<bool> {
        // struct ethtool_value: cmd, value.
        let mut words = [0; 2];
        self.call(switch.commands()[0], &mut words)?;
        Ok(words[1] != 0)
    }

    /// Switches a group of features on or off.
    ///
    /// # Errors
    /// The system call's error.
    pub fn set_switch(&self, switch: FeatureSwitch, on: bool) -> io::Result<()> {
        self.call(switch.commands()[1], &mut [0, u32::from(on)])
    }

    /// Returns the number of receive and transmit queues in use (`ethtool -l`). Combined queues
    /// count as both.
    ///
    /// # Errors
    /// The system call's error.
    pub fn channels(&self) -> io::Result<Channels> {
        // struct ethtool_channels: cmd; maximum of rx, tx, other and combined queues; the same in
        // use.
        let mut words = [0; 9];
        self.call(ETHTOOL_GCHANNELS, &mut words)?;
        let [rx, tx, combined] = [words[5], words[6], words[8]];
        Ok(Channels { rx: rx + combined, tx: tx + combined })
    }

    fn feature_names(&self) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, 64-bit mask of string sets, then one count per
        // set in the mask.
        let mut info = [0; 5];
        bytes_of_mask(1 << ETH_SS_FEATURES, &mut info[2..4]);
        self.call(ETHTOOL_GSSET_INFO, &mut info)?;
        let count = info[4] as usize;
        if count == 0 || count > MAX_FEATURES {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // struct ethtool_gstrings: cmd, set, count, then names of 32 bytes.
        let mut words = vec![0; 3 + count * NAME / 4];
        (words[1], words[2]) = (ETH_SS_FEATURES, count as u32);
        self.call(ETHTOOL_GSTRINGS, &mut words)?;
        Ok(bytes(&words[3..]).chunks_exact(NAME).map(text).collect())
    }

    /// Makes one `SIOCETHTOOL` call. `words` is the structure of the command: 32-bit words, or
    /// bytes within such words. Its first word is set to the command.
    fn call(&self, command: u32, words: &mut [u32]) -> io::Result<()> {
        words[0] = command;
        let mut request =
            Request { name: [0; libc::IFNAMSIZ], data: words.as_mut_ptr().cast(), rest: [0; REST] };
        let name = self.interface.as_bytes();
        // The last byte stays free for the terminating NUL.
        let room = request.name[..libc::IFNAMSIZ - 1].get_mut(..name.len());
        let too_long = || {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a name of an interface has at most 15 bytes",
            )
        };
        room.ok_or_else(too_long)?.copy_from_slice(name);
        // SAFETY: the request contains an interface's name and a pointer to `words`, which lives
        // until the call returns. The callers above size `words`, and write counts into it, so that
        // the kernel writes no more than its length.
        Ok(unsafe { rustix::ioctl::ioctl(self.socket, EthtoolCall(&mut request)) }?)
    }
}

// Commands and sets of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_FEATURES: u32 = 4;

/// Length of `struct ethtool_drvinfo`, in 32-bit words.
const DRIVER_INFO: usize = 49;

/// Length in bytes of one name in a set of strings, such as the features' names
/// (`ETH_GSTRING_LEN`).
const NAME: usize = 32;

/// Maximum number of features accepted, far above any kernel's. Checked before memory is allocated
/// for the names.
const MAX_FEATURES: usize = 4096;

/// Bytes of `struct ifreq` after the name and a pointer.
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

// SAFETY: the operation takes a pointer to `struct ifreq`, whose layout `Request` has. It leaves
// the result in the memory that the request points to.
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

/// Returns the bytes of 32-bit words in memory order.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Stores a 64-bit number in two words, in memory order.
fn bytes_of_mask(mask: u64, words: &mut [u32]) {
    for (word, bytes) in words.iter_mut().zip(mask.to_ne_bytes().as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
}

/// Returns the text before the first NUL.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::system::RouteSocket;

    #[test]
    fn the_loopback_interface_tells_its_features_by_name_and_by_switch() {
        let socket = RouteSocket::open().expect("any socket will do");
        let loopback = Ethtool::new(socket.as_fd(), "lo");
        let features = loopback.features().expect("every device has features");
        let active = |name: &str| {
            features.iter().find(|feature| feature.name == name).expect("known").active
        };
        assert!(active("tx-scatter-gather") && active("tx-checksum-ip-generic"), "{features:?}");
        assert_eq!(
            loopback.switch(FeatureSwitch::ScatterGather).expect("asked"),
            active("tx-scatter-gather")
        );
        assert_eq!(
            loopback.switch(FeatureSwitch::TcpSegmentation).expect("asked"),
            active("tx-tcp-segmentation")
        );
        assert_eq!(
            loopback.switch(FeatureSwitch::GenericReceive).expect("asked"),
            active("rx-gro")
        );
        let names =
            features.iter().filter(|feature| !feature.name.is_empty()).map(|feature| &feature.name);
        assert!(
            names.clone().count() > 20 && names.clone().all(|name| name.is_ascii()),
            "{:?}",
            Vec::from_iter(names)
        );
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let socket = RouteSocket::open().expect("any socket will do");
        let missing = Ethtool::new(socket.as_fd(), "none0").features().expect_err("there is none");
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
        for name in ["sixteen-letters-", "a-name-that-is-too-long-for-one"] {
            let long = Ethtool::new(socket.as_fd(), name)
                .driver()
                .expect_err("no interface has such a name");
            assert_eq!(long.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        let unknown = Ethtool::new(socket.as_fd(), "lo")
            .set_feature("tx-by-pigeon", true)
            .expect_err("there is none");
        assert_eq!(unknown.kind(), io::ErrorKind::NotFound);
    }
}
