//! The options of vhost-user ports.

use rustix::fs::Mode;

use super::memory::MemoryTrust;
use crate::{SpecError, SpecOptions};

/// Maximum number of pairs of queues.
const MAX_QUEUES: u16 = 256;

/// The accepted MTUs: from the minimum MTU of IPv4 (RFC 791) to the maximum length of an IP packet.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;

/// The parsed options of a port string.
#[derive(Debug)]
pub(super) struct VhostOptions {
    /// Number of pairs of queues, 1 to 256.
    pub(super) queues: u16,
    /// Whether the port connects to the socket; else it creates the socket.
    pub(super) connect: bool,
    /// Maximum length of an IP packet in bytes.
    pub(super) mtu: u32,
    /// The kinds of memory that a front end may share.
    pub(super) trust: MemoryTrust,
    /// The access bits of the socket's file.
    pub(super) mode: Mode,
}

impl VhostOptions {
    pub(super) fn read(options: &SpecOptions) -> Result<Self, SpecError> {
        options.only(&["queues", "connect", "mtu", "memory", "mode"])?;
        let queues = options.value("queues", "takes a number from 1 to 256", 1u16)?;
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(options.wrong("queues", "takes a number from 1 to 256"));
        }
        let mtu = options.value("mtu", "takes a number of bytes from 68 to 65535", 1500)?;
        if !MTU.contains(&mtu) {
            return Err(options.wrong("mtu", "takes a number of bytes from 68 to 65535"));
        }
        let trust = [("sealed", MemoryTrust::Sealed), ("any", MemoryTrust::Any)];
        let digits = options.get("mode").unwrap_or("0600");
        let mode = match u32::from_str_radix(digits, 8) {
            Ok(bits @ 0..=0o777) => Mode::from_bits_truncate(bits),
            _ => {
                let says = "takes access bits in octal digits: 0600, 0660";
                return Err(options.wrong("mode", says));
            }
        };
        Ok(VhostOptions {
            queues,
            connect: options.switch("connect", false)?,
            mtu,
            trust: options.choice("memory", MemoryTrust::Sealed, &trust)?,
            mode,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortSpec;

    fn read(text: &str) -> Result<VhostOptions, SpecError> {
        VhostOptions::read(text.parse::<PortSpec>().expect("well formed").options())
    }

    #[test]
    fn a_path_alone_is_a_server_with_one_pair_of_queues() {
        let options = read("vhost:/run/vm0.sock").expect("no option is needed");
        assert_eq!((options.queues, options.connect, options.mtu), (1, false, 1500));
        assert_eq!((options.trust, options.mode.as_raw_mode()), (MemoryTrust::Sealed, 0o600));
    }

    #[test]
    fn values_are_checked_and_named() {
        let options = read("vhost:s?queues=4&connect=on&mtu=9000&memory=any&mode=0660")
            .expect("all are known");
        assert_eq!((options.queues, options.connect, options.mtu), (4, true, 9000));
        assert_eq!((options.trust, options.mode.as_raw_mode()), (MemoryTrust::Any, 0o660));
        for (text, says) in [
            ("vhost:s?queues=0", "1 to 256"),
            ("vhost:s?queues=257", "1 to 256"),
            ("vhost:s?mtu=67", "68 to 65535"),
            ("vhost:s?memory=huge", "sealed or any"),
            ("vhost:s?connect=yes", "on or off"),
            ("vhost:s?mode=888", "octal"),
            ("vhost:s?ring=4m", "queues, connect"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
