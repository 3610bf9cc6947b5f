//! Errors of ports.

use std::io;

use super::SpecError;

/// An error of opening or using a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The port string is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No interface has this name.
    #[error("{port}: {}", no_interface(port, interface))]
    NoInterface {
        /// The port's name.
        port: String,
        /// The interface's name.
        interface: String,
    },
    /// The interface or the link is down.
    #[error("{port}: the interface is down")]
    Down {
        /// The port's name.
        port: String,
    },
    /// The interface no longer exists, or the other end has closed the port.
    #[error("{port}: the interface is gone")]
    Gone {
        /// The port's name.
        port: String,
    },
    /// A system call failed.
    #[error("{port}: {action}: {source}{}", hint(.source))]
    System {
        /// The port's name.
        port: String,
        /// The attempted action, with the system call's name.
        action: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// The system does not support something that the port string requests.
    #[error("{port}: {reason}")]
    Unsupported {
        /// The port's name.
        port: String,
        /// A description of what is not supported.
        reason: String,
    },
    /// A capture file could not be read or written.
    #[error("{port}: {}", without_file(port, source))]
    Capture {
        /// The port's name.
        port: String,
        /// The error of reading or writing the capture.
        source: superpacket_captures::file::CaptureError,
    },
}

impl PortError {
    /// Creates a [`PortError::System`]: the system call of `action` failed.
    pub fn system(port: &str, action: &'static str, source: impl Into<io::Error>) -> Self {
        PortError::System { port: port.into(), action, source: source.into() }
    }

    /// Returns the error's text without the port's name, for callers that have already given the
    /// name.
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

    /// Returns whether opening the port again later may succeed.
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

/// Describes a missing interface; its name is added unless the port's name contains it.
fn no_interface(port: &str, interface: &str) -> String {
    match port.contains(interface) {
        true => "there is no such interface".to_owned(),
        false => format!("there is no interface {interface}"),
    }
}

/// Describes an error of a file, without the file's name if the port's name contains it.
fn without_file(port: &str, source: &superpacket_captures::file::CaptureError) -> String {
    let text = source.to_string();
    match text.split_once(": ") {
        Some((file, problem)) if port.contains(file) => problem.to_owned(),
        _ => text,
    }
}

/// Returns advice for the user, if the errno alone is not sufficient.
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
