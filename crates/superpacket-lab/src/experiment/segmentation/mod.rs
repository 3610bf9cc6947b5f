//! What the experiments with TSO and GSO share: hosts joined by a bridge whose ports cut or do not,
//! and the same bridge between model NICs.

pub(super) mod bridged;
pub(super) mod carried;
pub(super) mod counted;
pub(super) mod lengths;
pub(super) mod modelled;
pub(super) mod stack;

/// What a sender's stack and the frames of a wire are limited to: bytes from the IP header on.
pub(super) const MTU: usize = 1500;

/// An error of ports or bridges that the lab's own settings cannot explain.
fn refused(what: &str, error: &dyn std::error::Error) -> crate::error::LabError {
    crate::error::LabError::system(what, std::io::Error::other(error.to_string()))
}
