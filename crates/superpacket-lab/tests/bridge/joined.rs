//! Two hosts joined by the bridge, over each kind of port.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use superpacket_bridge::Bridge;
use superpacket_bridge::report::PortStats;
use superpacket_bridge::settings::{BridgeSettings, KernelPathMode, PortSettings};
use superpacket_lab::{
    Direction, Host, LabError, Link, Route, Station, TcpBulk, ThreeHosts, Until, Wire,
    WireSettings, available_or_skip,
};
use superpacket_port::features::Feature;

/// Key of the patterns that are sent and compared.
pub const KEY: u64 = 0x5eed;

/// The number of datagrams that may be on their way at once. The receiver's socket buffer and each
/// queue between the hosts hold more, so a loss is the bridge's.
const WINDOW: u64 = 48;

/// Two hosts, and the bridge in the middle.
pub struct Joined {
    pub a: Station,
    pub b: Station,
    pub middle: Host,
    pub bridge: Bridge,
    /// The port strings of the ports to A and B.
    pub names: [String; 2],
    /// The middle host's interfaces, if there are any.
    pub sides: Option<[Link; 2]>,
    /// The wires between hosts and bridge, if any.
    wires: Vec<Wire>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        crate::carried::note(&self.bridge.stats());
    }
}

/// Returns the default settings of a port, except that the bridge forwards all frames itself.
pub fn port(text: &str) -> PortSettings {
    PortSettings {
        kernel_path: KernelPathMode::Off,
        ..PortSettings::new(text.parse().expect("a port string"))
    }
}

/// Starts a bridge with these ports on a host.
pub fn start(host: &Host, ports: Vec<PortSettings>) -> Result<Bridge, LabError> {
    let settings = BridgeSettings { ports, ..BridgeSettings::default() };
    let bridge = host.run(|| Ok::<_, LabError>(Bridge::start(settings)))?;
    bridge.map_err(|error| LabError::system(error.to_string(), io::Error::other("the bridge")))
}

/// Joins two hosts by ports `KIND:port-a` and `KIND:port-b` on veth pairs; `None` if the machine
/// forbids it.
pub fn by_veth(
    kind: &str,
    options: &str,
    prepare: impl FnOnce(&ThreeHosts) -> Result<(), LabError>,
) -> Result<Option<Joined>, LabError> {
    joined(kind, options, prepare, |_| ())
}

fn joined(
    kind: &str,
    options: &str,
    prepare: impl FnOnce(&ThreeHosts) -> Result<(), LabError>,
    change: impl FnOnce(&mut [PortSettings]),
) -> Result<Option<Joined>, LabError> {
    let Some(hosts) = available_or_skip(ThreeHosts::new()) else { return Ok(None) };
    prepare(&hosts)?;
    let names = ["port-a", "port-b"].map(|name| format!("{kind}:{name}{options}"));
    let mut ports: Vec<_> = names.iter().map(|name| port(name)).collect();
    change(&mut ports);
    let bridge = start(&hosts.middle, ports)?;
    let ThreeHosts { a, b, middle, a_side, b_side } = hosts;
    Ok(Some(Joined {
        a,
        b,
        middle,
        bridge,
        names,
        sides: Some([a_side, b_side]),
        wires: Vec::new(),
    }))
}

/// Joins two hosts by AF_XDP sockets, which cannot describe partial checksums or super-packets, so
/// that the hosts complete their packets.
pub fn by_xdp() -> Result<Option<Joined>, LabError> {
    by_veth("xdp", "", |hosts| {
        [&hosts.a.link, &hosts.b.link].into_iter().try_for_each(disable_offloads)
    })
}

/// Makes a host do all offloaded work itself. A device with an XDP program has already disabled
/// some features, and refuses changes of these.
pub fn disable_offloads(link: &Link) -> Result<(), LabError> {
    for name in ["tx-checksumming", "tcp-segmentation-offload"] {
        match link.set_feature(name, false) {
            Err(error) if link.feature(name)? => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Joins two hosts by packet sockets.
pub fn by_packet() -> Result<Option<Joined>, LabError> {
    by_veth("packet", "", |_| Ok(()))
}

/// Joins two hosts by packet sockets whose settings are modified by `change`.
pub fn by_packet_asked(
    prepare: impl FnOnce(&ThreeHosts) -> Result<(), LabError>,
    change: impl FnOnce(&mut [PortSettings]),
) -> Result<Option<Joined>, LabError> {
    joined("packet", "", prepare, change)
}

/// Joins two hosts by packet sockets, each behind a wire with these settings.
pub fn by_wires(settings: [WireSettings; 2]) -> Result<Option<Joined>, LabError> {
    let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(None) };
    let (wire_a, a, a_side) =
        Wire::between(&Host::new("A")?, "eth0", &middle, "port-a", settings[0])?;
    let (wire_b, b, b_side) =
        Wire::between(&Host::new("B")?, "eth0", &middle, "port-b", settings[1])?;
    let names = ["port-a", "port-b"].map(|name| format!("packet:{name}"));
    let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
    let (a, b) = (Station::new(a, 1)?, Station::new(b, 2)?);
    Ok(Some(Joined {
        a,
        b,
        middle,
        bridge,
        names,
        sides: Some([a_side, b_side]),
        wires: vec![wire_a, wire_b],
    }))
}

/// Joins two hosts, each with its end of a TAP device.
pub fn by_tap(options: &str) -> Result<Option<Joined>, LabError> {
    by_device("tap", options, Station::new)
}

/// Like [`by_tap`], with each TAP device behind a model NIC with these options.
pub fn by_nic_on_tap(nic: &str) -> Result<Option<Joined>, LabError> {
    by_device(&format!("nic:{nic}@tap"), "", Station::new)
}

/// Joins two hosts, each with its end of a TUN device, which has no hardware address.
pub fn by_tun() -> Result<Option<Joined>, LabError> {
    by_device("tun", "", |link, number| {
        let address = |text: String| -> Result<IpAddr, LabError> {
            link.add_address(&text)?;
            Ok(text.split('/').next().and_then(|address| address.parse().ok()).expect("an address"))
        };
        let (ipv4, ipv6) =
            (address(format!("10.77.0.{number}/24"))?, address(format!("fd77::{number}/64"))?);
        Ok(Station { host: link.host().clone(), ipv4, ipv6, link })
    })
}

fn by_device(
    kind: &str,
    options: &str,
    station: impl Fn(Link, u8) -> Result<Station, LabError>,
) -> Result<Option<Joined>, LabError> {
    let Some(middle) = available_or_skip(Host::new("M")) else { return Ok(None) };
    let names = ["dev-a", "dev-b"].map(|name| format!("{kind}:{name}{options}"));
    let bridge = start(&middle, names.iter().map(|name| port(name)).collect())?;
    let station = |device: &str, host: &str, number| {
        let link = middle.link(device).move_to(&Host::new(host)?)?;
        link.up()?;
        station(link, number)
    };
    Ok(Some(Joined {
        a: station("dev-a", "A", 1)?,
        b: station("dev-b", "B", 2)?,
        middle,
        bridge,
        names,
        sides: None,
        wires: Vec::new(),
    }))
}

/// Checks that nothing was dropped for any reason except a full queue, which is TCP's business.
pub fn nothing_was_refused(stats: &[PortStats]) {
    for stats in stats {
        for (reason, &count) in &stats.drops {
            // Guests may send before both links are up.
            let is_usual = ["full", "down"].contains(&reason.as_str());
            assert!(is_usual || count == 0, "{count} packets were dropped as {reason}: {stats:?}");
        }
    }
}

impl Joined {
    /// Joins two hosts by the ports `names` of a bridge that runs already.
    pub fn new(middle: Host, bridge: Bridge, names: [String; 2], [a, b]: [Station; 2]) -> Self {
        Joined { a, b, middle, bridge, names, sides: None, wires: Vec::new() }
    }

    /// Adds a third host, C, behind port `packet:port-c` of the bridge.
    pub fn third(&self) -> Result<Station, LabError> {
        let (c, _) = Link::veth(&Host::new("C")?, "eth0", &self.middle, "port-c")?;
        let mut settings = self.bridge.settings();
        let kernel_path = settings.ports[0].kernel_path;
        settings.ports.push(PortSettings { kernel_path, ..port("packet:port-c") });
        self.middle.run(|| Ok::<_, LabError>(self.bridge.apply(settings)))?.expect("one more port");
        Station::new(c, 3)
    }

    /// Returns the route from A to B over IPv4.
    pub fn route(&self) -> Route<'_> {
        Route::ipv4(&self.a, &self.b)
    }

    /// Sends `bytes` in each of `flows` flows from A to B, and compares them.
    pub fn carries(&self, flows: usize, bytes: u64) -> Result<(), LabError> {
        let report =
            TcpBulk { flows, until: Until::Bytes(bytes), verify: Some(KEY), ..TcpBulk::default() }
                .run(&self.route())?;
        assert_eq!(report.bytes(), bytes * flows as u64);
        Ok(())
    }

    /// Returns a socket of B that receives datagrams at this port, and waits for each this long. A
    /// knows B's hardware address: during neighbour resolution the kernel queues packets, and later
    /// ones may overtake them.
    pub fn datagram_receiver(&self, port: u16, wait: Duration) -> Result<UdpSocket, LabError> {
        let system = |action: &'static str| move |error| LabError::system(action, error);
        let to = self.b.ipv4;
        self.a.link.set_neighbour(to, self.b.link.mac()?)?;
        let bind = || UdpSocket::bind((to, port)).map_err(system("binding"));
        let receiver = self.b.host.run(bind)?;
        receiver.set_read_timeout(Some(wait)).map_err(system("a timeout"))?;
        Ok(receiver)
    }

    /// Sends numbered datagrams from A to B while `goes_on` holds for their number, and runs
    /// `meanwhile` beside that until its flag is set. Each datagram must arrive once, unchanged and
    /// in order. Returns their number, and the result of `meanwhile`.
    pub fn datagrams<T: Send>(
        &self,
        goes_on: impl Fn(u64) -> bool + Sync,
        meanwhile: impl FnOnce(&AtomicBool) -> T + Send,
    ) -> Result<(u64, T), LabError> {
        let system = |action: &'static str| move |error: io::Error| LabError::system(action, error);
        let (from, to) = (self.a.ipv4, SocketAddr::new(self.b.ipv4, 7000));
        let receiver = self.datagram_receiver(to.port(), Duration::from_secs(20))?;
        let bind = || UdpSocket::bind(SocketAddr::new(from, 0)).map_err(system("binding"));
        let sender = self.a.host.run(bind)?;
        let (done, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
        let (sent, result) = std::thread::scope(|scope| -> Result<_, LabError> {
            let changer = scope.spawn(|| meanwhile(&done));
            let sending = scope.spawn(|| {
                let (mut sent, mut payload) = (0u64, [0x5a; 1000]);
                while goes_on(sent) && !done.load(Ordering::Relaxed) {
                    if sent - arrived.load(Ordering::Acquire) >= WINDOW {
                        std::thread::sleep(Duration::from_micros(50));
                        continue;
                    }
                    payload[..8].copy_from_slice(&sent.to_be_bytes());
                    sender.send_to(&payload, to).map_err(system("sending"))?;
                    sent += 1;
                }
                // An empty datagram ends the test.
                sender.send_to(&[], to).map_err(system("sending"))?;
                Ok::<_, LabError>(sent)
            });
            let mut bytes = [0; 2000];
            // Compared when the other threads have ended, which they do only when `done` is set.
            let last = loop {
                let expected = arrived.load(Ordering::Relaxed);
                match receiver.recv(&mut bytes) {
                    Ok(1000)
                        if bytes[..8] == expected.to_be_bytes()
                            && bytes[8..1000] == [0x5a; 992] =>
                    {
                        arrived.store(expected + 1, Ordering::Release);
                    }
                    last => break last.map(|length| bytes[..length.min(16)].to_vec()),
                }
            };
            done.store(true, Ordering::Relaxed);
            let result = changer.join().expect("no panic");
            let expected = arrived.load(Ordering::Relaxed);
            assert!(
                matches!(&last, Ok(end) if end.is_empty()),
                "{last:?}, after {expected} datagrams: {:?}",
                self.bridge.stats()
            );
            Ok((sending.join().expect("no panic")?, result))
        })?;
        assert_eq!(arrived.into_inner(), sent);
        Ok((sent, result))
    }

    /// Returns the number of frames that the wires lost or reordered so far.
    pub fn impaired_frames(&self) -> u64 {
        self.wires.iter().map(|wire| wire.counters().lost + wire.counters().reordered).sum()
    }

    /// Sends bytes both ways at once over both IP versions, and compares them.
    pub fn carries_both_ways(&self, bytes: u64) -> Result<(), LabError> {
        let Joined { a, b, .. } = self;
        for route in [Route::ipv4(a, b), Route::ipv6(a, b)] {
            let report = TcpBulk {
                direction: Direction::Both,
                flows: 2,
                until: Until::Bytes(bytes),
                verify: Some(KEY),
                ..TcpBulk::default()
            }
            .run(&route)?;
            assert_eq!(report.bytes(), 4 * bytes);
        }
        Ok(())
    }

    /// Returns the counters of the port to A (0) or B (1).
    pub fn stats(&self, side: usize) -> PortStats {
        self.bridge
            .stats()
            .into_iter()
            .find(|stats| stats.port == self.names[side])
            .expect("the port is there")
    }

    /// Switches an offload of the port to A (0) or B (1).
    pub fn switch(&self, side: usize, feature: Feature, on: bool) {
        self.bridge.set_feature(&self.names[side], feature, on, true).expect("the port is there");
    }

    /// Waits until `holds` returns true; panics after 30 s.
    pub fn wait(&self, what: &str, mut holds: impl FnMut(&Joined) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "{what} in 30 s: {:?}",
                self.bridge.ports()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
