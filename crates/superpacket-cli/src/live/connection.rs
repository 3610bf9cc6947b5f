//! The connection to a running bridge, and the options that select it.

use std::path::PathBuf;

use clap::Args;
use superpacket_daemon::control::{Client, default_path};

use crate::failure::Failure;

/// Options that select a bridge.
#[derive(Clone, Debug, Args)]
pub(crate) struct ControlOptions {
    /// The bridge's control socket [default: /run/superpacket.sock for root,
    /// $XDG_RUNTIME_DIR/superpacket.sock for others]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// The arguments of `superpacket ports`: bridge, port and output format.
#[derive(Clone, Debug, Args)]
pub(crate) struct PortQuery {
    /// Only this port, by its name, or by its port string if it has none (packet:eth0)
    pub(crate) port: Option<String>,
    #[command(flatten)]
    pub(crate) connection: ControlOptions,
    /// Print as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Connects to the bridge that the arguments select.
pub(super) fn connect(connection: &ControlOptions) -> Result<Client, Failure> {
    match connection.control.clone().or_else(default_path) {
        Some(path) => Ok(Client::connect(&path)?),
        None => Err(Failure::Usage(
            "no control socket: XDG_RUNTIME_DIR is not set; give --control PATH".into(),
        )),
    }
}
