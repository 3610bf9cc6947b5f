//! What is known of an AF_XDP port once it is open, and what its queues tell each other.

use std::sync::atomic::AtomicBool;

/// What the halves of its queues look at.
#[derive(Debug)]
pub(super) struct Facts {
    /// The port's name.
    pub(super) name: String,
    /// Unfinished checksums are looked for.
    pub(super) detect: bool,
    /// The program puts the flow hash before frames.
    pub(super) hash: bool,
    /// The kernel polls the device when it is asked to.
    pub(super) busy_poll: bool,
    /// The device moves the frames.
    pub(super) zero_copy: bool,
    /// Frames may be left in a TX ring.
    pub(super) stalled: AtomicBool,
}
