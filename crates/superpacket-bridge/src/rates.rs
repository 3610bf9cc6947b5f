//! The rates that ports are limited to.

/// So much a second, and so much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// 0: there is no limit.
    pub(crate) per_second: u64,
    pub(crate) burst: u64,
}

impl Rate {
    /// So much a second, and as much at once.
    pub(crate) fn of_a_second(per_second: u64) -> Self {
        Rate { per_second, burst: per_second }
    }

    /// So much a second, and this much at once, or a tenth of a second's.
    fn new(per_second: u64, burst: u64) -> Self {
        Rate { per_second, burst: if burst == 0 { per_second.div_ceil(10) } else { burst } }
    }
}

/// The rates that a port is limited to: each is what token buckets allow (as Firecracker's rate
/// limiters), 0 for no limit. A super-packet counts as the frames that it is on a wire. A packet
/// that is more than a bucket holds passes a full bucket, and is waited for afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Bytes a second that are taken from what the port received, from the link header on. What is
    /// more waits in the port, and is lost when that is full.
    pub rx_byte_rate: u64,
    /// Bytes that are taken at once; 0: a tenth of a second's.
    pub rx_byte_burst: u64,
    /// Packets a second that are taken from what the port received.
    pub rx_packet_rate: u64,
    /// Packets that are taken at once; 0: a tenth of a second's.
    pub rx_packet_burst: u64,
    /// Bytes a second that leave by the port. What is more is dropped.
    pub tx_byte_rate: u64,
    /// Bytes that leave at once; 0: a tenth of a second's.
    pub tx_byte_burst: u64,
    /// Packets a second that leave by the port. What is more is dropped.
    pub tx_packet_rate: u64,
    /// Packets that leave at once; 0: a tenth of a second's.
    pub tx_packet_burst: u64,
    /// Packets a second for all that the port sends into the bridge, and as many at once.
    pub storm_broadcast: u64,
    /// Packets a second for many that the port sends into the bridge, and as many at once.
    pub storm_multicast: u64,
    /// Packets a second for addresses that nobody knows that the port sends into the bridge, and as
    /// many at once.
    pub storm_unknown: u64,
}

/// The highest rate: 8 Tb/s.
const MOST: u64 = 1_000_000_000_000;

/// The largest burst: 4 GiB, or as many packets.
const MOST_BURST: u64 = 1 << 32;

impl Rates {
    /// The names that commands and files use.
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

    /// What the rate or burst of this name is measured in.
    pub fn unit(name: &str) -> Option<&'static str> {
        match name {
            "rx_byte_rate" | "tx_byte_rate" => Some("bytes/s"),
            "rx_byte_burst" | "tx_byte_burst" => Some("bytes"),
            "rx_packet_burst" | "tx_packet_burst" => Some("packets"),
            _ => Rates::NAMES.contains(&name).then_some("packets/s"),
        }
    }

    /// The rate or burst of this name.
    pub fn value(&self, name: &str) -> Option<u64> {
        Rates::place(&mut { *self }, name).copied()
    }

    /// Sets the rate or burst of this name.
    ///
    /// # Errors
    /// A sentence: the name is unknown, or the value out of range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), String> {
        let unit = Rates::unit(name).unwrap_or_default();
        let is_burst = name.ends_with("_burst");
        let (most, zero) =
            if is_burst { (MOST_BURST, "a tenth of a second's") } else { (MOST, "no limit") };
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
    fn each_rate_has_a_place_of_its_own() {
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
    fn what_is_allowed_is_said() {
        let mut rates = Rates::default();
        for (name, value, says) in [
            (
                "storm_unknown",
                MOST + 1,
                "storm_unknown is 0 (no limit) or 1 to 1000000000000 packets/s, not 1000000000001",
            ),
            (
                "tx_byte_burst",
                MOST_BURST + 1,
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
