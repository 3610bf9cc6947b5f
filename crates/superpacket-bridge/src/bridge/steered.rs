//! Steering without the bridge: one port, whose packets go to consumers of one's own.

use std::sync::Arc;

use superpacket::packet::FlowHash;
use superpacket_steer::{Cpu, CpuMask};

use super::Bridge;
use crate::consumer::{Consumer, Factory};
use crate::error::BridgeError;
use crate::report::{PortRps, PortStats, SteeringReport};
use crate::settings::{BridgeSettings, PortSettings, SteeringSettings};

/// A port whose packets are aggregated and steered to workers, as the bridge does it, and then go
/// to a [`Consumer`] instead of other ports. Dropping it ends it.
///
/// Masks, settings and counters are those of a [`Bridge`] with one port:
/// [`as_bridge`](Self::as_bridge) lends it, [`into_bridge`](Self::into_bridge) gives it to a
/// [`ControlServer`](crate::control::ControlServer) or
/// [`MetricsServer`](crate::metrics::MetricsServer).
#[derive(Debug)]
pub struct Steered {
    bridge: Bridge,
    port: String,
}

impl Steered {
    /// Opens the port and starts. `factory` makes a consumer for each worker, with its CPU, when
    /// the worker starts, and one with `None` for the thread that receives: it gets the packets
    /// that are processed in place. After a panic of a consumer, its packets are dropped and
    /// counted, and another is made in its place.
    ///
    /// # Errors
    /// As [`Bridge::start`].
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

    /// Spreads packets of a receive queue, or of all, over the CPUs of the mask. As
    /// [`Bridge::set_rps_cpus`].
    ///
    /// # Errors
    /// As there.
    pub fn set_rps_cpus(&self, queue: Option<u16>, mask: &CpuMask) -> Result<PortRps, BridgeError> {
        self.bridge.set_rps_cpus(&self.port, queue, mask)
    }

    /// Says that the flow with this hash is read on this CPU. As [`Bridge::record_flow`].
    pub fn record_flow(&self, hash: FlowHash, cpu: Cpu) {
        self.bridge.record_flow(hash, cpu);
    }

    /// What the port counted.
    pub fn stats(&self) -> PortStats {
        self.bridge.stats().into_iter().next().unwrap_or_default()
    }

    /// Settings and workers.
    pub fn steering(&self) -> SteeringReport {
        self.bridge.steering()
    }

    /// All else that a bridge with one port can be asked.
    pub const fn as_bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// The same as a bridge with one port.
    pub fn into_bridge(self) -> Bridge {
        self.bridge
    }

    /// Sends what is held, closes the port, and ends.
    pub fn stop(self) {
        self.bridge.stop();
    }
}
