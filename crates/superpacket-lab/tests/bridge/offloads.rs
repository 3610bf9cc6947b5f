//! Offloads that are switched while data flows.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use superpacket_lab::{Direction, LabError, TcpBulk, Until};
use superpacket_port::features::Feature;

use crate::joined::{Joined, KEY, by_packet, by_tap};

/// Returns the time for which offloads are switched; CI requires all of it.
fn time() -> Duration {
    if std::env::var_os("CI").is_some() { Duration::from_secs(30) } else { Duration::from_secs(5) }
}

/// Switches offloads of both ports until `done`. Returns how often it did.
fn switch_offloads(joined: &Joined, done: &AtomicBool) -> u64 {
    // A linear congruential generator, so that each run makes the same changes.
    let (mut state, mut switched) = (0x2545_f491_4f6c_dd1du64, 0);
    while !done.load(Ordering::Relaxed) {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let feature = Feature::ALL[(state >> 33) as usize % Feature::ALL.len()];
        // Forced LRO on a bridge loses packet boundaries, but no bytes.
        joined.switch((state >> 50) as usize & 1, feature, state >> 60 & 1 == 0);
        switched += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    switched
}

#[test]
fn any_offload_may_change_at_any_time() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let done = AtomicBool::new(false);
    let switched = std::thread::scope(|scope| -> Result<u64, LabError> {
        let flipper = scope.spawn(|| switch_offloads(&joined, &done));
        let (start, mut rounds) = (Instant::now(), 0);
        let result = loop {
            // The sender's TSO changes too, so that single frames and super-packets alternate.
            joined.a.link.set_feature("tcp-segmentation-offload", rounds % 2 == 0)?;
            let load = TcpBulk {
                flows: 4,
                direction: Direction::Both,
                until: Until::Time(Duration::from_millis(500)),
                verify: Some(KEY + rounds),
                ..TcpBulk::default()
            };
            let report = load.run(&joined.route());
            rounds += 1;
            if report.is_err() || start.elapsed() > time() {
                break report;
            }
        };
        done.store(true, Ordering::Relaxed);
        let switched = flipper.join().expect("no panic");
        result.map(|_| switched)
    })?;
    assert!(switched > 500, "{switched} switches");
    assert!(
        joined.stats(1).segmented > 0
            && joined.stats(1).tx_super_packets > 0
            && joined.stats(0).merged > 0
    );
    Ok(())
}

/// The number of datagrams that may be on their way at once. The receiver's socket buffer and each
/// queue between the hosts hold more, so a loss is the bridge's.
const WINDOW: u64 = 48;

/// By TAP devices, whose kernel receives within the send call, so that datagrams sent in order
/// arrive in order.
#[test]
fn datagrams_arrive_once_and_in_order_while_offloads_are_switched() -> Result<(), LabError> {
    let Some(joined) = by_tap("")? else { return Ok(()) };
    let system = |action: &'static str| move |error: io::Error| LabError::system(action, error);
    let (from, to) = (joined.a.ipv4, SocketAddr::new(joined.b.ipv4, 7000));
    let receiver = joined.datagram_receiver(to.port(), Duration::from_secs(20))?;
    let sender = joined
        .a
        .host
        .run(|| UdpSocket::bind(SocketAddr::new(from, 0)).map_err(system("binding")))?;
    let (done, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    let (sent, switched) = std::thread::scope(|scope| -> Result<_, LabError> {
        let flipper = scope.spawn(|| switch_offloads(&joined, &done));
        let sending = scope.spawn(|| {
            let (start, mut sent, mut payload) = (Instant::now(), 0u64, [0x5a; 1000]);
            while start.elapsed() < time() {
                if sent - arrived.load(Ordering::Acquire) >= WINDOW {
                    std::thread::sleep(Duration::from_micros(50));
                    continue;
                }
                payload[..8].copy_from_slice(&sent.to_be_bytes());
                sender.send_to(&payload, to).map_err(system("sending"))?;
                sent += 1;
            }
            // An empty datagram ends the test.
            sender.send_to(&[], to).map_err(system("sending"))?;
            Ok::<_, LabError>(sent)
        });
        let mut bytes = [0; 2000];
        // Compared when the other threads have ended, which they do only when `done` is set.
        let last = loop {
            let expected = arrived.load(Ordering::Relaxed);
            match receiver.recv(&mut bytes) {
                Ok(1000)
                    if bytes[..8] == expected.to_be_bytes() && bytes[8..1000] == [0x5a; 992] =>
                {
                    arrived.store(expected + 1, Ordering::Release);
                }
                last => break last.map(|length| bytes[..length.min(16)].to_vec()),
            }
        };
        done.store(true, Ordering::Relaxed);
        let switched = flipper.join().expect("no panic");
        let expected = arrived.load(Ordering::Relaxed);
        assert!(
            matches!(&last, Ok(end) if end.is_empty()),
            "{last:?}, after {expected} datagrams: {:?}",
            joined.bridge.stats()
        );
        Ok((sending.join().expect("no panic")?, switched))
    })?;
    assert_eq!(arrived.into_inner(), sent);
    let stats = [joined.stats(0), joined.stats(1)];
    assert!(sent > 20_000 && switched > 500, "{sent} sent, {switched} switches");
    assert!(stats[0].merged > 100 && stats[1].tx_super_packets > 10, "{stats:?}");
    Ok(())
}
