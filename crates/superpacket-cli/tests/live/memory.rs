//! What a bridge takes of the machine's memory.

use super::*;

/// What a process has in memory, in MiB.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("lives");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") / 1024
}

#[test]
fn memory_of_large_limits_is_given_back() {
    let Some(house) = House::new() else { return };
    let bridge = house.bridge(&[PORTS[0], PORTS[1]]);
    let set = |entries: &str, flows: &str, held: &str| {
        house.ask(&["rps", "--set", &format!("rps_sock_flow_entries={entries}")]).expect("sets");
        for port in PORTS {
            house.ask(&["rps", port, "--flow-count", flows]).expect("sets");
            house.ask(&["limits", port, "lro_max_desc", held]).expect("sets");
        }
    };
    let before = resident(bridge.id());
    // The allocator gives a block of some size back when it is freed first, and keeps the next.
    for round in 0..3 {
        set("4194304", "65536", "4096");
        house.wait_for("the tables", || resident(bridge.id()) >= before + 16);
        set("0", "0", "64");
        house.wait_for(&format!("memory to be given back, round {round}"), || {
            resident(bridge.id()) < before + 8
        });
    }
    assert!(house.reaches(), "{}", house.log());
}
