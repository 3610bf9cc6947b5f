//! Start and end of a bridge: privileges that it drops, errors, and leftovers.

use super::*;

#[test]
fn hosts_reach_each_other_and_sigterm_ends_the_bridge_cleanly() {
    let Some(network) = TestNetwork::new() else { return };
    assert!(network.is_cut_off(), "nothing joins them yet");
    let bridge = network.bridge(&[PORTS[0], PORTS[1], "--json", "--log-format", "json"]);
    assert!(network.reaches(), "{}", network.log());
    let stats = network.ask(&["stats"]);
    let names: Vec<_> = stats
        .as_array()
        .expect("an array")
        .iter()
        .map(|port| port["port"].as_str().expect("a name"))
        .collect();
    assert_eq!(names, PORTS);
    for port in stats.as_array().expect("an array") {
        assert!(
            port["rx_packets"].as_u64() >= Some(2)
                && port["tx_packets"].as_u64() >= Some(2)
                && port["drops"].is_object(),
            "{port}"
        );
    }
    let ports = network.ask(&["ports", PORTS[0]]);
    assert!(
        ports[0]["state"] == "up"
            && ports[0]["mtu"] == 1500
            && ports[0]["addresses"].as_u64() >= Some(1),
        "{ports}"
    );
    bridge.signal(Signal::TERM);
    let (code, counted) = bridge.end();
    assert_eq!(code, Some(0), "{}", network.log());
    assert!(!network.socket().exists(), "the socket goes away");
    let counted: Value = serde_json::from_str(&counted).expect("JSON and nothing else");
    assert!(counted[1]["tx_packets"].as_u64() >= stats[1]["tx_packets"].as_u64());
    for line in network.log().lines() {
        let line: Value = serde_json::from_str(line).expect("a JSON object a line");
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    network.refuses(&["stats"], "is a bridge running?");
}

#[test]
fn every_thread_drops_the_privileges_that_it_does_not_need() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "only root can change its user");
        eprintln!("SKIPPED: only root can change its user");
        return;
    }
    let Some(network) = TestNetwork::new() else { return };
    let bridge = network.bridge(&[
        PORTS[0],
        PORTS[1],
        "--user",
        "65534",
        "--metrics",
        "127.0.0.1:0",
        "--threads",
        "2",
    ]);
    let tasks: Vec<_> = std::fs::read_dir(format!("/proc/{}/task", bridge.id()))
        .expect("runs")
        .map(|task| task.expect("lists").path())
        .collect();
    // The main thread, two that move packets, one for the ports, the control socket, the metrics.
    assert!(tasks.len() >= 6, "{tasks:?}");
    for task in tasks {
        let status = std::fs::read_to_string(task.join("status")).expect("runs");
        let has =
            |line: &str| assert!(status.lines().any(|known| known == line), "{line}\n{status}");
        has("Uid:\t65534\t65534\t65534\t65534");
        has("Groups:\t ");
        // CAP_NET_ADMIN and CAP_NET_RAW.
        ["CapPrm", "CapEff"].iter().for_each(|set| has(&format!("{set}:\t0000000000003000")));
        ["CapInh", "CapAmb"].iter().for_each(|set| has(&format!("{set}:\t0000000000000000")));
        has("NoNewPrivs:\t1");
    }
    assert!(network.reaches());
    // The remaining capabilities suffice to open a port again.
    network.middle.ip("link del left");
    network.wait_for("the port to be missed", || {
        network.try_ask(&["ports", PORTS[0]]).is_some_and(|ports| ports[0]["state"] == "gone")
    });
    network.middle.ip("link add left type veth peer name back");
    network.middle.ip("link set left up");
    network.middle.ip("link set back up");
    network.wait_for("the port to come back", || {
        network.try_ask(&["ports", PORTS[0]]).is_some_and(|ports| ports[0]["state"] == "up")
    });
    network.stop(bridge);
}

#[test]
fn an_interface_has_one_bridge_unless_two_are_asked_for() {
    let Some(network) = TestNetwork::new() else { return };
    network.middle.ip("addr add 10.9.0.9/24 dev left");
    // The kernel's bridge is down, so that it forwards nothing.
    network.middle.ip("link add br7 type bridge");
    network.middle.ip("link set right master br7");
    let first = network.bridge(&[PORTS[0], PORTS[1]]);
    let log = network.log();
    let says = "the interface belongs to another one, which forwards its packets too";
    let warned = log.lines().filter(|line| line.contains(says)).collect::<Vec<_>>();
    assert!(
        matches!(&warned[..], [line] if line.contains("packet:right") && line.contains("br7")
            && line.contains("ip link set right nomaster")),
        "{warned:?}"
    );
    let says = "the interface has IP addresses: the machine itself answers there";
    let warned = network
        .log()
        .lines()
        .filter(|line| line.contains(says))
        .map(str::to_owned)
        .collect::<Vec<_>>();
    assert!(
        matches!(&warned[..], [line] if line.contains("packet:left") && line.contains("10.9.0.9")),
        "{warned:?}"
    );
    assert!(!network.log().contains("has only one port"), "{}", network.log());
    let second = network.bench.path("second.sock").display().to_string();
    let mut command = network.middle.command(env!("CARGO_BIN_EXE_superpacket"));
    let output = command.args(["bridge", PORTS[0], "--control", &second]).output().expect("runs");
    let expected =
        format!("packet:left: another bridge (process {}) has the interface left", first.id());
    assert!(output.status.code() == Some(2) && stderr(&output).contains(&expected), "{output:?}");
    let (both, _) = network.other_bridge(&[PORTS[0], "--shared-interfaces"]);
    let log = || std::fs::read_to_string(network.bench.path("other.log")).expect("a log");
    network.wait_for("the warnings", || {
        log().contains("two bridges have the same interface")
            && log().contains("the bridge has only one port")
    });
    drop(both);
    // However the first bridge ends, the next may claim the interface.
    first.signal(Signal::KILL);
    first.end();
    let _next = network.bridge(&[PORTS[0], PORTS[1]]);
    assert!(network.reaches(), "{}", network.log());
}

#[test]
fn start_errors_give_the_reason() {
    let Some(network) = TestNetwork::new() else { return };
    let start = |arguments: &[&str]| {
        let mut command = network.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let output = command
            .arg("bridge")
            .args(arguments)
            .arg("--control")
            .arg(network.socket())
            .output()
            .expect("runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!network.socket().exists() || arguments == PORTS, "{arguments:?}");
        stderr(&output)
    };
    assert!(start(&["packet:absent"]).contains("packet:absent: there is no such interface"));
    assert!(start(&["packet:left", "packet:left"]).contains("twice"));
    assert!(start(&["packet:left", "--user", "no-such-user"]).contains("there is no such user"));
    assert!(
        start(&["packet:left", "--log", "inof"]).contains("--log inof: \"inof\" is not a level")
    );
    assert!(start(&["left"]).contains("invalid value 'left'"));
    assert!(
        start(&["left"]).ends_with(
            "(for this interface: packet:left)\n\nFor more information, try '--help'.\n"
        )
    );
    // Each message names the port once.
    for (port, says) in [
        ("packet:left?queues=1&ring=v3", "option \"ring=v3\" takes a number of bytes"),
        ("packet:absent", "there is no such interface"),
        ("pcap:/absent.pcap", "cannot be opened"),
    ] {
        let error = start(&[port]);
        assert!(
            error.contains(says) && error.matches(port.trim_start_matches("pcap:")).count() == 1,
            "{error}"
        );
    }
    let _bridge = network.bridge(&PORTS);
    assert!(start(&PORTS).contains("another bridge uses this control socket"));
    network.ask(&["ports"]);
}

#[test]
fn an_idle_pipe_does_not_block_other_ports() {
    let Some(network) = TestNetwork::new() else { return };
    let capture = network.bench.capture("pipe.pcap", &spaced(&[Frame::tcp4(1, 100)]));
    let whole = std::fs::read(capture).expect("it is there");
    // No data at all, or a packet and half of the header of the next.
    for bytes in [&[][..], &[&whole[..], &[0; 8]].concat()] {
        let mut command = network.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.args(["bridge", "pcap:-", PORTS[0], PORTS[1], "--control"]).arg(network.socket());
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            command.args(["--user", "65534"]);
        }
        let log = std::fs::File::create(network.bench.path("log")).expect("creates");
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().expect("runs");
        let mut pipe = child.stdin.take().expect("piped");
        let bridge = Running { child: Some(child) };
        pipe.write_all(bytes).expect("is read");
        network.wait_for("the bridge", || network.try_ask(&["ports"]).is_some());
        let received = u64::from(!bytes.is_empty());
        network.wait_for("the packet", || network.ask("stats pcap:-")[0]["rx_packets"] == received);
        assert!(network.reaches(), "{}", network.log());
        // The thread that reads the pipe has no more privileges than the others.
        for task in std::fs::read_dir(format!("/proc/{}/task", bridge.id()))
            .expect("runs")
            .filter(|_| is_root)
        {
            let status =
                std::fs::read_to_string(task.expect("lists").path().join("status")).expect("runs");
            assert!(status.contains("\nUid:\t65534\t65534\t65534\t65534\n"), "{status}");
        }
        let started = Instant::now();
        network.stop(bridge);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        drop(pipe);
    }
}

#[test]
fn an_unread_recording_does_not_block_other_ports() {
    use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};

    let Some(network) = TestNetwork::new() else { return };
    let [unread, alone] = ["unread", "alone"].map(|name| {
        let path = network.bench.path(name);
        mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("makes");
        path
    });
    let _reader = open(&unread, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .expect("opens");
    let recording = |path: &std::path::Path| format!("pcap:{}?mode=record", path.display());
    let bridge = network.bridge(&PORTS);
    // An open that waits for a reader would block until the end of the test.
    let mut command = network.middle.command("timeout");
    command
        .args([
            "5",
            env!("CARGO_BIN_EXE_superpacket"),
            "port",
            "add",
            &recording(&alone),
            "--control",
        ])
        .arg(network.socket());
    let output = command.output().expect("runs");
    let expected = format!("{}: cannot be created: nobody reads the pipe", recording(&alone));
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains(&expected),
        "{:?}: {}",
        output.status,
        stderr(&output)
    );
    let port = recording(&unread);
    network.ask(&["port", "add", &port]);
    // With learning off, all frames go to all ports.
    for side in PORTS {
        network.ask(&["limits", side, "learning", "off"]);
    }
    // The hosts may have sent packets before.
    network.ask("fdb flush");
    network.load();
    let stats = network.ask(&["stats", &port])[0].clone();
    assert!(stats["tx_full"].as_u64() > Some(0), "more was sent than waits for a reader: {stats}");
    assert!(network.reaches(), "{}", network.log());
    let started = Instant::now();
    network.stop(bridge);
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
}

/// Bytes of a load that the bridge does not finish: it is killed while frames pass.
const MORE_THAN_PASSES: &str = "4G";

#[test]
fn a_killed_bridge_leaves_a_socket_that_the_next_one_replaces() {
    let Some(network) = TestNetwork::new() else { return };
    let before = network.links_at_rest();
    let bridge = network.bridge(&PORTS);
    assert_ne!(network.links(), before, "the interfaces take all frames");
    let mut load = network.start_load(&network.left, &network.right, "10.9.0.2", MORE_THAN_PASSES);
    network.wait_for("frames to pass", || network.sent(PORTS[1]) > Some(500));
    bridge.signal(Signal::KILL);
    assert_eq!(bridge.end().0, None, "killed");
    assert!(load.is_running(), "it was killed while frames passed");
    assert!(network.socket().exists());
    network.refuses(&["ports"], "nobody listens there any more");
    network.wait_for("the kernel cleans up", || {
        network.links() == before && network.packet_sockets() == 0
    });
    let next = network.bridge(&PORTS);
    assert!(network.reaches(), "{}", network.log());
    // The connection through the first bridge goes on, because lost segments are sent again. It
    // would end at the first wrong byte.
    network.wait_for("the connection to go on", || network.sent(PORTS[1]) > Some(500));
    assert!(load.is_running(), "{}", network.log());
    drop(load);
    network.load();
    network.stop(next);
    assert_eq!((network.links(), network.packet_sockets()), (before, 0));
}

#[test]
fn a_killed_bridge_leaves_no_device_and_no_xdp_program() {
    let Some(network) = TestNetwork::new() else { return };
    // Loading a program requires capabilities in the machine's initial user namespace.
    let root = rustix::process::geteuid().is_root();
    let ports: &[&str] =
        if root { &["tap:made", "xdp:left"] } else { &["tap:made", "packet:left"] };
    let before = network.links_at_rest();
    // The bridge's namespace acts as a host behind the TAP device.
    let start = || {
        let running = network.bridge(ports);
        network.middle.ip("addr add 10.9.0.3/24 dev made");
        network.middle.ip("link set made up");
        // The device has another hardware address each time.
        network.left.ip("neigh flush dev eth0");
        running
    };
    let running = start();
    let links = network.links();
    assert!(links.contains("made:") && links.contains("prog/xdp") == root, "{links}");
    let mut load = network.start_load(&network.left, &network.middle, "10.9.0.3", MORE_THAN_PASSES);
    network.wait_for("frames to pass", || network.sent(ports[0]) > Some(500));
    running.signal(Signal::KILL);
    assert_eq!(running.end().0, None, "killed");
    assert!(load.is_running(), "it was killed while frames passed");
    network.wait_for("the kernel cleans up", || {
        network.links() == before && network.packet_sockets() == 0
    });
    // Its address was lost with the device, and so was the connection.
    drop(load);
    let next = start();
    let (code, output) = network.start_load(&network.left, &network.middle, "10.9.0.3", "2M").end();
    assert_eq!(code, Some(0), "{output} {}", network.log());
    network.stop(next);
    network.wait_for("the kernel cleans up", || {
        network.links() == before && network.packet_sockets() == 0
    });
}
