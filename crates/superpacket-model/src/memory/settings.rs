//! What an end of a link can do.

use std::str::FromStr;

use superpacket_port::features::{Feature, FeatureSet, resolve};
use superpacket_port::{SpecError, SpecOptions};

/// What becomes of a packet for which a queue has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhenFull {
    /// Its sender is stopped and may try again.
    #[default]
    Stop,
    /// It is dropped, and counted where it did not arrive.
    Drop,
}

impl FromStr for WhenFull {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "stop" => Ok(WhenFull::Stop),
            "drop" => Ok(WhenFull::Drop),
            _ => Err(()),
        }
    }
}

/// One end of a link in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// Packets that each receive queue holds: at least 1.
    pub slots: usize,
    /// Receive queues: at least 1.
    pub queues: u16,
    /// Where a receive queue is full.
    pub full: WhenFull,
    /// The longest IP packet that it sends, in bytes; 0: no limit.
    pub mtu: u32,
    /// It sends partial checksums.
    pub checksums: bool,
    /// It sends packets in several pieces.
    pub scatter_gather: bool,
    /// It sends TCP super-packets.
    pub tso: bool,
    /// It sends UDP super-packets.
    pub uso: bool,
}

impl Default for MemorySettings {
    fn default() -> Self {
        MemorySettings {
            slots: 1024,
            queues: 1,
            full: WhenFull::Stop,
            mtu: 0,
            checksums: true,
            scatter_gather: true,
            tso: true,
            uso: true,
        }
    }
}

impl MemorySettings {
    /// The most slots of all queues together.
    pub const MAX_SLOTS: usize = 1 << 20;

    /// The most queues.
    pub const MAX_QUEUES: u16 = 1024;

    /// Read from a port string.
    ///
    /// # Errors
    /// [`SpecError`] names the option that is not known or out of range.
    pub fn from_options(options: &SpecOptions) -> Result<Self, SpecError> {
        options.only(&["slots", "queues", "full", "mtu", "tx", "sg", "tso", "uso"])?;
        let default = MemorySettings::default();
        let settings = MemorySettings {
            slots: options.value("slots", "takes a number of packets", default.slots)?,
            queues: options.value("queues", "takes a number of queues", default.queues)?,
            full: options.value("full", "takes stop or drop", default.full)?,
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

    /// The offloads it has: what needs another that is off is off too.
    pub(super) fn features(&self) -> FeatureSet {
        let asked = FeatureSet::all()
            .set(Feature::TxChecksumming, self.checksums)
            .set(Feature::ScatterGather, self.scatter_gather)
            .set(Feature::TcpSegmentationOffload, self.tso)
            .set(Feature::TxUdpSegmentation, self.uso);
        resolve(asked, FeatureSet::all()).active.without(Feature::ReceiveHashing)
    }
}
