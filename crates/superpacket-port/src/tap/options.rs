//! The options of TAP and TUN ports.

use superpacket::virtio::{ByteOrder, Format};

use super::offload::HostOffloads;
use crate::{SpecError, SpecOptions};

/// Maximum number of queues per device (the kernel's `MAX_TAP_QUEUES`).
const MAX_QUEUES: u16 = 256;

/// The parsed options of a port string.
#[derive(Debug)]
pub(super) struct TapOptions {
    /// Number of queues, 1 to 256.
    pub(super) queues: u16,
    /// Whether the device remains when the port is closed. `None` keeps the setting; a new device
    /// does not remain.
    pub(super) persist: Option<bool>,
    /// Maximum length of an IP packet in bytes; `None` keeps the setting.
    pub(super) mtu: Option<u32>,
    /// Whether to set the interface up; `None` does so only for a new device.
    pub(super) up: Option<bool>,
    /// Offloads that the host leaves to the port; `None` for all that the kernel supports.
    pub(super) offloads: Option<HostOffloads>,
    /// The format of the virtio header before each packet; `None` for the tunnel format if the
    /// kernel supports it, otherwise the plain one.
    pub(super) header: Option<Format>,
    /// Byte order of the virtio header; `None` for the machine's order.
    pub(super) order: Option<ByteOrder>,
}

impl TapOptions {
    pub(super) fn read(options: &SpecOptions) -> Result<Self, SpecError> {
        options.only(&["queues", "persist", "mtu", "up", "offload", "header", "endian"])?;
        let switch = |key: &str| match options.get(key) {
            None => Ok(None),
            Some(_) => options.switch(key, false).map(Some),
        };
        let queues = options.value("queues", "takes a number from 1 to 256", 1u16)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(options.wrong("queues", "takes a number from 1 to 256"));
        }
        let mtu = match options.get("mtu") {
            None => None,
            Some(_) => Some(options.value("mtu", "takes a number of bytes", 0u32)?),
        };
        let offloads = match options.get("offload").map(HostOffloads::parse) {
            None => None,
            Some(parsed) => parsed.map_err(|problem| options.wrong("offload", &problem))?,
        };
        let formats = [("10", Format::Plain), ("12", Format::Buffers), ("24", Format::Tunnel)];
        let orders =
            [("native", None), ("little", Some(ByteOrder::Little)), ("big", Some(ByteOrder::Big))];
        Ok(TapOptions {
            queues,
            persist: switch("persist")?,
            mtu,
            up: switch("up")?,
            offloads,
            header: options.choice(
                "header",
                None,
                &formats.map(|(word, format)| (word, Some(format))),
            )?,
            order: options.choice("endian", None, &orders)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortSpec;

    fn read(text: &str) -> Result<TapOptions, SpecError> {
        TapOptions::read(text.parse::<PortSpec>().expect("well formed").options())
    }

    #[test]
    fn nothing_asked_is_nothing_changed() {
        let options = read("tap:t0").expect("no option is needed");
        assert_eq!(
            (options.queues, options.persist, options.mtu, options.up),
            (1, None, None, None)
        );
        assert!(options.offloads.is_none() && options.header.is_none() && options.order.is_none());
    }

    #[test]
    fn values_are_checked_and_named() {
        let options =
            read("tun:t0?queues=4&persist=on&mtu=9000&up=off&offload=csum&header=12&endian=little")
                .expect("all known");
        assert_eq!(
            (options.queues, options.persist, options.mtu, options.up),
            (4, Some(true), Some(9000), Some(false))
        );
        assert_eq!(
            (options.header, options.order),
            (Some(Format::Buffers), Some(ByteOrder::Little))
        );
        for (text, says) in [
            ("tap:t0?queues=0", "queues=0"),
            ("tap:t0?queues=257", "1 to 256"),
            ("tap:t0?header=20", "10, 12 or 24"),
            ("tap:t0?offload=tso4", "tso4 without csum"),
            ("tap:t0?mtu=large", "mtu=large"),
            ("tap:t0?ring=4m", "queues, persist"),
            ("tap:t0?up=yes", "on or off"),
            ("tap:t0?endian=middle", "native"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
