//! Tests that the worker that processes a flow counts as its reader, until another reader is
//! recorded.

use std::collections::{BTreeMap, BTreeSet};

use superpacket_steer::Cpu;

use crate::traffic::{hash, two_cpus};
use crate::watched::Watched;

const FLOWS: u16 = 40;

/// Sends some packets of each flow, and returns the CPUs that processed them. Checks that the RFS
/// table has the same.
fn run(watched: &Watched) -> BTreeMap<u16, Cpu> {
    watched.send((0..400).map(|number| (number as u16 % FLOWS, number)));
    watched.rest();
    let mut by = BTreeMap::new();
    for turn in watched.turns() {
        let cpu = turn.cpu.expect("all is steered");
        for &(flow, _) in &turn.packets {
            assert_eq!(*by.entry(flow).or_insert(cpu), cpu, "flow {flow} is in one place");
        }
    }
    let table = watched.steered.as_bridge().sock_flows().expect("RFS is on");
    let read = (0..FLOWS).filter_map(|flow| Some((flow, table.cpu(hash(flow))?))).collect();
    assert_eq!(by, read, "processed by, and read by");
    by
}

#[test]
fn a_flow_is_read_by_the_worker_that_processes_it_until_somebody_else_reads_it() {
    let Some(cpus) = two_cpus() else { return };
    let watched = Watched::new("rfs", "", |settings| settings.sock_flow_entries = 1 << 16);
    let bridge = watched.steered.as_bridge();
    let port = bridge.stats().remove(0).port;
    bridge.set_rps_flow_count(&port, None, 4096).expect("it can be set");
    let table = bridge.sock_flows().expect("RFS is on");
    let entries: BTreeSet<_> =
        (0..FLOWS).map(|flow| hash(flow).0 as usize % table.entries()).collect();
    assert_eq!(entries.len(), usize::from(FLOWS), "the test's flows have an entry each");
    watched.steer(None, &cpus);
    watched.settle(FLOWS, |_, by| by.is_some());
    let first = run(&watched);
    assert!(
        cpus.iter().all(|cpu| first.values().any(|by| by == cpu)),
        "both CPUs have flows: {first:?}"
    );
    // From now on, every other flow is read on the other CPU.
    let other = |cpu: Cpu| cpus[usize::from(cpu == cpus[0])];
    let expected: BTreeMap<u16, Cpu> = first
        .iter()
        .map(|(&flow, &cpu)| (flow, if flow % 2 == 0 { other(cpu) } else { cpu }))
        .collect();
    for flow in (0..FLOWS).step_by(2) {
        bridge.record_flow(hash(flow), expected[&flow]);
    }
    assert_eq!(run(&watched), expected);
}

#[test]
fn without_a_count_of_flows_a_queue_does_not_follow_readers() {
    let Some([cpu, reader]) = two_cpus() else { return };
    let watched = Watched::new("no-rfs", "", |settings| settings.sock_flow_entries = 1 << 16);
    let bridge = watched.steered.as_bridge();
    watched.steer(None, &[cpu]);
    (0..FLOWS).for_each(|flow| bridge.record_flow(hash(flow), reader));
    watched.settle(FLOWS, |_, by| by == Some(cpu));
    watched.send((0..400).map(|number| (number as u16 % FLOWS, number)));
    watched.rest();
    assert!(watched.turns().iter().all(|turn| turn.cpu == Some(cpu)));
    let table = bridge.sock_flows().expect("its size is set");
    assert!(
        (0..FLOWS).all(|flow| table.cpu(hash(flow)) == Some(reader)),
        "who processes a flow does not overrule who reads it"
    );
}
