//! Times in capture files. They are kept in the file's unit, so that they can be written exactly as
//! they were read.

/// The unit of times in a capture file, a tick: 10^-k or 2^-k seconds (`if_tsresol`,
/// draft-ietf-opsawg-pcapng section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimeResolution(u8);

const BINARY: u8 = 0x80;

impl TimeResolution {
    /// Ticks of one microsecond, as in ordinary pcap files and in pcapng files without
    /// `if_tsresol`.
    pub const MICROSECONDS: Self = Self(6);
    /// Ticks of one nanosecond.
    pub const NANOSECONDS: Self = Self(9);

    /// Converts a value of `if_tsresol`: the low seven bits are the exponent, and the highest bit
    /// selects base 2. Returns `None` above 10^19 or 2^63 ticks per second, since 64 bits could not
    /// count even one second.
    pub fn from_option(value: u8) -> Option<Self> {
        let highest = if value & BINARY == 0 { 19 } else { 63 };
        (value & !BINARY <= highest).then_some(Self(value))
    }

    /// Returns the value of `if_tsresol`.
    pub fn to_option(self) -> u8 {
        self.0
    }

    /// Returns the number of ticks per second, at least 1.
    #[inline]
    pub fn ticks_per_second(self) -> u64 {
        match self.0 {
            6 => 1_000_000,
            9 => 1_000_000_000,
            decimal if decimal & BINARY == 0 => 10u64.pow(u32::from(decimal)),
            binary => 1 << (binary & !BINARY),
        }
    }
}

/// A point in time, encoded as in the capture file from which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timestamp {
    /// Number of ticks since the start of counting, which is `offset_seconds` after
    /// 1970-01-01T00:00:00 UTC.
    pub ticks: u64,
    /// The unit of a tick.
    pub resolution: TimeResolution,
    /// Seconds from 1970-01-01T00:00:00 UTC to the start of counting (`if_tsoffset`); almost always
    /// 0.
    pub offset_seconds: i64,
}

impl Timestamp {
    /// Creates a time from the number of nanoseconds since 1970.
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { ticks: nanoseconds, resolution: TimeResolution::NANOSECONDS, offset_seconds: 0 }
    }

    /// Returns the number of nanoseconds since 1970, rounded down. Returns 0 for an earlier time,
    /// and `u64::MAX` after the year 2554.
    #[inline]
    pub fn nanoseconds(self) -> u64 {
        self.nanoseconds_since(0)
    }

    /// Returns the number of nanoseconds since `start`, which is in seconds since 1970, rounded
    /// down. Returns 0 for an earlier time, and `u64::MAX` if 64 bits cannot hold the number.
    #[inline]
    pub fn nanoseconds_since(self, start: i64) -> u64 {
        if self.offset_seconds == start {
            match self.resolution {
                TimeResolution::NANOSECONDS => return self.ticks,
                TimeResolution::MICROSECONDS => return self.ticks.saturating_mul(1000),
                _ => {}
            }
        }
        let total = self.convert(TimeResolution::NANOSECONDS, start).unwrap_or(i128::MAX);
        u64::try_from(total.max(0)).unwrap_or(u64::MAX)
    }

    /// Returns the number of ticks for this time in another unit and with another offset, rounded
    /// down. It is exact if the unit is at least as fine as this one. `None` if the number would be
    /// negative or exceed 64 bits.
    #[inline]
    pub fn ticks_in(self, resolution: TimeResolution, offset_seconds: i64) -> Option<u64> {
        if self.resolution == resolution && self.offset_seconds == offset_seconds {
            return Some(self.ticks);
        }
        u64::try_from(self.convert(resolution, offset_seconds)?).ok()
    }

    fn convert(self, resolution: TimeResolution, offset_seconds: i64) -> Option<i128> {
        let from = self.resolution.ticks_per_second();
        let to = resolution.ticks_per_second();
        let seconds = i128::from(self.ticks / from) + i128::from(self.offset_seconds)
            - i128::from(offset_seconds);
        let fraction = u128::from(self.ticks % from) * u128::from(to) / u128::from(from);
        seconds.checked_mul(i128::from(to))?.checked_add(i128::try_from(fraction).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ticks: u64, option: u8, offset_seconds: i64) -> Timestamp {
        Timestamp {
            ticks,
            resolution: TimeResolution::from_option(option).unwrap(),
            offset_seconds,
        }
    }

    #[test]
    fn the_option_value_gives_the_unit() {
        assert_eq!(TimeResolution::from_option(6).unwrap().ticks_per_second(), 1_000_000);
        assert_eq!(TimeResolution::from_option(0).unwrap().ticks_per_second(), 1);
        assert_eq!(TimeResolution::from_option(0x80 | 10).unwrap().ticks_per_second(), 1024);
        assert_eq!(
            TimeResolution::from_option(19).unwrap().ticks_per_second(),
            10_000_000_000_000_000_000
        );
        assert_eq!(TimeResolution::from_option(20), None);
        assert_eq!(TimeResolution::from_option(0x80 | 63).unwrap().ticks_per_second(), 1 << 63);
        assert_eq!(TimeResolution::from_option(0x80 | 64), None);
    }

    #[test]
    fn nanoseconds_of_every_kind_of_tick() {
        assert_eq!(at(1_500_000, 6, 0).nanoseconds(), 1_500_000_000);
        assert_eq!(at(3, 0, 0).nanoseconds(), 3_000_000_000);
        assert_eq!(at(1536, 0x8A, 0).nanoseconds(), 1_500_000_000);
        assert_eq!(at(1_999, 12, 0).nanoseconds(), 1);
        assert_eq!(at(5, 0, 10).nanoseconds(), 15_000_000_000);
        assert_eq!(at(5, 0, -10).nanoseconds(), 0, "before 1970");
        assert_eq!(at(u64::MAX, 6, 0).nanoseconds(), u64::MAX);
        assert_eq!(at(u64::MAX, 0, i64::MAX).nanoseconds(), u64::MAX);
    }

    #[test]
    fn nanoseconds_since_a_start_before_1970() {
        assert_eq!(at(5_000_000, 6, -10).nanoseconds_since(-10), 5_000_000_000);
        assert_eq!(at(5_000_000, 6, -10).nanoseconds_since(-12), 7_000_000_000);
        assert_eq!(at(1, 9, i64::MIN).nanoseconds_since(i64::MIN), 1);
        assert_eq!(at(5, 0, -10).nanoseconds_since(-3), 0, "before the start");
    }

    #[test]
    fn a_coarser_unit_rounds_down_and_a_finer_one_is_exact() {
        let time = at(1_234_567_891, 9, 0);
        assert_eq!(time.ticks_in(TimeResolution::MICROSECONDS, 0), Some(1_234_567));
        assert_eq!(
            at(1_234_567, 6, 0).ticks_in(TimeResolution::NANOSECONDS, 0),
            Some(1_234_567_000)
        );
        assert_eq!(at(5, 0, 10).ticks_in(TimeResolution::MICROSECONDS, 5), Some(10_000_000));
        assert_eq!(
            at(5, 0, 0).ticks_in(TimeResolution::MICROSECONDS, 6),
            None,
            "would be negative"
        );
        assert_eq!(at(u64::MAX, 0, 0).ticks_in(TimeResolution::NANOSECONDS, 0), None);
        assert_eq!(
            at(u64::MAX, 0, 7).ticks_in(TimeResolution::from_option(0).unwrap(), 7),
            Some(u64::MAX)
        );
    }

    #[test]
    fn extremes_do_not_overflow() {
        for option in [0, 6, 9, 19, 0x80, 0x80 | 63] {
            for ticks in [0, 1, u64::MAX] {
                for offset in [i64::MIN, -1, 0, i64::MAX] {
                    let time = at(ticks, option, offset);
                    time.nanoseconds();
                    for other in [0, 6, 9, 19, 0x80, 0x80 | 63] {
                        time.ticks_in(TimeResolution::from_option(other).unwrap(), -7);
                    }
                }
            }
        }
    }
}
