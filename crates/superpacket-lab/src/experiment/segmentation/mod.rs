//! Modules shared by the TSO and GSO experiments: live hosts joined by a bridge, and the same
//! bridge between model NICs.

pub(super) mod counting_port;
pub(super) mod forwarding;
pub(super) mod hosts;
pub(super) mod lengths;
pub(super) mod load_rows;
pub(super) mod stack;

/// MTU of senders and wires: bytes from the IP header on.
pub(super) const MTU: usize = 1500;

/// Returns the error for an unexpected failure of a port or a bridge.
fn unexpected_error(what: &str, error: &dyn std::error::Error) -> crate::error::LabError {
    crate::error::LabError::system(what, std::io::Error::other(error.to_string()))
}
