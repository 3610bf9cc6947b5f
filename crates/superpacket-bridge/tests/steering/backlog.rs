//! Tests of backlogs under overload. Workers are blocked meanwhile, so that every packet can be
//! accounted for.

use std::collections::BTreeMap;

use superpacket_bridge::settings::SteeringSettings;

use crate::traffic::two_cpus;
use crate::watched::Watched;

/// The flow that sends three of four packets; light flows send the others.
const HEAVY: u16 = 0;

/// Number of packets sent, by as many light flows.
const SENT: u32 = 1000;
const LIGHT: u32 = 20;

/// Returns numbered packets of the heavy flow and the light ones.
fn overload() -> impl Iterator<Item = (u16, u32)> {
    (0..SENT).map(|number| {
        if number % 4 == 0 { (1 + (number / 4 % LIGHT) as u16, number) } else { (HEAVY, number) }
    })
}

/// The result of a run.
struct Outcome {
    /// The packet numbers that the worker received, by flow.
    taken: BTreeMap<u16, Vec<u32>>,
    /// The numbers of dropped packets, by reason.
    drops: BTreeMap<String, u64>,
}

/// Sends all packets to one worker, which takes none before all are sent.
fn run(name: &str, change: impl FnOnce(&mut SteeringSettings)) -> Option<Outcome> {
    let [cpu, _] = two_cpus()?;
    let watched = Watched::new(name, "", change);
    watched.steer(None, &[cpu]);
    watched.settle(LIGHT as u16 + 1, |_, by| by == Some(cpu));
    let (before, received) = (watched.dispatched(), watched.steered.stats().rx_packets);
    let gate = watched.gate();
    watched.send(overload());
    watched.wait("all is in the backlog, or dropped", |watched| {
        watched.dispatched() == before + u64::from(SENT)
    });
    drop(gate);
    watched.rest();
    let stats = watched.steered.stats();
    let mut taken = BTreeMap::<u16, Vec<u32>>::new();
    for (flow, number) in watched.turns().into_iter().flat_map(|turn| turn.packets) {
        taken.entry(flow).or_default().push(number);
    }
    let count: usize = taken.values().map(Vec::len).sum();
    assert_eq!(
        stats.rx_packets - received,
        count as u64 + stats.drops.values().sum::<u64>(),
        "received = delivered + dropped: {stats:?}"
    );
    Some(Outcome { taken, drops: stats.drops })
}

#[test]
fn a_backlog_takes_no_more_than_it_may_hold_and_the_rest_is_counted() {
    let Some(Outcome { taken, drops }) =
        run("overflow", |settings| (settings.max_backlog, settings.flow_limit_table) = (100, 0))
    else {
        return;
    };
    // As in the kernel, a queue at its limit still accepts one packet.
    let first: Vec<u32> = (0..101).collect();
    let mut all: Vec<u32> = taken.into_values().flatten().collect();
    all.sort_unstable();
    assert_eq!(all, first, "what came first");
    assert_eq!((drops["backlog"], drops["flow_limit"]), (u64::from(SENT) - 101, 0));
}

#[test]
fn the_flow_limit_drops_of_the_heavy_flow_alone() {
    let Some(Outcome { taken, drops }) = run("flow-limit", |settings| {
        (settings.max_backlog, settings.flow_limit_table) = (600, 4096)
    }) else {
        return;
    };
    for light in 1..=LIGHT as u16 {
        let sent: Vec<u32> =
            overload().filter(|&(flow, _)| flow == light).map(|(_, number)| number).collect();
        assert_eq!(taken.get(&light), Some(&sent), "flow {light}");
    }
    // The flow limit applies once the backlog is half full. From there on, the flow may have half
    // of the last 128 packets.
    let heavy = taken[&HEAVY].len() as u64;
    assert_eq!(heavy, 300 * 3 / 4 + 64);
    assert_eq!((drops["backlog"], drops["flow_limit"]), (0, u64::from(SENT * 3 / 4) - heavy));
}
