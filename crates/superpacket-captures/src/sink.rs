//! Who takes what a command writes, where it is no file.

use crate::file::{CaptureError, Interface, Record};

/// Takes packets one by one.
pub trait PacketSink {
    /// Makes known the interfaces that packets name, as their number grows: all so far, in their
    /// order.
    ///
    /// # Errors
    /// Whatever is to stop the command.
    fn declare(&mut self, interfaces: &[Interface]) -> Result<(), CaptureError>;

    /// Takes a packet.
    ///
    /// # Errors
    /// Whatever is to stop the command.
    fn packet(&mut self, record: &Record<'_>, data: &[u8]) -> Result<(), CaptureError>;
}
