//! Joins ports with the kernel's path, and decides again whenever something changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use superpacket_port::features::Feature;
use superpacket_port::{
    KernelPathCounts, KernelPathPort, KernelPathRules, LinkState, Port, PortError,
};

use super::slot::PortSlot;
use super::{Inner, lock};
use crate::cpus::possible_cpus;
use crate::kernel_path::{
    KernelAvailability, KernelForwarding, KernelPathConditions, SWITCHED_OFF, refusal,
};
use crate::report::KernelPathReport;
use crate::settings::KernelPathMode;
use crate::switch::table::AddressTable;

/// Time for which nothing may forbid the kernel's path before it is used again. Packets that the
/// bridge held or handed to workers have then left.
const SETTLE: Duration = Duration::from_millis(200);

/// A port's part in the kernel's path.
#[derive(Debug)]
pub(super) struct PortKernelPath {
    /// The port's programs; otherwise why it has none.
    pub(super) joined: Result<KernelPathPort, String>,
    /// Why the bridge forwards the port's frames itself.
    refusal: Option<String>,
    /// When something last forbade the kernel's path.
    refused_at: Option<Instant>,
    /// Whether the aggregation of the port's device is wanted.
    device_gro: bool,
    /// The counters from before the port was last reopened.
    before: KernelPathCounts,
}

impl PortKernelPath {
    pub(super) fn new(joined: Result<KernelPathPort, String>) -> Self {
        PortKernelPath {
            joined,
            refusal: None,
            refused_at: None,
            device_gro: false,
            before: KernelPathCounts::default(),
        }
    }

    /// Forgets the programs, because the port is closed. The counters are kept.
    pub(super) fn leave(&mut self) {
        self.before = self.counts();
        self.joined = Err("the port is not open".to_owned());
        self.device_gro = false;
    }

    /// Joins again, because the port was reopened.
    pub(super) fn rejoin(&mut self, joined: Result<KernelPathPort, String>) {
        *self = PortKernelPath { before: self.before, ..PortKernelPath::new(joined) };
    }

    /// Returns whether the port must be opened again before the kernel can forward its frames: it
    /// was opened while that was switched off.
    pub(super) fn needs_reopening(&self, mode: KernelPathMode) -> bool {
        mode != KernelPathMode::Off
            && self.joined.as_ref().is_err_and(|reason| reason == SWITCHED_OFF)
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
            reason: self.refusal.clone(),
        }
    }
}

/// Creates the kernel's path of a bridge.
pub(super) fn create(table: &AddressTable, table_size: usize) -> KernelAvailability {
    let created = KernelForwarding::new(table_size, possible_cpus());
    let kernel = Arc::new(created.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::PERM.raw_os_error() => {
            "it needs CAP_BPF and CAP_NET_ADMIN".to_owned()
        }
        _ => format!("BPF maps cannot be created: {error}"),
    })?);
    table.set_kernel_path(kernel.path());
    Ok(kernel)
}

/// Joins an open port with the kernel's path, as far as `mode` allows it.
///
/// # Errors
/// [`PortError::Unsupported`] if the port cannot join and `mode` demands it.
pub(super) fn join(
    port: &mut dyn Port,
    mode: KernelPathMode,
    kernel: impl FnOnce() -> KernelAvailability,
) -> Result<Result<KernelPathPort, String>, PortError> {
    if mode == KernelPathMode::Off {
        return Ok(Err(SWITCHED_OFF.to_owned()));
    }
    let joined = kernel().and_then(|kernel| port.join_kernel_path(kernel.path()));
    match joined {
        Err(reason) if mode == KernelPathMode::On => Err(PortError::Unsupported {
            port: port.name().to_owned(),
            reason: format!("kernel_path=on: {reason}"),
        }),
        joined => Ok(joined),
    }
}

impl Inner {
    /// Returns the kernel's path, which is created for the first port that may join it.
    pub(super) fn kernel(&self) -> KernelAvailability {
        let table_size = lock(&self.settings).table_size;
        self.context.kernel.get_or_init(|| create(&self.table, table_size)).clone()
    }

    /// Decides for each port whether the kernel may forward its frames.
    pub(super) fn reconcile_kernel_path(&self) {
        let Some(Ok(kernel)) = self.context.kernel.get() else { return };
        let bridge = lock(&self.settings).clone();
        let mut slots = lock(&self.slots);
        let refusals: Vec<Option<String>> = slots
            .iter()
            .flatten()
            .map(|slot| {
                refusal(&KernelPathConditions {
                    bridge: &bridge,
                    port: &slot.shared.settings(),
                    active: slot.shared.runtime().active,
                    unavailable: slot.kernel_path.joined.as_ref().err().map(String::as_str),
                    is_up: slot.state.link == LinkState::Up,
                    is_monitored: self.context.monitors.watches(&slot.shared.name),
                    has_consumer: self.context.factory.is_some(),
                })
            })
            .collect();
        let able = refusals.iter().filter(|refusal| refusal.is_none()).count();
        for (slot, refusal) in slots.iter_mut().flatten().zip(refusals) {
            let now = Instant::now();
            let path = &mut slot.kernel_path;
            if refusal.is_some() && path.joined.is_ok() {
                path.refused_at = Some(now);
            }
            let settling = path.refused_at.is_some_and(|at| now - at < SETTLE);
            path.refusal = refusal
                .or_else(|| settling.then(|| "earlier packets are on their way".to_owned()))
                .or_else(|| (able < 2).then(|| "no other port has it".to_owned()));
            apply(kernel, slot);
        }
    }
}

/// Tells the kernel what was decided for a port.
fn apply(kernel: &KernelForwarding, slot: &mut PortSlot) {
    let PortSlot { shared, port, kernel_path, .. } = slot;
    let Ok(joined) = &kernel_path.joined else {
        return kernel.set_port(shared.number, None);
    };
    let enabled = kernel_path.refusal.is_none();
    let runtime = shared.runtime();
    joined.set(KernelPathRules {
        enabled,
        isolated: runtime.forwarding.isolated,
        super_packets: runtime.has(Feature::TcpSegmentationOffload)
            && runtime.has(Feature::TxUdpSegmentation),
        mtu: shared.mtu(),
    });
    kernel.set_port(shared.number, enabled.then(|| joined.index()));
    let device_gro = enabled && runtime.has(Feature::GenericReceiveOffload);
    if device_gro != kernel_path.device_gro {
        kernel_path.device_gro = device_gro;
        if let Some(Err(error)) = port.as_mut().map(|port| port.set_device_gro(device_gro)) {
            tracing::info!(port = shared.name, %error, "the device's GRO cannot be switched");
        }
    }
}
