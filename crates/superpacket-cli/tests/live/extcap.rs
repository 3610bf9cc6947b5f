//! `superpacket extcap` in tshark.

use super::*;
use crate::support::CapturedFrame;

/// The longest frame of a link with the usual MTU.
const LONGEST: usize = 1514;

/// Returns a command that runs in a namespace as a user whose extcap folders are in `bench`.
fn user_command(bench: &Bench, namespace: &Namespace, program: &str) -> Command {
    let mut command = namespace.command(program);
    command
        .env("HOME", bench.path("home"))
        .env("XDG_CONFIG_HOME", bench.path("home/configuration"))
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("WIRESHARK_EXTCAP_DIR");
    command
}

/// Installs the script, and returns the interfaces that tshark lists.
fn install(bench: &Bench, namespace: &Namespace, options: &[&str]) -> String {
    let mut command = user_command(bench, namespace, env!("CARGO_BIN_EXE_superpacket"));
    let output = command.args(["extcap", "--install"]).args(options).output().expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let output = user_command(bench, namespace, "tshark").arg("-D").output().expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Captures with tshark while `load` is called again and again, and returns the frames.
fn capture(
    bench: &Bench,
    namespace: &Namespace,
    arguments: &[&str],
    mut load: impl FnMut(),
) -> Vec<CapturedFrame> {
    let mut command = user_command(bench, namespace, "tshark");
    command.args(["-Q", "-w"]).arg(bench.path("out.pcapng")).args(arguments);
    let log = std::fs::File::create(bench.path("tshark.log")).expect("creates");
    let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("runs");
    let mut running = Running { child: Some(child) };
    let started = Instant::now();
    let log = || std::fs::read_to_string(bench.path("tshark.log")).unwrap_or_default();
    while running.is_running() {
        assert!(started.elapsed() < Duration::from_secs(60), "{}", log());
        load();
    }
    assert_eq!(running.end().0, Some(0), "{}", log());
    assert!(!log().contains("Error by extcap pipe"), "{}", log());
    bench.read("out.pcapng")
}

#[test]
fn tshark_captures_the_merged_packets_of_a_device() {
    if !has_tshark() {
        return;
    }
    let Some(middle) = Namespace::new() else { return };
    let Some(left) = middle.host("veth", "10.9.0.1/24") else { return };
    middle.ip("addr add 10.9.0.2/24 dev veth");
    // TSO in effect off, and no GRO: all packets on the link are single ones.
    left.ip("link set eth0 gso_max_segs 1");
    let bench = Bench::new();
    let listed = install(&bench, &middle, &[]);
    assert!(listed.lines().any(|line| line.contains(" superpacket (Merged packets")), "{listed}");
    let [client, server] = [&left, &middle].map(|host| host.id().to_string());
    let load = || {
        let mut command = middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.args(["load", "stream", "10.9.0.2", "--client", &client, "--server", &server]);
        assert!(command.args(["--bytes", "4M"]).output().expect("runs").status.success());
    };
    let single = capture(&bench, &middle, &["-i", "veth", "-c", "1000"], load);
    assert!(single.iter().all(|frame| frame.data.len() <= LONGEST));
    let device = "extcap.superpacket.device:veth";
    let arguments = ["-i", "superpacket", "-o", device, "-f", "tcp", "-c", "1000"];
    let merged = capture(&bench, &middle, &arguments, load);
    assert_eq!(merged.len(), 1000);
    // How many there are depends on how often the receiver acknowledges.
    assert!(merged.iter().any(|frame| frame.data.len() > 4 * LONGEST));
    merged.iter().for_each(|frame| crate::support::assert_right(&frame.data));
}

#[test]
fn tshark_captures_from_the_port_of_a_bridge() {
    if !has_tshark() {
        return;
    }
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&["in=packet:left", "packet:right"]);
    let socket = network.socket().display().to_string();
    let listed = install(&network.bench, &network.middle, &["--control", &socket]);
    for port in ["superpacket:in (Port in of the bridge", "superpacket:packet:right (Port packet:"]
    {
        assert!(listed.contains(port), "{listed}");
    }
    let arguments = ["-i", "superpacket:in", "-c", "20"];
    let frames = capture(&network.bench, &network.middle, &arguments, || {
        network.load();
    });
    assert_eq!(frames.len(), 20);
    let mut command = user_command(&network.bench, &network.middle, "capinfos");
    let output = command.arg("-I").arg(network.bench.path("out.pcapng")).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("in") && text.contains("Ethernet"), "{text}");
}
