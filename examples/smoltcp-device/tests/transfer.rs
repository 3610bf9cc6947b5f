//! Two smoltcp stacks, joined by a wire in memory, transfer some megabytes.

use std::collections::VecDeque;
use std::mem::take;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use superpacket_smoltcp_device::OffloadDevice;

/// Longest IP packet on the wire, in bytes.
const MTU: usize = 1500;
/// Bytes of TCP payload in a full frame over IPv4, without options.
const FULL_FRAME: usize = MTU - 40;
/// Bytes of a transfer.
const LENGTH: usize = 4 << 20;

/// One end of the wire: a device without offloads.
struct Port {
    medium: Medium,
    arrived: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
    /// Number of frames that the device accepts before the wire takes them.
    slots: usize,
}

impl Port {
    fn new(medium: Medium, slots: usize) -> Port {
        Port { medium, arrived: VecDeque::new(), sent: Vec::new(), slots }
    }
}

impl Device for Port {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Slot<'a>;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        capabilities.max_transmission_unit = longest_frame(self.medium);
        capabilities
    }

    fn receive(&mut self, _now: Instant) -> Option<(Arrived, Slot<'_>)> {
        Some((Arrived(self.arrived.pop_front()?), Slot(&mut self.sent)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Slot<'_>> {
        (self.sent.len() < self.slots).then_some(Slot(&mut self.sent))
    }
}

struct Arrived(Vec<u8>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Slot<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Slot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.0.push(vec![0; length]);
        fill(self.0.last_mut().expect("pushed"))
    }
}

fn longest_frame(medium: Medium) -> usize {
    if medium == Medium::Ethernet { 14 + MTU } else { MTU }
}

/// A device that ends at a port, with or without offloads.
trait Card: Device {
    fn port(&mut self) -> &mut Port;
}

impl Card for Port {
    fn port(&mut self) -> &mut Port {
        self
    }
}

impl Card for OffloadDevice<Port> {
    fn port(&mut self) -> &mut Port {
        self.inner()
    }
}

/// Counts the packets that a stack receives.
struct Counted<D> {
    device: D,
    received: usize,
}

impl<D: Device> Device for Counted<D> {
    type RxToken<'a>
        = D::RxToken<'a>
    where
        D: 'a;
    type TxToken<'a>
        = D::TxToken<'a>
    where
        D: 'a;

    fn capabilities(&self) -> DeviceCapabilities {
        self.device.capabilities()
    }

    fn receive(&mut self, now: Instant) -> Option<(D::RxToken<'_>, D::TxToken<'_>)> {
        let tokens = self.device.receive(now)?;
        self.received += 1;
        Some(tokens)
    }

    fn transmit(&mut self, now: Instant) -> Option<D::TxToken<'_>> {
        self.device.transmit(now)
    }
}

/// A stack with one socket.
struct Host<D> {
    device: Counted<D>,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl<D: Card> Host<D> {
    fn new(mut device: D, number: u8, address: IpAddress) -> Self {
        let hardware = match device.port().medium {
            Medium::Ethernet => HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, number])),
            _ => HardwareAddress::Ip,
        };
        let mut device = Counted { device, received: 0 };
        let mut interface = Interface::new(Config::new(hardware), &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address, 24)).expect("the list is empty")
        });
        let buffer = || SocketBuffer::new(vec![0; 1 << 18]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(Socket::new(buffer(), buffer()));
        Host { device, interface, sockets, socket }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn poll(&mut self, now: Instant) {
        self.interface.poll(now, &mut self.device, &mut self.sockets);
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        take(&mut self.device.device.port().sent)
    }
}

/// The numbers of frames and packets of a transfer.
struct Seen {
    /// Frames on the wire from the sender to the receiver.
    frames: usize,
    /// Packets that the receiver's stack received.
    received: usize,
}

/// Sends [`LENGTH`] bytes, and checks that all of them arrive and that no frame is too long.
/// `damage` sees each frame that leaves the sender, with its number.
fn transfer(
    sender: impl Card,
    receiver: impl Card,
    version: u8,
    mut damage: impl FnMut(usize, &mut [u8]),
) -> Seen {
    let address = |number| {
        if version == 4 {
            IpAddress::v4(10, 0, 0, number)
        } else {
            IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, number.into())
        }
    };
    let mut sender = Host::new(sender, 1, address(1));
    let mut receiver = Host::new(receiver, 2, address(2));
    let longest = longest_frame(sender.device.device.port().medium);
    let bytes: Vec<u8> =
        (0..LENGTH).map(|index| (index.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    receiver.socket().listen(7).expect("a new socket");
    let context = sender.interface.context();
    sender
        .sockets
        .get_mut::<Socket<'_>>(sender.socket)
        .connect(context, (address(2), 7), 1000)
        .expect("a new socket");
    let (mut written, mut read, mut frames) = (0, Vec::new(), 0);
    for millisecond in 0..200_000 {
        let now = Instant::from_millis(millisecond);
        if sender.socket().can_send() {
            written += sender.socket().send_slice(&bytes[written..]).expect("an open connection");
        }
        sender.poll(now);
        for mut frame in sender.sent() {
            assert!(frame.len() <= longest, "{} bytes", frame.len());
            damage(frames, &mut frame);
            frames += 1;
            receiver.device.device.port().arrived.push_back(frame);
        }
        receiver.poll(now);
        while receiver.socket().can_recv() {
            receiver
                .socket()
                .recv(|part| (part.len(), read.extend_from_slice(part)))
                .expect("an open connection");
        }
        for frame in receiver.sent() {
            assert!(frame.len() <= longest, "{} bytes", frame.len());
            sender.device.device.port().arrived.push_back(frame);
        }
        if read.len() >= LENGTH {
            assert!(read == bytes, "the bytes are not those that were sent");
            return Seen { frames, received: receiver.device.received };
        }
    }
    panic!("{} of {LENGTH} bytes arrived", read.len());
}

fn intact(_number: usize, _frame: &mut [u8]) {}

fn offloads(medium: Medium) -> OffloadDevice<Port> {
    OffloadDevice::new(Port::new(medium, usize::MAX))
}

#[test]
fn a_stack_receives_fewer_packets_than_the_wire_carries() {
    for medium in [Medium::Ip, Medium::Ethernet] {
        for version in [4, 6] {
            let seen = transfer(offloads(medium), offloads(medium), version, intact);
            assert!(
                seen.frames >= LENGTH / FULL_FRAME,
                "{medium:?}, IPv{version}: {} frames",
                seen.frames
            );
            let ratio = seen.frames / seen.received;
            assert!(
                ratio >= 20,
                "{medium:?}, IPv{version}: {} frames, {} packets",
                seen.frames,
                seen.received
            );
        }
    }
}

#[test]
fn a_stack_without_offloads_takes_every_frame() {
    // It verifies the checksum of each frame.
    let port = || Port::new(Medium::Ethernet, usize::MAX);
    let seen = transfer(offloads(Medium::Ethernet), port(), 4, intact);
    assert_eq!(seen.received, seen.frames);
    let full_frames = LENGTH.div_ceil(FULL_FRAME);
    assert!(
        seen.frames < full_frames * 21 / 20,
        "{} frames, {full_frames} full ones would do",
        seen.frames
    );
}

#[test]
fn frames_of_a_stack_without_offloads_are_merged() {
    let seen =
        transfer(Port::new(Medium::Ethernet, usize::MAX), offloads(Medium::Ethernet), 4, intact);
    assert!(seen.frames / seen.received >= 20, "{} frames, {} packets", seen.frames, seen.received);
}

#[test]
fn frames_wait_for_a_full_device() {
    let port = || Port::new(Medium::Ethernet, 5);
    let seen = transfer(OffloadDevice::new(port()), OffloadDevice::new(port()), 4, intact);
    let full_frames = LENGTH.div_ceil(FULL_FRAME);
    assert!(
        seen.frames < full_frames * 21 / 20,
        "sent once: {} frames, {full_frames} full ones would do",
        seen.frames
    );
}

#[test]
fn damaged_frames_are_dropped_and_sent_again() {
    let damage = |number: usize, frame: &mut [u8]| {
        if number % 100 == 99 && frame.len() > 1000 {
            frame[700] ^= 4;
        }
    };
    let seen = transfer(offloads(Medium::Ip), offloads(Medium::Ip), 4, damage);
    assert!(seen.frames > LENGTH.div_ceil(FULL_FRAME), "{} frames", seen.frames);
}
