//! Tests of a card around a packet socket, on a veth pair in a private network namespace.

use std::process::Command;
use std::time::{Duration, Instant};

use superpacket::packet::RxChecksum;
use superpacket::segment::GsoKind;
use superpacket_lab::Host;
use superpacket_port::{PortSpec, Receive};
use superpacket_traffic::check;
use superpacket_traffic::frame::Frame;

use crate::fixture::{gathered, partial, send};
use crate::open;

/// Receives frames of the test's connection until their payload adds up to `bytes`. Frames that the
/// kernel sends itself are ignored.
fn arrive(port: &mut dyn Receive, bytes: usize) -> Vec<(Vec<u8>, RxChecksum)> {
    let until = Instant::now() + Duration::from_secs(10);
    let (mut packets, mut found, mut payload) = (Vec::new(), Vec::new(), 0);
    while payload < bytes {
        assert!(Instant::now() < until, "{payload} bytes of {bytes}");
        port.poll(&mut packets, 100).expect("up");
        for packet in packets.drain(..) {
            let frame = gathered(&packet);
            if frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6) {
                payload += frame.len() - 54;
                found.push((frame, packet.checksum));
            }
        }
        port.give_back();
        std::thread::yield_now();
    }
    found
}

fn inside() {
    let link = |arguments: &str| {
        Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
    };
    let made = ["link add nic0 type veth peer name nic1", "link set nic0 up", "link set nic1 up"]
        .into_iter()
        .all(link);
    if !made {
        assert!(std::env::var_os("CI").is_none(), "no veth pair");
        eprintln!("SKIPPED: no veth pair");
        return;
    }
    let open = |text: &str| open(&text.parse::<PortSpec>().expect("well formed")).expect(text);
    let (mut card, mut other) =
        (open("nic:page=4k,copy=80,csum=complete@packet:nic0"), open("packet:nic1"));
    let (mut card_in, mut other_in) = (card.receivers().remove(0), other.receivers().remove(0));
    assert_eq!((card.state(), card.hardware_address().is_some()), (other.state(), true));

    let large = Frame::tcp4(1, 28_960).with_id(5);
    let packet = partial(&large, GsoKind::Tcp4, 1448);
    for direction in ["in", "out"] {
        let (from, to) =
            if direction == "in" { (&mut other, &mut card_in) } else { (&mut card, &mut other_in) };
        let progress =
            send(&mut *from.transmitter().expect("opens"), std::slice::from_ref(&packet));
        assert!(progress.sent == 1 && progress.stopped.is_none(), "{direction}: {progress:?}");
        let frames = arrive(&mut **to, large.payload.len());
        assert_eq!(frames.len(), 20, "{direction}");
        for (frame, checksum) in &frames {
            check::frame(frame, &check::Expect::default()).expect("whole, with right checksums");
            assert!(
                direction == "out" || matches!(checksum, RxChecksum::Complete(_)),
                "{checksum:?}"
            );
        }
        let payload: Vec<u8> =
            frames.iter().flat_map(|(frame, _)| frame[54..].iter().copied()).collect();
        assert_eq!(payload, large.payload, "{direction}");
    }
    assert_eq!(card.counters().rx_dropped, 0);
}

#[test]
fn a_card_around_a_packet_socket() {
    let ran = Host::new("card").and_then(|host| {
        host.run(|| {
            inside();
            Ok(())
        })
    });
    if let Err(why) = ran {
        assert!(std::env::var_os("CI").is_none(), "no network namespace: {why}");
        eprintln!("SKIPPED: no network namespace: {why}");
    }
}
