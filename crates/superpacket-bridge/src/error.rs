//! The errors of a bridge.

use std::any::Any;

use superpacket_port::{PortError, PortSpec};

use crate::settings::SteeringProblem;
use crate::switch::fdb::Station;
use crate::topology::TopologyError;

/// The bridge could not be started or changed. Unless a variant says otherwise, nothing has
/// changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// No port has this name.
    #[error("there is no port {port:?}: there are {}", .known.join(", "))]
    NoSuchPort {
        /// The requested name.
        port: String,
        /// The names of all ports.
        known: Vec<String>,
    },
    /// Two ports have the same name.
    #[error("port {port:?} is named twice")]
    DuplicatePort {
        /// The port's name.
        port: String,
    },
    /// The port could not be opened by another port string.
    #[error("{port}: it cannot be opened as {string}: {problem}; {}", as_before(before, *restored))]
    NotReopened {
        /// The port's name.
        port: String,
        /// The requested port string, without the port's name.
        string: String,
        /// The reason for the failure.
        problem: String,
        /// The port string that it was open by before.
        before: String,
        /// Whether the port is open by its former string again. If not, the bridge keeps trying.
        restored: bool,
    },
    /// Ports whose packets start at Ethernet cannot be joined with ports whose packets start at IP.
    #[error(
        "port {port:?} carries packets from {layer} on, and the bridge's other ports do not: TUN ports can only be joined with TUN ports"
    )]
    Layer {
        /// The port's name.
        port: String,
        /// The layer at which its packets start.
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
        /// The maximum number of monitors.
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
        /// The port's name.
        port: String,
    },
    /// A setting is unknown or out of range.
    #[error("{port}: {problem}")]
    Limit {
        /// The port's name.
        port: String,
        /// The reason, as a sentence.
        problem: String,
    },
    /// An entry of the address table cannot be added or deleted.
    #[error("{station}: {problem}")]
    Entry {
        /// The entry's station.
        station: Station,
        /// The reason, as a sentence.
        problem: String,
    },
    /// The address table cannot hold more static entries.
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
    /// The ports carry IP packets, so the address table has no hardware addresses.
    #[error("{port} carries IP packets, which have no hardware addresses")]
    NoHardwareAddresses {
        /// The port's name.
        port: String,
    },
    /// Another bridge has claimed the interface.
    #[error(
        "{port}: another bridge{holder} has the interface {interface}: every frame would pass twice (--shared-interfaces, or shared-interfaces = true in the file, opens it all the same)"
    )]
    Taken {
        /// The port's name.
        port: String,
        /// The interface's name.
        interface: String,
        /// The process that holds it, in brackets after a space; may be empty.
        holder: String,
    },
    /// The setting can only be changed by a restart.
    #[error("{setting} cannot be changed while the bridge runs: start it again")]
    Fixed {
        /// The setting's description.
        setting: &'static str,
    },
    /// The CPU mask is invalid; the kernel would refuse it too.
    #[error("{port}: rps_cpus: {problem}")]
    Mask {
        /// The port's name.
        port: String,
        /// The kernel's error, with the part of the mask that it is about.
        problem: String,
    },
    /// The port has no receive queue with this number.
    #[error("{port} has no receive queue {queue}: it has {queues}, numbered from 0")]
    NoSuchQueue {
        /// The port's name.
        port: String,
        /// The requested queue.
        queue: u16,
        /// The number of receive queues.
        queues: usize,
    },
    /// A steering setting is unknown or out of range.
    #[error(transparent)]
    Steering(#[from] SteeringProblem),
    /// The machine's CPUs could not be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The step that the caller takes once the ports are open has failed
    /// ([`Bridge::start_with`](crate::Bridge::start_with)).
    #[error(transparent)]
    Opened(Box<dyn std::error::Error + Send + Sync>),
    /// The system refused a thread or a descriptor.
    #[error("{action}: {source}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl BridgeError {
    /// Returns the problem without the port's name, for messages that name the port themselves.
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

/// Returns the message of a panic, if it has one.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}
