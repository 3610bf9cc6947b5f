//! What tests of ports send and receive with.

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket_port::{Buffer, Outgoing, Port, Progress, Receive, Transmit, TxBatch};
use superpacket_traffic::frame::{Checksum, Frame};

/// A packet to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: RxChecksum,
    pub(crate) gso: Option<Gso>,
}

impl From<&Frame> for Sent {
    fn from(frame: &Frame) -> Self {
        Sent { bytes: frame.to_bytes(), checksum: RxChecksum::None, gso: None }
    }
}

impl From<&Vec<u8>> for Sent {
    fn from(bytes: &Vec<u8>) -> Self {
        Sent { bytes: bytes.clone(), checksum: RxChecksum::None, gso: None }
    }
}

/// The frame with a partial checksum, and as a super-packet of `size` bytes a segment if that is
/// not 0.
pub(crate) fn partial(frame: &Frame, kind: GsoKind, size: usize) -> Sent {
    let frame =
        frame.clone().with(|frame| *frame.checksum_mut().expect("has one") = Checksum::Partial);
    let start = frame.offsets().transport as u16;
    let offset = if kind == GsoKind::Udp { 6 } else { 16 };
    Sent {
        bytes: frame.to_bytes(),
        checksum: RxChecksum::Partial { start, offset },
        gso: SegmentSize::new(size).map(|size| Gso::new(kind, size)),
    }
}

/// Packets as a batch.
pub(crate) fn batch(packets: &[Sent]) -> (Outgoing, TxBatch) {
    let (mut outgoing, mut batch) = (Outgoing::new(), TxBatch::new());
    for packet in packets {
        batch.push_bytes(
            &mut outgoing,
            &packet.bytes,
            packet.checksum,
            packet.gso,
            Layer::Ethernet,
        );
    }
    (outgoing, batch)
}

/// Sends packets.
pub(crate) fn send(port: &mut dyn Transmit, packets: &[Sent]) -> Progress {
    let (outgoing, batch) = batch(packets);
    port.transmit(&outgoing, &batch, 0)
}

/// Sends packets, all of them.
pub(crate) fn send_all<S>(port: &mut dyn Transmit, packets: impl IntoIterator<Item = S>)
where
    Sent: From<S>,
{
    let packets: Vec<_> = packets.into_iter().map(Sent::from).collect();
    let progress = send(port, &packets);
    assert!(progress.stopped.is_none() && progress.sent == packets.len(), "{progress:?}");
}

/// All that is there.
pub(crate) fn receive(port: &mut dyn Receive) -> Vec<RxPacket<Buffer>> {
    let mut packets = Vec::new();
    while port.poll(&mut packets, 100).expect("up") != 0 {}
    packets
}

/// A packet's bytes in one piece.
pub(crate) fn gathered(packet: &RxPacket<Buffer>) -> Vec<u8> {
    packet.buffers().flat_map(|buffer| buffer.bytes().iter().copied()).collect()
}

/// The receiver of a port with one queue, and a sender.
pub(crate) fn ends(port: &mut dyn Port) -> (Box<dyn Receive>, Box<dyn Transmit>) {
    let mut receivers = port.receivers();
    assert_eq!(receivers.len(), 1);
    (receivers.remove(0), port.transmitter().expect("opens"))
}

/// Would `poll` or `epoll` say that there is something?
pub(crate) fn is_readable(port: &dyn Receive) -> bool {
    let descriptor = port.readiness();
    let mut watched = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut watched, Some(&now)).expect("can be polled") == 1
}
