//! The counts that every report has.

use std::collections::BTreeMap;

use crate::file::{BlockCounts, Container, Truncated};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use superpacket::aggregate::Reason;
use superpacket::super_packet::Metadata;

use crate::commands::error::Error;
use crate::commands::lanes::PassReason;
use crate::commands::present::{NOTHING, printable, ratio};
use crate::commands::progress::Progress;

/// Packets and bytes before and after a command. The JSON of every command has these keys.
#[derive(Clone, Debug, Default, Serialize, DeriveDeserialize)]
pub struct Totals {
    /// Number of frames read.
    pub packets_in: u64,
    /// Frames that the input's filter left out; `packets_in` does not include them.
    pub filtered_out: u64,
    /// Number of frames that the command wrote, or that it would have written if it only reports.
    pub packets_out: u64,
    /// Number of bytes of the frames read.
    pub bytes_in: u64,
    /// Number of bytes of the frames written.
    pub bytes_out: u64,
    /// Number of frames written that contain several packets.
    pub super_packets: u64,
    /// Number of frames that were merged into another: `packets_in - packets_out`. In `segment`,
    /// the number of additional frames that super-packets contained: `packets_out - packets_in`.
    pub merged: u64,
    /// Number of frames for each reason why they left the command merged, cut or unchanged. The sum
    /// is `packets_out`; in `segment`, `packets_in`.
    #[serde(deserialize_with = "reasons")]
    pub reasons: BTreeMap<&'static str, u64>,
}

/// Names of the reasons why frames were not given to the engine, in the order of
/// [`PassReason::index`].
pub(super) const PASS_REASONS: [&str; 2] = ["link_type", "snap_length"];

/// Deserializes the counts for each reason. Only names of reasons that the aggregation has are
/// accepted.
fn reasons<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<&'static str, u64>, D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let known = |name: &str| {
        Reason::ALL
            .iter()
            .map(|reason| reason.name())
            .chain(PASS_REASONS)
            .find(|&other| other == name)
    };
    let named = counts.into_iter().map(|(name, count)| match known(&name) {
        Some(name) => Ok((name, count)),
        None => Err(D::Error::custom(format!("{name:?} is not a reason that this version knows"))),
    });
    named.collect()
}

impl Totals {
    /// Adds other totals.
    pub(crate) fn add(&mut self, other: &Totals) {
        self.packets_in += other.packets_in;
        self.filtered_out += other.filtered_out;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.super_packets += other.super_packets;
        self.merged += other.merged;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    /// Counts a frame with this reason.
    pub(crate) fn reason(&mut self, name: &'static str) {
        *self.reasons.entry(name).or_default() += 1;
    }

    /// Returns the number of frames that were not merged because their checksums are wrong.
    pub(crate) fn with_wrong_checksums(&self) -> u64 {
        let count = |reason: Reason| self.reasons.get(reason.name()).copied().unwrap_or(0);
        count(Reason::BadIpChecksum) + count(Reason::BadChecksum)
    }

    /// Returns the number of packets read for each packet written, as reports print it.
    pub fn fewer_by(&self) -> String {
        match self.packets_out {
            0 => NOTHING.to_owned(),
            _ => format!("{:.2}x", ratio(self.packets_in, self.packets_out)),
        }
    }
}

/// Counts the packets of an aggregator, in an array instead of a map for speed.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// All counts but those by reason.
    pub(crate) totals: Totals,
    /// Pure ACKs that were absorbed; `merged` includes them.
    pub(crate) absorbed_acks: u64,
    reasons: [u64; Reason::COUNT],
    passed: [u64; PASS_REASONS.len()],
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            totals: Totals::default(),
            absorbed_acks: 0,
            reasons: [0; Reason::COUNT],
            passed: [0; PASS_REASONS.len()],
        }
    }
}

impl Tally {
    /// Counts a frame of `length` bytes that was read.
    #[inline]
    pub(crate) fn arrived(&mut self, length: usize) {
        self.totals.packets_in += 1;
        self.totals.bytes_in += length as u64;
    }

    /// Counts a packet that left the aggregator; `length` includes its link header.
    #[inline]
    pub(crate) fn left(&mut self, metadata: &Metadata, length: usize) {
        self.totals.packets_out += 1;
        self.totals.bytes_out += length as u64;
        self.reasons[metadata.reason as usize] += 1;
        if metadata.packets > 1 {
            self.totals.super_packets += 1;
            self.totals.merged += u64::from(metadata.packets) - 1;
            self.absorbed_acks += u64::from(metadata.absorbed_acks);
        }
    }

    /// Counts a frame that was not given to the engine.
    #[inline]
    pub(crate) fn passed(&mut self, why: PassReason, length: usize) {
        self.totals.packets_out += 1;
        self.totals.bytes_out += length as u64;
        self.passed[why.index()] += 1;
    }

    /// Returns whether the packets that left the aggregator account for every frame read.
    pub(crate) fn balanced(&self) -> bool {
        let reasons: u64 = self.reasons.iter().chain(&self.passed).sum();
        self.totals.packets_in == self.totals.packets_out + self.totals.merged
            && reasons == self.totals.packets_out
    }

    /// Returns the counts in the form of reports.
    pub(crate) fn totals(&self) -> Totals {
        let engine =
            Reason::ALL.iter().map(|&reason| (reason.name(), self.reasons[reason as usize]));
        let reasons = engine
            .chain(PASS_REASONS.into_iter().zip(self.passed))
            .filter(|&(_, count)| count > 0)
            .collect();
        Totals { reasons, ..self.totals.clone() }
    }
}

/// The place where a capture was cut short.
#[derive(Clone, Debug, Serialize, DeriveDeserialize)]
pub struct CutShort {
    /// The number that the cut packet would have had.
    pub packet: u64,
    /// Offset of the cut packet's record in the file, in bytes after decompression.
    pub offset: u64,
    /// A description of the part of the record that is present.
    pub reason: String,
}

impl std::fmt::Display for CutShort {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "in packet {}, whose record begins at byte {}: {}",
            self.packet, self.offset, self.reason
        )
    }
}

impl From<Truncated> for CutShort {
    fn from(truncated: Truncated) -> Self {
        CutShort { packet: truncated.packet, offset: truncated.offset, reason: truncated.reason }
    }
}

/// Blocks of a pcapng file that hold neither packets nor interfaces, such as decryption secrets.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Blocks {
    /// Number of blocks that were written to the output. Section headers are not counted.
    pub kept: u64,
    /// Number of blocks that the output format cannot hold, for each kind. A section header is
    /// counted if it has options that are not all kept.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Number of options that the output format cannot hold, in blocks that were written.
    pub options_left_out: u64,
    #[serde(skip)]
    is_pcap: bool,
}

impl Blocks {
    pub(crate) fn new(container: Container, counts: &BlockCounts) -> Self {
        let mut left_out = BTreeMap::new();
        for (kind, count) in &counts.left_out {
            *left_out.entry(kind.name()).or_default() += count;
        }
        Blocks {
            kept: counts.kept,
            left_out,
            options_left_out: counts.options_left_out,
            is_pcap: container == Container::Pcap,
        }
    }

    /// Returns a sentence that says what was left out, and why; `None` if nothing was left out.
    pub fn left_out_text(&self) -> Option<String> {
        let mut parts: Vec<_> = self
            .left_out
            .iter()
            .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
            .collect();
        let blocks: u64 = self.left_out.values().sum();
        let all = match (blocks, self.options_left_out) {
            (0, 0) => return None,
            (_, 0) => "blocks",
            (0, options) => {
                parts.push(format!("{options} custom"));
                "options of blocks"
            }
            (_, options) => {
                parts.push(format!("{options} custom options"));
                "blocks and options"
            }
        };
        Some(format!(
            "{} {all} ({}) were left out: {}",
            blocks + self.options_left_out,
            parts.join(", "),
            if self.is_pcap {
                "pcap cannot hold them"
            } else {
                "they must not be copied, or cannot be converted to one section"
            }
        ))
    }
}

/// The captures that could not be read. A command with several captures still reports on the
/// others.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Unreadable {
    /// The error message of each capture that could not be read.
    pub messages: Vec<String>,
    /// Whether the command has only one capture. An error in reading it is then an error of the
    /// command.
    #[serde(skip)]
    is_single: bool,
}

impl Unreadable {
    /// Returns an empty list, for a command with this number of captures.
    pub(crate) fn among(captures: usize) -> Self {
        Unreadable { messages: Vec::new(), is_single: captures == 1 }
    }

    /// Adds the error of a capture.
    pub(crate) fn add(&mut self, words: &str) {
        self.messages.push(printable(words));
    }

    /// If the command has several captures, adds an error in reading one of them to the list, and
    /// reports it to the progress. Returns all other errors.
    pub(crate) fn note_failure<T>(
        &mut self,
        result: Result<T, Error>,
        progress: &mut dyn Progress,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::Capture(_) | Error::CutShort(_))) if !self.is_single => {
                progress.unreadable(&error);
                self.add(&error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quotient_without_divisor_is_a_dash() {
        assert_eq!(Totals::default().fewer_by(), "-");
        assert_eq!(
            Totals { packets_in: 3, packets_out: 2, ..Totals::default() }.fewer_by(),
            "1.50x"
        );
    }

    #[test]
    fn totals_come_back_from_json() {
        let mut tally = Tally::default();
        tally.arrived(60);
        tally.passed(PassReason::LinkType, 60);
        let mut totals = tally.totals();
        totals.reason(Reason::ALL[3].name());
        let json = serde_json::to_string(&totals).expect("serializes");
        let again: Totals = serde_json::from_str(&json).expect("reads");
        assert_eq!((again.packets_in, &again.reasons), (1, &totals.reasons));
        let other = json.replace("link_type", "weather");
        assert!(
            serde_json::from_str::<Totals>(&other)
                .expect_err("unknown")
                .to_string()
                .contains("\"weather\" is not a reason")
        );
    }

    #[test]
    fn totals_add_up() {
        let mut tally = Tally::default();
        tally.arrived(60);
        tally.passed(PassReason::LinkType, 60);
        tally.arrived(70);
        assert!(!tally.balanced(), "one is held");
        tally.passed(PassReason::SnapLength, 70);
        assert!(tally.balanced());
        let mut totals = tally.totals();
        totals.add(&tally.totals());
        assert_eq!(
            (
                totals.packets_in,
                totals.bytes_out,
                totals.reasons["link_type"],
                totals.reasons["snap_length"]
            ),
            (4, 260, 2, 2)
        );
    }
}
