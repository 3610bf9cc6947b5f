//! Throughput of the kernel's bridge between two hosts on this machine, as a reference for other
//! bridges.
//!
//! ```text
//! cargo run --release -p superpacket-lab --example kernel_bridge -- [ROUNDS]
//! ```

use std::time::Duration;

use superpacket_lab::{
    Blast, LabError, Route, TcpBulk, TcpTransactions, ThreeHosts, UdpBulk, Until,
    enter_user_namespace_if_needed, paired,
};

fn main() -> Result<(), LabError> {
    enter_user_namespace_if_needed()?;
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5);
    let hosts = ThreeHosts::new()?;
    hosts.with_kernel_bridge()?;
    let route = Route::ipv4(&hosts.a, &hosts.b);
    let time = Duration::from_secs(1);

    let bulk = || -> Result<f64, LabError> {
        let report = TcpBulk { until: Until::Time(time), ..TcpBulk::default() }.run(&route)?;
        if let Some(way) = &report.forward {
            println!(
                "  {:6.2} Gb/s, sender {:3.0} %, receiver {:3.0} %, machine {:3.0} %, {:.3} us/KB",
                way.gigabits_per_second(),
                way.sender_utilisation() * 100.0,
                way.receiver_utilisation() * 100.0,
                report.machine.total.utilisation() * 100.0,
                superpacket_lab::service_demand(
                    Duration::from_secs_f64(report.machine.total.busy()),
                    way.bytes
                ),
            );
        }
        Ok(report.gigabits_per_second())
    };
    let with_tso = |on: bool| hosts.a.link.set_feature("tso", on);
    let with_gro = |on: bool| hosts.a_side.set_feature("gro", on);

    println!("TCP_STREAM, A's TSO on, against off:");
    let result = paired(
        rounds,
        || with_tso(true).and_then(|()| bulk()),
        || with_tso(false).and_then(|()| bulk()),
    )?;
    println!("{result}\n");

    println!("TCP_STREAM, A's TSO off: GRO on the bridge's ingress on, against off:");
    with_tso(false)?;
    let result = paired(
        rounds,
        || with_gro(true).and_then(|()| bulk()),
        || with_gro(false).and_then(|()| bulk()),
    )?;
    println!("{result}\n");
    with_tso(true)?;

    for connections in [1, 500] {
        let report =
            TcpTransactions { connections, time, ..TcpTransactions::default() }.run(&route)?;
        println!(
            "TCP_RR, {connections} connections: {:.0} transactions/s, latency {:?} mean, {:?} at 99 %",
            report.per_second(),
            report.latency.mean(),
            report.latency.percentile(0.99),
        );
    }
    for (segments, gro) in [(1, false), (32, true)] {
        let report = UdpBulk { segments, gro, time, ..UdpBulk::default() }.run(&route)?;
        let lost = report.lost() as f64 / report.sent.max(1) as f64 * 100.0;
        println!(
            "UDP_STREAM, {segments} datagrams a call: {:.2} Gb/s received, {lost:.1} % lost",
            report.gigabits_per_second()
        );
    }
    let report = Blast { time, ..Blast::minimal([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]) }
        .run(&hosts.a.link, &hosts.b.link)?;
    println!(
        "frames of 60 bytes: {:.0} sent, {:.0} received a second",
        report.sent_per_second(),
        report.received_per_second()
    );
    Ok(())
}
