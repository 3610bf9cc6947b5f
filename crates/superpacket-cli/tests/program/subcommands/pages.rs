//! Pages in a real browser, on a screen and on a phone. Needs `chromium`.

use crate::support::browser::assert_readable;
use crate::support::{Bench, CapturedFrame, spaced};
use superpacket_traffic::frame::{Frame, Ip};

/// Returns flows that fill tables and plots: long addresses, many reasons, large numbers.
fn traffic() -> Vec<CapturedFrame> {
    let mut frames = Vec::new();
    for number in 0..400u32 {
        frames.push(Frame::tcp4(1 + number * 1448, 1448));
        frames.push(Frame::tcp6(1 + number * 1428, 1428));
        frames.push(Frame::udp4(1000 + (number as usize % 3) * 10));
        frames.push(Frame::tcp4(7, 0));
        let mut long = Frame::tcp6(1, 40);
        if let Ip::V6(ip) = &mut long.ip {
            (ip.source, ip.destination) = ([0xfd; 16], [0xfe; 16]);
        }
        frames.push(long);
    }
    spaced(&frames)
}

#[test]
fn the_pages_of_captures_are_readable_on_a_screen_and_on_a_phone() {
    let bench = Bench::new();
    bench.capture("a-capture-with-a-name-of-many-words.pcap", &traffic());
    let input = "a-capture-with-a-name-of-many-words.pcap";
    bench.json(&["analyze", input, "--html", "analyze.html"]);
    bench.json(&["steer", input, "--cpu-list", "0-63", "--html", "steer.html"]);
    // Ten minutes, so that the last label of the plot over time is at its edge.
    let frames = (0..=600).map(|second| {
        CapturedFrame::at(
            second * 1_000_000_000,
            Frame::tcp4(1 + second as u32 * 1448, 1448).to_bytes(),
        )
    });
    bench.capture("ten-minutes.pcap", &frames.collect::<Vec<_>>());
    bench.json("analyze ten-minutes.pcap --html ten-minutes.html");
    assert_readable(&bench, &[("analyze.html", 2), ("steer.html", 1), ("ten-minutes.html", 2)]);
}
