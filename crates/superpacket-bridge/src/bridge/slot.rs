//! What the bridge knows of each port, and the reports made of it.

use std::sync::Arc;
use std::time::Instant;

use superpacket_port::{LinkState, Port, PortCounters, PortKind, PortState};

use super::kernel_path::PortKernelPath;
use crate::claim::Claim;
use crate::report::{PortFeatures, PortReport, PortStats};
use crate::runtime::SharedPort;
use crate::settings::{KernelPathMode, NamedSettings};
use crate::switch::table::AddressTable;

/// What the bridge knows of a port, which is open or waits to be opened again.
#[derive(Debug)]
pub(super) struct PortSlot {
    pub(super) shared: Arc<SharedPort>,
    pub(super) port: Option<Box<dyn Port>>,
    /// The claim on the port's interface, which is kept even while the interface does not exist.
    pub(super) claim: Option<Claim>,
    pub(super) state: PortState,
    pub(super) error: Option<String>,
    pub(super) hardware_address: Option<[u8; 6]>,
    pub(super) queues: usize,
    pub(super) reopened: u64,
    /// Whether the kernel reports all changes of the port, so that it need not be checked often.
    pub(super) kernel_notifies: bool,
    /// Counters that the port itself keeps, from before it was last reopened: the sums of all
    /// queues.
    pub(super) before: PortCounters,
    /// For each queue, the packets that the port itself had dropped before it was last reopened.
    pub(super) queue_drops_before: Vec<u64>,
    /// The state of the port for forwarding in the kernel.
    pub(super) kernel_path: PortKernelPath,
    /// The time at which the bridge next tries to open a lost port again.
    pub(super) next_try: Instant,
}

impl PortSlot {
    pub(super) fn report(&self, table: &AddressTable) -> PortReport {
        let settings = self.shared.settings();
        PortReport {
            port: self.shared.name.clone(),
            string: settings.port.string().to_owned(),
            state: link_name(self.state.link).to_owned(),
            error: self.error.clone(),
            mtu: self.shared.mtu(),
            hardware_address: self
                .hardware_address
                .map(|address| address.map(|byte| format!("{byte:02x}")).join(":")),
            queues: self.queues,
            reopened: self.reopened,
            addresses: table.count(self.shared.number),
            settings: settings.values(),
        }
    }

    /// Takes the open port out of its slot, in order to close it. The slot's state becomes "gone",
    /// with `why` as the error. The port's counters are kept.
    pub(super) fn take_port(&mut self, why: &str) -> Option<Box<dyn Port>> {
        let mut port = self.port.take()?;
        self.before = add(self.before, port.counters());
        self.queue_drops_before = add_each(&self.queue_drops_before, port.queue_drops());
        self.kernel_path.leave();
        self.state.link = LinkState::Gone;
        self.error = Some(why.to_owned());
        Some(port)
    }

    pub(super) fn stats(&mut self) -> PortStats {
        let (own, queue_drops) = self
            .port
            .as_mut()
            .map(|port| (port.counters(), port.queue_drops()))
            .unwrap_or_default();
        let (own, queue_drops) =
            (add(self.before, own), add_each(&self.queue_drops_before, queue_drops));
        self.shared
            .counts
            .report(&self.shared.name)
            .with(own, &queue_drops)
            .with_kernel_path(&self.kernel_path.counts())
    }

    /// Returns whether the port must be opened again before the kernel can forward its frames as
    /// `mode` says. `is_asked` tells whether the user has just set the mode.
    pub(super) fn needs_reopening(&self, mode: KernelPathMode, is_asked: bool) -> bool {
        let kind = self.shared.settings().port.kind();
        kind == PortKind::Packet && self.kernel_path.needs_reopening(mode, is_asked)
    }

    /// Returns the port's offloads, and whether the kernel forwards its frames by itself.
    pub(super) fn features(&self) -> PortFeatures {
        let requested = self.shared.settings().kernel_path;
        let kernel_path = Some(self.kernel_path.report(requested));
        PortFeatures { kernel_path, ..self.shared.features() }
    }
}

pub(super) const fn link_name(link: LinkState) -> &'static str {
    match link {
        LinkState::Up => "up",
        LinkState::Down => "down",
        LinkState::Gone => "gone",
    }
}

fn add(a: PortCounters, b: PortCounters) -> PortCounters {
    PortCounters {
        rx_dropped: a.rx_dropped + b.rx_dropped,
        rx_errors: a.rx_errors + b.rx_errors,
        tx_full: a.tx_full + b.tx_full,
        tx_refused: a.tx_refused + b.tx_refused,
    }
}

/// Adds the counters of each queue from before a reopening to those from after it. The number of
/// queues may differ.
fn add_each(before: &[u64], mut now: Vec<u64>) -> Vec<u64> {
    now.resize(now.len().max(before.len()), 0);
    now.iter_mut().zip(before).for_each(|(now, before)| *now += before);
    now
}
