//! Opens ports, and claims their network interfaces for this bridge.

use superpacket_model::open;
use superpacket_port::system::RouteSocket;
use superpacket_port::{Port, PortKind, PortSpec};

use super::Inner;
use super::kernel_path::{self, JoinedKernelPath};
use crate::claim::{Claim, interface_of};
use crate::error::BridgeError;
use crate::kernel_path::KernelAvailability;
use crate::settings::PortSettings;

/// A port that is open, but not yet part of the bridge.
#[derive(Debug)]
pub(super) struct OpenedPort {
    pub(super) port: Box<dyn Port>,
    pub(super) claim: Option<Claim>,
    pub(super) kernel_path: JoinedKernelPath,
}

impl OpenedPort {
    /// Opens a port. Fails if another bridge has the port's interface, unless `shared_interfaces`
    /// is set.
    pub(super) fn new(
        settings: &PortSettings,
        shared_interfaces: bool,
        kernel: impl FnOnce() -> KernelAvailability,
    ) -> Result<Self, BridgeError> {
        let claim = claim(&settings.port, shared_interfaces)?;
        let mut port = open(&settings.port)?;
        let kernel_path =
            kernel_path::join(port.as_mut(), settings.port.kind(), settings.kernel_path, kernel)?;
        Ok(OpenedPort { port, claim, kernel_path })
    }
}

/// Claims the interface of a port, if it has one, for this bridge. If another bridge has the
/// interface, that is an error or, with `shared_interfaces`, only logged.
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

/// Logs a warning if the host itself also uses the port's interface: if it has IP addresses, or is
/// a part of a bridge of the kernel.
pub(super) fn warn_of_interface(port: &PortSpec) {
    let Some(interface) = interface_of(port) else { return };
    let port = port.name();
    let found = || {
        let mut socket = RouteSocket::open()?;
        Ok((socket.addresses(interface)?, socket.master(interface)?))
    };
    match found() {
        Ok((addresses, master)) => {
            if !addresses.is_empty() {
                let addresses =
                    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                tracing::warn!(
                    port,
                    addresses,
                    "the interface has IP addresses: the machine itself answers there, beside the bridge"
                );
            }
            if let Some(master) = master {
                tracing::warn!(
                    port,
                    master,
                    "the interface belongs to another one, which forwards its packets too: ip link set {interface} nomaster"
                );
            }
        }
        Err::<_, std::io::Error>(error) => {
            tracing::debug!(port, %error, "the interface's addresses and master cannot be read")
        }
    }
}

impl Inner {
    /// Returns whether the kernel reports all changes of this port. It does for an interface in the
    /// bridge's network namespace, but a TAP or TUN device may have moved into a container.
    pub(super) fn kernel_notifies(&self, port: &PortSpec) -> bool {
        match port.kind() {
            PortKind::Packet | PortKind::Xdp => true,
            PortKind::Tap | PortKind::Tun => self.hears_other_namespaces,
            _ => port.inner().is_some_and(|inner| self.kernel_notifies(inner)),
        }
    }
}
