//! The memory that a bridge uses and returns.

use super::*;

/// Returns the resident memory of a process in MiB.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("lives");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") / 1024
}

#[test]
fn memory_of_large_limits_is_given_back() {
    let Some(network) = TestNetwork::new() else { return };
    let bridge = network.bridge(&[PORTS[0], PORTS[1]]);
    let set = |entries: &str, flows: &str, held: &str| {
        network.ask(&["rps", "--set", &format!("rps_sock_flow_entries={entries}")]);
        for port in PORTS {
            network.ask(&["rps", port, "--flow-count", flows]);
            network.ask(&["limits", port, "lro_max_desc", held]);
        }
    };
    let before = resident(bridge.id());
    // The allocator returns the first freed block of a given size to the system, and keeps the
    // next.
    for round in 0..3 {
        set("4194304", "65536", "4096");
        network.wait_for("the tables", || resident(bridge.id()) >= before + 16);
        set("0", "0", "64");
        network.wait_for(&format!("memory to be given back, round {round}"), || {
            resident(bridge.id()) < before + 8
        });
    }
    assert!(network.reaches(), "{}", network.log());
}
