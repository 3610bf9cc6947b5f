//! The setting `in_place_below`: when packets are processed by the thread that receives them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::SettingValue;

/// When a receive queue with an RPS mask is processed by the thread that receives its packets,
/// instead of by workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SettingValue", into = "SettingValue")]
pub enum InPlace {
    /// The receiving thread processes the packets while it has time for all of them. When it is
    /// busy nearly all the time, steering is tried, and kept if it processes more packets per
    /// second.
    Automatic,
    /// The receiving thread processes the packets while the queue receives fewer per second than
    /// this. At this rate the packets are steered, until the rate falls below half of it.
    Below(u64),
}

impl InPlace {
    /// Packets are always steered to the mask's CPUs, as by the kernel.
    pub const NEVER: InPlace = InPlace::Below(0);

    /// The name of [`Automatic`](Self::Automatic) in commands and files.
    const AUTOMATIC: &str = "auto";

    /// The name of an absent setting in commands and files.
    pub(super) const DEFAULT: &str = "default";

    /// The allowed values, for error messages.
    pub(super) const ALLOWED: &str = "\"auto\", or a number of packets a second (0: always steer)";
}

/// Writes `auto`, or the rate in packets per second.
impl fmt::Display for InPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InPlace::Automatic => formatter.write_str(Self::AUTOMATIC),
            InPlace::Below(rate) => rate.fmt(formatter),
        }
    }
}

/// Parses the format that [`Display`](fmt::Display) writes.
impl FromStr for InPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            Self::AUTOMATIC => Ok(InPlace::Automatic),
            _ => text
                .parse()
                .map(InPlace::Below)
                .map_err(|_| format!("it is {}, not {text:?}", Self::ALLOWED)),
        }
    }
}

impl From<InPlace> for SettingValue {
    fn from(in_place: InPlace) -> Self {
        match in_place {
            InPlace::Automatic => InPlace::AUTOMATIC.into(),
            InPlace::Below(rate) => rate.into(),
        }
    }
}

impl TryFrom<SettingValue> for InPlace {
    type Error = String;

    fn try_from(value: SettingValue) -> Result<Self, String> {
        value.to_string().parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_read_back_what_was_written() {
        for (setting, text, json) in [
            (InPlace::Automatic, "auto", "\"auto\""),
            (InPlace::NEVER, "0", "0"),
            (InPlace::Below(20_000), "20000", "20000"),
        ] {
            assert_eq!((setting.to_string(), text.parse()), (text.to_owned(), Ok(setting)));
            assert_eq!(serde_json::to_string(&setting).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<InPlace>(json).expect("JSON"), setting);
        }
        for (text, json) in [("fast", "\"fast\""), ("", "true")] {
            let error = text.parse::<InPlace>().expect_err(text);
            assert!(error.contains("\"auto\", or a number") && error.contains(text), "{error}");
            let error = serde_json::from_str::<InPlace>(json).expect_err(json).to_string();
            assert!(error.contains("\"auto\", or a number"), "{error}");
        }
        for text in ["-1", "1.5"] {
            let error = text.parse::<InPlace>().expect_err(text);
            assert!(error.contains("\"auto\", or a number") && error.contains(text), "{error}");
            let error = serde_json::from_str::<InPlace>(text).expect_err(text).to_string();
            assert!(error.contains("a number, a boolean or a word"), "{error}");
        }
    }
}
