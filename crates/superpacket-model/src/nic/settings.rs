//! The settings of a model NIC.

use std::str::FromStr;

use superpacket_port::features::{Feature, FeatureSet, resolve};
use superpacket_port::{NIC_SETTINGS, SpecError, SpecOptions};
use superpacket_steer::ToeplitzKey;

/// The kind of memory into which frames are received.
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
    /// A separate buffer per frame, large enough for the longest frame.
    Linear,
}

impl PageSize {
    /// Returns the size of a page in bytes; `None` for linear buffers.
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

/// What a card reports about the checksums of received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RxSums {
    /// The card does not verify checksums.
    None,
    /// The card verifies checksums, and reports the number of correct ones
    /// ([`RxChecksum::Unnecessary`](superpacket::packet::RxChecksum::Unnecessary)).
    Verified,
    /// The card reports the checksum of all bytes after the Ethernet header
    /// ([`RxChecksum::Complete`](superpacket::packet::RxChecksum::Complete)).
    Complete,
}

/// How received frames that are shorter than 60 bytes are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Frames are not padded.
    Off,
    /// Frames are padded to 60 bytes with zeros.
    Zero,
    /// Frames are padded to 60 bytes with a fixed non-zero pattern.
    Garbage,
}

/// What happens to frames that arrive for a full ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingFull {
    /// Frames for a full ring are dropped and counted.
    Drop,
    /// Packets wait in the wrapped port while any ring is full; that port may drop them. The frames
    /// of a super-packet enter the ring together, even beyond its capacity.
    Wait,
}

/// Which TCP super-packets the card segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TsoLimit {
    /// The card segments no TCP super-packets.
    Off,
    /// The card segments super-packets with at most this TCP payload, in bytes.
    Payload(u32),
    /// The card segments super-packets of at most 65,536 bytes from the IP header on.
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

/// The settings of a model NIC. The [module](super) lists them as options of a port string.
///
/// ```
/// use superpacket_model::nic::{NicSettings, PageSize, RxSums};
///
/// let settings = NicSettings { page: PageSize::Page8K, sums: RxSums::Complete, ..NicSettings::default() };
/// assert_eq!(settings.ring, 256);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicSettings {
    /// The kind of memory into which frames are received.
    pub page: PageSize,
    /// Number of unused bytes before a frame in its buffer: 0 to 256.
    pub headroom: usize,
    /// Number of first bytes of a frame that are copied into a separate buffer: 0 to 256.
    pub copy: usize,
    /// What the card reports about the checksums of received frames.
    pub sums: RxSums,
    /// Whether the outermost VLAN tag is moved from a received frame to its metadata.
    pub strip_vlan: bool,
    /// How received frames that are shorter than 60 bytes are padded.
    pub padding: Padding,
    /// Number of receive queues: 1 to 128.
    pub queues: u16,
    /// Whether the card reports the flow hash of received frames.
    pub hash: bool,
    /// Key of the Toeplitz hash.
    pub key: ToeplitzKey,
    /// Whether both directions of a connection have the same hash.
    pub symmetric: bool,
    /// Receive queue for each value of the lowest 7 bits of the hash, modulo the number of queues.
    /// `None` assigns the queues in rotation.
    pub indirection: Option<[u16; NicSettings::INDIRECTION]>,
    /// Capacity of a queue in frames: 1 to 65,536.
    pub ring: usize,
    /// What happens to frames that arrive for a full ring.
    pub full: RingFull,
    /// Maximum length of an IP packet in bytes; 0: the MTU of the wrapped port, or 1500 if it has
    /// none.
    pub mtu: u32,
    /// Whether the card sends frames in several buffers.
    pub scatter_gather: bool,
    /// Whether the card fills in checksums of sent packets.
    pub checksums: bool,
    /// Which TCP super-packets the card segments.
    pub tso: TsoLimit,
    /// Whether the card segments UDP super-packets.
    pub uso: bool,
    /// Whether the card segments super-packets in UDP tunnels.
    pub tunnels: bool,
    /// Whether only frames as on a wire pass between the card and the wrapped port. If not,
    /// super-packets and partial checksums pass unchanged.
    pub wire: bool,
}

impl Default for NicSettings {
    /// Returns the default settings for a card on a memory link.
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
    /// Number of entries in the table that maps a hash to a queue.
    pub const INDIRECTION: usize = 128;

    /// Maximum number of receive queues.
    pub const MAX_QUEUES: u16 = 128;

    /// Maximum of `headroom` and of `copy`, in bytes.
    pub const MAX_HEADROOM: usize = 256;

    /// Maximum MTU in bytes; a longer frame may need more buffers than a packet can have.
    pub const MAX_MTU: u32 = 65_000;

    /// Maximum capacity of a ring in frames.
    pub const MAX_RING: usize = 1 << 16;

    /// Reads the settings from the options of a port string. `wrapping` is true if the card wraps a
    /// port, and false if it is an end of a memory link.
    ///
    /// # Errors
    /// [`SpecError`] names the setting that is unknown or out of range.
    pub fn from_options(options: &SpecOptions, wrapping: bool) -> Result<Self, SpecError> {
        let link: &[&str] = if wrapping { &[] } else { &["link"] };
        options.only(&[&NIC_SETTINGS[..], link].concat())?;
        let default = NicSettings {
            full: if wrapping { RingFull::Wait } else { RingFull::Drop },
            ..NicSettings::default()
        };
        let pages = [
            ("4k", PageSize::Page4K),
            ("8k", PageSize::Page8K),
            ("16k", PageSize::Page16K),
            ("32k", PageSize::Page32K),
            ("linear", PageSize::Linear),
        ];
        let sums = [
            ("none", RxSums::None),
            ("verified", RxSums::Verified),
            ("complete", RxSums::Complete),
        ];
        let padding = [("off", Padding::Off), ("on", Padding::Zero), ("garbage", Padding::Garbage)];
        let full = [("drop", RingFull::Drop), ("wait", RingFull::Wait)];
        let settings = NicSettings {
            page: options.choice("page", default.page, &pages)?,
            headroom: options.bytes("headroom", default.headroom)?,
            copy: options.bytes("copy", default.copy)?,
            sums: options.choice("csum", default.sums, &sums)?,
            strip_vlan: options.choice("vlan", true, &[("strip", true), ("keep", false)])?,
            padding: options.choice("pad", default.padding, &padding)?,
            queues: options.value("queues", "takes 1 to 128", default.queues)?,
            hash: options.switch("hash", default.hash)?,
            ring: options.value("ring", "takes a number of frames", default.ring)?,
            full: options.choice("full", default.full, &full)?,
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

    /// Checks that the settings are in range.
    ///
    /// # Errors
    /// The name of a setting that is out of range, and a text with its allowed values.
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

    /// Returns the active offloads. An offload is off if it requires another that is off.
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
