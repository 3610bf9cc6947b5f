//! Control of a running bridge over a Unix socket: the server and the client of the protocol that
//! `docs/control.md` describes.
//!
//! Each request and each answer is a line with a JSON object. Only root and the user that the
//! bridge runs as may send requests.

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
pub use request::{Address, ControlError, ErrorCode, MAX_REQUEST, PROTOCOL, Request, ServedBy};
pub use rps::RpsChange;
pub use server::{ControlCounters, ControlServer};
pub use socket::{ControlSocket, SocketError};

use std::collections::BTreeMap;

use superpacket_bridge::fdb::{FdbEntry, FdbFilter, FdbPage, Station};
use superpacket_bridge::monitor::{Monitor, MonitorSettings};
use superpacket_bridge::report::{
    MdbReport, PortFeatures, PortReport, PortRps, PortStats, SteeringReport,
};
use superpacket_bridge::settings::{PortChange, SettingValue};
use superpacket_bridge::vlan::{PortVlanReport, VlanRange, VlanReport};
use superpacket_port::PortSpec;
use superpacket_port::features::Feature;

/// The requests to a running bridge: reports, and changes to its ports and settings.
pub trait Control: Send + Sync {
    /// Returns a summary of each port.
    fn ports(&self) -> Vec<PortReport>;

    /// Returns the offloads of each port.
    fn features(&self) -> Vec<PortFeatures>;

    /// Returns the counters of each port.
    fn stats(&self) -> Vec<PortStats>;

    /// Switches an offload of a port. `force` allows `large-receive-offload` although packets are
    /// forwarded.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_feature(
        &self,
        port: &str,
        feature: Feature,
        on: bool,
        force: bool,
    ) -> Result<PortFeatures, ControlError>;

    /// Adds and opens a port with the default settings.
    ///
    /// # Errors
    /// [`ErrorCode::Refused`] with the reason; nothing has changed.
    fn add_port(&self, port: PortSpec) -> Result<PortReport, ControlError>;

    /// Changes options of a port's string and settings of the port: all of them, or none if one is
    /// refused.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn set_port(&self, port: &str, change: &PortChange) -> Result<PortReport, ControlError>;

    /// Closes and removes a port, and returns its last summary.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`].
    fn remove_port(&self, port: &str) -> Result<PortReport, ControlError>;

    /// Returns the selected entries of the address table that follow `after`. There are at most
    /// `most` entries, and at most [`MOST_LISTED`](superpacket_bridge::fdb::MOST_LISTED).
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn fdb(
        &self,
        filter: &FdbFilter,
        after: Option<Station>,
        most: usize,
    ) -> Result<FdbPage, ControlError>;

    /// Adds a static entry to the address table.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn add_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError>;

    /// Adds a static entry to the address table, or replaces the station's entry there.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn replace_static_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError>;

    /// Deletes a static or learned entry of the address table.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn delete_entry(&self, port: &str, station: Station) -> Result<FdbEntry, ControlError>;

    /// Deletes learned addresses, and returns how many.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn flush_fdb(&self, filter: &FdbFilter) -> Result<usize, ControlError>;

    /// Returns the VLANs of each port.
    fn vlans(&self) -> VlanReport;

    /// Adds a port to VLANs, or changes its flags in them.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`].
    fn add_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, ControlError>;

    /// Removes a port from a range of VLANs.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn delete_vlans(&self, port: &str, range: &VlanRange) -> Result<PortVlanReport, ControlError>;

    /// Returns the ports' memberships in IP multicast groups.
    fn mdb(&self) -> MdbReport;

    /// Returns the steering of each port's packets.
    fn rps(&self) -> Vec<PortRps>;

    /// Changes the steering of a receive queue's packets; without `queue`, of all of the port's
    /// queues.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason. For a mask, this is
    /// the kernel's error and the invalid part of the mask. Nothing has changed.
    fn set_rps(
        &self,
        port: &str,
        queue: Option<u16>,
        change: &RpsChange,
    ) -> Result<PortRps, ControlError>;

    /// Returns the steering settings that apply to all ports, and the workers.
    fn steering(&self) -> SteeringReport;

    /// Changes steering settings that apply to all ports, by their names in the
    /// [table](superpacket_bridge::settings::NamedSettings::SETTINGS): all of them, or none if one
    /// is refused.
    ///
    /// # Errors
    /// [`ErrorCode::Refused`] with the reason.
    fn set_steering(
        &self,
        settings: &BTreeMap<String, SettingValue>,
    ) -> Result<SteeringReport, ControlError>;

    /// Starts a monitor, which copies packets that ports receive and send.
    ///
    /// # Errors
    /// [`ErrorCode::UnknownPort`], or [`ErrorCode::Refused`] with the reason.
    fn monitor(&self, settings: &MonitorSettings) -> Result<Monitor, ControlError>;
}
