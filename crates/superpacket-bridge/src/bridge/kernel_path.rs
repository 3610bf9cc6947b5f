//! The state of a port for forwarding in the kernel: BPF programs that forward frames between ports
//! without the bridge.

use std::sync::Arc;
use std::time::Instant;

use superpacket_port::{KernelPathCounts, KernelPathPort, Port, PortError, PortKind};

use crate::cpus::possible_cpus;
use crate::kernel_path::{KernelAvailability, KernelForwarding, NoKernelPath};
use crate::report::KernelPathReport;
use crate::settings::KernelPathMode;
use crate::switch::table::AddressTable;

/// The BPF programs of a port that forward its frames in the kernel or, for `Err`, the reason why
/// the port has none.
pub(super) type JoinedKernelPath = Result<KernelPathPort, NoKernelPath>;

/// The state of a port for forwarding in the kernel (the kernel's path).
#[derive(Debug)]
pub(super) struct PortKernelPath {
    /// The port's BPF programs or, for `Err`, the reason why it has none.
    pub(super) joined: JoinedKernelPath,
    /// The reason why the bridge itself forwards the port's frames; `None` if the kernel may
    /// forward them.
    pub(super) refusal: Option<String>,
    /// The time at which a condition last forbade the kernel to forward the port's frames; `None`
    /// if that never happened.
    pub(super) refused_at: Option<Instant>,
    /// Whether GRO is requested from the port's network interface, because the kernel forwards the
    /// frames.
    pub(super) device_gro: bool,
    /// The counts of frames that the kernel forwarded before the port was last reopened.
    before: KernelPathCounts,
}

impl PortKernelPath {
    pub(super) fn new(joined: JoinedKernelPath) -> Self {
        PortKernelPath {
            joined,
            refusal: None,
            refused_at: None,
            device_gro: false,
            before: KernelPathCounts::default(),
        }
    }

    /// Forgets the port's BPF programs, because the port is closed. The counters are kept.
    pub(super) fn leave(&mut self) {
        self.before = self.counts();
        self.joined = Err(NoKernelPath::Other("the port is not open".to_owned()));
        self.device_gro = false;
    }

    /// Stores the BPF programs of the reopened port, or the reason why it has none.
    pub(super) fn rejoin(&mut self, joined: JoinedKernelPath) {
        *self = PortKernelPath { before: self.before, ..PortKernelPath::new(joined) };
    }

    /// Returns whether the port must be opened again before the kernel can forward its frames: it
    /// was opened with `kernel_path` off or, if `is_asked` (the user has just changed the setting),
    /// when no other port could take part.
    pub(super) fn needs_reopening(&self, mode: KernelPathMode, is_asked: bool) -> bool {
        let is_over = match self.joined {
            Err(NoKernelPath::SwitchedOff) => true,
            Err(NoKernelPath::Alone) => is_asked,
            Ok(_) | Err(NoKernelPath::Other(_)) => false,
        };
        mode != KernelPathMode::Off && is_over
    }

    /// Returns the traffic of the port that the kernel forwarded by itself.
    pub(super) fn counts(&self) -> KernelPathCounts {
        let now = self.joined.as_ref().map(KernelPathPort::counts).unwrap_or_default();
        KernelPathCounts {
            rx_packets: self.before.rx_packets + now.rx_packets,
            rx_bytes: self.before.rx_bytes + now.rx_bytes,
            tx_packets: self.before.tx_packets + now.tx_packets,
            tx_bytes: self.before.tx_bytes + now.tx_bytes,
        }
    }

    pub(super) fn report(&self, requested: KernelPathMode) -> KernelPathReport {
        KernelPathReport {
            requested: requested.to_string(),
            active: self.refusal.is_none() && self.joined.is_ok(),
            // Without a kernel path of the bridge, nothing was decided for the port.
            reason: self
                .refusal
                .clone()
                .or_else(|| self.joined.as_ref().err().map(ToString::to_string)),
        }
    }
}

/// Creates the BPF maps with which the kernel forwards frames between a bridge's ports.
pub(super) fn create(table: &AddressTable, table_size: usize) -> KernelAvailability {
    let created = KernelForwarding::new(table_size, possible_cpus());
    let kernel = Arc::new(created.map_err(|error| {
        NoKernelPath::Other(match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::PERM.raw_os_error() => {
                "it needs CAP_BPF and CAP_NET_ADMIN".to_owned()
            }
            _ => format!("BPF maps cannot be created: {error}"),
        })
    })?);
    table.set_kernel_path(kernel.path());
    Ok(kernel)
}

/// Attaches the BPF programs with which the kernel forwards frames to an open port, as far as
/// `mode` allows it.
///
/// # Errors
/// [`PortError::Unsupported`] if the port cannot join and `mode` demands it.
pub(super) fn join(
    port: &mut dyn Port,
    kind: PortKind,
    mode: KernelPathMode,
    kernel: impl FnOnce() -> KernelAvailability,
) -> Result<JoinedKernelPath, PortError> {
    if mode == KernelPathMode::Off {
        return Ok(Err(NoKernelPath::SwitchedOff));
    }
    let joined = match kind {
        PortKind::Packet => kernel()
            .and_then(|kernel| port.join_kernel_path(kernel.path()).map_err(NoKernelPath::Other)),
        _ => Err(NoKernelPath::Other("only a packet port can have it".to_owned())),
    };
    match joined {
        Err(reason) if mode == KernelPathMode::On && reason != NoKernelPath::Alone => {
            Err(PortError::Unsupported {
                port: port.name().to_owned(),
                reason: format!("kernel_path=on: {reason}"),
            })
        }
        joined => Ok(joined),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bridge;
    use super::super::tests::settings;

    #[test]
    fn a_port_without_a_kernel_path_says_why() {
        let bridge = Bridge::start(settings(&["memory:no-path-a", "memory:no-path-b"]))
            .expect("no privilege");
        for features in bridge.features() {
            let report = features.kernel_path.expect("each port of a bridge reports it");
            assert!(!report.active, "{report:?}");
            let reason = report.reason.expect("it has a reason");
            assert!(reason.contains("only a packet port"), "{reason}");
        }
    }
}
