//! `superpacket-responder packet:eth0 --address 10.0.0.2/24 --cpus 3`: answers TCP requests of one
//! length by answers of another, on the CPUs of a mask.

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("superpacket-responder: live ports exist on Linux only");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    program::run()
}

#[cfg(target_os = "linux")]
mod program {
    use std::hash::{BuildHasher, Hasher, RandomState};
    use std::net::Ipv4Addr;
    use std::str::FromStr;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use anyhow::{Context, anyhow, ensure};
    use clap::Parser;
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use smoltcp::wire::{EthernetAddress, Ipv4Cidr};
    use superpacket_bridge::Steered;
    use superpacket_bridge::settings::{PortSettings, SteeringSettings};
    use superpacket_responder::{Counters, Responder, Service};

    /// Answers TCP requests by user-space stacks, one per CPU of a mask, without the kernel's TCP.
    #[derive(Debug, Parser)]
    #[command(name = "superpacket-responder", version)]
    struct Arguments {
        /// The port, as in `superpacket bridge`. Its interface needs no address
        port: String,
        /// The IPv4 address to answer at, unused by other hosts of the link, with the length of the
        /// network's prefix
        #[arg(long, value_name = "ADDRESS/LENGTH")]
        address: String,
        /// The hardware address of the stack
        #[arg(long, default_value = "02:00:00:00:00:99")]
        hardware_address: String,
        /// The TCP port
        #[arg(long, default_value_t = 7)]
        listen: u16,
        /// Length of a request in bytes
        #[arg(long, default_value_t = 1)]
        request: usize,
        /// Length of an answer in bytes
        #[arg(long, default_value_t = 1)]
        answer: usize,
        /// Maximum number of connections per stack
        #[arg(long, default_value_t = 4096)]
        connections: usize,
        /// The CPUs that have a stack, as a mask in the format of `rps_cpus`; 0: the receiving
        /// thread does all the work
        #[arg(long, default_value = "0")]
        cpus: String,
    }

    pub(super) fn run() -> anyhow::Result<()> {
        let arguments = Arguments::parse();
        let service = service(&arguments)?;
        let hardware: EthernetAddress = arguments.hardware_address.parse().map_err(|()| {
            anyhow!(
                "--hardware-address {}: expected six bytes in hexadecimal",
                arguments.hardware_address
            )
        })?;
        let mut port =
            PortSettings::new(arguments.port.parse().with_context(|| arguments.port.clone())?);
        let mask = superpacket_steer::CpuMask::parse(&arguments.cpus, superpacket_steer::MAX_CPUS)
            .with_context(|| format!("--cpus {}", arguments.cpus))?;
        port.steering.rps_cpus = superpacket_bridge::settings::PerQueue::all(mask);
        let counters = Arc::new(Counters::default());
        let shared = Arc::clone(&counters);
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let steered = Steered::start(port, SteeringSettings::default(), move |_| {
            Box::new(Responder::new(
                service,
                hardware,
                RandomState::new().build_hasher().finish(),
                Arc::clone(&shared),
            ))
        })?;
        println!(
            "{} at {}, TCP port {}, CPUs {}: ready",
            arguments.port, arguments.address, arguments.listen, arguments.cpus
        );
        signals.forever().next();
        let steering = steered.steering();
        steered.stop();
        println!(
            "{} requests answered, {} packets with wrong checksums",
            counters.answered.load(Ordering::Relaxed),
            counters.corrupted.load(Ordering::Relaxed)
        );
        for worker in steering.workers {
            println!("CPU {}: {} packets", worker.cpu, worker.processed);
        }
        Ok(())
    }

    fn service(arguments: &Arguments) -> anyhow::Result<Service> {
        let address = || {
            let (address, length) = arguments.address.split_once('/')?;
            let length = length.parse().ok().filter(|length| *length <= 32)?;
            Some(Ipv4Cidr::new(Ipv4Addr::from_str(address).ok()?, length))
        };
        let address = address().with_context(|| {
            format!(
                "--address {}: expected an address and a prefix length, such as 10.0.0.2/24",
                arguments.address
            )
        })?;
        ensure!(arguments.request != 0, "--request 0: a request has at least 1 byte");
        ensure!(arguments.answer != 0, "--answer 0: an answer has at least 1 byte");
        ensure!(arguments.connections != 0, "--connections 0: there is nothing to do");
        ensure!(arguments.listen != 0, "--listen 0: expected a port from 1 to 65535");
        Ok(Service {
            address,
            port: arguments.listen,
            request: arguments.request,
            answer: arguments.answer,
            connections: arguments.connections,
            mtu: 1500,
        })
    }
}
