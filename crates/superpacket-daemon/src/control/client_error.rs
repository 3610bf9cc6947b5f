//! Errors of the control socket's client.

use std::io;
use std::path::PathBuf;

use super::request::ControlError;

/// An error of a request to a bridge: the bridge cannot be reached, or it refused the request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket file does not exist.
    #[error(
        "{path}: there is no control socket: is a bridge running? (`superpacket bridge` creates it; give --control PATH if it is elsewhere)"
    )]
    Absent {
        /// Path of the socket file.
        path: PathBuf,
    },
    /// The socket file exists, but no process listens on it.
    #[error("{path}: nobody listens there any more: is a bridge running?")]
    Dead {
        /// Path of the socket file.
        path: PathBuf,
    },
    /// The current user has no permission to control the bridge.
    #[error("{path}: only root and the user that the bridge runs as may control it")]
    Denied {
        /// Path of the socket file.
        path: PathBuf,
    },
    /// The bridge refused the request.
    #[error("{0}")]
    Refused(ControlError),
    /// The answer does not follow the protocol.
    #[error("{path}: the answer is not one of a bridge: {problem}")]
    Malformed {
        /// Path of the socket file.
        path: PathBuf,
        /// Description of the error in the answer.
        problem: String,
    },
    /// The connection failed.
    #[error("{path}: {source}")]
    Io {
        /// Path of the socket file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}
