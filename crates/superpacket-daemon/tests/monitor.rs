//! Monitors of a bridge between ports in memory: what they copy, what they leave alone, and how
//! they end.

use std::io::{BufRead, BufReader, Cursor, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use superpacket::virtio::{ByteOrder, Format, Header};
use superpacket_bridge::monitor::{MAX_MONITORS, MonitorDirection, MonitorSettings};
use superpacket_bridge::settings::{BridgeSettings, InPlace, PerQueue, UsableCpus};
use superpacket_bridge::{Bridge, BridgeError};
use superpacket_captures::file::{Direction, Reader, Source};
use superpacket_daemon::control::{
    Client, ClientError, ControlServer, ControlSocket, ErrorCode, MonitorCounts, MonitorStream,
};
use superpacket_daemon::monitor::{MonitorReport, stream_to};
use superpacket_traffic::frame::{Checksum, Frame};

#[path = "../../superpacket-bridge/tests/support/mod.rs"]
mod support;

use support::{FRAMES, Host, PAYLOAD, frames, ports, wait};

/// A bridge of links in memory, their other ends, and its control socket.
struct House {
    // First: it ends before the bridge does.
    server: Option<ControlServer>,
    bridge: Option<Arc<Bridge>>,
    ends: Vec<Host>,
    names: Vec<String>,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

/// A packet as a monitor copied it.
#[derive(Clone, Debug, PartialEq)]
struct Copied {
    port: String,
    sent: bool,
    data: Vec<u8>,
    length: u32,
    /// Segment size and start of the checksum, of its `virtio_net_hdr`.
    virtio: Option<(u16, u16)>,
}

impl House {
    /// Joins two links with these names' beginnings, with settings changed before the start.
    fn new(name: &str, change: impl FnOnce(&mut BridgeSettings)) -> House {
        let names = ["a", "b"].map(|side| format!("memory:{name}-{side}"));
        let ends = names.iter().map(|name| Host::open(name)).collect();
        let ports = ports(&names);
        let mut settings = BridgeSettings { ports, threads: 1, ..BridgeSettings::default() };
        change(&mut settings);
        let bridge = Arc::new(Bridge::start(settings).expect("memory needs nothing"));
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("control.sock");
        let server =
            ControlServer::start(ControlSocket::bind(&socket).expect("binds"), bridge.clone())
                .expect("starts");
        House {
            server: Some(server),
            bridge: Some(bridge),
            ends,
            names: names.into(),
            socket,
            _directory: directory,
        }
    }

    fn bridge(&self) -> &Bridge {
        self.bridge.as_ref().expect("runs")
    }

    fn name(&self, end: usize) -> String {
        self.names[end].clone()
    }

    fn monitor(&self, settings: &MonitorSettings) -> MonitorStream {
        Client::connect(&self.socket).expect("connects").monitor(settings).expect("begins").1
    }

    fn refused(&self, settings: &MonitorSettings) -> (ErrorCode, String) {
        match Client::connect(&self.socket).expect("connects").monitor(settings) {
            Err(ClientError::Refused(refusal)) => (refusal.code, refusal.message),
            other => panic!("{settings:?}: {other:?}"),
        }
    }

    /// A monitor of the port at this end.
    fn of(&self, end: usize, direction: MonitorDirection) -> MonitorSettings {
        MonitorSettings { ports: vec![self.name(end)], direction, ..MonitorSettings::default() }
    }

    /// Sends frames from one end, and waits until all their payload has come to the other; what
    /// came.
    fn carry(&mut self, from: usize, to: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        self.ends[from].send(frames);
        self.arrive(to, frames.iter().map(|frame| frame.len() - 54).sum())
    }

    fn arrive(&mut self, to: usize, payload: usize) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        wait("all arrives", || {
            came.extend(self.ends[to].receive());
            came.iter().map(|packet: &Vec<u8>| packet.len() - 54).sum::<usize>() >= payload
        });
        came
    }

    /// Ends the bridge.
    fn stop(&mut self) {
        self.server = None;
        let bridge =
            Arc::try_unwrap(self.bridge.take().expect("runs")).expect("nobody else has it");
        let started = Instant::now();
        bridge.stop();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}

fn super_packet(segments: usize) -> Vec<u8> {
    Frame::tcp4(0, segments * PAYLOAD)
        .with_id(7)
        .with(|frame| frame.tcp_mut().checksum = Checksum::Partial)
        .to_bytes()
}

/// All of a stream up to its end.
fn rest(stream: &mut MonitorStream) -> (Vec<u8>, MonitorCounts) {
    let mut bytes = Vec::new();
    while let Some(blocks) = stream.read().expect("goes on until its end") {
        bytes.extend_from_slice(blocks);
    }
    (bytes, stream.counts())
}

/// Ends a monitor, and reads what it copied.
fn end(mut stream: MonitorStream) -> (Vec<Copied>, MonitorCounts) {
    stream.end().expect("the bridge is there");
    let (bytes, counts) = rest(&mut stream);
    assert!(counts.is_whole);
    (packets(bytes), counts)
}

/// The packets of a capture.
fn packets(capture: Vec<u8>) -> Vec<Copied> {
    let mut reader =
        Reader::from_stream("monitor", Box::new(Cursor::new(capture))).expect("a capture");
    let mut packets = Vec::new();
    // By interface and direction: where that is one thread's, they are in order.
    let mut before = std::collections::BTreeMap::new();
    while let Some(frame) = reader.next_frame().expect("reads") {
        let time = frame.time.expect("has one").nanoseconds();
        let way = (frame.interface, frame.options.direction() == Some(Direction::Inbound));
        let before = before.insert(way, time).unwrap_or(1_700_000_000_000_000_000);
        assert!(time >= before, "{time}: in order, and of this age");
        let comments = frame
            .options
            .comments()
            .map(|text| std::str::from_utf8(text).expect("UTF-8").to_owned())
            .collect::<Vec<_>>();
        let virtio = comments.first().map(|text| {
            let digits = text.strip_prefix("virtio_net_hdr=").expect("the only comment");
            let byte = |index: usize| {
                u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).expect("digits")
            };
            let header = Header::read(
                &(0..10).map(byte).collect::<Vec<_>>(),
                Format::Plain,
                ByteOrder::Little,
            )
            .expect("whole");
            (header.gso_size, header.csum_start)
        });
        packets.push(Copied {
            port: frame.interface().name().expect("has one").into_owned(),
            sent: frame.options.direction().expect("has one") == Direction::Outbound,
            data: frame.data.to_vec(),
            length: frame.original_length,
            virtio,
        });
    }
    assert_eq!(reader.truncated(), None);
    packets
}

fn data(packets: &[Copied], port: &str, sent: bool) -> Vec<Vec<u8>> {
    packets
        .iter()
        .filter(|packet| packet.port == port && packet.sent == sent)
        .map(|packet| packet.data.clone())
        .collect()
}

#[test]
fn packets_are_copied_as_their_ports_have_them() {
    let mut house = House::new("copied", |_| ());
    let stream = house.monitor(&MonitorSettings::default());
    let sent = frames(0);
    let merged = house.carry(0, 1, &sent);
    assert!(merged.len() < sent.len(), "the bridge has aggregated them");
    house.ends[0].send_super_packets(&[super_packet(8)]);
    let whole = house.arrive(1, 8 * PAYLOAD);
    let plain = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[7; 46]].concat();
    house.ends[1].send(std::slice::from_ref(&plain));
    wait("it arrives", || !house.ends[0].receive().is_empty());
    let stats = house.bridge().stats();
    let (packets, counts) = end(stream);
    let (a, b) = (house.name(0), house.name(1));
    let received = data(&packets, &a, false);
    assert_eq!(received.len() as u64, stats[0].rx_packets);
    assert!(received[..FRAMES] == sent, "before aggregation");
    assert!(received[FRAMES..] == [super_packet(8)]);
    assert!(data(&packets, &b, true) == [merged, whole].concat(), "after it");
    assert!(data(&packets, &b, false) == [plain.clone()] && data(&packets, &a, true) == [plain]);
    assert_eq!((counts.packets, counts.dropped), (packets.len() as u64, 0));
    let header = |sent: bool, length: usize| {
        let found =
            packets.iter().find(|packet| packet.sent == sent && packet.data.len() == length);
        found.unwrap_or_else(|| panic!("{length} bytes")).virtio
    };
    assert_eq!(header(false, 54 + PAYLOAD), None, "there is nothing to say of a frame");
    assert_eq!(header(false, 54 + 8 * PAYLOAD), Some((PAYLOAD as u16, 34)));
    let longest = packets
        .iter()
        .filter(|packet| packet.sent)
        .map(|packet| packet.data.len())
        .max()
        .expect("some");
    assert_eq!(
        header(true, longest),
        Some((PAYLOAD as u16, 34)),
        "what the bridge has made says how it is to be cut"
    );
    assert!(packets.iter().all(|packet| packet.length as usize == packet.data.len()));
}

#[test]
fn two_monitors_have_each_what_it_asked_for() {
    let mut house = House::new("two", |_| ());
    let first =
        house.monitor(&MonitorSettings { snaplen: 60, ..house.of(0, MonitorDirection::Rx) });
    let second = house.monitor(&house.of(1, MonitorDirection::Tx));
    let sent = frames(0);
    let came = house.carry(0, 1, &sent);
    let (packets, counts) = end(first);
    assert!(
        data(&packets, &house.name(0), false)
            == sent.iter().map(|frame| frame[..60].to_vec()).collect::<Vec<_>>()
    );
    assert!(
        packets.iter().all(|packet| packet.length as usize == 54 + PAYLOAD)
            && counts.packets == FRAMES as u64
    );
    // The other goes on.
    let more = house.carry(0, 1, &frames(FRAMES));
    let (packets, _) = end(second);
    assert!(
        data(&packets, &house.name(1), true) == [came, more].concat()
            && packets.iter().all(|packet| packet.sent)
    );
}

#[test]
fn what_workers_send_is_copied_too() {
    let cpu = UsableCpus::read().mask().first().expect("one CPU at least");
    let mut house = House::new("worker", |settings| {
        let steering = &mut settings.ports[0].steering;
        (steering.rps_cpus, steering.in_place) =
            (PerQueue::all([cpu].into_iter().collect()), Some(InPlace::NEVER));
    });
    let stream = house.monitor(&MonitorSettings::default());
    let came = house.carry(0, 1, &frames(0));
    // Counted by the thread that received them, at the end of its round: the worker may be faster.
    wait("a worker has sent them", || house.bridge().stats()[0].steered != 0);
    let (packets, _) = end(stream);
    assert!(
        data(&packets, &house.name(0), false) == frames(0)
            && data(&packets, &house.name(1), true) == came
    );
}

#[test]
fn a_monitor_ends_after_as_many_packets_as_were_asked_for() {
    let mut house = House::new("count", |_| ());
    let mut stream =
        house.monitor(&MonitorSettings { count: Some(7), ..house.of(0, MonitorDirection::Rx) });
    house.carry(0, 1, &frames(0));
    let (bytes, counts) = rest(&mut stream);
    assert_eq!((packets(bytes).len(), counts.packets, counts.is_whole), (7, 7, true));
}

/// The rings, the socket's buffer and the writer's hold some 10 MB of the 64 MB that come.
#[test]
fn a_monitor_that_nobody_reads_holds_nothing_up() {
    let mut house = House::new("slow", |_| ());
    let mut stuck = house.monitor(&MonitorSettings::default());
    for round in 0..800 {
        house.carry(0, 1, &frames(round * FRAMES));
    }
    let stats = house.bridge().stats();
    assert_eq!(stats[0].rx_packets, 800 * FRAMES as u64);
    let moved = stats[0].rx_packets + stats[1].tx_packets;
    stuck.end().expect("the bridge is there");
    let (bytes, counts) = rest(&mut stuck);
    assert_eq!(packets(bytes).len() as u64, counts.packets);
    assert_eq!(counts.packets + counts.dropped, moved, "each copy was written or counted");
    assert!(counts.dropped > moved / 2, "{counts:?}");
    // It was told what was dropped; another one loses nothing.
    let stream = house.monitor(&MonitorSettings::default());
    house.carry(0, 1, &frames(0));
    assert_eq!(end(stream).1.dropped, 0);
}

#[test]
fn a_bridge_ends_although_nobody_reads_a_monitor() {
    let mut house = House::new("unread", |_| ());
    let _stuck = house.monitor(&MonitorSettings::default());
    for round in 0..400 {
        house.carry(0, 1, &frames(round * FRAMES));
    }
    house.stop();
}

#[test]
fn a_monitor_whose_reader_goes_away_leaves_nothing_behind() {
    let mut house = House::new("gone", |_| ());
    // More than there may be at a time.
    for _ in 0..3 {
        let streams = (0..MAX_MONITORS)
            .map(|_| house.monitor(&MonitorSettings::default()))
            .collect::<Vec<_>>();
        let (code, message) = house.refused(&MonitorSettings::default());
        assert!(code == ErrorCode::Refused && message.contains("at most 8 monitors"), "{message}");
        house.carry(0, 1, &frames(0));
        drop(streams);
        let begin = |_| house.bridge().monitor(&MonitorSettings::default());
        wait("they end", || (0..MAX_MONITORS).map(begin).collect::<Result<Vec<_>, _>>().is_ok());
    }
}

/// Its reader has said that it wants no more, and takes nothing of what was copied by then.
#[test]
fn a_monitor_has_its_place_until_its_end() {
    let mut house = House::new("place", |_| ());
    let begin = || house.bridge().monitor(&MonitorSettings::default());
    let _others = (1..MAX_MONITORS).map(|_| begin().expect("there is room")).collect::<Vec<_>>();
    let stuck = begin().expect("there is room");
    let (mut ours, theirs) = UnixStream::pair().expect("descriptors");
    // It writes nothing of what is copied before this has been read.
    let mut first = vec![7; 1 << 20];
    stream_to(stuck, OwnedFd::from(theirs), first.clone()).expect("a thread");
    for round in 0..50 {
        house.carry(0, 1, &frames(round * FRAMES));
    }
    ours.shutdown(std::net::Shutdown::Write).expect("it wants no more");
    std::thread::sleep(Duration::from_millis(100));
    ours.read_exact(&mut first).expect("comes");
    std::thread::sleep(Duration::from_millis(500));
    let refused = house.bridge().monitor(&MonitorSettings::default()).map(drop);
    assert!(matches!(refused, Err(BridgeError::TooManyMonitors { .. })), "{refused:?}");
    wait("what is not read in time is given up", || {
        house.bridge().monitor(&MonitorSettings::default()).is_ok()
    });
}

#[test]
fn a_client_that_talks_without_end_is_not_waited_for() {
    let mut house = House::new("talks", |_| ());
    let monitor = house.bridge().monitor(&MonitorSettings::default()).expect("begins");
    let (ours, theirs) = UnixStream::pair().expect("descriptors");
    let mut reader = ours.try_clone().expect("a descriptor");
    stream_to(monitor, OwnedFd::from(theirs), Vec::new()).expect("a thread");
    let talk = |mut ours: UnixStream| {
        std::thread::spawn(move || while ours.write_all(&[7; 1 << 16]).is_ok() {})
    };
    let talking = [(); 8].map(|()| talk(ours.try_clone().expect("a descriptor")));
    let copied = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bridge closes a connection in which words are left.
        let _ = reader.read_to_end(&mut bytes);
        bytes
    });
    let came = house.carry(0, 1, &frames(0));
    house.stop();
    talking.into_iter().for_each(|talking| talking.join().expect("ends with the connection"));
    assert!(data(&packets(copied.join().expect("ends too")), &house.name(1), true) == came);
}

#[test]
fn a_monitor_ends_with_the_last_of_its_ports() {
    let mut house = House::new("removed", |_| ());
    let ports = vec![house.name(0), house.name(1)];
    let mut both = house.monitor(&MonitorSettings { ports, ..MonitorSettings::default() });
    let mut one = house.monitor(&house.of(1, MonitorDirection::Both));
    let came = house.carry(0, 1, &frames(0));
    house.bridge().remove_port(&house.name(1)).expect("is there");
    let (bytes, counts) = rest(&mut one);
    assert!(
        counts.is_whole && data(&packets(bytes), &house.name(1), true) == came,
        "all that it sent"
    );
    house.ends[0].send(&frames(FRAMES));
    wait("it is received", || house.bridge().stats()[0].rx_packets == 2 * FRAMES as u64);
    house.bridge().remove_port(&house.name(0)).expect("is there");
    let (bytes, counts) = rest(&mut both);
    let packets = packets(bytes);
    assert!(
        counts.is_whole
            && data(&packets, &house.name(0), false) == [frames(0), frames(FRAMES)].concat()
    );
    assert!(data(&packets, &house.name(1), true) == came);
}

#[test]
fn a_port_that_comes_is_monitored_where_all_are_and_nowhere_else() {
    let mut house = House::new("comes", |_| ());
    let all = house.monitor(&MonitorSettings::default());
    let some = house.monitor(&MonitorSettings {
        ports: vec![house.name(0), house.name(1)],
        ..MonitorSettings::default()
    });
    house.carry(0, 1, &frames(0));
    // The new port has the number of the one that goes.
    house.bridge().remove_port(&house.name(1)).expect("is there");
    house.ends.push(Host::open("memory:comes-c"));
    house.bridge().add_port(ports(["memory:comes-c"]).remove(0)).expect("can be opened");
    let came = house.carry(0, 2, &frames(FRAMES));
    let (packets, _) = end(all);
    assert!(data(&packets, "memory:comes-c", true) == came);
    assert!(data(&packets, &house.name(0), false) == [frames(0), frames(FRAMES)].concat());
    let (packets, _) = end(some);
    assert!(packets.iter().all(|packet| packet.port != "memory:comes-c"));
    assert!(
        data(&packets, &house.name(1), true).iter().map(|packet| packet.len() - 54).sum::<usize>()
            == FRAMES * PAYLOAD
    );
}

#[test]
fn a_monitor_ends_with_its_bridge_and_has_what_was_moved_last() {
    let mut house = House::new("stopped", |settings| {
        settings.ports[0].limits.gro_flush_timeout = Duration::from_secs(600).as_nanos() as u64;
    });
    let mut stream = house.monitor(&MonitorSettings::default());
    house.ends[0].send(&frames(0));
    wait("it is received", || house.bridge().stats()[0].rx_packets == FRAMES as u64);
    house.stop();
    let (bytes, counts) = rest(&mut stream);
    let packets = packets(bytes);
    assert!(counts.is_whole && data(&packets, &house.name(0), false) == frames(0));
    assert_eq!(
        data(&packets, &house.name(1), true),
        house.ends[1].receive(),
        "what it held until its end"
    );
}

#[test]
fn what_cannot_be_monitored_is_refused() {
    let house = House::new("refused", |_| ());
    let (code, message) = house.refused(&MonitorSettings {
        ports: vec![house.name(0), "memory:x".into()],
        ..MonitorSettings::default()
    });
    assert!(
        code == ErrorCode::UnknownPort && message.contains("there is no port \"memory:x\""),
        "{message}"
    );
    for (settings, says) in [
        (
            MonitorSettings { snaplen: 0, ..MonitorSettings::default() },
            "snaplen is 1 to 262144 bytes, not 0",
        ),
        (
            MonitorSettings { snaplen: 262_145, ..MonitorSettings::default() },
            "snaplen is 1 to 262144 bytes, not 262145",
        ),
        (
            MonitorSettings { count: Some(0), ..MonitorSettings::default() },
            "count is 1 packet or more, not 0",
        ),
    ] {
        let (code, message) = house.refused(&settings);
        assert!(code == ErrorCode::Refused && message == says, "{message}");
        assert!(
            matches!(house.bridge().monitor(&settings), Err(BridgeError::Monitor(problem)) if problem == says)
        );
    }
    // What is refused takes no place of the few.
    let monitors = (0..MAX_MONITORS)
        .map(|_| house.bridge().monitor(&MonitorSettings::default()).expect("there is room"));
    assert_eq!(monitors.collect::<Vec<_>>().len(), MAX_MONITORS);
}

/// A client in any language: a line, and what comes after the answer's is a capture.
#[test]
fn the_connection_of_a_monitor_is_its_own() {
    let mut house = House::new("raw", |_| ());
    let mut raw = UnixStream::connect(&house.socket).expect("connects");
    raw.write_all(b"{\"request\":\"ports\"}\n{\"request\":\"monitor\",\"direction\":\"rx\",\"count\":1}\n{\"request\":\"ports\"}\n")
        .expect("is read");
    let mut raw = BufReader::new(raw);
    let mut lines = [String::new(), String::new()];
    lines.iter_mut().for_each(|line| _ = raw.read_line(line).expect("answers"));
    assert!(lines[0].starts_with("{\"ok\":[{"), "{lines:?}");
    let answer: serde_json::Value = serde_json::from_str(&lines[1]).expect("JSON");
    assert_eq!(
        answer,
        serde_json::json!({"ok": {"format": "pcapng", "ports": [house.name(0), house.name(1)]}})
    );
    // What comes after the answer is copied.
    house.carry(0, 1, &frames(0));
    let mut capture = Vec::new();
    raw.read_to_end(&mut capture).expect("ends by itself");
    assert!(packets(capture).iter().map(|packet| &packet.data).eq([&frames(0)[0]]));
}

/// A monitor's stream need not go to the control socket.
#[test]
fn a_monitor_is_written_to_any_socket() {
    let mut house = House::new("any", |_| ());
    let monitor = house.bridge().monitor(&house.of(1, MonitorDirection::Tx)).expect("begins");
    assert_eq!(MonitorReport::new(&monitor).ports, [house.name(1)]);
    let (mut ours, theirs) = UnixStream::pair().expect("descriptors");
    stream_to(monitor, OwnedFd::from(theirs), Vec::new()).expect("a thread");
    let came = house.carry(0, 1, &frames(0));
    ours.shutdown(std::net::Shutdown::Write).expect("ends it");
    let mut bytes = Vec::new();
    ours.read_to_end(&mut bytes).expect("ends");
    assert!(data(&packets(bytes), &house.name(1), true) == came);
}
