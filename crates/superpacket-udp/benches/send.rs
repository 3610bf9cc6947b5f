//! Compares ways to send runs of datagrams from separate buffers: gathered by the kernel, copied
//! together (as the crate does), and one by one.
//!
//! `cargo bench -p superpacket-udp`. Each way sends the same datagrams with the same [`Sender`],
//! alternating in rounds; medians are printed. If the host drops the datagrams, only the sender's
//! cost is measured; through a veth pair, the receiver's cost is included, per received datagram.
//! "Hot" datagrams are in the cache, as behind a cipher; "cold" ones are not.
#[cfg(target_os = "linux")]
fn main() {
    if let Err(error) = linux::run() {
        println!("not measured: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("not measured: this bench needs Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::net::{IpAddr, SocketAddr};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
    use nix::time::{ClockId, clock_gettime};
    use superpacket_lab::{
        Host, LabError, Link, Summary, TwoHosts, enter_user_namespace_if_needed, interleaved,
    };
    use superpacket_udp::{Refusal, SendDatagrams, Sender, Transmit, UdpSocket};

    const ROUNDS: usize = 15;
    /// Number of datagrams in one read of a TUN device, which are sent as a run.
    const RUN: usize = 45;
    /// Number of runs per round.
    const RUNS: usize = 1000;

    /// The runs of datagrams to be sent. Each call sends the next run.
    type Load = Vec<Vec<Vec<u8>>>;

    pub fn run() -> Result<(), LabError> {
        enter_user_namespace_if_needed()?;
        println!(
            "CPU ns a datagram, medians of {ROUNDS} rounds (middle half)        gathered / copied / one by one"
        );
        for size in [1452, 500, 100] {
            let load = |runs: usize| -> Load {
                (0..runs)
                    .map(|run| (0..RUN).map(|index| vec![(run + index) as u8; size]).collect())
                    .collect()
            };
            for (name, load) in [("hot", load(1)), ("cold", load(RUNS))] {
                dropped(name, &load)?;
                received(name, &load, true)?;
                received(name, &load, false)?;
            }
        }
        Ok(())
    }

    /// Returns the CPU time so far. `getrusage` counts in ticks on some kernels.
    fn spent(clock: ClockId) -> Duration {
        clock_gettime(clock).expect("every Linux has it").into()
    }

    /// Measures sending to a host without an address, which drops all datagrams.
    fn dropped(name: &str, load: &Load) -> Result<(), LabError> {
        let (host, other) = (Host::new("A")?, Host::new("B")?);
        let (link, end) = Link::veth(&host, "eth0", &other, "eth0")?;
        link.add_address("10.1.0.1/24")?;
        link.set_neighbour(IpAddr::from([10, 1, 0, 2]), end.mac()?)?;
        host.run(|| {
            let to = SocketAddr::from(([10, 1, 0, 2], 5000));
            let cost = |send: &mut dyn FnMut()| -> Result<f64, LabError> {
                let before = spent(ClockId::CLOCK_THREAD_CPUTIME_ID);
                (0..RUNS).for_each(|_| send());
                Ok((spent(ClockId::CLOCK_THREAD_CPUTIME_ID) - before).as_nanos() as f64
                    / (RUNS * RUN) as f64)
            };
            compare(&format!("{name}, dropped"), load, to, cost)
        })
    }

    /// Measures sending through a veth pair to a thread that receives. The sending end of the pair
    /// accepts super-packets if `segmentation` is set.
    fn received(name: &str, load: &Load, segmentation: bool) -> Result<(), LabError> {
        let hosts = TwoHosts::new()?;
        hosts.a.link.set_feature("tx-udp-segmentation", segmentation)?;
        let address = (hosts.b.ipv4, 5000);
        let receiving = hosts.b.host.run(|| {
            UdpSocket::bind(address)
                .map_err(|error| LabError::system("binding a UDP socket", error))
        })?;
        let (got, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut receiver = receiving.receiver();
                while !stop.load(Ordering::Relaxed) {
                    match receiver.try_receive() {
                        Ok(received) => drop(
                            got.fetch_add(received.datagrams().count() as u64, Ordering::Relaxed),
                        ),
                        Err(_) => std::thread::sleep(Duration::from_micros(200)),
                    }
                }
            });
            let cost = |send: &mut dyn FnMut()| -> Result<f64, LabError> {
                let (before, got_before) =
                    (spent(ClockId::CLOCK_PROCESS_CPUTIME_ID), got.load(Ordering::Relaxed));
                (0..RUNS).for_each(|_| send());
                std::thread::sleep(Duration::from_millis(5));
                let cost = (spent(ClockId::CLOCK_PROCESS_CPUTIME_ID) - before).as_nanos() as f64;
                Ok(cost / (got.load(Ordering::Relaxed) - got_before).max(1) as f64)
            };
            let what = if segmentation { "veth" } else { "veth without USO" };
            let result = hosts
                .a
                .host
                .run(|| compare(&format!("{name}, {what}"), load, SocketAddr::from(address), cost));
            stop.store(true, Ordering::Relaxed);
            result
        })
    }

    /// A socket whose kernel gathers a run from the datagrams' buffers.
    struct Gathering(std::net::UdpSocket);

    impl SendDatagrams for Gathering {
        fn send(&self, transmit: &Transmit<'_>, _: &mut Vec<u8>) -> io::Result<()> {
            let addr = SockaddrStorage::from(transmit.destination);
            let size = transmit.segment_size.map_or(0, |size| size as u16);
            let controls = [ControlMessage::UdpGsoSegments(&size)];
            let controls = if size == 0 { &[] } else { &controls[..] };
            sendmsg(
                self.0.as_raw_fd(),
                transmit.contents,
                controls,
                MsgFlags::empty(),
                Some(&addr),
            )?;
            Ok(())
        }

        fn max_segments(&self) -> usize {
            64
        }

        fn wait_writable(&self) -> io::Result<()> {
            Ok(())
        }

        fn refuse(&self, _: &Refusal) -> bool {
            false
        }
    }

    /// Sends in all ways alternately, and prints the results of `cost`.
    fn compare(
        what: &str,
        load: &Load,
        to: SocketAddr,
        cost: impl Fn(&mut dyn FnMut()) -> Result<f64, LabError>,
    ) -> Result<(), LabError> {
        let socket = || std::net::UdpSocket::bind("0.0.0.0:0").expect("a port is free");
        let mut gathering = Sender::<_, &[u8]>::new(Gathering(socket()));
        let mut runs = load.iter().cycle();
        let mut gathered = || {
            runs.next()
                .into_iter()
                .flatten()
                .for_each(|datagram| gathering.push(to, datagram.as_slice()));
            gathering.flush().expect("it sends");
        };
        let mut copying = UdpSocket::from_std(socket()).expect("it is set up").sender::<&[u8]>();
        let mut runs = load.iter().cycle();
        let mut copied = || {
            runs.next()
                .into_iter()
                .flatten()
                .for_each(|datagram| copying.push(to, datagram.as_slice()));
            copying.flush().expect("it sends");
        };
        let single = socket();
        let mut runs = load.iter().cycle();
        let mut one_by_one = || {
            runs.next()
                .into_iter()
                .flatten()
                .for_each(|datagram| drop(single.send_to(datagram, to)))
        };
        let figures = interleaved(
            ROUNDS,
            &mut [&mut || cost(&mut gathered), &mut || cost(&mut copied), &mut || {
                cost(&mut one_by_one)
            }],
        )?;
        let text: Vec<_> = figures
            .iter()
            .map(|figures| {
                let summary = Summary::new(figures);
                format!(
                    "{:6.0} ({:.0}-{:.0})",
                    summary.median, summary.lower_quartile, summary.upper_quartile
                )
            })
            .collect();
        println!("{RUN} x {:4} bytes, {what:25} {}", load[0][0].len(), text.join("  "));
        Ok(())
    }
}
