//! Judges any two files, or refuses them with an error. By all rules, a file is faithful to itself,
//! and so are the engine's results of its packets.
//!
//! In the first byte of the input, bit 0 selects the stricter rules, and bits 1 and 2 the rest of
//! the input:
//! - two files, captures or records: the length of the first in 16 bits (big-endian), then both;
//! - a capture;
//! - packets as [`superpacket_fuzz::packets`] reads them, behind two bytes: the position of a
//!   damaged byte in the result, in 256ths, and the bits to invert in it.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use superpacket::packet::Layer;
use superpacket_captures::file::{Reader, Source};
use superpacket_captures::{
    CheckOptions, CheckReport, CoalesceOptions, Input, LinkType, Output, Packets, Strictness,
    check, coalesce,
};

/// Maximum packets and bytes of a file: a small compressed file of zeroes can have very many.
const ENOUGH: (usize, usize) = (4096, 1 << 20);

fn options(rules: Strictness) -> CheckOptions {
    CheckOptions { rules, ..CheckOptions::default() }
}

/// Judges a file, and asserts the properties of every report.
fn judged(checked: Input<'_>, origin: Input<'_>, rules: Strictness) -> Option<CheckReport> {
    let report = check(checked, origin, &options(rules), &mut ()).ok()?;
    assert_eq!(report.violations, report.by_rule.values().sum::<u64>());
    assert_eq!(report.described.len() as u64, report.violations.min(10));
    for violation in &report.described {
        assert!(
            report.by_rule.contains_key(&violation.rule)
                && !violation.field.is_empty()
                && !violation.found.is_empty()
        );
        assert!(violation.packet.is_some() || violation.origin.is_some());
        assert!(violation.packet.is_none_or(|packet| packet <= report.packets_out));
        assert!(violation.origin.is_none_or(|packet| packet <= report.packets_in));
    }
    Some(report)
}

/// Judges two files with any contents.
fn any_two(first: &[u8], second: &[u8], rules: Strictness) {
    let stream = |file: &str, bytes: &[u8]| Input::Stream {
        file: file.to_owned(),
        stream: Box::new(Cursor::new(bytes.to_vec())),
    };
    judged(stream("checked", first), stream("origin", second), rules);
}

/// Returns the packets of a capture up to its end, an error, or a truncated packet.
fn packets_of(capture: &[u8]) -> Option<Packets> {
    let mut reader = Reader::from_stream("fuzz", Box::new(Cursor::new(capture.to_vec()))).ok()?;
    let mut packets = Packets::new();
    let (mut count, mut bytes) = (0, 0);
    while let Ok(Some(frame)) = reader.next_frame() {
        (count, bytes) = (count + 1, bytes + frame.data.len());
        if frame.is_truncated() || count > ENOUGH.0 || bytes > ENOUGH.1 {
            break;
        }
        packets
            .push(frame.link_type(), frame.time.map(|time| time.nanoseconds()), frame.data)
            .ok()?;
    }
    Some(packets)
}

/// Judges a file against the packets that it was made of: the same packets, the engine's
/// super-packets of them, and damaged ones, for which any verdict is valid.
fn faithful(original: &Packets, damage: [u8; 2]) {
    let mut merged = Packets::new();
    let options = CoalesceOptions::default();
    coalesce(Input::Packets(original), Output::Packets(&mut merged), &options, &mut ())
        .expect("packets in memory");
    for rules in [Strictness::Linux, Strictness::Reversible] {
        for left in [original, &merged] {
            let report = judged(Input::Packets(left), Input::Packets(original), rules)
                .expect("packets in memory");
            assert!(
                report.violations == 0 && !report.not_judged.link_headers,
                "{:#?}",
                report.described
            );
        }
    }
    let mut damaged = Packets::new();
    for (frame, number) in merged.iter().zip(0usize..) {
        let mut bytes = frame.data.to_vec();
        let place = usize::from(damage[0]) * bytes.len() / 256;
        if let Some(byte) = bytes.get_mut(place).filter(|_| number % 3 == 1) {
            *byte ^= damage[1];
        }
        damaged.push(frame.link_type(), None, &bytes).expect("as long as it was");
    }
    judged(Input::Packets(&damaged), Input::Packets(original), Strictness::Reversible)
        .expect("packets in memory");
}

fuzz_target!(|bytes: &[u8]| {
    let [flags, rest @ ..] = bytes else { return };
    let rules = if flags & 1 == 0 { Strictness::Linux } else { Strictness::Reversible };
    match flags >> 1 & 3 {
        0 | 1 => {
            let [high, low, files @ ..] = rest else { return };
            let length = usize::from(u16::from_be_bytes([*high, *low])).min(files.len());
            let (first, second) = files.split_at(length);
            any_two(first, second, rules);
        }
        2 => {
            if let Some(original) = packets_of(rest) {
                faithful(&original, [flags & 0xf0, *flags]);
            }
        }
        _ => {
            let [place, damage, rest @ ..] = rest else { return };
            let mut original = Packets::new();
            for packet in superpacket_fuzz::packets(rest) {
                let link_type = if packet.layer == Layer::Ethernet {
                    LinkType::ETHERNET
                } else {
                    LinkType::RAW
                };
                original.push(link_type, Some(0), &packet.bytes).expect("short");
            }
            faithful(&original, [*place, *damage]);
        }
    }
});
