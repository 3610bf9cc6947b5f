//! Ports with rate limits: a flooding port leaves the others their share.

use std::time::{Duration, Instant};

use superpacket_bridge::settings::PortChange;
use superpacket_lab::{Blast, LabError, Route, Station, TcpBulk, Until};

use crate::joined::{Joined, KEY, by_packet};

/// Sends from B to C while A floods broadcasts. Returns the number of A's packets that the bridge
/// forwarded, and the seconds that this took.
fn flooded(joined: &Joined, c: &Station) -> Result<(u64, f64), LabError> {
    let blast =
        Blast { time: Duration::from_secs(2), ..Blast::minimal([0xff; 6], [2, 0, 0, 0, 0, 1]) };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| blast.run(&joined.a.link, &c.link));
        let route = Route::ipv4(&joined.b, c);
        TcpBulk { until: Until::Bytes(16 << 20), verify: Some(KEY), ..TcpBulk::default() }
            .run(&route)?;
        let report = flood.join().expect("no panic")?;
        assert!(report.sent > 20_000, "A floods: {report:?}");
        Ok::<_, LabError>(())
    })?;
    let a = joined.stats(0);
    Ok((a.rx_packets - a.drops["storm"], start.elapsed().as_secs_f64()))
}

fn set(joined: &Joined, limits: &[(&str, u64)]) {
    for (name, value) in limits {
        let change = PortChange::setting(name, *value);
        joined.bridge.set_port(&joined.names[0], &change).expect("it is a limit");
    }
}

#[test]
fn a_port_that_floods_broadcasts_leaves_the_others_their_share() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let c = joined.third()?;
    set(&joined, &[("storm_broadcast", 500)]);
    let (passed, seconds) = flooded(&joined, &c)?;
    // Includes ARP and neighbour discovery of A itself.
    assert!((passed as f64) < 500.0 * (seconds + 1.0) + 100.0, "{passed} in {seconds} s");
    assert!(joined.stats(0).drops["storm"] > 5_000, "{:?}", joined.stats(0));
    Ok(())
}

#[test]
fn a_port_with_a_rate_costs_the_bridge_no_more_than_that() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    let c = joined.third()?;
    set(&joined, &[("rx_packet_rate", 1_000), ("rx_packet_burst", 100)]);
    let before = joined.stats(0).rx_packets;
    let (after, seconds) = flooded(&joined, &c)?;
    let taken = (after - before) as f64;
    assert!(
        taken > 500.0 * (seconds - 1.0) && taken < 1_000.0 * seconds + 200.0,
        "{taken} in {seconds} s"
    );
    let a = joined.stats(0);
    assert!(
        a.rx_throttled > 100 && a.drops["rx_ring"] > 5_000,
        "what is more is lost in the ring: {a:?}"
    );
    Ok(())
}

#[test]
fn tcp_keeps_to_the_rates_of_its_ports() -> Result<(), LabError> {
    let Some(joined) = by_packet()? else { return Ok(()) };
    joined.carries(1, 1 << 20)?;
    for limits in [
        [("rx_byte_rate", 4_000_000), ("rx_byte_burst", 200_000)],
        [("tx_byte_rate", 4_000_000), ("tx_byte_burst", 200_000)],
    ] {
        set(&joined, &[("rx_byte_rate", 0), ("tx_byte_rate", 0)]);
        set(&joined, &limits);
        let (from, to) = if limits[0].0.starts_with("rx") {
            (&joined.a, &joined.b)
        } else {
            (&joined.b, &joined.a)
        };
        let report =
            TcpBulk { until: Until::Bytes(8 << 20), verify: Some(KEY), ..TcpBulk::default() }
                .run(&Route::ipv4(from, to))?;
        let seconds = report.forward.expect("one way").seconds;
        // 8 MiB at 4 MB/s take 2.1 s, minus the initial burst and the data in rings and sockets.
        assert!((0.8..20.0).contains(&seconds), "{limits:?}: {seconds} s");
    }
    let a = joined.stats(0);
    assert!(a.rx_throttled > 0 && a.drops["tx_rate"] > 0, "{a:?}");
    Ok(())
}
