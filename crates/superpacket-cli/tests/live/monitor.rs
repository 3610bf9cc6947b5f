//! `superpacket monitor`: what hosts say to each other through a bridge, copied to files and pipes.

use std::process::{Command, Output};

use rustix::process::Signal;
use superpacket_captures::file::{Direction, Reader, Source};

use super::*;

impl House {
    /// Starts `superpacket monitor`, and waits until it copies to a file; without one, until it has
    /// written something.
    fn monitor(&self, arguments: &[&str]) -> Running {
        let mut command = self.middle.command(env!("CARGO_BIN_EXE_superpacket"));
        command.arg("monitor").args(arguments).arg("--control").arg(self.socket());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
        Running { child: Some(child) }
    }

    /// The same to a file of this name.
    pub(super) fn monitor_to(&self, file: &str, arguments: &[&str]) -> Running {
        let path = self.bench.path(file);
        let monitor = self.monitor(&[arguments, &["-w", &path.display().to_string()]].concat());
        // What comes after its first block is copied.
        self.wait_for("the monitor", || std::fs::metadata(&path).is_ok_and(|file| file.len() != 0));
        monitor
    }

    /// Keeps the hosts from talking of themselves.
    fn hush(&self) {
        for namespace in [&self.left, &self.right, &self.middle] {
            let output = namespace.run("sysctl", &["-qw", "net.ipv6.conf.all.disable_ipv6=1"]);
            assert!(output.status.success(), "{}", stderr(&output));
        }
    }
}

impl Running {
    /// Waits for its end.
    fn output(mut self) -> Output {
        self.child.take().expect("runs").wait_with_output().expect("waits")
    }

    /// Ends it as Ctrl-C does, which must go well; what it said.
    pub(super) fn interrupt(self) -> (String, String) {
        self.signal(Signal::INT);
        let output = self.output();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (String::from_utf8(output.stdout.clone()).expect("UTF-8"), stderr(&output))
    }
}

/// Monitors a stream: what the first port received, in `received.pcapng`, and what left by the
/// second, in `sent.pcapng`. Returns the bridge's counters since it began, if the files have all
/// packets, else `None`; what is not in them was counted as dropped.
fn whole_stream(house: &House) -> Option<Value> {
    for file in ["received.pcapng", "sent.pcapng"] {
        // One of an earlier stream.
        let _ = std::fs::remove_file(house.bench.path(file));
    }
    let received = house.monitor_to("received.pcapng", &[PORTS[0], "--direction", "rx", "--json"]);
    let sent = house.monitor_to("sent.pcapng", &[PORTS[1], "--direction", "tx", "--json"]);
    let before = house.ask(&["stats"]).expect("answers");
    house.load();
    // The last words of the connection.
    std::thread::sleep(Duration::from_millis(300));
    let stats = house.ask(&["stats"]).expect("answers");
    let mut is_whole = true;
    for (monitor, port, counter) in [(received, 0, "rx_packets"), (sent, 1, "tx_packets")] {
        let (totals, said) = monitor.interrupt();
        let totals: Value = serde_json::from_str(&totals).expect("JSON and nothing else");
        let number = |value: &Value| value.as_u64().expect("a number");
        let (packets, dropped) = (number(&totals["packets"]), number(&totals["dropped"]));
        assert_eq!(totals, serde_json::json!({"packets": packets, "dropped": dropped}), "{said}");
        assert_eq!(
            packets + dropped,
            number(&stats[port][counter]) - number(&before[port][counter]),
            "{said}"
        );
        // Thousands are set apart there.
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

/// What a port received and what left by the other, judged as another implementation's would be:
/// the headers of super-packets are read there.
#[test]
fn what_a_bridge_does_to_a_stream_is_judged_by_what_was_monitored() {
    let Some(house) = House::new() else { return };
    house.hush();
    // The bridge may not write where the files are.
    let nobody = if rustix::process::geteuid().is_root() { &["--user", "65534"][..] } else { &[] };
    // What the sender's kernel makes of its stream is cut at the right port, as its header says.
    let _bridge =
        house.bridge(&[&PORTS[..], &["--feature", "packet:right:tso=off"], nobody].concat());
    // On a busy machine a monitor may not be given the CPU in time: it says so, and another stream
    // is looked at.
    let attempts = 10;
    let stats = (0..attempts)
        .find_map(|_| whole_stream(&house))
        .unwrap_or_else(|| panic!("{attempts} times copies were dropped"));
    assert!(
        stats[0]["rx_super_packets"].as_u64() > Some(10)
            && stats[1]["segments"].as_u64() > Some(1000),
        "{stats}"
    );
    let output =
        house.bench.run(&["check", "sent.pcapng", "--origin", "received.pcapng", "--json"]);
    let judged = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{judged} {}", stderr(&output));
    let judged: Value = serde_json::from_str(&judged).expect("JSON");
    assert_eq!(
        (&judged["not_judged"]["sizes"], &judged["not_judged"]["origin_headers"]),
        (&0.into(), &0.into()),
        "{judged}"
    );
}

#[test]
fn a_pipe_gives_the_capture_to_tshark() {
    let Some(house) = House::new() else { return };
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "tshark is needed");
        eprintln!("SKIPPED: tshark is needed");
        return;
    }
    house.hush();
    let _bridge = house.bridge(&PORTS);
    let counted = house.monitor_to("counted.pcapng", &["-c", "3"]);
    let mut monitor = house.monitor(&[]);
    let mut copied = monitor.child.as_mut().expect("runs").stdout.take().expect("piped");
    // The section's header: it has begun.
    let mut begun = [0; 28];
    copied.read_exact(&mut begun).expect("a header");
    assert!(house.reaches());
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
    // Two threads copy: one that was interrupted may come late.
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
    let Some(house) = House::new() else { return };
    house.hush();
    let bridge = house.bridge(&PORTS);
    let with_port = house.monitor_to("port.pcapng", &[PORTS[1]]);
    let with_bridge = house.monitor_to("bridge.pcapng", &[]);
    let mut with_reader = house.monitor(&[]);
    let mut reader = with_reader.child.as_mut().expect("runs").stdout.take().expect("piped");
    reader.read_exact(&mut [0; 28]).expect("a header");
    assert!(house.reaches());
    // No packet comes after this, by which it would find out.
    drop(reader);
    assert_eq!(with_reader.output().status.code(), Some(0));
    house.ask(&["port", "del", PORTS[1]]).expect("is there");
    let output = with_port.output();
    assert!(output.status.success() && !stderr(&output).contains("warning"), "{output:?}");
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.end().0, Some(0), "{}", house.log());
    let output = with_bridge.output();
    assert!(output.status.success() && !stderr(&output).contains("warning"), "{output:?}");
    for (file, ports) in [("port.pcapng", &PORTS[1..]), ("bridge.pcapng", &PORTS[..])] {
        let mut reader = Reader::open(house.bench.path(file)).expect("a capture");
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
fn what_cannot_be_monitored_or_written_is_said() {
    let Some(house) = House::new() else { return };
    let _bridge = house.bridge(&PORTS);
    let kept = house.bench.path("kept.pcapng");
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
        (&["--json"], "standard output has the capture: give -w FILE"),
        (&["--direction", "up"], "rx, tx or both"),
        (&["-c", "0"], "0 is not in 1.."),
        (&["--snaplen", "262145"], "262145 is not in 1..=262144"),
    ] {
        let (code, out, error) = house.text(&[&["monitor"], arguments].concat());
        assert!(
            code == Some(2) && out.is_empty() && error.contains(says),
            "{arguments:?}: {error}"
        );
    }
    assert_eq!(std::fs::read(&kept).expect("is there"), b"precious");
    // What was refused is not left running.
    house.wait_for("the end of the others", || {
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
