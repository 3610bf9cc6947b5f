//! Packets, and functions to send and receive them, for the tests of this crate.

use superpacket::packet::{Layer, RxChecksum, RxPacket};
use superpacket::segment::{Gso, GsoKind, SegmentSize};
use superpacket_port::{Buffer, Outgoing, Port, Progress, Receive, Transmit, TxBatch};
use superpacket_traffic::frame::{Checksum, Frame};

/// A packet that a test sends, with its offload metadata.
#[derive(Clone, Debug)]
pub(crate) struct TestPacket {
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: RxChecksum,
    pub(crate) gso: Option<Gso>,
}

impl From<&Frame> for TestPacket {
    fn from(frame: &Frame) -> Self {
        TestPacket { bytes: frame.to_bytes(), checksum: RxChecksum::None, gso: None }
    }
}

impl From<&Vec<u8>> for TestPacket {
    fn from(bytes: &Vec<u8>) -> Self {
        TestPacket { bytes: bytes.clone(), checksum: RxChecksum::None, gso: None }
    }
}

/// Returns the frame with a partial checksum, as a super-packet with `size` bytes per segment
/// unless `size` is 0.
pub(crate) fn partial(frame: &Frame, kind: GsoKind, size: usize) -> TestPacket {
    let frame = frame.clone().with_checksum(Checksum::Partial);
    let start = frame.offsets().transport as u16;
    let offset = if kind == GsoKind::Udp { 6 } else { 16 };
    TestPacket {
        bytes: frame.to_bytes(),
        checksum: RxChecksum::Partial { start, offset },
        gso: SegmentSize::new(size).map(|size| Gso::new(kind, size)),
    }
}

/// Returns a batch of these packets.
pub(crate) fn batch(packets: &[TestPacket]) -> (Outgoing, TxBatch) {
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

/// Sends packets, and returns the port's progress.
pub(crate) fn send(port: &mut dyn Transmit, packets: &[TestPacket]) -> Progress {
    let (outgoing, batch) = batch(packets);
    port.transmit(&outgoing, &batch, 0)
}

/// Sends packets, and asserts that the port accepts all of them.
pub(crate) fn send_all<S>(port: &mut dyn Transmit, packets: impl IntoIterator<Item = S>)
where
    TestPacket: From<S>,
{
    let packets: Vec<_> = packets.into_iter().map(TestPacket::from).collect();
    let progress = send(port, &packets);
    assert!(progress.stopped.is_none() && progress.sent == packets.len(), "{progress:?}");
}

/// Receives until a poll returns no packet.
pub(crate) fn receive(port: &mut dyn Receive) -> Vec<RxPacket<Buffer>> {
    let mut packets = Vec::new();
    while port.poll(&mut packets, 100).expect("up") != 0 {}
    packets
}

/// Returns a packet's bytes in one vector.
pub(crate) fn gathered(packet: &RxPacket<Buffer>) -> Vec<u8> {
    packet.buffers().flat_map(|buffer| buffer.bytes().iter().copied()).collect()
}

/// Returns the receiver of a port with one queue, and a transmitter.
pub(crate) fn ends(port: &mut dyn Port) -> (Box<dyn Receive>, Box<dyn Transmit>) {
    let mut receivers = port.receivers();
    assert_eq!(receivers.len(), 1);
    (receivers.remove(0), port.transmitter().expect("opens"))
}

/// Returns whether `poll(2)` reports the receiver's descriptor as readable.
pub(crate) fn is_readable(port: &dyn Receive) -> bool {
    let descriptor = port.readiness();
    let mut watched = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut watched, Some(&now)).expect("can be polled") == 1
}
