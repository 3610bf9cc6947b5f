//! Offloads that are switched while data flows.

use std::sync::atomic::{AtomicBool, Ordering};
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

/// By TAP devices, whose kernel receives within the send call, so that datagrams sent in order
/// arrive in order.
#[test]
fn datagrams_arrive_once_and_in_order_while_offloads_are_switched() -> Result<(), LabError> {
    let Some(joined) = by_tap("")? else { return Ok(()) };
    let start = Instant::now();
    let (sent, switched) =
        joined.datagrams(|_| start.elapsed() < time(), |done| switch_offloads(&joined, done))?;
    let stats = [joined.stats(0), joined.stats(1)];
    assert!(sent > 20_000 && switched > 500, "{sent} sent, {switched} switches");
    assert!(stats[0].merged > 100 && stats[1].tx_super_packets > 10, "{stats:?}");
    Ok(())
}
