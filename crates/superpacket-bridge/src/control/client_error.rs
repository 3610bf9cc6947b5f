//! Why a bridge could not be asked, or what it said no to.

use std::io;
use std::path::PathBuf;

use super::request::Refusal;

/// A bridge could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no socket.
    #[error(
        "{path}: there is no control socket: is a bridge running? (`superpacket bridge` makes it; --control PATH if it is elsewhere)"
    )]
    Absent {
        /// The socket file.
        path: PathBuf,
    },
    /// There is a socket file and nobody behind it.
    #[error("{path}: nobody listens there any more: is a bridge running?")]
    Dead {
        /// The socket file.
        path: PathBuf,
    },
    /// This user may not.
    #[error("{path}: only root and the user that the bridge runs as may control it")]
    Denied {
        /// The socket file.
        path: PathBuf,
    },
    /// The bridge said no.
    #[error("{0}")]
    Refused(Refusal),
    /// What came back is no answer.
    #[error("{path}: what came back is no answer of a bridge: {problem}")]
    Malformed {
        /// The socket file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The connection failed.
    #[error("{path}: {source}")]
    Io {
        /// The socket file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
