//! Forwards between two interfaces by AF_XDP sockets over one UMEM. Packets are received, merged in
//! place, segmented, and sent by the other interface. The program copies no payload.
//!
//! ```text
//! sudo xdp_forward IFACE IFACE
//! ```
//!
//! A packet that did not merge is sent from the chunk in which it was received, by one descriptor.
//! A segment of a super-packet is sent as several (`XDP_PKT_CONTD`): new headers in a free chunk,
//! and payload in the chunks in which it was received. A frame with more pieces than a packet may
//! have (`MAX_BUFFERS`) is copied completely. Without zero copy in the driver
//! (`xdp:IFACE?copy=zero`), as on veth, the kernel copies each frame once on receipt and once when
//! it is sent.
//!
//! All ports of a process share the UMEM. They need Linux 6.6, `CAP_NET_ADMIN`, `CAP_NET_RAW` and
//! `CAP_BPF`. AF_XDP carries no super-packets: the port makes the other end of a veth send none.
//! Checksums that the other end left to its device are detected, and completed here.

use rustix::event::{PollFd, PollFlags, poll};
use superpacket::aggregate::{Aggregator, HashKey, Policy};
use superpacket::packet::{RxChecksum, RxPacket};
use superpacket::segment::{SegmentOptions, Segmenter};
use superpacket::super_packet::SuperPacket;
use superpacket_port::xdp::XdpPort;
use superpacket_port::{
    Buffer, MAX_SLICES, Outgoing, POLL_LIMIT, Port, PortError, Receive, StopReason, Transmit,
    TxBatch,
};

/// Opens an interface whose frames are sent as headers and payload in separate chunks.
///
/// # Errors
/// The port's error.
pub fn open(interface: &str) -> Result<XdpPort, PortError> {
    XdpPort::open(&format!("xdp:{interface}?gather=on").parse()?)
}

/// One direction: packets received by one port are sent by another.
pub struct Way {
    /// The receiving ends, whose readiness the caller waits for.
    pub receivers: Vec<Box<dyn Receive>>,
    transmitter: Box<dyn Transmit>,
    aggregator: Aggregator<Buffer>,
    segmenter: Segmenter,
    packets: Vec<RxPacket<Buffer>>,
    outgoing: Outgoing,
    batch: TxBatch,
    /// Number of packets received.
    pub received: u64,
    /// Number of packets forwarded: single packets and super-packets.
    pub decisions: u64,
    /// Number of frames that could not be segmented or sent.
    pub dropped: u64,
}

impl Way {
    /// Creates the direction from one port to another.
    ///
    /// # Errors
    /// The port's error.
    pub fn new(from: &mut XdpPort, to: &mut XdpPort) -> Result<Self, PortError> {
        Ok(Way {
            receivers: from.receivers(),
            transmitter: to.transmitter()?,
            aggregator: Aggregator::new(
                Policy::gro_with_udp().with_partial_checksums(),
                HashKey::random(),
            ),
            segmenter: Segmenter::new(),
            packets: Vec::new(),
            outgoing: Outgoing::new(),
            batch: TxBatch::new(),
            received: 0,
            decisions: 0,
            dropped: 0,
        })
    }

    /// Forwards the packets that have arrived.
    ///
    /// # Errors
    /// A port is down or gone.
    pub fn forward(&mut self) -> Result<(), PortError> {
        let Way { aggregator, segmenter, packets, outgoing, batch, decisions, dropped, .. } = self;
        for receiver in &mut self.receivers {
            receiver.poll(packets, POLL_LIMIT)?;
        }
        self.received += packets.len() as u64;
        let sink: &mut dyn FnMut(SuperPacket<'_, Buffer>) = &mut |mut packet| {
            *decisions += 1; // A forwarder looks at the packet here, once for all that merged.
            outgoing.stage(&packet);
            let metadata = packet.metadata;
            if metadata.gso.is_none() && !matches!(metadata.checksum, RxChecksum::Partial { .. }) {
                batch.push_packet(outgoing, &packet, MAX_SLICES);
            } else {
                let cut = segmenter.segment(&packet, &SegmentOptions::default(), |segment| {
                    batch.push_segment(
                        outgoing,
                        &segment,
                        metadata.vlan,
                        metadata.layer,
                        MAX_SLICES,
                    );
                });
                *dropped += u64::from(cut.is_err());
            }
            outgoing.keep(&mut packet);
        };
        aggregator.receive_batch(packets, 0, sink);
        aggregator.poll_end(0, sink);
        self.send()?;
        self.batch.clear();
        self.outgoing.clear();
        // The kernel owns the chunks of sent frames until it has sent them; then they are reused
        // for receiving.
        self.receivers.iter_mut().for_each(|receiver| receiver.give_back());
        Ok(())
    }

    fn send(&mut self) -> Result<(), PortError> {
        let mut from = 0;
        while from < self.batch.frames().len() {
            let progress = self.transmitter.transmit(&self.outgoing, &self.batch, from);
            from += progress.sent;
            match progress.stopped {
                None | Some(StopReason::Full) => {}
                Some(StopReason::Gone(error)) => return Err(error),
                Some(_) => {
                    self.dropped += 1;
                    from += 1;
                }
            }
        }
        Ok(())
    }
}

fn run(one: &str, other: &str) -> Result<(), PortError> {
    let (mut one, mut other) = (open(one)?, open(other)?);
    let mut ways = [Way::new(&mut one, &mut other)?, Way::new(&mut other, &mut one)?];
    loop {
        let ends = ways.iter().flat_map(|way| &way.receivers);
        let mut ready: Vec<_> =
            ends.map(|end| PollFd::from_borrowed_fd(end.readiness(), PollFlags::IN)).collect();
        // The ports report errors.
        let _ = poll(&mut ready, None);
        ways.iter_mut().try_for_each(Way::forward)?;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [one, other] = &arguments[..] else { return Err("usage: xdp_forward IFACE IFACE".into()) };
    Ok(run(one, other)?)
}
