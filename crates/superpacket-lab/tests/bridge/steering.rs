//! Packets steered to workers while hosts communicate.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use superpacket_bridge::report::SteeringReport;
use superpacket_bridge::settings::{InPlace, NamedSettings, PortChange, UsableCpus};
use superpacket_lab::{Direction, LabError, TcpBulk, TcpTransactions, Until};
use superpacket_steer::{Cpu, CpuMask};

use crate::joined::{Joined, KEY, by_packet, by_tap};

/// Returns two CPUs for workers. With only one CPU it prints a message and returns `None`, or fails
/// if the environment variable `CI` is set.
pub fn two_cpus() -> Option<[Cpu; 2]> {
    let usable = UsableCpus::read().mask();
    let mut cpus = usable.iter();
    match (cpus.next(), cpus.next()) {
        (Some(first), Some(second)) => Some([first, second]),
        _ => {
            assert!(std::env::var_os("CI").is_none(), "steering needs two CPUs");
            eprintln!("SKIPPED: this machine lets the process use one CPU only");
            None
        }
    }
}

/// Returns the masks of two CPUs.
fn masks([first, second]: [Cpu; 2]) -> [CpuMask; 4] {
    [&[first][..], &[second], &[first, second], &[]].map(|cpus| cpus.iter().copied().collect())
}

/// Sets a mask on all ports, and makes workers process every packet. Masks are set in the bridge's
/// namespace, because a worker opens its own sockets there.
pub fn steer(joined: &Joined, mask: &CpuMask) -> Result<(), LabError> {
    joined.middle.run(|| {
        for name in &joined.names {
            let never = PortChange::setting("in_place_below", InPlace::NEVER);
            joined.bridge.set_port(name, &never).expect("it can be set");
            joined.bridge.set_rps_cpus(name, None, mask).expect("it can be set");
        }
        Ok(())
    })
}

/// Returns the number of packets processed by the workers of these CPUs.
fn processed(report: &SteeringReport, cpus: [Cpu; 2]) -> [u64; 2] {
    cpus.map(|cpu| {
        report
            .workers
            .iter()
            .find(|worker| worker.cpu == cpu.number())
            .map_or(0, |worker| worker.processed)
    })
}

/// Changes masks every millisecond while `load` runs. `load` can read the number of changes, which
/// is also returned.
fn while_masks_change<T>(
    joined: &Joined,
    cpus: [Cpu; 2],
    load: impl FnOnce(&Joined, &AtomicU64) -> Result<T, LabError>,
) -> Result<(T, u64), LabError> {
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                steer(joined, &masks(cpus)[changes.load(Ordering::Relaxed) as usize % 4])?;
                changes.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let result = load(joined, &changes);
        done.store(true, Ordering::Relaxed);
        changer.join().expect("no panic")?;
        Ok((result?, changes.load(Ordering::Relaxed)))
    })
}

#[test]
fn bytes_arrive_whichever_cpus_process_them() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    let Some(joined) = by_packet()? else { return Ok(()) };
    for (mask, share) in
        masks(cpus).iter().zip([[true, false], [false, true], [true, true], [false, false]])
    {
        steer(&joined, mask)?;
        let before = processed(&joined.bridge.steering(), cpus);
        joined.a.link.set_feature("tcp-segmentation-offload", mask.len() == 2)?;
        joined.carries(16, 4 << 20)?;
        let after = processed(&joined.bridge.steering(), cpus);
        let had: [bool; 2] = std::array::from_fn(|index| after[index] > before[index] + 20);
        assert_eq!(had, share, "mask {mask}: {before:?}, {after:?}");
    }
    let stats = joined.stats(0);
    assert!(
        stats.steered > 0 && stats.merged > stats.steered,
        "aggregated before it is handed over: {stats:?}"
    );
    assert_eq!((stats.drops["panic"], joined.bridge.steering().receive_panics), (0, 0));
    Ok(())
}

#[test]
fn masks_change_while_bytes_flow_both_ways() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    let Some(joined) = by_packet()? else { return Ok(()) };
    let (_, changes) = while_masks_change(&joined, cpus, |joined, _| {
        let load = TcpBulk {
            flows: 20,
            direction: Direction::Both,
            until: Until::Time(Duration::from_secs(2)),
            verify: Some(KEY),
            ..TcpBulk::default()
        };
        load.run(&joined.route())
    })?;
    let report = joined.bridge.steering();
    assert!(changes > 100, "{changes}");
    assert!(processed(&report, cpus).iter().all(|&count| count > 100), "{report:?}");
    Ok(())
}

/// Sends numbered datagrams of 64 flows through TAP devices, until masks have changed 1,000 times.
/// The kernel of a TAP device receives within the send call, so that datagrams sent in order arrive
/// in order. Returns the number of datagrams overtaken within their flow.
fn overtaken_datagrams(cpus: [Cpu; 2], moves: &str) -> Result<Option<u64>, LabError> {
    let Some(joined) = by_tap("")? else { return Ok(None) };
    // A flow that fills a backlog would be dropped, and not show its order.
    for (name, value) in [("netdev_max_backlog", "4000"), ("moves", moves)] {
        joined
            .bridge
            .change_steering_settings(|settings| settings.set(name, value))
            .expect("it can be set");
    }
    let system = |action: &'static str| move |error: io::Error| LabError::system(action, error);
    let (from, to) = (joined.a.ipv4, joined.b.ipv4);
    let receiver = joined.datagram_receiver(7000, Duration::from_millis(500))?;
    let socket = |number: u16| {
        UdpSocket::bind(SocketAddr::new(from, 8000 + number)).map_err(system("binding"))
    };
    let senders = joined.a.host.run(|| (0..64).map(socket).collect::<Result<Vec<_>, _>>())?;
    let done = Arc::new(AtomicBool::new(false));
    let stopped = done.clone();
    let receiving = std::thread::spawn(move || {
        let (mut last, mut arrived, mut overtaken) = ([0u32; 64], 0u64, 0u64);
        let mut bytes = [0; 64];
        loop {
            match receiver.recv_from(&mut bytes) {
                Ok((_, address)) => {
                    let number = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                    let last = &mut last[usize::from(address.port() - 8000)];
                    arrived += 1;
                    overtaken += u64::from(number < *last);
                    *last = number.max(*last);
                }
                Err(_) if stopped.load(Ordering::Relaxed) => return (arrived, overtaken),
                Err(_) => {}
            }
        }
    });
    let (sent, changes) = while_masks_change(&joined, cpus, |_, changes| {
        let start = Instant::now();
        let mut sent = 0u32;
        while changes.load(Ordering::Relaxed) < 1000 && start.elapsed() < Duration::from_secs(60) {
            sent += 1;
            for sender in &senders {
                // A full queue causes loss, which is irrelevant here.
                let _ = sender.send_to(&sent.to_be_bytes(), SocketAddr::new(to, 7000));
            }
            // Sends in bursts, because other tests run too.
            if sent.is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        Ok(u64::from(sent) * 64)
    })?;
    done.store(true, Ordering::Relaxed);
    let (arrived, overtaken) = receiving.join().expect("no panic");
    let (stats, report) = (joined.stats(0), joined.bridge.steering());
    let shares = processed(&report, cpus);
    eprintln!(
        "{moves}: {arrived} of {sent} arrived, {overtaken} overtaken, {changes} changes, {} moves, {} held back, {shares:?}",
        stats.flow_moves, stats.held_back
    );
    assert!(
        arrived > 1000 && stats.flow_moves >= 1000 && changes >= 1000,
        "{arrived} arrived, {changes} changes: {stats:?}"
    );
    assert!(shares.iter().all(|&share| share * 10 >= shares[0] + shares[1]), "{shares:?}");
    Ok(Some(overtaken))
}

#[test]
fn datagrams_keep_their_order_while_masks_change() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    if let Some(overtaken) = overtaken_datagrams(cpus, "epochs")? {
        assert_eq!(overtaken, 0);
    }
    Ok(())
}

/// The kernel's behaviour when `rps_cpus` is written; proves that the test above detects it.
#[test]
fn without_epochs_datagrams_are_overtaken() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    if let Some(overtaken) = overtaken_datagrams(cpus, "at-once")? {
        assert_ne!(overtaken, 0);
    }
    Ok(())
}

#[test]
fn requests_are_answered_when_all_is_steered() -> Result<(), LabError> {
    let Some(cpus) = two_cpus() else { return Ok(()) };
    let Some(joined) = by_packet()? else { return Ok(()) };
    steer(&joined, &masks(cpus)[2])?;
    let load =
        TcpTransactions { connections: 100, verify: Some(KEY), ..TcpTransactions::default() };
    let report = load.run(&joined.route())?;
    assert!(report.transactions > 100, "{report:?}");
    assert!(processed(&joined.bridge.steering(), cpus).iter().all(|&count| count > 10));
    Ok(())
}
