//! Token buckets: so much a second, and so much at once.
//!
//! One is a single number, the time at which it will be full again (GCRA, ITU-T I.371): nothing is
//! refilled by anybody, and all threads take from it without a lock. Times are in nanoseconds of
//! the bridge's clock. Well-kept crates for this take whole nanoseconds for each token, so they
//! cannot say more than 8 Gb/s in bytes; here the time is that of a whole packet.

use std::sync::atomic::{AtomicU64, Ordering};

use superpacket::SuperPacket;
use superpacket_port::{Buffer, wire_size};

use crate::rates::{Rate, Rates};

const NANOSECONDS: u64 = 1_000_000_000;

/// A bucket, shared by all threads.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    /// What is added in a second; 0: there is no limit.
    rate: AtomicU64,
    /// How long an empty bucket takes to be full.
    depth: AtomicU64,
    /// When it will be full.
    full_at: AtomicU64,
}

/// What a bucket has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Has {
    /// So much; `u64::MAX` without a limit.
    Some(u64),
    /// Nothing, until then.
    NothingUntil(u64),
}

/// Whoever waits for a bucket waits for at least so long, or for half of what fills it.
const LEAST_WAIT: u64 = 1_000_000;

impl Bucket {
    /// A bucket that is full.
    pub(crate) fn new(rate: Rate) -> Self {
        let bucket = Bucket::default();
        bucket.set(rate);
        bucket
    }

    /// Changes how much it takes; if that is a change, it is full then.
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

    /// Is there a limit?
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// Takes so much, if it is there. What is more than the bucket holds is let through by a full
    /// one, which is empty for longer then.
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

    /// Takes so much although it may not be there: what is missing must be waited for.
    pub(crate) fn charge(&self, amount: u64, now: u64) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate != 0 {
            let charge =
                |full_at: u64| Some(full_at.max(now).saturating_add(duration(amount, rate)));
            let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charge);
        }
    }

    /// Puts back what was taken and not used.
    fn put_back(&self, amount: u64) {
        let time = duration(amount, self.rate.load(Ordering::Relaxed));
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
            Some(full_at.saturating_sub(time))
        });
    }

    /// What is in it now.
    pub(crate) fn has(&self, now: u64) -> Has {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return Has::Some(u64::MAX);
        }
        let depth = self.depth.load(Ordering::Relaxed);
        let left = now
            .saturating_add(depth)
            .saturating_sub(self.full_at.load(Ordering::Relaxed))
            .min(depth);
        match (u128::from(left) * u128::from(rate) / u128::from(NANOSECONDS)) as u64 {
            0 => {
                let empty_until = self.full_at.load(Ordering::Relaxed).saturating_sub(depth);
                Has::NothingUntil(
                    empty_until.max(now).saturating_add(LEAST_WAIT.min(depth / 2).max(1)),
                )
            }
            amount => Has::Some(amount),
        }
    }
}

/// How long so much takes to come in.
fn duration(amount: u64, rate: u64) -> u64 {
    match rate {
        0 => 0,
        rate => amount.saturating_mul(NANOSECONDS).div_ceil(rate),
    }
}

/// Returns what a packet takes from buckets: frames on the wire, and their bytes. What LRO merged
/// counts as the packets that it was.
pub(crate) fn taken_by(packet: &SuperPacket<'_, Buffer>) -> (u64, u64) {
    let (frames, bytes) = wire_size(packet);
    (u64::from(frames.max(packet.metadata.packets)), bytes)
}

/// The buckets of a port.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    pub(crate) rx_bytes: Bucket,
    pub(crate) rx_packets: Bucket,
    pub(crate) tx_bytes: Bucket,
    pub(crate) tx_packets: Bucket,
    pub(crate) storm_broadcast: Bucket,
    pub(crate) storm_multicast: Bucket,
    pub(crate) storm_unknown: Bucket,
}

impl Buckets {
    /// Full ones.
    pub(crate) fn new(rates: &Rates) -> Self {
        let buckets = Buckets::default();
        buckets.set(rates);
        buckets
    }

    /// Changes how much they take.
    pub(crate) fn set(&self, rates: &Rates) {
        self.rx_bytes.set(rates.rx_bytes());
        self.rx_packets.set(rates.rx_packets());
        self.tx_bytes.set(rates.tx_bytes());
        self.tx_packets.set(rates.tx_packets());
        self.storm_broadcast.set(Rate::of_a_second(rates.storm_broadcast));
        self.storm_multicast.set(Rate::of_a_second(rates.storm_multicast));
        self.storm_unknown.set(Rate::of_a_second(rates.storm_unknown));
    }

    /// Is what the port receives limited?
    pub(crate) fn limit_rx(&self) -> bool {
        self.rx_bytes.is_limited() || self.rx_packets.is_limited()
    }

    /// Is what leaves by the port limited?
    pub(crate) fn limit_tx(&self) -> bool {
        self.tx_bytes.is_limited() || self.tx_packets.is_limited()
    }

    /// May so many packets of so many bytes leave by the port?
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

    fn bucket(per_second: u64, burst: u64) -> Bucket {
        Bucket::new(Rate { per_second, burst })
    }

    #[test]
    fn so_much_a_second_and_so_much_at_once() {
        let bucket = bucket(10, 10);
        let at = |ms: u64| (0..100).filter(|_| bucket.take(1, ms * MS)).count();
        assert_eq!((at(0), at(500), at(60_000)), (10, 5, 10));
        // All threads have these together.
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
            // Somebody tries often.
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
    fn what_is_longer_than_the_bucket_passes_when_it_is_full() {
        let bucket = bucket(1_000, 100);
        assert!(bucket.take(5_000, 0));
        assert!(!bucket.take(1, 0));
        assert!(
            !bucket.take(1, 4_899 * MS) && bucket.take(1, 4_901 * MS),
            "less what the bucket held"
        );
    }

    #[test]
    fn who_charges_more_than_there_is_waits() {
        let bucket = bucket(1_000, 100);
        assert_eq!(bucket.has(0), Has::Some(100));
        bucket.charge(40, 0);
        assert_eq!(bucket.has(0), Has::Some(60));
        bucket.charge(160, 0);
        assert_eq!(bucket.has(0), Has::NothingUntil(101 * MS), "100 are missing");
        assert!(matches!(bucket.has(99 * MS), Has::NothingUntil(_)));
        assert_eq!(bucket.has(110 * MS), Has::Some(10));
        assert_eq!(bucket.has(9_000 * MS), Has::Some(100), "never more than it holds");
    }

    #[test]
    fn bytes_that_are_refused_take_no_packets() {
        let rates = Rates {
            tx_packet_rate: 10,
            tx_packet_burst: 10,
            tx_byte_rate: 1_000,
            tx_byte_burst: 1_000,
            ..Rates::default()
        };
        let buckets = Buckets::new(&rates);
        assert!(buckets.limit_tx() && !buckets.limit_rx());
        let at =
            |ms: u64, bytes: u64| (0..100).filter(|_| buckets.take_tx(1, bytes, ms * MS)).count();
        assert_eq!(at(0, 500), 2, "bytes");
        assert_eq!(at(0, 0), 8, "packets");
    }

    #[test]
    fn a_change_fills_it_and_none_leaves_it() {
        let bucket = bucket(1, 1);
        bucket.charge(1_000, 0);
        bucket.set(Rate { per_second: 1, burst: 1 });
        assert!(!bucket.take(1, 0));
        bucket.set(Rate { per_second: 2, burst: 1 });
        assert!(bucket.take(1, 0) && !bucket.take(1, 0));
        bucket.set(Rate { per_second: 0, burst: 0 });
        assert!((0..1_000).all(|_| bucket.take(u64::MAX, 0)) && !bucket.is_limited());
        assert_eq!(bucket.has(0), Has::Some(u64::MAX));
    }
}
