//! The rate limits of a port.

/// A limit for a token bucket: tokens added per second, and the size of the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Tokens added per second; 0 for no limit.
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
}

impl Rate {
    /// Returns a limit whose bucket holds the tokens of one second.
    pub(crate) fn of_a_second(per_second: u64) -> Self {
        Rate { per_second, burst: per_second }
    }

    /// Returns a limit with the bucket size `burst`; if that is 0, with the tokens of a tenth of a
    /// second.
    fn new(per_second: u64, burst: u64) -> Self {
        Rate { per_second, burst: if burst == 0 { per_second.div_ceil(10) } else { burst } }
    }
}

/// The rate limits of a port, as token buckets (like Firecracker's rate limiters); a rate of 0 is
/// no limit. A super-packet counts as the frames into which it is segmented. A packet larger than
/// the bucket passes when the bucket is full, and later packets wait until its tokens are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Maximum bytes per second that the port receives, counted from the link header on. More bytes
    /// wait in the port, and are lost when the port is full.
    pub rx_byte_rate: u64,
    /// Maximum bytes received at once; 0 for a tenth of a second's bytes.
    pub rx_byte_burst: u64,
    /// Maximum packets per second that the port receives. More packets wait in the port.
    pub rx_packet_rate: u64,
    /// Maximum packets received at once; 0 for a tenth of a second's packets.
    pub rx_packet_burst: u64,
    /// Maximum bytes per second that the port sends. Packets beyond the limit are dropped.
    pub tx_byte_rate: u64,
    /// Maximum bytes sent at once; 0 for a tenth of a second's bytes.
    pub tx_byte_burst: u64,
    /// Maximum packets per second that the port sends. Packets beyond the limit are dropped.
    pub tx_packet_rate: u64,
    /// Maximum packets sent at once; 0 for a tenth of a second's packets.
    pub tx_packet_burst: u64,
    /// Maximum broadcast packets per second that the port may send into the bridge, and at once
    /// after a pause.
    pub storm_broadcast: u64,
    /// Maximum multicast packets per second that the port may send into the bridge, and at once
    /// after a pause.
    pub storm_multicast: u64,
    /// Maximum packets per second to unknown addresses that the port may send into the bridge, and
    /// at once after a pause.
    pub storm_unknown: u64,
}

/// The highest rate that can be set: 10^12 bytes (8 Tb) or packets per second.
const MAX_RATE: u64 = 1_000_000_000_000;

/// The largest burst that can be set: 2^32 bytes or packets.
const MAX_BURST: u64 = 1 << 32;

impl Rates {
    /// The names of the rates and bursts in commands and configuration files.
    pub const NAMES: [&'static str; 11] = [
        "rx_byte_rate",
        "rx_byte_burst",
        "rx_packet_rate",
        "rx_packet_burst",
        "tx_byte_rate",
        "tx_byte_burst",
        "tx_packet_rate",
        "tx_packet_burst",
        "storm_broadcast",
        "storm_multicast",
        "storm_unknown",
    ];

    /// Returns the unit of the rate or burst with this name; `None` if there is none.
    pub fn unit(name: &str) -> Option<&'static str> {
        match name {
            "rx_byte_rate" | "tx_byte_rate" => Some("bytes/s"),
            "rx_byte_burst" | "tx_byte_burst" => Some("bytes"),
            "rx_packet_burst" | "tx_packet_burst" => Some("packets"),
            _ => Rates::NAMES.contains(&name).then_some("packets/s"),
        }
    }

    /// Returns the value of the rate or burst with this name; `None` if there is none.
    pub fn value(&self, name: &str) -> Option<u64> {
        Rates::place(&mut { *self }, name).copied()
    }

    /// Sets the rate or burst with this name.
    ///
    /// # Errors
    /// A sentence: the name is unknown, or the value is out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        let unit = Rates::unit(name).unwrap_or_default();
        let is_burst = name.ends_with("_burst");
        let (most, zero) =
            if is_burst { (MAX_BURST, "a tenth of a second's") } else { (MAX_RATE, "no limit") };
        let place = self
            .place(name)
            .ok_or_else(|| format!("{name:?} is no rate: there are {}", Rates::NAMES.join(", ")))?;
        if value > most {
            return Err(format!("{name} is 0 ({zero}) or 1 to {most} {unit}, not {value}"));
        }
        *place = value;
        Ok(())
    }

    fn place(&mut self, name: &str) -> Option<&mut u64> {
        match name {
            "rx_byte_rate" => Some(&mut self.rx_byte_rate),
            "rx_byte_burst" => Some(&mut self.rx_byte_burst),
            "rx_packet_rate" => Some(&mut self.rx_packet_rate),
            "rx_packet_burst" => Some(&mut self.rx_packet_burst),
            "tx_byte_rate" => Some(&mut self.tx_byte_rate),
            "tx_byte_burst" => Some(&mut self.tx_byte_burst),
            "tx_packet_rate" => Some(&mut self.tx_packet_rate),
            "tx_packet_burst" => Some(&mut self.tx_packet_burst),
            "storm_broadcast" => Some(&mut self.storm_broadcast),
            "storm_multicast" => Some(&mut self.storm_multicast),
            "storm_unknown" => Some(&mut self.storm_unknown),
            _ => None,
        }
    }

    pub(crate) fn rx_bytes(&self) -> Rate {
        Rate::new(self.rx_byte_rate, self.rx_byte_burst)
    }

    pub(crate) fn rx_packets(&self) -> Rate {
        Rate::new(self.rx_packet_rate, self.rx_packet_burst)
    }

    pub(crate) fn tx_bytes(&self) -> Rate {
        Rate::new(self.tx_byte_rate, self.tx_byte_burst)
    }

    pub(crate) fn tx_packets(&self) -> Rate {
        Rate::new(self.tx_packet_rate, self.tx_packet_burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_has_its_own_field() {
        let mut rates = Rates::default();
        for (number, name) in (1..).zip(Rates::NAMES) {
            assert_eq!(rates.value(name), Some(0), "no limit");
            rates.set(name, number).expect(name);
        }
        assert_eq!(
            Rates::NAMES.map(|name| rates.value(name)),
            std::array::from_fn(|index| Some(index as u64 + 1))
        );
        let units = Rates::NAMES.map(|name| Rates::unit(name).expect(name));
        assert_eq!(units[..4], ["bytes/s", "bytes", "packets/s", "packets"]);
        assert_eq!(units[8..], ["packets/s"; 3]);
    }

    #[test]
    fn errors_state_the_allowed_range() {
        let mut rates = Rates::default();
        for (name, value, says) in [
            (
                "storm_unknown",
                MAX_RATE + 1,
                "storm_unknown is 0 (no limit) or 1 to 1000000000000 packets/s, not 1000000000001",
            ),
            (
                "tx_byte_burst",
                MAX_BURST + 1,
                "tx_byte_burst is 0 (a tenth of a second's) or 1 to 4294967296 bytes",
            ),
            ("rate", 1, "\"rate\" is no rate: there are rx_byte_rate, "),
        ] {
            let error = rates.set(name, value).expect_err(name);
            assert!(error.contains(says), "{error}");
        }
        assert_eq!(rates, Rates::default());
    }
}
