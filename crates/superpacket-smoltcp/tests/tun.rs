//! A stack of smoltcp with a TUN device, and the kernel at its other end.
#![cfg(all(target_os = "linux", feature = "tun"))]

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant as Clock};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use superpacket_lab::{Host, LabError, available_or_skip, enter_user_namespace_before_main};
use superpacket_smoltcp::TunDevice;
use superpacket_tun::{Offloads, Tun};

enter_user_namespace_before_main!();

const LENGTH: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn failed(error: io::Error) -> LabError {
    LabError::system("a stack and the kernel".to_owned(), error)
}

fn byte(index: usize) -> u8 {
    (index.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Sends [`LENGTH`] bytes one way and compares them at the other end.
fn transfer(host: &Host, device: &mut TunDevice, ipv6: bool, to_kernel: bool) -> Result<(), LabError> {
    let (kernel, stack) = match ipv6 {
        true => ("fd00::2".parse::<IpAddr>().expect("an address"), IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
        false => (IpAddr::from([10, 0, 0, 2]), IpAddress::v4(10, 0, 0, 1)),
    };
    let listener = host.run(|| TcpListener::bind((kernel, 0)).map_err(failed))?;
    let port = listener.local_addr().map_err(failed)?.port();
    let work = move |mut stream: TcpStream| -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        if to_kernel {
            let mut bytes = vec![0; LENGTH];
            stream.read_exact(&mut bytes)?;
            assert!(bytes.iter().enumerate().all(|(index, &found)| found == byte(index)));
            stream.write_all(b"!")
        } else {
            stream.write_all(&(0..LENGTH).map(byte).collect::<Vec<_>>())
        }
    };
    let kernel_end = host.spawn(move || listener.accept().and_then(|(stream, _)| work(stream)).map_err(failed))?;

    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), device, Instant::now());
    interface.update_ip_addrs(|addresses| addresses.push(IpCidr::new(stack, 24)).expect("the list is empty"));
    let buffer = || SocketBuffer::new(vec![0; 256 << 10]);
    let mut sockets = SocketSet::new(Vec::new());
    let socket: SocketHandle = sockets.add(Socket::new(buffer(), buffer()));
    let context = interface.context();
    sockets
        .get_mut::<Socket<'_>>(socket)
        .connect(context, (IpAddress::from(kernel), port), 40_000 + u16::from(to_kernel))
        .expect("a new socket");
    let (mut sent, mut received, start) = (0, Vec::new(), Clock::now());
    while received.len() < if to_kernel { 1 } else { LENGTH } {
        interface.poll(Instant::now(), device, &mut sockets);
        let socket = sockets.get_mut::<Socket<'_>>(socket);
        while to_kernel && socket.can_send() && sent < LENGTH {
            let chunk: Vec<u8> = (sent..(sent + 65_536).min(LENGTH)).map(byte).collect();
            sent += socket.send_slice(&chunk).expect("an open connection");
        }
        while socket.can_recv() {
            socket.recv(|part| (part.len(), received.extend_from_slice(part))).expect("an open connection");
        }
        assert!(start.elapsed() < PATIENCE, "{} bytes sent, {} received", sent, received.len());
    }
    sockets.get_mut::<Socket<'_>>(socket).abort();
    interface.poll(Instant::now(), device, &mut sockets);
    kernel_end.join().expect("the kernel's end compares")?;
    assert!(to_kernel || received.iter().enumerate().all(|(index, &found)| found == byte(index)));
    Ok(())
}

fn opened(host: &Host, offloads: Offloads) -> Result<TunDevice, LabError> {
    let device =
        host.run(|| Tun::builder("tun0").offloads(offloads).open().map_err(io::Error::from).and_then(TunDevice::new).map_err(failed))?;
    host.link("tun0").add_address("10.0.0.2/24")?;
    host.link("tun0").add_address("fd00::2/64")?;
    Ok(device)
}

#[test]
fn super_packets_go_both_ways_and_the_bytes_are_right() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    for ipv6 in [false, true] {
        for to_kernel in [true, false] {
            let mut device = opened(&host, Offloads::TCP)?;
            transfer(&host, &mut device, ipv6, to_kernel)?;
            let counters = device.counters();
            assert_eq!((counters.malformed, counters.rejected, counters.refused), (0, 0, 0));
            let average = if to_kernel { counters.bytes_written / counters.written } else { counters.bytes_read / counters.read };
            // smoltcp 0.14 sends no super-packets over IPv6.
            assert!(ipv6 && to_kernel || average > 4_000, "{average} bytes a packet, IPv6 {ipv6}");
        }
    }
    Ok(())
}

#[test]
fn a_device_that_gives_no_super_packets_is_read_too() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    let mut device = opened(&host, Offloads::NONE)?;
    transfer(&host, &mut device, false, false)?;
    transfer(&host, &mut device, false, true)?;
    let counters = device.counters();
    assert!(counters.bytes_read / counters.read <= 1500 && counters.rejected == 0, "{counters:?}");
    Ok(())
}

#[test]
fn a_device_with_datagrams_in_super_packets_is_not_taken() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    let tun = host.run(|| Tun::open("tun0").map_err(|error| failed(error.into())))?;
    if tun.offloads().udp {
        let error = TunDevice::new(tun).expect_err("it would be misread");
        assert!(error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains("UDP"), "{error}");
    }
    Ok(())
}
