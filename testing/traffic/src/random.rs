//! A seeded source of random numbers. The numbers are the same on every platform and with every
//! version of the dependencies.

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A deterministic random source (xoshiro256++).
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Creates the source of `seed`.
    pub fn new(seed: u64) -> Self {
        Random(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of a product. The bias is below bound / 2^64, which no test here can
        // detect.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    ///
    /// # Panics
    /// If `low > high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        assert!(low <= high, "{low} > {high}");
        low + self.below((high - low) as u64 + 1) as usize
    }

    /// Returns true with probability `probability`.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits fit a double's mantissa exactly, so the comparison has the same result
        // everywhere.
        ((self.bits() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Returns one of `choices`.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Returns an index into `weights`; the probability of each is proportional to its weight.
    ///
    /// # Panics
    /// If all weights are zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u32 = weights.iter().sum();
        assert!(total > 0, "no weight");
        let mut left = self.below(u64::from(total)) as u32;
        for (index, weight) in weights.iter().enumerate() {
            if left < *weight {
                return index;
            }
            left -= weight;
        }
        unreachable!("the draw is below the sum of the weights")
    }

    /// Returns `length` random bytes.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Returns a random IPv6 address in `fd09::/64`, used as an intermediate address of a source
    /// route.
    pub fn address(&mut self) -> [u8; 16] {
        let mut address = [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        address[8..].copy_from_slice(&self.bits().to_be_bytes());
        address
    }

    /// Shuffles `items` in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_seed_never_change() {
        let mut random = Random::new(1);
        assert_eq!([random.bits(), random.bits()], [0xcfc5_d07f_6f03_c29b, 0xbf42_4132_963f_e08d]);
    }

    #[test]
    fn draws_stay_in_their_range() {
        let mut random = Random::new(2);
        let mut seen = [0usize; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] += 1;
            assert!((3..=9).contains(&random.between(3, 9)));
            assert_ne!(random.weighted(&[1, 0, 3]), 1);
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
        assert!(!random.chance(0.0) && random.chance(1.0));
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
    }
}
