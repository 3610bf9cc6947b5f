//! What goes wrong with a port, and where.

use std::io;

use super::SpecError;

/// A port could not be opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The port string makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no interface of this name.
    #[error("{port}: {}", no_interface(port, interface))]
    NoInterface {
        /// The port's name.
        port: String,
        /// The interface.
        interface: String,
    },
    /// The interface is down.
    #[error("{port}: the interface is down")]
    Down {
        /// The port's name.
        port: String,
    },
    /// The interface is gone, or the port was closed by its other end.
    #[error("{port}: the interface is gone")]
    Gone {
        /// The port's name.
        port: String,
    },
    /// The system refused something.
    #[error("{port}: {action}: {source}{}", hint(.source))]
    System {
        /// The port's name.
        port: String,
        /// What was tried, with the system call's name.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The system cannot do what the port string asks for.
    #[error("{port}: {reason}")]
    Unsupported {
        /// The port's name.
        port: String,
        /// What is missing.
        reason: String,
    },
    /// A capture file could not be read or written.
    #[error("{port}: {}", without_file(port, source))]
    Capture {
        /// The port's name.
        port: String,
        /// What happened.
        source: superpacket_captures::file::CaptureError,
    },
}

impl PortError {
    /// The system refused `action`.
    pub fn system(port: &str, action: &'static str, source: impl Into<io::Error>) -> Self {
        PortError::System { port: port.into(), action, source: source.into() }
    }

    /// Returns what is wrong without the port's name: for who has said which port it is about.
    pub fn problem(&self) -> String {
        let text = self.to_string();
        match self {
            PortError::Spec(_) => text,
            PortError::NoInterface { port, .. }
            | PortError::Down { port }
            | PortError::Gone { port }
            | PortError::System { port, .. }
            | PortError::Capture { port, .. }
            | PortError::Unsupported { port, .. } => {
                match text.strip_prefix(port.as_str()).and_then(|rest| rest.strip_prefix(": ")) {
                    Some(problem) => problem.to_owned(),
                    None => text,
                }
            }
        }
    }

    /// May the port come back by being opened again?
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            PortError::NoInterface { .. }
                | PortError::Down { .. }
                | PortError::Gone { .. }
                | PortError::System { .. }
        )
    }
}

/// Which interface is missing, if the port's name does not say it.
fn no_interface(port: &str, interface: &str) -> String {
    match port.contains(interface) {
        true => "there is no such interface".to_owned(),
        false => format!("there is no interface {interface}"),
    }
}

/// What went wrong with a file, without its name if the port's name has it.
fn without_file(port: &str, source: &superpacket_captures::file::CaptureError) -> String {
    let text = source.to_string();
    match text.split_once(": ") {
        Some((file, problem)) if port.contains(file) => problem.to_owned(),
        _ => text,
    }
}

/// What the user can do where the errno alone does not say it.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (it needs CAP_NET_RAW for packet sockets, CAP_NET_ADMIN for TAP and TUN, and CAP_BPF too for XDP: run as root, or in a user and network namespace of your own)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superpacket_captures::file::CaptureError;

    #[test]
    fn the_port_is_named_once_and_can_be_left_out() {
        let port = || "pcap:/in.pcap?speed=max".to_owned();
        let source =
            CaptureError::Open { file: "/in.pcap".into(), source: io::ErrorKind::NotFound.into() };
        for (error, problem) in [
            (PortError::Capture { port: port(), source }, "cannot be opened: entity not found"),
            (
                PortError::NoInterface { port: port(), interface: "in".into() },
                "there is no such interface",
            ),
            (PortError::Gone { port: port() }, "the interface is gone"),
            (PortError::system(&port(), "bind", io::ErrorKind::NotFound), "bind: entity not found"),
        ] {
            assert_eq!(error.problem(), problem);
            assert_eq!(error.to_string(), format!("{}: {problem}", port()));
        }
    }

    #[test]
    fn what_a_given_name_does_not_say_is_told() {
        let port = || "uplink".to_owned();
        let source =
            CaptureError::Open { file: "/in.pcap".into(), source: io::ErrorKind::NotFound.into() };
        for (error, problem) in [
            (
                PortError::Capture { port: port(), source },
                "/in.pcap: cannot be opened: entity not found",
            ),
            (
                PortError::NoInterface { port: port(), interface: "eth0".into() },
                "there is no interface eth0",
            ),
        ] {
            assert_eq!(
                (error.problem().as_str(), error.to_string()),
                (problem, format!("uplink: {problem}"))
            );
        }
    }
}
