//! Live ports: the bridge, and the commands that query and change a running bridge over its control
//! socket.

mod arguments;
mod bridge;
mod bridge_options;
mod connection;
mod fdb;
mod features;
mod limits;
mod logging;
mod mdb;
pub(crate) mod monitor;
mod plan;
mod port;
mod ports;
mod rps;
mod stats;
mod top;
mod vlan;

pub(crate) use arguments::LiveCommand;

use crate::failure::Failure;

/// Runs one of the commands.
pub(crate) fn run(command: LiveCommand) -> Result<(), Failure> {
    match command {
        LiveCommand::Bridge(arguments) => bridge::run(&arguments),
        LiveCommand::Features(arguments) => features::run(&arguments),
        LiveCommand::Stats(arguments) => stats::run(&arguments),
        LiveCommand::Ports(arguments) => ports::run(&arguments),
        LiveCommand::Port(arguments) => port::run(&arguments),
        LiveCommand::Limits(arguments) => limits::run(&arguments),
        LiveCommand::Fdb(arguments) => fdb::run(&arguments),
        LiveCommand::Vlan(arguments) => vlan::run(&arguments),
        LiveCommand::Mdb(arguments) => mdb::run(&arguments),
        LiveCommand::Rps(arguments) => rps::run(&arguments),
        LiveCommand::Top(arguments) => top::run(&arguments),
        LiveCommand::Monitor(arguments) => monitor::run(&arguments),
    }
}
