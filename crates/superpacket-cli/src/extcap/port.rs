//! Extcap interfaces from which Wireshark captures the packets of running bridges' ports.

use std::path::{Path, PathBuf};

use superpacket_bridge::monitor::{MAX_SNAPLEN, MonitorDirection, MonitorSettings};
use superpacket_daemon::control::{Client, default_path};

use super::MERGED;
use super::sentence::fits;
use crate::failure::Failure;
use crate::live::monitor::record;

/// The message that refuses a capture filter, which these interfaces do not support.
pub(super) const NO_FILTER: &str =
    "the port of a bridge takes no capture filter: use a display filter";

/// The port of a running bridge.
pub(super) struct ListedPort {
    /// The name of the interface.
    pub(super) name: String,
    /// The name of the port.
    port: String,
    /// The control socket of the bridge.
    socket: PathBuf,
    /// Whether its packets begin with the IP header.
    pub(super) is_raw: bool,
}

/// Returns the ports of the bridges at the control sockets `named` and at the default ones. Sockets
/// without a bridge, or with another user's bridge, are skipped.
pub(super) fn list(named: &[PathBuf]) -> Vec<ListedPort> {
    // A bridge that has changed its user keeps the socket of root's.
    let root = Some(PathBuf::from("/run/superpacket.sock"));
    let mut sockets: Vec<PathBuf> = Vec::new();
    for socket in named.iter().cloned().chain(default_path()).chain(root) {
        if !sockets.contains(&socket) {
            sockets.push(socket);
        }
    }
    let mut listed: Vec<ListedPort> = Vec::new();
    for socket in sockets {
        let ports = Client::connect(&socket).and_then(|mut client| client.ports(None));
        for port in ports.unwrap_or_default() {
            let mut name = format!("{MERGED}:{}", port.port);
            if listed.iter().any(|other| other.name == name) {
                name.push_str(&format!("@{}", socket.display()));
            }
            if fits(&name) {
                let is_raw = port.string.starts_with("tun:");
                listed.push(ListedPort { name, port: port.port, socket: socket.clone(), is_raw });
            }
        }
    }
    listed
}

impl ListedPort {
    /// Returns the description of the port that Wireshark shows.
    pub(super) fn display(&self) -> String {
        format!("Port {} of the bridge at {}", self.port, self.socket.display())
    }

    /// Writes the packets of the port to the FIFO until Wireshark closes it or sends a signal.
    ///
    /// # Errors
    /// If the bridge refuses, or ends without a last word.
    pub(super) fn capture(&self, fifo: &Path) -> Result<(), Failure> {
        let settings = MonitorSettings {
            ports: vec![self.port.clone()],
            direction: MonitorDirection::Both,
            snaplen: MAX_SNAPLEN,
            count: None,
        };
        record(Client::connect(&self.socket)?, &settings, fifo, true).map(drop)
    }
}
