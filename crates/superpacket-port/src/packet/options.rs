//! The options of a packet port: `packet:IFACE?ring=4m&slot=2k&version=v2&...`.

use crate::{PortSpec, SpecError};

/// The parsed options of a port string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketOptions {
    pub ring: RingOptions,
    /// Number of receive queues. Each is a socket, and the sockets share the traffic.
    pub queues: u16,
    /// The mode in which the kernel distributes packets among the queues (`PACKET_FANOUT_HASH`,
    /// ...).
    pub fanout: u32,
    /// Whether frames for other hardware addresses are received.
    pub promiscuous: bool,
    /// Whether the kernel is given TCP and UDP super-packets even if the device cannot segment
    /// them, so that the kernel segments them.
    pub kernel_segmentation: bool,
}

/// The kind of the ring in which the kernel stores received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingOptions {
    /// `TPACKET_V2`: one slot per frame, which the kernel hands over at once.
    Slots {
        /// Number of slots.
        slots: usize,
        /// Size of a slot in bytes.
        slot_size: usize,
    },
    /// `TPACKET_V3`: blocks with several frames, which the kernel hands over when they are full or
    /// `retire` milliseconds old.
    Blocks {
        /// Number of blocks.
        blocks: usize,
        /// Size of a block in bytes.
        block_size: usize,
        /// Maximum age of a block in milliseconds.
        retire: u32,
        /// Whether flow hashes are requested.
        hash: bool,
    },
}

impl PacketOptions {
    /// Returns why a port with these options cannot join a kernel path; `None` if it can.
    pub const fn unfit_for_kernel_path(&self) -> Option<&'static str> {
        match self.ring {
            RingOptions::Blocks { .. } => Some("it needs slots (version=v2)"),
            RingOptions::Slots { .. } if self.queues > 1 => Some("it needs a single receive queue"),
            RingOptions::Slots { .. } => None,
        }
    }
}

/// Maximum memory per queue in bytes; the kernel calculates with `int`.
const MAX_RING_BYTES: usize = 1 << 30;

/// Maximum memory for all queues of a port in bytes; this is kernel memory.
const MAX_TOTAL_BYTES: u64 = 4 << 30;

const KNOWN: [&str; 11] = [
    "version",
    "ring",
    "slot",
    "blocks",
    "block",
    "retire",
    "hash",
    "queues",
    "fanout",
    "promiscuous",
    "tso",
];

/// The modes in which the kernel distributes packets among queues, by their names in port strings.
const FANOUT: [(&str, u32); 6] = [
    ("hash", libc::PACKET_FANOUT_HASH),
    ("balance", libc::PACKET_FANOUT_LB),
    ("cpu", libc::PACKET_FANOUT_CPU),
    ("rollover", libc::PACKET_FANOUT_ROLLOVER),
    ("random", libc::PACKET_FANOUT_RND),
    ("queue", libc::PACKET_FANOUT_QM),
];

impl RingOptions {
    const fn bytes(&self) -> usize {
        match *self {
            RingOptions::Slots { slots, slot_size } => slots * slot_size,
            RingOptions::Blocks { blocks, block_size, .. } => blocks * block_size,
        }
    }
}

impl PacketOptions {
    /// Parses the options of a port string.
    ///
    /// # Errors
    /// [`SpecError`], with the option and its accepted values.
    pub fn parse(spec: &PortSpec) -> Result<Self, SpecError> {
        let options = spec.options();
        options.only(&KNOWN)?;
        let ring = match options.get("version").unwrap_or("v2") {
            "v2" => slots(spec)?,
            "v3" => blocks(spec)?,
            _ => return Err(options.wrong("version", "takes v2 or v3")),
        };
        let queues = options.value("queues", "takes a number from 1 to 256", 1)?;
        if !(1..=256).contains(&queues) {
            return Err(options.wrong("queues", "takes a number from 1 to 256"));
        }
        if ring.bytes() as u64 * u64::from(queues) > MAX_TOTAL_BYTES {
            return Err(options.wrong(
                "queues",
                "takes fewer, or smaller rings: 4,096m of memory at most together",
            ));
        }
        Ok(PacketOptions {
            ring,
            queues,
            fanout: options.choice("fanout", libc::PACKET_FANOUT_HASH, &FANOUT)?,
            promiscuous: options.switch("promiscuous", true)?,
            kernel_segmentation: options.choice(
                "tso",
                true,
                &[("device", false), ("kernel", true)],
            )?,
        })
    }
}

fn slots(spec: &PortSpec) -> Result<RingOptions, SpecError> {
    let options = spec.options();
    if let Some(other) =
        ["blocks", "block", "retire", "hash"].into_iter().find(|key| options.get(key).is_some())
    {
        return Err(options.wrong(other, "belongs to version=v3"));
    }
    let slot_size = options.bytes("slot", 2 << 10)?;
    if !slot_size.is_power_of_two() || !(256..=1 << 20).contains(&slot_size) {
        return Err(options.wrong("slot", "takes a power of two from 256 to 1m"));
    }
    let ring = options.bytes("ring", 4 << 20)?;
    if !ring.is_power_of_two() || !(4 * slot_size.max(4096)..=MAX_RING_BYTES).contains(&ring) {
        return Err(options.wrong(
            "ring",
            "takes a power of two, of 4 pages and 4 slots at least and 1,024m at most",
        ));
    }
    Ok(RingOptions::Slots { slots: ring / slot_size, slot_size })
}

fn blocks(spec: &PortSpec) -> Result<RingOptions, SpecError> {
    let options = spec.options();
    if let Some(other) = ["ring", "slot"].into_iter().find(|key| options.get(key).is_some()) {
        return Err(options.wrong(other, "belongs to version=v2"));
    }
    let block_size = options.bytes("block", 256 << 10)?;
    if !block_size.is_power_of_two() || !(4096..=16 << 20).contains(&block_size) {
        return Err(options.wrong("block", "takes a power of two from 4k to 16m"));
    }
    let blocks = options.value("blocks", "takes a number from 2 on", 16usize)?;
    if blocks < 2 || blocks.checked_mul(block_size).is_none_or(|bytes| bytes > MAX_RING_BYTES) {
        return Err(
            options.wrong("blocks", "takes a number from 2 on, for 1,024m of memory at most")
        );
    }
    let retire = options.value("retire", "takes milliseconds, 1 to 1000", 1)?;
    if !(1..=1000).contains(&retire) {
        return Err(options.wrong("retire", "takes milliseconds, 1 to 1000"));
    }
    Ok(RingOptions::Blocks { blocks, block_size, retire, hash: options.switch("hash", false)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PacketOptions, String> {
        PacketOptions::parse(&text.parse().expect("well formed")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_bare_port_has_slots_of_2_kib_in_4_mib() {
        let options = parse("packet:eth0").expect("defaults");
        assert_eq!(options.ring, RingOptions::Slots { slots: 2048, slot_size: 2048 });
        assert_eq!(
            (options.queues, options.fanout, options.promiscuous, options.kernel_segmentation),
            (1, 0, true, true)
        );
        let options =
            parse("packet:eth0?version=v3&hash=on&queues=2&fanout=cpu&promiscuous=off&tso=device")
                .expect("known");
        assert_eq!(
            options.ring,
            RingOptions::Blocks { blocks: 16, block_size: 256 << 10, retire: 1, hash: true }
        );
        assert_eq!(
            (options.queues, options.fanout, options.promiscuous, options.kernel_segmentation),
            (2, 2, false, false)
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, names) in [
            ("packet:eth0?version=v4", "version=v4"),
            ("packet:eth0?slot=3k", "slot=3k"),
            ("packet:eth0?slot=128", "slot=128"),
            ("packet:eth0?ring=8k", "ring=8k"),
            ("packet:eth0?ring=5000k", "ring=5000k"),
            ("packet:eth0?ring=4096m", "ring=4096m"),
            ("packet:eth0?block=64k", "block=64k"),
            ("packet:eth0?version=v3&slot=2k", "slot=2k"),
            ("packet:eth0?version=v3&block=1000", "block=1000"),
            ("packet:eth0?version=v3&blocks=1", "blocks=1"),
            ("packet:eth0?version=v3&blocks=99999999999999", "blocks=99999999999999"),
            ("packet:eth0?version=v3&retire=0", "retire=0"),
            ("packet:eth0?queues=0", "queues=0"),
            ("packet:eth0?ring=1024m&queues=5", "queues=5"),
            ("packet:eth0?version=v3&blocks=4096&queues=8", "queues=8"),
            ("packet:eth0?fanout=fair", "fanout=fair"),
            ("packet:eth0?tso=on", "tso=on"),
            ("packet:eth0?promiscuous=1", "promiscuous=1"),
            ("packet:eth0?speed=1", "speed=1"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(&format!("{names:?}")), "{text}: {error}");
        }
    }
}
