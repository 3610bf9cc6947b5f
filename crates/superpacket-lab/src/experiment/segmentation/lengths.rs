//! Frame counts by length, and histograms of them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::error::LabError;
use crate::experiment::report::{Column, Row};
use crate::link::Link;
use crate::raw::{RawOptions, RawSocket};

/// Length of the headers of TCP over IPv4 with timestamps, including the Ethernet header.
pub(crate) const TCP4_HEADERS: u32 = 14 + 20 + 32;

/// Number of frames per length in bytes.
pub(crate) type Lengths = BTreeMap<u32, u64>;

/// Counts the frames that an interface receives during `work`. The count is a sample, because the
/// kernel drops frames while the socket's buffer is full.
///
/// # Errors
/// The error of `work`; [`LabError::System`] if the interface cannot be observed.
pub(crate) fn measure_lengths<T>(
    link: &Link,
    work: impl FnOnce() -> Result<T, LabError>,
) -> Result<(T, Lengths), LabError> {
    let socket = RawSocket::open(link, RawOptions::default())?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&socket, &done));
        let result = work();
        done.store(true, Ordering::Release);
        let lengths = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((result?, lengths?))
    })
}

fn watch(socket: &RawSocket, done: &AtomicBool) -> Result<Lengths, LabError> {
    let mut lengths = Lengths::new();
    // A part is enough, because the call returns the length of the whole frame.
    let mut head = [0; 64];
    loop {
        match recv(socket.as_fd(), &mut head, RecvFlags::TRUNC | RecvFlags::DONTWAIT) {
            Ok((_, length)) => *lengths.entry(length as u32).or_default() += 1,
            Err(Errno::AGAIN | Errno::INTR) if done.load(Ordering::Acquire) => return Ok(lengths),
            Err(Errno::AGAIN | Errno::INTR) => socket.wait(Duration::from_millis(10))?,
            Err(error) => {
                return Err(LabError::system("counting frames by length", io::Error::from(error)));
            }
        }
    }
}

/// Returns the largest payload of TCP over IPv4 in these frames, in bytes.
pub(crate) fn largest_payload(lengths: &Lengths) -> u32 {
    lengths.keys().next_back().map_or(0, |length| length.saturating_sub(TCP4_HEADERS))
}

/// Returns the sum of the payload of TCP over IPv4 in these frames, in bytes.
pub(crate) fn payload(lengths: &Lengths) -> u64 {
    lengths
        .iter()
        .map(|(length, count)| u64::from(length.saturating_sub(TCP4_HEADERS)) * count)
        .sum()
}

/// Columns of a histogram.
pub(crate) const COLUMNS: [Column; 2] = [
    Column::count("frames", "frames"),
    Column { name: "bytes", title: "of the payload", unit: "%", digits: 1 },
];

/// Classes of a histogram of TCP payload lengths: upper bound in bytes, and name. They suit
/// segments of 1,448 bytes.
const CLASSES: [(u32, &str); 8] = [
    (0, "no payload"),
    (1_447, "1 to 1,447 bytes"),
    (1_448, "1,448 bytes"),
    (15_927, "1,449 to 15,927 bytes"),
    (15_928, "15,928 bytes"),
    (65_159, "15,929 to 65,159 bytes"),
    (65_160, "65,160 bytes"),
    (u32::MAX, "more"),
];

/// Returns the rows of a histogram of TCP payload lengths, without empty classes.
pub(crate) fn histogram(group: &str, lengths: &Lengths) -> Vec<Row> {
    let mut classes = [(0u64, 0u64); CLASSES.len()];
    for (length, count) in lengths {
        let payload = length.saturating_sub(TCP4_HEADERS);
        let class =
            CLASSES.iter().position(|(bound, _)| payload <= *bound).unwrap_or(CLASSES.len() - 1);
        classes[class].0 += count;
        classes[class].1 += count * u64::from(payload);
    }
    let whole = classes.iter().map(|(_, bytes)| bytes).sum::<u64>().max(1) as f64;
    let filled = CLASSES.iter().zip(classes).filter(|(_, (frames, _))| *frames != 0);
    let row = |((_, name), (frames, bytes)): (&(u32, &str), (u64, u64))| {
        Row::exact(group, *name, &[frames as f64, bytes as f64 / whole * 100.0])
    };
    filled.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_where_they_belong() {
        let lengths =
            Lengths::from([(54, 1), (66, 2), (66 + 1_448, 10), (66 + 15_928, 5), (66 + 20_000, 1)]);
        let rows = histogram("off", &lengths);
        let shown: Vec<_> = rows
            .iter()
            .map(|row| (row.name.as_str(), row.figures[0].map(|figure| figure.value)))
            .collect();
        assert_eq!(
            shown,
            [
                ("no payload", Some(3.0)),
                ("1,448 bytes", Some(10.0)),
                ("15,928 bytes", Some(5.0)),
                ("15,929 to 65,159 bytes", Some(1.0))
            ]
        );
        let shares: f64 =
            rows.iter().filter_map(|row| row.figures[1]).map(|figure| figure.value).sum();
        assert!((shares - 100.0).abs() < 1e-9, "{shares}");
        assert_eq!(
            (largest_payload(&lengths), payload(&lengths)),
            (20_000, 10 * 1_448 + 5 * 15_928 + 20_000)
        );
    }
}
