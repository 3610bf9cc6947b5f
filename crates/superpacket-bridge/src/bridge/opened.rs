//! Ports that are opened: whose their interfaces are, and who else answers there.

use superpacket_model::open;
use superpacket_port::system::RouteSocket;
use superpacket_port::{Port, PortKind, PortSpec};

use super::Inner;
use crate::claim::{Claim, interface_of};
use crate::error::BridgeError;

/// A port that has been opened, and is not in the bridge yet.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) port: Box<dyn Port>,
    pub(super) claim: Option<Claim>,
}

impl Opened {
    /// Opens a port, whose interface no other bridge has, or may have too.
    pub(super) fn new(spec: &PortSpec, shared_interfaces: bool) -> Result<Self, BridgeError> {
        let claim = claim(spec, shared_interfaces)?;
        Ok(Opened { port: open(spec)?, claim })
    }
}

/// Claims the interface of a port, if it has one that no other bridge has.
pub(super) fn claim(
    spec: &PortSpec,
    shared_interfaces: bool,
) -> Result<Option<Claim>, BridgeError> {
    match Claim::of(spec) {
        Err(error @ BridgeError::Taken { .. }) if shared_interfaces => {
            tracing::warn!(port = spec.name(), %error, "two bridges have the same interface");
            Ok(None)
        }
        claim => claim,
    }
}

/// Says that the machine itself answers at an interface, too.
pub(super) fn warn_of_addresses(port: &PortSpec) {
    let Some(interface) = interface_of(port) else { return };
    match RouteSocket::open().and_then(|mut socket| socket.addresses(interface)) {
        Ok(addresses) if addresses.is_empty() => {}
        Ok(addresses) => {
            let addresses =
                addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                port = port.name(),
                addresses,
                "the interface has IP addresses: the machine itself answers there, beside the bridge"
            );
        }
        Err(error) => {
            tracing::debug!(port = port.name(), %error, "the interface's addresses cannot be read")
        }
    }
}

impl Inner {
    /// Does the kernel tell of all that changes at a port? It does of interfaces in the bridge's
    /// own network namespace, which a TAP or TUN device may have left, for a container.
    pub(super) fn kernel_notifies(&self, port: &PortSpec) -> bool {
        match port.kind() {
            PortKind::Packet | PortKind::Xdp => true,
            PortKind::Tap | PortKind::Tun => self.hears_other_namespaces,
            _ => port.inner().is_some_and(|inner| self.kernel_notifies(inner)),
        }
    }
}
