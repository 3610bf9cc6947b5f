//! The settings of one end of a memory link.

use superpacket_port::features::{Feature, FeatureSet, resolve};
use superpacket_port::{SpecError, SpecOptions};

/// The treatment of a packet that is sent to a full receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Sending stops before the packet; the sender may try again.
    #[default]
    StopReason,
    /// The packet is dropped. The receiving end counts it.
    Drop,
}

/// The settings of one end of a link in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Capacity of each receive queue, in packets; at least 1.
    pub slots: usize,
    /// Number of receive queues; at least 1.
    pub queues: u16,
    /// Treatment of packets that are sent to a full receive queue of this end.
    pub full: WhenFull,
    /// Maximum length of a sent IP packet, in bytes; 0: no limit.
    pub mtu: u32,
    /// Whether this end can send packets with a partial checksum.
    pub checksums: bool,
    /// Whether this end can send packets in several buffers.
    pub scatter_gather: bool,
    /// Whether this end can send TCP super-packets.
    pub tso: bool,
    /// Whether this end can send UDP super-packets.
    pub uso: bool,
}

impl Default for MemorySettings {
    fn default() -> Self {
        MemorySettings {
            slots: 1024,
            queues: 1,
            full: WhenFull::StopReason,
            mtu: 0,
            checksums: true,
            scatter_gather: true,
            tso: true,
            uso: true,
        }
    }
}

impl MemorySettings {
    /// Maximum number of slots of all queues of an end together.
    pub const MAX_SLOTS: usize = 1 << 20;

    /// Maximum number of receive queues.
    pub const MAX_QUEUES: u16 = 1024;

    /// Reads the settings from the options of a port string.
    ///
    /// # Errors
    /// [`SpecError`] names the option that is unknown or out of range.
    pub fn from_options(options: &SpecOptions) -> Result<Self, SpecError> {
        options.only(&["slots", "queues", "full", "mtu", "tx", "sg", "tso", "uso"])?;
        let default = MemorySettings::default();
        let full = [("stop", WhenFull::StopReason), ("drop", WhenFull::Drop)];
        let settings = MemorySettings {
            slots: options.value("slots", "takes a number of packets", default.slots)?,
            queues: options.value("queues", "takes a number of queues", default.queues)?,
            full: options.choice("full", default.full, &full)?,
            mtu: options.value("mtu", "takes a number of bytes", default.mtu)?,
            checksums: options.switch("tx", default.checksums)?,
            scatter_gather: options.switch("sg", default.scatter_gather)?,
            tso: options.switch("tso", default.tso)?,
            uso: options.switch("uso", default.uso)?,
        };
        if !(1..=Self::MAX_SLOTS).contains(&settings.slots) {
            return Err(options.wrong("slots", "takes 1 to 1048576"));
        }
        if !(1..=Self::MAX_QUEUES).contains(&settings.queues) {
            return Err(options.wrong("queues", "takes 1 to 1024"));
        }
        if settings.slots * usize::from(settings.queues) > Self::MAX_SLOTS {
            return Err(options.wrong("slots", "takes 1048576 at most for all queues together"));
        }
        Ok(settings)
    }

    /// Returns the active offloads. An offload is off if it requires another that is off.
    pub(super) fn features(&self) -> FeatureSet {
        let asked = FeatureSet::all()
            .set(Feature::TxChecksumming, self.checksums)
            .set(Feature::ScatterGather, self.scatter_gather)
            .set(Feature::TcpSegmentationOffload, self.tso)
            .set(Feature::TxUdpSegmentation, self.uso);
        resolve(asked, FeatureSet::all()).active.without(Feature::ReceiveHashing)
    }
}
