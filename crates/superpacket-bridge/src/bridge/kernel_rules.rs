//! Decides for each port whether the kernel may forward its frames, whenever something changes.

use std::time::{Duration, Instant};

use superpacket_port::features::Feature;
use superpacket_port::{KernelPathRules, LinkState};

use super::kernel_path::create;
use super::slot::PortSlot;
use super::{Inner, lock};
use crate::kernel_path::{
    KernelAvailability, KernelForwarding, KernelPathConditions, NoKernelPath, may_join, refusal,
};

/// Time that must pass without a reason against it before the kernel forwards a port's frames
/// again. Packets that the bridge held or handed to workers have then left.
const SETTLE: Duration = Duration::from_millis(200);

impl Inner {
    /// Returns the forwarding in the kernel, if it is available. It is set up when a second port
    /// may take part in it; `partners` is the number of other ports that may.
    pub(super) fn kernel(&self, partners: usize) -> KernelAvailability {
        if partners == 0 {
            return Err(NoKernelPath::Alone);
        }
        let table_size = lock(&self.settings).table_size;
        self.context.kernel.get_or_init(|| create(&self.table, table_size)).clone()
    }

    /// Returns the number of ports, apart from the one with this name, whose kind and settings let
    /// the kernel forward their frames.
    pub(super) fn kernel_partners(&self, name: &str) -> usize {
        let slots = lock(&self.slots);
        let others = slots.iter().flatten().filter(|slot| slot.shared.name != name);
        others.filter(|slot| may_join(&slot.shared.settings())).count()
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
                    unavailable: slot.kernel_path.joined.as_ref().err(),
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

/// Configures the kernel according to what was decided for a port.
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
