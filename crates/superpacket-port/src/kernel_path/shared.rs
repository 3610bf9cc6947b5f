//! The memory that the BPF programs of the kernel path share with this process.

#![expect(unsafe_code, reason = "promises about the memory's content")]

use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::system::bpf::SharedWithPrograms;

/// Number of bits that a port's epoch occupies in [`PortState::received`].
pub(super) const EPOCH_BITS: i32 = 32;

/// The state of a station (an address in a VLAN), shared with the BPF programs.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct StationState {
    /// The index of the station's port plus 1; 0 if the kernel may not forward the station's
    /// frames.
    pub(super) port: AtomicU32,
    /// The port's epoch when the socket last received a frame of the station. The kernel may
    /// forward the station's frames once this epoch has ended: when the bridge has sent all frames
    /// that the socket had received.
    pub(super) epoch: AtomicU32,
    /// When the kernel last forwarded a frame from the station (`CLOCK_MONOTONIC_COARSE`, in
    /// nanoseconds); 0 for never.
    pub(super) seen: AtomicU64,
    /// When the kernel last forwarded a frame to the station.
    pub(super) used: AtomicU64,
    padding: AtomicU64,
}

/// The state of a port, shared with the programs. It has a cache line of its own.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct PortState {
    /// The number of frames that the socket received (upper 32 bits), and the port's epoch (lower
    /// 32 bits).
    pub(super) received: AtomicU64,
    pub(super) interface: AtomicU32,
    /// A combination of the bits in [`Rules`].
    pub(super) rules: AtomicU32,
    /// Maximum length of a frame in bytes, with its Ethernet header.
    pub(super) max_frame: AtomicU32,
    padding: [AtomicU32; 11],
}

/// The counters of a port on one CPU, which have a cache line of their own.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct ForwardingCounts {
    pub(super) rx_packets: AtomicU64,
    pub(super) rx_bytes: AtomicU64,
    pub(super) tx_packets: AtomicU64,
    pub(super) tx_bytes: AtomicU64,
    padding: [AtomicU64; 4],
}

/// The bits of [`PortState::rules`].
pub(super) struct Rules;

impl Rules {
    /// The kernel may forward frames from and to the port.
    pub(super) const ENABLED: u32 = 1;
    /// The filter stores the port's epoch in the state of each frame's source. If no bit of the
    /// rules is set, the filter only counts frames.
    pub(super) const NOTING: u32 = 8;
    pub(super) const ISOLATED: u32 = 2;
    pub(super) const SUPER_PACKETS: u32 = 4;
}

// SAFETY: atomic numbers: 4 + 4 + 3 * 8 bytes.
unsafe impl SharedWithPrograms for StationState {}
// SAFETY: atomic numbers: 8 + 14 * 4 bytes.
unsafe impl SharedWithPrograms for PortState {}
// SAFETY: atomic numbers: 8 * 8 bytes.
unsafe impl SharedWithPrograms for ForwardingCounts {}
