//! From a port string to a port.

use super::packet::PacketPort;
use super::replay::ReplayPort;
use super::tap::TapPort;
use super::xdp::XdpPort;
use super::{Port, PortError, PortKind, PortSpec, memory, nic};

/// Opens the port that a port string names.
///
/// # Errors
/// [`PortError`] says which port, what was tried, and why it failed.
pub fn open(spec: &PortSpec) -> Result<Box<dyn Port>, PortError> {
    match spec.kind() {
        PortKind::Memory => memory::open(spec),
        PortKind::Nic => nic::open(spec),
        PortKind::Tap | PortKind::Tun => Ok(Box::new(TapPort::open(spec)?)),
        PortKind::Packet => Ok(Box::new(PacketPort::open(spec)?)),
        PortKind::Xdp => Ok(Box::new(XdpPort::open(spec)?)),
        PortKind::Pcap => Ok(Box::new(ReplayPort::open(spec)?)),
    }
}
