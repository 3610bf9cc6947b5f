//! Two ports of the bridge that are joined to each other.

use std::time::Duration;

use superpacket_bridge::settings::PortSettings;
use superpacket_lab::{LabError, Link, RawOptions, RawSocket};

use crate::joined::{Joined, by_packet};

/// Names of the ports in the loop.
const LOOP: [&str; 2] = ["loop-0", "loop-1"];
/// Number of broadcasts that A sends.
const BROADCASTS: u16 = 300;
/// EtherType of no real protocol (IEEE 802, local experiments).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// Returns a broadcast frame from the station with this number.
fn broadcast(station: u8, number: u16) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, station], &EXPERIMENT, &number.to_be_bytes(), &[0; 44]]
        .concat()
}

/// Returns the packets received on the loop's ports, and those that the bridge dropped as looping.
fn loop_counts(joined: &Joined) -> [u64; 2] {
    joined.bridge.stats().iter().fold([0, 0], |[came, dropped], port| {
        let is_loop = LOOP.iter().any(|name| port.port.ends_with(name));
        [came + if is_loop { port.rx_packets } else { 0 }, dropped + port.drops["loop"]]
    })
}

#[test]
fn ports_joined_to_each_other_make_no_storm() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let (first, second) = Link::veth(&joined.middle, LOOP[0], &joined.middle, LOOP[1])?;
    for link in [&first, &second] {
        // The middle host must not send by itself.
        let _ =
            joined.middle.set_sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", link.name()), "1");
    }
    let mut settings = joined.bridge.settings();
    settings.ports.extend(
        LOOP.map(|name| {
            PortSettings::new(format!("packet:{name}").parse().expect("a port string"))
        }),
    );
    joined
        .middle
        .run(|| Ok::<_, LabError>(joined.bridge.apply(settings)))?
        .expect("two more ports");

    let (a, b) = (
        RawSocket::open(&joined.a.link, RawOptions::default())?,
        RawSocket::open(&joined.b.link, RawOptions::default())?,
    );
    for number in 0..BROADCASTS {
        a.send(&[broadcast(1, number)])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut heard = [0; BROADCASTS as usize];
    for frame in b.capture(Duration::from_secs(1), usize::MAX)?.frames {
        if frame.bytes.get(12..14) == Some(&EXPERIMENT[..]) {
            heard[usize::from(u16::from_be_bytes([frame.bytes[14], frame.bytes[15]]))] += 1;
        }
    }
    assert!(heard.iter().all(|&times| times != 0), "who is in no loop is heard: {heard:?}");
    // The first broadcasts circled until the loop was detected, which takes a few polls of both its
    // ports.
    assert!(
        heard[heard.len() / 2..].iter().all(|&times| times == 1),
        "then all are heard once: {heard:?}"
    );

    // An endless loop forwards more packets in a millisecond.
    let [before, _] = loop_counts(&joined);
    std::thread::sleep(Duration::from_secs(1));
    let [after, dropped] = loop_counts(&joined);
    assert!(after - before < 100, "{} packets go round", after - before);
    assert!(dropped > 0 && after > 0, "{:?}", joined.bridge.stats());

    // Other hosts still communicate, over their own ports.
    joined.carries(4, 8 << 20)?;
    let [carried, _] = loop_counts(&joined);
    assert!(carried - after < 1_000, "{} packets of theirs went round", carried - after);
    // The same holds after the loop is removed.
    first.delete()?;
    joined.wait("its ports are gone", |joined| {
        joined.bridge.ports().iter().filter(|port| port.state == "gone").count() == 2
    });
    joined.carries(1, 1 << 20)
}
