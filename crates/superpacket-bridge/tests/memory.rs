//! Tests of a bridge between memory ports: packets that are held when it stops, busy polling,
//! optional merging, and lack of memory.

use std::fs;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use superpacket::aggregate::HashKey;
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{GsoKind, SegmentOptions, Segmenter};
use superpacket_bridge::settings::{
    BridgeSettings, InPlace, NamedSettings, PerQueue, PortChange, UsableCpus,
};
use superpacket_bridge::{Bridge, ThreadlessBridge};
use superpacket_model::open;
use superpacket_port::Buffer;
use superpacket_port::features::Feature;
use superpacket_traffic::frame::{Checksum, Frame, PSH, stream_bytes};

mod support;
#[path = "../../superpacket-port/src/without_memory.rs"]
mod without_memory;

use support::{FRAMES, Host, PATIENCE, PAYLOAD, bytes, frames, ports, wait};
use without_memory::{is_run_in_a_child, limit_memory};

/// A bridge between two memory links, and their other ends.
struct Joined {
    bridge: Bridge,
    ends: [Host; 2],
}

impl Joined {
    /// Joins links of this name, with settings changed before the start.
    fn new(name: &str, change: impl FnOnce(&mut BridgeSettings)) -> Joined {
        let specs = ["a", "b"].map(|side| format!("memory:{name}-{side}"));
        // Opened first, because a link with one open end is down.
        let ends = specs.each_ref().map(|spec| Host::open(spec));
        let ports = ports(specs);
        let mut settings = BridgeSettings { ports, threads: 1, ..BridgeSettings::default() };
        change(&mut settings);
        Joined { bridge: Bridge::start(settings).expect("memory needs nothing"), ends }
    }

    /// Returns the number of packets that the bridge has received from this end.
    fn received(&self, end: usize) -> u64 {
        self.bridge.stats()[end].rx_packets
    }

    /// Stops the bridge, which must not take long, and returns the ends.
    fn stop(self) -> [Host; 2] {
        let Joined { bridge, ends } = self;
        let (done, stopped) = channel();
        std::thread::spawn(move || {
            bridge.stop();
            let _ = done.send(());
        });
        stopped.recv_timeout(PATIENCE).expect("the bridge is stopped in time");
        ends
    }
}

fn payload(packets: &[RxPacket<Buffer>]) -> Vec<u8> {
    packets.iter().flat_map(|packet| bytes(packet).split_off(54)).collect()
}

/// Makes the bridge hold packets in this thread or a worker for longer than the test runs, and
/// stops it.
fn sends_what_it_holds(name: &str, change: impl FnOnce(&mut BridgeSettings)) {
    let mut joined = Joined::new(name, |settings| {
        settings.ports[0].limits.gro_flush_timeout = Duration::from_secs(600).as_nanos() as u64;
        change(settings);
    });
    joined.ends[0].send(&frames(0));
    wait("the bridge receives all", || joined.received(0) == FRAMES as u64);
    // Long enough for packets to leave if they were not held.
    std::thread::sleep(Duration::from_millis(50));
    assert!(joined.ends[1].packets().is_empty(), "they are held");
    let [_, mut to] = joined.stop();
    let packets = to.packets();
    assert!(payload(&packets) == stream_bytes(0, FRAMES * PAYLOAD), "{packets:?}");
    assert_eq!(
        (packets.len(), packets[0].gso.map(|gso| gso.size.get())),
        (1, Some(PAYLOAD)),
        "they had waited for each other"
    );
}

#[test]
fn a_bridge_that_is_stopped_sends_what_it_holds() {
    sends_what_it_holds("held", |_| ());
}

/// Returns super-packets of a flow, with this many segments each and these additional flags, whose
/// identifications are those of [`frames`].
fn super_packets(segments: usize, flags: u16) -> Vec<Vec<u8>> {
    let whole = |from: usize| {
        let mut frame =
            Frame::tcp4((from * PAYLOAD) as u32, segments * PAYLOAD).with_id(from as u16);
        frame.tcp_mut().flags |= flags;
        frame.with(|frame| frame.tcp_mut().checksum = Checksum::Partial).to_bytes()
    };
    (0..FRAMES).step_by(segments).map(whole).collect()
}

#[test]
fn super_packets_of_a_port_merge_further() {
    let mut joined = Joined::new("further", |settings| {
        settings.ports[0].limits.gro_flush_timeout = Duration::from_secs(600).as_nanos() as u64;
    });
    let sent = super_packets(8, 0);
    joined.ends[0].send_super_packets(&sent);
    wait("the bridge receives all", || joined.received(0) == sent.len() as u64);
    wait("all are joined", || joined.bridge.stats()[0].merged == sent.len() as u64 - 1);
    let stats = joined.bridge.stats()[0].clone();
    assert_eq!(
        (stats.rx_super_packets, stats.rx_super_segments),
        (sent.len() as u64, FRAMES as u64)
    );
    let [_, mut to] = joined.stop();
    let packets = to.packets();
    assert!(payload(&packets) == stream_bytes(0, FRAMES * PAYLOAD), "{packets:?}");
    assert_eq!((packets.len(), packets[0].gso.map(|gso| gso.size.get())), (1, Some(PAYLOAD)));
}

/// Linux sets PSH on every super-packet, so they merge only past that flag.
#[test]
fn super_packets_with_psh_merge_where_the_port_says_so() {
    for (name, past, merged) in [("push", false, 0), ("past-push", true, 4)] {
        let mut joined = Joined::new(name, |settings| {
            settings.ports[0].limits.gro_flush_timeout = Duration::from_millis(1).as_nanos() as u64;
            settings.ports[0].gro_past_push = past;
        });
        joined.ends[0].send_super_packets(&super_packets(8, PSH));
        let mut left = Vec::new();
        wait("all leave", || {
            left.extend(joined.ends[1].packets());
            payload(&left).len() == FRAMES * PAYLOAD
        });
        assert!(payload(&left) == stream_bytes(0, FRAMES * PAYLOAD));
        assert_eq!(
            (joined.bridge.stats()[0].merged, left.len()),
            (merged, 5 - merged as usize),
            "gro_past_push {past}"
        );
        drop(left);
        joined.stop();
    }
}

/// Segments that arrive ahead of others wait for them across polls if the port enables it. They
/// leave after a timeout, or when the bridge stops.
#[test]
fn segments_that_overtook_others_wait_for_them_where_the_port_says_so() {
    let sent = frames(0);
    for (timeout, fills) in
        [(0, false), (Duration::from_secs(1).as_nanos() as u64, true), (1_000_000, false)]
    {
        let mut joined = Joined::new(&format!("gaps-{timeout}"), |settings| {
            settings.ports[0].limits.gap_timeout = timeout
        });
        let missing = 7;
        joined.ends[0].send(&[&sent[..missing], &sent[missing + 1..]].concat());
        wait("the bridge receives all but one", || joined.received(0) == FRAMES as u64 - 1);
        let mut left = Vec::new();
        if fills {
            wait("all behind it wait", || {
                joined.bridge.stats()[0].gap_waited == (FRAMES - missing - 1) as u64
            });
        } else {
            wait("all leave", || {
                left.extend(joined.ends[1].packets());
                payload(&left).len() == (FRAMES - 1) * PAYLOAD
            });
        }
        joined.ends[0].send(&sent[missing..=missing]);
        wait("all leave", || {
            left.extend(joined.ends[1].packets());
            payload(&left).len() == FRAMES * PAYLOAD
        });
        let stats = joined.bridge.stats()[0].clone();
        let waited = if timeout == 0 { 0 } else { (FRAMES - missing - 1) as u64 };
        let filled = if fills { waited } else { 0 };
        assert_eq!(
            (stats.gap_waited, stats.gap_filled, stats.gap_timed_out),
            (waited, filled, waited - filled),
            "{timeout} ns"
        );
        if fills {
            assert!(payload(&left) == stream_bytes(0, FRAMES * PAYLOAD), "in order");
            assert_eq!(left.len(), 2, "what came before the gap, and the rest: {left:?}");
        }
        drop(left);
        joined.stop();
    }
    let mut joined = Joined::new("gaps-stopped", |settings| {
        settings.ports[0].limits.gap_timeout = 1_000_000_000
    });
    joined.ends[0].send(&[&sent[..1], &sent[2..]].concat());
    wait("all but two wait", || joined.bridge.stats()[0].gap_waited == FRAMES as u64 - 2);
    let [_, mut to] = joined.stop();
    assert_eq!(payload(&to.packets()).len(), (FRAMES - 1) * PAYLOAD, "what waited is sent");
}

/// Datagrams without a checksum merge if the port enables it. If the bridge segments them, the
/// segments have no checksum either. A port that segments itself computes checksums, because no
/// metadata can say that there are none.
#[test]
fn datagrams_without_checksums_merge_where_the_port_says_so() {
    const DATAGRAMS: usize = 20;
    let sent: Vec<_> =
        Frame::udp4(PAYLOAD).with(|frame| frame.udp_mut().checksum = Checksum::Zero).run(DATAGRAMS);
    let sent: Vec<_> = sent.iter().map(Frame::to_bytes).collect();
    for (name, merges, port_cuts) in
        [("apart", false, true), ("cut", true, false), ("whole", true, true)]
    {
        let mut joined = Joined::new(&format!("no-checksum-{name}"), |settings| {
            settings.ports[0].features =
                settings.ports[0].features.with(Feature::RxUdpGroForwarding);
            settings.ports[0].gro_udp_no_checksum = merges;
            settings.ports[0].limits.gro_flush_timeout = Duration::from_millis(1).as_nanos() as u64;
            settings.ports[1].features =
                settings.ports[1].features.set(Feature::TxUdpSegmentation, port_cuts);
        });
        joined.ends[0].send(&sent);
        let mut left = Vec::new();
        wait("all leave", || {
            left.extend(joined.ends[1].packets());
            left.iter().map(|packet| bytes(packet).len() - 42).sum::<usize>() == DATAGRAMS * PAYLOAD
        });
        assert_eq!(
            joined.bridge.stats()[0].merged,
            if merges { DATAGRAMS as u64 - 1 } else { 0 },
            "{name}"
        );
        if merges && port_cuts {
            let [whole] = &left[..] else { panic!("{left:?}") };
            assert_eq!(
                whole.gso.map(|gso| (gso.kind, gso.size.get())),
                Some((GsoKind::Udp, PAYLOAD))
            );
            assert_eq!(whole.checksum, RxChecksum::Partial { start: 34, offset: 6 });
            let mut cut = Vec::new();
            Segmenter::new()
                .segment(whole, &SegmentOptions::default(), |segment| {
                    let mut frame = Vec::new();
                    segment.copy_to(&mut frame);
                    cut.push(frame);
                })
                .expect("a right super-packet");
            let filled: Vec<_> =
                Frame::udp4(PAYLOAD).run(DATAGRAMS).iter().map(Frame::to_bytes).collect();
            assert!(cut == filled);
        } else {
            assert!(left.iter().map(bytes).collect::<Vec<_>>() == sent, "{name}");
        }
        drop(left);
        joined.stop();
    }
}

/// By a port without TSO, they leave as the segments that the sender's kernel would have made.
#[test]
fn what_merged_further_comes_apart_at_a_port_without_tso() {
    let mut joined = Joined::new("further-apart", |settings| {
        settings.ports[0].limits.gro_flush_timeout = Duration::from_millis(1).as_nanos() as u64;
        settings.ports[1].features =
            settings.ports[1].features.without(Feature::TcpSegmentationOffload);
    });
    joined.ends[0].send_super_packets(&super_packets(8, 0));
    let mut left = Vec::new();
    wait("all leave", || {
        left.extend(joined.ends[1].packets());
        left.len() >= FRAMES
    });
    assert_eq!(joined.bridge.stats()[0].merged, 4, "they were joined before");
    let in_form = |frame: Frame| match left[0].checksum {
        RxChecksum::Partial { .. } => {
            frame.with(|frame| frame.tcp_mut().checksum = Checksum::Partial).to_bytes()
        }
        _ => frame.to_bytes(),
    };
    let expected: Vec<_> =
        Frame::tcp4(0, PAYLOAD).with_id(0).run(FRAMES).into_iter().map(in_form).collect();
    assert!(left.iter().map(bytes).collect::<Vec<_>>() == expected);
    drop(left);
    joined.stop();
}

#[test]
fn what_is_held_for_a_worker_is_sent_too() {
    let cpu = UsableCpus::read().mask().first().expect("one CPU at least");
    sends_what_it_holds("held-steered", |settings| {
        let steering = &mut settings.ports[0].steering;
        (steering.rps_cpus, steering.in_place) =
            (PerQueue::all([cpu].into_iter().collect()), Some(InPlace::NEVER));
    });
}

/// Returns the CPU time of this process's thread of this name, in clock ticks; `None` if there is
/// no such thread.
fn cpu_time(name: &str) -> Option<u64> {
    fs::read_dir("/proc/self/task").expect("proc is there").flatten().find_map(|task| {
        // A thread may end while its files are read.
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let (head, fields) = stat.rsplit_once(')')?;
        let ticks = || {
            fields
                .split_ascii_whitespace()
                .skip(11)
                .take(2)
                .map(|field| field.parse::<u64>().expect("a number"))
                .sum()
        };
        head.ends_with(&format!("({name}")).then(ticks)
    })
}

#[test]
fn a_bridge_that_polls_all_the_time_carries_traffic_and_ends() {
    // No other bridge in this test has a second thread, so the name is unique.
    const THREAD: &str = "superpacket-1";
    let mut joined =
        Joined::new("busy", |settings| (settings.busy_poll, settings.threads) = (true, 2));
    for round in 0..50 {
        for (from, to) in [(0, 1), (1, 0)] {
            let mut frames = frames(round * FRAMES);
            if from == 1 {
                // The same address at both ends would look like a loop.
                frames.iter_mut().for_each(|frame| frame[..12].rotate_left(6));
            }
            joined.ends[from].send(&frames);
            let (mut packets, start) = (Vec::new(), Instant::now());
            while payload(&packets).len() != FRAMES * PAYLOAD {
                let missing = FRAMES * PAYLOAD - payload(&packets).len();
                assert!(
                    start.elapsed() < PATIENCE,
                    "round {round} from {from}: {missing} bytes are missing: {:?}",
                    joined.bridge.stats()
                );
                std::thread::sleep(Duration::from_millis(1));
                packets.extend(joined.ends[to].packets());
            }
            assert!(
                payload(&packets)
                    == stream_bytes((round * FRAMES * PAYLOAD) as u32, FRAMES * PAYLOAD),
                "round {round}"
            );
        }
    }
    // A sleeping thread takes no CPU time.
    let before = cpu_time(THREAD).expect("it runs");
    wait("it looks for packets all the time", || cpu_time(THREAD).expect("it runs") >= before + 5);
    joined.ends[0].send(&frames(0));
    let [_, mut to] = joined.stop();
    assert!(payload(&to.packets()) == stream_bytes(0, FRAMES * PAYLOAD), "what had come is sent");
    // The kernel lists a thread for a moment after it was joined.
    wait("no thread is left", || cpu_time(THREAD).is_none());
}

/// Returns the address space of this process, in bytes.
fn address_space() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("lives");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("a process has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") * 1024
}

/// Allocates all memory within the limit except this many MiB, including the allocator's reserve.
fn take_all_memory_but(mebibytes: usize) -> Vec<Vec<u8>> {
    let mut held: Vec<Vec<u8>> = Vec::with_capacity(1024);
    loop {
        let mut block = Vec::new();
        if block.try_reserve_exact(1 << 20).is_err() {
            break;
        }
        held.push(block);
    }
    held.truncate(held.len() - mebibytes);
    held
}

#[test]
fn ports_open_where_there_is_no_memory_for_their_tables_and_regions() {
    if is_run_in_a_child("ports_open_where_there_is_no_memory_for_their_tables_and_regions") {
        return;
    }
    limit_memory(64 << 20);
    for scarce in [true, false] {
        // A flow table takes 28 MiB, and the memory of a link's end 64 MiB.
        let held = if scarce { take_all_memory_but(12) } else { Vec::new() };
        if !scarce {
            limit_memory(1 << 30);
        }
        let specs = ["a", "b"].map(|side| format!("memory:opens-{side}?slots=1048576"));
        let mut ends = specs.each_ref().map(|spec| Host::open(spec));
        let mut bridge = ThreadlessBridge::new(64, Duration::from_secs(300), HashKey::new(1));
        for mut settings in ports(specs) {
            let port = open(&settings.port).expect("memory needs nothing");
            (settings.features, settings.force_lro) =
                (settings.features.with(Feature::LargeReceiveOffload), true);
            settings.limits.lro_max_desc = 1 << 20;
            bridge.join(settings, port).expect("there is room");
        }
        ends[0].send(&frames(0));
        assert_eq!(bridge.round(0).expect("all are up"), FRAMES);
        let packets = ends[1].packets();
        assert!(payload(&packets) == stream_bytes(0, FRAMES * PAYLOAD));
        assert_eq!(
            packets.len(),
            if scarce { FRAMES } else { 1 },
            "aggregated where there is memory for it"
        );
        drop(held);
    }
}

#[test]
fn what_there_is_no_memory_for_is_refused() {
    if is_run_in_a_child("what_there_is_no_memory_for_is_refused") {
        return;
    }
    let name = "memory:scarce-a?queues=1024";
    let ports = ports([name, "memory:scarce-b"]);
    let bridge = Bridge::start(BridgeSettings { ports, threads: 1, ..BridgeSettings::default() })
        .expect("memory needs nothing");
    bridge.set_feature(name, Feature::LargeReceiveOffload, true, true).expect("forced");
    // The threads have their memory once the address space stops growing.
    let mut taken = (Instant::now(), address_space());
    while taken.0.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(50));
        if address_space() != taken.1 {
            taken = (Instant::now(), address_space());
        }
    }
    limit_memory(200 << 20);

    let table = superpacket_steer::SockFlowTable::new(1 << 29, 4).expect_err("2 GiB");
    assert_eq!(table, superpacket_steer::FlowTableError::NoMemory { entries: 1 << 29 });
    let policy = superpacket::aggregate::Policy::lro().with_max_flows(1 << 20);
    let tables: Result<Vec<_>, _> = (0..16)
        .map(|_| {
            superpacket::aggregate::Aggregator::<Buffer>::try_new(
                policy,
                superpacket::aggregate::HashKey::new(1),
            )
        })
        .collect();
    assert!(tables.is_err(), "16 x 28 MiB");

    let refused = bridge
        .set_port(name, &PortChange::setting("lro_max_desc", 4096))
        .expect_err("256 MiB")
        .to_string();
    assert!(
        refused.contains("no memory to aggregate 4096 flows of each of 1024 receive queues"),
        "{refused}"
    );
    let refused = bridge.set_rps_flow_count(name, None, 65_536).expect_err("1 GiB").to_string();
    assert!(refused.contains("rps_flow_cnt: ENOMEM: 65536 entries"), "{refused}");
    // The rest of it, except 40 MiB.
    let held = Vec::<u8>::with_capacity(160 << 20);
    let refused =
        bridge.change_steering_settings(|steering| steering.set("flow_limit_table_len", 65536));
    let refused = refused.expect_err("64 MiB").to_string();
    assert!(
        refused.contains("no memory for the flow limit's table of each of 1025 receive queues"),
        "{refused}"
    );
    assert_eq!(bridge.steering().settings["flow_limit_table_len"], 4096.into(), "as it was");
    drop(held);
    // The bridge still runs, and makes changes that memory allows.
    assert_eq!(bridge.ports()[0].settings["lro_max_desc"], 64.into(), "as it was");
    assert_eq!(
        bridge.set_port(name, &PortChange::setting("lro_max_desc", 128)).expect("8 MiB").settings["lro_max_desc"],
        128.into()
    );
    bridge.set_rps_flow_count(name, None, 64).expect("1 MiB");
}

/// Opening a port fails if there is no memory for its queues, because its threads cannot report
/// that.
#[test]
fn a_port_whose_queues_there_is_no_memory_for_is_refused() {
    if is_run_in_a_child("a_port_whose_queues_there_is_no_memory_for_is_refused") {
        return;
    }
    let port = |text: &str| ports([text]).remove(0);
    let mut joined = Joined::new("few", |_| ());
    limit_memory(96 << 20);
    let refused =
        joined.bridge.add_port(port("memory:many?queues=1024")).expect_err("128 MiB").to_string();
    let says = "memory:many?queues=1024: taking memory for the receive queues: there are no 128 MiB for 1024 queues: fewer by queues=N";
    assert_eq!(refused, says);
    assert_eq!(joined.bridge.ports().len(), 2, "as before");
    joined.bridge.add_port(port("memory:fewer?queues=64")).expect("8 MiB");
    joined.ends[0].send(&frames(0));
    wait("the bridge receives all", || joined.received(0) == FRAMES as u64);
    joined.stop();
}

#[test]
fn an_address_table_that_there_is_no_memory_for_is_refused() {
    if is_run_in_a_child("an_address_table_that_there_is_no_memory_for_is_refused") {
        return;
    }
    limit_memory(64 << 20);
    // The table takes 16 MiB.
    let held = take_all_memory_but(8);
    let start =
        |table_size| Bridge::start(BridgeSettings { table_size, ..BridgeSettings::default() });
    let refused = start(1 << 20).expect_err("16 MiB").to_string();
    assert_eq!(refused, "table-size: ENOMEM: there is no memory for a table of 1048576 addresses");
    drop(held);
    start(1 << 20).expect("there is room").stop();
}
