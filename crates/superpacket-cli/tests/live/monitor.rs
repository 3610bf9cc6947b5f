//! `superpacket monitor`: traffic between hosts through a bridge, copied to files and pipes.

use rustix::process::Signal;
use superpacket_captures::file::{Direction, Reader, Source};

use super::*;

impl TestNetwork {
    /// Starts `superpacket monitor`, and waits until the copying has begun.
    fn monitor(&self, arguments: &[&str]) -> Running {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.arg("monitor").args(arguments).arg("--control").arg(self.socket());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        Running { child: Some(child) }
    }

    /// Starts a monitor that writes to a file of this name.
    pub(super) fn monitor_to(&self, file: &str, arguments: &[&str]) -> Running {
        let path = self.bench.path(file);
        let monitor = self.monitor(&[arguments, &["-w", &path.display().to_string()]].concat());
        // Once the first block is written, all later packets are copied.
        self.wait_for("the monitor", || std::fs::metadata(&path).is_ok_and(|file| file.len() != 0));
        monitor
    }

    /// Keeps the hosts from sending packets on their own.
    fn hush(&self) {
        for namespace in [&self.left, &self.right, &self.middle] {
            let output = namespace.run("sysctl", &["-qw", "net.ipv6.conf.all.disable_ipv6=1"]);
            assert!(output.status.success(), "{}", stderr(&output));
        }
    }
}

impl Running {
    /// Waits until the monitor ends, and returns its output.
    fn output(mut self) -> Output {
        self.child.take().expect("runs").wait_with_output().expect("waits")
    }

    /// Ends the monitor like Ctrl-C, which must succeed, and returns its output.
    pub(super) fn interrupt(self) -> (String, String) {
        self.signal(Signal::INT);
        let output = self.output();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (String::from_utf8(output.stdout.clone()).expect("UTF-8"), stderr(&output))
    }
}

/// Monitors a stream: the packets received by the first port in `received.pcapng`, and those sent
/// by the second in `sent.pcapng`. Returns how the bridge's counters changed, or `None` if the
/// files are incomplete; missing packets must then be counted as dropped.
fn whole_stream(network: &TestNetwork) -> Option<Value> {
    for file in ["received.pcapng", "sent.pcapng"] {
        // A file from an earlier stream may exist.
        let _ = std::fs::remove_file(network.bench.path(file));
    }
    let received =
        network.monitor_to("received.pcapng", &[PORTS[0], "--direction", "rx", "--json"]);
    let sent = network.monitor_to("sent.pcapng", &[PORTS[1], "--direction", "tx", "--json"]);
    let before = network.ask(&["stats"]);
    network.load();
    // Wait for the last packets of the connection.
    std::thread::sleep(Duration::from_millis(300));
    let stats = network.ask(&["stats"]);
    let mut is_whole = true;
    for (monitor, port, counter) in [(received, 0, "rx_packets"), (sent, 1, "tx_packets")] {
        let (totals, said) = monitor.interrupt();
        let totals: Value = serde_json::from_str(&totals).expect("JSON and nothing else");
        let number = |value: &Value| value.as_u64().expect("a number");
        let (packets, dropped) = (number(&totals["packets"]), number(&totals["dropped"]));
        assert_eq!(totals, json!({"packets": packets, "dropped": dropped}), "{said}");
        assert_eq!(
            packets + dropped,
            number(&stats[port][counter]) - number(&before[port][counter]),
            "{said}"
        );
        // The output has commas between thousands.
        let words = format!(
            "{packets} packets written {dropped} dropped because they were not read in time"
        );
        assert!(
            said.contains("Ctrl-C ends it") && said.replace(',', "").contains(&words),
            "{said}"
        );
        is_whole &= dropped == 0;
    }
    is_whole.then_some(stats)
}

/// The packets received and sent are judged like another implementation's, with the headers of the
/// super-packets.
#[test]
fn a_monitored_stream_passes_the_check_of_received_and_sent_packets() {
    let Some(network) = TestNetwork::new() else { return };
    network.hush();
    // The bridge's user has no write access to the directory of the files.
    let nobody = if rustix::process::geteuid().is_root() { &["--user", "65534"][..] } else { &[] };
    // Super-packets from the sender's kernel are segmented at the right port, according to their
    // headers.
    let _bridge =
        network.bridge(&[&PORTS[..], &["--feature", "packet:right:tso=off"], nobody].concat());
    // On a busy machine a monitor may lack CPU time and report drops; then another stream is
    // monitored.
    let attempts = 10;
    let stats = (0..attempts)
        .find_map(|_| whole_stream(&network))
        .unwrap_or_else(|| panic!("{attempts} times copies were dropped"));
    assert!(
        stats[0]["rx_super_packets"].as_u64() > Some(10)
            && stats[1]["segments"].as_u64() > Some(1000),
        "{stats}"
    );
    let output = network.bench.run("check sent.pcapng --origin received.pcapng --json");
    let judged = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{judged} {}", stderr(&output));
    let judged: Value = serde_json::from_str(&judged).expect("JSON");
    assert_json(&judged["not_judged"], json!({ "sizes": 0, "origin_headers": 0 }));
}

#[test]
fn a_pipe_gives_the_capture_to_tshark() {
    let Some(network) = TestNetwork::new() else { return };
    if !has_tshark() {
        return;
    }
    network.hush();
    let _bridge = network.bridge(&PORTS);
    let counted = network.monitor_to("counted.pcapng", &["-c", "3"]);
    let mut monitor = network.monitor(&[]);
    let mut copied = monitor.child.as_mut().expect("runs").stdout.take().expect("piped");
    // The section header block shows that the monitor has begun.
    let mut begun = [0; 28];
    copied.read_exact(&mut begun).expect("a header");
    assert!(network.reaches());
    monitor.signal(Signal::INT);
    let fields =
        ["frame.time_epoch", "frame.interface_name", "frame.packet_flags_direction", "eth.type"];
    let mut tshark = Command::new("tshark");
    tshark
        .args(["-r", "-", "-n", "-T", "fields"])
        .args(fields.iter().flat_map(|field| ["-e", field]));
    let mut tshark = tshark
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut input = tshark.stdin.take().expect("piped");
    input.write_all(&begun).expect("is read");
    std::io::copy(&mut copied, &mut input).expect("is read");
    drop(input);
    let output = tshark.wait_with_output().expect("ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Two threads copy packets, so one that was interrupted may be late.
    let mut rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    rows.sort();
    let number =
        |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal");
    let ways: Vec<(&str, u32, u32)> =
        rows.iter().map(|row| (row[1], number(row[2]), number(row[3]))).collect();
    // Address resolution, then TCP: a request and its answer, each received by one port and sent by
    // the other.
    let expected =
        |kind| [(PORTS[0], 1, kind), (PORTS[1], 2, kind), (PORTS[1], 1, kind), (PORTS[0], 2, kind)];
    let of_kind =
        |kind| ways.iter().copied().filter(|way| way.2 == kind).take(4).collect::<Vec<_>>();
    assert!(
        of_kind(0x0806) == expected(0x0806) && of_kind(0x0800) == expected(0x0800),
        "{text} {}",
        stderr(&output)
    );
    let output = monitor.output();
    assert!(
        output.status.success() && stderr(&output).contains(" packets written, 0 dropped"),
        "{output:?}"
    );
    let output = counted.output();
    assert!(
        output.status.success() && stderr(&output).contains("3 packets written, 0 dropped"),
        "{output:?}"
    );
}

#[test]
fn a_monitor_ends_with_its_port_its_bridge_and_its_reader() {
    let Some(network) = TestNetwork::new() else { return };
    network.hush();
    let bridge = network.bridge(&PORTS);
    let with_port = network.monitor_to("port.pcapng", &[PORTS[1]]);
    let with_bridge = network.monitor_to("bridge.pcapng", &[]);
    let mut with_reader = network.monitor(&[]);
    let mut reader = with_reader.child.as_mut().expect("runs").stdout.take().expect("piped");
    reader.read_exact(&mut [0; 28]).expect("a header");
    assert!(network.reaches());
    // No packet follows, so the monitor must notice the closed pipe by other means.
    drop(reader);
    assert_eq!(with_reader.output().status.code(), Some(0));
    network.ask(&["port", "del", PORTS[1]]);
    let output = with_port.output();
    assert!(output.status.success() && !stderr(&output).contains("warning"), "{output:?}");
    network.stop(bridge);
    let output = with_bridge.output();
    assert!(output.status.success() && !stderr(&output).contains("warning"), "{output:?}");
    for (file, ports) in [("port.pcapng", &PORTS[1..]), ("bridge.pcapng", &PORTS[..])] {
        let mut reader = Reader::open(network.bench.path(file)).expect("a capture");
        let mut ways = std::collections::BTreeSet::new();
        while let Some(frame) = reader.next_frame().expect("reads") {
            ways.insert((
                frame.interface().name().expect("has one").into_owned(),
                frame.options.direction() == Some(Direction::Outbound),
            ));
        }
        assert_eq!(reader.truncated(), None);
        let expected =
            ports.iter().flat_map(|port| [((*port).to_owned(), false), ((*port).to_owned(), true)]);
        assert_eq!(ways, expected.collect(), "{file}");
    }
}

#[test]
fn refused_monitors_and_outputs_are_reported() {
    let Some(network) = TestNetwork::new() else { return };
    let _bridge = network.bridge(&PORTS);
    let kept = network.bench.path("kept.pcapng");
    std::fs::write(&kept, "precious").expect("writes");
    let kept = kept.display().to_string();
    for (arguments, says) in [
        (
            &["packet:up", "-w", &kept][..],
            "there is no port \"packet:up\": there are packet:left, packet:right",
        ),
        (
            &["-w", "/nowhere/at/all.pcapng"],
            "/nowhere/at/all.pcapng: cannot be written: No such file or directory",
        ),
        (
            &["-w", "x.pcapng.gz"],
            "x.pcapng.gz: it is written uncompressed: pipe it, as in `superpacket monitor | gzip`",
        ),
        (&["--json"], "the capture goes to standard output: give -w FILE"),
        (&["--direction", "up"], "rx, tx or both"),
        (&["-c", "0"], "0 is not in 1.."),
        (&["--snaplen", "262145"], "262145 is not in 1..=262144"),
    ] {
        network.refuses(&[&["monitor"], arguments].concat(), says);
    }
    assert_eq!(std::fs::read(&kept).expect("is there"), b"precious");
    // A refused monitor is not left running.
    network.wait_for("the end of the others", || {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", _bridge.id())).expect("runs").flatten();
        tasks
            .filter(|task| {
                std::fs::read_to_string(task.path().join("comm"))
                    .is_ok_and(|name| name == "superpacket-mon\n")
            })
            .count()
            == 0
    });
}
