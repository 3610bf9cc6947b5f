//! The offload switches of an interface, by ioctl(2) as ethtool(8) does it (`linux/ethtool.h`),
//! without its binary.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{Context, LabError};
use crate::link::Link;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
/// Length of a name in a string set (`ETH_GSTRING_LEN`), with its NUL.
const NAME_LENGTH: usize = 32;

/// Switches that stand for several features, in ethtool(8)'s words, with their get and set
/// commands.
const GROUPS: [(&[&str], u32, u32); 6] = [
    (&["rx-checksumming", "rx"], 0x14, 0x15),
    (&["tx-checksumming", "tx"], 0x16, 0x17),
    (&["scatter-gather", "sg"], 0x18, 0x19),
    (&["tcp-segmentation-offload", "tso"], 0x1e, 0x1f),
    (&["generic-segmentation-offload", "gso"], 0x23, 0x24),
    (&["generic-receive-offload", "gro"], 0x2b, 0x2c),
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

/// One feature of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Feature {
    /// In force.
    pub active: bool,
    /// Asked for; it differs from `active` where something that it needs is off.
    pub requested: bool,
    /// May be switched at all.
    pub changeable: bool,
}

/// `struct ifreq` with a pointer, as `SIOCETHTOOL` takes it; the union is 24 bytes on 64-bit
/// machines.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut u32,
    rest: [u8; 16],
}

impl Link {
    /// All features by the kernel's names, such as `tx-tcp-segmentation`, `tx-udp-segmentation`,
    /// `rx-gro-list`.
    ///
    /// # Errors
    ///
    /// [`LabError::System`] where there is no such interface.
    pub fn features(&self) -> Result<BTreeMap<String, Feature>, LabError> {
        self.ethtool("features", |socket| {
            let names = feature_names(socket, self.name())?;
            let blocks = get_features(socket, self.name(), names.len())?;
            Ok(names.into_iter().enumerate().filter(|(_, name)| !name.is_empty()).map(|(bit, name)| (name, blocks.feature(bit))).collect())
        })
    }

    /// Whether a feature is in force: by the kernel's name, by ethtool's
    /// (`tcp-segmentation-offload`) or by its short one (`tso`).
    ///
    /// # Errors
    ///
    /// [`LabError::Invalid`] for a name that the kernel does not know; [`LabError::System`] where
    /// there is no such interface.
    pub fn feature(&self, name: &str) -> Result<bool, LabError> {
        if let Some(&(_, get, _)) = group(name) {
            return self.ethtool(name, |socket| {
                let mut value = [get, 0];
                ioctl(socket, self.name(), &mut value)?;
                Ok(value[1] != 0)
            });
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
        if let Some(&(_, _, set)) = group(name) {
            self.ethtool(name, |socket| ioctl(socket, self.name(), &mut [set, u32::from(on)]))?;
        } else {
            let found = self.ethtool(name, |socket| {
                let names = feature_names(socket, self.name())?;
                let Some(bit) = names.iter().position(|known| known == kernel_name(name)) else { return Ok(false) };
                set_feature_bit(socket, self.name(), names.len(), bit, on)?;
                Ok(true)
            })?;
            if !found {
                return Err(self.unknown(name));
            }
        }
        if self.feature(name)? == on {
            return Ok(());
        }
        let reason = "the device has it fixed, or something that it needs is off";
        Err(LabError::Invalid { what: format!("{self}: {name} {}", if on { "on" } else { "off" }), reason: reason.into() })
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
        LabError::Invalid { what: format!("{self}: feature {name:?}"), reason: "this kernel knows none of that name".into() }
    }

    fn ethtool<T: Send>(&self, what: &str, work: impl Fn(&OwnedFd) -> io::Result<T> + Sync) -> Result<T, LabError> {
        self.host().run(|| {
            let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
            let socket = socket.context(|| format!("{self}: {what}"))?;
            work(&socket).context(|| format!("{self}: {what}"))
        })
    }
}

fn group(name: &str) -> Option<&'static (&'static [&'static str], u32, u32)> {
    GROUPS.iter().find(|(names, ..)| names.contains(&name))
}

fn kernel_name(name: &str) -> &str {
    SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, kernel)| kernel)
}

/// `struct ethtool_gfeatures`: two words, then four words for every 32 features.
struct FeatureBlocks(Vec<u32>);

impl FeatureBlocks {
    fn feature(&self, bit: usize) -> Feature {
        let block = 2 + bit / 32 * 4;
        let has = |word: usize| self.0.get(block + word).is_some_and(|word| word >> (bit % 32) & 1 == 1);
        let never_changed = has(3);
        Feature { active: has(2), requested: has(1), changeable: has(0) && !never_changed }
    }
}

fn get_features(socket: &OwnedFd, interface: &str, count: usize) -> io::Result<FeatureBlocks> {
    let blocks = count.div_ceil(32);
    let mut words = vec![0; 2 + blocks * 4];
    (words[0], words[1]) = (ETHTOOL_GFEATURES, blocks as u32);
    ioctl(socket, interface, &mut words)?;
    Ok(FeatureBlocks(words))
}

/// `struct ethtool_sfeatures`: two words, then for every 32 features which are meant, and what they
/// shall be.
fn set_feature_bit(socket: &OwnedFd, interface: &str, count: usize, bit: usize, on: bool) -> io::Result<()> {
    let blocks = count.div_ceil(32);
    let mut words = vec![0; 2 + blocks * 2];
    (words[0], words[1]) = (ETHTOOL_SFEATURES, blocks as u32);
    words[2 + bit / 32 * 2] = 1 << (bit % 32);
    words[2 + bit / 32 * 2 + 1] = u32::from(on) << (bit % 32);
    ioctl(socket, interface, &mut words)
}

/// The names of all features, in the order of their bits; unused bits have empty names.
fn feature_names(socket: &OwnedFd, interface: &str) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info: cmd, reserved, a 64-bit mask of sets, then a count for each.
    let mask = u64::from(1_u32 << ETH_SS_FEATURES).to_ne_bytes();
    let half = |from: usize| u32::from_ne_bytes([mask[from], mask[from + 1], mask[from + 2], mask[from + 3]]);
    let mut info = [ETHTOOL_GSSET_INFO, 0, half(0), half(4), 0];
    ioctl(socket, interface, &mut info)?;
    let count = info[4] as usize;
    // struct ethtool_gstrings: cmd, set, count, then the names.
    let mut words = vec![0; 3 + count * NAME_LENGTH / 4];
    (words[0], words[1], words[2]) = (ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32);
    ioctl(socket, interface, &mut words)?;
    let bytes: Vec<u8> = words[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = |name: &[u8]| String::from_utf8_lossy(name.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned();
    Ok(bytes.chunks_exact(NAME_LENGTH).map(name).collect())
}

/// Runs a command whose structure consists of 32-bit words, the first being the command.
fn ioctl(socket: &OwnedFd, interface: &str, words: &mut [u32]) -> io::Result<()> {
    let mut request = Request { name: [0; libc::IFNAMSIZ], data: words.as_mut_ptr(), rest: [0; 16] };
    if interface.len() >= request.name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a name of an interface has at most 15 bytes"));
    }
    request.name[..interface.len()].copy_from_slice(interface.as_bytes());
    // SAFETY: `request` is at least as long as struct ifreq and lives through the call. Every
    // caller sizes `words` for its command by the count that it puts into it, so the kernel stays
    // within it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, std::ptr::from_mut(&mut request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
