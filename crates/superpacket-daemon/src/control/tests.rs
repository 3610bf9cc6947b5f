//! Tests of the control socket with its server and its client: requests are answered, and a client
//! that misbehaves does not harm others.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::fdb::{FdbFilter, FdbPage, Station};
use superpacket_bridge::report::{MdbEntry, MdbReport, MdbRouter};
use superpacket_bridge::settings::{
    BridgeSettings, InPlace, PortChange, PortSettings, SettingValue, UsableCpus, possible_cpus,
};
use superpacket_bridge::vlan::{VlanProtocol, VlanReport};

use super::answer::{keep_port, perform};
use super::server::BOUNDS;
use super::*;
use crate::serve::{Bounds, ServerCounts};

/// A served control socket in a temporary directory, of a bridge with the ports `a` and `b`.
struct Bench {
    path: PathBuf,
    server: ControlServer,
    counts: Arc<ServerCounts>,
    bridge: Arc<Bridge>,
    locks: Arc<Locks>,
    _directory: tempfile::TempDir,
}

/// Locks that the server takes before it performs requests. A test holds one to make requests slow,
/// and poisons it to make them panic.
#[derive(Default)]
struct Locks {
    /// Taken for `set-port` with options.
    opening: Mutex<()>,
    /// Taken for `stats`.
    stats: Mutex<()>,
}

impl Bench {
    fn new() -> Self {
        Bench::within(BOUNDS)
    }

    fn within(bounds: Bounds) -> Self {
        Bench::start(bounds, BridgeSettings::default())
    }

    fn start(bounds: Bounds, settings: BridgeSettings) -> Self {
        static BENCHES: AtomicU32 = AtomicU32::new(0);
        let number = BENCHES.fetch_add(1, Ordering::Relaxed);
        let ports = ["a", "b"].map(|name| {
            let port = format!("{name}=memory:bench-{number}-{name}");
            PortSettings::new(port.parse().expect("a port string"))
        });
        let settings = BridgeSettings { ports: ports.into(), threads: 1, ..settings };
        let bridge = Arc::new(Bridge::start(settings).expect("memory needs nothing"));
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control.sock");
        let socket = ControlSocket::bind(&path).expect("binds");
        let (counts, locks) = (Arc::<ServerCounts>::default(), Arc::<Locks>::default());
        let (performing, before) = (bridge.clone(), locks.clone());
        let server = ControlServer::start_within(socket, bounds, counts.clone(), move |request| {
            match &request {
                Request::SetPort { options, .. } if !options.is_empty() => {
                    drop(before.opening.lock().expect("no panic"));
                }
                Request::Stats { .. } => drop(before.stats.lock().expect("no panic")),
                _ => {}
            }
            perform(request, &performing)
        });
        Bench {
            path,
            server: server.expect("starts"),
            counts,
            bridge,
            locks,
            _directory: directory,
        }
    }

    /// Connects without the client, to send arbitrary bytes.
    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.path).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("bounded");
        stream
    }

    /// Returns a counter of the server.
    fn count(&self, counter: fn(&ServerCounts) -> &AtomicU64) -> u64 {
        counter(&self.counts).load(Ordering::Relaxed)
    }

    fn client(&self) -> Client {
        Client::connect(&self.path).expect("connects")
    }
}

/// Reads until the server closes or resets the connection.
fn rest(mut stream: UnixStream) -> String {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn reports_and_offloads_are_answered() {
    let bench = Bench::new();
    let mut client = bench.client();
    let served = client.version().expect("answers");
    assert_eq!((served.protocol, served.pid), (PROTOCOL, std::process::id()));
    assert_eq!(client.ports(None).expect("answers"), bench.bridge.ports());
    let stats = client.stats(Some("b")).expect("answers");
    assert_eq!(stats.iter().map(|stats| stats.port.as_str()).collect::<Vec<_>>(), ["b"]);
    let features = client.set_feature("a", "gro", false, false).expect("answers");
    let gro = features
        .features
        .iter()
        .find(|report| report.feature == "generic-receive-offload")
        .expect("is there");
    assert!(!gro.requested && !gro.active);
    assert_eq!(client.features(Some("a")).expect("answers"), [features]);
    assert_eq!(bench.count(|counts| &counts.answered), 5);
}

#[test]
fn port_settings_are_changed() {
    let bench = Bench::new();
    let mut client = bench.client();
    for (name, value) in [
        ("gro_flush_timeout", SettingValue::Number(50_000)),
        ("too_big", "icmp".into()),
        ("lro_max_aggr", 43.into()),
        ("storage", "linear".into()),
        ("isolated", true.into()),
        ("in_place_below", 9.into()),
    ] {
        let change = PortChange::setting(name, value.clone());
        let changed = client.set_port("b", &change).expect("answers");
        assert_eq!(changed.settings[name], value);
        assert_eq!((&changed.settings["delivery"]), &"per-poll".into());
    }
    let change = PortChange {
        options: [("queues".into(), Some("2".into()))].into(),
        settings: [
            ("isolated".into(), SettingValue::Switch(false)),
            ("storm_unknown".into(), SettingValue::Number(9)),
        ]
        .into(),
    };
    let changed = client.set_port("b", &change).expect("answers");
    assert_eq!(changed.port, "b", "the name stays");
    assert!(changed.string.ends_with("-b?queues=2"), "{}", changed.string);
    let settings = &changed.settings;
    assert_eq!((&settings["isolated"], &settings["storm_unknown"]), (&false.into(), &9.into()));
    assert_eq!(bench.count(|counts| &counts.answered), 7);
}

#[test]
fn the_address_table_is_listed_and_changed() {
    let bench = Bench::new();
    let mut client = bench.client();
    let station = |last: u8, vlan| Station { vlan, address: [2, 0, 0, 0, 0, last] };
    let added = [(1, 0), (2, 0), (1, 10)]
        .map(|(last, vlan)| client.add_static_entry("b", station(last, vlan)).expect("answers"));
    assert_eq!((added[2].mac.as_str(), added[2].vlan), ("02:00:00:00:00:01", Some(10)));
    let all = FdbFilter::default();
    let first = client.fdb(&all, None, 2).expect("answers");
    assert_eq!(first, FdbPage { entries: added[..2].to_vec(), more: 1 });
    let rest = client.fdb(&all, first.entries.last(), 2).expect("answers");
    assert_eq!(rest, FdbPage { entries: added[2..].to_vec(), more: 0 });
    assert_eq!(client.delete_entry("b", station(1, 10)).expect("answers"), added[2]);
    assert_eq!(
        client.fdb(&FdbFilter { port: Some("a".into()), ..all.clone() }, None, 9).expect("answers"),
        FdbPage::default()
    );
    assert_eq!(client.flush_fdb(&all).expect("answers"), 0, "static entries stay");
    assert_eq!(bench.count(|counts| &counts.answered), 8);
}

#[test]
fn vlans_are_changed_and_groups_are_listed() {
    let settings = BridgeSettings {
        vlan_filtering: true,
        vlan_protocol: VlanProtocol::Dot1Ad,
        multicast_snooping: true,
        ..BridgeSettings::default()
    };
    let bench = Bench::start(BOUNDS, settings);
    let mut client = bench.client();
    let added = client.add_vlans("b", &"10-20 untagged".parse().expect("reads")).expect("answers");
    let json = serde_json::json!([
        {"vlan": 1, "flags": ["PVID", "Egress Untagged"]},
        {"vlan": 10, "vlanEnd": 20, "flags": ["Egress Untagged"]},
    ]);
    assert_eq!(serde_json::to_value(&added.vlans).expect("JSON"), json);
    let deleted = client.delete_vlans("b", &"1-19".parse().expect("reads")).expect("answers");
    let report = client.vlans(Some("b")).expect("answers");
    assert_eq!(
        (deleted.vlans.len(), report),
        (
            1,
            VlanReport {
                vlan_filtering: true,
                vlan_protocol: VlanProtocol::Dot1Ad,
                ports: vec![deleted]
            }
        )
    );
    let mdb = client.mdb(Some("b")).expect("answers");
    assert_eq!((mdb.multicast_snooping, mdb.mdb.len(), mdb.router.len()), (true, 0, 0));
    assert_eq!(client.mdb(None).expect("answers"), bench.bridge.mdb());
    assert_eq!(bench.count(|counts| &counts.answered), 5);
    let entry = |port: &str| MdbEntry { port: port.into(), ..MdbEntry::default() };
    let router = vec![MdbRouter { port: "a".into(), timer: 255 }];
    let mdb = vec![entry("a"), entry("b")];
    let mut report = MdbReport { mdb, router, ..MdbReport::default() };
    keep_port(&mut report, "b");
    assert_eq!((report.mdb, report.router), (vec![entry("b")], vec![]));
}

#[test]
fn steering_is_changed() {
    let bench = Bench::new();
    let mut client = bench.client();
    let usable = UsableCpus::read().mask();
    let (mask, list) = (usable.sysfs(possible_cpus()).to_string(), usable.list().to_string());
    for (queue, change, effective) in [
        (None, RpsChange::Mask(mask.clone()), list.as_str()),
        (None, RpsChange::Mask(String::new()), ""),
        (Some(0), RpsChange::CpuList(list.clone()), &list),
    ] {
        let rps = client.set_rps("b", queue, &change).expect("answers");
        assert_eq!(rps.queues[0].effective_list, effective);
        assert_eq!(rps.queues[0].rps_cpus == mask, !effective.is_empty());
    }
    assert_eq!(
        client.set_rps("b", None, &RpsChange::FlowCount(64)).expect("answers").queues[0]
            .rps_flow_cnt,
        64
    );
    assert_eq!(
        client.rps(Some("b")).expect("answers")[0].in_place_below,
        InPlace::Automatic,
        "the default"
    );
    for when in [InPlace::Below(9), InPlace::NEVER, InPlace::Automatic] {
        client.set_port("b", &PortChange::setting("in_place_below", when)).expect("answers");
        assert_eq!(client.rps(Some("b")).expect("answers")[0].in_place_below, when);
    }
    let steering = client.set_steering("netdev_max_backlog", 300).expect("answers");
    assert_eq!(steering.settings["netdev_max_backlog"], 300.into());
    assert_eq!(client.steering().expect("answers"), steering);
    assert_eq!(bench.count(|counts| &counts.answered), 13);
}

/// Two requests, of which the first waits for the lock `opening` of the bridge.
const SLOW: &[u8] = b"{\"request\":\"set-port\",\"port\":\"b\",\"options\":{\"queues\":\"2\"}}\n{\"request\":\"version\"}\n";

#[test]
fn reports_do_not_wait_for_a_change_that_takes_long() {
    let bench = Bench::new();
    let opening = bench.locks.opening.lock().expect("no panic");
    let mut slow = bench.raw();
    slow.write_all(SLOW).expect("sent");
    let mut gone = bench.raw();
    gone.write_all(SLOW).expect("sent");
    drop(gone);
    let mut client = bench.client();
    for _ in 0..20 {
        assert_eq!(client.stats(None).expect("at once").len(), 2);
    }
    slow.set_read_timeout(Some(Duration::from_millis(50))).expect("bounded");
    assert!(
        slow.read(&mut [0; 1]).is_err(),
        "neither its own answer nor that to what it asked behind it"
    );
    slow.set_read_timeout(Some(Duration::from_secs(20))).expect("bounded");
    drop(opening);
    let mut lines = BufReader::new(slow).lines();
    let mut line = || lines.next().expect("an answer").expect("reads");
    assert!(line().contains("?queues=2"), "in the order of the questions");
    assert!(line().contains("\"pid\""));
    assert!(client.ports(Some("b")).expect("answers")[0].string.ends_with("?queues=2"));
}

#[test]
fn waiting_changes_are_limited_in_number() {
    let bench = Bench::within(Bounds { connections: 2, ..BOUNDS });
    let opening = bench.locks.opening.lock().expect("no panic");
    // One request is being answered, and two wait. The first client gives way to the next.
    let mut waiting: Vec<_> = (0..3)
        .map(|number| {
            let mut stream = bench.raw();
            stream.write_all(SLOW).expect("sent");
            let accepted = || bench.count(|counts| &counts.accepted) > number;
            while !accepted() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            stream
        })
        .collect();
    assert!(rest(waiting.remove(0)).contains("gave way to a new one"));
    let mut refused = bench.raw();
    refused.write_all(SLOW).expect("sent");
    let mut line = String::new();
    BufReader::new(refused).read_line(&mut line).expect("reads");
    assert!(line.contains("\"busy\"") && line.contains("wait for one that takes long"), "{line}");
    // The server ends after the current request, and does not begin another.
    let ends = std::thread::spawn(move || drop(bench.server));
    std::thread::sleep(Duration::from_millis(50));
    assert!(!ends.is_finished());
    drop(opening);
    ends.join().expect("no panic");
}

/// Poisons a lock by a panic.
fn poison<T: Send>(lock: &std::sync::Mutex<T>) {
    std::thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let _held = lock.lock().expect("not yet poisoned");
            panic!("on purpose");
        });
        panics.join().expect_err("it panics");
    });
}

#[test]
fn a_panic_of_a_change_is_reported_and_later_changes_are_served() {
    let bench = Bench::new();
    let opening = bench.locks.opening.lock().expect("no panic");
    let mut panics = bench.raw();
    panics.write_all(SLOW).expect("sent");
    while bench.count(|counts| &counts.accepted) < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    let mut behind = bench.raw();
    behind
        .write_all(
            b"{\"request\":\"set-port\",\"port\":\"b\",\"settings\":{\"lro_max_aggr\":43}}\n",
        )
        .expect("sent");
    behind.set_read_timeout(Some(Duration::from_millis(50))).expect("bounded");
    assert!(behind.read(&mut [0; 1]).is_err(), "it waits for its turn");
    behind.set_read_timeout(Some(Duration::from_secs(20))).expect("bounded");
    // The request that waits for the lock finds it poisoned.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _opening = opening;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    let mut lines = BufReader::new(panics).lines();
    let mut line = || lines.next().expect("an answer").expect("reads");
    let (first, second) = (line(), line());
    assert!(
        first.contains(r#""code":"internal""#)
            && first.contains("panicked")
            && first.contains("no panic: Poison"),
        "{first}"
    );
    assert!(second.contains("\"pid\""), "the connection goes on: {second}");
    let mut answer = String::new();
    BufReader::new(behind).read_line(&mut answer).expect("reads");
    assert!(answer.contains("\"lro_max_aggr\":43"), "{answer}");
    assert_eq!(
        bench
            .client()
            .set_port("b", &PortChange::setting("lro_max_aggr", 44))
            .expect("changes go on")
            .settings["lro_max_aggr"],
        44.into()
    );
}

#[test]
fn a_panic_of_a_report_ends_only_its_connection() {
    let bench = Bench::new();
    let mut other = bench.client();
    other.version().expect("answers");
    poison(&bench.locks.stats);
    let mut stream = bench.raw();
    stream.write_all(b"{\"request\":\"stats\"}\n{\"request\":\"version\"}\n").expect("sent");
    let said = rest(stream);
    assert!(said.contains(r#""code":"internal""#) && said.lines().count() == 1, "{said}");
    other.version().expect("its connection goes on");
    bench.client().steering().expect("new ones are served");
}

#[test]
fn a_change_without_a_thread_is_refused_with_the_reason() {
    const NAME: &str = "control::tests::a_change_without_a_thread_is_refused_with_the_reason";
    const CHILD: &str = "SUPERPACKET_TEST_WITHOUT_THREADS";
    if std::env::var_os(CHILD).is_none() {
        // The limit applies to the whole process, in which other tests run: use a child process.
        let mut child = std::process::Command::new(std::env::current_exe().expect("runs"));
        let output =
            child.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").output().expect("runs");
        let (said, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{}: {said}{error}",
            output.status
        );
        return;
    }
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let bench = Bench::new();
    let mut client = bench.client();
    client.ports(None).expect("answers, so that the server has what it needs");
    let pages = std::fs::read_to_string("/proc/self/statm").expect("lives");
    let pages: u64 =
        pages.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number of pages");
    let before = getrlimit(Resource::As);
    // The limit leaves less than a thread's stack, and more than an answer needs.
    let current = Some(pages * rustix::param::page_size() as u64 + (1 << 20));
    setrlimit(Resource::As, Rlimit { current, ..before }).expect("lowered");
    let change = set_port("lro_max_aggr", 43.into());
    let refused = client.ask::<serde_json::Value>(&change).expect_err("no thread").to_string();
    setrlimit(Resource::As, before).expect("as it was");
    assert!(
        refused.contains("no thread can be started") && refused.contains("os error"),
        "{refused}"
    );
    client.ask::<serde_json::Value>(&change).expect("there is one now");
}

/// Returns the request that sets a setting of port `b`.
fn set_port(name: &str, value: SettingValue) -> Request {
    Request::SetPort {
        port: "b".into(),
        options: Default::default(),
        settings: [(name.to_owned(), value)].into(),
    }
}

#[test]
fn refusals_have_a_code_and_say_why() {
    let bench = Bench::new();
    let mut client = bench.client();
    let b = || "b".to_owned();
    let feature = |feature: &str, force| Request::SetFeature {
        port: b(),
        feature: feature.into(),
        on: true,
        force,
    };
    let set = |settings: &[(&str, SettingValue)]| Request::SetPort {
        port: b(),
        options: Default::default(),
        settings: settings.iter().map(|(name, value)| ((*name).into(), value.clone())).collect(),
    };
    let address =
        |mac: &str, vlan| Request::AddFdb { port: b(), mac: mac.into(), vlan, replace: false };
    use ErrorCode::{Malformed, Refused, UnknownName, UnknownPort};
    for (request, code, says) in [
        (feature("lro", false), Refused, "cannot be cut into the packets"),
        (feature("turbo", false), UnknownName, "there are rx-checksumming"),
        (Request::Stats { port: Some("packet:x".into()) }, UnknownPort, "there are a, b"),
        (set(&[("gro_max_size", (1 << 40).into())]), Refused, "68 to 524280 bytes"),
        (set(&[("storage", "heap".into())]), Refused, "fragments or linear"),
        (
            set(&[("speed", true.into())]),
            UnknownName,
            "delivery, gro_past_push, gro_udp_no_checksum",
        ),
        (set(&[("hairpin", true.into())]), UnknownName, "isolated, learning"),
        (
            set(&[("isolated", true.into()), ("hairpin", true.into())]),
            UnknownName,
            "\"hairpin\" is not a setting of a port",
        ),
        (set(&[("isolated", 1.into())]), Refused, "isolated is on or off, not 1"),
        (set(&[]), Malformed, "it takes options, settings, or both"),
        (set(&[("too_big", "explode".into())]), Refused, "drop, icmp, fragment"),
        (address("01:00:5e:00:00:07", None), Refused, "01:00:5e:00:00:07 is a group's address"),
        (address("00:00:00:00:00:00", None), Refused, "00:00:00:00:00:00 is no station's address"),
        (address("here", None), Refused, "\"here\" is no hardware address"),
        (address("02:00:00:00:00:01", Some(4095)), Refused, "not 4095"),
        (
            Request::DelFdb { port: b(), mac: "02:00:00:00:00:01".into(), vlan: Some(7) },
            Refused,
            "02:00:00:00:00:01 vlan 7: there is no entry",
        ),
    ] {
        match client.ask::<serde_json::Value>(&request) {
            Err(ClientError::Refused(refusal)) => {
                assert!(refusal.code == code && refusal.message.contains(says), "{refusal:?}");
            }
            other => panic!("{request:?}: {other:?}"),
        }
    }
    client.ask::<serde_json::Value>(&feature("lro", true)).expect("forced");
}

#[test]
fn invalid_lines_are_answered_and_the_connection_stays_open() {
    let bench = Bench::new();
    let mut stream = bench.raw();
    let mut lines = BufReader::new(stream.try_clone().expect("clones"));
    // Bytes of a simple generator, without line feeds.
    let mut state = 1u32;
    for length in [0, 1, 2, 10, 100, 1000, 4095] {
        let mut line: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .filter(|&byte| byte != b'\n')
        .take(length)
        .collect();
        line.push(b'\n');
        stream.write_all(&line).expect("is read");
        let mut answer = String::new();
        lines.read_line(&mut answer).expect("is answered");
        assert!(answer.starts_with(r#"{"error":{"code":"malformed""#), "{length}: {answer}");
    }
    stream.write_all("[".repeat(4000).as_bytes()).expect("is read");
    stream.write_all(b"\n{\"request\":\"version\"}\n").expect("is read");
    let mut answers = String::new();
    lines.read_line(&mut answers).expect("is answered");
    lines.read_line(&mut answers).expect("is answered");
    assert!(answers.contains("malformed") && answers.contains(r#""protocol":2"#), "{answers}");
}

#[test]
fn a_line_without_end_closes_the_connection() {
    let bench = Bench::new();
    let mut stream = bench.raw();
    // More than a socket holds: writing would block forever if the server did not close.
    let chunk = vec![b'x'; 65_536];
    let mut written = 0;
    while let Ok(length) = stream.write(&chunk) {
        written += length;
        assert!(written < 16 << 20, "it is read without end");
    }
    assert!(rest(stream).starts_with(r#"{"error":{"code":"too-long""#));
    assert_eq!(bench.count(|counts| &counts.too_long), 1);
    // A line whose line feed comes too late is refused too.
    let mut stream = bench.raw();
    stream.write_all(&[&[b' '; MAX_REQUEST][..], b"\n"].concat()).expect("fits the socket");
    assert!(rest(stream).contains("too-long"));
    bench.client().version().expect("others are served");
}

#[test]
fn many_requests_at_once_are_answered_in_order() {
    let bench = Bench::new();
    let mut stream = bench.raw();
    let asked = ["version", "ports", "features", "stats"]
        .map(|name| format!("{{\"request\":\"{name}\"}}\n"))
        .concat()
        .repeat(500);
    let mut writer = stream.try_clone().expect("clones");
    let writing = std::thread::spawn(move || {
        writer.write_all(asked.as_bytes()).expect("is read in the end");
        writer.shutdown(std::net::Shutdown::Write).expect("ends");
    });
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("all answers, then the end");
    writing.join().expect("no panic");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2000);
    assert!(lines.chunks(4).all(|four| four[0].contains("protocol")
        && four[1].contains("mtu")
        && four[2].contains("asked")
        && four[3].contains("rx_bytes")));
}

#[test]
fn an_incomplete_last_line_is_reported() {
    let bench = Bench::new();
    let mut stream = bench.raw();
    stream.write_all(br#"{"request":"version"}"#).expect("is read");
    stream.shutdown(std::net::Shutdown::Write).expect("ends");
    assert!(rest(stream).contains("line feed"));
}

#[test]
fn silent_and_slow_clients_are_closed_after_a_while() {
    let bench =
        Bench::within(Bounds { connections: 3, patience: Duration::from_millis(300), ..BOUNDS });
    let silent = bench.raw();
    // A client that does not read its answers, which are far more than a socket holds.
    let mut deaf = bench.raw();
    deaf.set_nonblocking(true).expect("non-blocking");
    let questions = b"{\"request\":\"features\"}\n".repeat(100);
    let started = Instant::now();
    while deaf.write(&questions).is_ok() && started.elapsed() < Duration::from_secs(5) {}
    // A client that sends single bytes, and never a line feed.
    let mut slow = bench.raw();
    let drips = std::thread::spawn(move || {
        let mut sent = 0;
        while slow.write_all(b" ").is_ok() {
            sent += 1;
            std::thread::sleep(Duration::from_millis(20));
            assert!(sent < 500, "it is never cut off");
        }
        rest(slow)
    });
    assert!(drips.join().expect("no panic").contains("too-slow"));
    assert!(rest(silent).contains("too-slow"));
    bench.client().version().expect("there is room again");
    assert_eq!((bench.count(|counts| &counts.crowded), bench.count(|counts| &counts.late)), (0, 3));
    drop(deaf);
}

/// Checks that a new client gets an answer within a second.
fn is_served_at_once(bench: &Bench) {
    let started = Instant::now();
    bench.client().version().expect("is served");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn silent_clients_do_not_lock_others_out() {
    let bench = Bench::new();
    let silent: Vec<UnixStream> = (0..100).map(|_| bench.raw()).collect();
    is_served_at_once(&bench);
    let crowded = bench.count(|counts| &counts.crowded);
    assert_eq!(crowded, 85, "the 84 that found all places taken, and the new one");
    let mut silent = silent.into_iter();
    let first = rest(silent.next().expect("the one that was idle longest"));
    assert!(first.contains(r#""code":"busy""#) && first.contains("idle longest"), "{first}");
    // The newest of them has kept its place.
    let mut last = silent.next_back().expect("one of 100");
    last.write_all(b"{\"request\":\"version\"}\n").expect("is read");
    let mut answer = String::new();
    BufReader::new(last).read_line(&mut answer).expect("is answered");
    assert!(answer.contains("protocol"), "{answer}");
}

#[test]
fn clients_that_send_single_bytes_do_not_lock_others_out() {
    let bench = Bench::new();
    let mut slow: Vec<UnixStream> = (0..16).map(|_| bench.raw()).collect();
    for byte in *br#"{"request"#.first_chunk::<8>().expect("longer") {
        for stream in &mut slow {
            // Writing fails for connections that gave way.
            let _ = stream.write_all(&[byte]);
        }
        is_served_at_once(&bench);
    }
}

#[test]
fn the_longest_idle_connection_gives_way_even_if_another_is_older() {
    let bench = Bench::within(Bounds { connections: 2, ..BOUNDS });
    let mut asking = bench.client();
    asking.version().expect("is served");
    let silent = bench.raw();
    while bench.count(|counts| &counts.accepted) < 2 {
        std::thread::yield_now();
    }
    asking.version().expect("is served");
    is_served_at_once(&bench);
    assert!(rest(silent).contains(r#""code":"busy""#));
    asking.version().expect("the older connection was used later, and stays");
}

/// Sends requests with more answers than a socket holds, and returns when the server waits for them
/// to be read.
fn ask_for_much(bench: &Bench) -> (UnixStream, std::thread::JoinHandle<std::io::Result<()>>) {
    let stream = bench.raw();
    let mut writer = stream.try_clone().expect("clones");
    let writing = std::thread::spawn(move || {
        writer.write_all(&b"{\"request\":\"features\"}\n".repeat(20_000))?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let (mut before, mut after) = (0, 1);
    while before != after {
        std::thread::sleep(Duration::from_millis(200));
        (before, after) = (after, bench.count(|counts| &counts.answered));
    }
    (stream, writing)
}

#[test]
fn a_connection_with_a_pending_answer_gives_way_after_idle_ones() {
    let bench = Bench::within(Bounds { connections: 2, stall: Duration::from_secs(60), ..BOUNDS });
    let (answered, writing) = ask_for_much(&bench);
    let silent = bench.raw();
    while bench.count(|counts| &counts.accepted) < 2 {
        std::thread::yield_now();
    }
    is_served_at_once(&bench);
    assert!(rest(silent).contains(r#""code":"busy""#), "it was idle, although for less long");
    assert_eq!(rest(answered).lines().count(), 20_000);
    writing.join().expect("no panic").expect("all is read");
}

#[test]
fn a_client_that_reads_no_answers_gives_way_before_a_new_one() {
    let bench =
        Bench::within(Bounds { connections: 2, stall: Duration::from_millis(100), ..BOUNDS });
    let deaf = [ask_for_much(&bench), ask_for_much(&bench)];
    let mut come = bench.raw();
    is_served_at_once(&bench);
    come.write_all(b"{\"request\":\"version\"}\n").expect("is read");
    come.shutdown(std::net::Shutdown::Write).expect("ends");
    assert!(rest(come).contains("protocol"));
    for (stream, writing) in deaf {
        assert!(!rest(stream).contains("busy"), "nothing follows half an answer");
        writing.join().expect("no panic").expect_err("the server has closed");
    }
}

#[test]
fn many_clients_at_once_are_all_served() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..50 {
                    bench.client().stats(None).expect("is served");
                }
            });
        }
    });
    assert_eq!(bench.count(|counts| &counts.answered), 600);
}

#[test]
fn dropping_the_server_ends_its_connections_and_removes_its_file() {
    let bench = Bench::new();
    let mut client = bench.client();
    client.version().expect("answers");
    let Bench { path, server, _directory, .. } = bench;
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < Duration::from_secs(2) && !path.exists());
    assert!(matches!(client.version(), Err(ClientError::Io { .. })));
    let error = Client::connect(&path).expect_err("nothing there");
    assert!(error.to_string().contains("is a bridge running?"), "{error}");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("binds"));
    assert!(matches!(Client::connect(&path), Err(ClientError::Dead { .. })));
}

/// Runs a job on a thread with another user ID. Returns `None` without root's privileges.
fn as_another<T: Send>(job: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "only root can try to be another user");
        eprintln!("skipped: only root can try to be another user");
        return None;
    }
    let job = || {
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65_534)).expect("root may");
        job()
    };
    Some(std::thread::scope(|scope| scope.spawn(job).join().expect("no panic")))
}

#[test]
fn another_user_is_refused_and_does_not_harm_others() {
    let bench = Bench::new();
    std::fs::set_permissions(
        bench.path.parent().expect("a directory"),
        std::fs::Permissions::from_mode(0o755),
    )
    .expect("changes");
    // The file's mode keeps other users out ...
    let Some(error) = as_another(|| Client::connect(&bench.path).map(drop).expect_err("mode 0600"))
    else {
        return;
    };
    assert!(matches!(error, ClientError::Denied { .. }), "{error}");
    assert_eq!(bench.count(|counts| &counts.accepted), 0);
    // ... and if the mode is changed, the server refuses them.
    std::fs::set_permissions(&bench.path, std::fs::Permissions::from_mode(0o666)).expect("changes");
    let error = as_another(|| {
        Client::connect(&bench.path)
            .and_then(|mut client| client.version())
            .expect_err("not served")
    });
    assert!(matches!(error, Some(ClientError::Denied { .. })), "{error:?}");
    let said =
        as_another(|| rest(UnixStream::connect(&bench.path).expect("connects"))).expect("root");
    assert!(said.contains(r#""code":"forbidden""#) && said.contains("65534"), "{said}");
    assert_eq!(
        (bench.count(|counts| &counts.refused), bench.count(|counts| &counts.answered)),
        (2, 0)
    );
    bench.client().version().expect("root is served");
}
