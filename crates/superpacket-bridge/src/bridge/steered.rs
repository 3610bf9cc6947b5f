//! Steering without a bridge: the packets of one port are passed to consumers of the caller.

use std::sync::Arc;

use superpacket::packet::FlowHash;
use superpacket_steer::{Cpu, CpuMask};

use super::Bridge;
use crate::consumer::{Consumer, Factory};
use crate::error::BridgeError;
use crate::report::{PortRps, PortStats, SteeringReport};
use crate::settings::{BridgeSettings, PortSettings, SteeringSettings};

/// A port whose packets are aggregated and steered to workers as in a bridge, but then passed to a
/// [`Consumer`] instead of other ports. When this is dropped, the port is closed.
///
/// CPU masks, settings and counters are those of a [`Bridge`] with one port:
/// [`as_bridge`](Self::as_bridge) borrows that bridge.
#[derive(Debug)]
pub struct Steered {
    bridge: Bridge,
    port: String,
}

impl Steered {
    /// Opens the port, and starts to pass its packets to consumers. `factory` creates a consumer
    /// for each worker, with the worker's CPU as argument, and for each receiving thread, with
    /// `None`, for packets that this thread processes itself. If a consumer panics, the packets
    /// that it was processing are dropped and counted, and a new consumer is created.
    ///
    /// # Errors
    /// Those of [`Bridge::start`].
    pub fn start(
        port: PortSettings,
        settings: SteeringSettings,
        factory: impl Fn(Option<Cpu>) -> Box<dyn Consumer> + Send + Sync + 'static,
    ) -> Result<Steered, BridgeError> {
        let name = port.port.name().to_owned();
        let settings = BridgeSettings {
            ports: vec![port],
            threads: 1,
            steering: settings,
            ..BridgeSettings::default()
        };
        let bridge = Bridge::assemble(settings, || Ok(()), Some(Factory(Arc::new(factory))))?;
        Ok(Steered { bridge, port: name })
    }

    /// Distributes the packets of a receive queue, or of all queues, over the CPUs of the mask. See
    /// [`Bridge::set_rps_cpus`].
    ///
    /// # Errors
    /// Those of [`Bridge::set_rps_cpus`].
    pub fn set_rps_cpus(&self, queue: Option<u16>, mask: &CpuMask) -> Result<PortRps, BridgeError> {
        self.bridge.set_rps_cpus(&self.port, queue, mask)
    }

    /// Records that an application reads the flow with this hash on this CPU. See
    /// [`Bridge::record_flow`].
    pub fn record_flow(&self, hash: FlowHash, cpu: Cpu) {
        self.bridge.record_flow(hash, cpu);
    }

    /// Returns the port's counters.
    pub fn stats(&self) -> PortStats {
        self.bridge.stats().into_iter().next().unwrap_or_default()
    }

    /// Returns the steering settings and the workers.
    pub fn steering(&self) -> SteeringReport {
        self.bridge.steering()
    }

    /// Returns the bridge underneath, whose only port this is. It has the other settings and
    /// reports.
    pub const fn as_bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// Sends the packets that are held, closes the port, and ends all threads of this value.
    pub fn stop(self) {
        self.bridge.stop();
    }
}
