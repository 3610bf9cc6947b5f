//! Token buckets that limit the bytes and packets of a port.
//!
//! A bucket is a single number, the time at which it will be full again (GCRA, ITU-T I.371). No
//! refill is needed, and threads share a bucket without a lock. Times are in nanoseconds since the
//! bridge started. Public crates for token buckets count whole nanoseconds per token, so they
//! cannot express more than 8 Gb/s in bytes; here times are computed for a whole packet.

use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::SuperPacket;
use superpacket_port::{Buffer, wire_size};

use crate::switch::rates::{Rate, Rates};

const NANOSECONDS: u64 = 1_000_000_000;

/// A token bucket, shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct TokenBucket {
    /// Tokens added per second; 0 for no limit.
    rate: AtomicU64,
    /// Time in nanoseconds in which an empty bucket becomes full.
    depth: AtomicU64,
    /// Time at which the bucket will be full, in nanoseconds.
    full_at: AtomicU64,
}

/// The content of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketLevel {
    /// Number of tokens in the bucket; `u64::MAX` if there is no limit.
    Some(u64),
    /// The bucket is empty until this time, in nanoseconds.
    EmptyUntil(u64),
}

/// Minimum time in nanoseconds for which a thread waits for tokens, unless half of the bucket fills
/// sooner. Shorter waits would wake threads too often.
const MIN_WAIT: u64 = 1_000_000;

impl TokenBucket {
    /// Returns a full bucket with this rate and size.
    pub(crate) fn new(rate: Rate) -> Self {
        let bucket = TokenBucket::default();
        bucket.set(rate);
        bucket
    }

    /// Changes the rate and size. If they differ from before, the bucket is full afterwards.
    pub(crate) fn set(&self, rate: Rate) {
        let depth = duration(rate.burst, rate.per_second);
        let before = (
            self.rate.swap(rate.per_second, Ordering::Relaxed),
            self.depth.swap(depth, Ordering::Relaxed),
        );
        if before != (rate.per_second, depth) {
            self.full_at.store(0, Ordering::Relaxed);
        }
    }

    /// Returns whether the rate is limited.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// Takes `amount` tokens if they are available, and returns whether they were. A full bucket
    /// gives any amount, even more than it holds, and is then empty for longer.
    pub(crate) fn take(&self, amount: u64, now: u64) -> bool {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return true;
        }
        let (time, latest) =
            (duration(amount, rate), now.saturating_add(self.depth.load(Ordering::Relaxed)));
        let take = |full_at: u64| {
            let after = full_at.max(now).saturating_add(time);
            (after <= latest || full_at <= now).then_some(after)
        };
        self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Takes `amount` tokens even if they are not available; later packets must wait until the
    /// missing ones are added.
    pub(crate) fn charge(&self, amount: u64, now: u64) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate != 0 {
            let charge =
                |full_at: u64| Some(full_at.max(now).saturating_add(duration(amount, rate)));
            let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
        }
    }

    /// Returns tokens to the bucket that were taken for a packet which was not sent.
    fn put_back(&self, amount: u64) {
        let time = duration(amount, self.rate.load(Ordering::Relaxed));
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            Some(full_at.saturating_sub(time))
        });
    }

    /// Returns the number of tokens in the bucket at the time `now`, or how long it is empty.
    pub(crate) fn has(&self, now: u64) -> BucketLevel {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return BucketLevel::Some(u64::MAX);
        }
        let depth = self.depth.load(Ordering::Relaxed);
        let left = now
            .saturating_add(depth)
            .saturating_sub(self.full_at.load(Ordering::Relaxed))
            .min(depth);
        match (u128::from(left) * u128::from(rate) / u128::from(NANOSECONDS)) as u64 {
            0 => {
                let empty_until = self.full_at.load(Ordering::Relaxed).saturating_sub(depth);
                BucketLevel::EmptyUntil(
                    empty_until.max(now).saturating_add(MIN_WAIT.min(depth / 2).max(1)),
                )
            }
            amount => BucketLevel::Some(amount),
        }
    }
}

/// Returns the time in nanoseconds in which `amount` tokens are added, at `rate` tokens per second.
fn duration(amount: u64, rate: u64) -> u64 {
    match rate {
        0 => 0,
        rate => amount.saturating_mul(NANOSECONDS).div_ceil(rate),
    }
}

/// Returns the tokens that a packet takes: the number of its frames on the wire, and of their
/// bytes. A packet merged by LRO counts as the packets of which it was made.
pub(crate) fn taken_by(packet: &SuperPacket<'_, Buffer>) -> (u64, u64) {
    let (frames, bytes) = wire_size(packet);
    (u64::from(frames.max(packet.metadata.packets)), bytes)
}

/// The token buckets of a port: for what it receives, for what it sends, and for broadcast,
/// multicast and unknown unicast packets that it sends into the bridge.
#[derive(Debug, Default)]
pub(crate) struct PortBuckets {
    pub(crate) rx_bytes: TokenBucket,
    pub(crate) rx_packets: TokenBucket,
    pub(crate) tx_bytes: TokenBucket,
    pub(crate) tx_packets: TokenBucket,
    pub(crate) storm_broadcast: TokenBucket,
    pub(crate) storm_multicast: TokenBucket,
    pub(crate) storm_unknown: TokenBucket,
}

impl PortBuckets {
    /// Returns full buckets with these rates.
    pub(crate) fn new(rates: &Rates) -> Self {
        let buckets = PortBuckets::default();
        buckets.set(rates);
        buckets
    }

    /// Changes the rates.
    pub(crate) fn set(&self, rates: &Rates) {
        self.rx_bytes.set(rates.rx_bytes());
        self.rx_packets.set(rates.rx_packets());
        self.tx_bytes.set(rates.tx_bytes());
        self.tx_packets.set(rates.tx_packets());
        self.storm_broadcast.set(Rate::of_a_second(rates.storm_broadcast));
        self.storm_multicast.set(Rate::of_a_second(rates.storm_multicast));
        self.storm_unknown.set(Rate::of_a_second(rates.storm_unknown));
    }

    /// Returns whether a rate limits the packets that the port receives.
    pub(crate) fn limit_rx(&self) -> bool {
        self.rx_bytes.is_limited() || self.rx_packets.is_limited()
    }

    /// Returns whether a rate limits the packets that leave by the port.
    pub(crate) fn limit_tx(&self) -> bool {
        self.tx_bytes.is_limited() || self.tx_packets.is_limited()
    }

    /// Takes tokens for packets that leave by the port, and returns whether they may leave. If not,
    /// no tokens are taken.
    pub(crate) fn take_tx(&self, packets: u64, bytes: u64, now: u64) -> bool {
        let taken = self.tx_packets.take(packets, now);
        let both = taken && self.tx_bytes.take(bytes, now);
        if taken && !both {
            self.tx_packets.put_back(packets);
        }
        both
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn bucket(per_second: u64, burst: u64) -> TokenBucket {
        TokenBucket::new(Rate { per_second, burst })
    }

    #[test]
    fn rate_and_burst_are_enforced() {
        let bucket = bucket(10, 10);
        let at = |ms: u64| (0..100).filter(|_| bucket.take(1, ms * MS)).count();
        assert_eq!((at(0), at(500), at(60_000)), (10, 5, 10));
        // All threads together stay within the rate.
        let several = || (0..100).filter(|_| bucket.take(1, 120_000 * MS)).count();
        let taken = std::thread::scope(|scope| {
            [(); 4].map(|()| scope.spawn(several)).map(|thread| thread.join().expect("ends"))
        });
        assert_eq!(taken.iter().sum::<usize>(), 10);
    }

    #[test]
    fn rates_hold_for_amounts_of_all_sizes() {
        let cases = [
            (1_000, 100, 1),
            (1_000, 100, 60),
            (1_000, 100, 1_514),
            (1_250_000, 65_536, 60),
            (1_250_000, 65_536, 1_514),
            (1_250_000, 65_536, 65_549),
            (12_500_000_000, 1 << 20, 1_514),
            (12_500_000_000, 1 << 20, 65_549),
        ];
        for (rate, burst, amount) in cases {
            let bucket = bucket(rate, burst);
            let (mut taken, end) = (0, 200 * MS.max(duration(10 * amount, rate) / 200));
            // The bucket is tried often.
            let step = (duration(amount, rate) / 20).max(end / 100_000);
            let mut now = 0;
            while now < end {
                while bucket.take(amount, now) {
                    taken += amount;
                }
                now += step;
            }
            let due = rate as f64 * end as f64 / NANOSECONDS as f64;
            let most = due + (burst.max(amount) + amount) as f64;
            assert!(
                taken as f64 <= most && taken as f64 >= due * 0.9,
                "{rate} {burst} {amount}: {taken}, {due} to {most}"
            );
        }
    }

    #[test]
    fn an_amount_larger_than_the_bucket_passes_when_it_is_full() {
        let bucket = bucket(1_000, 100);
        assert!(bucket.take(5_000, 0));
        assert!(!bucket.take(1, 0));
        assert!(
            !bucket.take(1, 4_899 * MS) && bucket.take(1, 4_901 * MS),
            "less what the bucket held"
        );
    }

    #[test]
    fn charging_more_than_available_causes_a_wait() {
        let bucket = bucket(1_000, 100);
        assert_eq!(bucket.has(0), BucketLevel::Some(100));
        bucket.charge(40, 0);
        assert_eq!(bucket.has(0), BucketLevel::Some(60));
        bucket.charge(160, 0);
        assert_eq!(bucket.has(0), BucketLevel::EmptyUntil(101 * MS), "100 are missing");
        assert!(matches!(bucket.has(99 * MS), BucketLevel::EmptyUntil(_)));
        assert_eq!(bucket.has(110 * MS), BucketLevel::Some(10));
        assert_eq!(bucket.has(9_000 * MS), BucketLevel::Some(100), "never more than it holds");
    }

    #[test]
    fn refused_bytes_take_no_packet_tokens() {
        let rates = Rates {
            tx_packet_rate: 10,
            tx_packet_burst: 10,
            tx_byte_rate: 1_000,
            tx_byte_burst: 1_000,
            ..Rates::default()
        };
        let buckets = PortBuckets::new(&rates);
        assert!(buckets.limit_tx() && !buckets.limit_rx());
        let at =
            |ms: u64, bytes: u64| (0..100).filter(|_| buckets.take_tx(1, bytes, ms * MS)).count();
        assert_eq!(at(0, 500), 2, "bytes");
        assert_eq!(at(0, 0), 8, "packets");
    }

    #[test]
    fn a_changed_rate_fills_the_bucket() {
        let bucket = bucket(1, 1);
        bucket.charge(1_000, 0);
        bucket.set(Rate { per_second: 1, burst: 1 });
        assert!(!bucket.take(1, 0));
        bucket.set(Rate { per_second: 2, burst: 1 });
        assert!(bucket.take(1, 0) && !bucket.take(1, 0));
        bucket.set(Rate { per_second: 0, burst: 0 });
        assert!((0..1_000).all(|_| bucket.take(u64::MAX, 0)) && !bucket.is_limited());
        assert_eq!(bucket.has(0), BucketLevel::Some(u64::MAX));
    }
}
