//! Two ports of the bridge that somebody joined to each other.

use std::time::Duration;

use superpacket_bridge::settings::PortSettings;
use superpacket_lab::{LabError, Link, RawOptions, RawSocket};

use crate::joined::{Joined, by_packet};

/// The ports of the loop, by their names.
const LOOP: [&str; 2] = ["loop-0", "loop-1"];
/// What A says to all, so often.
const BROADCASTS: u16 = 300;
/// EtherType of no protocol that a host speaks (IEEE 802, local experiments).
const EXPERIMENT: [u8; 2] = [0x88, 0xb5];

/// Something to all, from the station that has this number.
fn broadcast(station: u8, number: u16) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, station], &EXPERIMENT, &number.to_be_bytes(), &[0; 44]]
        .concat()
}

/// Packets that came by the loop's ports, and how many of the bridge's were seen to come round.
fn round(joined: &Joined) -> [u64; 2] {
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
        // The middle itself is to say nothing.
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
    // The first went round until it was seen that there is a loop, which takes as long as it takes
    // both of its ports to be looked at a few times.
    assert!(
        heard[heard.len() / 2..].iter().all(|&times| times == 1),
        "then all are heard once: {heard:?}"
    );

    // A loop without an end goes round more often in a millisecond.
    let [before, _] = round(&joined);
    std::thread::sleep(Duration::from_secs(1));
    let [after, dropped] = round(&joined);
    assert!(after - before < 100, "{} packets go round", after - before);
    assert!(dropped > 0 && after > 0, "{:?}", joined.bridge.stats());

    // The others go on as ever, and by their own ports.
    joined.carries(4, 8 << 20)?;
    let [carried, _] = round(&joined);
    assert!(carried - after < 1_000, "{} packets of theirs went round", carried - after);
    // So they do when the loop is no more.
    first.delete()?;
    joined.wait("its ports are gone", |joined| {
        joined.bridge.ports().iter().filter(|port| port.state == "gone").count() == 2
    });
    joined.carries(1, 1 << 20)
}
