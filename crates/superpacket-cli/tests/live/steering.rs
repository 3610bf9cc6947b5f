//! Masks and workers of a running bridge, and CPUs that become unavailable.

use super::*;

#[test]
fn packets_are_steered_while_it_runs_and_bad_masks_change_nothing() {
    let Some(network) = TestNetwork::new() else { return };
    let bridge = network.bridge(&PORTS);
    let shown = network.ask(&["rps", PORTS[0]]);
    assert!(
        shown["ports"][0]["queues"][0]["effective_list"] == ""
            && shown["steering"]["workers"] == json!([]),
        "{shown}"
    );
    let usable = shown["steering"]["usable_cpus"].as_str().expect("a list").to_owned();
    let first = usable.split(['-', ',']).next().expect("one at least");
    let mask = format!("{:x}", 1u128 << first.parse::<u32>().expect("a number"));
    for port in PORTS {
        let set = network.ask(&["rps", port, "0", &mask]);
        assert_eq!(set["ports"][0]["in_place_below"], "auto", "the default: {set}");
        assert_eq!(set["ports"][0]["queues"][0]["effective_list"], first, "{set}");
    }
    // With little traffic, packets are processed on the receiving CPU.
    assert!(network.reaches(), "{}", network.log());
    let idle = network.ask(&["rps"]);
    assert!(
        idle["steering"]["workers"][0]["processed"] == 0
            && idle["ports"][0]["queues"][0]["in_place"] == true,
        "{idle}"
    );
    for port in PORTS {
        let set = network.ask(&["rps", port, "--in-place-below", "0"]);
        assert_eq!(set["ports"][0]["in_place_below"], 0, "{set}");
    }
    assert!(network.reaches(), "{}", network.log());
    let worker = |network: &TestNetwork| network.ask(&["rps"])["steering"]["workers"][0].clone();
    assert!(
        worker(&network)["processed"].as_u64() >= Some(2) && worker(&network)["state"] == "running",
        "{}",
        worker(&network)
    );
    let (code, text, _) = network.text(&["rps", PORTS[0]]);
    assert!(
        code == Some(0)
            && text.contains(&format!("CPUs {first}"))
            && text.contains("netdev_max_backlog: 1000\n"),
        "{text}"
    );
    bad_masks_change_nothing(&network, &shown, first);
    settings_are_shown_as_set(&network, &usable);
    workers_are_pinned_and_sleep(&network, &bridge);
    for port in PORTS {
        network.ask(&["rps", port, "all", "0"]);
    }
    network.wait_for("the workers to end", || {
        let workers = network.ask(&["rps"])["steering"]["workers"].clone();
        workers
            .as_array()
            .is_some_and(|workers| workers.iter().all(|worker| worker["state"] == "ended"))
    });
    assert!(network.reaches());
    network.stop(bridge);
}

/// Checks that bad masks are refused with the kernel's errors, which name the bad chunk, and that
/// the mask, CPU `first`, stays. `shown` is the report of `superpacket rps`.
fn bad_masks_change_nothing(network: &TestNetwork, shown: &Value, first: &str) {
    let possible = number(&shown["steering"]["possible_cpus"]);
    let wide = format!("1{}", "0".repeat((possible as usize).div_ceil(4)));
    for (arguments, says) in [
        (&["rps", PORTS[0], "0", "12,xyz"][..], "EINVAL"),
        (&["rps", PORTS[0], "0", "12,xyz", "--flow-count", "64", "--set", "dev_weight=9"], "xyz"),
        (&["rps", PORTS[0], "0", &wide], "EOVERFLOW"),
        (&["rps", PORTS[0], "--cpu-list", "3-1"], "3-1"),
        (&["rps", PORTS[0], "9", "1"], "no receive queue 9"),
        (&["rps", "packet:up", "0", "1"], "there are packet:left, packet:right"),
        (
            &["rps", "--set", "netdev_max_backlog=0"],
            "netdev_max_backlog is 1 to 65536 packets, not 0",
        ),
        (&["rps", "--set", "backlog=9"], "is not a setting of steering"),
    ] {
        network.refuses(arguments, says);
    }
    let kept = network.ask(&["rps", PORTS[0]]);
    assert_eq!(kept["ports"][0]["queues"][0]["effective_list"], first, "{kept}");
    assert_eq!(
        kept["ports"][0]["queues"][0]["rps_flow_cnt"], 0,
        "nothing else of the refused command took effect: {kept}"
    );
    assert_eq!(kept["steering"]["settings"]["dev_weight"], 64, "{kept}");
}

/// Sets the flow count, the mode, the list of `usable` CPUs, automatic CPUs and a common setting.
fn settings_are_shown_as_set(network: &TestNetwork, usable: &str) {
    let counted = network.ask(&["rps", PORTS[0], "--flow-count", "64", "--in-place-below", "1000"]);
    assert_eq!(
        (&counted["ports"][0]["queues"][0]["rps_flow_cnt"], &counted["ports"][0]["in_place_below"]),
        (&64.into(), &1000.into()),
        "{counted}"
    );
    let automatic =
        network.ask(&["rps", PORTS[0], "--flow-count", "0", "--in-place-below", "auto"]);
    assert_eq!(automatic["ports"][0]["in_place_below"], "auto", "{automatic}");
    network.ask(&["rps", PORTS[0], "--in-place-below", "0"]);
    let list = network.ask(&["rps", PORTS[0], "--cpu-list", usable]);
    assert_eq!(list["ports"][0]["queues"][0]["effective_list"], usable, "{list}");
    let auto = network.ask(&["rps", PORTS[0], "auto"]);
    assert!(
        auto["ports"][0]["why"]
            .as_str()
            .is_some_and(|why| why.contains("queue 0, received on CPU")),
        "{auto}"
    );
    assert_eq!(network.ask("rps --set dev-weight=7")["steering"]["settings"]["dev_weight"], 7);
}

/// Checks that each worker runs on one CPU, and takes no CPU time in an idle second.
fn workers_are_pinned_and_sleep(network: &TestNetwork, bridge: &Running) {
    assert!(network.reaches());
    std::thread::sleep(Duration::from_millis(300));
    let of_workers = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", bridge.id())).expect("runs");
        let stats = tasks.flatten().map(|task| {
            (std::fs::read_to_string(task.path().join("stat")), task.path().join("status"))
        });
        let workers = stats.filter_map(|(stat, status)| {
            Some((stat.ok().filter(|stat| stat.contains("(superpacket-rps"))?, status))
        });
        workers
            .map(|(stat, status)| (ticks_of(&stat), std::fs::read_to_string(status).expect("runs")))
            .collect::<Vec<_>>()
    };
    let before = of_workers();
    assert!(!before.is_empty());
    for (_, status) in &before {
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"))
            .expect("is there");
        assert!(allowed.parse::<u32>().is_ok(), "one CPU: {allowed}");
    }
    std::thread::sleep(Duration::from_secs(1));
    let used = of_workers().iter().map(|(ticks, _)| ticks).sum::<u64>()
        - before.iter().map(|(ticks, _)| ticks).sum::<u64>();
    assert!(used <= 2, "{used} ticks of 10 ms in an idle second");
}

/// Changes the affinity of the main thread, like `taskset -p` or a cpuset; the bridge follows it.
#[test]
fn workers_end_with_their_cpu_and_start_again() {
    let usable = rustix::thread::sched_getaffinity(None).expect("asked");
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).take(2).collect();
    let [first, second] = cpus[..] else {
        assert!(std::env::var_os("CI").is_none(), "two CPUs are needed");
        eprintln!("SKIPPED: two CPUs are needed");
        return;
    };
    let Some(network) = TestNetwork::new() else { return };
    let bridge = network.bridge(&PORTS);
    let both = format!("{first},{second}");
    for port in PORTS {
        network.ask(&["rps", port, "--cpu-list", &both]);
    }
    let allow = |cpus: &[usize]| {
        let mut set = rustix::thread::CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        let id = rustix::process::Pid::from_raw(bridge.id() as i32).expect("a number");
        rustix::thread::sched_setaffinity(Some(id), &set).expect("set");
    };
    let workers = || -> Vec<(u64, String)> {
        let report = network.ask(&["rps"]);
        let workers = report["steering"]["workers"].as_array().expect("a list").clone();
        let pair = |worker: Value| {
            (number(&worker["cpu"]), worker["state"].as_str().expect("a word").to_owned())
        };
        workers.into_iter().map(pair).collect()
    };
    let states =
        |of: [&str; 2]| [(first as u64, of[0].to_owned()), (second as u64, of[1].to_owned())];
    assert_eq!(workers(), states(["running", "running"]));
    allow(&[first]);
    network.wait_for("the worker of the CPU that has gone to end", || {
        workers() == states(["running", "ended"])
    });
    let shown = network.ask(&["rps", PORTS[0]])["ports"][0]["queues"][0].clone();
    assert_eq!(shown["effective_list"], first.to_string(), "{shown}");
    assert_eq!(
        shown["dropped"],
        json!([{"cpu": second, "reason": "outside the process's affinity"}]),
        "{shown}"
    );
    assert!(network.reaches(), "{}", network.log());
    let (_, text, _) = network.text(&["rps", PORTS[0]]);
    assert!(text.contains("outside the process's affinity"), "{text}");
    allow(&[first, second]);
    network.wait_for("the worker of the CPU that has come back", || {
        workers() == states(["running", "running"])
    });
    let shown = network.ask(&["rps", PORTS[0]])["ports"][0]["queues"][0].clone();
    assert_eq!(shown["dropped"], json!([]), "the mask is as it was set: {shown}");
    assert!(network.reaches(), "{}", network.log());
}
