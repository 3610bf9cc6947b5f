//! The UDP sockets through which gotatun exchanges datagrams with its peers.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::BytesMut;
use gotatun::packet::{Packet, PacketBufPool};
use gotatun::udp::{UdpRecv, UdpSend, UdpTransportFactory, UdpTransportFactoryParams};
use superpacket_udp::{AsyncReceiver, AsyncSender, UdpSocket};
use tokio::sync::Mutex;
use tokio::task::yield_now;

/// How often the sending task yields to others after each call to the kernel, before it takes the
/// packets that have arrived meanwhile. With heavy traffic in both directions gotatun's tasks wait
/// for each other after each packet, and without a yield a call sends only a few packets. Two
/// yields gave 1.15 times the throughput, and 8 no more.
const YIELDS: usize = 2;

/// A factory for the sockets of a tunnel, for [`DeviceBuilder::with_udp`]. One socket serves IPv6
/// and IPv4, unless gotatun requests an address. Datagrams longer than the path MTU are sent in IP
/// fragments.
///
/// [`DeviceBuilder::with_udp`]: https://docs.rs/gotatun/0.10/gotatun/device/struct.DeviceBuilder.html
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

/// The sender of datagrams to peers. Datagrams that wait for one peer leave in one call
/// (`UDP_SEGMENT`).
#[derive(Clone, Debug)]
pub struct ToPeers {
    socket: UdpSocket,
    sender: Arc<Mutex<AsyncSender<Packet>>>,
}

/// The receiver of datagrams from peers. One call returns as many as the kernel has merged
/// (`UDP_GRO`).
#[derive(Debug)]
pub struct FromPeers {
    receiver: AsyncReceiver,
    /// Received datagrams that `recv_from`, which returns one at a time, has not returned yet.
    waiting: VecDeque<(Packet, SocketAddr)>,
}

impl UdpTransportFactory for Sockets {
    type Send = ToPeers;
    type Recv = FromPeers;

    async fn bind(
        &mut self,
        params: &UdpTransportFactoryParams,
    ) -> io::Result<(ToPeers, FromPeers)> {
        let addr =
            SocketAddr::new(params.addr.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), params.port);
        let socket = UdpSocket::bind(addr)?;
        if let Some(mark) = params.fwmark {
            socket.set_mark(mark)?;
        }
        let (mut sender, receiver): (AsyncSender<Packet>, _) = socket.clone().split_async()?;
        sender.get_mut().set_notice(|refusal| tracing::warn!("{refusal}"));
        let sender = Arc::new(Mutex::new(sender));
        Ok((ToPeers { socket, sender }, FromPeers { receiver, waiting: VecDeque::new() }))
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

    async fn send_many_to(
        &self,
        _: &mut (),
        packets: &mut Vec<(Packet, SocketAddr)>,
    ) -> io::Result<()> {
        let sent = {
            let mut sender = self.sender.lock().await;
            packets.drain(..).for_each(|(packet, addr)| sender.push(addr, packet));
            sender.flush_lossy().await
        };
        for _ in 0..YIELDS {
            yield_now().await;
        }
        sent
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
        loop {
            if let Some(datagram) = self.waiting.pop_front() {
                return Ok(datagram);
            }
            self.recv_many_from(&mut (), pool, &mut packets).await?;
            self.waiting.extend(packets.drain(..));
        }
    }

    /// Receives datagrams. Those that the kernel has merged (`UDP_GRO`) share one allocation. Empty
    /// datagrams are skipped, because they are not messages of the protocol.
    async fn recv_many_from(
        &mut self,
        _: &mut (),
        _: &mut PacketBufPool,
        packets: &mut Vec<(Packet, SocketAddr)>,
    ) -> io::Result<()> {
        packets.extend(self.waiting.drain(..));
        if !packets.is_empty() {
            return Ok(());
        }
        for (meta, run) in self.receiver.receive().await?.runs() {
            let mut chunk = BytesMut::from(run);
            while !chunk.is_empty() {
                let datagram = chunk.split_to(meta.stride.clamp(1, chunk.len()));
                packets.push((Packet::from_bytes(datagram), meta.addr));
            }
        }
        Ok(())
    }
}
