//! Tests kernel TCP and UDP through TUN devices of two hosts, connected by this crate.
#![cfg(target_os = "linux")]

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use superpacket_lab::{
    Direction, Host, LabError, Link, Route, TcpBulk, UdpBulk, UdpTunnel, Until, available_or_skip,
    enter_user_namespace_before_main,
};
use superpacket_traffic::check::{self, Expect, Kind};
#[cfg(feature = "tokio")]
use superpacket_tun::EachBuffer;
use superpacket_tun::{
    Builder, Device, GsoKind, Layer, NewBuffers, Offloads, Queue, Reader, Switches, Tun, Writer,
};

enter_user_namespace_before_main!();

/// Two hosts with a TUN device each, and threads that forward packets between the devices.
struct Tunnel {
    a: Host,
    b: Host,
    tun_a: Tun,
    tun_b: Tun,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Carried>>,
}

/// Counts of the packets that a thread has forwarded in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    /// Numbers of super-packets that were read and written.
    super_packets: (u64, u64),
    /// Numbers of packets that were read and written.
    packets: (u64, u64),
    /// Number of super-packets whose packets were written one by one.
    separated: u64,
    refused: u64,
}

impl std::iter::Sum for Carried {
    fn sum<I: Iterator<Item = Carried>>(all: I) -> Carried {
        all.fold(Carried::default(), |sum, one| Carried {
            super_packets: (
                sum.super_packets.0 + one.super_packets.0,
                sum.super_packets.1 + one.super_packets.1,
            ),
            packets: (sum.packets.0 + one.packets.0, sum.packets.1 + one.packets.1),
            separated: sum.separated + one.separated,
            refused: sum.refused + one.refused,
        })
    }
}

/// The addresses of host B.
const SERVER: [&str; 2] = ["10.9.0.2", "fd09::2"];

/// The MTU of both devices, in bytes.
const MTU: u16 = 1400;

const ADDRESSES: [[&str; 2]; 2] = [["10.9.0.1/24", "fd09::1/64"], ["10.9.0.2/24", "fd09::2/64"]];

/// Returns the error of opening a device; `Forbidden` if this user may not open one.
fn no_device(error: impl Into<io::Error>) -> LabError {
    let (what, error) = ("a TUN device", error.into());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            LabError::Forbidden { what: what.into(), reason: error.to_string() }
        }
        _ => LabError::system(what, error),
    }
}

fn open(host: &Host, builder: Builder, addresses: [&str; 2]) -> Result<Tun, LabError> {
    let tun = host.run(|| builder.open().map_err(no_device))?;
    for address in addresses {
        host.link(tun.name()).add_address(address)?;
    }
    Ok(tun)
}

impl Tunnel {
    /// Returns two hosts with devices that `build` describes.
    fn new(build: impl Fn(Builder) -> Builder) -> Result<Self, LabError> {
        let (a, b) = (Host::new("A")?, Host::new("B")?);
        let tun_a = open(&a, build(Tun::builder("tun0").mtu(u32::from(MTU))), ADDRESSES[0])?;
        let tun_b = open(&b, build(Tun::builder("tun0").mtu(u32::from(MTU))), ADDRESSES[1])?;
        Ok(Tunnel { a, b, tun_a, tun_b, stop: Arc::default(), threads: Vec::new() })
    }

    /// Forwards packets in both directions, with a thread per queue and direction. `wrap` turns
    /// queues into devices.
    fn carry<D: Device + AsFd + Send + 'static>(
        &mut self,
        wrap: impl Fn(Queue) -> D,
    ) -> Result<(), LabError> {
        self.carry_inspected(wrap, |_| {})
    }

    /// Forwards packets, and calls `inspect` with each packet that is read.
    fn carry_inspected<D: Device + AsFd + Send + 'static>(
        &mut self,
        wrap: impl Fn(Queue) -> D,
        inspect: impl Fn(&[u8]) + Copy + Send + 'static,
    ) -> Result<(), LabError> {
        for (from, to) in [(&self.tun_a, &self.tun_b), (&self.tun_b, &self.tun_a)] {
            for (from, to) in from.queues().iter().zip(to.queues()) {
                let reader = from.reader();
                let writer = Writer::new(wrap(to.clone()), to.framing(), self.switches_of(to));
                let stop = Arc::clone(&self.stop);
                self.threads
                    .push(std::thread::spawn(move || carry(reader, writer, inspect, &stop)));
            }
        }
        Ok(())
    }

    /// Returns the switches, which all writers of a device share.
    fn switches_of(&self, queue: &Queue) -> Switches {
        queue.writer::<Vec<u8>>().switches().clone()
    }

    fn route(&self, address: &str) -> Route<'_> {
        Route {
            client: &self.a,
            server: &self.b,
            address: address.parse::<IpAddr>().expect("an address"),
        }
    }

    /// Sends bytes in both directions by TCP over IPv4 and IPv6, and compares them.
    fn tcp(&self, flows: usize, bytes: u64) -> Result<(), LabError> {
        SERVER.into_iter().try_for_each(|address| self.tcp_to(address, flows, bytes))
    }

    fn tcp_to(&self, address: &str, flows: usize, bytes: u64) -> Result<(), LabError> {
        let bulk = TcpBulk {
            flows,
            until: Until::Bytes(bytes),
            direction: Direction::Both,
            verify: Some(7),
            ..TcpBulk::default()
        };
        bulk.run(&self.route(address)).map(drop)
    }

    /// Sends datagrams in super-packets over IPv4 and IPv6, and compares them.
    fn udp(&self) -> Result<(), LabError> {
        SERVER.into_iter().try_for_each(|address| self.udp_to(address))
    }

    fn udp_to(&self, address: &str) -> Result<(), LabError> {
        let load = UdpBulk {
            datagram: 1200,
            segments: 20,
            gro: true,
            // At this rate, a device queue of 500 packets is filled in 50 ms, which suffices on a
            // busy machine.
            datagrams_per_second: Some(1e4),
            time: Duration::from_millis(300),
            verify: Some(9),
            ..UdpBulk::default()
        };
        let report = load.run(&self.route(address))?;
        assert!(report.sent > 1000 && report.received > report.sent / 2, "{report:?}");
        assert_eq!((report.duplicates, report.out_of_order), (0, 0), "{report:?}");
        Ok(())
    }

    /// Ends the threads, and returns their counts per direction and queue.
    fn end(&mut self) -> Vec<Carried> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads
            .drain(..)
            .map(|thread| thread.join().expect("a carrier does not panic"))
            .collect()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Waits a short time for packets.
fn wait(fd: BorrowedFd<'_>) {
    let time = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&time)).expect("poll");
}

/// Forwards packets until the threads are ended.
fn carry<D: Device>(
    mut reader: Reader<Queue>,
    mut writer: Writer<D, Vec<u8>>,
    inspect: impl Fn(&[u8]),
    stop: &AtomicBool,
) -> Carried {
    let mut packets = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        wait(reader.as_fd());
        for _ in 0..16 {
            match reader.try_read_into(&mut NewBuffers::new(&mut packets, |length| vec![0; length]))
            {
                Ok(_) => {}
                Err(error) if error.would_block() => break,
                Err(error) => panic!("{error}"),
            }
        }
        packets.iter().for_each(|packet| inspect(packet));
        packets.drain(..).for_each(|packet| writer.push(packet));
        writer.flush().expect("the device takes packets");
    }
    let (read, written) = (reader.counters(), writer.counters());
    assert_eq!((read.malformed, read.dropped, written.rejected), (0, 0, 0));
    Carried {
        super_packets: (read.super_packets, written.super_packets),
        packets: (read.packets, written.packets),
        separated: written.separated,
        refused: written.refused,
    }
}

#[test]
fn tcp_and_udp_pass_in_super_packets_both_ways() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(|builder| builder)) else { return Ok(()) };
    assert_eq!(
        (tunnel.tun_a.offloads(), tunnel.tun_a.switches().on()),
        (Offloads::ALL, Offloads::ALL),
        "Linux 6.2 or newer"
    );
    tunnel.carry(|queue| queue)?;
    tunnel.tcp(2, 40 << 20)?;
    tunnel.udp()?;
    for carried in tunnel.end() {
        let Carried {
            super_packets: (read, written),
            packets: (packets_read, packets_written),
            ..
        } = carried;
        assert_eq!(
            (packets_read, carried.refused, carried.separated),
            (packets_written, 0, 0),
            "{carried:?}"
        );
        // 160 MB of TCP are 118,000 packets of 1,400 bytes: most are read and written in
        // super-packets.
        assert!(packets_read > 100_000 && read > 1000 && written > 1000, "{carried:?}");
        assert!(packets_read / read > 5 && packets_written / written > 5, "{carried:?}");
    }
    Ok(())
}

#[test]
fn ethernet_frames_of_tap_devices_pass_so_too() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(|builder| builder.layer(Layer::Ethernet)))
    else {
        return Ok(());
    };
    assert_eq!(
        (tunnel.tun_a.offloads(), tunnel.tun_a.switches().on()),
        (Offloads::ALL, Offloads::ALL),
        "Linux 6.2 or newer"
    );
    assert_eq!(
        tunnel.tun_a.queues()[0].framing().map(|framing| framing.layer),
        Some(Layer::Ethernet)
    );
    assert_eq!(tunnel.tun_a.mtu().expect("it is there"), 1400, "as IP packets count");
    // Packets from A to B over IPv6 are written one by one.
    tunnel.tun_b.switches().forbid("fd09::2".parse::<IpAddr>().expect("an address"));
    tunnel.carry(|queue| queue)?;
    tunnel.tcp(2, 10 << 20)?;
    tunnel.udp()?;
    let carried = tunnel.end();
    for Carried { super_packets: (read, written), packets, refused, .. } in &carried {
        assert_eq!((packets.0, *refused), (packets.1, 0), "{carried:?}");
        assert!(*read > 200 && *written > 200 && packets.0 / read > 5, "{carried:?}");
    }
    assert!(carried[0].separated > 100 && carried[1].separated == 0, "{carried:?}");

    let fd = tunnel.tun_a.queues()[0].as_fd().try_clone_to_owned().expect("a copy");
    let error = Tun::from_fds([fd]).expect_err("a TAP device").to_string();
    assert!(error.contains("it is a TAP device"), "{error}");
    Ok(())
}

/// Asserts that a packet that was read from a device with this MTU is valid: the outer and inner
/// headers and all checksums are right, and it is in a tunnel if it is UDP.
fn assert_whole_in_tunnel(packet: &[u8]) {
    let checked = check::frame(packet, &Expect { starts_at_ip: true, ..Expect::default() })
        .unwrap_or_else(|problem| panic!("{problem}"));
    assert!(packet.len() <= usize::from(MTU), "{} bytes", packet.len());
    let in_tunnel =
        checked.layers.iter().any(|layer| matches!(layer.kind, Kind::Vxlan | Kind::Geneve));
    assert_eq!(
        in_tunnel,
        checked.layers.iter().any(|layer| layer.kind == Kind::Udp),
        "{checked:?}"
    );
}

#[test]
fn super_packets_in_tunnels_are_cut_before_they_are_read() -> Result<(), LabError> {
    for (tunnel, checksum) in [
        (UdpTunnel::Vxlan, true),
        (UdpTunnel::Vxlan, false),
        (UdpTunnel::Geneve, true),
        (UdpTunnel::Geneve, false),
    ] {
        // The inner MTU leaves room for the outer headers; IPv4 needs 20 bytes less than IPv6.
        for (outer, room) in [(["10.9.0.1", "10.9.0.2"], 50), (["fd09::1", "fd09::2"], 70)] {
            let Some(mut vpn) = available_or_skip(Tunnel::new(|builder| builder)) else {
                return Ok(());
            };
            let ends = [
                (&vpn.a, outer[1], ["10.10.0.1/24", "fd10::1/64"]),
                (&vpn.b, outer[0], ["10.10.0.2/24", "fd10::2/64"]),
            ];
            for (host, remote, addresses) in ends {
                let remote = remote.parse::<IpAddr>().expect("an address");
                let Some(link) =
                    available_or_skip(Link::tunnel_to(host, "inner0", tunnel, remote, checksum))
                else {
                    return Ok(());
                };
                link.set_mtu(u32::from(MTU) - room)?;
                addresses.into_iter().try_for_each(|address| link.add_address(address))?;
            }
            vpn.carry_inspected(|queue| queue, assert_whole_in_tunnel)?;
            for address in ["10.10.0.2", "fd10::2"] {
                vpn.tcp_to(address, 2, 4 << 20)?;
                vpn.udp_to(address)?;
            }
            for carried in vpn.end() {
                // 16 MB of TCP are 13,000 packets. Linux delivers super-packets in tunnels only if
                // this is requested (TUN_F_UDP_TUNNEL_GSO).
                assert!(
                    carried.packets.0 > 10_000,
                    "{tunnel:?}, checksum {checksum}, over {outer:?}: {carried:?}"
                );
                assert_eq!(
                    (carried.super_packets.0, carried.refused),
                    (0, 0),
                    "{tunnel:?}, checksum {checksum}, over {outer:?}: {carried:?}"
                );
            }
        }
    }
    Ok(())
}

/// A queue that makes the kernel refuse super-packets: it replaces the type in their headers by an
/// unknown one.
struct Refusing {
    queue: Queue,
    refusals: Arc<AtomicU64>,
}

impl Device for Refusing {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.queue.read(buffer)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let mut header: [u8; 10] = slices[0][..].try_into().expect("a header comes first");
        if header[1] == 0 {
            return self.queue.write(slices);
        }
        header[1] = 0x77;
        let mut mangled = slices.to_vec();
        mangled[0] = IoSlice::new(&header);
        self.queue.write(&mangled).inspect_err(|error| {
            assert_eq!(error.raw_os_error(), Some(22), "the kernel says EINVAL");
            self.refusals.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn wait_readable(&self) -> io::Result<()> {
        self.queue.wait_readable()
    }

    fn wait_writable(&self) -> io::Result<()> {
        self.queue.wait_writable()
    }
}

impl AsFd for Refusing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

#[test]
fn a_kernel_that_refuses_super_packets_loses_none() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(|builder| builder)) else { return Ok(()) };
    let refusals = Arc::new(AtomicU64::new(0));
    tunnel.carry(|queue| Refusing { queue, refusals: Arc::clone(&refusals) })?;
    tunnel.tcp(2, 5 << 20)?;
    tunnel.udp()?;
    let switches = [tunnel.tun_a.switches().clone(), tunnel.tun_b.switches().clone()];
    let carried: Carried = tunnel.end().into_iter().sum();
    assert_eq!((carried.packets.0, carried.super_packets.1), (carried.packets.1, 0), "{carried:?}");
    // There is one refusal per kind: TCP in both directions, UDP in one.
    assert_eq!((carried.refused, refusals.load(Ordering::Relaxed)), (5, 5), "{carried:?}");
    assert!(
        switches.iter().all(|switches| !switches.on().tcp4 && !switches.on().tcp6),
        "{switches:?}"
    );
    assert_eq!(
        switches[1]
            .refusals()
            .iter()
            .filter(|refusal| refusal.kind == GsoKind::Udp && refusal.errno == Some(22))
            .count(),
        1
    );
    Ok(())
}

#[test]
fn changed_offloads_lose_no_byte() -> Result<(), LabError> {
    let Some(mut tunnel) =
        available_or_skip(Tunnel::new(|builder| builder.offloads(Offloads::TCP)))
    else {
        return Ok(());
    };
    assert_eq!(tunnel.tun_a.offloads(), Offloads::TCP);
    assert!(tunnel.tun_a.switches().on().udp, "what is taken does not depend on what is given");
    tunnel.carry(|queue| queue)?;
    tunnel.tcp(1, 5 << 20)?;
    for offloads in [Offloads::NONE, Offloads::CHECKSUM] {
        tunnel
            .tun_a
            .set_offloads(offloads)
            .map_err(|error| LabError::system("TUNSETOFFLOAD", error))?;
        tunnel
            .tun_b
            .set_offloads(offloads)
            .map_err(|error| LabError::system("TUNSETOFFLOAD", error))?;
        tunnel.tcp(1, 5 << 20)?;
        tunnel.udp()?;
    }
    let carried: Carried = tunnel.end().into_iter().sum();
    assert_eq!((carried.packets.0, carried.refused), (carried.packets.1, 0), "{carried:?}");
    assert!(
        carried.super_packets.0 > 100 && carried.super_packets.1 > carried.super_packets.0,
        "what came single left merged: {carried:?}"
    );
    Ok(())
}

#[test]
fn switches_change_under_load() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(|builder| builder)) else { return Ok(()) };
    tunnel.carry(|queue| queue)?;
    let switches = tunnel.tun_b.switches().clone();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let turning = std::thread::spawn(move || {
        let mut turns = 0;
        while !stopped.load(Ordering::Relaxed) {
            match turns % 4 {
                0 => switches.set(GsoKind::Tcp4, false),
                1 => switches
                    .forbid("fd09::/64".parse::<superpacket_tun::IpNet>().expect("a prefix")),
                2 => switches.set_all(true),
                _ => drop(
                    switches
                        .allow("fd09::/64".parse::<superpacket_tun::IpNet>().expect("a prefix")),
                ),
            }
            turns += 1;
            std::thread::sleep(Duration::from_millis(3));
        }
        turns
    });
    let result = tunnel.tcp(2, 30 << 20);
    stop.store(true, Ordering::Relaxed);
    assert!(turning.join().expect("no panic") > 10);
    result?;
    let carried: Carried = tunnel.end().into_iter().sum();
    assert!(carried.separated > 10 && carried.super_packets.1 > 10, "{carried:?}");
    assert_eq!(carried.packets.0, carried.packets.1);
    Ok(())
}

#[test]
fn several_queues_carry_several_flows() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(|builder| builder.queues(3))) else {
        return Ok(());
    };
    assert_eq!((tunnel.tun_a.queues().len(), tunnel.tun_b.queues().len()), (3, 3));
    tunnel.carry(|queue| queue)?;
    tunnel.tcp(12, 4 << 20)?;
    let carried = tunnel.end();
    let used = |queues: &[Carried]| queues.iter().filter(|queue| queue.packets.0 > 100).count();
    assert!(used(&carried[..3]) >= 2 && used(&carried[3..]) >= 2, "{carried:?}");
    Ok(())
}

#[test]
fn what_was_asked_for_is_what_is_told() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("A")) else { return Ok(()) };
    let Some(_) = available_or_skip(host.run(|| Tun::open("first").map_err(no_device))) else {
        return Ok(());
    };
    host.run(|| -> Result<(), LabError> {
        let tun = Tun::builder("few%d").mtu(1337).up(false).open().expect("a device");
        assert_eq!((tun.name(), tun.mtu().expect("it is there")), ("few0", 1337));
        assert_eq!((host.link("few0").mtu()?, host.link("few0").is_up()?), (1337, false));
        tun.set_mtu(1280).expect("it is ours");
        assert_eq!(host.link("few0").mtu()?, 1280);
        let second = Tun::open("few%d").expect("a second device");
        assert_eq!(second.name(), "few1");
        assert!(host.link("few1").is_up()?);

        // A descriptor that another program may have opened is used unchanged.
        let fd = second.queues()[0].as_fd().try_clone_to_owned().expect("a copy");
        drop(second);
        let third = Tun::from_fds([fd]).expect("it is attached");
        assert_eq!((third.name(), third.offloads()), ("few1", Offloads::ALL));
        drop(third);
        assert!(!host.link("few1").exists()?);

        for (builder, says) in [
            (
                Tun::builder("lo"),
                "\"lo\": create or attach to the device (TUNSETIFF): Invalid argument",
            ),
            (
                Tun::builder("few0"),
                "\"few0\": create or attach to the device (TUNSETIFF): Device or resource busy",
            ),
            (Tun::builder("a-name-that-is-too-long"), "at most 15 bytes"),
            (Tun::builder("few2").queues(0), "number of queues: 0 is not between 1 and 256"),
            (
                Tun::builder("few3").mtu(70_000),
                "\"few3\": set the MTU (SIOCSIFMTU): Invalid argument",
            ),
        ] {
            let error = builder.open().expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let error = Tun::from_fds([file.into()]).expect_err("no device").to_string();
        assert!(error.contains("TUNGETIFF"), "{error}");
        assert!(Tun::from_fds([]).is_err());
        Ok(())
    })
}

/// Opens a TUN device without super-packets, or a TAP device.
fn plain_device(name: &str, flags: u16) -> io::Result<std::os::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    let fd = open("/dev/net/tun", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mut request = [0u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&flags.to_ne_bytes());
    const TUNSETIFF: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<i32>(b'T', 202);
    // SAFETY: TUNSETIFF reads and writes the 40 bytes of a `struct ifreq`.
    unsafe {
        rustix::ioctl::ioctl(&fd, rustix::ioctl::Updater::<TUNSETIFF, _>::new(&mut request))
    }?;
    Ok(fd)
}

#[test]
fn a_descriptor_without_headers_carries_packets_one_by_one() -> Result<(), LabError> {
    const IFF_TUN_NO_PI: u16 = 0x1001;
    let Some(a) = available_or_skip(Host::new("A")) else { return Ok(()) };
    let Some(_) = available_or_skip(a.run(|| Tun::open("first").map_err(no_device))) else {
        return Ok(());
    };
    let b = Host::new("B")?;
    let attach = |host: &Host, addresses: [&str; 2]| -> Result<Tun, LabError> {
        let fd = host.run(|| {
            plain_device("old0", IFF_TUN_NO_PI).map_err(|error| LabError::system("old0", error))
        })?;
        let tun = host.run(|| {
            Tun::from_fds([fd])
                .map_err(|error| LabError::system("from_fds", io::Error::from(error)))
        })?;
        assert_eq!(
            (tun.name(), tun.offloads(), tun.switches().on()),
            ("old0", Offloads::NONE, Offloads::NONE)
        );
        assert!(tun.queues()[0].framing().is_none());
        host.link("old0").up()?;
        host.link("old0").set_mtu(1400)?;
        for address in addresses {
            host.link("old0").add_address(address)?;
        }
        Ok(tun)
    };
    let (tun_a, tun_b) = (attach(&a, ADDRESSES[0])?, attach(&b, ADDRESSES[1])?);
    let mut tunnel = Tunnel { a, b, tun_a, tun_b, stop: Arc::default(), threads: Vec::new() };
    assert!(tunnel.tun_a.set_offloads(Offloads::ALL).is_err());
    tunnel.carry(|queue| queue)?;
    tunnel.tcp(1, 5 << 20)?;
    let carried: Carried = tunnel.end().into_iter().sum();
    assert_eq!((carried.super_packets, carried.packets.0), ((0, 0), carried.packets.1));
    assert!(carried.packets.0 > 10_000);

    const IFF_TAP_NO_PI: u16 = 0x1002;
    let tap = tunnel.a.run(|| {
        plain_device("tap0", IFF_TAP_NO_PI).map_err(|error| LabError::system("tap0", error))
    })?;
    let error = Tun::from_fds([tap]).expect_err("a TAP device").to_string();
    assert!(error.contains("\"tap0\": use the descriptor: it is a TAP device"), "{error}");
    Ok(())
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_carry_what_threads_do() -> Result<(), LabError> {
    let Some(mut tunnel) = available_or_skip(Tunnel::new(|builder| builder)) else { return Ok(()) };
    let queues = [tunnel.tun_a.queues()[0].clone(), tunnel.tun_b.queues()[0].clone()];
    let stop = Arc::clone(&tunnel.stop);
    tunnel.threads.push(std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let [a, b] = queues
                .map(|queue| queue.split_async::<Vec<u8>>().expect("it is not registered yet"));
            let ((mut read_a, write_a), (mut read_b, mut write_b)) = (a, b);
            // One direction uses push and flush, with a pool that is smaller than a super-packet;
            // the other uses a queue.
            let there = tokio::spawn(async move {
                let (mut pool, mut sizes) = (vec![vec![0; 1400]; 7], [0; 7]);
                loop {
                    let mut buffers = EachBuffer::new(&mut pool, 0, &mut sizes);
                    read_a.read_into(&mut buffers).await.expect("it reads");
                    let used = buffers.used();
                    pool.iter()
                        .zip(sizes)
                        .take(used)
                        .for_each(|(packet, size)| write_b.push(packet[..size].to_vec()));
                    write_b.flush_lossy().await.expect("it writes");
                    assert_eq!(
                        read_a.get_ref().counters().packets,
                        write_b.get_ref().counters().packets
                    );
                }
            });
            let (sender, mut queued) = write_a.queued_in_order(1024);
            let writing = tokio::spawn(async move {
                queued.run_lossy(|error| panic!("it writes: {error}")).await;
                queued.writer().get_ref().counters().super_packets
            });
            let back = tokio::spawn(async move {
                let (mut packets, mut count) = (Vec::new(), 0);
                while !stop.load(Ordering::Relaxed) {
                    let mut buffers = NewBuffers::new(&mut packets, |length| vec![0; length]);
                    let read = read_b.read_into(&mut buffers);
                    if let Ok(read) = tokio::time::timeout(Duration::from_millis(20), read).await {
                        read.expect("it reads");
                    }
                    for packet in packets.drain(..) {
                        sender
                            .send((superpacket_tun::OrderKey::new(1, count), packet))
                            .await
                            .expect("somebody writes");
                        count += 1;
                    }
                }
                read_b.get_ref().counters().super_packets
            });
            let read = back.await.expect("no panic");
            there.abort();
            Carried {
                super_packets: (read, writing.await.expect("no panic")),
                ..Carried::default()
            }
        })
    }));
    tunnel.tcp(2, 20 << 20)?;
    let carried: Carried = tunnel.end().into_iter().sum();
    assert!(carried.super_packets.0 > 100 && carried.super_packets.1 > 100, "{carried:?}");
    Ok(())
}
