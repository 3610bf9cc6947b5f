//! Control of a running bridge over a Unix socket: a published protocol (`docs/control.md`), its
//! server and its client.
//!
//! A question is a line with a JSON object, and so is its answer. Only root and the user that the
//! bridge runs as are served.

mod answer;
mod bridge;
mod client;
mod client_error;
mod monitor;
mod path;
mod request;
mod rps;
mod server;
mod socket;
#[cfg(test)]
mod tests;
mod unique;

pub use client::Client;
pub use client_error::ClientError;
pub use monitor::{MonitorCounts, MonitorStream};
pub use path::default_path;
pub use request::{Address, ErrorCode, MAX_REQUEST, PROTOCOL, Refusal, Request, ServedBy};
pub use rps::RpsChange;
pub use server::{ControlCounters, ControlServer};
pub use socket::{ControlSocket, SocketError};

use superpacket_port::PortSpec;
use superpacket_port::features::Feature;

use crate::fdb::{FdbEntry, FdbFilter, FdbPage, Station};
use crate::monitor::{Monitor, MonitorSettings};
use crate::report::{MdbReport, PortFeatures, PortReport, PortRps, PortStats, SteeringReport};
use crate::settings::{PortChange, TooBig};
use crate::vlan::{PortVlanReport, VlanRange, VlanReport};

/// What can be asked of a bridge, and changed in it, while it runs.
pub trait Control: Send + Sync {
    /// The ports at a glance.
    fn ports(&self) -> Vec<PortReport>;

    /// Their offloads.
    fn features(&self) -> Vec<PortFeatures>;

    /// What they counted.
    fn stats(&self) -> Vec<PortStats>;

    /// Switches an offload of a port; `force` lets `large-receive-offload` through although packets
    /// are forwarded.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_feature(
        &self,
        port: &str,
        feature: Feature,
        on: bool,
        force: bool,
    ) -> Result<PortFeatures, Refusal>;

    /// Sets a limit of a port by a name of [`Limits::names`](crate::settings::Limits::names).
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_limit(&self, port: &str, name: &str, value: u64) -> Result<PortReport, Refusal>;

    /// Says what becomes of packets that are too long for a port.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`].
    fn set_too_big(&self, port: &str, what: TooBig) -> Result<PortReport, Refusal>;

    /// Says how what a port receives is aggregated, by a name of
    /// [`PortSettings::AGGREGATION`](crate::settings::PortSettings::AGGREGATION).
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_aggregation(&self, port: &str, name: &str, word: &str) -> Result<PortReport, Refusal>;

    /// Turns a switch of what passes between a port and the others, by a name of
    /// [`Forwarding::NAMES`](crate::settings::Forwarding::NAMES).
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_forwarding(&self, port: &str, name: &str, on: bool) -> Result<PortReport, Refusal>;

    /// Opens another port, with the settings that a port has if nothing is said of it.
    ///
    /// # Errors
    /// [`ErrorCode::Refused`] with the reason. Nothing has changed then.
    fn add_port(&self, port: PortSpec) -> Result<PortReport, Refusal>;

    /// Changes options of a port's string, and settings of the port: all of them, or none.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_port(&self, port: &str, change: &PortChange) -> Result<PortReport, Refusal>;

    /// Closes a port for good; returns what it was last.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`].
    fn remove_port(&self, port: &str) -> Result<PortReport, Refusal>;

    /// The address table, from after `after` on: at most `most` entries, and
    /// [`MOST_LISTED`](crate::fdb::MOST_LISTED).
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn fdb(
        &self,
        filter: &FdbFilter,
        after: Option<Station>,
        most: usize,
    ) -> Result<FdbPage, Refusal>;

    /// Adds a static entry to it.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn add_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, Refusal>;

    /// Adds a static entry to it, in place of one that is there.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn replace_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, Refusal>;

    /// Deletes an entry, static or learned.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn delete_entry(&self, port: &str, station: Station) -> Result<FdbEntry, Refusal>;

    /// Forgets learned addresses; says how many.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn flush_fdb(&self, filter: &FdbFilter) -> Result<usize, Refusal>;

    /// The VLANs of the ports.
    fn vlans(&self) -> VlanReport;

    /// Puts a port in VLANs.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`].
    fn add_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, Refusal>;

    /// Takes a port out of VLANs, from the first to the last.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn delete_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, Refusal>;

    /// Who is in which IP group.
    fn mdb(&self) -> MdbReport;

    /// How the ports' packets are steered.
    fn rps(&self) -> Vec<PortRps>;

    /// Changes how the packets of a receive queue, or of all queues of a port, are steered.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason: for a mask, the
    /// kernel's error and the chunk that it is about. Nothing has changed then.
    fn set_rps(
        &self,
        port: &str,
        queue: Option<u16>,
        change: &RpsChange,
    ) -> Result<PortRps, Refusal>;

    /// What holds for the steering of all ports, and the workers.
    fn steering(&self) -> SteeringReport;

    /// Changes what holds for the steering of all ports, by a name of
    /// [`SteeringSettings::NAMES`](crate::settings::SteeringSettings::NAMES).
    ///
    /// # Errors
    /// [`ErrorCode::UnknownName`] for another name, or [`ErrorCode::Refused`] with the reason.
    fn set_steering(&self, name: &str, value: &str) -> Result<SteeringReport, Refusal>;

    /// Begins to copy what ports receive and send.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn monitor(&self, settings: &MonitorSettings) -> Result<Monitor, Refusal>;
}
