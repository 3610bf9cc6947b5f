//! Which bridge is asked.

use std::path::PathBuf;

use clap::Args;
use superpacket_bridge::control::{Client, default_path};

use crate::failure::Failure;

/// Which bridge.
#[derive(Clone, Debug, Args)]
pub(crate) struct Connection {
    /// The bridge's control socket [default: /run/superpacket.sock for root,
    /// $XDG_RUNTIME_DIR/superpacket.sock for others]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Connects to the bridge that the arguments name.
pub(super) fn connect(connection: &Connection) -> Result<Client, Failure> {
    match connection.control.clone().or_else(default_path) {
        Some(path) => Ok(Client::connect(&path)?),
        None => Err(Failure::Usage("where is the bridge controlled? XDG_RUNTIME_DIR is not set: give --control PATH".into())),
    }
}
