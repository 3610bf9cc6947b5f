//! A well-behaved guest with its front end: a virtio network device's driver.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::front_end::{FrontEnd, request};
use crate::memory::{Memory, USER};
use crate::ring::DriverRing;

/// Numbers of virtio's feature bits, for network devices and rings.
#[expect(missing_docs, reason = "these are the names of the virtio specification")]
pub mod feature {
    pub const CSUM: u32 = 0;
    pub const GUEST_CSUM: u32 = 1;
    pub const GUEST_TSO4: u32 = 7;
    pub const GUEST_TSO6: u32 = 8;
    pub const GUEST_ECN: u32 = 9;
    pub const HOST_TSO4: u32 = 11;
    pub const HOST_TSO6: u32 = 12;
    pub const HOST_ECN: u32 = 13;
    pub const MRG_RXBUF: u32 = 15;
    pub const MQ: u32 = 22;
    pub const EVENT_IDX: u32 = 29;
    pub const PROTOCOL_FEATURES: u32 = 30;
    pub const VERSION_1: u32 = 32;
    pub const IN_ORDER: u32 = 35;
    pub const GUEST_UDP_TUNNEL_GSO: u32 = 46;
    pub const GUEST_UDP_TUNNEL_GSO_CSUM: u32 = 47;
    pub const HOST_UDP_TUNNEL_GSO: u32 = 48;
    pub const HOST_UDP_TUNNEL_GSO_CSUM: u32 = 49;
    pub const GUEST_USO4: u32 = 54;
    pub const GUEST_USO6: u32 = 55;
    pub const HOST_USO: u32 = 56;
}

/// Numbers of vhost-user's protocol features.
#[expect(missing_docs, reason = "these are the names of the vhost-user specification")]
pub mod protocol_feature {
    pub const MQ: u32 = 0;
    pub const REPLY_ACK: u32 = 3;
    pub const INFLIGHT_SHMFD: u32 = 12;
    pub const CONFIGURE_MEM_SLOTS: u32 = 15;
}

/// The features, ring sizes and buffers with which a guest uses the device.
#[derive(Clone, Debug)]
pub struct GuestSettings {
    /// The features that the guest uses, as a bit mask; those that the device does not offer are
    /// left out.
    pub features: u64,
    /// Number of pairs of queues.
    pub queues: u16,
    /// Number of descriptors of each ring.
    pub ring: u16,
    /// Length of a receive buffer in bytes.
    pub receive_buffer: u32,
    /// Lengths in bytes of the descriptors of a receive buffer, except the last, which has the
    /// remaining length. If empty, the buffer is one descriptor.
    pub receive_parts: Vec<u32>,
    /// Lengths in bytes of the first descriptors of a sent frame, header included. Another
    /// descriptor has the remaining bytes.
    pub send_parts: Vec<u32>,
}

impl Default for GuestSettings {
    /// Returns settings with all features, one pair of queues of 256 descriptors, and mergeable
    /// buffers of 2 KiB.
    fn default() -> Self {
        GuestSettings {
            features: u64::MAX,
            queues: 1,
            ring: 256,
            receive_buffer: 2048,
            receive_parts: Vec::new(),
            send_parts: Vec::new(),
        }
    }
}

/// A frame that the guest received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// The virtio header.
    pub header: Vec<u8>,
    /// The frame.
    pub bytes: Vec<u8>,
}

/// One ring of a guest, with its notifications.
#[derive(Debug)]
pub struct GuestQueue {
    /// The ring.
    pub ring: DriverRing,
    /// Notifies the device about the ring, by an eventfd.
    pub kick: OwnedFd,
    /// Notifies the guest about the ring, by an eventfd.
    pub call: OwnedFd,
    /// Guest-physical address of the first buffer.
    pub buffers: u64,
    /// Length of each buffer.
    pub buffer_length: u32,
}

/// A guest with a network device.
#[derive(Debug)]
pub struct Guest {
    /// The front end's socket.
    pub front_end: FrontEnd,
    /// The guest's memory.
    pub memory: Memory,
    /// The guest's settings.
    pub settings: GuestSettings,
    /// The features that both the guest and the device support, as a bit mask.
    pub features: u64,
    /// The rings: even indices are for receiving, odd ones for sending.
    pub queues: Vec<GuestQueue>,
    /// Whether `start_queue` also enables the ring (`SET_VRING_ENABLE`).
    pub enables_rings: bool,
}

/// Maximum length in bytes of a sent frame with its virtio header.
const SEND_BUFFER: u32 = 68 * 1024;
/// Guest-physical address of the first ring. The memory below stays unused, so that 0 is never a
/// buffer's address.
const FIRST_RING: u64 = 0x10_0000;

impl Guest {
    /// Connects to the device's socket, negotiates features, and starts all rings.
    ///
    /// # Errors
    /// The device refuses something, or closes the connection.
    pub fn connect(path: &Path, settings: GuestSettings) -> io::Result<Self> {
        let mut guest = Guest::prepare(FrontEnd::connect(path)?, settings)?;
        guest.start()?;
        Ok(guest)
    }

    /// Negotiates features with the device, and prepares memory and rings without starting them.
    ///
    /// # Errors
    /// The device refuses something, or closes the connection.
    pub fn prepare(front_end: FrontEnd, settings: GuestSettings) -> io::Result<Self> {
        let offered = front_end.ask(request::GET_FEATURES, &[], &[])?.number();
        let features = offered & settings.features | 1 << feature::PROTOCOL_FEATURES;
        let protocol = front_end.ask(request::GET_PROTOCOL_FEATURES, &[], &[])?.number();
        front_end.send(request::SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes(), &[])?;
        front_end.demand(request::SET_OWNER, &[], &[])?;
        front_end.demand(request::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        let mut at = FIRST_RING;
        let mut queues = Vec::new();
        for index in 0..2 * settings.queues {
            let ring = DriverRing::new(at, settings.ring);
            let buffers = ring.end().next_multiple_of(4096);
            let buffer_length = if index % 2 == 0 { settings.receive_buffer } else { SEND_BUFFER };
            // A ring of single descriptors has as many buffers as descriptors; frames to be sent
            // use 32 buffers in turn.
            let count = if index % 2 == 0 { u64::from(settings.ring) } else { 32 };
            at = (buffers + count * u64::from(buffer_length)).next_multiple_of(4096);
            let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
            queues.push(GuestQueue {
                ring,
                kick: eventfd(0, flags)?,
                call: eventfd(0, flags)?,
                buffers,
                buffer_length,
            });
        }
        let memory = Memory::new(&[(0, at)]);
        Ok(Guest { front_end, memory, settings, features, queues, enables_rings: true })
    }

    /// Passes memory and rings to the device, and starts it.
    ///
    /// # Errors
    /// The device refuses something, or closes the connection.
    pub fn start(&mut self) -> io::Result<()> {
        self.pass_memory()?;
        for index in 0..self.queues.len() {
            self.start_queue(index)?;
        }
        for index in (0..self.queues.len()).step_by(2) {
            self.offer_receive_buffers(index);
        }
        Ok(())
    }

    /// Passes the memory to the device.
    ///
    /// # Errors
    /// The device refuses it, or closes the connection.
    pub fn pass_memory(&self) -> io::Result<()> {
        let regions = &self.memory.regions;
        let mut body = [regions.len() as u32, 0].map(u32::to_ne_bytes).concat();
        for region in regions {
            body.extend(region.description().iter().flat_map(|word| word.to_ne_bytes()));
        }
        let files: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.file.as_fd()).collect();
        self.front_end.demand(request::SET_MEM_TABLE, &body, &files)
    }

    /// Passes a ring to the device, and enables it.
    ///
    /// # Errors
    /// The device refuses it, or closes the connection.
    pub fn start_queue(&self, index: usize) -> io::Result<()> {
        let GuestQueue { ring, kick, call, .. } = &self.queues[index];
        let number = index as u32;
        let state = |value: u32| [number, value].map(u32::to_ne_bytes).concat();
        let front_end = &self.front_end;
        front_end.demand(request::SET_VRING_NUM, &state(u32::from(ring.size)), &[])?;
        front_end.demand(request::SET_VRING_BASE, &state(u32::from(ring.next_used)), &[])?;
        front_end.demand(request::SET_VRING_ADDR, &self.ring_addresses(index), &[])?;
        let fd = u64::from(number).to_ne_bytes();
        front_end.demand(request::SET_VRING_CALL, &fd, &[call.as_fd()])?;
        front_end.demand(request::SET_VRING_KICK, &fd, &[kick.as_fd()])?;
        if self.enables_rings {
            front_end.demand(request::SET_VRING_ENABLE, &state(1), &[])?;
        }
        Ok(())
    }

    /// Returns the body of the message `SET_VRING_ADDR` for a ring.
    pub fn ring_addresses(&self, index: usize) -> Vec<u8> {
        let ring = &self.queues[index].ring;
        let mut body = [index as u32, 0].map(u32::to_ne_bytes).concat();
        for address in [ring.descriptors + USER, ring.used + USER, ring.available + USER, 0] {
            body.extend(address.to_ne_bytes());
        }
        body
    }

    /// Stops a ring, and returns the index of the available ring at which the device stopped
    /// (`GET_VRING_BASE`).
    ///
    /// # Errors
    /// The device refuses it, or closes the connection.
    pub fn stop_queue(&self, index: usize) -> io::Result<u32> {
        let body = [index as u32, 0].map(u32::to_ne_bytes).concat();
        let reply = self.front_end.ask(request::GET_VRING_BASE, &body, &[])?;
        Ok(u32::from_ne_bytes(reply.body[4..8].try_into().expect("4 bytes")))
    }

    /// Returns whether the guest and the device both support a feature, given by its bit number.
    pub fn has(&self, feature: u32) -> bool {
        self.features & 1 << feature != 0
    }

    /// Returns the length of the virtio header in bytes.
    pub fn header_length(&self) -> usize {
        if self.has(feature::GUEST_UDP_TUNNEL_GSO) || self.has(feature::HOST_UDP_TUNNEL_GSO) {
            24
        } else if self.has(feature::VERSION_1) || self.has(feature::MRG_RXBUF) {
            12
        } else {
            10
        }
    }

    /// Offers all free receive buffers of a queue.
    pub fn offer_receive_buffers(&mut self, index: usize) {
        let GuestQueue { ring, buffers, buffer_length, .. } = &mut self.queues[index];
        let mut lengths = self.settings.receive_parts.clone();
        lengths.push(*buffer_length - lengths.iter().sum::<u32>());
        // A buffer's place follows from its head, which is free as long as the buffer is.
        while ring.free() >= lengths.len() {
            let head = ring.peek_free(lengths.len());
            let mut at = *buffers + u64::from(head) * u64::from(*buffer_length);
            let parts: Vec<_> = lengths
                .iter()
                .map(|&length| {
                    let part = (at, length);
                    at += u64::from(length);
                    part
                })
                .collect();
            ring.offer(&self.memory, &parts, true).expect("there are free descriptors");
        }
    }

    /// Sends a frame behind a virtio header on a pair of queues. Returns `false` if the ring is
    /// full.
    pub fn send(&mut self, pair: usize, header: &[u8], frame: &[u8]) -> bool {
        let event_index = self.has(feature::EVENT_IDX);
        let queue = &mut self.queues[2 * pair + 1];
        while queue.ring.take_used(&self.memory).is_some() {}
        if queue.ring.free() < self.settings.send_parts.len() + 1
            || queue.ring.next_available.wrapping_sub(queue.ring.next_used) >= 32
        {
            return false;
        }
        let turn = u64::from(queue.ring.next_available % 32);
        let mut at = queue.buffers + turn * u64::from(queue.buffer_length);
        let bytes = [header, frame].concat();
        self.memory.write(at, &bytes);
        let mut left = bytes.len() as u32;
        let mut parts = Vec::new();
        for length in self.settings.send_parts.iter().copied().chain([u32::MAX]) {
            let length = length.min(left);
            if length != 0 {
                parts.push((at, length));
            }
            (at, left) = (at + u64::from(length), left - length);
        }
        queue.ring.offer(&self.memory, &parts, false).expect("there are free descriptors");
        if queue.ring.is_kick_wanted(&self.memory, event_index, 1) {
            self.kick(2 * pair + 1);
        }
        true
    }

    /// Notifies the device about the ring, by an eventfd.
    pub fn kick(&self, index: usize) {
        rustix::io::write(&self.queues[index].kick, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    /// Returns how often the device has notified the guest of a ring since the last call.
    pub fn calls(&self, index: usize) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.queues[index].call, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    }

    /// Receives a frame, if there is one, and offers its buffers again.
    pub fn receive(&mut self, pair: usize) -> Option<ReceivedFrame> {
        let header_length = self.header_length();
        let GuestQueue { ring, buffers, buffer_length, .. } = &mut self.queues[2 * pair];
        let mut bytes = Vec::new();
        let mut left = 1;
        while left != 0 {
            let (head, written) = ring.take_used(&self.memory)?;
            let at = *buffers + u64::from(head) * u64::from(*buffer_length);
            let first = bytes.is_empty();
            bytes.extend(self.memory.read(at, written as usize));
            left -= 1;
            if first && header_length >= 12 {
                // The device publishes all buffers of a frame together.
                left = u16::from_le_bytes([bytes[10], bytes[11]]).saturating_sub(1);
            }
        }
        let frame = bytes.split_off(header_length);
        self.offer_receive_buffers(2 * pair);
        Some(ReceivedFrame { header: bytes, bytes: frame })
    }

    /// Receives a frame within ten seconds.
    pub fn wait_for_frame(&mut self, pair: usize) -> Option<ReceivedFrame> {
        let since = Instant::now();
        loop {
            if let Some(frame) = self.receive(pair) {
                return Some(frame);
            }
            if since.elapsed() > Duration::from_secs(10) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
