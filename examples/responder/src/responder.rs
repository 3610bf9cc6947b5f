//! A stack behind a steered port: Ethernet and ARP below IP.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    EthernetRepr, Ipv4Address, Ipv4Packet,
};
use superpacket::packet::{Layer, RxChecksum};
use superpacket::super_packet::SuperPacket;
use superpacket_bridge::consumer::{Consumer, PortEnd};
use superpacket_port::Buffer;

use crate::stack::{Service, Stack};

/// Maximum number of neighbours; requests from further ones are not answered.
const NEIGHBOURS: usize = 1 << 16;

/// Length of an Ethernet header, in bytes.
const ETHERNET: usize = 14;

/// Counters that all stacks share.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of requests answered.
    pub answered: AtomicU64,
    /// Packets dropped because of a wrong checksum.
    pub corrupted: AtomicU64,
}

/// The stack of one worker.
#[derive(Debug)]
pub struct Responder {
    stack: Stack,
    address: Ipv4Address,
    hardware: EthernetAddress,
    /// The hardware address from which each IP address was last heard. ARP has no flow and reaches
    /// only one worker, so each worker learns from its own packets.
    neighbours: HashMap<Ipv4Address, EthernetAddress>,
    /// Buffer for the packet being received, and the one being sent.
    frame: Vec<u8>,
    counters: Arc<Counters>,
    counted: (u64, u64),
}

impl Responder {
    /// Creates a stack that answers for `service`, with the hardware address `hardware`. `seed`
    /// should be random.
    pub fn new(
        service: Service,
        hardware: EthernetAddress,
        seed: u64,
        counters: Arc<Counters>,
    ) -> Self {
        Responder {
            stack: Stack::new(service, seed),
            address: service.address.address(),
            hardware,
            neighbours: HashMap::new(),
            frame: Vec::new(),
            counters,
            counted: (0, 0),
        }
    }

    /// Returns the answer to an ARP request for the stack's address, as a frame.
    fn resolve(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        } = ArpRepr::parse(&ArpPacket::new_checked(packet).ok()?).ok()?
        else {
            return None;
        };
        let answer = ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Reply,
            source_hardware_addr: self.hardware,
            source_protocol_addr: self.address,
            target_hardware_addr: source_hardware_addr,
            target_protocol_addr: source_protocol_addr,
        };
        (target_protocol_addr == self.address).then(|| {
            let mut frame = vec![0; ETHERNET + answer.buffer_len()];
            write_header(self.hardware, source_hardware_addr, EthernetProtocol::Arp, &mut frame);
            answer.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET..]));
            frame
        })
    }
}

impl Consumer for Responder {
    fn receive(&mut self, packet: SuperPacket<'_, Buffer>, _now: u64, end: &mut PortEnd<'_>) {
        // The checksums of a merged packet were verified before the merge; a partial checksum means
        // that the packet was never on a wire.
        let is_intact = packet.is_merged()
            || matches!(
                packet.metadata.checksum,
                RxChecksum::Unnecessary { .. } | RxChecksum::Partial { .. }
            );
        self.frame.clear();
        packet.copy_to(&mut self.frame);
        if packet.metadata.vlan.is_some() {
            return;
        }
        if packet.metadata.layer == Layer::Ip {
            return self.stack.receive(&self.frame, is_intact);
        }
        let Ok(frame) = EthernetFrame::new_checked(&self.frame[..]) else { return };
        match frame.ethertype() {
            EthernetProtocol::Arp => {
                if let Some(answer) = self.resolve(frame.payload()) {
                    end.send(&answer);
                }
            }
            EthernetProtocol::Ipv4 if frame.dst_addr() == self.hardware => {
                let Ok(ip) = Ipv4Packet::new_checked(frame.payload()) else { return };
                let (address, hardware) = (ip.src_addr(), frame.src_addr());
                if self.neighbours.len() < NEIGHBOURS || self.neighbours.contains_key(&address) {
                    self.neighbours.insert(address, hardware);
                    self.stack.receive(&self.frame[ETHERNET..], is_intact);
                }
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: u64, end: &mut PortEnd<'_>) -> Option<u64> {
        let next = self.stack.poll(now);
        let Responder { stack, neighbours, hardware, frame, .. } = self;
        let is_ethernet = end.layer() == Layer::Ethernet;
        stack.drain(|packet| {
            if !is_ethernet {
                return end.send(packet);
            }
            // All packets go to known neighbours, because this side only answers.
            let to =
                Ipv4Packet::new_checked(packet).ok().and_then(|ip| neighbours.get(&ip.dst_addr()));
            if let Some(to) = to {
                frame.clear();
                frame.resize(ETHERNET, 0);
                write_header(*hardware, *to, EthernetProtocol::Ipv4, frame);
                frame.extend_from_slice(packet);
                end.send(frame);
            }
        });
        let done = (self.stack.answered(), self.stack.corrupted());
        self.counters.answered.fetch_add(done.0 - self.counted.0, Ordering::Relaxed);
        self.counters.corrupted.fetch_add(done.1 - self.counted.1, Ordering::Relaxed);
        self.counted = done;
        next
    }
}

fn write_header(
    from: EthernetAddress,
    to: EthernetAddress,
    ethertype: EthernetProtocol,
    frame: &mut [u8],
) {
    EthernetRepr { src_addr: from, dst_addr: to, ethertype }
        .emit(&mut EthernetFrame::new_unchecked(frame));
}
