//! A trait for outputs of commands that are not files.

use crate::file::{CaptureError, Interface, Record};

/// A receiver of packets.
pub trait PacketSink {
    /// Declares the interfaces to which packets refer: all that are known so far, in order. Called
    /// again with all of them when further ones are found.
    ///
    /// # Errors
    /// Any error; it ends the command.
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError>;

    /// Receives a packet.
    ///
    /// # Errors
    /// Any error; it ends the command.
    fn packet(&mut self, record: &Record<'_>, data: &[u8]) -> Result<(), CaptureError>;
}
