//! The options of AF_XDP port strings, `xdp:IFACE?...`.

use superpacket::packet::MAX_BUFFERS;

use super::super::{PortSpec, SpecError};

/// The option for the mode in which the XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachOption {
    /// The program runs in the driver, or after it if the driver has no XDP.
    Auto,
    /// The program runs in the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// The program runs in the kernel's network stack, after the driver (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

/// The copy mode: whether the kernel or the device moves frames into the port's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyMode {
    /// The device moves the frames if it can, otherwise the kernel.
    Auto,
    /// The kernel moves the frames (`XDP_COPY`).
    Copy,
    /// The device moves the frames (`XDP_ZEROCOPY`).
    Zero,
}

/// An option that is on, off, or decided when the port is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AutoSwitch {
    Auto,
    On,
    Off,
}

/// The options of an AF_XDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct XdpOptions {
    /// The only queue to use; `None` for all queues of the interface.
    pub(super) queue: Option<u32>,
    pub(super) attach: AttachOption,
    pub(super) copying: CopyMode,
    /// Number of chunks per queue: half to receive, half to send.
    pub(super) frames: u32,
    /// Size of a chunk in bytes.
    pub(super) frame_size: u32,
    /// Whether frames may occupy several chunks.
    pub(super) multi_buffer: AutoSwitch,
    /// Whether payload is sent from the chunks in which it was received, after headers in separate
    /// chunks.
    pub(super) gather: bool,
    /// Duration for which polling for packets also polls the device, in microseconds; 0 to disable.
    pub(super) busy_poll: u32,
    /// Whether incomplete checksums are detected.
    pub(super) partial: AutoSwitch,
    /// Whether the interface is put into promiscuous mode.
    pub(super) promiscuous: bool,
    /// Whether the driver provides the flow hashes of frames.
    pub(super) hash: bool,
}

/// The names of all options.
const KNOWN: [&str; 11] = [
    "queue",
    "mode",
    "copy",
    "frames",
    "frame",
    "multi_buffer",
    "gather",
    "busy_poll",
    "partial",
    "promiscuous",
    "hash",
];

impl XdpOptions {
    /// Parses the options of a port string.
    ///
    /// # Errors
    /// [`SpecError`], with the option and its accepted values.
    pub(super) fn read(spec: &PortSpec) -> Result<Self, SpecError> {
        let options = spec.options();
        options.only(&KNOWN)?;
        let attach = options.choice(
            "mode",
            AttachOption::Auto,
            &[
                ("auto", AttachOption::Auto),
                ("native", AttachOption::Native),
                ("generic", AttachOption::Generic),
            ],
        )?;
        let copying = options.choice(
            "copy",
            CopyMode::Auto,
            &[("auto", CopyMode::Auto), ("copy", CopyMode::Copy), ("zero", CopyMode::Zero)],
        )?;
        if attach == AttachOption::Generic && copying == CopyMode::Zero {
            return Err(options
                .wrong("copy", "is not available with mode=generic: zero copy needs the driver"));
        }
        let hash = options.switch("hash", false)?;
        if attach == AttachOption::Generic && hash {
            return Err(options
                .wrong("hash", "is not available with mode=generic: the driver is asked for it"));
        }
        let auto_switch = |key: &str, on: &str| {
            let words =
                [("auto", AutoSwitch::Auto), (on, AutoSwitch::On), ("off", AutoSwitch::Off)];
            options.choice(key, AutoSwitch::Auto, &words)
        };
        let frames = options.value("frames", "takes a power of two from 64 to 65536", 4096u32)?;
        if !frames.is_power_of_two() || !(64..=65536).contains(&frames) {
            return Err(options.wrong("frames", "takes a power of two from 64 to 65536"));
        }
        let frame_size = options.bytes("frame", 2048)?;
        if ![2048, 4096].contains(&frame_size) {
            return Err(options.wrong("frame", "takes 2k or 4k"));
        }
        let queue = match options.get("queue") {
            None | Some("all") => None,
            Some(_) => Some(options.value("queue", "takes the number of a queue, or all", 0u32)?),
        };
        if queue.is_some_and(|queue| queue >= u32::from(u16::MAX)) {
            return Err(options.wrong("queue", "takes a number less than 65535"));
        }
        let multi_buffer = auto_switch("multi_buffer", "on")?;
        let gather = options.switch("gather", false)?;
        if gather && multi_buffer == AutoSwitch::Off {
            return Err(options.wrong(
                "gather",
                "is not available with multi_buffer=off: such frames lie in several chunks",
            ));
        }
        Ok(XdpOptions {
            queue,
            attach,
            copying,
            frames,
            frame_size: frame_size as u32,
            // Gathered frames occupy several chunks.
            multi_buffer: if gather { AutoSwitch::On } else { multi_buffer },
            gather,
            busy_poll: options.value("busy_poll", "takes microseconds", 0)?,
            partial: auto_switch("partial", "detect")?,
            promiscuous: options.switch("promiscuous", true)?,
            hash,
        })
    }

    /// Returns the number of entries of each ring.
    pub(super) const fn ring_size(&self) -> u32 {
        self.frames / 2
    }

    /// Returns the maximum length of a frame received in one chunk, in bytes: the kernel reserves
    /// [`HEADROOM`].
    pub(super) const fn room(&self) -> u32 {
        self.frame_size - HEADROOM
    }
}

/// Bytes left free at the start of each chunk with a received frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: u32 = 256;

/// Maximum number of chunks per frame, which is the kernel's maximum number of fragments per packet
/// (`MAX_SKB_FRAGS`).
pub(super) const MAX_CHUNKS: usize = MAX_BUFFERS;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<XdpOptions, SpecError> {
        XdpOptions::read(&text.parse().expect("a port string"))
    }

    #[test]
    fn what_is_left_out_is_chosen() {
        let options = read("xdp:eth0").expect("no option");
        assert_eq!(
            (options.queue, options.attach, options.copying),
            (None, AttachOption::Auto, CopyMode::Auto)
        );
        assert_eq!(
            (options.frames, options.frame_size, options.ring_size(), options.room()),
            (4096, 2048, 2048, 1792)
        );
        assert_eq!(
            (options.multi_buffer, options.partial, options.busy_poll),
            (AutoSwitch::Auto, AutoSwitch::Auto, 0)
        );
        assert!(options.promiscuous && !options.hash && !options.gather);
    }

    #[test]
    fn every_option_is_read() {
        let options =
            read("xdp:eth0?queue=3&mode=native&copy=zero&frames=1024&frame=4k&multi_buffer=on&gather=on&busy_poll=20&partial=detect&promiscuous=off&hash=on")
                .expect("all known");
        let expected = XdpOptions {
            queue: Some(3),
            attach: AttachOption::Native,
            copying: CopyMode::Zero,
            frames: 1024,
            frame_size: 4096,
            multi_buffer: AutoSwitch::On,
            gather: true,
            busy_poll: 20,
            partial: AutoSwitch::On,
            promiscuous: false,
            hash: true,
        };
        assert_eq!(options, expected);
        assert_eq!(
            read("xdp:eth0?gather=on").expect("known").multi_buffer,
            AutoSwitch::On,
            "such frames lie in several chunks"
        );
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, says) in [
            ("xdp:e?ring=4m", "\"ring=4m\" is not known"),
            ("xdp:e?mode=skb", "\"mode=skb\" takes auto, native or generic"),
            ("xdp:e?copy=1", "takes auto, copy or zero"),
            ("xdp:e?mode=generic&copy=zero", "zero copy needs the driver"),
            ("xdp:e?mode=generic&hash=on", "\"hash=on\" is not available with mode=generic"),
            ("xdp:e?hash=yes", "\"hash=yes\""),
            ("xdp:e?frames=1000", "power of two"),
            ("xdp:e?frames=32", "from 64"),
            ("xdp:e?frame=1k", "takes 2k or 4k"),
            ("xdp:e?queue=x", "number of a queue"),
            ("xdp:e?queue=70000", "less than 65535"),
            ("xdp:e?multi_buffer=maybe", "auto, on or off"),
            ("xdp:e?multi_buffer=off&gather=on", "is not available with multi_buffer=off"),
            ("xdp:e?partial=on", "auto, detect or off"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
