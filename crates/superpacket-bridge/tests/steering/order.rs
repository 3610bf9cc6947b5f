//! Tests that no packet overtakes another of its flow, whatever is changed under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use superpacket_bridge::settings::{InPlace, PerQueue, PortChange};
use superpacket_steer::{Cpu, CpuMask};

use crate::traffic::{Arrived, Joined, Random, hash, mask, two_cpus};

/// The settings for in-place processing.
const IN_PLACE: [InPlace; 3] = [InPlace::NEVER, InPlace::Automatic, InPlace::Below(u64::MAX)];

/// The result of a run.
struct Outcome {
    arrived: Arrived,
    moves: u64,
    processed: Vec<u64>,
    /// Number of switches of a queue to or from in-place processing.
    switches: u64,
}

/// Runs traffic at full speed, and calls `change` 1,000 times meanwhile.
fn under_load(
    name: &str,
    cpus: [Cpu; 2],
    prepare: impl FnOnce(&Joined),
    mut change: impl FnMut(&Joined, &mut Random),
) -> Outcome {
    let rate = Arc::new(AtomicU32::new(u32::MAX));
    under_load_at(name, cpus, &rate, prepare, |joined, random| change(joined, random))
}

/// Does the same at a rate that `change` may change.
fn under_load_at(
    name: &str,
    cpus: [Cpu; 2],
    rate: &Arc<AtomicU32>,
    prepare: impl FnOnce(&Joined),
    change: impl FnMut(&Joined, &mut Random),
) -> Outcome {
    under_load_by(name, &format!("memory:{name}-in?slots=8192"), cpus, rate, prepare, change)
}

/// Does the same with packets received by this port, on the link `NAME-in`.
fn under_load_by(
    name: &str,
    input: &str,
    cpus: [Cpu; 2],
    rate: &Arc<AtomicU32>,
    prepare: impl FnOnce(&Joined),
    mut change: impl FnMut(&Joined, &mut Random),
) -> Outcome {
    let mut joined = Joined::new(name, input, |settings| {
        settings.ports[0].steering.rps_cpus = PerQueue::all(mask(&cpus));
    });
    prepare(&joined);
    let running = joined.run(200, rate.clone());
    let mut random = Random(0x5eed);
    for _ in 0..1000 {
        change(&joined, &mut random);
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
    let (sent, arrived) = running.stop();
    let (stats, processed) = (joined.input(), joined.processed(&cpus));
    eprintln!(
        "{name}: {sent} sent, {arrived:?}, {} moves, {} held back, processed {processed:?}",
        stats.flow_moves, stats.held_back
    );
    assert!(arrived.packets > 10_000, "{arrived:?} of {sent}");
    Outcome { arrived, moves: stats.flow_moves, processed, switches: stats.in_place_switches }
}

impl Outcome {
    /// Checks that both workers got packets and flows moved, so that the run is meaningful.
    fn was_spread(&self) {
        let all: u64 = self.processed.iter().sum();
        assert!(self.processed.iter().all(|&part| part * 10 >= all), "{:?}", self.processed);
        assert!(self.moves >= 1000, "{} moves", self.moves);
    }
}

/// Returns a random mask of the two CPUs.
fn some_mask(cpus: [Cpu; 2], random: &mut Random) -> CpuMask {
    let masks: [&[Cpu]; 4] = [&cpus[..1], &cpus[1..], &cpus, &[]];
    mask(masks[random.below(4) as usize])
}

#[test]
fn masks_change_a_thousand_times_and_nothing_is_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    let outcome =
        under_load("masks", cpus, |_| (), |joined, random| joined.steer(&some_mask(cpus, random)));
    outcome.was_spread();
    assert_eq!(outcome.arrived.overtaken, 0);
}

#[test]
fn without_epochs_the_same_run_finds_packets_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    let prepare = |joined: &Joined| drop(joined.set("moves", "at-once"));
    let outcome = under_load("at-once", cpus, prepare, |joined, random| {
        joined.steer(&some_mask(cpus, random))
    });
    outcome.was_spread();
    assert_ne!(outcome.arrived.overtaken, 0);
}

#[test]
fn readers_move_and_nothing_is_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    let prepare = |joined: &Joined| {
        joined.set("hash", "toeplitz");
        joined.set("rps_sock_flow_entries", "4096");
        joined.bridge.set_rps_flow_count(&joined.names[0], None, 4096).expect("it can be set");
    };
    let outcome = under_load("readers", cpus, prepare, |joined, random| {
        for _ in 0..20 {
            joined
                .bridge
                .record_flow(hash(random.below(200) as u16), cpus[random.below(2) as usize]);
        }
    });
    outcome.was_spread();
    assert_eq!(outcome.arrived.overtaken, 0);
}

#[test]
fn everything_changes_and_nothing_is_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    // A NIC that reports hashes, so that their use makes a difference.
    let input = "nic:link=everything-in,ring=2048,full=wait";
    let rate = Arc::new(AtomicU32::new(u32::MAX));
    let outcome = under_load_by(
        "everything",
        input,
        cpus,
        &rate,
        |_| (),
        |joined, random| {
            let some = |random: &mut Random, values: &[&str]| {
                values[random.below(values.len() as u64) as usize].to_owned()
            };
            let port = &joined.names[0];
            match random.below(16) {
                0 => drop(joined.set("dev_weight", &some(random, &["1", "7", "64", "300"]))),
                1 => drop(joined.set("netdev_max_backlog", &some(random, &["50", "1000", "5000"]))),
                2 => drop(joined.set("hash", &some(random, &["keyed", "toeplitz"]))),
                3 => drop(joined.set("hash_symmetric", &some(random, &["on", "off"]))),
                4 => drop(joined.set("hash_headers", &some(random, &["inner", "outer"]))),
                5 => drop(joined.set("hash_device", &some(random, &["on", "off"]))),
                6 => drop(joined.set("flow_limit_table_len", &some(random, &["0", "512", "4096"]))),
                7 => drop(
                    joined
                        .bridge
                        .set_port(
                            port,
                            &PortChange::setting(
                                "in_place_below",
                                IN_PLACE[random.below(3) as usize],
                            ),
                        )
                        .expect("it can be set"),
                ),
                8 => drop(joined.set("rps_sock_flow_entries", &some(random, &["0", "64", "4096"]))),
                9 => drop(
                    joined
                        .bridge
                        .set_rps_flow_count(port, None, [0, 64, 4096][random.below(3) as usize])
                        .expect("it can be set"),
                ),
                // Changes between the device's hash and Toeplitz.
                10 => (0..20).for_each(|_| {
                    joined
                        .bridge
                        .record_flow(hash(random.below(200) as u16), cpus[random.below(2) as usize])
                }),
                _ => joined.steer(&some_mask(cpus, random)),
            }
        },
    );
    outcome.was_spread();
    assert_eq!(outcome.arrived.overtaken, 0);
}

#[test]
fn in_place_and_back_nothing_is_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    let rate = Arc::new(AtomicU32::new(u32::MAX));
    let prepare = |joined: &Joined| {
        drop(
            joined
                .bridge
                .set_port(&joined.names[0], &PortChange::setting("in_place_below", 20_000))
                .expect("it can be set"),
        )
    };
    let mut changes = 0;
    // On a busy machine, a run may end before the rate is high again.
    let mut switches = 0;
    for _ in 0..3 {
        let outcome = under_load_at("in-place", cpus, &rate, prepare, |_, _| {
            changes += 1;
            // Alternates every 30 ms between a rate for in-place processing and full speed.
            let slow = changes / 30 % 2 == 0;
            rate.store(if slow { 4_000 } else { u32::MAX }, Ordering::Relaxed);
        });
        assert_eq!(outcome.arrived.overtaken, 0);
        switches = outcome.switches;
        if switches >= 2 {
            break;
        }
    }
    assert!(switches >= 2, "there and back at least: {switches} switches");
}
