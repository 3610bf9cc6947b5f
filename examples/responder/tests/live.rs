//! Tests that the kernel's TCP gets answers from smoltcp's TCP, which runs on two workers.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smoltcp::wire::{EthernetAddress, Ipv4Address, Ipv4Cidr};
use superpacket_bridge::Steered;
use superpacket_bridge::settings::{PerQueue, PortSettings, SteeringSettings};
use superpacket_lab::{
    Host, LabError, Link, Station, TcpTransactions, allowed_cpus, available_or_skip,
};
use superpacket_responder::{Counters, Responder, Service};
use superpacket_steer::CpuMask;

superpacket_lab::enter_user_namespace_before_main!();

const SERVER: Ipv4Address = Ipv4Address::new(10, 77, 0, 99);
const HARDWARE: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 0x99]);

/// Starts a client, and a responder at the other end of its cable.
fn start(
    mask: &CpuMask,
    request: usize,
    answer: usize,
) -> Result<(Station, Steered, Arc<Counters>), LabError> {
    let (client, server) =
        Link::veth(&Host::new("client")?, "eth0", &Host::new("server")?, "eth0")?;
    let client = Station::new(client, 1)?;
    server.up()?;
    let counters = Arc::new(Counters::default());
    let service = Service {
        address: Ipv4Cidr::new(SERVER, 24),
        port: 7,
        request,
        answer,
        connections: 1000,
        mtu: 1500,
    };
    let shared = Arc::clone(&counters);
    let mut port = PortSettings::new("packet:eth0".parse().expect("a port string"));
    port.steering.rps_cpus = PerQueue::all(mask.clone());
    let steered = server.host().run(|| {
        Steered::start(port, SteeringSettings::default(), move |cpu| {
            let seed = cpu.map_or(0, |cpu| 1 + cpu.number() as u64);
            Box::new(Responder::new(service, HARDWARE, seed, Arc::clone(&shared)))
        })
        .map_err(|error| LabError::system(error.to_string(), std::io::ErrorKind::Other))
    })?;
    Ok((client, steered, counters))
}

fn ask(client: &Station, load: &TcpTransactions) -> Result<u64, LabError> {
    Ok(load.run_client(&client.host, SocketAddr::new(SERVER.into(), 7))?.transactions)
}

#[test]
fn five_hundred_connections_are_answered_on_two_workers() -> Result<(), LabError> {
    let cpus = allowed_cpus()?;
    let mask: CpuMask =
        cpus.iter().take(2).filter_map(|cpu| superpacket_steer::Cpu::new(*cpu)).collect();
    let Some((client, steered, counters)) = available_or_skip(start(&mask, 1, 1)) else {
        return Ok(());
    };
    let load = TcpTransactions {
        connections: 500,
        time: Duration::from_secs(1),
        ..TcpTransactions::default()
    };
    let transactions = ask(&client, &load)?;
    assert!(transactions >= 500, "each connection had its turn: {transactions}");
    let workers = steered.steering().workers;
    let total: u64 = workers.iter().map(|worker| worker.processed).sum();
    assert_eq!(workers.len(), mask.len());
    assert!(
        workers.iter().all(|worker| worker.processed * 10 >= total && worker.panics == 0),
        "all work: {workers:?}"
    );
    steered.stop();
    assert_eq!(counters.answered.load(Ordering::Relaxed), transactions, "no answer is invented");
    assert_eq!(counters.corrupted.load(Ordering::Relaxed), 0);
    Ok(())
}

#[test]
fn without_a_mask_the_thread_that_receives_answers() -> Result<(), LabError> {
    let Some((client, steered, _)) = available_or_skip(start(&CpuMask::EMPTY, 1000, 20_000)) else {
        return Ok(());
    };
    let load = TcpTransactions {
        connections: 10,
        request: 1000,
        answer: 20_000,
        time: Duration::from_millis(300),
        ..TcpTransactions::default()
    };
    assert!(ask(&client, &load)? >= 10);
    assert_eq!(steered.steering().workers, []);
    // A client that comes again finds free connections.
    assert!(ask(&client, &load)? >= 10);
    Ok(())
}
