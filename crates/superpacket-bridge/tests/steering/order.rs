//! No packet overtakes another of its flow, whatever is changed under load.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use superpacket::steer::{Cpu, CpuMask};
use superpacket_bridge::settings::PerQueue;

use crate::traffic::{Arrived, Joined, Random, mask, two_cpus};

/// What came of a run.
struct Outcome {
    arrived: Arrived,
    moves: u64,
    processed: Vec<u64>,
    joined: Joined,
}

/// Runs traffic, as fast as it goes, while `change` is called 1,000 times.
fn under_load(name: &str, cpus: [Cpu; 2], prepare: impl FnOnce(&Joined), mut change: impl FnMut(&Joined, &mut Random)) -> Outcome {
    let mut joined = Joined::new(name, |settings| {
        settings.ports[0].steering.rps_cpus = PerQueue::all(mask(&cpus));
    });
    prepare(&joined);
    let running = joined.run(200, Arc::new(AtomicU32::new(u32::MAX)));
    let mut random = Random(0x5eed);
    for _ in 0..1000 {
        change(&joined, &mut random);
        std::thread::sleep(Duration::from_micros(random.below(2000)));
    }
    let (sent, arrived) = running.stop();
    let (stats, processed) = (joined.input(), joined.processed(&cpus));
    eprintln!("{name}: {sent} sent, {arrived:?}, {} moves, {} held back, processed {processed:?}", stats.flow_moves, stats.held_back);
    assert!(arrived.packets > 10_000, "{arrived:?} of {sent}");
    Outcome { arrived, moves: stats.flow_moves, processed, joined }
}

impl Outcome {
    /// Both workers had a share, and flows moved; so the run says something.
    fn was_spread(&self) {
        let all: u64 = self.processed.iter().sum();
        assert!(self.processed.iter().all(|&part| part * 10 >= all), "{:?}", self.processed);
        assert!(self.moves >= 1000, "{} moves", self.moves);
    }
}

/// One of the masks that two CPUs give.
fn some_mask(cpus: [Cpu; 2], random: &mut Random) -> CpuMask {
    let masks: [&[Cpu]; 4] = [&cpus[..1], &cpus[1..], &cpus, &[]];
    mask(masks[random.below(4) as usize])
}

#[test]
fn masks_change_a_thousand_times_and_nothing_is_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    let outcome = under_load("masks", cpus, |_| (), |joined, random| joined.steer(&some_mask(cpus, random)));
    outcome.was_spread();
    assert_eq!(outcome.arrived.overtaken, 0);
}

#[test]
fn without_epochs_the_same_run_finds_packets_overtaken() {
    let Some(cpus) = two_cpus() else { return };
    let prepare = |joined: &Joined| drop(joined.set("moves", "at-once"));
    let outcome = under_load("at-once", cpus, prepare, |joined, random| joined.steer(&some_mask(cpus, random)));
    outcome.was_spread();
    assert_ne!(outcome.arrived.overtaken, 0);
}
