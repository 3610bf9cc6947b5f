//! Properties of an open AF_XDP port, and a flag shared by its queues.

use std::sync::atomic::AtomicBool;

/// The properties of an AF_XDP port that its queues use.
#[derive(Debug)]
pub(super) struct PortFacts {
    /// The port's name.
    pub(super) name: String,
    /// Whether incomplete checksums of received frames are detected.
    pub(super) detect: bool,
    /// Whether the XDP program stores the flow hash in the bytes before each frame.
    pub(super) hash: bool,
    /// Whether the kernel polls the device when the port polls (busy polling).
    pub(super) busy_poll: bool,
    /// Whether the device moves the frames to and from the port's memory itself (zero copy).
    pub(super) zero_copy: bool,
    /// Whether frames may be left in a TX ring, because the kernel could not take them yet.
    pub(super) stalled: AtomicBool,
}
