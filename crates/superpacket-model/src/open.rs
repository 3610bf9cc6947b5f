//! Opening and checking ports by their port strings.

use superpacket_port::{Port, PortError, PortKind, PortSpec, SpecError};

use crate::{memory, nic};

/// Opens the port that a port string names. Ports of all kinds are supported.
///
/// # Errors
/// [`PortError`] names the port, the action that failed, and the reason.
pub fn open(spec: &PortSpec) -> Result<Box<dyn Port>, PortError> {
    match spec.kind() {
        PortKind::Memory => memory::open(spec),
        PortKind::Nic => nic::open(spec, open),
        _ => superpacket_port::open(spec),
    }
}

/// Checks the options of a port string as [`open`] does, without opening the port.
///
/// # Errors
/// [`SpecError`] names the option that is unknown or out of range.
pub fn check(spec: &PortSpec) -> Result<(), SpecError> {
    match spec.kind() {
        PortKind::Memory => memory::check(spec),
        PortKind::Nic => nic::check(spec).and_then(|()| spec.inner().map_or(Ok(()), check)),
        _ => superpacket_port::check(spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked_without_opening_anything() {
        for text in [
            "memory:m?slots=9",
            "memory:m?slots=1024&queues=1024",
            "nic:page=4k@packet:absent0?version=v3",
            "nic:link=l",
            "tap:absent0?queues=2",
            "tun:absent0",
            "packet:absent0?ring=1m",
            "xdp:absent0?queue=2",
            "pcap:/absent.pcap?speed=max",
        ] {
            assert_eq!(check(&text.parse().expect("a port string")), Ok(()), "{text}");
        }
        for (text, option) in [
            ("memory:m?slots=none", "slots=none"),
            ("memory:m?slots=1025&queues=1024", "slots=1025"),
            ("nic:page=4k,link=l@packet:absent0", "link=l"),
            ("nic:page=5k@packet:absent0", "page=5k"),
            ("nic:page=4k@packet:absent0?version=v4", "version=v4"),
            ("tap:absent0?queues=257", "queues=257"),
            ("tun:absent0?ring=1m", "ring=1m"),
            ("packet:absent0?ring=many", "ring=many"),
            ("xdp:absent0?queue=x", "queue=x"),
            ("pcap:/absent.pcap?loop=often", "loop=often"),
        ] {
            let error = check(&text.parse().expect("a port string")).expect_err(text);
            assert!(
                matches!(&error, SpecError::Option { option: wrong, .. } if wrong == option),
                "{text}: {error}"
            );
        }
    }
}
