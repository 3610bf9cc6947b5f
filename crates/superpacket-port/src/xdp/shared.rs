//! State shared by the ends of an AF_XDP port: its queues, and its interface.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use superpacket::wire::ethernet;

use super::facts::PortFacts;
use super::queue::XdpQueue;
use crate::PortState;
use crate::interface::NetworkInterface;
use crate::system::PacketSocket;
use crate::system::bpf::Attachment;

/// Maximum bytes of a frame outside the IP packet: the Ethernet header and a VLAN tag, which the
/// MTU does not include.
pub(super) const LINK_HEADER: u32 = ethernet::HEADER_LENGTH as u32 + 4;

/// Minimum age of the cached MTU at which it is read again if a frame exceeds it.
const MTU_AGE: Duration = Duration::from_millis(10);

/// State shared by the ends of an AF_XDP port. The fields are dropped in order, so that the program
/// is detached first.
#[derive(Debug)]
pub(super) struct XdpShared {
    pub(super) _link: Attachment,
    pub(super) _promiscuous: Option<PacketSocket>,
    pub(super) facts: PortFacts,
    pub(super) queues: Vec<Arc<XdpQueue>>,
    pub(super) interface: Mutex<(NetworkInterface, Instant)>,
    /// Maximum length of an IP packet in bytes, as it was last read.
    pub(super) mtu: AtomicU32,
}

impl XdpShared {
    /// Returns the interface's present state.
    pub(super) fn state(&self) -> PortState {
        let mut interface = self.interface.lock().unwrap_or_else(PoisonError::into_inner);
        interface.1 = Instant::now();
        let state = interface.0.state();
        if state.mtu != 0 {
            self.mtu.store(state.mtu, Ordering::Relaxed);
        }
        state
    }

    /// Returns whether the interface accepts a frame of `length` bytes. Reads the MTU again if it
    /// may have changed.
    pub(super) fn fits(&self, length: usize) -> bool {
        let is_within = || length <= (self.mtu.load(Ordering::Relaxed) + LINK_HEADER) as usize;
        if is_within() {
            return true;
        }
        let last_read = self.interface.lock().unwrap_or_else(PoisonError::into_inner).1;
        if last_read.elapsed() >= MTU_AGE {
            self.state();
        }
        is_within()
    }

    /// Tries again to send the frames that are left in the port's TX rings.
    pub(super) fn resume(&self) {
        self.facts.stalled.store(false, Ordering::Relaxed);
        for queue in &self.queues {
            if let Some(mut half) = queue.try_send() {
                // Errors of the interface are reported by the next call that sends or receives.
                half.kick(queue.socket(), &queue.counts, &self.facts);
                half.reap();
            }
        }
    }
}
