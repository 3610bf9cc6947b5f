//! Parsers of sizes and durations in human notation: `64k`, `1G`, `50us`.

use std::time::Duration;

/// Parses a number with an optional suffix k, M, G or T (powers of 1024; `B` and `iB` may follow).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let factor: u64 = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        other => return Err(format!("unknown suffix {other:?}: k, M, G or T")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is not a number with an optional suffix k, M, G or T"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} does not fit 64 bits"))
}

/// Parses a duration such as `50us`, `1ms`, `3600s` or `0`, and returns it in nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Result<u64, String> {
    if text.trim() == "0" {
        return Ok(0);
    }
    if text
        .trim()
        .strip_prefix('-')
        .is_some_and(|rest| rest.starts_with(|character: char| character.is_ascii_digit()))
    {
        return Err("a duration cannot be negative; write 50us, 1ms or 3600s".to_owned());
    }
    let duration: Duration = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write 50us, 1ms or 3600s"))?;
    u64::try_from(duration.as_nanos()).map_err(|_| format!("{text:?} is more than 584 years"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        assert_eq!(size("1500"), Ok(1500));
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("2M"), Ok(2 << 20));
        for wrong in ["", "k", "-1", "1.5k", "1x", "99999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(nanoseconds("0"), Ok(0));
        assert_eq!(nanoseconds("50us"), Ok(50_000));
        assert_eq!(nanoseconds("1ms"), Ok(1_000_000));
        assert_eq!(nanoseconds("3600s"), Ok(3_600_000_000_000));
        for wrong in ["", "5", "ms", "-1s", "1000years"] {
            assert!(nanoseconds(wrong).is_err(), "{wrong}");
        }
        assert!(nanoseconds("-1s").is_err_and(|message| message.contains("cannot be negative")));
        assert!(
            nanoseconds("-q").is_err_and(|message| !message.contains("negative")),
            "another option, where a value is missing"
        );
    }
}
