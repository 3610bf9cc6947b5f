//! The TUN device through which gotatun exchanges the packets of its tunnels with the host.

use std::io;

use bytes::BytesMut;
use gotatun::packet::{Ip, Packet, PacketBufPool};
use gotatun::tun::{IpRecv, IpSend, MtuWatcher};
use superpacket_tun::{AsyncPacketSender, AsyncReader, NewBuffers, Tun};

/// Maximum number of packets that are queued to be written to the TUN device.
const QUEUE: usize = 1024;

/// Number of bytes to allocate at once for packets from the host: at least one read, with the
/// padding of the protocol.
const CHUNK: usize = 1 << 16;

/// The sender of packets from the tunnel to the host. Packets that wait at the same time are merged
/// and written by one call; a packet that comes alone is written at once.
#[derive(Debug)]
pub struct ToHost(AsyncPacketSender<Packet>);

/// The receiver of packets from the host for the tunnel. One read returns up to 64 KB of packets.
pub struct FromHost {
    reader: AsyncReader,
    packets: Vec<Packet>,
    /// The allocation from which the buffers of the next packets are split off.
    chunk: BytesMut,
    mtu: MtuWatcher,
}

/// Splits a TUN device into the sender and receiver that [`DeviceBuilder::with_ip_pair`] takes. A
/// separate task writes to the device until `ToHost` is dropped. It calls `notice` with each error
/// of the device. Packets that the device refuses are lost, as with a full queue.
///
/// # Errors
/// If the device is gone, or its MTU cannot be read.
///
/// # Panics
/// Outside of a tokio runtime.
///
/// [`DeviceBuilder::with_ip_pair`]: https://docs.rs/gotatun/0.10/gotatun/device/struct.DeviceBuilder.html
pub fn split(
    tun: Tun,
    notice: impl FnMut(io::Error) + Send + 'static,
) -> io::Result<(ToHost, FromHost)> {
    // A TUN device's MTU is at most 65,535.
    let mtu = MtuWatcher::new(tun.mtu()?.try_into().unwrap_or(u16::MAX));
    let (reader, writer) = tun.split_async()?;
    let (sender, mut writer) = writer.queued(QUEUE);
    tokio::spawn(async move { writer.run_lossy(notice).await });
    Ok((ToHost(sender), FromHost { reader, packets: Vec::new(), chunk: BytesMut::new(), mtu }))
}

impl IpSend for ToHost {
    async fn send(&mut self, packet: Packet<Ip>) -> io::Result<()> {
        self.0.send(packet.into_bytes()).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl IpRecv for FromHost {
    /// Receives packets whose buffers are split off from one shared allocation. The buffers of
    /// gotatun's pool, 4 KB each and used in turn, would not stay in the CPU's cache.
    async fn recv<'a>(
        &'a mut self,
        _: &mut PacketBufPool,
    ) -> io::Result<impl Iterator<Item = Packet<Ip>> + Send + 'a> {
        let Self { reader, packets, chunk, .. } = self;
        let made = |length: usize| {
            // The protocol pads to a multiple of 16 bytes.
            let room = length.next_multiple_of(16);
            if chunk.len() < room {
                *chunk = BytesMut::zeroed(CHUNK.max(room));
            }
            let mut packet = chunk.split_to(room);
            packet.truncate(length);
            Packet::from_bytes(packet)
        };
        reader.read_into(&mut NewBuffers::new(packets, made)).await?;
        Ok(packets.drain(..).filter_map(|packet| packet.try_into_ip().ok()))
    }

    fn mtu(&self) -> MtuWatcher {
        self.mtu.clone()
    }
}
