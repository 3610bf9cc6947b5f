//! Properties of an open AF_XDP port, and a flag shared by its queues.

use std::sync::atomic::AtomicBool;

/// The properties of a port that its queues use.
#[derive(Debug)]
pub(super) struct PortFacts {
    /// The port's name.
    pub(super) name: String,
    /// Whether incomplete checksums are detected.
    pub(super) detect: bool,
    /// Whether the program stores the flow hash before frames.
    pub(super) hash: bool,
    /// Whether the kernel polls the device on request.
    pub(super) busy_poll: bool,
    /// Whether the device moves the frames itself.
    pub(super) zero_copy: bool,
    /// Whether frames may be left in a TX ring.
    pub(super) stalled: AtomicBool,
}
