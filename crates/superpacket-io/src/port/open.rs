//! From a port string to a port.

use super::{Port, PortError, PortSpec};

/// Opens the port that a port string names.
///
/// # Errors
/// [`PortError`] says which port, what was tried, and why it failed.
pub fn open(spec: &PortSpec) -> Result<Box<dyn Port>, PortError> {
    Err(PortError::Unsupported { port: spec.text().into(), reason: format!("{} ports are not part of this build", spec.kind()) })
}
