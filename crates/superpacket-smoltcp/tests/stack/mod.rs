//! A smoltcp stack with one TCP socket, for the tests and the benchmark.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

/// Size in bytes of a socket's buffers: a window of a few super-packets.
const BUFFER: usize = 256 << 10;

/// A stack with one socket.
pub struct Stack<D> {
    pub device: D,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

impl<D: Device> Stack<D> {
    /// Creates a stack with this address. `number` is the last byte of its hardware address.
    pub fn new(mut device: D, address: IpAddress, number: u8, now: Instant) -> Self {
        let hardware = match device.capabilities().medium {
            Medium::Ip => HardwareAddress::Ip,
            _ => EthernetAddress([2, 0, 0, 0, 0, number]).into(),
        };
        let mut interface = Interface::new(Config::new(hardware), &mut device, now);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address, 24)).expect("the list is empty")
        });
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(Socket::new(buffer(), buffer()));
        Stack { device, interface, sockets, socket }
    }

    /// Makes the socket listen.
    pub fn listen(&mut self, port: u16) {
        self.sockets.get_mut::<Socket<'_>>(self.socket).listen(port).expect("a new socket");
    }

    /// Connects the socket.
    pub fn connect(&mut self, to: (IpAddress, u16), from: u16) {
        let context = self.interface.context();
        let socket = self.sockets.get_mut::<Socket<'_>>(self.socket);
        socket.connect(context, to, from).expect("a new socket");
    }

    /// Receives and sends packets, and returns the socket.
    pub fn poll(&mut self, now: Instant) -> &mut Socket<'static> {
        self.interface.poll(now, &mut self.device, &mut self.sockets);
        self.sockets.get_mut(self.socket)
    }
}
