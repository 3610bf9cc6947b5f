//! A smoltcp stack with a TUN or TAP device, and the kernel or another stack at its other end.
#![cfg(all(target_os = "linux", feature = "tun"))]

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant as Clock};

use smoltcp::phy::{Device, Medium, RxToken};
use smoltcp::time::Instant;
use smoltcp::wire::IpAddress;
use superpacket::{GsoKind, Layer};
use superpacket_lab::{Host, LabError, Link, available_or_skip, enter_user_namespace_before_main};
use superpacket_smoltcp::TunDevice;
use superpacket_traffic::frame::Frame;
use superpacket_tun::{Device as _, Offloads, Tun};

use crate::stack::Stack;

mod stack;

enter_user_namespace_before_main!();

const LENGTH: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn failed(error: io::Error) -> LabError {
    LabError::system("a stack and the kernel".to_owned(), error)
}

fn byte(index: usize) -> u8 {
    (index.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// Writes to the stack's socket as much as it accepts.
fn send(stack: &mut Stack<impl Device>, sent: &mut usize) {
    let socket = stack.poll(Instant::now());
    while socket.can_send() && *sent < LENGTH {
        let chunk: Vec<u8> = (*sent..(*sent + 65_536).min(LENGTH)).map(byte).collect();
        *sent += socket.send_slice(&chunk).expect("an open connection");
    }
}

/// Reads all received bytes from the stack's socket.
fn receive(stack: &mut Stack<impl Device>, received: &mut Vec<u8>) {
    let socket = stack.poll(Instant::now());
    while socket.can_recv() {
        socket
            .recv(|part| (part.len(), received.extend_from_slice(part)))
            .expect("an open connection");
    }
}

fn compare(received: &[u8]) {
    assert!(
        received.iter().enumerate().all(|(index, &found)| found == byte(index)),
        "the bytes are not those that were sent"
    );
}

/// Sends [`LENGTH`] bytes in one direction and compares them at the other end. Returns the device.
fn transfer(
    host: &Host,
    device: TunDevice,
    ipv6: bool,
    to_kernel: bool,
) -> Result<TunDevice, LabError> {
    let (kernel, stack) = match ipv6 {
        true => (
            "fd00::2".parse::<IpAddr>().expect("an address"),
            IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        ),
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
    let kernel_end =
        host.spawn(move || listener.accept().and_then(|(stream, _)| work(stream)).map_err(failed))?;

    let mut stack = Stack::new(device, stack, 1, Instant::now());
    stack.connect((kernel.into(), port), 40_000 + u16::from(to_kernel));
    let (mut sent, mut received, start) = (0, Vec::new(), Clock::now());
    while received.len() < if to_kernel { 1 } else { LENGTH } {
        if to_kernel {
            send(&mut stack, &mut sent);
        }
        receive(&mut stack, &mut received);
        assert!(start.elapsed() < PATIENCE, "{} bytes sent, {} received", sent, received.len());
    }
    stack.poll(Instant::now()).abort();
    stack.poll(Instant::now());
    kernel_end.join().expect("the kernel's end compares")?;
    if !to_kernel {
        compare(&received);
    }
    Ok(stack.device)
}

const MEDIA: [(Medium, Layer); 2] = [(Medium::Ip, Layer::Ip), (Medium::Ethernet, Layer::Ethernet)];

/// Opens a device, with the kernel's addresses at its other end.
fn opened(host: &Host, layer: Layer, offloads: Offloads) -> Result<TunDevice, LabError> {
    let open = || {
        Tun::builder("tun0")
            .layer(layer)
            .offloads(offloads)
            .open()
            .map_err(io::Error::from)
            .and_then(TunDevice::new)
    };
    let device = host.run(|| open().map_err(failed))?;
    host.link("tun0").add_address("10.0.0.2/24")?;
    host.link("tun0").add_address("fd00::2/64")?;
    Ok(device)
}

/// Up to 15 s on a busy machine: eight transfers, each over a new device, of so many bytes that the
/// window opens and super-packets are the rule.
#[test]
fn super_packets_go_both_ways_and_the_bytes_are_right() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    for (medium, layer) in MEDIA {
        for (ipv6, to_kernel) in [(false, true), (false, false), (true, true), (true, false)] {
            let device = opened(&host, layer, Offloads::TCP)?;
            assert_eq!(device.capabilities().medium, medium);
            let device = transfer(&host, device, ipv6, to_kernel)?;
            let counters = device.counters();
            assert_eq!((counters.malformed, counters.rejected, counters.refused), (0, 0, 0));
            let average = if to_kernel {
                counters.bytes_written / counters.written
            } else {
                counters.bytes_read / counters.read
            };
            // smoltcp 0.14 sends no super-packets over IPv6.
            assert!(
                ipv6 && to_kernel || average > 4_000,
                "{average} bytes a packet, {medium:?}, IPv6 {ipv6}"
            );
        }
    }
    Ok(())
}

/// Creates two TAP devices on a kernel bridge.
fn bridged(host: &Host) -> Result<([Tun; 2], Link), LabError> {
    let open = |name| Tun::builder(name).layer(Layer::Ethernet).offloads(Offloads::TCP).open();
    let [left, right] = ["port1", "port2"]
        .map(|name| host.run(|| open(name).map_err(|error| failed(error.into()))));
    let (left, right) = (left?, right?);
    let bridge = Link::bridge(host, "br0", &[&host.link("port1"), &host.link("port2")])?;
    bridge.up()?;
    Ok(([left, right], bridge))
}

#[test]
fn a_bridge_passes_super_packets_of_two_stacks_on_whole() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stacks")) else { return Ok(()) };
    let ([left, right], _bridge) = bridged(&host)?;
    let (left, right) =
        (TunDevice::new(left).map_err(failed)?, TunDevice::new(right).map_err(failed)?);
    let [mut sender, mut receiver] = [(left, 1), (right, 2)].map(|(device, number)| {
        Stack::new(device, IpAddress::v4(10, 0, 0, number), number, Instant::now())
    });
    receiver.listen(7);
    sender.connect((IpAddress::v4(10, 0, 0, 2), 7), 40_000);
    let (mut sent, mut received, start) = (0, Vec::new(), Clock::now());
    while received.len() < LENGTH {
        send(&mut sender, &mut sent);
        receive(&mut receiver, &mut received);
        assert!(start.elapsed() < PATIENCE, "{sent} bytes sent, {} received", received.len());
    }
    compare(&received);
    let (sent, received) = (sender.device.counters(), receiver.device.counters());
    assert_eq!((sent.rejected, sent.refused, received.malformed), (0, 0, 0));
    let averages = [sent.bytes_written / sent.written, received.bytes_read / received.read];
    assert!(averages.iter().all(|average| *average > 10_000), "{averages:?} bytes a packet");
    Ok(())
}

#[test]
fn super_packets_that_are_switched_off_leave_in_segments() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    for (_, layer) in MEDIA {
        let tun = host.run(|| {
            Tun::builder("tun0")
                .layer(layer)
                .offloads(Offloads::TCP)
                .open()
                .map_err(|error| failed(error.into()))
        })?;
        tun.switches().set(GsoKind::Tcp4, false);
        host.link("tun0").add_address("10.0.0.2/24")?;
        let device = TunDevice::new(tun).map_err(failed)?;
        let device = transfer(&host, device, false, true)?;
        let counters = device.counters();
        assert!(
            counters.bytes_written / counters.written <= 1514 && counters.written > 5_000,
            "{counters:?}"
        );
        assert_eq!((counters.rejected, counters.refused), (0, 0), "{counters:?}");
    }
    Ok(())
}

/// The kernel forwards packets that another device has left unfinished. Frames without a checksum
/// are completed; a damaged checksum stays, so that smoltcp detects it.
#[test]
fn unfinished_checksums_are_completed_and_wrong_ones_stay() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    let ([source, device], _bridge) = bridged(&host)?;
    let (source, mut device) =
        (source.queues()[0].clone(), TunDevice::new(device).map_err(failed)?);
    let whole = Frame::tcp4(1, 100).to_bytes();
    let mut damaged = whole.clone();
    damaged[80] ^= 1;
    let mut unfinished = whole.clone();
    let layout = superpacket::wire::parse(&whole, whole.len(), Layer::Ethernet).expect("TCP");
    let length = (whole.len() - usize::from(layout.transport)) as u32;
    let sum = superpacket::checksum::pseudo_header(&whole[14..], layout.version, 6, length).fold();
    unfinished[50..52].copy_from_slice(&sum.to_be_bytes());
    let mut header = [0; 10];
    header[0] = 1; // VIRTIO_NET_HDR_F_NEEDS_CSUM
    header[6..8].copy_from_slice(&34u16.to_ne_bytes());
    header[8..10].copy_from_slice(&16u16.to_ne_bytes());
    for (header, sent, arrives) in
        [([0; 10], &whole, &whole), (header, &unfinished, &whole), ([0; 10], &damaged, &damaged)]
    {
        source.write(&[IoSlice::new(&header), IoSlice::new(sent)]).map_err(failed)?;
        let start = Clock::now();
        // The kernel's own IPv6 frames may arrive in between.
        let found = loop {
            let frame =
                device.receive(Instant::now()).map(|(token, _)| token.consume(<[u8]>::to_vec));
            match frame {
                Some(frame) if frame[..12] == whole[..12] => break frame,
                _ => assert!(start.elapsed() < PATIENCE, "nothing arrives"),
            }
        };
        assert!(found == *arrives);
    }
    assert_eq!(device.counters().malformed, 0);
    Ok(())
}

#[test]
fn a_device_without_super_packets_is_read_too() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    for (_, layer) in MEDIA {
        let device = opened(&host, layer, Offloads::NONE)?;
        let device = transfer(&host, device, false, false)?;
        let device = transfer(&host, device, false, true)?;
        let counters = device.counters();
        assert!(
            counters.bytes_read / counters.read <= 1514 && counters.rejected == 0,
            "{counters:?}"
        );
    }
    Ok(())
}

#[test]
fn a_device_with_udp_super_packets_is_refused() -> Result<(), LabError> {
    let Some(host) = available_or_skip(Host::new("stack")) else { return Ok(()) };
    let tun = host.run(|| Tun::open("tun0").map_err(|error| failed(error.into())))?;
    if tun.offloads().udp {
        let error = TunDevice::new(tun).expect_err("it would be misread");
        assert!(
            error.kind() == io::ErrorKind::InvalidInput && error.to_string().contains("UDP"),
            "{error}"
        );
    }
    Ok(())
}
