//! Opening ports by their port strings.

#[cfg(target_os = "linux")]
use super::packet::PacketPort;
#[cfg(target_os = "linux")]
use super::replay::ReplayPort;
#[cfg(target_os = "linux")]
use super::tap::TapPort;
use super::unix::UnixPort;
#[cfg(target_os = "linux")]
use super::vhost::VhostPort;
#[cfg(target_os = "linux")]
use super::xdp::XdpPort;
use super::{Port, PortError, PortKind, PortSpec, SpecError};

/// Opens the port that a port string names, if the system provides it. `memory:` and `nic:` ports
/// are opened by the crate `superpacket-model`, which also opens all others.
///
/// # Errors
/// [`PortError`], with the port, the attempted action, and the cause.
pub fn open(spec: &PortSpec) -> Result<Box<dyn Port>, PortError> {
    match spec.kind() {
        #[cfg(target_os = "linux")]
        PortKind::Tap | PortKind::Tun => Ok(Box::new(TapPort::open(spec)?)),
        #[cfg(target_os = "linux")]
        PortKind::Packet => Ok(Box::new(PacketPort::open(spec)?)),
        #[cfg(target_os = "linux")]
        PortKind::Xdp => Ok(Box::new(XdpPort::open(spec)?)),
        #[cfg(target_os = "linux")]
        PortKind::Pcap => Ok(Box::new(ReplayPort::open(spec)?)),
        PortKind::Unix => Ok(Box::new(UnixPort::open(spec)?)),
        #[cfg(target_os = "linux")]
        PortKind::Vhost => Ok(Box::new(VhostPort::open(spec)?)),
        PortKind::Memory | PortKind::Nic => Err(modelled(spec).into()),
        #[cfg(not(target_os = "linux"))]
        _ => Err(PortError::Unsupported {
            port: spec.name().into(),
            reason: "ports of this kind need Linux".into(),
        }),
    }
}

/// Checks the options of a port string as [`open`] does, without opening the port. Systems other
/// than Linux do not check those of ports that need Linux.
///
/// # Errors
/// [`SpecError`], with the option that is unknown or out of range.
pub fn check(spec: &PortSpec) -> Result<(), SpecError> {
    match spec.kind() {
        #[cfg(target_os = "linux")]
        PortKind::Tap | PortKind::Tun => TapPort::check(spec),
        #[cfg(target_os = "linux")]
        PortKind::Packet => PacketPort::check(spec),
        #[cfg(target_os = "linux")]
        PortKind::Xdp => XdpPort::check(spec),
        #[cfg(target_os = "linux")]
        PortKind::Pcap => ReplayPort::check(spec),
        PortKind::Unix => UnixPort::check(spec),
        #[cfg(target_os = "linux")]
        PortKind::Vhost => VhostPort::check(spec),
        PortKind::Memory | PortKind::Nic => Err(modelled(spec)),
        #[cfg(not(target_os = "linux"))]
        _ => Ok(()),
    }
}

fn modelled(spec: &PortSpec) -> SpecError {
    SpecError::Modelled { port: spec.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_does_not_have_is_not_opened() {
        for text in ["memory:m", "nic:page=4k@packet:absent0"] {
            let spec = text.parse().expect("a port string");
            let says =
                format!("port {text:?} is in memory or a model NIC: superpacket-model opens it");
            assert_eq!(check(&spec).expect_err(text).to_string(), says);
            assert!(
                open(&spec).expect_err(text).to_string().contains("superpacket-model opens it")
            );
        }
    }
}
