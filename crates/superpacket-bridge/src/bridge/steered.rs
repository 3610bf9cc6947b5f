//! Steering without a bridge: the packets of one port go to the caller's consumers.

use std::sync::Arc;

use superpacket::packet::FlowHash;
use superpacket_steer::{Cpu, CpuMask};

use super::Bridge;
use crate::consumer::{Consumer, Factory};
use crate::error::BridgeError;
use crate::report::{PortRps, PortStats, SteeringReport};
use crate::settings::{BridgeSettings, PortSettings, SteeringSettings};

/// A port whose packets are aggregated and steered to workers as in a bridge, but then go to a
/// [`Consumer`] instead of other ports. Dropping it stops it.
///
/// Masks, settings and counters are those of a [`Bridge`] with one port:
/// [`as_bridge`](Self::as_bridge) borrows it, and [`into_bridge`](Self::into_bridge) converts into
/// it, for the control socket or the metrics of the crate `superpacket-daemon`.
#[derive(Debug)]
pub struct Steered {
    bridge: Bridge,
    port: String,
}

impl Steered {
    /// Opens the port and starts. `factory` makes one consumer per worker, with the worker's CPU,
    /// and one with `None` for each receiving thread, for packets that are processed in place. If a
    /// consumer panics, the packets in its hands are dropped and counted, and a new one is made.
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

    /// Spreads the packets of a receive queue, or of all queues, over the CPUs of the mask. See
    /// [`Bridge::set_rps_cpus`].
    ///
    /// # Errors
    /// Those of [`Bridge::set_rps_cpus`].
    pub fn set_rps_cpus(&self, queue: Option<u16>, mask: &CpuMask) -> Result<PortRps, BridgeError> {
        self.bridge.set_rps_cpus(&self.port, queue, mask)
    }

    /// Records that the flow with this hash is read on this CPU. See [`Bridge::record_flow`].
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

    /// Returns the bridge with this one port, for all other settings and reports.
    pub const fn as_bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// Converts into a bridge with this one port.
    pub fn into_bridge(self) -> Bridge {
        self.bridge
    }

    /// Sends the packets that are held, closes the port, and ends all threads.
    pub fn stop(self) {
        self.bridge.stop();
    }
}
