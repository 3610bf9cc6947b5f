//! Loads between hosts: every byte arrives in every mode, and failures are reported.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use superpacket_lab::{
    Direction, LabError, Link, PatternFile, Pinning, RawOptions, RawSocket, Receive, Route, Source,
    TcpBulk, TcpOptions, TcpTransactions, ThreeHosts, TwoHosts, UdpBulk, Until, Wire, WireSettings,
    allowed_cpus, available_or_skip, enter_user_namespace_before_main,
};

enter_user_namespace_before_main!();

const SHORT: Until = Until::Time(Duration::from_millis(300));

#[test]
fn tcp_both_ways_at_once_over_both_versions() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    for route in [Route::ipv4(&hosts.a, &hosts.b), Route::ipv6(&hosts.a, &hosts.b)] {
        for direction in [Direction::Both, Direction::Duplex] {
            let report = TcpBulk { direction, verify: Some(1), until: SHORT, ..TcpBulk::default() }
                .run(&route)?;
            for way in [&report.forward, &report.reverse] {
                let way = way.as_ref().ok_or_else(|| {
                    LabError::system("a direction is missing", std::io::ErrorKind::NotFound)
                })?;
                assert!(way.bytes > 1 << 20, "{way:?}");
                assert!(way.flows.iter().all(|flow| flow.digest.is_some()), "{way:?}");
                assert!(way.seconds >= 0.3 && way.gigabits_per_second() > 0.0);
                assert!(way.sender_service_demand() > 0.0 && way.receiver_utilisation() > 0.0);
            }
            let digest = |way: &Option<superpacket_lab::DirectionReport>| {
                way.as_ref().and_then(|way| way.flows[0].digest)
            };
            assert_ne!(
                digest(&report.forward),
                digest(&report.reverse),
                "each way has bytes of its own"
            );
        }
    }
    Ok(())
}

#[test]
fn two_hundred_flows() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let load = TcpBulk {
        flows: 200,
        threads: 2,
        verify: Some(2),
        until: Until::Bytes(300_001),
        ..TcpBulk::default()
    };
    let report = load.run(&Route::ipv4(&hosts.a, &hosts.b))?;
    assert_eq!(report.bytes(), 200 * 300_001);
    assert!(report.forward.is_some_and(
        |way| way.flows.len() == 200 && way.flows.iter().all(|flow| flow.bytes == 300_001)
    ));
    assert!(report.machine.total.busy() > 0.0);
    Ok(())
}

#[test]
fn a_file_by_sendfile() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let file = PatternFile::new(5_000_011, 3)?;
    let load = TcpBulk {
        source: Source::File(Arc::clone(&file)),
        until: Until::Bytes(2 * file.size() + 17),
        verify: Some(0),
        direction: Direction::Reverse,
        ..TcpBulk::default()
    };
    let report = load.run(&Route::ipv4(&hosts.a, &hosts.b))?;
    assert!(report.forward.is_none());
    assert_eq!(report.bytes(), 2 * file.size() + 17);
    Ok(())
}

#[test]
fn socket_options_and_pinning_are_in_force() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let route = Route::ipv4(&hosts.a, &hosts.b);
    let meter = Arc::new(AtomicU64::new(0));
    let load = TcpBulk {
        options: TcpOptions {
            maximum_segment_size: Some(536),
            quick_acknowledgements: true,
            ..TcpOptions::default()
        },
        receive: Receive::Discard,
        pinning: Pinning { client: allowed_cpus()?, server: allowed_cpus()? },
        until: Until::Bytes(1 << 22),
        meter: Some(Arc::clone(&meter)),
        ..TcpBulk::default()
    };
    let report = load.run(&route)?;
    assert_eq!(meter.load(Ordering::Relaxed), 1 << 22);
    // The timestamp option takes 12 bytes of each segment.
    assert!(report.forward.is_some_and(|way| (500..=536).contains(&way.flows[0].segment_size)));

    let unknown = TcpBulk {
        options: TcpOptions { congestion_control: "no-such".into(), ..TcpOptions::default() },
        ..TcpBulk::default()
    };
    assert!(unknown.run(&route).is_err_and(|error| error.is_unavailable()));
    let absurd = TcpBulk { receive: Receive::Discard, verify: Some(1), ..TcpBulk::default() };
    assert!(matches!(absurd.run(&route), Err(LabError::Invalid { .. })));
    Ok(())
}

#[test]
fn requests_and_answers_of_all_sizes() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let time = Duration::from_millis(200);
    for (connections, request, answer) in
        [(1, 1, 1), (100, 1, 1), (5, 100, 200_000), (5, 1_000_000, 3)]
    {
        let load = TcpTransactions {
            connections,
            request,
            answer,
            time,
            verify: Some(4),
            ..TcpTransactions::default()
        };
        let report = load.run(&Route::ipv6(&hosts.a, &hosts.b))?;
        assert!(
            report.transactions >= connections as u64,
            "{connections} connections: {}",
            report.transactions
        );
        assert!(
            report.seconds >= 0.2 && report.per_second() > 0.0 && report.service_demand() > 0.0
        );
        assert!(
            report.latency.percentile(0.5) <= report.latency.longest()
                && !report.latency.mean().is_zero()
        );
    }
    Ok(())
}

#[test]
fn connections_are_spread_over_threads_at_both_ends() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let route = Route::ipv4(&hosts.a, &hosts.b);
    let cpus = allowed_cpus()?;
    let load = TcpTransactions {
        connections: 7,
        time: Duration::from_millis(100),
        verify: Some(3),
        ..TcpTransactions::default()
    };
    let one_cpu = Pinning { client: cpus[..1].to_vec(), server: Vec::new() };
    let all = cpus.len().min(7);
    for (threads, pinning, expected) in [
        (Some(3), Pinning::default(), (3, 3)),
        (Some(2), one_cpu.clone(), (2, 2)),
        // No thread is without a connection.
        (Some(20), Pinning::default(), (7, 7)),
        (None, Pinning::default(), (all, all)),
        (None, one_cpu, (1, all)),
    ] {
        let report = TcpTransactions { threads, pinning, ..load.clone() }.run(&route)?;
        let used = (report.client_threads.len(), report.server_threads.len());
        assert_eq!(used, expected, "{threads:?}");
        assert!(report.transactions >= 7 && report.seconds >= 0.1, "{report:?}");
        // Every thread worked, and its connections are part of the result.
        let threads = report.client_threads.iter().chain(&report.server_threads);
        assert!(threads.clone().all(|cpu| !cpu.total().is_zero()), "{report:?}");
        assert_eq!(report.client() + report.server(), threads.copied().sum());
        assert!(report.busiest_thread() > 0.0 && report.busiest_thread() < 1.5, "{report:?}");
    }
    let none = TcpTransactions { threads: Some(0), ..load }.run(&route);
    assert!(matches!(none, Err(LabError::Invalid { .. })), "{none:?}");
    Ok(())
}

/// The thread that fails stops all others, on both sides, and its error is the result.
#[test]
fn a_failure_in_one_of_many_threads_ends_the_load() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let server = hosts.b.host.run(|| {
        TcpListener::bind((hosts.b.ipv4, 0)).map_err(|error| LabError::system("listening", error))
    })?;
    let address = server.local_addr().map_err(|error| LabError::system("the port", error))?;
    let load = TcpTransactions {
        connections: 4,
        threads: Some(4),
        time: Duration::from_secs(60),
        ..TcpTransactions::default()
    };
    let started = std::time::Instant::now();
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            for (number, mut connection) in server.incoming().take(4).flatten().enumerate() {
                scope.spawn(move || {
                    let mut answers = 0;
                    while connection.read_exact(&mut [0]).is_ok()
                        && (number != 2 || answers < 10)
                        && connection.write_all(b"x").is_ok()
                    {
                        answers += 1;
                    }
                });
            }
        });
        load.run_client(&hosts.a.host, address)
    });
    let error = result.expect_err("the third connection ends early");
    assert!(matches!(error, LabError::Corrupted { flow: 2, .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    Ok(())
}

#[test]
fn a_client_asks_a_server_that_is_none_of_the_labs() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let server = hosts.b.host.run(|| {
        TcpListener::bind((hosts.b.ipv4, 0)).map_err(|error| LabError::system("listening", error))
    })?;
    let address = server.local_addr().map_err(|error| LabError::system("the port", error))?;
    let load = TcpTransactions {
        connections: 3,
        request: 5,
        answer: 2,
        time: Duration::from_millis(100),
        ..TcpTransactions::default()
    };
    let answered = AtomicU64::new(0);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            for mut connection in server.incoming().take(3).flatten() {
                let answered = &answered;
                scope.spawn(move || {
                    while connection.read_exact(&mut [0; 5]).is_ok()
                        && connection.write_all(b"ok").is_ok()
                    {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        load.run_client(&hosts.a.host, address)
    })?;
    assert!(report.transactions >= 3);
    assert_eq!(report.transactions, answered.into_inner());
    let error = TcpTransactions { verify: Some(1), ..load }
        .run_client(&hosts.a.host, address)
        .expect_err("no pattern can be asked for");
    assert!(error.to_string().contains("verify"), "{error}");
    Ok(())
}

#[test]
fn datagrams_one_by_one_and_in_batches() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    for route in [Route::ipv4(&hosts.a, &hosts.b), Route::ipv6(&hosts.a, &hosts.b)] {
        for (segments, gro) in [(1, false), (32, false), (32, true)] {
            let load = UdpBulk {
                segments,
                gro,
                flows: 2,
                // Pinned to one CPU: a thread that moves may be overtaken by its own packets.
                pinning: Pinning { client: allowed_cpus()?[..1].to_vec(), server: Vec::new() },
                verify: Some(5),
                time: Duration::from_millis(300),
                datagrams_per_second: Some(20_000.0),
                ..UdpBulk::default()
            };
            let report = load.run(&route)?;
            assert!(report.sent > 0 && report.received > report.sent / 2, "{report:?}");
            assert_eq!(
                (report.out_of_order, report.duplicates),
                (0, 0),
                "a veth pair keeps order: {report:?}"
            );
            assert_eq!(report.bytes, report.received * 1400);
            // The super-packet crosses the veth pair whole, and the receiver gets what it
            // requested.
            assert_eq!(report.merged_calls > 0, gro, "{report:?}");
            assert!(report.most_merged <= segments as u64 || !gro, "{report:?}");
        }
    }
    Ok(())
}

#[test]
fn a_kernel_bridge_carries_all_kinds_at_once() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let Some(_bridge) = available_or_skip(hosts.with_kernel_bridge()) else { return Ok(()) };
    let route = Route::ipv6(&hosts.a, &hosts.b);
    std::thread::scope(|scope| {
        let bulk = scope.spawn(|| {
            TcpBulk {
                direction: Direction::Both,
                verify: Some(6),
                until: SHORT,
                ..TcpBulk::default()
            }
            .run(&route)
        });
        let requests = TcpTransactions {
            connections: 10,
            time: Duration::from_millis(300),
            verify: Some(7),
            ..TcpTransactions::default()
        };
        assert!(requests.run(&route)?.transactions > 10);
        bulk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(drop)
    })
}

#[test]
fn a_bad_wire_loses_frames_but_no_bytes() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let settings = WireSettings {
        loss: 0.01,
        duplicate: 0.01,
        reorder: 0.02,
        seed: 1,
        ..WireSettings::default()
    };
    let wire = Wire::join(&hosts.a_side, &hosts.b_side, settings)?;
    for station in [&hosts.a, &hosts.b] {
        station.link.set_feature("tso", false)?;
    }
    let load = TcpBulk {
        flows: 4,
        direction: Direction::Both,
        verify: Some(8),
        until: Until::Bytes(2_000_000),
        ..TcpBulk::default()
    };
    let report = load.run(&Route::ipv4(&hosts.a, &hosts.b))?;
    let counters = wire.counters();
    assert!(counters.lost > 0 && counters.duplicated > 0 && counters.reordered > 0, "{counters:?}");
    let again: u32 = report
        .forward
        .iter()
        .chain(&report.reverse)
        .flat_map(|way| &way.flows)
        .map(|flow| flow.retransmitted_segments)
        .sum();
    assert!(again > 0, "what was lost was sent again: {counters:?}");

    let datagrams = UdpBulk {
        time: Duration::from_millis(300),
        datagrams_per_second: Some(5_000.0),
        verify: Some(9),
        ..UdpBulk::default()
    };
    let report = datagrams.run(&Route::ipv4(&hosts.a, &hosts.b))?;
    assert!(report.lost() > 0 && report.duplicates > 0 && report.out_of_order > 0, "{report:?}");
    Ok(())
}

/// The checksum is filled in after the corruption, so that only the comparison of bytes finds it.
#[test]
fn a_corrupted_byte_is_found_where_it_is() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let route = Route::ipv4(&hosts.a, &hosts.b);
    let file = PatternFile::new(100_000, 12)?;
    let bytes = Until::Bytes(8 << 20);
    let wire = Wire::join(
        &hosts.a_side,
        &hosts.b_side,
        WireSettings { corrupt: 0.2, ..WireSettings::default() },
    )?;
    for source in [Source::Memory, Source::File(file)] {
        let load = TcpBulk { verify: Some(12), until: bytes, source, ..TcpBulk::default() };
        let error = load.run(&route).err();
        assert!(matches!(error, Some(LabError::Corrupted { flow: 0, .. })), "{error:?}");
        assert!(error.is_some_and(|error| error.to_string().contains("is not the one sent")));
    }
    let requests =
        TcpTransactions { request: 1000, verify: Some(12), ..TcpTransactions::default() };
    assert!(matches!(requests.run(&route), Err(LabError::Corrupted { .. })));
    let datagrams =
        UdpBulk { verify: Some(12), datagrams_per_second: Some(2_000.0), ..UdpBulk::default() };
    assert!(matches!(datagrams.run(&route), Err(LabError::Corrupted { .. })));
    assert!(wire.counters().corrupted > 0);
    Ok(())
}

#[test]
fn a_delay_shows_in_the_answers() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let settings = WireSettings { delay: Duration::from_millis(5), ..WireSettings::default() };
    let _wire = Wire::join(&hosts.a_side, &hosts.b_side, settings)?;
    let requests =
        TcpTransactions { time: Duration::from_millis(200), ..TcpTransactions::default() };
    let report = requests.run(&Route::ipv4(&hosts.a, &hosts.b))?;
    assert!(
        report.latency.percentile(0.5) >= Duration::from_millis(10),
        "{:?}",
        report.latency.percentile(0.5)
    );
    Ok(())
}

/// Needs no VLAN devices: one wire tags A's frames, and another removes the tag in front of B.
#[test]
fn hosts_without_vlan_devices_talk_on_a_vlan() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(()) };
    let (trunk_a, trunk_b) = Link::veth(&hosts.middle, "trunk-a", &hosts.middle, "trunk-b")?;
    let tagging = WireSettings { vlan: Some(7), ..WireSettings::default() };
    let wires = [
        Wire::join(&hosts.a_side, &trunk_a, tagging)?,
        Wire::join(&hosts.b_side, &trunk_b, tagging)?,
    ];
    let trunk =
        RawSocket::open(&trunk_b, RawOptions { vnet_headers: true, ..RawOptions::default() })?;
    let load = TcpBulk {
        direction: Direction::Both,
        verify: Some(10),
        until: Until::Bytes(1 << 20),
        ..TcpBulk::default()
    };
    for route in [Route::ipv4(&hosts.a, &hosts.b), Route::ipv6(&hosts.a, &hosts.b)] {
        load.run(&route)?;
    }
    let frames = trunk.capture(Duration::from_millis(50), usize::MAX)?.frames;
    let tagged = frames.iter().filter(|frame| frame.vlan.is_some_and(|tag| tag.control == 7));
    let whole = tagged.clone().filter(|frame| frame.bytes.len() > 1514).count();
    // Frames that the middle host sends by itself (IPv6 neighbour discovery) have no tag.
    assert!(tagged.count() > 100 && whole > 10, "{whole} tagged super-packets");
    assert!(wires.iter().all(|wire| wire.counters().lost == 0));
    Ok(())
}

#[test]
fn kernel_vlan_devices() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    for (station, address) in [(&hosts.a, "10.78.0.1/24"), (&hosts.b, "10.78.0.2/24")] {
        let Some(vlan) = available_or_skip(station.link.vlan("eth0.5", 5)) else { return Ok(()) };
        vlan.add_address(address)?;
    }
    let route =
        Route { client: &hosts.a.host, server: &hosts.b.host, address: [10, 78, 0, 2].into() };
    TcpBulk { direction: Direction::Both, verify: Some(11), until: SHORT, ..TcpBulk::default() }
        .run(&route)
        .map(drop)
}

#[test]
fn a_stalled_flow_is_an_error_that_says_where() -> Result<(), LabError> {
    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let route = Route::ipv4(&hosts.a, &hosts.b);
    let meter = Arc::new(AtomicU64::new(0));
    let load = TcpBulk {
        until: Until::Time(Duration::from_secs(20)),
        stall: Duration::from_millis(400),
        meter: Some(Arc::clone(&meter)),
        ..TcpBulk::default()
    };
    let result = std::thread::scope(|scope| {
        let running = scope.spawn(|| load.run(&route));
        while meter.load(Ordering::Relaxed) < 1 << 20 && !running.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        hosts.b.link.down()?;
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let Err(LabError::Stalled { flow: 0, bytes, waiting: 1, .. }) = result else {
        panic!("no stall was reported: {result:?}")
    };
    assert!(bytes >= 1 << 20, "{bytes}");

    let Some(hosts) = available_or_skip(TwoHosts::new()) else { return Ok(()) };
    let route = Route::ipv4(&hosts.a, &hosts.b);
    let time = Duration::from_secs(20);
    let requests = TcpTransactions {
        stall: Duration::from_millis(300),
        time,
        connections: 3,
        threads: Some(1),
        ..TcpTransactions::default()
    };
    let result = std::thread::scope(|scope| {
        let running = scope.spawn(|| requests.run(&route));
        // Far more packets than connecting takes.
        while hosts.b.link.statistics()?.rx_packets < 1000 && !running.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        hosts.b.link.down()?;
        Ok(running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    assert!(matches!(result, Err(LabError::Stalled { waiting: 3, .. })), "{result:?}");
    Ok(())
}
