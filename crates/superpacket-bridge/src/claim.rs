//! Which bridge has an interface.
//!
//! Two bridges that receive what arrives at the same interface would forward every frame twice. So
//! a bridge binds, for each of its interfaces, a Unix socket of an abstract name: these are by
//! network namespace, as interfaces are, need no directory and no rights, and are gone with the
//! process that bound them, however it ended. The name of the interface is part of it, since that
//! is what a port is opened by, again and again while the interface comes and goes.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use superpacket_port::{PortKind, PortSpec};

use crate::error::BridgeError;

/// An interface is this bridge's until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: OwnedFd,
}

/// The interface all of whose frames a port takes.
pub(crate) fn interface_of(port: &PortSpec) -> Option<&str> {
    match port.kind() {
        PortKind::Packet => Some(port.device()),
        // Of one queue, others may have the rest.
        PortKind::Xdp => {
            port.options().get("queue").is_none_or(|queue| queue == "all").then(|| port.device())
        }
        _ => port.inner().and_then(interface_of),
    }
}

impl Claim {
    /// Claims the interface of a port in this thread's network namespace; `None` for a port that
    /// has none.
    ///
    /// # Errors
    /// [`BridgeError::Taken`] if another has it; [`BridgeError::System`].
    pub(crate) fn of(port: &PortSpec) -> Result<Option<Claim>, BridgeError> {
        let Some(interface) = interface_of(port) else { return Ok(None) };
        let system = |errno: Errno| BridgeError::System {
            action: "claiming an interface (bind)",
            source: errno.into(),
        };
        let socket = || {
            socket_with(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
        };
        let address = SocketAddrUnix::new_abstract_name(
            format!("superpacket/interface/{interface}").as_bytes(),
        )
        .map_err(system)?;
        let claim = socket().map_err(system)?;
        match bind(&claim, &address) {
            Ok(()) => {
                // Who is refused is told by whom: the kernel remembers who listens. Nobody is
                // accepted: when so many have asked, the next ones are refused without that.
                listen(&claim, 128).map_err(system)?;
                Ok(Some(Claim { _socket: claim }))
            }
            Err(Errno::ADDRINUSE) => {
                let asked = socket().map_err(system)?;
                let holder = connect(&asked, &address).and_then(|()| socket_peercred(&asked)).ok();
                let holder = holder.map_or_else(String::new, |holder| {
                    format!(" (process {})", holder.pid.as_raw_nonzero())
                });
                Err(BridgeError::Taken {
                    port: port.name().into(),
                    interface: interface.into(),
                    holder,
                })
            }
            Err(errno) => Err(system(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_taken_while_somebody_has_it_by_whatever_port() {
        let claim = |port: &str| Claim::of(&port.parse().expect("a port string"));
        let first = claim("packet:claimed0?ring=1m").expect("is free").expect("has an interface");
        for port in ["packet:claimed0", "xdp:claimed0", "nic:page=4k@packet:claimed0"] {
            let error = claim(port).expect_err("is taken").to_string();
            let holder = format!("process {}", std::process::id());
            assert!(
                error.starts_with(&format!(
                    "{port}: another bridge ({holder}) has the interface claimed0"
                )),
                "{error}"
            );
        }
        assert!(claim("packet:claimed1").expect("is another").is_some());
        for port in ["xdp:claimed0?queue=1", "tap:claimed0", "memory:claimed0", "pcap:claimed0"] {
            assert!(claim(port).expect("takes no interface from anybody").is_none(), "{port}");
        }
        drop(first);
        assert!(claim("packet:claimed0").expect("is free again").is_some());
    }
}
