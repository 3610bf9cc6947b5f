//! What the card is like.

use std::str::FromStr;

use superpacket_port::features::{Feature, FeatureSet, resolve};
use superpacket_port::{NIC_SETTINGS, SpecError, SpecOptions};
use superpacket_steer::ToeplitzKey;

/// What frames are received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// Pages of 4,096 bytes.
    Page4K,
    /// Pages of 8,192 bytes.
    Page8K,
    /// Pages of 16,384 bytes.
    Page16K,
    /// Pages of 32,768 bytes.
    Page32K,
    /// A buffer for each frame, long enough for the longest.
    Linear,
}

impl PageSize {
    /// Bytes of a page; `None` for linear buffers.
    pub const fn bytes(self) -> Option<usize> {
        match self {
            PageSize::Page4K => Some(4 << 10),
            PageSize::Page8K => Some(8 << 10),
            PageSize::Page16K => Some(16 << 10),
            PageSize::Page32K => Some(32 << 10),
            PageSize::Linear => None,
        }
    }
}

impl FromStr for PageSize {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "4k" => Ok(PageSize::Page4K),
            "8k" => Ok(PageSize::Page8K),
            "16k" => Ok(PageSize::Page16K),
            "32k" => Ok(PageSize::Page32K),
            "linear" => Ok(PageSize::Linear),
            _ => Err(()),
        }
    }
}

/// What the card says of received checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RxSums {
    /// Nothing.
    None,
    /// How many are right
    /// ([`RxChecksum::Unnecessary`](superpacket::packet::RxChecksum::Unnecessary)).
    Verified,
    /// The sum of everything behind the Ethernet header
    /// ([`RxChecksum::Complete`](superpacket::packet::RxChecksum::Complete)).
    Complete,
}

impl FromStr for RxSums {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "none" => Ok(RxSums::None),
            "verified" => Ok(RxSums::Verified),
            "complete" => Ok(RxSums::Complete),
            _ => Err(()),
        }
    }
}

/// What follows a frame shorter than 60 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Nothing.
    Off,
    /// Zeros up to 60 bytes.
    Zero,
    /// Other bytes up to 60, always the same.
    Garbage,
}

impl FromStr for Padding {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Padding::Off),
            "on" => Ok(Padding::Zero),
            "garbage" => Ok(Padding::Garbage),
            _ => Err(()),
        }
    }
}

/// What becomes of frames for which a ring has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingFull {
    /// They are dropped and counted.
    Drop,
    /// They wait in the port that is wrapped, which may drop them itself. Frames of one
    /// super-packet are not parted.
    Wait,
}

impl FromStr for RingFull {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "drop" => Ok(RingFull::Drop),
            "wait" => Ok(RingFull::Wait),
            _ => Err(()),
        }
    }
}

/// Which TCP super-packets the card cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TsoLimit {
    /// None.
    Off,
    /// Those of at most this much TCP payload, in bytes.
    Payload(u32),
    /// All of at most 65,536 bytes from the IP header on.
    Full,
}

impl FromStr for TsoLimit {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(TsoLimit::Off),
            "64k" => Ok(TsoLimit::Full),
            bytes => bytes
                .parse()
                .ok()
                .filter(|bytes| (1..=65_535).contains(bytes))
                .map(TsoLimit::Payload)
                .ok_or(()),
        }
    }
}

/// A model NIC's settings: see the [module](super) for what they mean.
///
/// ```
/// use superpacket_model::nic::{NicSettings, PageSize, RxSums};
///
/// let settings = NicSettings { page: PageSize::Page8K, sums: RxSums::Complete, ..NicSettings::default() };
/// assert_eq!(settings.ring, 256);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicSettings {
    /// What frames are received into.
    pub page: PageSize,
    /// Bytes left free before a frame: 0 to 256.
    pub headroom: usize,
    /// The first bytes of a frame that go into a buffer of their own: 0 to 256.
    pub copy: usize,
    /// What is said of received checksums.
    pub sums: RxSums,
    /// The outermost VLAN tag is taken out of the frame and told apart.
    pub strip_vlan: bool,
    /// What follows short frames.
    pub padding: Padding,
    /// Receive queues: 1 to 128.
    pub queues: u16,
    /// The flow hash is reported.
    pub hash: bool,
    /// The key of the hash.
    pub key: ToeplitzKey,
    /// Both directions of a connection have the same hash.
    pub symmetric: bool,
    /// Which queue the last 7 bits of a hash stand for, modulo the number of queues; `None`: one
    /// after the other.
    pub indirection: Option<[u16; NicSettings::INDIRECTION]>,
    /// Frames that a queue holds: at least 1.
    pub ring: usize,
    /// Where a ring is full.
    pub full: RingFull,
    /// The longest IP packet in bytes; 0: the wrapped port's, or 1500.
    pub mtu: u32,
    /// It sends frames in several pieces.
    pub scatter_gather: bool,
    /// It fills in checksums.
    pub checksums: bool,
    /// TCP super-packets that it cuts.
    pub tso: TsoLimit,
    /// It cuts UDP super-packets.
    pub uso: bool,
    /// It cuts super-packets in UDP tunnels.
    pub tunnels: bool,
    /// Frames pass between it and the wrapped port as on a wire.
    pub wire: bool,
}

impl Default for NicSettings {
    /// As of a card in memory.
    fn default() -> Self {
        NicSettings {
            page: PageSize::Page4K,
            headroom: 0,
            copy: 0,
            sums: RxSums::Verified,
            strip_vlan: true,
            padding: Padding::Off,
            queues: 1,
            hash: true,
            key: ToeplitzKey::MICROSOFT,
            symmetric: false,
            indirection: None,
            ring: 256,
            full: RingFull::Drop,
            mtu: 0,
            scatter_gather: true,
            checksums: true,
            tso: TsoLimit::Full,
            uso: true,
            tunnels: false,
            wire: true,
        }
    }
}

impl NicSettings {
    /// Entries of the table by which a hash chooses a queue.
    pub const INDIRECTION: usize = 128;

    /// The most queues.
    pub const MAX_QUEUES: u16 = 128;

    /// The most bytes of headroom and of a header's copy.
    pub const MAX_HEADROOM: usize = 256;

    /// The longest MTU in bytes: a frame of it fits the buffers that a packet may have.
    pub const MAX_MTU: u32 = 65_000;

    /// The most frames of a ring.
    pub const MAX_RING: usize = 1 << 16;

    /// Read from a port string. `wrapping`: the card wraps a port, rather than to be an end of a
    /// link.
    ///
    /// # Errors
    /// [`SpecError`] names the setting that is not known or out of range.
    pub fn from_options(options: &SpecOptions, wrapping: bool) -> Result<Self, SpecError> {
        let link: &[&str] = if wrapping { &[] } else { &["link"] };
        options.only(&[&NIC_SETTINGS[..], link].concat())?;
        let default = NicSettings {
            full: if wrapping { RingFull::Wait } else { RingFull::Drop },
            ..NicSettings::default()
        };
        let strip_vlan = match options.get("vlan") {
            None | Some("strip") => true,
            Some("keep") => false,
            Some(_) => return Err(options.wrong("vlan", "takes strip or keep")),
        };
        let settings = NicSettings {
            page: options.value("page", "takes 4k, 8k, 16k, 32k or linear", default.page)?,
            headroom: options.bytes("headroom", default.headroom)?,
            copy: options.bytes("copy", default.copy)?,
            sums: options.value("csum", "takes none, verified or complete", default.sums)?,
            strip_vlan,
            padding: options.value("pad", "takes off, on or garbage", default.padding)?,
            queues: options.value("queues", "takes 1 to 128", default.queues)?,
            hash: options.switch("hash", default.hash)?,
            ring: options.value("ring", "takes a number of frames", default.ring)?,
            full: options.value("full", "takes drop or wait", default.full)?,
            mtu: options.value("mtu", "takes 68 to 65000 bytes", default.mtu)?,
            scatter_gather: options.switch("sg", default.scatter_gather)?,
            checksums: options.switch("tx", default.checksums)?,
            tso: options.value(
                "tso",
                "takes off, 64k, or 1 to 65535 bytes of TCP payload",
                default.tso,
            )?,
            uso: options.switch("uso", default.uso)?,
            tunnels: options.switch("tunnels", default.tunnels)?,
            wire: options.switch("wire", default.wire)?,
            ..default
        };
        if options.get("mtu") == Some("0") {
            return Err(options.wrong("mtu", "takes 68 to 65000 bytes"));
        }
        settings.check().map_err(|(name, expected)| options.wrong(name, expected))?;
        Ok(settings)
    }

    /// Are the settings in range?
    ///
    /// # Errors
    /// The name of one that is not, and what it takes.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let rules = [
            (self.headroom <= Self::MAX_HEADROOM, "headroom", "takes 0 to 256 bytes"),
            (self.copy <= Self::MAX_HEADROOM, "copy", "takes 0 to 256 bytes"),
            ((1..=Self::MAX_QUEUES).contains(&self.queues), "queues", "takes 1 to 128"),
            ((1..=Self::MAX_RING).contains(&self.ring), "ring", "takes 1 to 65536 frames"),
            (
                self.mtu == 0 || (68..=Self::MAX_MTU).contains(&self.mtu),
                "mtu",
                "takes 68 to 65000 bytes",
            ),
        ];
        rules
            .into_iter()
            .find(|(right, ..)| !right)
            .map_or(Ok(()), |(_, name, expected)| Err((name, expected)))
    }

    /// The offloads it has: what needs another that is off is off too.
    pub(super) fn features(&self) -> FeatureSet {
        let asked = FeatureSet::all()
            .set(Feature::TxChecksumming, self.checksums)
            .set(Feature::ScatterGather, self.scatter_gather)
            .set(Feature::TcpSegmentationOffload, self.tso != TsoLimit::Off)
            .set(Feature::TxUdpSegmentation, self.uso)
            .set(Feature::ReceiveHashing, self.hash);
        resolve(asked, FeatureSet::all()).active
    }
}
