//! What gotatun sends and receives by: a TUN device and a UDP socket that take many packets at
//! once.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use gotatun::packet::{Ip, Packet, PacketBufPool};
use gotatun::tun::{IpRecv, IpSend, MtuWatcher};
use gotatun::udp::{UdpRecv, UdpSend, UdpTransportFactory, UdpTransportFactoryParams};
use superpacket_tun::{AsyncReader, NewBuffers, Tun};
use superpacket_udp::{AsyncReceiver, AsyncSender, UdpSocket};
use tokio::sync::{Mutex, mpsc};

/// Packets that may wait for the TUN device.
const QUEUE: usize = 1024;

/// Packets from the tunnel to the host. What is there at once is merged and written.
pub struct ToHost(mpsc::Sender<Packet>);

impl IpSend for ToHost {
    async fn send(&mut self, packet: Packet<Ip>) -> io::Result<()> {
        self.0.send(packet.into_bytes()).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Packets from the host to the tunnel. One read gives up to 64 KB of them.
pub struct FromHost {
    reader: AsyncReader,
    packets: Vec<Packet>,
    mtu: MtuWatcher,
}

impl IpRecv for FromHost {
    async fn recv<'a>(&'a mut self, pool: &mut PacketBufPool) -> io::Result<impl Iterator<Item = Packet<Ip>> + Send + 'a> {
        let made = |length| {
            let mut packet = pool.get();
            packet.truncate(length);
            packet
        };
        self.reader.read_into(&mut NewBuffers::new(&mut self.packets, made)).await?;
        Ok(self.packets.drain(..).filter_map(|packet| packet.try_into_ip().ok()))
    }

    fn mtu(&self) -> MtuWatcher {
        self.mtu.clone()
    }
}

/// Both ends of a TUN device.
pub fn split(tun: Tun) -> anyhow::Result<(ToHost, FromHost)> {
    let mtu = MtuWatcher::new(u16::try_from(tun.mtu()?)?);
    let (reader, writer) = tun.split_async()?;
    let (sender, mut writer) = writer.queued(QUEUE);
    tokio::spawn(async move { writer.run_lossy(|error| eprintln!("TUN device: {error}")).await });
    Ok((ToHost(sender), FromHost { reader, packets: Vec::new(), mtu }))
}

/// Opens the sockets of the tunnel.
pub struct Sockets;

/// Datagrams to peers. Those that wait for one peer leave in one call.
#[derive(Clone)]
pub struct ToPeers {
    socket: UdpSocket,
    sender: Arc<Mutex<AsyncSender<Packet>>>,
}

/// Datagrams from peers, as many as the kernel has merged.
pub struct FromPeers {
    receiver: AsyncReceiver,
    /// For a caller who takes one at a time.
    waiting: VecDeque<(Packet, SocketAddr)>,
}

impl UdpTransportFactory for Sockets {
    type Send = ToPeers;
    type Recv = FromPeers;

    async fn bind(&mut self, params: &UdpTransportFactoryParams) -> io::Result<(ToPeers, FromPeers)> {
        let addr = SocketAddr::new(params.addr.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), params.port);
        let socket = UdpSocket::bind(addr)?;
        if let Some(mark) = params.fwmark {
            socket.set_mark(mark)?;
        }
        let (sender, receiver) = socket.clone().split_async()?;
        let sender = Arc::new(Mutex::new(sender));
        let waiting = VecDeque::new();
        Ok((ToPeers { socket, sender }, FromPeers { receiver, waiting }))
    }
}

impl UdpSend for ToPeers {
    type SendManyBuf = ();

    async fn send_to(&self, packet: Packet, addr: SocketAddr) -> io::Result<()> {
        self.send_many_to(&mut (), &mut vec![(packet, addr)]).await
    }

    fn max_number_of_packets_to_send(&self) -> usize {
        256
    }

    async fn send_many_to(&self, _: &mut (), packets: &mut Vec<(Packet, SocketAddr)>) -> io::Result<()> {
        let mut sender = self.sender.lock().await;
        packets.drain(..).for_each(|(packet, addr)| sender.push(addr, packet));
        sender.flush_lossy().await
    }

    fn local_addr(&self) -> io::Result<Option<SocketAddr>> {
        self.socket.local_addr().map(Some)
    }

    fn set_fwmark(&self, mark: u32) -> io::Result<()> {
        self.socket.set_mark(mark)
    }
}

impl UdpRecv for FromPeers {
    type RecvManyBuf = ();

    async fn recv_from(&mut self, pool: &mut PacketBufPool) -> io::Result<(Packet, SocketAddr)> {
        let mut packets = Vec::new();
        while self.waiting.is_empty() {
            self.recv_many_from(&mut (), pool, &mut packets).await?;
            self.waiting.extend(packets.drain(..));
        }
        self.waiting.pop_front().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    async fn recv_many_from(&mut self, _: &mut (), pool: &mut PacketBufPool, packets: &mut Vec<(Packet, SocketAddr)>) -> io::Result<()> {
        for (meta, datagram) in self.receiver.receive().await?.datagrams() {
            packets.push((pool.get().overwrite_with(datagram), meta.addr));
        }
        Ok(())
    }
}
