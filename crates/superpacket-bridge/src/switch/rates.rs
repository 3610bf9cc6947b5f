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

    /// Returns a rate limit with the bucket size `burst`; 0 stands for the tokens of a tenth of a
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
    /// Maximum bytes per second that the port receives, counted from the link header on. Packets
    /// beyond the limit wait in the port's receive queue, and are dropped when it is full.
    pub rx_byte_rate: u64,
    /// Maximum bytes received at once; 0 for a tenth of a second's bytes.
    pub rx_byte_burst: u64,
    /// Maximum packets per second that the port receives. Packets beyond the limit wait in the
    /// port's receive queue.
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
    /// Maximum broadcast packets per second that the port may send into the bridge, which is also
    /// the largest burst.
    pub storm_broadcast: u64,
    /// Maximum multicast packets per second that the port may send into the bridge, which is also
    /// the largest burst.
    pub storm_multicast: u64,
    /// Maximum packets per second to unknown addresses that the port may send into the bridge,
    /// which is also the largest burst.
    pub storm_unknown: u64,
}

impl Rates {
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
