//! The errors of a bridge.

use superpacket_port::{PortError, PortSpec};

use crate::settings::SteeringProblem;
use crate::switch::fdb::Station;
use crate::topology::TopologyError;

/// The bridge could not be started or changed. Unless the variant says otherwise, the bridge is as
/// it was before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// No port has this name.
    #[error("there is no port {port:?}: there are {}", .known.join(", "))]
    NoSuchPort {
        /// The name that was requested.
        port: String,
        /// The names of all ports.
        known: Vec<String>,
    },
    /// Two ports would have the same name.
    #[error("port {port:?} is named twice")]
    DuplicatePort {
        /// The name that both ports would have.
        port: String,
    },
    /// The port was closed so that it can be opened with another port string, but that failed.
    #[error("{port}: it cannot be opened as {string}: {problem}; {}", as_before(before, *restored))]
    NotReopened {
        /// The port's name.
        port: String,
        /// The requested port string, without the name of the port.
        string: String,
        /// The reason why it could not be opened.
        problem: String,
        /// The port string with which the port was open before.
        before: String,
        /// Whether the port is open again with its former port string. If not, the bridge keeps
        /// trying to open it.
        restored: bool,
    },
    /// The port's packets start at another layer than those of the bridge's other ports: at the IP
    /// header instead of the Ethernet header, or the reverse.
    #[error(
        "port {port:?} carries packets from {layer} on, and the bridge's other ports do not: TUN ports can only be joined with TUN ports"
    )]
    Layer {
        /// The port's name.
        port: String,
        /// The layer at which the port's packets start.
        layer: &'static str,
    },
    /// The bridge has the maximum number of ports.
    #[error("a bridge has at most {limit} ports")]
    TooManyPorts {
        /// The maximum number of ports.
        limit: usize,
    },
    /// The bridge has the maximum number of monitors.
    #[error("a bridge has at most {limit} monitors at a time: end one of them first")]
    TooManyMonitors {
        /// The maximum number of monitors at the same time.
        limit: usize,
    },
    /// A setting of a monitor is out of range.
    #[error("{0}")]
    Monitor(String),
    /// LRO was requested for a port whose packets are forwarded.
    #[error(
        "{port}: large-receive-offload is refused: packets are forwarded, and what LRO merged cannot be cut into the packets that came (force it for a port that only receives)"
    )]
    Forwarded {
        /// The name of the port for which LRO was requested.
        port: String,
    },
    /// A setting of a port is unknown or out of range.
    #[error("{port}: {problem}")]
    Limit {
        /// The port's name.
        port: String,
        /// The reason, as a sentence; it names the setting.
        problem: String,
    },
    /// An entry of the address table cannot be added or deleted.
    #[error("{station}: {problem}")]
    Entry {
        /// The address and VLAN of the entry.
        station: Station,
        /// The reason, as a sentence.
        problem: String,
    },
    /// The address table can hold no further static entries.
    #[error("the address table holds at most {limit} static entries: half of table-size")]
    TooManyStatic {
        /// The maximum number of static entries.
        limit: usize,
    },
    /// The address table does not fit in memory.
    #[error("table-size: ENOMEM: there is no memory for a table of {addresses} addresses")]
    NoAddressTable {
        /// The requested number of addresses.
        addresses: usize,
    },
    /// The ports carry IP packets, so that the address table contains no hardware addresses.
    #[error("{port} carries IP packets, which have no hardware addresses")]
    NoHardwareAddresses {
        /// The name of a port that carries IP packets.
        port: String,
    },
    /// Another bridge has the network interface of the port.
    #[error(
        "{port}: another bridge{holder} has the interface {interface}: every frame would pass twice (--shared-interfaces, or shared-interfaces = true in the file, opens it all the same)"
    )]
    Taken {
        /// The name of the port that could not be opened.
        port: String,
        /// The interface's name.
        interface: String,
        /// The process of the other bridge, in brackets after a space; empty if it is not known.
        holder: String,
    },
    /// The setting can only be changed by a restart.
    #[error("{setting} cannot be changed while the bridge runs: start it again")]
    Fixed {
        /// Description of the setting, in words.
        setting: &'static str,
    },
    /// The CPU mask is invalid; the kernel would refuse it too.
    #[error("{port}: rps_cpus: {problem}")]
    Mask {
        /// The port's name.
        port: String,
        /// The error that the kernel would give, with the part of the mask in question.
        problem: String,
    },
    /// The port has no receive queue with this number.
    #[error("{port} has no receive queue {queue}: it has {queues}, numbered from 0")]
    NoSuchQueue {
        /// The port's name.
        port: String,
        /// The number of the receive queue that was requested.
        queue: u16,
        /// The number of receive queues of the port.
        queues: usize,
    },
    /// A steering setting is unknown or out of range.
    #[error(transparent)]
    Steering(#[from] SteeringProblem),
    /// The machine's CPUs could not be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The function that the caller passed to [`Bridge::start_with`](crate::Bridge::start_with) has
    /// failed.
    #[error(transparent)]
    Opened(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system could not provide a thread, a descriptor or another resource.
    #[error("{action}: {source}")]
    System {
        /// A description of the failed action, for the error's message.
        action: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl BridgeError {
    /// Returns the error's message without the port's name, for a context that already names the
    /// port.
    pub(crate) fn problem(&self, port: &PortSpec) -> String {
        match self {
            BridgeError::Port(PortError::Spec(error)) => error.problem(&port.to_string()),
            BridgeError::Port(error) => error.problem(),
            error => {
                let text = error.to_string();
                text.strip_prefix(port.name())
                    .and_then(|rest| rest.strip_prefix(": "))
                    .map(str::to_owned)
                    .unwrap_or(text)
            }
        }
    }
}

fn as_before(before: &str, restored: bool) -> String {
    match restored {
        true => format!("it is open as before, as {before}"),
        false => format!("nor as before, as {before}, which is tried until it can be"),
    }
}
