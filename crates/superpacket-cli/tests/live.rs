//! The bridge as a program: forwards between hosts, obeys signals and its control socket, gives up
//! its privileges, and leaves nothing behind.
#![cfg(target_os = "linux")]

#[path = "support/namespaces.rs"]
mod namespaces;
mod support;

#[path = "live/mdb.rs"]
mod mdb;
#[path = "live/monitor.rs"]
mod monitor;
#[path = "live/queues.rs"]
mod queues;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use namespaces::Namespace;
use serde_json::Value;
use superpacket_traffic::frame::Frame;
use support::{Bench, spaced, stderr};

const PORTS: [&str; 2] = ["packet:left", "packet:right"];

/// Two hosts, a bridge to be between them, and a directory for its files.
struct House {
    bench: Bench,
    // Hosts first: they are children of the bridge's namespace.
    left: Namespace,
    right: Namespace,
    middle: Namespace,
}

impl House {
    fn new() -> Option<Self> {
        let middle = Namespace::new()?;
        let left = middle.host("left", "10.9.0.1/24")?;
        let right = middle.host("right", "10.9.0.2/24")?;
        Some(House { bench: Bench::new(), left, right, middle })
    }

    /// Sends 8 MB from one host to the other, every byte of which is compared there.
    fn load(&self) {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let [client, server] = [&self.left, &self.right].map(|host| host.id().to_string());
        command.args(["load", "stream", "10.9.0.2", "--client", &client, "--server", &server, "--bytes", "8M", "--verify"]);
        let output = command.output().expect("runs");
        assert!(output.status.success(), "{} {}", stderr(&output), self.log());
    }

    fn socket(&self) -> PathBuf {
        self.bench.path("control.sock")
    }

    /// Starts another bridge beside the one that is asked; its socket is returned too.
    fn other_bridge(&self, arguments: &[&str]) -> (Running, PathBuf) {
        let (socket, path) = (self.bench.path("other.sock"), self.bench.path("other.log"));
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.arg("bridge").args(arguments).arg("--control").arg(&socket);
        let child = command.stdout(Stdio::null()).stderr(std::fs::File::create(&path).expect("creates")).spawn().expect("runs");
        let running = Running { child: Some(child) };
        self.wait_for("the other bridge", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        (running, socket)
    }

    /// Starts `superpacket bridge` with these and `--control`, and waits until it can be asked.
    fn bridge(&self, arguments: &[&str]) -> Running {
        let log = std::fs::File::create(self.bench.path("log")).expect("creates");
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.arg("bridge").args(arguments).arg("--control").arg(self.socket());
        let child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("runs");
        let mut running = Running { child: Some(child) };
        let started = Instant::now();
        while self.ask(&["ports"]).is_none() {
            let ended = running.child.as_mut().and_then(|child| child.try_wait().expect("waits"));
            assert!(ended.is_none() && started.elapsed() < Duration::from_secs(10), "{ended:?}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        running
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.bench.path("log")).unwrap_or_default()
    }

    /// Runs a command that asks the bridge; its JSON, if it succeeded.
    fn ask(&self, arguments: &[&str]) -> Option<Value> {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let output = command.args(arguments).arg("--json").arg("--control").arg(self.socket()).output().expect("runs");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON and nothing else"))
    }

    /// The same as text: (exit code, standard output, standard error).
    fn text(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let output = command.args(arguments).arg("--control").arg(self.socket()).output().expect("runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), stderr(&output))
    }

    /// Does the right host answer the left one? A refused connection is an answer: address
    /// resolution and TCP went both ways.
    fn reaches(&self) -> bool {
        let output = self.left.run("timeout", &["5", "bash", "-c", "exec 3<>/dev/tcp/10.9.0.2/9"]);
        stderr(&output).contains("refused")
    }

    fn wait_for(&self, what: &str, mut found: impl FnMut() -> bool) {
        let started = Instant::now();
        while !found() {
            assert!(started.elapsed() < Duration::from_secs(10), "{what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A running bridge; killed if a test fails.
struct Running {
    child: Option<Child>,
}

impl Running {
    /// nsenter has become the bridge: it executes it in its own process.
    fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().expect("runs");
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("lives");
    }

    fn id(&self) -> u32 {
        self.child.as_ref().expect("runs").id()
    }

    /// Waits for its end: (exit code, standard output).
    fn end(mut self) -> (Option<i32>, String) {
        let output = self.child.take().expect("runs").wait_with_output().expect("waits");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn hosts_reach_each_other_through_it_and_sigterm_ends_it_well() {
    let Some(house) = House::new() else { return };
    assert!(!house.reaches(), "nothing joins them yet");
    let bridge = house.bridge(&[PORTS[0], PORTS[1], "--json", "--log-format", "json"]);
    assert!(house.reaches(), "{}", house.log());
    let stats = house.ask(&["stats"]).expect("answers");
    let names: Vec<_> = stats.as_array().expect("an array").iter().map(|port| port["port"].as_str().expect("a name")).collect();
    assert_eq!(names, PORTS);
    for port in stats.as_array().expect("an array") {
        assert!(port["rx_packets"].as_u64() >= Some(2) && port["tx_packets"].as_u64() >= Some(2) && port["drops"].is_object(), "{port}");
    }
    let ports = house.ask(&["ports", PORTS[0]]).expect("answers");
    assert!(ports[0]["state"] == "up" && ports[0]["mtu"] == 1500 && ports[0]["addresses"].as_u64() >= Some(1), "{ports}");
    bridge.signal(rustix::process::Signal::TERM);
    let (code, counted) = bridge.end();
    assert_eq!(code, Some(0), "{}", house.log());
    assert!(!house.socket().exists(), "the socket goes away");
    let counted: Value = serde_json::from_str(&counted).expect("JSON and nothing else");
    assert!(counted[1]["tx_packets"].as_u64() >= stats[1]["tx_packets"].as_u64());
    for line in house.log().lines() {
        let line: Value = serde_json::from_str(line).expect("a JSON object a line");
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
    }
    let (code, _, error) = house.text(&["stats"]);
    assert!(code == Some(2) && error.contains("is a bridge running?"), "{error}");
}

#[test]
fn offloads_and_limits_are_switched_while_it_runs() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&[PORTS[0], PORTS[1], "--feature", "packet:right:gro=off"]);
    let (_, text, _) = house.text(&["features", PORTS[0]]);
    assert!(text.starts_with("Features for packet:left:\nrx-checksumming: on\n"), "{text}");
    assert!(text.contains("\ngeneric-receive-offload: on\n") && text.contains("\nlarge-receive-offload: off\n"), "{text}");
    let (_, text, _) = house.text(&["features", PORTS[1]]);
    assert!(text.contains("\ngeneric-receive-offload: off\n"), "{text}");
    let (code, text, _) = house.text(&["features", PORTS[0], "gro", "off"]);
    assert_eq!((code, text.as_str()), (Some(0), "generic-receive-offload: off\n"));
    // What TSO needs goes, and takes it along.
    let (_, text, _) = house.text(&["features", PORTS[0], "tx-checksumming", "off"]);
    assert!(text.contains("tx-checksumming: off\n"), "{text}");
    if text.contains("tcp-segmentation-offload") {
        assert!(text.contains("tcp-segmentation-offload: off [requested on: "), "{text}");
    }
    let (code, _, error) = house.text(&["features", PORTS[0], "lro", "on"]);
    assert!(code == Some(2) && error.contains("large-receive-offload is refused"), "{error}");
    let forced = house.ask(&["features", PORTS[0], "lro", "on", "--force"]).expect("forced");
    let lro = forced["features"].as_array().expect("an array").iter().find(|report| report["feature"] == "large-receive-offload");
    assert_eq!(lro.expect("is there")["asked"], true);
    let limits = house.ask(&["limits", PORTS[0], "gro-flush-timeout", "50us"]).expect("sets");
    assert_eq!(limits[0]["limits"]["gro_flush_timeout"], 50_000);
    let (code, text, _) = house.text(&["limits", PORTS[0], "too_big", "icmp"]);
    assert!(code == Some(0) && text.contains("gro_flush_timeout: 50000 ns\n") && text.contains("\ntoo_big: icmp\n"), "{text}");
    assert!(text.contains("\nstorage: fragments [linear, with gro_flush_timeout]\n"), "{text}");
    let (code, text, _) = house.text(&["features", PORTS[0], "tx-tcp-mangleid-segmentation", "on"]);
    assert!(code == Some(0) && text.starts_with("tx-tcp-mangleid-segmentation: o"), "{text}");
    for (arguments, says) in [
        (&["features", "packet:up"][..], "there are packet:left, packet:right"),
        (&["features", PORTS[0], "turbo", "on"], "\"turbo\" is no offload"),
        (&["limits", PORTS[0], "mtu", "9000"], "is no limit"),
        (&["limits", PORTS[0], "gro_flush_timeout", "2s"], "at most"),
        (&["limits", PORTS[0], "gro_flush_timeout", "50000"], "gro_flush_timeout: time unit needed"),
        (&["limits", PORTS[0], "gso_max_size", "1"], "packet:left: gso_max_size is 0 (what the port takes) or 68 to 524280 bytes, not 1"),
        (&["limits", PORTS[0], "gro_max_size", "0"], "packet:left: gro_max_size is 68 to 524280 bytes, not 0"),
        (&["limits", PORTS[0], "storage", "heap"], "packet:left: storage is fragments or linear, not \"heap\""),
        (&["limits", PORTS[0], "isolated", "yes"], "isolated is on or off, not \"yes\""),
        (&["features", PORTS[0], "gso", "off"], "\"gso\" is no offload"),
        (&["features", PORTS[0], "gro"], "Usage"),
    ] {
        let (code, out, error) = house.text(arguments);
        assert!(code == Some(2) && out.is_empty() && error.contains(says), "{arguments:?}: {error}");
    }
    assert!(house.reaches());
    let rates = house.ask(&["top", "--interval", "200ms"]).expect("answers");
    assert!(rates[0]["port"] == PORTS[0] && rates[0]["rx_packets"].is_number(), "{rates}");
}

#[test]
fn isolated_ports_do_not_reach_each_other_until_one_is_not() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&PORTS);
    assert!(house.reaches());
    for port in PORTS {
        assert!(house.reaches(), "one isolated port reaches the other");
        let (code, text, _) = house.text(&["limits", port, "isolated", "on"]);
        assert!(code == Some(0) && text.contains("\nisolated: on\n"), "{text}");
    }
    assert!(!house.reaches(), "both are isolated");
    let stats = house.ask(&["stats", PORTS[0]]).expect("answers");
    assert!(stats[0]["drops"]["forwarding"].as_u64() > Some(0), "{stats}");
    house.ask(&["limits", PORTS[1], "isolated", "off"]).expect("sets");
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn static_addresses_are_added_and_hold_whoever_sends_with_them() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let ports = "[[port]]\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n";
    std::fs::write(&file, ports).expect("writes");
    let bridge = house.bridge(&["--config", &file.display().to_string()]);
    assert!(house.reaches());
    let hardware_address = |host: &Namespace| {
        // Sysfs shows the interfaces of the namespace that mounted it.
        let output = host.run("ip", &["-o", "link", "show", "eth0"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().skip_while(|word| *word != "link/ether").nth(1).expect("an Ethernet interface").to_owned()
    };
    let [left, right] = [&house.left, &house.right].map(hardware_address);
    let shown = |words: &[&str]| house.ask(&[&["fdb", "show"], words].concat()).expect("answers");
    let learned = shown(&["dev", PORTS[1]]);
    let entry = learned.as_array().expect("a list").iter().find(|entry| entry["mac"] == right.as_str());
    assert_eq!(*entry.expect("is there"), serde_json::json!({"mac": right, "ifname": PORTS[1], "flags": [], "state": ""}));
    let (code, text, _) = house.text(&["fdb", "-s"]);
    assert!(code == Some(0) && text.lines().any(|line| line.starts_with(&format!("{left} dev packet:left updated "))), "{text}");
    // The right host's address is said to be at the left port: what is for it goes back there, and
    // nowhere else.
    let (code, text, error) = house.text(&["fdb", "add", &right, "dev", PORTS[0], "static"]);
    assert_eq!((code, text.as_str(), error.as_str()), (Some(0), "", ""));
    assert!(!house.reaches(), "it sends, and gets nothing");
    assert_eq!(house.text(&["fdb", "flush"]).0, Some(0));
    assert!(!house.reaches(), "static entries stay");
    let (_, text, _) = house.text(&["fdb", "show", "static"]);
    assert_eq!(text, format!("{right} dev packet:left sticky static\n"));
    let vlan = house.ask(&["fdb", "add", &right, "dev", PORTS[1], "vlan", "10", "static"]).expect("another station");
    assert_eq!(
        vlan,
        serde_json::json!({"mac": right, "ifname": PORTS[1], "vlan": 10, "updated": 0, "flags": ["sticky"], "state": "static"})
    );
    for (words, says) in [
        (&["add", &right, "dev", PORTS[1], "static"][..], "there is a static entry for it at packet:left already"),
        (&["add", &left, "dev", "packet:up", "static"], "there is no port \"packet:up\": there are packet:left, packet:right"),
        (&["add", "ff:ff:ff:ff:ff:ff", "dev", PORTS[0], "static"], "ff:ff:ff:ff:ff:ff is a group's address"),
        (&["add", "00:00:00:00:00:00", "dev", PORTS[0], "static"], "00:00:00:00:00:00 is no station's address"),
        (&["del", &right, "dev", PORTS[1]], "there is no entry for it at packet:right: it is at packet:left"),
        (&["del", "02:00:00:00:00:77", "dev", PORTS[1]], "02:00:00:00:00:77: there is no entry for it at packet:right"),
        (&["show", "dev", "packet:up"], "there is no port \"packet:up\""),
        (&["flush", "dev", "packet:up"], "there is no port \"packet:up\""),
        (&["prune"], "invalid value 'prune'"),
    ] {
        let (code, out, error) = house.text(&[&["fdb"], words].concat());
        assert!(code == Some(2) && out.is_empty() && error.contains(says), "{words:?}: {error}");
    }
    assert_eq!(house.text(&["fdb", "del", &right, "dev", PORTS[0]]).0, Some(0));
    assert!(house.reaches(), "{}", house.log());
    // The file says what is static, when it is read again; an entry of a port that it does not have
    // is a mistake.
    std::fs::write(&file, format!("{ports}[[fdb]]\naddress = \"{right}\"\nport = \"packet:left\"\n")).expect("writes");
    bridge.signal(rustix::process::Signal::HUP);
    let expected = serde_json::json!([{"mac": right, "ifname": PORTS[0], "flags": ["sticky"], "state": "static"}]);
    house.wait_for("the file's entry, and no other", || shown(&["static"]) == expected);
    assert!(!house.reaches());
    std::fs::write(&file, format!("{ports}[[fdb]]\naddress = \"{right}\"\nport = \"packet:up\"\n")).expect("writes");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the error", || {
        house.log().contains("bridge.toml:7: fdb: the file has no port \"packet:up\": it has packet:left, packet:right")
    });
    assert_eq!(shown(&["static"]), expected);
    std::fs::write(&file, ports).expect("writes");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the entry to go", || shown(&["static"]) == serde_json::json!([]));
    assert!(house.reaches(), "{}", house.log());
}

/// What a process has in memory, in MiB.
fn resident(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a process has memory");
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
        set("4194304", "65536", "65536");
        house.wait_for("the tables", || resident(bridge.id()) >= before + 16);
        set("0", "0", "64");
        house.wait_for(&format!("memory to be given back, round {round}"), || resident(bridge.id()) < before + 8);
    }
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn hosts_reach_each_other_within_their_vlan_only() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&[PORTS[0], PORTS[1], "--vlan-filtering"]);
    assert!(house.reaches(), "both are in VLAN 1");
    let (_, text, _) = house.text(&["vlan"]);
    let expected = "port          vlan-id\npacket:left   1 PVID Egress Untagged\npacket:right  1 PVID Egress Untagged\n";
    assert_eq!(text, expected);
    let set = |words: &[&str]| {
        let (code, text, error) = house.text(&[&["vlan"], words].concat());
        assert!(code == Some(0) && text.is_empty(), "{words:?}: {error}");
    };
    set(&["add", "dev", PORTS[0], "vid", "10", "pvid", "untagged"]);
    set(&["del", "dev", PORTS[0], "vid", "1"]);
    assert!(!house.reaches(), "one is in VLAN 10, the other in VLAN 1");
    let drops = house.ask(&["stats", PORTS[0]]).expect("answers")[0]["drops"].clone();
    assert!(drops["vlan"].as_u64() > Some(0), "{drops}");
    set(&["add", "dev", PORTS[1], "vid", "10-20"]);
    assert!(!house.reaches(), "its frames leave with a tag, and come without");
    let expected = serde_json::json!([
        {"ifname": PORTS[1], "vlans": [{"vlan": 1, "flags": ["PVID", "Egress Untagged"]}, {"vlan": 10, "vlanEnd": 20}]},
    ]);
    assert_eq!(house.ask(&["vlan", "show", "dev", PORTS[1]]).expect("answers"), expected);
    set(&["add", "dev", PORTS[1], "vid", "10", "pvid", "untagged"]);
    assert!(house.reaches(), "{}", house.log());
    let (_, text, _) = house.text(&["fdb", "show", "dev", PORTS[0]]);
    assert!(!text.is_empty() && text.lines().all(|line| line.ends_with(" dev packet:left vlan 10")), "{text}");
    for (arguments, says) in [
        (&["vlan", "add", "dev", PORTS[0], "vid", "4095"][..], "a VLAN is 1 to 4094, not 4095"),
        (&["vlan", "add", "dev", PORTS[0], "vid", "10-20", "pvid"], "pvid is for one VLAN, not for 10-20"),
        (&["vlan", "add", "dev", "packet:up", "vid", "10"], "there is no port \"packet:up\": there are packet:left, packet:right"),
        (&["vlan", "del", "dev", PORTS[0], "vid", "1"], "packet:left: it is not in VLAN 1"),
        (&["vlan", "show", "dev", "packet:up"], "there is no port \"packet:up\""),
        (&["fdb", "add", "02:00:00:00:00:01", "dev", PORTS[0], "static"], "the bridge filters by VLAN: say in which the address is"),
    ] {
        let (code, out, error) = house.text(arguments);
        assert!(code == Some(2) && out.is_empty() && error.contains(says), "{arguments:?}: {error}");
    }
    house.ask(&["fdb", "add", "02:00:00:00:00:01", "dev", PORTS[0], "vlan", "10", "static"]).expect("with a VLAN");
}

#[test]
fn super_packets_cross_a_trunk_with_their_tag() {
    cross_a_trunk("802.1Q");
}

#[test]
fn super_packets_cross_a_provider_s_trunk_with_its_tag() {
    cross_a_trunk("802.1ad");
}

/// Two bridges between the hosts, and between the bridges frames with a tag of this protocol; the
/// customers of services have tags of their own.
fn cross_a_trunk(protocol: &str) {
    let Some(house) = House::new() else { return };
    house.middle.ip("link add trunk0 type veth peer name trunk1");
    // Packet sockets take a frame of the MTU with a tag of 802.1Q, and no other.
    ["trunk0", "trunk1"].iter().for_each(|name| house.middle.ip(&format!("link set {name} mtu 1508 up")));
    let is_provider = protocol == "802.1ad";
    // Kernels without VLAN interfaces have customers without tags.
    if is_provider && house.left.run("ip", &["link", "add", "link", "eth0", "name", "probe", "type", "vlan", "id", "8"]).status.success() {
        for (host, address) in [(&house.left, "10.9.0.1/24"), (&house.right, "10.9.0.2/24")] {
            host.ip("addr flush dev eth0");
            host.ip("link add link eth0 name customer type vlan id 7");
            host.ip("link set customer up");
            host.ip(&format!("addr add {address} dev customer"));
        }
    }
    let (near, far) = ("packet:trunk0", "packet:trunk1");
    let filtering = ["--vlan-filtering", "--vlan-protocol", protocol];
    let _bridge = house.bridge(&[&[PORTS[0], near], &filtering[..]].concat());
    let (_other, socket) = house.other_bridge(&[&[far, PORTS[1]], &filtering[..]].concat());
    let (_, text, _) = house.text(&["vlan"]);
    assert_eq!(text.ends_with("\n\nTags are of 802.1ad.\n"), is_provider, "{text}");
    let socket = socket.display().to_string();
    let other = |arguments: &[&str]| {
        let mut command = house.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let output = command.args(arguments).args(["--json", "--control", &socket]).output().expect("runs");
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON and nothing else")
    };
    // Between the bridges VLAN 10 with a tag, and nothing else.
    for words in [
        &["add", "dev", PORTS[0], "vid", "10", "pvid", "untagged"][..],
        &["add", "dev", near, "vid", "10"],
        &["del", "dev", near, "vid", "1"],
    ] {
        house.ask(&[&["vlan"], words].concat()).expect("sets");
    }
    for words in [
        &["add", "dev", PORTS[1], "vid", "10", "pvid", "untagged"][..],
        &["add", "dev", far, "vid", "10"],
        &["del", "dev", far, "vid", "1"],
    ] {
        other(&[&["vlan"], words].concat());
    }
    assert!(house.reaches(), "{}", house.log());
    let sent = || house.ask(&["stats", near]).expect("answers")[0].clone();
    let came = || other(&["stats", far])[0].clone();
    // Super-packets of the sender's kernel, then what the bridge makes of single frames, then
    // single frames.
    house.load();
    let (before, received) = (sent(), came());
    assert!(before["tx_super_packets"].as_u64() > Some(0) && received["rx_super_packets"].as_u64() > Some(0), "{before} {received}");
    house.left.ip("link set eth0 gso_max_segs 1");
    house.load();
    let merged = sent();
    assert!(merged["tx_super_packets"].as_u64() > before["tx_super_packets"].as_u64(), "{merged}");
    for (port, feature) in [(PORTS[0], "gro"), (near, "tso"), (near, "tx-checksumming")] {
        house.ask(&["features", port, feature, "off"]).expect("switches");
    }
    house.load();
    let single = sent();
    assert_eq!(single["tx_super_packets"], merged["tx_super_packets"], "{single}");
    for stats in [single, came()] {
        // The machine's own ends of the trunk may have said something without a tag.
        assert!(stats["drops"]["malformed"] == 0 && stats["drops"]["vlan"].as_u64() < Some(20), "{stats}");
    }
    // In another VLAN it does not arrive.
    let before = came()["drops"]["vlan"].as_u64();
    other(&["vlan", "del", "dev", far, "vid", "10"]);
    assert!(!house.reaches());
    assert!(came()["drops"]["vlan"].as_u64() > before);
}

#[test]
fn lro_is_managed_and_counted_while_packets_flow() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&PORTS);
    // Single frames: LRO passes what the sender's kernel has joined.
    house.left.ip("link set eth0 gso_max_segs 1");
    // Packets that LRO took, and sessions that it delivered, since the last time.
    let mut before = [0; 2];
    let mut counted = || {
        let stats = house.ask(&["stats", PORTS[0]]).expect("answers")[0].clone();
        let now = ["lro_aggregated", "lro_flushed"].map(|name| stats[name].as_u64().expect("a number"));
        let new = [now[0] - before[0], now[1] - before[1]];
        before = now;
        (new, stats)
    };
    house.ask(&["features", PORTS[0], "lro", "on", "--force"]).expect("forced");
    assert_eq!(house.ask(&["limits", PORTS[0], "lro-max-aggr", "2"]).expect("sets")[0]["limits"]["lro_max_aggr"], 2);
    house.load();
    let ([aggregated, flushed], stats) = counted();
    assert!(aggregated > 1_000 && aggregated <= 2 * flushed, "{stats}");
    assert!(stats["reasons"]["packet_limit"].as_u64() > Some(0) && stats["rx_super_segments"] == 0, "{stats}");
    assert_eq!(house.ask(&["limits", PORTS[0], "lro_max_aggr", "0"]).expect("sets")[0]["limits"]["lro_max_aggr"], 0);
    house.load();
    let ([aggregated, flushed], stats) = counted();
    assert!(aggregated > 2 * flushed, "more than two in one: {aggregated}, {flushed}: {stats}");
    // Two flows, each way one, and a place for one of them.
    for (name, word) in [("storage", "linear"), ("delivery", "at-once"), ("lro_acks", "on")] {
        assert_eq!(house.ask(&["limits", PORTS[0], name, word]).expect("sets")[0]["aggregation"][name], word);
    }
    house.ask(&["limits", PORTS[0], "lro_max_desc", "1"]).expect("sets");
    house.load();
    let ([aggregated, _], _) = counted();
    assert!(aggregated > 1_000, "every byte came, and LRO was at work");
    let (code, text, _) = house.text(&["stats", PORTS[0], "--reasons"]);
    assert!(code == Some(0) && text.contains("Why packets left aggregation") && text.contains("\n  packet_limit "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let rates = house.ask(&["top", "--interval", "100ms"]).expect("answers");
    assert!(rates[0]["lro"]["aggregated"]["total"].as_u64() > Some(3_000), "{rates}");
    assert!(rates[0]["reasons"]["packet_limit"]["total"].as_u64() > Some(0), "{rates}");
    // What the sender's kernel has joined counts by its frames.
    house.left.ip("link set eth0 gso_max_segs 65535");
    house.load();
    let (_, stats) = counted();
    let [packets, segments] = ["rx_super_packets", "rx_super_segments"].map(|name| stats[name].as_u64().expect("a number"));
    assert!(packets > 0 && segments >= 2 * packets, "{stats}");
    // 8 MiB in segments of 1448 bytes at most.
    assert!(stats["rx_packets"].as_u64().expect("a number") - packets + segments >= 4 * (8 << 20) / 1448, "all loads together: {stats}");
}

#[test]
fn constant_identifications_are_told_and_may_change_where_that_is_asked_for() {
    let Some(house) = House::new() else { return };
    let flow: Vec<_> = (0..40).map(|number| Frame::tcp4(1 + number * 1_000, 1_000).with_id(7)).collect();
    let file = house.bench.capture("ids.pcap", &spaced(&flow));
    let replayed = format!("pcap:{}?speed=max&loop=forever", file.display());
    let _bridge = house.bridge(&[&replayed, PORTS[1]]);
    let stats = || house.ask(&["stats", PORTS[1]]).expect("answers")[0].clone();
    house.wait_for("packets that are cut for their identifications", || stats()["segmented_for_ids"].as_u64() > Some(0));
    let (_, text, _) = house.text(&["stats", PORTS[1]]);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("merged and cut again for nothing"), "{text}");
    let command = "`superpacket features 'packet:right' tx-tcp-mangleid-segmentation on`";
    assert!(words.contains(command) && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let (code, text, _) = house.text(&["features", PORTS[1], "tx-tcp-mangleid-segmentation", "on"]);
    assert_eq!((code, text.as_str()), (Some(0), "tx-tcp-mangleid-segmentation: on\n"));
    house.wait_for("packets that go whole", || stats()["tx_super_packets"].as_u64() > Some(0));
    let before = stats();
    house.wait_for("more of them", || stats()["tx_super_packets"].as_u64() > before["tx_super_packets"].as_u64());
    assert_eq!(stats()["segmented_for_ids"], before["segmented_for_ids"], "none is cut any more");
}

#[test]
fn packets_are_steered_while_it_runs_and_bad_masks_change_nothing() {
    let Some(house) = House::new() else { return };
    let bridge = house.bridge(&PORTS);
    let shown = house.ask(&["rps", PORTS[0]]).expect("answers");
    assert!(shown["ports"][0]["queues"][0]["effective_list"] == "" && shown["steering"]["workers"] == serde_json::json!([]), "{shown}");
    let usable = shown["steering"]["usable_cpus"].as_str().expect("a list").to_owned();
    let first = usable.split(['-', ',']).next().expect("one at least");
    let mask = format!("{:x}", 1u128 << first.parse::<u32>().expect("a number"));
    for port in PORTS {
        let set = house.ask(&["rps", port, "0", &mask]).expect("sets");
        assert_eq!(set["ports"][0]["in_place_below"], "auto", "the default: {set}");
        assert_eq!(set["ports"][0]["queues"][0]["effective_list"], first, "{set}");
    }
    // With so little to do, what arrives is processed where it is received.
    assert!(house.reaches(), "{}", house.log());
    let idle = house.ask(&["rps"]).expect("answers");
    assert!(idle["steering"]["workers"][0]["processed"] == 0 && idle["ports"][0]["queues"][0]["in_place"] == true, "{idle}");
    for port in PORTS {
        let set = house.ask(&["rps", port, "--in-place-below", "0"]).expect("sets");
        assert_eq!(set["ports"][0]["in_place_below"], 0, "{set}");
    }
    assert!(house.reaches(), "{}", house.log());
    let worker = |house: &House| house.ask(&["rps"]).expect("answers")["steering"]["workers"][0].clone();
    assert!(worker(&house)["processed"].as_u64() >= Some(2) && worker(&house)["state"] == "running", "{}", worker(&house));
    let (code, text, _) = house.text(&["rps", PORTS[0]]);
    assert!(code == Some(0) && text.contains(&format!("CPUs {first}")) && text.contains("netdev_max_backlog: 1000\n"), "{text}");
    // The kernel's errors, with the chunk that they are about, and the mask stays.
    let possible = shown["steering"]["possible_cpus"].as_u64().expect("a number");
    let wide = format!("1{}", "0".repeat((possible as usize).div_ceil(4)));
    for (arguments, says) in [
        (&["rps", PORTS[0], "0", "12,xyz"][..], "EINVAL"),
        (&["rps", PORTS[0], "0", "12,xyz", "--flow-count", "64", "--set", "dev_weight=9"], "xyz"),
        (&["rps", PORTS[0], "0", &wide], "EOVERFLOW"),
        (&["rps", PORTS[0], "--cpu-list", "3-1"], "3-1"),
        (&["rps", PORTS[0], "9", "1"], "no receive queue 9"),
        (&["rps", "packet:up", "0", "1"], "there are packet:left, packet:right"),
        (&["rps", "--set", "netdev_max_backlog=0"], "netdev_max_backlog: EINVAL"),
        (&["rps", "--set", "backlog=9"], "is no setting of steering"),
    ] {
        let (code, out, error) = house.text(arguments);
        assert!(code == Some(2) && out.is_empty() && error.contains(says), "{arguments:?}: {error}");
    }
    let kept = house.ask(&["rps", PORTS[0]]).expect("answers");
    assert_eq!(kept["ports"][0]["queues"][0]["effective_list"], first, "{kept}");
    assert_eq!(kept["ports"][0]["queues"][0]["rps_flow_cnt"], 0, "nothing else of the refused command took effect: {kept}");
    assert_eq!(kept["steering"]["settings"]["dev_weight"], "64", "{kept}");
    let counted = house.ask(&["rps", PORTS[0], "--flow-count", "64", "--in-place-below", "1000"]).expect("sets");
    assert_eq!(
        (&counted["ports"][0]["queues"][0]["rps_flow_cnt"], &counted["ports"][0]["in_place_below"]),
        (&64.into(), &1000.into()),
        "{counted}"
    );
    let automatic = house.ask(&["rps", PORTS[0], "--flow-count", "0", "--in-place-below", "auto"]).expect("sets");
    assert_eq!(automatic["ports"][0]["in_place_below"], "auto", "{automatic}");
    house.ask(&["rps", PORTS[0], "--in-place-below", "0"]).expect("sets");
    let list = house.ask(&["rps", PORTS[0], "--cpu-list", &usable]).expect("sets");
    assert_eq!(list["ports"][0]["queues"][0]["effective_list"], usable.as_str(), "{list}");
    let auto = house.ask(&["rps", PORTS[0], "auto"]).expect("sets");
    assert!(auto["ports"][0]["why"].as_str().is_some_and(|why| why.contains("queue 0, received on CPU")), "{auto}");
    assert_eq!(house.ask(&["rps", "--set", "dev-weight=7"]).expect("sets")["steering"]["settings"]["dev_weight"], "7");
    // Workers are pinned, and asleep.
    assert!(house.reaches());
    std::thread::sleep(Duration::from_millis(300));
    let of_workers = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", bridge.id())).expect("runs");
        let stats = tasks.flatten().map(|task| (std::fs::read_to_string(task.path().join("stat")), task.path().join("status")));
        let workers = stats.filter_map(|(stat, status)| Some((stat.ok().filter(|stat| stat.contains("(superpacket-rps"))?, status)));
        workers.map(|(stat, status)| (ticks_of(&stat), std::fs::read_to_string(status).expect("runs"))).collect::<Vec<_>>()
    };
    let before = of_workers();
    assert!(!before.is_empty());
    for (_, status) in &before {
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t")).expect("is there");
        assert!(allowed.parse::<u32>().is_ok(), "one CPU: {allowed}");
    }
    std::thread::sleep(Duration::from_secs(1));
    let used = of_workers().iter().map(|(ticks, _)| ticks).sum::<u64>() - before.iter().map(|(ticks, _)| ticks).sum::<u64>();
    assert!(used <= 2, "{used} ticks of 10 ms in an idle second");
    for port in PORTS {
        house.ask(&["rps", port, "all", "0"]).expect("sets");
    }
    house.wait_for("the workers to end", || {
        let workers = house.ask(&["rps"]).expect("answers")["steering"]["workers"].clone();
        workers.as_array().is_some_and(|workers| workers.iter().all(|worker| worker["state"] == "ended"))
    });
    assert!(house.reaches());
    bridge.signal(rustix::process::Signal::TERM);
    assert_eq!(bridge.end().0, Some(0), "{}", house.log());
}

/// As `taskset -p` does, or a cpuset: with all of the process's threads, of which the first counts.
#[test]
fn cpus_that_go_lose_their_workers_and_get_them_again() {
    let usable = rustix::thread::sched_getaffinity(None).expect("asked");
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).take(2).collect();
    let [first, second] = cpus[..] else {
        assert!(std::env::var_os("CI").is_none(), "two CPUs are needed");
        eprintln!("SKIPPED: two CPUs are needed");
        return;
    };
    let Some(house) = House::new() else { return };
    let bridge = house.bridge(&PORTS);
    let both = format!("{first},{second}");
    for port in PORTS {
        house.ask(&["rps", port, "--cpu-list", &both]).expect("sets");
    }
    let allow = |cpus: &[usize]| {
        let mut set = rustix::thread::CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        let id = rustix::process::Pid::from_raw(bridge.id() as i32).expect("a number");
        rustix::thread::sched_setaffinity(Some(id), &set).expect("set");
    };
    let workers = || -> Vec<(u64, String)> {
        let report = house.ask(&["rps"]).expect("answers");
        let workers = report["steering"]["workers"].as_array().expect("a list").clone();
        let pair = |worker: Value| (worker["cpu"].as_u64().expect("a number"), worker["state"].as_str().expect("a word").to_owned());
        workers.into_iter().map(pair).collect()
    };
    let states = |of: [&str; 2]| [(first as u64, of[0].to_owned()), (second as u64, of[1].to_owned())];
    assert_eq!(workers(), states(["running", "running"]));
    allow(&[first]);
    house.wait_for("the worker of the CPU that has gone to end", || workers() == states(["running", "ended"]));
    let shown = house.ask(&["rps", PORTS[0]]).expect("answers")["ports"][0]["queues"][0].clone();
    assert_eq!(shown["effective_list"], first.to_string(), "{shown}");
    assert_eq!(shown["dropped"], serde_json::json!([{"cpu": second, "reason": "outside the process's affinity"}]), "{shown}");
    assert!(house.reaches(), "{}", house.log());
    let (_, text, _) = house.text(&["rps", PORTS[0]]);
    assert!(text.contains("outside the process's affinity"), "{text}");
    allow(&[first, second]);
    house.wait_for("the worker of the CPU that has come back", || workers() == states(["running", "running"]));
    let shown = house.ask(&["rps", PORTS[0]]).expect("answers")["ports"][0]["queues"][0].clone();
    assert_eq!(shown["dropped"], serde_json::json!([]), "the mask is as it was set: {shown}");
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn sighup_rereads_the_file_and_a_bad_file_changes_nothing() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("writes");
    write("[[port]]\nport = \"packet:left\"\n");
    let bridge = house.bridge(&["--config", &file.display().to_string()]);
    assert_eq!(house.ask(&["ports"]).expect("answers").as_array().map(Vec::len), Some(1));
    write("[[port]]\nport = \"packet:left\"\nfeatures = { gro = false }\n[[port]]\nport = \"packet:right\"\n");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the new port", || house.ask(&["ports"]).is_some_and(|ports| ports.as_array().is_some_and(|ports| ports.len() == 2)));
    house.wait_for("the end of the change", || house.log().contains("the file is in force"));
    assert!(house.text(&["features", PORTS[0]]).1.contains("generic-receive-offload: off\n"));
    assert!(house.reaches(), "{}", house.log());
    write("[[port]]\nport = \"packet:left\"\nspeed = 9\n");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the error", || house.log().contains("bridge.toml:3: unknown field `speed`"));
    assert_eq!(house.ask(&["ports"]).expect("goes on").as_array().map(Vec::len), Some(2));
    assert!(house.reaches());
    write("[[port]]\nport = \"packet:right\"\n");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the port to go", || house.ask(&["ports"]).is_some_and(|ports| ports.as_array().is_some_and(|ports| ports.len() == 1)));
    bridge.signal(rustix::process::Signal::INT);
    assert_eq!(bridge.end().0, Some(0), "{}", house.log());
}

#[test]
fn sighup_says_what_it_undoes_of_what_commands_changed_and_keeps_it_where_that_is_asked_for() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let ports = "[[port]]\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n";
    let isolated = |house: &House| house.ask(&["limits", PORTS[0]]).expect("answers")[0]["forwarding"]["isolated"] == true;
    for (more, arguments, says, stays) in [
        ("", &[][..], "packet:left: isolated is off now, as the file says; by command it was on", false),
        ("", &["--on-reload", "keep"], "packet:left: isolated stays on, as set by command", true),
        ("[bridge]\non-reload = \"keep\"\n", &[], "packet:left: isolated stays on, as set by command", true),
    ] {
        std::fs::write(&file, format!("{more}{ports}")).expect("writes");
        let file = file.display().to_string();
        let bridge = house.bridge(&[&["--config", &file][..], arguments].concat());
        assert!(house.text(&["limits", PORTS[0], "isolated", "on"]).0 == Some(0));
        // The second time, what was kept is still what a command changed.
        for times in 1..=2 {
            bridge.signal(rustix::process::Signal::HUP);
            house.wait_for("the end of the change", || house.log().matches("the file is in force").count() == times);
            assert_eq!(isolated(&house), stays, "{}", house.log());
            assert_eq!(house.log().matches(says).count(), if stays { times } else { 1 }, "{}", house.log());
        }
        bridge.signal(rustix::process::Signal::INT);
        assert_eq!(bridge.end().0, Some(0), "{}", house.log());
    }
}

#[test]
fn ports_are_added_and_removed_while_it_runs() {
    let Some(house) = House::new() else { return };
    let running = house.bridge(&[PORTS[0]]);
    assert!(!house.reaches(), "there is nobody to reach");
    let added = house.ask(&["port", "add", PORTS[1]]).expect("it can be opened");
    assert_eq!((&added["port"], &added["state"]), (&Value::from(PORTS[1]), &Value::from("up")));
    house.wait_for("the other host", || house.reaches());
    house.load();
    let (code, _, error) = house.text(&["port", "add", PORTS[1]]);
    assert!(code == Some(2) && error.contains(PORTS[1]), "{code:?} {error}");
    let (code, _, error) = house.text(&["port", "add", "packet:nowhere"]);
    assert!(code == Some(2) && error.contains("nowhere"), "{code:?} {error}");
    let (code, _, error) = house.text(&["port", "add", "pigeon:a"]);
    assert!(code == Some(2) && error.contains("starts with no kind of port"), "{code:?} {error}");
    assert_eq!(house.text(&["port", "del", PORTS[1]]), (Some(0), String::new(), String::new()));
    assert!(!house.reaches(), "its port is gone");
    let (code, _, error) = house.text(&["port", "del", PORTS[1]]);
    assert!(code == Some(2) && error.contains("there are packet:left"), "{code:?} {error}");
    house.ask(&["port", "add", PORTS[1]]).expect("nothing of it was left behind");
    house.wait_for("the other host", || house.reaches());
    running.signal(rustix::process::Signal::TERM);
    assert_eq!(running.end().0, Some(0));
}

#[test]
fn a_port_is_called_by_its_name_by_whatever_speaks_of_it() {
    let Some(house) = House::new() else { return };
    let options =
        ["--feature", "left:gro=off", "--limit", "right:storm_broadcast=1000", "--metrics", "127.0.0.1:9600", "--log-format", "json"];
    let bridge = house.bridge(&[&["left=packet:left?ring=1m", "right=packet:right"][..], &options].concat());
    assert!(house.reaches(), "{}", house.log());
    let ports = house.ask(&["ports"]).expect("answers");
    assert_eq!((&ports[0]["port"], &ports[0]["string"]), (&"left".into(), &"packet:left?ring=1m".into()));
    let (_, text, _) = house.text(&["ports"]);
    assert!(text.lines().any(|line| line.split_whitespace().take(3).eq(["left", "packet:left", "up"])), "{text}");
    let (_, text, _) = house.text(&["features", "left"]);
    assert!(text.starts_with("Features for left:\n") && text.contains("\ngeneric-receive-offload: off\n"), "{text}");
    assert_eq!(house.text(&["features", "left", "gro", "on"]).1, "generic-receive-offload: on\n");
    assert_eq!(house.ask(&["limits", "right"]).expect("answers")[0]["limits"]["storm_broadcast"], 1_000);
    assert!(house.ask(&["stats", "left"]).expect("answers")[0]["rx_packets"].as_u64() >= Some(2));
    assert_eq!(house.ask(&["rps", "left"]).expect("answers")["ports"][0]["port"], "left");
    assert_eq!(house.ask(&["top", "--interval", "100ms"]).expect("answers")[0]["port"], "left");
    house.ask(&["vlan", "add", "dev", "left", "vid", "10"]).expect("sets");
    assert!(house.text(&["vlan"]).1.contains("\nleft   1 PVID Egress Untagged\n       10\n"), "{}", house.text(&["vlan"]).1);
    house.ask(&["fdb", "add", "02:00:00:00:00:77", "dev", "right", "static"]).expect("adds");
    let (_, text, _) = house.text(&["fdb"]);
    assert!(text.contains("02:00:00:00:00:77 dev right sticky static\n") && text.contains(" dev left\n"), "{text}");
    let added = house.ask(&["port", "add", "third=tap:named0"]).expect("it can be opened");
    assert_eq!((&added["port"], &added["string"]), (&"third".into(), &"tap:named0".into()));
    for (arguments, says) in [
        (&["features", "packet:left"][..], "there is no port \"packet:left\": there are left, right, third"),
        (&["port", "add", "third=tap:named1"], "port \"third\" is named twice"),
        (&["port", "add", "all=tap:named1"], "port \"all=tap:named1\": name \"all\" is a word of commands"),
        (&["port", "del", "tap:named0"], "there is no port \"tap:named0\""),
    ] {
        let (code, out, error) = house.text(arguments);
        assert!(code == Some(2) && out.is_empty() && error.contains(says), "{arguments:?}: {error}");
    }
    house.ask(&["port", "del", "third"]).expect("is there");
    let script = "exec 3<>/dev/tcp/127.0.0.1/9600; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3";
    let output = house.middle.run("timeout", &["5", "bash", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("\nsuperpacket_port_up{port=\"left\"} 1\n") && !text.contains("port=\"packet:"), "{text}");
    bridge.signal(rustix::process::Signal::TERM);
    assert_eq!(bridge.end().0, Some(0), "{}", house.log());
    let log: Vec<Value> = house.log().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let opened: Vec<_> = log.iter().filter(|line| line["message"] == "port opened").map(|line| (&line["port"], &line["string"])).collect();
    assert_eq!(opened[..2], [(&"left".into(), &"packet:left?ring=1m".into()), (&"right".into(), &"packet:right".into())], "{log:?}");
    assert!(log.iter().all(|line| !line["port"].as_str().is_some_and(|port| port.contains(':'))), "{log:?}");
}

#[test]
fn a_named_port_whose_string_the_file_changes_is_the_same_port() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    let write = |left: &str| {
        let right = "[[port]]\nname = \"right\"\nport = \"packet:right\"\n";
        std::fs::write(&file, format!("[[port]]\nname = \"left\"\nport = \"{left}\"\n{right}")).expect("writes");
    };
    write("packet:left");
    let bridge = house.bridge(&["--config", &file.display().to_string(), "--on-reload", "keep"]);
    assert!(house.reaches(), "{}", house.log());
    house.ask(&["limits", "left", "isolated", "on"]).expect("sets");
    house.ask(&["fdb", "add", "02:00:00:00:00:77", "dev", "left", "static"]).expect("adds");
    let stats = |port: &str| house.ask(&["stats", port]).expect("answers")[0].clone();
    let before = stats("left");
    write("packet:left?version=v3");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the end of the change", || house.log().contains("the file is in force"));
    let ports = house.ask(&["ports"]).expect("answers");
    assert_eq!((&ports[0]["port"], &ports[0]["string"]), (&"left".into(), &"packet:left?version=v3".into()));
    assert_eq!((&ports[0]["reopened"], &ports[1]["reopened"], &ports[0]["forwarding"]["isolated"]), (&1.into(), &0.into(), &true.into()));
    assert!(stats("left")["rx_packets"].as_u64() >= before["rx_packets"].as_u64(), "what it counted stays");
    assert!(house.text(&["fdb", "show", "static"]).1.contains("02:00:00:00:00:77 dev left"), "its entries stay");
    assert!(house.reaches(), "{}", house.log());
    // What cannot be opened so is open as before: a veth has one queue.
    write("xdp:left?queue=9");
    bridge.signal(rustix::process::Signal::HUP);
    house.wait_for("the error", || house.log().contains("left: it cannot be opened as xdp:left?queue=9: "));
    assert!(house.log().contains("; it is open as before, as packet:left?version=v3"), "{}", house.log());
    assert_eq!(house.ask(&["ports", "left"]).expect("answers")[0]["string"], "packet:left?version=v3");
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn options_and_settings_of_a_port_are_set_while_packets_flow() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&["left=packet:left", PORTS[1]]);
    let left = || house.ask(&["ports", "left"]).expect("answers")[0].clone();
    // TCP sends again what arrives while the port is closed.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                house.load();
            }
        });
        for ring in ["ring=1m", "ring=8m"] {
            let before = house.ask(&["stats", "left"]).expect("answers")[0]["rx_bytes"].as_u64();
            house.wait_for("packets", || house.ask(&["stats", "left"]).expect("answers")[0]["rx_bytes"].as_u64() > before);
            let set = house.ask(&["port", "set", "left", ring]).expect("it can be opened so");
            assert_eq!((&set["port"], &set["string"]), (&"left".into(), &format!("packet:left?{ring}").into()), "{set}");
        }
        done.store(true, Ordering::Relaxed);
        loads.join().expect("every byte arrives");
    });
    assert_eq!((&left()["reopened"], &house.ask(&["ports", PORTS[1]]).expect("answers")[0]["reopened"]), (&2.into(), &0.into()));
    assert!(house.ask(&["stats", "left"]).expect("answers")[0]["rx_bytes"].as_u64() > Some(4 << 20), "what it counted stays");
    assert_eq!(
        house.text(&["port", "set", "dev", "left", "isolated", "on", "learning", "off", "flood", "off"]),
        (Some(0), String::new(), String::new())
    );
    let forwarding = &left()["forwarding"];
    assert_eq!(
        [&forwarding["isolated"], &forwarding["learning"], &forwarding["flood"], &forwarding["mcast_flood"]],
        [true, false, false, true]
    );
    assert_eq!(left()["reopened"], 2, "the string is the same");
    let set = house.ask(&["port", "set", "left", "ring=", "rx_packet_rate", "100000", "flood", "on"]).expect("sets");
    assert_eq!(
        (&set["string"], &set["limits"]["rx_packet_rate"], &set["forwarding"]["flood"]),
        (&"packet:left".into(), &100_000.into(), &true.into())
    );
    // A port without a name is called as before.
    let set = house.ask(&["port", "set", PORTS[1], "ring=8m"]).expect("sets");
    assert_eq!((&set["port"], &set["string"]), (&PORTS[1].into(), &"packet:right?ring=8m".into()));
    assert!(house.reaches(), "{}", house.log());
    // What is refused changes nothing: neither of a mistake nor where the port cannot be opened so.
    house.middle.ip("tuntap add dev keep0 mode tap");
    house.ask(&["port", "add", "keep=tap:keep0"]).expect("opens");
    for (words, says) in [
        (&["left", "flood", "off", "ring=many"][..], "option \"ring=many\" takes a number of bytes"),
        (&["left", "flood", "off", "rign=8m"], "\"rign=8m\" is not known"),
        (&["left", "flood", "off", "queues="], "option \"queues\" is not there to be taken away"),
        (&["left", "flood", "off", "rx_byte_burst", "1T"], "left: rx_byte_burst is 0 (a tenth of a second's)"),
        (&["left", "hairpin", "on"], "\"hairpin\" is no setting of a port"),
        (&["packet:left", "flood", "off"], "there is no port \"packet:left\": there are left, packet:right, keep"),
        (&["keep", "isolated", "on", "queues=2"], "keep: it cannot be opened as tap:keep0?queues=2: "),
        (&["keep", "isolated", "on", "queues=2"], "; it is open as before, as tap:keep0"),
    ] {
        let (code, out, error) = house.text(&[&["port", "set"], words].concat());
        assert!(code == Some(2) && out.is_empty() && error.contains(says), "{words:?}: {error}");
    }
    assert_eq!((&left()["string"], &left()["forwarding"]["flood"], &left()["reopened"]), (&"packet:left".into(), &true.into(), &3.into()));
    let keep = house.ask(&["ports", "keep"]).expect("answers")[0].clone();
    assert_eq!(
        (&keep["string"], &keep["error"], &keep["forwarding"]["isolated"]),
        (&"tap:keep0".into(), &Value::Null, &false.into()),
        "{keep}"
    );
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn sighup_undoes_or_keeps_the_port_string_that_a_command_has_changed() {
    let Some(house) = House::new() else { return };
    let file = house.bench.path("bridge.toml");
    std::fs::write(&file, "[[port]]\nname = \"left\"\nport = \"packet:left\"\n[[port]]\nport = \"packet:right\"\n").expect("writes");
    for (word, says, string) in [
        ("undo", "left: the port string is packet:left now, as the file says; by command it was packet:left?ring=8m", "packet:left"),
        ("keep", "left: the port string stays packet:left?ring=8m, as set by command", "packet:left?ring=8m"),
    ] {
        let bridge = house.bridge(&["--config", &file.display().to_string(), "--on-reload", word]);
        house.ask(&["port", "set", "left", "ring=8m"]).expect("sets");
        bridge.signal(rustix::process::Signal::HUP);
        house.wait_for("the end of the change", || house.log().contains("the file is in force"));
        assert!(house.log().contains(says), "{}", house.log());
        assert_eq!(house.ask(&["ports", "left"]).expect("answers")[0]["string"], string);
        assert!(house.reaches(), "{}", house.log());
        bridge.signal(rustix::process::Signal::INT);
        assert_eq!(bridge.end().0, Some(0), "{}", house.log());
    }
}

/// What the shell is told that may come at the end of this line, and how long that took.
fn completed(house: &House, socket: &std::path::Path, line: &[&str]) -> (Vec<String>, Duration) {
    let started = Instant::now();
    let mut command = house.middle.command(env!("CARGO_BIN_EXE_superpacket"));
    command.args(["--", "superpacket", line[0], "--control"]).arg(socket).args(&line[1..]);
    command.env("_SUPERPACKET_COMPLETE", "bash").env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_INDEX", (line.len() + 2).to_string());
    let output = command.output().expect("runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{line:?}: {}", stderr(&output));
    let words = String::from_utf8_lossy(&output.stdout).lines().filter(|word| !word.starts_with('-')).map(str::to_owned).collect();
    (words, started.elapsed())
}

#[test]
fn ports_and_offloads_of_the_running_bridge_are_completed() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&["left=packet:left", "packet:right?ring=1m&slot=4k"]);
    let ports = ["left", "packet:right?ring=1m&slot=4k"];
    let words = |line: &[&str]| completed(&house, &house.socket(), line).0;
    for command in ["features", "stats", "ports", "limits", "rps"] {
        assert_eq!(words(&[command, ""]), ports, "{command}");
    }
    assert_eq!(words(&["features", "le"]), ["left"]);
    assert_eq!(words(&["features", "left", "generic-r"]), ["generic-receive-offload"]);
    assert_eq!(words(&["features", "left", ""]).len(), superpacket_features::Feature::ALL.len());
    assert_eq!(words(&["features", "left", "generic-receive-offload", ""]), ["on", "off"]);
    assert_eq!(words(&["port", "set", ""]), ports);
    assert_eq!(words(&["port", "del", "p"]), ports[1..]);
    assert_eq!(words(&["port", "add", ""]), [""; 0], "a new port is none of those that are there");
    assert_eq!(words(&["port", "set", "left", "iso"]), ["isolated"]);
    assert_eq!(words(&["port", "set", "left", "isolated", "on", "too_big", ""]), ["drop", "icmp", "fragment"]);
    assert_eq!(words(&["limits", "left", "storm_b"]), ["storm_broadcast"]);
    assert_eq!(words(&["limits", "left", "delivery", ""]), ["per-poll", "at-once"]);
    assert_eq!(words(&["fdb", "show", "dev", ""]), ports);
    assert_eq!(words(&["vlan", "add", "dev", "l"]), ["left"]);
    assert_eq!(words(&["vlan", "add", "dev", "left", "v"]), ["vid"]);
    // Without a bridge there is nothing, and one that does not answer is not waited for.
    assert_eq!(completed(&house, &house.bench.path("absent.sock"), &["features", ""]).0, [""; 0]);
    let silent = house.bench.path("silent.sock");
    let _listens = std::os::unix::net::UnixListener::bind(&silent).expect("binds");
    let (nothing, took) = completed(&house, &silent, &["features", "left", ""]);
    assert!(nothing.is_empty() && took < Duration::from_secs(4), "{nothing:?} {took:?}");
}

#[test]
fn bash_completes_port_strings_although_it_parts_them_at_their_signs() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&["left=packet:left", "packet:right?ring=1m&slot=4k"]);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_superpacket"));
    let path = format!("{}:{}", program.parent().expect("a directory").display(), std::env::var("PATH").expect("set"));
    let control = house.socket().display().to_string();
    let right = r"packet:right\?ring=1m\&slot=4k";
    // The words as bash parts them, and what it takes for the word at the cursor.
    for (parted, current, expected) in [
        (&["le"][..], "le", "left"),
        (&["pac"], "pac", right),
        (&["packet", ":"], "", &right[7..]),
        (&["packet", ":", "ri"], "ri", &right[7..]),
        (&["left", " gen"], "gen", "generic-receive-offload"),
        (&["'packet:r"], "packet:r", "packet:right?ring=1m&slot=4k"),
    ] {
        let line = format!("superpacket features --control {control} {}", parted.concat());
        let words: Vec<String> = parted.iter().map(|word| format!("\"{}\"", word.trim())).collect();
        let script = format!(
            "source <(superpacket completions bash) && COMP_LINE=\"{line}\" COMP_POINT=${{#COMP_LINE}} \
             && COMP_WORDS=(superpacket features --control {control} {}) && COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) \
             && COMP_WORDBREAKS=$' \\t\\n\"\\'@><=;|&(:' && _superpacket superpacket \"{current}\" '' && printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.join(" ")
        );
        let output = house.middle.command("bash").args(["--norc", "-c", &script]).env("PATH", &path).output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words: Vec<&str> = text.lines().filter(|word| !word.starts_with('-')).collect();
        assert_eq!(words, [expected], "{parted:?}: {}", stderr(&output));
    }
}

#[test]
fn every_thread_of_it_gives_up_what_it_does_not_need() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "only root can change its user");
        eprintln!("SKIPPED: only root can change its user");
        return;
    }
    let Some(house) = House::new() else { return };
    let bridge = house.bridge(&[PORTS[0], PORTS[1], "--user", "65534", "--metrics", "127.0.0.1:0", "--threads", "2"]);
    let tasks: Vec<_> =
        std::fs::read_dir(format!("/proc/{}/task", bridge.id())).expect("runs").map(|task| task.expect("lists").path()).collect();
    // The main thread, two that move packets, one for the ports, the control socket, the metrics.
    assert!(tasks.len() >= 6, "{tasks:?}");
    for task in tasks {
        let status = std::fs::read_to_string(task.join("status")).expect("runs");
        let has = |line: &str| assert!(status.lines().any(|known| known == line), "{line}\n{status}");
        has("Uid:\t65534\t65534\t65534\t65534");
        has("Groups:\t ");
        // CAP_NET_ADMIN and CAP_NET_RAW.
        ["CapPrm", "CapEff"].iter().for_each(|set| has(&format!("{set}:\t0000000000003000")));
        ["CapInh", "CapAmb"].iter().for_each(|set| has(&format!("{set}:\t0000000000000000")));
        has("NoNewPrivs:\t1");
    }
    assert!(house.reaches());
    // What is left is enough to open a port again.
    house.middle.ip("link del left");
    house.wait_for("the port to be missed", || house.ask(&["ports", PORTS[0]]).is_some_and(|ports| ports[0]["state"] == "gone"));
    house.middle.ip("link add left type veth peer name back");
    house.middle.ip("link set left up");
    house.middle.ip("link set back up");
    house.wait_for("the port to come back", || house.ask(&["ports", PORTS[0]]).is_some_and(|ports| ports[0]["state"] == "up"));
    bridge.signal(rustix::process::Signal::TERM);
    assert_eq!(bridge.end().0, Some(0), "{}", house.log());
}

#[test]
fn an_interface_has_one_bridge_unless_two_are_asked_for() {
    let Some(house) = House::new() else { return };
    house.middle.ip("addr add 10.9.0.9/24 dev left");
    let first = house.bridge(&[PORTS[0], PORTS[1]]);
    let says = "the interface has IP addresses: the machine itself answers there";
    let warned = house.log().lines().filter(|line| line.contains(says)).map(str::to_owned).collect::<Vec<_>>();
    assert!(matches!(&warned[..], [line] if line.contains("packet:left") && line.contains("10.9.0.9")), "{warned:?}");
    assert!(!house.log().contains("has one port"), "{}", house.log());
    let second = house.bench.path("second.sock").display().to_string();
    let mut command = house.middle.command(env!("CARGO_BIN_EXE_superpacket"));
    let output = command.args(["bridge", PORTS[0], "--control", &second]).output().expect("runs");
    let expected = format!("packet:left: another bridge (process {}) has the interface left", first.id());
    assert!(output.status.code() == Some(2) && stderr(&output).contains(&expected), "{output:?}");
    let (both, _) = house.other_bridge(&[PORTS[0], "--shared-interfaces"]);
    let log = || std::fs::read_to_string(house.bench.path("other.log")).expect("a log");
    house.wait_for("the warnings", || log().contains("two bridges have the same interface") && log().contains("the bridge has one port"));
    drop(both);
    // However the one ends, the next may have it.
    first.signal(rustix::process::Signal::KILL);
    first.end();
    let _next = house.bridge(&[PORTS[0], PORTS[1]]);
    assert!(house.reaches(), "{}", house.log());
}

#[test]
fn metrics_are_served_over_http() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&[PORTS[0], PORTS[1], "--metrics", "127.0.0.1:9600"]);
    assert!(house.reaches());
    // The port is in the bridge's namespace: bash speaks HTTP there.
    let script = "exec 3<>/dev/tcp/127.0.0.1/9600; printf 'GET /metrics HTTP/1.1\\r\\nHost: here\\r\\n\\r\\n' >&3; cat <&3";
    let output = house.middle.run("timeout", &["5", "bash", "-c", script]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text} {}", stderr(&output));
    let received = text.lines().find_map(|line| line.strip_prefix("superpacket_port_rx_packets_total{port=\"packet:left\"} "));
    assert!(received.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count > 0), "{text}");
    // The connection's first packet, and what LRO did: nothing.
    assert!(text.contains("superpacket_port_reasons_total{port=\"packet:left\",reason=\"tcp_flags\"} "), "{text}");
    assert!(text.contains("superpacket_port_lro_no_desc_total{port=\"packet:left\"} 0\n"), "{text}");
}

#[test]
fn what_cannot_start_says_why() {
    let Some(house) = House::new() else { return };
    let start = |arguments: &[&str]| {
        let mut command = house.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        let output = command.arg("bridge").args(arguments).arg("--control").arg(house.socket()).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!house.socket().exists() || arguments == PORTS, "{arguments:?}");
        stderr(&output)
    };
    assert!(start(&["packet:absent"]).contains("packet:absent: there is no such interface"));
    assert!(start(&["packet:left", "packet:left"]).contains("twice"));
    assert!(start(&["packet:left", "--user", "no-such-user"]).contains("there is no such user"));
    assert!(start(&["packet:left", "--log", "inof"]).contains("--log inof: \"inof\" is no level"));
    // Each message names the port once.
    for (port, says) in [
        ("left", "it starts with no kind of port"),
        ("packet:left?queues=1&ring=v3", "option \"ring=v3\" takes a number of bytes"),
        ("packet:absent", "there is no such interface"),
        ("pcap:/absent.pcap", "cannot be opened"),
    ] {
        let error = start(&[port]);
        assert!(error.contains(says) && error.matches(port.trim_start_matches("pcap:")).count() == 1, "{error}");
    }
    let _bridge = house.bridge(&PORTS);
    assert!(start(&PORTS).contains("another bridge is controlled there"));
    house.ask(&["ports"]).expect("the first one is unharmed");
}

#[test]
fn a_pipe_over_which_nothing_comes_holds_nobody_up() {
    let Some(house) = House::new() else { return };
    let capture = house.bench.capture("pipe.pcap", &spaced(&[Frame::tcp4(1, 100)]));
    let whole = std::fs::read(capture).expect("it is there");
    // Nothing at all, or a packet and half of what comes before the next.
    for bytes in [&[][..], &[&whole[..], &[0; 8]].concat()] {
        let mut command = house.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.args(["bridge", "pcap:-", PORTS[0], PORTS[1], "--control"]).arg(house.socket());
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            command.args(["--user", "65534"]);
        }
        let log = std::fs::File::create(house.bench.path("log")).expect("creates");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().expect("runs");
        let mut pipe = child.stdin.take().expect("piped");
        let bridge = Running { child: Some(child) };
        pipe.write_all(bytes).expect("is read");
        house.wait_for("the bridge", || house.ask(&["ports"]).is_some());
        let received = u64::from(!bytes.is_empty());
        house.wait_for("the packet", || house.ask(&["stats", "pcap:-"]).expect("answers")[0]["rx_packets"] == received);
        assert!(house.reaches(), "{}", house.log());
        // The thread that reads the pipe has no more privileges than the others.
        for task in std::fs::read_dir(format!("/proc/{}/task", bridge.id())).expect("runs").filter(|_| is_root) {
            let status = std::fs::read_to_string(task.expect("lists").path().join("status")).expect("runs");
            assert!(status.contains("\nUid:\t65534\t65534\t65534\t65534\n"), "{status}");
        }
        let started = Instant::now();
        bridge.signal(rustix::process::Signal::TERM);
        assert_eq!(bridge.end().0, Some(0), "{}", house.log());
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        drop(pipe);
    }
}

#[test]
fn a_killed_bridge_leaves_a_socket_that_the_next_one_replaces() {
    let Some(house) = House::new() else { return };
    let bridge = house.bridge(&PORTS);
    bridge.signal(rustix::process::Signal::KILL);
    assert_eq!(bridge.end().0, None);
    assert!(house.socket().exists());
    let (code, _, error) = house.text(&["ports"]);
    assert!(code == Some(2) && error.contains("nobody listens there any more"), "{error}");
    let _bridge = house.bridge(&PORTS);
    assert!(house.reaches());
}

#[test]
fn who_is_silent_on_the_control_socket_holds_nobody_up() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&PORTS);
    let mut silent = std::os::unix::net::UnixStream::connect(house.socket()).expect("connects");
    silent.write_all(b"{\"request\":").expect("is read");
    let mut other = std::os::unix::net::UnixStream::connect(house.socket()).expect("connects");
    other.write_all(b"{\"request\":\"version\"}\nnonsense\n").expect("is read");
    other.shutdown(std::net::Shutdown::Write).expect("ends");
    let mut text = String::new();
    other.read_to_string(&mut text).expect("answers");
    assert!(text.contains("\"protocol\":1") && text.contains("malformed"), "{text}");
    assert!(house.reaches());
}

#[test]
fn a_killed_bridge_leaves_no_device_and_no_xdp_program() {
    let Some(house) = House::new() else { return };
    // Loading a program takes capabilities of the machine's first user namespace.
    let root = rustix::process::geteuid().is_root();
    let running = house.bridge(if root { &["tap:made", "xdp:left"] } else { &["tap:made", "packet:left"] });
    let links = || String::from_utf8_lossy(&house.middle.run("ip", &["-d", "link", "show"]).stdout).into_owned();
    let before = links();
    assert!(before.contains("made:") && before.contains("prog/xdp") == root, "{before}");
    running.signal(rustix::process::Signal::KILL);
    assert_eq!(running.end().0, None, "killed");
    house.wait_for("the kernel cleans up", || !links().contains("made:") && !links().contains("prog/xdp"));
}

/// CPU time of a process so far, in clock ticks (proc_pid_stat(5), fields 14 and 15).
fn ticks(id: u32) -> u64 {
    ticks_of(&std::fs::read_to_string(format!("/proc/{id}/stat")).expect("lives"))
}

/// The same of what a `stat` file says.
fn ticks_of(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    fields.split_ascii_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
fn an_idle_bridge_costs_nothing() {
    let Some(house) = House::new() else { return };
    let running = house.bridge(&PORTS);
    assert!(house.reaches(), "{}", house.log());
    std::thread::sleep(Duration::from_millis(300));
    let before = ticks(running.id());
    std::thread::sleep(Duration::from_secs(2));
    let used = ticks(running.id()) - before;
    assert!(used * 50 <= 2 * rustix::param::clock_ticks_per_second(), "{used} ticks in two seconds without traffic");
}
