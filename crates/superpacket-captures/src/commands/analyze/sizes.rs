//! Histograms with fixed classes.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Upper bounds of the classes of frame lengths, in bytes; one more class is for longer frames.
const LENGTHS: [usize; 11] = [64, 128, 256, 512, 1024, 1518, 4096, 9018, 16_384, 32_768, 65_549];
/// Names of the classes of frame lengths, in reports.
const LENGTH_NAMES: [&str; 12] =
    ["64", "128", "256", "512", "1k", "1518", "4k", "9k", "16k", "32k", "64k", "more"];

/// Upper bounds of the classes of packets per super-packet; one more class is for larger numbers.
const COUNTS: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Names of the classes of packets per super-packet, in reports.
const COUNT_NAMES: [&str; 8] = ["2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "more"];

macro_rules! histogram {
    ($(#[$doc:meta])* $name:ident, $bounds:ident, $names:ident, $classes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name([u64; $classes]);

        impl $name {
            /// Adds a value to the histogram.
            #[inline]
            pub(super) fn count(&mut self, value: usize) {
                self.weigh(value, 1);
            }

            /// Adds an amount to the count of the class that contains a value.
            #[inline]
            pub(super) fn weigh(&mut self, value: usize, amount: u64) {
                self.0[Self::class(value)] += amount;
            }

            /// Returns the index of a value's class.
            #[inline]
            pub(super) fn class(value: usize) -> usize {
                $bounds.partition_point(|&bound| bound < value)
            }

            /// Adds the counts of another histogram.
            pub(super) fn add(&mut self, other: &Self) {
                for (count, more) in self.0.iter_mut().zip(other.0) {
                    *count += more;
                }
            }

            /// Returns the name and the count of each class.
            pub fn classes(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> + '_ {
                $names.iter().copied().zip(self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(Some($classes))?;
                for (name, count) in self.classes() {
                    map.serialize_entry(name, &count)?;
                }
                map.end()
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let mut counts = Self::default();
                for (name, count) in BTreeMap::<String, u64>::deserialize(deserializer)? {
                    match $names.iter().position(|&class| class == name).and_then(|class| counts.0.get_mut(class)) {
                        Some(place) => *place = count,
                        None => return Err(D::Error::custom(format!("{name:?} is not a class that this version knows"))),
                    }
                }
                Ok(counts)
            }
        }
    };
}

histogram! {
    /// Numbers of frames by length, or their bytes.
    Sizes, LENGTHS, LENGTH_NAMES, 12
}

impl Sizes {
    /// Returns the count of the classes above a length, which has to be the upper bound of a class.
    pub(super) fn above(&self, length: usize) -> u64 {
        self.0.iter().skip(Self::class(length) + 1).sum()
    }
}

/// Returns the upper bound of a class of lengths, in bytes; `None` for the last class, which has
/// none.
pub(super) fn longest(class: usize) -> Option<u32> {
    LENGTHS.get(class).map(|&bound| bound as u32)
}

/// Number of classes of lengths.
pub(super) const LENGTH_CLASSES: usize = LENGTH_NAMES.len();

histogram! {
    /// Numbers of super-packets by the packets in them.
    Counts, COUNTS, COUNT_NAMES, 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_class() {
        let mut sizes = Sizes::default();
        for length in [0, 64, 65, 1514, 1518, 1519, 65_549, 65_550, 10_000_000] {
            sizes.count(length);
        }
        let counts: Vec<_> = sizes.classes().filter(|&(_, count)| count > 0).collect();
        assert_eq!(
            counts,
            [("64", 2), ("128", 1), ("1518", 2), ("4k", 1), ("64k", 1), ("more", 2)]
        );
        let json = serde_json::to_string(&sizes).expect("serializes");
        assert_eq!(serde_json::from_str::<Sizes>(&json).expect("reads"), sizes);
        assert!(serde_json::from_str::<Sizes>("{\"65\": 1}").is_err());
        assert_eq!(serde_json::to_value(&sizes).expect("serializes")["1518"], 2);
        let mut counts = Counts::default();
        (2..=200).for_each(|packets| counts.count(packets));
        assert_eq!(
            counts.classes().map(|(_, count)| count).collect::<Vec<_>>(),
            [1, 2, 4, 8, 16, 32, 64, 72]
        );
    }
}
