//! What the ends of an AF_XDP port share: its queues, and what is known of its interface.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use superpacket::wire::ethernet;

use super::facts::Facts;
use super::program::Attachment;
use super::queue::Queue;
use crate::PortState;
use crate::interface::Interface;
use crate::system::PacketSocket;

/// Bytes of a frame beside the IP packet: the Ethernet header and a VLAN tag, which the MTU does
/// not count.
pub(super) const LINK_HEADER: u32 = ethernet::HEADER_LENGTH as u32 + 4;

/// How long the MTU is believed when a longer frame is to be sent.
const MTU_AGE: Duration = Duration::from_millis(10);

/// What a port's ends share. Fields are dropped in their order: the program first.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) _link: Attachment,
    pub(super) _promiscuous: Option<PacketSocket>,
    pub(super) facts: Facts,
    pub(super) queues: Vec<Arc<Queue>>,
    pub(super) interface: Mutex<(Interface, Instant)>,
    /// The longest IP packet in bytes.
    pub(super) mtu: AtomicU32,
}

impl Shared {
    /// The interface's state now.
    pub(super) fn state(&self) -> PortState {
        let mut interface = self.interface.lock().unwrap_or_else(PoisonError::into_inner);
        interface.1 = Instant::now();
        let state = interface.0.state();
        if state.mtu != 0 {
            self.mtu.store(state.mtu, Ordering::Relaxed);
        }
        state
    }

    /// Does the interface take a frame of `length` bytes? The MTU may have changed.
    pub(super) fn fits(&self, length: usize) -> bool {
        let is_within = || length <= (self.mtu.load(Ordering::Relaxed) + LINK_HEADER) as usize;
        if is_within() {
            return true;
        }
        let asked = self.interface.lock().unwrap_or_else(PoisonError::into_inner).1;
        if asked.elapsed() >= MTU_AGE {
            self.state();
        }
        is_within()
    }

    /// Tries once more to have sent what was left in TX rings.
    pub(super) fn resume(&self) {
        self.facts.stalled.store(false, Ordering::Relaxed);
        for queue in &self.queues {
            if let Some(mut half) = queue.try_send() {
                // What is wrong with the interface, whoever sends or receives next is told.
                half.kick(queue.socket(), &queue.counts, &self.facts);
                half.reap();
            }
        }
    }
}
