//! Ports that are removed and return, and links that change.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use superpacket_lab::{Direction, Host, LabError, Link, Route, Station, TcpBulk, Until};
use superpacket_steer::Cpu;

use crate::joined::{Joined, KEY, by_packet, by_tap, by_veth, by_xdp, disable_offloads};
use crate::steering::{steer, two_cpus};
use superpacket_bridge::Bridge;
use superpacket_bridge::settings::{BridgeSettings, PortSettings};
use superpacket_captures::file::{
    ByteOrder, Format, FrameOptions, Interface, LinkType, OutputFormat, PcapVariant, Reader,
    Record, Sink, Source, TimeResolution, Writer,
};
use superpacket_traffic::workload;

/// Removes B's interface during a transfer and creates it again with the same names and addresses;
/// B's connections must survive.
fn comes_back_under_load(
    joined: &Joined,
    gone: &Link,
    anew: impl FnOnce() -> Result<(), LabError>,
) -> Result<(), LabError> {
    std::thread::scope(|scope| {
        let route = joined.route();
        let load = scope.spawn(move || {
            TcpBulk {
                until: Until::Time(Duration::from_secs(4)),
                flows: 2,
                verify: Some(KEY),
                stall: Duration::from_secs(20),
                ..TcpBulk::default()
            }
            .run(&route)
        });
        std::thread::sleep(Duration::from_millis(500));
        gone.delete()?;
        // A device that the bridge creates itself returns at once.
        joined.wait("the port is missed", |joined| {
            joined.bridge.ports()[1].state == "gone" || joined.bridge.ports()[1].reopened == 1
        });
        anew()?;
        joined.wait("the port is back", |joined| joined.bridge.ports()[1].reopened == 1);
        let report = load.join().expect("no panic")?;
        assert!(report.bytes() > 0);
        Ok::<_, LabError>(())
    })?;
    assert_eq!(joined.bridge.ports()[1].state, "up");
    joined.carries(1, 1 << 20)
}

/// Does the same for a port on a veth pair; `prepared` configures the new end in B.
fn veth_comes_back(
    joined: Option<Joined>,
    prepared: impl FnOnce(&Link) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let Some(joined) = joined else { return Ok(()) };
    let [_, b_side] = joined.sides.as_ref().expect("veth pairs");
    comes_back_under_load(&joined, b_side, || {
        let (b, _) = Link::veth(&joined.b.host, "eth0", &joined.middle, "port-b")?;
        prepared(&b)?;
        Station::new(b, 2).map(drop)
    })
}

#[test]
fn a_port_that_is_removed_comes_back_under_load() -> Result<(), LabError> {
    veth_comes_back(by_packet()?, |_| Ok(()))
}

#[test]
fn an_xdp_port_that_is_removed_comes_back_under_load() -> Result<(), LabError> {
    veth_comes_back(by_xdp()?, disable_offloads)
}

#[test]
fn a_tap_device_that_is_removed_comes_back_under_load() -> Result<(), LabError> {
    let Some(joined) = by_tap("")? else { return Ok(()) };
    comes_back_under_load(&joined, &joined.b.link, || {
        // The bridge creates the device, and the host gets it as before.
        joined.wait("there is another", |joined| joined.bridge.ports()[1].reopened == 1);
        let link = joined.middle.link("dev-b").move_to(&joined.b.host)?;
        link.up()?;
        Station::new(link, 2).map(drop)
    })
}

#[test]
fn a_bridge_with_many_queues_stops_at_once() -> Result<(), LabError> {
    let Some(joined) = by_veth("packet", "?queues=256&ring=64k", |_| Ok(()))? else {
        return Ok(());
    };
    let settings = joined.bridge.settings();
    joined.carries(1, 1 << 20)?;
    // One port is removed while the others remain ...
    let start = Instant::now();
    let left = BridgeSettings { ports: settings.ports[..1].to_vec(), ..settings };
    joined.middle.run(|| Ok::<_, LabError>(joined.bridge.apply(left)))?.expect("a port less");
    let removed = start.elapsed();
    // ... and all end with the bridge.
    let start = Instant::now();
    drop(joined);
    let stopped = start.elapsed();
    // The kernel waits for an RCU grace period (some 10 ms) for each closed socket.
    assert!(
        removed < Duration::from_millis(1_500) && stopped < Duration::from_millis(1_500),
        "{removed:?} {stopped:?}"
    );
    Ok(())
}

#[test]
fn a_link_that_was_down_carries_again() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.carries(1, 1 << 20)?;
    let side = &joined.sides.as_ref().expect("veth pairs")[1];
    for _ in 0..3 {
        side.down()?;
        joined.wait("down is seen", |joined| joined.bridge.ports()[1].state == "down");
        side.up()?;
        joined.wait("up is seen", |joined| joined.bridge.ports()[1].state == "up");
    }
    joined.carries(1, 1 << 20)
}

#[test]
fn an_mtu_that_changes_is_kept_to() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.carries(1, 4 << 20)?;
    joined.sides.as_ref().expect("veth pairs")[1].set_mtu(1200)?;
    joined.wait("the MTU is seen", |joined| joined.bridge.ports()[1].mtu == 1200);
    // A still sends packets of 1500 bytes; those too long for the port are segmented.
    joined.carries(1, 4 << 20)?;
    assert!(joined.stats(1).segmented > 0);
    Ok(())
}

#[test]
fn what_changes_is_seen_at_once() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    changes_are_seen_at_once(&joined, &joined.sides.as_ref().expect("veth pairs")[1])
}

#[test]
fn what_changes_at_a_tap_device_in_another_namespace_is_seen_at_once() -> Result<(), LabError> {
    let Some(joined) = by_tap("")? else { return Ok(()) };
    changes_are_seen_at_once(&joined, &joined.b.link)?;
    // The device is removed, and the bridge creates another.
    let start = Instant::now();
    joined.b.link.delete()?;
    joined.wait("it is missed", |joined| joined.bridge.ports()[1].reopened == 1);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    Ok(())
}

/// Changes this end of the second port's link.
fn changes_are_seen_at_once(joined: &Joined, side: &Link) -> Result<(), LabError> {
    let is_up = |joined: &Joined| joined.bridge.ports()[1].state == "up";
    let mut waited = Vec::new();
    let mut seen = |what: &str, is_seen: &dyn Fn(&Joined) -> bool| {
        let start = Instant::now();
        joined.wait(what, |joined| is_seen(joined));
        waited.push(start.elapsed());
    };
    for mtu in [1200, 1300, 1400, 1500] {
        side.set_mtu(mtu)?;
        seen("the MTU is seen", &|joined| joined.bridge.ports()[1].mtu == mtu);
        side.down()?;
        seen("the link is seen to be down", &|joined| !is_up(joined));
        side.up()?;
        seen("the link is seen to be up", &is_up);
    }
    // The kernel notifies the bridge. Without that most changes would wait for the next periodic
    // check, because each follows the check that noticed the previous one.
    waited.sort_unstable();
    assert!(waited[waited.len() / 2] < Duration::from_millis(120), "{waited:?}");
    assert!(waited.iter().all(|time| *time < Duration::from_millis(700)), "{waited:?}");
    Ok(())
}

#[test]
fn an_mtu_may_change_under_load() -> Result<(), LabError> {
    let jumbo = |hosts: &superpacket_lab::ThreeHosts| {
        [&hosts.a.link, &hosts.a_side, &hosts.b.link, &hosts.b_side]
            .into_iter()
            .try_for_each(|link| link.set_mtu(9000))
    };
    let Some(joined) = by_veth("packet", "", jumbo)? else { return Ok(()) };
    let side = &joined.sides.as_ref().expect("veth pairs")[1];
    for whole in [true, false] {
        joined.a.link.set_feature("tcp-segmentation-offload", whole)?;
        let load = TcpBulk {
            until: Until::Time(Duration::from_secs(8)),
            flows: 2,
            verify: Some(KEY),
            ..TcpBulk::default()
        };
        let changes = std::thread::scope(|scope| {
            let route = joined.route();
            let load = scope.spawn(move || load.run(&route));
            let passes = |bytes: u64| {
                let start = joined.stats(1).tx_bytes;
                joined.wait("bytes flow", |joined| {
                    joined.stats(1).tx_bytes > start + bytes || load.is_finished()
                });
            };
            let mut changes = 0;
            for mtu in [1500, 9000].into_iter().cycle() {
                side.set_mtu(mtu)?;
                joined.wait("the MTU is seen", |joined| joined.bridge.ports()[1].mtu == mtu);
                // Packets in flight belong to the time before the change.
                passes(16 << 20);
                let before = joined.stats(1);
                passes(8 << 20);
                if load.is_finished() {
                    break;
                }
                let after = joined.stats(1);
                let average = (after.tx_bytes - before.tx_bytes)
                    / (after.tx_packets - before.tx_packets).max(1);
                assert!(
                    if mtu == 1500 { average <= 1514 } else { average > 3_000 },
                    "{average} bytes on average with {mtu}: {after:?}"
                );
                changes += 1;
            }
            load.join().expect("no panic")?;
            Ok::<_, LabError>(changes)
        })?;
        assert!(changes >= 4, "{changes} changes");
    }
    Ok(())
}

#[test]
fn a_third_host_hears_floods_only() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let c = joined.third()?;
    TcpBulk { until: Until::Bytes(1 << 20), verify: Some(KEY), ..TcpBulk::default() }
        .run(&Route::ipv4(&joined.a, &c))?;
    joined.carries(1, 8 << 20)?;
    let to_c = joined
        .bridge
        .stats()
        .into_iter()
        .find(|stats| stats.port == "packet:port-c")
        .expect("the port is there");
    assert!(to_c.tx_bytes < 3 << 20, "what A sends to B is no business of C's: {to_c:?}");
    Ok(())
}

/// Returns the frames of a capture file.
fn frames(path: &std::path::Path) -> Vec<Vec<u8>> {
    let mut reader = Reader::open(path).expect("a capture");
    let mut frames = Vec::new();
    while let Some(frame) = reader.next_frame().expect("a capture") {
        frames.push(frame.data.to_vec());
    }
    frames
}

#[test]
fn a_capture_goes_through_memory_into_a_recording_frame_by_frame() {
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (folder.path().join("in.pcap"), folder.path().join("out.pcap"));
    let sent = workload::w1(2_000);
    let like = Format::Pcap { byte_order: ByteOrder::Little, variant: PcapVariant::Microseconds };
    let mut writer = Writer::create(&from, OutputFormat::like(like)).expect("a writable folder");
    writer
        .declare(&[Interface::new(LinkType::ETHERNET, TimeResolution::MICROSECONDS)])
        .expect("one interface");
    for frame in &sent {
        let record =
            Record { interface: 0, time: None, original_length: None, options: FrameOptions::NONE };
        writer.write(record, [&frame[..]]).expect("a writable file");
    }
    writer.finish().expect("a writable file");
    let bridge = |ports: [String; 2]| {
        let ports = ports
            .into_iter()
            .map(|port| PortSettings::new(port.parse().expect("a port string")))
            .collect();
        Bridge::start(BridgeSettings { ports, ..BridgeSettings::default() })
            .expect("these ports need no privilege")
    };
    // The recorder must exist before the player starts.
    let recording = bridge([format!("pcap:{}?mode=record", to.display()), "memory:between".into()]);
    let playing = bridge(["memory:between".into(), format!("pcap:{}?speed=max", from.display())]);
    let start = std::time::Instant::now();
    while recording.stats()[0].tx_packets < sent.len() as u64 {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?} {:?}",
            playing.stats(),
            recording.stats()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    // The link takes super-packets, the file does not: few packets crossed the link.
    assert!(playing.stats()[0].tx_super_packets > 0 && recording.stats()[0].segmented > 0);
    for bridge in [&playing, &recording] {
        crate::carried::note(&bridge.stats());
    }
    playing.stop();
    recording.stop();
    assert!(frames(&to) == sent, "every frame came as it was, in order");
}

/// Returns the inodes of the packet sockets of a host.
fn packet_sockets(host: &Host) -> Result<Vec<String>, LabError> {
    let table = host.output("cat", &["/proc/self/net/packet"])?;
    Ok(table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(8))
        .map(str::to_owned)
        .collect())
}

/// Returns the number of mapped rings of these sockets in this process, and of open descriptors.
fn rings_and_descriptors(sockets: &[String]) -> (usize, usize) {
    let is_one =
        |text: &str| sockets.iter().any(|inode| text.contains(&format!("socket:[{inode}]")));
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let files = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    (
        maps.lines().filter(|line| is_one(line)).count(),
        targets.filter(|target| is_one(&target.to_string_lossy())).count(),
    )
}

/// Returns the promiscuity count of a device.
fn promiscuity(link: &Link) -> Result<u32, LabError> {
    let text = link.host().output("ip", &["-d", "link", "show", "dev", link.name()])?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "promiscuity");
    Ok(words.nth(1).and_then(|number| number.parse().ok()).expect("a number"))
}

/// Runs TCP in both directions between A and B for a time, with workers. Meanwhile calls `change`
/// repeatedly, with the number of earlier calls.
fn changes_under_load(
    joined: &Joined,
    cpus: [Cpu; 2],
    rounds: usize,
    mut change: impl FnMut(usize) -> Result<(), LabError>,
) -> Result<(), LabError> {
    let done = AtomicBool::new(false);
    let all = cpus.into_iter().collect();
    steer(joined, &all)?;
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (until, stall) = (Until::Time(Duration::from_secs(1)), Duration::from_secs(20));
                let load = TcpBulk {
                    until,
                    flows: 4,
                    direction: Direction::Both,
                    verify: Some(KEY),
                    stall,
                    ..TcpBulk::default()
                };
                match load.run(&joined.route()) {
                    Ok(_) => {}
                    // A connection may be given up after too much loss, and none is made while a
                    // host's interface is replaced. Another follows.
                    Err(LabError::System { .. } | LabError::Stalled { .. }) => {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let mut changed = Ok(());
        for round in 0..rounds {
            let before = joined.stats(0).rx_packets;
            joined.wait("packets flow", |joined| joined.stats(0).rx_packets > before + 200);
            changed = change(round).and_then(|()| steer(joined, &all));
            if changed.is_err() {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        load.join().expect("no panic")?;
        changed
    })
}

#[test]
fn ports_that_come_and_go_under_load_leave_no_ring_socket_or_promiscuity() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    let Some(joined) = by_packet()? else { return Ok(()) };
    let [_, side] = joined.sides.as_ref().expect("veth pairs");
    joined.carries(1, 1 << 20)?;
    steer(&joined, &cpus.into_iter().collect())?;
    let before = packet_sockets(&joined.middle)?;
    let (rings, descriptors) = rings_and_descriptors(&before);
    assert!(rings >= 2 && descriptors > rings, "{rings} rings, {descriptors} descriptors");
    changes_under_load(&joined, cpus, 25, |_| {
        let port = joined.bridge.settings().ports[1].clone();
        joined.middle.run(|| {
            joined.bridge.remove_port(&joined.names[1]).expect("it is there");
            joined.bridge.add_port(port).expect("it is gone");
            Ok(())
        })
    })?;
    joined.wait("what closed ports had is given back", |joined| {
        let sockets = packet_sockets(&joined.middle).expect("sockets of packet(7)");
        (sockets.len(), rings_and_descriptors(&sockets)) == (before.len(), (rings, descriptors))
    });
    assert_eq!(promiscuity(side)?, 1, "the open port's");
    joined.carries(1, 1 << 20)
}

/// Returns the resident memory of this process in KiB, after the allocator has returned free
/// memory.
fn resident() -> u64 {
    superpacket_port::system::give_back_freed_memory();
    let status = std::fs::read_to_string("/proc/self/status").expect("of this process");
    let line =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn an_interface_that_flaps_under_load_costs_no_memory() -> Result<(), LabError> {
    // Runs in a separate process, whose memory other tests do not change.
    const ALONE: &str = "SUPERPACKET_TEST_FLAPS";
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().expect("this program");
        let test =
            ["ports::an_interface_that_flaps_under_load_costs_no_memory", "--exact", "--nocapture"];
        let status = std::process::Command::new(program)
            .args(test)
            .env(ALONE, "1")
            .status()
            .expect("it runs now");
        assert!(status.success(), "it failed in a process of its own");
        return Ok(());
    }
    let Some(cpus) = two_cpus() else { return Ok(()) };
    let Some(joined) = by_packet()? else { return Ok(()) };
    let (address, mut measured) = (joined.b.link.mac()?, Vec::new());
    changes_under_load(&joined, cpus, 24, |round| {
        let side = joined.middle.link("port-b");
        side.delete()?;
        joined.wait("the port is missed", |joined| joined.bridge.ports()[1].state == "gone");
        let (b, _) = Link::veth(&joined.b.host, "eth0", &joined.middle, "port-b")?;
        // B's address stays, so that A finds B at once.
        b.set_mac(address)?;
        joined.wait("the port is back", |joined| {
            joined.bridge.ports()[1].reopened == round as u64 + 1
        });
        Station::new(b, 2)?;
        measured.push(resident());
        Ok(())
    })?;
    // The initial memory of threads and sockets is allocated after four flaps.
    let (first, last) = (measured[3], measured[measured.len() - 1]);
    assert!(last < first + (8 << 10), "KiB after each flap: {measured:?}");
    let sockets = packet_sockets(&joined.middle)?;
    assert!(rings_and_descriptors(&sockets).0 <= 4, "{sockets:?}");
    Ok(())
}
