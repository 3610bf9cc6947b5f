//! What a bridge refuses, and why.

use std::any::Any;

use superpacket_port::{PortError, PortSpec};

use crate::fdb::Station;
use crate::privileges::PrivilegeError;
use crate::settings::SteeringProblem;
use crate::topology::TopologyError;

/// A bridge could not be made, or not be changed as asked. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// There is no port of this name.
    #[error("there is no port {port:?}: there are {}", .known.join(", "))]
    NoSuchPort {
        /// What was asked for.
        port: String,
        /// The ports that there are.
        known: Vec<String>,
    },
    /// A port is named twice.
    #[error("port {port:?} is named twice")]
    DuplicatePort {
        /// The port.
        port: String,
    },
    /// A port could not be opened by another port string.
    #[error("{port}: it cannot be opened as {string}: {problem}; {}", as_before(before, *restored))]
    NotReopened {
        /// The port.
        port: String,
        /// The port string, without the port's name.
        string: String,
        /// Why it cannot be opened so.
        problem: String,
        /// What it was open by before.
        before: String,
        /// It is open by that again; else it is tried until it is.
        restored: bool,
    },
    /// Ports whose packets start at Ethernet and ports whose packets start at IP cannot be joined.
    #[error(
        "port {port:?} carries packets from {layer} on, the bridge's other ports do not: TUN devices can be joined with each other only"
    )]
    Layer {
        /// The port.
        port: String,
        /// Where its packets start.
        layer: &'static str,
    },
    /// More ports than a bridge can tell apart.
    #[error("a bridge has at most {limit} ports")]
    TooManyPorts {
        /// The most.
        limit: usize,
    },
    /// More monitors than a bridge copies packets for.
    #[error("a bridge has at most {limit} monitors at a time: end one of them first")]
    TooManyMonitors {
        /// The most.
        limit: usize,
    },
    /// A setting of a monitor that is out of range.
    #[error("{0}")]
    Monitor(String),
    /// LRO on a port whose packets are forwarded.
    #[error(
        "{port}: large-receive-offload is refused: packets are forwarded, and what LRO merged cannot be cut into the packets that came (force it for a port that only receives)"
    )]
    Forwarded {
        /// The port.
        port: String,
    },
    /// A limit that is none, or out of range.
    #[error("{port}: {problem}")]
    Limit {
        /// The port.
        port: String,
        /// What is wrong.
        problem: String,
    },
    /// An entry of the address table that cannot be added or deleted.
    #[error("{station}: {problem}")]
    Entry {
        /// Whose it is.
        station: Station,
        /// What is wrong.
        problem: String,
    },
    /// More static entries than the address table holds.
    #[error("the address table holds at most {limit} static entries: half of table-size")]
    TooManyStatic {
        /// The most.
        limit: usize,
    },
    /// The address table takes more memory than there is.
    #[error("table-size: ENOMEM: there is no memory for a table of {addresses} addresses")]
    NoAddressTable {
        /// How many it was to hold.
        addresses: usize,
    },
    /// The address table of ports that carry packets from IP on has no hardware addresses.
    #[error("{port} carries packets from IP on: they have no hardware addresses")]
    NoHardwareAddresses {
        /// The port.
        port: String,
    },
    /// Another bridge has the interface.
    #[error(
        "{port}: another bridge{holder} has the interface {interface}: every frame would pass twice (--shared-interfaces, or shared-interfaces = true in the file, opens it all the same)"
    )]
    Taken {
        /// The port.
        port: String,
        /// The interface.
        interface: String,
        /// Who has it, in brackets behind a space, or nothing.
        holder: String,
    },
    /// A setting that only a new start can change.
    #[error("{setting} cannot be changed while the bridge runs: start it again")]
    Fixed {
        /// The setting.
        setting: &'static str,
    },
    /// A mask of CPUs that the kernel would refuse too.
    #[error("{port}: rps_cpus: {problem}")]
    Mask {
        /// The port.
        port: String,
        /// The kernel's error, with the chunk or item that it is about.
        problem: String,
    },
    /// There is no receive queue of this number.
    #[error("{port} has no receive queue {queue}: it has {queues}, numbered from 0")]
    NoSuchQueue {
        /// The port.
        port: String,
        /// What was asked for.
        queue: u16,
        /// How many there are.
        queues: usize,
    },
    /// A setting of steering that is none, or out of range.
    #[error(transparent)]
    Steering(#[from] SteeringProblem),
    /// The machine's CPUs could not be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Privileges could not be given up.
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    /// A thread or a descriptor could not be had.
    #[error("{action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl BridgeError {
    /// Returns what is wrong without naming the port: for who has said that it is about this one.
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

/// What a panic says, if it says anything.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}
