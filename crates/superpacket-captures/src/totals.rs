//! What is counted, as every report has it.

use std::collections::BTreeMap;

use crate::file::Truncated;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use superpacket::aggregate::Reason;
use superpacket::super_packet::Metadata;

use crate::error::Error;
use crate::figures::{NOTHING, printable, ratio};
use crate::lanes::Why;
use crate::progress::Progress;

/// What went in and came out: the keys that every command's JSON has.
#[derive(Clone, Debug, Default, Serialize, DeriveDeserialize)]
pub struct Totals {
    /// Frames read.
    pub packets_in: u64,
    /// Frames written, or that would be.
    pub packets_out: u64,
    /// Bytes of the frames read.
    pub bytes_in: u64,
    /// Bytes of the frames written.
    pub bytes_out: u64,
    /// Frames that stand for several.
    pub super_packets: u64,
    /// Frames that joined another: `packets_in - packets_out`. In `segment`, those that were in
    /// super-packets: `packets_out - packets_in`.
    pub merged: u64,
    /// Why frames left as they did; adds up to `packets_out` (in `segment`, to `packets_in`).
    #[serde(deserialize_with = "reasons")]
    pub reasons: BTreeMap<&'static str, u64>,
}

/// The names of reasons for which the engine was not asked.
const PASSED: [&str; 2] = ["link_type", "snap_length"];

/// Reads counts by reason, all of whose names are known: those that aggregation gives.
fn reasons<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<&'static str, u64>, D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let known = |name: &str| {
        Reason::ALL.iter().map(|reason| reason.name()).chain(PASSED).find(|&other| other == name)
    };
    let named = counts.into_iter().map(|(name, count)| match known(&name) {
        Some(name) => Ok((name, count)),
        None => Err(D::Error::custom(format!("{name:?} is no reason of this version"))),
    });
    named.collect()
}

impl Totals {
    /// Adds another's.
    pub(crate) fn add(&mut self, other: &Totals) {
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.super_packets += other.super_packets;
        self.merged += other.merged;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }

    /// Counts a reason.
    pub(crate) fn reason(&mut self, name: &'static str) {
        *self.reasons.entry(name).or_default() += 1;
    }

    /// Packets in for each packet out, as reports print it.
    pub fn fewer_by(&self) -> String {
        match self.packets_out {
            0 => NOTHING.to_owned(),
            _ => format!("{:.2}x", ratio(self.packets_in, self.packets_out)),
        }
    }
}

/// Counts what an aggregator does, without a map on the way.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub(crate) packets_in: u64,
    pub(crate) bytes_in: u64,
    pub(crate) packets_out: u64,
    pub(crate) bytes_out: u64,
    pub(crate) super_packets: u64,
    pub(crate) merged: u64,
    /// Pure ACKs that were absorbed; in `merged` too.
    pub(crate) absorbed_acks: u64,
    reasons: [u64; Reason::COUNT],
    link_type: u64,
    snap_length: u64,
}

impl Default for Tally {
    fn default() -> Self {
        Tally {
            packets_in: 0,
            bytes_in: 0,
            packets_out: 0,
            bytes_out: 0,
            super_packets: 0,
            merged: 0,
            absorbed_acks: 0,
            reasons: [0; Reason::COUNT],
            link_type: 0,
            snap_length: 0,
        }
    }
}

impl Tally {
    /// Counts a frame read.
    #[inline]
    pub(crate) fn arrived(&mut self, length: usize) {
        self.packets_in += 1;
        self.bytes_in += length as u64;
    }

    /// Counts a packet of `length` bytes that left, link header included.
    #[inline]
    pub(crate) fn left(&mut self, metadata: &Metadata, length: usize) {
        self.packets_out += 1;
        self.bytes_out += length as u64;
        self.reasons[metadata.reason as usize] += 1;
        if metadata.packets > 1 {
            self.super_packets += 1;
            self.merged += u64::from(metadata.packets) - 1;
            self.absorbed_acks += u64::from(metadata.absorbed_acks);
        }
    }

    /// Counts a frame that passed the engine by.
    #[inline]
    pub(crate) fn passed(&mut self, why: Why, length: usize) {
        self.packets_out += 1;
        self.bytes_out += length as u64;
        match why {
            Why::LinkType => self.link_type += 1,
            Why::SnapLength => self.snap_length += 1,
        }
    }

    /// Is every frame read among those that left?
    pub(crate) fn balanced(&self) -> bool {
        let reasons: u64 = self.reasons.iter().sum::<u64>() + self.link_type + self.snap_length;
        self.packets_in == self.packets_out + self.merged && reasons == self.packets_out
    }

    /// As it is reported.
    pub(crate) fn totals(&self) -> Totals {
        let engine =
            Reason::ALL.iter().map(|&reason| (reason.name(), self.reasons[reason as usize]));
        let reasons = engine
            .chain(PASSED.into_iter().zip([self.link_type, self.snap_length]))
            .filter(|&(_, count)| count > 0)
            .collect();
        Totals {
            packets_in: self.packets_in,
            packets_out: self.packets_out,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            super_packets: self.super_packets,
            merged: self.merged,
            reasons,
        }
    }
}

/// Where a capture was cut short, as JSON has it.
#[derive(Clone, Debug, Serialize, DeriveDeserialize)]
pub struct CutShort {
    /// The number that the cut packet would have had.
    pub packet: u64,
    /// Where its record begins, in bytes after decompression.
    pub offset: u64,
    /// What is there of it.
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

/// Captures that could not be read, by commands that take several: the others are reported in any
/// case.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Unreadable {
    /// What is wrong with each, in words.
    pub messages: Vec<String>,
    /// There is only one capture: its failure is the command's.
    #[serde(skip)]
    alone: bool,
}

impl Unreadable {
    /// Nothing yet, among so many captures.
    pub(crate) fn among(captures: usize) -> Self {
        Unreadable { messages: Vec::new(), alone: captures == 1 }
    }

    /// Keeps what is wrong with one capture, in words.
    pub(crate) fn add(&mut self, words: &str) {
        self.messages.push(printable(words));
    }

    /// Keeps the failure of one capture, which is told at once; others stop the command.
    pub(crate) fn sort<T>(
        &mut self,
        result: Result<T, Error>,
        progress: &mut dyn Progress,
    ) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::Capture(_) | Error::CutShort(_))) if !self.alone => {
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
    fn nothing_is_divided_by_nothing() {
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
        tally.passed(Why::LinkType, 60);
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
                .contains("\"weather\" is no reason")
        );
    }

    #[test]
    fn totals_add_up() {
        let mut tally = Tally::default();
        tally.arrived(60);
        tally.passed(Why::LinkType, 60);
        tally.arrived(70);
        assert!(!tally.balanced(), "one is held");
        tally.passed(Why::SnapLength, 70);
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
