//! A TCP stack that answers requests: smoltcp's, for one worker.

use std::collections::VecDeque;
use std::ops::Range;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpProtocol, Ipv4Cidr, Ipv4Packet, TcpPacket};

/// Size of a socket's buffer in bytes, per direction.
const BUFFER: usize = 4096;

/// The service of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The stack's address, with the length of the network's prefix.
    pub address: Ipv4Cidr,
    /// The TCP port.
    pub port: u16,
    /// Length of a request in bytes; not 0.
    pub request: usize,
    /// Length of an answer in bytes; not 0.
    pub answer: usize,
    /// Maximum number of connections per stack.
    pub connections: usize,
    /// Longest IP packet to send, in bytes.
    pub mtu: usize,
}

/// A stack with its sockets.
pub struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    /// Progress of each socket's request or answer, in the order of the sockets; sockets are never
    /// removed.
    exchanges: Vec<Exchange>,
    wire: Wire,
    service: Service,
    /// Number of sockets that were in the listening state at the last poll.
    listening: usize,
    /// Number of connection requests that arrived since the last poll.
    asked: usize,
    answered: u64,
    corrupted: u64,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Stack")
            .field("service", &self.service)
            .field("answered", &self.answered)
            .finish_non_exhaustive()
    }
}

/// The progress of a connection's request and answer.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    /// Bytes of the request that are still missing.
    to_read: usize,
    /// Bytes of answers that are still to be sent.
    to_write: usize,
}

impl Stack {
    /// Creates a stack. `seed` should be random, because initial sequence numbers are derived from
    /// it.
    pub fn new(service: Service, seed: u64) -> Self {
        let mut wire = Wire {
            received: Vec::new(),
            arrived: VecDeque::new(),
            sent: Vec::new(),
            leaving: Vec::new(),
            mtu: service.mtu,
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // The list is empty, so there is room for one address.
            let _ = addresses.push(IpCidr::Ipv4(service.address));
        });
        // Answers leave by the way that the request came.
        let _ = interface.routes_mut().add_default_ipv4_route(service.address.address());
        let sockets = SocketSet::new(Vec::new());
        Stack {
            interface,
            sockets,
            exchanges: Vec::new(),
            wire,
            service,
            listening: 0,
            asked: 0,
            answered: 0,
            corrupted: 0,
        }
    }

    /// Takes a received IPv4 packet. Its checksums are verified, unless it is known to be intact.
    pub fn receive(&mut self, packet: &[u8], is_intact: bool) {
        if is_intact || is_valid(packet) {
            let start = self.wire.received.len();
            self.wire.received.extend_from_slice(packet);
            self.wire.arrived.push_back(start..self.wire.received.len());
            self.asked += usize::from(requests_connection(packet));
        } else {
            self.corrupted += 1;
        }
    }

    /// Processes the received packets and answers them. `now` is in nanoseconds. Returns the time
    /// at which this function must be called again even if no packet arrives.
    pub fn poll(&mut self, now: u64) -> Option<u64> {
        let time = Instant::from_micros((now / 1000) as i64);
        self.listen();
        self.interface.poll(time, &mut self.wire, &mut self.sockets);
        self.wire.received.clear();
        self.serve();
        self.interface.poll_egress(time, &mut self.wire, &mut self.sockets);
        let next = self.interface.poll_at(time, &self.sockets)?;
        Some((next.total_micros() as u64).saturating_mul(1000).max(now))
    }

    /// Hands the IPv4 packets to be sent, with complete checksums, to `send`.
    pub fn drain(&mut self, mut send: impl FnMut(&[u8])) {
        for range in self.wire.leaving.drain(..) {
            send(&self.wire.sent[range]);
        }
        self.wire.sent.clear();
    }

    /// Returns how many requests were answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns how many packets were dropped because of a wrong checksum.
    pub fn corrupted(&self) -> u64 {
        self.corrupted
    }

    /// Reads requests and writes answers on all connections, and makes closed sockets listen again.
    fn serve(&mut self) {
        self.listening = 0;
        for ((_, socket), exchange) in self.sockets.iter_mut().zip(&mut self.exchanges) {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            match socket.state() {
                State::Listen => self.listening += 1,
                State::Closed => {
                    *exchange = Exchange { to_read: self.service.request, to_write: 0 };
                    // `listen` fails only for port 0 and for an open socket.
                    let _ = socket.listen(self.service.port);
                    self.listening += 1;
                }
                State::SynReceived => {}
                _ => self.answered += exchange.advance(socket, &self.service),
            }
        }
    }

    /// Makes a socket listen for each requested connection. smoltcp has no backlog for a listening
    /// socket, and refuses a connection that finds no socket.
    fn listen(&mut self) {
        let missing = std::mem::take(&mut self.asked).saturating_sub(self.listening);
        let missing = missing.min(self.service.connections.saturating_sub(self.exchanges.len()));
        for _ in 0..missing {
            let mut socket =
                Socket::new(SocketBuffer::new(vec![0; BUFFER]), SocketBuffer::new(vec![0; BUFFER]));
            socket.set_nagle_enabled(false);
            let _ = socket.listen(self.service.port);
            self.sockets.add(socket);
            self.exchanges.push(Exchange { to_read: self.service.request, to_write: 0 });
        }
    }
}

impl Exchange {
    /// Reads and writes as much as the socket allows. Returns how many requests were completed.
    fn advance(&mut self, socket: &mut Socket<'_>, service: &Service) -> u64 {
        let mut answered = 0;
        loop {
            if self.to_write != 0 {
                let needed = self.to_write;
                let sent = socket.send(|room| {
                    let length = room.len().min(needed);
                    room[..length].fill(0x55);
                    (length, length)
                });
                match sent {
                    Ok(sent) if sent != 0 => self.to_write -= sent,
                    _ => break,
                }
            } else if socket.can_recv() {
                let needed = self.to_read;
                let Ok(read) =
                    socket.recv(|bytes| (bytes.len().min(needed), bytes.len().min(needed)))
                else {
                    break;
                };
                self.to_read -= read;
                if self.to_read == 0 {
                    *self = Exchange { to_read: service.request, to_write: service.answer };
                    answered += 1;
                }
            } else {
                if !socket.may_recv() {
                    socket.close();
                }
                break;
            }
        }
        answered
    }
}

/// Returns whether the checksums of an IPv4 packet are right.
fn is_valid(packet: &[u8]) -> bool {
    let Ok(ip) = Ipv4Packet::new_checked(packet) else { return false };
    if !ip.verify_checksum() || ip.next_header() != IpProtocol::Tcp {
        return ip.verify_checksum();
    }
    TcpPacket::new_checked(ip.payload())
        .is_ok_and(|tcp| tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()))
}

/// Returns whether a valid packet requests a connection.
fn requests_connection(packet: &[u8]) -> bool {
    let tcp = Ipv4Packet::new_checked(packet).ok().filter(|ip| ip.next_header() == IpProtocol::Tcp);
    tcp.and_then(|ip| TcpPacket::new_checked(ip.payload()).ok())
        .is_some_and(|tcp| tcp.syn() && !tcp.ack())
}

/// The packets on their way between the stack and its worker, back to back in one buffer per
/// direction.
struct Wire {
    received: Vec<u8>,
    arrived: VecDeque<Range<usize>>,
    sent: Vec<u8>,
    leaving: Vec<Range<usize>>,
    mtu: usize,
}

impl Device for Wire {
    type RxToken<'a> = ReceivedPacket<'a>;
    type TxToken<'a> = PacketToSend<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(ReceivedPacket<'_>, PacketToSend<'_>)> {
        let range = self.arrived.pop_front()?;
        Some((
            ReceivedPacket(&self.received[range]),
            PacketToSend(&mut self.sent, &mut self.leaving),
        ))
    }

    fn transmit(&mut self, _now: Instant) -> Option<PacketToSend<'_>> {
        Some(PacketToSend(&mut self.sent, &mut self.leaving))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        // Checksums of received packets were verified before, and super-packets have none for the
        // whole packet.
        let mut checksum = ChecksumCapabilities::default();
        (checksum.ipv4, checksum.tcp) = (Checksum::Tx, Checksum::Tx);
        capabilities.checksum = checksum;
        capabilities
    }
}

/// A packet that arrived.
struct ReceivedPacket<'a>(&'a [u8]);

impl RxToken for ReceivedPacket<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// A token of smoltcp to send one packet: the buffer to which the packet is appended, and the list
/// of packets in it.
struct PacketToSend<'a>(&'a mut Vec<u8>, &'a mut Vec<Range<usize>>);

impl TxToken for PacketToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let start = self.0.len();
        self.0.resize(start + length, 0);
        self.1.push(start..start + length);
        fill(&mut self.0[start..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smoltcp::wire::Ipv4Address;

    const SERVICE: Service = Service {
        address: Ipv4Cidr::new(Ipv4Address::new(10, 0, 0, 2), 24),
        port: 7,
        request: 3,
        answer: 10_000,
        connections: 100,
        mtu: 1500,
    };

    /// A host with connections to the stack.
    struct Client {
        interface: Interface,
        wire: Wire,
        sockets: SocketSet<'static>,
    }

    impl Client {
        fn new(connections: u16) -> Client {
            let mut wire = Wire {
                received: Vec::new(),
                arrived: VecDeque::new(),
                sent: Vec::new(),
                leaving: Vec::new(),
                mtu: 1500,
            };
            let mut interface =
                Interface::new(Config::new(HardwareAddress::Ip), &mut wire, Instant::ZERO);
            interface.update_ip_addrs(|addresses| {
                let _ = addresses.push(IpCidr::new(Ipv4Address::new(10, 0, 0, 1).into(), 24));
            });
            let mut sockets = SocketSet::new(Vec::new());
            for port in 0..connections {
                let mut socket = Socket::new(
                    SocketBuffer::new(vec![0; 65_536]),
                    SocketBuffer::new(vec![0; 4096]),
                );
                socket
                    .connect(interface.context(), (Ipv4Address::new(10, 0, 0, 2), 7), 1000 + port)
                    .expect("a free socket");
                sockets.add(socket);
            }
            Client { interface, wire, sockets }
        }

        fn sockets(&mut self) -> impl Iterator<Item = &mut Socket<'static>> {
            self.sockets.iter_mut().map(|(_, socket)| match socket {
                smoltcp::socket::Socket::Tcp(socket) => socket,
            })
        }

        /// Lets both sides work, in steps of a millisecond, until `done` holds or a second has
        /// passed.
        fn run(
            &mut self,
            stack: &mut Stack,
            from: u64,
            mut done: impl FnMut(&mut Client, &Stack) -> bool,
        ) -> u64 {
            for now in (from..from + 1000).map(|millisecond| millisecond * 1_000_000) {
                let time = Instant::from_micros((now / 1000) as i64);
                self.interface.poll(time, &mut self.wire, &mut self.sockets);
                self.wire.received.clear();
                for range in self.wire.leaving.drain(..) {
                    stack.receive(&self.wire.sent[range], false);
                }
                self.wire.sent.clear();
                stack.poll(now);
                stack.drain(|packet| {
                    let start = self.wire.received.len();
                    self.wire.received.extend_from_slice(packet);
                    self.wire.arrived.push_back(start..self.wire.received.len());
                });
                if done(self, stack) {
                    return now / 1_000_000 + 1;
                }
            }
            panic!("nothing happens any more: {stack:?}");
        }
    }

    #[test]
    fn requests_are_answered_and_connections_used_again() {
        let (mut client, mut stack) = (Client::new(80), Stack::new(SERVICE, 1));
        let mut now = 0;
        for round in 1..=2 {
            now = client
                .run(&mut stack, now, |client, _| client.sockets().all(|socket| socket.may_send()));
            // A request in two pieces counts as one.
            client.sockets().for_each(|socket| assert_eq!(socket.send_slice(b"ab").ok(), Some(2)));
            now = client.run(&mut stack, now, |_, stack| stack.sockets.iter().count() <= 100);
            assert_eq!(stack.answered(), (round - 1) * 80);
            client.sockets().for_each(|socket| assert_eq!(socket.send_slice(b"c").ok(), Some(1)));
            now = client.run(&mut stack, now, |client, _| {
                client.sockets().all(|socket| socket.recv_queue() == 10_000)
            });
            assert_eq!(stack.answered(), round * 80);
            client.sockets().for_each(Socket::close);
            now = client.run(&mut stack, now, |_, stack| {
                let mut sockets = stack.sockets.iter();
                sockets.all(|(_, socket)| matches!(socket, smoltcp::socket::Socket::Tcp(socket) if socket.state() == State::Listen))
            });
            client = Client::new(80);
            now += 1;
        }
        assert!(stack.exchanges.len() <= 100, "sockets are used again: {}", stack.exchanges.len());
    }

    #[test]
    fn a_packet_with_a_wrong_checksum_is_dropped_unless_it_is_known_to_be_intact() {
        let (mut client, mut stack) = (Client::new(1), Stack::new(SERVICE, 1));
        client.interface.poll(Instant::ZERO, &mut client.wire, &mut client.sockets);
        let mut syn = client.wire.sent.clone();
        let last = syn.len() - 1;
        syn[last] ^= 1;
        let answers = |stack: &mut Stack| {
            stack.poll(0);
            let mut count = 0;
            stack.drain(|_| count += 1);
            count
        };
        stack.receive(&syn, false);
        assert_eq!((answers(&mut stack), stack.corrupted()), (0, 1));
        stack.receive(&syn, true);
        assert_eq!((answers(&mut stack), stack.corrupted()), (1, 1));
        for length in 0..syn.len() {
            stack.receive(&syn[..length], false);
        }
        assert_eq!(answers(&mut stack), 0, "what is cut off is no packet");
    }
}
