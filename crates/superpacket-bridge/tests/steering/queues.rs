//! Tests of two receive queues of a port: the destination of their packets, and the turns of their
//! backlogs.

use superpacket_steer::Cpu;

use crate::traffic::{hash, two_cpus};
use crate::watched::{Turn, Watched};

/// Enough flows for several per queue and CPU.
const FLOWS: u16 = 40;

/// Returns the queue that receives a flow's packets.
fn queue(flow: u16) -> u16 {
    (hash(flow).0 % 2) as u16
}

/// Returns the only queue whose packets are in a turn.
fn queue_of(turn: &Turn) -> u16 {
    let first = queue(turn.packets[0].0);
    assert!(
        turn.packets.iter().all(|&(flow, _)| queue(flow) == first),
        "a turn is one backlog's: {turn:?}"
    );
    first
}

fn worker_turns(watched: &Watched) -> u64 {
    watched.steered.steering().workers.iter().map(|worker| worker.turns).sum()
}

#[test]
fn a_turn_is_of_dev_weight_packets_and_backlogs_take_turns() {
    const WEIGHT: usize = 7;
    /// Packets per queue.
    const PACKETS: u32 = 100;
    let Some([cpu, _]) = two_cpus() else { return };
    let watched = Watched::new("weight", "&queues=2", |settings| settings.weight = WEIGHT);
    watched.steer(None, &[cpu]);
    watched.settle(FLOWS, |_, by| by == Some(cpu));
    let flows =
        [0, 1].map(|wanted| (0..FLOWS).find(|&flow| queue(flow) == wanted).expect("one of many"));
    let (before, turns) = (watched.dispatched(), worker_turns(&watched));
    let gate = watched.gate();
    watched.send((0..PACKETS).flat_map(|number| flows.map(|flow| (flow, number))));
    watched.wait("all is in backlogs", |watched| {
        watched.dispatched() == before + 2 * u64::from(PACKETS)
    });
    drop(gate);
    watched.rest();
    let taken = watched.turns();
    for number in [0, 1] {
        let lengths: Vec<usize> = taken
            .iter()
            .filter(|turn| queue_of(turn) == number)
            .map(|turn| turn.packets.len())
            .collect();
        // The worker is blocked with its first packet, so it has all packets before its first turn
        // ends.
        assert_eq!(lengths, [[WEIGHT; 14].as_slice(), &[2]].concat(), "queue {number}");
    }
    assert!(
        taken.windows(2).all(|turns| queue_of(&turns[0]) != queue_of(&turns[1])),
        "one after the other: {taken:?}"
    );
    assert_eq!(worker_turns(&watched) - turns, taken.len() as u64);
}

#[test]
fn each_receive_queue_goes_by_its_own_mask() {
    let Some(cpus) = two_cpus() else { return };
    let watched = Watched::new("own-masks", "&queues=2", |_| ());
    let of = |number: u16| (0..FLOWS).filter(move |&flow| queue(flow) == number).count();
    assert!(of(0) >= 10 && of(1) >= 10, "the test's flows come by both queues");
    let masks: [[&[Cpu]; 2]; 4] = [
        [&cpus[..1], &cpus[1..]],
        [&cpus[1..], &cpus[..1]],
        [&cpus, &cpus[..1]],
        [&[], &cpus[1..]],
    ];
    for masks in masks {
        for (queue, mask) in (0..).zip(masks) {
            watched.steer(Some(queue), mask);
        }
        let is_right = |flow: u16, by: Option<Cpu>| {
            let mask = masks[usize::from(queue(flow))];
            by.map_or(mask.is_empty(), |cpu| mask.contains(&cpu))
        };
        watched.settle(FLOWS, is_right);
        watched.send((0..1000).map(|number| (number as u16 % FLOWS, number)));
        watched.rest();
        let mut used = [[false; 3]; 2];
        for turn in watched.turns() {
            for &(flow, _) in &turn.packets {
                assert!(
                    is_right(flow, turn.cpu),
                    "{masks:?}: flow {flow} of queue {} was processed by {:?}",
                    queue(flow),
                    turn.cpu
                );
                let place = cpus.iter().position(|&cpu| turn.cpu == Some(cpu)).unwrap_or(2);
                used[usize::from(queue(flow))][place] = true;
            }
        }
        // Each CPU of the mask gets packets.
        let expected =
            masks.map(|mask| [mask.contains(&cpus[0]), mask.contains(&cpus[1]), mask.is_empty()]);
        assert_eq!(used, expected, "{masks:?}");
    }
}
