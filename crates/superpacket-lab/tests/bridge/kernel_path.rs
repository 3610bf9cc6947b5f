//! Frames that the kernel forwards by itself between known stations.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use superpacket_bridge::fdb::FdbFilter;
use superpacket_bridge::monitor::MonitorSettings;
use superpacket_bridge::report::{KernelPathReport, PortStats};
use superpacket_bridge::settings::{KernelPathMode, PortChange, PortSettings, SettingValue};
use superpacket_lab::{
    Blast, Direction, LabError, RawOptions, RawSocket, TcpBulk, TcpTransactions, Until,
};
use superpacket_port::features::Feature;
use superpacket_steer::CpuMask;

use crate::joined::{Joined, KEY, by_packet_asked};

/// Joins two hosts by packet sockets, between which the kernel may forward; `None` if the machine
/// forbids it.
pub fn by_kernel() -> Result<Option<Joined>, LabError> {
    let joined = by_packet_asked(
        |_| Ok(()),
        |ports| ports.iter_mut().for_each(|port| port.kernel_path = KernelPathMode::Auto),
    )?;
    let Some(joined) = joined else { return Ok(None) };
    let report = report(&joined, 0);
    if report.reason.as_deref().is_some_and(|reason| reason.contains("CAP_BPF")) {
        assert!(std::env::var_os("CI").is_none(), "the kernel's path needs privileges: {report:?}");
        eprintln!("SKIPPED: {report:?}");
        return Ok(None);
    }
    Ok(Some(joined))
}

fn report(joined: &Joined, side: usize) -> KernelPathReport {
    let features = joined.bridge.features();
    let port = features.iter().find(|features| features.port == joined.names[side]);
    port.and_then(|port| port.kernel_path.clone()).expect("each port of a bridge reports it")
}

/// Packets from the port to A that the bridge forwarded, and that the kernel did.
fn shares(stats: &PortStats) -> [u64; 2] {
    [stats.rx_packets - stats.kernel_rx_packets, stats.kernel_rx_packets]
}

/// Sends requests for a moment, and returns by which way their packets went: how many were
/// forwarded by the bridge, and how many by the kernel.
fn ways(joined: &Joined) -> Result<[u64; 2], LabError> {
    let before = shares(&joined.stats(0));
    let load = TcpTransactions {
        connections: 1,
        time: Duration::from_millis(200),
        verify: Some(KEY),
        ..TcpTransactions::default()
    };
    load.run(&joined.route())?;
    let after = shares(&joined.stats(0));
    Ok([after[0] - before[0], after[1] - before[1]])
}

/// Waits until requests go by the kernel.
fn wait_for_the_kernel(joined: &Joined) -> Result<(), LabError> {
    let start = Instant::now();
    loop {
        let [bridge, kernel] = ways(joined)?;
        if kernel > 20 * bridge.max(1) {
            return Ok(());
        }
        let report = report(joined, 0);
        assert!(start.elapsed() < Duration::from_secs(10), "{bridge} and {kernel}: {report:?}");
    }
}

#[test]
fn the_kernel_forwards_between_known_stations() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    joined.carries(8, 4 << 20)?;
    let [bridge, kernel] = shares(&joined.stats(0));
    assert!(kernel > 10 * bridge, "{bridge} and {kernel}");
    let [a, b] = [joined.stats(0), joined.stats(1)];
    assert!(a.kernel_rx_bytes > 16 << 20 && b.kernel_tx_bytes == a.kernel_rx_bytes, "{a:?} {b:?}");
    assert_eq!(a.kernel_tx_packets, b.kernel_rx_packets);
    assert!(a.rx_bytes >= a.kernel_rx_bytes && b.tx_packets >= b.kernel_tx_packets);
    // The device merges what the bridge would have merged.
    let sides = joined.sides.as_ref().expect("veth");
    assert!(sides[0].feature("generic-receive-offload")?);
    joined.a.link.set_feature("tcp-segmentation-offload", false)?;
    joined.carries(2, 4 << 20)?;
    let (before, after) = (a.kernel_rx_packets, joined.stats(0).kernel_rx_packets);
    assert!(after - before < (8 << 20) / 1448 / 2, "{} packets of 8 MiB", after - before);
    let Joined { bridge, .. } = &joined;
    bridge
        .set_feature(&joined.names[0], Feature::GenericReceiveOffload, false, false)
        .expect("can");
    assert!(!sides[0].feature("generic-receive-offload")?, "restored");
    Ok(())
}

/// Each setting whose work only the bridge does, by the part of the reason that names it.
#[test]
fn the_bridge_forwards_whatever_needs_it() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    let name = joined.names[0].clone();
    let number = SettingValue::Number;
    let (on, off) = (SettingValue::Switch(true), SettingValue::Switch(false));
    for (setting, value, restored) in [
        ("kernel_path", off.clone(), "auto".into()),
        ("rx_packet_rate", number(1_000_000_000), number(0)),
        ("tx_byte_rate", number(1_000_000_000_000), number(0)),
        ("learning", off.clone(), on.clone()),
        ("gro_max_size", number(30_000), number(65_535)),
        ("gso_max_size", number(30_000), number(0)),
        ("gro_flush_timeout", number(20_000), number(0)),
        ("gap_timeout", number(20_000), number(0)),
        ("gro_past_push", on.clone(), off.clone()),
        ("gro_udp_no_checksum", on, off),
    ] {
        let set = |value| {
            joined.bridge.set_port(&name, &PortChange::setting(setting, value)).expect("it can be")
        };
        set(value);
        let ([_, kernel], report) = (ways(&joined)?, report(&joined, 0));
        assert!(kernel == 0 && !report.active, "{setting}: {kernel} {report:?}");
        assert!(report.reason.is_some(), "{setting}: {report:?}");
        set(restored);
        wait_for_the_kernel(&joined)?;
    }
    for (feature, on) in [
        (Feature::RxChecksumming, false),
        (Feature::TxChecksumming, false),
        (Feature::ScatterGather, false),
        (Feature::LargeReceiveOffload, true),
        (Feature::RxUdpGroForwarding, true),
    ] {
        joined.switch(0, feature, on);
        let [_, kernel] = ways(&joined)?;
        assert_eq!(kernel, 0, "{feature:?}");
        let reason = report(&joined, 0).reason.expect("it is not active");
        assert!(reason.contains(feature.name()), "{reason}");
        joined.switch(0, feature, !on);
        wait_for_the_kernel(&joined)?;
    }
    // A port that takes no super-packets gets single frames of the kernel, and super-packets of the
    // bridge, which segments them.
    joined.switch(1, Feature::TcpSegmentationOffload, false);
    let before = joined.stats(1);
    joined.carries(2, 4 << 20)?;
    let after = joined.stats(1);
    assert!(after.segmented > before.segmented, "{after:?}");
    Ok(())
}

#[test]
fn a_monitor_sees_every_packet() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    let ports = [joined.names[1].clone()].into_iter().collect();
    let settings = MonitorSettings { ports, ..MonitorSettings::default() };
    let monitor = joined.bridge.monitor(&settings).expect("it can be started");
    let [bridge, kernel] = ways(&joined)?;
    assert!(kernel == 0 && bridge > 10, "{bridge} and {kernel}");
    assert!(report(&joined, 1).reason.is_some_and(|reason| reason.contains("monitored")));
    drop(monitor);
    wait_for_the_kernel(&joined)
}

#[test]
fn a_masked_queue_is_steered_by_the_bridge() -> Result<(), LabError> {
    let Some(cpus) = crate::steering::two_cpus() else { return Ok(()) };
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    crate::steering::steer(&joined, &cpus.into_iter().collect())?;
    assert_eq!(ways(&joined)?[1], 0);
    crate::steering::steer(&joined, &CpuMask::default())?;
    wait_for_the_kernel(&joined)
}

#[test]
fn isolated_ports_exchange_nothing() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    for name in &joined.names {
        let isolated = PortChange::setting("isolated", true);
        joined.bridge.set_port(name, &isolated).expect("it can be set");
    }
    let before = [joined.stats(0), joined.stats(1)];
    let receiver = joined.datagram_receiver(7000, Duration::from_millis(300))?;
    let sender = joined.a.host.run(|| {
        UdpSocket::bind((joined.a.ipv4, 0)).map_err(|error| LabError::system("binding", error))
    })?;
    for _ in 0..20 {
        let to = SocketAddr::new(joined.b.ipv4, 7000);
        sender.send_to(b"isolated", to).map_err(|error| LabError::system("sending", error))?;
    }
    let received = receiver.recv(&mut [0; 16]).map_err(|error| error.kind());
    assert_eq!(received, Err(io::ErrorKind::WouldBlock));
    let after = [joined.stats(0), joined.stats(1)];
    assert_eq!(before[0].kernel_rx_packets, after[0].kernel_rx_packets);
    assert!(after[0].drops["forwarding"] >= before[0].drops["forwarding"] + 20, "{after:?}");
    Ok(())
}

/// A station that appears at another port, and one whose port leaves.
#[test]
fn a_station_that_moves_takes_its_frames_along() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    let c = joined.third()?;
    wait_for_the_kernel(&joined)?;
    // C takes B's hardware address and addresses, after B has fallen silent.
    joined.b.link.down()?;
    std::thread::sleep(Duration::from_millis(1200));
    c.link.set_mac([2, 0, 0, 0, 0, 2])?;
    c.link.add_address("10.77.0.2/16")?;
    let load = TcpBulk { until: Until::Bytes(1 << 20), verify: Some(KEY), ..TcpBulk::default() };
    let to = superpacket_lab::Station { ipv4: joined.b.ipv4, ..c };
    load.run(&superpacket_lab::Route::ipv4(&joined.a, &to))?;
    Ok(())
}

/// A station whose address is seen at a second port while it is silent: its frames go to both, by
/// the bridge, until it is heard again.
#[test]
fn a_disputed_station_is_the_bridges() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    let c = joined.third()?;
    wait_for_the_kernel(&joined)?;
    let socket = RawSocket::open(&c.link, RawOptions::default())?;
    let as_b = Blast::minimal([0xff; 6], joined.b.link.mac()?).frame;
    let start = Instant::now();
    while joined.stats(0).disputed == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", joined.stats(0));
        std::thread::sleep(Duration::from_millis(1500));
        socket.send(&[&as_b])?;
        std::thread::sleep(Duration::from_millis(20));
        ways(&joined)?;
    }
    wait_for_the_kernel(&joined)
}

/// A lone packet port has no programs. When a second one comes, it is opened again on request.
#[test]
fn a_lone_port_joins_when_it_is_told_to() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    let string = joined.names[1].parse().expect("a port string");
    joined.middle.run(|| {
        joined.bridge.remove_port(&joined.names[0]).expect("it is there");
        let path = PortChange::setting("kernel_path", "off");
        joined.bridge.set_port(&joined.names[1], &path).expect("it can be set");
        let path = PortChange::setting("kernel_path", "auto");
        joined.bridge.set_port(&joined.names[1], &path).expect("it can be set");
        joined.bridge.remove_port(&joined.names[1]).expect("it is there");
        joined.bridge.add_port(PortSettings::new(string)).expect("it can be opened");
        let first = joined.names[0].parse().expect("a port string");
        joined.bridge.add_port(PortSettings::new(first)).expect("it can be opened");
        let reason = report(&joined, 1).reason.expect("it was alone");
        assert!(reason.contains("no other packet port"), "{reason}");
        joined.bridge.set_port(&joined.names[1], &path).expect("it can be set");
        Ok::<_, LabError>(())
    })?;
    wait_for_the_kernel(&joined)
}

#[test]
fn forgotten_stations_and_removed_ports_are_the_bridges() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    let [bridge, _] = shares(&joined.stats(0));
    let forgotten = joined.bridge.flush_fdb(&FdbFilter::default()).expect("it can be flushed");
    assert!(forgotten >= 2, "{forgotten}");
    ways(&joined)?;
    assert!(shares(&joined.stats(0))[0] > bridge, "the stations are learned again");
    wait_for_the_kernel(&joined)?;
    joined.bridge.remove_port(&joined.names[1]).expect("it is there");
    let [_, kernel] = shares(&joined.stats(0));
    let sender = joined.a.host.run(|| {
        UdpSocket::bind((joined.a.ipv4, 0)).map_err(|error| LabError::system("binding", error))
    })?;
    joined.a.link.set_neighbour(joined.b.ipv4, joined.b.link.mac()?)?;
    for _ in 0..20 {
        let to = SocketAddr::new(joined.b.ipv4, 7000);
        sender.send_to(b"gone", to).map_err(|error| LabError::system("sending", error))?;
    }
    assert_eq!(shares(&joined.stats(0))[1], kernel);
    let reason = report(&joined, 0).reason.expect("it is not active");
    assert!(reason.contains("no other port"), "{reason}");
    Ok(())
}

/// Number of datagrams that are sent while paths change: a million in CI.
fn datagrams() -> u64 {
    if std::env::var_os("CI").is_some() { 1_000_000 } else { 200_000 }
}

#[test]
fn datagrams_arrive_once_and_in_order_while_paths_change() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    wait_for_the_kernel(&joined)?;
    let change = |done: &AtomicBool| {
        let mut changes = 0u64;
        while !done.load(Ordering::Relaxed) {
            let mode: SettingValue = if changes.is_multiple_of(2) { "off" } else { "auto" }.into();
            let change = PortChange::setting("kernel_path", mode);
            let name = &joined.names[(changes / 2) as usize % 2];
            joined.bridge.set_port(name, &change).expect("it can be set");
            changes += 1;
            // Long enough for the kernel's path to return.
            std::thread::sleep(Duration::from_millis(if changes.is_multiple_of(2) {
                300
            } else {
                5
            }));
        }
        changes
    };
    let (sent, changes) = joined.datagrams(|sent| sent < datagrams(), change)?;
    assert_eq!(sent, datagrams());
    let [bridge, kernel] = shares(&joined.stats(0));
    eprintln!("{changes} changes, {bridge} datagrams by the bridge, {kernel} by the kernel");
    assert!(changes > 10 && bridge > 1000 && kernel > 1000, "{changes}, {bridge}, {kernel}");
    Ok(())
}

#[test]
fn bytes_are_intact_while_paths_change() -> Result<(), LabError> {
    let Some(joined) = by_kernel()? else { return Ok(()) };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<(), LabError> {
        let changer = scope.spawn(|| {
            // The kernel's path returns up to half a second after it is allowed.
            let modes = [("off", 250), ("auto", 800)].into_iter().cycle();
            for (mode, time) in modes.take_while(|_| !done.load(Ordering::Relaxed)) {
                let change = PortChange::setting("kernel_path", mode);
                joined.bridge.set_port(&joined.names[0], &change).expect("it can be set");
                std::thread::sleep(Duration::from_millis(time));
            }
        });
        let load = TcpBulk {
            flows: 8,
            direction: Direction::Both,
            until: Until::Time(Duration::from_secs(4)),
            verify: Some(KEY),
            ..TcpBulk::default()
        };
        let report = load.run(&joined.route());
        done.store(true, Ordering::Relaxed);
        changer.join().expect("no panic");
        report.map(drop)
    })?;
    let ways: BTreeSet<bool> = shares(&joined.stats(0)).into_iter().map(|way| way > 100).collect();
    assert_eq!(ways, BTreeSet::from([true]), "{:?}", joined.stats(0));
    Ok(())
}
