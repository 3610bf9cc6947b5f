//! 500 x TCP_RR of 1 byte: answered by smoltcp on one worker and on two, and by the kernel, with
//! RPS off and on two CPUs.
//!
//! `cargo bench -p superpacket-responder [-- ROUNDS SECONDS]`: the variants are measured in turn;
//! medians, with quartiles.

#[cfg(target_os = "linux")]
superpacket_lab::enter_user_namespace_before_main!();

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("live ports exist on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), superpacket_lab::LabError> {
    linux::run()
}

#[cfg(target_os = "linux")]
mod linux {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use smoltcp::wire::{EthernetAddress, Ipv4Address, Ipv4Cidr};
    use superpacket_bridge::Steered;
    use superpacket_bridge::settings::{PerQueue, PortSettings, SteeringSettings};
    use superpacket_lab::{
        Host, LabError, Link, Route, Station, Summary, TcpTransactions, interleaved,
    };
    use superpacket_responder::{Counters, Responder, Service};
    use superpacket_steer::CpuMask;

    const CONNECTIONS: usize = 500;

    fn load(time: Duration) -> TcpTransactions {
        let threads = Some(1);
        TcpTransactions { connections: CONNECTIONS, time, threads, ..TcpTransactions::default() }
    }

    fn smoltcp(mask: &str, time: Duration) -> Result<f64, LabError> {
        let (client, server) =
            Link::veth(&Host::new("client")?, "eth0", &Host::new("server")?, "eth0")?;
        let client = Station::new(client, 1)?;
        server.up()?;
        let address = Ipv4Address::new(10, 77, 0, 99);
        let service = Service {
            address: Ipv4Cidr::new(address, 24),
            port: 7,
            request: 1,
            answer: 1,
            connections: 1000,
            mtu: 1500,
        };
        let counters = Arc::new(Counters::default());
        let mut port = PortSettings::new("packet:eth0".parse().expect("a port string"));
        port.steering.rps_cpus = PerQueue::all(CpuMask::parse(mask, 64).expect("a mask"));
        let _steered = server.host().run(|| {
            let hardware = EthernetAddress([2, 0, 0, 0, 0, 0x99]);
            Steered::start(port, SteeringSettings::default(), move |cpu| {
                let seed = cpu.map_or(0, |cpu| 1 + cpu.number() as u64);
                Box::new(Responder::new(service, hardware, seed, Arc::clone(&counters)))
            })
            .map_err(|error| LabError::system(error.to_string(), std::io::ErrorKind::Other))
        })?;
        Ok(load(time).run_client(&client.host, SocketAddr::new(address.into(), 7))?.per_second())
    }

    fn kernel(mask: &str, time: Duration) -> Result<f64, LabError> {
        let (client, server) =
            Link::veth(&Host::new("client")?, "eth0", &Host::new("server")?, "eth0")?;
        let (client, server) = (Station::new(client, 1)?, Station::new(server, 2)?);
        server.host.set_sysfs("class/net/eth0/queues/rx-0/rps_cpus", mask)?;
        Ok(load(time).run(&Route::ipv4(&client, &server))?.per_second())
    }

    pub(super) fn run() -> Result<(), LabError> {
        let mut numbers =
            std::env::args().skip(1).filter_map(|argument| argument.parse::<f64>().ok());
        let rounds = numbers.next().map_or(7, |rounds| rounds as usize);
        let time = Duration::from_secs_f64(numbers.next().unwrap_or(1.0));
        let names = [
            "smoltcp, where it is received",
            "smoltcp, one worker (mask 2)",
            "smoltcp, two workers (mask 3)",
            "the kernel, rps_cpus 0",
            "the kernel, rps_cpus 3",
        ];
        let figures = interleaved::<LabError>(
            rounds,
            &mut [
                &mut || smoltcp("0", time),
                &mut || smoltcp("2", time),
                &mut || smoltcp("3", time),
                &mut || kernel("0", time),
                &mut || kernel("3", time),
            ],
        )?;
        println!(
            "| {CONNECTIONS} x TCP_RR of 1 byte | transactions a second (quartiles) |\n|---|---|"
        );
        for (name, figures) in names.iter().zip(&figures) {
            let Summary { median, lower_quartile, upper_quartile, .. } = Summary::new(figures);
            println!("| {name} | {median:.0} ({lower_quartile:.0}-{upper_quartile:.0}) |");
        }
        Ok(())
    }
}
