//! Which bridge is asked.

use std::path::PathBuf;

use clap::Args;
use clap_complete::ArgValueCandidates;
use superpacket_bridge::control::{Client, default_path};

use super::completion;
use crate::failure::Failure;

/// Which bridge.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// The bridge's control socket [default: /run/superpacket.sock for root,
    /// $XDG_RUNTIME_DIR/superpacket.sock for others]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Of which bridge and port, and how it is printed: all that `superpacket ports` is asked.
#[derive(Clone, Debug, Args)]
pub(crate) struct PortQuery {
    /// Only this port, by its name: the given one, or else the whole port string (packet:eth0)
    #[arg(add = ArgValueCandidates::new(completion::ports))]
    pub(crate) port: Option<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Connects to the bridge that the arguments name.
pub(super) fn connect(connection: &Connection) -> Result<Client, Failure> {
    match connection.control.clone().or_else(default_path) {
        Some(path) => Ok(Client::connect(&path)?),
        None => Err(Failure::Usage(
            "where is the bridge controlled? XDG_RUNTIME_DIR is not set: give --control PATH"
                .into(),
        )),
    }
}
