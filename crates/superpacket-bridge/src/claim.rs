//! Ensures that an interface belongs to one bridge only.
//!
//! Two bridges that receive from the same interface would forward every frame twice. A bridge
//! therefore binds an abstract Unix socket per interface. Such names belong to a network namespace,
//! as interfaces do, need no directory or privileges, and vanish with the process. The name
//! contains the interface's name, because ports are opened by name.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use superpacket_port::{PortKind, PortSpec};

use crate::error::BridgeError;

/// The claim of a bridge on a network interface, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _socket: OwnedFd,
}

/// Returns the interface from which a port takes all frames, if there is one.
pub(crate) fn interface_of(port: &PortSpec) -> Option<&str> {
    match port.kind() {
        PortKind::Packet => Some(port.device()),
        // An XDP port may take a single queue and leave the others to other bridges.
        PortKind::Xdp => {
            port.options().get("queue").is_none_or(|queue| queue == "all").then(|| port.device())
        }
        _ => port.inner().and_then(interface_of),
    }
}

impl Claim {
    /// Claims the interface of a port in this thread's network namespace; `None` if the port has
    /// none.
    ///
    /// # Errors
    /// [`BridgeError::Taken`] if another bridge has claimed it; [`BridgeError::System`].
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
                // The kernel records the process at `listen`, so a bridge that is refused can
                // connect and learn who holds the interface. Connections are never accepted; once
                // the queue is full, the process is not named.
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
    fn an_interface_is_claimed_while_any_port_holds_it() {
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
